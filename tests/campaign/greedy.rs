//! Greedy tokens: with the drafter of any family, in any shape and in batches of any size, they are those of the target alone, but
//! where two are so close that it depends on the rows of a product which is the larger.
use std::time::Instant;

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use spectrain_eval::{Comparison, DecodeSettings, Decoder, Place, VerifierChoice};
use spectrain_models::device::test_device;
use spectrain_models::language_model::LanguageModel;
use spectrain_models::{
    Capture, Children, DraftShape, Proposer, Sampling, Session, StaticTree, Stop, StopBy, Target,
    TrainingFree, Transformer,
};

use super::times;
use crate::samples::trials;
use crate::tiny;

/// Tokens compared in short, over all drafters.
const TOKENS: u64 = 12_000;
/// Names of drafters that need no training.
const FREE: [&str; 3] = ["prompt-lookup", "token-recycling", "early-layers:4"];

/// A drafter, and a word for it.
struct Contender<'a> {
    name: String,
    capture: Capture,
    proposer: Box<dyn Fn() -> Box<dyn Proposer + 'a> + 'a>,
}

/// Untrained drafters of every recipe, those that need no training, and the target itself, of which everything is accepted.
fn contenders(target: &Transformer) -> Vec<Contender<'_>> {
    let mut all = Vec::new();
    for (number, trial) in trials().into_iter().enumerate() {
        let drafter = trial.drafter(&target.parts());
        all.push(Contender {
            name: format!("{} {number}", trial.name),
            capture: trial.method().capture(target.spec()).unwrap(),
            proposer: Box::new(move || drafter.session()),
        });
    }
    for name in FREE {
        let drafter: TrainingFree = name.parse().unwrap();
        all.push(Contender {
            name: name.into(),
            capture: Capture::default(),
            proposer: Box::new(move || drafter.proposer(target).unwrap()),
        });
    }
    let itself = itself(target);
    all.push(Contender {
        name: "the target".into(),
        capture: Capture::default(),
        proposer: Box::new(move || Box::new(Session::new(itself.clone()))),
    });
    all
}

/// The target as its own drafter.
fn itself(target: &Transformer) -> LanguageModel {
    LanguageModel::of(target.clone(), &target.parts()).unwrap()
}

/// Targets without and with windows and experts.
fn targets() -> [Transformer; 3] {
    let device = test_device();
    let mut windowed = tiny::config();
    windowed.windows = vec![None, Some(11), None, Some(30), None, Some(1)];
    [
        tiny::target(&device),
        tiny::of(windowed, &device),
        tiny::mixture(&device),
    ]
}

/// A draft of any shape.
fn shape(rng: &mut StdRng) -> DraftShape {
    let length = rng.random_range(1..9);
    match rng.random_range(0..8) {
        0..3 => DraftShape::Chain {
            length: rng.random_range(0..11),
        },
        3 => DraftShape::Static {
            tree: StaticTree::named(StaticTree::NAMES.choose(rng).unwrap()).unwrap(),
            children: Children::Top,
        },
        4 => DraftShape::Static {
            tree: tree(rng),
            children: *[Children::Top, Children::WithoutReplacement]
                .choose(rng)
                .unwrap(),
        },
        5 => DraftShape::Dynamic {
            depth: length,
            top_k: rng.random_range(1..7),
            nodes: rng.random_range(1..30),
        },
        6 => DraftShape::BestFirst {
            depth: length,
            nodes: rng.random_range(1..16),
        },
        _ => DraftShape::Confident {
            length,
            stop: Stop {
                by: *[StopBy::Head, StopBy::Entropy].choose(rng).unwrap(),
                threshold: *[0.0, 0.1, 0.5, 1.0].choose(rng).unwrap(),
            },
        },
    }
}

/// A tree that grows at random.
fn tree(rng: &mut StdRng) -> StaticTree {
    let mut paths: Vec<Vec<usize>> = vec![vec![0]];
    for _ in 0..rng.random_range(0..20) {
        let parent: &[usize] = match rng.random_range(0..=paths.len()) {
            0 => &[],
            at => &paths[at - 1],
        };
        let is_child =
            |path: &&Vec<usize>| path.len() == parent.len() + 1 && path.starts_with(parent);
        let child = [parent, &[paths.iter().filter(is_child).count()]].concat();
        if child.len() < 8 {
            paths.push(child);
        }
    }
    StaticTree::new(paths).unwrap()
}

/// What is decoded, and how.
struct Draw {
    prompts: Vec<Vec<u32>>,
    settings: DecodeSettings,
    verifier: VerifierChoice,
    batch: usize,
}

fn draw(target: &Transformer, rng: &mut StdRng) -> Draw {
    let vocab = target.spec().vocab as u32;
    let tokens = |length: usize, rng: &mut StdRng| -> Vec<u32> {
        (0..length).map(|_| rng.random_range(0..vocab)).collect()
    };
    let batch = rng.random_range(1..5);
    let prompts = (0..rng.random_range(1..7)).map(|_| {
        // Some so long that the context ends before the answer.
        let length = match rng.random_range(0..12) {
            0 => rng.random_range(440..512),
            _ => rng.random_range(1..40),
        };
        tokens(length, rng)
    });
    let prompts = prompts.collect();
    let stops = rng.random_range(0..4);
    Draw {
        prompts,
        batch,
        settings: DecodeSettings {
            max_new_tokens: rng.random_range(1..100),
            draft: shape(rng),
            sampling: Sampling::GREEDY,
            stop: tokens(stops, rng),
            shadow: None,
        },
        verifier: *[
            VerifierChoice::Exact,
            VerifierChoice::Greedy,
            VerifierChoice::Block,
        ]
        .choose(rng)
        .unwrap(),
    }
}

/// Counts of one drafter.
#[derive(Default, Clone)]
struct Counts {
    outputs: u64,
    tokens: u64,
    passes: u64,
    accepted: u64,
    /// Outputs that differ from a token on that the target's arithmetic cannot tell from another.
    ties: u64,
}

/// Decodes with and without the drafter; what differs by more than rounding, in words.
fn compare(
    target: &Transformer,
    contender: &Contender,
    draw: Draw,
    counts: &mut Counts,
) -> Option<String> {
    let decoder = Decoder::new(target, &contender.capture);
    let Draw {
        prompts,
        settings,
        verifier,
        batch,
    } = draw;
    let verifier = verifier.at(&settings.sampling);
    let mut proposers: Vec<_> = (0..batch).map(|_| (contender.proposer)()).collect();
    let seeded = |prompt: &Vec<u32>| (prompt.clone(), StdRng::seed_from_u64(0));
    let all = prompts.iter().map(seeded).collect();
    let drafted = decoder
        .generate_batch(&mut proposers, verifier, all, &settings)
        .unwrap();
    assert_eq!(drafted.len(), prompts.len());
    for (prompt, drafted) in prompts.iter().zip(drafted) {
        let plain = decoder
            .plain(prompt, &settings, &mut StdRng::seed_from_u64(0))
            .unwrap();
        counts.outputs += 1;
        counts.tokens += plain.tokens.len() as u64;
        counts.passes += drafted.passes.len() as u64;
        counts.accepted += drafted
            .passes
            .iter()
            .map(|pass| pass.accepted as u64)
            .sum::<u64>();
        let place = Place {
            dataset: &contender.name,
            prompt: 0,
            turn: 0,
        };
        let mut comparison = Comparison::default();
        let (drafted, plain) = (&drafted.tokens, &plain.tokens);
        comparison
            .add(target, place, prompt, [drafted, plain])
            .unwrap();
        let Some(difference) = comparison.differences.first() else {
            continue;
        };
        if !difference.is_tie() {
            return Some(format!(
                "{settings:?}, {batch} at a time, behind {prompt:?}: {difference:?}:\n{drafted:?}\nin place of\n{plain:?}"
            ));
        }
        eprintln!("{difference:?}");
        counts.ties += 1;
    }
    None
}

#[test]
fn greedy_tokens_with_every_drafter_are_those_of_the_target_alone() {
    let clock = Instant::now();
    let targets = targets();
    let contenders: Vec<Vec<Contender>> = targets.iter().map(contenders).collect();
    let mut counts = vec![Counts::default(); contenders[0].len()];
    let only = super::number(super::fuzz::SEED);
    let mut differ = Vec::new();
    let wanted = if only.is_some() { 1 } else { times(TOKENS) };
    let mut seed = only.unwrap_or(0);
    while counts.iter().map(|counts| counts.tokens).sum::<u64>() < wanted && differ.len() < 5 {
        let mut rng = StdRng::seed_from_u64(seed);
        let which = seed as usize % counts.len();
        let of = seed as usize / counts.len() % targets.len();
        let (target, contender) = (&targets[of], &contenders[of][which]);
        let draw = draw(target, &mut rng);
        if let Some(words) = compare(target, contender, draw, &mut counts[which]) {
            differ.push(format!(
                "{}, {}={seed}: {words}",
                contender.name,
                super::fuzz::SEED
            ));
        }
        seed += 1;
    }
    let mut all = Counts::default();
    for (contender, counts) in contenders[0].iter().zip(&counts) {
        let accepted = counts.accepted as f64 / counts.passes.max(1) as f64;
        eprintln!(
            "{:<16} {:>6} outputs {:>9} tokens, {accepted:.2} accepted a pass",
            contender.name, counts.outputs, counts.tokens
        );
        all.outputs += counts.outputs;
        all.tokens += counts.tokens;
        all.ties += counts.ties;
    }
    let seconds = clock.elapsed().as_secs_f64();
    eprintln!(
        "greedy: {} tokens of {} outputs in {seconds:.0} s, {} outputs differ by a tie, {} by more",
        all.tokens,
        all.outputs,
        all.ties,
        differ.len()
    );
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    assert!(all.ties <= all.tokens / 100_000, "too many to be rounding");
    if only.is_none() {
        let own = counts.last().unwrap();
        assert!(
            // Some of the shapes that are drawn have a single token, and some stop early.
            own.accepted > own.passes,
            "the target accepts too little of itself"
        );
        assert!(counts.iter().all(|counts| counts.tokens > 0));
    }
}

//! Acceptance without decoding is that of the decoder, for every recipe: what a drafter makes of a text in one go is what it
//! would draft if it stood at each place, and the passes that follow are those that are decoded.
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use burn::prelude::*;
use burn::tensor::DType;
use rand::{SeedableRng, rngs::StdRng};
use spectrain_eval::{
    Acceptance, DecodeSettings, Decoder, Estimable, OwnText, PassRecord, Seconds, VerifierChoice,
    estimate,
};
use spectrain_models::device::test_device;
use spectrain_models::weights::host_f32;
use spectrain_models::{
    Capture, Children, DraftShape, DraftStep, KnownText, Proposer, Sampling, StaticTree, Stop,
    StopBy, Transformer,
};

use crate::samples::{Trial, trials};
use crate::tiny;

/// Tokens of a prompt and, with the answer, of a text: more than 300, and no multiple of any block.
const PROMPT: usize = 37;
const TEXT: usize = 331;
const DEPTH: usize = 5;

fn prompt() -> Vec<u32> {
    (0..PROMPT as u32).map(|at| 1 + at * 17 % 43).collect()
}

fn target(device: &Device) -> Transformer {
    tiny::target(device)
}

/// Runs `what` on an untrained drafter of each recipe, all of which can propose every token.
fn for_each_recipe(mut what: impl FnMut(&Trial, &Transformer, &mut dyn Proposer)) {
    let target = target(&test_device());
    for trial in &trials() {
        let drafter = trial.drafter(&target.parts());
        what(trial, &target, drafter.session().as_mut());
    }
}

/// What a drafter gives at each place when it is asked as a decoder asks.
fn one_by_one(session: &mut dyn Proposer, text: &KnownText, place: usize) -> Vec<Vec<f32>> {
    session.start(TEXT + DEPTH, text.tokens[0]);
    let places: Vec<usize> = (0..place).collect();
    session.observe(&text.tokens[1..=place], &text.features.select(&places));
    let drafted = text.steps(place).min(session.draft_length()) - 1;
    let path: Vec<u32> = (1..=drafted)
        .map(|step| text.tokens.get(place + step).copied().unwrap_or(0))
        .collect();
    session.forced(&path)
}

/// Fails unless a drafter makes of a text in one go what it would draft at each place. Returns how often it was given logits.
pub fn drafts_along_as_at_each_place(
    name: &str,
    (target, capture): (&Transformer, &Capture),
    session: &mut dyn Proposer,
) -> usize {
    let answer: Vec<u32> = (PROMPT..TEXT).map(|at| (at * at % 43) as u32).collect();
    let own = OwnText::read(target, capture, &prompt(), &answer, answer.len()).unwrap();
    let mut given = 0;
    for limit in [TEXT, TEXT + 3] {
        let text = KnownText {
            tokens: &own.tokens,
            features: &own.features,
            first: own.first,
            depth: DEPTH.min(session.draft_length()),
            limit,
        };
        let mut found: BTreeMap<DraftStep, Vec<f32>> = BTreeMap::new();
        session.along(&text, &mut |steps, logits| {
            given += 1;
            assert_eq!(logits.dims()[0], steps.len());
            assert_eq!(logits.dtype(), DType::F32);
            let width = logits.dims()[1];
            for (step, row) in steps.iter().zip(host_f32(logits).chunks(width)) {
                assert!(
                    found.insert(*step, row.to_vec()).is_none(),
                    "{step:?} twice"
                );
            }
            ControlFlow::Continue(())
        });
        let mut taken = 0;
        session.along(&text, &mut |_, _| {
            taken += 1;
            ControlFlow::Break(())
        });
        assert_eq!(taken, 1, "{name} goes on though no others are wanted");
        let asked = (own.first..TEXT - 1)
            .map(|place| text.known(place))
            .sum::<usize>();
        assert_eq!(found.len(), asked, "{name}");
        for place in [PROMPT, PROMPT + 1, 200, 310, TEXT - 8, TEXT - 4, TEXT - 3] {
            let expected = one_by_one(session, &text, place);
            for (step, expected) in expected.iter().enumerate().take(text.known(place)) {
                let row = &found[&DraftStep { place, step }];
                let apart = row.iter().zip(expected).filter(|(a, b)| a != b);
                let apart = apart.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(apart < 2e-4, "{name} {place} {step}: {apart}");
            }
        }
    }
    given
}

#[test]
fn every_recipe_makes_of_a_text_in_one_go_what_it_would_draft_at_each_place() {
    for_each_recipe(|trial, target, session| {
        let capture = trial.method().capture(&target.parts().spec).unwrap();
        drafts_along_as_at_each_place(trial.name, (target, &capture), session);
    });
}

fn untimed(passes: &[PassRecord]) -> Vec<PassRecord> {
    let untimed = |pass: &PassRecord| PassRecord {
        seconds: Seconds::default(),
        together: 0,
        ..*pass
    };
    passes.iter().map(untimed).collect()
}

/// So wide that an untrained drafter's guesses are often among them.
fn wide() -> StaticTree {
    let root = (0..16).map(|rank| vec![rank]);
    let behind = (0..8).flat_map(|first| (0..16).map(move |rank| vec![first, rank]));
    let third = (0..8).map(|rank| vec![0, 0, rank]);
    StaticTree::new(root.chain(behind).chain(third).collect()).unwrap()
}

#[test]
fn every_recipe_is_estimated_pass_by_pass_as_it_is_decoded() {
    for_each_recipe(|trial, target, session| {
        let capture = trial.method().capture(&target.parts().spec).unwrap();
        let decoder = Decoder::new(target, &capture);
        let mut accepted = 0;
        for (shape, temperature, stop) in [
            (DraftShape::Chain { length: DEPTH }, 0.0, vec![]),
            (top(wide()), 0.0, vec![]),
            (top(wide()), 1.0, vec![]),
            (top(wide()), 1.0, (0..8).collect()),
        ] {
            let sampling = Sampling::at(temperature);
            let verifier = VerifierChoice::Exact.at(&sampling);
            let settings = DecodeSettings {
                max_new_tokens: 40,
                draft: shape.clone(),
                sampling,
                stop,
                shadow: None,
            };
            let mut rng = StdRng::seed_from_u64(3);
            let generation = decoder
                .generate(session, verifier, &prompt(), &settings, &mut rng)
                .unwrap();
            let tokens = &generation.tokens;
            let text = OwnText::read(target, &capture, &prompt(), tokens, 40);
            let Some(text) = text else { continue };
            let draft = Estimable::of(&shape, &sampling, verifier).unwrap();
            let found = estimate(session, &text, &draft).unwrap();
            let expected = untimed(&generation.passes);
            assert_eq!(found.passes, expected, "{} {shape:?}", trial.name);
            accepted += expected.iter().map(|pass| pass.accepted).sum::<usize>();
        }
        assert!(accepted > 10, "{}: {accepted}", trial.name);
    });
}

/// Thresholds at which chains of an untrained drafter end: its entropies are close to that of no knowledge.
const THRESHOLDS: [f64; 4] = [0.13, 0.14, 0.15, 0.2];

#[test]
fn every_recipe_with_chains_that_end_early_gives_the_targets_own_tokens_as_estimated() {
    let mut ended = 0;
    for_each_recipe(|trial, target, session| {
        let capture = trial.method().capture(&target.parts().spec).unwrap();
        let decoder = Decoder::new(target, &capture);
        let verifier = VerifierChoice::Exact.at(&Sampling::GREEDY);
        for threshold in THRESHOLDS {
            let stop = Stop {
                by: StopBy::Entropy,
                threshold,
            };
            let shape = DraftShape::Confident {
                length: DEPTH,
                stop,
            };
            let settings = DecodeSettings {
                max_new_tokens: 40,
                draft: shape.clone(),
                sampling: Sampling::GREEDY,
                stop: Vec::new(),
                shadow: None,
            };
            let mut rng = StdRng::seed_from_u64(3);
            let generation = decoder
                .generate(session, verifier, &prompt(), &settings, &mut rng)
                .unwrap();
            let plain = decoder.plain(&prompt(), &settings, &mut rng).unwrap();
            assert_eq!(generation.tokens, plain.tokens, "{} {stop:?}", trial.name);
            let tokens = &generation.tokens;
            let text = OwnText::read(target, &capture, &prompt(), tokens, 40).unwrap();
            let draft = Estimable::of(&shape, &Sampling::GREEDY, verifier).unwrap();
            let found = estimate(session, &text, &draft).unwrap();
            let decoded = Acceptance::of(&generation.passes);
            assert!(found.is_as_decoded(&decoded), "{} {stop:?}", trial.name);
            let inner = |pass: &&PassRecord| (1..DEPTH).contains(&pass.drafted);
            ended += generation.passes.iter().filter(inner).count();
        }
    });
    assert!(ended > 100, "{ended}");
}

fn top(tree: StaticTree) -> DraftShape {
    DraftShape::Static {
        tree,
        children: Children::Top,
    }
}

//! Sequences that are decoded side by side are those that are decoded one after the other, for every recipe: the same tokens, in
//! the same passes, whatever their lengths and whoever ends first.
use burn::prelude::*;
use rand::{SeedableRng, rngs::StdRng};
use spectrain_eval::{
    DecodeSettings, Decoder, Generation, PassRecord, Seconds, Verifier, VerifierChoice,
};
use spectrain_models::device::test_device;
use spectrain_models::weights::host_f32;
use spectrain_models::{
    Caches, Capture, Children, DraftShape, LogitRows, Pass, Proposer, Sampling, SequencePass,
    StaticTree, Target, Transformer, TransformerConfig, chain,
};

use crate::samples::trials;
use crate::tiny;

/// Tokens of each prompt: one of them fills the context nearly, so that it ends before the others.
const LENGTHS: [usize; 5] = [3, 331, 17, 307, 498];
const NEW_TOKENS: usize = 20;

fn prompts() -> Vec<Vec<u32>> {
    let prompt = |(number, &length): (usize, &usize)| {
        let token = |at: usize| (1 + (at * (13 + number) + at * at % 11) % 43) as u32;
        (0..length).map(token).collect()
    };
    LENGTHS.iter().enumerate().map(prompt).collect()
}

fn rng(number: usize) -> StdRng {
    StdRng::seed_from_u64(20 + number as u64)
}

fn untimed(generation: &Generation) -> (Vec<u32>, Vec<PassRecord>) {
    let untimed = |pass: &PassRecord| PassRecord {
        seconds: Seconds::default(),
        together: 0,
        ..*pass
    };
    let passes = generation.passes.iter().map(untimed).collect();
    (generation.tokens.clone(), passes)
}

/// What follows each prompt, decoded alone.
fn one_by_one(
    decoder: &Decoder,
    mut session: Box<dyn Proposer + '_>,
    verifier: &dyn Verifier,
    settings: &DecodeSettings,
) -> Vec<(Vec<u32>, Vec<PassRecord>)> {
    let prompts = prompts();
    let decoded = prompts.iter().enumerate().map(|(number, prompt)| {
        let rng = &mut rng(number);
        let found = decoder.generate(session.as_mut(), verifier, prompt, settings, rng);
        untimed(&found.unwrap())
    });
    decoded.collect()
}

#[test]
fn every_recipe_decodes_a_batch_of_ragged_prompts_as_it_does_one_after_the_other() {
    let target = tiny::target(&test_device());
    let tree = StaticTree::named("eagle-25").unwrap();
    let children = Children::Top;
    for trial in &trials() {
        let drafter = trial.drafter(&target.parts());
        let capture = trial.method().capture(&target.parts().spec).unwrap();
        let decoder = Decoder::new(&target, &capture);
        // How many prompts at a time: fewer than there are, some that are done first, and more.
        for (draft, temperature, stop, sizes) in [
            (
                DraftShape::Chain { length: 4 },
                0.0,
                vec![7, 9],
                &[2, 7][..],
            ),
            (DraftShape::Chain { length: 4 }, 1.0, vec![2, 5], &[5]),
            (
                DraftShape::Static {
                    tree: tree.clone(),
                    children,
                },
                1.0,
                vec![],
                &[2],
            ),
        ] {
            let sampling = Sampling::at(temperature);
            let verifier = VerifierChoice::Exact.at(&sampling);
            let settings = DecodeSettings {
                max_new_tokens: NEW_TOKENS,
                draft: draft.clone(),
                sampling,
                stop,
                shadow: None,
            };
            let session = drafter.session();
            let alone = one_by_one(&decoder, session, verifier, &settings);
            for &size in sizes {
                let mut sessions: Vec<_> = (0..size).map(|_| drafter.session()).collect();
                let asked = prompts().into_iter().enumerate();
                let asked = asked
                    .map(|(number, prompt)| (prompt, rng(number)))
                    .collect();
                let found = decoder
                    .generate_batch(&mut sessions, verifier, asked, &settings)
                    .unwrap();
                let found: Vec<_> = found.iter().map(untimed).collect();
                assert_eq!(found, alone, "{} {draft:?}, {size} at a time", trial.name);
            }
            let lengths: Vec<usize> = alone.iter().map(|(tokens, _)| tokens.len()).collect();
            if settings.stop.is_empty() {
                assert_eq!(
                    lengths,
                    [NEW_TOKENS, NEW_TOKENS, NEW_TOKENS, NEW_TOKENS, 14]
                );
            } else {
                assert!(lengths.iter().any(|&length| length < 14), "{lengths:?}");
            }
        }
    }
}

/// Windows on some layers, whose masks depend on how much a sequence holds.
fn windowed() -> Transformer {
    let config = TransformerConfig {
        windows: vec![None, Some(5), None, Some(300), None, Some(5)],
        ..tiny::config()
    };
    tiny::of(config, &test_device())
}

#[test]
fn a_pass_of_several_sequences_gives_each_its_own_logits_features_and_cache() {
    passes_side_by_side(&windowed());
}

#[test]
fn so_does_a_pass_through_experts() {
    passes_side_by_side(&tiny::mixture(&test_device()));
}

fn passes_side_by_side(target: &Transformer) {
    let capture = Capture { layers: vec![1, 4] };
    let tree = [None, Some(0), Some(0), Some(2)];
    let line = chain(3);
    let pass = |tokens, parents, logits| Pass {
        tokens,
        parents,
        logits,
    };
    let asked = [
        pass(&[4, 5, 6, 7], &tree, LogitRows::All),
        pass(&[8, 9, 10], &line, LogitRows::Last),
        pass(&[11], &[None], LogitRows::All),
    ];
    let start = |length: usize| {
        let mut caches = Caches::new(6, length + 4);
        let tokens: Vec<u32> = (0..length).map(|at| (at * 7 % 43) as u32).collect();
        let pass = Pass {
            tokens: &tokens,
            parents: &chain(length),
            logits: LogitRows::Last,
        };
        target.decode(pass, &mut caches, &capture);
        caches
    };
    let mut joined: Vec<Caches> = [2, 310, 40].map(start).into();
    let mut alone = joined.clone();
    let passes = joined.iter_mut().zip(asked);
    let passes = passes.map(|(caches, pass)| SequencePass { pass, caches });
    let found = target.decode_batch(passes.collect(), &capture);
    for ((found, caches), pass) in found.iter().zip(&mut alone).zip(asked) {
        let expected = target.decode(pass, caches, &capture);
        let pairs = [
            (
                found.logits.clone().unsqueeze(),
                expected.logits.unsqueeze(),
            ),
            (found.features.captured.clone(), expected.features.captured),
            (found.features.last.clone(), expected.features.last),
        ];
        for (found, expected) in pairs {
            let (found, expected): (Tensor<3>, Tensor<3>) = (found, expected);
            assert_eq!(found.dims(), expected.dims());
            let apart = host_f32((found - expected).abs().max().reshape([1, 1, 1]))[0];
            assert!(apart < 1e-4, "{apart}");
        }
    }
    let lengths = |all: &[Caches]| all.iter().map(|caches| caches.len).collect::<Vec<_>>();
    assert_eq!(lengths(&joined), [6, 313, 41]);
    assert_eq!(lengths(&joined), lengths(&alone));
}

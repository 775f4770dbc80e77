use rand::{SeedableRng, rngs::StdRng};

use spectrain_models::{Children, DraftShape, Sampling, StaticTree};

use super::*;
use crate::statistics::Acceptance;
use crate::toy::{Style, TARGET, ToyDrafter, ToyTarget, logits};
use crate::verify::{Greedy, Rejection, VerifierChoice};

fn settings(max_new_tokens: usize, length: usize) -> DecodeSettings {
    DecodeSettings {
        max_new_tokens,
        draft: DraftShape::Chain { length },
        sampling: Sampling::GREEDY,
        stop: Vec::new(),
        shadow: None,
    }
}

fn shapes() -> Vec<DraftShape> {
    let shape = |tree, children| DraftShape::Static {
        tree: StaticTree::named(tree).unwrap(),
        children,
    };
    vec![
        shape("eagle-25", Children::Top),
        shape("medusa-63", Children::WithoutReplacement),
        shape("eagle-25", Children::WithReplacement),
        DraftShape::Dynamic {
            depth: 5,
            top_k: 3,
            nodes: 12,
        },
    ]
}

/// What plain decoding and speculation give, and the drafter with what it saw.
struct Outcome {
    plain: Generation,
    speculative: Generation,
    drafter: ToyDrafter,
}

fn decode(target: &ToyTarget, style: Style, prompt: &[u32], settings: &DecodeSettings) -> Outcome {
    let capture = Capture::default();
    let decoder = Decoder::new(target, &capture);
    let mut drafter = ToyDrafter::new(style);
    let mut rng = StdRng::seed_from_u64(4);
    let verifier = VerifierChoice::Exact.at(&settings.sampling);
    let speculative = decoder
        .generate(&mut drafter, verifier, prompt, settings, &mut rng)
        .unwrap();
    let plain = decoder.plain(prompt, settings, &mut rng).unwrap();
    Outcome {
        plain,
        speculative,
        drafter,
    }
}

/// The toy target's greedy continuation, without caches or passes.
fn recomputed(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut text = prompt.to_vec();
    for _ in 0..count {
        text.push(spectrain_models::argmax(&logits(&text, TARGET)) as u32);
    }
    text.split_off(prompt.len())
}

#[test]
fn greedy_speculation_gives_the_tokens_of_plain_decoding() {
    let target = ToyTarget::default();
    for style in [Style::Own, Style::Oracle, Style::Adversarial, Style::Tree] {
        for length in [0, 1, 2, 5] {
            for prompt in [&[3][..], &[0, 1, 2, 3, 4, 0]] {
                let outcome = decode(&target, style, prompt, &settings(60, length));
                let expected = recomputed(prompt, 60);
                assert_eq!(outcome.plain.tokens, expected);
                assert_eq!(outcome.speculative.tokens, expected, "{style:?} {length}");
            }
        }
    }
}

#[test]
fn greedy_decoding_with_trees_gives_the_tokens_of_plain_decoding() {
    let target = ToyTarget::default();
    let chain = decode(&target, Style::Own, &[3], &settings(60, 5)).speculative;
    for draft in shapes() {
        for prompt in [&[3][..], &[0, 1, 2, 3, 4, 0]] {
            let settings = DecodeSettings {
                draft: draft.clone(),
                ..settings(60, 0)
            };
            let outcome = decode(&target, Style::Own, prompt, &settings);
            let tokens = outcome.speculative.tokens;
            assert_eq!(tokens, recomputed(prompt, 60), "{draft:?}");
            let passes = &outcome.speculative.passes;
            assert!(passes.len() < chain.passes.len(), "{draft:?}");
            assert!(passes.iter().all(|pass| pass.drafted <= draft.nodes()));
            assert!(passes.iter().all(|pass| pass.depth <= draft.length()));
        }
    }
}

#[test]
fn rejection_at_temperature_zero_gives_the_tokens_of_greedy() {
    let target = ToyTarget::default();
    let capture = Capture::default();
    let decoder = Decoder::new(&target, &capture);
    for style in [Style::Own, Style::Tree] {
        let run = |verifier: &dyn Verifier| {
            let mut rng = StdRng::seed_from_u64(4);
            let mut drafter = ToyDrafter::new(style);
            let generation =
                decoder.generate(&mut drafter, verifier, &[1], &settings(40, 3), &mut rng);
            generation.unwrap().tokens
        };
        assert_eq!(run(&Greedy), run(&Rejection));
    }
}

#[test]
fn the_target_as_its_own_drafter_is_accepted_in_full() {
    let target = ToyTarget::default();
    for sampling in [
        Sampling::GREEDY,
        Sampling::at(1.0),
        Sampling::at(0.5),
        Sampling {
            temperature: 0.8,
            top_k: 3,
            top_p: 0.9,
        },
    ] {
        let settings = DecodeSettings {
            sampling,
            ..settings(41, 4)
        };
        let generation = decode(&target, Style::Oracle, &[2, 2], &settings).speculative;
        let counts = Acceptance::of(&generation.passes);
        assert_eq!(counts.alpha(), Some(1.0));
        // 40 tokens after the first, five at a time.
        assert_eq!((counts.passes, counts.tau()), (8.0, Some(5.0)));
    }
}

#[test]
fn a_drafter_of_least_likely_tokens_is_never_accepted() {
    let outcome = decode(
        &ToyTarget::default(),
        Style::Adversarial,
        &[1],
        &settings(30, 3),
    );
    let counts = Acceptance::of(&outcome.speculative.passes);
    assert_eq!((counts.alpha(), counts.tau()), (Some(0.0), Some(1.0)));
}

#[test]
fn the_drafter_sees_every_feature_once_with_the_token_after_it() {
    // The toy drafter itself asserts that feature and token belong together; here, that none is left out.
    for style in [Style::Own, Style::Tree] {
        let prompt = [1, 2, 3];
        let Outcome {
            speculative,
            drafter,
            ..
        } = decode(&ToyTarget::default(), style, &prompt, &settings(50, 4));
        let accepted: Vec<usize> = speculative
            .passes
            .iter()
            .map(|pass| pass.accepted)
            .collect();
        assert!(
            accepted.contains(&0) && accepted.iter().any(|&n| n > 1),
            "{accepted:?}"
        );
        let rows: Vec<[u32; 2]> = drafter.observed.concat();
        let text = [&prompt[..], &speculative.tokens].concat();
        // The last pass ends the text, and is not observed any more.
        let last = speculative.passes.last().unwrap().emitted;
        let seen = text.len() - 1 - last;
        let expected: Vec<[u32; 2]> = (0..seen).map(|at| [text[at], at as u32]).collect();
        assert_eq!(rows, expected);
        assert_eq!(drafter.observed[0].len(), prompt.len());
        for (rows, pass) in drafter.observed[1..].iter().zip(&speculative.passes) {
            assert_eq!(rows.len(), pass.emitted);
        }
    }
}

#[test]
fn an_output_ends_with_the_first_stop_token_wherever_in_a_pass_it_falls() {
    let target = ToyTarget::default();
    let prompt = [1, 0, 2];
    let free = recomputed(&prompt, 40);
    for stop in 0..5u32 {
        let Some(at) = free.iter().position(|&token| token == stop) else {
            continue;
        };
        for style in [Style::Oracle, Style::Own, Style::Tree] {
            let settings = DecodeSettings {
                stop: vec![stop],
                ..settings(40, 5)
            };
            let outcome = decode(&target, style, &prompt, &settings);
            assert_eq!(outcome.plain.tokens, free[..=at]);
            let Generation { tokens, passes, .. } = outcome.speculative;
            assert_eq!(tokens, free[..=at]);
            let emitted: usize = passes.iter().map(|pass| pass.emitted).sum();
            assert_eq!(1 + emitted, tokens.len());
            let counts = Acceptance::of(&passes);
            assert!(passes.iter().all(|pass| pass.emitted == pass.accepted + 1));
            if style == Style::Oracle && counts.tested.iter().sum::<f64>() > 0.0 {
                assert_eq!(counts.alpha(), Some(1.0), "a cut is not a rejection");
            }
        }
    }
}

#[test]
fn drafts_shorten_so_that_no_token_is_too_many() {
    for (max_new_tokens, requests) in [(1, vec![]), (2, vec![]), (3, vec![1]), (8, vec![4, 1])] {
        let settings = settings(max_new_tokens, 4);
        let outcome = decode(&ToyTarget::default(), Style::Oracle, &[1], &settings);
        assert_eq!(outcome.speculative.tokens.len(), max_new_tokens);
        assert_eq!(outcome.plain.tokens.len(), max_new_tokens);
        assert_eq!(outcome.drafter.requests, requests);
    }
}

#[test]
fn decoding_ends_at_the_end_of_the_context() {
    let target = ToyTarget::with_positions(12);
    for style in [Style::Oracle, Style::Own, Style::Tree] {
        let outcome = decode(&target, style, &[1, 2, 3], &settings(100, 5));
        assert_eq!(outcome.speculative.tokens, recomputed(&[1, 2, 3], 9));
        assert_eq!(outcome.plain.tokens, outcome.speculative.tokens);
    }
}

#[test]
fn what_cannot_be_decoded_is_an_error() {
    let target = ToyTarget::with_positions(4);
    let capture = Capture::default();
    let decoder = Decoder::new(&target, &capture);
    let message = |style, prompt: &[u32], settings: &DecodeSettings, verifier: &dyn Verifier| {
        let mut rng = StdRng::seed_from_u64(0);
        let generation = decoder.generate(
            &mut ToyDrafter::new(style),
            verifier,
            prompt,
            settings,
            &mut rng,
        );
        generation.unwrap_err().to_string()
    };
    let prompt =
        "prompt: expected 1 to 3 tokens, so that one more fits the target's context, found";
    let plenty = settings(9, 1);
    assert_eq!(
        message(Style::Own, &[], &plenty, &Greedy),
        format!("{prompt} 0 tokens")
    );
    assert_eq!(
        message(Style::Own, &[0; 4], &plenty, &Greedy),
        format!("{prompt} 4 tokens")
    );
    assert_eq!(
        message(Style::Own, &[1], &settings(0, 1), &Greedy),
        "`max_new_tokens`: expected at least 1, found 0"
    );
    assert_eq!(
        message(Style::TooLong, &[1], &plenty, &Greedy),
        "draft: expected at most 1 steps, found 2"
    );
    let sampled = DecodeSettings {
        sampling: Sampling::at(0.5),
        ..plenty
    };
    assert_eq!(
        message(Style::Own, &[1], &sampled, &Greedy),
        "`verifier`: expected `exact` or `rejection` above temperature 0, found `greedy` at temperature 0.5"
    );
    assert_eq!(
        message(Style::Own, &[1, 5], &settings(9, 1), &Greedy),
        "prompt: expected tokens below 5, of which the target has so many, found 5 at place 1"
    );
    let broken = DecodeSettings {
        sampling: Sampling::at(f64::NAN),
        ..settings(9, 1)
    };
    assert_eq!(
        message(Style::Own, &[1], &broken, &Rejection),
        "`temperature`: expected 0 or more, found NaN"
    );
}

#[test]
fn as_many_tokens_as_there_may_be_end_with_the_context() {
    let target = ToyTarget::with_positions(12);
    let outcome = decode(&target, Style::Own, &[1, 2, 3], &settings(usize::MAX, 5));
    assert_eq!(outcome.speculative.tokens, recomputed(&[1, 2, 3], 9));
    assert_eq!(outcome.plain.tokens, outcome.speculative.tokens);
}

#[test]
fn an_error_leaves_the_generator_behind_what_was_drawn() {
    let capture = Capture::default();
    let sampled = DecodeSettings {
        sampling: Sampling::at(1.0),
        ..settings(40, 3)
    };
    // A prompt that is refused draws nothing.
    let target = ToyTarget::default();
    let decoder = Decoder::new(&target, &capture);
    let mut rng = StdRng::seed_from_u64(4);
    assert!(decoder.plain(&[], &sampled, &mut rng).is_err());
    assert_eq!(rng, StdRng::seed_from_u64(4));
    // An error in the midst of decoding: what is drawn next is neither what was drawn nor that of another seed.
    let target = ToyTarget::broken_behind(|text| text.len() > 9);
    let decoder = Decoder::new(&target, &capture);
    let mut drafter = ToyDrafter::new(Style::Own);
    let failed = decoder.generate(&mut drafter, &Rejection, &[1], &sampled, &mut rng);
    assert!(matches!(failed, Err(Error::Logits { .. })), "{failed:?}");
    for seed in [4, 0] {
        assert_ne!(rng, StdRng::seed_from_u64(seed));
    }
}

#[test]
fn who_asks_at_a_desk_gets_what_a_prompt_gives_alone() {
    let target = ToyTarget::with_positions(40);
    let capture = Capture::default();
    let decoder = Decoder::new(&target, &capture);
    let settings = DecodeSettings {
        sampling: Sampling::at(1.0),
        stop: vec![2],
        ..settings(30, 0)
    };
    let prompt = |number: u32| vec![number % 4; 1 + number as usize % 5];
    let alone = |number: u32| {
        let mut rng = StdRng::seed_from_u64(number.into());
        let plain = decoder.plain(&prompt(number), &settings, &mut rng);
        plain.unwrap().tokens
    };
    for size in [1, 3, 50] {
        let (desk, orders) = Desk::open();
        std::thread::scope(|scope| {
            let asking = scope.spawn(move || {
                let desk = &desk;
                std::thread::scope(|scope| {
                    let one = |number: u32| {
                        let found = desk.ask(prompt(number), number.into());
                        (number, found.unwrap().tokens)
                    };
                    let all: Vec<_> = (0..20).map(|n| scope.spawn(move || one(n))).collect();
                    // They are answered beside one that cannot be.
                    let refused = desk.ask(vec![0; 40], 0).unwrap_err();
                    assert!(refused.to_string().contains("found 40 tokens"), "{refused}");
                    let found = all.into_iter().map(|one| one.join().unwrap());
                    found.collect::<Vec<_>>()
                })
            });
            decoder.serve(orders, size, &settings);
            for (number, tokens) in asking.join().unwrap() {
                assert_eq!(tokens, alone(number), "{size} {number}");
            }
        });
    }
}

#[test]
fn a_batch_of_prompts_says_what_became_of_each() {
    let target = ToyTarget::with_positions(40);
    let capture = Capture::default();
    let decoder = Decoder::new(&target, &capture);
    let settings = settings(30, 0);
    let prompts = [vec![1], vec![], vec![3, 1], vec![0; 40], vec![2]];
    for size in [1, 2, 9] {
        let found = decoder.plain_batch(prompts.clone(), 0, size, &settings);
        for (prompt, found) in prompts.iter().zip(found) {
            match found {
                Ok(found) => assert_eq!(found.tokens, recomputed(prompt, 30), "{size}"),
                Err(_) => assert!([0, 40].contains(&prompt.len()), "{size}"),
            }
        }
    }
    // One error is of the batch, not of a prompt.
    let none = decoder.plain_batch(prompts, 0, 0, &settings);
    assert!(none.iter().all(Result::is_err));
    let decoder = decoder.unless(&|| true);
    let stopped = decoder.plain_batch([vec![1], vec![2]], 0, 2, &settings);
    let is_stopped = |found: &Result<Generation>| matches!(found, Err(Error::Interrupted));
    assert!(stopped.iter().all(is_stopped));
}

#[test]
fn what_fails_in_a_batch_fails_alone() {
    let target = ToyTarget::broken_behind(|text| text[0] == 3 && text.len() > 9);
    let capture = Capture::default();
    let decoder = Decoder::new(&target, &capture);
    let prompts = [vec![1], vec![3, 1], vec![1; 5], vec![3], vec![2]];
    for size in [1, 4] {
        let found = decoder.plain_batch(prompts.clone(), 0, size, &settings(30, 0));
        for (prompt, found) in prompts.iter().zip(found) {
            match found {
                Ok(found) => assert_eq!(found.tokens, recomputed(prompt, 30), "{size}"),
                Err(error) => assert!(prompt[0] == 3, "{size} {prompt:?}: {error}"),
            }
        }
    }
}

#[test]
fn seconds_are_not_negative_and_sum_up() {
    let outcome = decode(&ToyTarget::default(), Style::Own, &[1], &settings(30, 3));
    let generation = outcome.speculative;
    let sum: f64 = generation
        .passes
        .iter()
        .map(|pass| pass.seconds.total())
        .sum();
    assert!((sum - generation.seconds().total()).abs() < 1e-9);
    let all = generation.passes.iter().map(|pass| pass.seconds);
    assert!(
        all.clone()
            .all(|s| s.draft >= 0.0 && s.verify > 0.0 && s.other >= 0.0)
    );
    assert!(generation.prompt_seconds > 0.0);
}

#[test]
fn decoding_stops_before_the_next_pass_once_it_is_interrupted() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let target = ToyTarget::default();
    let capture = Capture::default();
    for passes in 0..4 {
        let asked = AtomicUsize::new(0);
        let interrupted = || asked.fetch_add(1, Ordering::Relaxed) == passes;
        let decoder = Decoder::new(&target, &capture).unless(&interrupted);
        let mut rng = StdRng::seed_from_u64(4);
        let settings = settings(40, 3);
        let mut drafter = ToyDrafter::new(Style::Own);
        let speculative = decoder.generate(&mut drafter, &Greedy, &[1], &settings, &mut rng);
        assert!(speculative.unwrap_err().is_interruption());
        assert_eq!(asked.swap(0, Ordering::Relaxed), passes + 1);
        let plain = decoder.plain(&[1], &settings, &mut rng);
        assert!(plain.unwrap_err().is_interruption());
        assert_eq!(asked.load(Ordering::Relaxed), passes + 1);
    }
    let error = Error::At {
        dataset: "a".into(),
        prompt: 3,
        source: Box::new(Error::Interrupted),
    };
    assert!(error.is_interruption());
    let other = Error::Device("gone".into());
    assert!(!other.is_interruption());
}

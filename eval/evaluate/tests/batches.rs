//! Prompts that are decoded side by side.
use std::time::Instant;

use rand::{SeedableRng as _, rngs::StdRng};

use super::*;
use crate::deploy::report::CostSource;
use crate::speculate::PassRecord;

/// Tokens and counts of every output.
fn untimed(found: &Evaluation) -> Vec<(Vec<u32>, Vec<PassRecord>)> {
    let answers = found.outputs.iter().flatten().flatten();
    let untimed = |pass: &PassRecord| PassRecord {
        seconds: Seconds::default(),
        together: 0,
        ..*pass
    };
    let of = |answer: &Answer| {
        let passes = answer.generation.passes.iter().map(untimed).collect();
        (answer.generation.tokens.clone(), passes)
    };
    answers.map(of).collect()
}

#[test]
fn what_is_found_does_not_depend_on_how_many_are_decoded_at_a_time() {
    let settings = EvaluateSettings {
        stop: vec![2],
        ..settings()
    };
    let alone = evaluated(Style::Own, &settings).unwrap();
    let lengths = alone.outputs[0].iter().flatten();
    let lengths: Vec<usize> = lengths.map(|of| of.generation.tokens.len()).collect();
    assert!(
        lengths.iter().any(|length| *length != lengths[0]),
        "{lengths:?}"
    );
    for batch_size in [2, 3, 9] {
        let settings = EvaluateSettings {
            batch_size,
            ..settings.clone()
        };
        let found = evaluated(Style::Own, &settings).unwrap();
        assert_eq!(untimed(&found), untimed(&alone), "{batch_size}");
        assert_eq!(found.greedy, alone.greedy);
        // There are four prompts.
        assert_eq!(found.batch_size, batch_size.min(4));
    }
}

#[test]
fn a_batch_is_no_larger_than_there_are_prompts() {
    let with = |batch_size: usize| {
        let settings = EvaluateSettings {
            samplings: vec![Sampling::GREEDY],
            drafts: vec![DraftChoice::chain(2)],
            batch_size,
            ..settings()
        };
        evaluated(Style::Own, &settings).unwrap()
    };
    for batch_size in [4, 64] {
        let found = with(batch_size);
        let together = found.outputs.iter().flatten().flatten();
        let together = together.flat_map(|of| &of.generation.passes);
        assert_eq!(together.map(|pass| pass.together).max(), Some(4));
        // What full batches do is what is predicted and timed.
        let sizes: Vec<usize> = found.recommended.iter().map(|one| one.batch_size).collect();
        assert!(sizes.contains(&4) && !sizes.contains(&64), "{sizes:?}");
        let speedup = found.settings[0].overall.speedup.unwrap();
        assert!(speedup.full_batches.is_some() && speedup.predicted.is_some());
    }
}

#[test]
fn nothing_is_decoded_none_at_a_time() {
    let settings = EvaluateSettings {
        batch_size: 0,
        ..settings()
    };
    let error = evaluated(Style::Own, &settings).unwrap_err().to_string();
    assert_eq!(error, "`batch_size`: expected at least one, found none");
}

#[test]
fn the_seconds_of_all_sequences_are_together_no_more_than_passed() {
    let target = ToyTarget::default();
    let capture = Capture::default();
    let decoder = Decoder::new(&target, &capture);
    let settings = settings();
    let shape = DraftShape::Chain { length: 3 };
    let decode = settings.decode(&Sampling::GREEDY, &shape, settings::Warm::Already);
    let mut proposers: Vec<_> = (0..3).map(|_| toy(Style::Own)).collect();
    let prompts = (0..5).map(|first| (vec![first], StdRng::seed_from_u64(1)));
    let verifier = settings.verifier.at(&Sampling::GREEDY);
    let clock = Instant::now();
    let found = decoder
        .generate_batch(&mut proposers, verifier, prompts.collect(), &decode)
        .unwrap();
    let passed = clock.elapsed().as_secs_f64();
    let seconds: f64 = found.iter().map(|of| of.seconds().total()).sum();
    let prompts: f64 = found.iter().map(|of| of.prompt_seconds).sum();
    assert!(
        seconds > 0.0 && seconds + prompts <= passed,
        "{seconds} {passed}"
    );
}

#[test]
fn the_speed_up_of_every_draft_is_predicted_and_the_fastest_is_recommended() {
    let settings = EvaluateSettings {
        batch_size: 2,
        ..settings()
    };
    let found = evaluated(Style::Own, &settings).unwrap();
    for setting in &found.settings {
        let speedup = setting.overall.speedup.unwrap();
        let [low, high] = speedup.predicted_ci95.unwrap();
        let predicted = speedup.predicted.unwrap();
        assert!(
            0.0 < low && low <= predicted && predicted <= high,
            "{speedup:?}"
        );
    }
    let of = |temperature| {
        let all = found.recommended.iter();
        all.filter(move |one| one.temperature == temperature && one.batch_size == 2)
    };
    for (temperature, families) in [(0.0, 1), (1.0, 2)] {
        let one = of(temperature).next().unwrap();
        assert_eq!(one.costs, CostSource::Decoder);
        assert!(one.rounds.unwrap() >= 8 && one.plain_seconds > 0.0);
        // Chains of 1 to 4 tokens, drawn and likeliest above temperature 0.
        assert_eq!(one.candidates.len(), 4 * families);
        let fastest = one
            .candidates
            .iter()
            .map(|of| of.speedup)
            .fold(0.0, f64::max);
        match &one.best {
            Some(best) => assert!(best.speedup == fastest && fastest > 1.0),
            None => assert!(fastest <= 1.0),
        }
        for candidate in &one.candidates {
            let speedup = candidate.tau * one.plain_seconds / candidate.seconds;
            assert!((candidate.speedup / speedup - 1.0).abs() < 1e-9);
        }
    }
    let without = EvaluateSettings {
        baseline: false,
        ..settings
    };
    assert!(
        evaluated(Style::Own, &without)
            .unwrap()
            .recommended
            .is_empty()
    );
}

#[test]
fn chains_that_were_not_decoded_are_predicted_to_give_what_decoding_them_gives() {
    let with = |length: usize| {
        let settings = EvaluateSettings {
            samplings: vec![Sampling::GREEDY],
            drafts: vec![DraftChoice::chain(length)],
            max_new_tokens: 120,
            ..settings()
        };
        evaluated(Style::Own, &settings).unwrap()
    };
    let longest = with(4);
    let survival = &longest.settings[0].overall.survival;
    let candidates = &longest.recommended[0].candidates;
    assert_eq!(candidates.len(), 4);
    let mut furthest = 0.0f64;
    for (candidate, length) in candidates.iter().zip(1..) {
        let decoded = with(length).settings[0].overall.tau.unwrap();
        let found = candidate.tau;
        assert!(
            (found - decoded).abs() < 1e-12,
            "{length}: {found} {decoded}"
        );
        let cut_off = 1.0 + survival[..length].iter().sum::<f64>();
        furthest = furthest.max((cut_off - decoded).abs());
    }
    // The first steps of the longest are those of other places.
    assert!(furthest > 0.001, "{furthest}");
}

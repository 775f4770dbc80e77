//! Evaluations that were interrupted go on from their journal.
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use spectrain_models::{Capture, StopBy};

use super::super::*;
use super::conversations::{conversation, set};
use super::{sets, settings, toy};
use crate::draft::{Calibration, MeasuredOn, Threshold};
use crate::evaluate::settings::CalibrationPrompts;
use crate::speculate::PassRecord;
use crate::toy::{Style, ToyTarget};

/// Evaluates `sets` with a journal in `path`, until it was asked so many times whether it is interrupted. How many outputs of it were
/// taken is told, too.
fn taking_until(
    path: &Path,
    (sets, settings): (&[PromptSet], &EvaluateSettings),
    most: usize,
) -> Result<(Evaluation, usize)> {
    let (target, capture) = (ToyTarget::default(), Capture::default());
    let asked = AtomicUsize::new(0);
    let interrupted = || asked.fetch_add(1, Ordering::Relaxed) >= most;
    let decoder = Decoder::new(&target, &capture).unless(&interrupted);
    let sessions = || toy(Style::Own);
    let contender = Contender {
        name: None,
        sessions: &sessions,
        capture: &capture,
        drafts: settings.drafts.clone(),
    };
    let mut journal = Journal::open(path, "toy").unwrap();
    let found = evaluate_all(
        &decoder,
        &[contender],
        sets,
        settings,
        Some(&mut journal),
        &mut |_| {},
    );
    Ok((found?, journal.outputs()))
}

/// Evaluates with a journal in `path`.
fn evaluated(path: &Path, settings: &EvaluateSettings) -> Evaluation {
    let (found, _) = taking_until(path, (&sets(), settings), usize::MAX).unwrap();
    found
}

/// A chain and a draft that is measured first.
fn with_measured(draft: DraftChoice) -> EvaluateSettings {
    EvaluateSettings {
        drafts: vec![DraftChoice::chain(2), draft],
        calibration: CalibrationPrompts {
            prompts: vec![vec![4, 4], vec![0, 3]],
            measured_on: MeasuredOn::Others,
        },
        ..settings()
    }
}

fn calibrated() -> EvaluateSettings {
    with_measured(DraftChoice::Calibrated(Calibration {
        nodes: 6,
        ranks: 3,
        depth: 3,
        prompts: 2,
    }))
}

/// The outputs without the time that they took, and the company in which they were decoded: of those under way at an interruption
/// another one.
fn timeless(found: &Evaluation) -> Vec<Vec<Vec<Answer>>> {
    let mut outputs = found.outputs.clone();
    for answer in outputs.iter_mut().flatten().flatten() {
        answer.generation.prompt_seconds = 0.0;
        for pass in &mut answer.generation.passes {
            *pass = PassRecord {
                seconds: Seconds::default(),
                together: 0,
                ..*pass
            };
        }
    }
    outputs
}

/// Whatever was evaluated in two goes or at once finds this.
fn assert_same(found: &Evaluation, at_once: &Evaluation) {
    assert_eq!(timeless(found), timeless(at_once));
    assert_eq!(found.shapes, at_once.shapes);
    assert_eq!(found.greedy, at_once.greedy);
    for (one, other) in found.settings.iter().zip(&at_once.settings) {
        assert_eq!(one.draft, other.draft);
        assert_eq!(one.sampling, other.sampling);
        assert_eq!(one.groups, other.groups);
        let figures = |of: &SettingReport| {
            let overall = &of.overall;
            let histogram = overall.accepted_histogram.clone();
            (overall.tau, overall.tau_ci95, overall.alpha_ci95, histogram)
        };
        assert_eq!(figures(one), figures(other));
        let estimated = |of: &SettingReport| of.estimate.as_ref().map(|found| found.tau);
        assert_eq!(estimated(one), estimated(other));
    }
}

/// What each line of a journal is of, in their order.
fn lines(path: &Path) -> Vec<String> {
    let lines = fs::read_to_string(path).unwrap();
    let of = |line: &str| line[..80].to_owned();
    lines.lines().map(of).collect()
}

/// Fails unless an evaluation that is interrupted again and again finds the same as at once.
fn assert_goes_on(sets: &[PromptSet], settings: &EvaluateSettings) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.journal");
    let (mut interruptions, mut most) = (0, 40);
    let (found, taken) = loop {
        match taking_until(&path, (sets, settings), most) {
            Ok(found) => break found,
            Err(error) => assert!(error.is_interruption(), "{error}"),
        }
        interruptions += 1;
        most *= 2;
    };
    assert!(interruptions > 1 && taken > 0, "{interruptions} {taken}");
    let elsewhere = folder.path().join("b.journal");
    let at_once = taking_until(&elsewhere, (sets, settings), usize::MAX);
    let (at_once, taken) = at_once.unwrap();
    assert_eq!(taken, 0);
    assert_same(&found, &at_once);
    // Nothing was found twice, and nothing else than at once.
    let (mut all, mut expected) = (lines(&path), lines(&elsewhere));
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    if settings.batch_size > 1 {
        // Those under way at an interruption end in another order.
        all.sort_unstable();
        expected.sort_unstable();
    }
    assert_eq!(all, expected);
}

#[test]
fn an_interrupted_evaluation_goes_on_and_finds_the_same() {
    for batch_size in [1, 3] {
        let settings = EvaluateSettings {
            batch_size,
            ..calibrated()
        };
        assert_goes_on(&sets(), &settings);
    }
}

#[test]
fn interrupted_conversations_go_on_with_the_answers_so_far() {
    let sets = set(vec![
        conversation(&[&[1, 2], &[0], &[2, 2]]),
        vec![1].into(),
        conversation(&[&[3, 2], &[0]]),
        conversation(&[&[0, 2], &[1], &[4]]),
    ]);
    for batch_size in [1, 3] {
        let settings = EvaluateSettings {
            batch_size,
            max_new_tokens: 9,
            stop: vec![3],
            ..calibrated()
        };
        assert_goes_on(&sets, &settings);
    }
}

#[test]
fn where_all_is_kept_nothing_is_decoded_and_it_is_asked_before_each_output_whether_to_stop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.journal");
    let settings = EvaluateSettings {
        baseline: false,
        ..settings()
    };
    let found = evaluated(&path, &settings);
    let outputs = found.outputs.iter().flatten().map(Vec::len).sum::<usize>();
    let again = |most| taking_until(&path, (&sets(), &settings), most);
    assert!(again(outputs - 1).unwrap_err().is_interruption());
    let (again, taken) = again(outputs).unwrap();
    assert_eq!(again.outputs, found.outputs);
    assert_eq!(taken, outputs);
}

#[test]
fn what_is_kept_has_the_times_and_the_measured_drafts_of_then() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.journal");
    let settings = with_measured(DraftChoice::Confident {
        length: 4,
        by: StopBy::Entropy,
        threshold: Threshold::Tuned,
    });
    let found = evaluated(&path, &settings);
    let again = evaluated(&path, &settings);
    assert_eq!(again.outputs, found.outputs);
    for (again, found) in again.settings.iter().zip(&found.settings) {
        assert_eq!(again.draft, found.draft);
        assert_eq!(again.sampling, found.sampling);
        assert_eq!(again.estimate, found.estimate);
        assert_eq!(again.overall.seconds, found.overall.seconds);
    }
}

#[test]
fn nothing_that_was_decoded_otherwise_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.journal");
    evaluated(&path, &calibrated());
    let shorter = EvaluateSettings {
        max_new_tokens: 12,
        ..calibrated()
    };
    let other_seed = EvaluateSettings {
        seed: 12,
        ..calibrated()
    };
    for (number, other) in [shorter, other_seed].iter().enumerate() {
        let found = evaluated(&path, other);
        let anew = folder.path().join(format!("{number}.journal"));
        let anew = evaluated(&anew, other);
        assert_eq!(timeless(&found), timeless(&anew));
    }
}

//! What a training logs for programs: every line once, with the figures of its steps.
use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::patience::waiting;
use crate::sessions::{Session, dropped, eagle3, ended, try_eagle3, weighed_anew};

/// The lines of a training's metrics without what the clock says.
pub fn logged(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("events/metrics.jsonl")).unwrap();
    let line = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        assert!(line["time"].as_f64().unwrap() > 1e9);
        let values = line.as_object_mut().unwrap();
        values.retain(|key, _| !["time", "train/tokens_per_second"].contains(&key.as_str()));
        line
    };
    text.lines().map(line).collect()
}

#[test]
fn metrics_have_every_line_once_however_often_the_training_is_cut() {
    let whole = tempfile::tempdir().unwrap();
    eagle3(whole.path(), &Session::whole());
    let expected = logged(whole.path());
    // Five intervals of two steps, and validations after steps 4, 8 and 10.
    let steps: Vec<u64> = (expected.iter())
        .map(|line| line["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [2, 4, 4, 6, 8, 8, 10, 10]);
    assert!(expected[0]["train/loss"].is_f64() && expected[2]["validation/loss"].is_f64());

    let cut = tempfile::tempdir().unwrap();
    eagle3(cut.path(), &Session::until(5));
    // Ends with an error behind the line of step 8, of which no state was saved.
    let failing = Session {
        in_validation: Box::new(|step| match step {
            8 => Err(ended(8)),
            _ => Ok(()),
        }),
        ..Session::whole()
    };
    try_eagle3(cut.path(), &failing).unwrap_err();
    assert_eq!(logged(cut.path()).last().unwrap()["step"], 8);
    eagle3(cut.path(), &Session::whole());
    assert_eq!(logged(cut.path()), expected);
    // Nothing is left to do, and nothing is logged.
    eagle3(cut.path(), &Session::whole());
    assert_eq!(logged(cut.path()), expected);
}

#[test]
fn metrics_have_the_parts_of_a_loss_and_the_weights_that_change() {
    let folder = tempfile::tempdir().unwrap();
    weighed_anew(folder.path(), &Session::with(|train| train.log_every = 1));
    let mut lines = logged(folder.path());
    lines.retain(|line| line["train/loss"].is_f64());
    assert_eq!(lines.len(), 10);
    for (number, line) in lines.iter().enumerate() {
        let of = |tag: &str| line[tag].as_f64().unwrap_or_default();
        let done = ((number as f64 - 2.0) / 6.0).clamp(0.0, 1.0);
        let weights = [("labels", 0.8 - 0.8 * done), ("teacher", 0.2 + 0.8 * done)];
        let mut sum = 0.0;
        for (name, expected) in weights {
            let weight = of(&format!("weight/{name}"));
            assert!((weight - expected).abs() < 1e-12, "{line}");
            sum += weight * of(&format!("loss/{name}"));
        }
        assert!((of("train/loss") - sum).abs() < 1e-6 * sum, "{line}");
        // What weighs nothing is not computed.
        assert_eq!(line["loss/labels"].is_f64(), number < 8, "{line}");
    }
    // A loss of one part is all that there is to tell.
    let folder = tempfile::tempdir().unwrap();
    dropped(folder.path(), &Session::whole());
    for line in logged(folder.path()) {
        let tags = line.as_object().unwrap().keys();
        let more = |tag: &&String| tag.starts_with("loss/") || tag.starts_with("weight/");
        assert_eq!(tags.filter(more).count(), 0, "{line}");
    }
}

/// The lines of training steps that these sessions have left.
fn of_steps(sessions: &[Session]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    for session in sessions {
        weighed_anew(folder.path(), session);
    }
    let mut lines = logged(folder.path());
    lines.retain(|line| line["train/loss"].is_f64());
    lines
}

/// Fails unless a log every so many steps has the figures of these, of which `each` has a line of its own: the means of losses, of
/// their parts and of norms, and the last step's of all else.
fn tell_of_their_steps(lines: &[Value], each: &[Value], log_every: usize) {
    let mut before = 0;
    for line in lines {
        let step = line["step"].as_u64().unwrap() as usize;
        assert_eq!(step, (before + log_every).min(each.len()), "{lines:?}");
        let own = &each[before..step];
        let last = &own[own.len() - 1..];
        let tags = |lines: &[Value]| -> BTreeSet<String> {
            let of = lines.iter().map(|line| line.as_object().unwrap());
            of.flat_map(|values| values.keys().cloned()).collect()
        };
        let mut expected = tags(own);
        expected.retain(|tag| tag.starts_with("loss/"));
        expected.extend(tags(last));
        assert_eq!(tags(std::slice::from_ref(line)), expected, "step {step}");
        for (tag, found) in line.as_object().unwrap() {
            let is_mean = tag.starts_with("loss/")
                || ["train/loss", "train/gradient_norm"].contains(&tag.as_str());
            let of = if is_mean { own } else { last };
            let of = of.iter().filter_map(|step| step[tag.as_str()].as_f64());
            let of: Vec<f64> = of.collect();
            let mean = of.iter().sum::<f64>() / of.len() as f64;
            let apart = (found.as_f64().unwrap() - mean).abs();
            assert!(apart <= 1e-6 * mean.abs(), "step {step} {tag}: {apart}");
        }
        before = step;
    }
    assert_eq!(before, each.len());
}

/// They are read where a line, a validation, a state or a stop is due, and the state holds those of a line to come.
#[test]
fn figures_are_those_of_their_steps_whenever_these_are_read() {
    let every = |log_every, validate_every, save_every| {
        Session::with(|train| {
            train.log_every = log_every;
            train.validate_every = validate_every;
            train.save_every = save_every;
        })
    };
    let each = of_steps(&[every(1, 4, 3)]);
    assert_eq!(each.len(), 10);
    for (log_every, validate_every, save_every) in [(10, 10, 10), (3, 4, 5), (7, 2, 3)] {
        let whole = || every(log_every, validate_every, save_every);
        tell_of_their_steps(&of_steps(&[whole()]), &each, log_every);
        // A signal comes within an interval.
        let stopped = Session {
            stop_after: log_every - 1,
            ..whole()
        };
        tell_of_their_steps(&of_steps(&[stopped, whole()]), &each, log_every);
    }
    // Validations end it behind step 6, of which there is no line yet, and then wait for more.
    let waits = |patience| {
        let mut session = waiting(patience);
        session.settings.log_every = 4;
        session
    };
    let ended = of_steps(&[waits(2)]);
    assert_eq!(ended.len(), 1);
    tell_of_their_steps(&of_steps(&[waits(2), waits(3)]), &each, 4);
}

#[test]
fn figures_are_those_of_their_steps_where_too_many_wait_to_be_read() {
    // No more than 128 batches wait, those of eight steps.
    let session = |log_every| {
        Session::with(|train| {
            train.steps = 9;
            train.gradient_accumulation = 16;
            train.log_every = log_every;
            train.validate_every = 9;
            train.save_every = 9;
        })
    };
    let each = of_steps(&[session(1)]);
    assert_eq!(each.len(), 9);
    tell_of_their_steps(&of_steps(&[session(9)]), &each, 9);
}

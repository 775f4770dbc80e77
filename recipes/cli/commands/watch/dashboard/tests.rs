use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::super::figures::Followed;
use super::super::paint::lines;
use super::*;

/// What the quickstart's training logged.
const RECORDED: &str = include_str!("../recorded.jsonl");

fn recorded() -> Figures {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    std::fs::write(&path, RECORDED).unwrap();
    let mut followed = Followed::new(path);
    followed.update().unwrap();
    followed.figures
}

fn snapshot(done: bool) -> Snapshot {
    let seen = |name: &str, seen| (name.to_owned(), seen);
    Snapshot {
        name: "quickstart".into(),
        recipe: "eagle3".into(),
        stages: vec![
            seen("synthetic", Seen::Done(Some(113.0))),
            seen("prepare", Seen::Done(None)),
            seen(
                "train",
                if done {
                    Seen::Done(Some(180.0))
                } else {
                    Seen::Begun
                },
            ),
            seen("export", Seen::Waiting),
            seen("evaluate", Seen::Waiting),
        ],
        training: Some(Training {
            stage: "train".into(),
            steps: Some(480),
            done,
            ended: None,
            figures: recorded(),
        }),
        stopped: None,
        results: vec!["T=0, greedy, chain 5: τ 3.95 [3.74, 4.16]".into()],
    }
}

/// The last time that is recorded.
fn last() -> f64 {
    let line = RECORDED.lines().last().unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    line["time"].as_f64().unwrap()
}

fn drawn(snapshot: &Snapshot, (columns, rows): (u16, u16), now: f64) -> String {
    let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
    draw(snapshot, now, &mut buffer);
    lines(&buffer, false).join("\n")
}

#[test]
fn a_training_under_way_is_shown_with_all_that_is_known_of_it() {
    let figures = recorded();
    let text = drawn(&snapshot(false), (80, ROWS), last() + 1.0);
    let (_, loss) = figures.loss.last().unwrap();
    let tau = figures.taus.last().unwrap();
    for expected in [
        "quickstart  eagle3".to_owned(),
        "synthetic done 1 min 53 s   prepare done   train begun   export –   evaluate –".to_owned(),
        format!("train: step {} of 480", figures.step),
        " left".to_owned(),
        format!("loss {loss:.4}"),
        " tokens/s".to_owned(),
        "α by depth".to_owned(),
        format!("  5 {:.3} █", figures.alphas[4]),
        format!("{:6} {:.2} [", tau.step, tau.tau),
        "held out".to_owned(),
        "chain 5: τ 3.95 [3.74, 4.16]".to_owned(),
    ] {
        assert!(text.contains(&expected), "no `{expected}`:\n{text}");
    }
    // A curve is drawn with dots of Braille.
    let is_dots = |c: &char| ('\u{2801}'..='\u{28ff}').contains(c);
    assert!(text.chars().filter(is_dots).count() > 20, "{text}");
    assert!(!text.contains("last log line"), "{text}");
    let silent = drawn(&snapshot(false), (80, ROWS), last() + 120.0);
    assert!(silent.contains("last log line 2 min 0 s ago"), "{silent}");
    let done = drawn(&snapshot(true), (80, ROWS), last() + 120.0);
    assert!(!done.contains("left") && !done.contains("ago"), "{done}");
}

#[test]
fn a_training_that_validations_ended_is_told_from_one_that_took_all_of_its_steps() {
    let mut of_patience = snapshot(true);
    let whole = drawn(&of_patience, (80, ROWS), last());
    assert!(whole.contains(" of 480"), "{whole}");
    of_patience
        .training
        .iter_mut()
        .for_each(|training| training.ended = Some(24));
    let text = drawn(&of_patience, (80, ROWS), last());
    let told = "train: step 24, ended by `train.patience`";
    assert!(text.contains(told) && !text.contains(" of 480"), "{text}");
}

#[test]
fn a_run_that_no_process_holds_is_told_from_one_that_goes_on() {
    let last = last();
    let stopped = Snapshot {
        stopped: Some(Stopped {
            last: Some(last),
            ..Stopped::default()
        }),
        ..snapshot(false)
    };
    let text = drawn(&stopped, (80, ROWS), last + 7260.0);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for expected in [
        "no process works on this run any more, last written 2 h 1 min ago; the command that started it resumes it",
        "train: step",
        "held out",
    ] {
        assert!(words.contains(expected), "no `{expected}`:\n{text}");
    }
    assert!(
        !text.contains("left") && !text.contains("last log line"),
        "{text}"
    );
    let narrow = drawn(&stopped, (40, ROWS), last + 7260.0);
    assert!(narrow.contains("resumes it"), "{narrow}");
    assert!(!drawn(&snapshot(false), (80, ROWS), last).contains("works on"));
    let unknown = Snapshot {
        stopped: Some(Stopped::default()),
        training: None,
        ..snapshot(false)
    };
    let text = drawn(&unknown, (80, ROWS), last);
    assert!(
        text.contains("any more; the command that started it"),
        "{text}"
    );
}

#[test]
fn the_error_with_which_a_run_stopped_is_shown() {
    let last = last();
    let stopped = |error: &str| Snapshot {
        stopped: Some(Stopped {
            last: Some(last),
            error: Some(error.into()),
            unsaved: None,
        }),
        ..snapshot(false)
    };
    let words = |snapshot: &Snapshot, columns| {
        let text = drawn(snapshot, (columns, ROWS), last + 60.0);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let short = stopped("stage `train`: the loss\n is not finite");
    let expected = "the run stopped with an error, last written 1 min 0 s ago: stage `train`: the loss is not finite (the command";
    for columns in [40, 80] {
        let words = words(&short, columns);
        assert!(
            words.contains(expected) && words.contains("resumes it)"),
            "{words}"
        );
        assert!(words.contains("train: step"), "{words}");
    }
    let long = words(&stopped(&"word ".repeat(1000)), 80);
    assert!(long.contains("word…") || long.contains("wor…"), "{long}");
    assert!(long.contains("resumes it)"), "{long}");
}

#[test]
fn a_training_whose_steps_are_lost_is_told_from_one_that_goes_on() {
    let last = last();
    let told = "`train` begins anew: no state was saved yet (`train.save_every = 200`)";
    for (error, end) in [(None, ""), (Some("it failed".to_owned()), ")")] {
        let stopped = Snapshot {
            stopped: Some(Stopped {
                last: Some(last),
                error,
                unsaved: Some(told.to_owned()),
            }),
            ..snapshot(false)
        };
        let text = drawn(&stopped, (80, ROWS), last + 60.0);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let expected = format!("the command that started it resumes it; {told}{end}");
        assert!(words.contains(&expected), "no `{expected}`:\n{text}");
    }
}

#[test]
fn rows_are_counted_as_words_are_wrapped() {
    for (text, width, rows) in [
        ("", 10, 2),
        ("one two", 7, 2),
        ("one two", 6, 3),
        ("1234567890 a", 4, 4),
        ("a 12345678", 4, 4),
    ] {
        assert_eq!(wrapped_rows(text, width), rows, "{text}");
    }
}

#[test]
fn no_size_of_a_terminal_is_too_small() {
    for columns in [1, 2, 5, 20, 31, 59, 60, 61, 80, 200] {
        for rows in [1, 2, 4, 7, 12, 22, 60] {
            for done in [false, true] {
                drawn(&snapshot(done), (columns, rows), last());
            }
            drawn(&Snapshot::default(), (columns, rows), 0.0);
            let stopped = Some(Stopped::default());
            let ended = Snapshot {
                stopped,
                ..snapshot(false)
            };
            drawn(&ended, (columns, rows), 0.0);
        }
    }
    let narrow = drawn(&snapshot(false), (40, ROWS), last());
    assert!(
        narrow.contains("α by depth") && narrow.contains("τ on held-out"),
        "{narrow}"
    );
}

#[test]
fn a_run_that_has_trained_nothing_says_so() {
    let begun = Snapshot {
        training: None,
        ..snapshot(false)
    };
    let text = drawn(&begun, (80, ROWS), 0.0);
    assert!(text.contains("nothing is trained yet"), "{text}");
}

#[test]
fn many_points_are_thinned_and_the_last_one_stays() {
    let points: Vec<(f64, f64)> = (0..5000).map(|at| (f64::from(at), f64::from(at))).collect();
    let kept = thinned(&points);
    assert!(kept.len() <= POINTS && kept.last() == points.last());
    assert_eq!(thinned(&[(1.0, f64::NAN), (2.0, 1.0)]), [(2.0, 1.0)]);
}

#[test]
fn times_are_told_in_two_parts() {
    for (seconds, told) in [
        (0.4, "0 s"),
        (59.0, "59 s"),
        (61.0, "1 min 1 s"),
        (7260.0, "2 h 1 min"),
        (180_000.0, "2 d 2 h"),
    ] {
        assert_eq!(time(seconds), told);
    }
}

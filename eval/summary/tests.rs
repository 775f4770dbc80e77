use super::*;
use crate::compare::compare;
use crate::draft::{DraftReport, MeasuredOn};
use crate::groups::GroupReport;
use crate::html::page;
use crate::report::{ChoosingPrompts, KnownPrompts, examples};
use crate::spread::SpreadReport;
use spectrain_checkpoints::columns::COLUMNS;

fn fits(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= COLUMNS, "{line}");
    }
}

#[test]
fn a_report_is_told_in_eighty_columns() {
    let mut report = examples::report();
    report.settings[0].overall.spread = SpreadReport {
        tau_worst_tenth: Some(1.25),
        slowed: Some(0.125),
        ..SpreadReport::default()
    };
    let group = |name: &str, tau| GroupReport {
        name: name.into(),
        tau: Some(tau),
        ..GroupReport::default()
    };
    let groups = vec![group("easy", 3.0), group("ha\u{1b}[31mrd", 1.5)];
    report.settings[0].groups.insert("category".into(), groups);
    let text = summary(&[("a".into(), report)]);
    fits(&text);
    let expected = "\
eagle3 drafter runs/a/train (1234 parameters) for Qwen/Qwen3-0.6B
prompts: 2 of gsm8k, 0 of mt-bench

                                  τ [95 % CI]        α      speed-up [95 % CI]
T=0.6 top-p=0.95, rejection, chain 2 drawn
                                  2.50 [2.25, 2.75]  0.69   1.50 [1.25, 1.75]
  gsm8k                           2.50 [2.25, 2.75]  0.69   1.50 [1.25, 1.75]
  mt-bench                        –                  –      –

T=0.6 top-p=0.95, rejection, chain 2 drawn: τ of the worst tenth 1.25; 12 %
  slowed; lowest in category ha\\u{1b}[31mrd, τ 1.50.
";
    assert!(text.starts_with(expected), "{text}");
    assert!(
        text.contains("Greedy output: 0 of 4 outputs differ"),
        "{text}"
    );
}

#[test]
fn a_speedup_that_passes_in_turns_deny_is_called_so() {
    let told = |predicted_ci95| {
        let mut report = examples::report();
        let speedup = report.settings[0].overall.speedup.as_mut().unwrap();
        (speedup.full_batches, speedup.full_batches_ci95) = (None, None);
        speedup.predict(2.25, predicted_ci95);
        let text = summary(&[("a".into(), report)]);
        fits(&text);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        text.contains("with passes that took turns it is 2.25 [2.00, 2.50].")
    };
    assert!(told(Some([2.0, 2.5])), "1.25 to 1.75 were measured");
    assert!(!told(Some([1.75, 2.5])));
    assert!(!told(None));
}

#[test]
fn a_speedup_that_is_not_to_be_trusted_is_called_so_wherever_it_is_shown() {
    let report = |predicted_ci95| {
        let mut report = examples::report();
        let speedup = report.settings[0].overall.speedup.as_mut().unwrap();
        speedup.predict(0.75, Some(predicted_ci95));
        report
    };
    let (sure, unsure) = (report([0.5, 1.5]), report([0.5, 1.0]));
    let outputs = |report: &Report| {
        let one = [("a".to_owned(), report.clone())];
        let both = [("a".to_owned(), report.clone()), ("b".into(), sure.clone())];
        [
            summary(&one),
            summary(&both),
            report.to_markdown(),
            compare(&both),
            page(&one, &[]),
            page(&both, &[]),
        ]
    };
    let caveat = "so do not trust the speed-up of 1.50 [1.25, 1.75], nor which conversations are slowed: measured with passes \
                  that took turns it is 0.75 [0.50, 1.00].";
    for (report, is_told) in [(&sure, false), (&unsure, true)] {
        for text in outputs(report) {
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(words.contains(caveat), is_told, "{text}");
        }
        let json: serde_json::Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
        let speedup = &json["settings"][0]["overall"]["speedup"];
        assert_eq!(speedup["pace_changed"], is_told);
    }
    // What the page begins with is not a figure that it disowns.
    let card = "<dt>speed-up, passes in turns</dt><dd>0.75 [0.50, 1.00] ×</dd>";
    let page = page(&[("a".to_owned(), unsure.clone())], &[]);
    assert!(page.contains(card), "{page}");
    assert!(!page.contains("<dt>speed-up</dt>"), "{page}");
    // Reports of earlier versions say no more than the figures.
    let text = unsure.to_json().unwrap();
    let earlier = text.replace("\"pace_changed\": true", "\"unknown\": true");
    assert_eq!(Report::from_json(&earlier).unwrap(), unsure);
}

#[test]
fn prompts_that_were_trained_on_are_told_of() {
    let mut report = examples::report();
    report.known_prompts = Some(KnownPrompts { known: 36, of: 400 });
    let words = "36 of 400 prompts are also in the training data";
    assert!(report.to_markdown().contains(words));
    let text = summary(&[("a".into(), report)]);
    fits(&text);
    assert!(text.contains(words), "{text}");
}

#[test]
fn prompts_that_chose_the_weights_or_a_tree_are_told_of_everywhere() {
    let mut report = examples::report();
    report.choosing_prompts = Some(ChoosingPrompts { chose: 5, of: 60 });
    let json = report.to_json().unwrap();
    assert_eq!(Report::from_json(&json).unwrap(), report);
    let told = |report: &Report, words: &str| {
        let reports = [("a".to_owned(), report.clone())];
        let text = summary(&reports);
        fits(&text);
        let all = [text, report.to_markdown(), page(&reports, &[])];
        all.map(|text| {
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            text.contains(words)
        })
    };
    let words =
        "5 of 60 evaluated prompts also chose the weights, which makes τ a little too high.";
    assert_eq!(told(&report, words), [true; 3]);
    let calibrated = |measured_on| DraftReport::Calibrated {
        nodes: 2,
        asked: Some(2),
        ranks: 10,
        depth: 6,
        prompts: 8,
        measured_on,
        tree: serde_json::from_str("[[0], [1]]").unwrap(),
    };
    let words = "calibrated on 8 prompts that are evaluated, so the tree may suit them better than new ones.";
    for (measured_on, is_told) in [(MeasuredOn::Evaluated, true), (MeasuredOn::Others, false)] {
        report.settings[0].draft = calibrated(measured_on);
        assert_eq!(told(&report, words), [is_told; 3]);
    }
}

#[test]
fn batch_sizes_that_took_too_long_are_named() {
    let mut report = examples::report();
    let told = |report: &Report| {
        let text = summary(&[("a".into(), report.clone())]);
        fits(&text);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            words.contains("Not timed"),
            report.to_markdown().contains("Not timed")
        );
        words.contains(
            "Not timed, as it would have taken too long or too much memory: T=0, 4 at a time. `--batch-size N` (in a recipe `evaluate.batch_size`)",
        )
    };
    assert!(!told(&report), "nothing was timed");
    let [one, sixteen] = &examples::recommended()[..] else {
        panic!("two are recommended");
    };
    let four = Recommendation {
        batch_size: 4,
        ..one.clone()
    };
    report.settings_recommended = vec![one.clone(), sixteen.clone()];
    assert!(told(&report));
    report.settings_recommended.push(four);
    assert!(!told(&report));
}

#[test]
fn what_several_reports_have_in_common_is_said_once() {
    let mut report = examples::report();
    report.settings_recommended = examples::recommended();
    report.recipe = serde_json::json!({"evaluate": {"baseline": false}});
    let mut other = report.clone();
    other.settings_recommended.pop();
    let text = summary(&[("a".into(), report), ("b".into(), other)]);
    fits(&text);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for once in [
        "a, b: Not timed: without `--no-baseline`",
        "a, b: Greedy output: 0 of 4 outputs differ",
        "a, b: deploy, T=0, 1 at a time: chain 1, predicted to be 1.50",
        "a: deploy, T=0, 16 at a time: no drafter",
        "a: Not timed, as it would have taken too long or too much memory: T=0, 4 at a time.",
        "b: Not timed, as it would have taken too long or too much memory: T=0, 4 and 16 at a time.",
        "`--batch-size N` (in a recipe `evaluate.batch_size`) decodes N at a time, of N prompts or more, and times that in any case.",
    ] {
        assert_eq!(words.matches(once).count(), 1, "{once}: {text}");
    }
    assert_eq!(words.matches("`--batch-size N`").count(), 1, "{text}");
}

#[test]
fn what_was_not_timed_and_what_was_never_accepted_is_told_with_what_to_do() {
    let mut report = examples::report();
    let told = |report: &Report, words: &str| {
        let text = summary(&[("a".into(), report.clone())]);
        fits(&text);
        let told = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let markdown = report.to_markdown();
        assert_eq!(told.contains(words), markdown.contains(words), "{words}");
        told.contains(words)
    };
    let [untimed, useless] = [
        "Not timed: without `--no-baseline` (in a recipe with `evaluate.baseline = true`)",
        "chain 2 drawn: nothing that was drafted was accepted",
    ];
    assert!(!told(&report, untimed) && !told(&report, useless));
    report.recipe = serde_json::json!({"evaluate": {"baseline": false}});
    report.settings[0].overall.tau = Some(1.0);
    assert!(told(&report, untimed) && told(&report, useless));
    // Where nothing is drafted, nothing is to be accepted, and no lookup is badly trained.
    report.settings[0].overall.draft_tokens_per_pass = Some(0.0);
    assert!(!told(&report, useless));
    report.settings[0].overall.draft_tokens_per_pass = Some(2.0);
    report.settings[0].drafter = Some("prompt-lookup".into());
    assert!(!told(&report, useless));
    // Where every answer ends at once, nothing is drafted.
    let ended = "the target ended every answer at once";
    assert!(!told(&report, ended));
    report.settings[0].overall.passes = 0;
    assert!(told(&report, ended));
}

#[test]
fn reports_of_one_way_of_decoding_stand_together() {
    let report = examples::report();
    let long = "a-name-that-is-longer-than-there-is-room-before-the-figures";
    let text = summary(&[("a".into(), report.clone()), (long.into(), report)]);
    fits(&text);
    let rows = format!(
        "T=0.6 top-p=0.95, rejection, chain 2 drawn\n  a{}2.50 [2.25, 2.75]  0.69   1.50 [1.25, 1.75]\n  {long}\n",
        " ".repeat(NAMES - 3)
    );
    assert!(text.contains(&rows), "{text}");
    // Each dataset behind all prompts.
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for told in [
        "chain 2 drawn on `gsm8k` a 2.50 [2.25, 2.75]",
        "chain 2 drawn on `mt-bench` a – – –",
    ] {
        assert!(words.contains(told), "no `{told}`: {text}");
    }
}

#[test]
fn a_report_of_nothing_is_only_named() {
    let report = Report::new(Default::default(), Default::default(), Vec::new());
    assert_eq!(summary(&[("a".into(), report)]), "drafter at for\n");
}

use spectrain_models::{Children, StaticTree, StopBy};

use super::*;
use crate::draft::{MeasuredOn, TunedReport};
use crate::html::page;
use crate::report::examples::report;
use crate::served::paired::tests::served;

#[test]
fn a_report_survives_json() {
    let report = report();
    let text = report.to_json().unwrap();
    assert_eq!(Report::from_json(&text).unwrap(), report);
    assert_eq!(Report::from_json(&text).unwrap().to_json().unwrap(), text);
}

#[test]
fn a_number_that_is_not_finite_is_written_as_null() {
    let mut report = report();
    report.settings[0].overall.tau = Some(f64::NAN);
    report.settings[0].overall.alpha = Some(f64::INFINITY);
    let text = report.to_json().unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    for key in ["tau", "alpha"] {
        assert_eq!(json["settings"][0]["overall"].get(key), Some(&Value::Null));
    }
    let read = Report::from_json(&text).unwrap();
    assert_eq!(read.settings[0].overall.tau, None);
}

#[test]
fn where_outputs_end_survives_json_and_need_not_be_there() {
    let mut report = report();
    report.settings[0].ends = Some(EndsReport {
        max_new_tokens: 128,
        stop: vec![5, 6],
    });
    let text = report.to_json().unwrap();
    assert_eq!(Report::from_json(&text).unwrap(), report);
    let mut json: Value = serde_json::from_str(&text).unwrap();
    let setting = json["settings"][0].as_object_mut().unwrap();
    let ends = setting.remove("ends");
    assert_eq!(
        ends,
        Some(serde_json::json!({"max_new_tokens": 128, "stop": [5, 6]}))
    );
    let read = Report::from_json(&json.to_string()).unwrap();
    assert_eq!(read.settings[0].ends, None);
}

#[test]
fn what_is_found_for_a_drafter_does_not_make_it_another_draft() {
    let is_like = |one: DraftReport, other: DraftReport| {
        let [one, other] = [one, other].map(|draft| {
            let mut report = report();
            report.settings[0].draft = draft;
            report
        });
        one.like(&other.settings[0]).is_some()
    };
    let tuned = |threshold| DraftReport::Confident {
        length: 7,
        by: StopBy::Entropy,
        threshold,
        tuned: Some(TunedReport {
            prompts: 8,
            measured_on: MeasuredOn::Others,
            cost: 0.1,
            speed: 2.0,
            speed_to_the_end: 1.5,
        }),
    };
    assert!(is_like(tuned(0.25), tuned(0.5)));
    let calibrated_of = |asked: Option<usize>, ranks, tree: &str| {
        let tree: StaticTree = serde_json::from_str(tree).unwrap();
        DraftReport::Calibrated {
            nodes: tree.len(),
            asked,
            ranks,
            depth: 6,
            prompts: 8,
            measured_on: MeasuredOn::Others,
            tree,
        }
    };
    let calibrated = |ranks, tree: &str| calibrated_of(Some(60), ranks, tree);
    let (wide, deep) = ("[[0], [1]]", "[[0], [0, 0]]");
    assert!(is_like(calibrated(10, wide), calibrated(10, deep)));
    assert!(!is_like(calibrated(10, wide), calibrated(4, wide)));
    // As large as was asked for, or smaller where no more has ever been right.
    assert!(is_like(
        calibrated(10, wide),
        calibrated(10, "[[0], [1], [2]]")
    ));
    assert!(!is_like(
        calibrated(10, wide),
        calibrated_of(Some(25), 10, wide)
    ));
    assert!(is_like(
        calibrated_of(None, 10, wide),
        calibrated_of(Some(2), 10, wide)
    ));
    let given = |tree: &str| DraftReport::Static {
        tree: serde_json::from_str(tree).unwrap(),
        nodes: 2,
        children: Children::Top,
    };
    assert!(is_like(given(wide), given(wide)));
    assert!(!is_like(given(wide), given(deep)));
}

#[test]
fn what_to_deploy_survives_json_and_has_a_table() {
    let mut report = report();
    report.settings_recommended = examples::recommended();
    report.batch_size = 4;
    let text = report.to_json().unwrap();
    assert_eq!(Report::from_json(&text).unwrap(), report);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["batch_size"], 4);
    assert_eq!(json["settings_recommended"][0]["costs"], "decoder");
    let table = report.to_markdown();
    for line in [
        "Speeds are of 4 sequences at a time, with the drafter and without.",
        "| T=0, 1 at a time | chain 1 | 1.50 [1.25, 1.75] | 1.20 [1.10, 1.30] × chain 2 | – |",
        "| T=0, 16 at a time | no drafter | 0.50 [0.25, 0.75] | – | – |",
        "    serve 'it'",
    ] {
        assert!(table.lines().any(|found| found == line), "{line}: {table}");
    }
}

#[test]
fn chains_that_were_asked_for_and_cannot_be_drafted_are_told_once() {
    let mut report = report();
    let longest = 2;
    assert_eq!(report.shorter_chains_note(), None);
    report.recipe = serde_json::json!({"evaluate": {
        "draft_lengths": [0, longest, 100, 7],
        "drafts": [{"shape": "chain", "length": 100}, {"shape": "dynamic", "nodes": 60}],
    }});
    let told = report.shorter_chains_note().unwrap();
    assert!(
        told.contains("Chains of 7 and 100 tokens were asked for"),
        "{told}"
    );
    assert!(told.contains("at most 2"), "{told}");
    assert_eq!(report.to_markdown().matches(&told).count(), 1);
    let short = crate::summary::summary(&[("a".into(), report)]);
    assert!(short.contains("Chains of 7 and 100 tokens"), "{short}");
}

#[test]
fn keys_stand_in_the_order_of_the_schema_and_unknown_values_are_left_out() {
    let json: Value = serde_json::from_str(&report().to_json().unwrap()).unwrap();
    let keys = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        keys(&json),
        "schema spectrain recipe target drafter device settings lossless seeds"
    );
    let setting = &json["settings"][0];
    assert_eq!(
        keys(setting),
        "temperature top_p verifier draft datasets overall"
    );
    assert_eq!(
        setting["draft"],
        serde_json::json!({"shape": "chain", "length": 2, "tokens": "drawn"})
    );
    assert_eq!(
        keys(&setting["datasets"][0]),
        "name prompts tokens passes tau tau_ci95 alpha alpha_ci95 conditional survival accepted_histogram \
         draft_tokens_per_pass speedup seconds counts prompts_sha256"
    );
    let speedup = &setting["datasets"][0]["speedup"];
    assert_eq!(keys(speedup), "wall wall_ci95 model memory_bound");
    assert!(setting["datasets"][1].get("tau").is_none());
}

#[test]
fn of_several_targets_each_setting_names_its_own() {
    let mut report = report();
    let other = TargetReport {
        model: "Qwen/Qwen3-8B".into(),
        ..TargetReport::default()
    };
    let mut setting = report.settings[0].clone();
    assert_eq!(report.target_of(&setting), "Qwen/Qwen3-0.6B");
    setting.target = Some(other.model.clone());
    report.settings[0].target = Some(report.target.model.clone());
    report.settings.push(setting);
    report.targets = vec![report.target.clone(), other];

    let text = report.to_json().unwrap();
    assert_eq!(Report::from_json(&text).unwrap(), report);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["target"], json["targets"][0]);
    assert_eq!(json["settings"][1]["target"], "Qwen/Qwen3-8B");

    let table = report.to_markdown();
    let heading = "for `Qwen/Qwen3-0.6B`, `Qwen/Qwen3-8B`\n\n| target | setting |";
    assert!(table.contains(heading), "{table}");
    for target in ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B"] {
        let row = format!("| {target} | T=0.6 top-p=0.95, rejection, chain 2 drawn | gsm8k |");
        assert!(table.contains(&row), "{table}");
    }
    let columns = |line: &str| line.matches('|').count();
    let lines: Vec<&str> = table.lines().filter(|line| line.starts_with('|')).collect();
    assert!(lines.iter().all(|line| columns(line) == 12), "{table}");
}

/// A report of greedy chains of these lengths, each for a target; the first target is `small`.
fn of_targets(chains: &[(usize, &str)]) -> Report {
    let mut report = report();
    let one = report.settings.remove(0);
    let targets = ["small", "large"].map(|model| TargetReport {
        model: model.into(),
        ..TargetReport::default()
    });
    report.target = targets[0].clone();
    report.targets = targets.to_vec();
    let setting = |&(length, target): &(usize, &str)| SettingReport {
        target: Some(target.into()),
        temperature: 0.0,
        top_p: None,
        draft: DraftReport::Chain {
            length,
            tokens: None,
        },
        ..one.clone()
    };
    report.settings = chains.iter().map(setting).collect();
    report
}

#[test]
fn what_training_found_stands_beside_the_chain_of_its_length_for_the_first_target() {
    let mut report = of_targets(&[(3, "small"), (5, "small"), (5, "large")]);
    let found = |report: &Report| -> Vec<_> {
        let counted = report.counted().into_iter();
        counted.map(|of| (of.simulated, of.validated)).collect()
    };
    let trained = TrainedReport {
        step: 1,
        ended: None,
        simulated_tau: Some(4.5),
        simulated_length: Some(5),
        tau: Some(2.5),
        tau_ci95: Some([2.0, 3.0]),
        draft_length: Some(3),
    };
    report.trained = Some(trained.clone());
    let expected = [
        (None, Some((2.5, Some([2.0, 3.0])))),
        (Some(4.5), None),
        (None, None),
    ];
    assert_eq!(found(&report), expected);
    let text = report.to_json().unwrap();
    assert_eq!(Report::from_json(&text).unwrap(), report);
    // Reports of earlier versions do not say which chains were drafted.
    report.trained = Some(TrainedReport {
        simulated_length: None,
        draft_length: None,
        ..trained
    });
    assert_eq!(found(&report), [(None, None); 3]);
}

#[test]
fn what_a_server_counted_stands_beside_the_target_that_it_has() {
    let mut report = of_targets(&[(5, "small"), (5, "large")]);
    let mut run = served(4, &[40; 4]).served.remove(0);
    let mut with = |target: Option<&str>| {
        run.in_tree = Some(InTree {
            setting: report.settings[0].heading(),
            target: target.map(str::to_owned),
            tau: None,
            tau_ci95: None,
            survival: Vec::new(),
        });
        report.served = vec![run.clone()];
        let counted = report.counted().into_iter();
        counted.map(|of| of.served.len()).collect::<Vec<_>>()
    };
    assert_eq!(with(Some("large")), [0, 1]);
    assert_eq!(with(Some("small")), [1, 0]);
    // Earlier versions took what the first target had.
    assert_eq!(with(None), [1, 0]);
}

#[test]
fn what_is_said_of_settings_names_their_target_where_there_are_several() {
    let mut report = of_targets(&[(5, "small"), (5, "large")]);
    let estimate =
        serde_json::json!({"tau": 2.5, "conditional": [], "survival": [], "more_passes": 0.0});
    for setting in &mut report.settings {
        let speedup = setting.overall.speedup.as_mut().unwrap();
        speedup.predicted = Some(1.75);
        setting.overall.tau = Some(1.0);
        setting.estimate = serde_json::from_value(estimate.clone()).unwrap();
    }
    report.settings_recommended = examples::recommended();
    let text = report.to_markdown();
    let page = page(&[("a".into(), report)], &[]);
    for target in ["small", "large"] {
        let way = format!("{target}, T=0, rejection, chain 5");
        for line in [
            format!("- {way}: τ 2.500 in"),
            format!("- {way}: 1.75, measured 1.50"),
            format!("| {way} | 2.50 | 1.00 "),
        ] {
            assert!(text.contains(&line), "no `{line}`: {text}");
        }
        // Predicted beside measured, and τ by who counts it.
        assert_eq!(page.matches(&format!(">{way}</th>")).count(), 2, "{page}");
    }
    let useless = "small, T=0, rejection, chain 5; large, T=0, rejection, chain 5: nothing";
    assert!(text.contains(useless), "{text}");
}

#[test]
fn differences_of_greedy_outputs_are_told_from_ties() {
    let difference = |margin| Difference {
        dataset: "gsm8k".into(),
        prompt: 3,
        turn: 0,
        token: 17,
        plain: Some(88),
        speculative: Some(512),
        margin: Some(margin),
        tolerance: 0.25,
    };
    let greedy = Comparison {
        outputs: 40,
        tokens: 2418,
        differences: vec![difference(0.125), difference(1.3125)],
    };
    let lines = LosslessReport::new(greedy, &[]).greedy_lines();
    let expected = "
Greedy output: 2 of 40 outputs differ from plain decoding (2418 tokens compared), 1 of them beginning at a token that the target's own \
arithmetic cannot tell from another.
- gsm8k, prompt 3, token 17: 512 in place of 88, whose logits are 1.312 apart
";
    assert_eq!(lines, expected);
}

#[test]
fn reports_of_earlier_versions_are_read() {
    let text = report().to_json().unwrap();
    let mut json: Value = serde_json::from_str(&text).unwrap();
    json["lossless"] = serde_json::json!({
        "greedy_mismatches": 0,
        "greedy_tokens": 64,
        "sampling": {"statistic": 2.5, "dof": 2, "p_value": 0.3},
    });
    let read = Report::from_json(&json.to_string()).unwrap();
    assert_eq!(read.lossless.sampling.unwrap().each.dof, 2);
}

#[test]
fn a_report_of_another_schema_is_refused() {
    let text = report()
        .to_json()
        .unwrap()
        .replacen("\"schema\": 1", "\"schema\": 2", 1);
    let error = Report::from_json(&text).unwrap_err();
    assert_eq!(error.to_string(), "report: `schema`: expected 1, found 2");
}

#[test]
fn the_table_is_compact() {
    let expected = "\
eagle3 drafter `runs/a/train` (1234 parameters) for `Qwen/Qwen3-0.6B`

| setting | dataset | prompts | tokens | τ [95 % CI] | α [95 % CI] | α₁, α₂, … | speed-up [95 % CI] | by the formula | memory-bound |
|---|---|--:|--:|---|---|---|---|--:|--:|
| T=0.6 top-p=0.95, rejection, chain 2 drawn | gsm8k | 2 | 30 | 2.50 [2.25, 2.75] | 0.69 [0.50, 0.75] | 0.75 0.50 | 1.50 [1.25, 1.75] | 1.62 | 2.00 |
| T=0.6 top-p=0.95, rejection, chain 2 drawn | mt-bench | 0 | 0 | – | – |  | – | – | – |
| T=0.6 top-p=0.95, rejection, chain 2 drawn | overall | 2 | 30 | 2.50 [2.25, 2.75] | 0.69 [0.50, 0.75] | 0.75 0.50 | 1.50 [1.25, 1.75] | 1.62 | 2.00 |

Above temperature 0 a chain has the `likeliest` tokens, as engines draft by default, or `drawn` ones; \
the launch commands of the drafter say which engine does what.

Lossless in every test.

Greedy output: 0 of 4 outputs differ from plain decoding (512 tokens compared).

Sampled output: 2100 tokens of which the target was unsure were tested against its distribution: χ² = 16.2, 19 degrees of \
freedom, p = 0.640. A shift of 2.8 % of the probability would be found 9 times in 10. A p below 0.01 would count as a difference.
";
    assert_eq!(report().to_markdown(), expected);
}

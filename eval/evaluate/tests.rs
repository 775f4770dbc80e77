use spectrain_models::{Capture, StopBy};

use super::*;
use crate::draft::{ChainTokens, MeasuredOn, Threshold};
use crate::evaluate::settings::CalibrationPrompts;
use crate::toy::{Style, ToyDrafter, ToyTarget};
use crate::verify::VerifierChoice;

mod batches;
mod conversations;
mod interrupted;

fn toy(style: Style) -> Box<dyn Proposer> {
    Box::new(ToyDrafter::new(style))
}

fn sets() -> Vec<PromptSet> {
    let set = |name: &str, prompts: &[&[u32]]| PromptSet {
        name: name.into(),
        prompts: prompts
            .iter()
            .map(|prompt| prompt.to_vec().into())
            .collect(),
    };
    vec![
        set("one", &[&[1], &[2, 3], &[4, 0, 1]]),
        set("two", &[&[3, 3]]),
    ]
}

fn settings() -> EvaluateSettings {
    EvaluateSettings {
        samplings: vec![Sampling::GREEDY, Sampling::at(1.0)],
        drafts: vec![DraftChoice::chain(2), DraftChoice::chain(4)],
        calibration: CalibrationPrompts::default(),
        batch_size: 1,
        max_new_tokens: 24,
        stop: Vec::new(),
        thinking: None,
        classes: None,
        verifier: VerifierChoice::Exact,
        baseline: true,
        seed: 11,
    }
}

fn evaluated(style: Style, settings: &EvaluateSettings) -> Result<Evaluation> {
    let target = ToyTarget::default();
    let capture = Capture::default();
    let decoder = Decoder::new(&target, &capture);
    let mut seen = Vec::new();
    let sessions = || toy(style);
    let evaluation = evaluate(&decoder, &sessions, &sets(), settings, &mut |progress| {
        seen.push((progress.done, progress.total));
    })?;
    // The total is known from the beginning; tests of what was sampled, however long they take, are none of it.
    let (_, all) = seen.first().copied().unwrap_or_default();
    assert!(seen.iter().all(|(_, total)| *total == all), "{seen:?}");
    let mut steps: Vec<usize> = seen.iter().map(|(done, _)| *done).collect();
    steps.dedup();
    assert_eq!(steps, (1..=all).collect::<Vec<_>>());
    Ok(evaluation)
}

#[test]
fn every_setting_is_reported_with_consistent_numbers() {
    let evaluation = evaluated(Style::Own, &settings()).unwrap();
    assert_eq!(evaluation.settings.len(), 6);
    for setting in &evaluation.settings {
        let overall = &setting.overall;
        assert_eq!(overall.prompts, 4);
        assert_eq!(overall.tokens, 4 * 23);
        let sums = setting
            .datasets
            .iter()
            .map(|dataset| dataset.passes)
            .sum::<u64>();
        assert_eq!(overall.passes, sums);
        let tau = 1.0 + overall.survival.iter().sum::<f64>();
        assert!((overall.tau.unwrap() - tau).abs() < 1e-12);
        let [low, high] = overall.tau_ci95.unwrap();
        assert!(low <= tau && tau <= high);
        assert!(overall.speedup.unwrap().wall > 0.0);
        assert!(overall.seconds.autoregressive.unwrap() > 0.0);
    }
    let verifiers = evaluation
        .settings
        .iter()
        .map(|setting| setting.verifier.as_str());
    assert_eq!(
        verifiers.collect::<Vec<_>>(),
        [
            "greedy",
            "greedy",
            "rejection",
            "rejection",
            "rejection",
            "rejection"
        ]
    );
}

#[test]
fn above_temperature_0_chains_are_drafted_as_drawn_and_as_engines_do() {
    let evaluation = evaluated(Style::Own, &settings()).unwrap();
    let said: Vec<String> = (evaluation.settings.iter())
        .map(|setting| setting.draft.to_string())
        .collect();
    assert_eq!(
        said,
        [
            "chain 2",
            "chain 4",
            "chain 2 drawn",
            "chain 2 likeliest",
            "chain 4 drawn",
            "chain 4 likeliest",
        ]
    );
    let drawn = DraftChoice::Chain {
        length: 2,
        tokens: ChainTokens::Drawn,
    };
    assert_eq!(drawn.at(&Sampling::at(1.0)), std::slice::from_ref(&drawn));
    // Of a drafter that is the target all that is drawn is kept, and of its likeliest tokens as many as are likely.
    let oracle = evaluated(Style::Oracle, &settings()).unwrap().settings;
    assert_eq!(oracle[2].overall.alpha, Some(1.0));
    let likeliest = oracle[3].overall.alpha.unwrap();
    assert!((0.2..0.7).contains(&likeliest), "{likeliest}");
}

#[test]
fn sampled_settings_are_tested_on_enough_tokens() {
    let evaluation = evaluated(Style::Own, &settings()).unwrap();
    for setting in &evaluation.settings {
        let Some(found) = setting.sampling else {
            assert_eq!(setting.temperature, 0.0);
            continue;
        };
        // Of four outputs of 24 tokens each, and three times as many more, all but the first of each.
        assert!(found.tokens > 300, "{found:?}");
        assert!(found.each.p_value > 0.001, "{found:?}");
    }
    let misstated = EvaluateSettings {
        samplings: vec![Sampling::at(1.0)],
        max_new_tokens: 100,
        ..settings()
    };
    let found = evaluated(Style::Misstated, &misstated).unwrap().settings;
    assert!(found[0].sampling.unwrap().each.p_value < 1e-6);
}

#[test]
fn prompts_of_neighbouring_seeds_have_streams_of_their_own() {
    let sampled = |seed| {
        let settings = EvaluateSettings {
            samplings: vec![Sampling::at(1.0)],
            seed,
            ..settings()
        };
        let target = ToyTarget::default();
        let capture = Capture::default();
        let decoder = Decoder::new(&target, &capture);
        let same = vec![PromptSet {
            name: "same".into(),
            prompts: vec![vec![1, 2].into(); 4],
        }];
        let sessions = || toy(Style::Own);
        let found = evaluate(&decoder, &sessions, &same, &settings, &mut |_| {}).unwrap();
        let outputs = found.outputs.into_iter().flatten().flatten();
        outputs
            .map(|output| output.generation.tokens)
            .collect::<Vec<_>>()
    };
    let mut all: Vec<Vec<u32>> = (11..14).flat_map(sampled).collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
}

#[test]
fn expected_counts_are_given_as_the_nearest_whole_numbers() {
    let mut measured = Measured::default();
    measured.add_expected(&Estimate {
        acceptance: Acceptance {
            passes: 2.6,
            emitted: 5.999_999,
            drafted: 5.2,
            tested: vec![2.6, 0.9],
            histogram: vec![1.7, 0.9],
        },
        ..Estimate::default()
    });
    let set = sets().remove(0);
    let found = overall(&[(&set, vec![measured])], 0.1, 0);
    assert_eq!((found.tokens, found.passes), (6, 3));
    assert_eq!(found.accepted_histogram, [2, 1]);
}

#[test]
fn a_target_without_finite_logits_is_not_judged() {
    let target = ToyTarget::broken();
    let capture = Capture::default();
    let decoder = Decoder::new(&target, &capture);
    for temperature in [0.0, 1.0] {
        let settings = EvaluateSettings {
            samplings: vec![Sampling::at(temperature)],
            ..settings()
        };
        let sessions = || toy(Style::Own);
        let error = evaluate(&decoder, &sessions, &sets(), &settings, &mut |_| {}).unwrap_err();
        let expected = "expected finite values, found not-a-number or infinity";
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn greedy_outputs_are_compared_with_plain_ones() {
    let evaluation = evaluated(Style::Own, &settings()).unwrap();
    let expected = Comparison {
        outputs: 2 * 4,
        tokens: 2 * 4 * 24,
        differences: Vec::new(),
    };
    assert_eq!(evaluation.greedy, expected);
}

#[test]
fn acceptance_does_not_change_from_run_to_run() {
    let (a, b) = (
        evaluated(Style::Own, &settings()),
        evaluated(Style::Own, &settings()),
    );
    for (a, b) in a.unwrap().settings.iter().zip(&b.unwrap().settings) {
        let numbers = |dataset: &DatasetReport| {
            let tau = (dataset.tau, dataset.tau_ci95);
            (tau, dataset.alpha_ci95, dataset.accepted_histogram.clone())
        };
        assert_eq!(numbers(&a.overall), numbers(&b.overall));
    }
}

#[test]
fn the_target_as_its_own_drafter_is_always_accepted() {
    let drawn = |setting: &SettingReport| !setting.draft.to_string().ends_with("likeliest");
    let mut settings = evaluated(Style::Oracle, &settings()).unwrap().settings;
    settings.retain(drawn);
    for setting in &settings {
        assert_eq!(setting.overall.alpha, Some(1.0));
        assert_eq!(setting.overall.alpha_ci95, Some([1.0, 1.0]));
    }
}

#[test]
fn a_draft_costs_as_many_passes_of_the_drafter_as_it_takes() {
    let speedups = |style| {
        let settings = EvaluateSettings {
            samplings: vec![Sampling::GREEDY],
            drafts: vec![DraftChoice::chain(2)],
            ..settings()
        };
        let overall = evaluated(style, &settings)
            .unwrap()
            .settings
            .remove(0)
            .overall;
        // Of 23 tokens seven passes emit three each and, with room for one draft token, an eighth two.
        assert_eq!((overall.passes, overall.tokens), (4 * 8, 4 * 23));
        let seconds = overall.seconds;
        let drafting = (seconds.draft / 32.0) / (seconds.autoregressive.unwrap() / 92.0);
        let speedup = overall.speedup.unwrap();
        let expected = 2.875 / (drafting + 1.0);
        assert!((speedup.model.unwrap() / expected - 1.0).abs() < 1e-9);
        speedup.memory_bound.unwrap()
    };
    // A pass of the drafter reads a fifth of the target's parameters.
    let one_by_one = 2.875 / (15.0 / 8.0 * 0.2 + 1.0);
    assert!((speedups(Style::Oracle) - one_by_one).abs() < 1e-12);
    assert!((speedups(Style::AtOnce) - 2.875 / (0.2 + 1.0)).abs() < 1e-12);
}

#[test]
fn without_a_baseline_there_is_no_speed_up_and_nothing_is_compared() {
    let settings = EvaluateSettings {
        baseline: false,
        ..settings()
    };
    let evaluation = evaluated(Style::Own, &settings).unwrap();
    assert_eq!(evaluation.greedy, Comparison::default());
    // What shorter chains would take is asked for only where their passes are timed.
    assert!(evaluation.settings[0].estimate.is_some());
    assert!(evaluation.shorter.iter().all(Vec::is_empty));
    let overall = &evaluation.settings[0].overall;
    assert_eq!(
        (overall.speedup, overall.seconds.autoregressive),
        (None, None)
    );
}

fn trees() -> Vec<DraftChoice> {
    let tree = spectrain_models::StaticTree::named("eagle-25").unwrap();
    vec![
        DraftChoice::Static {
            tree: tree.clone(),
            children: Children::Top,
        },
        DraftChoice::Static {
            tree,
            children: Children::WithoutReplacement,
        },
        DraftChoice::Dynamic {
            depth: 4,
            top_k: 3,
            nodes: 25,
        },
        DraftChoice::Calibrated(crate::draft::Calibration {
            nodes: 25,
            ranks: 4,
            depth: 4,
            prompts: 2,
        }),
    ]
}

#[test]
fn every_shape_is_evaluated_in_one_run_and_reported() {
    let settings = EvaluateSettings {
        drafts: trees(),
        calibration: CalibrationPrompts {
            prompts: vec![vec![4, 4], vec![0, 3], vec![2]],
            measured_on: MeasuredOn::Evaluated,
        },
        ..settings()
    };
    let evaluation = evaluated(Style::Own, &settings).unwrap();
    assert!(evaluation.greedy.differences.is_empty());
    assert_eq!(evaluation.settings.len(), 8);
    let chain = &evaluated(Style::Own, &self::settings()).unwrap().settings[1].overall;
    for (setting, shape) in evaluation.settings.iter().zip(&evaluation.shapes) {
        assert!(!setting.lossy);
        let drafted = setting.overall.draft_tokens_per_pass.unwrap();
        assert!(
            drafted <= shape.nodes() as f64,
            "{} {drafted}",
            setting.draft
        );
        if setting.temperature == 0.0 {
            assert!(setting.overall.tau > chain.tau, "{}", setting.draft);
        }
    }
    let DraftReport::Calibrated {
        nodes,
        prompts,
        tree,
        measured_on,
        ..
    } = &evaluation.settings[3].draft
    else {
        panic!("{:?}", evaluation.settings[3].draft);
    };
    assert_eq!(
        (*nodes, *prompts, *measured_on),
        (tree.len(), 2, MeasuredOn::Evaluated)
    );
    // The oracle's first guess is always right: nothing but a chain is worth drafting.
    let settings = EvaluateSettings {
        samplings: vec![Sampling::GREEDY],
        ..settings
    };
    let oracle = evaluated(Style::Oracle, &settings).unwrap();
    let shape = DraftShape::Static {
        tree: spectrain_models::StaticTree::chain(4),
        children: Children::Top,
    };
    assert_eq!(oracle.shapes[3], shape);
}

#[test]
fn a_tree_is_not_calibrated_on_nothing() {
    let settings = EvaluateSettings {
        drafts: trees(),
        ..settings()
    };
    let error = evaluated(Style::Own, &settings).unwrap_err().to_string();
    assert_eq!(
        error,
        "`drafts`: expected prompts to calibrate a tree or tune a threshold on, found none"
    );
}

#[test]
fn a_threshold_is_tuned_and_the_report_says_how() {
    let settings = EvaluateSettings {
        drafts: vec![DraftChoice::Confident {
            length: 4,
            by: StopBy::Entropy,
            threshold: Threshold::Tuned,
        }],
        calibration: CalibrationPrompts {
            prompts: vec![vec![4, 4], vec![0, 3], vec![2]],
            measured_on: MeasuredOn::Others,
        },
        max_new_tokens: 40,
        ..settings()
    };
    let evaluation = evaluated(Style::Own, &settings).unwrap();
    assert!(evaluation.greedy.differences.is_empty());
    for setting in &evaluation.settings {
        let DraftReport::Confident {
            threshold,
            tuned: Some(tuned),
            ..
        } = &setting.draft
        else {
            panic!("{:?}", setting.draft);
        };
        assert_eq!((tuned.prompts, tuned.measured_on), (3, MeasuredOn::Others));
        assert!((0.0..1.0).contains(threshold) && tuned.cost > 0.0);
        assert!(tuned.speed >= tuned.speed_to_the_end);
        let estimate = setting.estimate.as_ref().unwrap();
        assert!(!estimate.is_surprising(), "{estimate:?}");
    }
    let report =
        crate::report::Report::new(Default::default(), Default::default(), evaluation.settings);
    let text = report.to_markdown();
    assert!(
        text.contains("chain 4 by entropy at a tuned threshold |"),
        "{text}"
    );
    assert!(
        text.contains("tuned on 3 prompts that are not evaluated"),
        "{text}"
    );
}

#[test]
fn what_a_draft_is_found_on_is_told_and_does_not_depend_on_other_drafts() {
    let calibration = CalibrationPrompts {
        prompts: (0..5).map(|first| vec![first]).collect(),
        measured_on: MeasuredOn::Others,
    };
    assert_eq!(calibration.of(2), [[0], [2]]);
    assert_eq!(calibration.of(9), calibration.prompts);
    let calibrated = DraftChoice::Calibrated(crate::draft::Calibration {
        nodes: 3,
        ranks: 2,
        depth: 2,
        prompts: 2,
    });
    let tuned = DraftChoice::Confident {
        length: 2,
        by: StopBy::Entropy,
        threshold: Threshold::Tuned,
    };
    let settings = EvaluateSettings {
        samplings: vec![Sampling::GREEDY],
        drafts: vec![calibrated, tuned],
        calibration,
        baseline: false,
        ..settings()
    };
    let (target, capture) = (ToyTarget::default(), Capture::default());
    let mut told = Vec::new();
    let mut hear = |step: EvaluateProgress| {
        if step.dataset.is_empty() {
            told.push((step.done, step.what.to_owned()));
        }
    };
    let decoder = Decoder::new(&target, &capture);
    let found = evaluate(&decoder, &|| toy(Style::Own), &sets(), &settings, &mut hear).unwrap();
    let first = (0, "calibrating a tree: prompt 1 of 2".to_owned());
    assert_eq!(told[0], first);
    let decoded: usize = found.outputs[0].iter().map(Vec::len).sum();
    let last = (decoded, "tuning a threshold: prompt 5 of 5".to_owned());
    assert_eq!(told.last(), Some(&last));
    let token = (
        0,
        "calibrating a tree: prompt 2 of 2, token 3 of 23".to_owned(),
    );
    assert!(told.contains(&token), "{told:?}");
}

#[test]
fn lossy_settings_are_marked() {
    let settings = EvaluateSettings {
        verifier: VerifierChoice::TypicalLossy,
        ..settings()
    };
    let evaluation = evaluated(Style::Own, &settings).unwrap();
    let lossy = evaluation.settings.iter().map(|setting| setting.lossy);
    assert_eq!(
        lossy.collect::<Vec<_>>(),
        [false, false, true, true, true, true]
    );
    let report =
        crate::report::Report::new(Default::default(), Default::default(), evaluation.settings);
    let text = report.to_markdown();
    assert!(
        text.contains("| T=1, typical-lossy (lossy), chain 2 drawn |"),
        "{text}"
    );
    assert!(
        text.contains("Lossy settings change what the target says"),
        "{text}"
    );
}

#[test]
fn a_failure_names_dataset_and_prompt() {
    let error = evaluated(Style::TooLong, &settings())
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("dataset `one`, prompt 0: draft: expected at most 2 steps, found 3"),
        "{error}"
    );
    let none = EvaluateSettings {
        drafts: Vec::new(),
        ..settings()
    };
    let error = evaluated(Style::Own, &none).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`drafts`: expected at least one, found none"
    );
}

use super::*;
use crate::draft::DraftReport;
use crate::error::Error;
use crate::paired::difference::FEWEST;
use crate::paired::matched::{check_comparable, same_prompts};
use crate::report::ends::EndsReport;
use crate::report::{DatasetReport, DrafterReport, TargetReport};
use crate::texts::report::TextsReport;

pub(crate) fn report(counts: Vec<Counts>, prompts: &str, target: &str) -> Report {
    let dataset = DatasetReport {
        name: "eval".into(),
        counts,
        prompts_sha256: Some(prompts.into()),
        ..DatasetReport::default()
    };
    let setting = SettingReport {
        target: None,
        drafter: None,
        temperature: 0.0,
        top_k: None,
        top_p: None,
        verifier: "greedy".into(),
        lossy: false,
        draft: DraftReport::Chain {
            length: 5,
            tokens: None,
        },
        ends: None,
        datasets: vec![dataset],
        overall: DatasetReport::default(),
        sampling: None,
        estimate: None,
        calibration: None,
        groups: Default::default(),
        token_classes: Vec::new(),
    };
    let target = TargetReport {
        sha256: target.into(),
        ..TargetReport::default()
    };
    Report::new(target, DrafterReport::default(), vec![setting])
}

/// Conversations of 120 tokens that differ much among themselves.
fn counts(more: u64) -> Vec<Counts> {
    (0..40).map(|at| of(30 + at % 37 + more)).collect()
}

pub(crate) fn of(passes: u64) -> Counts {
    Counts::from([120.0, passes as f64])
}

fn of_two(baseline: Vec<Counts>, other: Vec<Counts>) -> Vec<PairedReport> {
    let [baseline, other] = [baseline, other].map(|counts| report(counts, "p", "t"));
    paired(&baseline, &other, 1).unwrap()
}

#[test]
fn a_difference_among_many_or_of_few_prompts_must_be_surer_to_count() {
    // Of three conversations one loses more than the others gain; the sum is a gain.
    let pair = |at: u64| [of(60), of([56, 57, 63][at as usize % 3])];
    let pairs: Vec<[Counts; 2]> = (0..42).map(pair).collect();
    let found = |among| PairedReport::of("a".into(), &pairs, among).unwrap();
    let (alone, many) = (found(1), found(50));
    assert_eq!(alone.joint, alone.ci95);
    assert_eq!(many.ci95, alone.ci95);
    assert_eq!(alone.choice(), PairedVerdict::Better, "{alone}");
    assert_eq!(many.choice(), PairedVerdict::NotToldApart, "{many}");
    let few = PairedReport::of("a".into(), &[[of(60), of(40)]; FEWEST - 1], 1).unwrap();
    assert_eq!(few.verdict(), PairedVerdict::Better);
    assert_eq!(few.choice(), PairedVerdict::TooFew);
}

#[test]
fn a_small_difference_on_every_prompt_is_told_where_intervals_overlap() {
    let pairs = of_two(counts(1), counts(0));
    let found = &pairs[0];
    assert_eq!(found.verdict(), PairedVerdict::Better);
    assert_eq!((found.better, found.worse), (40, 0));
    assert!(found.sign_test < 1e-11, "{}", found.sign_test);
    assert!(found.difference > 0.0 && found.difference < 0.1, "{found}");
    assert!(!found.falls_below(-0.01));
    let back = of_two(counts(0), counts(1));
    assert!(back[0].falls_below(-0.01) && !back[0].falls_below(-0.1));
}

#[test]
fn a_fall_on_one_of_several_datasets_is_told_where_all_prompts_hide_it() {
    let with = |general: u64, support: u64| {
        let mut report = report(vec![of(general); 24], "general", "t");
        let datasets = &mut report.settings[0].datasets;
        datasets[0].name = "general".into();
        datasets.push(DatasetReport {
            name: "support".into(),
            counts: vec![of(support); 24],
            prompts_sha256: Some("support".into()),
            ..DatasetReport::default()
        });
        report
    };
    let (old, new) = (with(60, 60), with(70, 50));
    let found = paired(&old, &new, 1).unwrap();
    let told: Vec<(String, bool)> = (found.iter())
        .map(|pair| (pair.heading(), pair.falls_below(-0.05)))
        .collect();
    let way = "T=0, greedy, chain 5";
    let expected = [
        (way.to_owned(), false),
        (format!("{way} on `general`"), true),
        (format!("{way} on `support`"), false),
    ];
    assert_eq!(told, expected);
    let sizes: Vec<usize> = found.iter().map(|pair| pair.conversations).collect();
    assert_eq!(sizes, [48, 24, 24]);
    assert!(found[1].to_string().starts_with(&expected[1].0));
    let json = serde_json::to_value(&found[1]).unwrap();
    assert_eq!(json["dataset"], "general");
    // One that both have is named where another has none like it.
    let mut one = with(60, 60);
    one.settings[0].datasets.pop();
    for (old, new) in [(&one, &new), (&new, &one)] {
        let found = paired(old, new, 1).unwrap();
        let datasets: Vec<_> = found.iter().map(|pair| pair.dataset.as_deref()).collect();
        assert_eq!(datasets, [Some("general")]);
    }
    // One dataset is all prompts.
    let of_two = of_two(counts(0), counts(1));
    assert_eq!((of_two.len(), &of_two[0].dataset), (1, &None));
}

#[test]
fn a_drafter_is_not_told_apart_from_itself() {
    let same = report(counts(0), "p", "t");
    let found = &paired(&same, &same, 1).unwrap()[0];
    assert_eq!((found.difference, found.ci95), (0.0, Some([0.0; 2])));
    assert_eq!(found.verdict(), PairedVerdict::NotToldApart);
    assert_eq!(found.sign_test, 1.0);
}

#[test]
fn ups_and_downs_are_not_told_apart() {
    let mixed = (0..40).map(|at| of(30 + at % 37 + at % 3)).collect();
    let found = &of_two(counts(1), mixed)[0];
    assert_eq!(found.verdict(), PairedVerdict::NotToldApart, "{found}");
    assert!(found.sign_test > 0.3, "{found}");
}

#[test]
fn other_prompts_targets_and_settings_are_refused() {
    let one = report(counts(0), "p", "t");
    let refused = |other: &Report| paired(&one, other, 1).unwrap_err().to_string();
    assert!(refused(&report(counts(0), "q", "t")).contains("prompts"));
    assert!(refused(&report(counts(0), "p", "u")).contains("weights of the target"));
    let mut warm = report(counts(0), "p", "t");
    warm.settings[0].temperature = 1.0;
    assert!(refused(&warm).contains("T=1"), "{}", refused(&warm));
}

#[test]
fn outputs_that_end_elsewhere_and_targets_in_another_type_are_refused() {
    let ends = |max_new_tokens, stop: &[u32]| {
        let stop = stop.to_vec();
        let mut report = report(counts(0), "p", "t");
        report.settings[0].ends = Some(EndsReport {
            max_new_tokens,
            stop,
        });
        report
    };
    let one = ends(8, &[5]);
    let refused = |one: &Report, other: &Report| paired(one, other, 1).unwrap_err().to_string();
    assert!(refused(&one, &ends(16, &[5])).ends_with("found answers of at most 16 tokens"));
    assert!(refused(&one, &ends(8, &[])).ends_with("at their length alone (`--ignore-stop`)"));
    assert_eq!(paired(&one, &ends(8, &[5]), 1).unwrap().len(), 1);
    // Reports of earlier versions do not say.
    assert_eq!(
        paired(&one, &report(counts(0), "p", "t"), 1).unwrap().len(),
        1
    );

    let typed = |dtype: &str| {
        let mut report = report(counts(0), "p", "t");
        report.target.model = "target".into();
        report.target.dtype = dtype.into();
        report
    };
    assert_eq!(
        refused(&typed("f32"), &typed("bf16")),
        "`baseline`: expected the target `target` in f32, found `target` in bf16"
    );
    assert_eq!(paired(&typed("f32"), &typed(""), 1).unwrap().len(), 1);
}

#[test]
fn of_several_targets_each_must_be_the_same() {
    let with = |sha256: &str| {
        let mut report = report(counts(0), "p", "t");
        let further = TargetReport {
            model: "large".into(),
            sha256: sha256.into(),
            ..TargetReport::default()
        };
        report.targets = vec![report.target.clone(), further];
        let mut setting = report.settings[0].clone();
        setting.target = Some("large".into());
        report.settings[0].target = Some(report.target.model.clone());
        report.settings.push(setting);
        report
    };
    assert_eq!(paired(&with("u"), &with("u"), 1).unwrap().len(), 2);
    let refused = paired(&with("u"), &with("v"), 1).unwrap_err().to_string();
    assert!(
        refused.contains("weights of the target `large`"),
        "{refused}"
    );
}

#[test]
fn differences_of_several_targets_name_the_target_that_each_is_of() {
    let with = |small: u64, large: u64| {
        let mut report = report(vec![of(small); 24], "p", "t");
        report.target.model = "small".into();
        let further = TargetReport {
            model: "large".into(),
            sha256: "u".into(),
            ..TargetReport::default()
        };
        report.targets = vec![report.target.clone(), further];
        let mut setting = report.settings[0].clone();
        setting.datasets[0].counts = vec![of(large); 24];
        report.settings.push(setting);
        for (setting, target) in report.settings.iter_mut().zip(&report.targets) {
            setting.target = Some(target.model.clone());
        }
        report
    };
    let found = paired(&with(60, 60), &with(40, 90), 1).unwrap();
    let told: Vec<(String, bool)> = (found.iter())
        .map(|pair| (pair.heading(), pair.falls_below(-0.05)))
        .collect();
    let expected = ["small", "large"].map(|target| format!("{target}, T=0, greedy, chain 5"));
    assert_eq!(
        told,
        [(expected[0].clone(), false), (expected[1].clone(), true)]
    );
    // Of drafters without training, too.
    let mut report = with(60, 90);
    for at in [0, 1] {
        let mut free = report.settings[at].clone();
        free.drafter = Some("prompt-lookup".into());
        report.settings.push(free);
    }
    let told = against_free(&report).into_iter().map(|pair| pair.setting);
    let behind = " against prompt-lookup, T=0, greedy, chain 5";
    let expected = expected.map(|own| own + behind);
    assert_eq!(told.collect::<Vec<_>>(), expected);
}

#[test]
fn datasets_that_both_have_are_compared_where_one_has_more() {
    let less = report(vec![of(60); 24], "p", "t");
    let mut more = report(vec![of(40); 24], "p", "t");
    let mut code = more.settings[0].datasets[0].clone();
    code.name = "code".into();
    code.prompts_sha256 = Some("q".into());
    code.counts = vec![of(10); 24];
    more.settings[0].datasets.push(code);
    for [one, other] in [[&less, &more], [&more, &less]] {
        let found = paired(one, other, 1).unwrap();
        let [pair] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!((pair.conversations, pair.difference.abs()), (24, 1.0));
    }
    assert!(check_comparable(&less, &more).is_err());
    assert!(check_comparable(&more, &less).is_err());
    // What only one of them has is no difference.
    more.settings[0].datasets.remove(0);
    let refused = paired(&less, &more, 1).unwrap_err();
    assert!(matches!(refused, Error::OtherPrompts { .. }), "{refused}");
}

#[test]
fn stored_answers_of_an_earlier_version_are_not_said_to_be_of_other_prompts() {
    let with = |prompts: &str, ends: Option<EndsReport>| {
        let mut report = report(counts(0), prompts, "t");
        report.texts.push(TextsReport::default());
        report.settings[0].ends = ends;
        report
    };
    let known = || with("p", Some(EndsReport::default()));
    assert_eq!(paired(&known(), &known(), 1).unwrap().len(), 1);
    let refused = |one: &Report, other: &Report| paired(one, other, 1).unwrap_err();
    let earlier = with("q", None);
    for [one, other] in [[&known(), &earlier], [&earlier, &known()]] {
        let told = refused(one, other).to_string();
        assert!(told.contains("or other answers"), "{told}");
        assert!(told.contains("remove its folder `evaluate`"), "{told}");
        assert!(!told.contains("  "), "{told}");
    }
    let others = with("q", Some(EndsReport::default()));
    let refused = refused(&known(), &others);
    assert!(matches!(refused, Error::OtherPrompts { .. }), "{refused}");
}

/// Two trees of three nodes, in which conversations take so many passes each.
fn of_trees(passes: [u64; 2]) -> Report {
    let trees = ["[[0], [1], [2]]", "[[0], [0, 0], [0, 0, 0]]"];
    let mut report = report(counts(0), "p", "t");
    let settings = trees.iter().zip(passes).map(|(tree, passes)| {
        let mut setting = report.settings[0].clone();
        setting.draft = DraftReport::Static {
            tree: serde_json::from_str(tree).unwrap(),
            nodes: 3,
            children: Default::default(),
        };
        setting.datasets[0].counts = vec![of(passes); 40];
        setting
    });
    report.settings = settings.collect();
    report
}

#[test]
fn trees_of_one_size_are_not_taken_for_each_other() {
    let report = of_trees([40, 60]);
    let [one, other] = &report.settings[..] else {
        panic!("two settings");
    };
    assert_eq!(one.heading(), other.heading());
    let found = paired(&report, &report, 1).unwrap();
    let taus: Vec<[f64; 2]> = (found.iter())
        .map(|pair| [pair.baseline_tau, pair.tau])
        .collect();
    assert_eq!(taus, [[3.0; 2], [2.0; 2]]);
    assert!(found.iter().all(|pair| !pair.falls_below(-0.05)));
}

#[test]
fn one_conversation_has_no_interval_and_says_nothing() {
    let found = &of_two(vec![of(40)], vec![of(60)])[0];
    assert_eq!((found.ci95, found.joint), (None, None));
    assert_eq!((found.tau_ci95, found.baseline_ci95), (None, None));
    assert_eq!(found.verdict(), PairedVerdict::TooFew);
    assert!(!found.falls_below(-0.05));
    let told = "T=0, greedy, chain 5: τ 2.000 against 3.000, -1.000, too few prompts; larger in 0, smaller in 1 of 1";
    assert!(found.to_string().starts_with(told), "{found}");
}

#[test]
fn datasets_are_matched_by_their_prompts_and_then_by_their_places() {
    let mut setting = report(counts(0), "p", "t").settings.remove(0);
    let of = |prompts: &str, tau| DatasetReport {
        name: "test".into(),
        prompts_sha256: Some(prompts.into()),
        tau: Some(tau),
        ..DatasetReport::default()
    };
    setting.datasets = vec![of("p", 1.0), of("q", 2.0), of("q", 3.0)];
    let tau = |place, prompts| same_prompts(&setting, place, &of(prompts, 0.0))?.tau;
    assert_eq!(tau(0, "p"), Some(1.0));
    assert_eq!(tau(1, "q"), Some(2.0));
    assert_eq!(tau(2, "q"), Some(3.0));
    assert_eq!(tau(2, "p"), Some(1.0));
    assert_eq!(tau(0, "r"), None);
}

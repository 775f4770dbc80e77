use super::*;
use crate::counts::Counts;
use crate::draft::DraftReport;
use crate::paired::tests::{of, report};
use crate::report::{DatasetReport, SettingReport, Speedup};
use crate::sweep::table::{SweepRow, SweepTable};
use crate::sweep::variation::TrainedSeed;

/// A variation with a seed for each report, which were numbered from 0.
fn of_reports(name: &str, reports: Vec<Report>) -> Variation {
    let seeds = reports.into_iter().enumerate();
    let seeds = seeds.map(|(seed, report)| TrainedSeed {
        seed: seed.to_string(),
        seconds: Some(12.4),
        report,
    });
    Variation {
        name: name.into(),
        seeds: seeds.collect(),
        failed: Vec::new(),
    }
}

/// Of two conversations, of which the second takes twice the passes.
fn variation(name: &str, passes: &[u64]) -> Variation {
    let of_seed = |&passes: &u64| report(vec![of(passes), of(2 * passes)], "p", "t");
    of_reports(name, passes.iter().map(of_seed).collect())
}

/// Of 24 conversations that are all alike.
fn alike(name: &str, passes: &[u64]) -> Variation {
    let of_seed = |&passes: &u64| report(vec![of(passes); 24], "p", "t");
    of_reports(name, passes.iter().map(of_seed).collect())
}

/// The same with a chain of each length.
fn chains(name: &str, lengths: &[usize], passes: u64) -> Variation {
    let mut report = report(vec![of(passes); 24], "p", "t");
    let one = report.settings.remove(0);
    report.settings = lengths
        .iter()
        .map(|&length| SettingReport {
            draft: DraftReport::Chain {
                length,
                tokens: None,
            },
            ..one.clone()
        })
        .collect();
    of_reports(name, vec![report])
}

/// With a second dataset, `math`, of 24 conversations that take so many passes.
fn with_math(mut variation: Variation, passes: u64) -> Variation {
    for seed in &mut variation.seeds {
        let datasets = &mut seed.report.settings[0].datasets;
        datasets.push(DatasetReport {
            name: "math".into(),
            counts: vec![of(passes); 24],
            prompts_sha256: Some("math".into()),
            ..DatasetReport::default()
        });
    }
    variation
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn names(table: &SweepTable) -> Vec<&str> {
    let names = table.rows.iter().map(|row| row.variation.as_str());
    names.collect()
}

fn row<'a>(table: &'a SweepTable, name: &str) -> &'a SweepRow {
    let mut rows = table.rows.iter();
    rows.find(|row| row.variation == name).unwrap()
}

#[test]
fn variations_stand_by_their_tau_against_the_first() {
    let table = sweep(&[
        variation("lr=1", &[40, 60]),
        variation("lr=2", &[40, 40]),
        variation("a name that has a line of its own", &[60, 60]),
    ])
    .to_text();
    // Two conversations and two seeds: intervals reach from the least to the largest that can be drawn.
    let expected = "
T=0, greedy, chain 5
                              τ [95 % CI]        against the first             training
lr=2                          2.00 [1.50, 3.00]  +0.40 [+0.00, +1.00]          12 s, ×1.00
    seeds 0: 2.00, 1: 2.00
lr=1                          1.60 [1.00, 3.00]  the first                     12 s
    seeds 0: 2.00, 1: 1.33
a name that has a line of its own
                              1.33 [1.00, 2.00]  -0.27 [-1.00, +0.00]          12 s, ×1.00
    seeds 0: 1.33, 1: 1.33

No variation is called better or worse: 2 prompts are too few to choose by.
Judge them on 20 or more (`evaluate.prompts`, of named sets `evaluate.count`).
";
    assert_eq!(table, expected);
}

#[test]
fn the_more_variations_are_compared_the_surer_one_must_be() {
    // Of three conversations two gain and one loses.
    let of_three = |name: &str, passes: [u64; 3]| {
        of_reports(name, vec![report(passes.map(of).repeat(14), "p", "t")])
    };
    let table = |others: usize| {
        let others = (0..others).map(|at| of_three(&format!("other {at}"), [56, 57, 63]));
        let first = of_three("first", [60; 3]);
        sweep(&[first].into_iter().chain(others).collect::<Vec<_>>()).to_text()
    };
    let one = table(1);
    assert!(one.contains("] better "), "{one}");
    assert!(!one.contains("comparisons"), "{one}");
    let many = table(50);
    assert!(!many.contains("] better"), "{many}");
    let told = "allow for 50 comparisons: they stand where the interval of 99.9 % leaves out 0.";
    assert!(words(&many).ends_with(told), "{many}");
}

#[test]
fn every_difference_that_is_shown_counts() {
    let of = |name: &str, passes| with_math(chains(name, &[5], passes), passes);
    let found = sweep(&[of("a", 60), of("b", 50), of("c", 40)]);
    // All prompts and two datasets, of two variations.
    assert_eq!((found.tables.len(), found.comparisons), (3, 6));
    assert_eq!(found.differences().count(), 6);
    let text = words(&found.to_text());
    let told = "allow for 6 comparisons: they stand where the interval of 99.17 % leaves out 0.";
    assert!(text.contains(told), "{text}");
}

#[test]
fn what_only_some_were_judged_in_has_a_table_that_says_who_was_not() {
    // Medusa's chain in no other, and one way that all have.
    let [first, medusa, block] = [
        chains("eagle", &[5, 2], 60),
        chains("medusa", &[4, 2], 50),
        chains("dflash", &[5, 2], 40),
    ];
    for variations in [
        [first.clone(), medusa.clone(), block.clone()],
        [medusa.clone(), block.clone(), first.clone()],
    ] {
        let found = sweep(&variations);
        let table = |length: usize| {
            let setting = format!("T=0, greedy, chain {length}");
            let mut tables = found.tables.iter();
            tables.find(|table| table.setting == setting).unwrap()
        };
        assert_eq!(found.tables.len(), 3);
        assert_eq!(names(table(2)), ["dflash", "medusa", "eagle"]);
        assert_eq!(names(table(5)), ["dflash", "eagle"]);
        assert_eq!(names(table(4)), ["medusa"]);
        assert_eq!(table(5).not_judged, ["medusa"]);
        let mut without = table(4).not_judged.clone();
        without.sort();
        assert_eq!(without, ["dflash", "eagle"]);
        assert!(table(2).not_judged.is_empty());
    }
    // A difference only where the first was judged so.
    let found = sweep(&[medusa, block, first]);
    let own = found.tables.iter().find(|table| table.rows.len() == 2);
    assert!(
        own.unwrap()
            .rows
            .iter()
            .all(|row| row.against_first.is_none())
    );
    assert_eq!(found.comparisons, 2);
    let text = found.to_text();
    assert!(text.contains("\n    not judged so: medusa\n"), "{text}");
}

#[test]
fn a_drafter_without_a_length_in_common_stands_with_its_own() {
    let found = sweep(&[chains("eagle", &[5], 60), chains("dflash", &[15], 40)]);
    let [table] = &found.tables[..] else {
        panic!("{found:?}")
    };
    assert_eq!(table.setting, "T=0, greedy, each at its own length");
    let difference = row(table, "dflash").against_first.as_ref().unwrap();
    assert_eq!(difference.difference, 1.0);
    let text = words(&found.to_text());
    for part in [
        "dflash (chain 15) 3.00",
        "eagle (chain 5) 2.00",
        "chains of 5 and 15 tokens",
    ] {
        assert!(text.contains(part), "no `{part}`: {text}");
    }
    // Where none fits it has a table of its own, and what would give it one is said.
    let found = sweep(&[chains("eagle", &[3, 7], 60), chains("dflash", &[15], 40)]);
    assert_eq!((found.tables.len(), found.comparisons), (3, 0));
    let text = words(&found.to_text());
    assert!(
        text.contains("`dflash` has no difference from the first: expected one of the settings"),
        "{text}"
    );
    assert!(text.contains("evaluate.draft_lengths=[7]"), "{text}");
}

#[test]
fn of_several_datasets_each_has_its_rows() {
    let mut variations =
        [("a", 60), ("b", 40)].map(|(name, math)| with_math(alike(name, &[60, 60]), math));
    for seed in variations.iter_mut().flat_map(|one| &mut one.seeds) {
        let setting = &mut seed.report.settings[0];
        setting.overall.alpha = Some(0.5);
        setting.overall.speedup = Some(Speedup {
            wall: 1.25,
            ..Speedup::default()
        });
        setting.datasets[1].alpha = Some(0.75);
    }
    // What not all seeds have is not averaged.
    variations[1].seeds[0].report.settings[0].overall.speedup = None;
    let found = sweep(&variations);
    let told = found.tables.iter().map(|table| {
        let b = row(table, "b");
        (table.dataset.as_deref(), b.conversations, b.tau, b.alpha)
    });
    assert_eq!(
        told.collect::<Vec<_>>(),
        [
            (None, 48, Some(2.4), Some(0.5)),
            (Some("eval"), 24, Some(2.0), None),
            (Some("math"), 24, Some(3.0), Some(0.75)),
        ]
    );
    let [a, b] = ["a", "b"].map(|name| row(&found.tables[0], name).speedup);
    assert_eq!((a, b), (Some(1.25), None));
    let text = found.to_text();
    assert!(
        text.contains("\nT=0, greedy, chain 5 on `math`\n"),
        "{text}"
    );
    assert!(
        text.contains("    α 0.50; speed-up 1.25; seeds 0: 2.00, 1: 2.00\n"),
        "{text}"
    );
}

#[test]
fn rows_are_written_for_programs() {
    let found = sweep(&[
        with_math(alike("a, b", &[60]), 60),
        with_math(alike("c", &[40]), 40),
    ]);
    let csv = found.to_csv();
    let lines: Vec<&str> = csv.split_terminator("\r\n").collect();
    assert_eq!(lines.len(), 1 + 3 * 2, "{csv}");
    assert!(lines[0].starts_with("variation,target,setting,dataset,draft,conversations,seeds,"));
    let way = "\"T=0, greedy, chain 5\"";
    let expected = [
        format!("c,,{way},overall,chain 5,48,0,,3,3,3,3,,,12.4,1,\"a, b\",1,1,1,1,1,3,better"),
        format!("\"a, b\",,{way},overall,chain 5,48,0,,2,2,2,2,,,12.4,,,,,,,,,"),
    ];
    assert_eq!(lines[1..3], expected);
    for line in [lines[3], lines[5]] {
        assert!(line.starts_with("c,,"), "{line}");
    }
    assert!(
        lines[3].contains(",eval,") && lines[5].contains(",math,"),
        "{csv}"
    );
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json["comparisons"], 3);
    assert_eq!(json["tables"][1]["dataset"], "eval");
    let first = &json["tables"][0]["rows"][0];
    assert_eq!(first["against_first"]["verdict"], "better");
    assert_eq!(
        first["against_first"]["joint95"],
        serde_json::json!([1.0, 1.0])
    );
    assert_eq!(
        first["seeds"],
        serde_json::json!([{"seed": "0", "tau": 3.0}])
    );
}

#[test]
fn a_verdict_on_single_seeds_says_that_it_is_over_prompts_alone() {
    let told = |variations: &[Variation]| words(&sweep(variations).to_text());
    let one = told(&[alike("a", &[60]), alike("b", &[40])]);
    assert!(
        one.contains("] better ") && one.contains(ONE_TRAINING),
        "{one}"
    );
    assert!(!one.contains("over seeds"), "{one}");
    let several = told(&[alike("a", &[60, 61]), alike("b", &[40, 41])]);
    assert!(several.contains("] better "), "{several}");
    assert!(!several.contains(ONE_TRAINING), "{several}");
    assert!(
        several.contains("with fewer than 5 a variation"),
        "{several}"
    );
    // One seed of the other is as good: the intervals over prompts alone would call it better.
    let mixed = told(&[alike("a", &[60, 40]), alike("b", &[41, 41])]);
    assert!(!mixed.contains("] better"), "{mixed}");
    let alone = told(&[alike("a", &[60]), alike("b", &[60])]);
    assert!(!alone.contains(ONE_TRAINING), "{alone}");
}

#[test]
fn seeds_that_failed_are_told_and_so_is_a_first_variation_that_did() {
    let mut base = alike("the recipe as it is", &[]);
    base.failed = vec!["0".into(), "1".into()];
    let mut other = alike("lr=2", &[60]);
    other.failed = vec!["1".into()];
    let mut gone = base.clone();
    gone.name = "lr=3".into();
    let found = sweep(&[base, other, alike("lr=4", &[60, 40]), gone]);
    assert_eq!(found.first.as_deref(), Some("lr=2"));
    let text = words(&found.to_text());
    for part in [
        "seeds 0: 2.00 (seed 1 failed)",
        "seeds 0: 2.00, 1: 3.00",
        "`the recipe as it is` has no report; differences are from `lr=2`.",
        "`lr=3` has no report.",
    ] {
        assert!(text.contains(part), "no `{part}`: {text}");
    }
}

#[test]
fn datasets_of_one_name_are_pooled_each_with_its_own() {
    let of_seed = |passes: [u64; 2]| {
        let mut report = report(vec![of(passes[0])], "code", "t");
        let mut math = report.settings[0].datasets[0].clone();
        math.prompts_sha256 = Some("math".into());
        math.counts = vec![of(passes[1])];
        report.settings[0].datasets.push(math);
        report
    };
    let both = of_reports("a", vec![of_seed([10, 100]), of_seed([20, 200])]);
    let ways = ways::together(&[&both]).unwrap();
    let parts = ways[0].parts();
    let counted = parts.iter().map(|part| {
        let by_seed = ways::counts(&part.judged[0].1).0;
        let passes = |counts: &Vec<Counts>| counts.iter().map(|of| of.passes).collect::<Vec<_>>();
        by_seed.iter().map(passes).collect::<Vec<_>>()
    });
    let expected = [
        vec![vec![10.0, 100.0], vec![20.0, 200.0]],
        vec![vec![10.0], vec![20.0]],
        vec![vec![100.0], vec![200.0]],
    ];
    assert_eq!(counted.collect::<Vec<_>>(), expected);
    let mut one = of_seed([1, 1]);
    one.settings[0].datasets.pop();
    for reports in [[one.clone(), of_seed([1, 1])], [of_seed([1, 1]), one]] {
        let variation = of_reports("a", reports.to_vec());
        let Err(refused) = ways::together(&[&variation]) else {
            panic!("other prompts")
        };
        assert!(refused.to_string().contains("other prompts"), "{refused}");
    }
}

#[test]
fn trees_of_one_size_have_a_table_each() {
    let trees = ["[[0], [1], [2]]", "[[0], [0, 0], [0, 0, 0]]"];
    let with = |passes: [u64; 2]| {
        let mut report = report(vec![of(1); 2], "p", "t");
        let mut second = report.settings[0].clone();
        for (setting, (tree, passes)) in [&mut report.settings[0], &mut second]
            .into_iter()
            .zip(trees.iter().zip(passes))
        {
            setting.draft = DraftReport::Static {
                tree: serde_json::from_str(tree).unwrap(),
                nodes: 3,
                children: Default::default(),
            };
            setting.datasets[0].counts = vec![of(passes); 2];
        }
        report.settings.push(second);
        report
    };
    let variations = ["a", "b"].map(|name| of_reports(name, vec![with([40, 60]); 2]));
    let table = sweep(&variations).to_text();
    assert_eq!(
        table.matches("seeds 0: 3.00, 1: 3.00").count(),
        2,
        "{table}"
    );
    assert_eq!(
        table.matches("seeds 0: 2.00, 1: 2.00").count(),
        2,
        "{table}"
    );
}

#[test]
fn runs_that_were_judged_otherwise_stand_by_themselves_with_the_reason() {
    let mut foreign = variation("lr=2", &[40, 40]);
    foreign.seeds[1].report = report(vec![of(40), of(80)], "p", "u");
    let table = sweep(&[variation("lr=1", &[60]), foreign]).to_text();
    for part in [
        "T=0, greedy, chain 5 τ [95 % CI] prompts training lr=1 1.33 [1.00, 2.00] 2 12 s lr=2 (seed 0) 2.00",
        "lr=2 (seed 1) 2.00 [1.50, 3.00] 2 12 s No differences are shown",
        "weights of the target",
    ] {
        assert!(words(&table).contains(part), "no `{part}`: {table}");
    }
    assert!(!table.contains("the first"), "{table}");

    // Of other prompts, too; of several datasets each by its name.
    let mut other = with_math(variation("data=b", &[40]), 60);
    other.seeds[0].report.settings[0].datasets[0].prompts_sha256 = Some("q".into());
    let found = sweep(&[variation("data=a", &[40]), other]);
    let table = found.to_text();
    assert!(words(&table).contains("with other prompts"), "{table}");
    let datasets = found
        .tables
        .iter()
        .map(|table| (table.dataset.as_deref(), names(table)));
    let both = vec!["data=a", "data=b"];
    let expected = [
        (None, both.clone()),
        (Some("eval"), both),
        (Some("math"), vec!["data=b"]),
    ];
    assert_eq!(datasets.collect::<Vec<_>>(), expected);
}

#[test]
fn seeds_that_were_judged_in_other_ways_are_not_pooled() {
    let [one, more] = [&[5][..], &[5, 7]].map(|lengths| chains("a", lengths, 40));
    let reports = [one, more].map(|variation| variation.seeds[0].report.clone());
    let found = sweep(&[of_reports("a", reports.to_vec())]);
    assert_eq!(found.tables.len(), 2);
    let text = words(&found.to_text());
    assert!(
        text.contains("expected T=0, greedy, chain 7 for seed 0 of `a`, as for seed 1"),
        "{text}"
    );
}

#[test]
fn drafters_without_training_are_shown_and_not_compared() {
    let with_lookup = |name: &str, passes| {
        let mut variation = alike(name, &[passes]);
        let settings = &mut variation.seeds[0].report.settings;
        let mut lookup = settings[0].clone();
        lookup.drafter = Some("prompt-lookup".into());
        settings.push(lookup);
        variation
    };
    let found = sweep(&[with_lookup("a", 60), with_lookup("b", 40)]);
    assert_eq!((found.tables.len(), found.comparisons), (2, 1));
    assert!(
        found.tables[1]
            .rows
            .iter()
            .all(|row| row.against_first.is_none())
    );
}

//! The tables of a sweep: the figures of each variation in each way of decoding.
use crate::sweep::seeds::SeedCounts;
use crate::sweep::table::{SeedTau, SweepRow, SweepTable};
use crate::sweep::variation::Variation;
use crate::sweep::ways::{Judged, Part, Way, counts};

/// Tables of variations that are compared with the first, and how many differences they show.
pub(super) fn compared(variations: &[&Variation], ways: &[Way]) -> (Vec<SweepTable>, usize) {
    let parts = ways.iter().flat_map(|way| {
        let parts = way.parts().into_iter();
        parts.map(move |part| (way, part))
    });
    let parts: Vec<(&Way, Part)> = parts.collect();
    let comparisons = parts.iter().map(|(way, part)| differences(way, part));
    let comparisons: usize = comparisons.sum();
    let tables = parts.iter().map(|(way, part)| {
        let first = first(way, part);
        let rows = part.judged.iter().map(|(number, seeds)| {
            let of = variations[*number];
            let mut found = row(of, seeds);
            found.is_first = *number == 0;
            if !found.is_first {
                found.times_first = times(of, variations[0]);
                let first = first.as_ref();
                found.against_first =
                    first.and_then(|first| counts(seeds).against(first, comparisons));
            }
            found
        });
        let mut rows: Vec<SweepRow> = rows.collect();
        rows.sort_by(|one, other| {
            let tau = |row: &SweepRow| row.tau.unwrap_or_default();
            tau(other).total_cmp(&tau(one))
        });
        table(variations, (*way, part), rows)
    });
    (tables.collect(), comparisons)
}

/// Tables of runs that are not compared, in the order in which they are given.
pub(super) fn apart(runs: &[&Variation], ways: &[Way]) -> Vec<SweepTable> {
    let of_way = |way: &Way| {
        let tables = way.own_parts().into_iter().map(|part| {
            let rows = part.judged.iter();
            let rows = rows.map(|(number, seeds)| row(runs[*number], seeds));
            table(runs, (way, &part), rows.collect())
        });
        tables.collect::<Vec<_>>()
    };
    ways.iter().flat_map(of_way).collect()
}

/// What the first variation counted, where others are compared with it: a drafter without training is the same in all.
fn first(way: &Way, part: &Part) -> Option<SeedCounts> {
    let (number, seeds) = part.judged.first()?;
    let is_trained = way.leader.1.drafter.is_none();
    (*number == 0 && is_trained).then(|| counts(seeds))
}

/// How many differences from the first variation there are.
fn differences(way: &Way, part: &Part) -> usize {
    let has_tau = |seeds: &[Judged]| counts(seeds).tau().is_some();
    match first(way, part).and_then(|first| first.tau()) {
        None => 0,
        Some(_) => {
            let others = part.judged[1..].iter();
            others.filter(|(_, seeds)| has_tau(seeds)).count()
        }
    }
}

/// How many times as long a training took as that of the first variation, where both are known.
fn times(variation: &Variation, first: &Variation) -> Option<f64> {
    let times = variation.mean_seconds()? / first.mean_seconds()?;
    times.is_finite().then_some(times)
}

fn table(variations: &[&Variation], (way, part): (&Way, &Part), rows: Vec<SweepRow>) -> SweepTable {
    let (_, leader) = way.leader;
    // Below a table of a dataset they would be the same.
    let others = variations.iter().enumerate();
    let others = others
        .filter(|(at, _)| part.dataset.is_none() && way.numbers().all(|number| number != *at));
    SweepTable {
        target: leader.target.clone(),
        setting: way.heading(),
        dataset: part.dataset.map(str::to_owned),
        rows,
        not_judged: others.map(|(_, one)| one.name.clone()).collect(),
    }
}

/// The figures of a variation by itself.
fn row(variation: &Variation, judged: &[Judged]) -> SweepRow {
    let counts = counts(judged);
    let seeds = variation.seeds.iter().zip(counts.each());
    let seeds = seeds.map(|(of, tau)| SeedTau {
        seed: of.seed.clone(),
        tau,
    });
    let draft = judged.first().map(|of| of.setting.draft.to_string());
    SweepRow {
        variation: variation.name.clone(),
        draft: draft.unwrap_or_default(),
        conversations: counts.conversations(),
        tau: counts.tau(),
        tau_ci95: counts.interval(),
        seeds: seeds.collect(),
        failed_seeds: variation.failed.clone(),
        alpha: mean(judged.iter().map(Judged::alpha)),
        speedup: mean(judged.iter().map(Judged::speedup)),
        training_seconds: variation.mean_seconds(),
        times_first: None,
        is_first: false,
        against_first: None,
    }
}

/// The mean of what all seeds have.
fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let all: Vec<f64> = values.collect::<Option<_>>()?;
    (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
}

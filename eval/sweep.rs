//! Variations of one training side by side: τ of each, and how it differs from that of the first, by pairs of prompts and over seeds.
use crate::error::{Error, Result};
use crate::paired::ONE_TRAINING;
use crate::paired::difference::{FEWEST, PairedVerdict};
use crate::paired::matched::{check_target, nothing_shared};
use crate::report::Report;
use crate::sweep::seeds::FEW_SEEDS;
use crate::sweep::table::{Sweep, SweepDifference};
use crate::sweep::variation::Variation;
use crate::sweep::ways::Way;

mod csv;
mod rows;
mod seeds;
pub(crate) mod table;
mod text;
pub(crate) mod variation;
mod ways;

/// Tables of `variations` for each way of decoding that any of them was judged in, and for each dataset of several, the largest τ
/// first. Of runs that were judged by different targets or on other prompts there is τ of each, without differences, and why.
pub fn sweep(variations: &[Variation]) -> Sweep {
    let judged = variations.iter().filter(|one| !one.seeds.is_empty());
    let judged: Vec<&Variation> = judged.collect();
    let mut found = compared(&judged).unwrap_or_else(|why| apart(&judged, &why));
    let mut notes = without_report(variations, found.first.as_deref());
    notes.append(&mut found.notes);
    Sweep { notes, ..found }
}

/// Which variations have no report, and what the others are compared with if the first has none.
fn without_report(variations: &[Variation], first: Option<&str>) -> Vec<String> {
    let none = variations.iter().enumerate();
    let none = none.filter(|(_, one)| one.seeds.is_empty());
    let told = none.map(|(at, Variation { name, .. })| match first {
        Some(first) if at == 0 => {
            format!("`{name}` has no report; differences are from `{first}`.")
        }
        _ => format!("`{name}` has no report."),
    });
    told.collect()
}

/// Each run by itself, in the order in which they are given.
fn apart(variations: &[&Variation], why: &Error) -> Sweep {
    let runs: Vec<Variation> = variations.iter().flat_map(|one| one.apart()).collect();
    let runs: Vec<&Variation> = runs.iter().collect();
    let told = format!("No differences are shown, as the runs cannot be paired: {why}.");
    Sweep {
        tables: rows::apart(&runs, &ways::apart(&runs)),
        notes: vec![told],
        ..Sweep::default()
    }
}

/// The tables of runs that were judged by the same.
///
/// # Errors
/// They were judged by different targets or on other prompts.
fn compared(variations: &[&Variation]) -> Result<Sweep> {
    let ways = ways::together(variations)?;
    let mut notes = unlike(variations, &ways)?;
    for note in ways.iter().filter_map(|way| way.lengths().note()) {
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    let (tables, comparisons) = rows::compared(variations, &ways);
    let mut found = Sweep {
        first: variations.first().map(|first| first.name.clone()),
        comparisons,
        tables,
        notes,
    };
    let first = variations.first().map_or(0, |first| first.seeds.len());
    let on_verdicts = on_verdicts(&found, first);
    found.notes.extend(on_verdicts);
    Ok(found)
}

/// Which variations have no way of decoding in common with the first, and what would give them one.
///
/// # Errors
/// One of them was judged by another target.
fn unlike(variations: &[&Variation], ways: &[Way]) -> Result<Vec<String>> {
    let report = |at: usize| -> Option<&Report> {
        let seed = variations[at].seeds.first()?;
        Some(&seed.report)
    };
    let mut notes = Vec::new();
    for (at, variation) in variations.iter().enumerate().skip(1) {
        let has = |way: &Way, number: usize| way.numbers().any(|own| own == number);
        if ways.iter().any(|way| has(way, 0) && has(way, at)) {
            continue;
        }
        let (Some(first), Some(other)) = (report(0), report(at)) else {
            continue;
        };
        check_target(&first.target, &other.target)?;
        let why = match nothing_shared(first, other) {
            Error::Setting { mismatch, .. } => mismatch.to_string(),
            error => error.to_string(),
        };
        let name = &variation.name;
        notes.push(format!("`{name}` has no difference from the first: {why}."));
    }
    Ok(notes)
}

/// What there is to know of the verdicts in the tables, where the first variation has so many seeds.
fn on_verdicts(sweep: &Sweep, first: usize) -> Vec<String> {
    let conversations = || sweep.differences().map(|(row, _)| row.conversations);
    let Some(most) = conversations().max() else {
        return Vec::new();
    };
    if most < FEWEST {
        return vec![format!(
            "No variation is called better or worse: {most} prompts are too few to choose by. Judge them on {FEWEST} or more \
             (`evaluate.prompts`, of named sets `evaluate.count`)."
        )];
    }
    let mut notes = Vec::new();
    if sweep.comparisons > 1 {
        notes.push(format!(
            "\"better\" and \"worse\" allow for {} comparisons: they stand where the interval of {} % leaves out 0.",
            sweep.comparisons,
            percent(100.0 - 5.0 / sweep.comparisons as f64)
        ));
    }
    if conversations().min().is_some_and(|fewest| fewest < FEWEST) {
        notes.push(format!(
            "On fewer than {FEWEST} prompts no variation is called better or worse."
        ));
    }
    let seeds = || {
        sweep
            .differences()
            .map(|(row, of)| ([row.seeds.len(), first], of))
    };
    let is_of_few = |seeds: [usize; 2]| seeds.into_iter().any(|of| of < FEW_SEEDS);
    if seeds().any(|(seeds, _)| seeds != [1, 1] && is_of_few(seeds)) {
        notes.push(format!(
            "Intervals are over prompts and over seeds, of which a few say little: with fewer than {FEW_SEEDS} a variation is only \
             better or worse if all of its seeds are on that side of all seeds of the first."
        ));
    }
    let is_told =
        |of: &SweepDifference| matches!(of.verdict, PairedVerdict::Better | PairedVerdict::Worse);
    if seeds().any(|(seeds, of)| seeds.contains(&1) && is_told(of)) {
        notes.push(format!(
            "Of \"better\" and \"worse\" with a single seed: {ONE_TRAINING}. `--sweep seed=0,1,2` trains several."
        ));
    }
    notes
}

/// A percentage with as many of two digits as it needs.
fn percent(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests;

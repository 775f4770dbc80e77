//! How acceptance and speed are spread over prompts: a drafter may earn much on the whole and slow some conversations down.
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::bootstrap::bootstrap;
use crate::counts::Counts;

/// The spread over the prompts of a dataset. What no event tells is left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SpreadReport {
    /// Conversations, where some have several turns: the intervals are over these. Each turn is a prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversations: Option<u64>,
    /// Turns that were not asked, as the conversation so far filled the target's context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns_left_out: Option<u64>,
    /// Mean over prompts of the τ of each; the pooled τ weighs passes alike, this one prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tau_mean: Option<f64>,
    /// Its 95 % interval over conversations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tau_mean_ci95: Option<[f64; 2]>,
    /// Pooled τ of the tenth of the conversations in which it is smallest, of ten conversations or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tau_worst_tenth: Option<f64>,
    /// Its 95 % interval over conversations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tau_worst_tenth_ci95: Option<[f64; 2]>,
    /// Share of the conversations that the drafter makes slower, where they were also decoded without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowed: Option<f64>,
    /// Its 95 % interval over conversations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowed_ci95: Option<[f64; 2]>,
}

/// What the spread is made of: one conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Decoded {
    /// What was counted in each turn.
    pub(crate) turns: Vec<Counts>,
    /// Turns that were not asked.
    pub(crate) left_out: u64,
    /// How many times faster it was than without the drafter, where that was measured.
    pub(crate) speedup: Option<f64>,
}

impl Decoded {
    /// All turns together.
    pub(crate) fn counts(&self) -> Counts {
        self.turns.iter().copied().sum()
    }
}

/// Conversations of which a tenth is worth telling.
const TENTHS: usize = 10;

/// The spread over these conversations.
pub(crate) fn spread(conversations: &[&Decoded], seed: u64) -> SpreadReport {
    let interval = |statistic: fn(&[&Decoded]) -> Option<f64>| {
        bootstrap(conversations, seed, |drawn| {
            statistic(&drawn.iter().map(|drawn| **drawn).collect::<Vec<_>>())
        })
    };
    let left_out: u64 = conversations
        .iter()
        .map(|conversation| conversation.left_out)
        .sum();
    let several = conversations
        .iter()
        .any(|conversation| conversation.turns.len() as u64 + conversation.left_out > 1);
    let enough = conversations.len() >= TENTHS;
    SpreadReport {
        conversations: several.then_some(conversations.len() as u64),
        turns_left_out: (left_out > 0).then_some(left_out),
        tau_mean: tau_mean(conversations),
        tau_mean_ci95: interval(tau_mean),
        tau_worst_tenth: enough.then(|| worst_tenth(conversations)).flatten(),
        tau_worst_tenth_ci95: enough.then(|| interval(worst_tenth)).flatten(),
        slowed: slowed(conversations),
        slowed_ci95: interval(slowed),
    }
}

fn tau_mean(conversations: &[&Decoded]) -> Option<f64> {
    let turns = conversations
        .iter()
        .flat_map(|conversation| &conversation.turns);
    mean(turns.filter_map(|counts| counts.tau()))
}

fn worst_tenth(conversations: &[&Decoded]) -> Option<f64> {
    let pooled = |conversation: &&Decoded| {
        let counts = conversation.counts();
        Some((counts.tau()?, counts))
    };
    let mut taus: Vec<(f64, Counts)> = conversations.iter().filter_map(pooled).collect();
    taus.sort_by(|one, other| one.0.total_cmp(&other.0));
    let worst = taus.iter().take(taus.len().div_ceil(TENTHS));
    worst.map(|(_, counts)| *counts).sum::<Counts>().tau()
}

fn slowed(conversations: &[&Decoded]) -> Option<f64> {
    let speedups = conversations
        .iter()
        .filter_map(|conversation| conversation.speedup);
    mean(speedups.map(|speedup| f64::from(speedup < 1.0)))
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0);
    for value in values {
        sum += value;
        count += 1;
    }
    (count > 0).then(|| sum / f64::from(count))
}

/// A table of what is spread how, with a row for each of these settings and datasets; nothing where nothing is known.
pub(crate) fn table(rows: &[(String, String, SpreadReport)]) -> String {
    if rows.iter().all(|(_, _, spread)| spread.tau_mean.is_none()) {
        return String::new();
    }
    let cell = |value: Option<f64>, interval: Option<[f64; 2]>, unit: f64, digits: usize| {
        let Some(value) = value.map(|value| unit * value) else {
            return "–".to_owned();
        };
        match interval.map(|interval| interval.map(|end| unit * end)) {
            Some([low, high]) => format!("{value:.digits$} [{low:.digits$}, {high:.digits$}]"),
            None => format!("{value:.digits$}"),
        }
    };
    let mut text =
        "\n| setting | dataset | τ, mean over prompts | τ, worst tenth | slowed below 1x, % |\n\
                    |---|---|---|---|---|\n"
            .to_owned();
    for (setting, dataset, spread) in rows {
        _ = writeln!(
            text,
            "| {setting} | {dataset} | {} | {} | {} |",
            cell(spread.tau_mean, spread.tau_mean_ci95, 1.0, 2),
            cell(spread.tau_worst_tenth, spread.tau_worst_tenth_ci95, 1.0, 2),
            cell(spread.slowed, spread.slowed_ci95, 100.0, 0),
        );
    }
    let sum = |count: fn(&SpreadReport) -> Option<u64>| -> u64 {
        rows.iter()
            .filter_map(|(_, _, spread)| count(spread))
            .max()
            .unwrap_or(0)
    };
    let (conversations, left_out) = (
        sum(|spread| spread.conversations),
        sum(|spread| spread.turns_left_out),
    );
    if conversations > 0 {
        text += "\nEach turn of a conversation is a prompt; intervals are over conversations.\n";
    }
    if left_out > 0 {
        _ = write!(
            text,
            "\nTurns that were not asked, as their conversation filled the target's context: {left_out}.\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(turns: &[[u32; 2]], speedup: Option<f64>) -> Decoded {
        Decoded {
            turns: turns
                .iter()
                .map(|&turn| turn.map(f64::from).into())
                .collect(),
            left_out: 0,
            speedup,
        }
    }

    fn of(conversations: &[Decoded]) -> SpreadReport {
        spread(&conversations.iter().collect::<Vec<_>>(), 3)
    }

    #[test]
    fn prompts_count_alike_in_the_mean_and_passes_in_the_pool() {
        // τ of 3, 1 and 3, the second over many passes.
        let found = of(&[
            decoded(&[[3, 1], [20, 20]], Some(0.5)),
            decoded(&[[6, 2]], Some(2.0)),
            decoded(&[[0, 0]], None),
        ]);
        assert_eq!(found.tau_mean, Some(7.0 / 3.0));
        assert_eq!(found.conversations, Some(3));
        assert_eq!(found.slowed, Some(0.5));
        assert_eq!(found.tau_worst_tenth, None);
        // Drawn alone, the first conversation has 2 and the second 3.
        assert_eq!(found.tau_mean_ci95, Some([2.0, 3.0]));
    }

    #[test]
    fn the_worst_tenth_is_that_of_the_smallest_ratios() {
        let mut conversations: Vec<Decoded> = (0..18)
            .map(|at| decoded(&[[30 + at, 10]], Some(1.5)))
            .collect();
        conversations.push(decoded(&[[12, 10]], Some(0.75)));
        conversations.push(decoded(&[[30, 20]], Some(0.25)));
        let found = of(&conversations);
        assert_eq!(found.tau_worst_tenth, Some(42.0 / 30.0));
        assert_eq!(found.slowed, Some(0.1));
        assert_eq!((found.conversations, found.turns_left_out), (None, None));
        let [low, high] = found.tau_worst_tenth_ci95.unwrap();
        assert!(low < 1.4 && 1.4 < high, "{low} {high}");
        let [low, high] = found.slowed_ci95.unwrap();
        assert!(low < 0.1 && 0.1 < high, "{low} {high}");
    }

    #[test]
    fn turns_that_were_left_out_are_told() {
        let mut cut = decoded(&[[4, 2]], None);
        cut.left_out = 2;
        let found = of(&[cut]);
        assert_eq!(
            (found.conversations, found.turns_left_out),
            (Some(1), Some(2))
        );
        let table = table(&[("T=0".into(), "a".into(), found)]);
        assert!(table.contains("| T=0 | a | 2.00 | – | – |"), "{table}");
        assert!(table.contains("filled the target's context: 2."), "{table}");
        assert_eq!(
            super::table(&[("T=0".into(), "a".into(), SpreadReport::default())]),
            ""
        );
    }
}

//! τ of a drafter as training, the estimator, the decoder and engines count it, side by side.
use serde::{Deserialize, Serialize};

use crate::interval::with_digits;

/// What training found of the weights that it left, on held-out conversations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainedReport {
    /// The step that they are of.
    pub step: u64,
    /// Steps that were done, where its validations have ended it before the last one that the recipe asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    /// τ of greedy chains as the loss sees them: each step is right where the held-out text's next token is drafted. None where the
    /// loss follows no chains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated_tau: Option<f64>,
    /// Tokens in these chains; reports of earlier versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated_length: Option<usize>,
    /// τ of held-out prompts with greedy chains, decoded or estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tau: Option<f64>,
    /// Its 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tau_ci95: Option<[f64; 2]>,
    /// Tokens in these chains; reports of earlier versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_length: Option<usize>,
}

impl TrainedReport {
    /// τ of chains of so many tokens by the simulation of the loss.
    pub(crate) fn simulated(&self, length: usize) -> Option<f64> {
        self.simulated_tau
            .filter(|_| self.simulated_length == Some(length))
    }

    /// The same by the validation of the weights.
    pub(crate) fn validated(&self, length: usize) -> Option<Tau> {
        let tau = self.tau.filter(|_| self.draft_length == Some(length))?;
        Some((tau, self.tau_ci95))
    }
}

/// What stands above the table.
pub(crate) const CAPTION: &str = "τ by who counts it";
/// Who may have counted.
const WHO: [&str; 5] = [
    "simulated in training",
    "validation",
    "estimated",
    "decoded",
    "served",
];

/// τ with its 95 % interval.
pub(crate) type Tau = (f64, Option<[f64; 2]>);

/// τ of a setting by each who counted it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counted {
    /// The setting.
    pub(crate) setting: String,
    /// By the simulation of the loss.
    pub(crate) simulated: Option<f64>,
    /// By the validation of the weights.
    pub(crate) validated: Option<Tau>,
    /// By the estimator.
    pub(crate) estimated: Option<Tau>,
    /// By the decoder.
    pub(crate) decoded: Option<Tau>,
    /// By an engine, with so many requests under way.
    pub(crate) served: Vec<(Tau, usize)>,
}

impl Counted {
    /// In the order of [`WHO`].
    fn cells(&self) -> [Option<String>; 5] {
        let with = |(tau, interval): Tau| with_digits(Some(tau), interval, 2);
        let served = self.served.iter();
        let served: Vec<String> = served
            .map(|(tau, at_once)| format!("{} ({at_once} at once)", with(*tau)))
            .collect();
        [
            self.simulated.map(|tau| with((tau, None))),
            self.validated.map(with),
            self.estimated.map(with),
            self.decoded.map(with),
            (!served.is_empty()).then(|| served.join(", ")),
        ]
    }
}

/// A table with a row for each setting that at least two have counted; nothing where there is none.
pub(crate) fn opinions(counted: &[Counted]) -> Option<(Vec<&'static str>, Vec<Vec<String>>)> {
    let each = counted.iter().map(|one| (&one.setting, one.cells()));
    let several: Vec<_> = each
        .filter(|(_, cells)| cells.iter().flatten().count() > 1)
        .collect();
    let kept: Vec<usize> = (0..WHO.len())
        .filter(|&who| several.iter().any(|(_, cells)| cells[who].is_some()))
        .collect();
    let head = std::iter::once("setting").chain(kept.iter().map(|&who| WHO[who]));
    let row = |(setting, cells): &(&String, [Option<String>; 5])| {
        let cell = |&who: &usize| cells[who].clone().unwrap_or_else(|| "–".into());
        std::iter::once((*setting).clone())
            .chain(kept.iter().map(cell))
            .collect()
    };
    let rows: Vec<Vec<String>> = several.iter().map(row).collect();
    (!rows.is_empty()).then(|| (head.collect(), rows))
}

/// The table of [`opinions`] in Markdown, below its caption.
pub(crate) fn to_markdown(counted: &[Counted]) -> String {
    let Some((head, rows)) = opinions(counted) else {
        return String::new();
    };
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = head.into_iter().map(str::to_owned).collect();
    let rule = "|---".repeat(head.len());
    let rows: String = rows.iter().map(|row| line(row)).collect();
    format!("\n{CAPTION}:\n\n{}{rule}|\n{rows}", line(&head))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_shown_where_at_least_two_have_counted_it() {
        let decoded = Counted {
            setting: "T=1".into(),
            decoded: Some((1.25, None)),
            ..Counted::default()
        };
        assert_eq!(opinions(std::slice::from_ref(&decoded)), None);
        let by_three = Counted {
            setting: "T=0".into(),
            simulated: Some(1.5),
            decoded: Some((1.75, Some([1.5, 2.0]))),
            served: vec![((1.7, None), 1), ((1.8, None), 4)],
            ..Counted::default()
        };
        let (head, rows) = opinions(&[decoded, by_three.clone()]).unwrap();
        assert_eq!(
            head,
            ["setting", "simulated in training", "decoded", "served"]
        );
        let served = "1.70 (1 at once), 1.80 (4 at once)";
        assert_eq!(rows, [["T=0", "1.50", "1.75 [1.50, 2.00]", served]]);
        assert!(to_markdown(&[by_three]).contains("| T=0 | 1.50 | 1.75 [1.50, 2.00] |"));
    }
}

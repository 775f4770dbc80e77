//! The tables of a sweep.
use serde::{Serialize, Serializer};

use crate::paired::difference::PairedVerdict;

/// Variations side by side.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Sweep {
    /// The variation that others are compared with; none where runs cannot be paired, each of which has a row of its own then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
    /// The differences in all tables together, which verdicts allow for.
    pub comparisons: usize,
    /// One for each way of decoding that any variation was judged in and, where that was on several datasets, for each of these.
    pub tables: Vec<SweepTable>,
    /// What must be known to read them.
    pub notes: Vec<String>,
}

/// Variations in one way of decoding.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepTable {
    /// The target that verified, where there were several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The way of decoding.
    pub setting: String,
    /// The dataset, where this is one of several; else all prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// The largest τ first; in the order of the runs where these cannot be paired.
    pub rows: Vec<SweepRow>,
    /// Variations that were not judged so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_judged: Vec<String>,
}

/// A variation in a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepRow {
    /// What is different in it.
    pub variation: String,
    /// What was drafted.
    pub draft: String,
    /// Conversations that every seed decoded.
    pub conversations: usize,
    /// τ of all seeds pooled.
    pub tau: Option<f64>,
    /// Its 95 % interval, over conversations and, of several, seeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tau_ci95: Option<[f64; 2]>,
    /// τ of each seed.
    pub seeds: Vec<SeedTau>,
    /// The seeds that have no report.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed_seeds: Vec<String>,
    /// Acceptance rate α, on average over seeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// How many times faster decoding is than without a drafter, on average over seeds, where it was measured for each; of all prompts
    /// what is predicted where the machine's pace changed, and of a dataset nothing then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speedup: Option<f64>,
    /// Seconds of the training of a seed, on average, where they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training_seconds: Option<f64>,
    /// How many times as long as that of the first variation the training took; none of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times_first: Option<f64>,
    /// Whether it is the variation that others are compared with.
    pub is_first: bool,
    /// How it differs from the first variation; none of itself, and where the first was not judged so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against_first: Option<SweepDifference>,
}

/// τ of one training.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SeedTau {
    /// Its seed.
    pub seed: String,
    /// None without passes.
    pub tau: Option<f64>,
}

/// How τ of a variation differs from that of the first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepDifference {
    /// How much larger it is.
    pub difference: f64,
    /// 95 % interval, by pairs of conversations and, of several, over seeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95: Option<[f64; 2]>,
    /// An interval so wide that those of all differences of the sweep hold at once with 95 %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joint95: Option<[f64; 2]>,
    /// What that says.
    #[serde(serialize_with = "in_words")]
    pub verdict: PairedVerdict,
}

/// A verdict as it stands in every table.
fn in_words<S: Serializer>(verdict: &PairedVerdict, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(verdict)
}

impl Sweep {
    /// Every difference in the tables, with its row.
    pub(super) fn differences(&self) -> impl Iterator<Item = (&SweepRow, &SweepDifference)> {
        let rows = self.tables.iter().flat_map(|table| &table.rows);
        rows.filter_map(|row| Some((row, row.against_first.as_ref()?)))
    }
}

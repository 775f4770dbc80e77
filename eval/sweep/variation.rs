//! What a sweep has trained.
use crate::report::Report;

/// A variation, which may have been trained with several seeds.
#[derive(Debug, Clone)]
pub struct Variation {
    /// What is different in it.
    pub name: String,
    /// The trainings that have a report.
    pub seeds: Vec<TrainedSeed>,
    /// The seeds of those that have none, as they or their evaluations failed.
    pub failed: Vec<String>,
}

/// One training of a variation.
#[derive(Debug, Clone)]
pub struct TrainedSeed {
    /// Its seed, or what else tells it from the others.
    pub seed: String,
    /// Seconds that it took, where that is known.
    pub seconds: Option<f64>,
    /// What its drafter was found to do.
    pub report: Report,
}

impl Variation {
    /// Seconds of the training of a seed, on average over those of which they are known.
    pub(super) fn mean_seconds(&self) -> Option<f64> {
        let known = self.seeds.iter().filter_map(|of| of.seconds);
        let known: Vec<f64> = known.collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    }

    /// Each of its trainings by itself.
    pub(super) fn apart(&self) -> Vec<Self> {
        let alone = |seed: &TrainedSeed| Self {
            name: match self.seeds.len() {
                1 => self.name.clone(),
                _ => format!("{} (seed {})", self.name, seed.seed),
            },
            seeds: vec![seed.clone()],
            failed: Vec::new(),
        };
        self.seeds.iter().map(alone).collect()
    }
}

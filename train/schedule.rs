use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the learning rate falls after the warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Decay {
    /// It stays constant.
    Constant,
    /// It falls linearly.
    Linear,
    /// It falls along half a cosine.
    #[default]
    Cosine,
    /// It stays constant, then falls linearly over the last fifth of the steps after the warm-up.
    Wsd,
}

/// Share of the steps over which [`Decay::Wsd`] falls.
const WSD_SHARE: f64 = 0.2;

/// The learning rate over a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Peak.
    pub learning_rate: f64,
    /// Steps until the peak is reached, from 0 along a line.
    pub warmup_steps: usize,
    /// Optimizer steps in all.
    pub steps: usize,
    /// What follows the warm-up.
    pub decay: Decay,
    /// Share of the peak that is left at the end.
    pub min_lr_ratio: f64,
}

impl Schedule {
    /// Learning rate of `step`, counted from 0.
    pub fn at(&self, step: usize) -> f64 {
        if step < self.warmup_steps {
            return self.learning_rate * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let span = (self.steps.saturating_sub(self.warmup_steps)).max(1) as f64;
        let progress = ((step - self.warmup_steps) as f64 / span).min(1.0);
        let left = match self.decay {
            Decay::Constant => 1.0,
            Decay::Linear => 1.0 - progress,
            Decay::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
            Decay::Wsd => ((1.0 - progress) / WSD_SHARE).min(1.0),
        };
        match self.decay {
            Decay::Constant => self.learning_rate,
            _ => self.learning_rate * (self.min_lr_ratio + (1.0 - self.min_lr_ratio) * left),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(decay: Decay) -> Schedule {
        Schedule {
            learning_rate: 1.0,
            warmup_steps: 10,
            steps: 110,
            decay,
            min_lr_ratio: 0.1,
        }
    }

    #[test]
    fn every_decay_peaks_after_the_warmup_and_ends_near_the_floor() {
        for decay in [Decay::Linear, Decay::Cosine, Decay::Wsd] {
            let schedule = schedule(decay);
            assert_eq!(schedule.at(0), 0.1);
            assert_eq!(schedule.at(10), 1.0);
            assert!((schedule.at(110) - 0.1).abs() < 1e-12, "{decay:?}");
        }
        assert_eq!(schedule(Decay::Constant).at(109), 1.0);
    }

    #[test]
    fn a_training_that_ends_within_its_warm_up_ends_below_the_peak() {
        for decay in [Decay::Constant, Decay::Linear, Decay::Cosine, Decay::Wsd] {
            let short = Schedule {
                steps: 8,
                ..schedule(decay)
            };
            assert_eq!([short.at(0), short.at(7)], [0.1, 0.8], "{decay:?}");
        }
    }

    #[test]
    fn wsd_stays_for_four_fifths() {
        let schedule = schedule(Decay::Wsd);
        assert_eq!(schedule.at(89), 1.0);
        assert!((schedule.at(100) - 0.55).abs() < 1e-12);
    }

    #[test]
    fn cosine_is_halfway_in_the_middle() {
        assert!((schedule(Decay::Cosine).at(60) - 0.55).abs() < 1e-12);
    }
}

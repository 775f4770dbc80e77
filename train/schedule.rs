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
    /// It stays constant, then falls over the last steps, of which `decay_ratio` says the share and `decay_shape` how.
    Wsd,
}

/// How the learning rate falls over the last steps, by the share of these that is done. Names and formulas are those of
/// Megatron-LM's `lr_wsd_decay_style`, which TorchSpec has too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DecayShape {
    /// Along a line.
    #[default]
    Linear,
    /// Along half a cosine.
    Cosine,
    /// Exponentially, `2 · 2^-share - 1`: a little faster at first than at last.
    Exponential,
    /// With the root of the share, `1 - √share`: much faster at first than at last.
    MinusSqrt,
}

impl DecayShape {
    /// What is left of the way from the peak to the floor once `share` of its steps are done: 1 at 0, and 0 at 1.
    fn left(self, share: f64) -> f64 {
        match self {
            Self::Linear => 1.0 - share,
            Self::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * share).cos()),
            Self::Exponential => 2.0 * 0.5_f64.powf(share) - 1.0,
            Self::MinusSqrt => 1.0 - share.sqrt(),
        }
    }
}

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
    /// Share of the steps, the last ones, over which [`Decay::Wsd`] falls: rounded down to whole steps, at least two, as the first
    /// of them has the peak still, and at most those after the warm-up.
    pub decay_ratio: f64,
    /// How it falls over them.
    pub decay_shape: DecayShape,
    /// Share of the peak that is left behind the last step. That one itself is a step short of it, as with the schedulers of PyTorch and
    /// transformers, which count steps from 0 too.
    pub min_lr_ratio: f64,
}

impl Schedule {
    /// Learning rate of `step`, counted from 0.
    pub fn at(&self, step: usize) -> f64 {
        if step < self.warmup_steps {
            return self.learning_rate * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let (shape, from) = match self.decay {
            Decay::Constant => return self.learning_rate,
            Decay::Linear => (DecayShape::Linear, self.warmup_steps),
            Decay::Cosine => (DecayShape::Cosine, self.warmup_steps),
            Decay::Wsd => (self.decay_shape, self.last_steps_from()),
        };
        let span = self.steps.saturating_sub(from).max(1) as f64;
        let share = (step.saturating_sub(from) as f64 / span).min(1.0);
        let left = shape.left(share);
        self.learning_rate * (self.min_lr_ratio + (1.0 - self.min_lr_ratio) * left)
    }

    /// The step from which [`Decay::Wsd`] falls.
    fn last_steps_from(&self) -> usize {
        // A share such as 0.29 is a little less than it says.
        let falls = (self.decay_ratio * self.steps as f64 + 1e-9) as usize;
        let from = self.steps.saturating_sub(falls.max(2));
        from.max(self.warmup_steps)
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
            decay_ratio: 0.2,
            decay_shape: DecayShape::Linear,
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

    /// `get_linear_schedule_with_warmup` of transformers has 1/100 of the peak at the last of 100 steps behind a warm-up.
    #[test]
    fn the_last_step_is_one_short_of_the_floor() {
        let linear = Schedule {
            min_lr_ratio: 0.0,
            ..schedule(Decay::Linear)
        };
        assert!((linear.at(109) - 0.01).abs() < 1e-12);
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

    /// One without a warm-up or a floor that falls over this share of so many steps, in this shape.
    fn wsd(steps: usize, decay_ratio: f64, decay_shape: DecayShape) -> Schedule {
        Schedule {
            steps,
            warmup_steps: 0,
            min_lr_ratio: 0.0,
            decay_ratio,
            decay_shape,
            ..schedule(Decay::Wsd)
        }
    }

    #[test]
    fn wsd_stays_for_four_fifths_of_the_steps() {
        // Of 110 steps the last 22, whatever the warm-up takes of the others.
        let schedule = schedule(Decay::Wsd);
        assert_eq!([schedule.at(10), schedule.at(88)], [1.0; 2]);
        assert!((schedule.at(99) - 0.55).abs() < 1e-12);
        assert!(schedule.at(89) < 1.0);
    }

    #[test]
    fn the_fall_takes_whole_steps_and_none_of_the_warm_up() {
        let falls = |steps, ratio| {
            let schedule = wsd(steps, ratio, DecayShape::Linear);
            (0..steps).filter(|&step| schedule.at(step) < 1.0).count()
        };
        // The first of them has the peak still, as with the other schedules.
        assert_eq!([falls(10, 0.4), falls(10, 0.49), falls(10, 1.0)], [3, 3, 9]);
        assert_eq!([falls(10, 0.05), falls(10, 0.1)], [1, 1]);
        // 0.29 · 100 is 28.999… by floating point.
        assert_eq!(falls(100, 0.29), 28);
        let whole = Schedule {
            decay_ratio: 1.0,
            ..schedule(Decay::Wsd)
        };
        for step in [0, 10, 11, 60, 110] {
            let linear = schedule(Decay::Linear).at(step);
            assert_eq!(whole.at(step), linear, "{step}");
        }
    }

    #[test]
    fn each_shape_is_that_of_megatron_and_ends_at_the_floor() {
        // What is left after a quarter and a half, by the formulas of `OptimizerParamScheduler.get_lr`.
        let shapes = [
            (DecayShape::Linear, [0.75, 0.5]),
            (DecayShape::Cosine, [0.853_553_390_593_273_8, 0.5]),
            (
                DecayShape::Exponential,
                [0.681_792_830_507_429_1, 0.414_213_562_373_095_1],
            ),
            (DecayShape::MinusSqrt, [0.5, 0.292_893_218_813_452_4]),
        ];
        for (shape, expected) in shapes {
            let schedule = wsd(100, 0.4, shape);
            assert_eq!([schedule.at(0), schedule.at(60)], [1.0; 2], "{shape:?}");
            for (step, expected) in [70, 80].into_iter().zip(expected) {
                let found = schedule.at(step);
                assert!((found - expected).abs() < 1e-12, "{shape:?}: {found}");
            }
            let floored = Schedule {
                min_lr_ratio: 0.1,
                ..schedule
            };
            for end in [100, 130] {
                assert!((floored.at(end) - 0.1).abs() < 1e-12, "{shape:?}");
            }
        }
    }

    #[test]
    fn cosine_is_halfway_in_the_middle() {
        assert!((schedule(Decay::Cosine).at(60) - 0.55).abs() < 1e-12);
    }
}

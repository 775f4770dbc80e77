//! What kernels judge by: two forms that most divergences take.
use crate::divergence::{Divergence, Factors, LEAST_ALPHA, LEAST_DEVIATION};
use crate::workload::Judges;

/// What kernels judge by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kernel {
    /// The distance to one distribution that is made of the target's.
    Towards {
        /// That distribution.
        distribution: Towards,
        /// Whether its entropy is taken off the value: from `-Σ p log q` to `Σ p log (p / q)`.
        takes_entropy_off: bool,
    },
    /// A sum of distances to the target's distribution, in which acceptance rates may count.
    Blend(Blend),
}

/// A distribution made of the target's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Towards {
    /// At this temperature.
    Tempered(f64),
    /// All on the most likely token.
    Best,
}

/// What each distance of a sum is multiplied by.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Blend {
    pub(crate) kl: f32,
    pub(crate) ce: f32,
    pub(crate) tv: f32,
    pub(crate) tv_plus_plus: f32,
    pub(crate) nla: f32,
    pub(crate) lk_hybrid: f32,
}

/// What was found of a row before its gradient is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Findings {
    /// `KL(p ‖ q)`.
    pub(crate) kl: f32,
    /// `-log q` of the target's most likely token.
    pub(crate) ce: f32,
    /// `Σ min(p, q)`.
    pub(crate) alpha: f32,
    /// Variance, under `q`, of the slope of `Σ min(p, q)` in each `q`.
    pub(crate) variance: f32,
}

/// The gradient of a row in its logits: `kl (q - p) + ce (q - 1[best]) - alpha q (r - Σ q r)`, where `r` is the slope of the acceptance rate in
/// each `q`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slopes {
    pub(crate) kl: f32,
    pub(crate) ce: f32,
    pub(crate) alpha: f32,
}

impl Blend {
    /// The row's distance, and the factors of its gradient.
    #[inline(always)]
    pub(crate) fn of(&self, row: &Findings) -> (f32, Slopes) {
        let Findings { kl, ce, alpha, .. } = *row;
        let least = LEAST_ALPHA as f32;
        let floored = alpha.max(least);
        let of_nla = if alpha >= least {
            self.nla / floored
        } else {
            0.0
        };
        let deviation = row.variance.max(0.0).sqrt().max(LEAST_DEVIATION as f32);
        let share = (-3.0 * alpha).exp();
        let rest = 1.0 - share;
        let slopes = Slopes {
            kl: self.kl + self.lk_hybrid * share,
            ce: self.ce,
            alpha: self.tv + self.tv_plus_plus / deviation + of_nla + self.lk_hybrid * rest,
        };
        let of_alpha = self.tv + self.tv_plus_plus + self.lk_hybrid * rest;
        let value =
            slopes.kl * kl + slopes.ce * ce + of_alpha * (1.0 - alpha) - self.nla * floored.ln();
        (value, slopes)
    }
}

impl Factors {
    /// The sum of these, where kernels know all that are in it.
    fn blend(self) -> Option<Blend> {
        let Self {
            kl,
            reverse_kl,
            jsd,
            ce,
            tv,
            nla,
            lk_hybrid,
        } = self;
        (reverse_kl == 0.0 && jsd == 0.0).then_some(Blend {
            kl: kl as f32,
            ce: ce as f32,
            tv: tv as f32,
            tv_plus_plus: 0.0,
            nla: nla as f32,
            lk_hybrid: lk_hybrid as f32,
        })
    }
}

impl Divergence {
    /// What kernels judge by; none where tensor operations do.
    pub(crate) fn kernel(self) -> Option<Kernel> {
        let towards = |distribution, takes_entropy_off| {
            Some(Kernel::Towards {
                distribution,
                takes_entropy_off,
            })
        };
        let none = Blend::default();
        let blend = match self {
            Self::Kl => return towards(Towards::Tempered(1.0), true),
            Self::SoftCe => return towards(Towards::Tempered(1.0), false),
            Self::TemperedKl(temperature) => return towards(Towards::Tempered(temperature), true),
            Self::Ce => return towards(Towards::Best, false),
            Self::Tv => Blend { tv: 1.0, ..none },
            Self::TvPlusPlus => Blend {
                tv_plus_plus: 1.0,
                ..none
            },
            Self::Nla => Blend { nla: 1.0, ..none },
            Self::LkHybrid => Blend {
                lk_hybrid: 1.0,
                ..none
            },
            Self::Sum(factors) => factors.blend()?,
            Self::ReverseKl | Self::Jsd(_) | Self::TopK(_) => return None,
        };
        Some(Kernel::Blend(blend))
    }

    /// What judges by it.
    pub(crate) fn judges(self) -> Judges {
        if self.kernel().is_some() {
            Judges::Target
        } else {
            Judges::TargetByTensors
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::prelude::*;
    use burn::tensor::activation::log_softmax;
    use spectrain_models::device::test_device;
    use spectrain_models::weights::host_f32;

    use super::*;
    use crate::divergence::TeacherRows;

    #[test]
    fn a_divergence_without_the_entropy_is_zero_where_the_drafter_has_arrived_and_others_are_not() {
        let logits = Tensor::<2>::from_floats([[0.5, -1.0, 2.0, 0.0]], &test_device());
        let log_p = log_softmax(logits, 1);
        for divergence in [
            Divergence::Kl,
            Divergence::SoftCe,
            Divergence::TemperedKl(0.5),
        ] {
            let Some(Kernel::Towards {
                distribution: Towards::Tempered(temperature),
                takes_entropy_off,
            }) = divergence.kernel()
            else {
                panic!("{divergence:?} pulls towards `p` at a temperature");
            };
            let teacher = TeacherRows {
                log_p: log_p.clone(),
                covered: None,
            };
            let judged = divergence.judge(log_p.clone() / temperature, &teacher);
            let value = host_f32(judged.value)[0];
            assert_eq!(
                value.abs() < 1e-5,
                takes_entropy_off,
                "{divergence:?}: {value}"
            );
        }
    }

    #[test]
    fn a_drafter_that_is_never_accepted_has_a_finite_distance() {
        let row = Findings {
            kl: 80.0,
            ce: 90.0,
            alpha: 0.0,
            // As rounding may leave it.
            variance: -1e-9,
        };
        let all = Blend {
            kl: 1.0,
            ce: 1.0,
            tv: 1.0,
            tv_plus_plus: 1.0,
            nla: 1.0,
            lk_hybrid: 1.0,
        };
        let (value, slopes) = all.of(&row);
        assert!(
            (value - (2.0 * 80.0 + 90.0 + 2.0 - 1e-5_f32.ln())).abs() < 1e-3,
            "{value}"
        );
        let expected = Slopes {
            kl: 2.0,
            ce: 1.0,
            alpha: 101.0,
        };
        assert_eq!(slopes, expected);
    }
}

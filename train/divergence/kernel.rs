//! What kernels judge by: two forms, one of which every divergence takes.
use crate::divergence::{Divergence, Factors, LEAST_ALPHA, LEAST_DEVIATION, LK_DECAY};
use crate::workload::Judges;

/// What kernels judge by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kernel {
    /// The distance to one distribution that is made of the target's.
    Towards {
        /// That distribution.
        distribution: Towards,
        /// Whether its entropy is taken off the value: from `-Σ p log q` to `Σ p log (p / q)`. Never of [`Towards::Largest`].
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
    /// As it is on this many of the most likely tokens and those as likely as the last of them, and zero on the others: what is left
    /// is not renormalised.
    Largest(usize),
}

/// What each distance of a sum is multiplied by.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Blend {
    pub(crate) kl: f32,
    pub(crate) reverse_kl: f32,
    pub(crate) jsd: f32,
    /// Share of `p` in the mixture that `jsd` compares both with.
    pub(crate) beta: f32,
    pub(crate) ce: f32,
    pub(crate) tv: f32,
    pub(crate) tv_plus_plus: f32,
    pub(crate) nla: f32,
    pub(crate) lk_hybrid: f32,
    /// How fast `lk_hybrid` leaves KL behind as more is accepted.
    pub(crate) decay: f32,
}

/// What was found of a row before its gradient is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Findings {
    /// `KL(p ‖ q)`.
    pub(crate) kl: f32,
    /// `KL(q ‖ p)`, where that is in the blend.
    pub(crate) reverse_kl: f32,
    /// `β KL(p ‖ m) + (1 - β) KL(q ‖ m)`, where that is in the blend.
    pub(crate) jsd: f32,
    /// `-log q` of the target's most likely token.
    pub(crate) ce: f32,
    /// `Σ min(p, q)`.
    pub(crate) alpha: f32,
    /// Variance, under `q`, of the slope of `Σ min(p, q)` in each `q`.
    pub(crate) variance: f32,
}

/// The gradient of a row in its logits: `kl (q - p) + ce (q - 1[best]) - alpha q (r - Σ q r)`, where `r` is the slope of the acceptance rate in
/// each `q`; and, where [`Blend::takes_logarithms`], its factors times `q (log (q / p) - Σ q log (q / p))` and
/// `(1 - β) q (log (q / m) - Σ q log (q / m))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slopes {
    pub(crate) kl: f32,
    pub(crate) ce: f32,
    pub(crate) alpha: f32,
}

impl Kernel {
    /// How many distributions of a position it needs: `p`, and beside it another or its logarithms.
    fn panels(&self) -> u64 {
        match self {
            Self::Towards {
                distribution: Towards::Tempered(1.0),
                ..
            } => 1,
            Self::Towards { .. } => 2,
            Self::Blend(blend) => 1 + u64::from(blend.takes_logarithms()),
        }
    }
}

impl Blend {
    /// Whether it needs the logarithm of each probability.
    pub(crate) fn takes_logarithms(&self) -> bool {
        self.reverse_kl != 0.0 || self.jsd != 0.0
    }

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
        let share = (-self.decay * alpha).exp();
        let rest = 1.0 - share;
        let slopes = Slopes {
            kl: self.kl + self.lk_hybrid * share,
            ce: self.ce,
            alpha: self.tv + self.tv_plus_plus / deviation + of_nla + self.lk_hybrid * rest,
        };
        let of_alpha = self.tv + self.tv_plus_plus + self.lk_hybrid * rest;
        let value =
            slopes.kl * kl + slopes.ce * ce + of_alpha * (1.0 - alpha) - self.nla * floored.ln();
        let of_logarithms = self.reverse_kl * row.reverse_kl + self.jsd * row.jsd;
        (value + of_logarithms, slopes)
    }
}

impl Factors {
    /// The sum of these.
    fn blend(&self) -> Blend {
        let factors = [
            self.kl,
            self.reverse_kl,
            self.jsd,
            self.ce,
            self.tv,
            self.nla,
            self.lk_hybrid,
        ];
        let [kl, reverse_kl, jsd, ce, tv, nla, lk_hybrid] =
            factors.map(|factor| factor.end() as f32);
        Blend {
            kl,
            reverse_kl,
            jsd,
            beta: Self::BETA as f32,
            ce,
            tv,
            tv_plus_plus: 0.0,
            nla,
            lk_hybrid,
            decay: LK_DECAY as f32,
        }
    }
}

impl Divergence {
    /// What kernels judge by; of a sum whose factors change, what they are outside of a training.
    pub(crate) fn kernel(&self) -> Kernel {
        let towards = |distribution, takes_entropy_off| Kernel::Towards {
            distribution,
            takes_entropy_off,
        };
        let none = Blend::default();
        let hybrid = |decay: f64| Blend {
            lk_hybrid: 1.0,
            decay: decay as f32,
            ..none
        };
        let blend = match *self {
            Self::Kl => return towards(Towards::Tempered(1.0), true),
            Self::SoftCe => return towards(Towards::Tempered(1.0), false),
            Self::TemperedKl(temperature) => return towards(Towards::Tempered(temperature), true),
            Self::Ce => return towards(Towards::Best, false),
            Self::TopK(k) => return towards(Towards::Largest(k), false),
            Self::ReverseKl => Blend {
                reverse_kl: 1.0,
                ..none
            },
            Self::Jsd(beta) => Blend {
                jsd: 1.0,
                beta: beta as f32,
                ..none
            },
            Self::Tv => Blend { tv: 1.0, ..none },
            Self::TvPlusPlus => Blend {
                tv_plus_plus: 1.0,
                ..none
            },
            Self::Nla => Blend { nla: 1.0, ..none },
            Self::LkHybrid => hybrid(LK_DECAY),
            Self::LkHybridOf(decay) => hybrid(decay),
            Self::Sum(ref factors) => factors.blend(),
        };
        Kernel::Blend(blend)
    }

    /// What judges by it, over all steps.
    pub(crate) fn judges(&self) -> Judges {
        Judges::Target {
            panels: self.largest().kernel().panels(),
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
            let Kernel::Towards {
                distribution: Towards::Tempered(temperature),
                takes_entropy_off,
            } = divergence.kernel()
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
            reverse_kl: 70.0,
            jsd: 0.7,
            ce: 90.0,
            alpha: 0.0,
            // As rounding may leave it.
            variance: -1e-9,
        };
        let all = Blend {
            kl: 1.0,
            reverse_kl: 1.0,
            jsd: 1.0,
            beta: 0.5,
            ce: 1.0,
            tv: 1.0,
            tv_plus_plus: 1.0,
            nla: 1.0,
            lk_hybrid: 1.0,
            decay: 3.0,
        };
        let (value, slopes) = all.of(&row);
        assert!(
            (value - (2.0 * 80.0 + 70.0 + 0.7 + 90.0 + 2.0 - 1e-5_f32.ln())).abs() < 1e-3,
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

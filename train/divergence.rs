//! The divergences between the target's distribution `p` and the drafter's `q` at one position, with their gradients
//! with respect to the drafter's logits.
use burn::prelude::*;
use burn::tensor::activation::log_softmax;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_models::bounds;
use spectrain_models::reductions::kth_largest;

pub(crate) mod kernel;

/// How far `q` is from `p`. With a draft vocabulary, `p` is renormalised on it, except where acceptance is counted (`α` and `min`).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Divergence {
    /// `KL(p ‖ q)`.
    Kl,
    /// `-Σ p log q`: the gradient of `"kl"`, with the entropy of `p` in its value (EAGLE-3's reference).
    SoftCe,
    /// `KL(q ‖ p)`.
    ReverseKl,
    /// `β KL(p ‖ m) + (1 - β) KL(q ‖ m)` with `m = β p + (1 - β) q` and this β, between 0 and 1 (GKD,
    /// <https://arxiv.org/abs/2306.13649>).
    Jsd(f64),
    /// `-log q` of the target's most likely token.
    Ce,
    /// `KL(p' ‖ q)`, where `p' ∝ p^(1/T)` is the target's distribution at this temperature: at 1 it is `"kl"`, and towards 0 it
    /// becomes `"ce"`.
    TemperedKl(f64),
    /// `1 - Σ min(p, q)`, one minus the acceptance rate.
    Tv,
    /// `"tv"` with its gradient divided by the standard deviation of `1[q < p]` under `q`, so that all rows count the same
    /// (TVD++, <https://arxiv.org/abs/2403.00858>).
    TvPlusPlus,
    /// `-log α` with `α = Σ min(p, q)` (<https://arxiv.org/abs/2602.23881>).
    Nla,
    /// `λ KL(p ‖ q) + (1 - λ)(1 - α)` with `λ = exp(-3 α)` held constant (the same paper).
    LkHybrid,
    /// `-Σ p log q` over this many of the most likely tokens of `p` and those as likely as the last of them, not renormalised (HASS).
    TopK(usize),
    /// The sum of several, each times its factor, such as `{ sum = { kl = 0.9, tv = 0.1 } }`.
    Sum(Factors),
}

/// What each divergence of a sum is multiplied by; those left out are not in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Factors {
    /// Of `"kl"`.
    #[serde(skip_serializing_if = "is_zero")]
    pub kl: f64,
    /// Of `"reverse_kl"`.
    #[serde(skip_serializing_if = "is_zero")]
    pub reverse_kl: f64,
    /// Of `{ jsd = 0.5 }`.
    #[serde(skip_serializing_if = "is_zero")]
    pub jsd: f64,
    /// Of `"ce"`.
    #[serde(skip_serializing_if = "is_zero")]
    pub ce: f64,
    /// Of `"tv"`.
    #[serde(skip_serializing_if = "is_zero")]
    pub tv: f64,
    /// Of `"nla"`.
    #[serde(skip_serializing_if = "is_zero")]
    pub nla: f64,
    /// Of `"lk_hybrid"`.
    #[serde(skip_serializing_if = "is_zero")]
    pub lk_hybrid: f64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde calls"
)]
fn is_zero(factor: &f64) -> bool {
    *factor == 0.0
}

/// The largest factor: far beyond any that trains.
const MOST: f64 = 1e6;

impl Factors {
    /// The β of `jsd` in a sum.
    pub(crate) const BETA: f64 = 0.5;

    /// Each divergence with its factor.
    fn all(self) -> [(Divergence, f64); 7] {
        [
            (Divergence::Kl, self.kl),
            (Divergence::ReverseKl, self.reverse_kl),
            (Divergence::Jsd(Self::BETA), self.jsd),
            (Divergence::Ce, self.ce),
            (Divergence::Tv, self.tv),
            (Divergence::Nla, self.nla),
            (Divergence::LkHybrid, self.lk_hybrid),
        ]
    }

    /// Those that are in the sum.
    fn given(self) -> impl Iterator<Item = (Divergence, f64)> {
        let all = self.all().into_iter();
        all.filter(|(_, factor)| *factor != 0.0)
    }

    /// Whether all make sense, and there is one at least.
    fn is_sound(self) -> bool {
        let mut all = self.all().into_iter();
        self.given().next().is_some() && all.all(|(_, factor)| (0.0..=MOST).contains(&factor))
    }

    fn judge(self, logits: &Tensor<2>, teacher: &TeacherRows) -> Distance {
        let each = self.given().map(|(divergence, factor)| {
            let Distance { value, gradient } = divergence.judge(logits.clone(), teacher);
            Distance {
                value: value * factor,
                gradient: gradient * factor,
            }
        });
        let sum = each.reduce(|sum, one| Distance {
            value: sum.value + one.value,
            gradient: sum.gradient + one.gradient,
        });
        // An objective without any is refused before it trains.
        sum.unwrap_or_else(|| Distance {
            value: logits.zeros_like().sum_dim(1),
            gradient: logits.zeros_like(),
        })
    }
}

/// Distance and gradient at each row of a chunk.
pub struct Distance {
    /// `[rows, 1]`
    pub value: Tensor<2>,
    /// `[rows, vocab]`: of the value with respect to the logits.
    pub gradient: Tensor<2>,
}

/// The target's side of a chunk.
pub struct TeacherRows {
    /// `[rows, vocab]`: log-probabilities, normalised over the drafter's vocabulary.
    pub log_p: Tensor<2>,
    /// `[rows, 1]`: share of the target's mass that the drafter's vocabulary holds; `None` when it is all of it.
    pub covered: Option<Tensor<2>>,
}

impl TeacherRows {
    /// `[rows, vocab]`: the target's probabilities of the drafter's tokens, not renormalised.
    pub fn full(&self) -> Tensor<2> {
        let p = self.log_p.clone().exp();
        match &self.covered {
            None => p,
            Some(covered) => p * covered.clone(),
        }
    }
}

/// Where acceptance is rarer, its logarithm says nothing more.
pub(crate) const LEAST_ALPHA: f64 = 1e-5;
/// Far below any that differs from `"ce"`, and far above those whose reciprocal f32 does not hold.
const LEAST_TEMPERATURE: f64 = 1e-4;
/// Where the drafter has all but met the target, the deviation of its rewards says nothing more.
pub(crate) const LEAST_DEVIATION: f64 = 1e-2;

impl Divergence {
    /// What its parameter must be and is, where that makes no sense.
    pub fn problem(self) -> Option<(&'static str, String)> {
        match self {
            Self::TopK(0) => Some(("a top_k of at least 1", "0".into())),
            Self::TopK(k) if k > bounds::VOCABULARY => {
                Some(("a top_k of no more than all tokens", k.to_string()))
            }
            Self::TemperedKl(temperature) if !(LEAST_TEMPERATURE..=MOST).contains(&temperature) => {
                Some((
                    "a tempered_kl of 0.0001 to 1000000",
                    temperature.to_string(),
                ))
            }
            Self::Jsd(beta) if !(beta > 0.0 && beta < 1.0) => {
                Some(("a jsd between 0 and 1", beta.to_string()))
            }
            Self::Sum(factors) if !factors.is_sound() => {
                let found = serde_json::to_string(&factors).unwrap_or_default();
                Some((
                    "a sum with factors of 0 to 1000000, one of them above 0",
                    found,
                ))
            }
            Self::Kl
            | Self::SoftCe
            | Self::ReverseKl
            | Self::Jsd(_)
            | Self::Ce
            | Self::TemperedKl(_)
            | Self::Tv
            | Self::TvPlusPlus
            | Self::Nla
            | Self::LkHybrid
            | Self::TopK(_)
            | Self::Sum(_) => None,
        }
    }

    /// # Shapes
    /// - logits: `[rows, vocab]`, the drafter's, f32, not in a graph
    pub fn judge(self, logits: Tensor<2>, teacher: &TeacherRows) -> Distance {
        if let Self::Sum(factors) = self {
            return factors.judge(&logits, teacher);
        }
        let log_q = log_softmax(logits, 1);
        let q = log_q.clone().exp();
        let log_p = teacher.log_p.clone();
        let p = log_p.clone().exp();
        let full_p = || teacher.full();
        let alpha = || overlap(full_p(), q.clone());
        let kl = |p: Tensor<2>| (p * (log_p.clone() - log_q.clone())).sum_dim(1);
        let (value, gradient) = match self {
            Self::Kl => (kl(p.clone()), q - p),
            Self::SoftCe => (-(p.clone() * log_q).sum_dim(1), q - p),
            Self::ReverseKl => {
                let ratio = log_q - log_p;
                let value = (q.clone() * ratio.clone()).sum_dim(1);
                let gradient = q * (ratio - value.clone());
                (value, gradient)
            }
            Self::Jsd(beta) => jensen_shannon(beta, [p, log_p], [q, log_q]),
            Self::TemperedKl(temperature) => tempered(log_p / temperature, [q, log_q]),
            Self::Ce => {
                let label = one_hot_argmax(&log_p);
                (-(label.clone() * log_q).sum_dim(1), q - label)
            }
            Self::Tv => (
                -alpha() + 1.0,
                through_softmax(q.clone(), |q| -rising(q, full_p())),
            ),
            Self::TvPlusPlus => {
                let gradient = through_softmax(q.clone(), |q| -rising(q, full_p()));
                let scale = reward_deviation(q.clone(), full_p()).recip();
                (-alpha() + 1.0, gradient * scale)
            }
            Self::Nla => {
                let alpha = alpha();
                let floored = alpha.clone().clamp_min(LEAST_ALPHA);
                let live = alpha.clone().greater_equal_scalar(LEAST_ALPHA).float();
                let slope = live / floored.clone();
                let gradient = through_softmax(q.clone(), |q| -rising(q, full_p()) * slope);
                (-floored.log(), gradient)
            }
            Self::LkHybrid => {
                let alpha = alpha();
                let share = (alpha.clone() * -3.0).exp();
                let rest = -share.clone() + 1.0;
                let value = kl(p.clone()) * share.clone() + rest.clone() * (-alpha + 1.0);
                let towards_p = (q.clone() - p) * share;
                let gradient =
                    towards_p + through_softmax(q.clone(), |q| -rising(q, full_p()) * rest);
                (value, gradient)
            }
            Self::TopK(k) => {
                let kept = keep_largest(p, k);
                let mass = kept.clone().sum_dim(1);
                (-(kept.clone() * log_q).sum_dim(1), q * mass - kept)
            }
            Self::Sum(_) => unreachable!("a sum is judged by its parts"),
        };
        Distance { value, gradient }
    }
}

/// `KL(p' ‖ q)` of the distribution with these logits, and its gradient.
fn tempered(logits: Tensor<2>, [q, log_q]: [Tensor<2>; 2]) -> (Tensor<2>, Tensor<2>) {
    let log_p = log_softmax(logits, 1);
    let p = log_p.clone().exp();
    ((p.clone() * (log_p - log_q)).sum_dim(1), q - p)
}

/// `β KL(p ‖ m) + (1 - β) KL(q ‖ m)` with `m = β p + (1 - β) q`, and its gradient.
fn jensen_shannon(
    beta: f64,
    [p, log_p]: [Tensor<2>; 2],
    [q, log_q]: [Tensor<2>; 2],
) -> (Tensor<2>, Tensor<2>) {
    // Where both underflow, the terms are zero whatever the logarithm, as long as it is finite.
    let m = p.clone() * beta + q.clone() * (1.0 - beta);
    let log_m = m.clamp_min(f32::MIN_POSITIVE).log();
    let to_p = (p * (log_p - log_m.clone())).sum_dim(1);
    let ratio = log_q - log_m;
    let to_q = (q.clone() * ratio.clone()).sum_dim(1);
    // d JSD / d q = (1 - β) log(q / m): the other terms cancel.
    let gradient = q * (ratio - to_q.clone()) * (1.0 - beta);
    (to_p * beta + to_q * (1.0 - beta), gradient)
}

/// The standard deviation of the rewards of [`Divergence::TvPlusPlus`], `[rows, 1]`, from below at least a little.
fn reward_deviation(q: Tensor<2>, p: Tensor<2>) -> Tensor<2> {
    let reward = rising(q.clone(), p);
    let mean = (q.clone() * reward.clone()).sum_dim(1);
    let spread = (reward - mean).square();
    let deviation = (q * spread).sum_dim(1).sqrt();
    deviation.clamp_min(LEAST_DEVIATION)
}

/// The acceptance rate `Σ min(p, q)`, `[rows, 1]`.
pub(crate) fn overlap(p: Tensor<2>, q: Tensor<2>) -> Tensor<2> {
    p.min_pair(q).sum_dim(1)
}

/// Slope of `Σ min(p, q)` in each `q`: 1 below `p`, 0 above, and half where they are equal.
fn rising(q: Tensor<2>, p: Tensor<2>) -> Tensor<2> {
    let below = q.clone().lower(p.clone()).float();
    let equal = q.equal(p).float();
    below + equal * 0.5
}

/// The gradient in the logits of a function whose gradient in `q` is `slope(q)`.
fn through_softmax(q: Tensor<2>, slope: impl FnOnce(Tensor<2>) -> Tensor<2>) -> Tensor<2> {
    let slope = slope(q.clone());
    let mean = (q.clone() * slope.clone()).sum_dim(1);
    q * (slope - mean)
}

fn one_hot_argmax(scores: &Tensor<2>) -> Tensor<2> {
    let best = scores.clone().argmax(1);
    let ones = Tensor::ones(best.dims(), &scores.device());
    scores
        .zeros_like()
        .scatter(1, best, ones, burn::tensor::IndexingUpdateOp::Add)
}

/// So many of the largest of each row, and those as large as the last of them; zero in the place of the others.
fn keep_largest(p: Tensor<2>, k: usize) -> Tensor<2> {
    let least = kth_largest(p.clone(), k.min(p.dims()[1]));
    p.clone().mask_fill(p.lower(least), 0.0)
}

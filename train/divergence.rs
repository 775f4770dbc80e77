//! The divergences between the target's distribution `p` and the drafter's `q` at one position, with their gradients
//! with respect to the drafter's logits.
use burn::prelude::*;
use burn::tensor::activation::log_softmax;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_models::bounds;
use spectrain_models::reductions::kth_largest;

use crate::batch::Step;
use crate::weight::{Weight, changing, vanish_together};

pub(crate) mod kernel;
mod read;

/// How far `q` is from `p`. With a draft vocabulary, `p` is renormalised on it, except where acceptance is counted (`α` and `min`).
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
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
    /// The same with this number, above 0, in place of the 3.
    #[serde(rename = "lk_hybrid")]
    LkHybridOf(f64),
    /// `-Σ p log q` over this many of the most likely tokens of `p` and those as likely as the last of them, not renormalised (HASS).
    TopK(usize),
    /// The sum of several, each times its factor, such as `{ sum = { kl = 0.9, tv = 0.1 } }`. A factor may change over the
    /// steps, as a weight of an objective may.
    Sum(Box<Factors>),
}

/// What each divergence of a sum is multiplied by; those left out are not in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Factors {
    /// Of `"kl"`.
    #[serde(skip_serializing_if = "is_zero")]
    pub kl: Weight,
    /// Of `"reverse_kl"`.
    #[serde(skip_serializing_if = "is_zero")]
    pub reverse_kl: Weight,
    /// Of `{ jsd = 0.5 }`.
    #[serde(skip_serializing_if = "is_zero")]
    pub jsd: Weight,
    /// Of `"ce"`.
    #[serde(skip_serializing_if = "is_zero")]
    pub ce: Weight,
    /// Of `"tv"`.
    #[serde(skip_serializing_if = "is_zero")]
    pub tv: Weight,
    /// Of `"nla"`.
    #[serde(skip_serializing_if = "is_zero")]
    pub nla: Weight,
    /// Of `"lk_hybrid"`.
    #[serde(skip_serializing_if = "is_zero")]
    pub lk_hybrid: Weight,
}

fn is_zero(factor: &Weight) -> bool {
    *factor == Weight::Fixed(0.0)
}

/// The largest factor: far beyond any that trains.
const MOST: f64 = 1e6;

impl Factors {
    /// The β of `jsd` in a sum.
    pub(crate) const BETA: f64 = 0.5;

    /// Each divergence by its name, with its factor.
    fn all(&self) -> [(&'static str, Divergence, Weight); 7] {
        [
            ("kl", Divergence::Kl, self.kl),
            ("reverse_kl", Divergence::ReverseKl, self.reverse_kl),
            ("jsd", Divergence::Jsd(Self::BETA), self.jsd),
            ("ce", Divergence::Ce, self.ce),
            ("tv", Divergence::Tv, self.tv),
            ("nla", Divergence::Nla, self.nla),
            ("lk_hybrid", Divergence::LkHybrid, self.lk_hybrid),
        ]
    }

    /// The same with another number in the place of each.
    fn with(&self, number: impl Fn(Weight) -> f64) -> Self {
        let number = |weight| Weight::Fixed(number(weight));
        Self {
            kl: number(self.kl),
            reverse_kl: number(self.reverse_kl),
            jsd: number(self.jsd),
            ce: number(self.ce),
            tv: number(self.tv),
            nla: number(self.nla),
            lk_hybrid: number(self.lk_hybrid),
        }
    }

    /// Those that are in the sum.
    fn given(&self) -> impl Iterator<Item = (Divergence, f64)> {
        let all = self.all().into_iter();
        let all = all.map(|(_, divergence, factor)| (divergence, factor.end()));
        all.filter(|(_, factor)| *factor != 0.0)
    }

    /// What is expected of them, where they make no sense.
    fn problem(&self) -> Option<String> {
        const SOME: &str = "a sum with factors of 0 to 1000000, one of them above 0 at each step";
        const ORDER: &str =
            "a sum with `from` of each factor at most its `until`, both from 0 to 1";
        let all = self.all().map(|(_, _, factor)| factor);
        if !all.iter().all(|factor| factor.is_within(&(0.0..=MOST))) {
            return Some(SOME.into());
        }
        if !all.iter().all(|factor| factor.is_in_order()) {
            return Some(ORDER.into());
        }
        let when = vanish_together(&all)?;
        Some(format!("{SOME} (all are 0{when})"))
    }

    fn judge(&self, logits: &Tensor<2>, teacher: &TeacherRows) -> Distance {
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
        // A sum that has none after some share of the steps is refused; but steps are rounded down.
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
/// How fast `"lk_hybrid"` leaves KL behind as more is accepted: the paper's.
pub(crate) const LK_DECAY: f64 = 3.0;

impl Divergence {
    /// What its parameter must be and is, where that makes no sense.
    pub fn problem(&self) -> Option<(String, String)> {
        match *self {
            Self::TopK(0) => Some(("a top_k of at least 1".into(), "0".into())),
            Self::TopK(k) if k > bounds::VOCABULARY => {
                Some(("a top_k of no more than all tokens".into(), k.to_string()))
            }
            Self::TemperedKl(temperature) if !(LEAST_TEMPERATURE..=MOST).contains(&temperature) => {
                Some((
                    "a tempered_kl of 0.0001 to 1000000".into(),
                    temperature.to_string(),
                ))
            }
            Self::Jsd(beta) if !(beta > 0.0 && beta < 1.0) => {
                Some(("a jsd between 0 and 1".into(), beta.to_string()))
            }
            Self::LkHybridOf(decay) if !(decay > 0.0 && decay <= MOST) => Some((
                "an lk_hybrid above 0, at most 1000000".into(),
                decay.to_string(),
            )),
            Self::Sum(ref factors) => {
                let found = || serde_json::to_string(factors).unwrap_or_default();
                factors.problem().map(|expected| (expected, found()))
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
            | Self::LkHybridOf(_)
            | Self::TopK(_) => None,
        }
    }

    /// What it is at a step: with the factors that a sum has there.
    pub(crate) fn at(&self, step: Option<Step>) -> Self {
        self.with(|factor| factor.at(step))
    }

    /// With the largest factors that those of a sum become.
    pub(crate) fn largest(&self) -> Self {
        self.with(Weight::largest)
    }

    fn with(&self, factor: impl Fn(Weight) -> f64) -> Self {
        match self {
            Self::Sum(factors) => Self::Sum(Box::new(factors.with(factor))),
            other => other.clone(),
        }
    }

    /// The factors of a sum that change, by the names of their divergences, with what they are at a step.
    pub(crate) fn changing(&self, step: Option<Step>) -> Vec<(&'static str, f64)> {
        match self {
            Self::Sum(factors) => {
                let factors = factors.all().map(|(name, _, factor)| (name, factor));
                changing(&factors, step).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Value and gradient at some rows; of a sum whose factors change, by what they are outside of a training.
    ///
    /// # Shapes
    /// - logits: `[rows, vocab]`, the drafter's, f32, not in a graph
    pub fn judge(&self, logits: Tensor<2>, teacher: &TeacherRows) -> Distance {
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
        let (value, gradient) = match *self {
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
            Self::LkHybrid => lk_hybrid(LK_DECAY, kl(p.clone()), [p, q], full_p()),
            Self::LkHybridOf(decay) => lk_hybrid(decay, kl(p.clone()), [p, q], full_p()),
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

/// `λ kl + (1 - λ)(1 - α)` with `λ = exp(-decay α)`, and its gradient with that λ as a constant.
///
/// # Shapes
/// - kl: `[rows, 1]`, that of `p` and `q`
/// - full: `[rows, vocab]`, as [`TeacherRows::full`]
fn lk_hybrid(
    decay: f64,
    kl: Tensor<2>,
    [p, q]: [Tensor<2>; 2],
    full: Tensor<2>,
) -> (Tensor<2>, Tensor<2>) {
    let alpha = overlap(full.clone(), q.clone());
    let share = (alpha.clone() * -decay).exp();
    let rest = -share.clone() + 1.0;
    let value = kl * share.clone() + rest.clone() * (-alpha + 1.0);
    let towards_p = (q.clone() - p) * share;
    let gradient = towards_p + through_softmax(q, |q| -rising(q, full) * rest);
    (value, gradient)
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

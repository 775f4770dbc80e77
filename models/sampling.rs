use rand::{RngExt, rngs::StdRng};
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::Mismatch;

use crate::bounds::OutOfBounds;

/// How a distribution over the next token is made from logits, for target and drafter alike.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f64,
    /// Keeps the `top_k` most likely tokens; 0 keeps all.
    #[serde(default)]
    pub top_k: usize,
    /// Keeps the fewest most likely tokens that hold this much probability; 1 keeps all.
    #[serde(default = "everything")]
    pub top_p: f64,
}

fn everything() -> f64 {
    1.0
}

/// Probabilities over the target's vocabulary, after temperature, top-k and top-p.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Distribution {
    /// One for each token; they sum to 1.
    pub probabilities: Vec<f32>,
}

impl Sampling {
    /// The most likely token.
    pub const GREEDY: Self = Self::at(0.0);

    /// Plain sampling at `temperature`.
    pub const fn at(temperature: f64) -> Self {
        Self {
            temperature,
            top_k: 0,
            top_p: 1.0,
        }
    }

    /// Fails on numbers that make no distribution of logits.
    ///
    /// # Errors
    /// The temperature is no number of 0 or more, or `top_p` none above 0 and up to 1.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let out = |key, expected: &str, found: f64| OutOfBounds {
            key,
            mismatch: Mismatch::new(expected, found),
        };
        let Self {
            temperature, top_p, ..
        } = *self;
        // Written so that NaN fails.
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(out("temperature", "0 or more", temperature));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(out("top_p", "more than 0 and at most 1", top_p));
        }
        Ok(())
    }

    /// Whether the most likely token is taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// `softmax(logits / temperature)`, restricted to top-k, then to top-p of that, renormalised. The order is that of
    /// `transformers`. Ties at the border go to the smaller id. At temperature 0 all mass is on the first largest logit.
    pub fn distribution(&self, logits: &[f32]) -> Distribution {
        if self.is_greedy() {
            let mut probabilities = vec![0.0; logits.len()];
            probabilities[argmax(logits)] = 1.0;
            return Distribution { probabilities };
        }
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
        let weight = |&logit: &f32| ((logit as f64 - largest) / self.temperature).exp();
        let mut weights: Vec<f64> = logits.iter().map(weight).collect();
        if self.top_k > 0 && self.top_k < weights.len() || self.top_p < 1.0 {
            self.restrict(&mut weights);
        }
        let total: f64 = weights.iter().sum();
        let probabilities = weights.iter().map(|w| (w / total) as f32).collect();
        Distribution { probabilities }
    }

    /// Sets the weights of all tokens to 0 that are not kept.
    fn restrict(&self, weights: &mut [f64]) {
        let count = match self.top_k {
            0 => weights.len(),
            count => count.min(weights.len()),
        };
        let without_sorting_all = if count == weights.len() {
            self.nucleus(weights)
        } else {
            None
        };
        let kept = without_sorting_all.unwrap_or_else(|| self.of_likeliest(count, weights));
        let kept: Vec<(usize, f64)> = kept.iter().map(|&token| (token, weights[token])).collect();
        weights.fill(0.0);
        for (token, weight) in kept {
            weights[token] = weight;
        }
    }

    /// The fewest of the `count` likeliest tokens that hold `top_p` of what these hold, and one at least.
    fn of_likeliest(&self, count: usize, weights: &[f64]) -> Vec<usize> {
        let mut tokens: Vec<usize> = (0..weights.len()).collect();
        sort_front(&mut tokens, count, weights);
        tokens.truncate(count);
        let total: f64 = tokens.iter().map(|&token| weights[token]).sum();
        let mut held = 0.0;
        let kept = tokens
            .iter()
            .take_while(|&&token| {
                let wanted = held < self.top_p * total;
                held += weights[token];
                wanted
            })
            .count();
        tokens.truncate(kept.max(1));
        tokens
    }

    /// The same of all tokens, of which only those are sorted that may be kept. `None` where it would take the sum of all weights to
    /// the last bit, which depends on their order: see [`of_likeliest`](Self::of_likeliest).
    fn nucleus(&self, weights: &[f64]) -> Option<Vec<usize>> {
        let (total, count) = (weights.iter().sum::<f64>(), weights.len() as f64);
        // Twice what two sums of the same weights can differ by: each is off by half an epsilon for each addition at most.
        let error = 2.0 * count * f64::EPSILON * total;
        let [least, most] = [total - error, total + error].map(|total| self.top_p * total);
        // All that are no larger hold at most half of what may be left out, so the others hold enough.
        let cut = (1.0 - self.top_p) * total / (2.0 * count);
        let mut tokens: Vec<usize> = (0..weights.len())
            .filter(|&token| weights[token] > cut)
            .collect();
        let (mut held, mut sorted, mut front) = (0.0, 0, SORTED_FIRST);
        while sorted < tokens.len() {
            let end = front.min(tokens.len());
            sort_front(&mut tokens[sorted..], end - sorted, weights);
            for at in sorted..end {
                if held >= most {
                    tokens.truncate(at.max(1));
                    return Some(tokens);
                }
                let is_wanted = held < least;
                if !is_wanted {
                    return None;
                }
                held += weights[tokens[at]];
            }
            (sorted, front) = (end, 8 * front);
        }
        (held >= most).then_some(tokens)
    }
}

/// Tokens of a nucleus that are sorted first; eight times as many after each time that they are too few.
const SORTED_FIRST: usize = 64;

/// Puts the `count` likeliest of some tokens first, in order, of equal ones the one that comes first.
fn sort_front(tokens: &mut [usize], count: usize, weights: &[f64]) {
    let before = |a: &usize, b: &usize| weights[*b].total_cmp(&weights[*a]).then(a.cmp(b));
    if count < tokens.len() {
        tokens.select_nth_unstable_by(count, before);
    }
    tokens[..count].sort_unstable_by(before);
}

impl Distribution {
    /// Draws a token.
    pub fn sample(&self, rng: &mut StdRng) -> u32 {
        sample(&self.probabilities, rng)
    }

    /// `-Σ p ln p`, in nats.
    pub fn entropy(&self) -> f64 {
        let positive = self.probabilities.iter().filter(|&&p| p > 0.0);
        -positive.map(|&p| p as f64 * (p as f64).ln()).sum::<f64>()
    }
}

/// Draws an index with probability proportional to its weight. Some weight must be positive.
pub fn sample(weights: &[f32], rng: &mut StdRng) -> u32 {
    let total: f64 = weights.iter().map(|&w| w as f64).sum();
    let mut left = rng.random::<f64>() * total;
    let mut last = 0;
    for (token, &weight) in weights.iter().enumerate() {
        if weight > 0.0 {
            left -= weight as f64;
            last = token;
            if left < 0.0 {
                break;
            }
        }
    }
    last as u32
}

/// Index of the first largest value.
pub fn argmax(values: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = index;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn top_k_then_top_p_restrict_and_renormalise() {
        let logits = [0.4f32.ln(), 0.3f32.ln(), 0.2f32.ln(), 0.1f32.ln()];
        let sampling = Sampling {
            temperature: 1.0,
            top_k: 3,
            top_p: 0.75,
        };
        // Of the three kept, the first two hold 0.7 / 0.9 = 0.78 of the mass.
        let kept = sampling.distribution(&logits).probabilities;
        let expected = [4.0 / 7.0, 3.0 / 7.0, 0.0, 0.0];
        for (got, expected) in kept.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-6, "{kept:?}");
        }
    }

    #[test]
    fn numbers_that_make_no_distribution_are_refused() {
        let told = |temperature, top_p| {
            let sampling = Sampling {
                temperature,
                top_k: 0,
                top_p,
            };
            let out = sampling.check().err()?;
            Some(format!("{}: {}", out.key, out.mismatch))
        };
        for (temperature, top_p) in [(0.0, 1.0), (1e-9, 1e-9), (100.0, 0.5)] {
            assert_eq!(told(temperature, top_p), None);
        }
        for (temperature, found) in [(-0.5, "-0.5"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
            let expected = format!("temperature: expected 0 or more, found {found}");
            assert_eq!(told(temperature, 1.0), Some(expected));
        }
        for (top_p, found) in [(0.0, "0"), (1.5, "1.5"), (f64::NAN, "NaN")] {
            let expected = format!("top_p: expected more than 0 and at most 1, found {found}");
            assert_eq!(told(1.0, top_p), Some(expected));
        }
    }

    #[test]
    fn temperature_zero_takes_the_first_largest() {
        let kept = Sampling::GREEDY
            .distribution(&[1.0, 3.0, 3.0])
            .probabilities;
        assert_eq!(kept, [0.0, 1.0, 0.0]);
    }

    /// As [`Sampling::restrict`], by sorting all tokens.
    fn restrict_by_sorting_all(sampling: &Sampling, weights: &mut [f64]) {
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
        let count = match sampling.top_k {
            0 => order.len(),
            count => count.min(order.len()),
        };
        let likeliest = &order[..count];
        let total: f64 = likeliest.iter().map(|&token| weights[token]).sum();
        let mut held = 0.0;
        let kept = likeliest
            .iter()
            .take_while(|&&token| {
                let wanted = held < sampling.top_p * total;
                held += weights[token];
                wanted
            })
            .count();
        for &token in &order[kept.max(1)..] {
            weights[token] = 0.0;
        }
    }

    /// Weights of rows in which few or many are equal, flat and steep, some with impossible tokens.
    fn rows_of(width: usize, rng: &mut StdRng) -> Vec<Vec<f64>> {
        let mut rows = vec![vec![1.0; width]];
        for (spread, levels) in [(1.0, 4.0), (20.0, 1e3), (0.1, 1e9), (60.0, 1e9)] {
            for possible in [1.0, 0.3] {
                let mut row: Vec<f64> = (0..width)
                    .map(|_| {
                        let level = (rng.random::<f64>() * levels).floor() / levels;
                        let is_possible = rng.random_bool(possible);
                        if is_possible {
                            (-spread * level).exp()
                        } else {
                            0.0
                        }
                    })
                    .collect();
                row[rng.random_range(0..width)] = 1.0;
                rows.push(row);
            }
        }
        // Of one token alone, and of logits that are no numbers.
        let mut alone = vec![0.0; width];
        alone[width - 1] = 1.0;
        let mut broken = vec![0.5; width];
        broken[width / 2] = f64::NAN;
        rows.extend([alone, broken, vec![f64::NAN; width]]);
        rows
    }

    #[test]
    fn what_is_kept_is_to_the_last_bit_that_of_sorting_all_tokens() {
        let mut rng = StdRng::seed_from_u64(3);
        let check = |row: &[f64], top_k, top_p| {
            let sampling = Sampling {
                temperature: 1.0,
                top_k,
                top_p,
            };
            let (mut found, mut expected) = (row.to_vec(), row.to_vec());
            sampling.restrict(&mut found);
            restrict_by_sorting_all(&sampling, &mut expected);
            let bits = |of: &[f64]| Vec::from_iter(of.iter().map(|weight| weight.to_bits()));
            assert_eq!(bits(&found), bits(&expected), "{} {sampling:?}", row.len());
        };
        for width in [1, 2, 7, 64, 65, 600] {
            for row in rows_of(width, &mut rng) {
                for top_k in [0, 1, 2, 50, width, width + 1] {
                    for top_p in [1e-9, 0.1, 0.5, 0.9, 0.95, 1.0 - 1e-12, 1.0] {
                        check(&row, top_k, top_p);
                    }
                }
            }
        }
        for row in rows_of(30_000, &mut rng) {
            for (top_k, top_p) in [(0, 0.5), (0, 0.95), (50, 1.0), (2000, 0.9)] {
                check(&row, top_k, top_p);
            }
        }
    }

    #[test]
    fn tokens_that_cannot_be_kept_are_not_sorted() {
        // Of 10 000 tokens 100 are likely.
        let weights: Vec<f64> = (0..10_000)
            .map(|token| if token % 100 == 7 { 1.0 } else { 1e-9 })
            .collect();
        let sampling = Sampling {
            top_p: 0.875,
            ..Sampling::at(1.0)
        };
        let kept = sampling.nucleus(&weights).unwrap();
        let expected: Vec<usize> = (0..88).map(|nth| 100 * nth + 7).collect();
        assert_eq!(kept, expected);
        // Which of two equal halves comes to the half takes the sum to the last bit.
        let half = Sampling {
            top_p: 0.5,
            ..sampling
        };
        assert_eq!(half.nucleus(&[1.0; 10]), None);
    }
}

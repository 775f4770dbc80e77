use rand::{RngExt, rngs::StdRng};
use serde::{Deserialize, Serialize};

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

    fn restrict(&self, weights: &mut [f64]) {
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
        if self.top_k > 0 {
            order.truncate(self.top_k);
        }
        let total: f64 = order.iter().map(|&token| weights[token]).sum();
        let mut held = 0.0;
        let kept = order
            .iter()
            .take_while(|&&token| {
                let wanted = held < self.top_p * total;
                held += weights[token];
                wanted
            })
            .count();
        let mut keep = vec![false; weights.len()];
        for &token in &order[..kept.max(1)] {
            keep[token] = true;
        }
        for (weight, keep) in weights.iter_mut().zip(keep) {
            if !keep {
                *weight = 0.0;
            }
        }
    }
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
    fn temperature_zero_takes_the_first_largest() {
        let kept = Sampling::GREEDY
            .distribution(&[1.0, 3.0, 3.0])
            .probabilities;
        assert_eq!(kept, [0.0, 1.0, 0.0]);
    }
}

//! Rotary position embedding, half-split layout: dimension `i` turns with `i + d_head / 2`, as Hugging Face checkpoints
//! expect (RoFormer, <https://arxiv.org/abs/2104.09864>).
use burn::prelude::*;
use serde::{Deserialize, Serialize};

use crate::kernels;

/// Base frequency and the scaling of long contexts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RopeConfig {
    /// Base of the geometric series of wavelengths.
    pub theta: f64,
    /// How frequencies change beyond the trained context.
    pub scaling: RopeScaling,
}

/// Scaling rules that checkpoints name in `rope_parameters.rope_type`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// None.
    Default,
    /// All frequencies divided by `factor`.
    Linear {
        /// How far the context is stretched.
        factor: f64,
    },
    /// Low frequencies divided, high ones kept, in between interpolated (Llama 3.1).
    Llama3 {
        /// How far the context is stretched.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context of pre-training, in tokens.
        original_max_position_embeddings: f64,
    },
    /// NTK by parts with a correction of the logits' scale (YaRN, <https://arxiv.org/abs/2309.00071>).
    Yarn {
        /// How far the context is stretched.
        factor: f64,
        /// Rotations over the original context above which a dimension is kept.
        #[serde(default = "beta_fast")]
        beta_fast: f64,
        /// Rotations below which it is divided.
        #[serde(default = "beta_slow")]
        beta_slow: f64,
        /// Context of pre-training, in tokens.
        original_max_position_embeddings: f64,
        /// Factor on cosine and sine; `0.1 ln(factor) + 1` when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attention_factor: Option<f64>,
        /// Whether the bounds are rounded outwards to whole dimensions.
        #[serde(default = "truncate")]
        truncate: bool,
    },
}

impl RopeConfig {
    /// Says what makes no sense of heads of `d_head`.
    pub fn check(&self, d_head: usize) -> std::result::Result<(), String> {
        let theta = self.theta;
        if !(theta > 0.0 && theta.is_finite()) {
            return Err(format!(
                "`rope_theta`: expected a number above 0, found {theta}"
            ));
        }
        // YaRN looks for the dimension that turns so many times, by the logarithm of the base.
        if matches!(self.scaling, RopeScaling::Yarn { .. }) && theta <= 1.0 {
            return Err(format!(
                "`rope_theta`: expected a number above 1, found {theta}"
            ));
        }
        self.scaling.check()?;
        let factor = self.attention_factor();
        if !(factor > 0.0 && (factor as f32).is_finite()) {
            return Err(format!(
                "`attention_factor`: expected a number above 0, found {factor}"
            ));
        }
        let frequencies = self.inverse_frequencies(d_head);
        if frequencies.iter().all(|frequency| frequency.is_finite()) {
            Ok(())
        } else {
            Err("expected frequencies that 32 bits hold, found larger ones".to_string())
        }
    }
}

impl RopeScaling {
    /// Says which parameter makes no sense.
    pub fn check(&self) -> std::result::Result<(), String> {
        let above = |name: &str, value: f64, least: f64| {
            if value > least && value.is_finite() {
                Ok(())
            } else {
                Err(format!(
                    "`{name}`: expected a number above {least}, found {value}"
                ))
            }
        };
        match self {
            Self::Default => Ok(()),
            Self::Linear { factor } => above("factor", *factor, 0.0),
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                above("factor", *factor, 0.0)?;
                above("low_freq_factor", *low_freq_factor, 0.0)?;
                above("high_freq_factor", *high_freq_factor, *low_freq_factor)?;
                above(
                    "original_max_position_embeddings",
                    *original_max_position_embeddings,
                    0.0,
                )
            }
            Self::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_max_position_embeddings,
                ..
            } => {
                above("factor", *factor, 0.0)?;
                above("beta_slow", *beta_slow, 0.0)?;
                above("beta_fast", *beta_fast, *beta_slow)?;
                above(
                    "original_max_position_embeddings",
                    *original_max_position_embeddings,
                    0.0,
                )
            }
        }
    }
}

fn beta_fast() -> f64 {
    32.0
}

fn beta_slow() -> f64 {
    1.0
}

fn truncate() -> bool {
    true
}

impl RopeConfig {
    /// Radians per position of each pair of dimensions, `d_head / 2` of them.
    pub fn inverse_frequencies(&self, d_head: usize) -> Vec<f32> {
        let half = d_head / 2;
        let plain = (0..half).map(|i| self.theta.powf(-2.0 * i as f64 / d_head as f64));
        let scaled: Vec<f64> = match &self.scaling {
            RopeScaling::Default => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|f| f / factor).collect(),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            } => plain
                .map(|frequency| {
                    let rotations = original * frequency / std::f64::consts::TAU;
                    let kept = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
                    frequency * (kept + (1.0 - kept) / factor)
                })
                .collect(),
            RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_max_position_embeddings: original,
                truncate,
                ..
            } => {
                // Dimension at which a rotary pair turns `rotations` times over the original context.
                let dimension = |rotations: f64| {
                    d_head as f64 * (original / (rotations * std::f64::consts::TAU)).ln()
                        / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (dimension(*beta_fast), dimension(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                low = low.max(0.0);
                high = high.min(d_head as f64 - 1.0);
                if low == high {
                    high += 0.001;
                }
                plain
                    .enumerate()
                    .map(|(i, frequency)| {
                        let divided = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        frequency * ((1.0 - divided) + divided / factor)
                    })
                    .collect()
            }
        };
        scaled
            .into_iter()
            .map(|frequency| frequency as f32)
            .collect()
    }

    /// Factor on cosine and sine.
    fn attention_factor(&self) -> f64 {
        match &self.scaling {
            RopeScaling::Yarn {
                attention_factor: Some(given),
                ..
            } => *given,
            RopeScaling::Yarn { factor, .. } if *factor > 1.0 => 0.1 * factor.ln() + 1.0,
            _ => 1.0,
        }
    }
}

/// Turns positions into rotations.
#[derive(Debug, Clone)]
pub struct Rope {
    /// `[1, 1, 1, d_head / 2]`
    inverse_frequency: Tensor<4>,
    attention_factor: f64,
}

/// The rotation of every position of a pass, shared by all its layers.
#[derive(Debug, Clone)]
pub struct Rotation {
    /// `[batch or 1, 1, seq, d_head / 2]`
    cos: Tensor<4>,
    /// `[batch or 1, 1, seq, d_head / 2]`
    sin: Tensor<4>,
}

impl Rope {
    /// Rotations for heads of which the first `d_head` dimensions turn: most often all.
    pub fn new(config: &RopeConfig, d_head: usize, device: &Device) -> Self {
        let frequencies = config.inverse_frequencies(d_head);
        Self {
            inverse_frequency: Tensor::<1>::from_floats(frequencies.as_slice(), device).reshape([
                1,
                1,
                1,
                d_head / 2,
            ]),
            attention_factor: config.attention_factor(),
        }
    }

    /// # Shapes
    /// - positions: `[batch or 1, seq]`
    pub fn at(&self, positions: Tensor<2, Int>) -> Rotation {
        let [batch, seq] = positions.dims();
        let frequency = self
            .inverse_frequency
            .clone()
            .to_device(&positions.device());
        let positions = positions.float().cast(burn::tensor::DType::F32);
        let angle = positions.reshape([batch, 1, seq, 1]) * frequency;
        Rotation {
            cos: angle.clone().cos() * self.attention_factor,
            sin: angle.sin() * self.attention_factor,
        }
    }
}

impl Rotation {
    /// Turns the first dimensions of heads, as many as there are rotations for, and leaves the others as they are.
    ///
    /// # Shapes
    /// - x: `[batch, heads, seq, d_head]`
    /// - output: `[batch, heads, seq, d_head]`, in the type of `x`
    pub fn rotate(&self, x: Tensor<4>) -> Tensor<4> {
        let (d_head, turned) = (x.dims()[3], 2 * self.cos.dims()[3]);
        let turn = |x| kernels::rotate(x, self.cos.clone(), self.sin.clone());
        if turned == d_head {
            return turn(x);
        }
        let kept = x.clone().narrow(3, turned, d_head - turned);
        Tensor::cat(vec![turn(x.narrow(3, 0, turned)), kept], 3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::test_device;

    #[test]
    fn llama3_scaling_keeps_high_and_divides_low_frequencies() {
        let config = RopeConfig {
            theta: 500_000.0,
            scaling: RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_position_embeddings: 8192.0,
            },
        };
        let plain = RopeConfig {
            theta: 500_000.0,
            scaling: RopeScaling::Default,
        };
        let (scaled, plain) = (
            config.inverse_frequencies(128),
            plain.inverse_frequencies(128),
        );
        assert_eq!(scaled[0], plain[0]);
        assert!((scaled[63] * 8.0 / plain[63] - 1.0).abs() < 1e-6);
    }

    #[test]
    fn scalings_that_would_turn_the_wrong_way_or_divide_by_nothing_are_told_by_name() {
        let read = |text: &str| {
            let scaling: RopeScaling = serde_json::from_str(text).unwrap();
            scaling.check()
        };
        for (text, key) in [
            (r#"{"rope_type": "linear", "factor": -2.0}"#, "factor"),
            (r#"{"rope_type": "linear", "factor": 0}"#, "factor"),
            (
                r#"{"rope_type": "yarn", "factor": -1, "original_max_position_embeddings": 64}"#,
                "factor",
            ),
            (
                r#"{"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
                    "original_max_position_embeddings": 64}"#,
                "high_freq_factor",
            ),
        ] {
            let problem = read(text).unwrap_err();
            assert!(problem.contains(&format!("`{key}`")), "{text}: {problem}");
        }
        assert_eq!(read(r#"{"rope_type": "linear", "factor": 2.0}"#), Ok(()));
    }

    #[test]
    fn a_quarter_turn_swaps_the_halves() {
        let device = test_device();
        let config = RopeConfig {
            theta: 10_000.0,
            scaling: RopeScaling::Default,
        };
        let rope = Rope::new(&config, 2, &device);
        let rotation = rope.at(Tensor::from_ints([[0, 1]], &device));
        let x = Tensor::<4>::from_floats([[[[1.0, 0.0], [1.0, 0.0]]]], &device);
        let turned = crate::weights::host_f32(rotation.rotate(x));
        let expected = [1.0, 0.0, 1f32.cos(), 1f32.sin()];
        for (got, expected) in turned.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-6, "{turned:?}");
        }
    }
}

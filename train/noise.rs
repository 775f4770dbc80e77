//! Noise on the features that a drafter reads in training, so that it bears features that are only nearly right
//! (EAGLE, <https://arxiv.org/abs/2401.15077>, section 4).
use burn::prelude::*;
use burn::tensor::TensorData;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::Mismatch;
use spectrain_data::packing::RowLayout;
use spectrain_data::seed::mix;
use spectrain_models::bounds;

use crate::error::{Error, Result};

/// The key `noise` of an `[objective]` table. Every key of its own may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Noise {
    /// The distribution of the noise.
    pub kind: NoiseKind,
    /// Width of the interval around 0 from which the noise is drawn, for a sample of `length_ref` tokens; 0 adds no noise.
    pub std: f64,
    /// Tokens of a sample whose noise has this width. Longer samples get proportionally less and shorter ones more, as in
    /// EAGLE's code; 0 gives all samples the same.
    pub length_ref: usize,
}

/// A distribution of noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoiseKind {
    /// Uniform on ± `std` / 2.
    Uniform,
}

impl Default for Noise {
    fn default() -> Self {
        Self {
            kind: NoiseKind::Uniform,
            std: 0.2,
            length_ref: 512,
        }
    }
}

impl Noise {
    /// Fails on settings that make no sense.
    pub(crate) fn check(&self) -> Result<()> {
        let length = bounds::or_none("noise.length_ref", self.length_ref, bounds::TEXT);
        Error::check_objective([length])?;
        if self.std >= 0.0 && self.std.is_finite() {
            return Ok(());
        }
        Err(Error::Setting {
            table: "objective",
            key: "noise",
            mismatch: Mismatch::new("a std of 0 or more", self.std),
        })
    }

    /// `features` with noise. It depends on `seed` and the place in the batch alone, not on what was drawn before, so
    /// that a run that is taken up again draws what it would have drawn.
    ///
    /// # Shapes
    /// - features, output: `[batch, seq, d_model]`
    pub(crate) fn add(&self, features: Tensor<3>, layout: &RowLayout, seed: u64) -> Tensor<3> {
        if self.std == 0.0 {
            return features;
        }
        let shape = features.dims();
        let width = shape[2];
        let widths = self.widths(layout);
        let mut noise = vec![0.0f32; shape.iter().product()];
        let positions = noise.par_chunks_mut(width.max(1)).enumerate();
        positions.for_each(|(position, noise)| {
            for (index, value) in noise.iter_mut().enumerate() {
                let bits = mix(seed, (position * width + index) as u64);
                *value = (unit(bits) - 0.5) * widths[position];
            }
        });
        let noise = Tensor::<3>::from_data(TensorData::new(noise, shape), &features.device());
        let noise = noise.cast(features.dtype());
        features + noise
    }

    /// Width of the noise at each position; none on padding.
    fn widths(&self, layout: &RowLayout) -> Vec<f32> {
        let rows = layout.documents.chunks(layout.row_length);
        rows.flat_map(|row| {
            let documents = row.iter().max().map_or(0, |&last| last as usize);
            let mut lengths = vec![0usize; documents + 1];
            row.iter().for_each(|&at| lengths[at as usize] += 1);
            let width = |&document: &u32| match (document, self.length_ref) {
                (0, _) => 0.0,
                (_, 0) => self.std,
                (at, reference) => self.std * reference as f64 / lengths[at as usize] as f64,
            };
            row.iter()
                .map(move |document| width(document) as f32)
                .collect::<Vec<_>>()
        })
        .collect()
    }
}

/// Random bits as a number in `[0, 1)`.
fn unit(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1 << 24) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use spectrain_models::device::test_device;
    use spectrain_models::weights::host_f32;

    /// A document of two tokens, one of one, and padding.
    fn layout() -> RowLayout {
        RowLayout {
            rows: 1,
            row_length: 4,
            documents: vec![1, 1, 2, 0],
            positions: vec![0, 1, 0, 0],
        }
    }

    fn drawn(noise: &Noise, seed: u64) -> Vec<f32> {
        let zeros = Tensor::zeros([1, 4, 500], &test_device());
        host_f32(noise.add(zeros, &layout(), seed))
    }

    #[test]
    fn noise_is_as_wide_as_its_sample_is_short() {
        let noise = Noise {
            length_ref: 4,
            ..Noise::default()
        };
        let values = drawn(&noise, 3);
        let reach = |position: usize| {
            let of = &values[position * 500..(position + 1) * 500];
            of.iter().fold(0.0f32, |most, value| most.max(value.abs()))
        };
        // ±0.1 at four tokens: ±0.2 at two, ±0.4 at one.
        assert!((0.19..=0.2).contains(&reach(0)) && (0.19..=0.2).contains(&reach(1)));
        assert!((0.39..=0.4).contains(&reach(2)));
        assert_eq!(reach(3), 0.0, "padding");
        let mean = values[..1000].iter().sum::<f32>() / 1000.0;
        assert!(mean.abs() < 0.02, "{mean}");
    }

    #[test]
    fn noise_is_a_function_of_the_seed() {
        let noise = Noise::default();
        assert_eq!(drawn(&noise, 3), drawn(&noise, 3));
        assert_ne!(drawn(&noise, 3), drawn(&noise, 4));
    }
}

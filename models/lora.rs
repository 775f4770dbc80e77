//! Low-rank adaptation: a linear layer stays as it is, and a product of two thin matrices is trained beside it
//! (<https://arxiv.org/abs/2106.09685>).
use burn::module::{Module, Param};
use burn::prelude::*;
use burn::tensor::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use spectrain_checkpoints::Mismatch;

use crate::bounds;
use crate::error::{Error, Result};
use crate::linear::{Linear, Lora};
use crate::products::product;
use crate::transformer::Transformer;
use crate::weights::{Init, RandomWeights, Weights, held_in_as_far_as_exact, lift, tensor_from};

/// The table `[drafter.lora]`. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoraConfig {
    /// Rank: the width between the two matrices.
    pub rank: usize,
    /// The product of the two matrices is scaled by `alpha / rank`.
    pub alpha: f64,
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self {
            rank: 16,
            alpha: 32.0,
        }
    }
}

impl LoraConfig {
    /// Fails on settings that make no sense.
    pub(crate) fn check(&self) -> Result<()> {
        bounds::check([bounds::up_to("lora.rank", self.rank, bounds::RANK)])?;
        if self.alpha > 0.0 && self.alpha.is_finite() {
            return Ok(());
        }
        Err(Error::Drafter {
            key: "lora.alpha",
            mismatch: Mismatch::new("above 0", self.alpha),
        })
    }
}

/// `model` with all its parameters frozen and low-rank matrices beside the linear layers of its decoder layers. Frozen matrices are held
/// in `dtype`, the type that is computed in, where it holds their numbers exactly, as bf16 does those of most files: they take half the
/// memory then, and no product casts them.
///
/// # Errors
/// A setting makes no sense.
pub(crate) fn adapt(
    model: Transformer,
    config: &LoraConfig,
    seed: u64,
    dtype: DType,
) -> Result<Transformer> {
    config.check()?;
    let mut random = RandomWeights::new(seed);
    let frozen = held_in_as_far_as_exact(model.no_grad(), dtype);
    frozen.map_linear(&mut |linear| {
        let [d_in, d_out] = linear.weight.val().dims();
        let device = linear.weight.device();
        let down = random.tensor("down", &[d_in, config.rank], Init::Linear { fan_in: d_in })?;
        let down = lift(
            tensor_from(down, &device.clone().without_autodiff()),
            &device,
        );
        Ok(Linear {
            lora: Some(Lora {
                down: Param::from_tensor(down),
                up: Param::from_tensor(Tensor::zeros([config.rank, d_out], &device)),
                scale: config.alpha / config.rank as f64,
            }),
            ..linear
        })
    })
}

/// `model` with low-rank matrices multiplied out and added, in f32, to the layers they stand beside.
pub(crate) fn merge(model: Transformer) -> Result<Transformer> {
    model.map_linear(&mut |linear| {
        let Some(lora) = &linear.lora else {
            return Ok(linear);
        };
        let change = product(lora.down.val(), lora.up.val()) * lora.scale;
        let weight = linear.weight.val().cast(DType::F32) + change;
        Ok(Linear {
            weight: Param::initialized(linear.weight.id, weight),
            bias: linear.bias,
            lora: None,
        })
    })
}

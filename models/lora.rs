//! Low-rank adaptation: a linear layer stays as it is, and a product of two thin matrices is trained beside it
//! (<https://arxiv.org/abs/2106.09685>).
use burn::module::{Module, ModuleMapper, Param};
use burn::prelude::*;
use burn::tensor::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use spectrain_checkpoints::Mismatch;

use crate::bounds;
use crate::error::{Error, Result};
use crate::linear::{Linear, Lora};
use crate::products::product;
use crate::reductions::square_sum;
use crate::transformer::Transformer;
use crate::weights::{Init, RandomWeights, Weights, host_f32, lift, tensor_from};

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
    let frozen = model.no_grad().map(&mut Narrow { dtype });
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

/// Takes matrices over into a type that holds their numbers exactly.
struct Narrow {
    dtype: DType,
}

impl ModuleMapper for Narrow {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if D == 1 || param.val().dtype() == self.dtype {
            return param;
        }
        // So much that no square of a difference is nothing in f32.
        const LARGER: f32 = (1u128 << 100) as f32;
        let (id, held, mapper) = param.consume();
        let narrow = held.clone().cast(self.dtype);
        let back = narrow.clone().cast(held.dtype());
        let differences = (back - held.clone()).without_autodiff() * LARGER;
        let is_exact = host_f32(square_sum(differences.flatten(0, D - 1))) == [0.0];
        let kept = if is_exact { narrow } else { held };
        Param::from_mapped_value(id, kept, mapper)
    }
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

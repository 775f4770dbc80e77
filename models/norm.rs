use burn::module::Param;
use burn::prelude::*;
use burn::tensor::DType;

use crate::error::Result;
use crate::kernels;
use crate::weights::{Init, Scope};

/// What a norm is like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormConfig {
    /// What is added to the mean square.
    pub epsilon: f64,
    /// Whether its parameter is the weight less 1, as in Gemma and Qwen3.5.
    pub less_one: bool,
}

impl From<f64> for NormConfig {
    fn from(epsilon: f64) -> Self {
        Self {
            epsilon,
            less_one: false,
        }
    }
}

/// Root-mean-square normalisation, computed in f32 whatever the input
/// (Zhang and Sennrich, <https://arxiv.org/abs/1910.07467>).
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// `[d_model]`
    pub weight: Param<Tensor<1>>,
    #[module(skip)]
    config: NormConfig,
}

impl RmsNorm {
    /// The norm `scope` names.
    ///
    /// # Errors
    /// The source lacks `weight`, or holds it in another shape.
    pub fn new(scope: &mut Scope, d_model: usize, config: impl Into<NormConfig>) -> Result<Self> {
        let config = config.into();
        let start = if config.less_one { 0.0 } else { 1.0 };
        Ok(Self {
            weight: scope.vector("weight", d_model, Init::Constant(start))?,
            config,
        })
    }

    /// `x / sqrt(mean(x²) + epsilon) * weight`, over the last dimension, in the type of `x`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let (weight, epsilon) = self.factors();
        kernels::rms_norm(x, weight, epsilon)
    }

    /// `x + added`, and the norm of that.
    pub(crate) fn forward_sum<const D: usize>(
        &self,
        x: Tensor<D>,
        added: Tensor<D>,
    ) -> (Tensor<D>, Tensor<D>) {
        kernels::add_and_norm(x, added, self.factors())
    }

    /// What is multiplied by, `[d_model]`, and the epsilon.
    pub(crate) fn factors(&self) -> (Tensor<1>, f64) {
        let weight = match self.config.less_one {
            // In 16 bits 1 more would lose much of what a small weight says.
            true => self.weight.val().cast(DType::F32) + 1.0,
            false => self.weight.val(),
        };
        (weight, self.config.epsilon)
    }
}

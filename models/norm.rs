use burn::module::Param;
use burn::prelude::*;

use crate::error::Result;
use crate::kernels;
use crate::weights::{Init, Scope};

/// Root-mean-square normalisation, computed in f32 whatever the input
/// (Zhang and Sennrich, <https://arxiv.org/abs/1910.07467>).
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// `[d_model]`
    pub weight: Param<Tensor<1>>,
    #[module(skip)]
    epsilon: f64,
}

impl RmsNorm {
    /// The norm `scope` names.
    ///
    /// # Errors
    /// The source lacks `weight`, or holds it in another shape.
    pub fn new(scope: &mut Scope, d_model: usize, epsilon: f64) -> Result<Self> {
        Ok(Self {
            weight: scope.vector("weight", d_model, Init::Constant(1.0))?,
            epsilon,
        })
    }

    /// `x / sqrt(mean(x²) + epsilon) * weight`, over the last dimension, in the type of `x`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        kernels::rms_norm(x, self.weight.val(), self.epsilon)
    }
}

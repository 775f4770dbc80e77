use burn::prelude::*;

use crate::error::Result;
use crate::fused::Fused;
use crate::kernels;
use crate::linear::{Bias, Linear};
use crate::weights::Scope;

/// `down(silu(gate(x)) * up(x))` (Shazeer, <https://arxiv.org/abs/2002.05202>).
#[derive(Module, Debug)]
pub struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    gate_up: Fused,
}

impl Mlp {
    /// The block `scope` names.
    ///
    /// # Errors
    /// The source lacks a parameter, or holds it in another shape.
    pub fn new(scope: &mut Scope, d_model: usize, d_ff: usize, bias: Bias) -> Result<Self> {
        let made = Self {
            gate_proj: Linear::new(&mut scope.child("gate_proj"), d_model, d_ff, bias)?,
            up_proj: Linear::new(&mut scope.child("up_proj"), d_model, d_ff, bias)?,
            down_proj: Linear::new(&mut scope.child("down_proj"), d_ff, d_model, bias)?,
            gate_up: Fused::default(),
        };
        Ok(if scope.fuses() { made.fused() } else { made })
    }

    /// The same with the gate and what it scales as one product.
    pub(crate) fn fused(mut self) -> Self {
        self.gate_up = Fused::of([&mut self.gate_proj, &mut self.up_proj]);
        self
    }

    #[cfg(test)]
    pub(crate) fn is_fused(&self) -> bool {
        self.gate_up.is_some()
    }

    /// The same with each matrix changed.
    pub(crate) fn map_linear(
        self,
        change: &mut dyn FnMut(Linear) -> Result<Linear>,
    ) -> Result<Self> {
        Ok(Self {
            gate_proj: change(self.gate_proj)?,
            up_proj: change(self.up_proj)?,
            down_proj: change(self.down_proj)?,
            gate_up: Fused::default(),
        })
    }

    /// Its matrices.
    #[cfg(test)]
    pub(crate) fn linears(&self) -> [&Linear; 3] {
        [&self.gate_proj, &self.up_proj, &self.down_proj]
    }

    /// `[batch, seq, d_model]` to the same.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let (gate, up) = match self.gate_up.forward(&x) {
            Some(both) => {
                let d_ff = both.dims()[2] / 2;
                (both.clone().narrow(2, 0, d_ff), both.narrow(2, d_ff, d_ff))
            }
            None => (self.gate_proj.forward(x.clone()), self.up_proj.forward(x)),
        };
        self.down_proj.forward(kernels::swiglu(gate, up))
    }
}

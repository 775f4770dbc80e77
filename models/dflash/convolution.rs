//! The convolution around the parts of a layer: each place is mixed with those just before it (DFlash 2).
use burn::module::Param;
use burn::prelude::*;

use crate::error::Result;
use crate::linear::Linear;
use crate::weights::{Init, Scope};

/// Two convolutions over the places of a row, one before a part of a layer and one behind it. Their kernels are learnt, and
/// changed at each place by what stands there, alike for the channels of a group. A fresh one changes nothing.
///
/// Side `s` makes of `x_t`: `Σ_tap (base[s, tap] + changed_t[s, tap]) ⊙ x_{t - tap}`, where nothing stands before a row.
#[derive(Module, Debug)]
pub struct LocalConvolution {
    /// `[2, taps, d_model]`: before and behind.
    base_kernel: Param<Tensor<3>>,
    /// To `[2, taps, groups]`.
    kernel_projection: Linear,
    #[module(skip)]
    group: usize,
}

impl LocalConvolution {
    /// The convolutions `scope` names.
    ///
    /// # Errors
    /// The source lacks a parameter, or holds it in another shape.
    pub(crate) fn new(
        scope: &mut Scope,
        d_model: usize,
        taps: usize,
        group: usize,
    ) -> Result<Self> {
        let kernels = 2 * taps * (d_model / group);
        let init = Init::FirstTap {
            taps,
            width: d_model,
        };
        let base_kernel = scope.tensor("base_kernel", [2, taps, d_model], init)?;
        let weight = scope.child("kernel_projection").transposed(
            "weight",
            [d_model, kernels],
            Init::Constant(0.0),
        )?;
        Ok(Self {
            base_kernel,
            kernel_projection: Linear {
                weight,
                bias: None,
                lora: None,
            },
            group,
        })
    }

    /// `part` between the two convolutions.
    ///
    /// # Shapes
    /// - x, output, those of `part`: `[batch, seq, d_model]`
    pub(crate) fn around(
        &self,
        x: Tensor<3>,
        part: impl FnOnce(Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let [batch, seq, d_model] = x.dims();
        let [_, taps, _] = self.base_kernel.val().dims();
        let kernels = self.kernel_projection.forward(x.clone());
        let kernels: Tensor<5> = kernels.reshape([batch, seq, 2, taps, d_model / self.group]);
        let x = self.convolve(x, &kernels, 0);
        self.convolve(part(x), &kernels, 1)
    }

    fn convolve(&self, x: Tensor<3>, kernels: &Tensor<5>, side: usize) -> Tensor<3> {
        let [batch, seq, d_model] = x.dims();
        let [_, taps, _] = self.base_kernel.val().dims();
        let groups = d_model / self.group;
        let base = self.base_kernel.val().cast(x.dtype());
        let tap = |tap: usize| {
            // What stands `tap` places before.
            let nothing =
                |places| Tensor::zeros([batch, places, d_model], (&x.device(), x.dtype()));
            let moved = match tap {
                0 => x.clone(),
                // A block shorter than the kernel.
                by if by >= seq => nothing(seq),
                by => Tensor::cat(vec![nothing(by), x.clone().narrow(1, 0, seq - by)], 1),
            };
            let changed = kernels.clone().narrow(2, side, 1).narrow(3, tap, 1);
            let changed: Tensor<4> = changed.reshape([batch, seq, groups, 1]);
            let base = base.clone().narrow(0, side, 1).narrow(1, tap, 1);
            let base: Tensor<4> = base.reshape([1, 1, groups, self.group]);
            moved.reshape([batch, seq, groups, self.group]) * (changed + base)
        };
        let sum = (1..taps).fold(tap(0), |sum, at| sum + tap(at));
        sum.reshape([batch, seq, d_model])
    }
}

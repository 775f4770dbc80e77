//! AdamW on devices of CubeCL: weights, moments and gradient are read once in a step, and the first three written once.
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::prelude::*;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use spectrain_models::cube::shares::{Each, address_of, to_write};

use self::kernel::{RatesLaunch, adamw_kernel};
use super::operations::{AdamWStep, Gradient, Moments};

mod kernel;

/// See [`Arithmetic::adamw`](super::operations::Arithmetic::adamw).
pub(super) fn adamw(
    weights: Tensor<1>,
    Moments { first, second }: Moments,
    Gradient { values, factor }: Gradient,
    step: &AdamWStep,
) -> (Tensor<1>, Moments) {
    let is_scaled = factor.is_some();
    // What is not read may be anything.
    let factor = factor.unwrap_or_else(|| values.clone());
    let [weights, first, second, values, factor] =
        [weights, first, second, values, factor].map(Tensor::into_dispatch);
    let (weights, first, second) =
        Dispatch::adamw(weights, first, second, values, factor, is_scaled, *step);
    let [first, second] = [first, second].map(Tensor::from_dispatch);
    (Tensor::from_dispatch(weights), Moments { first, second })
}

/// The step.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
trait Steps: Backend {
    /// The moved weights, and both moments; all f32 of one length. The first number of `factor` is read where `is_scaled`.
    #[fusion(meta = |weights, first, second, _, _, _, _| (weights.clone(), first.clone(), second.clone()))]
    fn adamw(
        weights: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        factor: FloatTensor<Self>,
        is_scaled: bool,
        step: AdamWStep,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

impl Steps for CubeBackend {
    fn adamw(
        weights: CubeTensor,
        first: CubeTensor,
        second: CubeTensor,
        gradient: CubeTensor,
        factor: CubeTensor,
        is_scaled: bool,
        step: AdamWStep,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let gradient = into_contiguous(gradient);
        let [weights, first, second] = [weights, first, second].map(to_write);
        let each = Each::of(&weights);
        let rates = RatesLaunch::new(
            step.beta1 as f32,
            step.beta2 as f32,
            (1.0 - step.beta1) as f32,
            (1.0 - step.beta2) as f32,
            step.epsilon as f32,
            step.correct2 as f32,
            (step.rate / step.correct1) as f32,
            step.shrink as f32,
        );
        adamw_kernel::launch(
            &weights.client,
            each.cubes.clone(),
            each.cube,
            address_of(&[&weights]),
            each.vector,
            weights.clone().into_buffer_arg(),
            first.clone().into_buffer_arg(),
            second.clone().into_buffer_arg(),
            gradient.into_buffer_arg(),
            factor.into_buffer_arg(),
            rates,
            each.vectors as u32,
            is_scaled,
        );
        (weights, first, second)
    }
}

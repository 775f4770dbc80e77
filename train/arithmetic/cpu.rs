//! The CPU's way: kernels that work in place on the memory behind tensors, over all threads.
use burn::prelude::*;
use burn::tensor::{DType, bf16};
use spectrain_models::fresh::zeros;
use spectrain_models::products::{
    add_product, product_along_rows, rounded_product, rounds_products,
};
use spectrain_models::weights::{host_f32, on_host};

use crate::arithmetic::judged_by_kernels::JudgedByKernels;
use crate::arithmetic::kernels;
use crate::arithmetic::operations::{
    AdamWStep, Arithmetic, Gradient, Moments, ProductSum, RowJudge,
};
use crate::arithmetic::tensors::Tensors;
use crate::device::chunk_rows;
use crate::judge::{Judge, Statistics};

/// Flex.
pub(super) struct Cpu;

impl Arithmetic for Cpu {
    fn square_sum(&self, gradient: &mut Tensor<1>) -> Tensor<1> {
        let device = gradient.device();
        // Taken to the host and back without a copy.
        let mut sum = 0.0;
        gradient.inplace(|gradient| {
            let (gradient, squares) = on_host(gradient, |values| kernels::sum_of_squares(values));
            sum = squares;
            gradient
        });
        Tensor::from_floats([sum as f32], &device)
    }

    fn clip_factor(&self, norm: Tensor<1>, largest: f64) -> Option<Tensor<1>> {
        let device = norm.device();
        let factor = largest / (host_f32(norm)[0] as f64 + 1e-6);
        (factor < 1.0).then(|| Tensor::from_floats([factor as f32], &device))
    }

    fn adamw(
        &self,
        weights: Tensor<1>,
        Moments { first, second }: Moments,
        Gradient { values, factor }: Gradient,
        step: &AdamWStep,
    ) -> (Tensor<1>, Moments) {
        let step = kernels::AdamWStep {
            beta1: step.beta1 as f32,
            beta2: step.beta2 as f32,
            epsilon: step.epsilon as f32,
            correct2: (1.0 / step.correct2) as f32,
            rate: (step.rate / step.correct1) as f32,
            shrink: step.shrink as f32,
            factor: factor.map_or(1.0, |factor| host_f32(factor)[0]),
        };
        let gradient = host_f32(values);
        let (weights, (first, second)) = on_host(weights, |weights| {
            let (first, second) = on_host(first, |first| {
                on_host(second, |second| {
                    kernels::adamw(weights, first, second, &gradient, step)
                })
                .0
            });
            (first, second)
        });
        (weights, Moments { first, second })
    }

    fn chunk_rows(&self, [d_model, vocab]: [usize; 2], device: &Device) -> usize {
        let rows = chunk_rows(vocab, device);
        // What is rounded takes half of the memory.
        match rounds_products([rows, d_model, vocab]) {
            true => 2 * rows,
            false => rows,
        }
    }

    fn logits(&self, hidden: Tensor<2>, head: Tensor<2>) -> Tensor<2> {
        rounded_product(hidden, head)
    }

    fn to_hidden(&self, gradient: Tensor<2>, head: Tensor<2>) -> Tensor<2> {
        product_along_rows(gradient, head)
    }

    fn product_sum(&self, shape: [usize; 2], dtype: DType, device: &Device) -> Box<dyn ProductSum> {
        if dtype != DType::F32 {
            return Tensors.product_sum(shape, dtype, device);
        }
        Box::new(InPlace {
            sum: zeros(shape[0] * shape[1]),
            shape,
            device: device.clone(),
        })
    }

    fn row_judge<'a>(
        &self,
        judge: Judge<'a>,
        positions: Vec<usize>,
        statistics: Statistics,
    ) -> Box<dyn RowJudge + 'a> {
        Box::new(JudgedByKernels::new(judge, positions, statistics))
    }
}

/// A sum that is added to where it stands.
struct InPlace {
    sum: Vec<f32>,
    shape: [usize; 2],
    device: Device,
}

impl ProductSum for InPlace {
    fn add(&mut self, hidden: Tensor<2>, gradient: Tensor<2>) -> Tensor<2> {
        let shape = gradient.dims();
        let hidden = host_f32(hidden);
        let sum = &mut self.sum;
        let (gradient, ()) = match gradient.dtype() {
            DType::BF16 => on_host(gradient, |values: &mut [bf16]| {
                add_product(sum, &hidden, &*values, shape);
            }),
            _ => on_host(gradient, |values: &mut [f32]| {
                add_product(sum, &hidden, &*values, shape);
            }),
        };
        gradient
    }

    fn into_tensor(self: Box<Self>) -> Tensor<2> {
        Tensor::from_data(TensorData::new(self.sum, self.shape), &self.device)
    }
}

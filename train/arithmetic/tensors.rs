//! The way of any device: tensor operations that wait for nothing.
use burn::prelude::*;
use burn::tensor::DType;
use spectrain_models::reductions::square_sum;
use spectrain_models::{added_product, product, wide_product};

use crate::arithmetic::judged_by_tensors::JudgedByTensors;
use crate::arithmetic::operations::{
    AdamWStep, Arithmetic, Gradient, Moments, ProductSum, RowJudge,
};
use crate::judge::{Judge, Statistics};

/// Any device.
pub(super) struct Tensors;

impl Arithmetic for Tensors {
    fn square_sum(&self, gradient: &mut Tensor<1>) -> Tensor<1> {
        square_sum(gradient.clone())
    }

    fn clip_factor(&self, norm: Tensor<1>, largest: f64) -> Option<Tensor<1>> {
        // Nothing is read from the device: that would wait for it.
        Some(((norm + 1e-6).recip() * largest).clamp_max(1.0))
    }

    fn adamw(
        &self,
        weights: Tensor<1>,
        Moments { first, second }: Moments,
        gradient: Gradient,
        step: &AdamWStep,
    ) -> (Tensor<1>, Moments) {
        let gradient = gradient.whole();
        let AdamWStep { beta1, beta2, .. } = *step;
        let first = first * beta1 + gradient.clone() * (1.0 - beta1);
        let second = second * beta2 + gradient.square() * (1.0 - beta2);
        let root = (second.clone() / step.correct2).sqrt() + step.epsilon;
        let change = first.clone() / root * (step.rate / step.correct1);
        (weights * step.shrink - change, Moments { first, second })
    }

    fn to_hidden(&self, gradient: Tensor<2>, head: Tensor<2>) -> Tensor<2> {
        // The smaller product is the one whose result is transposed.
        product(head, gradient.transpose()).transpose()
    }

    fn product_sum(&self, shape: [usize; 2], _: DType, device: &Device) -> Box<dyn ProductSum> {
        let device = device.clone();
        Box::new(OnDevice {
            sum: None,
            shape,
            device,
        })
    }

    fn row_judge<'a>(
        &self,
        judge: Judge<'a>,
        _: Vec<usize>,
        statistics: Statistics,
    ) -> Box<dyn RowJudge + 'a> {
        Box::new(JudgedByTensors { judge, statistics })
    }
}

/// A sum in f32, of nothing at first.
struct OnDevice {
    sum: Option<Tensor<2>>,
    shape: [usize; 2],
    device: Device,
}

impl ProductSum for OnDevice {
    fn add(&mut self, hidden: Tensor<2>, gradient: Tensor<2>) -> Tensor<2> {
        let (hidden, here) = (hidden.transpose(), gradient.clone());
        self.sum = Some(match self.sum.take() {
            Some(sum) => added_product(sum, hidden, here),
            None => wide_product(hidden, here),
        });
        gradient
    }

    fn into_tensor(self: Box<Self>) -> Tensor<2> {
        let zeros = || Tensor::zeros(self.shape, (&self.device, DType::F32));
        self.sum.unwrap_or_else(zeros)
    }
}

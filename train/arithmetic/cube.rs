//! The way of devices of CubeCL: that of any device, but for rows that a kernel judges and parameters that one moves.
use burn::prelude::*;
use burn::tensor::DType;
use spectrain_models::product;

use crate::arithmetic::adamw_on_cube::adamw;
use crate::arithmetic::judged_on_cube::JudgedOnCube;
use crate::arithmetic::operations::{
    AdamWStep, Arithmetic, Gradient, Moments, ProductSum, RowJudge,
};
use crate::arithmetic::tensors::Tensors;
use crate::judge::{Judge, Statistics};

/// A device of CubeCL.
pub(super) struct OnCube;

impl Arithmetic for OnCube {
    fn square_sum(&self, gradient: &mut Tensor<1>) -> Tensor<1> {
        Tensors.square_sum(gradient)
    }

    fn clip_factor(&self, norm: Tensor<1>, largest: f64) -> Option<Tensor<1>> {
        Tensors.clip_factor(norm, largest)
    }

    fn adamw(
        &self,
        weights: Tensor<1>,
        moments: Moments,
        gradient: Gradient,
        step: &AdamWStep,
    ) -> (Tensor<1>, Moments) {
        adamw(weights, moments, gradient, step)
    }

    fn to_hidden(&self, gradient: Tensor<2>, head: Tensor<2>) -> Tensor<2> {
        // Its rows lie side by side, as what reads them wants them.
        product(gradient, head.transpose())
    }

    fn product_sum(&self, shape: [usize; 2], dtype: DType, device: &Device) -> Box<dyn ProductSum> {
        Tensors.product_sum(shape, dtype, device)
    }

    fn row_judge<'a>(
        &self,
        judge: Judge<'a>,
        _: Vec<usize>,
        statistics: Statistics,
    ) -> Box<dyn RowJudge + 'a> {
        Box::new(JudgedOnCube { judge, statistics })
    }
}

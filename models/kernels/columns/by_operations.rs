//! Columns by operations on tensors, on whatever device.
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata as _};
use burn::tensor::{DType, Shape, Slice};

use super::Column;
use crate::kernels::within::within;
use crate::products::{of_type, wide};

impl<B: Backend> Column<B> {
    /// Query heads beside the key head that they share, in f32. `[batch, kv_heads, heads / kv_heads, rows, width]`
    fn grouped(&self, x: FloatTensor<B>) -> FloatTensor<B> {
        let [batch, heads, rows, width] = x.shape().dims();
        let kv_heads = self.key.shape()[1];
        let shape = [batch, kv_heads, heads / kv_heads, rows, width];
        B::float_reshape(wide::<B>(x), Shape::from(shape))
    }

    /// `[batch, kv_heads, 1, rows, d_head]`, in f32.
    fn shared(x: FloatTensor<B>) -> FloatTensor<B> {
        let [batch, kv_heads, rows, width] = x.shape().dims();
        B::float_reshape(wide::<B>(x), Shape::from([batch, kv_heads, 1, rows, width]))
    }

    /// By how much the sums before and the new value count, and the largest score behind them, all grouped.
    fn weights(&self) -> [FloatTensor<B>; 3] {
        let [query, largest] = [&self.query, &self.largest].map(|x| self.grouped(x.clone()));
        let products = B::float_mul(query, Self::shared(self.key.clone()));
        let score = self.scaled(B::float_sum_dim(products, 4));
        let both = B::float_cat(vec![largest.clone(), score.clone()], 4);
        let after = B::float_max_dim(both, 4);
        let kept = B::float_exp(B::float_sub(largest, after.clone()));
        let weight = B::float_exp(B::float_sub(score, after.clone()));
        [kept, weight, after]
    }

    fn scaled(&self, scores: FloatTensor<B>) -> FloatTensor<B> {
        B::float_mul_scalar(scores, self.scale.into())
    }

    /// The value of each key and behind it 1, `[batch, kv_heads, 1, rows, d_head + 1]`.
    fn value_and_one(&self) -> FloatTensor<B> {
        let value = Self::shared(self.value.clone());
        let (mut shape, device) = (value.shape(), value.device());
        shape[4] = 1;
        let one = B::float_ones(shape, &device, value.dtype().into());
        B::float_cat(vec![value, one], 4)
    }

    /// [`Columns::add_column`] by operations on tensors.
    pub(in crate::kernels) fn add_by_operations(
        self,
        sums: FloatTensor<B>,
    ) -> (FloatTensor<B>, FloatTensor<B>) {
        let [kept, weight, after] = self.weights();
        let new = B::float_mul(weight, self.value_and_one());
        let shape = sums.shape();
        let sums = B::float_add(B::float_mul(self.grouped(sums), kept), new);
        (
            B::float_reshape(sums, shape),
            B::float_reshape(after, self.largest.shape()),
        )
    }

    /// [`ColumnGradients::add_column_backward`] by operations on tensors.
    pub(in crate::kernels) fn gradients_by_operations(
        self,
        gradient: FloatTensor<B>,
    ) -> (
        FloatTensor<B>,
        FloatTensor<B>,
        FloatTensor<B>,
        FloatTensor<B>,
    ) {
        let [kept, weight, _] = self.weights();
        let gradient = self.grouped(gradient);
        let along = B::float_mul(gradient.clone(), self.value_and_one());
        let of_score = B::float_mul(B::float_sum_dim(along, 4), weight.clone());
        let of_score = self.scaled(of_score);
        let by_query = B::float_mul(of_score.clone(), Self::shared(self.key.clone()));
        let by_key = B::float_mul(of_score, self.grouped(self.query.clone()));
        let mut context = gradient.shape();
        context[4] -= 1;
        let context = [0, 1, 2, 3, 4].map(|dim| Slice::from(0..context[dim]));
        let by_value = B::float_mul(B::float_slice(gradient.clone(), &context), weight);
        let as_is = |by: FloatTensor<B>, x: &FloatTensor<B>| {
            of_type::<B>(B::float_reshape(by, x.shape()), x.dtype())
        };
        let by_sums = B::float_mul(gradient, kept);
        let [batch, heads, rows, _] = self.query.shape().dims();
        let width = by_sums.shape()[4];
        (
            as_is(by_query, &self.query),
            as_is(B::float_sum_dim(by_key, 2), &self.key),
            as_is(B::float_sum_dim(by_value, 2), &self.value),
            B::float_reshape(by_sums, Shape::from([batch, heads, rows, width])),
        )
    }
}

/// [`Columns::quotient`] by operations on tensors.
pub(in crate::kernels) fn quotient<B: Backend>(
    sums: FloatTensor<B>,
    dtype: DType,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let d_head = sums.shape()[3] - 1;
    let [context, sum] =
        [0..d_head, d_head..d_head + 1].map(|places| within::<B>(sums.clone(), 3, &places));
    let factor = B::float_recip(sum);
    let quotient = B::float_mul(context, factor.clone());
    (of_type::<B>(quotient, dtype), factor)
}

/// [`ColumnGradients::quotient_backward`] by operations on tensors: `g · factor` and `-(g · quotient) · factor`.
pub(in crate::kernels) fn quotient_gradient<B: Backend>(
    quotient: FloatTensor<B>,
    factor: FloatTensor<B>,
    gradient: FloatTensor<B>,
) -> FloatTensor<B> {
    let of_context = B::float_mul(wide::<B>(gradient), factor);
    let along = B::float_mul(of_context.clone(), wide::<B>(quotient));
    let of_sum = B::float_neg(B::float_sum_dim(along, 3));
    B::float_cat(vec![of_context, of_sum], 3)
}

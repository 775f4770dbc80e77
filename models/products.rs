//! Matrix products on a GPU, where the shape decides on the kernel; elsewhere they are Burn's.
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::ops::FloatTensorOps as _;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::prelude::*;

/// `lhs · rhs`.
///
/// # Shapes
/// - lhs: `[…, rows, inner]`
/// - rhs: `[…, inner, columns]`, as many matrices as of `lhs`
/// - output: `[…, rows, columns]`
pub fn product<const D: usize>(lhs: Tensor<D>, rhs: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::product(lhs.into_dispatch(), rhs.into_dispatch()))
}

/// See [`product()`].
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait Products: Backend {
    /// `lhs · rhs`.
    ///
    /// # Shapes
    /// - lhs: `[…, rows, inner]`
    /// - rhs: `[…, inner, columns]`, as many matrices as of `lhs`
    /// - output: `[…, rows, columns]`
    #[fusion(meta = |lhs, rhs| product_of(lhs, rhs))]
    fn product(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self>;
}

#[cfg(feature = "fusion")]
fn product_of(lhs: &TensorSpec, rhs: &TensorSpec) -> TensorSpec {
    let mut shape = lhs.shape.clone();
    let last = shape.num_dims() - 1;
    shape[last] = rhs.shape[last];
    TensorSpec::new(shape, lhs.dtype)
}

impl Products for Flex {
    fn product(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_matmul(lhs, rhs)
    }
}

impl<B: Products, C: CheckpointStrategy> Products for Autodiff<B, C> {
    fn product(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        let [lhs_trained, rhs_trained] = [lhs.is_tracked(), rhs.is_tracked()];
        let (lhs, at_lhs) = lhs.into_parts();
        let (rhs, at_rhs) = rhs.into_parts();
        match Product
            .prepare::<C>([at_lhs, at_rhs])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prepared) => {
                let kept = [
                    rhs_trained.then(|| lhs.clone()),
                    lhs_trained.then(|| rhs.clone()),
                ];
                prepared.finish(kept, B::product(lhs, rhs))
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::product(lhs, rhs)),
        }
    }
}

/// Of [`Products::product`].
#[derive(Debug)]
struct Product;

impl<B: Products> Backward<B, 2> for Product {
    /// Each factor, where the other one is trained.
    type State = [Option<FloatTensor<B>>; 2];

    fn backward(self, ops: Ops<Self::State, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let [lhs, rhs] = ops.state;
        let [to_lhs, to_rhs] = ops.parents;
        let gradient = gradients.consume::<B>(&ops.node);
        if let (Some(parent), Some(rhs)) = (to_lhs, rhs) {
            let by_lhs = B::product(gradient.clone(), B::float_transpose(rhs));
            gradients.register::<B>(parent.id, by_lhs);
        }
        if let (Some(parent), Some(lhs)) = (to_rhs, lhs) {
            let by_rhs = B::product(B::float_transpose(lhs), gradient);
            gradients.register::<B>(parent.id, by_rhs);
        }
    }
}

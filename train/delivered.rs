//! Gradients that are known before a graph is gone back through, and enter it where they belong.
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata as _, backend_extension};
use burn::prelude::*;
use burn::tensor::{DType, Shape};
use spectrain_models::weights::lift;

/// A scalar, `[1]`, f32, whose gradient in `x` is `gradient`, as that of `Σ x · gradient` is. Its value means nothing: it is 0.
pub(crate) fn delivering<const D: usize>(x: Tensor<D>, gradient: Tensor<D>) -> Tensor<1> {
    delivery(x, gradient, true)
}

/// The same where it, or a sum of such, is what the backward pass begins with, so that nothing is left to multiply by.
pub(crate) fn delivering_as_it_is<const D: usize>(x: Tensor<D>, gradient: Tensor<D>) -> Tensor<1> {
    delivery(x, gradient, false)
}

fn delivery<const D: usize>(x: Tensor<D>, gradient: Tensor<D>, is_scaled: bool) -> Tensor<1> {
    assert_eq!(
        x.dims(),
        gradient.dims(),
        "a gradient has the shape of what it is of"
    );
    let gradient = lift(gradient.cast(x.dtype()), &x.device());
    let [x, gradient] = [x, gradient].map(Tensor::into_dispatch);
    Tensor::from_dispatch(Dispatch::delivery(x, gradient, is_scaled))
}

/// See [`delivering`].
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff, Fusion: cfg(feature = "fusion"))]
trait Deliveries: Backend {
    /// `[1]`, f32.
    #[fusion(default)]
    fn delivery(
        x: FloatTensor<Self>,
        _gradient: FloatTensor<Self>,
        _is_scaled: bool,
    ) -> FloatTensor<Self> {
        Self::float_zeros(Shape::from([1]), &x.device(), DType::F32.into())
    }
}

impl Deliveries for Flex {}

#[cfg(feature = "cube")]
impl Deliveries for burn_cubecl::CubeBackend {}

impl<B: Deliveries, C: CheckpointStrategy> Deliveries for Autodiff<B, C> {
    fn delivery(
        x: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        is_scaled: bool,
    ) -> FloatTensor<Self> {
        let (x, at_x) = x.into_parts();
        let gradient = gradient.into_primitive();
        let zero = B::delivery(x, gradient.clone(), is_scaled);
        match Delivery.prepare::<C>([at_x]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish((gradient, is_scaled), zero),
            OpsKind::UnTracked(prepared) => prepared.finish(zero),
        }
    }
}

/// Of [`Deliveries`].
#[derive(Debug)]
struct Delivery;

impl<B: Backend> Backward<B, 1> for Delivery {
    /// What is delivered, and whether it is multiplied by the scalar's own gradient.
    type State = (FloatTensor<B>, bool);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let (mut gradient, is_scaled) = ops.state;
        let own = gradients.consume::<B>(&ops.node);
        let [Some(parent)] = ops.parents else {
            return;
        };
        if is_scaled {
            let ones = vec![1; gradient.shape().num_dims()];
            let own = B::float_cast(own, gradient.dtype().into());
            gradient = B::float_mul(gradient, B::float_reshape(own, Shape::from(ones)));
        }
        gradients.register::<B>(parent.id, gradient);
    }
}

#[cfg(test)]
mod tests {
    use spectrain_models::device::test_device;
    use spectrain_models::weights::host_f32;

    use super::*;

    /// `[37, 5]`
    fn numbers(seed: usize, dtype: DType, device: &Device) -> Tensor<2> {
        let values: Vec<f32> = (0..185)
            .map(|at| ((at * 7919 + seed) % 101) as f32 / 8.0 - 6.0)
            .collect();
        let data = TensorData::new(values, [37, 5]).convert_dtype(dtype);
        Tensor::from_data(data, (device, dtype))
    }

    #[test]
    fn a_known_gradient_arrives_times_what_the_scalar_is_multiplied_by() {
        let device = test_device();
        for dtype in [DType::F32, DType::BF16] {
            let leaf = numbers(1, dtype, &device).autodiff().require_grad();
            let known = numbers(2, DType::F32, &device);
            // Two ways to the same leaf.
            let of_double = delivering(leaf.clone() * 2.0, known.clone());
            let scalar = delivering(leaf.clone(), known.clone()) * 0.25 + of_double;
            assert_eq!(host_f32(scalar.clone().inner()), [0.0]);
            assert_eq!(scalar.dtype(), DType::F32);
            let found = leaf.grad(&scalar.backward()).unwrap();
            assert_eq!(found.dtype(), dtype);
            let expected = host_f32(known.clone() * 2.25);
            let bound = if dtype == DType::F32 { 0.0 } else { 0.004 };
            for (found, expected) in host_f32(found).into_iter().zip(&expected) {
                let difference = (found - expected).abs();
                assert!(difference <= bound * expected.abs(), "{found} {expected}");
            }
            let root = delivering_as_it_is(leaf.clone(), known.clone());
            let found = leaf.grad(&root.backward()).unwrap();
            assert_eq!(host_f32(found), host_f32(known.cast(dtype)));
        }
    }

    #[test]
    fn what_no_parameter_is_behind_is_in_no_graph() {
        let device = test_device();
        let known = numbers(2, DType::F32, &device);
        let plain = numbers(1, DType::F32, &device).autodiff();
        assert!(!delivering(plain, known.clone()).is_tracked());
        let scalar = delivering(numbers(1, DType::F32, &device), known);
        assert_eq!(host_f32(scalar), [0.0]);
    }
}

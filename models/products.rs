//! Matrix products: on a device of CubeCL those of `cube/products.rs`, on the CPU those of `products/host.rs`, and Burn's
//! elsewhere.
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::ops::FloatTensorOps as _;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata as _, backend_extension};
use burn::prelude::*;
use burn::tensor::DType;

mod host;
mod matrix;
mod multiply;
mod precision;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tiles;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
#[path = "products/no_tiles.rs"]
mod tiles;
mod turned;

pub(crate) use host::are_by_tiles;
pub use host::rounds_products;
pub use matrix::Numbers;
pub use multiply::add_product;
pub use precision::{Precision, PrecisionScope};

/// `lhs · rhs`.
///
/// # Shapes
/// - lhs: `[…, rows, inner]`
/// - rhs: `[…, inner, columns]`, as many matrices as of `lhs`
/// - output: `[…, rows, columns]`
pub fn product<const D: usize>(lhs: Tensor<D>, rhs: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::product(lhs.into_dispatch(), rhs.into_dispatch()))
}

/// `x · weight` in the type of `x`, whatever type the weight is in; shapes as there. A graph keeps the weight as it is.
pub(crate) fn product_with_weight<const D: usize>(x: Tensor<D>, weight: Tensor<D>) -> Tensor<D> {
    let [x, weight] = [x, weight].map(Tensor::into_dispatch);
    Tensor::from_dispatch(Dispatch::product_with_weight(x, weight))
}

/// `lhs · rhs` in f32, whatever type both are in; shapes as there.
pub fn wide_product<const D: usize>(lhs: Tensor<D>, rhs: Tensor<D>) -> Tensor<D> {
    let [lhs, rhs] = [lhs, rhs].map(Tensor::into_dispatch);
    Tensor::from_dispatch(Dispatch::wide_product(lhs, rhs))
}

/// `sum + lhs · rhs` in f32, in the memory of the sum where nobody else holds it and the device can add as it multiplies.
///
/// # Shapes
/// - sum, output: `[rows, columns]`, f32
/// - lhs: `[rows, inner]`
/// - rhs: `[inner, columns]`, of the type of `lhs`
pub fn added_product(sum: Tensor<2>, lhs: Tensor<2>, rhs: Tensor<2>) -> Tensor<2> {
    let [sum, lhs, rhs] = [sum, lhs, rhs].map(Tensor::into_dispatch);
    Tensor::from_dispatch(Dispatch::added_product(sum, lhs, rhs))
}

/// `lhs · rhsᵀ` on the CPU, of matrices whose rows are long, in the order that takes least time: the product copies a factor
/// element by element where the sum runs along its memory, and the shorter one costs less.
///
/// # Shapes
/// - lhs: `[rows, inner]`, a row after the other in memory, f32 or bf16
/// - rhs: `[columns, inner]`, f32
/// - output: `[rows, columns]`, f32
pub fn product_along_rows(lhs: Tensor<2>, rhs: Tensor<2>) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::along_rows(
        lhs.into_dispatch(),
        rhs.into_dispatch(),
    ))
}

/// `lhs · rhs` on the CPU, rounded to bf16 once it is added up where [`rounds_products`] says so; in f32 elsewhere.
///
/// # Shapes
/// - lhs: `[rows, inner]`, f32
/// - rhs: `[inner, columns]`, f32
/// - output: `[rows, columns]`, bf16 or f32
pub fn rounded_product(lhs: Tensor<2>, rhs: Tensor<2>) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::rounded_product(
        lhs.into_dispatch(),
        rhs.into_dispatch(),
    ))
}

/// Products of the CPU alone.
#[backend_extension(Flex)]
trait HostProducts: Backend {
    /// See [`product_along_rows`].
    fn along_rows(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self>;
    /// See [`rounded_product`].
    fn rounded_product(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl HostProducts for Flex {
    fn along_rows(lhs: FlexTensor, rhs: FlexTensor) -> FlexTensor {
        let [rows, columns] = [&lhs, &rhs].map(|of| of.layout().shape()[0]);
        // Then nothing of `rhs` stands along the sum.
        let is_turned = rhs.layout().strides()[0] == 1;
        if is_turned || rows > columns || lhs.dtype() != rhs.dtype() {
            return Self::product(lhs, Self::float_transpose(rhs));
        }
        Self::float_transpose(Self::product(rhs, Self::float_transpose(lhs)))
    }

    fn rounded_product(lhs: FlexTensor, rhs: FlexTensor) -> FlexTensor {
        host::rounded_product(&lhs, &rhs).unwrap_or_else(|| Self::product(lhs, rhs))
    }
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
    #[fusion(meta = |lhs, rhs| product_of(lhs, rhs, lhs.dtype))]
    fn product(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The same in f32: the sums of factors in a narrower type are not rounded to it.
    #[fusion(meta = |lhs, rhs| product_of(lhs, rhs, DType::F32))]
    fn wide_product(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self>;

    /// See [`added_product()`].
    #[fusion(meta = |sum, _, _| sum.clone())]
    fn added_product(
        sum: FloatTensor<Self>,
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        Self::float_add(sum, Self::wide_product(lhs, rhs))
    }

    /// `x · weight` in the type of `x`, whatever type the weight is in; shapes as there. What a graph keeps is the weight itself, which
    /// all products with it share: it is cast again for the backward pass, and its gradient is in its own
    /// type.
    #[fusion(default)]
    fn product_with_weight(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        let dtype = x.dtype();
        Self::product(x, Self::weight_of_type(weight, dtype))
    }

    /// A weight in a type: itself where it is in that already, and on a GPU the copy that a
    /// [`CastOnce`](crate::cast_once::CastOnce) holds, where one lives.
    #[fusion(default)]
    fn weight_of_type(weight: FloatTensor<Self>, dtype: DType) -> FloatTensor<Self> {
        of_type::<Self>(weight, dtype)
    }
}

#[cfg(feature = "fusion")]
fn product_of(lhs: &TensorSpec, rhs: &TensorSpec, dtype: DType) -> TensorSpec {
    let mut shape = lhs.shape.clone();
    let last = shape.num_dims() - 1;
    shape[last] = rhs.shape[last];
    TensorSpec::new(shape, dtype)
}

impl Products for Flex {
    /// Of factors of different types in f32.
    fn product(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        if let Some(found) = host::product(&lhs, &rhs) {
            return found;
        }
        match lhs.dtype() == rhs.dtype() {
            true => Self::float_matmul(lhs, rhs),
            false => Self::product(wide::<Self>(lhs), wide::<Self>(rhs)),
        }
    }

    fn wide_product(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::product(wide::<Self>(lhs), wide::<Self>(rhs))
    }

    fn product_with_weight(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        match x.dtype() {
            // Tiles take a weight in bf16 as it is.
            DType::F32 => Self::product(x, weight),
            dtype => Self::product(x, Self::weight_of_type(weight, dtype)),
        }
    }
}

/// The tensor in f32.
pub(crate) fn wide<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    of_type::<B>(x, DType::F32)
}

/// The tensor in a type: itself where it is in that already.
pub(crate) fn of_type<B: Backend>(x: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    match x.dtype() == dtype {
        true => x,
        false => B::float_cast(x, dtype.into()),
    }
}

impl<B: Products, C: CheckpointStrategy> Products for Autodiff<B, C> {
    fn product(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        in_graph::<B, C>(lhs, rhs, B::product)
    }

    fn wide_product(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        in_graph::<B, C>(lhs, rhs, B::wide_product)
    }

    fn product_with_weight(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        in_graph::<B, C>(x, weight, B::product_with_weight)
    }
}

/// A product of any kind in a graph.
fn in_graph<B: Products, C: CheckpointStrategy>(
    lhs: FloatTensor<Autodiff<B, C>>,
    rhs: FloatTensor<Autodiff<B, C>>,
    product: fn(FloatTensor<B>, FloatTensor<B>) -> FloatTensor<B>,
) -> FloatTensor<Autodiff<B, C>> {
    let [lhs_trained, rhs_trained] = [lhs.is_tracked(), rhs.is_tracked()];
    let (lhs, at_lhs) = lhs.into_parts();
    let (rhs, at_rhs) = rhs.into_parts();
    match Product
        .prepare::<C>([at_lhs, at_rhs])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prepared) => {
            let factors = [
                rhs_trained.then(|| lhs.clone()),
                lhs_trained.then(|| rhs.clone()),
            ];
            let dtypes = [lhs.dtype(), rhs.dtype()];
            prepared.finish(Factors { factors, dtypes }, product(lhs, rhs))
        }
        OpsKind::UnTracked(prepared) => prepared.finish(product(lhs, rhs)),
    }
}

/// What the backward pass of a product needs.
#[derive(Debug, Clone)]
struct Factors<T> {
    /// Each factor, where the other one is trained.
    factors: [Option<T>; 2],
    /// Of both.
    dtypes: [DType; 2],
}

/// Of [`Products`].
#[derive(Debug)]
struct Product;

impl<B: Products> Backward<B, 2> for Product {
    type State = Factors<FloatTensor<B>>;

    fn backward(self, ops: Ops<Self::State, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let Factors {
            factors: [lhs, rhs],
            dtypes: [dtype, of_rhs],
        } = ops.state;
        let [to_lhs, to_rhs] = ops.parents;
        // That of a wide product is in f32, a weight may be, and a product takes factors of one type.
        let gradient = of_type::<B>(gradients.consume::<B>(&ops.node), dtype);
        if let (Some(parent), Some(rhs)) = (to_lhs, rhs) {
            let rhs = B::weight_of_type(rhs, dtype);
            let by_lhs = B::product(gradient.clone(), B::float_transpose(rhs));
            gradients.register::<B>(parent.id, by_lhs);
        }
        if let (Some(parent), Some(lhs)) = (to_rhs, lhs) {
            let lhs = B::float_transpose(lhs);
            // The gradient of an f32 weight is not rounded on its way.
            let by_rhs = match (dtype, of_rhs) {
                (DType::BF16 | DType::F16, DType::F32) => B::wide_product(lhs, gradient),
                _ => of_type::<B>(B::product(lhs, gradient), of_rhs),
            };
            gradients.register::<B>(parent.id, by_rhs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::test_device;
    use crate::weights::{Init, RandomWeights, Weights as _, host_f32, tensor_from};

    /// Whole numbers in `[-3, 3]`: sums of some twenty products are exact in every type.
    fn whole_numbers<const D: usize>(
        shape: [usize; D],
        seed: usize,
        dtype: DType,
        device: &Device,
    ) -> Tensor<D> {
        let length = shape.iter().product();
        let values: Vec<f32> = (0..length)
            .map(|at: usize| ((at * 7919 + seed * 104_729) % 6007 % 7) as f32 - 3.0)
            .collect();
        let data = TensorData::new(values, shape).convert_dtype(dtype);
        Tensor::from_data(data, (device, dtype))
    }

    /// Compares products of what `seen` makes of tensors with those on the CPU. Nothing else is computed on the device.
    fn compare<const D: usize, const E: usize>(
        what: &str,
        shapes: [[usize; D]; 2],
        seen: impl Fn([Tensor<D>; 2]) -> [Tensor<E>; 2],
    ) {
        for dtype in [DType::F32, DType::BF16] {
            let factors = |dtype, device: &Device| {
                seen([0, 1].map(|nth| whole_numbers(shapes[nth], nth, dtype, device)))
            };
            let [lhs, rhs] = factors(DType::F32, &Device::flex());
            let expected = lhs.matmul(rhs);
            let [lhs, rhs] = factors(dtype, &test_device());
            let wide = wide_product(lhs.clone(), rhs.clone());
            assert_eq!(wide.dtype(), DType::F32, "{what}");
            assert!(
                host_f32(wide) == host_f32(expected.clone()),
                "{what} of {shapes:?} in {dtype:?}, to f32"
            );
            let found = product(lhs, rhs);
            assert_eq!(found.dims(), expected.dims(), "{what}");
            assert_eq!(found.dtype(), dtype, "{what}");
            assert!(
                host_f32(found) == host_f32(expected),
                "{what} of {shapes:?} in {dtype:?}"
            );
        }
    }

    #[test]
    fn products_are_right_however_the_matrices_lie() {
        let turned = |x: Tensor<3>| x.swap_dims(1, 2);
        for [rows, inner, columns] in [
            [1, 16, 24],
            [6, 20, 1],
            [5, 1, 9],
            [1, 1, 1],
            [300, 21, 13],
            [8, 16, 64],
        ] {
            for matrices in [1, 2, 5] {
                let of = |rows, columns| [matrices, rows, columns];
                let plain = [of(rows, inner), of(inner, columns)];
                compare("plain", plain, |pair| pair);
                compare(
                    "right turned",
                    [of(rows, inner), of(columns, inner)],
                    |[x, y]| [x, turned(y)],
                );
                compare(
                    "left turned",
                    [of(inner, rows), of(inner, columns)],
                    |[x, y]| [turned(x), y],
                );
                compare(
                    "both turned",
                    [of(inner, rows), of(columns, inner)],
                    |[x, y]| [turned(x), turned(y)],
                );
                // One matrix for all, as a weight is.
                compare(
                    "expanded",
                    [of(rows, inner), [1, inner, columns]],
                    |[x, y]| [x, y.expand([matrices as i64, -1, -1])],
                );
            }
        }
    }

    #[test]
    fn a_product_is_added_to_a_sum_and_to_nobody_elses() {
        let device = test_device();
        for dtype in [DType::F32, DType::BF16] {
            for turned in [false, true] {
                let numbers = |shape, seed, device: &Device, dtype| {
                    whole_numbers::<2>(shape, seed, dtype, device)
                };
                let factors = |device: &Device, dtype| {
                    let lhs = match turned {
                        true => numbers([300, 21], 0, device, dtype).transpose(),
                        false => numbers([21, 300], 0, device, dtype),
                    };
                    [lhs, numbers([300, 64], 1, device, dtype)]
                };
                let [lhs, rhs] = factors(&Device::flex(), DType::F32);
                let before = numbers([21, 64], 2, &Device::flex(), DType::F32);
                let expected = host_f32(before.clone() + lhs.matmul(rhs));
                let [lhs, rhs] = factors(&device, dtype);
                let sum = numbers([21, 64], 2, &device, DType::F32);
                let held = sum.clone();
                let found = added_product(sum, lhs.clone(), rhs.clone());
                assert_eq!(found.dtype(), DType::F32);
                assert!(host_f32(found) == expected);
                assert!(host_f32(held.clone()) == host_f32(before));
                // Nobody else holds it.
                assert!(host_f32(added_product(held, lhs, rhs)) == expected);
            }
        }
    }

    /// The sums are some 2,700: bf16 would round them to multiples of 16.
    #[test]
    fn wide_products_are_not_rounded_and_their_gradients_have_the_type_of_the_factors() {
        let factors = |dtype, device: &Device| {
            let shapes = [[2, 5, 300], [2, 300, 7]];
            [0, 1].map(|nth| whole_numbers(shapes[nth], nth, dtype, device) + 3.0)
        };
        let turned = |x: &Tensor<3>| x.clone().swap_dims(1, 2);
        let [lhs, rhs] = factors(DType::F32, &Device::flex());
        let of_sums = whole_numbers([2, 5, 7], 2, DType::F32, &Device::flex());
        let by_lhs = of_sums.clone().matmul(turned(&rhs));
        let by_rhs = turned(&lhs).matmul(of_sums);
        let expected = host_f32(lhs.matmul(rhs));
        assert!(expected.iter().any(|sum| sum % 16.0 != 0.0));
        let leaves = factors(DType::BF16, &test_device()).map(|x| x.autodiff().require_grad());
        let found = wide_product(leaves[0].clone(), leaves[1].clone());
        assert_eq!(found.dtype(), DType::F32);
        assert_eq!(host_f32(found.clone().inner()), expected);
        let of_sums = whole_numbers([2, 5, 7], 2, DType::F32, &test_device());
        let gradients = (found * of_sums.autodiff()).sum().backward();
        for (leaf, expected) in leaves.iter().zip([by_lhs, by_rhs]) {
            let found = leaf.grad(&gradients).unwrap();
            assert_eq!(found.dtype(), DType::BF16);
            assert_eq!(host_f32(found), host_f32(expected));
        }
    }

    #[test]
    fn a_weight_is_taken_in_the_type_of_the_rows_and_its_gradient_comes_in_its_own() {
        let numbers = |at: usize, dtype, device: &Device| {
            whole_numbers([[5, 20], [20, 7], [5, 7]][at], at, dtype, device)
        };
        let [x, weight, of_sums] = [0, 1, 2].map(|at| numbers(at, DType::F32, &Device::flex()));
        let expected = [
            of_sums.clone().matmul(weight.clone().transpose()),
            x.clone().transpose().matmul(of_sums),
        ];
        let product = host_f32(x.matmul(weight));
        let device = test_device();
        for dtypes in [
            [DType::BF16, DType::F32],
            [DType::F32, DType::BF16],
            [DType::BF16; 2],
            [DType::F32; 2],
        ] {
            for trained in [[true, true], [true, false], [false, true]] {
                let [x, weight] = [0, 1].map(|at| {
                    let factor = numbers(at, dtypes[at], &device).autodiff();
                    factor.set_require_grad(trained[at])
                });
                let found = product_with_weight(x.clone(), weight.clone());
                assert_eq!(found.dtype(), dtypes[0]);
                assert_eq!(host_f32(found.clone().inner()), product, "{dtypes:?}");
                let of_sums = numbers(2, DType::F32, &device).autodiff();
                let gradients = (found.cast(DType::F32) * of_sums).sum().backward();
                for (at, factor) in [x, weight].into_iter().enumerate() {
                    if trained[at] {
                        let found = factor.grad(&gradients).unwrap();
                        assert_eq!(found.dtype(), dtypes[at]);
                        assert_eq!(host_f32(found), host_f32(expected[at].clone()));
                    }
                }
            }
        }
    }

    /// Several threads share a matrix, or take some matrices each.
    #[test]
    fn large_products_are_those_of_burn() {
        let device = Device::flex();
        for [matrices, rows, inner, columns] in [
            [1, 300, 210, 150],
            [2, 300, 210, 150],
            [3, 90, 110, 100],
            [9, 40, 130, 65],
        ] {
            let lhs = whole_numbers([matrices, rows, inner], 0, DType::F32, &device);
            let rhs = whole_numbers([matrices, inner, columns], 1, DType::F32, &device);
            let one = rhs.clone().narrow(0, matrices - 1, 1);
            let turned = one.clone().swap_dims(1, 2).reshape([1, columns, inner]);
            let turned = turned.swap_dims(1, 2).expand([matrices as i64, -1, -1]);
            for rhs in [rhs, one.expand([matrices as i64, -1, -1]), turned] {
                let expected = host_f32(lhs.clone().matmul(rhs.clone()));
                assert!(host_f32(product(lhs.clone(), rhs)) == expected);
            }
        }
    }

    /// Many rows turn a matrix that lies by columns, few do not.
    #[test]
    fn a_row_of_a_product_is_the_same_to_the_bit_beside_few_rows_and_many() {
        let device = Device::flex();
        for [inner, columns] in [[512, 256], [1030, 300], [768, 1024]] {
            let of = |seed, shape: [usize; 2]| {
                let values = RandomWeights::new(seed).tensor("x", &shape, Init::Normal(1.0));
                tensor_from::<2>(values.unwrap(), &device)
            };
            let rows = of(1, [300, inner]);
            let weight = of(2, [columns, inner]).swap_dims(0, 1);
            let many = host_f32(product(rows.clone(), weight.clone()).narrow(0, 0, 100));
            let few = host_f32(product(rows.narrow(0, 0, 100), weight));
            assert!(many == few, "{inner} to {columns}");
        }
    }

    #[test]
    fn products_along_rows_are_right_however_the_second_matrix_lies() {
        let device = Device::flex();
        for [rows, columns, inner] in [[40, 24, 300], [24, 40, 301], [1, 5, 64], [300, 7, 9]] {
            let lhs = whole_numbers([rows, inner], 0, DType::F32, &device);
            let rhs = whole_numbers([columns, inner], 1, DType::F32, &device);
            let expected = host_f32(lhs.clone().matmul(rhs.clone().transpose()));
            let turned = whole_numbers([inner, columns], 2, DType::F32, &device);
            let found = product_along_rows(lhs.clone(), rhs);
            assert_eq!(found.dims(), [rows, columns]);
            assert!(host_f32(found) == expected);
            let expected = host_f32(lhs.clone().matmul(turned.clone()));
            assert!(host_f32(product_along_rows(lhs, turned.transpose())) == expected);
        }
    }

    /// As a decoder takes them.
    #[test]
    fn products_of_few_rows_with_weights_are_right_and_do_not_depend_on_the_rows_beside_them() {
        for [inner, columns] in [[264, 301], [1030, 64], [512, 1000]] {
            let weight = |dtype, device: &Device| {
                whole_numbers([columns, inner], 1, dtype, device).swap_dims(0, 1)
            };
            for dtype in [DType::F32, DType::BF16] {
                let device = test_device();
                let rows = whole_numbers([9, inner], 2, DType::F32, &Device::flex());
                let expected = rows.clone().matmul(weight(DType::F32, &Device::flex()));
                let expected = host_f32(expected.cast(dtype));
                for count in [1, 2, 6, 8, 9] {
                    let some = rows.clone().narrow(0, 9 - count, count).into_data();
                    let some = Tensor::from_data(some.convert_dtype(dtype), (&device, dtype));
                    let found = host_f32(product::<2>(some, weight(dtype, &device)));
                    assert!(
                        found == expected[(9 - count) * columns..],
                        "{count} rows, {inner} by {columns} in {dtype:?}"
                    );
                }
            }
        }
    }

    /// Heads beside each other in a row, as attention has them: no step leads from each matrix to the next.
    #[test]
    fn products_are_right_where_heads_lie_in_rows() {
        let heads = |x: Tensor<4>| x.swap_dims(1, 2);
        for [texts, rows, keys, count, width] in
            [[1, 7, 30, 4, 16], [3, 5, 9, 2, 20], [2, 1, 33, 3, 8]]
        {
            let [queries, states] = [rows, keys].map(|length| [texts, length, count, width]);
            compare("scores", [queries, states], |[x, y]| {
                [heads(x), heads(y).swap_dims(2, 3)]
            });
            let shares = [texts, count, rows, width];
            let values = [texts, width, count, keys];
            compare("mixtures", [shares, values], |[x, y]| [x, heads(y)]);
        }
    }
}

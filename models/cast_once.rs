//! Weights in another type than the rows that they multiply, cast once in a pass in place of once in each product.
//!
//! A drafter that computes in bf16 has f32 weights to be trained. The steps of an unrolled drafter, those that are computed again, and the
//! backward pass all multiply with the same ones: on a GPU casting them each time would move more bytes than AdamW does.
use std::marker::PhantomData;

/// While it lives, its thread casts each weight once on a GPU, and holds the copy until it ends. The weight is held with it, so that
/// whoever changes it meanwhile has to write elsewhere.
#[must_use]
pub struct CastOnce {
    /// Whether none did before.
    #[cfg(feature = "cube")]
    is_first: bool,
    /// It speaks of its own thread.
    _here: PhantomData<*const ()>,
}

impl CastOnce {
    /// From here on.
    pub fn begin() -> Self {
        Self {
            #[cfg(feature = "cube")]
            is_first: on_cube::begin(),
            _here: PhantomData,
        }
    }
}

impl Drop for CastOnce {
    fn drop(&mut self) {
        #[cfg(feature = "cube")]
        if self.is_first {
            on_cube::end();
        }
    }
}

#[cfg(feature = "cube")]
pub(crate) mod on_cube {
    use std::cell::RefCell;

    use burn::backend::ops::FloatTensorOps as _;
    use burn::tensor::DType;
    use burn_cubecl::CubeBackend;
    use burn_cubecl::tensor::CubeTensor;

    thread_local! {
        /// None where nobody wants them held.
        static COPIES: RefCell<Option<Vec<Cast>>> = const { RefCell::new(None) };
    }

    /// A weight and its copy in another type. While the weight is held here, its memory is neither written nor another's.
    struct Cast {
        weight: CubeTensor,
        copy: CubeTensor,
    }

    impl Cast {
        /// Whether it is of this weight in this type.
        fn is_of(&self, weight: &CubeTensor, dtype: DType) -> bool {
            let [own, other] = [&self.weight, weight].map(|of| {
                let handle = &of.handle;
                (handle.memory.descriptor(), handle.offset_start, &of.meta)
            });
            self.copy.dtype == dtype && own == other
        }
    }

    /// Says whether none were held before.
    pub(super) fn begin() -> bool {
        COPIES.with_borrow_mut(|copies| {
            let is_first = copies.is_none();
            copies.get_or_insert_default();
            is_first
        })
    }

    pub(super) fn end() {
        COPIES.take();
    }

    /// How many are held.
    #[cfg(test)]
    pub(super) fn count() -> usize {
        COPIES.with_borrow(|copies| copies.as_ref().map_or(0, Vec::len))
    }

    /// `weight` in another type.
    pub(crate) fn cast(weight: CubeTensor, dtype: DType) -> CubeTensor {
        let cast = |weight| CubeBackend::float_cast(weight, dtype.into());
        COPIES.with_borrow_mut(|copies| {
            let Some(copies) = copies else {
                return cast(weight);
            };
            if let Some(found) = copies.iter().find(|of| of.is_of(&weight, dtype)) {
                return found.copy.clone();
            }
            let copy = cast(weight.clone());
            copies.push(Cast {
                weight,
                copy: copy.clone(),
            });
            copy
        })
    }
}

#[cfg(test)]
mod tests {
    use burn::prelude::*;
    use burn::tensor::{DType, bf16};

    use super::CastOnce;
    use crate::device::test_device;
    use crate::products::product_with_weight;
    use crate::weights::host_f32;

    /// Whole numbers in `[-3, 3]`, whose products are exact.
    fn whole_numbers<const D: usize>(shape: [usize; D], seed: usize, dtype: DType) -> Tensor<D> {
        let values = (0..shape.iter().product()).map(|at| ((at * 31 + seed) % 7) as f32 - 3.0);
        let data = TensorData::new(values.collect::<Vec<f32>>(), shape).convert_dtype(dtype);
        Tensor::from_data(data, (&test_device(), dtype))
    }

    /// Compares with the product in f32, and that twice.
    fn compare(weight: &Tensor<2>) {
        let x = whole_numbers([5, weight.dims()[0]], 1, DType::BF16);
        let wide = x.clone().cast(DType::F32).matmul(weight.clone());
        let expected = host_f32(wide.cast(DType::BF16));
        for _ in 0..2 {
            assert_eq!(
                host_f32(product_with_weight(x.clone(), weight.clone())),
                expected
            );
        }
    }

    #[test]
    fn a_weight_is_what_it_is_at_the_time_of_each_product() {
        let mut weight = whole_numbers([64, 32], 2, DType::F32);
        for _ in 0..3 {
            {
                let _casts = CastOnce::begin();
                compare(&weight);
                // What stands in no parameter, and could be written in place.
                let mut other = weight.clone() + 1.0;
                compare(&other);
                other = other * -1.0;
                compare(&other);
            }
            weight = weight * -1.0;
        }
    }

    #[test]
    fn views_of_a_weight_are_told_apart() {
        let _casts = CastOnce::begin();
        let weight = whole_numbers([3, 64, 64], 2, DType::F32);
        for of in [0, 2, 0] {
            let part: Tensor<2> = weight.clone().narrow(0, of, 1).squeeze_dim(0);
            compare(&part);
            compare(&part.clone().transpose());
            compare(&part.reshape([128, 32]));
        }
    }

    /// Two products with a weight in a graph, and what goes back through both.
    #[test]
    fn a_graph_takes_one_copy_of_a_weight_and_gives_exact_gradients() {
        let gradients_of = |dtype: DType| {
            let leaf = |shape, seed, dtype| {
                let x: Tensor<2> = whole_numbers(shape, seed, dtype) + 3.0;
                x.autodiff().require_grad()
            };
            let weight = leaf([40, 32], 2, DType::F32);
            let rows = [1, 3].map(|seed| leaf([300, 40], seed, dtype));
            let sums = rows.each_ref().map(|x| {
                let found = product_with_weight(x.clone(), weight.clone());
                found.cast(DType::F32).sum()
            });
            let [one, other] = sums;
            let gradients = (one + other).backward();
            let of = |x: &Tensor<2>| host_f32(x.grad(&gradients).unwrap());
            [of(&weight), of(&rows[0]), of(&rows[1])]
        };
        let expected = gradients_of(DType::F32);
        // Sums over all rows: bf16 would round them.
        let is_odd = |sum: &f32| bf16::from_f32(*sum).to_f32() != *sum;
        assert!(expected[0].iter().any(is_odd));
        let outer = CastOnce::begin();
        {
            // One inside another ends nothing.
            let _inner = CastOnce::begin();
            assert_eq!(gradients_of(DType::BF16), expected);
        }
        #[cfg(feature = "cube")]
        {
            let is_cube = test_device() != Device::flex();
            assert_eq!(super::on_cube::count(), usize::from(is_cube));
        }
        drop(outer);
        #[cfg(feature = "cube")]
        assert_eq!(super::on_cube::count(), 0);
    }
}

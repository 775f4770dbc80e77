//! How the CPU rounds the factors of products.
use std::cell::Cell;
use std::marker::PhantomData;

use super::tiles;

/// The number type that the CPU rounds the factors of large products to. What is added up is in f32 in any case, and so are results but
/// those of [`rounded_product`](super::rounded_product()).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// They are not rounded.
    #[default]
    F32,
    /// Where the processor multiplies them faster than f32 ([`Precision::is_here`]); elsewhere they are not rounded.
    Bf16,
}

thread_local! {
    /// That of this thread's products.
    static HERE: Cell<Precision> = const { Cell::new(Precision::F32) };
}

impl Precision {
    /// Whether this processor gains anything from it.
    pub fn is_here(self) -> bool {
        self == Self::F32 || tiles::Tiles::here().is_some()
    }

    /// Takes this thread's products so while what it gives lives, with those that it has other threads share, and those of backward passes.
    pub fn scope(self) -> PrecisionScope {
        PrecisionScope {
            outer: HERE.replace(self),
            _here: PhantomData,
        }
    }

    /// That of this thread's products: for a thread that works for another one to take over.
    pub fn of_this_thread() -> Self {
        HERE.get()
    }
}

/// See [`Precision::scope`].
#[must_use]
pub struct PrecisionScope {
    /// What was so before.
    outer: Precision,
    /// It speaks of its own thread.
    _here: PhantomData<*const ()>,
}

impl Drop for PrecisionScope {
    fn drop(&mut self) {
        HERE.set(self.outer);
    }
}

#[cfg(test)]
mod tests {
    use burn::prelude::*;
    use burn::tensor::DType;

    use super::*;
    use crate::few_rows::Decoding;
    use crate::products::{
        product, product_along_rows, product_with_weight, rounded_product, rounds_products,
    };
    use crate::weights::{Init, RandomWeights, Weights as _, host_f32, tensor_from};

    /// Large enough for tiles.
    fn factors() -> [Tensor<2>; 2] {
        [(3, [130, 70]), (4, [70, 90])].map(|(seed, shape)| {
            let drawn = RandomWeights::new(seed).tensor("x", &shape, Init::Normal(1.0));
            tensor_from(drawn.unwrap(), &Device::flex())
        })
    }

    fn rounded(x: &Tensor<2>) -> Tensor<2> {
        x.clone().cast(DType::BF16).cast(DType::F32)
    }

    /// The largest distance.
    fn apart(found: Tensor<2>, expected: Tensor<2>) -> f32 {
        host_f32((found - expected).abs())
            .into_iter()
            .fold(0.0, f32::max)
    }

    /// Of f32, and of what a scope rounds here.
    fn ways() -> [Precision; 2] {
        [Precision::F32, Precision::Bf16]
            .map(|way| if way.is_here() { way } else { Precision::F32 })
    }

    fn seen(x: &Tensor<2>, way: Precision) -> Tensor<2> {
        match way {
            Precision::F32 => x.clone(),
            Precision::Bf16 => rounded(x),
        }
    }

    #[test]
    fn factors_are_rounded_within_a_scope_and_not_where_it_decodes() {
        let [lhs, rhs] = factors();
        let [whole, bf16] = ways().map(|way| seen(&lhs, way).matmul(seen(&rhs, way)));
        let found = || product(lhs.clone(), rhs.clone());
        let _outer = Precision::Bf16.scope();
        assert!(apart(found(), bf16.clone()) < 1e-4);
        {
            let _inner = Precision::F32.scope();
            assert!(apart(found(), whole.clone()) < 1e-4);
        }
        {
            let _decoding = Decoding::begin();
            assert!(apart(found(), whole) < 1e-4);
        }
        assert!(apart(found(), bf16) < 1e-4);
    }

    #[test]
    fn factors_in_bf16_are_multiplied_as_the_same_numbers_in_f32() {
        let [x, weight] = factors();
        let weight = rounded(&weight);
        let narrow = |x: &Tensor<2>| x.clone().cast(DType::BF16);
        // As a file has it: columns stand one after the other.
        let turned = weight.clone().transpose() * 1;
        for scope in [Precision::F32, Precision::Bf16] {
            let _precision = scope.scope();
            let expected = host_f32(product(x.clone(), weight.clone()));
            for held in [narrow(&weight), narrow(&turned).transpose()] {
                let found = product_with_weight(x.clone(), held.clone());
                assert_eq!(found.dtype(), DType::F32);
                assert!(host_f32(found) == expected, "{scope:?}");
                let found = crate::few_rows::product(x.clone(), held);
                assert!(host_f32(found) == expected, "{scope:?}");
            }
            let gradient = rounded(&product(x.clone(), weight.clone()));
            let expected = host_f32(product_along_rows(gradient.clone(), weight.clone()));
            let found = product_along_rows(narrow(&gradient), weight.clone());
            assert!(host_f32(found) == expected, "{scope:?}");
        }
    }

    #[test]
    fn a_product_is_rounded_once_it_is_added_up() {
        let [lhs, rhs] = factors();
        let sizes = [130, 70, 90];
        assert!(!rounds_products(sizes));
        let whole = rounded_product(lhs.clone(), rhs.clone());
        assert_eq!(whole.dtype(), DType::F32);
        let _precision = Precision::Bf16.scope();
        let expected = product(lhs.clone(), rhs.clone());
        let found = rounded_product(lhs, rhs);
        if rounds_products(sizes) {
            assert_eq!(found.dtype(), DType::BF16);
            assert!(host_f32(found) == host_f32(rounded(&expected)));
        } else {
            assert!(!Precision::Bf16.is_here());
            assert!(host_f32(found) == host_f32(expected));
        }
        // Too few rows, and a sum in parts.
        assert!(!rounds_products([3, 70, 90]) && !rounds_products([130, 1 << 12, 90]));
    }

    #[test]
    fn a_backward_pass_rounds_what_it_multiplies() {
        let factors = factors();
        let _precision = Precision::Bf16.scope();
        let [lhs, rhs] = factors.clone().map(|x| x.autodiff().require_grad());
        // A gradient of many digits: that of the half of the sum of squares is the product itself.
        let made = product(lhs.clone(), rhs.clone());
        let values = made.clone().inner();
        let gradients = (made.powi_scalar(2) * 0.5).sum().backward();
        let [_, way] = ways();
        let [values, left, right] = [&values, &factors[0], &factors[1]].map(|x| seen(x, way));
        let expected = [
            values.clone().matmul(right.transpose()),
            left.transpose().matmul(values),
        ];
        for (leaf, expected) in [lhs, rhs].into_iter().zip(expected) {
            let largest = host_f32(expected.clone().abs().max())[0];
            let found = leaf.grad(&gradients).unwrap();
            assert!(apart(found, expected) < 1e-5 * largest);
        }
    }
}

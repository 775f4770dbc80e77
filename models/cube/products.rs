//! What multiplies matrices on a device of CubeCL: cuBLASLt on CUDA's, where it is installed ([`super::cublas`]); else a kernel of cubek
//! ([`super::by_cubek`]).
#[cfg(feature = "cuda")]
use burn::backend::ops::FloatTensorOps as _;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::matmul::{MatmulStrategy, init_matmul_output, matmul};
use burn_cubecl::tensor::CubeTensor;

use super::by_cubek::{ALL_SHAPES, Product};
#[cfg(feature = "cuda")]
use super::shares::to_write;
use crate::cast_once::on_cube::cast;
use crate::products::Products;

impl Products for CubeBackend {
    fn product(lhs: CubeTensor, rhs: CubeTensor) -> CubeTensor {
        let dtype = lhs.dtype;
        multiplied(lhs, rhs, dtype)
    }

    fn wide_product(lhs: CubeTensor, rhs: CubeTensor) -> CubeTensor {
        multiplied(lhs, rhs, DType::F32)
    }

    #[cfg(feature = "cuda")]
    fn added_product(sum: CubeTensor, lhs: CubeTensor, rhs: CubeTensor) -> CubeTensor {
        let sum = to_write(sum);
        match super::cublas::add(&lhs, &rhs, &sum) {
            true => sum,
            false => Self::float_add(sum, Self::wide_product(lhs, rhs)),
        }
    }

    fn weight_of_type(weight: CubeTensor, dtype: DType) -> CubeTensor {
        match weight.dtype == dtype {
            true => weight,
            false => cast(weight, dtype),
        }
    }
}

/// `lhs · rhs` in a type: that of both, or f32.
fn multiplied(lhs: CubeTensor, rhs: CubeTensor, dtype: DType) -> CubeTensor {
    if [&lhs, &rhs].iter().any(|of| of.meta.shape().contains(&0)) {
        let product = matmul(lhs, rhs, None, MatmulStrategy::default(), dtype);
        return product.expect(ALL_SHAPES);
    }
    let out = init_matmul_output(&lhs, &rhs, dtype);
    #[cfg(feature = "cuda")]
    if super::cublas::multiply(&lhs, &rhs, &out) {
        return out;
    }
    let product = Product::new(&lhs, &rhs, &out);
    if product.by_fastest() {
        return out;
    }
    let by_burn = matmul(lhs, rhs, Some(out.clone()), MatmulStrategy::Cube, dtype);
    // What Burn chooses may need more shared memory than the device has: sums in f32 take twice that of sums in bf16.
    by_burn.unwrap_or_else(|_| {
        product.by_plainest();
        out
    })
}

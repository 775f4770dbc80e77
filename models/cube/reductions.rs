//! Reductions over rows by kernels: a row is taken by units side by side.
use burn::backend::cubecl::dtype_to_elem_type;
#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata as _, backend_extension};
use burn::prelude::*;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use self::kernels::{kth_kernel, logits_kernel, sums_kernel};
use super::shares::{Rows, address_of, empty, in_rows};
use crate::device::is_cpu;

mod kernels;

/// Whether kernels reduce this tensor: it is on a device of CubeCL, in no graph, and not empty.
pub(crate) fn has_kernels<const D: usize>(x: &Tensor<D>) -> bool {
    let device = x.device();
    !is_cpu(&device) && device == device.clone().without_autodiff() && !x.dims().contains(&0)
}

/// The reductions.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(crate) trait Reductions: Backend {
    /// The index of the first largest entry of each row, as a number in f32, which holds every index below 2^24.
    ///
    /// # Shapes
    /// - logits: `[rows, vocab]`
    /// - output: `[rows, 1]`, f32
    #[fusion(meta = |logits| of_rows(logits))]
    fn best_of_rows(logits: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `log Σ exp` of each row; shapes as there.
    #[fusion(meta = |logits| of_rows(logits))]
    fn log_partition(logits: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The `k`th largest entry of each row; shapes as there.
    #[fusion(meta = |x, _| of_rows(x))]
    fn kth_of_rows(x: FloatTensor<Self>, k: usize) -> FloatTensor<Self>;

    /// The sum of the squares of each row; shapes as there.
    #[fusion(meta = |x| of_rows(x))]
    fn square_sums_of_rows(x: FloatTensor<Self>) -> FloatTensor<Self>;
}

#[cfg(feature = "fusion")]
fn of_rows(x: &TensorSpec) -> TensorSpec {
    TensorSpec::new(burn::prelude::Shape::new([x.shape[0], 1]), DType::F32)
}

/// What a kernel finds of each row of `x`, by units that share the row: `[…, 1]`, f32. `own` is what it takes beside.
macro_rules! of_each_row {
    ($kernel:ident, $x:expr, $own:expr) => {{
        let (x, step) = in_rows($x);
        let (rows, found) = (Rows::of_steps(&x, step), one_per_row(&x));
        $kernel::launch(
            &found.client,
            rows.cubes(),
            rows.cube,
            address_of(&[&x]),
            rows.vector,
            x.clone().into_buffer_arg(),
            found.clone().into_buffer_arg(),
            rows.count as u32,
            rows.vectors as u32,
            (step / rows.vector) as u32,
            $own,
            rows.cube.num_elems() as usize,
            dtype_to_elem_type(x.dtype),
        );
        found
    }};
}

/// The sum of each row of `x`, or of its squares: `[…, 1]`, f32.
pub(crate) fn sums_of_rows(x: CubeTensor, of_squares: bool) -> CubeTensor {
    of_each_row!(sums_kernel, x, of_squares)
}

fn one_per_row(x: &CubeTensor) -> CubeTensor {
    let mut shape = x.shape();
    let last = shape.num_dims() - 1;
    shape[last] = 1;
    empty(x, shape, DType::F32)
}

impl Reductions for CubeBackend {
    fn best_of_rows(logits: CubeTensor) -> CubeTensor {
        of_each_row!(logits_kernel, logits, false)
    }

    fn log_partition(logits: CubeTensor) -> CubeTensor {
        of_each_row!(logits_kernel, logits, true)
    }

    fn kth_of_rows(x: CubeTensor, k: usize) -> CubeTensor {
        of_each_row!(kth_kernel, x, k as u32)
    }

    fn square_sums_of_rows(x: CubeTensor) -> CubeTensor {
        sums_of_rows(x, true)
    }
}

//! Products of a few rows with a large matrix, as a decoder takes them: what they cost is reading the matrix, and handing over the
//! call. This kernel is queued like any other, where cuBLASLt's waits for the thread that speaks to the device.
//!
//! The sum of an element is taken in the same order for any number of rows, so a row's result does not depend on the rows beside it.
use burn::backend::cubecl::dtype_to_elem_type;
use burn::tensor::DType;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use self::kernel::{COLUMNS, few_rows_kernel};
use super::shares::{Rows, address_of};

mod kernel;

/// Rows up to which it takes a product.
const MOST_ROWS: usize = 8;
/// Elements of a matrix, below which it takes none.
const FEWEST_ELEMENTS: usize = 1 << 16;
/// Units that sum an element.
const UNITS: u32 = 32;

/// Fills `out` with `lhs · rhs` and returns `true` where `lhs` has few rows and each column of `rhs` lies in a row in memory, as weights do.
pub(super) fn multiply(lhs: &CubeTensor, rhs: &CubeTensor, out: &CubeTensor) -> bool {
    let [Some([rows, inner]), Some([_, columns])] = [lhs, rhs].map(matrix) else {
        return false;
    };
    let is_known =
        matches!(lhs.dtype, DType::F32 | DType::F16 | DType::BF16) && lhs.dtype == rhs.dtype;
    let in_columns = rhs.meta.strides()[..] == [1, inner] && !rhs.meta.is_tiled();
    if !is_known || !in_columns || rows > MOST_ROWS || inner * columns < FEWEST_ELEMENTS {
        return false;
    }
    let lhs = into_contiguous(lhs.clone());
    let shares = Rows::of(&lhs, &[]);
    let all = shares.cube.num_elems();
    let units = UNITS.min(shares.cube.x);
    let cube = CubeDim::new_2d(units, all / units);
    let cubes = columns.div_ceil(COLUMNS * cube.y as usize);
    few_rows_kernel::launch(
        &out.client,
        CubeCount::new_1d(cubes as u32),
        cube,
        address_of(&[rhs]),
        shares.vector,
        lhs.into_buffer_arg(),
        rhs.clone().into_buffer_arg(),
        out.clone().into_buffer_arg(),
        columns as u32,
        shares.vectors as u32,
        rows,
        all as usize,
        dtype_to_elem_type(out.dtype),
    );
    true
}

/// Rows and columns, where it is one matrix.
fn matrix(of: &CubeTensor) -> Option<[usize; 2]> {
    <[usize; 2]>::try_from(of.meta.shape().to_vec()).ok()
}

//! A product as cuBLASLt wants it described, and the kernel that it chose.
#![expect(unsafe_code, reason = "cuBLASLt is a C library")]
use std::ffi::c_void;

use burn::tensor::DType;
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t as Attribute, cublasLtMatmulPreferenceAttributes_t as Wish,
    cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t as Lies, cudaDataType,
};

use super::layout::{Layout, Side};

/// What a kernel may use beside its operands: as NVIDIA recommends for Hopper.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;

/// Partial sums are added in f32, not in the type of the output: `CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`.
const REDUCTION: u32 = 2;

/// A kernel and the descriptions of what it works on.
pub(super) struct Plan {
    product: cublasLtMatmulDesc_t,
    /// Of `rhs`, `lhs` and `out`: [`super::layout`] says why in this order.
    sides: [cublasLtMatrixLayout_t; 3],
    kernel: cublasLtMatmulAlgo_t,
    /// What is multiplied with that which `out` held before.
    kept: f32,
}

impl Plan {
    /// cuBLASLt's first choice for `layout`, of operands that start at multiples of `alignments` bytes.
    ///
    /// # Errors
    /// It has none.
    pub(super) fn make(
        handle: cublasLtHandle_t,
        layout: &Layout,
        [lhs, rhs, out]: [u32; 3],
    ) -> Result<Self, CublasError> {
        let (held, compute) = types(layout.dtype)?;
        let (held_out, _) = types(layout.out_dtype)?;
        let product = result::create_matmul_desc(compute, cudaDataType::CUDA_R_32F)?;
        for (which, side) in [
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, layout.rhs),
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, layout.lhs),
        ] {
            // `CUBLAS_OP_T` is 1, `CUBLAS_OP_N` is 0.
            let turn = i32::from(side.is_turned);
            // SAFETY: the attribute is an i32, which is read at once.
            unsafe {
                let (at, bytes) = bytes_of(&turn);
                result::set_matmul_desc_attribute(product, which, at, bytes)?;
            }
        }
        let (rows, inner, columns) = (layout.rows, layout.inner, layout.columns);
        let sides = [
            matrix(held, inner, columns, layout.rhs, layout.matrices)?,
            matrix(held, rows, inner, layout.lhs, layout.matrices)?,
            matrix(held_out, rows, columns, layout.out, layout.matrices)?,
        ];
        let kernel = kernel(handle, product, sides, [rhs, lhs, out])?;
        Ok(Self {
            product,
            sides,
            kernel,
            kept: if layout.adds { 1.0 } else { 0.0 },
        })
    }

    /// Has the kernel write to `out`, or add to it, on `stream`, from `[lhs, rhs]`: addresses on the device.
    ///
    /// # Errors
    /// cuBLASLt refuses.
    ///
    /// # Safety
    /// The addresses are those of memory that the layout fits into, in the context that is current, and stay so until the kernel has
    /// ended; `workspace` has [`WORKSPACE_BYTES`] and serves nothing else on another stream.
    pub(super) unsafe fn launch(
        &self,
        handle: cublasLtHandle_t,
        [lhs, rhs, out]: [u64; 3],
        workspace: u64,
        stream: cudarc::driver::sys::CUstream,
    ) -> Result<(), CublasError> {
        let one = 1.0f32;
        let [of_rhs, of_lhs, of_out] = self.sides;
        // SAFETY: the descriptions live as long as `self`; the caller answers for the rest.
        unsafe {
            result::matmul(
                handle,
                self.product,
                (&raw const one).cast(),
                (&raw const self.kept).cast(),
                rhs as *const c_void,
                of_rhs,
                lhs as *const c_void,
                of_lhs,
                out as *const c_void,
                of_out,
                out as *mut c_void,
                of_out,
                &raw const self.kernel,
                workspace as *mut c_void,
                WORKSPACE_BYTES,
                stream.cast(),
            )
        }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: they were made with the plan and nothing else holds them. A failure has no consequence here.
        unsafe {
            let _ = result::destroy_matmul_desc(self.product);
            for side in self.sides {
                let _ = result::destroy_matrix_layout(side);
            }
        }
    }
}

/// What numbers are held as and multiplied as. Sums are in f32.
fn types(dtype: DType) -> Result<(cudaDataType, cublasComputeType_t), CublasError> {
    let sums = cublasComputeType_t::CUBLAS_COMPUTE_32F;
    match dtype {
        DType::BF16 => Ok((cudaDataType::CUDA_R_16BF, sums)),
        DType::F16 => Ok((cudaDataType::CUDA_R_16F, sums)),
        DType::F32 => Ok((
            cudaDataType::CUDA_R_32F,
            cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        )),
        _ => Err(CublasError(
            cudarc::cublaslt::sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
        )),
    }
}

/// Describes matrices of `rows · columns`, which are `columns · rows` to cuBLASLt.
fn matrix(
    held: cudaDataType,
    rows: usize,
    columns: usize,
    side: Side,
    matrices: usize,
) -> Result<cublasLtMatrixLayout_t, CublasError> {
    let (length, count) = match side.is_turned {
        true => (rows, columns),
        false => (columns, rows),
    };
    let made = result::create_matrix_layout(held, length as u64, count as u64, side.step as i64)?;
    let (matrices, stride) = (matrices as i32, side.stride as i64);
    // SAFETY: the attributes are an i32 and an i64, which are read at once.
    unsafe {
        let (at, bytes) = bytes_of(&matrices);
        let count = Lies::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
        result::set_matrix_layout_attribute(made, count, at, bytes)?;
        let (at, bytes) = bytes_of(&stride);
        let offset = Lies::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
        result::set_matrix_layout_attribute(made, offset, at, bytes)?;
    }
    Ok(made)
}

fn kernel(
    handle: cublasLtHandle_t,
    product: cublasLtMatmulDesc_t,
    [a, b, c]: [cublasLtMatrixLayout_t; 3],
    alignments: [u32; 3],
) -> Result<cublasLtMatmulAlgo_t, CublasError> {
    let wishes = result::create_matmul_pref()?;
    let [of_a, of_b, of_c] = alignments;
    // SAFETY: the attributes are a usize and u32s, which are read at once; the descriptions are those of this product, and the
    // wishes end here.
    unsafe {
        let (at, bytes) = bytes_of(&WORKSPACE_BYTES);
        let most = Wish::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        result::set_matmul_pref_attribute(wishes, most, at, bytes)?;
        for (which, value) in [
            (Wish::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, REDUCTION),
            (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, of_a),
            (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, of_b),
            (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, of_c),
            (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, of_c),
        ] {
            let (at, bytes) = bytes_of(&value);
            result::set_matmul_pref_attribute(wishes, which, at, bytes)?;
        }
        let found = result::get_matmul_algo_heuristic(handle, product, a, b, c, c, wishes);
        let _ = result::destroy_matmul_pref(wishes);
        Ok(found?.algo)
    }
}

fn bytes_of<T>(value: &T) -> (*const c_void, usize) {
    ((&raw const *value).cast(), size_of::<T>())
}

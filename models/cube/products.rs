//! What multiplies matrices on a device of CubeCL: cuBLASLt on CUDA's, where it is installed ([`super::cublas`]); else a kernel of cubek.
//!
//! Left to itself, Burn tunes products: for each new shape it compiles and times some twenty kernels, with which a small
//! training step had not ended after 105 s on an H100. One of them is refused by the driver: where a product has four times
//! as many rows as columns, cubek 0.3.1 asks the tensor memory accelerator for boxes of 512 rows, of at most 256. CubeCL
//! 0.11.3 then takes the operands for spoilt, and with them all that is computed from them. So the shape decides here. The
//! order of the kernels is that of their times on an H100, at shapes of an 8B target.
use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::matmul::{MatmulStrategy, init_matmul_output, matmul};
use burn_cubecl::tensor::CubeTensor;
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems, MatmulSetupError};
use cubek::matmul::launch::launch_ref;
use cubek::matmul::multi_level::Strategy;
use cubek::matmul::multi_level::components::tile::TileMatmulKind;
use cubek::matmul::multi_level::routines::batch::simple::SimpleArgs;
use cubek::matmul::routine::BlueprintStrategy;
use cubek::std::InputBinding;

use crate::products::Products;

/// What strides are to be multiples of, and how long a side must be, for the tensor memory accelerator.
const ALIGNED: usize = 16;

/// Why there is always a product.
const ALL_SHAPES: &str = "there is a kernel for matrices of all shapes";

impl Products for CubeBackend {
    fn product(lhs: CubeTensor, rhs: CubeTensor) -> CubeTensor {
        let dtype = lhs.dtype;
        multiplied(lhs, rhs, dtype)
    }

    fn wide_product(lhs: CubeTensor, rhs: CubeTensor) -> CubeTensor {
        multiplied(lhs, rhs, DType::F32)
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
    for strategy in strategies(&lhs, &rhs) {
        if launch(strategy, lhs.clone(), rhs.clone(), out.clone()).is_ok() {
            return out;
        }
    }
    let [left, right] = [lhs.clone(), rhs.clone()];
    let by_burn = matmul(left, right, Some(out.clone()), MatmulStrategy::Cube, dtype);
    by_burn.unwrap_or_else(|_| {
        // What Burn chooses may need more shared memory than the device has: sums in f32 take twice that of sums in bf16.
        launch(Strategy::Naive, lhs, rhs, out.clone()).expect(ALL_SHAPES);
        out
    })
}

/// The kernels for a product of matrices that have elements, the fastest first; those behind it are for shapes that it does not take. None where Burn's only one is to do.
fn strategies(lhs: &CubeTensor, rhs: &CubeTensor) -> Vec<Strategy> {
    let properties = lhs.client.properties();
    // On a CPU the threads of all other kernels wait for each other at barriers, for minutes.
    if properties.hardware.num_cpu_cores.is_some() {
        return vec![Strategy::Naive];
    }
    let features = &properties.features;
    let dims = |of: &CubeTensor| of.meta.shape().to_vec();
    let [left, right] = [dims(lhs), dims(rhs)];
    let matrices = left.len() - 2;
    let is_plain = left[..matrices] == right[..matrices] && lhs.dtype == rhs.dtype;
    if features.matmul.mma.is_empty() || !is_plain {
        return Vec::new();
    }
    let simple = |tile_matmul| SimpleArgs {
        tile_matmul,
        multi_rows: false,
    };
    let (mma, cmma) = (simple(TileMatmulKind::Mma), simple(TileMatmulKind::Cmma));
    if lhs.dtype == DType::F32 {
        return vec![Strategy::SimpleCyclicCmma(BlueprintStrategy::Inferred(
            cmma,
        ))];
    }
    let mut found = vec![
        Strategy::SpecializedCyclicMma(BlueprintStrategy::Inferred(().into())),
        Strategy::SimpleCyclicMma(BlueprintStrategy::Inferred(mma.clone())),
    ];
    if !features.tma.is_empty() && [lhs, rhs].into_iter().all(is_aligned) {
        found.insert(0, Strategy::SimpleTmaMma(BlueprintStrategy::Inferred(mma)));
    }
    found
}

/// Whether the tensor memory accelerator can read matrices: they run along one side in memory, and all else lies in steps of 16 bytes and more.
fn is_aligned(of: &CubeTensor) -> bool {
    let (shape, strides) = (of.meta.shape(), of.meta.strides());
    let sides = shape.num_dims() - 2..shape.num_dims();
    let runs = sides.clone().filter(|&side| strides[side] == 1).count();
    let steps = strides.iter().filter(|&&stride| stride != 1);
    runs == 1
        && steps.into_iter().all(|stride| stride % ALIGNED == 0)
        && sides.into_iter().all(|side| shape[side] >= ALIGNED)
        && of
            .handle
            .offset_start
            .unwrap_or(0)
            .is_multiple_of(ALIGNED as u64)
}

fn launch(
    strategy: Strategy,
    lhs: CubeTensor,
    rhs: CubeTensor,
    out: CubeTensor,
) -> Result<(), MatmulSetupError> {
    let dtype = dtype_to_storage_type(lhs.dtype);
    let mut dtypes = MatmulElems::from_globals(&MatmulGlobalElems {
        lhs: dtype,
        rhs: dtype,
        out: dtype_to_storage_type(out.dtype),
    });
    let client = out.client.clone();
    let [lhs, rhs] = [lhs, rhs].map(|of| InputBinding::new(of.binding(), dtype));
    launch_ref(
        &strategy.into(),
        &client,
        lhs,
        rhs,
        out.binding(),
        &mut dtypes,
    )
}

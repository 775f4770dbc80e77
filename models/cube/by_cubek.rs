//! Products by kernels of cubek, CubeCL's library.
//!
//! Left to itself, Burn tunes products: for each new shape it compiles and times some twenty kernels, with which a small
//! training step had not ended after 105 s on an H100. One of them is refused by the driver: where a product has four times
//! as many rows as columns, cubek 0.3.1 asks the tensor memory accelerator for boxes of 512 rows, of at most 256. CubeCL
//! 0.11.3 then takes the operands for spoilt, and with them all that is computed from them. So the shape decides here. The
//! order of the kernels is that of their times on an H100, at shapes of an 8B target.
use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;
use cubecl::prelude::TensorBinding;
#[cfg(feature = "cuda")]
use cubecl::server::BufferBinding;
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems, MatmulSetupError};
use cubek::matmul::launch::launch_ref;
use cubek::matmul::multi_level::Strategy;
use cubek::matmul::multi_level::components::tile::TileMatmulKind;
use cubek::matmul::multi_level::routines::batch::simple::SimpleArgs;
use cubek::matmul::routine::BlueprintStrategy;
use cubek::std::InputBinding;

/// What strides are to be multiples of, and how long a side must be, for the tensor memory accelerator.
const ALIGNED: usize = 16;

/// Why there is always a product.
pub(super) const ALL_SHAPES: &str = "there is a kernel for matrices of all shapes";

/// A product for kernels of cubek. It may go to another thread, and makes no tensor look as if others held it.
pub(super) struct Product {
    client: Client,
    dtype: DType,
    out_dtype: DType,
    lhs: TensorBinding,
    rhs: TensorBinding,
    out: TensorBinding,
}

impl Product {
    pub(super) fn new(lhs: &CubeTensor, rhs: &CubeTensor, out: &CubeTensor) -> Self {
        Self {
            client: out.client.clone(),
            dtype: lhs.dtype,
            out_dtype: out.dtype,
            lhs: lhs.clone().binding(),
            rhs: rhs.clone().binding(),
            out: out.clone().binding(),
        }
    }

    /// What it reads twice, and what it writes.
    #[cfg(feature = "cuda")]
    pub(super) fn operands(&self) -> [&BufferBinding; 3] {
        [&self.lhs.handle, &self.rhs.handle, &self.out.handle]
    }

    /// Has the fastest kernel that takes the shape fill `out`. `false` where none does.
    pub(super) fn by_fastest(&self) -> bool {
        let mut strategies = self.strategies().into_iter();
        strategies.any(|strategy| self.launch(strategy).is_ok())
    }

    /// Has the kernel fill `out` that takes all shapes.
    pub(super) fn by_plainest(&self) {
        self.launch(Strategy::Naive).expect(ALL_SHAPES);
    }

    /// The kernels for matrices that have elements, the fastest first; those behind it are for shapes that it does not take. None where
    /// Burn's only one is to do.
    fn strategies(&self) -> Vec<Strategy> {
        let properties = self.client.properties();
        // On a CPU the threads of all other kernels wait for each other at barriers, for minutes.
        if properties.hardware.num_cpu_cores.is_some() {
            return vec![Strategy::Naive];
        }
        let features = &properties.features;
        let (left, right) = (&self.lhs.shape, &self.rhs.shape);
        let matrices = left.num_dims() - 2;
        if features.matmul.mma.is_empty() || left[..matrices] != right[..matrices] {
            return Vec::new();
        }
        let simple = |tile_matmul| SimpleArgs {
            tile_matmul,
            multi_rows: false,
        };
        let (mma, cmma) = (simple(TileMatmulKind::Mma), simple(TileMatmulKind::Cmma));
        if self.dtype == DType::F32 {
            return vec![Strategy::SimpleCyclicCmma(BlueprintStrategy::Inferred(
                cmma,
            ))];
        }
        let mut found = vec![
            Strategy::SpecializedCyclicMma(BlueprintStrategy::Inferred(().into())),
            Strategy::SimpleCyclicMma(BlueprintStrategy::Inferred(mma.clone())),
        ];
        if !features.tma.is_empty() && [&self.lhs, &self.rhs].into_iter().all(is_aligned) {
            found.insert(0, Strategy::SimpleTmaMma(BlueprintStrategy::Inferred(mma)));
        }
        found
    }

    fn launch(&self, strategy: Strategy) -> Result<(), MatmulSetupError> {
        let dtype = dtype_to_storage_type(self.dtype);
        let mut dtypes = MatmulElems::from_globals(&MatmulGlobalElems {
            lhs: dtype,
            rhs: dtype,
            out: dtype_to_storage_type(self.out_dtype),
        });
        let factor = |of: &TensorBinding| InputBinding::new(of.clone(), dtype);
        launch_ref(
            &strategy.into(),
            &self.client,
            factor(&self.lhs),
            factor(&self.rhs),
            self.out.clone(),
            &mut dtypes,
        )
    }
}

/// Whether the tensor memory accelerator can read matrices: they run along one side in memory, and all else lies in steps of 16 bytes and more.
fn is_aligned(of: &TensorBinding) -> bool {
    let (shape, strides) = (&of.shape, &of.strides);
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

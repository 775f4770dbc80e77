//! Who computes what: vectors, units, cubes.
use burn::backend::TensorMetadata as _;
use burn::tensor::{DType, Shape};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

/// Units of a cube, at most.
const UNITS: u32 = 256;

/// How rows are shared out among units.
pub struct Rows {
    /// Rows.
    pub count: usize,
    /// Elements of a vector.
    pub vector: usize,
    /// Vectors of a row.
    pub vectors: usize,
    /// Units of a row, and rows of a cube.
    pub cube: CubeDim,
}

impl Rows {
    /// Of `x`, beside which elements of the types `others` are read.
    pub fn of(x: &CubeTensor, others: &[DType]) -> Self {
        let width = width_of(x);
        let vector = others
            .iter()
            .fold(vector_of(x, x.dtype, width), |vector, &other| {
                vector.min(vector_of(x, other, width))
            });
        Self::of_vectors(x, vector)
    }

    /// Of `x`, whose rows begin at steps of so many elements.
    pub fn of_steps(x: &CubeTensor, step: usize) -> Self {
        Self::of_vectors(x, vector_of_rows(x, step))
    }

    /// Of `x` in vectors of so many elements.
    pub fn of_vectors(x: &CubeTensor, vector: usize) -> Self {
        let width = width_of(x);
        let most = x
            .client
            .properties()
            .hardware
            .max_units_per_cube
            .clamp(1, UNITS);
        let most = 1 << most.ilog2();
        let units = ((width / vector) as u32).next_power_of_two().min(most);
        Self {
            count: x.shape().num_elements() / width,
            vector,
            vectors: width / vector,
            cube: CubeDim::new_2d(units, most / units),
        }
    }

    /// Cubes for all rows.
    pub fn cubes(&self) -> CubeCount {
        CubeCount::new_1d(self.count.div_ceil(self.cube.y as usize) as u32)
    }
}

/// How vectors are shared out where each stands for itself.
pub struct Each {
    /// Elements of a vector.
    pub vector: usize,
    /// All vectors.
    pub vectors: usize,
    /// Units of a cube.
    pub cube: CubeDim,
    /// Cubes.
    pub cubes: CubeCount,
}

impl Each {
    /// Of all elements of `x`.
    pub fn of(x: &CubeTensor) -> Self {
        let vector = vector_of(x, x.dtype, width_of(x));
        Self::new(x, vector, x.shape().num_elements() / vector)
    }

    /// Of the pairs of a rotation of `x`, which may be a view.
    pub fn of_pairs(x: &CubeTensor) -> Self {
        let half = width_of(x) / 2;
        let strides = x.meta.strides();
        let mut vector = vector_of(x, DType::F32, half);
        while strides[..strides.len() - 1]
            .iter()
            .any(|stride| stride % vector != 0)
        {
            vector /= 2;
        }
        Self::new(x, vector, x.shape().num_elements() / 2 / vector)
    }

    /// Of the rows of `x`, which begin at steps of so many elements.
    pub fn of_rows(x: &CubeTensor, step: usize) -> Self {
        let vector = vector_of_rows(x, step);
        Self::new(x, vector, x.shape().num_elements() / vector)
    }

    fn new(x: &CubeTensor, vector: usize, vectors: usize) -> Self {
        let cube = CubeDim::new(&x.client, vectors);
        let cubes = calculate_cube_count_elemwise(&x.client, vectors, cube);
        Self {
            vector,
            vectors,
            cube,
            cubes,
        }
    }
}

/// Elements of a row.
pub fn width_of(x: &CubeTensor) -> usize {
    x.meta.shape().last().copied().unwrap_or(1)
}

/// The largest vector of elements of `dtype` that divides `width`; a power of two.
fn vector_of(x: &CubeTensor, dtype: DType, width: usize) -> usize {
    let sizes = x.client.io_optimized_vector_sizes(dtype.size());
    let fits = |vector: &usize| vector.is_power_of_two() && width.is_multiple_of(*vector);
    sizes.filter(fits).max().unwrap_or(1)
}

/// The same where rows begin at steps of so many elements.
fn vector_of_rows(x: &CubeTensor, step: usize) -> usize {
    let mut vector = vector_of(x, x.dtype, width_of(x));
    while !step.is_multiple_of(vector) {
        vector /= 2;
    }
    vector
}

/// A tensor whose rows follow each other, and the step between their beginnings, which a device makes longer than a row where its
/// length is no round number.
pub fn in_rows(x: CubeTensor) -> (CubeTensor, usize) {
    match row_step(&x) {
        Some(step) => (x, step),
        None => {
            let x = into_contiguous(x);
            let step = row_step(&x).unwrap_or(width_of(&x));
            (x, step)
        }
    }
}

/// What lies between the beginnings of rows that follow each other, in elements, where that is the same for all, and each lies in one piece.
pub fn row_step(x: &CubeTensor) -> Option<usize> {
    let (shape, strides) = (x.meta.shape(), x.meta.strides());
    if x.meta.is_tiled() {
        return None;
    }
    let last = shape.num_dims() - 1;
    let mut sides = (0..last).rev().filter(|&side| shape[side] > 1);
    let Some(first) = sides.next() else {
        return (strides[last] == 1).then_some(shape[last]);
    };
    let mut next = strides[first] * shape[first];
    let go_on = sides.all(|side| {
        let goes_on = strides[side] == next;
        next = strides[side] * shape[side];
        goes_on
    });
    (strides[last] == 1 && go_on).then_some(strides[first])
}

/// A tensor of which nothing is written yet, where `like` is.
pub fn empty(like: &CubeTensor, shape: impl Into<Shape>, dtype: DType) -> CubeTensor {
    let (client, device) = (like.client.clone(), like.device.clone());
    empty_device_contiguous_dtype(client, device, shape.into(), dtype)
}

/// The same, of the shape of `like`.
pub fn empty_like(like: &CubeTensor, dtype: DType) -> CubeTensor {
    empty(like, like.shape(), dtype)
}

/// The tensor in row order, to be written to where it stands: itself where nobody else holds it, else a copy.
pub fn to_write(tensor: CubeTensor) -> CubeTensor {
    let tensor = into_contiguous(tensor);
    if tensor.can_mut() {
        tensor
    } else {
        tensor.copy()
    }
}

/// What indices of all of them need.
pub fn address_of(tensors: &[&CubeTensor]) -> AddressType {
    let needed = tensors.iter().map(|tensor| tensor.required_address_type());
    needed.max().unwrap_or_default()
}

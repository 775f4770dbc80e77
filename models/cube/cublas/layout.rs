//! How the matrices of a product lie in memory, in the words of cuBLASLt.
//!
//! cuBLASLt counts a matrix by columns: what lies row by row is to it the turned matrix. So `out = lhs · rhs` is asked for as
//! `outᵀ = rhsᵀ · lhsᵀ`, and a factor that runs along its rows needs no turning.
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;

/// A product of as many matrices as cuBLASLt takes at once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Layout {
    /// Of both factors.
    pub dtype: DType,
    /// Of the product.
    pub out_dtype: DType,
    pub rows: usize,
    pub inner: usize,
    pub columns: usize,
    /// How many matrices.
    pub matrices: usize,
    pub lhs: Side,
    pub rhs: Side,
    pub out: Side,
    /// Whether the product is added to what `out` holds.
    pub adds: bool,
}

/// How one tensor's matrices lie. Steps count elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Side {
    /// It runs along its columns.
    pub is_turned: bool,
    /// From a row to the next, of a turned one from a column to the next.
    pub step: usize,
    /// From a matrix to the next.
    pub stride: usize,
}

/// The calls that a product of tensors takes: each begins so many elements behind the starts of `lhs`, `rhs` and `out`.
pub(super) struct Calls {
    pub layout: Layout,
    pub starts: Vec<[usize; 3]>,
}

/// A side before the last two: how many, and what lies between two of them in each tensor.
#[derive(Clone, Copy)]
struct Outer {
    count: usize,
    strides: [usize; 3],
}

impl Calls {
    /// Of tensors that have elements. `None` where a matrix runs along neither side.
    pub(super) fn of(lhs: &CubeTensor, rhs: &CubeTensor, out: &CubeTensor) -> Option<Self> {
        let tensors = [lhs, rhs, out];
        let is_tiled = |of: &CubeTensor| of.meta.is_tiled();
        if lhs.dtype != rhs.dtype || tensors.into_iter().any(is_tiled) {
            return None;
        }
        let [lhs_side, rhs_side, out_side] = tensors.map(side);
        let last = out.meta.shape().num_dims() - 1;
        let mut rows = out.meta.shape()[last - 1];
        let mut outer = merged(tensors);
        // One matrix on the right for all on the left, which lie one behind the other: a higher one on the left.
        if let [only] = outer[..]
            && let (Some(left), Some(made)) = (lhs_side, out_side)
            && only.strides == [rows * left.step, 0, rows * made.step]
            && !left.is_turned
        {
            rows *= only.count;
            outer.clear();
        }
        let most = (0..outer.len()).max_by_key(|&at| outer[at].count);
        let together = most.map(|at| outer.remove(at));
        let side = |of: Option<Side>, at: usize| {
            let stride = together.map_or(0, |outer| outer.strides[at]);
            of.map(|side| Side { stride, ..side })
        };
        let layout = Layout {
            dtype: lhs.dtype,
            out_dtype: out.dtype,
            rows,
            inner: lhs.meta.shape()[last],
            columns: out.meta.shape()[last],
            matrices: together.map_or(1, |outer| outer.count),
            lhs: side(lhs_side, 0)?,
            rhs: side(rhs_side, 1)?,
            out: side(out_side, 2).filter(|out| !out.is_turned)?,
            adds: false,
        };
        let starts = starts(&outer);
        Some(Self { layout, starts })
    }
}

/// How the last two sides of a tensor lie. A side of one element has whatever step suits.
fn side(of: &CubeTensor) -> Option<Side> {
    let (shape, strides) = (of.meta.shape(), of.meta.strides());
    let last = shape.num_dims() - 1;
    let [rows, columns] = [shape[last - 1], shape[last]];
    let [by_row, by_column] = [strides[last - 1], strides[last]];
    let runs = |length: usize, step: usize| length == 1 || step == 1;
    let steps = |count: usize, step: usize, length: usize| match count {
        1 => Some(length),
        _ => (step >= length).then_some(step),
    };
    let along = |is_turned, step| Side {
        is_turned,
        step,
        stride: 0,
    };
    let plain = runs(columns, by_column).then(|| steps(rows, by_row, columns));
    let turned = runs(rows, by_row).then(|| steps(columns, by_column, rows));
    let plain = plain.flatten().map(|step| along(false, step));
    plain.or(turned.flatten().map(|step| along(true, step)))
}

/// The sides before the last two, those that go on where the one behind them ends as one. A tensor that has one matrix for all
/// takes no step.
fn merged(tensors: [&CubeTensor; 3]) -> Vec<Outer> {
    let shape = tensors[2].meta.shape();
    let mut found: Vec<Outer> = Vec::new();
    for at in (0..shape.num_dims() - 2).rev() {
        let count = shape[at];
        if count == 1 {
            continue;
        }
        let strides = tensors.map(|of| match of.meta.shape()[at] {
            1 => 0,
            _ => of.meta.strides()[at],
        });
        let goes_on = |inner: &Outer| {
            let pairs = strides.iter().zip(inner.strides);
            pairs
                .into_iter()
                .all(|(&stride, step)| stride == step * inner.count)
        };
        match found.last_mut() {
            Some(inner) if goes_on(inner) => inner.count *= count,
            _ => found.push(Outer { count, strides }),
        }
    }
    found
}

/// Where the matrices of all `outer` sides start.
fn starts(outer: &[Outer]) -> Vec<[usize; 3]> {
    outer.iter().fold(vec![[0; 3]], |starts, side| {
        let behind = |start: [usize; 3]| {
            (0..side.count).map(move |nth| [0, 1, 2].map(|at| start[at] + nth * side.strides[at]))
        };
        starts.into_iter().flat_map(behind).collect()
    })
}

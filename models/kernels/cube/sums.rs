//! Attention before and behind its division on devices of CubeCL: in kernels, as tensors of a width that is no round number are padded,
//! and read number by number, by whatever operation takes them.
use burn::backend::TensorMetadata as _;
use burn::backend::cubecl::dtype_to_elem_type;
use burn::backend::ops::FloatTensorOps as _;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;

use super::sum_kernels::{
    PartLaunch, SumsLaunch, add_column_backward_kernel, add_column_kernel, by_scores_kernel,
    parts_kernel, put_kernel, quotient_backward_kernel, quotient_kernel,
};
use crate::cube::heads::{HeadsLaunch, heads_of, in_heads};
use crate::cube::shares::{Rows, address_of, empty, empty_like, in_rows, width_of};
use crate::kernels::columns::{Column, ColumnGradients, Columns};
use crate::kernels::gather::{Blocks, Gathers, Given};
use crate::sight::Group;

/// Numbers of a row that a unit takes, where there are many.
const OF_UNIT: usize = 4;

impl Gathers for CubeBackend {
    /// As [`Given::gather`] does it; the sums of each block are written where they belong.
    fn gather(given: Given<Self>, blocks: Blocks) -> (CubeTensor, CubeTensor) {
        let [batch, heads, rows, d_head] = given.query.shape().dims();
        let room = |width| empty(&given.query, [batch, heads, rows, width], DType::F32);
        let (sums, largest) = (room(d_head + 1), room(1));
        for Group { sequences, blocks } in blocks.iter() {
            let of_group = given.of_sequences(sequences);
            for block in blocks {
                let of_block = of_group.of_queries(block);
                let mut before: Option<CubeTensor> = None;
                for keys in &block.keys {
                    let floor = before.clone().unwrap_or_else(|| of_block.floor.clone());
                    let found = of_block.of_keys(keys, floor).sums(keys.start);
                    let after = found[2].clone();
                    let first = [sequences.start, block.queries.start];
                    put(found, before, [&sums, &largest], first);
                    before = Some(after);
                }
            }
        }
        (sums, largest)
    }
}

/// Writes the sums of queries and the largest scores among those of all, from the first sequence and query on; `before` are the largest
/// scores of the keys whose sums already stand there.
fn put(
    found: [CubeTensor; 3],
    before: Option<CubeTensor>,
    [sums, largest]: [&CubeTensor; 2],
    first: [usize; 2],
) {
    let [context, weights, after] = found.map(into_contiguous);
    let is_first = before.is_none();
    // Where nothing stands there yet, nothing reads what is in its place.
    let before = before.map_or_else(|| after.clone(), into_contiguous);
    // They were made here, one row behind the other.
    let (rows, places) = (rows_of(&context), places_of(sums, width_of(sums)));
    let part = part_of(&context, sums, first);
    put_kernel::launch(
        &sums.client,
        rows.cubes(),
        rows.cube,
        address_of(&[sums]),
        context.into_buffer_arg(),
        weights.into_buffer_arg(),
        before.into_buffer_arg(),
        after.into_buffer_arg(),
        sums.clone().into_buffer_arg(),
        largest.clone().into_buffer_arg(),
        places,
        part,
        rows.count as u32,
        is_first,
    );
}

/// See [`Backwards::parts_of_sums`](crate::kernels::operations::Backwards::parts_of_sums).
pub(super) fn parts_of_sums(
    sums: CubeTensor,
    first: usize,
    count: usize,
    dtype: DType,
) -> (CubeTensor, CubeTensor) {
    let (sums, step) = in_rows(sums);
    let [batch, heads, _, width] = sums.shape().dims();
    let context = empty(&sums, [batch, heads, count, width - 1], dtype);
    let weights = empty(&sums, [batch, heads, count, 1], DType::F32);
    let (rows, places) = (rows_of(&context), places_of(&sums, step));
    let part = part_of(&context, &sums, [0, first]);
    parts_kernel::launch(
        &context.client,
        rows.cubes(),
        rows.cube,
        address_of(&[&sums]),
        sums.into_buffer_arg(),
        context.clone().into_buffer_arg(),
        weights.clone().into_buffer_arg(),
        places,
        part,
        rows.count as u32,
        dtype_to_elem_type(dtype),
    );
    (context, weights)
}

/// See [`Backwards::by_scores`](crate::kernels::operations::Backwards::by_scores).
pub(super) fn by_scores(
    weights: CubeTensor,
    of_weights: CubeTensor,
    of_sum: CubeTensor,
    dtype: DType,
) -> CubeTensor {
    let [weights, of_weights, of_sum] = [weights, of_weights, of_sum].map(into_contiguous);
    let (out, rows) = (
        empty_like(&weights, dtype),
        Rows::of(&weights, &[DType::F32, dtype]),
    );
    let dtypes = [weights.dtype, dtype].map(dtype_to_elem_type);
    by_scores_kernel::launch(
        &out.client,
        rows.cubes(),
        rows.cube,
        address_of(&[&of_weights]),
        rows.vector,
        weights.into_buffer_arg(),
        of_weights.into_buffer_arg(),
        of_sum.into_buffer_arg(),
        out.clone().into_buffer_arg(),
        rows.count as u32,
        rows.vectors as u32,
        dtypes,
    );
    out
}

impl Columns for CubeBackend {
    fn add_column(column: Column<Self>, sums: CubeTensor) -> (CubeTensor, CubeTensor) {
        let given = Inputs::of(column);
        let (sums, places) = sums_to_write(sums);
        let (largest, rows) = (
            empty_like(&given.largest, DType::F32),
            rows_of(&given.query),
        );
        let group = given.group();
        let ([queries, keys, values], dtypes) = (given.heads(), given.dtypes());
        add_column_kernel::launch(
            &sums.client,
            rows.cubes(),
            rows.cube,
            address_of(&[&sums, &given.query]),
            given.query.into_buffer_arg(),
            given.key.into_buffer_arg(),
            given.value.into_buffer_arg(),
            given.largest.into_buffer_arg(),
            sums.clone().into_buffer_arg(),
            largest.clone().into_buffer_arg(),
            queries,
            keys,
            values,
            places,
            group as u32,
            rows.count as u32,
            given.scale,
            rows.cube.num_elems() as usize,
            dtypes,
        );
        (sums, largest)
    }

    fn quotient(sums: CubeTensor, dtype: DType) -> (CubeTensor, CubeTensor) {
        let (sums, step) = in_rows(sums);
        let [batch, heads, seq, width] = sums.shape().dims();
        // As what reads it, a projection of all heads, wants it in memory.
        let out = empty(&sums, [batch, seq, heads, width - 1], dtype);
        let out = CubeBackend::float_swap_dims(out, 1, 2);
        let factors = empty(&sums, [batch, heads, seq, 1], DType::F32);
        let (rows, places) = (rows_of(&out), places_of(&sums, step));
        let to = heads_of(&out, seq, 1);
        quotient_kernel::launch(
            &out.client,
            rows.cubes(),
            rows.cube,
            address_of(&[&sums]),
            sums.into_buffer_arg(),
            out.clone().into_buffer_arg(),
            factors.clone().into_buffer_arg(),
            to,
            places,
            rows.count as u32,
            dtype_to_elem_type(dtype),
        );
        (out, factors)
    }
}

impl ColumnGradients for CubeBackend {
    fn add_column_backward(
        column: Column<Self>,
        gradient: CubeTensor,
    ) -> (CubeTensor, CubeTensor, CubeTensor, CubeTensor) {
        let given = Inputs::of(column);
        let (gradient, places) = sums_to_write(gradient);
        let [by_query, by_key, by_value] =
            [&given.query, &given.key, &given.value].map(|x| empty_like(x, x.dtype));
        let (rows, group) = (rows_of(&given.key), given.group());
        let ([queries, keys, values], dtypes) = (given.heads(), given.dtypes());
        add_column_backward_kernel::launch(
            &gradient.client,
            rows.cubes(),
            rows.cube,
            address_of(&[&gradient, &given.query]),
            given.query.into_buffer_arg(),
            given.key.into_buffer_arg(),
            given.value.into_buffer_arg(),
            given.largest.into_buffer_arg(),
            gradient.clone().into_buffer_arg(),
            by_query.clone().into_buffer_arg(),
            by_key.clone().into_buffer_arg(),
            by_value.clone().into_buffer_arg(),
            queries,
            keys,
            values,
            places,
            rows.count as u32,
            given.scale,
            group,
            rows.cube.num_elems() as usize,
            rows.cube.y as usize,
            dtypes,
        );
        (by_query, by_key, by_value, gradient)
    }

    fn quotient_backward(
        quotient: CubeTensor,
        factor: CubeTensor,
        gradient: CubeTensor,
    ) -> CubeTensor {
        let [quotient, gradient] = [quotient, gradient].map(in_heads);
        let factor = into_contiguous(factor);
        let [batch, heads, seq, width] = quotient.shape().dims();
        let by_sums = empty(&quotient, [batch, heads, seq, width + 1], DType::F32);
        let rows = rows_of(&quotient);
        let [quotients, gradients] = [&quotient, &gradient].map(|x| heads_of(x, seq, 1));
        let dtypes = [quotient.dtype, gradient.dtype].map(dtype_to_elem_type);
        quotient_backward_kernel::launch(
            &by_sums.client,
            rows.cubes(),
            rows.cube,
            address_of(&[&by_sums, &gradient]),
            quotient.into_buffer_arg(),
            factor.into_buffer_arg(),
            gradient.into_buffer_arg(),
            by_sums.clone().into_buffer_arg(),
            quotients,
            gradients,
            width as u32,
            rows.count as u32,
            rows.cube.num_elems() as usize,
            dtypes,
        );
        by_sums
    }
}

/// What a column is made of, as kernels read it.
struct Inputs {
    query: CubeTensor,
    key: CubeTensor,
    value: CubeTensor,
    largest: CubeTensor,
    scale: f32,
}

impl Inputs {
    fn of(column: Column<CubeBackend>) -> Self {
        let [query, key, value] = [column.query, column.key, column.value].map(in_heads);
        Self {
            query,
            key,
            value,
            largest: into_contiguous(column.largest),
            scale: column.scale,
        }
    }

    /// Query heads that share a key head.
    fn group(&self) -> usize {
        self.query.shape()[1] / self.key.shape()[1]
    }

    fn heads(&self) -> [HeadsLaunch; 3] {
        let seq = self.query.shape()[2];
        [&self.query, &self.key, &self.value].map(|x| heads_of(x, seq, 1))
    }

    fn dtypes(&self) -> [ElemType; 3] {
        [&self.query, &self.key, &self.value].map(|x| dtype_to_elem_type(x.dtype))
    }
}

/// Sums and where they stand, to be written there.
fn sums_to_write(x: CubeTensor) -> (CubeTensor, SumsLaunch) {
    let (x, step) = in_rows(x);
    let (x, step) = match x.can_mut() {
        true => (x, step),
        false => in_rows(x.copy()),
    };
    let places = places_of(&x, step);
    (x, places)
}

/// How the rows of `x`, that are read number by number, are shared out.
fn rows_of(x: &CubeTensor) -> Rows {
    let width = width_of(x);
    let of_unit = if width.is_multiple_of(OF_UNIT) {
        OF_UNIT
    } else {
        1
    };
    Rows::of_vectors(x, of_unit)
}

/// Where sums stand whose rows begin at such steps.
fn places_of(sums: &CubeTensor, step: usize) -> SumsLaunch {
    SumsLaunch::new((width_of(sums) - 1) as u32, step as u32)
}

/// The queries of `part`, from the first sequence and query on, among those of `all`.
fn part_of(part: &CubeTensor, all: &CubeTensor, first: [usize; 2]) -> PartLaunch {
    let [_, heads, queries, _] = part.shape().dims();
    let [sequence, query] = first.map(|first| first as u32);
    PartLaunch::new(
        sequence,
        query,
        queries as u32,
        heads as u32,
        all.shape()[2] as u32,
    )
}

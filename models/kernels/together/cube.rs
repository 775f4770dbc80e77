//! On devices of CubeCL.
use burn::backend::TensorMetadata as _;
use burn::backend::cubecl::dtype_to_elem_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::{Together, written_each};
use crate::cube::heads::{Heads, heads_of, in_heads, position_of, start_of};
use crate::cube::reduce::{inverse_rms, normed, own_row, own_squares};
use crate::cube::shares::{Each, Rows, address_of, empty_like};

impl Together for CubeBackend {
    fn norm_and_rotate(
        x: CubeTensor,
        weight: CubeTensor,
        cos: CubeTensor,
        sin: CubeTensor,
        epsilon: f32,
    ) -> CubeTensor {
        let x = in_heads(x);
        let [weight, cos, sin] = [weight, cos, sin].map(into_contiguous);
        let seq = x.shape()[2];
        let vector = Each::of_pairs(&x).vector;
        let rows = Rows::of_vectors(&x, vector);
        let places = heads_of(&x, seq, vector);
        let angles = cos.shape().num_elements() / vector;
        let out = empty_like(&x, x.dtype);
        let dtypes = [x.dtype, weight.dtype].map(dtype_to_elem_type);
        let address = address_of(&[&x, &cos]);
        norm_and_rotate_kernel::launch(
            &out.client,
            rows.cubes(),
            rows.cube,
            address,
            vector,
            x.into_buffer_arg(),
            weight.into_buffer_arg(),
            cos.into_buffer_arg(),
            sin.into_buffer_arg(),
            out.clone().into_buffer_arg(),
            places,
            rows.count as u32,
            rows.vectors as u32,
            angles as u32,
            epsilon,
            rows.cube.num_elems() as usize,
            dtypes,
        );
        out
    }

    fn add_and_norm(
        x: CubeTensor,
        added: CubeTensor,
        weight: CubeTensor,
        epsilon: f32,
    ) -> (CubeTensor, CubeTensor) {
        let [x, added, weight] = [x, added, weight].map(into_contiguous);
        let (sum, normed) = (empty_like(&x, x.dtype), empty_like(&x, x.dtype));
        let rows = Rows::of(&x, &[weight.dtype]);
        let dtypes = [x.dtype, weight.dtype].map(dtype_to_elem_type);
        let address = address_of(&[&x, &weight]);
        add_and_norm_kernel::launch(
            &sum.client,
            rows.cubes(),
            rows.cube,
            address,
            rows.vector,
            x.into_buffer_arg(),
            added.into_buffer_arg(),
            weight.into_buffer_arg(),
            sum.clone().into_buffer_arg(),
            normed.clone().into_buffer_arg(),
            rows.count as u32,
            rows.vectors as u32,
            epsilon,
            rows.cube.num_elems() as usize,
            dtypes,
        );
        (sum, normed)
    }

    fn write_at(
        keys: CubeTensor,
        values: CubeTensor,
        new_keys: CubeTensor,
        new_values: CubeTensor,
        at: usize,
    ) -> (CubeTensor, CubeTensor) {
        let all = [&keys, &values, &new_keys, &new_values];
        let Some(vector) = vector_of_rows(all) else {
            return written_each::<Self>([keys, values], [new_keys, new_values], at);
        };
        let [_, heads, seq, d_head] = new_keys.shape().dims();
        let vectors = heads * seq * d_head / vector;
        let cube = CubeDim::new(&keys.client, vectors);
        let address = address_of(&all);
        let [to_keys, to_values, from_keys, from_values] = all.map(|of| heads_of(of, seq, vector));
        write_at_kernel::launch(
            &keys.client,
            calculate_cube_count_elemwise(&keys.client, vectors, cube),
            cube,
            address,
            vector,
            new_keys.into_buffer_arg(),
            new_values.into_buffer_arg(),
            keys.clone().into_buffer_arg(),
            values.clone().into_buffer_arg(),
            from_keys,
            from_values,
            to_keys,
            to_values,
            at as u32,
            (d_head / vector) as u32,
            vectors as u32,
            dtype_to_elem_type(keys.dtype),
        );
        (keys, values)
    }
}

/// Elements of a vector that rows of all of them are made of. `None` where keys and values differ in size or type, are several
/// sequences', or may not be written to where they stand.
fn vector_of_rows(all: [&CubeTensor; 4]) -> Option<usize> {
    let [keys, values, new_keys, new_values] = all;
    let is_like = |x: &CubeTensor, y: &CubeTensor| x.shape() == y.shape() && x.dtype == y.dtype;
    let is_alike = is_like(keys, values)
        && is_like(new_keys, new_values)
        && keys.dtype == new_keys.dtype
        && new_keys.shape()[0] == 1;
    let is_own = |held: &CubeTensor| held.can_mut() && held.is_nonoverlapping();
    let runs = |of: &&CubeTensor| of.meta.strides()[3] == 1;
    if !is_alike || !is_own(keys) || !is_own(values) || !all.iter().all(runs) {
        return None;
    }
    let d_head = new_keys.shape()[3];
    let fits = |vector: &usize| {
        let steps = |of: &&CubeTensor| {
            of.meta.strides()[1..3]
                .iter()
                .all(|step| step % vector == 0)
        };
        d_head.is_multiple_of(*vector) && all.iter().all(steps)
    };
    let sizes = keys.client.io_optimized_vector_sizes(keys.dtype.size());
    Some(sizes.filter(fits).max().unwrap_or(1))
}

#[cube(launch, address_type = "dynamic")]
fn norm_and_rotate_kernel<E: Float, W: Float, N: Size>(
    x: &[Vector<E, N>],
    weight: &[Vector<W, N>],
    cos: &[Vector<f32, N>],
    sin: &[Vector<f32, N>],
    out: &mut [Vector<E, N>],
    places: Heads,
    rows: u32,
    vectors: u32,
    angles: u32,
    epsilon: f32,
    #[comptime] units: usize,
    #[define(E, W)] _dtypes: [ElemType; 2],
) {
    let mut room = Shared::<[f32]>::new_slice(units);
    let (row, there) = own_row(rows);
    let vectors = vectors as usize;
    let start = start_of(&places, row);
    let squares = own_squares::<E, N>(x, start, vectors);
    let scale = inverse_rms::<N>(squares, vectors, epsilon, &mut room);
    if there {
        let half = vectors / 2;
        let angle = position_of(&places, row) * half;
        let mut at = UNIT_POS_X as usize;
        while at < half {
            // Rounded as a norm that is written is.
            let lower = normed::<E, W, N>(x[start + at], weight[at], scale);
            let upper = normed::<E, W, N>(x[start + half + at], weight[half + at], scale);
            let lower = Vector::<f32, N>::cast_from(lower);
            let upper = Vector::<f32, N>::cast_from(upper);
            let angle = (angle + at) % angles as usize;
            let (cos, sin) = (cos[angle], sin[angle]);
            out[row * vectors + at] = Vector::cast_from(lower * cos - upper * sin);
            out[row * vectors + half + at] = Vector::cast_from(upper * cos + lower * sin);
            at += CUBE_DIM_X as usize;
        }
    }
}

/// Rounded as a sum that is written is.
#[cube]
fn added<E: Float, N: Size>(x: Vector<E, N>, y: Vector<E, N>) -> Vector<E, N> {
    Vector::<E, N>::cast_from(Vector::<f32, N>::cast_from(x) + Vector::<f32, N>::cast_from(y))
}

#[cube(launch, address_type = "dynamic")]
fn add_and_norm_kernel<E: Float, W: Float, N: Size>(
    x: &[Vector<E, N>],
    y: &[Vector<E, N>],
    weight: &[Vector<W, N>],
    sum_out: &mut [Vector<E, N>],
    normed_out: &mut [Vector<E, N>],
    rows: u32,
    vectors: u32,
    epsilon: f32,
    #[comptime] units: usize,
    #[define(E, W)] _dtypes: [ElemType; 2],
) {
    let mut room = Shared::<[f32]>::new_slice(units);
    let (row, there) = own_row(rows);
    let vectors = vectors as usize;
    let start = row * vectors;
    let mut squares = Vector::<f32, N>::new(0.0);
    let mut at = UNIT_POS_X as usize;
    while at < vectors {
        let sum = Vector::<f32, N>::cast_from(added::<E, N>(x[start + at], y[start + at]));
        squares += sum * sum;
        at += CUBE_DIM_X as usize;
    }
    let scale = inverse_rms::<N>(squares, vectors, epsilon, &mut room);
    if there {
        let mut at = UNIT_POS_X as usize;
        while at < vectors {
            let sum = added::<E, N>(x[start + at], y[start + at]);
            sum_out[start + at] = sum;
            normed_out[start + at] = normed::<E, W, N>(sum, weight[at], scale);
            at += CUBE_DIM_X as usize;
        }
    }
}

#[cube(launch, address_type = "dynamic")]
fn write_at_kernel<E: Float, N: Size>(
    keys: &[Vector<E, N>],
    values: &[Vector<E, N>],
    keys_out: &mut [Vector<E, N>],
    values_out: &mut [Vector<E, N>],
    from_keys: Heads,
    from_values: Heads,
    to_keys: Heads,
    to_values: Heads,
    first: u32,
    width: u32,
    vectors: u32,
    #[define(E)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= vectors as usize {
        terminate!();
    }
    let width = width as usize;
    let (row, column) = (ABSOLUTE_POS / width, ABSOLUTE_POS % width);
    let first = first as usize;
    let to_key = start_of(&to_keys, row) + first * to_keys.seq_stride as usize + column;
    let to_value = start_of(&to_values, row) + first * to_values.seq_stride as usize + column;
    keys_out[to_key] = keys[start_of(&from_keys, row) + column];
    values_out[to_value] = values[start_of(&from_values, row) + column];
}

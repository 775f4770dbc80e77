//! The kernels on devices of CubeCL: GPUs, and the CPU as one.
//!
//! A row of a sum is taken by units side by side, which add up what they found through shared memory; small rows share a cube.
//! Elements are read in vectors where the width allows it, and computed with in f32.
use burn::backend::ops::FloatTensorOps as _;
use burn::backend::{TensorMetadata as _, cubecl::dtype_to_elem_type};
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use self::kernels::{
    MaskPlacesLaunch, added_at_kernel, exponentials_kernel, norm_weight_kernel,
    rms_norm_backward_kernel, rms_norm_kernel, rotate_kernel, softmax_backward_kernel,
    softmax_kernel, swiglu_backward_kernel, swiglu_kernel,
};
use super::operations::{Backwards, Kernels};
use crate::cube::heads::{heads_of, in_heads};
use crate::cube::reductions::sums_of_rows;
use crate::cube::shares::{
    Each, Rows, address_of, empty, empty_like, row_step, to_write, width_of,
};

mod kernels;
mod sum_kernels;
mod sums;

/// Rows whose gradients with respect to a norm's weight one unit adds up.
const ROWS: usize = 64;

impl Kernels for CubeBackend {
    fn rms_norm(x: CubeTensor, weight: CubeTensor, epsilon: f32) -> CubeTensor {
        let [x, weight] = [x, weight].map(into_contiguous);
        let (out, rows) = (empty_like(&x, x.dtype), Rows::of(&x, &[weight.dtype]));
        let dtypes = [x.dtype, weight.dtype].map(dtype_to_elem_type);
        let address = address_of(&[&x, &weight]);
        rms_norm_kernel::launch(
            &out.client,
            rows.cubes(),
            rows.cube,
            address,
            rows.vector,
            x.into_buffer_arg(),
            weight.into_buffer_arg(),
            out.clone().into_buffer_arg(),
            rows.count as u32,
            rows.vectors as u32,
            epsilon,
            rows.cube.num_elems() as usize,
            dtypes,
        );
        out
    }

    fn swiglu(gate: CubeTensor, up: CubeTensor) -> CubeTensor {
        let width = width_of(&gate);
        // Halves of one product are read where they stand.
        let (gate, up, step) = match (row_step(&gate), row_step(&up)) {
            (Some(step), Some(other)) if step == other => (gate, up, step),
            _ => (into_contiguous(gate), into_contiguous(up), width),
        };
        let (out, each) = (empty_like(&gate, gate.dtype), Each::of_rows(&gate, step));
        let (address, dtype) = (address_of(&[&gate, &up]), dtype_to_elem_type(gate.dtype));
        swiglu_kernel::launch(
            &out.client,
            each.cubes.clone(),
            each.cube,
            address,
            each.vector,
            gate.into_buffer_arg(),
            up.into_buffer_arg(),
            out.clone().into_buffer_arg(),
            (width / each.vector) as u32,
            (step / each.vector) as u32,
            each.vectors as u32,
            dtype,
        );
        out
    }

    fn rotate(x: CubeTensor, cos: CubeTensor, sin: CubeTensor, turn: f32) -> CubeTensor {
        let x = in_heads(x);
        let [cos, sin] = [cos, sin].map(into_contiguous);
        let [_, _, seq, d_head] = x.shape().dims();
        let (out, each) = (empty_like(&x, x.dtype), Each::of_pairs(&x));
        let places = heads_of(&x, seq, each.vector);
        let angles = cos.shape().num_elements() / each.vector;
        let (address, dtype) = (address_of(&[&x, &cos]), dtype_to_elem_type(x.dtype));
        rotate_kernel::launch(
            &out.client,
            each.cubes.clone(),
            each.cube,
            address,
            each.vector,
            x.into_buffer_arg(),
            cos.into_buffer_arg(),
            sin.into_buffer_arg(),
            out.clone().into_buffer_arg(),
            places,
            (d_head / 2 / each.vector) as u32,
            angles as u32,
            each.vectors as u32,
            turn,
            dtype,
        );
        out
    }

    fn attention_weights(scores: CubeTensor, scale: f32, dtype: DType) -> CubeTensor {
        weights(scores, None, scale, dtype)
    }

    fn masked_attention_weights(
        scores: CubeTensor,
        mask: CubeTensor,
        scale: f32,
        dtype: DType,
    ) -> CubeTensor {
        weights(scores, Some(mask), scale, dtype)
    }
}

impl Backwards for CubeBackend {
    fn rms_norm_backward(
        x: CubeTensor,
        weight: CubeTensor,
        gradient: CubeTensor,
        epsilon: f32,
    ) -> (CubeTensor, CubeTensor) {
        let [x, weight, gradient] = [x, weight, gradient].map(into_contiguous);
        let (out, rows) = (empty_like(&x, x.dtype), Rows::of(&x, &[weight.dtype]));
        let scales = empty(&x, [rows.count], DType::F32);
        let dtypes = [x.dtype, weight.dtype].map(dtype_to_elem_type);
        let address = address_of(&[&x, &weight]);
        rms_norm_backward_kernel::launch(
            &out.client,
            rows.cubes(),
            rows.cube,
            address,
            rows.vector,
            x.clone().into_buffer_arg(),
            weight.clone().into_buffer_arg(),
            gradient.clone().into_buffer_arg(),
            out.clone().into_buffer_arg(),
            scales.clone().into_buffer_arg(),
            rows.count as u32,
            rows.vectors as u32,
            epsilon,
            rows.cube.num_elems() as usize,
            dtypes,
        );
        let dtype = weight.dtype;
        let by_weight = norm_weight_gradient(x, gradient, scales, &rows);
        (out, CubeBackend::float_cast(by_weight, dtype.into()))
    }

    fn swiglu_backward(
        gate: CubeTensor,
        up: CubeTensor,
        gradient: CubeTensor,
    ) -> (CubeTensor, CubeTensor) {
        let [gate, up, gradient] = [gate, up, gradient].map(into_contiguous);
        let (by_gate, by_up) = (empty_like(&gate, gate.dtype), empty_like(&up, up.dtype));
        let each = Each::of(&gate);
        let (address, dtype) = (address_of(&[&gate]), dtype_to_elem_type(gate.dtype));
        swiglu_backward_kernel::launch(
            &by_gate.client,
            each.cubes.clone(),
            each.cube,
            address,
            each.vector,
            gate.into_buffer_arg(),
            up.into_buffer_arg(),
            gradient.into_buffer_arg(),
            by_gate.clone().into_buffer_arg(),
            by_up.clone().into_buffer_arg(),
            each.vectors as u32,
            dtype,
        );
        (by_gate, by_up)
    }

    fn softmax_backward(
        weights: CubeTensor,
        gradient: CubeTensor,
        scale: f32,
        dtype: DType,
    ) -> CubeTensor {
        let [weights, gradient] = [weights, gradient].map(into_contiguous);
        let (out, rows) = (
            empty_like(&weights, dtype),
            Rows::of(&weights, &[gradient.dtype, dtype]),
        );
        let dtypes = [weights.dtype, gradient.dtype, dtype].map(dtype_to_elem_type);
        let address = address_of(&[&weights]);
        softmax_backward_kernel::launch(
            &out.client,
            rows.cubes(),
            rows.cube,
            address,
            rows.vector,
            weights.into_buffer_arg(),
            gradient.into_buffer_arg(),
            out.clone().into_buffer_arg(),
            rows.count as u32,
            rows.vectors as u32,
            scale,
            rows.cube.num_elems() as usize,
            dtypes,
        );
        out
    }

    fn added_at(sum: CubeTensor, more: CubeTensor, first: usize) -> CubeTensor {
        let more = into_contiguous(more);
        let sum = to_write(sum);
        let (each, [_, _, count, width]) = (Each::of(&more), more.shape().dims());
        let places = heads_of(&sum, count, each.vector);
        added_at_kernel::launch(
            &sum.client,
            each.cubes.clone(),
            each.cube,
            address_of(&[&sum]),
            each.vector,
            more.into_buffer_arg(),
            sum.clone().into_buffer_arg(),
            places,
            first as u32,
            (width / each.vector) as u32,
            each.vectors as u32,
        );
        sum
    }

    fn exponentials(
        scores: CubeTensor,
        ranges: CubeTensor,
        floor: CubeTensor,
        first: usize,
        scale: f32,
        dtype: DType,
    ) -> (CubeTensor, CubeTensor) {
        // Those of a block of queries are parts of what all have, and are read where they stand.
        let scores = into_contiguous(scores);
        let (ranges, floor) = (with_rows_together(ranges), in_heads(floor));
        let (out, largest) = (empty_like(&scores, dtype), empty_like(&floor, DType::F32));
        let rows = Rows::of(&scores, &[dtype]);
        let (places, count) = (mask_places(&scores, &ranges, 1), ranges.shape()[3] / 2);
        let floors = heads_of(&floor, floor.shape()[2], 1);
        let dtypes = [scores.dtype, dtype].map(dtype_to_elem_type);
        let address = address_of(&[&scores, &ranges]);
        exponentials_kernel::launch(
            &out.client,
            rows.cubes(),
            rows.cube,
            address,
            rows.vector,
            scores.into_buffer_arg(),
            ranges.into_buffer_arg(),
            floor.into_buffer_arg(),
            out.clone().into_buffer_arg(),
            largest.clone().into_buffer_arg(),
            places,
            floors,
            first as u32,
            count as u32,
            rows.count as u32,
            rows.vectors as u32,
            scale,
            rows.cube.num_elems() as usize,
            dtypes,
        );
        (out, largest)
    }

    fn sums_of_seen(weights: CubeTensor, _: CubeTensor, _: CubeTensor, _: usize) -> CubeTensor {
        sums_of_rows(weights, false)
    }

    fn parts_of_sums(
        sums: CubeTensor,
        first: usize,
        count: usize,
        dtype: DType,
    ) -> (CubeTensor, CubeTensor) {
        sums::parts_of_sums(sums, first, count, dtype)
    }

    fn by_scores(
        weights: CubeTensor,
        of_weights: CubeTensor,
        of_sum: CubeTensor,
        dtype: DType,
    ) -> CubeTensor {
        sums::by_scores(weights, of_weights, of_sum, dtype)
    }
}

/// The softmax of scores times `scale`, with what a mask adds to them.
fn weights(scores: CubeTensor, mask: Option<CubeTensor>, scale: f32, dtype: DType) -> CubeTensor {
    let scores = into_contiguous(scores);
    let (out, rows) = (
        empty_like(&scores, dtype),
        Rows::of(&scores, &[DType::F32, dtype]),
    );
    let is_masked = mask.is_some();
    // Where there is no mask nothing reads the one that stands there.
    let mask = mask.map_or_else(|| empty(&scores, [1, 1, 1, 8], DType::F32), into_contiguous);
    let places = mask_places(&scores, &mask, rows.vector);
    let dtypes = [scores.dtype, dtype].map(dtype_to_elem_type);
    let address = address_of(&[&scores, &mask]);
    softmax_kernel::launch(
        &out.client,
        rows.cubes(),
        rows.cube,
        address,
        rows.vector,
        scores.into_buffer_arg(),
        mask.into_buffer_arg(),
        out.clone().into_buffer_arg(),
        places,
        rows.count as u32,
        rows.vectors as u32,
        scale,
        is_masked,
        rows.cube.num_elems() as usize,
        dtypes,
    );
    out
}

/// `Σ_rows gradient · x · scale`, `[width]`, f32.
fn norm_weight_gradient(
    x: CubeTensor,
    gradient: CubeTensor,
    scales: CubeTensor,
    rows: &Rows,
) -> CubeTensor {
    let blocks = rows.count.div_ceil(ROWS);
    let parts = empty(&x, [blocks, rows.vectors * rows.vector], DType::F32);
    let units = blocks * rows.vectors;
    let cube = CubeDim::new(&x.client, units);
    let (address, dtype) = (address_of(&[&x]), dtype_to_elem_type(x.dtype));
    norm_weight_kernel::launch(
        &parts.client,
        calculate_cube_count_elemwise(&parts.client, units, cube),
        cube,
        address,
        rows.vector,
        x.into_buffer_arg(),
        gradient.into_buffer_arg(),
        scales.into_buffer_arg(),
        parts.clone().into_buffer_arg(),
        rows.count as u32,
        rows.vectors as u32,
        ROWS as u32,
        units as u32,
        dtype,
    );
    let sum = CubeBackend::float_sum_dim(parts, 0);
    CubeBackend::float_reshape(sum, Shape::new([rows.vectors * rows.vector]))
}

/// A mask in which the rows of each sequence stand one behind the other.
fn with_rows_together(mask: CubeTensor) -> CubeTensor {
    let (shape, strides) = (mask.meta.shape(), mask.meta.strides());
    match strides[3] == 1 && strides[2] == shape[3] {
        true => mask,
        false => into_contiguous(mask),
    }
}

/// What a kernel is given of a mask [`with_rows_together`], in vectors of so many elements.
fn mask_places(scores: &CubeTensor, mask: &CubeTensor, vector: usize) -> MaskPlacesLaunch {
    let [_, heads, rows, _] = scores.shape().dims();
    let [masks, _, mask_rows, _] = mask.shape().dims();
    MaskPlacesLaunch::new(
        (heads * rows) as u32,
        rows as u32,
        (rows / mask_rows) as u32,
        masks as u32,
        (mask.meta.strides()[0] / vector) as u32,
    )
}

//! The kernels on the CPU: vectorised, over all threads, each in one pass over memory.
//!
//! Rows are independent of one another, and each is summed in an order of its own, so a row's result depends neither on the
//! rows beside it nor on the number of threads.
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::ops::FloatTensorOps as _;
use burn::prelude::*;
use burn::tensor::{DType, FloatDType};
use pulp::Arch;
use rayon::prelude::*;

use super::gather::{Blocks, Gathers, Given};
use super::operations::{Backwards, Kernels};
use super::rows;
use crate::fresh::{rows_of_zeros, written_rows};
use crate::parallel::each_row;
use crate::vectorised;

/// Elements that one thread takes at a time.
const BLOCK: usize = 1 << 14;
/// Rows whose gradients with respect to a norm's weight are added up before the others are.
const ROWS: usize = 64;

impl Kernels for Flex {
    fn rms_norm(x: FlexTensor, weight: FlexTensor, epsilon: f32) -> FlexTensor {
        let dtype = x.dtype();
        let weight = Read::of(weight);
        let arch = Arch::new();
        let weight = weight.values();
        let normed = each_row_of(x, weight.len(), |_, row| {
            vectorised!(arch, rows::rms_norm(row, weight, epsilon));
        });
        in_type(normed, dtype)
    }

    fn swiglu(gate: FlexTensor, up: FlexTensor) -> FlexTensor {
        let dtype = gate.dtype();
        let up = Read::of(up);
        let up = up.values();
        let arch = Arch::new();
        let product = each_row_of(gate, BLOCK, |number, gate| {
            let up = &up[number * BLOCK..][..gate.len()];
            vectorised!(arch, rows::swiglu(gate, up));
        });
        in_type(product, dtype)
    }

    fn rotate(x: FlexTensor, cos: FlexTensor, sin: FlexTensor, turn: f32) -> FlexTensor {
        let (shape, dtype) = (shape_of(&x), x.dtype());
        let (cos, sin) = (Read::of(cos), Read::of(sin));
        let (cos, sin) = (cos.values(), sin.values());
        let [_, heads, seq, d_head] = shape[..] else {
            panic!("expected [batch, heads, seq, d_head], found {shape:?}");
        };
        let x = HeadRows::of(x);
        let arch = Arch::new();
        let turned = rows_of_zeros(shape.iter().product(), d_head, |number, turned| {
            let (position, head) = (number % seq, number / seq % heads);
            let batch = number / (seq * heads);
            // One rotation for all of a batch is repeated.
            let angle = (batch * seq + position) * (d_head / 2) % cos.len();
            let [cos, sin] = [cos, sin].map(|x| &x[angle..][..d_head / 2]);
            let own = x.row([batch, head, position]);
            vectorised!(arch, rows::rotate(turned, own, cos, sin, turn));
        });
        tensor(turned, shape, dtype)
    }

    fn attention_weights(scores: FlexTensor, scale: f32, dtype: DType) -> FlexTensor {
        weights(scores, None, scale, dtype)
    }

    fn masked_attention_weights(
        scores: FlexTensor,
        mask: FlexTensor,
        scale: f32,
        dtype: DType,
    ) -> FlexTensor {
        weights(scores, Some(mask), scale, dtype)
    }
}

impl Backwards for Flex {
    fn rms_norm_backward(
        x: FlexTensor,
        weight: FlexTensor,
        gradient: FlexTensor,
        epsilon: f32,
    ) -> (FlexTensor, FlexTensor) {
        let dtype = x.dtype();
        let (of_weight, dtype_of_weight) = (shape_of(&weight), weight.dtype());
        let (x, mut gradient, weight) = (Read::of(x), owned(gradient), Read::of(weight));
        let (x, weight) = (x.values(), weight.values());
        let width = weight.len();
        let arch = Arch::new();
        let by_weight: Vec<Vec<f32>> = gradient
            .storage_mut()
            .par_chunks_mut(ROWS * width)
            .zip(x.par_chunks(ROWS * width))
            .map(|(gradient, x)| {
                let mut by_weight = vec![0.0; width];
                let some = gradient.chunks_exact_mut(width).zip(x.chunks_exact(width));
                for (gradient, x) in some {
                    vectorised!(arch, {
                        rows::rms_norm_backward(gradient, x, weight, &mut by_weight, epsilon);
                    });
                }
                by_weight
            })
            .collect();
        let mut sum = vec![0.0; width];
        for part in by_weight {
            sum.iter_mut()
                .zip(part)
                .for_each(|(sum, part)| *sum += part);
        }
        (
            in_type(gradient, dtype),
            tensor(sum, of_weight, dtype_of_weight),
        )
    }

    fn swiglu_backward(
        gate: FlexTensor,
        up: FlexTensor,
        gradient: FlexTensor,
    ) -> (FlexTensor, FlexTensor) {
        let dtype = gate.dtype();
        let (mut gate, mut up, gradient) = (owned(gate), owned(up), Read::of(gradient));
        let arch = Arch::new();
        (gate.storage_mut().par_chunks_mut(BLOCK))
            .zip(up.storage_mut().par_chunks_mut(BLOCK))
            .zip(gradient.values().par_chunks(BLOCK))
            .for_each(|((gate, up), gradient)| {
                vectorised!(arch, rows::swiglu_backward(gate, up, gradient));
            });
        (in_type(gate, dtype), in_type(up, dtype))
    }

    fn softmax_backward(
        weights: FlexTensor,
        gradient: FlexTensor,
        scale: f32,
        dtype: DType,
    ) -> FlexTensor {
        let shape = shape_of(&weights);
        let (weights, mut gradient) = (Read::of(weights), owned(gradient));
        let weights = weights.values();
        let keys = shape[3];
        let arch = Arch::new();
        each_row(gradient.storage_mut(), keys, |number, gradient| {
            let weights = &weights[number * keys..][..keys];
            vectorised!(arch, rows::softmax_backward(gradient, weights, scale));
        });
        in_type(gradient, dtype)
    }

    fn by_scores(
        weights: FlexTensor,
        of_weights: FlexTensor,
        of_sum: FlexTensor,
        dtype: DType,
    ) -> FlexTensor {
        let keys = of_weights.layout().shape()[3];
        let (weights, of_sum) = (Read::of(weights), Read::of(of_sum));
        let (weights, of_sum) = (weights.values(), of_sum.values());
        let arch = Arch::new();
        let found = each_row_of(of_weights, keys, |number, row| {
            let weights = &weights[number * keys..][..keys];
            vectorised!(arch, rows::by_scores(row, weights, of_sum[number]));
        });
        in_type(found, dtype)
    }

    fn in_row_order(x: FlexTensor) -> FlexTensor {
        match x.dtype() {
            DType::F32 => in_row_order(x),
            _ => x,
        }
    }

    fn added_at(sum: FlexTensor, more: FlexTensor, first: usize) -> FlexTensor {
        let [sizes, of_more] = [&sum, &more].map(shape_of);
        let [keys, count] = [&sizes, &of_more].map(|sizes| sizes[2] * sizes[3]);
        let (mut sum, more) = (owned(sum), Read::of(more));
        let (first, more) = (first * sizes[3], more.values());
        each_row(sum.storage_mut(), keys, |number, head: &mut [f32]| {
            let more = &more[number * count..][..count];
            for (sum, more) in head[first..].iter_mut().zip(more) {
                *sum += more;
            }
        });
        sum
    }

    fn exponentials(
        scores: FlexTensor,
        ranges: FlexTensor,
        floor: FlexTensor,
        first: usize,
        scale: f32,
        dtype: DType,
    ) -> (FlexTensor, FlexTensor) {
        let shape = shape_of(&scores);
        let ranges = OfRows::of(ranges, &shape);
        let (mut weights, mut largest) = (owned(scores), owned(floor));
        let keys = shape[3];
        let arch = Arch::new();
        each_row_beside(
            weights.storage_mut(),
            keys,
            largest.storage_mut(),
            |number, row, largest| {
                let ranges = ranges.row(number);
                *largest = vectorised!(arch, rows::seen(row, ranges, first, *largest, scale));
            },
        );
        (in_type(weights, dtype), largest)
    }

    fn sums_of_seen(
        weights: FlexTensor,
        ranges: FlexTensor,
        largest: FlexTensor,
        first: usize,
    ) -> FlexTensor {
        let shape = shape_of(&weights);
        let (ranges, weights) = (OfRows::of(ranges, &shape), Read::of(weights));
        let mut sums = vec![0.0; weights.values().len() / shape[3]];
        let arch = Arch::new();
        (weights.values().par_chunks(shape[3]))
            .zip(&mut sums)
            .enumerate()
            .with_min_len(BLOCK / shape[3].min(BLOCK))
            .for_each(|(number, (row, sum))| {
                let ranges = ranges.row(number);
                *sum = vectorised!(arch, rows::sum_of_seen(row, ranges, first));
            });
        FlexTensor::from_data(TensorData::new(sums, shape_of(&largest)))
    }
}

impl Gathers for Flex {
    fn gather(given: Given<Self>, blocks: Blocks) -> (FlexTensor, FlexTensor) {
        given.gather(&blocks)
    }
}

fn weights(scores: FlexTensor, mask: Option<FlexTensor>, scale: f32, dtype: DType) -> FlexTensor {
    let shape = shape_of(&scores);
    let mask = mask.map(|mask| OfRows::of(mask, &shape));
    let mut weights = owned(scores);
    let arch = Arch::new();
    each_row(weights.storage_mut(), shape[3], |number, row| {
        let mask = mask.as_ref().map(|mask| mask.row(number));
        vectorised!(arch, rows::softmax(row, mask, scale));
    });
    in_type(weights, dtype)
}

/// What a mask says of each row of scores.
struct OfRows {
    values: Read,
    /// Rows of scores, of all heads, that a sequence has.
    of_sequence: usize,
    /// Rows of scores that a head has.
    of_head: usize,
    /// Rows of scores that a row of the mask is for.
    sharing: usize,
    /// Rows of the mask that a sequence has.
    rows: usize,
    width: usize,
}

impl OfRows {
    /// Of scores of the shape `[batch, heads, rows, keys]`.
    fn of(mask: FlexTensor, shape: &[usize]) -> Self {
        let (rows, width) = (mask.layout().shape()[2], mask.layout().shape()[3]);
        Self {
            values: Read::of(mask),
            of_sequence: shape[1] * shape[2],
            of_head: shape[2],
            sharing: shape[2] / rows,
            rows,
            width,
        }
    }

    /// That of the row number `index` of the scores.
    fn row(&self, index: usize) -> &[f32] {
        let sequence = index / self.of_sequence;
        let row = index % self.of_head / self.sharing;
        let start = (sequence * self.rows + row) * self.width;
        // One mask for all of a batch is repeated.
        let values = self.values.values();
        &values[start % values.len()..][..self.width]
    }
}

/// The tensor in f32 and row order, of which `change` changes each row: where it stands if nobody else holds it.
fn each_row_of(
    x: FlexTensor,
    width: usize,
    change: impl Fn(usize, &mut [f32]) + Sync,
) -> FlexTensor {
    let mut x = in_f32(x);
    if is_owned(&x) {
        each_row(x.storage_mut(), width, change);
        return x;
    }
    let shape = shape_of(&x);
    let read = Read::of(x);
    let values = read.values();
    let changed = written_rows(values.len(), width, |number, row| {
        let own = &values[number * width..][..row.len()];
        change(number, row.write_copy_of_slice(own));
    });
    tensor(changed, shape, DType::F32)
}

/// Calls `change` with each row, its number and a number of the row's own, of which `beside` has one for each.
pub(super) fn each_row_beside(
    values: &mut [f32],
    width: usize,
    beside: &mut [f32],
    change: impl Fn(usize, &mut [f32], &mut f32) + Sync,
) {
    if values.len() <= BLOCK {
        let rows = values.chunks_mut(width.max(1)).zip(beside);
        for (number, (row, own)) in rows.enumerate() {
            change(number, row, own);
        }
        return;
    }
    (values.par_chunks_mut(width))
        .zip(beside)
        .enumerate()
        .with_min_len(BLOCK / width.min(BLOCK))
        .for_each(|(number, (row, own))| change(number, row, own));
}

pub(super) fn shape_of(x: &FlexTensor) -> Vec<usize> {
    x.layout().shape().to_vec()
}

/// Elements that are only read.
pub(super) struct Read(FlexTensor);

impl Read {
    pub(super) fn of(x: FlexTensor) -> Self {
        Self(in_row_order(in_f32(x)))
    }

    /// In row order.
    pub(super) fn values(&self) -> &[f32] {
        let start = self.0.layout().start_offset();
        &self.0.storage::<f32>()[start..start + self.0.layout().num_elements()]
    }
}

/// The tensor in f32 and row order, to be changed in place: itself where nobody else holds it, else a copy.
pub(super) fn owned(x: FlexTensor) -> FlexTensor {
    let x = in_f32(x);
    match is_owned(&x) {
        true => x,
        false => each_row_of(x, BLOCK, |_, _| ()),
    }
}

/// Whether a tensor in f32 is in row order, and all that there is of its memory, which nobody else holds.
fn is_owned(x: &FlexTensor) -> bool {
    let layout = x.layout();
    let is_whole = layout.is_contiguous()
        && layout.start_offset() == 0
        && layout.num_elements() == x.storage::<f32>().len();
    is_whole && x.is_unique()
}

/// The tensor, which is in f32, in row order: rows of heads are copied by all threads.
fn in_row_order(x: FlexTensor) -> FlexTensor {
    let shape = shape_of(&x);
    let [_, heads, seq, width] = shape[..] else {
        return x.to_contiguous();
    };
    if x.layout().is_contiguous() {
        return x;
    }
    let rows = HeadRows::of(x);
    let values = written_rows(shape.iter().product(), width, |number, row| {
        let place = [number / (seq * heads), number / seq % heads, number % seq];
        row.write_copy_of_slice(rows.row(place));
    });
    tensor(values, shape, DType::F32)
}

/// The rows of `[batch, heads, rows, width]`, which are only read, wherever they stand.
pub(super) struct HeadRows {
    /// In f32, with the elements of a row side by side and no stride below 0.
    tensor: FlexTensor,
    strides: [usize; 3],
    width: usize,
}

impl HeadRows {
    pub(super) fn of(x: FlexTensor) -> Self {
        let x = in_f32(x);
        let strides = x.layout().strides();
        let is_whole = strides.last() == Some(&1) && strides.iter().all(|&stride| stride >= 0);
        let tensor = if is_whole { x } else { x.to_contiguous() };
        let strides = tensor.layout().strides();
        Self {
            strides: [0, 1, 2].map(|dim| strides[dim] as usize),
            width: tensor.layout().shape()[3],
            tensor,
        }
    }

    /// That of a sequence, a head and a place.
    #[inline(always)]
    pub(super) fn row(&self, place: [usize; 3]) -> &[f32] {
        let steps = place.iter().zip(&self.strides);
        let offset: usize = steps.map(|(at, stride)| at * stride).sum();
        let start = self.tensor.layout().start_offset() + offset;
        &self.tensor.storage::<f32>()[start..start + self.width]
    }
}

fn in_f32(x: FlexTensor) -> FlexTensor {
    if x.dtype() == DType::F32 {
        x
    } else {
        Flex::float_cast(x, FloatDType::F32)
    }
}

pub(super) fn tensor(values: Vec<f32>, shape: Vec<usize>, dtype: DType) -> FlexTensor {
    in_type(FlexTensor::from_data(TensorData::new(values, shape)), dtype)
}

/// A tensor in f32, in a type.
pub(super) fn in_type(x: FlexTensor, dtype: DType) -> FlexTensor {
    if dtype == DType::F32 {
        x
    } else {
        Flex::float_cast(x, dtype.into())
    }
}

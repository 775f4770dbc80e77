//! Element-wise functions on the CPU in one vectorised pass over all threads; in the training graph each is replaced by its
//! tangent.
//!
//! Where `f` acts on each element alone, `x · f'(x) + (f(x) - x · f'(x))` with both factors constant has the value and the
//! gradient of `f(x)`. The factors are made in that one pass, the backward pass is one product, and only `f'(x)` is
//! kept for it. Burn's CPU back end takes exponentials one at a time in one thread and keeps every
//! intermediate result.
use burn::prelude::*;
use burn::tensor::DType;
use pulp::Arch;
use rayon::prelude::*;

use crate::device::is_cpu;
use crate::weights::{host_f32, lift};

/// Elements that one thread takes at a time.
const BLOCK: usize = 1 << 14;

/// Whether `x` is on the CPU, in f32.
pub(crate) fn applies<const D: usize>(x: &Tensor<D>) -> bool {
    x.dtype() == DType::F32 && is_cpu(&x.device())
}

/// `silu(gate) · up`.
///
/// # Shapes
/// - gate, up, output: the same
pub(crate) fn swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    if !gate.is_autodiff() {
        return plain_swiglu(gate, up);
    }
    // Copies, since the graph goes on with the originals; two of them become factors in place.
    let [mut by_gate, mut by_up] = [&gate, &up].map(|x| host_f32(x.clone().without_autodiff()));
    let mut rest = vec![0.0; by_gate.len()];
    let arch = Arch::new();
    (by_gate.par_chunks_mut(BLOCK))
        .zip(by_up.par_chunks_mut(BLOCK))
        .zip(rest.par_chunks_mut(BLOCK))
        .for_each(|((by_gate, by_up), rest)| {
            arch.dispatch(|| swiglu_block(by_gate, by_up, rest));
        });
    let constant = |values| constant(values, &gate);
    let (by_gate, by_up, rest) = (constant(by_gate), constant(by_up), constant(rest));
    gate * by_gate + up * by_up + rest
}

fn plain_swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    let (shape, up) = (gate.dims(), host_f32(up));
    let mut product = host_f32(gate);
    let arch = Arch::new();
    (product.par_chunks_mut(BLOCK))
        .zip(up.par_chunks(BLOCK))
        .for_each(|(gate, up)| {
            arch.dispatch(|| {
                for (gate, up) in gate.iter_mut().zip(up) {
                    *gate *= sigmoid(*gate) * up;
                }
            });
        });
    Tensor::from_data(TensorData::new(product, shape), &Device::flex())
}

/// Of the two equal forms, the one whose exponential cannot overflow.
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    if x >= 0.0 {
        1.0 / (1.0 + e)
    } else {
        e / (1.0 + e)
    }
}

/// Turns gates and ups into the factors of each, and fills in the rest.
#[inline(always)]
fn swiglu_block(by_gate: &mut [f32], by_up: &mut [f32], rest: &mut [f32]) {
    for ((by_gate, by_up), rest) in by_gate.iter_mut().zip(by_up).zip(rest) {
        let (gate, up) = (*by_gate, *by_up);
        let sigmoid = sigmoid(gate);
        *by_up = gate * sigmoid;
        *by_gate = up * sigmoid * (1.0 + gate * (1.0 - sigmoid));
        // silu · up - up · silu = 0 remains of the two terms in `up`.
        *rest = -gate * *by_gate;
    }
}

/// A mask `[batch or 1, 1, rows, keys]` of scores of so many heads.
struct HostMask {
    values: Vec<f32>,
    heads: usize,
    rows: usize,
    keys: usize,
}

impl HostMask {
    fn of(mask: &Tensor<4>, heads: usize) -> Self {
        let [_, _, rows, keys] = mask.dims();
        let values = host_f32(mask.clone().without_autodiff());
        Self {
            values,
            heads,
            rows,
            keys,
        }
    }

    /// What is added to the row number `index` of scores `[batch, heads, rows, keys]`.
    fn row(&self, index: usize) -> &[f32] {
        let of_batch = index / (self.heads * self.rows);
        let start = (of_batch * self.rows + index % self.rows) * self.keys;
        // One mask for all of a batch is repeated.
        &self.values[start % self.values.len()..][..self.keys]
    }
}

/// `softmax(scores + mask)`, in no graph. Terms of a sum are added up in the order of the keys, so that keys that a mask hides
/// change no bit of it, wherever they stand.
///
/// # Shapes
/// - scores, output: `[batch, heads, rows, keys]`
/// - mask: `[batch or 1, 1, rows, keys]`, 0 or minus infinity
pub(crate) fn softmax(scores: Tensor<4>, mask: Option<&Tensor<4>>) -> Tensor<4> {
    let shape @ [_, heads, _, keys] = scores.dims();
    let mask = mask.map(|mask| HostMask::of(mask, heads));
    let nothing = vec![0.0; keys];
    let mut weights = host_f32(scores);
    let arch = Arch::new();
    (weights.par_chunks_mut(keys))
        .enumerate()
        .with_min_len(BLOCK / keys.min(BLOCK))
        .for_each(|(index, weights)| {
            let mask = mask.as_ref().map_or(&nothing[..], |mask| mask.row(index));
            arch.dispatch(|| {
                exponentials_row(weights, None, mask, f32::NEG_INFINITY);
            });
            let sum: f32 = weights.iter().sum();
            weights.iter_mut().for_each(|weight| *weight /= sum);
        });
    Tensor::from_data(TensorData::new(weights, shape), &Device::flex())
}

/// Unnormalised attention weights `exp(scores + mask - largest)`, and `largest`.
///
/// # Shapes
/// - scores, output: `[batch, heads, rows, keys]`
/// - mask: `[batch or 1, 1, rows, keys]`, 0 or minus infinity
/// - floor, largest: `[batch, heads, rows, 1]`; `largest` is at least `floor`, and not in the graph
pub(crate) fn exponentials(
    scores: Tensor<4>,
    mask: &Tensor<4>,
    floor: Option<Tensor<4>>,
) -> (Tensor<4>, Tensor<4>) {
    let shape @ [batch, heads, rows, keys] = scores.dims();
    let mask = HostMask::of(mask, heads);
    let floor = match floor {
        Some(floor) => host_f32(floor.without_autodiff()),
        None => vec![f32::NEG_INFINITY; batch * heads * rows],
    };
    let arch = Arch::new();
    let row = |index: usize, scores: &mut [f32], rest: Option<&mut [f32]>| {
        arch.dispatch(|| exponentials_row(scores, rest, mask.row(index), floor[index]))
    };
    let together = BLOCK / keys.min(BLOCK);
    let on_host = |largest: Vec<f32>| {
        let data = TensorData::new(largest, [batch, heads, rows, 1]);
        Tensor::from_data(data, &Device::flex())
    };
    if !scores.is_autodiff() {
        let mut weights = host_f32(scores);
        let largest = weights.par_chunks_mut(keys).enumerate();
        let largest = largest
            .with_min_len(together)
            .map(|(index, weights)| row(index, weights, None))
            .collect();
        let weights = Tensor::from_data(TensorData::new(weights, shape), &Device::flex());
        return (weights, on_host(largest));
    }
    let mut slope = host_f32(scores.clone().without_autodiff());
    let mut rest = vec![0.0; slope.len()];
    let largest: Vec<f32> = (slope.par_chunks_mut(keys))
        .zip(rest.par_chunks_mut(keys))
        .enumerate()
        .with_min_len(together)
        .map(|(index, (slope, rest))| row(index, slope, Some(rest)))
        .collect();
    let (slope, rest) = (constant(slope, &scores), constant(rest, &scores));
    let largest = lift(on_host(largest), &scores.device());
    (scores * slope + rest, largest)
}

/// Turns a row of scores into its weights, fills in the rest of the tangent, and returns the largest score.
#[inline(always)]
fn exponentials_row(scores: &mut [f32], rest: Option<&mut [f32]>, mask: &[f32], floor: f32) -> f32 {
    let mut lanes = [floor; 16];
    let blocks = scores.chunks_exact(16).zip(mask.chunks_exact(16));
    for (scores, mask) in blocks {
        for ((lane, score), mask) in lanes.iter_mut().zip(scores).zip(mask) {
            *lane = lane.max(score + mask);
        }
    }
    let tail = scores.len() - scores.len() % 16;
    let tail = scores[tail..].iter().zip(&mask[tail..]).map(|(s, m)| s + m);
    let largest = lanes.into_iter().chain(tail).fold(floor, f32::max);
    let weight = |score: f32, mask: f32| {
        let shifted = score + mask - largest;
        if shifted > -87.0 { exp(shifted) } else { 0.0 }
    };
    let pairs = scores.iter_mut().zip(mask);
    match rest {
        Some(rest) => pairs.zip(rest).for_each(|((score, &mask), rest)| {
            let e = weight(*score, mask);
            *rest = e - *score * e;
            *score = e;
        }),
        None => pairs.for_each(|(score, &mask)| *score = weight(*score, mask)),
    }
    largest
}

fn constant<const D: usize>(values: Vec<f32>, like: &Tensor<D>) -> Tensor<D> {
    let data = TensorData::new(values, like.dims());
    lift(Tensor::from_data(data, &Device::flex()), &like.device())
}

/// `e^x` for `x ≤ 0`, to a few parts in 10⁷: a polynomial on `[-ln 2 / 2, ln 2 / 2]` times a power of two
/// (Cody and Waite's reduction). Below -87 it stays at the smallest normal numbers.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding and subtracting 1.5 · 2²³ rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = x.max(-87.0);
    let power = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = x - power * LN_2_HIGH - power * LN_2_LOW;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 0.166_666_65;
    let p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    p * f32::from_bits(((power as i32 + 127) << 23) as u32)
}

#[cfg(test)]
mod tests {
    use burn::tensor::activation::{silu, softmax as of_formula};

    use super::*;

    fn leaf(values: &[f32]) -> Tensor<2> {
        let device = Device::flex().autodiff();
        let x = Tensor::<1>::from_floats(values, &device);
        x.reshape([2, values.len() / 2]).require_grad()
    }

    fn close(got: Tensor<2>, expected: Tensor<2>) {
        for (got, expected) in host_f32(got).into_iter().zip(host_f32(expected)) {
            assert!(
                (got - expected).abs() < 2e-6 * expected.abs().max(1.0),
                "{got} {expected}"
            );
        }
    }

    #[test]
    fn exponentials_are_right_to_a_few_parts_in_ten_million() {
        for step in 0..8600 {
            let x = -(step as f32) * 0.01;
            let (got, expected) = (exp(x) as f64, (x as f64).exp());
            assert!(
                (got / expected - 1.0).abs() < 4e-7,
                "e^{x}: {got} {expected}"
            );
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
    }

    #[test]
    fn swiglu_has_the_value_and_the_gradients_of_its_formula() {
        let (gate, up) = (
            leaf(&[-30.0, -1.5, 0.0, 0.3, 2.0, 40.0]),
            leaf(&[1.0, -2.0, 3.0, 0.5, 0.1, -1.0]),
        );
        let (tangent, plain) = (
            swiglu(gate.clone(), up.clone()),
            silu(gate.clone()) * up.clone(),
        );
        close(tangent.clone().inner(), plain.clone().inner());
        let (tangent, plain) = (
            tangent.square().sum().backward(),
            plain.square().sum().backward(),
        );
        for leaf in [gate, up] {
            close(leaf.grad(&tangent).unwrap(), leaf.grad(&plain).unwrap());
        }
    }

    #[test]
    fn out_of_a_graph_the_values_are_the_same() {
        let (gate, up) = (
            leaf(&[-30.0, -1.5, 0.0, 0.3, 2.0, 40.0]).inner(),
            leaf(&[1.0, -2.0, 3.0, 0.5, 0.1, -1.0]).inner(),
        );
        let expected = silu(gate.clone()) * up.clone();
        let got = swiglu(gate.clone(), up);
        close(got, expected);
        let scores = gate.reshape([1, 1, 2, 3]);
        let mask = [0.0, 0.0, f32::NEG_INFINITY, 0.0, 0.0, 0.0];
        let mask = Tensor::<1>::from_floats(mask, &Device::flex()).reshape([1, 1, 2, 3]);
        let (weights, largest) = exponentials(scores.clone(), &mask, None);
        assert_eq!(host_f32(largest.clone()), [-1.5, 40.0]);
        let plain = (scores + mask - largest).exp();
        close(weights.reshape([2, 3]), plain.reshape([2, 3]));
    }

    #[test]
    fn attention_weights_are_those_of_the_formula_wherever_hidden_keys_stand() {
        let (heads, rows, keys) = (3, 5, 41);
        let values: Vec<f32> = (0..2 * heads * rows * keys)
            .map(|i| ((i * 37 % 101) as f32 - 50.0) / 4.0)
            .collect();
        let tensor = |values: &[f32], shape: [usize; 4]| {
            Tensor::<1>::from_floats(values, &Device::flex()).reshape(shape)
        };
        let scores = tensor(&values, [2, heads, rows, keys]);
        let hides = |i: usize| if i % 7 == 3 { f32::NEG_INFINITY } else { 0.0 };
        let masks: Vec<f32> = (0..2 * rows * keys).map(hides).collect();
        for masks_of in [1, 2] {
            let mask = tensor(&masks[..masks_of * rows * keys], [masks_of, 1, rows, keys]);
            let plain = of_formula(scores.clone() + mask.clone(), 3);
            close(flat(softmax(scores.clone(), Some(&mask))), flat(plain));
        }
        let plain = of_formula(scores.clone(), 3);
        close(flat(softmax(scores.clone(), None)), flat(plain));
        // Nineteen hidden keys before, and four behind.
        let hidden = |count| Tensor::full([2, heads, rows, count], 3.0, &Device::flex());
        let wider = Tensor::cat(vec![hidden(19), scores.clone(), hidden(4)], 3);
        let seen = |key: usize| (19..19 + keys).contains(&key);
        let mask: Vec<f32> = (0..rows * (keys + 23))
            .map(|i| {
                if seen(i % (keys + 23)) {
                    0.0
                } else {
                    f32::NEG_INFINITY
                }
            })
            .collect();
        let mask = tensor(&mask, [1, 1, rows, keys + 23]);
        let moved = softmax(wider, Some(&mask)).narrow(3, 19, keys);
        assert_eq!(host_f32(moved), host_f32(softmax(scores, None)));
    }

    fn flat(x: Tensor<4>) -> Tensor<2> {
        let elements = x.shape().num_elements();
        x.reshape([1, elements])
    }

    #[test]
    fn exponentials_have_the_value_and_the_gradient_of_their_formula() {
        let scores = leaf(&[1.0, -2.0, 30.0, 0.5, 7.0, -50.0]);
        let mask = [0.0, 0.0, f32::NEG_INFINITY, 0.0, 0.0, 0.0];
        let mask = Tensor::<1>::from_floats(mask, &Device::flex().autodiff()).reshape([1, 1, 2, 3]);
        let (weights, largest) = exponentials(scores.clone().reshape([1, 1, 2, 3]), &mask, None);
        assert_eq!(host_f32(largest.clone()), [1.0, 7.0]);
        let plain = (scores.clone().reshape([1, 1, 2, 3]) + mask - largest).exp();
        close(
            weights.clone().reshape([2, 3]).inner(),
            plain.clone().reshape([2, 3]).inner(),
        );
        let (tangent, plain) = (
            weights.square().sum().backward(),
            plain.square().sum().backward(),
        );
        close(scores.grad(&tangent).unwrap(), scores.grad(&plain).unwrap());
    }
}

//! What the kernels of the CPU do with a row.

/// Numbers summed side by side: two registers of AVX-512, four of AVX2.
const LANES: usize = 32;

/// `Σ a_i b_i`, in an order that the length alone decides.
#[inline(always)]
fn product_sum(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (a, last_a) = a.as_chunks::<LANES>();
    let (b, last_b) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(last_a).zip(last_b) {
        *lane += a * b;
    }
    reduced(lanes, |a, b| a + b)
}

/// One number of all lanes, in halves.
#[inline(always)]
fn reduced(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = join(lanes[lane], lanes[lane + width]);
        }
        width /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn inverse_rms(x: &[f32], epsilon: f32) -> f32 {
    (product_sum(x, x) / x.len() as f32 + epsilon)
        .sqrt()
        .recip()
}

/// `x / sqrt(mean(x²) + epsilon) * weight` in place of `x`.
#[inline(always)]
pub(super) fn rms_norm(x: &mut [f32], weight: &[f32], epsilon: f32) {
    let scale = inverse_rms(x, epsilon);
    for (x, weight) in x.iter_mut().zip(weight) {
        *x = *x * scale * weight;
    }
}

/// The gradient with respect to the row in place of that of the output; adds its part of the weight's to `by_weight`.
#[inline(always)]
pub(super) fn rms_norm_backward(
    gradient: &mut [f32],
    x: &[f32],
    weight: &[f32],
    by_weight: &mut [f32],
    epsilon: f32,
) {
    let scale = inverse_rms(x, epsilon);
    for (((gradient, by_weight), x), weight) in
        gradient.iter_mut().zip(by_weight).zip(x).zip(weight)
    {
        *by_weight += *gradient * x * scale;
        *gradient *= weight;
    }
    let pull = product_sum(gradient, x) * scale * scale / x.len() as f32;
    for (gradient, x) in gradient.iter_mut().zip(x) {
        *gradient = scale * (*gradient - pull * x);
    }
}

/// `silu(gate) · up` in place of the gate.
#[inline(always)]
pub(super) fn swiglu(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate *= sigmoid(*gate) * up;
    }
}

/// The gradients with respect to gate and up in place of them.
#[inline(always)]
pub(super) fn swiglu_backward(gate: &mut [f32], up: &mut [f32], gradient: &[f32]) {
    for ((by_gate, by_up), gradient) in gate.iter_mut().zip(up).zip(gradient) {
        let (gate, up) = (*by_gate, *by_up);
        let sigmoid = sigmoid(gate);
        *by_up = gradient * gate * sigmoid;
        *by_gate = gradient * up * sigmoid * (1.0 + gate * (1.0 - sigmoid));
    }
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

/// `x` turned by the angles whose cosines and sines are given.
#[inline(always)]
pub(super) fn rotate(turned: &mut [f32], x: &[f32], cos: &[f32], sin: &[f32], turn: f32) {
    let (lower, upper) = x.split_at(cos.len());
    let (turned_lower, turned_upper) = turned.split_at_mut(cos.len());
    for ((turned, (lower, upper)), (cos, sin)) in turned_lower
        .iter_mut()
        .zip(lower.iter().zip(upper))
        .zip(cos.iter().zip(sin))
    {
        *turned = lower * cos - upper * (sin * turn);
    }
    for ((turned, (lower, upper)), (cos, sin)) in turned_upper
        .iter_mut()
        .zip(lower.iter().zip(upper))
        .zip(cos.iter().zip(sin))
    {
        *turned = upper * cos + lower * (sin * turn);
    }
}

/// The weights of a row of scores, times `scale`, which is above 0, in place of them. Terms of their sum are added up in the order of the
/// keys, so that keys that a mask hides change no bit of it, wherever they stand.
#[inline(always)]
pub(super) fn softmax(scores: &mut [f32], mask: Option<&[f32]>, scale: f32) {
    match mask {
        None => exponentials(scores, largest(scores) * scale, scale),
        Some(mask) => {
            for (score, mask) in scores.iter_mut().zip(mask) {
                *score = *score * scale + mask;
            }
            exponentials(scores, largest(scores), 1.0);
        }
    }
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|weight| *weight /= sum);
}

/// The gradient with respect to the scores, which were multiplied by `scale`, in place of that of the weights.
#[inline(always)]
pub(super) fn softmax_backward(gradient: &mut [f32], weights: &[f32], scale: f32) {
    let mean = product_sum(gradient, weights);
    for (gradient, weight) in gradient.iter_mut().zip(weights) {
        *gradient = scale * weight * (*gradient - mean);
    }
}

/// `weights · (of_weights + of_sum)`, in place of `of_weights`.
#[inline(always)]
pub(super) fn by_scores(of_weights: &mut [f32], weights: &[f32], of_sum: f32) {
    for (of_weight, weight) in of_weights.iter_mut().zip(weights) {
        *of_weight = weight * (*of_weight + of_sum);
    }
}

/// What one query and the key that it sees more have.
pub(super) struct ColumnRow<'a> {
    pub(super) query: &'a [f32],
    pub(super) key: &'a [f32],
    pub(super) value: &'a [f32],
    /// The largest of the query's scores before.
    pub(super) largest: f32,
    /// What scores are multiplied by.
    pub(super) scale: f32,
}

impl ColumnRow<'_> {
    /// By how much the sums before and the new value count, and the largest score behind them.
    #[inline(always)]
    fn weights(&self) -> [f32; 3] {
        let score = product_sum(self.query, self.key) * self.scale;
        let after = score.max(self.largest);
        [exp(self.largest - after), exp(score - after), after]
    }
}

/// Takes the value of a row into `sums`, whose last number is the sum of the weights; the largest score then.
#[inline(always)]
pub(super) fn add_column(sums: &mut [f32], row: ColumnRow) -> f32 {
    let [kept, weight, after] = row.weights();
    let (values, sum) = sums.split_at_mut(row.value.len());
    for (sum, value) in values.iter_mut().zip(row.value) {
        *sum = *sum * kept + weight * value;
    }
    sum[0] = sum[0] * kept + weight;
    after
}

/// The gradient with respect to the sums before in place of that of those behind; those with respect to query, key and value are added to what
/// is there.
#[inline(always)]
pub(super) fn add_column_backward(
    gradient: &mut [f32],
    row: ColumnRow,
    [by_query, by_key, by_value]: [&mut [f32]; 3],
) {
    let [kept, weight, _] = row.weights();
    let (of_context, of_sum) = gradient.split_at(row.value.len());
    let of_score = row.scale * weight * (product_sum(of_context, row.value) + of_sum[0]);
    for (by, key) in by_query.iter_mut().zip(row.key) {
        *by += of_score * key;
    }
    for (by, query) in by_key.iter_mut().zip(row.query) {
        *by += of_score * query;
    }
    for (by, gradient) in by_value.iter_mut().zip(of_context) {
        *by += weight * gradient;
    }
    gradient.iter_mut().for_each(|gradient| *gradient *= kept);
}

/// `sums` over the last of them, which is that of the weights; what the others were multiplied by for it.
#[inline(always)]
pub(super) fn quotient(out: &mut [f32], sums: &[f32]) -> f32 {
    let (values, sum) = sums.split_at(out.len());
    let factor = sum[0].recip();
    for (out, value) in out.iter_mut().zip(values) {
        *out = value * factor;
    }
    factor
}

/// The gradient with respect to sums, whose last number is that of the weights, from that of their [`quotient`].
#[inline(always)]
pub(super) fn quotient_backward(
    by_sums: &mut [f32],
    quotient: &[f32],
    factor: f32,
    gradient: &[f32],
) {
    let (by_values, by_sum) = by_sums.split_at_mut(gradient.len());
    by_sum[0] = -product_sum(quotient, gradient) * factor;
    for (by_value, gradient) in by_values.iter_mut().zip(gradient) {
        *by_value = gradient * factor;
    }
}

/// `exp(scores * scale - largest)` in place of the scores of the keys in `ranges` of places, of which the first key has `first`, and 0 in
/// place of the others; the largest of those products and of `floor`. `scale` is above 0.
#[inline(always)]
pub(super) fn seen(
    scores: &mut [f32],
    ranges: &[f32],
    first: usize,
    floor: f32,
    scale: f32,
) -> f32 {
    let keys = scores.len();
    let (ranges, _) = ranges.as_chunks::<2>();
    let mut most = floor;
    for range in ranges {
        let [start, end] = within(range, first, keys);
        most = most.max(largest(&scores[start..end]) * scale);
    }
    let mut done = 0;
    for range in ranges {
        let [start, end] = within(range, first, keys);
        scores[done..start].fill(0.0);
        exponentials(&mut scores[start..end], most, scale);
        done = end;
    }
    scores[done..].fill(0.0);
    most
}

/// The sum of the weights of the keys in `ranges` of places, of which the first key has `first`: each range is added up from its own
/// beginning on.
#[inline(always)]
pub(super) fn sum_of_seen(weights: &[f32], ranges: &[f32], first: usize) -> f32 {
    let (ranges, _) = ranges.as_chunks::<2>();
    let of_range = |range| {
        let [start, end] = within(range, first, weights.len());
        let mut lanes = [0.0; LANES];
        let (blocks, rest) = weights[start..end].as_chunks::<LANES>();
        for block in blocks {
            for (lane, weight) in lanes.iter_mut().zip(block) {
                *lane += weight;
            }
        }
        for (lane, weight) in lanes.iter_mut().zip(rest) {
            *lane += weight;
        }
        reduced(lanes, |a, b| a + b)
    };
    ranges.iter().map(of_range).sum()
}

/// A range of places among so many keys, of which the first has the place `first`.
#[inline(always)]
fn within(range: &[f32; 2], first: usize, keys: usize) -> [usize; 2] {
    range.map(|place| (place as usize).saturating_sub(first).min(keys))
}

/// The largest of some scores, minus infinity of none. Rounding keeps the order of numbers, so that times something above 0 it is the
/// largest of their products with that.
#[inline(always)]
fn largest(scores: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (blocks, rest) = scores.as_chunks::<LANES>();
    for block in blocks {
        for (lane, score) in lanes.iter_mut().zip(block) {
            *lane = lane.max(*score);
        }
    }
    for (lane, score) in lanes.iter_mut().zip(rest) {
        *lane = lane.max(*score);
    }
    reduced(lanes, f32::max)
}

/// `exp(scores * scale - largest)` in place of the scores.
#[inline(always)]
fn exponentials(scores: &mut [f32], largest: f32, scale: f32) {
    for score in scores {
        *score = exp(*score * scale - largest);
    }
}

/// Below this, [`exp`] is 0: 10⁻²⁶ counts for nothing beside the 1 that the largest of a row has. A sum that divides it and a weight
/// that scales it would soon make it subnormal, and products of subnormal numbers take some processors several times as long.
const NEGLIGIBLE: f32 = -60.0;

/// `e^x` for `x ≤ 0`, to a few parts in 10⁷: a polynomial on `[-ln 2 / 2, ln 2 / 2]` times a power of two
/// (Cody and Waite's reduction); 0 below -60.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5 · 2²³ rounds to the nearest integer, which stands in the last bits then.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let counts = x >= NEGLIGIBLE;
    let x = x.max(NEGLIGIBLE);
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let power = rounded - ROUND;
    let r = x - power * LN_2_HIGH - power * LN_2_LOW;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 0.166_666_65;
    let p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    let exponent = (rounded.to_bits() << 23).wrapping_add(127 << 23);
    let exponential = p * f32::from_bits(exponent);
    if counts { exponential } else { 0.0 }
}

/// `ln x` of a normal number above 0, to three parts in 10⁷: a polynomial (Cephes) on
/// `[√½, √2)`, and a power of two.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    /// The bits of `√½`.
    const ROOT_OF_HALF: u32 = 0x3f35_04f3;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let exponent = x.to_bits().wrapping_sub(ROOT_OF_HALF) as i32 >> 23;
    let power = exponent as f32;
    let f = f32::from_bits(x.to_bits().wrapping_sub((exponent << 23) as u32)) - 1.0;
    let p = 7.037_683_6e-2;
    let p = p * f - 0.115_146_1;
    let p = p * f + 0.116_769_99;
    let p = p * f - 0.124_201_41;
    let p = p * f + 0.142_493_23;
    let p = p * f - 0.166_680_58;
    let p = p * f + 0.200_007_15;
    let p = p * f - 0.249_999_94;
    let p = p * f + 0.333_333_3;
    let square = f * f;
    let rest = p * f * square + power * LN_2_LOW - 0.5 * square;
    f + rest + power * LN_2_HIGH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_right_to_a_few_parts_in_ten_million() {
        for step in 0..=6000 {
            let x = -(step as f32) * 0.01;
            let (got, expected) = (exp(x) as f64, (x as f64).exp());
            assert!(
                (got / expected - 1.0).abs() < 4e-7,
                "e^{x}: {got} {expected}"
            );
        }
        assert_eq!(exp(0.0), 1.0);
        for negligible in [-60.01, -88.0, -1e30, f32::NEG_INFINITY] {
            assert_eq!(exp(negligible), 0.0, "e^{negligible}");
        }
    }

    #[test]
    fn scores_are_scaled_on_the_way_to_the_weights_that_scaled_ones_have() {
        let scores: Vec<f32> = (0..77).map(|at| (at * 7919 % 6007) as f32 - 3e3).collect();
        let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for scale in [0.3, 0.001, 1.7] {
            let scaled: Vec<f32> = scores.iter().map(|score| score * scale).collect();
            let mask: Vec<f32> = (0..77).map(|at| [0.0, f32::NEG_INFINITY][at % 2]).collect();
            for mask in [None, Some(&mask[..])] {
                let (mut found, mut expected) = (scores.clone(), scaled.clone());
                softmax(&mut found, mask, scale);
                softmax(&mut expected, mask, 1.0);
                assert_eq!(bits(&found), bits(&expected), "{scale}");
            }
            // Two ranges; one of nothing; a floor above all; and the lowest one, where nothing is seen.
            for (ranges, floor) in [
                ([3.0, 40.0, 50.0, 70.0], f32::MIN),
                ([3.0, 40.0, 77.0, 77.0], -1.0),
                ([3.0, 40.0, 50.0, 70.0], 1e4),
                ([77.0, 77.0, 77.0, 77.0], f32::MIN),
            ] {
                let (mut found, mut expected) = (scores.clone(), scaled.clone());
                let largest = seen(&mut found, &ranges, 0, floor, scale);
                let of_scaled = seen(&mut expected, &ranges, 0, floor, 1.0);
                assert_eq!(largest.to_bits(), of_scaled.to_bits(), "{scale} {ranges:?}");
                assert_eq!(bits(&found), bits(&expected), "{scale} {ranges:?}");
            }
        }
    }

    #[test]
    fn logarithms_are_right_to_a_few_parts_in_ten_million() {
        let near_one = (-1000..1000).map(|step| 1.0 + step as f32 * 1e-3 / 3.0);
        let powers = (-6000..6000).map(|step| (step as f32 * 0.0145).exp());
        for x in near_one.chain(powers).chain([f32::MIN_POSITIVE, 1.0]) {
            let (got, expected) = (ln(x) as f64, (x as f64).ln());
            let most = 3e-7 * expected.abs();
            assert!((got - expected).abs() <= most, "ln {x}: {got} {expected}");
        }
    }
}

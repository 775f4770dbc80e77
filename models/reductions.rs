//! Reductions over rows. Burn tunes its own on a GPU, anew for each shape; here kernels stand in for those that cost most.
use burn::prelude::*;
use burn::tensor::{DType, IndexingUpdateOp};
use rayon::prelude::*;

#[cfg(feature = "cube")]
use crate::cube::reductions::{Reductions as _, has_kernels};
use crate::device::is_cpu;
use crate::weights::host_f32;
#[cfg(feature = "cube")]
use burn::backend::Dispatch;

/// The first largest entry of each row.
///
/// # Shapes
/// - logits: `[rows, vocab]`
/// - output: `[rows, 1]`
pub fn likeliest(logits: Tensor<2>) -> Tensor<2, Int> {
    #[cfg(feature = "cube")]
    if has_kernels(&logits) {
        let best = Dispatch::best_of_rows(logits.into_dispatch());
        return Tensor::<2>::from_dispatch(best).int();
    }
    logits.argmax(1)
}

/// The `count` largest entries of each row, the largest first and of equal ones the first.
///
/// # Shapes
/// - logits: `[rows, vocab]`, f32, in no graph
/// - output: `[rows, count]`
///
/// # Panics
/// `count` is 0 or larger than the rows are wide.
pub fn likeliest_of_each(logits: Tensor<2>, count: usize) -> Tensor<2, Int> {
    let [rows, vocab] = logits.dims();
    assert!((1..=vocab).contains(&count), "no {count} of {vocab}");
    let device = logits.device();
    if !is_cpu(&device) {
        return taken_out(logits, count).0;
    }
    let values = host_f32(logits);
    let of_row = |row: &[f32]| first_of(row, count).into_iter().map(|id| id as i64);
    let ids: Vec<i64> = values.par_chunks(vocab).flat_map_iter(of_row).collect();
    Tensor::<1, Int>::from_ints(ids.as_slice(), &device).reshape([rows, count])
}

/// See [`likeliest_of_each`]: of one row, on the host. What is kept on the way is never much more than what is asked for.
fn first_of(row: &[f32], count: usize) -> Vec<usize> {
    let before = |a: &usize, b: &usize| row[*b].total_cmp(&row[*a]).then(a.cmp(b));
    let mut kept: Vec<usize> = Vec::with_capacity(2 * count.min(row.len()));
    // The last of the first ones so far. An equal one that comes later is none of them.
    let mut last: Option<f32> = None;
    for (id, value) in row.iter().enumerate() {
        if last.is_some_and(|last| value.total_cmp(&last).is_le()) {
            continue;
        }
        kept.push(id);
        if kept.len() == 2 * count {
            kept.select_nth_unstable_by(count - 1, before);
            kept.truncate(count);
            last = Some(row[kept[count - 1]]);
        }
    }
    kept.sort_unstable_by(before);
    kept.truncate(count);
    kept
}

/// See [`likeliest_of_each`]: a device sorts whole rows, so the largest ones are taken out one after the other. Waits for nothing.
/// Beside them their values, minus infinity where all others have been taken out.
fn taken_out(logits: Tensor<2>, count: usize) -> (Tensor<2, Int>, Tensor<2>) {
    let [rows, _] = logits.dims();
    let like = (&logits.device(), logits.dtype());
    let out: Tensor<2> = Tensor::full([rows, 1], f32::NEG_INFINITY, like);
    let mut left = logits;
    let mut found: Vec<Tensor<2, Int>> = Vec::with_capacity(count);
    let mut values: Vec<Tensor<2>> = Vec::with_capacity(count);
    for nth in 1..=count {
        let best = likeliest(left.clone());
        values.push(left.clone().gather(1, best.clone()));
        // Nobody reads what is left behind the last.
        if nth < count {
            left = left.scatter(1, best.clone(), out.clone(), IndexingUpdateOp::Add);
        }
        found.push(best);
    }
    (Tensor::cat(found, 1), Tensor::cat(values, 1))
}

/// The likeliest tokens of each row, at most `count`, the likeliest first and of equal ones the first. Minus infinity marks
/// what is never chosen. `None` where a logit is no number or plus infinity, or a row has nothing to choose.
///
/// # Shapes
/// - logits: `[rows, vocab]`, f32, in no graph
pub(crate) fn candidates(logits: Tensor<2>, count: usize) -> Option<Vec<Vec<u32>>> {
    if !is_cpu(&logits.device()) {
        let tokens = |row: Reduced| row.is_sound().then(|| row.tokens());
        return on_device(logits, count).into_iter().map(tokens).collect();
    }
    let [_, vocab] = logits.dims();
    let values = host_f32(logits);
    // Without their likelihoods, which cost more than the rest.
    let of_row = |row: &[f32]| is_sound(row).then(|| possible(row, count));
    values.par_chunks(vocab).map(of_row).collect()
}

/// The tokens of [`candidates`], each with the logarithm of its likelihood, which is at most 0. The sums of exponentials are
/// in f64 on the CPU, and as of [`log_partition`] elsewhere.
///
/// # Shapes
/// - logits: `[rows, vocab]`, f32, in no graph
pub(crate) fn log_likelihoods(logits: Tensor<2>, count: usize) -> Option<Vec<Vec<(u32, f64)>>> {
    let rows = if is_cpu(&logits.device()) {
        on_host(logits, count)
    } else {
        on_device(logits, count)
    };
    let of_row = |row: Reduced| row.is_sound().then(|| row.log_likelihoods());
    rows.into_iter().map(of_row).collect()
}

/// What a draft needs of a row of logits.
struct Reduced {
    /// The likeliest tokens and their logits, as far as these are finite.
    best: Vec<(u32, f32)>,
    /// `log Σ exp`
    partition: f64,
}

impl Reduced {
    /// The `count` likeliest tokens of `row`, whose partition is known.
    fn of(row: &[f32], count: usize, partition: f64) -> Self {
        let best = possible(row, count).into_iter();
        Self {
            best: best.map(|token| (token, row[token as usize])).collect(),
            partition,
        }
    }

    /// See [`is_sound`]: the sum is no number where a logit is none or plus infinity, and 0 or no number where all are minus
    /// infinity.
    fn is_sound(&self) -> bool {
        self.partition.is_finite()
    }

    fn tokens(&self) -> Vec<u32> {
        self.best.iter().map(|&(token, _)| token).collect()
    }

    /// No path is likelier than its beginning, whatever way a sum in f32 was rounded.
    fn log_likelihoods(&self) -> Vec<(u32, f64)> {
        let of = |logit: f32| (f64::from(logit) - self.partition).min(0.0);
        let best = self.best.iter();
        best.map(|&(token, logit)| (token, of(logit))).collect()
    }
}

fn on_host(logits: Tensor<2>, count: usize) -> Vec<Reduced> {
    let [_, vocab] = logits.dims();
    let values = host_f32(logits);
    let of_row = |row: &[f32]| Reduced::of(row, count, log_sum_exp(row));
    values.par_chunks(vocab).map(of_row).collect()
}

/// Entries that are taken out of the rows on a device at most. Each takes some kernels: with more of them, whole rows are sooner on
/// the host.
const MOST_TAKEN_OUT: usize = 16;

/// The rows are reduced where they are, as far as that pays.
fn on_device(logits: Tensor<2>, count: usize) -> Vec<Reduced> {
    let [_, vocab] = logits.dims();
    let count = count.min(vocab);
    let partitions = log_partition(logits.clone());
    if count > MOST_TAKEN_OUT {
        let (partitions, values) = (host_f32(partitions), host_f32(logits));
        let rows = values.par_chunks(vocab).zip(partitions);
        let of_row =
            |(row, partition): (&[f32], f32)| Reduced::of(row, count, f64::from(partition));
        return rows.map(of_row).collect();
    }
    let (ids, values) = taken_out(logits, count);
    let found = host_f32(Tensor::cat(vec![values, partitions], 1)); // [rows, count + 1]
    let ids: Vec<u32> = (ids.into_data().iter::<i64>())
        .map(|id| id as u32)
        .collect();
    let rows = ids.chunks(count).zip(found.chunks(count + 1));
    let of_row = |(ids, found): (&[u32], &[f32])| {
        let best = ids.iter().copied().zip(found.iter().copied());
        Reduced {
            best: best.filter(|(_, logit)| logit.is_finite()).collect(),
            partition: f64::from(found[count]),
        }
    };
    rows.map(of_row).collect()
}

/// Whether all logits of a row are numbers below infinity, and one at least above minus infinity.
pub(crate) fn is_sound(row: &[f32]) -> bool {
    // Not left early: so several are looked at with one instruction.
    let look = |(all, any): (bool, bool), &logit: &f32| {
        (
            all & (logit < f32::INFINITY),
            any | (logit > f32::NEG_INFINITY),
        )
    };
    let (all, any) = row.iter().fold((true, false), look);
    all && any
}

/// The indices of the `count` largest entries of a sound row that can be chosen: see [`candidates`].
pub(crate) fn possible(row: &[f32], count: usize) -> Vec<u32> {
    let ids = first_of(row, count).into_iter();
    ids.filter(|&id| row[id].is_finite())
        .map(|id| id as u32)
        .collect()
}

fn log_sum_exp(row: &[f32]) -> f64 {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let sum: f64 = row
        .iter()
        .map(|&logit| (logit as f64 - largest).exp())
        .sum();
    largest + sum.ln()
}

/// `log Σ exp` of each row, computed in f32.
///
/// # Shapes
/// - logits: `[rows, vocab]`, of any type
/// - output: `[rows, 1]`, f32
pub fn log_partition(logits: Tensor<2>) -> Tensor<2> {
    #[cfg(feature = "cube")]
    if has_kernels(&logits) {
        return Tensor::from_dispatch(Dispatch::log_partition(logits.into_dispatch()));
    }
    let logits = logits.cast(DType::F32);
    let largest = logits.clone().max_dim(1);
    (logits - largest.clone()).exp().sum_dim(1).log() + largest
}

/// The `k`th largest entry of each row, of which there are `k` at least: equal ones count each.
///
/// # Shapes
/// - x: `[rows, width]`, f32, no entry of which is no number
/// - output: `[rows, 1]`
///
/// # Panics
/// `k` is 0 or larger than the rows are wide.
pub fn kth_largest(x: Tensor<2>, k: usize) -> Tensor<2> {
    let [rows, width] = x.dims();
    assert!((1..=width).contains(&k), "no entry {k} of {width}");
    #[cfg(feature = "cube")]
    if has_kernels(&x) {
        return Tensor::from_dispatch(Dispatch::kth_of_rows(x.into_dispatch(), k));
    }
    x.topk(k, 1).slice([0..rows, k - 1..k])
}

/// The sum of all squares, `[1]`, f32.
pub fn square_sum(x: Tensor<1>) -> Tensor<1> {
    #[cfg(feature = "cube")]
    if has_kernels(&x) {
        let length = x.dims()[0];
        // Rows that many units share, where the length allows it.
        let width = 1 << length.trailing_zeros().min(LONGEST_ROW.ilog2());
        if width > 1 {
            let rows = x.reshape([length / width, width]);
            let sums = Dispatch::square_sums_of_rows(rows.into_dispatch());
            return Tensor::<2>::from_dispatch(sums).sum();
        }
    }
    x.square().sum()
}

/// Elements of a row of [`square_sum`], at most.
#[cfg(feature = "cube")]
const LONGEST_ROW: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use burn::tensor::Distribution;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::device::test_device;

    fn there<const D: usize>(x: &Tensor<D>) -> Tensor<D> {
        Tensor::from_data(x.to_data(), (&test_device(), DType::F32))
    }

    #[test]
    fn rows_are_reduced_as_by_hand() {
        let sizes = [[1, 3001], [7, 4096], [300, 130], [5, 1], [2, 40_000]];
        let of_types = sizes.map(|sizes| [DType::F32, DType::BF16].map(|dtype| (sizes, dtype)));
        for ([rows, width], dtype) in of_types.into_iter().flatten() {
            let normal = Distribution::Normal(0.0, 3.0);
            let logits = Tensor::<2>::random([rows, width], normal, &Device::flex());
            let logits = logits.cast(dtype);
            let values = host_f32(logits.clone());
            let there = || there(&logits).cast(dtype);
            let best = likeliest(there()).into_data();
            let partitions = log_partition(there());
            assert_eq!(partitions.dtype(), DType::F32);
            let partitions = host_f32(partitions);
            for (nth, (best, found)) in best.iter::<i64>().zip(partitions).enumerate() {
                let row = &values[nth * width..][..width];
                assert_eq!(
                    best as usize,
                    crate::argmax(row),
                    "{rows}x{width} {dtype:?}"
                );
                let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
                assert!((f64::from(found) - sum.ln()).abs() < 1e-4, "{found}");
            }
        }
    }

    #[test]
    fn the_first_of_equal_ones_is_the_likeliest() {
        let mut row = vec![0.5f32; 2000];
        row[700] = 2.0;
        row[1300] = 2.0;
        let least = vec![f32::NEG_INFINITY; 2000];
        let all = [vec![0.0f32; 2000], row, least].concat();
        let logits = Tensor::<2>::from_data(TensorData::new(all, [3, 2000]), &test_device());
        let best = likeliest(logits).into_data();
        assert_eq!(best.iter::<i64>().collect::<Vec<_>>(), [0, 700, 0]);
    }

    #[test]
    fn the_likeliest_of_each_row_are_in_order_and_of_equal_ones_the_first() {
        for [rows, width] in [[1, 1], [37, 517], [2, 40_000]] {
            let normal = Distribution::Normal(0.0, 3.0);
            let x = Tensor::<2>::random([rows, width], normal, &Device::flex());
            // Of bf16, many are equal.
            let x = x.cast(DType::BF16).cast(DType::F32);
            let values = host_f32(x.clone());
            for count in [1, 7, width.min(16)] {
                let count = count.min(width);
                let ways = [
                    likeliest_of_each(x.clone(), count),
                    likeliest_of_each(there(&x), count),
                    taken_out(there(&x), count).0,
                ];
                for found in ways {
                    assert_eq!(found.dims(), [rows, count]);
                    let found: Vec<i64> = found.into_data().iter::<i64>().collect();
                    let rows = values.chunks_exact(width).zip(found.chunks_exact(count));
                    for (row, found) in rows {
                        let mut order: Vec<i64> = (0..width as i64).collect();
                        order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]));
                        assert_eq!(found, &order[..count], "{count} of {width}");
                    }
                }
            }
        }
    }

    /// Rows of which many entries are equal and some are impossible.
    fn coarse(rows: usize, width: usize) -> Vec<f32> {
        let mut rng = StdRng::seed_from_u64(rows as u64);
        let entry = |at: usize| match at % 7 {
            3 => f32::NEG_INFINITY,
            _ => rng.random_range(-8i16..8) as f32 / 4.0,
        };
        (0..rows * width).map(entry).collect()
    }

    /// The finite entries of a row, the largest first and of equal ones the first, by sorting all.
    fn sorted(row: &[f32]) -> Vec<u32> {
        let mut ids: Vec<u32> = (0..row.len() as u32).collect();
        ids.retain(|&id| row[id as usize].is_finite());
        ids.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]));
        ids
    }

    #[test]
    fn candidates_are_the_first_of_all_sorted_with_what_makes_them_likely() {
        for [rows, width] in [[1, 1], [3, 5], [4, 700], [2, 40_000]] {
            let values = coarse(rows, width);
            let data = TensorData::new(values.clone(), [rows, width]);
            for device in [Device::flex(), test_device()] {
                let logits = Tensor::<2>::from_data(data.clone(), &device);
                for count in [1, 7, MOST_TAKEN_OUT, MOST_TAKEN_OUT + 1, 60] {
                    let tokens = candidates(logits.clone(), count).unwrap();
                    let found = log_likelihoods(logits.clone(), count).unwrap();
                    assert_eq!([tokens.len(), found.len()], [rows, rows]);
                    let all = values.chunks_exact(width).zip(tokens).zip(found);
                    for ((row, tokens), found) in all {
                        let mut expected = sorted(row);
                        expected.truncate(count);
                        assert_eq!(tokens, expected, "{count} of {width}");
                        let total = log_sum_exp(row);
                        for (&(token, value), expected) in found.iter().zip(&expected) {
                            let exact = f64::from(row[*expected as usize]) - total;
                            let bound = if is_cpu(&device) { 0.0 } else { 1e-4 };
                            assert_eq!(token, *expected, "{count} of {width}");
                            assert!((value - exact).abs() <= bound, "{value}, not {exact}");
                        }
                        assert_eq!(found.len(), expected.len());
                    }
                }
            }
        }
    }

    #[test]
    fn rows_that_are_no_logits_have_no_candidates() {
        let least = f32::NEG_INFINITY;
        for (others, odd, is_sound) in [
            (0.5, 1.0, true),
            (0.5, least, true),
            (least, 1.0, true),
            (0.5, f32::NAN, false),
            (0.5, -f32::NAN, false),
            (least, f32::NAN, false),
            (0.5, f32::INFINITY, false),
            (least, least, false),
        ] {
            let mut values = vec![0.25; 60];
            values[30..].fill(others);
            values[47] = odd;
            let data = TensorData::new(values, [2, 30]);
            for device in [Device::flex(), test_device()] {
                let logits = Tensor::<2>::from_data(data.clone(), &device);
                for count in [2, 20] {
                    let what = format!("{odd} among {others}, {count}");
                    let found = candidates(logits.clone(), count);
                    assert_eq!(found.is_some(), is_sound, "{what}");
                    let found = log_likelihoods(logits.clone(), count);
                    assert_eq!(found.is_some(), is_sound, "{what}");
                }
            }
        }
    }

    #[test]
    fn the_first_are_found_in_rising_and_falling_rows_and_in_rows_of_one_number() {
        let rising: Vec<f32> = (0..500).map(|at| at as f32).collect();
        let falling: Vec<f32> = rising.iter().rev().copied().collect();
        for row in [rising, falling, vec![0.5; 500]] {
            let all = sorted(&row);
            for count in [0, 1, 2, 9, 250, 499, 500, 700] {
                let expected = &all[..count.min(500)];
                assert_eq!(possible(&row, count), expected, "{count}");
            }
        }
    }

    #[test]
    fn the_kth_largest_is_found_among_equal_ones_and_on_both_sides_of_zero() {
        for [rows, width] in [[5, 1], [37, 517], [3, 4096], [2, 40_000]] {
            let normal = Distribution::Normal(0.0, 3.0);
            let x = Tensor::<2>::random([rows, width], normal, &Device::flex());
            // Of bf16, many are equal.
            let x = x.cast(DType::BF16).cast(DType::F32);
            let values = host_f32(x.clone());
            for k in [1, 2, 10, width / 2, width] {
                let k = k.clamp(1, width);
                let found = host_f32(kth_largest(there(&x), k));
                for (row, found) in values.chunks_exact(width).zip(found) {
                    let mut sorted = row.to_vec();
                    sorted.sort_by(|a, b| b.total_cmp(a));
                    assert_eq!(found, sorted[k - 1], "{k} of {width}");
                }
            }
        }
    }

    #[test]
    fn squares_are_all_summed() {
        for length in [1, 3, 96, 300 * 17, 1 << 16, 3 << 15] {
            let normal = Distribution::Normal(0.0, 1.0);
            let x = Tensor::<1>::random([length], normal, &Device::flex());
            let values = host_f32(x.clone());
            let expected: f64 = values.iter().map(|&x| f64::from(x).powi(2)).sum();
            let found = f64::from(host_f32(square_sum(there(&x)))[0]);
            assert!((found - expected).abs() <= 1e-4 * expected, "{length}");
        }
    }
}

//! Reductions over rows. Burn tunes its own on a GPU, anew for each shape; here kernels stand in for those that cost most.
use burn::prelude::*;
use burn::tensor::IndexingUpdateOp;
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
        return taken_out(logits, count);
    }
    let values = host_f32(logits);
    let ids = values.par_chunks(vocab);
    let ids: Vec<i64> = ids.flat_map_iter(|row| first_of(row, count)).collect();
    Tensor::<1, Int>::from_ints(ids.as_slice(), &device).reshape([rows, count])
}

/// See [`likeliest_of_each`]: of one row, on the host.
fn first_of(row: &[f32], count: usize) -> Vec<i64> {
    let before = |a: &usize, b: &usize| row[*b].total_cmp(&row[*a]).then(a.cmp(b));
    let mut ids: Vec<usize> = (0..row.len()).collect();
    if count < row.len() {
        ids.select_nth_unstable_by(count - 1, before);
        ids.truncate(count);
    }
    ids.sort_by(before);
    ids.into_iter().map(|id| id as i64).collect()
}

/// See [`likeliest_of_each`]: a device sorts whole rows, so the largest ones are taken out one after the other. Waits for nothing.
fn taken_out(logits: Tensor<2>, count: usize) -> Tensor<2, Int> {
    let [rows, _] = logits.dims();
    let mut left = logits;
    let mut found: Vec<Tensor<2, Int>> = Vec::with_capacity(count);
    for _ in 0..count {
        let best = likeliest(left.clone());
        let out = Tensor::full([rows, 1], f32::NEG_INFINITY, (&left.device(), left.dtype()));
        left = left.scatter(1, best.clone(), out, IndexingUpdateOp::Add);
        found.push(best);
    }
    Tensor::cat(found, 1)
}

/// `log Σ exp` of each row.
///
/// # Shapes
/// - logits: `[rows, vocab]`
/// - output: `[rows, 1]`, f32
pub fn log_partition(logits: Tensor<2>) -> Tensor<2> {
    #[cfg(feature = "cube")]
    if has_kernels(&logits) {
        return Tensor::from_dispatch(Dispatch::log_partition(logits.into_dispatch()));
    }
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
    use burn::tensor::{DType, Distribution};

    use super::*;
    use crate::device::test_device;

    fn there<const D: usize>(x: &Tensor<D>) -> Tensor<D> {
        Tensor::from_data(x.to_data(), (&test_device(), DType::F32))
    }

    #[test]
    fn rows_are_reduced_as_by_hand() {
        for [rows, width] in [[1, 3001], [7, 4096], [300, 130], [5, 1], [2, 40_000]] {
            let normal = Distribution::Normal(0.0, 3.0);
            let logits = Tensor::<2>::random([rows, width], normal, &Device::flex());
            let values = host_f32(logits.clone());
            let best = likeliest(there(&logits)).into_data();
            let partitions = host_f32(log_partition(there(&logits)));
            for (nth, (best, found)) in best.iter::<i64>().zip(partitions).enumerate() {
                let row = &values[nth * width..][..width];
                assert_eq!(best as usize, crate::argmax(row), "{rows}x{width}");
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
                    taken_out(there(&x), count),
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

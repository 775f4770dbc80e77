//! Single operations on the device of tests beside the CPU in f32, in f32 and in bf16. `SPECTRAIN_TEST_SIZES=real` takes the shapes
//! of an 8B target, odd numbers of rows among them, in place of small ones.
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::prelude::*;
use burn::tensor::{DType, IndexingUpdateOp};
use spectrain_models::device::test_device;
use spectrain_models::weights::host_f32;

/// Rows of a large result that are compared.
const SAMPLED: usize = 24;

/// Shapes to try.
struct Sizes {
    rows: &'static [usize],
    inner: usize,
    outer: usize,
    vocab: usize,
}

const SMALL: Sizes = Sizes {
    rows: &[1, 7, 64, 129],
    inner: 96,
    outer: 80,
    vocab: 3001,
};

const REAL: Sizes = Sizes {
    rows: &[1, 7, 64, 441, 1237, 2097, 8192],
    inner: 4096,
    outer: 12_288,
    vocab: 151_936,
};

fn sizes() -> Sizes {
    match env::var("SPECTRAIN_TEST_SIZES").as_deref() {
        Err(_) | Ok("small") => SMALL,
        Ok("real") => REAL,
        Ok(other) => panic!("SPECTRAIN_TEST_SIZES: expected small or real, found {other}"),
    }
}

/// Numbers that are the same on every device, as `dtype` holds them.
fn numbers<const D: usize>(shape: [usize; D], dtype: DType, seed: u64) -> TensorData {
    let length: usize = shape.iter().product();
    let rounded = |x: f32| match dtype {
        DType::BF16 => half_rounded(x),
        _ => x,
    };
    let values: Vec<f32> = (0..length as u64)
        .map(|at| rounded(scattered(at ^ (seed << 40)) * 2.0 - 1.0))
        .collect();
    TensorData::new(values, shape)
}

/// A number in `[0, 1)` that looks drawn, made at once: there are hundreds of millions to make.
fn scattered(at: u64) -> f32 {
    let mut x = at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x >> 40) as f32 / (1u64 << 24) as f32
}

/// The nearest number of bf16.
fn half_rounded(x: f32) -> f32 {
    let bits = x.to_bits();
    let even = (bits >> 16) & 1;
    f32::from_bits((bits + 0x7fff + even) & 0xffff_0000)
}

/// Where an operation is done.
struct Place {
    device: Device,
    dtype: DType,
    /// Whether this is what others are compared with: the CPU in f32.
    is_reference: bool,
}

impl Place {
    /// These numbers, in its type.
    fn tensor<const D: usize>(&self, data: &TensorData) -> Tensor<D> {
        let there = (&self.device, DType::F32);
        Tensor::<D>::from_data(data.clone(), there).cast(self.dtype)
    }

    fn integers(&self, values: &[i64]) -> Tensor<1, Int> {
        Tensor::from_ints(values, &self.device)
    }
}

/// What was found of some operations.
#[derive(Default)]
struct Findings(Vec<String>);

impl Findings {
    /// Does an operation on the device in `dtype` and on the CPU in f32, and compares. A panic there is a finding too.
    fn compare(&mut self, what: &str, dtype: DType, most: f32, run: impl Fn(&Place) -> Vec<f32>) {
        let expected = run(&Place {
            device: Device::flex(),
            dtype: DType::F32,
            is_reference: true,
        });
        let place = Place {
            device: test_device(),
            dtype,
            is_reference: false,
        };
        let found = catch_unwind(AssertUnwindSafe(|| run(&place)));
        let name = format!("{what}, {dtype:?}");
        let Ok(found) = found else {
            return self.0.push(format!("{name}: it panics"));
        };
        if found.len() != expected.len() {
            let (found, expected) = (found.len(), expected.len());
            return self
                .0
                .push(format!("{name}: {found} elements, not {expected}"));
        }
        let finite = |x: &&f32| x.is_finite();
        let largest = expected
            .iter()
            .filter(finite)
            .fold(0.0, |most: f32, x| most.max(x.abs()));
        let apart = found.iter().zip(&expected).map(|(a, b)| {
            // Equal infinities are not apart, and what is no number is as far apart as can be.
            if a == b { 0.0 } else { (a - b).abs() }
        });
        let apart = apart.fold(0.0, |most: f32, x| match most.is_nan() || x <= most {
            true => most,
            false => x,
        });
        let share = apart / largest.max(f32::MIN_POSITIVE);
        println!("{name}: {share:.1e} of the largest");
        // Written so that NaN fails.
        let agrees = share <= most;
        if !agrees {
            self.0.push(format!(
                "{name}: {apart} apart, of at most {largest}: {share:.1e}, not {most:.1e}"
            ));
        }
    }

    fn report(self) {
        assert!(self.0.is_empty(), "\n{}", self.0.join("\n"));
    }
}

/// Both types, each with the share of the largest element by which sums of products may be off: f32 may be TF32.
const TYPES: [(DType, f32); 2] = [(DType::F32, 2e-3), (DType::BF16, 2e-2)];
/// What does not compute may round to bf16 and no more.
const MOVED: f32 = 0.0;

/// Some of `rows`, the first and the last among them.
fn sample(rows: usize) -> Vec<i64> {
    let taken = rows.min(SAMPLED);
    let place = |at: usize| at * (rows - 1) / (taken - 1).max(1);
    (0..taken).map(|at| place(at) as i64).collect()
}

/// How the factors of a product lie.
#[derive(Debug, Clone, Copy)]
enum Lies {
    /// Both as they are.
    Plain,
    /// The right one transposed, as in the scores of attention.
    RightTurned,
    /// The left one transposed, as in a gradient of weights.
    LeftTurned,
}

/// Sampled rows of a product: on the CPU only these are computed.
fn product(lies: Lies, [rows, inner, outer]: [usize; 3], dtype: DType, at: &Place) -> Vec<f32> {
    let (left, right) = (
        numbers([rows, inner], dtype, 1),
        numbers([inner, outer], dtype, 2),
    );
    let (left, right): (Tensor<2>, Tensor<2>) = (at.tensor(&left), at.tensor(&right));
    let sampled = at.integers(&sample(rows));
    if at.is_reference {
        let left = left.select(0, sampled).cast(DType::F32);
        return host_f32(left.matmul(right.cast(DType::F32)));
    }
    // Made to lie so, not only seen so.
    let turned = |x: Tensor<2>| {
        let x = x.transpose();
        (x.clone() + x.zeros_like()).transpose()
    };
    let made = match lies {
        Lies::Plain => spectrain_models::product(left, right),
        Lies::RightTurned => spectrain_models::product(left, turned(right)),
        Lies::LeftTurned => spectrain_models::product(turned(left), right),
    };
    host_f32(made.select(0, sampled).cast(DType::F32))
}

#[test]
fn products_are_those_of_the_cpu() {
    let (sizes, mut findings) = (sizes(), Findings::default());
    for (dtype, most) in TYPES {
        for &rows in sizes.rows {
            for lies in [Lies::Plain, Lies::RightTurned, Lies::LeftTurned] {
                for shape in [
                    [rows, sizes.inner, sizes.outer],
                    [rows, sizes.outer, sizes.inner],
                ] {
                    let what = format!("product {lies:?} {shape:?}");
                    findings.compare(&what, dtype, most, |at| product(lies, shape, dtype, at));
                }
            }
        }
    }
    findings.report();
}

#[test]
fn softmax_with_hidden_places_and_casts_are_those_of_the_cpu() {
    let (sizes, mut findings) = (sizes(), Findings::default());
    for (dtype, most) in TYPES {
        for &rows in sizes.rows {
            let data = numbers([rows, 2 * rows + 1], dtype, 3);
            findings.compare(&format!("softmax of {rows} rows"), dtype, most, |at| {
                let scores: Tensor<2> = at.tensor(&data);
                let hidden = Tensor::<1, Int>::arange(0..scores.dims()[1] as i64, &at.device)
                    .unsqueeze::<2>()
                    .greater(
                        Tensor::<1, Int>::arange(0..rows as i64, &at.device).unsqueeze_dim::<2>(1),
                    );
                let scores = scores.mask_fill(hidden, f32::NEG_INFINITY);
                let weights = burn::tensor::activation::softmax(scores.cast(DType::F32), 1);
                host_f32(weights.cast(at.dtype).cast(DType::F32))
            });
        }
        let data = numbers([sizes.inner, 33], DType::F32, 4);
        // A cast to bf16 rounds to the nearest, and to even where there are two.
        let values = data.iter::<f32>();
        let rounded: Vec<f32> = match dtype {
            DType::BF16 => values.map(half_rounded).collect(),
            _ => values.collect(),
        };
        findings.compare("cast", dtype, MOVED, |at| {
            if at.is_reference {
                return rounded.clone();
            }
            host_f32(at.tensor::<2>(&data).cast(DType::F32))
        });
    }
    findings.report();
}

#[test]
fn rows_are_moved_as_on_the_cpu() {
    let (sizes, mut findings) = (sizes(), Findings::default());
    let width = sizes.inner;
    for (dtype, most) in TYPES {
        for &rows in sizes.rows {
            let data = numbers([rows, width], dtype, 5);
            // Some more than once, some not at all.
            let places: Vec<i64> = (0..rows).map(|at| (at * at % rows) as i64).collect();
            let table = move |at: &Place| at.tensor::<2>(&data);
            findings.compare(&format!("select {rows}"), dtype, MOVED, |at| {
                let taken = table(at).select(0, at.integers(&places));
                host_f32(taken.cast(DType::F32))
            });
            // As many to one place as a sum in bf16 still tells apart.
            let few: Vec<i64> = (0..rows).map(|at| (at - at % 4) as i64).collect();
            findings.compare(&format!("select_assign {rows}"), dtype, most, |at| {
                let x = table(at);
                let sums =
                    x.zeros_like()
                        .select_assign(0, at.integers(&few), x, IndexingUpdateOp::Add);
                host_f32(sums.cast(DType::F32))
            });
            findings.compare(&format!("scatter {rows}"), dtype, most, |at| {
                let x = table(at);
                let index = at.integers(&few).unsqueeze_dim::<2>(1).repeat_dim(1, width);
                let sums = x.zeros_like().scatter(0, index, x, IndexingUpdateOp::Add);
                host_f32(sums.cast(DType::F32))
            });
            findings.compare(&format!("gather {rows}"), dtype, MOVED, |at| {
                let index = at
                    .integers(&places)
                    .unsqueeze_dim::<2>(1)
                    .repeat_dim(1, width);
                host_f32(table(at).gather(0, index).cast(DType::F32))
            });
            findings.compare(
                &format!("cat and slice_assign {rows}"),
                dtype,
                MOVED,
                |at| {
                    let x = table(at);
                    let both = Tensor::cat(vec![x.clone(), -x.clone()], 0);
                    let inner = x.clone().slice([0..rows, 0..width / 2]);
                    let both =
                        both.slice_assign([rows / 2..rows / 2 + rows, 1..1 + width / 2], inner);
                    host_f32(both.cast(DType::F32))
                },
            );
        }
    }
    findings.report();
}

#[test]
fn the_likeliest_tokens_are_those_of_the_cpu() {
    let (sizes, mut findings) = (sizes(), Findings::default());
    for (dtype, most) in TYPES {
        for &rows in sizes.rows.iter().filter(|&&rows| rows <= 64) {
            // The largest is told apart from all others in bf16 too.
            let mut data = numbers([rows, sizes.vocab], dtype, 6);
            let best: Vec<usize> = (0..rows)
                .map(|row| (row * 7919 + 17) % sizes.vocab)
                .collect();
            let values = data.as_mut_slice::<f32>().unwrap();
            for (row, &place) in best.iter().enumerate() {
                values[row * sizes.vocab + place] = 2.0;
            }
            let logits = move |at: &Place| at.tensor::<2>(&data);
            findings.compare(&format!("argmax of {rows}"), dtype, MOVED, |at| {
                let found = logits(at).argmax(1).into_data();
                found.iter::<i64>().map(|place| place as f32).collect()
            });
            findings.compare(&format!("top 8 of {rows}"), dtype, MOVED, |at| {
                host_f32(logits(at).topk(8, 1).cast(DType::F32))
            });
            findings.compare(&format!("logarithms of {rows}"), dtype, most, |at| {
                let logits = logits(at).cast(DType::F32);
                host_f32(burn::tensor::activation::log_softmax(logits, 1))
            });
        }
    }
    findings.report();
}

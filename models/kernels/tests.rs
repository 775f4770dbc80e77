use burn::backend::flex::FlexTensor;
use burn::backend::ops::FloatTensorOps as _;
use burn::backend::{Autodiff, AutodiffBackend, Flex};
use burn::tensor::activation::{silu, softmax as of_formula};

use super::*;
use crate::device::{bound_of_products, test_device};
use crate::kernels::columns::{ColumnGradients as _, by_operations};
use crate::kernels::operations::Backwards as _;
use crate::products::product;
use crate::sight::{AtATime, Sight};
use crate::weights::host_f32;

/// Numbers in `[-3, 3]` on the device of tests.
fn numbers<const D: usize>(shape: [usize; D], dtype: DType, seed: usize) -> Tensor<D> {
    let length: usize = shape.iter().product();
    let values: Vec<f32> = (0..length)
        .map(|i| ((i * 7919 + seed * 104_729) % 6007) as f32 / 1001.0 - 3.0)
        .collect();
    Tensor::<D>::from_data(TensorData::new(values, shape), &test_device()).cast(dtype)
}

/// The largest difference from `expected`, as a share of its largest number.
fn difference<const D: usize>(got: Tensor<D>, expected: Tensor<D>) -> f32 {
    assert_eq!(got.dims(), expected.dims());
    let [got, expected] = [got, expected].map(host_f32);
    let largest = expected.iter().fold(1e-30f32, |most, x| most.max(x.abs()));
    let pairs = got.iter().zip(&expected);
    pairs.fold(0.0, |most, (got, expected)| {
        assert!(got.is_finite(), "{got} in place of {expected}");
        most.max((got - expected).abs() / largest)
    })
}

/// What a type rounds to, of sums of products.
fn tolerance(dtype: DType) -> f32 {
    if dtype == DType::F32 { 3e-6 } else { 2e-2 }
}

/// The same where a kernel multiplies matrices.
fn tolerance_of_products(dtype: DType) -> f32 {
    bound_of_products(tolerance(dtype))
}

/// Compares the values of a kernel and of its formula, and the gradients with respect to both arguments, in both types.
/// The formula is computed in f32 from what the type holds.
fn compare<const A: usize, const B: usize, const C: usize>(
    shapes: ([usize; A], [usize; B]),
    kernel: impl Fn(Tensor<A>, Tensor<B>) -> Tensor<C>,
    formula: impl Fn(Tensor<A>, Tensor<B>) -> Tensor<C>,
) {
    compare_within(tolerance, shapes, kernel, formula);
}

/// The same, within what `tolerance` allows.
fn compare_within<const A: usize, const B: usize, const C: usize>(
    tolerance: impl Fn(DType) -> f32,
    shapes: ([usize; A], [usize; B]),
    kernel: impl Fn(Tensor<A>, Tensor<B>) -> Tensor<C>,
    formula: impl Fn(Tensor<A>, Tensor<B>) -> Tensor<C>,
) {
    for dtype in [DType::F32, DType::BF16] {
        let inputs = (numbers(shapes.0, dtype, 1), numbers(shapes.1, dtype, 2));
        let out = kernel(inputs.0.clone(), inputs.1.clone());
        assert_eq!(out.dtype(), dtype);
        let wide = (
            inputs.0.clone().cast(DType::F32),
            inputs.1.clone().cast(DType::F32),
        );
        let expected = formula(wide.0.clone(), wide.1.clone());
        let apart = difference(out, expected.clone());
        assert!(apart < tolerance(dtype), "{shapes:?} in {dtype:?}: {apart}");
        let weights = numbers(expected.dims(), DType::F32, 3).autodiff();
        let leaves = (
            inputs.0.autodiff().require_grad(),
            inputs.1.autodiff().require_grad(),
        );
        let out = kernel(leaves.0.clone(), leaves.1.clone());
        let got = (out.cast(DType::F32) * weights.clone()).sum().backward();
        let wide = (
            wide.0.autodiff().require_grad(),
            wide.1.autodiff().require_grad(),
        );
        let expected = (formula(wide.0.clone(), wide.1.clone()) * weights)
            .sum()
            .backward();
        let apart = [
            difference(
                leaves.0.grad(&got).unwrap(),
                wide.0.grad(&expected).unwrap(),
            ),
            difference(
                leaves.1.grad(&got).unwrap(),
                wide.1.grad(&expected).unwrap(),
            ),
        ];
        let most = 4.0 * tolerance(dtype);
        assert!(
            apart.iter().all(|&x| x < most),
            "{shapes:?} in {dtype:?}: gradients {apart:?}"
        );
    }
}

#[test]
fn products_are_those_of_the_formula() {
    // Without Burn's products, which a GPU would tune.
    let formula = |x: Tensor<3>, y: Tensor<3>| {
        let terms = x.unsqueeze_dim::<4>(3) * y.unsqueeze_dim(1);
        terms.sum_dim(2).squeeze_dim::<3>(2)
    };
    // Rows few and many, four times the columns and a quarter of them, sides of no round number.
    for [rows, inner, columns] in [[1, 64, 48], [7, 33, 129], [320, 64, 48], [48, 80, 320]] {
        let shapes = ([2, rows, inner], [2, inner, columns]);
        compare_within(tolerance_of_products, shapes, product, formula);
        // Seen from the other side, as the factors of a backward pass are.
        compare_within(
            tolerance_of_products,
            ([2, inner, rows], [2, columns, inner]),
            |x: Tensor<3>, y: Tensor<3>| product(x.swap_dims(1, 2), y.swap_dims(1, 2)),
            |x, y| formula(x.swap_dims(1, 2), y.swap_dims(1, 2)),
        );
    }
}

#[test]
fn norms_have_the_values_and_the_gradients_of_their_formula() {
    for (rows, width) in [(1, 64), (7, 48), (130, 96), (300, 33), (2, 4100)] {
        compare(
            ([1, rows, width], [width]),
            |x, weight| rms_norm(x, weight, 1e-6),
            |x, weight| {
                let mean = x.clone().square().mean_dim(2);
                x * (mean + 1e-6).sqrt().recip() * weight.unsqueeze()
            },
        );
    }
}

#[test]
fn swiglu_has_the_values_and_the_gradients_of_its_formula() {
    for shape in [[1, 1, 8], [3, 7, 33], [2, 301, 96]] {
        compare(
            (shape, shape),
            |gate, up| swiglu(gate * 9.0, up),
            |gate, up| silu(gate * 9.0) * up,
        );
    }
    let far = Tensor::<1>::from_floats([-200.0, -88.0, 88.0, 200.0], &test_device());
    let got = host_f32(super::silu(far));
    assert_eq!(got[2..], [88.0, 200.0]);
    assert!(got[..2].iter().all(|x| x.abs() < 1e-30), "{got:?}");
}

#[test]
fn rotations_have_the_values_and_the_gradients_of_their_formula_wherever_heads_stand() {
    for (batch, heads, seq, d_head) in [(1, 1, 1, 2), (2, 3, 5, 8), (2, 2, 301, 64), (1, 3, 7, 6)] {
        for rotations in [1, batch] {
            let angle = numbers([rotations, 1, seq, d_head / 2], DType::F32, 5);
            let on = |x: &Tensor<4>| {
                let lifted = |y: Tensor<4>| if x.is_autodiff() { y.autodiff() } else { y };
                (lifted(angle.clone().cos()), lifted(angle.clone().sin()))
            };
            // Heads beside one another in a row of a position, as projections give them.
            compare(
                ([batch, seq, heads, d_head], [1]),
                |x, one| {
                    let (cos, sin) = on(&x);
                    rotate(x.swap_dims(1, 2), cos, sin) * one.unsqueeze()
                },
                |x, one| {
                    let (cos, sin) = on(&x);
                    let x = x.swap_dims(1, 2);
                    let lower = x.clone().narrow(3, 0, d_head / 2);
                    let upper = x.narrow(3, d_head / 2, d_head / 2);
                    let turned = vec![
                        lower.clone() * cos.clone() - upper.clone() * sin.clone(),
                        upper * cos + lower * sin,
                    ];
                    Tensor::cat(turned, 3) * one.unsqueeze()
                },
            );
        }
    }
}

/// A mask `[masks, 1, rows, keys]` that hides some keys from each row, and all but one from one row.
fn mask(masks: usize, rows: usize, keys: usize) -> Tensor<4> {
    let hides = |i: usize| match i / keys {
        1 => i % keys != 2,
        row => (i % keys * 37 + row) % 7 == 3,
    };
    let values: Vec<f32> = (0..masks * rows * keys)
        .map(|i| if hides(i) { f32::NEG_INFINITY } else { 0.0 })
        .collect();
    Tensor::from_data(
        TensorData::new(values, [masks, 1, rows, keys]),
        &test_device(),
    )
}

/// Its rows, each repeated.
fn repeated(mask: &Tensor<4>, times: usize) -> Tensor<4> {
    let [masks, _, rows, keys] = mask.dims();
    mask.clone()
        .reshape([masks, rows, 1, keys])
        .repeat_dim(2, times)
        .reshape([masks, 1, rows * times, keys])
}

#[test]
fn attention_weights_have_the_values_and_the_gradients_of_their_formula() {
    // In the type of the weights, and in f32, as wide products give them.
    let of_scores: [fn(Tensor<4>) -> Tensor<4>; 2] = [|x| x, |x| x.cast(DType::F32)];
    for (batch, heads, rows, keys, sharing) in [
        (1, 1, 1, 9, 1),
        (2, 3, 5, 41, 1),
        (2, 2, 12, 301, 4),
        (1, 2, 6, 64, 2),
    ] {
        for masks in [1, batch] {
            let mask = mask(masks, rows / sharing, keys);
            let whole = repeated(&mask, sharing);
            for scores in of_scores {
                compare(
                    ([batch, heads, rows, keys], [1]),
                    |x, one| {
                        let (mask, dtype) = (beside(&mask, &x), x.dtype());
                        softmax(scores(x), Some(&mask), 0.75, dtype) * one.unsqueeze()
                    },
                    |x, one| of_formula(x.clone() * 0.75 + beside(&whole, &x), 3) * one.unsqueeze(),
                );
            }
        }
        for scores in of_scores {
            compare(
                ([batch, heads, rows, keys], [1]),
                |x, one| softmax(scores(x.clone()), None, 0.75, x.dtype()) * one.unsqueeze(),
                |x, one| of_formula(x * 0.75, 3) * one.unsqueeze(),
            );
        }
    }
}

/// The keys that a place sees, one by one: those that are not behind it where it looks `back`, nor far before it, and not every seventh of
/// them; the third place one alone.
fn some_keys(masks: usize, [rows, keys]: [usize; 2], back: bool) -> Sight {
    let sees = |row: usize, key: usize| match row % rows {
        2 => key == 1,
        own if back => key == own || (key < own && key + 200 > own && (row * 37 + key) % 7 != 3),
        own => (key * 37 + row) % 7 != 3 && key >= own % 11,
    };
    let of_row = |row: usize| {
        let seen = (0..keys).filter(|&key| sees(row, key));
        seen.map(|key| key..key + 1).collect::<Vec<_>>()
    };
    Sight::new([rows, keys], (0..masks * rows).map(of_row))
}

/// In the graph of another tensor, where that is in one.
fn beside<const D: usize, const E: usize>(x: &Tensor<D>, other: &Tensor<E>) -> Tensor<D> {
    match other.is_autodiff() && !x.is_autodiff() {
        true => x.clone().autodiff(),
        false => x.clone(),
    }
}

/// What is attended to.
struct Attended {
    mask: Mask,
    /// Its entries, with a row for each query.
    whole: Tensor<4>,
    some: AtATime,
    /// Score of one key more, whose value is 0.
    more: Tensor<4>,
    /// What the other scores are multiplied by.
    scale: f32,
}

impl Attended {
    fn by_kernel(&self, [query, key, value]: [Tensor<4>; 3]) -> Tensor<4> {
        let more = beside(&self.more, &query);
        let dtype = query.dtype();
        let mask = self.mask.on(&query.device());
        let keys_values = (beside(&key, &query), beside(&value, &query));
        let floor = Some(more.clone());
        let found = gather_some(query, keys_values, &mask, floor, self.scale, self.some);
        let d_head = found.sums.dims()[3] - 1;
        let sum = found.sums.clone().narrow(3, d_head, 1) + (more - found.largest).exp();
        (found.sums.narrow(3, 0, d_head) / sum).cast(dtype)
    }

    fn by_formula(&self, [query, key, value]: [Tensor<4>; 3]) -> Tensor<4> {
        let (mask, more) = (beside(&self.whole, &query), beside(&self.more, &query));
        let heads = query.dims()[1];
        let for_heads = |x: Tensor<4>| {
            let [batch, kv_heads, keys, d_head] = x.dims();
            beside(&x, &query)
                .unsqueeze_dim::<5>(2)
                .repeat_dim(2, heads / kv_heads)
                .reshape([batch, heads, keys, d_head])
        };
        let [key, value] = [key, value].map(for_heads);
        let keys = key.dims()[2];
        let scores = product(query.clone() * self.scale, key.swap_dims(2, 3)) + mask;
        let weights = of_formula(Tensor::cat(vec![scores, more], 3), 3);
        product(weights.narrow(3, 0, keys), value)
    }
}

/// Cases that only the CPU computes in seconds: CubeCL's runtime on a CPU multiplies matrices for minutes.
fn at_once<T, const N: usize>(large: [T; N]) -> impl Iterator<Item = T> {
    let is_cpu = crate::device::is_cpu(&test_device());
    large.into_iter().filter(move |_| is_cpu)
}

#[test]
fn keys_outside_of_the_ranges_of_a_row_weigh_nothing_wherever_its_block_begins() {
    let (batch, heads, rows, keys, sharing) = (2, 3, 12, 41, 4);
    for (masks, first) in [(1, 0), (batch, 0), (batch, 9)] {
        let sight = some_keys(masks, [rows / sharing, first + keys], false);
        let mask = Mask::new(sight, &test_device());
        let scores = numbers([batch, heads, rows, keys], DType::F32, 1);
        let floor = numbers([batch, heads, rows, 1], DType::F32, 2);
        let seen = repeated(&mask.entries().clone().narrow(3, first, keys), sharing);
        let scale = 0.5f32;
        let masked = scores.clone() * scale + seen;
        let largest = masked.clone().max_dim(3).max_pair(floor.clone());
        let expected = (masked - largest.clone()).exp();
        let ranges = mask.ranges().clone();
        // Alone, and as parts of what more queries have.
        let part = |x: &Tensor<4>| {
            let [_, _, own, _] = x.dims();
            let more = x.clone().repeat_dim(2, 128 / own + 1).narrow(2, 0, 128);
            let all = Tensor::cat(vec![more, x.clone(), x.clone() + 1.0], 2);
            all.narrow(2, 128, own)
        };
        let parts = [part(&ranges), part(&floor)];
        for [ranges, floor] in [[ranges, floor], parts] {
            let given = [scores.clone(), ranges, floor];
            let [scores, ranges, floor] = given.map(Tensor::into_dispatch);
            let (found, of_found) =
                Dispatch::exponentials(scores, ranges, floor, first, scale, DType::F32);
            let what = format!("{masks} masks, from {first}");
            let apart = difference(Tensor::<4>::from_dispatch(of_found), largest.clone());
            assert!(apart == 0.0, "{what}: largest {apart}");
            let apart = difference(Tensor::<4>::from_dispatch(found), expected.clone());
            assert!(apart < 1e-6, "{what}: {apart}");
        }
    }
}

#[test]
fn gathered_values_and_their_gradients_are_those_of_the_formula() {
    let small = [
        (2, [3, 3], 5, 41, 1, 8),
        (2, [4, 2], 20, 11, 4, 9),
        (1, [4, 1], 19, 19, 1, 8),
    ];
    // On `cube` they would take minutes.
    let large = [
        (2, [4, 2], 300, 83, 4, AtATime::CPU.queries),
        (1, [4, 1], 301, 301, 1, AtATime::CPU.queries),
    ];
    for (batch, [heads, kv_heads], rows, keys, sharing, queries) in
        small.into_iter().chain(at_once(large))
    {
        let back = rows == keys;
        for (masks, sequences, gap, aligned) in
            [(1, 1, 64, 1), (batch, 1, 0, 1), (batch, usize::MAX, 3, 16)]
        {
            let sight = some_keys(masks, [rows / sharing, keys], back);
            let mask = Mask::new(sight, &test_device());
            let attended = Attended {
                whole: repeated(mask.entries(), sharing),
                mask,
                some: AtATime {
                    queries,
                    sequences,
                    gap,
                    aligned,
                },
                // Above the largest score of some rows, below that of others.
                more: numbers([batch, heads, rows, 1], DType::F32, 7),
                scale: 0.125,
            };
            let (of_query, of_key) = ([batch, heads, rows, 8], [batch, kv_heads, keys, 8]);
            let as_query = |x: &Tensor<4>| numbers(of_query, x.dtype(), 4);
            let as_key = |x: &Tensor<4>| numbers(of_key, x.dtype(), 5);
            compare_within(
                tolerance_of_products,
                (of_query, of_key),
                |query, key| {
                    let value = as_key(&query);
                    attended.by_kernel([query, key, value])
                },
                |query, key| {
                    let value = as_key(&query);
                    attended.by_formula([query, key, value])
                },
            );
            compare_within(
                tolerance_of_products,
                (of_key, of_key),
                |key, value| attended.by_kernel([beside(&as_query(&key), &key), key, value]),
                |key, value| attended.by_formula([beside(&as_query(&key), &key), key, value]),
            );
        }
    }
}

/// Heads, key heads, rows and width of queries whose scores are some 72: in bf16 they would be off by up to 1/4, and their weights by a
/// quarter.
const FAR: ([usize; 2], usize, usize) = ([2, 1], 20, 8);

/// What they attend to, in blocks of so many queries.
fn far_from_zero(queries: usize) -> Attended {
    let ([heads, _], rows, _) = FAR;
    let mask = Mask::new(some_keys(1, [rows, rows], true), &test_device());
    Attended {
        whole: mask.entries().clone(),
        mask,
        some: AtATime {
            queries,
            sequences: 1,
            gap: 64,
            aligned: 1,
        },
        more: numbers([1, heads, rows, 1], DType::F32, 7),
        scale: 0.25,
    }
}

/// Queries or keys with what they have in common, which adds the same to all scores.
fn moved(x: Tensor<4>) -> Tensor<4> {
    let common = x.ones_like() * 6.0;
    Tensor::cat(vec![x, common], 3)
}

#[test]
fn scores_far_from_zero_are_exact_in_every_type() {
    let ([heads, kv_heads], rows, width) = FAR;
    let attended = far_from_zero(4);
    let [of_query, of_key] = [heads, kv_heads].map(|heads| [1, heads, rows, width]);
    let of_value = [1, kv_heads, rows, 2 * width];
    // What every type holds.
    let as_query = |x: &Tensor<4>| numbers(of_query, DType::BF16, 1).cast(x.dtype());
    let as_value = |x: &Tensor<4>| numbers(of_value, DType::BF16, 6).cast(x.dtype());
    let most = |dtype| match dtype {
        DType::F32 => bound_of_products(1e-4),
        _ => 6e-3,
    };
    compare_within(
        most,
        (of_query, of_key),
        |query, key| {
            let value = as_value(&query);
            attended.by_kernel([moved(query), moved(key), value])
        },
        |query, key| {
            let value = as_value(&query);
            attended.by_formula([moved(query), moved(key), value])
        },
    );
    let query = |x: &Tensor<4>| moved(beside(&as_query(x), x));
    compare_within(
        most,
        (of_key, of_value),
        |key, value| attended.by_kernel([query(&key), moved(key), value]),
        |key, value| attended.by_formula([query(&key), moved(key), value]),
    );
}

/// In bf16, gradients of keys and values would be rounded with each block that is added to them.
#[test]
fn gradients_of_keys_and_values_do_not_depend_on_how_many_blocks_they_are_summed_over() {
    let ([heads, kv_heads], rows, width) = FAR;
    let gradients = |queries| {
        let query = moved(numbers([1, heads, rows, width], DType::BF16, 1).autodiff());
        let leaves = (
            numbers([1, kv_heads, rows, width], DType::BF16, 1)
                .autodiff()
                .require_grad(),
            numbers([1, kv_heads, rows, 2 * width], DType::BF16, 2)
                .autodiff()
                .require_grad(),
        );
        let (key, value) = leaves.clone();
        let out = far_from_zero(queries).by_kernel([query, moved(key), value]);
        let weights = numbers(out.dims(), DType::F32, 3).autodiff();
        let found = (out.cast(DType::F32) * weights).sum().backward();
        [leaves.0, leaves.1].map(|leaf| leaf.grad(&found).unwrap())
    };
    // Blocks of one query each, and one of all.
    let [by_one, by_all] = [1, usize::MAX].map(gradients);
    for (by_one, by_all) in by_one.into_iter().zip(by_all) {
        let apart = difference(by_one, by_all);
        assert!(apart < 1.0 / 256.0, "{apart}");
    }
}

#[test]
fn what_some_keys_have_more_is_added_at_their_places_and_to_nobody_elses_sum() {
    for ([batch, heads, keys, width], first, count) in [
        ([2, 3, 7, 8], 2, 4),
        ([1, 2, 5, 6], 0, 4),
        ([2, 1, 9, 5], 8, 1),
    ] {
        let of = |seed, keys| numbers([batch, heads, keys, width], DType::F32, seed);
        let (sum, more) = (of(1, keys), of(2, count));
        let there = sum.clone().narrow(2, first, count) + more.clone();
        let places = [0..batch, 0..heads, first..first + count, 0..width];
        let expected = sum.clone().slice_assign(places, there);
        let [held, more] = [sum.clone(), more].map(Tensor::into_dispatch);
        let found: Tensor<4> = Tensor::from_dispatch(Dispatch::added_at(held, more, first));
        assert_eq!(host_f32(found), host_f32(expected));
        assert_eq!(host_f32(sum), host_f32(of(1, keys)));
    }
}

/// Queries that see keys together and, of two more, each the one that stands where it does.
struct WithColumns {
    mask: Mask,
    /// Key and value of all, and those of the two.
    keys_values: [(Tensor<4>, Tensor<4>); 3],
    /// What scores are multiplied by.
    scale: f32,
}

impl WithColumns {
    /// In the graph and the type of a query, with the second of the two replaced.
    fn given(
        &self,
        query: &Tensor<4>,
        last: (Tensor<4>, Tensor<4>),
    ) -> [(Tensor<4>, Tensor<4>); 3] {
        let [all, one, _] = self.keys_values.clone();
        let own = |x: Tensor<4>| beside(&x, query).cast(query.dtype());
        [all, one, last].map(|(key, value)| (own(key), own(value)))
    }

    fn by_kernel(&self, query: Tensor<4>, last: (Tensor<4>, Tensor<4>)) -> Tensor<4> {
        let dtype = query.dtype();
        let [all, one, other] = self.given(&query, last);
        let mask = self.mask.on(&query.device());
        let found = gather(query.clone(), all, &mask, None, self.scale)
            .with_column(query.clone(), one.0, one.1)
            .with_column(query, other.0, other.1);
        quotient(found.sums, dtype)
    }

    fn by_formula(&self, query: Tensor<4>, last: (Tensor<4>, Tensor<4>)) -> Tensor<4> {
        let [batch, heads, _, d_head] = query.dims();
        let for_heads = |x: Tensor<4>| {
            let [_, kv_heads, keys, _] = x.dims();
            x.unsqueeze_dim::<5>(2)
                .repeat_dim(2, heads / kv_heads)
                .reshape([batch, heads, keys, d_head])
        };
        let given = self.given(&query, last);
        let [all, one, other] = given.map(|(key, value)| (for_heads(key), for_heads(value)));
        let query = query * self.scale;
        let seen = beside(self.mask.entries(), &query);
        let mut scores = vec![product(query.clone(), all.0.swap_dims(2, 3)) + seen];
        for (key, _) in [&one, &other] {
            scores.push((query.clone() * key.clone()).sum_dim(3));
        }
        let keys = all.1.dims()[2];
        let weights = of_formula(Tensor::cat(scores, 3), 3);
        let weight = |at| weights.clone().narrow(3, keys + at, 1);
        product(weights.clone().narrow(3, 0, keys), all.1) + weight(0) * one.1 + weight(1) * other.1
    }
}

#[test]
fn a_key_more_for_each_query_counts_as_one_of_those_that_it_sees() {
    let small = [(1, [1, 1], 4, 8), (2, [4, 2], 41, 33)];
    let large = at_once([(1, [6, 2], 301, 64)]);
    for (batch, [heads, kv_heads], rows, d_head) in small.into_iter().chain(large) {
        let of_query = [batch, heads, rows, d_head];
        let of_key = [batch, kv_heads, rows, d_head];
        // Heads beside one another in a row of a position, as projections give values.
        let value =
            |seed| numbers([batch, rows, kv_heads, d_head], DType::F32, seed).swap_dims(1, 2);
        let key = |seed| numbers(of_key, DType::F32, seed);
        let case = WithColumns {
            mask: Mask::new(some_keys(1, [rows, rows], true), &test_device()),
            keys_values: [(key(4), value(5)), (key(6), value(7)), (key(8), value(9))],
            scale: 0.03125,
        };
        let as_last = |x: &Tensor<4>| beside(&case.keys_values[2].1, x).cast(x.dtype());
        compare_within(
            tolerance_of_products,
            (of_query, of_key),
            |query, key| case.by_kernel(query.clone(), (key, as_last(&query))),
            |query, key| case.by_formula(query.clone(), (key, as_last(&query))),
        );
        let query = |x: &Tensor<4>| beside(&numbers(of_query, x.dtype(), 3), x);
        compare_within(
            tolerance_of_products,
            (of_key, of_key),
            |key, value| case.by_kernel(query(&key), (key, value)),
            |key, value| case.by_formula(query(&key), (key, value)),
        );
    }
}

#[test]
fn a_sink_takes_its_share_of_every_softmax() {
    for (batch, [heads, kv_heads], rows, d_head) in
        [(1, [1, 1], 4, 8), (2, [4, 2], 41, 33), (1, [6, 2], 301, 64)]
    {
        let (of_query, of_sinks) = ([batch, heads, rows, d_head], [1, heads, 1, 1]);
        let of_key = [batch, kv_heads, rows, d_head];
        let mask = Mask::new(some_keys(1, [rows, rows], true), &test_device());
        let keys_values = [4, 5].map(|seed| numbers(of_key, DType::F32, seed));
        let given = |query: &Tensor<4>| {
            let own = |x: &Tensor<4>| beside(x, query).cast(query.dtype());
            [own(&keys_values[0]), own(&keys_values[1])]
        };
        let scale = 0.03125f32;
        compare_within(
            tolerance_of_products,
            (of_query, of_sinks),
            |query, sinks| {
                let sinks = sinks.cast(DType::F32);
                let floor = sinks.clone().detach().expand([batch, heads, rows, 1]);
                let [key, value] = given(&query);
                let mask = mask.on(&query.device());
                let found = gather(query.clone(), (key, value), &mask, Some(floor), scale);
                quotient(found.with_sinks(sinks).sums, query.dtype())
            },
            |query, sinks| {
                let [key, value] = given(&query).map(|x| {
                    x.unsqueeze_dim::<5>(2)
                        .repeat_dim(2, heads / kv_heads)
                        .reshape([batch, heads, rows, d_head])
                });
                let seen = beside(mask.entries(), &query);
                let scores = product(query * scale, key.swap_dims(2, 3)) + seen;
                let sinks = sinks.expand([batch, heads, rows, 1]);
                let weights = of_formula(Tensor::cat(vec![scores, sinks], 3), 3);
                product(weights.narrow(3, 0, rows), value)
            },
        );
    }
}

#[test]
fn columns_are_what_operations_on_tensors_make_of_them() {
    for (batch, [heads, kv_heads], rows, d_head) in [(1, [1, 1], 3, 8), (2, [4, 2], 77, 33)] {
        let (of_query, of_key) = (
            [batch, heads, rows, d_head],
            [batch, kv_heads, rows, d_head],
        );
        let column = || {
            // Above some scores, below others, and where a query saw nothing before.
            let largest = numbers([batch, heads, rows, 1], DType::F32, 4);
            let unseen = Tensor::full([batch, heads, 1, 1], f32::NEG_INFINITY, &test_device());
            let largest = Tensor::cat(vec![unseen, largest.narrow(2, 1, rows - 1)], 2);
            Column::<Dispatch> {
                query: numbers(of_query, DType::F32, 1).into_dispatch(),
                key: numbers(of_key, DType::F32, 2).into_dispatch(),
                value: numbers(of_key, DType::F32, 3).into_dispatch(),
                largest: largest.into_dispatch(),
                scale: 0.25,
            }
        };
        let sums =
            || (numbers([batch, heads, rows, d_head + 1], DType::F32, 5) + 4.0).into_dispatch();
        let same = |found, expected| {
            let [found, expected] = [found, expected].map(Tensor::<4>::from_dispatch);
            let apart = difference(found, expected);
            assert!(
                apart < 3e-6,
                "{batch} {heads} {kv_heads} {rows} {d_head}: {apart}"
            );
        };
        let found = Dispatch::add_column(column(), sums());
        let expected = column().add_by_operations(sums());
        same(found.0, expected.0);
        same(found.1, expected.1);
        let found = Dispatch::add_column_backward(column(), sums());
        let expected = column().gradients_by_operations(sums());
        same(found.0, expected.0);
        same(found.1, expected.1);
        same(found.2, expected.2);
        same(found.3, expected.3);
        let gradient = || numbers(of_query, DType::F32, 6).into_dispatch();
        let found = Dispatch::quotient(sums(), DType::F32);
        let expected = by_operations::quotient::<Dispatch>(sums(), DType::F32);
        same(found.0.clone(), expected.0);
        same(found.1.clone(), expected.1);
        let given = || (found.0.clone(), found.1.clone(), gradient());
        let (quotient, factor, of_quotient) = given();
        let by_kernel = Dispatch::quotient_backward(quotient, factor, of_quotient);
        let (quotient, factor, of_quotient) = given();
        let expected = by_operations::quotient_gradient::<Dispatch>(quotient, factor, of_quotient);
        same(by_kernel, expected);
    }
}

/// What is not in one piece, and what somebody else holds: heads behind positions, as projections give them, and sums that are kept.
#[test]
fn columns_read_heads_where_they_stand_and_leave_sums_that_are_shared() {
    let (batch, heads, kv_heads, rows, d_head) = (2, 6, 2, 77, 40);
    for dtype in [DType::F32, DType::BF16] {
        let apart = |heads, seed| {
            let behind = numbers([batch, rows, heads + 3, d_head], dtype, seed);
            behind.narrow(2, 1, heads).swap_dims(1, 2)
        };
        let [query, key, value] =
            [(heads, 1), (kv_heads, 2), (kv_heads, 3)].map(|(heads, seed)| apart(heads, seed));
        let column = || Column::<Dispatch> {
            query: query.clone().into_dispatch(),
            key: key.clone().into_dispatch(),
            value: value.clone().into_dispatch(),
            largest: numbers([batch, heads, rows, 1], DType::F32, 4).into_dispatch(),
            scale: 0.25,
        };
        let sums = numbers([batch, heads, rows, d_head + 1], DType::F32, 5) + 4.0;
        let before = host_f32(sums.clone());
        let shared = || sums.clone().into_dispatch();
        let same = |found, expected, bound: f32| {
            let [found, expected] = [found, expected].map(Tensor::<4>::from_dispatch);
            assert_eq!(found.dtype(), expected.dtype());
            let [found, expected] = [found, expected].map(|x| x.cast(DType::F32));
            let apart = difference(found, expected);
            assert!(apart < bound, "{dtype:?}: {apart}");
        };
        let found = Dispatch::add_column(column(), shared());
        let expected = column().add_by_operations(shared());
        same(found.0, expected.0, 3e-6);
        same(found.1, expected.1, 3e-6);
        // Gradients are rounded to the type of what they are of.
        let bound = if dtype == DType::F32 { 3e-6 } else { 1e-2 };
        let found = Dispatch::add_column_backward(column(), shared());
        let expected = column().gradients_by_operations(shared());
        same(found.0, expected.0, bound);
        same(found.1, expected.1, bound);
        same(found.2, expected.2, bound);
        same(found.3, expected.3, 3e-6);
        let (quotient, factor) = Dispatch::quotient(shared(), dtype);
        let expected = by_operations::quotient::<Dispatch>(shared(), dtype);
        same(quotient.clone(), expected.0, bound);
        same(factor.clone(), expected.1, 3e-6);
        let gradient = || apart(heads, 6).into_dispatch();
        let found = Dispatch::quotient_backward(quotient.clone(), factor.clone(), gradient());
        let expected = by_operations::quotient_gradient::<Dispatch>(quotient, factor, gradient());
        same(found, expected, 3e-6);
        assert_eq!(host_f32(sums.clone()), before);
    }
}

#[test]
fn a_graph_keeps_the_quotient_in_its_type_and_not_the_sums() {
    type Graph = Autodiff<Flex>;
    let sums = FlexTensor::from_data(TensorData::new(vec![2.0f32; 54], [1, 2, 3, 9]));
    let leaf = <Graph as AutodiffBackend>::from_inner(sums.clone());
    let leaf = Graph::float_set_require_grad(leaf, true);
    assert!(!sums.is_unique());
    let (quotient, _) = Graph::quotient(leaf, DType::BF16);
    assert!(quotient.is_tracked());
    assert!(sums.is_unique());
}

#[test]
fn the_weight_of_a_key_is_the_same_wherever_hidden_keys_stand() {
    let scores = numbers([2, 3, 5, 41], DType::F32, 1);
    let hidden = |count| Tensor::full([2, 3, 5, count], 3.0, &test_device());
    let wider = Tensor::cat(vec![hidden(19), scores.clone(), hidden(4)], 3);
    let entries = |count| Tensor::full([1, 1, 5, count], f32::NEG_INFINITY, &test_device());
    let seen = Tensor::zeros([1, 1, 5, 41], &test_device());
    let mask = Tensor::cat(vec![entries(19), seen, entries(4)], 3);
    let weights = |scores, mask| softmax(scores, mask, 0.75, DType::F32);
    let moved = weights(wider, Some(&mask)).narrow(3, 19, 41);
    let alone = weights(scores, None);
    if crate::device::is_cpu(&test_device()) {
        assert_eq!(host_f32(moved), host_f32(alone));
    } else {
        assert!(difference(moved, alone) < 1e-6);
    }
}

/// As they stand beside those of others in a row of a position.
fn heads_among_others(shape: [usize; 4], dtype: DType, seed: usize) -> Tensor<4> {
    let [batch, seq, heads, d_head] = shape;
    numbers([batch, seq, heads + 3, d_head], dtype, seed).narrow(2, 2, heads)
}

#[test]
fn heads_are_normed_and_turned_at_once_as_one_after_the_other() {
    let shapes = [
        (1, 1, 1, 2),
        (2, 5, 3, 8),
        (2, 301, 2, 64),
        (1, 7, 3, 6),
        (1, 2, 9, 160),
    ];
    for (batch, seq, heads, d_head) in shapes {
        for (dtype, rotations) in [(DType::F32, 1), (DType::BF16, batch)] {
            let angle = numbers([rotations, 1, seq, d_head / 2], DType::F32, 5);
            let angles = [angle.clone().cos(), angle.sin()];
            let x = heads_among_others([batch, seq, heads, d_head], dtype, 1);
            let weight = numbers([d_head], dtype, 2);
            let [cos, sin] = angles.clone();
            let normed = rms_norm(x.clone(), weight.clone(), 1e-6).swap_dims(1, 2);
            let expected = rotate(normed, cos, sin);
            let found = norm_and_rotate(x, (weight, 1e-6), angles);
            assert_eq!(found.dtype(), dtype);
            let apart = difference(found, expected);
            assert!(
                apart < tolerance(dtype),
                "{seq} of {heads} {dtype:?}: {apart}"
            );
        }
    }
}

#[test]
fn a_sum_and_its_norm_are_those_of_one_after_the_other() {
    for shape in [[1, 1, 64], [2, 7, 48], [1, 301, 33], [2, 2, 4100]] {
        for dtype in [DType::F32, DType::BF16] {
            let (x, added) = (numbers(shape, dtype, 1), numbers(shape, dtype, 2));
            // Norms of 1 more than their parameters have weights in f32.
            for weights in [dtype, DType::F32] {
                let weight = numbers([shape[2]], weights, 3);
                let expected = x.clone() + added.clone();
                let (sum, normed) = add_and_norm(x.clone(), added.clone(), (weight.clone(), 1e-6));
                assert_eq!([sum.dtype(), normed.dtype()], [dtype; 2]);
                assert_eq!(
                    host_f32(sum),
                    host_f32(expected.clone()),
                    "{shape:?} {dtype:?}"
                );
                let apart = difference(normed, rms_norm(expected, weight, 1e-6));
                assert!(apart < tolerance(dtype), "{shape:?} in {dtype:?}: {apart}");
            }
        }
    }
}

#[test]
fn keys_and_values_are_written_to_their_places_and_to_nobody_elses_memory() {
    // Widths that differ, as latent attention has them; one row and several; a place in the middle, and the last ones.
    let shapes = [
        ([2, 16], 1, 300),
        ([3, 24], 5, 0),
        ([2, 6], 7, 13),
        ([1, 64], 9, 503),
    ];
    for (([heads, width], seq, at), apart) in shapes.into_iter().flat_map(|x| [(x, 0), (x, 8)]) {
        let widths = [width + apart, width];
        for dtype in [DType::F32, DType::BF16] {
            let held = |nth: usize| numbers([1, heads, 512, widths[nth]], dtype, nth);
            let new = |nth: usize| {
                let shape = [1, seq, heads, widths[nth]];
                heads_among_others(shape, dtype, 7 + nth).swap_dims(1, 2)
            };
            for is_shared in [false, true] {
                let before = [held(0), held(1)];
                let others = is_shared.then(|| before.clone());
                let found = write_at(before, [new(0), new(1)], at);
                for (nth, found) in found.into_iter().enumerate() {
                    let places = [0..1, 0..heads, at..at + seq, 0..widths[nth]];
                    let expected = held(nth).slice_assign(places, new(nth));
                    assert_eq!(host_f32(found), host_f32(expected), "{widths:?} {dtype:?}");
                }
                for (nth, other) in others.into_iter().flatten().enumerate() {
                    assert_eq!(host_f32(other), host_f32(held(nth)), "{widths:?}");
                }
            }
        }
    }
}

#[test]
fn halves_of_rows_are_gated_where_they_stand() {
    // Halves that a view may begin at, and others; rows of which none, one side or both are one.
    for [batch, seq, width] in [
        [1, 1, 256],
        [1, 5, 512],
        [3, 301, 256],
        [2, 1, 256],
        [2, 7, 36],
    ] {
        for dtype in [DType::F32, DType::BF16] {
            let both = numbers([batch, seq, 2 * width], dtype, 1);
            let half = |first| both.clone().narrow(2, first, width);
            let copied = |first| {
                let data = half(first).into_data();
                Tensor::<3>::from_data(data, (&test_device(), dtype))
            };
            let found = swiglu(half(0), half(width));
            let expected = swiglu(copied(0), copied(width));
            let of = format!("{batch} of {seq} rows of {width} in {dtype:?}");
            assert_eq!(host_f32(found), host_f32(expected), "{of}");
            // Of matrices that lie otherwise than each other.
            let found = swiglu(half(0), copied(width));
            let expected = swiglu(copied(0), copied(width));
            assert_eq!(host_f32(found), host_f32(expected), "{of}");
        }
    }
}

#[test]
fn what_is_together_has_the_gradients_of_its_parts() {
    let of_leaf = |all: &dyn Fn(Tensor<4>, Tensor<1>, Tensor<4>) -> Tensor<4>| {
        let x = numbers([2, 7, 3, 8], DType::F32, 1)
            .autodiff()
            .require_grad();
        let weight = numbers([8], DType::F32, 2).autodiff();
        let angle = numbers([1, 1, 7, 4], DType::F32, 5).autodiff();
        let weighed = numbers([2, 7, 3, 8], DType::F32, 9).autodiff();
        let found = x.grad(&(all(x.clone(), weight, angle) * weighed).sum().backward());
        found.expect("it is a leaf of them")
    };
    let together = of_leaf(&|x, weight, angle| {
        let angles = [angle.clone().cos(), angle.sin()];
        let turned = norm_and_rotate(x.clone(), (weight.clone(), 1e-6), angles);
        let (sum, normed) = add_and_norm(x.clone(), x.clone() * 2.0, (weight, 1e-6));
        let room = Tensor::zeros([1, 7, 9, 8], &x.device());
        let new = x.narrow(0, 1, 1);
        let [keys, values] = write_at([room.clone(), room], [new.clone(), new * 3.0], 4);
        let written = (keys + values).narrow(2, 4, 3);
        turned.swap_dims(1, 2) + sum + normed + written
    });
    let parts = of_leaf(&|x, weight, angle| {
        let turned = rms_norm(x.clone(), weight.clone(), 1e-6).swap_dims(1, 2);
        let turned = rotate(turned, angle.clone().cos(), angle.sin());
        let sum = x.clone() + x.clone() * 2.0;
        let written = x.narrow(0, 1, 1) * 4.0;
        turned.swap_dims(1, 2) + sum.clone() + rms_norm(sum, weight, 1e-6) + written
    });
    assert!(host_f32(parts.clone()).iter().all(|by| by.abs() > 1e-6));
    let apart = difference(together, parts);
    assert!(apart < tolerance(DType::F32), "{apart}");
}

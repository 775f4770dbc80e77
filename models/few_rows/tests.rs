use rand::{RngExt as _, SeedableRng, rngs::StdRng};

use super::*;
use crate::weights::host_f32;

fn matrix(shape: [usize; 2], seed: u64) -> Tensor<2> {
    let mut rng = StdRng::seed_from_u64(seed);
    let values = (0..shape[0] * shape[1]).map(|_| rng.random_range(-1.0..1.0));
    let data = TensorData::new(values.collect::<Vec<f32>>(), shape);
    Tensor::from_data(data, &Device::flex())
}

#[test]
fn products_are_those_of_matrices_and_do_not_depend_on_the_rows_beside() {
    let _decoding = Decoding::begin();
    for [inner, width] in [[1, 1], [7, 3], [64, 33], [300, 65], [515, 257], [129, 1031]] {
        let weight = matrix([width, inner], 1).transpose();
        for count in [1, 2, 5, 6, 7, 13, 64, 65, 256, 257] {
            let x = matrix([count, inner], 2);
            let values = host_f32(product(x.clone(), weight.clone()));
            let expected = host_f32(x.clone().matmul(weight.clone()));
            for (found, expected) in values.iter().zip(&expected) {
                let apart = (found - expected).abs();
                assert!(apart < 1e-5 * inner as f32, "{found} {expected}");
            }
            if count > MOST_ROWS {
                assert_eq!(values, expected);
                continue;
            }
            let last = x.narrow(0, count - 1, 1);
            let alone = host_f32(product(last, weight.clone()));
            assert_eq!(values[(count - 1) * width..], alone);
        }
    }
}

#[test]
fn a_row_of_a_general_product_does_not_depend_on_the_rows_beside() {
    for [inner, width] in [[32, 16], [32, 64], [48, 32], [256, 33]] {
        let weight = matrix([width, inner], 1).transpose();
        let all = matrix([300, inner], 2);
        let whole = host_f32(product(all.clone(), weight.clone()));
        // A single row is a product of a matrix with a vector.
        for count in 2..40 {
            let some = host_f32(product(all.clone().narrow(0, 7, count), weight.clone()));
            assert_eq!(some, whole[7 * width..(7 + count) * width], "{count} rows");
        }
    }
}

#[test]
fn only_a_pass_of_a_decoder_takes_few_rows_here() {
    let (x, weight) = (matrix([5, 300], 1), matrix([200, 300], 2).transpose());
    let general = host_f32(x.clone().matmul(weight.clone()));
    assert_eq!(host_f32(product(x.clone(), weight.clone())), general);
    let outer = Decoding::begin();
    let here = host_f32(product(x.clone(), weight.clone()));
    assert_ne!(here, general, "sums in another order");
    drop(Decoding::begin());
    assert_eq!(host_f32(product(x.clone(), weight.clone())), here);
    drop(outer);
    assert_eq!(host_f32(product(x, weight)), general);
}

#[test]
fn a_weight_in_bf16_gives_the_bits_of_the_same_numbers_in_f32() {
    for shape in [
        [200, 300],
        [131, 328],
        [33, 512],
        [33, 515],
        [1, 1],
        [1031, 129],
    ] {
        let narrow = matrix(shape, 1).cast(DType::BF16);
        let wide = narrow.clone().cast(DType::F32);
        for count in [1, 2, 3, 4, 5, 6, 65, 257, 300] {
            let x = matrix([count, shape[1]], 2);
            let same = || {
                let found = product(x.clone(), narrow.clone().transpose());
                assert_eq!(found.dtype(), DType::F32);
                let expected = product(x.clone(), wide.clone().transpose());
                assert_eq!(host_f32(found), host_f32(expected));
            };
            same();
            let _decoding = Decoding::begin();
            same();
        }
    }
    // Rows one after the other, as models hold them that are trained.
    let narrow = matrix([300, 200], 1).cast(DType::BF16);
    let x = matrix([6, 300], 2);
    let expected = host_f32(x.clone().matmul(narrow.clone().cast(DType::F32)));
    assert_eq!(host_f32(product(x, narrow)), expected);
}

#[test]
fn a_weight_in_eight_bits_gives_the_bits_of_what_it_is_rounded_to() {
    for [width, inner] in [[200, 320], [33, 512], [1, 32], [1031, 96]] {
        let values = host_f32(matrix([width, inner], 1));
        let held = int8::held(&values, [inner, width]);
        assert_eq!(held.dims(), [inner, width]);
        let matrix_of = int8::matrix(&held).unwrap();
        let mut rounded = vec![0.0; values.len()];
        Int8::of(&matrix_of).widen(0..values.len(), &mut rounded);
        for (rounded, values) in rounded.chunks(32).zip(values.chunks(32)) {
            let largest = values
                .iter()
                .fold(0.0_f32, |most, value| most.max(value.abs()));
            for (rounded, value) in rounded.iter().zip(values) {
                assert!((rounded - value).abs() <= 1.001 * largest / 254.0);
            }
        }
        let wide = TensorData::new(rounded, [width, inner]);
        let wide = Tensor::<2>::from_data(wide, &Device::flex()).transpose();
        for count in [1, 2, 3, 4, 5, 6, 7, 64, 65, 300] {
            let x = matrix([count, inner], 2);
            let same = || {
                let found = product(x.clone(), held.clone());
                assert_eq!(host_f32(found), host_f32(product(x.clone(), wide.clone())));
            };
            same();
            let _decoding = Decoding::begin();
            same();
        }
    }
    let zeros = int8::held(&[0.0; 64], [32, 2]);
    let x = matrix([3, 32], 1);
    assert_eq!(host_f32(product(x, zeros)), [0.0; 6]);
}

#[test]
fn what_is_stored_otherwise_is_left_to_a_general_product() {
    let _decoding = Decoding::begin();
    let (x, weight) = (matrix([3, 40], 1), matrix([40, 20], 2));
    let expected = host_f32(x.clone().matmul(weight.clone()));
    assert_eq!(host_f32(product(x.clone(), weight.clone())), expected);
    // Columns of a wider matrix, and a part of a transposed one.
    let wide = matrix([40, 60], 3);
    let narrow = wide.narrow(1, 20, 20);
    let part = matrix([60, 40], 4).transpose().narrow(1, 20, 20);
    for weight in [narrow, part] {
        let expected = host_f32(x.clone().matmul(weight.clone()));
        for (found, expected) in host_f32(product(x.clone(), weight)).iter().zip(expected) {
            assert!((found - expected).abs() < 1e-4);
        }
    }
    assert_eq!(
        product(matrix([0, 40], 1), matrix([40, 20], 2)).dims(),
        [0, 20]
    );
}

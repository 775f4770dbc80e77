use super::*;

/// Numbers with more digits than bf16 has.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let one = |at: u32| {
        let mixed = (at ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
        (mixed ^ mixed >> 15) as f32 / u32::MAX as f32 - 0.5
    };
    (0..count as u32).map(one).collect()
}

fn rounded(x: f32) -> f64 {
    f64::from(burn::tensor::bf16::from_f32(x).to_f32())
}

/// A matrix that lies by rows, or by columns.
fn matrix(values: &[f32], [rows, columns]: [usize; 2], by_columns: bool) -> Matrix<'_> {
    match by_columns {
        true => Matrix::by_rows(values, columns, rows).transposed(),
        false => Matrix::by_rows(values, rows, columns),
    }
}

const SIZES: [[usize; 3]; 8] = [
    [64, 64, 64],
    [70, 100, 90],
    [17, 513, 33],
    [300, 2030, 33],
    [33, 40, 700],
    // Several parts of the sum, and of the shorter factor.
    [600, 1025, 640],
    [640, 1100, 600],
    [1, 7, 5],
];

#[test]
fn products_are_those_of_rounded_factors_however_they_lie() {
    let Some(tiles) = Tiles::here() else {
        eprintln!("this processor has no tiles");
        return;
    };
    for [rows, inner, columns] in SIZES {
        let [lhs, rhs] =
            [(rows * inner, 1), (inner * columns, 2)].map(|(n, seed)| numbers(n, seed));
        for [left, right] in [[false, false], [true, false], [false, true], [true, true]] {
            let lhs = matrix(&lhs, [rows, inner], left);
            let rhs = matrix(&rhs, [inner, columns], right);
            for (is_sum, is_shared) in [(false, true), (true, true), (false, false)] {
                let before = numbers(rows * columns, 3);
                let mut found = before.clone();
                let output = Output::new(found.as_mut_ptr(), [rows, columns]);
                #[expect(unsafe_code, reason = "the product takes a pointer")]
                // SAFETY: it is that of a matrix of this size, which is ours.
                unsafe {
                    super::multiply(tiles, [lhs, rhs], output, is_sum, is_shared);
                }
                for row in (0..rows).step_by(7).chain([rows - 1]) {
                    for column in (0..columns).step_by(5).chain([columns - 1]) {
                        let product = (0..inner).map(|at| {
                            rounded(lhs.values[row * lhs.row_stride + at * lhs.column_stride])
                                * rounded(
                                    rhs.values[at * rhs.row_stride + column * rhs.column_stride],
                                )
                        });
                        let at = row * columns + column;
                        let start = if is_sum { f64::from(before[at]) } else { 0.0 };
                        let expected = start + product.sum::<f64>();
                        let found = f64::from(found[at]);
                        assert!(
                            (found - expected).abs() < 1e-4,
                            "{rows} {inner} {columns}, {left} {right} {is_sum} {is_shared}, at {row} {column}: {found}, {expected}"
                        );
                    }
                }
            }
        }
    }
}

use burn::tensor::bf16;

use super::*;
use crate::products::matrix::Numbers;

/// Numbers with more digits than bf16 has.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let one = |at: u32| {
        let mixed = (at ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
        (mixed ^ mixed >> 15) as f32 / u32::MAX as f32 - 0.5
    };
    (0..count as u32).map(one).collect()
}

/// A factor in both types that it may be held in.
struct Held {
    wide: Vec<f32>,
    narrow: Vec<bf16>,
    sizes: [usize; 2],
}

impl Held {
    fn new(sizes: [usize; 2], seed: u32) -> Self {
        let wide = numbers(sizes.iter().product(), seed);
        let narrow = wide.iter().copied().map(bf16::from_f32).collect();
        Self {
            wide,
            narrow,
            sizes,
        }
    }

    /// The matrix, which lies by rows or by columns.
    fn lying(&self, by_columns: bool, is_narrow: bool) -> Factor<'_> {
        let values: Numbers = match is_narrow {
            true => self.narrow[..].into(),
            false => self.wide[..].into(),
        };
        let [rows, columns] = self.sizes;
        match by_columns {
            true => Factor::by_rows(values, columns, rows).transposed(),
            false => Factor::by_rows(values, rows, columns),
        }
    }

    /// An element of that, rounded.
    fn at(&self, row: usize, column: usize, by_columns: bool) -> f64 {
        let [rows, columns] = self.sizes;
        let at = match by_columns {
            true => column * rows + row,
            false => row * columns + column,
        };
        self.narrow[at].to_f64()
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

/// Calls with every way to multiply that this processor has, every way that factors of each size lie and are held in, and what
/// elements of their product are.
fn each_pair(mut check: impl FnMut(Tiles, [Factor; 2], &dyn Fn(usize, usize) -> f64)) {
    let all: Vec<_> = Tiles::all().collect();
    println!("{} ways to multiply in bf16", all.len());
    for [rows, inner, columns] in SIZES {
        let (lhs, rhs) = (Held::new([rows, inner], 1), Held::new([inner, columns], 2));
        for ways in 0..16 {
            let [left, right, left_narrow, right_narrow] = [1, 2, 4, 8].map(|bit| ways & bit != 0);
            let expected = |row, column| {
                (0..inner)
                    .map(|at| lhs.at(row, at, left) * rhs.at(at, column, right))
                    .sum()
            };
            let factors = [lhs.lying(left, left_narrow), rhs.lying(right, right_narrow)];
            for &tiles in &all {
                check(tiles, factors, &expected);
            }
        }
    }
}

/// Some places of a product.
fn places([lhs, rhs]: [Factor; 2]) -> impl Iterator<Item = [usize; 2]> {
    let rows = (0..lhs.rows).step_by(17).chain([lhs.rows - 1]);
    rows.flat_map(move |row| {
        let columns = (0..rhs.columns).step_by(13).chain([rhs.columns - 1]);
        columns.map(move |column| [row, column])
    })
}

#[test]
fn products_are_those_of_rounded_factors_however_they_lie() {
    each_pair(|tiles, factors, expected| {
        let [rows, inner, columns] = [factors[0].rows, factors[0].columns, factors[1].columns];
        for (is_sum, is_shared) in [(false, true), (true, true), (false, false)] {
            let before = numbers(rows * columns, 3);
            let mut found = before.clone();
            let output = Output::of_f32(found.as_mut_ptr(), [rows, columns]);
            #[expect(unsafe_code, reason = "the product takes a pointer")]
            // SAFETY: it is that of a matrix of this size, which is ours.
            unsafe {
                super::multiply(tiles, factors, output, is_sum, is_shared);
            }
            for [row, column] in places(factors) {
                let at = row * columns + column;
                let start = if is_sum { f64::from(before[at]) } else { 0.0 };
                let (found, expected) = (f64::from(found[at]), start + expected(row, column));
                assert!(
                    (found - expected).abs() < 1e-4,
                    "{rows} {inner} {columns}, {is_sum} {is_shared}, at {row} {column}: {found}, {expected}"
                );
            }
        }
    });
}

#[test]
fn a_product_is_rounded_where_it_is_added_up_at_once() {
    each_pair(|tiles, factors, expected| {
        let [rows, inner, columns] = [factors[0].rows, factors[0].columns, factors[1].columns];
        if !may_round(inner) {
            assert!(inner > SUMMED);
            return;
        }
        let mut found = vec![bf16::NAN; rows * columns];
        let output = Output::of_bf16(found.as_mut_ptr(), [rows, columns]);
        #[expect(unsafe_code, reason = "the product takes a pointer")]
        // SAFETY: it is that of a matrix of this size, which is ours.
        unsafe {
            super::multiply(tiles, factors, output, false, true);
        }
        for [row, column] in places(factors) {
            let found = found[row * columns + column].to_f64();
            let expected = expected(row, column);
            // Half of the distance between two numbers of bf16, and what sums differ by.
            let allowed = expected.abs() / 256.0 + 1e-4;
            assert!(
                (found - expected).abs() <= allowed,
                "{rows} {inner} {columns}, at {row} {column}: {found}, {expected}"
            );
        }
    });
}

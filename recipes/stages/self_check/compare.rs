//! How far apart two devices may be.

use spectrain_checkpoints::DType;

/// What a device computes otherwise than the CPU.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Wrong(pub(super) String);

/// The largest relative differences. Products in f32 may be of TF32; numbers in bf16 carry three digits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tolerance {
    /// Of a product, beside its largest element.
    pub(super) product: f64,
    /// Of hidden states and logits, beside their norm.
    pub(super) state: f64,
    /// Of the loss.
    pub(super) loss: f64,
    /// The least cosine of the angle between two gradients of a parameter.
    pub(super) cosine: f64,
    /// The least share of positions whose likeliest tokens are the same.
    pub(super) likeliest: f64,
}

impl Tolerance {
    pub(super) fn of(dtype: DType) -> Self {
        match dtype {
            DType::F32 => Self {
                product: 2e-3,
                state: 5e-3,
                loss: 2e-3,
                cosine: 0.999,
                likeliest: 0.95,
            },
            _ => Self {
                product: 2e-2,
                state: 8e-2,
                loss: 6e-2,
                cosine: 0.95,
                likeliest: 0.8,
            },
        }
    }
}

/// Norm of the difference beside that of `expected`.
pub(super) fn apart(found: &[f32], expected: &[f32]) -> f64 {
    let pairs = found.iter().zip(expected);
    let squares: f64 = pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum();
    (squares / dot(expected, expected).max(f64::MIN_POSITIVE)).sqrt()
}

/// The largest difference beside the largest element of `expected`; not a number where one of `found` is none.
pub(super) fn largest_apart(found: &[f32], expected: &[f32]) -> f64 {
    let largest = expected.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let pairs = found.iter().zip(expected);
    // `max` would leave out what is no number.
    let apart = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, |most: f32, x| {
        match most.is_nan() || x <= most {
            true => most,
            false => x,
        }
    });
    f64::from(apart) / f64::from(largest.max(f32::MIN_POSITIVE))
}

/// Cosine of the angle between two gradients.
pub(super) fn cosine(found: &[f32], expected: &[f32]) -> f64 {
    dot(found, expected) / (dot(found, found) * dot(expected, expected)).sqrt()
}

/// Euclidean norm.
pub(super) fn norm(values: &[f32]) -> f64 {
    dot(values, values).sqrt()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let pairs = a.iter().zip(b);
    pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_are_not_apart_and_what_is_no_number_is() {
        let (a, b) = ([3.0, -4.0], [3.0, 4.0]);
        assert_eq!((apart(&a, &a), largest_apart(&a, &a)), (0.0, 0.0));
        assert!((apart(&a, &b) - 1.6).abs() < 1e-9);
        assert!((largest_apart(&a, &b) - 2.0).abs() < 1e-9);
        assert!((cosine(&a, &b) + 7.0 / 25.0).abs() < 1e-9);
        let nan = [f32::NAN, 4.0];
        assert!(largest_apart(&nan, &b).is_nan() && apart(&nan, &b).is_nan());
    }
}

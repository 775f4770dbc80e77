//! Muon (Jordan et al., <https://kellerjordan.github.io/posts/muon/>): a matrix moves along its momentum, made orthogonal.
use burn::prelude::*;
use burn::tensor::DType;
use spectrain_models::device::is_cpu;
use spectrain_models::product;

/// Iterations of Newton and Schulz, and the coefficients of their polynomial `a x + b x³ + c x⁵`, which the authors chose for its
/// slope at zero: singular values come to lie around 1, between about 0.7 and 1.2.
const ITERATIONS: usize = 5;
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];
/// The least norm by which a momentum is divided.
const EPSILON: f64 = 1e-7;

/// Decays `momentum` towards a gradient, and returns it with the weights behind a step at `rate`, of which the share `shrink` was
/// left before.
///
/// # Shapes
/// - all: `[d_in, d_out]`, f32
pub(crate) fn step(
    weights: Tensor<2>,
    momentum: Tensor<2>,
    gradient: Tensor<2>,
    MuonStep { beta, rate, shrink }: MuonStep,
) -> (Tensor<2>, Tensor<2>) {
    let [d_in, d_out] = weights.dims();
    let momentum = momentum * beta + gradient.clone() * (1.0 - beta);
    // Nesterov's: where the momentum will be.
    let ahead = gradient * (1.0 - beta) + momentum.clone() * beta;
    // So that what a layer gives changes as much whatever its shape.
    let scale = (d_out as f64 / d_in as f64).max(1.0).sqrt();
    let weights = weights * shrink - orthogonal(ahead) * (rate * scale);
    (weights, momentum)
}

/// A step at one matrix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MuonStep {
    /// Decay of the momentum.
    pub(crate) beta: f64,
    /// The learning rate.
    pub(crate) rate: f64,
    /// What is left of the weights: `1 - learning rate · weight decay`.
    pub(crate) shrink: f64,
}

/// A matrix with the singular vectors of `x`, whose singular values are all near 1. On the CPU it is computed in f32, elsewhere in
/// bf16, as the authors do.
fn orthogonal(x: Tensor<2>) -> Tensor<2> {
    let [rows, columns] = x.dims();
    let is_tall = rows > columns;
    let dtype = if is_cpu(&x.device()) {
        DType::F32
    } else {
        DType::BF16
    };
    let norm = x.clone().square().sum().sqrt().clamp_min(EPSILON);
    let mut x = (x / norm.unsqueeze()).cast(dtype);
    if is_tall {
        x = x.transpose();
    }
    let [a, b, c] = COEFFICIENTS;
    for _ in 0..ITERATIONS {
        let gram = product(x.clone(), x.clone().transpose());
        let change = gram.clone() * b + product(gram.clone(), gram) * c;
        x = x.clone() * a + product(change, x);
    }
    if is_tall {
        x = x.transpose();
    }
    x.cast(DType::F32)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Distribution;
    use spectrain_models::device::test_device;
    use spectrain_models::weights::host_f32;

    use super::*;

    fn matrix(shape: [usize; 2]) -> Tensor<2> {
        Tensor::random(shape, Distribution::Uniform(-0.3, 0.3), &test_device())
    }

    #[test]
    fn singular_values_come_to_lie_around_1_and_vectors_stay() {
        for shape in [[7, 19], [40, 12], [33, 33]] {
            let x = matrix(shape);
            let made = orthogonal(x.clone());
            let thin = if shape[0] > shape[1] {
                made.clone().transpose()
            } else {
                made.clone()
            };
            let rows = thin.dims()[0];
            // The diagonal of the Gram matrix adds up to the squares of the singular values.
            let gram = host_f32(thin.clone().matmul(thin.transpose()));
            let squares: f32 = (0..rows).map(|at| gram[at * rows + at]).sum();
            let mean = squares / rows as f32;
            assert!((0.5..1.3).contains(&mean), "{shape:?}: {mean}");
            // The inner product with x is then near the sum of its singular values, which is more than its norm.
            let inner = host_f32((made * x.clone()).sum())[0];
            let norm = host_f32(x.square().sum().sqrt())[0];
            assert!(inner > norm, "{shape:?}: {inner} {norm}");
        }
    }

    #[test]
    fn no_gradient_moves_nothing_but_by_decay() {
        let zeros = || Tensor::zeros([4, 6], &test_device());
        let step_of = MuonStep {
            beta: 0.95,
            rate: 0.1,
            shrink: 0.75,
        };
        let weights = matrix([4, 6]);
        let (moved, _) = step(weights.clone(), zeros(), zeros(), step_of);
        assert_eq!(host_f32(moved), host_f32(weights * 0.75));
    }
}

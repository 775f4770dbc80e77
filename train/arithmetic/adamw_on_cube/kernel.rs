//! What one unit does.
use cubecl::prelude::*;

/// What a step multiplies by; see [`AdamWStep`](super::AdamWStep).
#[derive(CubeType, CubeLaunch)]
pub(super) struct Rates {
    beta1: f32,
    beta2: f32,
    /// `1 - beta1`
    new1: f32,
    /// `1 - beta2`
    new2: f32,
    epsilon: f32,
    correct2: f32,
    /// The learning rate over the correction of the first moment.
    rate: f32,
    shrink: f32,
}

#[cube(launch, address_type = "dynamic")]
pub(super) fn adamw_kernel<N: Size>(
    weights: &mut [Vector<f32, N>],
    first: &mut [Vector<f32, N>],
    second: &mut [Vector<f32, N>],
    gradient: &[Vector<f32, N>],
    factor: &[f32],
    rates: Rates,
    vectors: u32,
    #[comptime] is_scaled: bool,
) {
    let at = ABSOLUTE_POS;
    if at < vectors as usize {
        let mut slope = gradient[at];
        if is_scaled {
            slope *= Vector::new(factor[0]);
        }
        let mean = first[at] * Vector::new(rates.beta1) + slope * Vector::new(rates.new1);
        let square =
            second[at] * Vector::new(rates.beta2) + slope * slope * Vector::new(rates.new2);
        let root = (square / Vector::new(rates.correct2)).sqrt() + Vector::new(rates.epsilon);
        let change = mean / root * Vector::new(rates.rate);
        first[at] = mean;
        second[at] = square;
        weights[at] = weights[at] * Vector::new(rates.shrink) - change;
    }
}

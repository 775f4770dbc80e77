//! How fast a device computes.

use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use burn::prelude::{Device, Tensor};
use burn::tensor::Distribution;
use spectrain_checkpoints::DType;
use spectrain_models::products::Precision;
use spectrain_models::{FrozenType, product};

use crate::runtime::device;

/// Useful FLOP/s of a GPU in bf16: 40 % of the dense peak of an H100 or H200 (989 TFLOP/s).
const GPU_FLOPS: f64 = 400e12;
/// The same in f32, which it multiplies in TF32: half as many.
const GPU_FLOPS_F32: f64 = 200e12;
/// Share of a bare matrix product's speed that a whole training step reaches on the CPU.
const CPU_EFFICIENCY: f64 = 0.5;
/// The same of products whose factors are rounded to bf16: of a step that they make shorter, what is no product is a larger share.
const CPU_EFFICIENCY_BF16: f64 = 0.35;
/// How long the CPU is measured, and how long at most where other programs keep it busy.
const MEASURED: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(500)];
/// Products that follow one another, and the pause before them: who has paused is let in first by others who have not.
const TOGETHER: usize = 3;
const PAUSE: Duration = Duration::from_millis(10);
/// How many times as long as the fastest product the usual one takes where other programs are busy.
const BUSY: f64 = 1.5;

/// FLOP/s over whole texts of so many devices of this name together, where a target is held so, and how that is known. Processes on
/// CPUs may share one.
pub(super) fn speed(device: &str, ranks: usize, held: FrozenType) -> (f64, String) {
    static WHOLE: LazyLock<(f64, String)> = LazyLock::new(|| cpu_speed(Precision::F32));
    static ROUNDED: LazyLock<(f64, String)> = LazyLock::new(|| cpu_speed(Precision::Bf16));
    if device::is_gpu(device) {
        let (flops, name) = match held.dtype {
            DType::F32 => (GPU_FLOPS_F32, "TF32"),
            _ => (GPU_FLOPS, "bf16"),
        };
        let each = format!("40 % of the dense {name} peak of an H100 or H200");
        let source = match ranks {
            1 => format!("assumed: {each}"),
            _ => format!("assumed: {each} on each"),
        };
        return (flops * ranks as f64, source);
    }
    match held.precision {
        Precision::Bf16 if Precision::Bf16.is_here() => ROUNDED.clone(),
        _ => WHOLE.clone(),
    }
}

/// Rows and columns of the matrices that are multiplied.
const SIZE: usize = 512;

/// The CPU's speed, from short matrix products.
fn cpu_speed(precision: Precision) -> (f64, String) {
    let _precision = precision.scope();
    let device = Device::flex();
    let matrix = || Tensor::<2>::random([SIZE, SIZE], Distribution::Uniform(-1.0, 1.0), &device);
    let (left, right) = (matrix(), matrix());
    let product = || {
        let started = Instant::now();
        _ = product(left.clone(), right.clone()).into_data();
        started.elapsed().as_secs_f64()
    };
    // The first one waits for the threads to begin.
    product();
    let [usual, most] = MEASURED;
    let mut products = Products(vec![product()]);
    let started = Instant::now();
    while started.elapsed() < usual || (products.is_slowed() && started.elapsed() < most) {
        sleep(PAUSE);
        products.0.extend((0..TOGETHER).map(|_| product()));
    }
    products.speed(precision)
}

/// Seconds that products took one after the other.
struct Products(Vec<f64>);

impl Products {
    /// Those of the fastest: what other programs took of the processor in a moment says nothing of hours of training.
    fn fastest(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// How many times as long the usual one took.
    fn slowed(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
            .get(sorted.len() / 2)
            .map_or(1.0, |usual| usual / self.fastest())
    }

    fn is_slowed(&self) -> bool {
        self.slowed() > BUSY
    }

    /// FLOP/s of a training, and how that is known.
    fn speed(&self, precision: Precision) -> (f64, String) {
        let flops = 2.0 * (SIZE as f64).powi(3) / self.fastest();
        let (efficiency, of) = match precision {
            Precision::F32 => (CPU_EFFICIENCY, ""),
            Precision::Bf16 => (CPU_EFFICIENCY_BF16, " of factors in bf16"),
        };
        let percent = 100.0 * efficiency;
        let mut source =
            format!("{percent:.0} % of the fastest measured {SIZE}³ matrix product{of}");
        if self.is_slowed() {
            source += &format!(
                "; most took {:.1} times as long, as other programs are busy: beside them all takes longer",
                self.slowed()
            );
        }
        (flops * efficiency, source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_half_as_fast_in_f32() {
        let [(half, _), (single, told)] =
            [DType::BF16, DType::F32].map(|dtype| speed("cuda:0", 2, dtype.into()));
        assert_eq!(half, 2.0 * single);
        assert!(
            told.contains("TF32") && told.ends_with(" on each"),
            "{told}"
        );
    }

    #[test]
    fn the_speed_of_a_cpu_is_that_of_the_fastest_product_however_busy_it_is() {
        let of = |seconds: &[f64]| Products(seconds.to_vec()).speed(Precision::F32);
        let (quiet, told) = of(&[0.0011, 0.001, 0.0012]);
        assert_eq!(quiet, CPU_EFFICIENCY * 2.0 * 512.0 * 512.0 * 512.0 / 0.001);
        assert_eq!(told, "50 % of the fastest measured 512³ matrix product");
        let (busy, told) = of(&[0.004, 0.001, 0.009, 0.004]);
        assert_eq!(busy, quiet);
        assert!(told.contains("most took 4.0 times as long"), "{told}");
    }
}

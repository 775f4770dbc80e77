//! How fast a device computes.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use burn::prelude::{Device, Tensor};
use burn::tensor::Distribution;
use spectrain_checkpoints::DType;

use crate::runtime::device;

/// Useful FLOP/s of a GPU in bf16: 40 % of the dense peak of an H100 or H200 (989 TFLOP/s).
const GPU_FLOPS: f64 = 400e12;
/// The same in f32, which it multiplies in TF32: half as many.
const GPU_FLOPS_F32: f64 = 200e12;
/// Share of a bare matrix product's speed that a whole training step reaches on the CPU.
const CPU_EFFICIENCY: f64 = 0.5;
/// How long the CPU is measured.
const MEASURED: Duration = Duration::from_millis(200);

/// FLOP/s in this type of so many devices of this name together, and how that is known. Processes on CPUs may share one, which
/// computes in f32 whatever it holds.
pub(super) fn speed(device: &str, ranks: usize, dtype: DType) -> (f64, String) {
    static CPU: LazyLock<(f64, String)> = LazyLock::new(cpu_speed);
    if device::is_gpu(device) {
        let (flops, name) = match dtype {
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
    CPU.clone()
}

/// The CPU's speed, from short matrix products.
fn cpu_speed() -> (f64, String) {
    const SIZE: usize = 512;
    let device = Device::flex();
    let matrix = || Tensor::<2>::random([SIZE, SIZE], Distribution::Uniform(-1.0, 1.0), &device);
    let (left, right) = (matrix(), matrix());
    let product = || {
        let started = Instant::now();
        _ = left.clone().matmul(right.clone()).into_data();
        started.elapsed()
    };
    product();
    let started = Instant::now();
    // The fastest of many: what other programs took of the processor in a moment says nothing of hours of training.
    let mut fastest = product();
    while started.elapsed() < MEASURED {
        fastest = fastest.min(product());
    }
    let flops = 2.0 * (SIZE as f64).powi(3) / fastest.as_secs_f64();
    let percent = 100.0 * CPU_EFFICIENCY;
    (
        flops * CPU_EFFICIENCY,
        format!("{percent:.0} % of a measured {SIZE}³ matrix product"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_half_as_fast_in_f32() {
        let [(half, _), (single, told)] =
            [DType::BF16, DType::F32].map(|dtype| speed("cuda:0", 2, dtype));
        assert_eq!(half, 2.0 * single);
        assert!(
            told.contains("TF32") && told.ends_with(" on each"),
            "{told}"
        );
    }
}

//! What a pass of a decoder takes.
//!
//! It reads all weights for a few rows, so on a CPU it takes as long as reading them, or as multiplying them where there are many rows;
//! beside that each operation of each layer has its own cost, which is most of the time of a small target, and of any on a GPU. The
//! constants are those of two cores and of an H100, by which targets of 1 M to 130 M parameters and of 8 G were timed
//! (`models/README.md`, `tests/README.md`).

use spectrain_models::FrozenType;

use super::speed::speed;
use crate::runtime::device::is_gpu;

/// Bytes of weights that a CPU reads while it computes a FLOP of a training: cores with fast products have fast memory too.
const CPU_BYTES_PER_FLOP: f64 = 0.25;
/// Seconds for a layer, and for each of its sequences, which have keys and values of their own.
const CPU_LAYER: [f64; 2] = [50e-6, 25e-6];
/// Bytes a second that a GPU reads.
const GPU_BYTES: f64 = 3e12;
/// The same of a GPU, each of whose operations waits for the host.
const GPU_LAYER: [f64; 2] = [450e-6, 100e-6];

/// How fast one device makes passes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pace {
    /// FLOP/s over whole texts.
    pub(super) over_texts: f64,
    /// FLOP/s of decoding.
    pub(super) flops: f64,
    /// Bytes of weights a second.
    bytes: f64,
    /// Seconds for a layer, and for each of its sequences.
    layer: [f64; 2],
}

/// A model as a pass goes through it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Passed {
    /// Bytes of the weights that it reads.
    pub(super) bytes: f64,
    /// Parameters that each row is multiplied with.
    pub(super) parameters: f64,
    /// Decoder layers.
    pub(super) layers: f64,
}

impl Pace {
    /// That of the device of this name, where a target is held so.
    pub(super) fn of(device: &str, held: FrozenType) -> Self {
        let (over_texts, _) = speed(device, 1, held);
        let (flops, _) = speed(device, 1, held.dtype.into());
        match is_gpu(device) {
            true => Self {
                over_texts,
                flops,
                bytes: GPU_BYTES,
                layer: GPU_LAYER,
            },
            false => Self {
                over_texts,
                flops,
                bytes: flops * CPU_BYTES_PER_FLOP,
                layer: CPU_LAYER,
            },
        }
    }

    /// Seconds of a pass over so many rows, of so many sequences.
    pub(super) fn pass(&self, model: &Passed, rows: f64, sequences: f64) -> f64 {
        let reading = model.bytes / self.bytes;
        let products = 2.0 * model.parameters * rows / self.flops;
        let [layer, sequence] = self.layer;
        // What stands before and behind the layers takes about as long as one.
        let operations = (model.layers + 1.0) * (layer + sequences * sequence);
        reading.max(products) + operations
    }
}

#[cfg(test)]
mod tests {
    use spectrain_checkpoints::DType;

    use super::*;

    /// Whether an estimate is within twice and half of what was measured.
    fn is_near(estimated: f64, measured: f64) -> bool {
        (0.5..=2.0).contains(&(estimated / measured))
    }

    #[test]
    fn passes_of_small_targets_take_what_two_cores_were_measured_to_take() {
        let two_cores = Pace {
            over_texts: 78e9,
            flops: 78e9,
            bytes: 78e9 * CPU_BYTES_PER_FLOP,
            layer: CPU_LAYER,
        };
        // A Python target of 7.34 M parameters in 16 MiB, alone, sixteen sequences at a time, and over a draft of five.
        let target = Passed {
            bytes: 16.8e6,
            parameters: 7.34e6,
            layers: 8.0,
        };
        for (rows, sequences, milliseconds) in
            [(1.0, 1.0, 1.24), (16.0, 16.0, 7.46), (6.0, 1.0, 1.81)]
        {
            let found = 1e3 * two_cores.pass(&target, rows, sequences);
            assert!(is_near(found, milliseconds), "{rows} rows: {found} ms");
        }
        // One 1024 wide with 32,000 tokens, in f32, that reads 530 MB.
        let wide = Passed {
            bytes: 530e6,
            parameters: 133e6,
            layers: 8.0,
        };
        let found = 1e3 * two_cores.pass(&wide, 1.0, 1.0);
        assert!(is_near(found, 18.0), "{found} ms");
    }

    #[test]
    fn a_token_of_qwen3_8b_takes_what_an_h100_was_measured_to_take() {
        let gpu = Pace::of("cuda:0", DType::BF16.into());
        let target = Passed {
            bytes: 15.1e9,
            parameters: 7.57e9,
            layers: 36.0,
        };
        let found = 1e3 * gpu.pass(&target, 1.0, 1.0);
        assert!(is_near(found, 24.0), "{found} ms");
    }
}

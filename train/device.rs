//! How much of a vocabulary fits on each kind of device.
use burn::prelude::*;
use spectrain_models::device::is_cpu;

/// Logits of the drafter alive at a time on the CPU: just below 32 MiB, above which allocators give memory back to the
/// kernel at once.
pub const CHUNK_ELEMENTS_CPU: usize = 8_000_000;
/// And on other devices.
pub const CHUNK_ELEMENTS: usize = 1 << 26;

/// Rows of logits over `vocab` that are alive at a time.
pub(crate) fn chunk_rows(vocab: usize, device: &Device) -> usize {
    let elements = if is_cpu(device) {
        CHUNK_ELEMENTS_CPU
    } else {
        CHUNK_ELEMENTS
    };
    (elements / vocab).max(16)
}

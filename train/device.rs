//! How much of a vocabulary fits on each kind of device.
use burn::prelude::*;
use spectrain_models::device::is_cpu;

/// Logits of the drafter alive at a time on the CPU: many, since the whole gradient of the head is read and written for each chunk.
/// A quarter of them made a step of width 512 with 32,000 tokens 6 % slower.
pub const CHUNK_ELEMENTS_CPU: usize = 1 << 25;
/// And on other devices.
pub const CHUNK_ELEMENTS: usize = 1 << 26;
/// On those a number of rows is a multiple of this, where it is as large: what the kernels of products take at a time.
const TILE: usize = 128;

/// Rows of logits over `vocab` that are alive at a time.
pub(crate) fn chunk_rows(vocab: usize, device: &Device) -> usize {
    if is_cpu(device) {
        return (CHUNK_ELEMENTS_CPU / vocab).max(16);
    }
    match CHUNK_ELEMENTS / vocab {
        rows if rows >= TILE => rows / TILE * TILE,
        rows => rows.max(16),
    }
}

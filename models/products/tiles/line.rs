//! What tiles are made of.

/// A row of a tile: 16 pairs of numbers in bf16.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u32; 16]);

/// Lines of a tile.
pub(super) const TILE_ROWS: usize = 16;
/// Lanes of a panel, and numbers along the sum that a tile holds.
pub(super) const SIDE: usize = 32;
/// Lines of a panel for [`SIDE`] numbers along the sum: two tiles of 16 lanes each.
pub(super) const STEP: usize = 2 * TILE_ROWS;

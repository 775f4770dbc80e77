//! Where there is no AMX: see `tiles.rs`.
use super::matrix::Matrix;

/// There are none.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tiles {}

impl Tiles {
    pub(super) fn here() -> Option<Self> {
        None
    }
}

/// The place of a product.
pub(super) struct Output;

impl Output {
    pub(super) fn new(_: *mut f32, _: [usize; 2]) -> Self {
        Self
    }
}

pub(super) fn pay(_: Matrix, _: Matrix) -> bool {
    false
}

#[expect(unsafe_code, reason = "as where there are tiles")]
pub(super) unsafe fn multiply(tiles: Tiles, _: [Matrix; 2], _: Output, _: bool, _: bool) {
    match tiles {}
}

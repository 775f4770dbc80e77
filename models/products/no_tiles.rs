//! Where processors do not multiply in bf16: see `tiles.rs`.
use burn::tensor::bf16;

use super::matrix::Factor;

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
    pub(super) fn of_f32(_: *mut f32, _: [usize; 2]) -> Self {
        Self
    }

    pub(super) fn of_bf16(_: *mut bf16, _: [usize; 2]) -> Self {
        Self
    }
}

pub(super) fn pay(_: [usize; 3]) -> bool {
    false
}

pub(super) fn may_round(_: usize) -> bool {
    false
}

#[expect(unsafe_code, reason = "as where there are tiles")]
pub(super) unsafe fn multiply(tiles: Tiles, _: [Factor; 2], _: Output, _: bool, _: bool) {
    match tiles {}
}

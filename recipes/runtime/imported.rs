//! Features that others captured, brought into this program's own layout and back out of it.

pub mod convert;
pub mod evidence;
pub mod export;
pub mod layers;
pub mod masks;
pub mod proof;
mod readings;

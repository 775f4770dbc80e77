//! What kernels on devices of CubeCL share, and which of cubek's multiply matrices.
mod products;
pub mod reduce;
pub mod shares;

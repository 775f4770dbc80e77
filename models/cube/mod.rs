//! What kernels on devices of CubeCL share, and which of cubek's multiply matrices.
#[cfg(feature = "cuda")]
mod cublas;
mod products;
pub mod reduce;
pub mod shares;

//! What kernels on devices of CubeCL share; products and reductions of matrices there.
#[cfg(feature = "cuda")]
mod cublas;
mod products;
pub mod reduce;
pub(crate) mod reductions;
pub mod shares;

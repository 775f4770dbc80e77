//! What kernels on devices of CubeCL share; products and reductions of matrices there.
mod by_cubek;
#[cfg(feature = "cuda")]
mod cublas;
pub mod heads;
#[cfg(all(feature = "cuda", not(feature = "fusion")))]
pub mod memory;
#[cfg(feature = "cuda")]
pub mod order;
mod products;
pub mod reduce;
pub(crate) mod reductions;
pub mod shares;

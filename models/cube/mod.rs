//! What kernels on devices of CubeCL share.
pub mod reduce;
pub mod shares;

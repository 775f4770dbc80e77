//! Models at work: the device, the target, the judge of a drafter, the check before training, the benchmark.

pub mod bench;
pub mod device;
pub mod judge;
pub mod self_check;
pub mod target;

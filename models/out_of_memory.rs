//! Devices that run out of memory. CubeCL goes on without what it could not allocate; whoever first reads what was to be computed from it,
//! steps later perhaps, panics.
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// What CubeCL says of it.
const SAID: [&str; 6] = [
    "out of device memory",
    "out-of-memory error",
    "can't allocate buffer of size",
    // The same errors by their names.
    "OutOfMemory",
    "BufferTooBig",
    // And as CUDA has it.
    "CUDA_ERROR_OUT_OF_MEMORY",
];

/// A device had no memory left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory;

/// Whether a panic, by what it carries, is that of a device without memory.
pub fn is_out_of_memory(panic: &(dyn Any + Send)) -> bool {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.is_some_and(|text| SAID.iter().any(|said| text.contains(said)))
}

/// Runs what reads from a device. Where it fails, nothing that it was changing may be used further.
///
/// # Errors
/// The device had no memory left.
///
/// # Panics
/// With any other panic of `work`.
pub fn within_memory<T>(work: impl FnOnce() -> T) -> Result<T, OutOfMemory> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => Ok(done),
        Err(panic) if is_out_of_memory(&*panic) => Err(OutOfMemory),
        Err(panic) => resume_unwind(panic),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_memory_is_told_from_a_bug() {
        assert_eq!(within_memory(|| 3), Ok(3));
        for said in [
            "An IO error happened\nCaused by:\n  out of device memory allocating 7 bytes\n   0: …",
            "Io(OutOfMemory { size: 7, backtrace: … })",
            "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")",
        ] {
            let reads = || panic!("cannot read a tensor from its device: {said}");
            assert_eq!(within_memory::<()>(reads), Err(OutOfMemory), "{said}");
        }
        let bug = || within_memory::<()>(|| panic!("index out of bounds"));
        let other = catch_unwind(|| bug().is_ok()).unwrap_err();
        assert!(!is_out_of_memory(&*other));
    }
}

//! A hint to the processor.

/// Asks for what stands at an address, which need not be there: into the second cache, as the nearest one is full of what is
/// computed with.
#[inline(always)]
pub(super) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "a hint to the processor")]
    // SAFETY: nothing is read, and any address is allowed.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

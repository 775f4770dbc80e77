//! Loops for the instructions that the processor has.

/// What `$work` gives, compiled for the widest vectors of which `$arch`, a [`pulp::Arch`], knows that the processor has them.
///
/// A closure that is not inlined into what is compiled for them would itself be compiled for the oldest processor: one number at a
/// time.
#[macro_export]
macro_rules! vectorised {
    ($arch:expr, $work:expr) => {
        $arch.dispatch(
            #[inline(always)]
            || $work,
        )
    };
}

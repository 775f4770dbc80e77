//! Loops for the instructions that the processor has.

/// What `$work` gives, compiled for the widest vectors of which `$arch`, a [`pulp::Arch`], knows that the processor has them.
///
/// A closure that is not inlined into what is compiled for them would itself be compiled for the oldest processor: four numbers at a
/// time. [`Once`] sees to it that this one is inlined.
#[macro_export]
macro_rules! vectorised {
    ($arch:expr, $work:expr) => {{
        let once = $crate::vectorised::Once;
        $arch.dispatch(
            #[inline(always)]
            || {
                let _once = once;
                $work
            },
        )
    }};
}

/// What the closure of [`vectorised!`](crate::vectorised!) consumes, so that it can be called only once.
///
/// The compiler calls a closure that can be called again through a function of its own, which no attribute reaches: where the closure is
/// long, that function is not inlined.
#[derive(Debug)]
pub struct Once;

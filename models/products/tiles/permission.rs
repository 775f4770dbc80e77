//! Whether this process may use tiles.
use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, __get_cpuid_max};
use std::sync::LazyLock;

/// Proof that it may, and that the processor has what laying factors out for them takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tiles(());

impl Tiles {
    /// Asks the system for them, once.
    pub(crate) fn here() -> Option<Self> {
        static HERE: LazyLock<bool> = LazyLock::new(|| are_there() && are_permitted());
        HERE.then_some(Self(()))
    }
}

/// What the processor says that it has.
fn are_there() -> bool {
    /// Bits of the leaf's last register: products of bf16, and tiles.
    const BF16: u32 = 1 << 22;
    const TILES: u32 = 1 << 24;
    const LEAF: u32 = 7;
    let has_vectors = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512bf16");
    has_vectors && __get_cpuid_max(0).0 >= LEAF && {
        let found = __cpuid_count(LEAF, 0).edx;
        found & BF16 != 0 && found & TILES != 0
    }
}

/// Linux saves the tiles of a thread only in processes that have asked for it (`ARCH_REQ_XCOMP_PERM`,
/// <https://docs.kernel.org/arch/x86/xstate.html>).
fn are_permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let status: i64;
    #[expect(unsafe_code, reason = "the system is called by hand")]
    // SAFETY: this call reads and writes no memory of the process.
    unsafe {
        asm!(
            "syscall",
            inout("rax") ARCH_PRCTL => status,
            in("rdi") REQUEST,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    status == 0
}

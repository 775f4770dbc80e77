//! The program itself, the processor and the memory.

use indicatif::BinaryBytes;
use spectrain_models::products::Precision;

use super::finding::Finding;
use crate::runtime::machine_memory::MachineMemory;

/// Memory under which a target of some size is not held.
const LITTLE: u64 = 4 << 30;

/// Which program this is.
pub(super) fn version() -> Finding {
    let (version, system, processor) = (
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH,
    );
    if cfg!(debug_assertions) {
        let found = format!("{version}, a development build for {system} {processor}");
        return Finding::good("version", found)
            .note("build it with `--release`: that trains and decodes faster");
    }
    Finding::good("version", format!("{version} for {system} {processor}"))
}

/// What it was built with.
pub(super) fn features() -> Finding {
    let all = [
        ("cpu", cfg!(feature = "cpu")),
        ("cuda", cfg!(feature = "cuda")),
        ("cuda-nvrtc", cfg!(feature = "cuda-nvrtc")),
        ("cube-cpu", cfg!(feature = "cube-cpu")),
        ("fusion", cfg!(feature = "fusion")),
    ];
    let built = all.iter().filter(|(_, built)| *built);
    let built: Vec<&str> = built.map(|(name, _)| *name).collect();
    let finding = Finding::good("features", built.join(", "));
    if cfg!(feature = "fusion") {
        return finding.note(
            "`fusion` together with autotuning has given wrong results without any error: for results to rely on, build \
             without it",
        );
    }
    finding
}

/// Threads and instructions.
pub(super) fn processor() -> Finding {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let noun = if threads == 1 { "thread" } else { "threads" };
    let instructions = instructions();
    let found = match &instructions[..] {
        [] => format!("{threads} {noun}"),
        known => format!("{threads} {noun}, {}", known.join(", ")),
    };
    let finding = Finding::good("processor", found);
    if cfg!(target_arch = "x86_64") && !instructions.contains(&"avx2") {
        return finding.note("it has no AVX2: training and decoding on it are slow");
    }
    finding
}

#[cfg(target_arch = "x86_64")]
fn instructions() -> Vec<&'static str> {
    let all = [
        ("fma", std::is_x86_feature_detected!("fma")),
        ("avx2", std::is_x86_feature_detected!("avx2")),
        ("avx512", std::is_x86_feature_detected!("avx512f")),
        (
            "products in bf16 (`target.dtype = \"bf16\"` trains with them)",
            Precision::Bf16.is_here(),
        ),
    ];
    let known = all.iter().filter(|(_, known)| *known);
    known.map(|(name, _)| *name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn instructions() -> Vec<&'static str> {
    Vec::new()
}

/// What is free of the memory. Nothing where the system does not say.
pub(super) fn memory() -> Option<Finding> {
    let MachineMemory { total, free } = MachineMemory::here()?;
    let found = format!("{} free of {}", BinaryBytes(free), BinaryBytes(total));
    let finding = Finding::good("memory", found);
    Some(if free < LITTLE {
        finding
            .note("little for anything but a small target: `--plan` says how much a recipe takes")
    } else {
        finding
    })
}

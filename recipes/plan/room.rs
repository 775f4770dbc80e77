//! Whether this machine has the memory and the disk that a run takes.

use std::path::Path;

use super::estimate::Estimate;
use super::words::bytes;
use crate::plan::preflight::Asked;
use crate::runs::run_folder::Existing;
use crate::runtime::device::is_gpu;
use crate::runtime::machine_memory::MachineMemory;
use crate::runtime::writable::{free_space, writable};

/// What is said where this machine has less than a run takes.
pub(super) fn warnings(asked: &Asked, estimate: &Estimate) -> Vec<String> {
    // How much memory a GPU has is not known before it is opened: [`too_little_on_device`].
    let of_cpu = estimate.all_processes().filter(|_| !is_gpu(asked.device));
    let memory = of_cpu.and_then(|needed| too_little_memory(needed, MachineMemory::here()?.total));
    let run = asked.runs.join(&asked.recipe.name);
    let disk = too_little_disk(&run, asked.existing, estimate.disk_bytes());
    memory.into_iter().chain(disk).collect()
}

/// What is said where a process of a stage takes more memory of the device of this name, `needed` bytes, than it can have there.
pub(super) fn too_little_on_device(
    (stage, needed): (&str, u64),
    device: &str,
    available: u64,
) -> Option<String> {
    let text = || {
        format!(
            "the stage `{stage}` takes {} of memory at its peak, and `{device}` has {} free",
            bytes(needed),
            bytes(available)
        )
    };
    (needed > available).then(text)
}

fn too_little_memory(needed: u64, there: u64) -> Option<String> {
    let text = || {
        format!(
            "the run takes {} of memory at its peak, and this machine has {}",
            bytes(needed),
            bytes(there)
        )
    };
    (needed > there).then(text)
}

/// What is said of the disk under a run that begins: of one that goes on, a part of the bytes is on the disk already.
fn too_little_disk(run: &Path, existing: Existing, needed: u64) -> Option<String> {
    if existing == Existing::Continue && run.exists() {
        return None;
    }
    let folder = writable(run).ok()?;
    let free = free_space(&folder)?;
    let text = || {
        format!(
            "the run takes {} of the disk, and {} are free at `{}`",
            bytes(needed),
            bytes(free),
            folder.display()
        )
    };
    (free < needed).then(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_larger_than_the_disk_is_told() {
        let root = tempfile::tempdir().unwrap();
        let run = root.path().join("runs/a");
        let continued = |needed: u64| too_little_disk(&run, Existing::Continue, needed);
        assert_eq!(continued(1), None);
        let told = continued(u64::MAX).unwrap();
        assert!(told.contains(" of the disk, and "), "{told}");
        assert!(told.contains(&root.path().display().to_string()), "{told}");
        std::fs::create_dir_all(&run).unwrap();
        assert_eq!(continued(u64::MAX), None);
        // What is set aside stays on the disk.
        let fresh = too_little_disk(&run, Existing::SetAside, u64::MAX);
        assert!(fresh.is_some());
    }

    #[test]
    fn a_run_that_is_larger_than_the_memory_is_told() {
        assert_eq!(too_little_memory(1 << 30, 1 << 30), None);
        let told = too_little_memory(28 << 30, 1 << 30).unwrap();
        let expected = "the run takes 28.0 GiB of memory at its peak, and this machine has 1.0 GiB";
        assert_eq!(told, expected);
        let of_train = |needed| too_little_on_device(("train", needed), "cuda:1", 1 << 30);
        assert_eq!(of_train(1 << 30), None);
        let told = of_train(28 << 30).unwrap();
        let expected =
            "the stage `train` takes 28.0 GiB of memory at its peak, and `cuda:1` has 1.0 GiB free";
        assert_eq!(told, expected);
    }
}

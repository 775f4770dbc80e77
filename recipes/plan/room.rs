//! Whether this machine has the memory and the disk that a run takes.

use std::path::Path;

use super::estimate::Estimate;
use super::on_disk::{bytes_in, left, parts_of};
use super::words::bytes;
use crate::plan::preflight::Asked;
use crate::runs::run_folder::Existing;
use crate::runtime::device::is_gpu;
use crate::runtime::machine_memory::MachineMemory;
use crate::runtime::writable::{free_space, writable};
use crate::stages::array::Part;

/// What is said where this machine has less than a run takes.
pub(super) fn warnings(asked: &Asked, estimate: &Estimate) -> Vec<String> {
    let run = asked.runs.join(&asked.recipe.name);
    let takes = match begins(&run, asked.existing) {
        true => "the run takes",
        false => "the run still takes",
    };
    let disk = too_little_disk(takes, &run, left(asked, estimate));
    let memory = needed_memory(asked, estimate);
    let memory = memory.and_then(|needed| too_little_memory(needed, MachineMemory::here()?.total));
    memory.into_iter().chain(disk).collect()
}

/// What is said where the disk under a part of the features has less than the part still takes.
pub(super) fn too_little_for_part(
    asked: &Asked,
    part: Part,
    estimate: &Estimate,
) -> Option<String> {
    let folder = parts_of(asked).join(part.folder());
    let share = estimate.features_on_disk().div_ceil(part.of.max(1));
    let needed = share.saturating_sub(bytes_in(&folder));
    too_little_disk(&format!("part {part} takes"), &folder, needed)
}

/// Bytes of this machine's memory that a run takes at its peak, as far as they are known.
pub(super) fn needed_memory(asked: &Asked, estimate: &Estimate) -> Option<u64> {
    match is_gpu(asked.device) {
        // How much memory a GPU has is not known before it is opened: [`too_little_on_device`]. The texts are in the machine's own.
        true => estimate.all_texts(),
        false => estimate.all_processes(),
    }
}

/// What is said where this machine has less memory than that of several runs takes which takes the most, each with the bytes that it
/// takes, as far as they are known: they run one after the other.
pub(super) fn too_little_memory_for_all<'a, 'b: 'a>(
    all: impl Iterator<Item = (&'a Asked<'b>, Option<u64>)>,
) -> Option<String> {
    let known = all.filter_map(|(asked, bytes)| Some((asked, bytes?)));
    let (largest, needed) = known.max_by_key(|(_, bytes)| *bytes)?;
    let told = too_little_memory(needed, MachineMemory::here()?.total)?;
    Some(format!("{}: {told}", largest.recipe.name))
}

/// What is said where the disk has less than those of several runs take together that begin, each with the bytes that it takes, as
/// far as they are known.
pub(super) fn too_little_disk_for_all<'a, 'b: 'a>(
    all: impl Iterator<Item = (&'a Asked<'b>, Option<u64>)>,
) -> Option<String> {
    let run = |asked: &Asked| asked.runs.join(&asked.recipe.name);
    let begin: Vec<_> = all
        .filter(|(asked, _)| begins(&run(asked), asked.existing))
        .collect();
    let needed = begin.iter().filter_map(|(_, bytes)| *bytes);
    let needed = needed.fold(0, u64::saturating_add);
    let (first, _) = begin.first()?;
    too_little_disk("the runs together take", &run(first), needed)
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

/// Whether a run begins: of one that goes on, a part of the bytes is on the disk already.
pub(super) fn begins(run: &Path, existing: Existing) -> bool {
    existing == Existing::SetAside || !run.exists()
}

/// What is said of the disk under a run; `who` takes so much of it.
fn too_little_disk(who: &str, run: &Path, needed: u64) -> Option<String> {
    let folder = writable(run).ok()?;
    let free = free_space(&folder)?;
    let text = || {
        format!(
            "{who} {} of the disk, and {} are free at `{}`",
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
        let of_run = |needed: u64| too_little_disk("the run takes", &run, needed);
        assert_eq!(of_run(1), None);
        let told = of_run(u64::MAX).unwrap();
        assert!(told.starts_with("the run takes "), "{told}");
        assert!(told.contains(" of the disk, and "), "{told}");
        assert!(told.contains(&root.path().display().to_string()), "{told}");
        assert!(begins(&run, Existing::Continue));
        std::fs::create_dir_all(&run).unwrap();
        assert!(!begins(&run, Existing::Continue));
        // What is set aside stays on the disk.
        assert!(begins(&run, Existing::SetAside));
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

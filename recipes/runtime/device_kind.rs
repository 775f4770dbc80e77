//! Of which kind the processor and the GPUs of this machine are, by what the system says of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Where NVIDIA's driver for Linux has a folder for each GPU.
const GPUS: &str = "/proc/driver/nvidia/gpus";

/// Where Linux tells of each processor.
const PROCESSORS: &str = "/proc/cpuinfo";

/// The kinds of the GPUs here, each once; none where no driver tells of any.
pub(super) fn gpus() -> BTreeSet<String> {
    kinds(Path::new(GPUS))
}

/// The kind of the processor, where the system says it.
pub(super) fn processor() -> Option<String> {
    kind_in(&fs::read_to_string(PROCESSORS).ok()?)
}

/// The kinds of the GPUs of which the driver tells in this folder, each once.
fn kinds(folder: &Path) -> BTreeSet<String> {
    let gpus = fs::read_dir(folder).into_iter().flatten().flatten();
    let told = gpus.filter_map(|gpu| fs::read_to_string(gpu.path().join("information")).ok());
    told.filter_map(|told| value(&told, "Model")).collect()
}

/// The kind of the first processor of which Linux tells: on ARM, where it has no name, by the numbers of its maker and of the part.
fn kind_in(told: &str) -> Option<String> {
    value(told, "model name").or_else(|| {
        let [maker, part] = ["CPU implementer", "CPU part"].map(|key| value(told, key));
        Some(format!("{} {}", maker?, part?))
    })
}

/// The first value of a key in lines of keys and values.
fn value(lines: &str, key: &str) -> Option<String> {
    let mut pairs = lines.lines().filter_map(|line| line.split_once(':'));
    let found = pairs.find(|(found, _)| found.trim() == key);
    found.map(|(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_tells_the_kinds_of_gpus() {
        let root = tempfile::tempdir().unwrap();
        assert!(kinds(&root.path().join("absent")).is_empty());
        for (gpu, kind) in [
            ("0000:01:00.0", "NVIDIA H100"),
            ("0000:02:00.0", "NVIDIA A100"),
        ] {
            let folder = root.path().join(gpu);
            fs::create_dir(&folder).unwrap();
            let told = format!("Model: \t\t {kind}\nIRQ:   \t\t 16\nModel: \t\t other\n");
            fs::write(folder.join("information"), told).unwrap();
        }
        fs::create_dir(root.path().join("0000:03:00.0")).unwrap();
        let expected = ["NVIDIA A100", "NVIDIA H100"].map(str::to_owned);
        assert_eq!(kinds(root.path()), BTreeSet::from(expected));
    }

    #[test]
    fn a_processor_is_told_by_the_name_of_the_first() {
        let told = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz: fast\nmodel name\t: other\n";
        let expected = Some("Some CPU @ 2 GHz: fast");
        assert_eq!(kind_in(told).as_deref(), expected);
    }

    #[test]
    fn processors_without_a_name_are_told_apart_by_their_numbers() {
        let told = "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\n";
        assert_eq!(kind_in(told).as_deref(), Some("0x41 0xd0c"));
        let other = told.replace("0xd0c", "0xd40");
        assert_eq!(kind_in(&other).as_deref(), Some("0x41 0xd40"));
        assert_eq!(kind_in("processor\t: 0\nCPU part\t: 0xd0c\n"), None);
    }
}

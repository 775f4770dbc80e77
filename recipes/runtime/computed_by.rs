//! What times depend on that are measured here, and outputs by how they are rounded: the program and the kind of machine, whatever
//! the device is called.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

use serde_json::{Value, json};
use spectrain_checkpoints::hash::sha256_file;
use spectrain_models::device::DeviceName;

use crate::runtime::device::{device_report, is_gpu};

/// Where NVIDIA's driver for Linux has a folder for each GPU.
const GPUS: &str = "/proc/driver/nvidia/gpus";

/// Where Linux tells of each processor.
const PROCESSORS: &str = "/proc/cpuinfo";

/// Chooses those GPUs of a machine that `cuda:0` and so on are.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// This program, and the kind of machine that the device of this name is a part of.
pub fn computed_by(device: &str) -> Value {
    let machine = match is_gpu(device) {
        true => gpu(device, &kinds(Path::new(GPUS)), env::var(VISIBLE).ok()),
        false => {
            let mut machine = device_report(device);
            let told = fs::read_to_string(PROCESSORS).unwrap_or_default();
            machine.insert("processor".into(), json!(processor(&told)));
            Value::from(machine)
        }
    };
    json!({ "program": program(), "machine": machine })
}

/// SHA-256 of this program's file; its version where that cannot be read.
fn program() -> String {
    // Is the same file when another one has taken its name, as where the program is built anew meanwhile.
    let running = Path::new("/proc/self/exe");
    let file = match running.exists() {
        true => Ok(running.to_owned()),
        false => env::current_exe(),
    };
    let sha256 = file.ok().and_then(|file| sha256_file(&file).ok());
    sha256.unwrap_or_else(|| env!("CARGO_PKG_VERSION").to_owned())
}

/// The kind of a GPU: which one it is tells it only where there are several, or where nobody says of which kind they are.
fn gpu(device: &str, kinds: &BTreeSet<String>, visible: Option<String>) -> Value {
    let is_told = kinds.len() == 1;
    let which = (!is_told).then(|| (format!("{:?}", DeviceName::parse(device)), visible));
    json!({ "kinds": kinds, "which": which })
}

/// The kinds of the GPUs of which the driver tells in this folder, each once.
fn kinds(folder: &Path) -> BTreeSet<String> {
    let gpus = fs::read_dir(folder).into_iter().flatten().flatten();
    let told = gpus.filter_map(|gpu| fs::read_to_string(gpu.path().join("information")).ok());
    told.filter_map(|told| value(&told, "Model")).collect()
}

/// The kind of the first processor of which Linux tells: on ARM, where it has no name, by the numbers of its maker and of the part.
fn processor(told: &str) -> Option<String> {
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

    fn of(kinds: &[&str], device: &str, visible: Option<&str>) -> Value {
        let kinds = kinds.iter().copied().map(str::to_owned).collect();
        gpu(device, &kinds, visible.map(str::to_owned))
    }

    #[test]
    fn gpus_of_one_kind_are_the_same_whatever_they_are_called() {
        let one = of(&["H100"], "cuda:0", None);
        for (device, visible) in [("cuda", None), ("cuda:3", None), ("cuda:0", Some("2"))] {
            assert_eq!(of(&["H100"], device, visible), one);
        }
        assert_ne!(of(&["A100"], "cuda:0", None), one);
    }

    #[test]
    fn gpus_of_which_nobody_tells_the_kind_are_told_apart_by_their_numbers() {
        for told in [vec![], vec!["A100", "H100"]] {
            let first = of(&told, "cuda:0", None);
            assert_eq!(of(&told, "cuda", None), first);
            assert_ne!(of(&told, "cuda:1", None), first);
            assert_ne!(of(&told, "cuda:0", Some("1")), first);
        }
    }

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
    fn a_program_is_told_by_its_file_and_the_cpu_by_its_threads() {
        let found = computed_by("cpu");
        let own = sha256_file(&env::current_exe().unwrap()).unwrap();
        assert_eq!(found["program"], own);
        let machine = &found["machine"];
        assert!(machine["threads"].as_u64().unwrap() > 0);
        assert!(machine.as_object().unwrap().contains_key("processor"));
        let told = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz: fast\nmodel name\t: other\n";
        let expected = Some("Some CPU @ 2 GHz: fast");
        assert_eq!(processor(told).as_deref(), expected);
    }

    #[test]
    fn processors_without_a_name_are_told_apart_by_their_numbers() {
        let told = "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\n";
        assert_eq!(processor(told).as_deref(), Some("0x41 0xd0c"));
        let other = told.replace("0xd0c", "0xd40");
        assert_eq!(processor(&other).as_deref(), Some("0x41 0xd40"));
        assert_eq!(processor("processor\t: 0\nCPU part\t: 0xd0c\n"), None);
    }
}

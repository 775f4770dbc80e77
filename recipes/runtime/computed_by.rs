//! What times depend on that are measured here, and outputs by how they are rounded: the program and the kind of machine, whatever
//! the device is called.

use std::collections::BTreeSet;
use std::env;
use std::path::Path;

use serde_json::{Value, json};
use spectrain_checkpoints::hash::sha256_file;
use spectrain_models::device::DeviceName;

use crate::runtime::device::{device_report, is_gpu};
use crate::runtime::device_kind;

/// Chooses those GPUs of a machine that `cuda:0` and so on are.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// This program, and the kind of machine that the device of this name is a part of.
pub fn computed_by(device: &str) -> Value {
    let machine = match is_gpu(device) {
        true => gpu(device, &device_kind::gpus(), env::var(VISIBLE).ok()),
        false => Value::from(device_report(device)),
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
    fn a_program_is_told_by_its_file_and_the_cpu_by_its_threads_and_its_kind() {
        let found = computed_by("cpu");
        let own = sha256_file(&env::current_exe().unwrap()).unwrap();
        assert_eq!(found["program"], own);
        let machine = &found["machine"];
        assert!(machine["threads"].as_u64().unwrap() > 0);
        let kind = device_kind::processor();
        assert_eq!(machine["model"].as_str(), kind.as_deref());
    }
}

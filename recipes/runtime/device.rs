//! The device a program runs on, by its name on the command line.

use std::collections::BTreeSet;
use std::str::FromStr;

use anyhow::{Error, Result, anyhow};
use burn::prelude::Device;
use serde_json::{Map, json};
use spectrain_checkpoints::DType;
use spectrain_models::FrozenType;
use spectrain_models::device::{DeviceName, free_memory};
use spectrain_models::products::Precision;
use spectrain_train::{DeviceMemory, TrainConfig};

use crate::recipe::tables::TargetType;
use crate::runtime::device_kind;

/// The device called `cpu`, `cuda:N` or, where tests run on it, `cube`.
pub fn device(name: &str) -> Result<Device> {
    parse(name)?
        .open()
        .map_err(|feature| not_built(name, feature))
}

/// Fails for a device that this program was built without; the device itself is not touched.
pub fn check_built(name: &str) -> Result<()> {
    match parse(name)?.missing_feature() {
        Some(feature) => Err(not_built(name, feature)),
        None => Ok(()),
    }
}

/// Refuses what is no device's name; the device itself need not be there.
pub fn check_name(name: &str) -> Result<String, String> {
    let known = parse(name).map_err(|_| KNOWN.to_owned());
    known.map(|_| name.to_owned())
}

/// Devices as one name says them: the one of this name, or with `cuda:0-7` the GPUs of these numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceNames(pub Vec<String>);

/// Devices of a range, at most.
const MOST_OF_RANGE: usize = 1024;

impl FromStr for DeviceNames {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let numbers = given.strip_prefix("cuda:");
        let Some((first, last)) = numbers.and_then(|numbers| numbers.split_once('-')) else {
            let name = check_name(given).map_err(|known| format!("{known}, cuda:N-M"))?;
            return Ok(Self(vec![name]));
        };
        let numbers = (first.parse::<usize>().ok(), last.parse::<usize>().ok());
        match numbers {
            (Some(first), Some(last)) if first <= last && last - first < MOST_OF_RANGE => Ok(Self(
                (first..=last)
                    .map(|number| format!("cuda:{number}"))
                    .collect(),
            )),
            _ => Err(format!(
                "expected a range of at most {MOST_OF_RANGE} GPUs, the lowest number first, such as `cuda:0-7`"
            )),
        }
    }
}

/// What messages call the key of a target's type.
pub const TARGET_DTYPE: &str = "key `target.dtype`";

const KNOWN: &str = "known devices: cpu, cuda:N";

fn parse(name: &str) -> Result<DeviceName> {
    DeviceName::parse(name).ok_or_else(|| anyhow!("unknown device `{name}`; {KNOWN}"))
}

fn not_built(name: &str, feature: &str) -> Error {
    // Of the two ways to compile kernels this is the one that has run on a GPU.
    let with = match feature {
        "cuda" => "cuda-nvrtc",
        other => other,
    };
    anyhow!(
        "device `{name}`: this program was built without the feature `{feature}`; build it with `--features {with}`"
    )
}

/// What the CPU is called.
const CPU: &str = "cpu";

/// Whether a device's name says that it is a GPU.
pub fn is_gpu(name: &str) -> bool {
    name.starts_with("cuda")
}

/// The type of a target's weights on the device of this name.
pub fn target_type(wanted: TargetType, device: &str) -> FrozenType {
    let is_narrow = match wanted {
        TargetType::F32 | TargetType::Int8 => false,
        TargetType::Bf16 => true,
        TargetType::Auto => is_gpu(device),
    };
    let (dtype, precision) = match (is_narrow, device) {
        (true, CPU) => (DType::F32, Precision::Bf16),
        (true, _) => (DType::BF16, Precision::F32),
        (false, _) => (DType::F32, Precision::F32),
    };
    FrozenType {
        dtype,
        int8: wanted == TargetType::Int8,
        precision,
    }
}

/// Fails for a type that a device has no products of; `asked` is the key or the argument that asks for it.
pub fn check_target_type(wanted: TargetType, device: &str, asked: &str) -> Result<(), String> {
    if wanted == TargetType::Int8 && device != CPU {
        return Err(format!(
            "{asked}: expected `f32` or `bf16` on `{device}`, found `int8`, which only the CPU supports"
        ));
    }
    Ok(())
}

/// The device of parameters that take gradients.
pub fn graph_device(device: &Device, config: &TrainConfig) -> Device {
    if config.gradient_checkpointing {
        device.clone().autodiff().gradient_checkpointing()
    } else {
        device.clone().autodiff()
    }
}

/// Memory of a device, where it tells.
pub fn memory_of(device: &Device) -> Option<DeviceMemory> {
    device.memory_pool_usage().map(|usage| DeviceMemory {
        in_use: usage.bytes_in_use,
        reserved: usage.bytes_reserved,
    })
}

/// Bytes of a GPU's memory that this process can have: what is free, and what it holds for tensors; `None` of other devices.
pub fn available_memory(device: &Device) -> Option<u64> {
    let free = free_memory(device)?;
    let held = memory_of(device).map_or(0, |memory| memory.reserved);
    Some(free.saturating_add(held))
}

/// What a report says of the device: its name, the system, the threads that the program may use, and the `model` of the processor or of
/// the GPU, where the system tells it. Of GPUs of several models nobody says here which one it is.
pub fn device_report(name: &str) -> Map<String, serde_json::Value> {
    let mut device = Map::new();
    device.insert("name".into(), json!(name));
    device.insert(
        "system".into(),
        json!(format!(
            "{} {}",
            std::env::consts::OS,
            std::env::consts::ARCH
        )),
    );
    device.insert(
        "threads".into(),
        json!(std::thread::available_parallelism().map_or(1, usize::from)),
    );
    let model = match is_gpu(name) {
        true => only(device_kind::gpus()),
        false => device_kind::processor(),
    };
    device.extend(model.map(|model| ("model".to_owned(), json!(model))));
    device
}

/// The kind that all are of.
fn only(kinds: BTreeSet<String>) -> Option<String> {
    let mut kinds = kinds.into_iter();
    kinds.next().filter(|_| kinds.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_devices_are_refused_with_the_known_ones() {
        for name in ["gpu", "cpu:1", "cuda:x", ""] {
            let error = device(name).unwrap_err().to_string();
            assert!(error.contains("cuda:N"), "{error}");
        }
        device("cpu").unwrap();
    }

    #[test]
    fn a_range_stands_for_each_of_its_gpus() {
        let names = |given: &str| given.parse::<DeviceNames>().map(|names| names.0);
        assert_eq!(names("cuda:6-8").unwrap(), ["cuda:6", "cuda:7", "cuda:8"]);
        assert_eq!(names("cuda:3-3").unwrap(), ["cuda:3"]);
        assert_eq!(names("cpu").unwrap(), ["cpu"]);
        for wrong in ["cuda:7-0", "cuda:0-", "cuda:0-1-2", "cuda:0-4000000000"] {
            let told = names(wrong).unwrap_err();
            assert!(told.contains("`cuda:0-7`"), "{wrong}: {told}");
        }
        for wrong in ["8", "cpu:0-1", "cuda:x"] {
            let told = names(wrong).unwrap_err();
            assert!(told.ends_with("cuda:N, cuda:N-M"), "{wrong}: {told}");
        }
    }

    #[test]
    fn bf16_on_the_cpu_is_how_it_multiplies_and_on_a_gpu_what_is_held() {
        let held = target_type(TargetType::Bf16, "cpu");
        assert_eq!((held.dtype, held.name()), (DType::F32, "F32"));
        assert_eq!(
            (held.precision, held.name_over_texts()),
            (Precision::Bf16, "BF16")
        );
        for wanted in [TargetType::Bf16, TargetType::Auto] {
            assert_eq!(target_type(wanted, "cuda:0"), DType::BF16.into());
        }
        assert_eq!(target_type(TargetType::Auto, "cpu"), DType::F32.into());
    }

    #[test]
    fn eight_bits_are_for_the_cpu() {
        check_target_type(TargetType::Int8, "cpu", "key").unwrap();
        check_target_type(TargetType::Bf16, "cuda:0", "key").unwrap();
        let error = check_target_type(TargetType::Int8, "cuda:1", TARGET_DTYPE).unwrap_err();
        assert!(
            error.contains("key `target.dtype`: expected `f32` or `bf16` on `cuda:1`"),
            "{error}"
        );
    }

    #[test]
    fn a_report_says_of_which_model_the_processor_is() {
        let device = device_report("cpu");
        let model = device.get("model").and_then(serde_json::Value::as_str);
        assert_eq!(model, device_kind::processor().as_deref());
        let of = |kinds: &[&str]| only(kinds.iter().map(|kind| (*kind).to_owned()).collect());
        assert_eq!(of(&["H200"]).as_deref(), Some("H200"));
        assert_eq!(of(&["A100", "H200"]), None);
        assert_eq!(of(&[]), None);
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_gpu_without_the_feature_names_the_feature() {
        let error = device("cuda:0").unwrap_err().to_string();
        assert!(error.contains("feature `cuda`"), "{error}");
        assert!(
            error.ends_with("build it with `--features cuda-nvrtc`"),
            "{error}"
        );
    }
}

//! The device a program runs on, by its name on the command line.

use anyhow::{Result, bail};
use burn::prelude::Device;
use serde_json::{Map, json};
use spectrain_checkpoints::DType;
use spectrain_train::TrainConfig;

use crate::recipe::tables::TargetType;

/// The device called `cpu`, `cuda` or `cuda:N`.
pub fn device(name: &str) -> Result<Device> {
    match parse(name) {
        Some(Name::Cpu) => Ok(Device::flex()),
        Some(Name::Cuda(index)) => cuda(index),
        None => bail!("unknown device `{name}`; {KNOWN}"),
    }
}

/// Fails for a device that this program was built without; the device itself is not touched.
pub fn check_built(name: &str) -> Result<()> {
    match parse(name) {
        Some(Name::Cuda(_)) if cfg!(feature = "cuda") => Ok(()),
        _ => device(name).map(drop),
    }
}

/// Refuses what is no device's name; the device itself need not be there.
pub fn check_name(name: &str) -> Result<String, String> {
    match parse(name) {
        Some(_) => Ok(name.to_owned()),
        None => Err(KNOWN.into()),
    }
}

const KNOWN: &str = "known devices: cpu, cuda:N";

enum Name {
    Cpu,
    Cuda(usize),
}

fn parse(name: &str) -> Option<Name> {
    match (name, name.strip_prefix("cuda:")) {
        ("cpu", _) => Some(Name::Cpu),
        ("cuda", _) => Some(Name::Cuda(0)),
        (_, Some(index)) => index.parse().ok().map(Name::Cuda),
        _ => None,
    }
}

#[cfg(feature = "cuda")]
fn cuda(index: usize) -> Result<Device> {
    Ok(Device::cuda(index))
}

#[cfg(not(feature = "cuda"))]
fn cuda(index: usize) -> Result<Device> {
    bail!(
        "device `cuda:{index}`: this program was built without the feature `cuda`; build it with `--features cuda`"
    )
}

/// Whether a device's name says that it is a GPU.
pub fn is_gpu(name: &str) -> bool {
    name.starts_with("cuda")
}

/// The type of a target's weights on the device of this name.
pub fn target_dtype(wanted: TargetType, device: &str) -> DType {
    match wanted {
        TargetType::F32 => DType::F32,
        TargetType::Bf16 => DType::BF16,
        TargetType::Auto if is_gpu(device) => DType::BF16,
        TargetType::Auto => DType::F32,
    }
}

/// The device of parameters that take gradients.
pub fn graph_device(device: &Device, config: &TrainConfig) -> Device {
    if config.gradient_checkpointing {
        device.clone().autodiff().gradient_checkpointing()
    } else {
        device.clone().autodiff()
    }
}

/// Bytes in use on a device, where it tells.
pub fn memory_in_use(device: &Device) -> Option<u64> {
    device.memory_pool_usage().map(|usage| usage.bytes_in_use)
}

/// What a report says of the device.
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
    device
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

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_gpu_without_the_feature_names_the_feature() {
        let error = device("cuda:0").unwrap_err().to_string();
        assert!(error.contains("feature `cuda`"), "{error}");
    }
}

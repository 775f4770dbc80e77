//! Devices by their names, and which of them compute in the memory of the host.
use burn::prelude::Device;

/// What a device is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
    /// `cpu`: Burn's own CPU backend.
    Cpu,
    /// `cube`: CubeCL on the CPU. It takes the same way through this program as a GPU, slowly; a device for tests.
    Cube,
    /// `cuda:N`, or `cuda` for the first one: an NVIDIA GPU.
    Cuda(usize),
}

impl DeviceName {
    /// The device of this name; `None` where it is no device's.
    pub fn parse(name: &str) -> Option<Self> {
        match (name, name.strip_prefix("cuda:")) {
            ("cpu", _) => Some(Self::Cpu),
            ("cube", _) => Some(Self::Cube),
            ("cuda", _) => Some(Self::Cuda(0)),
            (_, Some(index)) => index.parse().ok().map(Self::Cuda),
            _ => None,
        }
    }

    /// The Cargo feature that the device needs and this program was built without. The device itself need not be there.
    pub fn missing_feature(self) -> Option<&'static str> {
        match self {
            Self::Cube if !cfg!(feature = "cube-cpu") => Some("cube-cpu"),
            Self::Cuda(_) if !cfg!(feature = "cuda") => Some("cuda"),
            _ => None,
        }
    }

    /// Opens it.
    ///
    /// # Errors
    /// The Cargo feature that this program was built without.
    pub fn open(self) -> Result<Device, &'static str> {
        if let Some(feature) = self.missing_feature() {
            return Err(feature);
        }
        Ok(match self {
            #[cfg(feature = "cube-cpu")]
            Self::Cube => Device::cpu(),
            #[cfg(feature = "cuda")]
            Self::Cuda(index) => {
                keep_kernels();
                Device::cuda(index)
            }
            _ => Device::flex(),
        })
    }
}

/// Keeps compiled kernels in the user's cache folder for later runs, unless a `cubecl.toml` in this folder or above it says
/// where, or something else has been settled before. Compiling them takes from seconds to minutes. A program without a build id keeps
/// none: CubeCL would take those of another build without one for its own.
#[cfg(feature = "cuda")]
fn keep_kernels() {
    use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig as _, cache::CacheConfig};

    static SETTLED: std::sync::Once = std::sync::Once::new();
    SETTLED.call_once(|| {
        let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
        if let CacheConfig::Target = config.environment.path {
            config.environment.path = CacheConfig::Global;
        }
        config.compilation.cache = is_identified();
        if !config.compilation.cache {
            tracing::debug!("compiled kernels are not kept: the linker wrote no build id");
        }
        CubeClRuntimeConfig::try_set(config);
    });
}

/// Whether this program has a build id. On systems other than Linux linkers always write one.
#[cfg(feature = "cuda")]
fn is_identified() -> bool {
    use std::io::Read as _;

    /// Notes stand before the code.
    const NOTES: u64 = 1 << 16;
    if !cfg!(target_os = "linux") {
        return true;
    }
    let mut start = Vec::new();
    let program = std::fs::File::open("/proc/self/exe");
    let read = program.and_then(|program| program.take(NOTES).read_to_end(&mut start));
    read.is_ok() && has_build_id(&start)
}

/// Whether a note of GNU's with a build id (`NT_GNU_BUILD_ID`) is among the first bytes of a program: the lengths of its owner's name and
/// of the id, its kind, and the name.
#[cfg(any(feature = "cuda", test))]
fn has_build_id(start: &[u8]) -> bool {
    let mut notes = start.windows(16);
    notes.any(|note| {
        let [name_length, id_length, kind] = [0, 4, 8]
            .map(|at| u32::from_le_bytes([note[at], note[at + 1], note[at + 2], note[at + 3]]));
        (name_length, kind) == (4, 3) && id_length > 0 && note[12..] == *b"GNU\0"
    })
}

/// How many GPUs NVIDIA's driver shows to this program, which calls them `cuda:0`, `cuda:1` and so on; 0 without the driver, or
/// without the feature `cuda`. None of them is opened.
pub fn cuda_devices() -> usize {
    #[cfg(feature = "cuda")]
    {
        Device::enumerate(burn::tensor::DeviceType::Cuda).len()
    }
    #[cfg(not(feature = "cuda"))]
    {
        0
    }
}

/// Bytes of memory that a GPU has free, whatever program has the rest; `None` of any other device, and with the feature `fusion`.
pub fn free_memory(device: &Device) -> Option<u64> {
    #[cfg(all(feature = "cuda", not(feature = "fusion")))]
    {
        crate::cube::memory::free(device)
    }
    #[cfg(not(all(feature = "cuda", not(feature = "fusion"))))]
    {
        let _ = device;
        None
    }
}

/// Whether `device` is Burn's own CPU backend, with a graph or without, whose tensors this program's own code can read and
/// write where they lie.
pub fn is_cpu(device: &Device) -> bool {
    device.clone().without_autodiff() == Device::flex()
}

/// Whether tests run on a GPU, where products of numbers in f32 are in TF32, which keeps 10 bits of each.
#[doc(hidden)]
pub fn tests_multiply_in_tf32() -> bool {
    let name = std::env::var("SPECTRAIN_TEST_DEVICE");
    let first = name
        .ok()
        .and_then(|name| DeviceName::parse(name.split(',').next()?));
    matches!(first, Some(DeviceName::Cuda(_)))
}

/// The bound within which tests compare what products in f32 went into: `bound`, or what TF32 rounds to.
#[doc(hidden)]
pub fn bound_of_products(bound: f32) -> f32 {
    match tests_multiply_in_tf32() {
        true => bound.max(2e-3),
        false => bound,
    }
}

/// The device that tests run on: the first one that the environment variable `SPECTRAIN_TEST_DEVICE` names, else the CPU.
///
/// # Panics
/// The variable names no device, or one that was not built in.
#[doc(hidden)]
pub fn test_device() -> Device {
    test_device_of(0)
}

/// That of a rank: `SPECTRAIN_TEST_DEVICE` may name several, with commas between them.
///
/// # Panics
/// The variable names no device, or one that was not built in.
#[doc(hidden)]
pub fn test_device_of(rank: usize) -> Device {
    let Ok(names) = std::env::var("SPECTRAIN_TEST_DEVICE") else {
        return Device::flex();
    };
    let names: Vec<&str> = names.split(',').collect();
    let name = names[rank % names.len()];
    let known = DeviceName::parse(name);
    let opened = known.map(DeviceName::open);
    match opened {
        Some(Ok(device)) => device,
        Some(Err(feature)) => panic!("SPECTRAIN_TEST_DEVICE={name} needs `--features {feature}`"),
        None => panic!("SPECTRAIN_TEST_DEVICE: expected cpu, cube or cuda:N, found {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::has_build_id;

    #[test]
    fn a_build_id_is_told_from_other_notes() {
        let note = |kind: u32, length: u32| {
            let words = [4, length, kind].map(u32::to_le_bytes);
            let parts: [&[u8]; 4] = [b"\x7fELF...", words.as_flattened(), b"GNU\0", &[7; 20]];
            parts.concat()
        };
        assert!(has_build_id(&note(3, 20)) && has_build_id(&note(3, 8)));
        // The oldest kernel that it runs on.
        assert!(!has_build_id(&note(1, 16)));
        assert!(!has_build_id(b"") && !has_build_id(b"GNU\0"));
    }
}

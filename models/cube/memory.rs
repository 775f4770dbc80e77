//! How much memory a device of CUDA has.
use burn::backend::{BackendTensor, DispatchTensorKind};
use burn::prelude::*;
use cubecl::RuntimeId;
use cudarc::driver::result::mem_get_info;

/// Bytes that the driver says are free; `None` where the device is none of CUDA's, or the driver does not say.
pub fn free(device: &Device) -> Option<u64> {
    // A tensor leads to the device's thread, on which its context is current.
    let tensor = match Tensor::<1>::empty([1], device).into_dispatch().kind {
        DispatchTensorKind::Cube(BackendTensor::Float(tensor)) => tensor,
        _ => return None,
    };
    if tensor.device.runtime() != RuntimeId::Cuda {
        return None;
    }
    let (free, _) = tensor.client.exclusive(mem_get_info).ok()?.ok()?;
    Some(free as u64)
}

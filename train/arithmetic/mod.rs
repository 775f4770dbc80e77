//! What training computes in its own way on each kind of device. All else in this crate is tensor operations, the same
//! on every device.
use burn::prelude::*;

use crate::arithmetic::cpu::Cpu;
use crate::arithmetic::operations::Arithmetic;
use spectrain_models::device::is_cpu;

#[cfg(feature = "cube")]
mod adamw_on_cube;
mod blended;
mod cpu;
#[cfg(feature = "cube")]
mod cube;
mod judged_by_kernels;
mod judged_by_tensors;
#[cfg(feature = "cube")]
mod judged_on_cube;
mod kernels;
mod logits;
pub(crate) mod operations;
mod row_loops;
pub(crate) mod teacher_panel;
mod tensors;
#[cfg(test)]
mod tests;

/// The way of all devices but the CPU.
#[cfg(feature = "cube")]
const OTHER: &dyn Arithmetic = &cube::OnCube;
#[cfg(not(feature = "cube"))]
const OTHER: &dyn Arithmetic = &tensors::Tensors;

/// The way of `device`.
pub(crate) fn arithmetic(device: &Device) -> &'static dyn Arithmetic {
    if is_cpu(device) { &Cpu } else { OTHER }
}

//! Reads what the scripts in `tests/golden` wrote.
use std::collections::BTreeMap;
use std::path::PathBuf;

use burn::prelude::*;
use safetensors::{Dtype, SafeTensors};
use spectrain_checkpoints::NamedTensor;
use spectrain_data::packing::{PackedBatch, RowLayout};
use spectrain_train::Rows;

pub fn path(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden", name]
        .iter()
        .collect()
}

/// The names of the folders in that of this name, in their order.
pub fn folders(name: &str) -> Vec<String> {
    let folders = std::fs::read_dir(path(name)).unwrap();
    let mut names: Vec<String> = folders
        .map(|folder| folder.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

pub fn json(name: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path(name)).unwrap()).unwrap()
}

/// A tensor with its numbers widened to f64.
#[derive(Debug, Clone)]
pub struct Golden {
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
}

/// Tensors by their names.
pub type Tensors = BTreeMap<String, Golden>;

pub fn tensors(name: &str) -> Tensors {
    let bytes = std::fs::read(path(name)).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let read = |view: safetensors::tensor::TensorView| {
        let data = view.data();
        let values = match view.dtype() {
            Dtype::F32 => data
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b) as f64)
                .collect(),
            Dtype::F64 => data
                .as_chunks::<8>()
                .0
                .iter()
                .map(|b| f64::from_le_bytes(*b))
                .collect(),
            // The upper half of an f32.
            Dtype::BF16 => data
                .as_chunks::<2>()
                .0
                .iter()
                .map(|b| f32::from_le_bytes([0, 0, b[0], b[1]]) as f64)
                .collect(),
            Dtype::I64 => data
                .as_chunks::<8>()
                .0
                .iter()
                .map(|b| i64::from_le_bytes(*b) as f64)
                .collect(),
            Dtype::BOOL | Dtype::U8 => data.iter().map(|&b| b as f64).collect(),
            other => panic!("golden data of type {other:?}"),
        };
        Golden {
            shape: view.shape().to_vec(),
            values,
        }
    };
    file.tensors()
        .into_iter()
        .map(|(name, view)| (name, read(view)))
        .collect()
}

/// The two packed rows of three documents that the scripts train on.
pub fn rows(golden: &Tensors) -> Rows {
    let numbers = |name: &str| golden[name].values.iter().map(|&value| value as i64);
    let [rows, row_length] = golden["input_ids"].shape[..] else {
        panic!("`input_ids` is no matrix");
    };
    Rows {
        packed: PackedBatch {
            rows: vec![vec![0], vec![1, 2]],
        },
        layout: RowLayout {
            rows,
            row_length,
            documents: numbers("documents").map(|d| (d + 1) as u32).collect(),
            positions: numbers("positions").map(|p| p as u32).collect(),
        },
        tokens: numbers("input_ids").map(|id| id as u32).collect(),
        loss_mask: numbers("loss_mask").map(|bit| bit != 0).collect(),
    }
}

impl Golden {
    pub fn f32(&self) -> Vec<f32> {
        self.values.iter().map(|&value| value as f32).collect()
    }

    pub fn float<const D: usize>(&self, device: &Device) -> Tensor<D> {
        let shape: [usize; D] = self.shape.clone().try_into().unwrap();
        Tensor::<1>::from_floats(self.f32().as_slice(), device).reshape(shape)
    }

    pub fn named(&self, name: &str) -> NamedTensor {
        NamedTensor::from_f32(name, self.shape.clone(), self.f32())
    }

    /// The transpose of a matrix; anything else as it is.
    pub fn transposed(&self) -> Vec<f32> {
        let [rows, columns] = self.shape[..] else {
            return self.f32();
        };
        let values = self.f32();
        (0..rows * columns)
            .map(|i| values[(i % rows) * columns + i / rows])
            .collect()
    }
}

/// Fails unless all of `got` is within `tolerance` of `expected`, relative to the larger of 1 and its size.
pub fn assert_close(what: &str, got: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(got.len(), expected.len(), "{what}: length");
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let allowed = tolerance * expected.abs().max(1.0);
        assert!(
            (got - expected).abs() <= allowed,
            "{what}[{index}]: expected {expected}, found {got}"
        );
    }
}

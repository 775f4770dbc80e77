//! One safetensors file that belongs to no model: its header is checked, its tensors are read one by one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::parts::TensorInfo;
use super::weights::WeightFile;
use crate::error::{Error, Result};
use crate::tensors::NamedTensor;

/// An opened safetensors file. Of the tensors nothing is read until they are asked for.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: WeightFile,
    tensors: BTreeMap<String, TensorInfo>,
}

impl TensorFile {
    /// Opens a file.
    ///
    /// # Errors
    /// It cannot be read, or its header does not account for every byte behind it.
    pub fn open(path: &Path) -> Result<Self> {
        let (file, tensors) = WeightFile::open(path)?;
        let tensors = tensors.into_iter().map(|info| (info.name.clone(), info));
        Ok(Self {
            path: path.to_path_buf(),
            file,
            tensors: tensors.collect(),
        })
    }

    /// What the header says about every tensor, by name in alphabetical order.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.values()
    }

    /// The elements of one of them.
    pub(crate) fn bytes(&self, info: &TensorInfo) -> &[u8] {
        self.file.bytes(info.range.clone())
    }

    /// What the header says about a tensor; nothing where there is none of this name.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// Reads a tensor as it is stored.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn read(&self, name: &str) -> Result<NamedTensor> {
        let info = self.info(name).ok_or_else(|| Error::NoTensor {
            name: name.to_string(),
            path: self.path.clone(),
        })?;
        Ok(NamedTensor {
            name: name.to_string(),
            shape: info.shape.clone(),
            dtype: info.dtype,
            bytes: self.file.bytes(info.range.clone()).to_vec(),
        })
    }
}

//! What a model's folder is made of.

use std::ops::Range;
use std::path::PathBuf;

use crate::dtype::DType;

/// The name of the configuration.
pub const CONFIG: &str = "config.json";
/// The name of the defaults for sampling.
pub const GENERATION_CONFIG: &str = "generation_config.json";
/// The name of weights in one file.
pub const WEIGHTS: &str = "model.safetensors";
/// The name of the list of shards.
pub const INDEX: &str = "model.safetensors.index.json";

/// What a header says about a tensor.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// The name in the file.
    pub name: String,
    /// The size along each axis.
    pub shape: Vec<usize>,
    /// The type of the elements.
    pub dtype: DType,
    /// The file that holds it.
    pub file: PathBuf,
    pub(super) range: Range<usize>,
}

//! What a model's folder is made of.

use std::ops::Range;
use std::path::PathBuf;

use crate::dtype::DType;

/// The name of the configuration.
pub const CONFIG: &str = "config.json";
/// The name of the defaults for sampling.
pub const GENERATION_CONFIG: &str = "generation_config.json";
/// The name of the tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";
/// The name of what is said beside the tokenizer, which may have the chat template.
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// The name of the chat template as a file of its own.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";
/// The name of the file in which processors of models that see more than text had it.
pub const PROCESSOR_TEMPLATE: &str = "chat_template.json";
/// The name of the template for conversations with tools, in a folder of its own.
pub const TOOLS_TEMPLATE: &str = "additional_chat_templates/tool_use.jinja";
/// The names of all files that may say how a conversation becomes tokens.
pub const TEXT_FILES: [&str; 5] = [
    TOKENIZER,
    TOKENIZER_CONFIG,
    CHAT_TEMPLATE,
    PROCESSOR_TEMPLATE,
    TOOLS_TEMPLATE,
];
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

//! The `[export]` table.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::DType;
use spectrain_checkpoints::launch::Server;

use crate::recipe::problem::{Problem, some_of};

/// The drafter as serving engines load it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExportTable {
    /// Engines to export for: their launch commands are printed, and engines that need a folder in a format of their own get
    /// one.
    pub to: Vec<Engine>,
    /// Type of the exported weights.
    pub dtype: ExportType,
    /// The licence that the drafter's model card states, by its name on the hub, such as `"apache-2.0"`. Left out: the card
    /// says that none was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
}

impl ExportTable {
    /// Checks what the types cannot say.
    pub fn check(&self) -> Result<(), Problem> {
        some_of("to", &self.to)?;
        let is_name = |licence: &String| {
            let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-.+".contains(letter);
            !licence.is_empty() && licence.len() <= 64 && licence.chars().all(allowed)
        };
        match &self.license {
            Some(licence) if !is_name(licence) => Err(Problem::new(
                "license",
                format!("expected the name of a licence, such as `apache-2.0`, found `{licence}`"),
            )),
            _ => Ok(()),
        }
    }
}

impl Default for ExportTable {
    fn default() -> Self {
        Self {
            to: vec![Engine::Sglang, Engine::Vllm],
            dtype: ExportType::Bf16,
            license: None,
        }
    }
}

/// A serving engine.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// SGLang.
    Sglang,
    /// vLLM.
    Vllm,
    /// Hugging Face Transformers.
    Hf,
    /// vLLM, with a folder in the format of the speculators library, which names the target.
    Speculators,
    /// llama.cpp, after its own conversion.
    #[serde(rename = "llama-cpp")]
    LlamaCpp,
    /// TensorRT-LLM, through a line of its settings.
    #[serde(rename = "tensorrt-llm")]
    TensorrtLlm,
}

impl Engine {
    /// The engine that a command starts.
    pub fn of(server: Server) -> Self {
        match server {
            Server::Vllm(_) => Self::Vllm,
            Server::Speculators => Self::Speculators,
            Server::Sglang(_) => Self::Sglang,
            Server::Transformers => Self::Hf,
            Server::TensorrtLlm => Self::TensorrtLlm,
            Server::LlamaCpp => Self::LlamaCpp,
        }
    }

    /// What its makers call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sglang => "SGLang",
            Self::Vllm => "vLLM",
            Self::Hf => "Transformers",
            Self::Speculators => "vLLM by a folder of speculators",
            Self::LlamaCpp => "llama.cpp",
            Self::TensorrtLlm => "TensorRT-LLM",
        }
    }

    /// What recipes and the command line call it.
    pub fn key(self) -> &'static str {
        match self {
            Self::Sglang => "sglang",
            Self::Vllm => "vllm",
            Self::Hf => "hf",
            Self::Speculators => "speculators",
            Self::LlamaCpp => "llama-cpp",
            Self::TensorrtLlm => "tensorrt-llm",
        }
    }
}

/// Type of the exported weights.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum ExportType {
    /// 16-bit brain floats.
    #[default]
    Bf16,
    /// 16-bit floats.
    F16,
    /// 32-bit floats.
    F32,
}

impl ExportType {
    /// The type of tensors in files.
    pub fn dtype(self) -> DType {
        match self {
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
            Self::F32 => DType::F32,
        }
    }
}

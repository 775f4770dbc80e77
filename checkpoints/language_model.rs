//! A drafter that is an ordinary language model: the folder that `transformers` and every engine load, with the target's
//! tokenizer beside the weights. A PARD drafter (<https://arxiv.org/abs/2504.18583>) has one more key, `pard_token`.

use std::path::Path;

use serde_json::{Value, json};

use crate::config::torch_dtype;
use crate::dialect::description::Dialect;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::expected::check_finite;
use crate::folder::{GENERATION_CONFIG, ModelFolder, TEXT_FILES, WEIGHTS, write_folder};
use crate::json as files;
use crate::launch::{self, Launch};
use crate::mismatch::Mismatch;
use crate::regular;
use crate::seal;
use crate::tensors::NamedTensor;

#[cfg(test)]
pub(crate) mod tests;

/// The folder of an ordinary language model.
pub const LANGUAGE_MODEL: Dialect = Dialect {
    by_text: true,
    is_language_model: true,
    launch: |_, dir, target, draft_tokens| launch_lines(dir, target, draft_tokens),
    ..Dialect::named("language model", |folder| recognises(folder.config()))
};

/// That of a language model that drafts in one pass.
pub const PARD: Dialect = Dialect {
    by_text: true,
    is_language_model: true,
    launch: |_, dir, target, draft_tokens| pard_launch_lines(dir, target, draft_tokens),
    ..Dialect::named("PARD", |folder| mask_token(folder.config()).is_some())
};

/// The decoders that this program computes: `model_type`, and the name under `architectures`.
pub const ARCHITECTURES: [(&str, &str); 6] = [
    ("llama", "LlamaForCausalLM"),
    ("mistral", "MistralForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("mimo", "MiMoForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("qwen3_moe", "Qwen3MoeForCausalLM"),
];

/// All decoders that this program computes by both names, for people.
pub fn supported() -> String {
    let named = ARCHITECTURES.map(|(kind, name)| format!("{kind} ({name})"));
    named.join(", ")
}

/// The key that tells these folders from other drafters of the same architecture.
const KIND: &str = "spectrain_drafter";
/// The id of the mask token.
const PARD_TOKEN: &str = "pard_token";
/// The projection of the target's features, which no engine reads.
pub const TARGET_PROJ: &str = "target_proj.weight";
/// What other programs read beside [`TEXT_FILES`] of how text becomes tokens, and where it ends.
const BESIDE_TEXT_FILES: [&str; 5] = [
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    GENERATION_CONFIG,
];
/// Keys of `config.json` that a drafter has in common with its target.
const TOKEN_KEYS: [&str; 3] = ["bos_token_id", "eos_token_id", "pad_token_id"];

/// The files that a drafter has of its target. A template in a folder of its own is none of them, as what is written has no such
/// folders: a drafter goes on with tokens that the target's templates have made.
fn files_of_target() -> impl Iterator<Item = &'static str> {
    let all = TEXT_FILES.into_iter().chain(BESIDE_TEXT_FILES);
    all.filter(|name| !name.contains('/'))
}

/// Whether a `config.json` is that of an ordinary language model.
pub fn recognises(config: &Value) -> bool {
    let names = config["architectures"].as_array();
    let causal = |name: &Value| ARCHITECTURES.iter().any(|(_, known)| name == known);
    names.is_some_and(|names| names.iter().any(causal)) && mask_token(config).is_none()
}

/// Whether this program wrote a `config.json` of such a drafter.
pub(crate) fn is_marked(config: &Value) -> bool {
    config.get(KIND).is_some()
}

/// The mask token of a PARD drafter's `config.json`, where it has one.
pub fn mask_token(config: &Value) -> Option<&Value> {
    config.get(PARD_TOKEN).filter(|value| !value.is_null())
}

/// The names of a decoder's tensors in files.
pub fn named(mut tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    for tensor in &mut tensors {
        if !tensor.name.starts_with("lm_head.") {
            tensor.name = format!("model.{}", tensor.name);
        }
    }
    tensors
}

/// A language model to be written.
pub struct LanguageModelFolder<'a> {
    /// What its `config.json` says of its structure.
    pub config: Value,
    /// Its parameters under their names in files.
    pub tensors: Vec<NamedTensor>,
    /// The type they are written in.
    pub dtype: DType,
    /// The mask token of a PARD drafter.
    pub mask_token: Option<u32>,
    /// The target's folder, whose tokenizer it gets.
    pub target: Option<&'a Path>,
}

impl LanguageModelFolder<'_> {
    /// Writes the folder, whole or not at all. `provenance` says where the drafter comes from; unless it is null it is kept
    /// in the configuration; see [`seal`].
    pub fn write(self, dir: &Path, provenance: &Value) -> Result<()> {
        let weights = dir.join(WEIGHTS);
        let mut tensors = Vec::with_capacity(self.tensors.len());
        for tensor in self.tensors {
            let tensor = tensor.cast(self.dtype)?;
            check_finite(&weights, &tensor)?;
            tensors.push(tensor);
        }
        let mut config = self.config;
        if !crate::masked_language_model::recognises(&config) {
            config[KIND] = json!("language_model");
        }
        config["torch_dtype"] = json!(torch_dtype(self.dtype));
        // Newer versions of transformers call it so.
        if let Some(keys) = config.as_object_mut() {
            keys.remove("dtype");
        }
        if let Some(token) = self.mask_token {
            config[PARD_TOKEN] = json!(token);
            config["spd_type"] = json!("pard");
        }
        let mut extra: Vec<(&str, Vec<u8>)> = Vec::new();
        if let Some(target) = self.target {
            let of_target = files::read(&target.join(crate::folder::CONFIG))?;
            for key in TOKEN_KEYS {
                if !of_target[key].is_null() {
                    config[key] = of_target[key].clone();
                }
            }
            for name in files_of_target() {
                let path = target.join(name);
                if regular::is_there(&path) {
                    extra.push((name, files::read_bytes(&path)?));
                }
            }
        }
        let extra: Vec<(&str, &[u8])> = extra
            .iter()
            .map(|(name, bytes)| (*name, bytes.as_slice()))
            .collect();
        let config = seal::sealed(config, &tensors, &extra, provenance);
        write_folder(dir, &config, &tensors, &extra)
    }
}

/// The mask token of a PARD drafter's folder.
///
/// # Errors
/// It is not the id of a token.
pub fn read_mask_token(folder: &ModelFolder) -> Result<u32> {
    let value = &folder.config()[PARD_TOKEN];
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
    id.ok_or_else(|| Error::Key {
        path: folder.path().join(crate::folder::CONFIG),
        key: PARD_TOKEN.into(),
        mismatch: Mismatch::new("the id of a token", value),
    })
}

/// Commands that serve `target` with the drafter in `dir`; `draft_tokens` is the length of the chain.
pub fn launch_lines(dir: &Path, target: &str, draft_tokens: usize) -> Vec<Launch> {
    vec![
        launch::vllm(dir, "draft_model", target, draft_tokens),
        launch::sglang(dir, "STANDALONE", target, draft_tokens),
        launch::transformers(dir, target),
        launch::tensorrt(dir, "DraftTarget", draft_tokens, ""),
        launch::llama_cpp(dir, "draft-simple", target, draft_tokens, false),
    ]
}

/// The same for a PARD drafter, which only vLLM and TensorRT-LLM run in parallel; others run it token by token.
pub fn pard_launch_lines(dir: &Path, target: &str, draft_tokens: usize) -> Vec<Launch> {
    vec![
        launch::vllm_parallel(dir, "draft_model", target, draft_tokens),
        launch::tensorrt(dir, "PARD", draft_tokens, ""),
        Launch::remark("these engines draft token by token, as they do not draft in parallel:"),
        launch::sglang(dir, "STANDALONE", target, draft_tokens),
        launch::transformers(dir, target),
        launch::llama_cpp(dir, "draft-simple", target, draft_tokens, false),
    ]
}

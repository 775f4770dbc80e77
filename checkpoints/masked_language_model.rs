//! A drafter that is a masked-diffusion language model (DEER, <https://arxiv.org/abs/2512.15176>): the folder of an ordinary
//! model under an architecture of its own, which no engine takes for one that writes from left to right.

use serde_json::{Value, json};

use crate::dialect::description::Dialect;
use crate::error::{Error, Result};
use crate::folder::{CONFIG, ModelFolder};
use crate::launch::Launch;
use crate::mismatch::Mismatch;

/// This program's folder.
pub const DEER: Dialect = Dialect {
    by_text: true,
    launch: |_, _, _, _| launch_lines(),
    ..Dialect::named("DEER", |folder| recognises(folder.config()))
};

/// The architecture and the type of the model, which no other program knows.
const ARCHITECTURE: &str = "MaskedDiffusionDrafter";
const MODEL_TYPE: &str = "masked_diffusion_drafter";
/// The type of the decoder.
const DECODER: &str = "decoder_type";
const MASK_TOKEN: &str = "mask_token_id";
const SEPARATOR_TOKEN: &str = "separator_token_id";
const BLOCK_SIZE: &str = "block_size";
const CONTEXT: &str = "prefix_attention";

/// What such a folder says beside the structure of its decoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaskedLayout {
    /// The id that stands for tokens still to come.
    pub mask_token: u32,
    /// The id between the text and what is to come.
    pub separator_token: u32,
    /// The most tokens of a draft.
    pub block_size: usize,
    /// What the text before a block sees.
    pub context: String,
}

/// Whether a `config.json` is of such a drafter.
pub fn recognises(config: &Value) -> bool {
    let names = config["architectures"].as_array();
    names.is_some_and(|names| names.iter().any(|name| name == ARCHITECTURE))
}

/// The mask token of such a drafter's `config.json`, where it is one.
pub fn mask_token(config: &Value) -> Option<&Value> {
    config.get(MASK_TOKEN).filter(|_| recognises(config))
}

/// The `config.json` of a drafter whose decoder has the `config.json` that is given.
pub fn to_json(layout: &MaskedLayout, mut decoder: Value) -> Value {
    decoder[DECODER] = decoder["model_type"].take();
    decoder["model_type"] = json!(MODEL_TYPE);
    decoder["architectures"] = json!([ARCHITECTURE]);
    decoder[MASK_TOKEN] = json!(layout.mask_token);
    decoder[SEPARATOR_TOKEN] = json!(layout.separator_token);
    decoder[BLOCK_SIZE] = json!(layout.block_size);
    decoder[CONTEXT] = json!(layout.context);
    decoder
}

/// The `config.json` of a folder's decoder: that of an ordinary model as it is.
pub fn decoder(config: &Value) -> Value {
    let mut decoder = config.clone();
    if recognises(config) {
        decoder["model_type"] = decoder[DECODER].take();
    }
    decoder
}

/// What a folder says, and the `config.json` of its decoder.
///
/// # Errors
/// A key is missing, or of the wrong kind.
pub fn read(folder: &ModelFolder) -> Result<(MaskedLayout, Value)> {
    let problem = |key: &str, expected: &str| Error::Key {
        path: folder.path().join(CONFIG),
        key: key.into(),
        mismatch: Mismatch::new(expected, &folder.config()[key]),
    };
    let token = |key: &str| {
        let id = folder.config()[key].as_u64();
        let id = id.and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| problem(key, "the id of a token"))
    };
    let size = folder.config()[BLOCK_SIZE]
        .as_u64()
        .filter(|&size| size > 0);
    let context = folder.config()[CONTEXT].as_str();
    let layout = MaskedLayout {
        mask_token: token(MASK_TOKEN)?,
        separator_token: token(SEPARATOR_TOKEN)?,
        block_size: size.ok_or_else(|| problem(BLOCK_SIZE, "a positive integer"))? as usize,
        context: context
            .ok_or_else(|| problem(CONTEXT, "a string"))?
            .to_owned(),
    };
    Ok((layout, decoder(folder.config())))
}

/// No command serves it.
pub fn launch_lines() -> Vec<Launch> {
    vec![Launch::remark(
        "no serving engine loads a masked-diffusion drafter; this program decodes with it: `spectrain generate`, `spectrain evaluate`",
    )]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::write_folder;
    use crate::language_model;
    use crate::tensors::NamedTensor;

    fn layout() -> MaskedLayout {
        MaskedLayout {
            mask_token: 3,
            separator_token: 4,
            block_size: 8,
            context: "causal".into(),
        }
    }

    fn folder(change: impl FnOnce(&mut Value)) -> (tempfile::TempDir, ModelFolder) {
        let decoder = json!({ "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"] });
        let mut config = to_json(&layout(), decoder);
        change(&mut config);
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("d");
        let tensor = NamedTensor::from_f32("model.norm.weight", [1], vec![1.0]);
        write_folder(&dir, &config, &[tensor], &[]).unwrap();
        let read = ModelFolder::open(&dir).unwrap();
        (root, read)
    }

    #[test]
    fn what_is_written_is_read_and_is_no_ordinary_model() {
        let (_root, folder) = folder(|_| ());
        let config = folder.config();
        assert!(recognises(config) && !language_model::recognises(config));
        assert_ne!(config["model_type"], "qwen3");
        let (found, decoder) = read(&folder).unwrap();
        assert_eq!(found, layout());
        assert_eq!(decoder["model_type"], "qwen3");
        assert_eq!(mask_token(config), Some(&json!(3)));
    }

    #[test]
    fn the_decoder_of_an_ordinary_model_is_the_model() {
        let config = json!({ "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "mask_token_id": 3 });
        assert_eq!(decoder(&config), config);
        assert_eq!(mask_token(&config), None);
    }

    #[test]
    fn a_key_that_is_missing_is_named() {
        let keys = [MASK_TOKEN, SEPARATOR_TOKEN, BLOCK_SIZE, CONTEXT];
        for key in keys {
            let (_root, folder) = folder(|config| config[key] = Value::Null);
            let error = read(&folder).unwrap_err().to_string();
            assert!(
                error.contains(key) && error.contains("config.json"),
                "{error}"
            );
        }
    }
}

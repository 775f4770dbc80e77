//! Whether the weights in the folder of a target, or of a model to start from, are those of which its `config.json` speaks, by the
//! headers of its files.

use std::path::PathBuf;

use burn::prelude::*;
use spectrain_checkpoints::{DType, Error as CheckpointError, Mismatch, ModelFolder, NamedTensor};

use crate::config::{PREFIX, unread_tensors};
use crate::error::{Error, Result};
use crate::parts::{PartsConfig, is_padded};
use crate::start::{Kept, Start};
use crate::transformer::{Transformer, TransformerConfig};
use crate::weights::{Init, Scope, Weights, name_in_folder};

/// How the names of a layer's tensors begin behind [`PREFIX`]; its number follows.
const LAYERS: &str = "layers.";

/// Fails where a tensor of a target that is computed here is missing, is one too many, or has another shape than its configuration
/// says. No values are read.
///
/// # Errors
/// The first such tensor, with the key that does not fit; or the architecture is not supported.
pub fn check_target_weights(model: &ModelFolder) -> Result<()> {
    let config = TransformerConfig::read(model.config(), &model.path().join("config.json"))?;
    let ignored = unread_tensors(model, &config);
    check_weights(model, (config, &[]), &ignored)
}

/// The same of the embedding, the norm and the head, which may have more rows than there are tokens.
///
/// # Errors
/// The first such tensor, with the key that does not fit; or the configuration says too little.
pub fn check_part_weights(model: &ModelFolder) -> Result<()> {
    let file = model.path().join("config.json");
    let config = PartsConfig::read(model.config(), &file)?;
    let [embedding, norm, head] = config.names(&file, &|name| model.info(name).is_ok())?;
    let headers = Headers::of(model, file);
    let (vocab, d_model) = (config.spec.vocab, config.spec.d_model);
    headers.check(&norm, &[d_model])?;
    for name in [embedding, head] {
        let wanted = [vocab, d_model];
        if !is_padded(&model.info(&name)?.shape, &wanted) {
            headers.check(&name, &wanted)?;
        }
    }
    Ok(())
}

/// As [`check_target_weights`], of the model that a drafter starts from, as far as `start` keeps its layers.
///
/// # Errors
/// The first such tensor, with the key that does not fit; or the architecture is not supported, or there is no layer that is to be
/// kept.
pub fn check_start_weights(model: &ModelFolder, start: &Start<'_>) -> Result<()> {
    let config = start.structure_of(model)?;
    check_weights(model, (config, start.keep_layers), &start.unread(model)?)
}

/// Fails unless a folder holds the tensors of a model of this structure, made of these of its layers, or of all where none is named,
/// and no others than those ignored.
fn check_weights(
    model: &ModelFolder,
    (config, layers): (TransformerConfig, &[usize]),
    ignored: &[String],
) -> Result<()> {
    let count = config.spec.layers;
    let mut kept = Kept {
        folder: Headers::of(model, model.path().join("config.json")),
        layers,
    };
    let device = Device::flex();
    // A model without values, for which nothing is allocated.
    Transformer::new(&mut Scope::root(&mut kept, &device, DType::F32), config)?;
    let headers = kept.folder;
    let checked = model.check_names(&headers.taken, ignored);
    checked.map_err(|cause| match &cause {
        CheckpointError::Names { unexpected, .. }
            if layers.is_empty() && unexpected.iter().any(|name| is_beyond(name, count)) =>
        {
            headers.unfit("`num_hidden_layers`", cause)
        }
        _ => cause.into(),
    })
}

/// What files say of their tensors, as a source of parameters without values.
struct Headers<'a> {
    model: &'a ModelFolder,
    /// The configuration.
    file: PathBuf,
    /// Names that were asked for.
    taken: Vec<String>,
}

impl<'a> Headers<'a> {
    fn of(model: &'a ModelFolder, file: PathBuf) -> Self {
        Self {
            model,
            file,
            taken: Vec::new(),
        }
    }

    /// Fails unless there is a tensor of this name and shape.
    fn check(&self, name: &str, shape: &[usize]) -> Result<()> {
        let found = match self.model.info(name) {
            Ok(found) => found,
            Err(cause) => {
                return Err(match missing_by(name, self.model) {
                    Some(key) => self.unfit(key, cause),
                    None => cause.into(),
                });
            }
        };
        if found.shape == shape {
            return Ok(());
        }
        let cause = CheckpointError::Shape {
            name: name.to_owned(),
            path: found.file.clone(),
            mismatch: Mismatch::new(format!("{shape:?}"), format!("{:?}", found.shape)),
        };
        let mut sizes = shape.iter().zip(&found.shape);
        let other = sizes.position(|(wanted, there)| wanted != there);
        match other.filter(|_| shape.len() == found.shape.len()) {
            Some(dimension) => Err(self.unfit(sizes_of(name)[dimension.min(1)], cause)),
            None => Err(cause.into()),
        }
    }

    fn unfit(&self, keys: &'static str, cause: CheckpointError) -> Error {
        Error::Unfit {
            file: self.file.clone(),
            keys,
            cause: Box::new(cause),
        }
    }
}

impl Weights for Headers<'_> {
    fn tensor(&mut self, name: &str, shape: &[usize], _: Init) -> Result<NamedTensor> {
        let name = name_in_folder(PREFIX, name);
        self.check(&name, shape)?;
        self.taken.push(name.clone());
        Ok(NamedTensor {
            name,
            shape: shape.to_vec(),
            dtype: DType::F32,
            // None of the values: see `Scope`.
            bytes: Vec::new(),
        })
    }
}

/// The number of the layer that a tensor is of.
fn layer_of(name: &str) -> Option<usize> {
    let name = name.strip_prefix(PREFIX)?.strip_prefix(LAYERS)?;
    let (number, _) = name.split_once('.')?;
    number.parse().ok()
}

/// Whether a tensor is of a layer behind so many.
fn is_beyond(name: &str, layers: usize) -> bool {
    layer_of(name).is_some_and(|layer| layer >= layers)
}

/// The key of `config.json` that asks for a tensor that is not there; none where its layer is there without it, as in a file that is
/// cut off.
fn missing_by(name: &str, model: &ModelFolder) -> Option<&'static str> {
    if name.starts_with("lm_head.") {
        return Some("`tie_word_embeddings`");
    }
    let layer = layer_of(name)?;
    let mut names = model.tensors().map(|tensor| &tensor.name);
    match names.any(|name| layer_of(name) == Some(layer)) {
        true => None,
        false => Some("`num_hidden_layers`"),
    }
}

/// The keys of `config.json` that the sizes of a tensor come from: of its rows and of its columns.
fn sizes_of(name: &str) -> [&'static str; 2] {
    const HIDDEN: &str = "`hidden_size`";
    const QUERIES: &str = "`num_attention_heads` times `head_dim`";
    const KEYS: &str = "`num_key_value_heads` times `head_dim`";
    let width = match name.contains(".experts.") {
        true => "`moe_intermediate_size`",
        false => "`intermediate_size`",
    };
    match name.rsplit('.').nth(1).unwrap_or_default() {
        "embed_tokens" | "lm_head" => ["`vocab_size`", HIDDEN],
        "q_proj" => [QUERIES, HIDDEN],
        "k_proj" | "v_proj" => [KEYS, HIDDEN],
        "o_proj" => [HIDDEN, QUERIES],
        "q_norm" | "k_norm" => ["`head_dim`"; 2],
        "gate_proj" | "up_proj" => [width, HIDDEN],
        "down_proj" => [HIDDEN, width],
        "gate" => ["`num_experts`", HIDDEN],
        _ => [HIDDEN; 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use spectrain_checkpoints::write_folder;

    use crate::config::load_target;
    use crate::parts::load_parts;
    use crate::weights::{RandomWeights, export};

    fn config() -> Value {
        json!({
            "model_type": "qwen3", "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 8, "num_hidden_layers": 2, "vocab_size": 20, "max_position_embeddings": 64,
        })
    }

    /// A target of [`config`], of whose configuration these keys then say something else.
    fn changed(root: &std::path::Path, keys: &Value) -> ModelFolder {
        let path = root.join("t");
        let structure = TransformerConfig::read(&config(), &path).unwrap();
        let device = Device::flex();
        let mut random = RandomWeights::new(1);
        let mut scope = Scope::root(&mut random, &device, DType::F32);
        let mut tensors = export(&Transformer::new(&mut scope, structure).unwrap());
        for tensor in &mut tensors {
            tensor.name = name_in_folder(PREFIX, &tensor.name);
        }
        let mut config = config();
        for (key, value) in keys.as_object().unwrap() {
            config[key] = value.clone();
        }
        write_folder(&path, &config, &tensors, &[]).unwrap();
        ModelFolder::open(&path).unwrap()
    }

    /// What is said, of what loading refuses too.
    fn told(keys: Value) -> String {
        let root = tempfile::tempdir().unwrap();
        let model = changed(root.path(), &keys);
        load_target(&model, &Device::flex(), DType::F32).unwrap_err();
        let told = check_target_weights(&model).unwrap_err().to_string();
        told.replace(&root.path().display().to_string(), "")
    }

    #[test]
    fn weights_that_a_configuration_does_not_speak_of_are_told_by_its_key() {
        let shape = |keys: &str, tensor: &str, sizes: &str| {
            format!(
                "`/t/config.json`: {keys} does not fit the weights: tensor `model.{tensor}.weight` in `/t/model.safetensors`: {sizes}"
            )
        };
        for (changed, expected) in [
            (
                json!({"num_hidden_layers": 3}),
                "`/t/config.json`: `num_hidden_layers` does not fit the weights: tensor `model.layers.2.".to_owned(),
            ),
            (
                json!({"num_hidden_layers": 1}),
                "`/t/config.json`: `num_hidden_layers` does not fit the weights: `/t`: ".to_owned(),
            ),
            (
                json!({"vocab_size": 40}),
                shape("`vocab_size`", "embed_tokens", "expected [40, 16], found [20, 16]"),
            ),
            (
                json!({"num_attention_heads": 2}),
                shape(
                    "`num_attention_heads` times `head_dim`",
                    "layers.0.self_attn.q_proj",
                    "expected [16, 16], found [32, 16]",
                ),
            ),
            (
                json!({"intermediate_size": 48}),
                shape(
                    "`intermediate_size`",
                    "layers.0.mlp.gate_proj",
                    "expected [48, 16], found [24, 16]",
                ),
            ),
        ] {
            let told = told(changed);
            assert!(told.starts_with(&expected), "{told}\n{expected}");
        }
    }

    #[test]
    fn weights_that_are_loaded_are_not_told_of() {
        let root = tempfile::tempdir().unwrap();
        let model = changed(root.path(), &json!({}));
        check_target_weights(&model).unwrap();
        check_part_weights(&model).unwrap();
        load_target(&model, &Device::flex(), DType::F32).unwrap();
    }

    #[test]
    fn of_a_model_to_start_from_the_layers_that_are_kept_have_to_fit() {
        let root = tempfile::tempdir().unwrap();
        let model = changed(root.path(), &json!({"num_hidden_layers": 3}));
        let check = |model: &ModelFolder, keep_layers: &[usize]| {
            let start = Start {
                model: "t",
                revision: None,
                keep_layers,
                fresh: None,
                lora: None,
            };
            check_start_weights(model, &start).map_err(|error| error.to_string())
        };
        assert_eq!(check(&model, &[0, 1]), Ok(()));
        for keep_layers in [&[][..], &[1, 2]] {
            let told = check(&model, keep_layers).unwrap_err();
            assert!(told.contains("`num_hidden_layers` does not fit"), "{told}");
        }
        let told = check(&model, &[3]).unwrap_err();
        assert!(told.contains("layers below 3"), "{told}");
        // A Llama has no norms of heads.
        let root = tempfile::tempdir().unwrap();
        let model = changed(root.path(), &json!({"model_type": "llama"}));
        let told = check(&model, &[1]).unwrap_err();
        assert!(told.contains("layers.1.self_attn.q_norm"), "{told}");
        assert!(!told.contains("layers.0."), "{told}");
    }

    #[test]
    fn of_the_parts_rows_that_fill_a_vocabulary_up_may_be_there_and_none_may_lack() {
        for (vocab, fits) in [(20, true), (18, true), (40, false)] {
            let root = tempfile::tempdir().unwrap();
            let model = changed(root.path(), &json!({"vocab_size": vocab}));
            let loaded = load_parts(model.path(), &Device::flex(), DType::F32);
            let checked = check_part_weights(&model);
            assert_eq!((loaded.is_ok(), checked.is_ok()), (fits, fits), "{vocab}");
            if let Err(error) = checked {
                let told = error.to_string();
                assert!(
                    told.contains("`vocab_size` does not fit the weights"),
                    "{told}"
                );
            }
        }
        // Layers are none of the parts.
        let root = tempfile::tempdir().unwrap();
        let model = changed(root.path(), &json!({"num_hidden_layers": 9}));
        check_part_weights(&model).unwrap();
    }
}

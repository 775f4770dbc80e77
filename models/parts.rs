//! What a drafter shares of its target, and nothing else of it: embedding, final norm and head, of any architecture that an
//! engine serves. The layers between them need not be known here, nor be on the disk.
use std::path::Path;

use burn::prelude::*;
use serde_json::{Map, Value, json};
use spectrain_checkpoints::{DType, Mismatch, ModelFolder, NamedTensor, printable};

use crate::error::{Error, Result};
use crate::keys::Keys;
use crate::linear::{Bias, Linear};
use crate::norm::RmsNorm;
use crate::rope::{RopeConfig, RopeScaling};
use crate::target::{SoftCap, TargetParts, TargetSpec};
use crate::transformer::embedding;
use crate::weights::{Init, Scope, Weights, is_empty};

/// Where checkpoints hold the text model, and the head beside it.
const PLACES: [(&str, &str); 5] = [
    ("model.", "lm_head."),
    ("model.language_model.", "lm_head."),
    ("language_model.model.", "language_model.lm_head."),
    ("model.text_model.", "lm_head."),
    ("model.", "model.lm_head."),
];
/// The configuration of the text model in that of a model with other senses.
const TEXT: [&str; 3] = ["text_config", "llm_config", "language_config"];
/// Architectures whose norms hold their weight less 1.
const LESS_ONE: [&str; 5] = ["gemma", "gemma2", "gemma3", "qwen3_next", "qwen3_5"];
/// Names that rotary scaling goes by where it changes nothing in text.
const UNSCALED: [&str; 3] = ["default", "mrope", "proportional"];

/// What the `config.json` of a target says of the pieces that a drafter shares.
#[derive(Debug, Clone, PartialEq)]
pub struct PartsConfig {
    /// Sizes. Of layers that are no plain attention and feed-forward they are what a drafter takes for its own.
    pub spec: TargetSpec,
    /// Whether the checkpoint holds the norm's weight less 1.
    norm_less_one: bool,
    /// What logits are multiplied with.
    head_scale: f64,
    /// What they are bounded by then.
    soft_cap: SoftCap,
    /// Whether the head is the embedding; where nothing is said, it is unless there is a head.
    pub tied_head: Option<bool>,
    /// What of the configuration a drafter goes without.
    pub remarks: Vec<String>,
}

impl PartsConfig {
    /// Reads the contents of a `config.json`; `file` is named in errors.
    ///
    /// # Errors
    /// A key is missing or of the wrong kind, or the logits are not the head's alone.
    pub fn read(value: &Value, file: &Path) -> Result<Self> {
        let text = TEXT
            .iter()
            .find_map(|key| value.get(key).filter(|text| text.is_object()));
        let keys = Keys {
            value: text.unwrap_or(value),
            file: file.to_owned(),
        };
        let kind = keys
            .value
            .get("model_type")
            .or_else(|| value.get("model_type"));
        let kind = kind.and_then(Value::as_str).unwrap_or_default();
        let d_model = keys.size("hidden_size")?;
        let heads = keys.size("num_attention_heads")?;
        let kv_heads = keys.size_or("num_key_value_heads", heads)?;
        let max_positions = keys.size_or("max_position_embeddings", 2048)?;
        let mut remarks = Vec::new();
        let rope = rope(&keys, max_positions, &mut remarks)?;
        // Configurations with a text model inside often say it outside only.
        let tied = [keys.value, value].map(|table| table.get("tie_word_embeddings"));
        let tied = tied.into_iter().flatten().find_map(Value::as_bool);
        Ok(Self {
            spec: TargetSpec {
                layers: keys.count("num_hidden_layers")?,
                d_model,
                d_ff: keys.size_or("intermediate_size", 3 * d_model)?,
                heads,
                kv_heads,
                d_head: head_width(&keys, d_model, heads)?,
                vocab: keys.size("vocab_size")?,
                norm_epsilon: keys.epsilon("rms_norm_eps", 1e-6)?,
                rope,
                max_positions,
                routing: None,
            },
            norm_less_one: LESS_ONE
                .iter()
                .any(|less| kind.trim_end_matches("_text").trim_end_matches("_moe") == *less),
            head_scale: head_scale(&keys)?,
            soft_cap: soft_cap(&keys)?,
            tied_head: tied,
            remarks,
        })
    }

    /// The names of the embedding, the norm and the head in a checkpoint that has a tensor where `has` says so.
    ///
    /// # Errors
    /// They are under no known name.
    pub fn names(&self, file: &Path, has: &dyn Fn(&str) -> bool) -> Result<[String; 3]> {
        let places = places();
        let complete = |[embedding, norm, head]: &&[String; 3]| {
            has(embedding) && has(norm) && (self.tied_head != Some(false) || has(head))
        };
        let with_head = places
            .iter()
            .filter(complete)
            .max_by_key(|[_, _, head]| has(head));
        let Some([embedding, norm, head]) = with_head else {
            let known = places.concat().join(", ");
            return Err(Error::Checkpoint(spectrain_checkpoints::Error::Folder {
                path: file.to_owned(),
                reason: format!(
                    "the weights hold no embedding, norm and head under a known name; known are {known}"
                ),
            }));
        };
        let is_tied = self.tied_head.unwrap_or(!has(head));
        let head = if is_tied { embedding } else { head };
        Ok([embedding, norm, head].map(Clone::clone))
    }
}

/// The names of embedding, norm and head in every place.
fn places() -> [[String; 3]; PLACES.len()] {
    PLACES.map(|(model, head)| {
        [
            format!("{model}embed_tokens.weight"),
            format!("{model}norm.weight"),
            format!("{head}weight"),
        ]
    })
}

/// Whether a tensor of this name is one that a drafter shares.
pub fn is_part(name: &str) -> bool {
    places().iter().flatten().any(|known| known == name)
}

/// Logits of some architectures are the head's, times or divided by a number.
fn head_scale(keys: &Keys) -> Result<f64> {
    let mut scale = 1.0;
    for (key, divides) in [
        ("logits_scaling", true),
        ("logit_scale", false),
        ("lm_head_multiplier", false),
    ] {
        if keys.present(key).is_some() {
            let factor = keys.number(key)?;
            if !(factor > 0.0 && factor.is_finite()) {
                return Err(keys.problem(key, "a number above 0"));
            }
            scale *= if divides { 1.0 / factor } else { factor };
        }
    }
    Ok(scale)
}

/// The bound of the logits, where there is one.
fn soft_cap(keys: &Keys) -> Result<SoftCap> {
    const KEY: &str = "final_logit_softcapping";
    if keys.present(KEY).is_none() {
        return Ok(SoftCap::default());
    }
    let cap = keys.number(KEY)?;
    if !(cap > 0.0 && cap.is_finite()) {
        return Err(keys.problem(KEY, "a number above 0"));
    }
    Ok(SoftCap(Some(cap)))
}

/// The width of a head as far as a drafter takes it for its own: even, and 128 where heads of the target have none that fits.
fn head_width(keys: &Keys, d_model: usize, heads: usize) -> Result<usize> {
    if keys.present("head_dim").is_some() {
        return keys.head_dim(d_model, heads);
    }
    Ok(match d_model / heads {
        width if d_model.is_multiple_of(heads) && width.is_multiple_of(2) => width,
        _ => 128,
    })
}

/// The rotary positions of layers that see everything, turning whole heads, as those of a drafter do.
fn rope(keys: &Keys, max_positions: usize, remarks: &mut Vec<String>) -> Result<RopeConfig> {
    let key = match keys.present("rope_parameters") {
        Some(_) => "rope_parameters",
        None => "rope_scaling",
    };
    let table = keys
        .present(key)
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    let mut table = match table.get("full_attention") {
        Some(Value::Object(full)) => full.clone(),
        _ => table,
    };
    let theta = table.remove("rope_theta").filter(|theta| !theta.is_null());
    let theta = match theta {
        Some(theta) => theta
            .as_f64()
            .ok_or_else(|| keys.problem(key, "a number under `rope_theta`"))?,
        None if keys.present("rope_theta").is_some() => keys.number("rope_theta")?,
        None => 10_000.0,
    };
    let scaling = scaling(table, max_positions);
    let scaling = scaling.unwrap_or_else(|found| {
        remarks.push(format!(
            "rotary scaling `{}` is not known here; the drafter's positions are not scaled",
            printable(&found)
        ));
        RopeScaling::Default
    });
    Ok(RopeConfig { theta, scaling })
}

/// The rule of a table; of an unknown one its name.
fn scaling(
    mut table: Map<String, Value>,
    max_positions: usize,
) -> std::result::Result<RopeScaling, String> {
    let kind = table.get("rope_type").or_else(|| table.get("type"));
    let kind = kind.and_then(Value::as_str).unwrap_or("default").to_owned();
    if UNSCALED.contains(&kind.as_str()) {
        return Ok(RopeScaling::Default);
    }
    table.insert("rope_type".into(), json!(kind));
    table
        .entry("original_max_position_embeddings")
        .or_insert_with(|| json!(max_positions));
    serde_json::from_value(Value::Object(table)).map_err(|_| kind)
}

/// Loads the parts of the target in `folder` as `dtype`. Of a model in shards only those with one of them have to be there.
///
/// # Errors
/// The configuration says too little, a tensor is missing, mis-shaped, quantised or not finite.
pub fn load_parts(folder: &Path, device: &Device, dtype: DType) -> Result<TargetParts> {
    let model = ModelFolder::open_some(folder, &is_part)?;
    let file = folder.join("config.json");
    let config = PartsConfig::read(model.config(), &file)?;
    let names = config.names(&file, &|name| model.info(name).is_ok())?;
    let mut weights = PartsWeights {
        model: &model,
        config: &config,
        names,
    };
    let spec = config.spec.clone();
    // A norm computes in 32 bits, and 1 more than a weight of 16 would lose what the weight says.
    let norm = {
        let mut scope = Scope::root(&mut weights, device, DType::F32);
        RmsNorm::new(&mut scope.child("norm"), spec.d_model, spec.norm_epsilon)?
    };
    let mut scope = Scope::root(&mut weights, device, dtype);
    let embed_tokens = embedding(&mut scope.child("embed_tokens"), spec.vocab, spec.d_model)?;
    let lm_head = Linear::new(
        &mut scope.child("lm_head"),
        spec.d_model,
        spec.vocab,
        Bias::Without,
    )?;
    Ok(TargetParts {
        embed_tokens,
        norm,
        lm_head,
        soft_cap: config.soft_cap,
        folder: Some(folder.to_owned()),
        spec,
    })
}

/// The three tensors, as the program computes with them.
struct PartsWeights<'a> {
    model: &'a ModelFolder,
    config: &'a PartsConfig,
    names: [String; 3],
}

impl Weights for PartsWeights<'_> {
    fn tensor(&mut self, name: &str, shape: &[usize], _: Init) -> Result<NamedTensor> {
        let [embedding, norm, head] = &self.names;
        let at = match name {
            "embed_tokens.weight" => embedding,
            "norm.weight" => norm,
            _ => head,
        };
        let found = self.model.info(at)?;
        if ![DType::F32, DType::BF16, DType::F16].contains(&found.dtype) {
            return Err(Error::Checkpoint(
                spectrain_checkpoints::Error::ElementType {
                    name: at.clone(),
                    path: found.file.clone(),
                    mismatch: Mismatch::new(
                        "F32, BF16 or F16, as quantised weights are not read",
                        found.dtype,
                    ),
                },
            ));
        }
        let mut tensor = self.model.read(at)?;
        if name != "norm.weight" && is_empty(&tensor.bytes) {
            return Err(Error::Empty {
                file: found.file.clone(),
                of: format!("`{at}`"),
                tensor: at.clone(),
            });
        }
        // Engines pad vocabularies at their end.
        if let ([rows, width], [wanted, same]) = (&tensor.shape[..], shape)
            && rows > wanted
            && width == same
        {
            tensor.bytes.truncate(tensor.bytes.len() / rows * wanted);
            tensor.shape[0] = *wanted;
        }
        if tensor.shape != shape {
            // Says which shape was expected and which is there.
            self.model.read_bytes(at, shape)?;
        }
        match name {
            "norm.weight" if self.config.norm_less_one => changed(tensor, |weight| weight + 1.0),
            "lm_head.weight" if self.config.head_scale != 1.0 => {
                let scale = self.config.head_scale;
                changed(tensor, |weight| (f64::from(weight) * scale) as f32)
            }
            _ => Ok(tensor),
        }
    }
}

/// A tensor with all of its elements changed, in 32 bits.
fn changed(tensor: NamedTensor, change: impl Fn(f32) -> f32) -> Result<NamedTensor> {
    let values = tensor.to_f32()?.into_iter().map(change).collect::<Vec<_>>();
    Ok(NamedTensor::from_f32(tensor.name, tensor.shape, values))
}

//! What a drafter shares of its target, and nothing else of it: embedding, final norm and head, of any architecture that an
//! engine serves. The layers between them need not be known here, nor be on the disk.
use std::path::Path;

use burn::prelude::*;
use serde_json::{Map, Value};
use spectrain_checkpoints::absent::{self, DEFAULT_EPSILON, DEFAULT_POSITIONS, HEAD_DIM};
use spectrain_checkpoints::keys::as_size;
use spectrain_checkpoints::rotary::{BASE, ORIGINAL_POSITIONS, UNSCALED, rule, with_original};
use spectrain_checkpoints::{DType, Mismatch, ModelFolder, NamedTensor, printable};

use crate::config::check_tied;
use crate::error::{Error, Result};
use crate::keys::Keys;
use crate::linear::{Bias, Linear};
use crate::norm::RmsNorm;
use crate::rope::{RopeConfig, RopeScaling, RotaryTable, base_of, rotary_tables};
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
/// Architectures whose final norm holds its weight less 1, without `_text` and `_moe` at their end.
const LESS_ONE: [&str; 11] = [
    "gemma",
    "gemma2",
    "gemma3",
    "vaultgemma",
    "qwen3_next",
    "qwen3_5",
    "interns2_mobius",
    "step3p5",
    "step3p7",
    "minimax_m3",
    "minimax_m3_vl",
];
/// Architectures whose final norm also takes the mean off, although their configurations do not say so: they name its epsilon as that
/// of a norm that does not, or not at all (OLMo).
const MEAN_OFF: [&str; 3] = ["olmo", "orion", "phimoe"];
/// Architectures that multiply by `logits_scaling`; others, as Granite, divide.
const MULTIPLIED: [&str; 2] = ["hyperclovax", "hyperclovax_vision_v2"];

/// What the `config.json` of a target says of the pieces that a drafter shares.
#[derive(Debug, Clone, PartialEq)]
pub struct PartsConfig {
    /// Sizes. Of layers that are no plain attention and feed-forward they are what a drafter takes for its own.
    pub spec: TargetSpec,
    /// Whether the checkpoint holds the norm's weight less 1.
    pub norm_less_one: bool,
    /// What logits are multiplied with.
    pub head_scale: f64,
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
        let is_one_of = |kinds: &[&str]| {
            // The text model of MiniMax-M3 goes by the name of another one, the whole by its own.
            let names = [keys.value, value].map(|table| table.get("model_type"));
            let mut names = names.into_iter().flatten().filter_map(Value::as_str);
            names.any(|name| {
                let name = name.trim_end_matches("_text").trim_end_matches("_moe");
                kinds.contains(&name)
            })
        };
        check_norm(&keys, is_one_of(&MEAN_OFF))?;
        let vocab = keys.size("vocab_size")?;
        let d_model = keys.size("hidden_size")?;
        let heads = keys.size("num_attention_heads")?;
        let kv_heads = keys.kv_heads(heads)?;
        let max_positions = keys.size_or("max_position_embeddings", DEFAULT_POSITIONS)?;
        let mut remarks = Vec::new();
        let d_head = head_width(&keys, d_model, heads)?;
        let rope = rope(&keys, [d_head, max_positions], &mut remarks)?;
        // Configurations with a text model inside often say it outside only.
        let tied = [keys.value, value].map(|table| table.get("tie_word_embeddings"));
        let tied = tied.into_iter().flatten().find_map(Value::as_bool);
        Ok(Self {
            spec: TargetSpec {
                layers: keys.count("num_hidden_layers")?,
                d_model,
                d_ff: d_ff(&keys, 3 * d_model)?,
                heads,
                kv_heads,
                d_head,
                // Inkling leaves out of its logits what fills its vocabulary up.
                vocab: keys.size_or("unpadded_vocab_size", vocab)?.min(vocab),
                norm_epsilon: keys.epsilon("rms_norm_eps", DEFAULT_EPSILON)?,
                rope,
                max_positions,
                routing: None,
            },
            // SGLang reads this of MiniMax-M3.
            norm_less_one: keys.flag("use_gemma_norm", is_one_of(&LESS_ONE))?,
            head_scale: head_scale(&keys, is_one_of(&MULTIPLIED))?,
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
fn head_scale(keys: &Keys, multiplied: bool) -> Result<f64> {
    let mut scale = 1.0;
    for (key, divides) in [
        ("logits_scaling", !multiplied),
        ("logit_scale", false),
        ("lm_head_multiplier", false),
        // Muse and Grok.
        ("output_multiplier", false),
        ("output_multiplier_scale", false),
        // Inkling.
        ("logits_mup_width_multiplier", true),
    ] {
        if keys.present(key).is_some() {
            let factor = keys.number(key)?;
            if !(factor > 0.0 && factor.is_finite()) {
                return Err(keys.problem(key, "a number above 0"));
            }
            scale *= if divides { 1.0 / factor } else { factor };
        }
    }
    // MiniCPM: what its head reads is divided by its width over this one.
    if keys.present("dim_model_base").is_some() {
        scale *= keys.size("dim_model_base")? as f64 / keys.size("hidden_size")? as f64;
    }
    Ok(scale)
}

/// Fails where the final norm is known to be another than that which is read.
fn check_norm(keys: &Keys, takes_the_mean_off: bool) -> Result<()> {
    if takes_the_mean_off {
        return Err(keys.problem(
            "model_type",
            "one whose final norm is an RMSNorm, as that of this one also takes the mean off, and no such final norm is known here",
        ));
    }
    let of_others = ["layer_norm_eps", "norm_epsilon", "norm_eps"];
    let other = of_others
        .into_iter()
        .find(|key| keys.present(key).is_some());
    match other.filter(|_| keys.present("rms_norm_eps").is_none()) {
        None => Ok(()),
        Some(key) => Err(keys.problem(
            key,
            "`rms_norm_eps` in its place, as this may be of a norm that also takes the mean off, and no such final norm is known here",
        )),
    }
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

/// The feed-forward width that a drafter takes for its own: of widths of each layer, as Gemma 3n has them, the largest.
fn d_ff(keys: &Keys, default: usize) -> Result<usize> {
    const KEY: &str = "intermediate_size";
    let Some(Value::Array(of_layers)) = keys.present(KEY) else {
        return keys.size_or(KEY, default);
    };
    let widths: Option<Vec<usize>> = of_layers.iter().map(as_size).collect();
    let most = widths.and_then(|widths| widths.into_iter().max());
    most.ok_or_else(|| keys.problem(KEY, "a width, or one for each layer"))
}

/// The width of a head as far as a drafter takes it for its own: even, and 128 where heads of the target have none that fits.
fn head_width(keys: &Keys, d_model: usize, heads: usize) -> Result<usize> {
    if keys.present(HEAD_DIM).is_some() || absent::head_dim(keys.value).is_some() {
        return keys.head_dim(d_model, heads);
    }
    Ok(match d_model / heads {
        width if d_model.is_multiple_of(heads) && width.is_multiple_of(2) => width,
        _ => 128,
    })
}

/// The rotary positions of layers that see everything, turning whole heads of `d_head`, as those of a drafter do.
fn rope(
    keys: &Keys,
    [d_head, max_positions]: [usize; 2],
    remarks: &mut Vec<String>,
) -> Result<RopeConfig> {
    let mut tables = Vec::new();
    for (key, table) in rotary_tables(keys)? {
        let table = match table.get("full_attention") {
            Some(Value::Object(full)) => full.clone(),
            _ => table,
        };
        let theta = base_of(keys, key, &table)?;
        let (scaling, remark) = scaling(keys, key, &table, max_positions)?;
        let is_new = |remark: &String| !remarks.contains(remark);
        let remark = remark.filter(is_new);
        remarks.extend(remark);
        tables.push(RotaryTable {
            key,
            theta,
            scaling,
        });
    }
    let has_base = tables.iter().any(|table| table.theta.is_some());
    let beside = if has_base { None } else { base(keys)? };
    RopeConfig::of_tables(keys, tables, beside, d_head)
}

/// The base beside the tables. Step-3.5 has one for each layer: that of the first layer that sees everything.
fn base(keys: &Keys) -> Result<Option<f64>> {
    let key = BASE;
    let Some(found) = keys.present(key) else {
        return Ok(None);
    };
    let number = match (found, keys.present("layer_types")) {
        (Value::Array(bases), Some(Value::Array(kinds))) => {
            let mut layers = bases.iter().zip(kinds);
            let full = layers.find(|(_, kind)| *kind == "full_attention");
            full.and_then(|(base, _)| base.as_f64())
        }
        _ => found.as_f64(),
    };
    let expected = "a number, or one for each of `layer_types`";
    let number = number.ok_or_else(|| keys.problem(key, expected))?;
    Ok(Some(number))
}

/// The rule of a table, and what a drafter goes without of it.
fn scaling(
    keys: &Keys,
    key: &str,
    table: &Map<String, Value>,
    max_positions: usize,
) -> Result<(RopeScaling, Option<String>)> {
    let kind = rule(table).unwrap_or("default");
    if UNSCALED.contains(&kind) {
        return Ok((RopeScaling::Default, None));
    }
    if !RopeScaling::KINDS.contains(&kind) {
        let remark = format!(
            "rotary scaling `{}` is not known here; the drafter's positions are not scaled",
            printable(kind)
        );
        return Ok((RopeScaling::Default, Some(remark)));
    }
    let table = with_original(table, keys.present(ORIGINAL_POSITIONS));
    let read = RopeScaling::read(&table, max_positions);
    let (scaling, unread) =
        read.map_err(|error| keys.problem(key, &format!("rotary scaling `{kind}` ({error})")))?;
    let remark = (!unread.is_empty()).then(|| {
        format!(
            "`{}` of the rotary scaling is not read; the drafter's positions are as without it",
            printable(&unread.join("`, `"))
        )
    });
    Ok((scaling, remark))
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
    // Of a head that is the embedding too.
    let heads = places().map(|[_, _, head]| head);
    for name in heads.iter().chain([&names[1]]) {
        let bias = name.replace("weight", "bias");
        if model.info(&bias).is_ok() {
            let reason = format!("`{bias}`: no final norm and no head with a bias is known here");
            let path = folder.to_owned();
            return Err(spectrain_checkpoints::Error::Folder { path, reason }.into());
        }
    }
    if config.tied_head == Some(true) {
        let beside = places()
            .into_iter()
            .filter(|[other, ..]| *other == names[0]);
        for [embedding, _, head] in beside {
            check_tied(&model, [&embedding, &head])?;
        }
    }
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
        if is_padded(&tensor.shape, shape) {
            let (rows, wanted) = (tensor.shape[0], shape[0]);
            tensor.bytes.truncate(tensor.bytes.len() / rows * wanted);
            tensor.shape[0] = wanted;
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

/// Whether a matrix has more rows than are wanted and is no other one otherwise: engines pad vocabularies at their end.
pub(crate) fn is_padded(found: &[usize], wanted: &[usize]) -> bool {
    matches!((found, wanted), ([rows, width], [least, same]) if rows > least && width == same)
}

/// A tensor with all of its elements changed, in 32 bits.
fn changed(tensor: NamedTensor, change: impl Fn(f32) -> f32) -> Result<NamedTensor> {
    let values = tensor.to_f32()?.into_iter().map(change).collect::<Vec<_>>();
    Ok(NamedTensor::from_f32(tensor.name, tensor.shape, values))
}

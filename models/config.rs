//! Reads `config.json` of the supported architectures into a [`TransformerConfig`], and loads the model of a folder.
use std::path::Path;

use burn::prelude::*;
use serde_json::{Map, Value, json};
use spectrain_checkpoints::absent::{DEFAULT_EPSILON, DEFAULT_POSITIONS};
use spectrain_checkpoints::folder::{READ_QUANTISED, is_quantisation_read};
use spectrain_checkpoints::keys::value_at;
use spectrain_checkpoints::language_model::{ARCHITECTURES, supported};
use spectrain_checkpoints::mtp;
use spectrain_checkpoints::once::warn_once;
use spectrain_checkpoints::printable;
use spectrain_checkpoints::rotary::{BASE, ORIGINAL_POSITIONS, SHARE, SHARES, with_original};
use spectrain_checkpoints::{DType, Mismatch, ModelFolder};

use crate::error::{Error, Result};
use crate::keys::Keys;
use crate::linear::Bias;
use crate::rope::{RopeConfig, RopeScaling, RotaryTable, base_of, rotary_tables};
use crate::routing::{self, Routing};
use crate::target::TargetSpec;
use crate::transformer::{Transformer, TransformerConfig};
use crate::weights::{FolderWeights, FrozenType, Scope};

/// Where the names of a target's tensors begin, but for those of its head.
pub(crate) const PREFIX: &str = "model.";

/// Loads the target of a folder in the Hugging Face layout.
///
/// # Errors
/// The architecture is not supported, or a tensor is missing, mis-shaped or unknown; the message names it.
pub fn load_target(
    folder: &ModelFolder,
    device: &Device,
    held: impl Into<FrozenType>,
) -> Result<Transformer> {
    let held = held.into();
    if folder.has_fp8() {
        tracing::info!(
            "`{}`: matrices in FP8 are read as bf16; engines also round to FP8 what they multiply them with, which is not done here",
            folder.path().display()
        );
    }
    let config = TransformerConfig::read(folder.config(), &folder.path().join("config.json"))?;
    check_tied_head(folder, &config)?;
    let ignored = unread_tensors(folder, &config);
    let mut weights = FolderWeights::new(folder, PREFIX);
    let scope = Scope::root(&mut weights, device, held.dtype);
    let target = Transformer::new(&mut scope.frozen(held.int8), config)?;
    weights.finish(&ignored)?;
    Ok(target.from_folder(folder.path()))
}

/// Loads the first `layers` decoder layers of the target in `folder`, frozen, with its embedding, norm and head. Of weights in shards
/// those of the other layers need not be there.
///
/// # Errors
/// The architecture is not supported, or a tensor is missing or mis-shaped.
pub fn load_first_layers(
    folder: &Path,
    layers: usize,
    device: &Device,
    dtype: DType,
) -> Result<Transformer> {
    let is_read = |name: &str| match name.strip_prefix("model.layers.") {
        Some(rest) => {
            let number = rest
                .split('.')
                .next()
                .and_then(|number| number.parse::<usize>().ok());
            number.is_some_and(|number| number < layers)
        }
        None => true,
    };
    let folder = ModelFolder::open_some(folder, &is_read)?;
    let mut config = TransformerConfig::read(folder.config(), &folder.path().join("config.json"))?;
    config.spec.layers = config.spec.layers.min(layers);
    check_tied_head(&folder, &config)?;
    let mut weights = FolderWeights::new(&folder, PREFIX);
    Transformer::new(&mut Scope::root(&mut weights, device, dtype), config)
}

/// Fails where a head that is said to be the embedding is stored beside it with other numbers.
pub(crate) fn check_tied_head(folder: &ModelFolder, config: &TransformerConfig) -> Result<()> {
    if config.tied_head {
        check_tied(folder, ["model.embed_tokens.weight", "lm_head.weight"])?;
    }
    Ok(())
}

/// Fails where both tensors are there with different numbers, although the configuration says that they are one: transformers then
/// takes both, vLLM the embedding alone.
pub(crate) fn check_tied(folder: &ModelFolder, [embedding, head]: [&str; 2]) -> Result<()> {
    if folder.info(embedding).is_err() || folder.info(head).is_err() {
        return Ok(());
    }
    let (one, other) = (folder.read(embedding)?, folder.read(head)?);
    let is_same = one.shape == other.shape
        && match one.dtype == other.dtype {
            true => one.bytes == other.bytes,
            false => other.dtype.is_float() && one.to_f32()? == other.to_f32()?,
        };
    if is_same {
        return Ok(());
    }
    let key = "tie_word_embeddings";
    let expected = format!(
        "`false`, as `{head}` in `{}` holds other numbers than `{embedding}`",
        folder.info(head)?.file.display()
    );
    Err(Error::Config {
        file: folder.path().join("config.json"),
        key: key.to_owned(),
        mismatch: Mismatch::new(expected, "`true`"),
    })
}

/// Tensors some checkpoints carry that hold nothing of their own.
///
/// # Errors
/// The head is said to be the embedding, but is stored beside it with other numbers.
pub fn ignored_tensors(folder: &ModelFolder, config: &TransformerConfig) -> Result<Vec<String>> {
    check_tied_head(folder, config)?;
    Ok(empty_tensors(config))
}

/// The names of these tensors.
fn empty_tensors(config: &TransformerConfig) -> Vec<String> {
    let mut ignored: Vec<String> = (0..config.spec.layers)
        .map(|layer| format!("model.layers.{layer}.self_attn.rotary_emb.inv_freq"))
        .collect();
    if config.tied_head {
        ignored.push("lm_head.weight".into());
    }
    ignored
}

/// The names of tensors that may stand beside those that a target of this configuration reads: [`ignored_tensors`], and layers of
/// multi-token prediction.
pub(crate) fn unread_tensors(folder: &ModelFolder, config: &TransformerConfig) -> Vec<String> {
    let mut unread = empty_tensors(config);
    unread.extend(mtp::beside_target(folder));
    unread
}

impl TransformerConfig {
    /// Reads the contents of a `config.json`; `file` is named in errors.
    ///
    /// # Errors
    /// A key is missing or of the wrong kind, or the architecture is not supported.
    pub fn read(value: &Value, file: &Path) -> Result<Self> {
        let keys = Keys {
            value,
            file: file.to_owned(),
        };
        let kind = value
            .get("model_type")
            .and_then(Value::as_str)
            .unwrap_or("");
        let not_computed = |found: &str| Error::Architecture {
            file: file.to_owned(),
            found: printable(found),
            supported: supported(),
        };
        let habits = Habits::of(kind).ok_or_else(|| not_computed(&unsupported(kind, value)))?;
        if let Some(rank) = keys.present(LATENT) {
            return Err(not_computed(&latent(kind, value, rank)));
        }
        let quantisation = keys.present("quantization_config");
        if quantisation.is_some_and(|found| !is_quantisation_read(found)) {
            return Err(keys.problem("quantization_config", READ_QUANTISED));
        }
        let activation = value.get("hidden_act").and_then(Value::as_str);
        if activation.is_some_and(|name| name != "silu") {
            return Err(keys.problem("hidden_act", "`silu`"));
        }
        let attention_bias = keys.flag("attention_bias", false)?;
        let mut spec = spec(&keys)?;
        if habits.routed {
            spec.routing = Some(Routing::read(&keys, spec.layers)?);
        }
        Ok(Self {
            windows: windows(&keys, habits.windows, spec.layers)?,
            qkv_bias: (attention_bias || habits.qkv_bias).into(),
            output_bias: (attention_bias && !habits.qkv_bias).into(),
            mlp_bias: keys.flag("mlp_bias", false)?.into(),
            head_norm: habits.head_norm,
            tied_head: keys.flag("tie_word_embeddings", false)?,
            spec,
        })
    }

    /// The `config.json` of a model of this structure: [`read`](Self::read) gives the structure back.
    ///
    /// # Errors
    /// No supported architecture has it.
    pub fn to_json(&self) -> Result<Value> {
        let spec = &self.spec;
        let bias = |bias| bias == Bias::With;
        let (qkv, output) = (bias(self.qkv_bias), bias(self.output_bias));
        let windowed = self.windows.iter().any(Option::is_some);
        let kind = match (self.head_norm, qkv, output) {
            _ if spec.routing.is_some() => routing::KIND,
            (true, ..) => "qwen3",
            (false, true, false) => "qwen2",
            _ if windowed => "mistral",
            _ => "llama",
        };
        let architecture = ARCHITECTURES.iter().find(|(known, _)| *known == kind);
        let mut rope = spec.rope.scaling.written();
        rope["rope_theta"] = json!(spec.rope.theta);
        let mut config = json!({
            "architectures": architecture.map(|(_, name)| [name]),
            "model_type": kind,
            "attention_bias": output,
            "head_dim": spec.d_head,
            "hidden_act": "silu",
            "hidden_size": spec.d_model,
            "intermediate_size": spec.d_ff,
            "max_position_embeddings": spec.max_positions,
            "mlp_bias": bias(self.mlp_bias),
            "num_attention_heads": spec.heads,
            "num_hidden_layers": spec.layers,
            "num_key_value_heads": spec.kv_heads,
            "rms_norm_eps": spec.norm_epsilon,
            "rope_theta": spec.rope.theta,
            "rope_parameters": rope,
            "tie_word_embeddings": self.tied_head,
            "vocab_size": spec.vocab,
        });
        if windowed {
            let kinds = self.windows.iter().map(|window| match window {
                None => "full_attention",
                Some(_) => "sliding_attention",
            });
            config["layer_types"] = kinds.collect();
            config["sliding_window"] = json!(self.windows.iter().flatten().next());
            config["use_sliding_window"] = json!(true);
        }
        if let Some(routing) = &spec.routing {
            routing.write(&mut config);
        }
        if spec.rope.scaling != RopeScaling::Default {
            // What engines older than `rope_parameters` read.
            config["rope_scaling"] = config["rope_parameters"].clone();
        }
        if Self::read(&config, Path::new("config.json"))? == *self {
            Ok(config)
        } else {
            Err(Error::Architecture {
                file: "config.json".into(),
                found: "settings that are others once they are written and read".into(),
                supported: supported(),
            })
        }
    }
}

/// What a `model_type` says that no other key does.
#[derive(Clone, Copy)]
struct Habits {
    /// Whether each head's queries and keys go through a norm.
    head_norm: bool,
    /// Whether query, key and value projections add a bias and the output projection adds none, whatever `attention_bias` says.
    qkv_bias: bool,
    /// Whether feed-forward parts have experts.
    routed: bool,
    windows: Windows,
}

/// Which layers see only the last positions, as many as `sliding_window` says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Windows {
    /// None, whatever `sliding_window` says. Of `layer_types` vLLM lets layers slide and transformers does not, so none may be told to.
    Never,
    /// All, unless `layer_types` says which, as in vLLM. In transformers 5.19 all of them slide whatever it says.
    Given,
    /// With `use_sliding_window`, those from `max_window_layers` on, unless `layer_types` says which.
    Asked,
    /// With `use_sliding_window` all, whatever is said of layers.
    AskedEverywhere,
}

impl Habits {
    /// Those of a kind of [`ARCHITECTURES`].
    fn of(kind: &str) -> Option<Self> {
        let plain = Self {
            head_norm: false,
            qkv_bias: false,
            routed: false,
            windows: Windows::Never,
        };
        let windows = |windows| Self { windows, ..plain };
        Some(match kind {
            "llama" => plain,
            "mistral" => windows(Windows::Given),
            // MiMo is Qwen2 with a layer beside it.
            "qwen2" | "mimo" => Self {
                qkv_bias: true,
                ..windows(Windows::Asked)
            },
            "qwen3" => Self {
                head_norm: true,
                ..windows(Windows::Asked)
            },
            routing::KIND => Self {
                head_norm: true,
                routed: true,
                ..windows(Windows::AskedEverywhere)
            },
            _ => return None,
        })
    }
}

/// What is said of a configuration of no architecture that is computed here.
fn unsupported(kind: &str, config: &Value) -> String {
    let kind_of = |value: &Value| match value {
        Value::Array(_) => "a list",
        Value::Null => "`null`",
        _ => "a single value",
    };
    match (
        config.is_object(),
        kind,
        config["architectures"][0].as_str(),
    ) {
        (false, ..) => format!("expected a table of settings, found {}", kind_of(config)),
        (true, "", None) => "no key `model_type`, which names the architecture".to_owned(),
        (true, "", Some(name)) => format!(
            "no key `model_type`, which names the architecture (`architectures` says `{name}`)"
        ),
        _ => format!("unsupported architecture `{}`", both_names(kind, config)),
    }
}

/// The key that says that keys and values come out of a state of this width.
const LATENT: &str = "kv_lora_rank";

/// The same of one with latent attention, whatever architecture it goes by.
fn latent(kind: &str, config: &Value, rank: &Value) -> String {
    let name = both_names(kind, config);
    format!("key `{LATENT}`: `{name}` with latent attention (`{rank}`), which is not computed here")
}

/// A `model_type` with the name under `architectures` in the same file, as far as they are there.
fn both_names(kind: &str, config: &Value) -> String {
    match (kind, config["architectures"][0].as_str()) {
        ("", Some(name)) => name.to_owned(),
        (kind, Some(name)) => format!("{kind} ({name})"),
        (kind, None) => kind.to_owned(),
    }
}

fn spec(keys: &Keys) -> Result<TargetSpec> {
    let d_model = keys.size("hidden_size")?;
    let heads = keys.size("num_attention_heads")?;
    let kv_heads = keys.kv_heads(heads)?;
    let d_head = keys.head_dim(d_model, heads)?;
    let max_positions = keys.size_or("max_position_embeddings", DEFAULT_POSITIONS)?;
    Ok(TargetSpec {
        layers: keys.count("num_hidden_layers")?,
        d_model,
        d_ff: keys.size("intermediate_size")?,
        heads,
        kv_heads,
        d_head,
        vocab: keys.size("vocab_size")?,
        norm_epsilon: keys.epsilon("rms_norm_eps", DEFAULT_EPSILON)?,
        rope: rope(keys, max_positions, d_head)?,
        max_positions,
        routing: None,
    })
}

/// Fails where positions turn a part of a head only.
fn check_whole_heads_turn(keys: &Keys) -> Result<()> {
    let mut shares = SHARES.iter().filter_map(|at| value_at(keys.value, at));
    if shares.any(|share| share.as_f64() != Some(1.0)) {
        let expected = "1.0, as rotary positions must cover whole heads here";
        return Err(keys.problem(SHARE, expected));
    }
    Ok(())
}

fn rope(keys: &Keys, max_positions: usize, d_head: usize) -> Result<RopeConfig> {
    check_whole_heads_turn(keys)?;
    let tables = rotary_tables(keys)?.into_iter();
    let tables = tables.map(|(key, table)| rotary_table(keys, key, &table, max_positions));
    let tables = tables.collect::<Result<Vec<_>>>()?;
    let key = BASE;
    let beside = match keys.present(key) {
        Some(_) => Some(keys.number(key)?),
        None => None,
    };
    let first = tables.first().map(|table| table.key);
    let rope = RopeConfig::of_tables(keys, tables, beside, d_head)?;
    match (beside, first) {
        (Some(beside), Some(first)) if beside != rope.theta => {
            Err(keys.problem(key, &format!("{}, as in `{first}`", rope.theta)))
        }
        _ => Ok(rope),
    }
}

/// One table of a target whose layers all have the same positions. What is not read of it the user is told.
fn rotary_table(
    keys: &Keys,
    key: &'static str,
    table: &Map<String, Value>,
    max_positions: usize,
) -> Result<RotaryTable> {
    if table.values().any(Value::is_object) {
        return Err(keys.problem(key, "one table for all layers"));
    }
    let theta = base_of(keys, key, table)?;
    let table = with_original(table, keys.present(ORIGINAL_POSITIONS));
    let (scaling, unread) = RopeScaling::read(&table, max_positions).map_err(|error| {
        let known = "default, linear, llama3 or yarn";
        keys.problem(key, &format!("rotary scaling {known} ({error})"))
    })?;
    if !unread.is_empty() {
        warn_once(&format!(
            "`{}`: key `{key}`: `{}` is not read; rotary positions are as without it",
            keys.file.display(),
            printable(&unread.join("`, `"))
        ));
    }
    Ok(RotaryTable {
        key,
        theta,
        scaling,
    })
}

/// What `transformers` takes where a configuration has no `sliding_window`; one that is null is none.
const USUAL_WINDOW: usize = 4096;

/// Fails where a layer is told to slide that slides in one engine and not in another.
fn check_none_slides(keys: &Keys) -> Result<()> {
    let key = "layer_types";
    let sees_all = |kind: &Value| kind.as_str() == Some("full_attention");
    match keys.present(key).map(Value::as_array) {
        None => Ok(()),
        Some(Some(types)) if types.iter().all(sees_all) => Ok(()),
        Some(_) => Err(keys.problem(
            key,
            "`full_attention` alone, as vLLM lets layers of a Llama slide and transformers does not",
        )),
    }
}

fn windows(keys: &Keys, which: Windows, layers: usize) -> Result<Vec<Option<usize>>> {
    let key = "sliding_window";
    let window = match keys.value.get(key) {
        None => Some(USUAL_WINDOW),
        Some(Value::Null) => None,
        Some(_) => Some(keys.size(key)?),
    };
    let slides = match which {
        Windows::Never => {
            check_none_slides(keys)?;
            false
        }
        Windows::Given => true,
        Windows::Asked | Windows::AskedEverywhere => keys.flag("use_sliding_window", false)?,
    };
    if !slides || window.is_none() {
        return Ok(vec![None; layers]);
    }
    if which == Windows::AskedEverywhere {
        return Ok(vec![window; layers]);
    }
    let Some(types) = keys.present("layer_types") else {
        // Qwen slides only from layer `max_window_layers` on, 28 unless it is there.
        let from = match (which, keys.present("max_window_layers")) {
            (Windows::Asked, None) => 28,
            (Windows::Asked, Some(from)) if *from != json!(0) => keys.size("max_window_layers")?,
            _ => 0,
        };
        let of = |layer| if layer >= from { window } else { None };
        return Ok((0..layers).map(of).collect());
    };
    let expected = format!("a list of {layers}, each `full_attention` or `sliding_attention`");
    let types = types.as_array().filter(|types| types.len() == layers);
    let types = types.ok_or_else(|| keys.problem("layer_types", &expected))?;
    let of = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Ok(None),
        Some("sliding_attention") => Ok(window),
        _ => Err(keys.problem("layer_types", &expected)),
    };
    types.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Value {
        json!({
            "model_type": "qwen3",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_hidden_layers": 2,
            "head_dim": 8,
            "vocab_size": 100,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 256,
            "rope_theta": 10000.0,
        })
    }

    #[test]
    fn a_configuration_without_an_architecture_is_told_what_it_lacks() {
        for (config, expected) in [
            (json!([]), "expected a table of settings, found a list"),
            (json!(null), "expected a table of settings, found `null`"),
            (
                json!({}),
                "no key `model_type`, which names the architecture",
            ),
            (
                json!({"architectures": ["Qwen3ForCausalLM"]}),
                "(`architectures` says `Qwen3ForCausalLM`)",
            ),
            (
                json!({"model_type": "llava"}),
                "unsupported architecture `llava`",
            ),
        ] {
            let error = TransformerConfig::read(&config, Path::new("config.json"));
            let error = error.map(drop).unwrap_err().to_string();
            assert!(
                error.contains(expected) && error.contains("; supported: "),
                "{error}"
            );
        }
    }

    /// Fails where a table does not have a row for each of [`ARCHITECTURES`], in their order.
    fn has_every_kind(kinds: &[&str]) {
        assert_eq!(kinds, ARCHITECTURES.map(|(kind, _)| kind));
    }

    fn refused(change: impl FnOnce(&mut Value)) -> String {
        let mut config = config();
        change(&mut config);
        let read = TransformerConfig::read(&config, Path::new("config.json"));
        read.map(|read| read.spec).unwrap_err().to_string()
    }

    #[test]
    fn numbers_that_no_model_has_are_refused_by_key() {
        TransformerConfig::read(&config(), Path::new("config.json")).unwrap();
        for (key, value) in [
            ("rms_norm_eps", json!(-1e-6)),
            ("rms_norm_eps", json!(0)),
            ("rms_norm_eps", json!(1.0)),
            ("rms_norm_eps", json!(1e-300)),
            ("rms_norm_eps", json!("1e-6")),
            ("rope_theta", json!(0)),
            ("rope_theta", json!(-10000.0)),
            ("rope_theta", json!(1e-300)),
            ("rope_theta", json!("10000")),
            ("hidden_size", json!(0)),
            ("hidden_size", json!(1u64 << 40)),
            ("intermediate_size", json!(-1)),
            ("num_attention_heads", json!(0)),
            ("num_key_value_heads", json!(3)),
            ("num_hidden_layers", json!(1 << 20)),
            ("head_dim", json!(0)),
            ("head_dim", json!(7)),
            ("vocab_size", json!(0)),
            ("max_position_embeddings", json!(0)),
        ] {
            let error = refused(|config| config[key] = value.clone());
            assert!(
                error.contains(&format!("key `{key}`")),
                "{key} = {value}: {error}"
            );
        }
        let odd = refused(|config| {
            config["num_attention_heads"] = json!(3);
            config["num_key_value_heads"] = json!(3);
            config["head_dim"] = Value::Null;
        });
        assert!(
            odd.contains("key `head_dim`") && odd.contains("3 heads"),
            "{odd}"
        );
    }

    #[test]
    fn an_architecture_that_is_none_of_these_is_named_with_its_class_and_those_are() {
        let known = "supported: llama (LlamaForCausalLM), mistral (MistralForCausalLM)";
        let named = |kind: Value, names: Value| {
            let error = refused(|config| {
                config["model_type"] = kind;
                config["architectures"] = names;
            });
            assert!(error.contains(known), "{error}");
            error.split('`').nth(3).unwrap().to_owned()
        };
        let class = || json!(["Gemma3ForCausalLM"]);
        assert_eq!(
            named(json!("gemma3"), class()),
            "gemma3 (Gemma3ForCausalLM)"
        );
        assert_eq!(named(json!("gemma3"), Value::Null), "gemma3");
    }

    #[test]
    fn latent_attention_is_told_by_its_key_whatever_the_architecture_is_called() {
        let error = refused(|config| config["kv_lora_rank"] = json!(512));
        let told = "key `kv_lora_rank`: `qwen3` with latent attention (`512`)";
        assert!(error.contains(told), "{error}");
        let mut config = config();
        config["kv_lora_rank"] = Value::Null;
        TransformerConfig::read(&config, Path::new("config.json")).unwrap();
    }

    /// Sizes of heads where keys are left out, for 64 query heads and a width of 1024, as transformers 5.24 has them.
    #[test]
    fn sizes_of_heads_are_those_of_the_type_where_keys_are_left_out() {
        let sizes = |kind: &str, value: Option<Value>| {
            let mut config = config();
            config["model_type"] = json!(kind);
            config["hidden_size"] = json!(1024);
            config["num_attention_heads"] = json!(64);
            config["num_experts"] = json!(4);
            config["num_experts_per_tok"] = json!(2);
            config["moe_intermediate_size"] = json!(16);
            let table = config.as_object_mut().unwrap();
            for key in ["head_dim", "num_key_value_heads"] {
                table.remove(key);
                table.extend(value.clone().map(|value| (key.to_owned(), value)));
            }
            let read = TransformerConfig::read(&config, Path::new("config.json"));
            let spec = read.unwrap_or_else(|error| panic!("{kind}: {error}")).spec;
            (spec.d_head, spec.kv_heads)
        };
        let of_kinds = [
            ("llama", (16, 64)),
            ("mistral", (16, 8)),
            ("qwen2", (16, 32)),
            ("mimo", (16, 32)),
            ("qwen3", (128, 32)),
            ("qwen3_moe", (16, 4)),
        ];
        has_every_kind(&of_kinds.map(|(kind, _)| kind));
        for (kind, left_out) in of_kinds {
            assert_eq!(sizes(kind, None), left_out, "{kind}");
            // One that is null is derived.
            assert_eq!(sizes(kind, Some(Value::Null)), (16, 64), "{kind}");
        }
        let error = refused(|config| {
            config
                .as_object_mut()
                .unwrap()
                .remove("num_key_value_heads");
        });
        assert!(
            error.contains("a divisor of 4, as this `model_type` has 32 without it"),
            "{error}"
        );
    }

    #[test]
    fn rotary_scaling_out_of_range_is_refused_by_its_parameter() {
        let yarn = |more: Value| {
            let mut table =
                json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
            let (Some(table), Value::Object(more)) = (table.as_object_mut(), more) else {
                unreachable!()
            };
            table.extend(more);
            json!(table)
        };
        for (table, part) in [
            (json!({"rope_type": "linear", "factor": 0.0}), "`factor`"),
            (json!({"rope_type": "linear", "factor": -2.0}), "`factor`"),
            (json!({"rope_theta": 0.0}), "`rope_theta`"),
            (json!({"rope_theta": "1e4"}), "`rope_theta`"),
            (yarn(json!({"attention_factor": 0.0})), "`attention_factor`"),
            (
                yarn(json!({"attention_factor": -1.0})),
                "`attention_factor`",
            ),
            (yarn(json!({"beta_fast": 0.5})), "`beta_fast`"),
            (
                yarn(json!({"original_max_position_embeddings": 0})),
                "`original_max",
            ),
            (yarn(json!({"rope_theta": 1.0})), "`rope_theta`"),
        ] {
            let error = refused(|config| {
                config["rope_theta"] = Value::Null;
                config["rope_parameters"] = table.clone();
            });
            assert!(error.contains("key `rope_parameters`"), "{table}: {error}");
            assert!(error.contains(part), "{table}: {error}");
        }
        let error = refused(|config| config["rope_scaling"] = json!({"rope_type": "dynamic"}));
        assert!(
            error.contains("key `rope_scaling`") && error.contains("linear, llama3 or yarn"),
            "{error}"
        );
    }

    #[test]
    fn two_tables_of_rotary_positions_must_say_the_same() {
        let yarn =
            json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
        let linear = json!({"type": "linear", "factor": 4.0});
        let read = |parameters: &Value, scaling: &Value| {
            let mut config = config();
            config["rope_parameters"] = parameters.clone();
            config["rope_scaling"] = scaling.clone();
            let read = TransformerConfig::read(&config, Path::new("config.json"));
            read.map(|read| read.spec.rope)
        };
        let expected = read(&yarn, &Value::Null).unwrap();
        assert!(matches!(expected.scaling, RopeScaling::Yarn { .. }));
        // One that is empty is none.
        for (parameters, scaling) in [(&yarn, &yarn), (&json!({}), &yarn), (&yarn, &json!({}))] {
            assert_eq!(
                read(parameters, scaling).unwrap(),
                expected,
                "{parameters} {scaling}"
            );
        }
        let plain = json!({"rope_type": "default", "rope_theta": 10_000.0});
        for (parameters, scaling) in [
            (&yarn, &linear),
            (&plain, &yarn),
            (
                &json!({"rope_theta": 10_000.0}),
                &json!({"rope_theta": 5e5}),
            ),
        ] {
            let error = read(parameters, scaling).unwrap_err().to_string();
            assert!(
                error.contains("key `rope_scaling`: expected the same as in `rope_parameters`"),
                "{error}"
            );
        }
        let of_layers = json!({"full_attention": {"rope_type": "yarn", "factor": 4.0}});
        let error = read(&of_layers, &Value::Null).unwrap_err().to_string();
        assert!(error.contains("one table for all layers"), "{error}");
    }

    #[test]
    fn a_llama_whose_layers_vllm_lets_slide_is_refused() {
        let llama = |types: Value| {
            let mut config = config();
            config["model_type"] = json!("llama");
            config["sliding_window"] = json!(7);
            config["layer_types"] = types;
            TransformerConfig::read(&config, Path::new("config.json"))
        };
        for types in [Value::Null, json!(["full_attention", "full_attention"])] {
            let windows = llama(types).unwrap().windows;
            assert!(windows.iter().all(Option::is_none));
        }
        let error = llama(json!(["full_attention", "sliding_attention"]));
        let error = error.map(drop).unwrap_err().to_string();
        assert!(
            error.contains("key `layer_types`") && error.contains("vLLM"),
            "{error}"
        );
    }

    #[test]
    fn every_architecture_is_read_and_written_as_itself() {
        for (kind, class) in ARCHITECTURES {
            let mut config = config();
            config["model_type"] = json!(kind);
            if kind == routing::KIND {
                config["num_experts"] = json!(4);
                config["num_experts_per_tok"] = json!(2);
                config["moe_intermediate_size"] = json!(16);
            }
            let read = TransformerConfig::read(&config, Path::new("config.json"));
            let read = read.unwrap_or_else(|error| panic!("{kind}: {error}"));
            let written = read.to_json().unwrap();
            let expected = match kind {
                "mimo" => "Qwen2ForCausalLM",
                _ => class,
            };
            assert_eq!(written["architectures"][0], expected);
        }
    }

    /// Windows of the first and the last of 30 layers, as `transformers` 5.19 makes them; those of MiMo, whose class it does not
    /// have, are Qwen2's.
    #[test]
    fn windows_are_those_of_the_library_where_keys_are_left_out() {
        let windows = |kind: &str, keys: &[(&str, Value)]| {
            let mut config = config();
            config["model_type"] = json!(kind);
            config["num_hidden_layers"] = json!(30);
            config["num_experts"] = json!(4);
            config["num_experts_per_tok"] = json!(2);
            config["moe_intermediate_size"] = json!(16);
            for (key, value) in keys {
                config[*key] = value.clone();
            }
            let read = TransformerConfig::read(&config, Path::new("config.json")).unwrap();
            (read.windows[0], read.windows[29])
        };
        let usual = Some(4096);
        let asked = [("use_sliding_window", json!(true))];
        let null = [("sliding_window", Value::Null), asked[0].clone()];
        let given = [("sliding_window", json!(7)), asked[0].clone()];
        let of_kinds = [
            ("llama", None, (None, None), (None, None)),
            ("mistral", usual, (usual, usual), (Some(7), Some(7))),
            ("qwen2", None, (None, usual), (None, Some(7))),
            ("mimo", None, (None, usual), (None, Some(7))),
            ("qwen3", None, (None, usual), (None, Some(7))),
            ("qwen3_moe", None, (usual, usual), (Some(7), Some(7))),
        ];
        has_every_kind(&of_kinds.map(|(kind, ..)| kind));
        for (kind, unless_asked, absent, seven) in of_kinds {
            assert_eq!(windows(kind, &[]), (unless_asked, unless_asked), "{kind}");
            assert_eq!(windows(kind, &asked), absent, "{kind}");
            assert_eq!(windows(kind, &null), (None, None), "{kind}");
            assert_eq!(windows(kind, &given), seven, "{kind}");
        }
    }

    #[test]
    fn a_name_that_steers_the_terminal_is_escaped() {
        let error = refused(|config| config["model_type"] = json!("x\u{1b}[2J\u{9b}31m"));
        assert!(error.contains(r"`x\u{1b}[2J\u{9b}31m`"), "{error:?}");
        let error = refused(|config| config["hidden_act"] = json!("x\u{202e}y"));
        assert!(!error.contains('\u{202e}'), "{error:?}");
    }
}

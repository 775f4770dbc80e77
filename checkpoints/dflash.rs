//! DFlash drafters in their authors' layout, which vLLM, SGLang and llama.cpp load (<https://arxiv.org/abs/2602.06036>), and
//! those of DFlash 2 and DSpark, which have more parts.
//!
//! The target's embedding and head are not in the folder: engines use the target's own.

use std::path::Path;

use serde_json::{Value, json};

use crate::config::{Config, DEFAULT_EPSILON, DEFAULT_POSITIONS, Rope, check_decoder, torch_dtype};
use crate::expected::{Expected, TensorSpec, check_tensors, specs};
use crate::folder::{ModelFolder, WEIGHTS};
use crate::launch::{self, Launch};
use crate::names::{read_named, stored_names};
use crate::tensors::{DType, NamedTensor};
use crate::{Result, checked};

mod parts;
pub mod speculators;
#[cfg(test)]
pub(crate) mod tests;
pub mod transformers;
mod variants;

pub use self::parts::{Convolution, DFlashParts, Markov, Selector};
use self::parts::{Defaults, Family};
use self::variants::has_confidence;

/// The target's, which some published folders repeat.
const REPEATED: [&str; 4] = [
    "embed_tokens.weight",
    "lm_head.weight",
    "verifier_norm.weight",
    "verifier_lm_head.weight",
];

/// Sizes and switches of a DFlash drafter.
#[derive(Clone, Debug, PartialEq)]
pub struct DFlashLayout {
    /// Width of the drafter and of its target.
    pub hidden_size: usize,
    /// Width inside the MLP.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Size of the vocabulary.
    pub vocab_size: usize,
    /// Decoder layers of the target.
    pub target_layers: usize,
    /// Captured layers, ascending, as 0-based indices of the layers whose output is read: engines count alike.
    /// None where the context is made of tokens alone.
    pub captured_layers: Vec<usize>,
    /// Tokens of a block, the last committed one counted.
    pub block_size: usize,
    /// The id that stands for tokens still to come.
    pub mask_token: u32,
    /// How many positions back a layer sees, the own one counted; 0 for all.
    pub window: usize,
    /// Whether a place of a block sees only those before it in the block.
    pub causal: bool,
    /// The epsilon of its norms.
    pub rms_norm_eps: f64,
    /// Longest sequence.
    pub max_position_embeddings: usize,
    /// What it has beside its layers.
    pub parts: DFlashParts,
    /// Rotary position embedding.
    pub rope: Rope,
    /// The type of the weights.
    pub dtype: DType,
}

/// Whether a `config.json` is of a DFlash drafter.
pub fn recognises(config: &Value) -> bool {
    if transformers::recognises(config) || speculators::recognises(config) {
        return true;
    }
    let names = config["architectures"].as_array();
    names.is_some_and(|names| {
        names
            .iter()
            .filter_map(Value::as_str)
            .any(|name| Family::named(name).is_some())
    })
}

/// The tensors that a folder of this layout must hold.
pub fn required(layout: &DFlashLayout) -> Vec<TensorSpec> {
    let (hidden, inner) = (layout.hidden_size, layout.intermediate_size);
    let (queries, keys) = (
        layout.heads * layout.head_dim,
        layout.kv_heads * layout.head_dim,
    );
    let mut weights = vec![
        (
            "fc.weight".to_owned(),
            vec![hidden, layout.captured_layers.len().max(1) * hidden],
        ),
        ("hidden_norm.weight".to_owned(), vec![hidden]),
        ("norm.weight".to_owned(), vec![hidden]),
    ];
    for layer in 0..layout.layers {
        let of_layer = [
            ("input_layernorm", vec![hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![queries, hidden]),
            ("self_attn.k_proj", vec![keys, hidden]),
            ("self_attn.v_proj", vec![keys, hidden]),
            ("self_attn.o_proj", vec![hidden, queries]),
            ("self_attn.q_norm", vec![layout.head_dim]),
            ("self_attn.k_norm", vec![layout.head_dim]),
            ("mlp.gate_proj", vec![inner, hidden]),
            ("mlp.up_proj", vec![inner, hidden]),
            ("mlp.down_proj", vec![hidden, inner]),
        ];
        let named = |(name, shape)| (format!("layers.{layer}.{name}.weight"), shape);
        weights.extend(of_layer.into_iter().map(named));
    }
    let sizes = [hidden, layout.vocab_size];
    weights.extend(layout.parts.tensors(sizes, layout.layers));
    let typed = |(name, shape)| (name, shape, layout.dtype);
    weights.into_iter().map(typed).collect()
}

/// Writes a drafter's folder, whole or not at all. Tensors have the names and types of [`required`].
///
/// `provenance` says where the drafter comes from; unless it is null it is kept beside the weights.
pub fn write(
    dir: &Path,
    layout: &DFlashLayout,
    tensors: &[NamedTensor],
    provenance: &Value,
) -> Result<()> {
    let heads = [layout.heads, layout.kv_heads];
    check_decoder("DFlash", heads, layout.dtype, &layout.rope)?;
    let expected = Expected {
        required: required(layout),
        optional: Vec::new(),
    };
    checked::write(
        dir,
        &to_json(layout),
        tensors,
        &expected,
        |_| Ok(()),
        provenance,
    )
}

/// Reads a drafter and checks it: every tensor known, of its shape, and none missing. Floats keep the type they are stored
/// in; what a folder may repeat of the target is left out.
pub fn read(dir: &Path) -> Result<(DFlashLayout, Vec<NamedTensor>)> {
    read_folder(dir, None)
}

/// Sizes of a target, which not every layout says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetSizes {
    /// Its layers.
    pub layers: usize,
    /// The tokens it knows.
    pub vocab: usize,
}

/// Like [`read`], for a target of these sizes.
pub fn read_for_target(
    dir: &Path,
    target: TargetSizes,
) -> Result<(DFlashLayout, Vec<NamedTensor>)> {
    read_folder(dir, Some(target))
}

fn read_folder(
    dir: &Path,
    target: Option<TargetSizes>,
) -> Result<(DFlashLayout, Vec<NamedTensor>)> {
    let folder = ModelFolder::open(dir)?;
    let mut names = stored_names(&folder, variants::canonical)?;
    names.retain(|name, _| !REPEATED.contains(&name.as_str()));
    let dtype = match names.get("fc.weight") {
        Some(stored) => folder.info(stored)?.dtype,
        None => DType::BF16,
    };
    let layout = from_json(&folder, target, dtype, has_confidence(&names))?;
    let tensors = read_named(&folder, &names)?;
    let expected = Expected {
        required: required(&layout),
        optional: Vec::new(),
    };
    let file = dir.join(WEIGHTS);
    check_tensors(&file, &specs(&tensors), &expected, |got, _| got.is_float())?;
    Ok((layout, tensors))
}

/// One command for each engine. `draft_tokens` is the length of the draft, at most that of a trained block.
pub fn launch_lines(
    dir: &Path,
    layout: &DFlashLayout,
    target: &str,
    draft_tokens: usize,
) -> Vec<Launch> {
    let whole = layout.block_size - usize::from(!layout.parts.sample_from_anchor);
    let family = layout.parts.family();
    let draft_tokens = match family {
        Family::DFlash => draft_tokens.min(whole),
        // What they have beside layers takes the block to be as long as the draft.
        _ => whole,
    };
    let llama_cpp = |kind| launch::llama_cpp(dir, kind, target, draft_tokens, true);
    match family {
        Family::DFlash | Family::DFlash2 => {
            let sglang = launch::sglang_block(dir, "DFLASH", target, draft_tokens);
            let mut lines = vec![
                launch::vllm(dir, "dflash", target, draft_tokens),
                match layout.parts.selector {
                    Some(_) => sglang.choosing(launch::Choosing::Drawn),
                    None => sglang,
                },
            ];
            // llama.cpp keeps a slot's candidates and the scores of all their pairs in a row as wide as the model.
            let candidates = layout
                .parts
                .selector
                .as_ref()
                .map_or(0, |found| found.top_k);
            if candidates + candidates * candidates <= layout.hidden_size {
                lines.push(llama_cpp("draft-dflash"));
            }
            if family == Family::DFlash {
                let captured = format!(", target_layer_ids: {:?}", layout.captured_layers);
                lines.push(launch::tensorrt(dir, "DFlash", draft_tokens, &captured));
            }
            lines
        }
        Family::DSpark => {
            let sglang = launch::sglang_dspark(dir, target, draft_tokens);
            let markov = layout.parts.markov.as_ref();
            match markov.is_some_and(|markov| markov.kind == "vanilla") {
                true => vec![
                    launch::vllm(dir, "dspark", target, draft_tokens),
                    sglang,
                    llama_cpp("draft-dspark"),
                ],
                false => vec![sglang],
            }
        }
        Family::Own => vec![Launch::remark(
            "no serving engine loads block drafters with these parts; this program decodes with them: `spectrain generate`, \
             `spectrain evaluate`",
        )],
    }
}

fn to_json(layout: &DFlashLayout) -> Value {
    let mut dflash = json!({
        "mask_token_id": layout.mask_token,
        "target_layer_ids": layout.captured_layers,
    });
    if layout.causal || layout.window > 0 {
        dflash["causal"] = json!(layout.causal);
    }
    let mut config = json!({
        "architectures": [layout.parts.family().architecture()],
        "model_type": "qwen3",
        "num_hidden_layers": layout.layers,
        "hidden_size": layout.hidden_size,
        "intermediate_size": layout.intermediate_size,
        "num_attention_heads": layout.heads,
        "num_key_value_heads": layout.kv_heads,
        "head_dim": layout.head_dim,
        "vocab_size": layout.vocab_size,
        "hidden_act": "silu",
        "rms_norm_eps": layout.rms_norm_eps,
        "max_position_embeddings": layout.max_position_embeddings,
        "attention_bias": false,
        "tie_word_embeddings": false,
        "block_size": layout.block_size,
        "num_target_layers": layout.target_layers,
        "target_hidden_size": layout.hidden_size,
        // Of all layers: engines take sliding ones for causal unless they are told, SGLang by no other key.
        "is_causal": layout.causal,
        "dflash_config": dflash,
        "torch_dtype": torch_dtype(layout.dtype),
    });
    if layout.window > 0 {
        config["layer_types"] = json!(vec!["sliding_attention"; layout.layers]);
        config["sliding_window"] = json!(layout.window);
        config["use_sliding_window"] = json!(true);
    }
    layout.parts.write(&mut config);
    layout.rope.write(&mut config);
    config
}

/// How a layout says what the layouts say differently.
struct Keys {
    layer_ids: &'static [&'static str],
    /// The id that stands for the output of the first layer.
    first_id: u64,
    mask_token: &'static [&'static str],
    /// What stands before the keys of DFlash 2.
    parts: &'static str,
    /// What holds where nothing is said.
    rms_norm_eps: f64,
    rope_theta: Option<f64>,
    /// Whether layers slide where `layer_types` is absent, and how far.
    window: Option<usize>,
    /// What a window counts less than here, where it counts the own place.
    window_less: usize,
}

const KEYS: Keys = Keys {
    layer_ids: &[
        "dflash_config.target_layer_ids",
        "target_layer_ids",
        "dspark_target_layer_ids",
    ],
    first_id: 0,
    mask_token: &[
        "dflash_config.mask_token_id",
        "mask_token_id",
        "dspark_noise_token_id",
    ],
    parts: "dflash_config.",
    rms_norm_eps: DEFAULT_EPSILON,
    rope_theta: None,
    window: None,
    window_less: 0,
};

fn from_json(
    folder: &ModelFolder,
    target: Option<TargetSizes>,
    dtype: DType,
    has_confidence: bool,
) -> Result<DFlashLayout> {
    let config = Config::of(folder);
    let (config, keys) = match folder.config() {
        given if speculators::recognises(given) => (
            config.with_section(speculators::LAYER_CONFIG),
            speculators::KEYS,
        ),
        given if transformers::recognises(given) => (config, transformers::KEYS),
        _ => (config, KEYS),
    };
    if !recognises(folder.config()) {
        return Err(config.wrong("architectures", format!("one of {}", Family::names())));
    }
    variants::check(folder, &config)?;
    let hidden_size = config.size("hidden_size", None)?;
    let (heads, kv_heads) = config.heads()?;
    let layers = config.count("num_hidden_layers", None)?;
    let sliding = sliding_layers(&config, layers, keys.window.is_some())?;
    let defaults = Defaults {
        sample_from_anchor: samples_from_anchor(folder, &config)?,
        confidence: has_confidence,
    };
    let parts = DFlashParts::read(&config, keys.parts, &defaults)?;
    if parts
        .convolution
        .as_ref()
        .is_some_and(|convolution| !hidden_size.is_multiple_of(convolution.group))
    {
        let key = format!("{}conv_group_size", keys.parts);
        return Err(config.wrong(&key, format!("a divisor of {hidden_size}")));
    }
    let vocab_size = config.size("vocab_size", target.map(|target| target.vocab))?;
    if config.size("draft_vocab_size", Some(vocab_size))? != vocab_size {
        let expected = format!("`{vocab_size}`: a block drafter here drafts every token");
        return Err(config.wrong("draft_vocab_size", expected));
    }
    let (ids, mask) = (
        config.one_key(keys.layer_ids)?,
        config.one_key(keys.mask_token)?,
    );
    let captured = config.get(ids).and_then(Value::as_array);
    let index = |id: &Value| id.as_u64()?.checked_sub(keys.first_id);
    let captured = captured.and_then(|ids| ids.iter().map(index).collect::<Option<Vec<_>>>());
    let captured =
        captured.filter(|ids| ids.is_empty() == parts.of_tokens && ids.is_sorted_by(|a, b| a < b));
    let captured = captured.ok_or_else(|| config.wrong(ids, "ascending layers"))?;
    let mask_token = config.get(mask).and_then(Value::as_u64);
    let mask_token = mask_token.and_then(|id| u32::try_from(id).ok());
    Ok(DFlashLayout {
        hidden_size,
        intermediate_size: config.size("intermediate_size", None)?,
        layers,
        heads,
        kv_heads,
        head_dim: config.head_dim(hidden_size, heads)?,
        vocab_size,
        target_layers: config.size("num_target_layers", target.map(|target| target.layers))?,
        captured_layers: captured.into_iter().map(|id| id as usize).collect(),
        block_size: config.size(config.one_key(variants::BLOCK_SIZE)?, None)?,
        mask_token: mask_token.ok_or_else(|| config.wrong(mask, "the id of a token"))?,
        window: match sliding {
            Sliding::No => 0,
            _ => config.size(config.one_key(variants::WINDOW)?, keys.window)? + keys.window_less,
        },
        causal: causal(folder, &config, sliding)?,
        rms_norm_eps: config.epsilon("rms_norm_eps", keys.rms_norm_eps)?,
        parts,
        max_position_embeddings: config.size("max_position_embeddings", Some(DEFAULT_POSITIONS))?,
        rope: match keys.rope_theta {
            None if !config.has_rope_theta() => return Err(config.wrong("rope_theta", "a number")),
            None => config.rope()?,
            Some(theta) => config.rope_or(theta)?,
        },
        dtype,
    })
}

/// Whether the anchor's own place predicts where nothing is said: in DSpark as its authors write it.
fn samples_from_anchor(folder: &ModelFolder, config: &Config) -> Result<bool> {
    let names = folder.config()["architectures"].as_array();
    let names = names.into_iter().flatten().filter_map(Value::as_str);
    let is_dspark = variants::names_dspark(config)
        || names
            .map(Family::named)
            .any(|found| found == Some(Family::DSpark));
    let by_authors = is_dspark && !speculators::recognises(folder.config());
    Ok(by_authors && !config.flag("dspark_bonus_anchor", false)?)
}

/// Which layers slide, and who says so: none or all of them may.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sliding {
    No,
    /// Each layer by its type, which engines take for causal.
    ByType,
    /// All at once.
    Together,
}

fn sliding_layers(config: &Config, layers: usize, by_default: bool) -> Result<Sliding> {
    let together = match config.flag("dflash_config.use_swa", false)? {
        false => by_default,
        true => true,
    };
    let Some(types) = config.get("layer_types") else {
        return Ok(match together || variants::slides_from_the_first(config)? {
            true => Sliding::Together,
            false => Sliding::No,
        });
    };
    let wrong = |expected: String| Err(config.wrong("layer_types", expected));
    let types: Option<Vec<&str>> = types
        .as_array()
        .and_then(|types| types.iter().map(Value::as_str).collect());
    let all = |kind: &str| {
        types
            .as_ref()
            .is_some_and(|types| types.iter().all(|found| *found == kind))
    };
    match &types {
        Some(types) if types.len() == layers => {}
        _ => return wrong(format!("{layers} names")),
    }
    if all("sliding_attention") {
        Ok(Sliding::ByType)
    } else if all("full_attention") && !config.flag("dflash_config.use_swa", false)? {
        Ok(Sliding::No)
    } else {
        wrong("`sliding_attention` for all layers, or `full_attention` and no `dflash_config.use_swa`".into())
    }
}

/// Whether a place of a block sees only those before it. What is said of all layers comes first.
fn causal(folder: &ModelFolder, config: &Config, sliding: Sliding) -> Result<bool> {
    let unsaid = match folder.config() {
        given if transformers::recognises(given) => false,
        given if speculators::recognises(given) => {
            speculators::causal(config, sliding != Sliding::No)?
        }
        _ => config.flag("dflash_config.causal", sliding == Sliding::ByType)?,
    };
    config.flag("is_causal", unsaid)
}

//! Keys that the layouts of block drafters share, and what they have in common besides.

use serde_json::{Value, json};

use crate::config::Config;
use crate::dflash::family::{Family, is_known};
use crate::dflash::heads::{
    self, NAMES_OF_DOMINO, NAMES_OF_XPRESS, NAMES_OF_XPRESS_BY_SPECULATORS,
};
use crate::dflash::lattice;
use crate::dflash::variants::{self, place};
use crate::dialect::description::{Check, Dialect, Quirks};
use crate::dialect::key::{Key, Otherwise, Read};
use crate::dialect::llama::{
    ACTIVATION, ATTENTION_BIAS, D_FF, D_HEAD, EPSILON, HEADS, KV_HEADS, POSITIONS, TIED, WIDTH,
};
use crate::dialect::settings::Settings;
use crate::error::Result;
use crate::folder::ModelFolder;

/// What the three layouts have in common.
pub(super) const fn of_all(name: &'static str, recognises: fn(&ModelFolder) -> bool) -> Dialect {
    Dialect {
        family: "DFlash",
        called: Some(|settings| Family::of(settings).name()),
        aliases: &[
            // DeepSpec's and ModelOpt's names of the tensors of DSpark's heads, and the names of transformers.
            ["markov_w1.", "markov_head.markov_w1."],
            ["markov_w2.", "markov_head.markov_w2."],
            ["gate_proj.", "markov_head.gate_proj."],
            ["joint_proj.", "markov_head.joint_proj."],
            ["confidence_proj.", "confidence_head.proj."],
            NAMES_OF_DOMINO[0],
            NAMES_OF_DOMINO[1],
            NAMES_OF_DOMINO[2],
            NAMES_OF_DOMINO[3],
            NAMES_OF_XPRESS[0],
            NAMES_OF_XPRESS[1],
            NAMES_OF_XPRESS[2],
            NAMES_OF_XPRESS[3],
            NAMES_OF_XPRESS[4],
            NAMES_OF_XPRESS[5],
            NAMES_OF_XPRESS[6],
            NAMES_OF_XPRESS_BY_SPECULATORS[0],
            NAMES_OF_XPRESS_BY_SPECULATORS[1],
            NAMES_OF_XPRESS_BY_SPECULATORS[2],
            ["encoder.fc.", "fc."],
            ["encoder.output_norm_enc.", "hidden_norm."],
        ],
        repeated: &[
            "embed_tokens.weight",
            "lm_head.weight",
            "verifier_norm.weight",
            "verifier_lm_head.weight",
        ],
        quirks: Quirks {
            check_folder: |config| {
                if !is_known(config.folder().config()) {
                    return Err(
                        config.wrong("architectures", format!("one of {}", Family::names()))
                    );
                }
                variants::check(config.folder(), config)
            },
            canonical: |_, stored| lattice::canonical(stored),
            stored: |settings, name| {
                lattice::stored(name).or_else(|| heads::stored(settings, name))
            },
            ..Quirks::NONE
        },
        ..Dialect::named(name, recognises)
    }
}

/// The layers.
pub(super) const DECODER: &[Key] = &[
    Key::count("num_hidden_layers", "layers"),
    WIDTH,
    D_FF,
    HEADS,
    KV_HEADS,
    D_HEAD,
    VOCAB,
    ACTIVATION,
    EPSILON,
    POSITIONS,
    ATTENTION_BIAS,
    TIED,
];

const VOCAB: Key = Key::code(
    "vocab_size",
    "vocab",
    |config, key, _| {
        let vocab = config.size(key, config.reading().target_vocab)?;
        let key = "draft_vocab_size";
        if config.size(key, Some(vocab))? != vocab {
            let expected = format!("`{vocab}`, as block drafters draft every token of the target");
            return Err(config.wrong(key, expected));
        }
        Ok(json!(vocab))
    },
    |settings, here| settings.get(here).cloned(),
);
pub(super) const BLOCK: Key = Key::size("block_size", "block_size").also(&[
    "dflash_config.block_size",
    "dspark_block_size",
    "xpress_block_size",
]);
pub(super) const TARGET_LAYERS: Key = Key::code(
    "num_target_layers",
    "target_layers",
    |config, key, _| Ok(json!(config.size(key, config.reading().target_layers)?)),
    |settings, here| settings.get(here).cloned(),
);
pub(super) const TARGET_WIDTH: Key = Key::told("target_hidden_size", |settings, _| {
    settings.get("d_model").cloned()
});
/// Of all layers: engines take sliding ones for causal unless they are told, SGLang by no other key.
pub(super) const CAUSAL: Key = Key::code(
    "is_causal",
    "causal",
    |config, key, _| {
        let by_type = matches!(sliding(config, false)?, Sliding::ByType(_));
        let unsaid = config.flag("dflash_config.causal", by_type)?;
        Ok(json!(config.flag(key, unsaid)?))
    },
    |settings, here| is_alike(settings).then(|| json!(settings.flag(here))),
);

/// Whether blocks are causal in all layers or in none, so that the keys for all of them can say it.
pub(super) fn is_alike(settings: &Settings) -> bool {
    !settings.flag("full_layers_see_block")
}
pub(super) const MASK: Key = Key::token("dflash_config.mask_token_id", "mask_token")
    .also(&["mask_token_id", "dspark_noise_token_id"]);
/// Layers whose output is read: this layout counts as this program does.
pub(super) const CAPTURED: Key = Key::code(
    "dflash_config.target_layer_ids",
    "captured_layers",
    |config, key, _| captured_layers(config, key, 0),
    |settings, here| Some(json!(settings.sizes(here))),
)
.also(&["target_layer_ids", "dspark_target_layer_ids"]);

/// Which layers slide, and how far.
pub(super) const SLIDING_KEYS: &[Key] = &[
    FULL_LAYERS,
    Key::code(
        "sliding_window",
        "window",
        |config, key, _| match sliding(config, false)? {
            Sliding::No => Ok(json!(0)),
            _ => Ok(json!(config.size(key, None)?)),
        },
        |settings, here| (settings.size(here) > 0).then(|| json!(settings.size(here))),
    )
    .also(&["dflash_config.swa_window_size"]),
    Key::told("use_sliding_window", |settings, _| {
        (settings.size("window") > 0).then(|| json!(true))
    }),
];

/// Which layers do not slide though others do.
pub(super) const FULL_LAYERS: Key = Key::code(
    "layer_types",
    "full_layers",
    |config, _, _| match sliding(config, false)? {
        Sliding::ByType(full) => Ok(json!(full)),
        Sliding::No | Sliding::Together => Ok(json!([])),
    },
    |settings, _| (settings.size("window") > 0).then(|| json!(layer_types(settings))),
);

/// Whether blocks are causal in the layers that slide alone: where these are not all, and no key for all layers is there.
pub(super) const SEES_BLOCK: Key = Key::code(
    "layer_types",
    "full_layers_see_block",
    |config, _, _| {
        let said = ["is_causal", "dflash_config.causal"];
        let said = said.iter().any(|key| config.get(key).is_some());
        Ok(json!(!said && is_mixed(config)?))
    },
    |_, _| None,
);

/// Whether some layers slide and others do not.
pub(super) fn is_mixed(config: &Config) -> Result<bool> {
    Ok(matches!(sliding(config, false)?, Sliding::ByType(full) if !full.is_empty()))
}

/// The type of each layer.
pub(super) fn layer_types(settings: &Settings) -> Vec<&'static str> {
    let (layers, full) = (settings.size("layers"), settings.sizes("full_layers"));
    let slides = |layer| settings.size("window") > 0 && !full.contains(&layer);
    let types = (0..layers).map(|layer| match slides(layer) {
        true => SLIDING,
        false => FULL,
    });
    types.collect()
}

const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";

/// Sizes of the parts of DFlash 2.
pub(super) const SIZES_OF_PARTS: &[Key] = &[
    given_size("conv_kernel_size", "conv_taps", |config, _, _| {
        optional_size(config, "conv_kernel_size")
    }),
    given_size("conv_group_size", "conv_group", conv_group),
    given_size("selector_rank", "selector_rank", |config, _, _| {
        optional_size(config, "selector_rank")
    }),
    given_size("selector_top_k", "selector_top_k", |config, _, _| {
        behind(config, "selector_rank", "selector_top_k")
    }),
];

const fn given_size(there: &'static str, here: &'static str, read: Read) -> Key {
    Key::code(there, here, read, |settings, here| {
        let of = match here {
            "conv_taps" | "conv_group" => "conv_taps",
            _ => "selector_rank",
        };
        (settings.size(of) > 0).then(|| json!(settings.size(here)))
    })
}

/// The size of a part; 0 where there is none.
fn optional_size(config: &Config, key: &'static str) -> Result<Value> {
    let key = place(config, key);
    match config.get(&key) {
        None => Ok(json!(0)),
        Some(value) if *value == json!(0) => Ok(json!(0)),
        Some(_) => Ok(json!(config.size(&key, None)?)),
    }
}

/// A size that goes with another, where that is there.
fn behind(config: &Config, other: &'static str, key: &'static str) -> Result<Value> {
    if optional_size(config, other)? == json!(0) {
        return Ok(Value::Null);
    }
    Ok(json!(config.size(&place(config, key), None)?))
}

fn conv_group(config: &Config, _: &'static str, _: Otherwise) -> Result<Value> {
    let group = behind(config, "conv_kernel_size", "conv_group_size")?;
    let width = config.size("hidden_size", None)?;
    match group.as_u64() {
        Some(size) if !width.is_multiple_of(size as usize) => {
            let key = place(config, "conv_group_size");
            Err(config.wrong(&key, format!("a divisor of {width}")))
        }
        _ => Ok(group),
    }
}

/// Whether the context is made of tokens alone, which no engine knows.
pub(super) const CONTEXT: Key = Key::code(
    "context",
    "context",
    |config, _, _| {
        let key = "dflash_config.context";
        match config.get(key) {
            None => Ok(json!("features")),
            Some(value) if value == "tokens" => Ok(json!("tokens")),
            Some(_) => Err(config.wrong(key, "`\"tokens\"` or nothing")),
        }
    },
    |settings, here| (settings.word(here) == "tokens").then(|| json!("tokens")),
);

/// Whether heads have sinks. As vLLM reads it, MiMo's key counts where this one is not there.
pub(super) const SINKS: Key = Key::flag("dflash_config.attention_sink_bias", "sinks", false)
    .with_read(|config, key, _| {
        let unsaid = config.flag("add_swa_attention_sink_bias", false)?;
        Ok(json!(config.flag(key, unsaid)?))
    })
    .only_if_on();

/// Fails for a drafter with sinks, in a layout whose readers would leave them out.
pub(super) fn no_sinks(settings: &Settings) -> Check {
    match settings.flag("sinks") {
        true => Err((
            "sinks",
            "false: only vLLM loads them, from the authors' layout".to_owned(),
            "true".to_owned(),
        )),
        false => Ok(()),
    }
}

/// Rotary positions, whose base must be said.
pub(super) fn rope(config: &Config, _: &'static str, _: Otherwise) -> Result<Value> {
    if !config.has_rope_theta() {
        return Err(config.wrong("rope_theta", "a number"));
    }
    Ok(config.rope()?.setting())
}

/// Ascending layers under a key, counted from `first`; none where the context is made of tokens alone.
pub(super) fn captured_layers(config: &Config, key: &'static str, first: u64) -> Result<Value> {
    let of_tokens = config.get("dflash_config.context").is_some();
    let ids = config.get(key).and_then(Value::as_array);
    let index = |id: &Value| id.as_u64()?.checked_sub(first);
    let ids: Option<Vec<u64>> = ids.and_then(|ids| ids.iter().map(index).collect());
    let ids = ids.filter(|ids| ids.is_empty() == of_tokens && ids.is_sorted_by(|a, b| a < b));
    Ok(json!(
        ids.ok_or_else(|| config.wrong(key, "ascending layers"))?
    ))
}

/// Which layers slide, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sliding {
    No,
    /// Each layer by its type, which engines take for causal, but for these.
    ByType(Vec<usize>),
    /// All at once.
    Together,
}

pub(super) fn sliding(config: &Config, by_default: bool) -> Result<Sliding> {
    let layers = config.count("num_hidden_layers", None)?;
    let use_swa = config.flag("dflash_config.use_swa", false)?;
    let Some(types) = config.get("layer_types") else {
        if use_swa || by_default {
            return Ok(Sliding::Together);
        }
        let first = variants::first_that_slides(config, layers)?;
        return Ok(first.map_or(Sliding::No, |first| Sliding::ByType((0..first).collect())));
    };
    let wrong = |expected: String| Err(config.wrong("layer_types", expected));
    let types = types.as_array();
    let types: Option<Vec<&str>> =
        types.and_then(|types| types.iter().map(Value::as_str).collect());
    let Some(types) = types.filter(|types| types.len() == layers) else {
        return wrong(format!("{layers} names"));
    };
    if types.iter().any(|kind| ![SLIDING, FULL].contains(kind)) {
        return wrong(format!("`{SLIDING}` or `{FULL}` for each layer"));
    }
    let full = (0..layers).filter(|&layer| types[layer] == FULL);
    let full: Vec<usize> = full.collect();
    match full.len() == layers {
        false => Ok(Sliding::ByType(full)),
        // Engines disagree about it.
        true if use_swa => wrong(format!(
            "`{SLIDING}` for some layer where `dflash_config.use_swa` is on"
        )),
        true => Ok(Sliding::No),
    }
}

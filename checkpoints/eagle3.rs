//! EAGLE-3 drafters as vLLM, SGLang, TensorRT-LLM and llama.cpp load them (<https://arxiv.org/abs/2503.01840>), and as the
//! speculators library does.
//!
//! Engines load a folder with missing tensors without a word and then draft badly, so names, shapes, types and the
//! vocabulary map are checked here, in both directions, when a folder is written and when one is read.
//!
//! What names and shapes do not show: two tensors of one shape in each other's place (`gate_proj` and `up_proj`), and a
//! captured layer that is wrong by one in both of its keys. The seal of a folder of ours shows both; in folders of others
//! they show as a low acceptance length only.

use std::path::Path;

use serde_json::{Value, json};

use crate::config::Config;
use crate::dialect::description::{
    Check, Dialect, Neutral, Quirks, SharedHead, of_table, top, under,
};
use crate::dialect::key::{Key, Otherwise};
use crate::dialect::llama::{
    self, ATTENTION_BIAS, D_FF, DTYPE, HEADS, KV_HEADS, MLP_BIAS, NORMS, ROPE, SIZES, TIED,
    UNBIASED, VOCAB, WIDTH,
};
use crate::dialect::settings::Settings;
use crate::dialect::vocabulary::TokenMap;
use crate::dtype::DType;
use crate::eagle3::layer_ids::{NESTED_LAYER_IDS, captured_layers};
use crate::error::{Error, Result};
use crate::expected::TensorSpec;
use crate::folder::ModelFolder;
use crate::latent::{
    self, GROUPED_WIDTH, LATENT, has_latent, is_latent, read_rope, read_rows, write_rows,
};
use crate::launch::{vllm, vllm_of_speculators};
use crate::names::EMBEDDING;
use crate::speculators::{LAYER_CONFIG, MODEL_TYPE, VERSION, speculators_config};
use crate::tensors::NamedTensor;

pub(crate) mod launch;
pub(crate) mod layer_ids;
mod meanings;

pub use self::launch::launch_lines;
pub use self::layer_ids::{LAYER_IDS, paper_layers};

/// The layout that engines share.
pub const EAGLE3: Dialect = Dialect {
    architectures: &[
        ARCHITECTURE,
        "Eagle3LlamaForCausalLM",
        // vLLM loads these with the code of the one above.
        "Eagle3Qwen2_5vlForCausalLM",
        "Eagle3Qwen3vlForCausalLM",
        "Eagle3MiniMaxM2ForCausalLM",
        NORMED.drafter,
        LATENT_LAYER.drafter,
        "Eagle3DeepseekV3ForCausalLM",
        SPECULATOR,
        PUBLISHED.0,
    ],
    keys: &[
        top(&[
            Key::told("architectures", |settings, _| {
                Some(json!([layer(settings).drafter]))
            }),
            HEAD_NORM,
            LAYERS,
        ]),
        top(&[WIDTH, D_FF, HEADS, KV_HEADS, GROUPED_WIDTH]),
        of_table("latent", has_latent, LATENT),
        top(&[
            VOCAB,
            // Null, not absent: SGLang fails without the key, and vLLM takes null as the whole vocabulary.
            DRAFT_VOCAB.written(|settings, here| {
                if settings.shares_head() {
                    Some(Value::Null)
                } else {
                    settings.get(here).cloned()
                }
            }),
            Key::told("target_hidden_size", |settings, _| {
                settings.get("d_model").cloned()
            }),
        ]),
        top(NORMS),
        top(UNBIASED),
        top(&[
            // Written even when false: vLLM's default differs between its two formats.
            NORM_BEFORE_RESIDUAL,
            CAPTURED,
            LAYERS_RUN,
            Key::told("eagle_config.use_aux_hidden_state", |_, _| {
                Some(json!(true))
            }),
            Key::told(NESTED_LAYER_IDS, |settings, _| {
                settings.get("captured_layers").cloned()
            }),
            DTYPE,
        ]),
        top(ROPE_OR_LATENT),
        top(WINDOW),
        top(&[
            Key::flag("fc_norm", "fc_norm", false).only_if_on(),
            NORM_BEFORE_FC.only_if_on(),
            Key::flag("norm_output", "norm_output", false).only_if_on(),
            OWN_HEAD,
        ]),
    ],
    renamed: &[["layers.0.", "midlayer."]],
    shared_head: SharedHead::OfDraftVocabulary,
    launch: launch_lines,
    quirks: Quirks {
        complete: |settings, tensors| {
            repeat_norms(settings, tensors);
            write_rows(settings, tensors, d_input);
        },
        ..QUIRKS
    },
    ..of_both("EAGLE-3", recognises)
};

/// The layout of the speculators library, which vLLM serves with the target it names. Layer ids count the layers that have run.
pub const SPECULATORS: Dialect = Dialect {
    section: Some(LAYER_CONFIG),
    keys: &[
        top(&[
            Key::told("architectures", |_, _| Some(json!([SPECULATOR]))),
            Key::told(MODEL_TYPE, |_, _| Some(json!("eagle3"))),
        ]),
        top(SPECULATORS_KEYS),
        under(LAYER_CONFIG, SPECULATORS_LAYER),
        under(LAYER_CONFIG, SIZES),
        under(LAYER_CONFIG, &[VOCAB]),
        under(LAYER_CONFIG, NORMS),
        // vLLM reads the number here, and takes three for granted where it is absent.
        under(
            LAYER_CONFIG,
            &[ATTENTION_BIAS, MLP_BIAS, TIED, CAPTURED, DTYPE],
        ),
        under(LAYER_CONFIG, ROPE),
        under(LAYER_CONFIG, WINDOW),
        top(&[
            Key::told("speculators_config", |settings, _| {
                Some(speculators_config(settings, "eagle3"))
            }),
            DTYPE,
            OWN_HEAD,
        ]),
    ],
    shared_head: SharedHead::AsOwn,
    quirks: Quirks {
        check_settings: |settings| {
            if is_latent(settings) {
                let expected = "nothing, as the library's layers have grouped heads";
                return Err(("latent", expected.to_owned(), "a table".to_owned()));
            }
            check_settings(settings)
        },
        ..QUIRKS
    },
    launch: |_, dir, target, draft_tokens| {
        let naming = vllm(dir, "eagle3", target, draft_tokens);
        vec![vllm_of_speculators(dir, target, naming)]
    },
    ..of_both("EAGLE-3 for speculators", |folder| {
        folder.config()[MODEL_TYPE] == "eagle3"
    })
};

/// What the library says at the top beside the layer, in its order.
const SPECULATORS_KEYS: &[Key] = &[
    Key::told("speculators_version", |_, _| Some(json!(VERSION))),
    DRAFT_VOCAB,
    // Always: the library takes false where it is absent, vLLM true.
    NORM_BEFORE_RESIDUAL,
    NORM_BEFORE_FC,
    Key::flag("fc_norm", "fc_norm", false),
    Key::flag("norm_output", "norm_output", false),
    Key::told("target_hidden_size", |_, _| Some(Value::Null)),
    Key::told("embed_requires_grad", |_, _| Some(json!(false))),
    TIED,
    LAYERS_RUN,
];

const SPECULATORS_LAYER: &[Key] = &[
    HEAD_NORM,
    Key::told("architectures", |settings, _| {
        Some(json!([layer(settings).class]))
    }),
    LAYERS,
];

/// What both layouts have in common.
const fn of_both(name: &'static str, recognises: fn(&ModelFolder) -> bool) -> Dialect {
    Dialect {
        family: "EAGLE-3",
        neutral: &[llama::NEUTRAL, NEUTRAL],
        aliases: &[["midlayer.", "layers.0."]],
        repeated: &[
            "verifier_norm.weight",
            "verifier_lm_head.weight",
            // Frequencies that older versions of transformers saved with every attention.
            "layers.0.self_attn.rotary_emb.inv_freq",
            "rotary_emb.inv_freq",
        ],
        token_map: TokenMap::Offsets,
        quirks: QUIRKS,
        ..Dialect::named(name, recognises)
    }
}

pub(crate) const ARCHITECTURE: &str = "LlamaForCausalLMEagle3";
/// What the library calls the architecture; what it saves names its own class of the model in its place.
const SPECULATOR: &str = "Eagle3Speculator";
/// What the training code of the paper's authors says; only they have the key beside it.
const PUBLISHED: (&str, &str) = ("LlamaForCausalLM", "draft_vocab_size");

/// What a decoder layer is called.
pub(crate) struct Layer {
    /// The type of model that it is of, as `model_type` has it.
    model_type: &'static str,
    /// The class of that model.
    class: &'static str,
    /// vLLM's class of an EAGLE-3 drafter that is made of it.
    pub(crate) drafter: &'static str,
}

const PLAIN: Layer = Layer {
    model_type: "llama",
    class: PUBLISHED.0,
    drafter: ARCHITECTURE,
};
/// One that norms queries and keys.
pub(crate) const NORMED: Layer = Layer {
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    drafter: "Eagle3Qwen3ForCausalLM",
};

/// One with latent attention. vLLM takes what says `deepseek_v3` for a layer of multi-token prediction.
const LATENT_LAYER: Layer = Layer {
    model_type: "deepseek_v2",
    class: "DeepseekV2ForCausalLM",
    drafter: "Eagle3DeepseekV2ForCausalLM",
};

/// vLLM's class of a P-EAGLE drafter that is made of it.
pub(crate) const NORMED_PARALLEL: &str = "PeagleQwen3ForCausalLM";

fn layer(settings: &Settings) -> &'static Layer {
    if is_latent(settings) {
        &LATENT_LAYER
    } else if settings.flag("head_norm") {
        &NORMED
    } else {
        &PLAIN
    }
}

const HEAD_NORM: Key = Key::code(
    "model_type",
    "head_norm",
    |config, key, _| Ok(json!(head_norm(config, key)?)),
    |settings, _| Some(json!(layer(settings).model_type)),
);

const LAYERS: Key = Key::count("num_hidden_layers", "layers")
    .or(Otherwise::Size(1))
    .written(|settings, here| Some(json!(settings.size(here).max(1))));
const DRAFT_VOCAB: Key =
    Key::size("draft_vocab_size", "draft_vocab").or(Otherwise::SameAs("vocab_size"));
const NORM_BEFORE_RESIDUAL: Key = Key::code(
    "norm_before_residual",
    "norm_before_residual",
    |config, key, _| {
        Ok(json!(
            config.flag(key, config.reading().norm_before_residual)?
        ))
    },
    |settings, here| settings.get(here).cloned(),
);
/// ModelOpt nests it, which is what vLLM reads first.
const NORM_BEFORE_FC: Key =
    Key::flag("norm_before_fc", "norm_before_fc", false).also(&["eagle_config.norm_before_fc"]);
const CAPTURED: Key = Key::code(
    "num_aux_hidden_states",
    "captured_layers",
    |config, _, _| Ok(json!(captured_layers(config)?)),
    |settings, here| Some(json!(settings.sizes(here).len())),
);
const LAYERS_RUN: Key = Key::told(LAYER_IDS, |settings, _| {
    let layers = settings.sizes("captured_layers").into_iter();
    Some(json!(layers.map(|layer| layer + 1).collect::<Vec<_>>()))
});
/// Whether there is a head says more than the configuration.
const OWN_HEAD: Key = Key::code(
    "",
    "head",
    |config, _, _| {
        let own = config.tensor("lm_head.weight").is_some();
        Ok(json!(if own { "own" } else { "shared" }))
    },
    |_, _| None,
);

/// The base of rotary positions and their scaling, as latent attention has it where there is such.
const ROPE_OR_LATENT: &[Key] = &[
    Key::code(
        "rope_theta",
        "rope",
        |config, _, _| Ok(read_rope(config, config.rope()?).setting()),
        |settings, _| settings.rope().map(|rope| json!(rope.rope_theta)),
    ),
    latent::ROPE_PARAMETERS,
    latent::ROPE_SCALING,
];

/// The types of a layer that sees some positions back, and of one that sees all; vLLM reads the window under them.
const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";
const USES_WINDOW: &str = "use_sliding_window";
const WINDOW: &[Key] = &[
    Key::code(
        "layer_types",
        "window",
        |config, _, _| Ok(json!(window(config)?)),
        |settings, here| {
            let layers = settings.size("layers").max(1);
            (settings.size(here) > 0).then(|| json!(vec![SLIDING; layers]))
        },
    ),
    Key::told("sliding_window", |settings, _| {
        settings
            .get("window")
            .filter(|window| **window != json!(0))
            .cloned()
    }),
    // A configuration of Qwen3's drops the window without it.
    Key::told(USES_WINDOW, |settings, _| {
        let slides = settings.flag("head_norm") && settings.size("window") > 0;
        slides.then_some(json!(true))
    }),
];

/// What a layer of EAGLE-3 does not do; ModelOpt spells that its layer is the usual one.
pub(crate) const NEUTRAL: &[(&str, Neutral)] = &[
    ("bias", Neutral::Flag(false)),
    ("tie_word_embeddings", Neutral::Flag(false)),
    // Of latent attention: engines turn neighbours whatever is said.
    ("rope_interleave", Neutral::Flag(true)),
    ("eagle_config.use_aux_hidden_state", Neutral::Flag(true)),
    (
        "eagle_config.use_input_layernorm_in_first_layer",
        Neutral::Flag(true),
    ),
    ("eagle_config.use_last_layernorm", Neutral::Flag(true)),
    ("eagle_config.use_mtp_layernorm", Neutral::Flag(false)),
    ("eagle_config.parallel_draft_step", Neutral::Size(1)),
];

pub(crate) const QUIRKS: Quirks = Quirks {
    check_folder,
    check_settings,
    reduce,
    optional: embedding,
    meanings: meanings::meanings,
    takes_layers: true,
    ..Quirks::NONE
};

/// Whether a `config.json` is of an EAGLE-3 drafter, ours or a published one.
fn recognises(folder: &ModelFolder) -> bool {
    let config = folder.config();
    names_eagle3(config) && !has_mask(config) && config.get(MODEL_TYPE).is_none()
}

/// Whether there is a token that stands for tokens to come, which makes engines draft all of them in one pass.
pub(crate) fn has_mask(config: &Value) -> bool {
    let keys = ["mask_token_id", "pard_token", "ptd_token_id"];
    keys.iter().any(|key| config.get(key).is_some())
}

pub(crate) fn names_eagle3(config: &Value) -> bool {
    let names = config["architectures"].as_array();
    let mut names = names.into_iter().flatten().filter_map(Value::as_str);
    names.any(|name| {
        let published = name == PUBLISHED.0 && config.get(PUBLISHED.1).is_some();
        name.to_lowercase().contains("eagle3") || published
    })
}

fn check_folder(config: &Config) -> Result<()> {
    let (width, key) = (config.size("hidden_size", None)?, "target_hidden_size");
    if config.size(key, Some(width))? != width {
        return Err(config.wrong(key, format!("`{width}`, the drafter's own width")));
    }
    Ok(())
}

fn check_settings(settings: &Settings) -> Check {
    let layers = settings.sizes("captured_layers");
    if layers.is_empty() || !layers.is_sorted_by(|a, b| a < b) {
        let expected = "ascending layer indices".to_owned();
        return Err(("captured_layers", expected, format!("{layers:?}")));
    }
    if settings.shares_head() && settings.has_draft_vocab() {
        let expected = "false where the drafter has a vocabulary of its own".to_owned();
        return Err(("shared_head", expected, "true".to_owned()));
    }
    Ok(())
}

/// Without a head of its own a drafter speaks the target's vocabulary. Engines do not notice when it does not.
fn check_head(file: &Path, settings: &Settings) -> Result<()> {
    if !settings.shares_head() || !settings.has_draft_vocab() {
        return Ok(());
    }
    Err(Error::NoTensor {
        name: "lm_head.weight".to_string(),
        path: file.to_path_buf(),
    })
}

fn reduce(file: &Path, settings: &Settings, tensors: &mut Vec<NamedTensor>) -> Result<()> {
    check_head(file, settings)?;
    drop_repeated_norms(file, settings, tensors)?;
    read_rows(file, settings, tensors, d_input)
}

/// What attention reads in the layer of a tensor: the first one's reads an embedding beside a state.
fn d_input(settings: &Settings, name: &str) -> usize {
    let mut first = ["layers.0.", "midlayer."].into_iter();
    let is_first = first.any(|first| name.starts_with(first));
    settings.size("d_model") * if is_first { 2 } else { 1 }
}

/// The norm through which each layer behind the first reads, by its name in vLLM and the libraries, and by SGLang's.
fn norms_of_inputs(settings: &Settings) -> impl Iterator<Item = [String; 2]> {
    let name = |layer, norm| format!("layers.{layer}.{norm}.weight");
    let layers = 1..settings.size("layers");
    layers.map(move |layer| ["input_layernorm", "hidden_norm"].map(|norm| name(layer, norm)))
}

/// Adds the norms under SGLang's names.
fn repeat_norms(settings: &Settings, tensors: &mut Vec<NamedTensor>) {
    for [name, of_sglang] in norms_of_inputs(settings) {
        let norm = tensors.iter().find(|tensor| tensor.name == name);
        let repeated = norm.map(|norm| NamedTensor {
            name: of_sglang,
            ..norm.clone()
        });
        tensors.extend(repeated);
    }
}

/// Takes the norms under either name. One under both has to be the same, since no engine reads both.
fn drop_repeated_norms(
    file: &Path,
    settings: &Settings,
    tensors: &mut Vec<NamedTensor>,
) -> Result<()> {
    for [name, of_sglang] in norms_of_inputs(settings) {
        let at = |name: &str| tensors.iter().position(|tensor| tensor.name == name);
        let Some(repeated) = at(&of_sglang) else {
            continue;
        };
        match at(&name) {
            None => tensors[repeated].name = name,
            Some(norm) if same_values(&tensors[norm], &tensors[repeated]) => {
                tensors.remove(repeated);
            }
            Some(_) => {
                return Err(Error::Values {
                    reason: format!(
                        "expected those of `{name}`: vLLM reads that norm, SGLang this one"
                    ),
                    name: of_sglang,
                    path: file.to_path_buf(),
                });
            }
        }
    }
    Ok(())
}

fn same_values(one: &NamedTensor, other: &NamedTensor) -> bool {
    (one.dtype, &one.shape, &one.bytes) == (other.dtype, &other.shape, &other.bytes)
}

/// SGLang and TensorRT-LLM put the target's embeddings in the place of these.
fn embedding(settings: &Settings) -> Vec<TensorSpec> {
    let shape = vec![settings.size("vocab"), settings.size("d_model")];
    vec![(EMBEDDING.to_string(), shape, DType::F32)]
}

/// Whether the layers norm queries and keys. In its own layout the library goes by the type of model, and so does vLLM; in the other
/// one vLLM goes by the class, and published folders of the plain one have their target's type.
fn head_norm(config: &Config, key: &str) -> Result<bool> {
    if config.get(MODEL_TYPE).is_some() {
        let types = [PLAIN.model_type, NORMED.model_type];
        return Ok(config.one_of(key, &types)? == NORMED.model_type);
    }
    let names = config.get("architectures").and_then(Value::as_array);
    let mut names = names.into_iter().flatten();
    let is_normed = names.any(|name| name == NORMED.drafter || name == NORMED_PARALLEL);
    let is_told = config
        .get(key)
        .is_some_and(|kind| *kind == NORMED.model_type);
    let has_norms = || config.tensor("layers.0.self_attn.q_norm.weight").is_some();
    let class = match (is_normed, is_told) {
        (true, false) => &NORMED,
        (false, true) if has_norms() => &PLAIN,
        _ => return Ok(is_normed),
    };
    let expected = format!("`\"{}\"`, as `architectures` has it", class.model_type);
    Err(config.wrong(key, expected))
}

/// How many positions back every layer sees, as their types say; 0 for all.
fn window(config: &Config) -> Result<usize> {
    let key = "layer_types";
    let Some(value) = config.get(key) else {
        // Which layers slide follows from a third key in Qwen3's configurations.
        if HEAD_NORM.value(config)? == true && config.flag(USES_WINDOW, false)? {
            let expected = format!("the layers' types, as `{USES_WINDOW}` is on");
            return Err(config.wrong(key, expected));
        }
        return Ok(0);
    };
    let layers = config.count("num_hidden_layers", Some(1))?;
    let types = value.as_array().filter(|types| types.len() == layers);
    let all = |kind: &str| types.is_some_and(|types| types.iter().all(|found| *found == kind));
    if all(FULL) {
        Ok(0)
    } else if all(SLIDING) {
        let is_used = config.flag(USES_WINDOW, false)?;
        if HEAD_NORM.value(config)? == true && !is_used {
            let expected = format!("`true`, as `{key}` are `{SLIDING}`");
            return Err(config.wrong(USES_WINDOW, expected));
        }
        config.size("sliding_window", None)
    } else {
        Err(config.wrong(
            key,
            format!("{layers} of `{FULL}`, or as many of `{SLIDING}`"),
        ))
    }
}

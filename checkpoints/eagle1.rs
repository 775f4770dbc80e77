//! EAGLE-1 drafters, HASS's included, as vLLM and SGLang load them (<https://arxiv.org/abs/2401.15077>).
//!
//! What names and shapes do not show: two tensors of one shape in each other's place (`gate_proj` and `up_proj`), and an
//! `fc.weight` that takes the feature before the embedding. The seal of a folder of ours shows the first; in folders of
//! others both show as a low acceptance length only.

use std::path::Path;

use serde_json::{Value, json};

use crate::dialect::description::{Dialect, Neutral, Quirks, top};
use crate::dialect::key::Key;
use crate::dialect::llama::{self, DTYPE, NORMS, ROPE, SIZES, UNBIASED, VOCAB};
use crate::dialect::settings::Settings;
use crate::dtype::DType;
use crate::eagle3;
use crate::folder::ModelFolder;
use crate::language_model;
use crate::launch::{self, Launch};
use crate::peagle;
use crate::tensors::NamedTensor;

/// The layout of both engines.
pub const EAGLE1: Dialect = Dialect {
    architectures: &[
        ARCHITECTURES[0],
        ARCHITECTURES[1],
        OF_QWEN2,
        PUBLISHED[0],
        PUBLISHED[1],
    ],
    keys: &[
        top(&[
            Key::told("architectures", |settings, _| {
                let [vllm, sglang] = ARCHITECTURES;
                let is_biased = settings.flag("qkv_bias");
                Some(json!([vllm, if is_biased { OF_QWEN2 } else { sglang }]))
            }),
            Key::told("model_type", |_, _| Some(json!("llama"))),
            Key::told("num_hidden_layers", |_, _| Some(json!(1))),
        ]),
        top(SIZES),
        top(&[VOCAB]),
        top(NORMS),
        top(UNBIASED),
        top(&[QKV_BIAS, FC_BIAS, DTYPE]),
        top(ROPE),
    ],
    neutral: &[
        llama::NEUTRAL,
        &[
            ("num_hidden_layers", Neutral::Size(1)),
            ("hot_vocab_size", Neutral::Absent("the whole vocabulary")),
        ],
    ],
    repeated: &[
        "embed_tokens.weight",
        "lm_head.weight",
        // Frequencies that older versions of transformers saved with every attention.
        "layers.0.self_attn.rotary_emb.inv_freq",
        "rotary_emb.inv_freq",
    ],
    // Its class, `EagleLlamaForCausalLM`, has no head of its own, and fails on a tensor that has no place.
    vllm_refuses: &["lm_head.weight"],
    launch: launch_lines,
    quirks: Quirks {
        complete: write_bias,
        optional: |settings| vec![(BIAS.into(), vec![settings.size("d_model")], DType::F32)],
        ..Quirks::NONE
    },
    ..Dialect::named("EAGLE-1", recognises)
};

/// vLLM's name of the architecture and SGLang's: each takes the one it knows.
const ARCHITECTURES: [&str; 2] = ["EagleLlamaForCausalLM", "LlamaForCausalLMEagle"];
/// SGLang's name of one whose query, key and value projections have a bias; vLLM has a key for that.
const OF_QWEN2: &str = "Qwen2ForCausalLMEagle";
/// What folders of the paper's authors say, where only the single layer gives a drafter away.
const PUBLISHED: [&str; 2] = ["LlamaForCausalLM", "Qwen2ForCausalLM"];

/// Whether query, key and value projections add a bias: where nothing is said, those that have one.
const QKV_BIAS: Key = Key::flag("qkv_bias", "qkv_bias", false)
    .with_read(|config, key, _| {
        let there = config.tensor("layers.0.self_attn.q_proj.bias").is_some();
        Ok(json!(config.flag(key, there)?))
    })
    .only_if_on();

const BIAS: &str = "fc.bias";

/// Whether `fc` adds a bias: what is in the folder says more than the key, which is wrong in published ones.
const FC_BIAS: Key = Key::code(
    "bias",
    "bias",
    |config, key, _| {
        let told = config.flag(key, false)?;
        let Some(bias) = config.tensor(BIAS) else {
            return Ok(json!(told));
        };
        let values = config.folder().read(&bias.name)?.to_f32()?;
        Ok(json!(values.iter().any(|&value| value != 0.0)))
    },
    |settings, here| Some(json!(settings.flag(here))),
);

/// SGLang adds a random bias where there is none, so a drafter without one is written with zeros.
fn write_bias(settings: &Settings, tensors: &mut Vec<NamedTensor>) {
    if !settings.flag("bias") {
        let width = settings.size("d_model");
        tensors.push(NamedTensor::from_f32(BIAS, [width], vec![0.0; width]));
    }
}

/// Whether a folder is of an EAGLE-1 drafter, ours or a published one.
fn recognises(folder: &ModelFolder) -> bool {
    let config = folder.config();
    let is = |name: &str| {
        let lower = name.to_lowercase();
        let other_kind = lower.contains("eagle3") || peagle::names_peagle(name);
        let eagle = lower.contains("eagle") && !other_kind;
        let published = PUBLISHED.contains(&name) && config["num_hidden_layers"] == 1;
        let other = language_model::is_marked(config)
            || language_model::mask_token(config).is_some()
            || eagle3::names_eagle3(config)
            // The layer of a language model has a norm that an EAGLE-1 drafter lacks.
            || folder.info("model.norm.weight").is_ok() && folder.info("model.embed_tokens.weight").is_ok();
        eagle || (published && !other)
    };
    let names = config["architectures"].as_array();
    names.is_some_and(|names| names.iter().filter_map(Value::as_str).any(is))
}

/// One command for each engine that can run it: vLLM, unless its lack of a bias rules it out, and SGLang.
fn launch_lines(settings: &Settings, dir: &Path, target: &str, draft_tokens: usize) -> Vec<Launch> {
    if let Some(remark) = llama::unread_heads(settings) {
        return vec![remark];
    }
    let sglang = launch::sglang(dir, "EAGLE", target, draft_tokens);
    if settings.flag("bias") {
        vec![sglang]
    } else {
        vec![launch::vllm(dir, "eagle", target, draft_tokens), sglang]
    }
}

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
use crate::tensors::NamedTensor;

/// The layout of both engines.
pub const EAGLE1: Dialect = Dialect {
    architectures: &[ARCHITECTURES[0], ARCHITECTURES[1], PUBLISHED],
    keys: &[
        top(&[
            Key::told("architectures", |_, _| Some(json!(ARCHITECTURES))),
            Key::told("model_type", |_, _| Some(json!("llama"))),
            Key::told("num_hidden_layers", |_, _| Some(json!(1))),
        ]),
        top(SIZES),
        top(&[VOCAB]),
        top(NORMS),
        top(UNBIASED),
        top(&[FC_BIAS, DTYPE]),
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
        // Frequencies that older versions of transformers saved with every attention.
        "layers.0.self_attn.rotary_emb.inv_freq",
        "rotary_emb.inv_freq",
    ],
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
/// What folders of the paper's authors say, where only the single layer gives a drafter away.
const PUBLISHED: &str = "LlamaForCausalLM";

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
        let eagle = lower.contains("eagle") && !lower.contains("eagle3");
        let published = name == PUBLISHED && config["num_hidden_layers"] == 1;
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

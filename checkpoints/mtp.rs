//! Layers of multi-token prediction in MiMo's layout (<https://arxiv.org/abs/2505.07608>), in the checkpoint of their target or
//! in a folder of their own, as vLLM and SGLang load them.
//!
//! vLLM takes every size from the target's configuration and reads what is said in a folder of their own only to know the kind. It
//! hands over the target's last hidden state before the target's final norm, for which it has to know the target as MiMo. SGLang takes
//! the sizes from the folder and hands over the state after that norm, beside any target.

use std::path::Path;

use serde_json::{Value, json};

use crate::beside::TARGET_CLASS;
use crate::dialect::description::{Dialect, Neutral, top};
use crate::dialect::in_target::InTarget;
use crate::dialect::key::Key;
use crate::dialect::llama::{DTYPE, MLP_BIAS, NORMS, ROPE, SIZES, TIED, VOCAB};
use crate::dialect::settings::Settings;
use crate::folder::ModelFolder;
use crate::launch::{self, Launch};
use crate::names::unwrapped;

/// The layout of vLLM.
pub const MTP: Dialect = Dialect {
    architectures: &[ARCHITECTURE],
    keys: &[
        top(&[
            Key::told("architectures", |_, _| Some(json!([ARCHITECTURE]))),
            // A class that needs no code of the hub.
            Key::told("model_type", |_, _| Some(json!("qwen2"))),
            Key::size("num_hidden_layers", "target_layers"),
            Key::told(NEXT_LAYERS, |_, _| Some(json!(1))),
            Key::flag(AFTER_FINAL_NORM, AFTER_FINAL_NORM, false).only_if_on(),
        ]),
        top(SIZES),
        top(&[VOCAB]),
        top(NORMS),
        top(&[TIED, MLP_BIAS, DTYPE]),
        top(ROPE),
    ],
    neutral: &[&[
        ("hidden_act", Neutral::Word("silu")),
        ("mlp_bias", Neutral::Flag(false)),
        ("use_sliding_window", Neutral::Flag(false)),
        (NEXT_LAYERS, Neutral::Size(1)),
    ]],
    renamed: &[
        ["token_layernorm.", "model.mtp_layers.0.token_layernorm."],
        ["hidden_layernorm.", "model.mtp_layers.0.hidden_layernorm."],
        ["input_proj.", "model.mtp_layers.0.input_proj."],
        ["final_layernorm.", "model.mtp_layers.0.final_layernorm."],
        ["layer.", "model.mtp_layers.0."],
    ],
    // What is around them is taken off.
    aliases: &[
        ["mtp_layers.0.token_layernorm.", "token_layernorm."],
        ["mtp_layers.0.hidden_layernorm.", "hidden_layernorm."],
        ["mtp_layers.0.input_proj.", "input_proj."],
        ["mtp_layers.0.final_layernorm.", "final_layernorm."],
        ["mtp_layers.0.", "layer."],
    ],
    of_target: &["embed_tokens.", "layers.", "norm.", "lm_head."],
    in_target: Some(InTarget {
        class: class_in_target,
        classes: |_| "`MiMoForCausalLM` or `Qwen2ForCausalLM`",
        count: |_| NEXT_LAYERS,
        switches: &[AFTER_FINAL_NORM],
        joined: |_, _| None,
        launch: |settings, _, target, draft_tokens| {
            vec![match settings.flag(AFTER_FINAL_NORM) {
                true => launch::sglang_by_own_layer(target, draft_tokens),
                false => launch::vllm_by_own_layer(target, draft_tokens),
            }]
        },
    }),
    launch: launch_lines,
    ..Dialect::named("MTP", recognises)
};

/// The class of the target, under which vLLM looks for the layer too.
const ARCHITECTURE: &str = "MiMoForCausalLM";
/// A class whose decoder is the same. Engines look for no layer in its checkpoints.
const SAME_DECODER: &str = "Qwen2ForCausalLM";
/// How many such layers there are.
pub(crate) const NEXT_LAYERS: &str = "num_nextn_predict_layers";
/// Whether they read the target's last hidden state after its final norm. Engines know no such key.
const AFTER_FINAL_NORM: &str = "after_final_norm";
/// What the names of their tensors start with.
const NAMES: &str = "mtp_layers.";

fn recognises(folder: &ModelFolder) -> bool {
    let names = folder.config()["architectures"].as_array();
    names.is_some_and(|names| names.iter().any(|name| name == ARCHITECTURE))
        && tensors(folder).next().is_some()
}

fn class_in_target<'a>(_: &Settings, class: &'a str) -> Option<&'a str> {
    [ARCHITECTURE, SAME_DECODER]
        .contains(&class)
        .then_some(ARCHITECTURE)
}

fn tensors(folder: &ModelFolder) -> impl Iterator<Item = &str> {
    let names = folder.tensors().map(|info| info.name.as_str());
    names.filter(|name| unwrapped(name).starts_with(NAMES))
}

/// The names of the tensors of such layers in the folder of a target that says it has some.
pub fn beside_target(folder: &ModelFolder) -> Vec<String> {
    if folder.config()[NEXT_LAYERS].as_u64().unwrap_or(0) == 0 {
        return Vec::new();
    }
    tensors(folder).map(str::to_owned).collect()
}

/// SGLang's or vLLM's, by which of them hands over the state that the layer reads; vLLM's for a target of a class that it finds the
/// layer with.
fn launch_lines(settings: &Settings, dir: &Path, target: &str, draft_tokens: usize) -> Vec<Launch> {
    if settings.flag(AFTER_FINAL_NORM) {
        return vec![launch::sglang(dir, "EAGLE", target, draft_tokens)];
    }
    match settings.get(TARGET_CLASS).and_then(Value::as_str) {
        Some(SAME_DECODER) => {
            // The same decoder, under the name that goes with the layer.
            let as_mimo = json!({"architectures": [ARCHITECTURE], (NEXT_LAYERS): 1});
            vec![launch::vllm_overriding(
                dir,
                "mtp",
                (target, &as_mimo),
                draft_tokens,
            )]
        }
        Some(ARCHITECTURE) | None => vec![launch::vllm(dir, "mtp", target, draft_tokens)],
        Some(_) => vec![Launch::remark(
            "vLLM loads this layer only with MiMo and Qwen2 targets, and SGLang one that was trained with `drafter.after_final_norm = true`",
        )],
    }
}

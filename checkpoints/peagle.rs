//! P-EAGLE drafters as vLLM loads them, and as the speculators library does (<https://arxiv.org/abs/2602.01469>): EAGLE-3's
//! folders with more layers, a mask token and what stands for features under it. No other engine drafts with them.

use std::path::Path;

use serde_json::{Value, json};

use crate::dialect::description::{Dialect, Quirks, top, under};
use crate::dialect::key::Key;
use crate::dialect::llama;
use crate::dialect::settings::Settings;
use crate::eagle3::{self, EAGLE3, NEUTRAL, QUIRKS};
use crate::folder::ModelFolder;
use crate::launch::{self, Launch};
use crate::names::EMBEDDING;
use crate::speculators::{LAYER_CONFIG, MODEL_TYPE, speculators_config};

/// vLLM's layout: EAGLE-3's under the same architecture.
pub const PEAGLE: Dialect = Dialect {
    name: "P-EAGLE",
    family: "P-EAGLE",
    recognises: |folder| {
        let config = folder.config();
        let named = eagle3::names_eagle3(config) && eagle3::has_mask(config);
        (named || is_peagle(config)) && config.get(MODEL_TYPE).is_none()
    },
    architectures: &[
        eagle3::ARCHITECTURE,
        eagle3::NORMED.drafter,
        ARCHITECTURE,
        "PeagleLlamaForCausalLM",
        eagle3::NORMED_PARALLEL,
    ],
    more: &[top(&[
        MASK,
        Key::told("pard_token", |settings, _| {
            settings.get("mask_token").cloned()
        }),
        EMBEDDINGS,
        NORM_OUTPUT,
    ])],
    neutral: &[llama::NEUTRAL, NEUTRAL],
    renamed: &[],
    aliases: &[["midlayer.", "layers.0."]],
    launch: launch_lines,
    quirks: OF_BOTH,
    ..EAGLE3
};

/// The layout of the speculators library.
pub const SPECULATORS: Dialect = Dialect {
    name: "P-EAGLE for speculators",
    family: "P-EAGLE",
    recognises: |folder: &ModelFolder| folder.config()[MODEL_TYPE] == "peagle",
    // From beside the layer vLLM takes this key over for EAGLE-3 alone.
    more: &[
        under(
            LAYER_CONFIG,
            &[Key::flag("fc_norm", "fc_norm", false).only_if_on()],
        ),
        top(&[
            Key::told("architectures", |_, _| Some(json!([ARCHITECTURE]))),
            Key::told(MODEL_TYPE, |_, _| Some(json!("peagle"))),
            Key::told("embed_requires_grad", |settings, _| {
                Some(json!(!settings.flag("shared_embeddings")))
            }),
            Key::told("speculators_config", |settings, _| {
                Some(speculators_config(settings, "peagle"))
            }),
            MASK,
            EMBEDDINGS,
            NORM_OUTPUT,
        ]),
    ],
    neutral: &[llama::NEUTRAL, NEUTRAL],
    renamed: &[],
    aliases: &[["midlayer.", "layers.0."]],
    launch: |_, dir, target, draft_tokens| {
        let naming = launch::vllm_parallel(dir, "eagle3", target, draft_tokens);
        vec![launch::vllm_of_speculators(dir, target, naming)]
    },
    quirks: OF_BOTH,
    ..eagle3::SPECULATORS
};

/// SpecForge's name, and what the library saves.
const ARCHITECTURE: &str = "PEagleDraftModel";

const MASK: Key = Key::token("mask_token_id", "mask_token").also(&["pard_token", "ptd_token_id"]);

/// Whether the embeddings are the target's: a folder that has none says so.
const EMBEDDINGS: Key = Key::code(
    "",
    "shared_embeddings",
    |config, _, _| Ok(json!(config.tensor(EMBEDDING).is_none())),
    |_, _| None,
);

/// What the next draft step reads in EAGLE-3, which says nothing of drafters that have no such step.
const NORM_OUTPUT: Key = Key::flag("norm_output", "norm_output", false)
    .with_read(|_, _, _| Ok(Value::Null))
    .unwritten();

const OF_BOTH: Quirks = Quirks {
    // Engines take what a folder holds.
    optional: |_| Vec::new(),
    ..QUIRKS
};

/// Whether a class is called so.
pub(crate) fn names_peagle(class: &str) -> bool {
    class.to_lowercase().contains("peagle")
}

fn is_peagle(config: &Value) -> bool {
    let names = config["architectures"].as_array();
    let mut names = names.into_iter().flatten().filter_map(Value::as_str);
    names.any(names_peagle)
}

/// One command: other engines draft token by token.
fn launch_lines(settings: &Settings, dir: &Path, target: &str, draft_tokens: usize) -> Vec<Launch> {
    let plain = !settings.flag("head_norm");
    let remark = plain.then(|| llama::unread_heads(settings)).flatten();
    let command = || launch::vllm_parallel(dir, "eagle3", target, draft_tokens);
    vec![remark.unwrap_or_else(command)]
}

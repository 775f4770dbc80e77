//! DFlash drafters in their authors' layout, which vLLM, SGLang and llama.cpp load (<https://arxiv.org/abs/2602.06036>), and
//! those of DFlash 2, DSpark, Domino, XPress and LiLiCorr, which have more parts.
//!
//! The target's embedding and head are not in the folder: engines use the target's own.

use serde_json::json;

use crate::dflash::family::{Family, is_of_authors};
use crate::dflash::heads::{DOMINO, HEADS, XPRESS, has_heads};
use crate::dflash::keys::{
    BLOCK, CAPTURED, CAUSAL, CONTEXT, DECODER, MASK, SEES_BLOCK, SINKS, SIZES_OF_PARTS,
    SLIDING_KEYS, TARGET_LAYERS, TARGET_WIDTH, is_alike, of_all, rope,
};
use crate::dflash::lattice::LATTICE;
use crate::dialect::description::{Dialect, top, under};
use crate::dialect::key::Key;
use crate::dialect::llama::{DTYPE, ROPE_PARAMETERS, ROPE_SCALING, ROPE_THETA};

pub(crate) mod family;
mod heads;
mod keys;
mod lattice;
mod launch;
pub mod speculators;
pub mod transformers;
mod variants;

/// The authors' layout.
pub const DFLASH: Dialect = Dialect {
    keys: &[
        top(&[
            Key::told("architectures", |settings, _| {
                Some(json!([Family::of(settings).architecture()]))
            }),
            Key::told("model_type", |_, _| Some(json!("qwen3"))),
        ]),
        top(DECODER),
        top(&[BLOCK, TARGET_LAYERS, TARGET_WIDTH, CAUSAL, MASK, CAPTURED]),
        under(
            "dflash_config",
            &[Key::told("causal", |settings, _| {
                let told = settings.flag("causal") || settings.size("window") > 0;
                (told && is_alike(settings)).then(|| json!(settings.flag("causal")))
            })],
        ),
        top(&[DTYPE]),
        top(SLIDING_KEYS),
        top(&[SEES_BLOCK]),
        under("dflash_config", SIZES_OF_PARTS),
        under("dflash_config", &[CONTEXT]),
        top(&[SINKS]),
        under("dflash_config", DOMINO),
        LATTICE,
        top(HEADS),
        top(XPRESS),
        top(&[
            Key::told("dspark_bonus_anchor", |settings, _| {
                has_heads(settings).then(|| json!(!settings.flag("sample_from_anchor")))
            }),
            Key::told("target_layer_ids", |settings, _| {
                has_heads(settings).then(|| json!(settings.sizes("captured_layers")))
            }),
            Key::told("mask_token_id", |settings, _| {
                has_heads(settings).then(|| json!(settings.size("mask_token")))
            }),
        ]),
        top(&[ROPE_THETA.with_read(rope)]),
        top(&[ROPE_PARAMETERS, ROPE_SCALING]),
    ],
    launch: launch::launch_lines,
    ..of_all("DFlash", |folder| is_of_authors(folder.config()))
};

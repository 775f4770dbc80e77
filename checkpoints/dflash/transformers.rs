//! A DFlash drafter as `transformers` has it: under the name of the first model that came with one. Any target decodes with it,
//! `generate(assistant_model=..., speculation_type="dflash")`.

use serde_json::{Value, json};

use crate::dflash::family::{Family, TRANSFORMERS_TYPE, is_of_transformers};
use crate::dflash::heads::HEADS;
use crate::dflash::keys::{
    BLOCK, CAUSAL, CONTEXT, DECODER, FULL_LAYERS, SINKS, SIZES_OF_PARTS, Sliding, TARGET_LAYERS,
    TARGET_WIDTH, captured_layers, layer_types, no_sinks, of_all, sliding,
};
use crate::dialect::description::{Check, Dialect, Quirks, top, under};
use crate::dialect::key::Key;
use crate::dialect::llama::{DTYPE, ROPE_PARAMETERS, ROPE_SCALING, ROPE_THETA};
use crate::dialect::settings::Settings;
use crate::launch::transformers_dflash;

/// The layout of transformers.
pub const TRANSFORMERS: Dialect = Dialect {
    keys: &[
        top(&[
            Key::told("architectures", |_, _| Some(json!([ARCHITECTURE]))),
            Key::told("model_type", |_, _| Some(json!(TRANSFORMERS_TYPE))),
        ]),
        top(DECODER),
        // The library's default.
        top(&[Key::epsilon("rms_norm_eps", "norm_epsilon", 1e-5)]),
        top(&[BLOCK, TARGET_LAYERS, TARGET_WIDTH]),
        top(&[CAUSAL.with_read(|config, key, _| Ok(json!(config.flag(key, false)?)))]),
        under(
            "dflash_config",
            &[
                Key::told("mask_token_id", |settings, _| {
                    settings.get("mask_token").cloned()
                }),
                Key::told("target_layer_ids", |settings, _| {
                    settings.get("captured_layers").cloned()
                }),
                Key::told("causal", |settings, _| {
                    (settings.size("window") > 0).then(|| json!(settings.flag("causal")))
                }),
            ],
        ),
        top(&[DTYPE]),
        top(&[
            // Blocks are never causal.
            FULL_LAYERS.with_read(|config, _, _| match sliding(config, true)? {
                Sliding::ByType(full) => Ok(json!(full)),
                Sliding::No | Sliding::Together => Ok(json!([])),
            }),
            WINDOW,
            Key::told("use_sliding_window", |settings, _| {
                (settings.size("window") > 0).then(|| json!(true))
            }),
        ]),
        top(&[ROPE_THETA.with_read(|config, _, _| Ok(config.rope_or(500_000.0)?.setting()))]),
        top(&[ROPE_PARAMETERS, ROPE_SCALING]),
        top(&[
            Key::code(
                "target_layer_ids",
                "captured_layers",
                |config, key, _| captured_layers(config, key, 0),
                |settings, here| settings.get(here).cloned(),
            )
            .also(&["dflash_config.target_layer_ids"]),
            Key::token("mask_token_id", "mask_token").also(&["dflash_config.mask_token_id"]),
            // The library's default is a token that only the first such model had.
            Key::told("pad_token_id", |_, _| Some(Value::Null)),
            Key::told("layer_types", |settings, _| {
                (settings.size("window") == 0).then(|| json!(layer_types(settings)))
            }),
        ]),
        // What is written elsewhere is of no such drafter.
        under("dflash_config", SIZES_OF_PARTS),
        under("dflash_config", &[CONTEXT]),
        top(&[SINKS.unwritten()]),
        top(HEADS),
    ],
    renamed: &[
        ["fc.", "encoder.fc."],
        ["hidden_norm.", "encoder.output_norm_enc."],
    ],
    launch: |_, dir, target, _| vec![transformers_dflash(dir, target)],
    quirks: Quirks {
        check_settings: check_plain,
        ..of_all("", |_| false).quirks
    },
    ..of_all("DFlash for Transformers", |folder| {
        is_of_transformers(folder.config())
    })
};

const ARCHITECTURE: &str = "MuseGlimmerAssistantModel";
/// What a window counts less than here, where it counts the own place.
const LESS: usize = 1;

/// How far the layers slide: so many positions where nothing is said.
const WINDOW: Key = Key::code(
    "sliding_window",
    "window",
    |config, key, _| match sliding(config, true)? {
        Sliding::No => Ok(json!(0)),
        _ => Ok(json!(config.size(key, Some(2048))? + LESS)),
    },
    |settings, here| (settings.size(here) > 0).then(|| json!(settings.size(here) - LESS)),
)
.also(&["dflash_config.swa_window_size"]);

/// Fails for a drafter with parts that this layout has no keys for.
fn check_plain(settings: &Settings) -> Check {
    no_sinks(settings)?;
    match Family::of(settings) {
        Family::DFlash if settings.flag("causal") => {
            let expected = "false, as the library's blocks always are".to_owned();
            Err(("causal", expected, "true".to_owned()))
        }
        Family::DFlash => Ok(()),
        other => {
            let expected = "those of a plain DFlash drafter".to_owned();
            let parts = match other {
                Family::Domino => "those of Domino".to_owned(),
                other => format!("those of `{}`", other.architecture()),
            };
            Err(("parts", expected, parts))
        }
    }
}

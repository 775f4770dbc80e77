//! A drafter of DFlash, DFlash 2, DSpark or XPress in the layout of the speculators library, which vLLM serves with the target it
//! names, but for XPress. Layer ids count the layers that have run.

use serde_json::{Value, json};

use crate::config::Config;
use crate::dflash::family::{Family, KINDS, is_of_speculators, is_xpress};
use crate::dflash::heads::{
    CONFIDENCE, CONFIDENCE_WITH_MARKOV, KIND, RANK, SAMPLES_FROM_ANCHOR, XPRESS_OF_SPECULATORS,
    has_heads, stored_by_speculators,
};
use crate::dflash::keys::{
    self, BLOCK, CONTEXT, DECODER, SINKS, SIZES_OF_PARTS, SLIDING_KEYS, Sliding, TARGET_LAYERS,
    captured_layers, is_mixed, no_sinks, of_all, rope, sliding,
};
use crate::dflash::launch::launch_lines;
use crate::dialect::description::{Check, Dialect, Quirks, top, under};
use crate::dialect::key::Key;
use crate::dialect::llama::{DTYPE, ROPE_PARAMETERS, ROPE_SCALING, ROPE_THETA, TIED};
use crate::dialect::reading::{Meaning, Reading};
use crate::dialect::settings::Settings;
use crate::error::Result;
use crate::launch::{Launch, Server, vllm_of_speculators};
use crate::speculators::{LAYER_CONFIG, MODEL_TYPE, VERSION, speculators_config};

/// The layout of the speculators library.
pub const SPECULATORS: Dialect = Dialect {
    section: Some(LAYER_CONFIG),
    keys: &[
        top(&[
            Key::told("architectures", |settings, _| {
                Some(json!([kind(settings)[1]]))
            }),
            Key::told(MODEL_TYPE, |settings, _| Some(json!(kind(settings)[0]))),
            Key::told("speculators_version", |_, _| Some(json!(VERSION))),
            Key::told("draft_vocab_size", |settings, _| {
                settings.get("vocab").cloned()
            }),
            BLOCK,
            Key::told("target_hidden_size", |_, _| Some(Value::Null)),
            Key::code(
                "aux_hidden_state_layer_ids",
                "captured_layers",
                |config, key, _| captured_layers(config, key, 1),
                |settings, here| {
                    let layers = settings.sizes(here).into_iter();
                    Some(json!(layers.map(|layer| layer + 1).collect::<Vec<_>>()))
                },
            ),
            Key::token("mask_token_id", "mask_token"),
            // Always: without it vLLM up to 0.32 makes every layer causal.
            Key::told(NON_CAUSAL, |settings, _| {
                Some(json!(!settings.flag("causal")))
            }),
            SAMPLES_FROM_ANCHOR.written(|settings, here| Some(json!(settings.flag(here)))),
            TARGET_LAYERS,
            TIED,
        ]),
        under(
            LAYER_CONFIG,
            &[
                Key::told("architectures", |_, _| Some(json!(["Qwen3ForCausalLM"]))),
                Key::told("model_type", |_, _| Some(json!("qwen3"))),
            ],
        ),
        under(LAYER_CONFIG, DECODER),
        under(LAYER_CONFIG, &[CAUSAL, DTYPE]),
        under(LAYER_CONFIG, SLIDING_KEYS),
        // Which is never written: see `check_settings`.
        under(LAYER_CONFIG, &[SEES_BLOCK]),
        under(LAYER_CONFIG, &[ROPE_THETA.with_read(rope)]),
        under(LAYER_CONFIG, &[ROPE_PARAMETERS, ROPE_SCALING]),
        top(&[
            Key::told("speculators_config", |settings, _| {
                Some(speculators_config(settings, kind(settings)[0]))
            }),
            DTYPE,
        ]),
        top(SIZES_OF_PARTS),
        top(&[
            RANK,
            CONFIDENCE,
            CONFIDENCE_WITH_MARKOV,
            KIND,
            CONTEXT.unwritten(),
            SINKS.unwritten(),
        ]),
        top(XPRESS_OF_SPECULATORS),
    ],
    launch: |settings, dir, target, draft_tokens| {
        if is_xpress(settings) {
            let text = "vLLM loads XPress drafters from its own layout (`to = [\"vllm\"]`); the speculators library loads this one";
            return vec![Launch::remark(text)];
        }
        let other_bias = has_heads(settings) && settings.word("markov") != "vanilla";
        if other_bias {
            let text = "vLLM does not load this kind of bias; the speculators library does";
            return vec![Launch::remark(text)];
        }
        let usual = launch_lines(settings, dir, target, draft_tokens);
        let is_vllm = |line: &&Launch| matches!(line.server, Some(Server::Vllm(_)));
        match usual.iter().find(is_vllm).cloned() {
            Some(naming) => vec![vllm_of_speculators(dir, target, naming)],
            None => usual,
        }
    },
    quirks: Quirks {
        check_settings,
        stored: stored_by_speculators,
        meanings,
        ..of_all("", |_| false).quirks
    },
    ..of_all("DFlash for speculators", |folder| {
        is_of_speculators(folder.config())
    })
};

/// What the library calls the opposite of a causal block, for sliding layers; vLLM reads it for all.
const NON_CAUSAL: &str = "sliding_window_non_causal";

/// Whether a place of a block sees only those before it: sliding layers do so unless a key says otherwise.
const CAUSAL: Key = Key::code(
    "is_causal",
    "causal",
    |config, key, _| Ok(json!(config.flag(key, is_causal_where_it_slides(config)?)?)),
    |settings, here| Some(json!(settings.flag(here))),
);

/// In the library full layers see their whole block always.
const SEES_BLOCK: Key = keys::SEES_BLOCK.with_read(|config, _, _| {
    let said = config.get("is_causal").is_some();
    let causal = is_causal_where_it_slides(config)?;
    Ok(json!(!said && causal && is_mixed(config)?))
});

fn is_causal_where_it_slides(config: &Config) -> Result<bool> {
    let slides = sliding(config, false)? != Sliding::No;
    // What DFlash 2 takes where nothing is said, the library and vLLM agree upon.
    let unsaid = is_of(config, Family::DFlash2) || config.reading().sees_ahead;
    Ok(slides && !config.flag(NON_CAUSAL, unsaid)?)
}

/// Whether a folder says that it is of a family that the library knows.
fn is_of(config: &Config, family: Family) -> bool {
    let kind = config.get(MODEL_TYPE);
    kind.is_some_and(|kind| *kind == kind_of(family)[0])
}

/// Every way in which a folder can be meant: of DFlash the library and vLLM disagree on what a block sees where layers slide and nothing
/// is said.
fn meanings(config: &Config, captured_layers: Option<&[usize]>) -> Result<Vec<Meaning>> {
    let mut found = (Quirks::NONE.meanings)(config, captured_layers)?;
    let is_said = [NON_CAUSAL, "is_causal"]
        .iter()
        .any(|key| config.get(key).is_some());
    if is_said || !is_of(config, Family::DFlash) || sliding(config, false)? == Sliding::No {
        return Ok(found);
    }
    let others = found.clone().into_iter().map(|meaning| Meaning {
        reading: Reading {
            sees_ahead: true,
            ..meaning.reading
        },
        text: "places of a block also see those behind them, as vLLM from 0.33 on takes it".into(),
    });
    let others: Vec<Meaning> = others.collect();
    for meaning in &mut found {
        meaning.text =
            "places of a block see only those before them, as the library takes it".into();
    }
    found.extend(others);
    Ok(found)
}

/// What the library calls a drafter with these parts.
fn kind(settings: &Settings) -> [&'static str; 2] {
    kind_of(Family::of(settings))
}

fn kind_of(family: Family) -> [&'static str; 2] {
    match family {
        Family::DFlash2 => KINDS[1],
        Family::DSpark => KINDS[2],
        Family::XPress => KINDS[3],
        Family::DFlash | Family::Domino | Family::LiLiCorr | Family::Own => KINDS[0],
    }
}

fn check_settings(settings: &Settings) -> Check {
    no_sinks(settings)?;
    let parts = match Family::of(settings) {
        Family::DFlash | Family::DFlash2 | Family::DSpark | Family::XPress => None,
        Family::Domino => Some("those of Domino"),
        Family::LiLiCorr => Some("those of LiLiCorr"),
        Family::Own => Some("a mixture that no engine knows"),
    };
    if let Some(parts) = parts {
        let expected = "those of DFlash, DFlash 2, DSpark or XPress".to_owned();
        return Err(("parts", expected, parts.to_owned()));
    }
    let (rank, d_ff) = (settings.size("markov_rank"), settings.size("markov_d_ff"));
    if is_xpress(settings) && !d_ff.is_multiple_of(rank) {
        let expected = format!("a multiple of `markov_rank` {rank}, in which the library counts");
        return Err(("markov_d_ff", expected, d_ff.to_string()));
    }
    let slide = settings.size("window") > 0;
    // The library makes blocks causal where layers slide, vLLM in all layers.
    if settings.flag("causal") && !(slide && settings.sizes("full_layers").is_empty()) {
        let which = if slide { "some layers" } else { "layers" };
        let expected = format!("false where {which} do not slide");
        return Err(("causal", expected, "true".to_owned()));
    }
    Ok(())
}

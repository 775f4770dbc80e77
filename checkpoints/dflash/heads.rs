//! The keys of the heads of DSpark and Domino.

use serde_json::{Value, json};

use crate::config::Config;
use crate::dflash::family::{Family, is_domino, is_of_speculators};
use crate::dflash::variants::{SHIFTED, names_domino, names_dspark, place};
use crate::dialect::key::{Key, Otherwise};
use crate::dialect::settings::Settings;
use crate::error::Result;

/// Where the width of the bias by the token before may stand, and whether the guess reads that token's code.
const MARKOV_RANK: &[&str] = &[
    "markov_rank",
    "dspark_markov_rank",
    "dflash_config.markov_rank",
];
const WITH_MARKOV: &[&str] = &[
    "confidence_head_with_markov",
    "dflash_config.confidence_head_with_markov",
];

/// Whether the anchor's own place predicts.
pub(super) const SAMPLES_FROM_ANCHOR: Key = Key::code(
    "sample_from_anchor",
    "sample_from_anchor",
    samples_from_anchor,
    |settings, here| has_heads(settings).then(|| json!(settings.flag(here))),
);
/// Width of the bias by the token before.
pub(super) const RANK: Key = Key::code(
    "markov_rank",
    "markov_rank",
    markov_rank,
    |settings, here| has_heads(settings).then(|| json!(settings.size(here))),
)
.also(&["dspark_markov_rank", "dflash_config.markov_rank"]);
/// Whether there is a head that guesses how likely a draft is kept.
pub(super) const CONFIDENCE: Key = Key::code(
    "enable_confidence_head",
    "confidence",
    confidence,
    |settings, here| has_heads(settings).then(|| json!(settings.flag(here))),
)
.also(&[
    "dflash_config.enable_confidence_head",
    "dflash_config.use_confidence_head",
]);
/// Whether that reads the code of the token before.
pub(super) const CONFIDENCE_WITH_MARKOV: Key =
    Key::told("confidence_head_with_markov", |settings, _| {
        has_heads(settings).then(|| json!(has_markov(settings)))
    });
/// What the bias reads.
pub(super) const KIND: Key = Key::code(
    "markov_head_type",
    "markov",
    markov_type,
    |settings, here| {
        (has_heads(settings) && has_markov(settings)).then(|| json!(settings.word(here)))
    },
)
.also(&["dspark_markov_head_type", "dflash_config.markov_head_type"]);

/// vLLM reads what says how DSpark drafts beside the table of DFlash.
pub(super) const HEADS: &[Key] = &[
    SAMPLES_FROM_ANCHOR,
    RANK,
    CONFIDENCE,
    CONFIDENCE_WITH_MARKOV,
    KIND,
];

/// How Domino's head is told. It predicts from the anchor on where labels are shifted.
pub(super) const DOMINO: &[Key] = &[
    Key::told("projector_type", |settings, _| {
        is_domino(settings).then(|| json!("domino"))
    }),
    Key::told("shift_label", |settings, _| {
        is_domino(settings).then(|| json!(settings.flag("sample_from_anchor")))
    }),
    Key::code(
        "pure_draft_prefix_len",
        "markov_from",
        |config, key, _| match names_domino(config) {
            false => Ok(Value::Null),
            true => {
                let key = place(config, key);
                match config.get(&key) {
                    None => Ok(json!(0)),
                    Some(value) if *value == json!(0) => Ok(json!(0)),
                    Some(_) => Ok(json!(config.size(&key, None)?)),
                }
            }
        },
        |settings, here| is_domino(settings).then(|| json!(settings.size(here))),
    ),
    Key::code(
        "gru_hidden_dim",
        "markov_state",
        |config, key, _| match names_domino(config) {
            false => Ok(Value::Null),
            true => Ok(json!(config.size(&place(config, key), None)?)),
        },
        |settings, here| is_domino(settings).then(|| json!(settings.size(here))),
    ),
    Key::told(EMBEDDED, |settings, _| {
        is_domino(settings).then(|| json!(settings.size("markov_rank")))
    }),
];
/// What Domino calls the width between its head's two matrices.
const EMBEDDED: &str = "emb_dim";

/// The name in a folder of a tensor of Domino's head.
pub(super) fn stored(settings: &Settings, name: &str) -> Option<String> {
    let mut names = NAMES_OF_DOMINO.iter().filter(|_| is_domino(settings));
    let found = names.find(|[_, here]| *here == name);
    found.map(|[there, _]| (*there).to_owned())
}

/// Names of the tensors of Domino's head: in folders, and here.
pub(super) const NAMES_OF_DOMINO: [[&str; 2]; 4] = [
    [
        "prefix_gru.weight_ih_l0",
        "markov_head.prefix_gru.input.weight",
    ],
    [
        "prefix_gru.weight_hh_l0",
        "markov_head.prefix_gru.hidden.weight",
    ],
    ["embed_proj.0.weight", "markov_head.joint_proj.weight"],
    ["embed_proj.2.weight", "markov_head.markov_w2.weight"],
];

/// Whether a drafter has any of DSpark's.
pub(super) fn has_heads(settings: &Settings) -> bool {
    let any =
        settings.flag("sample_from_anchor") || has_markov(settings) || settings.flag("confidence");
    any && Family::of(settings) != Family::Domino
}

fn has_markov(settings: &Settings) -> bool {
    settings.size("markov_rank") > 0
}

fn markov_rank(config: &Config, key: &'static str, _: Otherwise) -> Result<Value> {
    if names_domino(config) {
        return Ok(json!(config.size(&place(config, EMBEDDED), None)?));
    }
    match config.get(key) {
        None => Ok(json!(0)),
        Some(value) if *value == json!(0) => Ok(json!(0)),
        Some(_) => Ok(json!(config.size(key, None)?)),
    }
}

fn markov_type(config: &Config, key: &'static str, _: Otherwise) -> Result<Value> {
    if names_domino(config) {
        return Ok(json!("domino"));
    }
    let rank = config.one_key(MARKOV_RANK)?;
    if markov_rank(config, rank, Otherwise::Required)? == json!(0) {
        return Ok(Value::Null);
    }
    Ok(json!(config.one_of(key, &["vanilla", "gated", "rnn"])?))
}

/// Whether there is a head that guesses how likely a draft is kept: the tensors say it where no key does.
fn confidence(config: &Config, key: &'static str, _: Otherwise) -> Result<Value> {
    let there = config.tensor("confidence_head.proj.weight").is_some();
    let confidence = config.flag(key, there)?;
    let rank = config.one_key(MARKOV_RANK)?;
    let markov = markov_rank(config, rank, Otherwise::Required)? != json!(0);
    let with_markov = config.one_key(WITH_MARKOV)?;
    if confidence && config.flag(with_markov, markov)? != markov {
        let expected = format!("`{markov}`, as this program's heads are");
        return Err(config.wrong(with_markov, expected));
    }
    Ok(json!(confidence))
}

/// Whether the anchor's own place predicts: where nothing is said, in DSpark as its authors write it.
fn samples_from_anchor(config: &Config, key: &'static str, _: Otherwise) -> Result<Value> {
    if names_domino(config) {
        return Ok(json!(config.flag(key, config.flag(SHIFTED, false)?)?));
    }
    let names = config.folder().config()["architectures"].as_array();
    let mut names = names.into_iter().flatten().filter_map(Value::as_str);
    let is_dspark =
        names_dspark(config) || names.any(|name| Family::named(name) == Some(Family::DSpark));
    let by_authors = is_dspark && !is_of_speculators(config.folder().config());
    let unsaid = by_authors && !config.flag("dspark_bonus_anchor", false)?;
    Ok(json!(config.flag(key, unsaid)?))
}

//! The keys of the heads of DSpark, Domino and XPress.

use serde_json::{Value, json};

use crate::config::Config;
use crate::dflash::family::{Family, is_domino, is_of_speculators, is_xpress};
use crate::dflash::variants::{SHIFTED, names_domino, names_dspark, names_xpress, place};
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

/// How XPress' head is told to vLLM.
pub(super) const XPRESS: &[Key] = &[
    XPRESS_RANK,
    Key::code(
        "xpress_mlp_hidden",
        "markov_d_ff",
        |config, key, _| of_xpress(config, key, 512),
        |settings, here| is_xpress(settings).then(|| json!(settings.size(here))),
    ),
    Key::told("xpress_block_size", |settings, _| {
        is_xpress(settings).then(|| json!(settings.size("block_size")))
    }),
    Key::code(
        "xpress_num_passes",
        "markov_passes",
        |config, key, _| of_xpress(config, key, PASSES),
        |settings, here| is_xpress(settings).then(|| json!(settings.size(here))),
    ),
];
/// The same for the speculators library, which counts the width inside the feed-forward part in ranks.
pub(super) const XPRESS_OF_SPECULATORS: &[Key] = &[
    XPRESS_RANK,
    Key::code(
        "xpress_mlp_ratio",
        "markov_d_ff",
        |config, key, _| {
            let ratio = of_xpress(config, key, 2)?;
            let rank = of_xpress(config, RANK_OF_XPRESS, RANKS)?;
            let sizes = ratio.as_u64().zip(rank.as_u64());
            Ok(json!(sizes.map(|(ratio, rank)| ratio * rank)))
        },
        |settings, here| {
            let rank = settings.size("markov_rank").max(1);
            is_xpress(settings).then(|| json!(settings.size(here) / rank))
        },
    ),
    Key::code(
        "num_jacobi_passes",
        "markov_passes",
        |config, key, _| of_xpress(config, key, PASSES),
        |settings, here| is_xpress(settings).then(|| json!(settings.size(here))),
    ),
];
const XPRESS_RANK: Key = Key::told(RANK_OF_XPRESS, |settings, _| {
    is_xpress(settings).then(|| json!(settings.size("markov_rank")))
});
/// What both call the rank.
const RANK_OF_XPRESS: &str = "xpress_rank";
/// The rank that both take where nothing is said, and the passes.
const RANKS: usize = 256;
const PASSES: usize = 6;

/// A size of XPress' head, where a folder has one.
fn of_xpress(config: &Config, key: &str, unsaid: usize) -> Result<Value> {
    if names_xpress(config) {
        Ok(json!(config.size(key, Some(unsaid))?))
    } else {
        Ok(Value::Null)
    }
}

/// The name in a folder of a tensor of Domino's or XPress' head.
pub(super) fn stored(settings: &Settings, name: &str) -> Option<String> {
    if is_xpress(settings) {
        return there(&NAMES_OF_XPRESS, name);
    }
    let mut names = NAMES_OF_DOMINO.iter().filter(|_| is_domino(settings));
    let found = names.find(|[_, here]| *here == name);
    found.map(|[there, _]| (*there).to_owned())
}

/// The same in a folder of the speculators library.
pub(super) fn stored_by_speculators(settings: &Settings, name: &str) -> Option<String> {
    if is_xpress(settings) {
        return there(&NAMES_OF_XPRESS_BY_SPECULATORS, name);
    }
    stored(settings, name)
}

/// A name by the first of these pairs that it begins with.
fn there(names: &[[&str; 2]], name: &str) -> Option<String> {
    let mut names = names.iter();
    names.find_map(|[there, here]| Some(format!("{there}{}", name.strip_prefix(here)?)))
}

/// Beginnings of the names of the tensors of XPress' head: in folders, and here.
pub(super) const NAMES_OF_XPRESS: [[&str; 2]; 7] = [
    ["xpress_head.w1.", "markov_head.markov_w1."],
    ["xpress_head.w2.", "markov_head.markov_w2."],
    ["xpress_head.mix.L", "markov_head.refiner.mix_l"],
    [
        "xpress_head.mlp.gate_proj.",
        "markov_head.refiner.mlp_gate.",
    ],
    ["xpress_head.mlp.up_proj.", "markov_head.refiner.mlp_up."],
    [
        "xpress_head.mlp.down_proj.",
        "markov_head.refiner.mlp_down.",
    ],
    ["xpress_head.", "markov_head.refiner."],
];
/// The same in folders of the speculators library.
pub(super) const NAMES_OF_XPRESS_BY_SPECULATORS: [[&str; 2]; 3] = [
    ["refiner_head.token_embed.", "markov_head.markov_w1."],
    ["refiner_head.readout.", "markov_head.markov_w2."],
    ["refiner_head.", "markov_head.refiner."],
];

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
    any && !matches!(Family::of(settings), Family::Domino | Family::XPress)
}

fn has_markov(settings: &Settings) -> bool {
    settings.size("markov_rank") > 0
}

fn markov_rank(config: &Config, key: &'static str, _: Otherwise) -> Result<Value> {
    if names_domino(config) {
        return Ok(json!(config.size(&place(config, EMBEDDED), None)?));
    }
    if names_xpress(config) {
        return of_xpress(config, RANK_OF_XPRESS, RANKS);
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
    if names_xpress(config) {
        return Ok(json!("xpress"));
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

//! What authors and trainers of block drafters write in several ways, and what their drafters may have that those here have
//! not, which is refused: it would be read as something else.

use serde_json::{Value, json};

use crate::config::Config;
use crate::dflash::family::{DOMINO, Family};
use crate::error::{Error, Result};
use crate::folder::ModelFolder;
use crate::regular;
use crate::speculators::MODEL_TYPE;

/// What SpecForge and ModelOpt call the parts behind the layers: those of DSpark, of Domino or of LiLiCorr, whatever the architecture
/// says.
const PARTS: &str = "dflash_config.projector_type";
/// Whether a place of a block predicts the token behind its own, as these two write it.
pub(super) const SHIFTED: &str = "dflash_config.shift_label";

/// Keys of what the drafters here do not compute, and what each must be if it is there.
const NEUTRAL: [(&str, Value); 2] = [
    ("use_aux_hidden_state", Value::Bool(true)),
    ("attention_value_scale", Value::Null),
];
/// The same for keys that may stand outside of `dflash_config` too.
const NEUTRAL_ANYWHERE: [(&str, f64); 4] = [
    ("output_multiplier", 1.0),
    ("input_embedding_scale", 1.0),
    ("logit_scale", 1.0),
    ("final_logit_softcapping", 0.0),
];
/// Switches for rotary positions, which must be those of Hugging Face.
const ROTARY: [&str; 2] = ["is_neox_style", "rope_is_neox_style"];

/// A mask's embedding of its own, in a pickle.
const MASK_EMBEDDING: &str = "mask_embedding.pt";

/// Refuses what a drafter computes besides, and a folder whose tensors are not all of it.
pub(super) fn check(folder: &ModelFolder, config: &Config) -> Result<()> {
    config.check_quantisation()?;
    if config
        .get("dflash_config")
        .is_some_and(|table| !table.is_object())
    {
        return Err(config.wrong("dflash_config", "a table"));
    }
    let hidden = config.size("hidden_size", None)?;
    if config.size("target_hidden_size", Some(hidden))? != hidden {
        return Err(config.wrong(
            "target_hidden_size",
            format!("`{hidden}`, as `hidden_size`"),
        ));
    }
    let (anchor, bonus) = ("sample_from_anchor", "dspark_bonus_anchor");
    if config.get(bonus).is_some()
        && config.flag(anchor, !config.flag(bonus, false)?)? == config.flag(bonus, false)?
    {
        return Err(config.wrong(bonus, format!("the opposite of `{anchor}`")));
    }
    check_parts(config, anchor)?;
    let mut neutral: Vec<(String, Value)> = Vec::new();
    for (key, value) in NEUTRAL {
        neutral.push((format!("dflash_config.{key}"), value));
    }
    for (key, value) in NEUTRAL_ANYWHERE {
        neutral.push((format!("dflash_config.{key}"), json!(value)));
        neutral.push((key.to_owned(), json!(value)));
    }
    for key in ROTARY {
        neutral.push((key.to_owned(), json!(true)));
    }
    neutral.push(("attention_bias".into(), json!(false)));
    neutral.push(("hidden_act".into(), json!("silu")));
    for (key, value) in neutral {
        let same = |found: &Value| {
            *found == value || found.as_f64().is_some_and(|found| value == json!(found))
        };
        if config.get(&key).is_some_and(|found| !same(found)) {
            return Err(config.wrong(&key, format!("`{value}` or nothing")));
        }
    }
    if regular::is_there(&folder.path().join(MASK_EMBEDDING)) {
        Err(Error::Folder {
            path: folder.path().join(MASK_EMBEDDING),
            reason: "a drafter with its own embedding of the mask token is not supported".into(),
        })
    } else {
        Ok(())
    }
}

/// Refuses parts that are not known, and a place that would predict another token than a key of `anchor` says.
fn check_parts(config: &Config, anchor: &str) -> Result<()> {
    let all = ["dspark", "domino", LILICORR];
    let known = |parts: &Value| all.iter().any(|known| parts == known);
    if config.get(PARTS).is_some_and(|parts| !known(parts)) {
        let expected = all.map(|parts| format!("`\"{parts}\"`")).join(", ");
        return Err(config.wrong(PARTS, format!("{expected} or nothing")));
    }
    if names_lattice(config) && !config.flag(ENABLED, true)? {
        return Err(config.wrong(ENABLED, "`true` or nothing"));
    }
    let shifted = config.flag(SHIFTED, false)?;
    let unsaid = match names_domino(config) {
        true => shifted,
        false => names_dspark(config),
    };
    if config.get(SHIFTED).is_some() && shifted != config.flag(anchor, unsaid)? {
        let expected =
            format!("the value of `{anchor}`, or without it `true` for DSpark and else `false`");
        return Err(config.wrong(SHIFTED, expected));
    }
    Ok(())
}

/// The first layer of several that slides by Qwen's own keys, by which Transformers types layers: those from `max_window_layers` on,
/// 28 unless it is there.
pub(super) fn first_that_slides(config: &Config, layers: usize) -> Result<Option<usize>> {
    const FIRST: &str = "max_window_layers";
    if !config.flag("use_sliding_window", false)? || config.get("sliding_window").is_none() {
        return Ok(None);
    }
    match config.get(FIRST).map_or(Some(28), Value::as_u64) {
        Some(first) => Ok(usize::try_from(first).ok().filter(|&first| first < layers)),
        None => Err(config.wrong(FIRST, "a number of layers".to_owned())),
    }
}

/// Whether a folder says that its parts are those of Domino.
pub(super) fn names_domino(config: &Config) -> bool {
    let names = config.folder().config()["architectures"].as_array();
    let mut names = names.into_iter().flatten();
    config.get(PARTS).is_some_and(|parts| parts == "domino") || names.any(|name| name == DOMINO)
}

/// Whether a folder says that its head is XPress'.
pub(super) fn names_xpress(config: &Config) -> bool {
    let root = config.folder().config();
    let names = root["architectures"].as_array();
    let mut names = names.into_iter().flatten().filter_map(Value::as_str);
    root[MODEL_TYPE] == "xpress"
        || config.get("xpress_rank").is_some()
        || names.any(|name| Family::named(name) == Some(Family::XPress))
}

/// Whether a folder says that its drafter has a lattice of paths.
pub(super) fn names_lattice(config: &Config) -> bool {
    let names = config.folder().config()["architectures"].as_array();
    let mut names = names.into_iter().flatten().filter_map(Value::as_str);
    names.any(|name| Family::named(name) == Some(Family::LiLiCorr))
        || config.get(PARTS).is_some_and(|parts| parts == LILICORR)
        || config.get(ENABLED).is_some_and(|enabled| *enabled == true)
}

/// What its parts are called where it is said beside the architecture.
const LILICORR: &str = "lilicorr";
/// Whether it is on, where that is said.
const ENABLED: &str = "dflash_config.lilicorr_enabled";

/// Whether a folder says that its parts are those of DSpark.
pub(super) fn names_dspark(config: &Config) -> bool {
    config.get(PARTS).is_some_and(|parts| parts == "dspark")
}

/// Where a size of a part stands: in a table of this layout, or at the top.
pub(super) fn place(config: &Config, key: &'static str) -> String {
    let nested = format!("dflash_config.{key}");
    if config.get(&nested).is_some() || config.get(key).is_none() {
        nested
    } else {
        key.to_owned()
    }
}

//! The lattice of LiLiCorr in files, which vLLM, SGLang and Model Optimizer have alike (<https://arxiv.org/abs/2608.20530>).

use serde_json::{Value, json};

use crate::config::Config;
use crate::dflash::variants::{names_lattice, place};
use crate::dialect::description::{Keys, of_table};
use crate::dialect::key::{Key, Otherwise};
use crate::dialect::settings::Settings;
use crate::error::Result;

const TOP_K: &str = "lilicorr_candidate_topk";
const WIDTH: &str = "lilicorr_hidden_size";
const RATIO: &str = "lilicorr_mlp_ratio";

/// Its table.
pub(super) const LATTICE: Keys = Keys {
    under: "dflash_config",
    ..of_table("lattice", names_lattice, KEYS)
};

/// No key may be left out but the width: some change what is computed and no shape.
const KEYS: &[Key] = &[
    Key::told("lilicorr_enabled", |_, _| Some(json!(true))),
    Key::code(TOP_K, "lattice.top_k", size, copied),
    // 0 stands for the drafter's.
    Key::code(
        WIDTH,
        "lattice.d_model",
        |config, _, _| Ok(json!(width(config)?)),
        copied,
    ),
    Key::code("lilicorr_num_layers", "lattice.layers", size, copied),
    Key::code("lilicorr_num_heads", "lattice.heads", size, copied),
    Key::code(
        RATIO,
        "lattice.d_ff",
        |config, key, _| {
            let ratio = number(config, key)?;
            // As engines round it.
            match (width(config)? as f64 * ratio) as usize {
                0 => Err(config.wrong(&place(config, key), "a number of at least 1 / the width")),
                d_ff => Ok(json!(d_ff)),
            }
        },
        |settings, here| {
            let (d_ff, width) = (settings.size(here), settings.size("lattice.d_model").max(1));
            let ratio = d_ff as f64 / width as f64;
            let exact = (width as f64 * ratio) as usize == d_ff;
            Some(json!(if exact { ratio } else { ratio.next_up() }))
        },
    ),
    Key::code("lilicorr_factor_dim", "lattice.rank", size, copied),
    Key::code(
        "lilicorr_logit_scale",
        "lattice.scale",
        |config, key, _| Ok(json!(number(config, key)?)),
        copied,
    ),
    Key::code(
        "lilicorr_vector_eps",
        "lattice.epsilon",
        |config, key, _| Ok(json!(number(config, key)?)),
        copied,
    ),
];

fn copied(settings: &Settings, here: &str) -> Option<Value> {
    settings.get(here).cloned()
}

fn size(config: &Config, key: &'static str, _: Otherwise) -> Result<Value> {
    Ok(json!(config.size(&place(config, key), None)?))
}

fn number(config: &Config, key: &'static str) -> Result<f64> {
    let key = place(config, key);
    match config.get(&key) {
        Some(_) => config.number(&key, 1.0),
        None => Err(config.wrong(&key, "a number above 0")),
    }
}

/// The width of its layers.
fn width(config: &Config) -> Result<usize> {
    let (key, own) = (place(config, WIDTH), config.size("hidden_size", None)?);
    match config.get(&key) {
        Some(value) if *value == json!(0) => Ok(own),
        _ => config.size(&key, Some(own)),
    }
}

/// Beginnings of the names of its tensors: in folders, and here.
const NAMES: [&str; 2] = ["lilicorr.", "lattice."];
/// Parts of their names in folders, and here.
const PARTS_OF_NAMES: [[&str; 2]; 2] = [
    [".attn.in_proj_weight", ".attn.in_proj.weight"],
    [".attn.in_proj_bias", ".attn.in_proj.bias"],
];
/// The same in folders of earlier versions of Model Optimizer, which number the layers of feed-forward parts.
const NUMBERED: [[&str; 2]; 5] = [
    ["feature_mlp.0.", "feature_norm."],
    ["feature_mlp.1.", "feature_mlp.up_proj."],
    ["feature_mlp.3.", "feature_mlp.down_proj."],
    [".mlp.0.", ".mlp.up_proj."],
    [".mlp.2.", ".mlp.down_proj."],
];

/// The name here of one of its tensors in a folder.
pub(super) fn canonical(stored: &str) -> Option<String> {
    let [there, here] = NAMES;
    let name = format!("{here}{}", stored.strip_prefix(there)?);
    let all = PARTS_OF_NAMES.iter().chain(&NUMBERED);
    Some(all.fold(name, |name, [there, here]| name.replace(there, here)))
}

/// The name in a folder of one of its tensors here.
pub(super) fn stored(name: &str) -> Option<String> {
    let [there, here] = NAMES;
    let name = format!("{there}{}", name.strip_prefix(here)?);
    let all = PARTS_OF_NAMES.iter();
    Some(all.fold(name, |name, [there, here]| name.replace(here, there)))
}

/// Whether engines take so many candidates.
pub(super) fn fits_kernels(settings: &Settings) -> bool {
    let top_k = settings.size("lattice.top_k");
    top_k.is_power_of_two() && top_k <= 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_found_by_the_names_of_all_versions_and_written_by_those_of_engines() {
        for (there, here) in [
            ("lilicorr.token_proj.weight", "lattice.token_proj.weight"),
            (
                "lilicorr.layers.1.attn.in_proj_bias",
                "lattice.layers.1.attn.in_proj.bias",
            ),
            (
                "lilicorr.layers.0.mlp.up_proj.bias",
                "lattice.layers.0.mlp.up_proj.bias",
            ),
            (
                "lilicorr.feature_norm.weight",
                "lattice.feature_norm.weight",
            ),
        ] {
            assert_eq!(canonical(there).as_deref(), Some(here));
            assert_eq!(stored(here).as_deref(), Some(there));
        }
        for (there, here) in [
            (
                "lilicorr.layers.0.mlp.2.weight",
                "lattice.layers.0.mlp.down_proj.weight",
            ),
            ("lilicorr.feature_mlp.0.bias", "lattice.feature_norm.bias"),
            (
                "lilicorr.feature_mlp.3.bias",
                "lattice.feature_mlp.down_proj.bias",
            ),
        ] {
            assert_eq!(canonical(there).as_deref(), Some(here));
        }
        assert_eq!(canonical("layers.0.mlp.up_proj.weight"), None);
    }

    #[test]
    fn a_ratio_that_is_written_is_read_as_the_same_width() {
        let write = KEYS.iter().find(|key| key.is_of("lattice.d_ff")).unwrap();
        for width in 1..200 {
            for d_ff in 1..300 {
                let mut settings = Settings::default();
                settings.set("lattice.d_model", width);
                settings.set("lattice.d_ff", d_ff);
                let mut config = Value::Null;
                write.write("", &settings, &mut config);
                let ratio = config[RATIO].as_f64().unwrap();
                assert_eq!((width as f64 * ratio) as usize, d_ff, "{width}");
            }
        }
    }
}

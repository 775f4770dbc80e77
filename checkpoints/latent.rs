//! Latent attention (DeepSeek-V2, <https://arxiv.org/abs/2405.04434>, section 2.1) in files: its sizes, its positions, and the order of
//! its rows.
//!
//! In files the dimensions of a head that turn stand behind the others, and neighbours turn; here they stand before them, and halves
//! turn.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::absent::DEFAULT_THETA;
use crate::config::{Config, Rope};
use crate::dialect::key::Key;
use crate::dialect::llama::D_HEAD;
use crate::dialect::settings::Settings;
use crate::error::{Error, Result};
use crate::mismatch::Mismatch;
use crate::tensors::NamedTensor;

/// Whether a drafter has it.
pub(crate) fn is_latent(settings: &Settings) -> bool {
    settings.get("latent").is_some()
}

/// Whether a configuration has latent attention.
pub(crate) fn has_latent(config: &Config) -> bool {
    config.get(KV_RANK).is_some()
}

/// Width of a head of grouped attention.
pub(crate) const GROUPED_WIDTH: Key = Key::code(
    "head_dim",
    "d_head",
    |config, _, _| match has_latent(config) {
        true => Ok(Value::Null),
        false => D_HEAD.value(config),
    },
    |settings, here| {
        let grouped = !is_latent(settings);
        grouped.then(|| json!(settings.size(here)))
    },
);

const KV_RANK: &str = "kv_lora_rank";
const Q_RANK: &str = "q_lora_rank";
/// The table of latent attention.
pub(crate) const LATENT: &[Key] = &[
    Key::size(KV_RANK, "latent.kv_rank"),
    // Null where queries come out of no state.
    Key::code(
        Q_RANK,
        "latent.q_rank",
        |config, key, _| match config.get(key) {
            None => Ok(json!(0)),
            Some(_) => Ok(json!(config.size(key, None)?)),
        },
        |settings, here| {
            let rank = settings.size(here);
            Some(if rank == 0 { Value::Null } else { json!(rank) })
        },
    ),
    Key::size("qk_nope_head_dim", "latent.d_fixed"),
    Key::size("qk_rope_head_dim", "latent.d_turned"),
    Key::size("v_head_dim", "latent.d_value"),
    // Written among the parameters of YaRN.
    Key::size("rope_parameters", "latent.scale")
        .with_read(|config, _, _| Ok(json!(score_scale(config)?)))
        .unwritten(),
];

/// Rotary positions as a configuration has them, as they are known here: the correction of angles by its usual name, that of scores
/// apart.
pub(crate) fn read_rope(config: &Config, mut rope: Rope) -> Rope {
    if has_latent(config)
        && let Some(scaling) = rope.scaling.as_mut().and_then(Value::as_object_mut)
        && let Some(corrections) = Corrections::read(scaling)
    {
        scaling.remove("mscale");
        scaling.remove("mscale_all_dim");
        scaling.insert("attention_factor".to_owned(), json!(corrections.of_angles));
    }
    rope
}

/// What YaRN multiplies cosines and sines with, and scores, by the names of DeepSeek.
struct Corrections {
    of_angles: f64,
    of_scores: f64,
}

impl Corrections {
    fn read(scaling: &Map<String, Value>) -> Option<Self> {
        let number = |key: &str| scaling.get(key).and_then(Value::as_f64);
        if scaling.get("rope_type").and_then(Value::as_str) != Some("yarn") {
            return None;
        }
        // By a smaller factor nothing is corrected.
        let factor = number("factor")?.max(1.0);
        let scale = |by: Option<f64>, otherwise| 1.0 + 0.1 * by.unwrap_or(otherwise) * factor.ln();
        let (angles, scores) = (number("mscale"), number("mscale_all_dim"));
        let all = scale(scores, 0.0);
        Some(Self {
            of_angles: scale(angles, 1.0) / all,
            of_scores: all * all,
        })
    }
}

/// What scores are multiplied with beside the root of their width.
fn score_scale(config: &Config) -> Result<f64> {
    let scaling = config.rope_of_share(DEFAULT_THETA)?.scaling;
    let table = scaling.as_ref().and_then(Value::as_object);
    Ok(table
        .and_then(Corrections::read)
        .map_or(1.0, |found| found.of_scores))
}

/// The rotary positions with both corrections by the names of DeepSeek, where attention is latent.
pub(crate) fn written_rope(settings: &Settings) -> Option<Rope> {
    let mut rope = settings.rope()?;
    let of_scores = settings.get("latent.scale").and_then(Value::as_f64);
    if let (Some(of_scores), Some(scaling)) = (of_scores, &mut rope.scaling)
        && let Some(factor) = scaling["factor"].as_f64()
        && scaling["rope_type"] == "yarn"
        && factor > 1.0
    {
        let usual = 1.0 + 0.1 * factor.ln();
        let of_angles = scaling["attention_factor"].as_f64().unwrap_or(usual);
        let by = |scale: f64| json!((scale - 1.0) / (0.1 * factor.ln()));
        let all = of_scores.sqrt();
        scaling["mscale"] = by(of_angles * all);
        scaling["mscale_all_dim"] = by(all);
        scaling.as_object_mut()?.remove("attention_factor");
    }
    Some(rope)
}

/// The positions as engines read them, new ones and old ones.
pub(crate) const ROPE_PARAMETERS: Key = Key::told("rope_parameters", |settings, _| {
    Some(written_rope(settings)?.parameters())
});
pub(crate) const ROPE_SCALING: Key = Key::told("rope_scaling", |settings, _| {
    written_rope(settings)?.scaling
});

/// How wide what attention reads is in the layer of a tensor.
type Input = fn(&Settings, &str) -> usize;

/// Puts the rows of tensors that were read from `path` into the order that they have here.
///
/// # Errors
/// A tensor has another shape than the settings say.
pub(crate) fn read_rows(
    path: &Path,
    settings: &Settings,
    tensors: &mut [NamedTensor],
    d_input: Input,
) -> Result<()> {
    turned_rows(path, (settings, d_input), tensors, |ours, file| {
        (ours, file)
    })
}

/// Puts the rows of tensors, whose shapes are those of the settings, into the order that they have in files.
pub(crate) fn write_rows(settings: &Settings, tensors: &mut [NamedTensor], d_input: Input) {
    let path = Path::new("");
    let reordered = turned_rows(path, (settings, d_input), tensors, |ours, file| {
        (file, ours)
    });
    debug_assert!(reordered.is_ok(), "{reordered:?}");
}

/// Puts rows of the matrices of latent attention into another order: `order` is given the places of a row here and in files, and
/// gives that where it goes to and that where it comes from.
fn turned_rows(
    path: &Path,
    (settings, d_input): (&Settings, Input),
    tensors: &mut [NamedTensor],
    order: fn(usize, usize) -> (usize, usize),
) -> Result<()> {
    if !is_latent(settings) {
        return Ok(());
    }
    let [fixed, turned, kv_rank, q_rank] = ["d_fixed", "d_turned", "kv_rank", "q_rank"]
        .map(|key| settings.size(&format!("latent.{key}")));
    let heads = settings.size("heads");
    // The place in files of the dimension that turns and is at this place here.
    let neighbour = |at: usize| match at < turned / 2 {
        true => 2 * at,
        false => 2 * (at - turned / 2) + 1,
    };
    let width = fixed + turned;
    let of_query = |row: usize| {
        let (head, at) = (row / width * width, row % width);
        head + match at < turned {
            true => fixed + neighbour(at),
            false => at - turned,
        }
    };
    let of_state = |row: usize| match row < kv_rank {
        true => row,
        false => kv_rank + neighbour(row - kv_rank),
    };
    for tensor in tensors {
        type InFiles<'a> = &'a dyn Fn(usize) -> usize;
        let ends_with = |name: &str| tensor.name.ends_with(&format!("self_attn.{name}.weight"));
        let read = d_input(settings, &tensor.name);
        let (shape, in_files): ([usize; 2], InFiles) = if ends_with("q_b_proj") {
            ([heads * width, q_rank], &of_query)
        } else if ends_with("q_proj") {
            ([heads * width, read], &of_query)
        } else if ends_with("kv_a_proj_with_mqa") {
            ([kv_rank + turned, read], &of_state)
        } else {
            continue;
        };
        if tensor.shape != shape {
            return Err(Error::Shape {
                name: tensor.name.clone(),
                path: path.to_path_buf(),
                mismatch: Mismatch::new(format!("{shape:?}"), format!("{:?}", tensor.shape)),
            });
        }
        let rows = shape[0];
        let length = tensor.bytes.len() / rows;
        let mut bytes = vec![0; tensor.bytes.len()];
        for here in 0..rows {
            let (to, from) = order(here, in_files(here));
            bytes[to * length..(to + 1) * length]
                .copy_from_slice(&tensor.bytes[from * length..(from + 1) * length]);
        }
        tensor.bytes = bytes;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        let mut settings = Settings::default();
        settings.set("latent", json!({"d_fixed": 1, "d_turned": 4, "scale": 1.5}));
        settings
    }

    #[test]
    fn corrections_of_yarn_are_written_as_they_were_read() {
        let scaling =
            json!({"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.8});
        let found = Corrections::read(scaling.as_object().unwrap()).unwrap();
        let all = 1.0 + 0.08 * 40f64.ln();
        assert!((found.of_scores - all * all).abs() < 1e-12);
        assert!((found.of_angles - (1.0 + 0.1 * 40f64.ln()) / all).abs() < 1e-12);
        let mut settings = settings();
        let read =
            json!({"rope_type": "yarn", "factor": 40.0, "attention_factor": found.of_angles});
        settings.set_rope(&Rope {
            rope_theta: 1e4,
            scaling: Some(read),
        });
        let mut latent = settings.get("latent").unwrap().clone();
        latent["scale"] = json!(found.of_scores);
        settings.set("latent", latent);
        let written = written_rope(&settings).unwrap().scaling.unwrap();
        let near = |key: &str, value: f64| (written[key].as_f64().unwrap() - value).abs() < 1e-12;
        assert!(
            near("mscale", 1.0) && near("mscale_all_dim", 0.8),
            "{written}"
        );
        assert!(written.get("attention_factor").is_none());
    }
}

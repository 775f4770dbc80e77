//! What a published folder can mean where trainers do not agree: which layers its ids name, and what its `d2t` holds.
//!
//! One of the two keys of layer ids alone has been written with either meaning, and the layers beside the right ones only
//! cost acceptance: whoever can decode measures which meaning is the one.

use serde_json::Value;

use crate::config::Config;
use crate::dialect::reading::{Meaning, Reading};
use crate::eagle3::layer_ids::{
    ANGELSLIM_LAYER_IDS, LAYER_IDS, NESTED_LAYER_IDS, NESTED_LAYERS_RUN, check_layer_ids,
    default_captured_layers, layer_ids, named_ids,
};
use crate::error::{Error, Result};
use crate::folder::CONFIG;
use crate::speculators::MODEL_TYPE;
use crate::tensors::NamedTensor;

/// Every way in which a folder can be meant for its target; the likeliest first. Where `captured_layers` are given they are
/// not in question.
pub(crate) fn meanings(config: &Config, captured_layers: Option<&[usize]>) -> Result<Vec<Meaning>> {
    let layers = match captured_layers {
        Some(layers) => vec![(layers.to_vec(), "as given".to_string())],
        None => of_layers(config)?,
    };
    let ids = of_ids(config)?;
    let mut found = Vec::new();
    for (captured, text) in &layers {
        for &(absolute_ids, of_map) in &ids {
            for &(norm_before_residual, of_norm) in of_norm(config) {
                found.push(Meaning {
                    reading: Reading {
                        captured_layers: (!captured.is_empty()).then(|| captured.clone()),
                        absolute_ids,
                        norm_before_residual,
                        ..config.reading().clone()
                    },
                    text: format!("{text}{of_map}{of_norm}"),
                });
            }
        }
    }
    Ok(found)
}

/// Where the residual starts if nothing says so. The two that read the layout of speculators disagree, but for P-EAGLE.
fn of_norm(config: &Config) -> &'static [(bool, &'static str)] {
    let is_eagle3 = config.get(MODEL_TYPE).is_some_and(|kind| *kind == "eagle3");
    let is_ambiguous = is_eagle3 && config.get("norm_before_residual").is_none();
    if is_ambiguous {
        &[
            (true, ", the residual behind the norm, as vLLM takes it"),
            (
                false,
                ", the residual before the norm, as the library takes it",
            ),
        ]
    } else {
        &[(false, "")]
    }
}

/// Captured layers with what says so; none named means the default ones.
fn of_layers(config: &Config) -> Result<Vec<(Vec<usize>, String)>> {
    let target_layers = config.reading().target_layers.unwrap_or(usize::MAX);
    let as_run = |key: &str| format!("{}`{key}` counts the layers that have run", by(key, 1));
    let as_taken = |key: &str| {
        let by = by(key, 0);
        format!("{by}`{key}` is the index of the layer whose output is taken")
    };
    check_layer_ids(config)?;
    let nested = named_ids(config, NESTED_LAYER_IDS).is_some();
    let top = named_ids(config, LAYER_IDS).is_some();
    let mut found: Vec<(Vec<usize>, String)> = Vec::new();
    let mut add = |key: &str, first: u64, text: String| -> Result<()> {
        // A meaning without such layers is not one; keys that mean nothing at all are errors all the same.
        let ids = match layer_ids(config, key, first) {
            Err(_) if first > 0 => None,
            read => read?,
        };
        if let Some(ids) = ids.filter(|ids| ids.iter().all(|&id| id < target_layers))
            && found.iter().all(|(known, _)| *known != ids)
        {
            found.push((ids, text));
        }
        Ok(())
    };
    match (top, nested) {
        (true, _) if config.get(MODEL_TYPE).is_some() => {
            // Only one program writes this layout, and it counts one way.
            add(LAYER_IDS, 1, as_run(LAYER_IDS))?;
        }
        (true, true) => {
            add(LAYER_IDS, 1, as_run(LAYER_IDS))?;
            add(NESTED_LAYER_IDS, 0, as_taken(NESTED_LAYER_IDS))?;
        }
        (true, false) if named_ids(config, ANGELSLIM_LAYER_IDS).is_none() => {
            add(LAYER_IDS, 1, as_run(LAYER_IDS))?;
            add(LAYER_IDS, 0, as_taken(LAYER_IDS))?;
        }
        (false, true) => {
            add(NESTED_LAYER_IDS, 0, as_taken(NESTED_LAYER_IDS))?;
            add(NESTED_LAYER_IDS, 1, as_run(NESTED_LAYER_IDS))?;
        }
        _ => {
            let mut keys = [ANGELSLIM_LAYER_IDS, NESTED_LAYERS_RUN].into_iter();
            let named = keys.find(|key| named_ids(config, key).is_some());
            let text = match named {
                Some(key) => format!("as `{key}` says"),
                None => default_layers(config.reading().target_layers),
            };
            found.push((Vec::new(), text));
        }
    }
    if found.is_empty() {
        let key = if top { LAYER_IDS } else { NESTED_LAYER_IDS };
        return Err(config.wrong(key, format!("layers of a target of {target_layers}")));
    }
    Ok(found)
}

/// The engines that read a key of layer ids so: as the layers that have run from 1 on, or by the index of the layer from 0 on.
fn by(key: &str, first: u64) -> &'static str {
    match (key, first) {
        (LAYER_IDS, 1) => "as vLLM and llama.cpp read it, ",
        (NESTED_LAYER_IDS, 0) => "as SGLang and TensorRT-LLM read it, ",
        (NESTED_LAYER_IDS, 1) => "as the V1 runner of vLLM 0.33 reads it, ",
        _ => "",
    }
}

/// Which layers are taken where the folder names none, of a target of so many.
fn default_layers(target_layers: Option<usize>) -> String {
    let layers = target_layers.and_then(default_captured_layers);
    let layers = layers.map_or_else(String::new, |layers| format!(" {layers:?}"));
    format!("the default layers{layers}, as no key of `{CONFIG}` names others")
}

/// Whether `d2t` can hold offsets, ids, or either.
fn of_ids(config: &Config) -> Result<Vec<(bool, &'static str)>> {
    let folder = config.folder();
    let Some(d2t) = config.tensor("d2t") else {
        return Ok(vec![(false, "")]);
    };
    let values = folder.read(&d2t.name)?.to_i64();
    let values = values.map_err(|error| match error {
        Error::Tensor { name, reason } => Error::Values {
            name,
            path: d2t.file.clone(),
            reason,
        },
        other => other,
    })?;
    let offsets: Vec<i64> = (0..)
        .zip(&values)
        .map(|(i, &value)| value.saturating_add(i))
        .collect();
    let vocab = config.get("vocab_size").and_then(Value::as_i64);
    let drafted = match config.tensor("t2d") {
        Some(t2d) => marked(&folder.read(&t2d.name)?),
        None => None,
    };
    let fits = |ids: &[i64]| {
        let inside = ids
            .iter()
            .all(|&id| id >= 0 && vocab.is_none_or(|vocab| id < vocab));
        let marked = drafted.as_ref().is_none_or(|drafted| drafted == ids);
        inside && marked && ids.is_sorted_by(|a, b| a < b)
    };
    Ok(match (fits(&offsets), fits(&values)) {
        (true, true) => vec![
            (false, ", `d2t` holds offsets"),
            (true, ", `d2t` holds ids"),
        ],
        (false, true) => vec![(true, ", `d2t` holds ids")],
        // What is wrong with it is said where it is read.
        _ => vec![(false, "")],
    })
}

/// The ids that `t2d` marks.
fn marked(t2d: &NamedTensor) -> Option<Vec<i64>> {
    let drafted = t2d.to_bool().ok()?;
    let ids = (0..).zip(drafted).filter(|(_, drafted)| *drafted);
    Some(ids.map(|(id, _)| id).collect())
}

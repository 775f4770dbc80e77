//! Captured layers in four keys with two meanings. The top-level `eagle_aux_hidden_state_layer_ids` counts layers that
//! have run (vLLM, llama.cpp); the one under `eagle_config` is the index of the layer whose output is taken (SGLang,
//! TensorRT-LLM), as everywhere in this program. Each engine reads one of them where both are there, so both are written. AngelSlim
//! has a third, `aux_hidden_states_layer_ids`, with the second meaning. Where the first is absent, vLLM reads another one with the first
//! meaning: its V2 runner `eagle_config.layer_ids`, and its V1 runner in 0.33 the second key, one layer before that which the others
//! take. An empty list is as good as none.

use serde_json::Value;

use crate::config::Config;
use crate::error::Result;
use crate::keys::MAX_SIZE;

/// The key of the ids that count layers that have run: the output of layer `k` is that of id `k + 1`.
pub const LAYER_IDS: &str = "eagle_aux_hidden_state_layer_ids";
pub(crate) const NESTED_LAYER_IDS: &str = "eagle_config.eagle_aux_hidden_state_layer_ids";
pub(crate) const NESTED_LAYERS_RUN: &str = "eagle_config.layer_ids";
pub(crate) const ANGELSLIM_LAYER_IDS: &str = "aux_hidden_states_layer_ids";

/// The three layers of the paper of a target of so many layers, ascending; of one that is too shallow for them, those that exist and
/// differ.
pub fn paper_layers(target_layers: usize) -> Vec<usize> {
    let mut layers = vec![
        1.min(target_layers.saturating_sub(1)),
        (target_layers / 2).saturating_sub(1),
        target_layers.saturating_sub(4),
    ];
    layers.sort_unstable();
    layers.dedup();
    layers
}

/// The layers that engines capture when a configuration names none, for a target of so many layers: all [three](paper_layers).
pub(crate) fn default_captured_layers(target_layers: usize) -> Option<Vec<usize>> {
    let layers = paper_layers(target_layers);
    (layers.len() == 3).then_some(layers)
}

/// The captured layers of a folder, as many as it says there are.
pub(crate) fn captured_layers(config: &Config) -> Result<Vec<usize>> {
    let layers = match &config.reading().captured_layers {
        Some(layers) => layers.clone(),
        None => named(config)?,
    };
    let key = "num_aux_hidden_states";
    if config.size(key, Some(layers.len()))? != layers.len() {
        let expected = format!("`{}`, as many as there are layer ids", layers.len());
        return Err(config.wrong(key, expected));
    }
    Ok(layers)
}

fn named(config: &Config) -> Result<Vec<usize>> {
    let (top, run) = (
        layer_ids(config, LAYER_IDS, 1)?,
        layer_ids(config, NESTED_LAYERS_RUN, 1)?,
    );
    if let (Some(top), Some(run)) = (&top, &run)
        && top != run
    {
        return Err(config.wrong(NESTED_LAYERS_RUN, format!("the same as in `{LAYER_IDS}`")));
    }
    let top = top.or(run);
    let nested = layer_ids(config, NESTED_LAYER_IDS, 0)?;
    let angelslim = layer_ids(config, ANGELSLIM_LAYER_IDS, 0)?;
    match (top, nested.or(angelslim)) {
        (Some(top), Some(nested)) if top != nested => {
            let key = match named_ids(config, NESTED_LAYER_IDS) {
                Some(_) => NESTED_LAYER_IDS,
                None => ANGELSLIM_LAYER_IDS,
            };
            Err(config.wrong(key, format!("`{top:?}` (`{LAYER_IDS}` less one)")))
        }
        (Some(layers), _) | (None, Some(layers)) => Ok(layers),
        (None, None) => {
            let target_layers = config.reading().target_layers;
            target_layers
                .and_then(default_captured_layers)
                .ok_or_else(|| {
                    let expected = "layer ids, as no default ones are known for this target";
                    config.wrong(LAYER_IDS, expected)
                })
        }
    }
}

/// Fails unless every key of layer ids that is there holds some, ascending, whatever they count from.
pub(crate) fn check_layer_ids(config: &Config) -> Result<()> {
    let table = config.get("eagle_config");
    if table.is_some_and(|table| !table.is_object()) {
        return Err(config.wrong("eagle_config", "a table"));
    }
    for key in [
        LAYER_IDS,
        NESTED_LAYERS_RUN,
        NESTED_LAYER_IDS,
        ANGELSLIM_LAYER_IDS,
    ] {
        layer_ids(config, key, 0)?;
    }
    Ok(())
}

/// What stands under a key of layer ids, where it names any.
pub(crate) fn named_ids<'a>(config: &'a Config, key: &str) -> Option<&'a Value> {
    let is_none = |value: &&Value| value.as_array().is_some_and(Vec::is_empty);
    config.get(key).filter(|value| !is_none(value))
}

/// Ascending layer ids under a key, counted from `first`.
pub(crate) fn layer_ids(config: &Config, key: &str, first: u64) -> Result<Option<Vec<usize>>> {
    let Some(value) = named_ids(config, key) else {
        return Ok(None);
    };
    let index = |id: &Value| {
        let id = id.as_u64().filter(|&id| id <= MAX_SIZE)?;
        id.checked_sub(first).map(|id| id as usize)
    };
    let ids = value.as_array();
    let ids: Option<Vec<usize>> = ids.and_then(|ids| ids.iter().map(index).collect());
    match ids {
        Some(ids) if ids.is_sorted_by(|a, b| a < b) => Ok(Some(ids)),
        _ => Err(config.wrong(key, format!("ascending layer ids from {first}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_layers_are_those_of_the_reference() {
        assert_eq!(default_captured_layers(32), Some(vec![1, 15, 28]));
        assert_eq!(default_captured_layers(8), Some(vec![1, 3, 4]));
        for (target_layers, exist) in [
            (0, vec![0]),
            (3, vec![0, 1]),
            (4, vec![0, 1]),
            (5, vec![1]),
            (6, vec![1, 2]),
        ] {
            assert_eq!(default_captured_layers(target_layers), None);
            assert_eq!(paper_layers(target_layers), exist);
        }
    }
}

//! Sizes of models that need no download: of a folder, or of a known model.

use std::path::{Path, PathBuf};

use spectrain_checkpoints::folder::weight_map;
use spectrain_checkpoints::{HubOptions, hub};
use spectrain_models::{PartsConfig, Routing, TargetSpec, TransformerConfig, is_part};

use crate::runtime::known_targets;
use crate::runtime::model_files::read_json;

/// Sizes of the target, and where they come from.
pub(crate) struct Sizes {
    /// The sizes.
    pub(crate) spec: TargetSpec,
    /// Whether its head is its embedding.
    pub(crate) tied_head: bool,
    /// For people.
    pub(crate) source: String,
}

/// Sizes of a model that need no download.
pub(crate) fn sizes_of(model: &str, revision: Option<&str>) -> Option<Sizes> {
    if let Some(path) = folder_of(model, revision).map(|folder| folder.join("config.json"))
        && let Ok(config) = read_json(&path)
        && let Ok(config) = TransformerConfig::read(&config, &path)
    {
        return Some(Sizes {
            source: format!("sizes from `{}`", path.display()),
            tied_head: config.tied_head,
            spec: config.spec,
        });
    }
    if let Some(found) = sizes_of_parts(model, revision) {
        return Some(found);
    }
    let (spec, tied_head) = known_targets::find(model)?;
    Some(Sizes {
        spec,
        tied_head,
        source: format!(
            "sizes of `{model}` from this program's list, as it is not on this machine yet"
        ),
    })
}

/// Sizes of a model on this machine whose layers are none that are computed here: what a drafter takes for its own.
fn sizes_of_parts(model: &str, revision: Option<&str>) -> Option<Sizes> {
    let folder = folder_of(model, revision)?;
    let path = folder.join("config.json");
    let config = PartsConfig::read(&read_json(&path).ok()?, &path).ok()?;
    let shards = weight_map(&folder).ok().flatten().unwrap_or_default();
    let has_head = shards
        .keys()
        .any(|name| is_part(name) && name.contains("lm_head"));
    Some(Sizes {
        source: format!("sizes from `{}`", path.display()),
        tied_head: config.tied_head.unwrap_or(!has_head),
        spec: config.spec,
    })
}

/// Sizes of a model that need no download, and whether its head is its embedding.
pub(crate) fn known_sizes(model: &str, revision: Option<&str>) -> Option<(TargetSpec, bool)> {
    let found = sizes_of(model, revision)?;
    Some((found.spec, found.tied_head))
}

/// The folder of a model that is on this machine.
pub(crate) fn folder_of(model: &str, revision: Option<&str>) -> Option<PathBuf> {
    if Path::new(model).is_dir() {
        return Some(PathBuf::from(model));
    }
    hub::cached(model, revision, &HubOptions::default())
}

/// Parameters of a target, its embedding included.
pub(crate) fn target_parameters(spec: &TargetSpec, tied_head: bool) -> u64 {
    body_parameters(spec) + idle_parameters(spec) + head_parameters(spec, tied_head)
}

/// Parameters of its embedding and its head.
fn head_parameters(spec: &TargetSpec, tied_head: bool) -> u64 {
    let embedding = (spec.vocab * spec.d_model) as u64;
    if tied_head { embedding } else { 2 * embedding }
}

/// Parameters of what a drafter shares of a target: its embedding, norm and head.
pub(crate) fn part_parameters(spec: &TargetSpec, tied_head: bool) -> u64 {
    head_parameters(spec, tied_head) + spec.d_model as u64
}

/// Parameters of a target's decoder layers that a token goes through.
pub(crate) fn body_parameters(spec: &TargetSpec) -> u64 {
    let d_model = spec.d_model as u64;
    let attention = 2 * (spec.heads + spec.kv_heads) as u64 * spec.d_head as u64;
    let of_layer = |layer: usize| {
        let feed_forward = match spec.experts_of(layer) {
            None => 3 * spec.d_ff as u64,
            Some(experts) => 3 * (experts.per_token * experts.d_ff) as u64 + experts.count as u64,
        };
        d_model * (attention + feed_forward + 2)
    };
    (0..spec.layers).map(of_layer).sum()
}

/// Parameters of a target that a token does not go through: those of other experts than its own.
pub(crate) fn idle_parameters(spec: &TargetSpec) -> u64 {
    let idle = |routing: &Routing| routing.idle_parameters(spec.d_model);
    spec.routing.as_ref().map_or(0, idle)
}

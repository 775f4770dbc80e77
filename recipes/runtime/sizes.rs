//! Sizes of models that need no download: of a folder, or of a known model.

use std::path::{Path, PathBuf};

use spectrain_checkpoints::folder::weight_map;
use spectrain_checkpoints::{DType, HubOptions, ModelFolder, hub};
use spectrain_models::few_rows::INT8_BLOCK;
use spectrain_models::{FrozenType, PartsConfig, Routing, TargetSpec, TransformerConfig, is_part};

use crate::errors::with_causes;
use crate::families::target_traits::TargetTraits;
use crate::runtime::device::is_gpu;
use crate::runtime::known_targets;
use crate::runtime::model_files::read_json;
use crate::runtime::target;

/// Sizes of the target, and where they come from.
pub(crate) struct Sizes {
    /// The sizes.
    pub(crate) spec: TargetSpec,
    /// Whether its head is its embedding.
    pub(crate) tied_head: bool,
    /// Type in which files hold the matrices of its layers.
    pub(crate) stored: DType,
    /// For people.
    pub(crate) source: String,
}

impl Sizes {
    /// Bytes of the target in memory. On the CPU matrices of its layers are in bf16 where files have them so, or in eight bits
    /// with a scale for each 32 elements; everything else is in the type that is computed in.
    pub(crate) fn target_bytes(&self, held: FrozenType, device: &str) -> u64 {
        let (of_value, matrices) = (held.dtype.size() as u64, dense_parameters(&self.spec));
        let of_matrices = match (held.int8, self.stored) {
            (true, _) => matrices + 4 * matrices / INT8_BLOCK as u64,
            (false, DType::BF16) if !is_gpu(device) => 2 * matrices,
            (false, _) => of_value * matrices,
        };
        let others = target_parameters(&self.spec, self.tied_head) - matrices;
        of_value * others + of_matrices
    }
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
            stored: stored_in(&path),
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
        stored: DType::BF16,
        source: format!(
            "sizes of `{model}` from this program's list, as it is not on this machine yet"
        ),
    })
}

/// Why [`sizes_of`] has none of a model: what is wrong with it where it is on this machine.
pub(crate) fn unknown_sizes(model: &str, revision: Option<&str>) -> String {
    let wrong = folder_of(model, revision).and_then(|folder| target::spec(&folder).err());
    match wrong {
        Some(error) => format!(
            "the sizes of `{model}` are not known: {}",
            with_causes(&error)
        ),
        None => format!("the sizes of `{model}` are known once it is on this machine"),
    }
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
        stored: stored_in(&path),
        spec: config.spec,
    })
}

/// Sizes of a model that need no download, and whether its head is its embedding.
pub(crate) fn known_sizes(model: &str, revision: Option<&str>) -> Option<(TargetSpec, bool)> {
    let found = sizes_of(model, revision)?;
    Some((found.spec, found.tied_head))
}

/// Type in which the files beside a model's `config.json` hold what all of its layers multiply with; where they are not there,
/// bf16, as most are published.
fn stored_in(config: &Path) -> DType {
    let stored = || {
        let folder = ModelFolder::open_some(config.parent()?, &|name| name.ends_with(LAYER_MATRIX));
        let folder = folder.ok()?;
        let mut tensors = folder.tensors();
        let found = tensors.find(|tensor| tensor.name.ends_with(LAYER_MATRIX));
        // Matrices in FP8 are read as bf16, wherever their scales are.
        found
            .map(|tensor| tensor.dtype)
            .filter(|&dtype| dtype != DType::F8E4M3)
    };
    stored().unwrap_or(DType::BF16)
}

/// How the names of tensors end that every layer of a target has, whatever its architecture.
const LAYER_MATRIX: &str = "self_attn.o_proj.weight";

/// The folder of a model that is on this machine.
pub(crate) fn folder_of(model: &str, revision: Option<&str>) -> Option<PathBuf> {
    if Path::new(model).is_dir() {
        return Some(PathBuf::from(model));
    }
    hub::cached(model, revision, &HubOptions::default())
}

/// What engines go by of a target that is on this machine.
pub(crate) fn traits_of(model: &str, revision: Option<&str>) -> Option<TargetTraits> {
    TargetTraits::in_folder(&folder_of(model, revision)?).ok()
}

/// The class of a model that is on this machine, as its configuration names it.
pub(crate) fn class_of(model: &str, revision: Option<&str>) -> Option<String> {
    target::class_in(&folder_of(model, revision)?)
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
    let of_experts = (0..spec.layers).filter_map(|layer| spec.experts_of(layer));
    let of_experts = of_experts.map(|experts| {
        let of_token = 3 * (experts.per_token * experts.d_ff) as u64 + experts.count as u64;
        spec.d_model as u64 * of_token
    });
    dense_parameters(spec) + of_experts.sum::<u64>()
}

/// Parameters of its decoder layers without those of experts, which stay in the type that is computed in.
fn dense_parameters(spec: &TargetSpec) -> u64 {
    let attention = 2 * (spec.heads + spec.kv_heads) as u64 * spec.d_head as u64;
    let of_layer = |layer: usize| {
        let feed_forward = match spec.experts_of(layer) {
            None => 3 * spec.d_ff as u64,
            Some(_) => 0,
        };
        spec.d_model as u64 * (attention + feed_forward + 2)
    };
    (0..spec.layers).map(of_layer).sum()
}

/// Parameters of a target that a token does not go through: those of other experts than its own.
pub(crate) fn idle_parameters(spec: &TargetSpec) -> u64 {
    let idle = |routing: &Routing| routing.idle_parameters(spec.d_model);
    spec.routing.as_ref().map_or(0, idle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_folder_is_why_its_sizes_are_not_known() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().to_str().unwrap();
        let unknown = unknown_sizes(folder, None);
        assert!(unknown.contains("are not known: "), "{unknown}");
        assert!(unknown.contains("config.json"), "{unknown}");
        let unknown = unknown_sizes("nobody/nothing", None);
        let later = "the sizes of `nobody/nothing` are known once it is on this machine";
        assert_eq!(unknown, later);
    }

    #[test]
    fn a_target_takes_what_its_matrices_are_held_in() {
        let (spec, tied_head) = known_targets::find("Qwen/Qwen3-30B-A3B").unwrap();
        let sizes = |spec: &TargetSpec, stored| Sizes {
            spec: spec.clone(),
            tied_head,
            stored,
            source: String::new(),
        };
        let held = |dtype, int8| FrozenType {
            int8,
            ..DType::into(dtype)
        };
        let all = target_parameters(&spec, tied_head);
        let wide = held(DType::F32, false);
        let published = sizes(&spec, DType::BF16);
        assert_eq!(sizes(&spec, DType::F32).target_bytes(wide, "cpu"), 4 * all);
        assert_eq!(published.target_bytes(wide, "cuda:0"), 4 * all);
        let narrow = held(DType::BF16, false);
        assert_eq!(published.target_bytes(narrow, "cuda:0"), 2 * all);
        // Queries, keys, values and what puts them together, with the two norms: 32 and 4 heads of 128, 48 layers.
        let attention = 48 * 2048 * (2 * (32 + 4) * 128 + 2);
        assert_eq!(published.target_bytes(wide, "cpu"), 4 * all - 2 * attention);
        let eight = published.target_bytes(held(DType::F32, true), "cpu");
        assert_eq!(eight, 4 * all - attention * (32 - 9) / 8);
    }
}

//! What the closest shipped recipe sets beside the defaults of the keys, which are the papers'.

use spectrain_models::TargetSpec;

use super::amount::{Amount, Own, Recommended};
use crate::recipe::shipped::{ShippedRecipe, of_kind};
use crate::runtime::sizes::sizes_of;
use crate::trainers::rounded_rate;

/// Keys that are taken from it, by their tables: what is right for one target is a good start for another.
const TAKEN: [(&str, &[&str]); 3] = [
    (DRAFTER, &[DRAFT_VOCAB, "fc_norm", "norm_output"]),
    (
        OBJECTIVE,
        &[
            "label_weight",
            "teacher_weight",
            "divergence",
            "step_weights",
        ],
    ),
    (
        TRAIN,
        &[
            "optimizer",
            "learning_rate",
            MATRIX_RATE,
            "schedule",
            "min_lr_ratio",
        ],
    ),
];
/// Keys of sizes that are taken from it for a small target, of drafters that fill blocks: the defaults are for large targets, beside
/// which such a drafter costs little.
const SIZES: [(&str, &[&str]); 2] = [
    (DRAFTER, &["layers", "block_size"]),
    (OBJECTIVE, &[ANCHORS]),
];
/// The table of what a drafter is.
const DRAFTER: &str = "drafter";
/// The table and the key by which the recipe of such a drafter is known.
const OBJECTIVE: &str = "objective";
const ANCHORS: &str = "anchors";
/// The key that takes a number of the target's tokens.
const DRAFT_VOCAB: &str = "draft_vocab";
/// The key of a rate that goes with the root of the target's width.
const MATRIX_RATE: &str = "matrix_learning_rate";
/// The table whose rates are those of targets of its recipe's size.
const TRAIN: &str = "train";
/// The size of a target from which on recipes of large ones are the closest, by its width.
const LARGE: usize = 1024;
/// What the names of these end in.
const OF_LARGE: &str = "-8b";

/// Keys that are recommended, and where they are from.
#[derive(Default)]
pub(super) struct Recommendation {
    /// The keys.
    pub(super) keys: Vec<Recommended>,
    /// What the recipe says of them, in sentences.
    pub(super) told: String,
}

/// What the closest shipped recipe recommends.
pub(super) fn of(own: &Own) -> Recommendation {
    // What is not here yet is downloaded, and so hardly small.
    let sizes = sizes_of(own.target, None).map(|sizes| sizes.spec);
    let is_large = sizes.as_ref().is_none_or(|spec| spec.d_model >= LARGE);
    let Some(closest) = closest(own.kind.name, is_large, own.target) else {
        return Recommendation::default();
    };
    let is_of_size = closest.name.ends_with(OF_LARGE) == is_large;
    let document: toml::Table = closest.text.parse().unwrap_or_default();
    let vocab = sizes.as_ref().map(|spec| spec.vocab as i64);
    // A part of a small vocabulary saves nothing.
    let has_more_tokens = |few: i64| is_large && vocab.is_none_or(|vocab| few < vocab);
    let is_small_block = !is_large && is_of_size && has_anchors(&document);
    let block_sizes = SIZES.into_iter().filter(|_| is_small_block);
    let mut keys = Vec::new();
    let all = TAKEN.into_iter().chain(block_sizes);
    for (table, names) in all.filter(|(table, _)| !(own.is_made && *table == DRAFTER)) {
        let is_free = |key: &&&str| (own.set)(&format!("{table}.{key}")).is_none();
        for key in names.iter().filter(is_free) {
            let value = document.get(table).and_then(|table| table.get(*key));
            let value = value.filter(|value| match *key {
                DRAFT_VOCAB => value.as_integer().is_some_and(has_more_tokens),
                _ => table != TRAIN || is_of_size,
            });
            let value = value.map(|value| match *key {
                MATRIX_RATE => for_width(value, &document, sizes.as_ref()),
                _ => value.clone(),
            });
            keys.extend(value.map(|value| Recommended {
                table,
                line: format!("{key} = {value}"),
            }));
        }
    }
    if keys.is_empty() {
        return Recommendation::default();
    }
    let what = match own.is_made {
        true => "Objective",
        false => "Drafter, objective",
    };
    let mut told = format!(
        "{what} and optimiser are set as in the shipped recipe `{}` where that differs.",
        closest.name
    );
    if is_small_block && !own.is_made {
        told += " So are the numbers of layers, of tokens in a block and of anchors: the defaults of these keys are for large targets, \
                 and make a small one's drafter slow.";
    }
    // Recipes of small targets train on texts of their own, which say nothing of other data.
    if is_large && is_of_size {
        let amount = Amount {
            own,
            document: &document,
            positions: sizes.map(|spec| spec.max_positions),
            is_its_target: is_for(closest, own.target),
        };
        amount.add(&mut keys, &mut told);
    }
    Recommendation { keys, told }
}

/// Whether a recipe is of a drafter that fills blocks.
fn has_anchors(document: &toml::Table) -> bool {
    let objective = document.get(OBJECTIVE);
    objective.is_some_and(|table| table.get(ANCHORS).is_some())
}

/// A recipe's rate of matrices for a target of these sizes, where both widths are known.
fn for_width(
    rate: &toml::Value,
    document: &toml::Table,
    sizes: Option<&TargetSpec>,
) -> toml::Value {
    let model = document.get("target").and_then(|table| table.get("model"));
    let there = model.and_then(|model| sizes_of(model.as_str()?, None));
    match (rate.as_float(), there, sizes) {
        (Some(value), Some(there), Some(here)) if there.spec.d_model != here.d_model => {
            toml::Value::Float(rounded_rate(
                value * (here.d_model as f64 / there.spec.d_model as f64).sqrt(),
            ))
        }
        _ => rate.clone(),
    }
}

/// The shipped recipe of a kind for this target, else for one of its size, else the first of the kind.
fn closest(kind: &str, is_large: bool, target: &str) -> Option<&'static ShippedRecipe> {
    let fits = |recipe: &&ShippedRecipe| recipe.name.ends_with(OF_LARGE) == is_large;
    let own = of_kind(kind)
        .filter(fits)
        .find(|recipe| is_for(recipe, target));
    own.or_else(|| of_kind(kind).find(fits))
        .or_else(|| of_kind(kind).next())
}

/// Whether a shipped recipe is for this target, by the last part of the target's name: that of a folder is often the same.
fn is_for(recipe: &ShippedRecipe, target: &str) -> bool {
    let last = |name: &str| {
        let last = name.trim_end_matches('/').rsplit('/').next();
        last.unwrap_or_default().to_lowercase()
    };
    let document: toml::Table = recipe.text.parse().unwrap_or_default();
    let model = document.get("target").and_then(|table| table.get("model"));
    let model = model.and_then(toml::Value::as_str);
    model.is_some_and(|model| last(model) == last(target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::registry::{self, RECIPES};

    #[test]
    fn every_kind_of_recipe_has_a_shipped_one_whose_keys_are_there() {
        for kind in RECIPES {
            for is_large in [false, true] {
                let found = closest(kind.name, is_large, "nobody/nothing");
                assert!(found.is_some(), "{}", kind.name);
            }
        }
        let named = |kind: &str, is_large: bool, target: &str| {
            closest(kind, is_large, target).unwrap().name
        };
        assert_eq!(named("eagle3", false, "small"), "quickstart");
        assert_eq!(named("eagle3", true, "nobody/nothing"), "eagle3-qwen3-8b");
        assert_eq!(named("peagle", true, "nobody/nothing"), "peagle");
    }

    #[test]
    fn the_rate_of_matrices_is_that_of_the_targets_width() {
        let rate = |target: &str| {
            let own = Own {
                kind: registry::find("eagle3").unwrap(),
                target,
                is_made: false,
                tokens: None,
                set: &|_| None,
            };
            let keys = of(&own).keys.into_iter().map(|found| found.line);
            keys.filter(|line| line.starts_with(MATRIX_RATE))
                .collect::<Vec<_>>()
        };
        assert_eq!(rate("Qwen/Qwen3-8B"), ["matrix_learning_rate = 0.0128"]);
        assert_eq!(rate("Qwen/Qwen3-14B"), ["matrix_learning_rate = 0.0143"]);
        assert_eq!(rate("nobody/nothing"), ["matrix_learning_rate = 0.0128"]);
    }

    #[test]
    fn sizes_of_a_block_are_those_of_a_target_of_the_size() {
        let folder = tempfile::tempdir().unwrap();
        let config = include_str!("../../../../tests/golden/targets/qwen3/config.json");
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        let small = folder.path().to_str().unwrap();
        let found = |kind: &str, target: &str| {
            let own = Own {
                kind: registry::find(kind).unwrap(),
                target,
                is_made: false,
                tokens: None,
                set: &|key| (key == "drafter.layers").then(|| "3".to_owned()),
            };
            let found = of(&own);
            let lines = found.keys.into_iter().map(|found| found.line);
            (lines.collect::<Vec<_>>(), found.told)
        };
        let (lines, told) = found("dflash", small);
        for line in ["block_size = 8", "anchors = 32"] {
            assert!(lines.iter().any(|found| found == line), "{lines:?}");
        }
        assert!(told.contains("anchors"), "{told}");
        for (kind, target) in [("dflash", "Qwen/Qwen3-8B"), ("deer", small)] {
            let (lines, told) = found(kind, target);
            assert!(!told.contains("anchors"), "{told}");
            let is_size = |line: &String| line.starts_with("block_size");
            assert!(!lines.iter().any(is_size), "{lines:?}");
        }
        let is_set = |line: &String| line.starts_with("layers");
        assert!(!lines.iter().any(is_set), "{lines:?}");
    }

    #[test]
    fn the_recipe_of_a_target_is_the_closest_to_it() {
        for target in [
            "meta-llama/Llama-3.1-8B-Instruct",
            "models/llama-3.1-8b-instruct/",
        ] {
            let found = closest("eagle3", true, target).unwrap();
            assert_eq!(found.name, "eagle3-llama-3.1-8b");
        }
    }

    #[test]
    fn what_is_set_is_left_and_rates_are_those_of_targets_of_the_size() {
        let lines = |kind: &str, set: &dyn Fn(&str) -> Option<String>| {
            // Nothing of this name is here.
            let own = Own {
                kind: registry::find(kind).unwrap(),
                target: "nobody/nothing",
                is_made: false,
                tokens: None,
                set,
            };
            let found = of(&own).keys.into_iter();
            found.map(|found| found.line).collect::<Vec<_>>()
        };
        let all = lines("eagle3", &|_| None);
        for line in [
            "draft_vocab = 32000",
            "fc_norm = true",
            "norm_output = true",
            "optimizer = \"muon\"",
        ] {
            assert!(all.iter().any(|found| found == line), "{all:?}");
        }
        let some = lines("eagle3", &|key| {
            (key == "drafter.fc_norm").then(|| "false".to_owned())
        });
        assert_eq!(some.len(), all.len() - 1);
        let other = lines("eagle1-ttt", &|_| None);
        assert_eq!(
            other,
            ["divergence = { tempered_kl = 0.5 }"],
            "its rate is a small target's"
        );
    }
}

//! What the closest shipped recipe sets beside the defaults of the keys, which are the papers'.

use super::amount::{Amount, Own, Recommended};
use super::settings::at;
use super::train_keys::{MATRIX_RATE, optimiser};
use crate::recipe::shipped::{ShippedRecipe, of_kind};
use crate::runtime::sizes::sizes_of;
use crate::trainers::rounded_rate;

/// Keys that are taken from it beside the optimiser's, by their tables: what is right for one target is a good start for another.
const TAKEN: [(&str, &[&str]); 2] = [
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
/// Widths of targets of shipped recipes that are neither made by them nor on the hub.
const WIDTHS: [(&str, usize); 1] = [("py-qwen3", 256)];
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
    let sizes = sizes_of(own.target, own.revision).map(|sizes| sizes.spec);
    let is_large = sizes.as_ref().is_none_or(|spec| spec.d_model >= LARGE);
    let width = sizes.as_ref().map(|spec| spec.d_model);
    let Some(closest) = closest(own.kind.name, is_large, own.target, width) else {
        return Recommendation::default();
    };
    let is_of_size = closest.name.ends_with(OF_LARGE) == is_large;
    let document: toml::Table = closest.text.parse().unwrap_or_default();
    let vocab = sizes.as_ref().map(|spec| spec.vocab as i64);
    // A part of a small vocabulary saves nothing.
    let has_more_tokens = |few: i64| is_large && vocab.is_none_or(|vocab| few < vocab);
    let is_small_block = !is_large && is_of_size && has_anchors(&document);
    let block_sizes = SIZES.into_iter().filter(|_| is_small_block);
    let is_taken = |table: &str, key: &str, value: &toml::Value| match (table, key) {
        (_, DRAFT_VOCAB) => value.as_integer().is_some_and(has_more_tokens),
        (DRAFTER | OBJECTIVE, _) => true,
        // The rates of a training, and what belongs to them, are for targets of that size.
        _ => is_of_size,
    };
    let all = TAKEN.into_iter().chain(block_sizes);
    let all = all.filter(|(table, _)| !(own.is_made && *table == DRAFTER));
    let all = all.map(|(table, names)| (table.to_owned(), names));
    let mut keys = Vec::new();
    for (table, names) in all.chain(optimiser(own.kind)) {
        for &key in names {
            let value = at(&document, &format!("{table}.{key}"));
            let value = value.filter(|_| own.settings.leaves(&table, key));
            let value = value.filter(|value| is_taken(&table, key, value));
            let value = value.map(|value| match key {
                MATRIX_RATE => for_width(value, width_of(closest), width),
                _ => value.clone(),
            });
            keys.extend(value.map(|value| Recommended::new(&table, key, value)));
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

/// A recipe's rate of matrices, which is for a target as wide as `there`, for one as wide as `here`; the same where one is not known.
fn for_width(rate: &toml::Value, there: Option<usize>, here: Option<usize>) -> toml::Value {
    match (rate.as_float(), there, here) {
        (Some(value), Some(there), Some(here)) if there != here => {
            toml::Value::Float(rounded_rate(value * (here as f64 / there as f64).sqrt()))
        }
        _ => rate.clone(),
    }
}

/// The shipped recipe of a kind for this target, else of those for one of its size the one whose target is nearest in width, else the
/// first of the kind.
fn closest(
    kind: &str,
    is_large: bool,
    target: &str,
    width: Option<usize>,
) -> Option<&'static ShippedRecipe> {
    let fits = |recipe: &&ShippedRecipe| recipe.name.ends_with(OF_LARGE) == is_large;
    let own = of_kind(kind)
        .filter(fits)
        .find(|recipe| is_for(recipe, target));
    // As many times narrower is as far as as many times wider. Of several that are as near the first one is taken.
    let distance = |recipe: &ShippedRecipe| match (width_of(recipe), width) {
        (Some(there), Some(here)) => (here as f64 / there as f64).ln().abs(),
        _ => f64::INFINITY,
    };
    let nearest = || {
        let fitting = of_kind(kind).filter(fits);
        fitting.min_by(|one, other| distance(one).total_cmp(&distance(other)))
    };
    own.or_else(nearest).or_else(|| of_kind(kind).next())
}

/// The width of the target of a shipped recipe, where it is known.
fn width_of(recipe: &ShippedRecipe) -> Option<usize> {
    let document: toml::Table = recipe.text.parse().ok()?;
    if let Some(made) = at(&document, "synthetic.d_model") {
        return usize::try_from(made.as_integer()?).ok();
    }
    let model = at(&document, "target.model")?.as_str()?;
    let known = WIDTHS.iter().find(|(name, _)| *name == model);
    let known = known.map(|(_, width)| *width);
    known.or_else(|| Some(sizes_of(model, None)?.spec.d_model))
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
    use super::super::settings::Settings;
    use super::super::train_keys::training_tables;
    use super::*;
    use crate::families::registry::{self, RECIPES};
    use crate::recipe::shipped::SHIPPED;

    /// What is recommended of a drafter for a target beside what is set.
    fn found(kind: &str, target: &str, set: &[&str]) -> Recommendation {
        let set: Vec<String> = set.iter().map(|set| (*set).to_owned()).collect();
        of(&Own {
            kind: registry::find(kind).unwrap(),
            target,
            revision: None,
            is_made: false,
            tokens: None,
            settings: &Settings::of(&set).unwrap(),
        })
    }

    fn lines(found: Recommendation) -> Vec<String> {
        let lines = found.keys.into_iter().map(|found| found.line);
        lines.collect()
    }

    #[test]
    fn every_kind_of_recipe_has_a_shipped_one_whose_keys_are_there() {
        for kind in RECIPES {
            for is_large in [false, true] {
                let found = closest(kind.name, is_large, "nobody/nothing", None);
                assert!(found.is_some(), "{}", kind.name);
            }
        }
        let named = |kind: &str, is_large: bool, target: &str| {
            closest(kind, is_large, target, None).unwrap().name
        };
        assert_eq!(named("eagle3", false, "small"), "quickstart");
        assert_eq!(named("eagle3", true, "nobody/nothing"), "eagle3-qwen3-8b");
        assert_eq!(named("peagle", true, "nobody/nothing"), "peagle");
    }

    #[test]
    fn the_closest_recipe_is_that_of_the_nearest_width() {
        let named = |width: usize| {
            let found = closest("eagle3", width >= LARGE, "nobody/nothing", Some(width));
            found.unwrap().name
        };
        for (width, expected) in [
            (64, "quickstart"),
            (128, "quickstart"),
            (192, "py-qwen3"),
            (256, "py-qwen3"),
            (512, "py-qwen3"),
            // Two are for this width.
            (4096, "eagle3-qwen3-8b"),
        ] {
            assert_eq!(named(width), expected, "{width}");
        }
        for recipe in SHIPPED {
            assert!(width_of(recipe).is_some(), "{}", recipe.name);
        }
    }

    #[test]
    fn the_rate_of_matrices_is_that_of_the_targets_width() {
        let rate = |target: &str| {
            let mut keys = lines(found("eagle3", target, &[]));
            keys.retain(|line| line.starts_with(MATRIX_RATE));
            keys
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
            let found = found(kind, target, &["drafter.layers=3"]);
            let told = found.told.clone();
            (lines(found), told)
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
            let found = closest("eagle3", true, target, Some(4096)).unwrap();
            assert_eq!(found.name, "eagle3-llama-3.1-8b");
        }
    }

    #[test]
    fn what_is_set_is_left_and_rates_are_those_of_targets_of_the_size() {
        // Nothing of this name is here.
        let lines = |kind: &str, set: &[&str]| lines(found(kind, "nobody/nothing", set));
        let all = lines("eagle3", &[]);
        for line in [
            "draft_vocab = 32000",
            "fc_norm = true",
            "norm_output = true",
            "optimizer = \"muon\"",
        ] {
            assert!(all.iter().any(|found| found == line), "{all:?}");
        }
        let some = lines("eagle3", &["drafter={ fc_norm = false }"]);
        assert_eq!(some.len(), all.len() - 1);
        let other = lines("eagle1-ttt", &[]);
        assert_eq!(
            other,
            ["divergence = { tempered_kl = 0.5 }"],
            "its rate is a small target's"
        );
    }

    #[test]
    fn all_that_a_large_targets_recipe_trains_with_is_taken() {
        // How often it is watched and saved is nothing to take.
        let is_taken = |key: &str| !["validate_every", "save_every"].contains(&key);
        let mut seen = 0;
        for shipped in SHIPPED.iter().filter(|of| of.name.ends_with(OF_LARGE)) {
            let document: toml::Table = shipped.text.parse().unwrap();
            let of = |path: &str| at(&document, path).unwrap().as_str().unwrap();
            let (kind, target) = (of("recipe"), of("target.model"));
            if closest(kind, true, target, None).unwrap().name != shipped.name {
                continue;
            }
            let keys = found(kind, target, &[]).keys;
            for table in training_tables(registry::find(kind).unwrap()) {
                let own = at(&document, &table).and_then(toml::Value::as_table);
                let own = own.into_iter().flatten();
                for (key, value) in own.filter(|(key, _)| is_taken(key)) {
                    let line = format!("{key} = {value}");
                    let mut keys = keys.iter();
                    let is_there = keys.any(|found| found.table == table && found.line == line);
                    assert!(is_there, "{}: [{table}] {line}", shipped.name);
                    seen += 1;
                }
            }
        }
        assert!(seen > 50, "{seen}");
    }

    #[test]
    fn a_key_that_is_set_of_the_training_is_not_taken_of_its_stages() {
        let stages = |set: &[&str]| {
            let mut keys = found("deer", "Qwen/Qwen3-8B", set).keys;
            keys.retain(|found| found.table != "train" && found.line.starts_with("learning_rate"));
            keys.into_iter()
                .map(|found| found.table)
                .collect::<Vec<_>>()
        };
        assert_eq!(stages(&[]), ["stages.adapt", "stages.refine"]);
        let one = stages(&["stages.adapt.learning_rate=3e-4"]);
        assert_eq!(one, ["stages.refine"]);
        assert!(stages(&["train.learning_rate=1e-5"]).is_empty());
    }
}

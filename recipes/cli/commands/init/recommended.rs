//! What the closest shipped recipe sets beside the defaults of the keys, which are the papers'.

use crate::families::registry::Recipe;
use crate::recipe::shipped::{ShippedRecipe, of_kind};
use crate::runtime::sizes::sizes_of;

/// Keys that are taken from it, by their tables: what is right for one target is a good start for another.
const TAKEN: [(&str, &[&str]); 3] = [
    ("drafter", &[DRAFT_VOCAB, "fc_norm", "norm_output"]),
    (
        "objective",
        &["label_weight", "teacher_weight", "divergence"],
    ),
    (
        TRAIN,
        &[
            "optimizer",
            "learning_rate",
            "matrix_learning_rate",
            "schedule",
            "min_lr_ratio",
        ],
    ),
];
/// The key that takes a number of the target's tokens.
const DRAFT_VOCAB: &str = "draft_vocab";
/// The table whose rates are those of targets of its recipe's size.
const TRAIN: &str = "train";
/// The size of a target from which on recipes of large ones are the closest, by its width.
const LARGE: usize = 1024;
/// What the names of these end in.
const OF_LARGE: &str = "-8b";

/// A key with its value.
pub(super) struct Recommended {
    /// The table.
    pub(super) table: &'static str,
    /// `KEY = VALUE`, as in the recipe.
    pub(super) line: String,
}

/// What is recommended for a kind of recipe and a target, and the shipped recipe that has it; `is_set` says of a key, with its
/// table, that it is set already.
pub(super) fn of(
    kind: &Recipe,
    target: &str,
    is_set: &dyn Fn(&str) -> bool,
) -> (&'static str, Vec<Recommended>) {
    // What is not here yet is downloaded, and so hardly small.
    let sizes = sizes_of(target, None).map(|sizes| sizes.spec);
    let is_large = sizes.as_ref().is_none_or(|spec| spec.d_model >= LARGE);
    let Some(closest) = closest(kind.name, is_large) else {
        return ("", Vec::new());
    };
    let is_of_size = closest.name.ends_with(OF_LARGE) == is_large;
    let document: toml::Table = closest.text.parse().unwrap_or_default();
    // A part of a small vocabulary saves nothing.
    let has_more_tokens = |value: &toml::Value| {
        let vocab = sizes.as_ref().map(|spec| spec.vocab as i64);
        is_large
            && value
                .as_integer()
                .is_some_and(|few| vocab.is_none_or(|vocab| few < vocab))
    };
    let mut found = Vec::new();
    for (table, keys) in TAKEN {
        for key in keys.iter().filter(|key| !is_set(&format!("{table}.{key}"))) {
            let value = document.get(table).and_then(|table| table.get(*key));
            let value = value.filter(|value| match *key {
                DRAFT_VOCAB => has_more_tokens(value),
                _ => table != TRAIN || is_of_size,
            });
            found.extend(value.map(|value| Recommended {
                table,
                line: format!("{key} = {value}"),
            }));
        }
    }
    (closest.name, found)
}

/// The shipped recipe of a kind for a target of this size, else the first of the kind.
fn closest(kind: &str, is_large: bool) -> Option<&'static ShippedRecipe> {
    let fits = |recipe: &&ShippedRecipe| recipe.name.ends_with(OF_LARGE) == is_large;
    of_kind(kind).find(fits).or(of_kind(kind).next())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::registry::{self, RECIPES};

    #[test]
    fn every_kind_of_recipe_has_a_shipped_one_whose_keys_are_there() {
        for kind in RECIPES {
            for is_large in [false, true] {
                assert!(closest(kind.name, is_large).is_some(), "{}", kind.name);
            }
        }
        let [small, large] = [false, true].map(|is_large| closest("eagle3", is_large).unwrap());
        assert_eq!([small.name, large.name], ["quickstart", "eagle3-qwen3-8b"]);
        assert_eq!(closest("peagle", true).unwrap().name, "peagle");
    }

    #[test]
    fn what_is_set_is_left_and_rates_are_those_of_targets_of_the_size() {
        let lines = |kind: &str, is_set: &dyn Fn(&str) -> bool| {
            let kind = registry::find(kind).unwrap();
            // Nothing of this name is here.
            let (_, found) = of(kind, "nobody/nothing", is_set);
            found
                .into_iter()
                .map(|found| found.line)
                .collect::<Vec<_>>()
        };
        let all = lines("eagle3", &|_| false);
        for line in [
            "draft_vocab = 32000",
            "fc_norm = true",
            "norm_output = true",
            "optimizer = \"muon\"",
        ] {
            assert!(all.iter().any(|found| found == line), "{all:?}");
        }
        let some = lines("eagle3", &|key| key == "drafter.fc_norm");
        assert_eq!(some.len(), all.len() - 1);
        let other = lines("eagle1-ttt", &|_| false);
        assert_eq!(
            other,
            ["divergence = { tempered_kl = 0.5 }"],
            "its rate is a small target's"
        );
    }
}

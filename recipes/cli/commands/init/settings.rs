//! The keys that `--set` sets, or the settings of another trainer: they go before what is chosen for them.

use anyhow::Result;

use super::train_keys::{STAGES, TRAIN};
use crate::errors::{Misuse, with_causes};
use crate::recipe::document::{SCHEDULE, is_of_other_schedule, rival};
use crate::recipe::read::{overridden, read};
use crate::recipe::resolved::ResolvedRecipe;

/// Keys of a recipe with their values.
pub(super) struct Settings {
    /// As `KEY=VALUE`.
    given: Vec<String>,
    tables: toml::Table,
}

impl Settings {
    /// Those that are given as `KEY=VALUE`; of two for the same key the last one holds.
    ///
    /// # Errors
    /// One is no key, or contradicts another one.
    pub(super) fn of(given: &[String]) -> Result<Self> {
        let tables = overridden(given).map_err(|error| Misuse(with_causes(&error)))?;
        Ok(Self {
            given: given.to_vec(),
            tables,
        })
    }

    /// The value of a key, named with its table; of a table, what is set in it.
    pub(super) fn value(&self, path: &str) -> Option<&toml::Value> {
        at(&self.tables, path)
    }

    /// Whether a key, or one of a table in it, is set.
    pub(super) fn has(&self, path: &str) -> bool {
        self.value(path).is_some()
    }

    /// Whether a key of a table may be chosen. What is set in `[train]` is for all of its stages.
    pub(super) fn leaves(&self, table: &str, key: &str) -> bool {
        let has = |table: &str, key: &str| self.has(&format!("{table}.{key}"));
        let is_stage = table.starts_with(STAGES);
        let mut same = [Some(key), rival(key)].into_iter().flatten();
        let is_set_for_all = is_stage && same.any(|key| has(TRAIN, key));
        let tables = [Some(table), is_stage.then_some(TRAIN)];
        // A stage's own schedule goes before that of all.
        let mut tables = tables.into_iter().flatten();
        let schedule = tables.find_map(|table| self.value(&format!("{table}.{SCHEDULE}")));
        let is_of_other = is_of_other_schedule(key, schedule.and_then(toml::Value::as_str));
        !(has(table, key) || is_set_for_all || is_of_other)
    }

    /// The recipe of this text with these keys.
    ///
    /// # Errors
    /// It makes no sense.
    pub(super) fn read(&self, text: &str) -> Result<ResolvedRecipe> {
        Ok(read(text, &self.given).map_err(|error| Misuse(with_causes(&error)))?)
    }
}

/// The value of a key, named with its table.
pub(super) fn at<'a>(tables: &'a toml::Table, path: &str) -> Option<&'a toml::Value> {
    match path.split_once('.') {
        None => tables.get(path),
        Some((table, rest)) => at(tables.get(table)?.as_table()?, rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(given: &[&str]) -> Settings {
        let given: Vec<String> = given.iter().map(|set| (*set).to_owned()).collect();
        Settings::of(&given).unwrap()
    }

    #[test]
    fn a_key_is_set_by_itself_in_its_table_and_by_what_is_in_it() {
        let settings = settings(&[
            "train={ keep = 1, steps = 4 }",
            "train.keep=2",
            "drafter.fresh.layers=3",
            "target.revision=v1",
        ]);
        assert_eq!(settings.value("train.keep"), Some(&2.into()));
        assert_eq!(settings.value("train.steps"), Some(&4.into()));
        let revision = settings.value("target.revision");
        assert_eq!(revision.and_then(toml::Value::as_str), Some("v1"));
        assert!(settings.has("drafter.fresh"));
        assert!(!settings.has("train.step") && !settings.has("train.keep.a"));
    }

    #[test]
    fn what_is_set_of_a_training_is_set_of_its_stages() {
        let settings = settings(&["train.epochs=2", "stages.align.learning_rate=1e-4"]);
        assert!(settings.leaves("train", "learning_rate"));
        assert!(settings.leaves("stages.refine", "learning_rate"));
        assert!(!settings.leaves("stages.align", "learning_rate"));
        // It says the same as the number of steps.
        assert!(!settings.leaves("stages.align", "steps"));
        assert!(settings.leaves("stages.align", "warmup_steps"));
    }

    #[test]
    fn what_another_schedule_reads_is_not_taken_beside_one_that_is_set() {
        let cosine = settings(&["train.schedule=cosine"]);
        for table in ["train", "stages.align"] {
            assert!(!cosine.leaves(table, "decay_ratio"), "{table}");
            assert!(cosine.leaves(table, "min_lr_ratio"), "{table}");
            assert!(settings(&[]).leaves(table, "decay_ratio"), "{table}");
        }
        assert!(settings(&["train.schedule=wsd"]).leaves("train", "decay_shape"));
        let own = settings(&["train.schedule=cosine", "stages.align.schedule=wsd"]);
        assert!(own.leaves("stages.align", "decay_ratio"));
        assert!(!own.leaves("stages.refine", "decay_ratio"));
    }

    #[test]
    fn keys_that_contradict_each_other_are_misuse() {
        let given = ["train.keep=1".to_owned(), "train.keep.a=1".to_owned()];
        let error = Settings::of(&given).err().unwrap();
        assert!(error.is::<Misuse>() && error.to_string().contains("train.keep"));
    }
}

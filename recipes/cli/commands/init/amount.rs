//! How much a training reads in a step and in all, as in the shipped recipe whose learning rates it has: a rate goes with the
//! tokens of a step, a warm-up with the number of steps.

use std::fmt::Display;

use super::settings::{Settings, at};
use super::train_keys::{LENGTH, STEPS, TRAIN, WARM_UP, training_tables, trainings};
use crate::families::registry::Recipe;
use crate::plan::words::grouped;
use crate::recipe::defaults::whole_rows;
use crate::recipe::tables::DataTable;

/// A warm-up is at most this part of the steps.
const WARMUP_PART: u64 = 10;
/// Keys of what a step is made of.
pub(super) const BATCH: &str = "batch_tokens";
pub(super) const BATCHES: &str = "gradient_accumulation";

/// A key with its value.
pub(super) struct Recommended {
    /// The table, such as `train` or `stages.align`.
    pub(super) table: String,
    /// `KEY = VALUE`, as in the recipe.
    pub(super) line: String,
}

impl Recommended {
    /// A key of a table with a value of TOML.
    pub(super) fn new(table: &str, key: &str, value: impl Display) -> Self {
        Self {
            table: table.to_owned(),
            line: format!("{key} = {value}"),
        }
    }

    /// Whether it is this key of this table.
    pub(super) fn is(&self, table: &str, key: &str) -> bool {
        self.table == table && self.value(key).is_some()
    }

    /// The value, where it is one of a key of this name.
    pub(super) fn value(&self, key: &str) -> Option<&str> {
        let (name, value) = self.line.split_once(" = ")?;
        (name == key).then_some(value)
    }
}

/// For whom something is recommended.
pub(super) struct Own<'a> {
    /// The kind of recipe.
    pub(super) kind: &'a Recipe,
    /// The target: a folder or a hub id.
    pub(super) target: &'a str,
    /// Its revision on the hub, where it is not the main branch.
    pub(super) revision: Option<&'a str>,
    /// Whether the drafter is there, with settings of its own.
    pub(super) is_made: bool,
    /// Tokens of the conversations to train on, where they can be estimated.
    pub(super) tokens: Option<u64>,
    /// What is set already.
    pub(super) settings: &'a Settings,
}

/// Whose amounts are taken, and for whom.
pub(super) struct Amount<'a> {
    /// For whom.
    pub(super) own: &'a Own<'a>,
    /// The shipped recipe.
    pub(super) document: &'a toml::Table,
    /// Positions that the target was made for, where they are known.
    pub(super) positions: Option<usize>,
    /// Whether the shipped recipe is for this very target.
    pub(super) is_its_target: bool,
}

/// Numbers of a shipped recipe.
struct Shipped {
    length: u64,
    batch: u64,
    /// Tokens of a step.
    step: u64,
    /// Steps of each training, by its table.
    trainings: Vec<(String, u64)>,
}

impl Amount<'_> {
    /// Adds the keys that belong together, and what is to be said of them.
    pub(super) fn add(&self, keys: &mut Vec<Recommended>, told: &mut String) {
        let Some(shipped) = self.shipped() else {
            return;
        };
        let length = self.length(&shipped);
        if length.is_some() {
            self.take(keys, "data", "max_length");
        }
        self.take(keys, "data", "overlong");
        let has_variables = self.is_its_target && self.take(keys, "data", "template_variables");
        // With other batches than the shipped recipe's, as many make a step of as many tokens.
        let length = length
            .or_else(|| self.set("data.max_length"))
            .unwrap_or_else(|| DataTable::default().max_length as u64);
        let rows = whole_rows(shipped.batch, length);
        let batch = self.set("train.batch_tokens").unwrap_or(rows);
        let batches = ((shipped.step + batch / 2) / batch).max(1);
        self.put(keys, TRAIN, BATCH, rows);
        self.put(keys, TRAIN, BATCHES, batches);
        let steps: u64 = shipped.trainings.iter().map(|(_, steps)| steps).sum();
        let stages = match shipped.trainings.len() {
            1 => String::new(),
            several => format!(" in {several} stages"),
        };
        *told += &format!(
            " Where nothing else was asked for, texts are as long and steps have as many tokens as there: its learning rates were made \
             for that. It trains for {} steps of {} tokens{stages}, {} M tokens in all. `train.steps` sets the number of steps; \
             `train.epochs`, in its place, passes over the data.",
            grouped(steps),
            grouped(shipped.step),
            grouped((steps * shipped.step + 500_000) / 1_000_000)
        );
        self.put_steps(keys);
        if has_variables {
            *told += " `data.template_variables` are those that it trains with: remove them if the target is served without them.";
        }
        self.put_warm_up(keys, &shipped);
    }

    /// What the shipped recipe says, where it says all of it.
    fn shipped(&self) -> Option<Shipped> {
        let batch = self.number(TRAIN, BATCH)?;
        let batches = self.number(TRAIN, BATCHES).unwrap_or(1);
        let of_all = self.whole(TRAIN, STEPS);
        let trainings = trainings(self.own.kind).into_iter().map(|table| {
            let steps = self.whole(&table, STEPS).or(of_all)?;
            Some((table, steps))
        });
        Some(Shipped {
            length: self.number("data", "max_length")?,
            batch,
            step: batch * batches,
            trainings: trainings.collect::<Option<_>>()?,
        })
    }

    /// The shipped recipe's length of texts, where nothing is against it.
    fn length(&self, shipped: &Shipped) -> Option<u64> {
        let is_free = self.own.settings.leaves("data", "max_length");
        let fits = self
            .positions
            .is_none_or(|most| shipped.length <= most as u64);
        let batch = self.set("train.batch_tokens").unwrap_or(shipped.batch);
        (is_free && fits && batch.is_multiple_of(shipped.length)).then_some(shipped.length)
    }

    /// Adds the steps of each table that the shipped recipe names some in, unless their number or that of epochs is set for all.
    fn put_steps(&self, keys: &mut Vec<Recommended>) {
        if !is_free(self.own.settings, TRAIN) {
            return;
        }
        for table in training_tables(self.own.kind) {
            if let Some(steps) = self.whole(&table, STEPS) {
                self.put(keys, &table, STEPS, steps);
            }
        }
    }

    /// Adds the shipped recipe's warm-up, unless a training is too short for it.
    fn put_warm_up(&self, keys: &mut Vec<Recommended>, shipped: &Shipped) {
        let lengths = shipped.trainings.iter().filter(|(_, steps)| *steps > 0);
        // Of epochs it is not known yet; a run cuts a warm-up that is longer.
        let is_known = is_free(self.own.settings, TRAIN);
        let lengths = lengths.filter_map(|(table, steps)| {
            let own = self.set(&format!("{table}.{STEPS}"));
            let own = own.or_else(|| is_known.then_some(*steps));
            own.or_else(|| self.set("train.steps"))
        });
        let shortest = lengths.min();
        let warm_up = self.whole(TRAIN, WARM_UP).filter(|warm_up| {
            let is_short = shortest.is_none_or(|steps| fits(*warm_up, steps));
            is_short && self.own.settings.leaves(TRAIN, "warmup_ratio")
        });
        if let Some(warm_up) = warm_up {
            self.put(keys, TRAIN, WARM_UP, warm_up);
        }
    }

    /// A whole number that is set, above 0.
    fn set(&self, path: &str) -> Option<u64> {
        let value = self.own.settings.value(path)?.as_integer()?;
        u64::try_from(value).ok().filter(|number| *number > 0)
    }

    /// A whole number of the shipped recipe, above 0.
    fn number(&self, table: &str, key: &str) -> Option<u64> {
        self.whole(table, key).filter(|number| *number > 0)
    }

    /// A whole number of the shipped recipe.
    fn whole(&self, table: &str, key: &str) -> Option<u64> {
        let value = at(self.document, &format!("{table}.{key}"))?;
        u64::try_from(value.as_integer()?).ok()
    }

    /// Adds a key with the shipped recipe's value, if it has one and the key is not set; says whether.
    fn take(&self, keys: &mut Vec<Recommended>, table: &str, key: &str) -> bool {
        let value = at(self.document, &format!("{table}.{key}"));
        let value = value.filter(|_| self.own.settings.leaves(table, key));
        keys.extend(value.map(|value| Recommended::new(table, key, value)));
        value.is_some()
    }

    /// Adds a key with a number, unless it is set.
    fn put(&self, keys: &mut Vec<Recommended>, table: &str, key: &str, value: u64) {
        if self.own.settings.leaves(table, key) {
            keys.push(Recommended::new(table, key, value));
        }
    }
}

/// Whether neither steps nor epochs of a table are set.
pub(super) fn is_free(settings: &Settings, table: &str) -> bool {
    LENGTH.iter().all(|key| settings.leaves(table, key))
}

/// Whether a warm-up is no longer than its part of the steps.
pub(super) fn fits(warm_up: u64, steps: u64) -> bool {
    warm_up * WARMUP_PART <= steps
}

#[cfg(test)]
mod tests {
    use super::super::{passes, recommended};
    use super::*;
    use crate::families::registry::find;

    /// What is recommended of the lengths and steps of an EAGLE-3 drafter for Qwen3-8B, and what is said.
    fn found(tokens: Option<u64>, set: &[&str]) -> (Vec<String>, String) {
        found_of("eagle3", tokens, set)
    }

    /// The same of another drafter.
    fn found_of(kind: &str, tokens: Option<u64>, set: &[&str]) -> (Vec<String>, String) {
        let set: Vec<String> = set.iter().map(|set| (*set).to_owned()).collect();
        let own = Own {
            kind: find(kind).unwrap(),
            target: "Qwen/Qwen3-8B",
            revision: None,
            is_made: false,
            tokens,
            settings: &Settings::of(&set).unwrap(),
        };
        let mut found = recommended::of(&own);
        found.told += &passes::cut(&own, &mut found.keys);
        let keys = found.keys.into_iter().map(|key| key.line);
        let named = [
            "max_length",
            "overlong",
            "template_variables",
            "batch_tokens",
            "gradient_accumulation",
            "steps",
            "warmup_steps",
        ];
        let is_named = |line: &String| {
            named
                .iter()
                .any(|name| line.starts_with(&format!("{name} =")))
        };
        (keys.filter(is_named).collect(), found.told)
    }

    #[test]
    fn what_goes_with_the_rates_is_taken_with_them() {
        let (keys, told) = found(Some(100_000_000), &[]);
        let expected = [
            "max_length = 4096",
            "overlong = \"truncate\"",
            "template_variables = { enable_thinking = false }",
            "batch_tokens = 8192",
            "gradient_accumulation = 8",
            "steps = 5000",
            "warmup_steps = 150",
        ];
        assert_eq!(keys, expected);
        let all = "5,000 steps of 65,536 tokens, 328 M tokens in all.";
        assert!(told.contains(all), "{told}");
        assert!(!told.contains("over this data"), "{told}");
    }

    #[test]
    fn a_step_keeps_its_tokens_and_batches_their_rows() {
        for (set, expected) in [
            // Batches of whole rows.
            (
                &["data.max_length=3000"][..],
                &["batch_tokens = 6000", "gradient_accumulation = 11"][..],
            ),
            (
                &["train.batch_tokens=4_096"],
                &["max_length = 4096", "gradient_accumulation = 16"],
            ),
            // No row of 4096 tokens fits into it.
            (
                &["train.batch_tokens=2048"],
                &["gradient_accumulation = 32"],
            ),
            (
                &["train={ gradient_accumulation = 1 }"],
                &["max_length = 4096", "batch_tokens = 8192"],
            ),
        ] {
            let (keys, _) = found(None, set);
            let names = ["max_length", "batch_tokens", "gradient_accumulation"];
            let sizes = keys
                .iter()
                .filter(|line| names.iter().any(|name| line.starts_with(name)));
            assert_eq!(sizes.collect::<Vec<_>>(), expected, "{set:?}");
        }
    }

    #[test]
    fn little_data_is_not_read_more_than_twenty_times() {
        let (keys, told) = found(Some(3_276_800), &[]);
        assert!(keys.contains(&"steps = 1000".to_owned()), "{keys:?}");
        let has_warmup = keys.iter().any(|line| line.starts_with("warmup"));
        assert!(!has_warmup, "its own is a tenth of the steps: {keys:?}");
        assert!(told.contains("some 100 passes"), "{told}");
        assert!(told.contains("This one makes 20 passes"), "{told}");
    }

    #[test]
    fn steps_that_are_set_are_left_and_have_no_longer_warm_up() {
        let (keys, told) = found(Some(1000), &["train.steps=7"]);
        assert!(!keys.iter().any(|line| line.contains("steps")), "{keys:?}");
        assert!(!told.contains("this one"), "{told}");
        let (keys, _) = found(Some(1000), &["train.epochs=2"]);
        let steps: Vec<_> = keys.iter().filter(|line| line.contains("steps")).collect();
        assert_eq!(steps, ["warmup_steps = 150"]);
    }

    #[test]
    fn a_recipe_without_a_warm_up_has_none_for_others_either() {
        let (keys, _) = found_of("pard", None, &[]);
        assert!(keys.contains(&"warmup_steps = 0".to_owned()), "{keys:?}");
    }

    #[test]
    fn the_steps_of_all_stages_count_as_passes() {
        let steps = |tokens, set: &[&str]| {
            let (keys, told) = found_of("deer", tokens, set);
            let is_steps = |line: &String| line.contains("steps =");
            (Vec::from_iter(keys.into_iter().filter(is_steps)), told)
        };
        let (keys, told) = steps(Some(100_000_000), &[]);
        assert_eq!(keys, ["steps = 3000", "warmup_steps = 100"]);
        let all = "9,000 steps of 65,536 tokens in 3 stages, 590 M tokens in all.";
        assert!(told.contains(all), "{told}");
        // A thousand steps of all stages read these tokens twenty times.
        let (keys, told) = steps(Some(3_276_800), &[]);
        assert_eq!(keys, ["steps = 333"]);
        assert!(told.contains("This one makes 20 passes."), "{told}");
        let (keys, told) = steps(Some(3_276_800), &["stages.adapt.steps=0"]);
        assert_eq!(keys, ["steps = 500"]);
        let others = "This one makes 20 passes beside those of the stages whose length is set.";
        assert!(told.contains(others), "{told}");
        let (keys, _) = steps(Some(3_276_800), &["train.epochs=2"]);
        assert_eq!(keys, ["warmup_steps = 100"]);
    }
}

//! How much a training reads in a step and in all, as in the shipped recipe whose learning rates it has: a rate goes with the
//! tokens of a step, a warm-up with the number of steps.

use crate::families::registry::Recipe;
use crate::plan::data::MOST_PASSES;
use crate::plan::words::grouped;
use crate::recipe::tables::DataTable;

/// A warm-up is at most this part of the steps.
const WARMUP_PART: u64 = 10;

/// A key with its value.
pub(super) struct Recommended {
    /// The table.
    pub(super) table: &'static str,
    /// `KEY = VALUE`, as in the recipe.
    pub(super) line: String,
}

/// For whom something is recommended.
pub(super) struct Own<'a> {
    /// The kind of recipe.
    pub(super) kind: &'a Recipe,
    /// The target: a folder or a hub id.
    pub(super) target: &'a str,
    /// Whether the drafter is there, with settings of its own.
    pub(super) is_made: bool,
    /// Tokens of the conversations to train on, where they can be estimated.
    pub(super) tokens: Option<u64>,
    /// The value of a key, named with its table, that is set already.
    pub(super) set: &'a dyn Fn(&str) -> Option<String>,
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
    steps: u64,
    /// Tokens of a step.
    step: u64,
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
        // Batches hold whole rows; with others than the shipped recipe's, as many make a step of as many tokens.
        let length = length
            .or_else(|| self.set("data.max_length"))
            .unwrap_or_else(|| DataTable::default().max_length as u64);
        let whole_rows = (shipped.batch / length).max(1) * length;
        let batch = self.set("train.batch_tokens").unwrap_or(whole_rows);
        let batches = ((shipped.step + batch / 2) / batch).max(1);
        self.put(keys, "batch_tokens", whole_rows);
        self.put(keys, "gradient_accumulation", batches);
        *told += &format!(
            " Where nothing else was asked for, texts are as long and steps have as many tokens as there: its learning rates were made \
             for that. It trains for {} steps of {} tokens, {} M tokens in all",
            grouped(shipped.steps),
            grouped(shipped.step),
            grouped((shipped.steps * shipped.step + 500_000) / 1_000_000)
        );
        let steps = self.steps(&shipped, told);
        if let Some(steps) = steps {
            self.put(keys, "steps", steps);
        }
        *told += " `train.steps` sets the number of steps; `train.epochs`, in its place, passes over the data.";
        if has_variables {
            *told += " `data.template_variables` are those that it trains with: remove them if the target is served without them.";
        }
        let steps = steps.or_else(|| self.set("train.steps"));
        let warmup = self.number("train", "warmup_steps").filter(|warmup| {
            // Of epochs it is not known yet; a run cuts a warm-up that is longer.
            let is_short = steps.is_none_or(|steps| warmup * WARMUP_PART <= steps);
            is_short && (self.own.set)("train.warmup_ratio").is_none()
        });
        if let Some(warmup) = warmup {
            self.put(keys, "warmup_steps", warmup);
        }
    }

    /// What the shipped recipe says, where it says all of it.
    fn shipped(&self) -> Option<Shipped> {
        let batch = self.number("train", "batch_tokens")?;
        let batches = self.number("train", "gradient_accumulation").unwrap_or(1);
        let steps = self.number("train", "steps")?;
        Some(Shipped {
            length: self.number("data", "max_length")?,
            batch,
            steps,
            step: batch * batches,
        })
    }

    /// The shipped recipe's length of texts, where nothing is against it.
    fn length(&self, shipped: &Shipped) -> Option<u64> {
        let is_set = (self.own.set)("data.max_length").is_some();
        let fits = self
            .positions
            .is_none_or(|most| shipped.length <= most as u64);
        let batch = self.set("train.batch_tokens").unwrap_or(shipped.batch);
        (!is_set && fits && batch.is_multiple_of(shipped.length)).then_some(shipped.length)
    }

    /// How many steps are recommended; none where steps or epochs are set. `told` ends with what the shipped recipe does.
    fn steps(&self, shipped: &Shipped, told: &mut String) -> Option<u64> {
        let is_set = |key: &str| (self.own.set)(key).is_some();
        if is_set("train.steps") || is_set("train.epochs") {
            *told += ".";
            return None;
        }
        let Some(tokens) = self.own.tokens.filter(|tokens| *tokens > 0) else {
            *told += ", as this one does.";
            return Some(shipped.steps);
        };
        let passes = shipped.steps * shipped.step / tokens;
        if passes <= MOST_PASSES {
            *told += ", as this one does.";
            return Some(shipped.steps);
        }
        *told += &format!(
            ": some {} passes over this data, by the size of its files. This one makes {MOST_PASSES} passes.",
            grouped(passes / 10 * 10)
        );
        Some((MOST_PASSES * tokens).div_ceil(shipped.step))
    }

    /// A whole number that is set, above 0.
    fn set(&self, path: &str) -> Option<u64> {
        let value = (self.own.set)(path)?.replace('_', "");
        value.trim().parse().ok().filter(|number| *number > 0)
    }

    /// A whole number of the shipped recipe, above 0.
    fn number(&self, table: &str, key: &str) -> Option<u64> {
        let value = self.document.get(table)?.get(key)?.as_integer()?;
        u64::try_from(value).ok().filter(|number| *number > 0)
    }

    /// Adds a key with the shipped recipe's value, if it has one and the key is not set; says whether.
    fn take(&self, keys: &mut Vec<Recommended>, table: &'static str, key: &str) -> bool {
        let value = self.document.get(table).and_then(|table| table.get(key));
        let value = value.filter(|_| (self.own.set)(&format!("{table}.{key}")).is_none());
        keys.extend(value.map(|value| Recommended {
            table,
            line: format!("{key} = {value}"),
        }));
        value.is_some()
    }

    /// Adds a key of `[train]`, unless it is set.
    fn put(&self, keys: &mut Vec<Recommended>, key: &str, value: u64) {
        if (self.own.set)(&format!("train.{key}")).is_none() {
            keys.push(Recommended {
                table: "train",
                line: format!("{key} = {value}"),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::recommended;
    use super::*;
    use crate::families::registry::find;

    /// What is recommended of the lengths and steps of an EAGLE-3 drafter for Qwen3-8B, and what is said.
    fn found(tokens: Option<u64>, set: &[(&str, &str)]) -> (Vec<String>, String) {
        let of = |path: &str| {
            let mut set = set.iter();
            set.find(|(key, _)| *key == path)
                .map(|(_, value)| (*value).to_owned())
        };
        let own = Own {
            kind: find("eagle3").unwrap(),
            target: "Qwen/Qwen3-8B",
            is_made: false,
            tokens,
            set: &of,
        };
        let found = recommended::of(&own);
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
        let all = "5,000 steps of 65,536 tokens, 328 M tokens in all, as this one does";
        assert!(told.contains(all), "{told}");
    }

    #[test]
    fn a_step_keeps_its_tokens_and_batches_their_rows() {
        for (set, expected) in [
            // Batches of whole rows.
            (
                &[("data.max_length", "3000")][..],
                &["batch_tokens = 6000", "gradient_accumulation = 11"][..],
            ),
            (
                &[("train.batch_tokens", "4096")],
                &["max_length = 4096", "gradient_accumulation = 16"],
            ),
            // No row of 4096 tokens fits into it.
            (
                &[("train.batch_tokens", "2048")],
                &["gradient_accumulation = 32"],
            ),
            (
                &[("train.gradient_accumulation", "1")],
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
        let (keys, told) = found(Some(1000), &[("train.steps", "7")]);
        assert!(!keys.iter().any(|line| line.contains("steps")), "{keys:?}");
        assert!(!told.contains("this one"), "{told}");
        let (keys, _) = found(Some(1000), &[("train.epochs", "2")]);
        let steps: Vec<_> = keys.iter().filter(|line| line.contains("steps")).collect();
        assert_eq!(steps, ["warmup_steps = 150"]);
    }
}

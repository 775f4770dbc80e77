//! How often a training passes over the data: whatever its number of steps is from, no more often than helps.

use spectrain_train::TrainConfig;

use super::amount::{BATCH, BATCHES, Own, Recommended, fits, is_free};
use super::train_keys::{EPOCHS, STEPS, TRAIN, WARM_UP, training_tables, trainings};
use crate::plan::data::MOST_PASSES;
use crate::plan::words::grouped;
use crate::recipe::defaults::whole_rows;
use crate::recipe::tables::DataTable;

/// How often a training is validated, and how often its state is saved, in steps.
const VALIDATE_EVERY: &str = "validate_every";
const SAVE_EVERY: &str = "save_every";
/// So often at least, that there are weights to choose among and little is lost with an interruption.
const TIMES: u64 = 4;

/// What the keys of a training say: as set, else as recommended, else their default.
struct Said<'a> {
    own: &'a Own<'a>,
    keys: &'a [Recommended],
    defaults: TrainConfig,
}

impl Said<'_> {
    /// A key's number as it is set and as it is recommended, of which the first one holds.
    fn numbers(&self, table: &str, key: &str) -> [Option<f64>; 2] {
        let set = self.own.settings.value(&format!("{table}.{key}"));
        let set = set.and_then(|value| value.to_string().parse().ok());
        let mut keys = self.keys.iter().filter(|found| found.table == table);
        let recommended = keys.find_map(|found| found.value(key)?.parse().ok());
        [set, recommended]
    }

    /// A key's number, above 0, else `default`.
    fn number(&self, table: &str, key: &str, default: usize) -> u64 {
        let numbers = self.numbers(table, key).into_iter().flatten();
        let mut numbers = numbers.map(|number| number as u64);
        let found = numbers.find(|number| *number > 0);
        found.unwrap_or(default as u64)
    }

    /// Tokens of a step.
    fn step(&self) -> u64 {
        let row = self.number("data", "max_length", DataTable::default().max_length);
        let rows = whole_rows(self.defaults.batch_tokens as u64, row);
        let batches = self.defaults.gradient_accumulation;
        let batch = self.number(TRAIN, BATCH, rows as usize);
        batch.saturating_mul(self.number(TRAIN, BATCHES, batches))
    }

    /// Steps of the training of a table; 0 where epochs are counted.
    fn steps(&self, table: &str) -> u64 {
        for table in [table, TRAIN] {
            let steps = self.numbers(table, STEPS);
            let epochs = self.numbers(table, EPOCHS);
            for (steps, epochs) in steps.into_iter().zip(epochs) {
                match (steps, epochs) {
                    (_, Some(_)) => return 0,
                    (Some(steps), None) => return steps as u64,
                    (None, None) => {}
                }
            }
        }
        self.defaults.steps as u64
    }

    /// Steps of the trainings of these tables.
    fn all_steps<'t>(&self, tables: impl Iterator<Item = &'t String>) -> u64 {
        tables
            .map(|table| self.steps(table))
            .fold(0, u64::saturating_add)
    }

    /// How often a training of so many steps is validated and saved, where nothing says it and the usual intervals are too long for it.
    fn intervals(&self, table: &str, steps: u64) -> Vec<Recommended> {
        let TrainConfig {
            validate_every,
            save_every,
            ..
        } = self.defaults;
        let is_said = |key: &str| {
            let mut numbers = [table, TRAIN]
                .into_iter()
                .flat_map(|table| self.numbers(table, key));
            numbers.any(|number| number.is_some())
        };
        let usual = [(VALIDATE_EVERY, validate_every), (SAVE_EVERY, save_every)].into_iter();
        let long = usual.filter(|(key, usual)| steps < TIMES * *usual as u64 && !is_said(key));
        long.map(|(key, _)| Recommended::new(table, key, steps.div_ceil(TIMES)))
            .collect()
    }

    /// The part of steps that passes over the data as often as helps; none where all steps do, where how much data there is cannot be
    /// estimated, or where steps or epochs are set.
    fn cut(&self) -> Option<Cut> {
        let tokens = self.own.tokens.filter(|tokens| *tokens > 0)?;
        // Stages whose own length is set are not cut.
        let is_cut = |table: &&String| is_free(self.own.settings, table);
        let tables = trainings(self.own.kind);
        let all_tokens = |steps: u64| steps.saturating_mul(self.step());
        let free = all_tokens(self.all_steps(tables.iter().filter(is_cut)));
        let is_wanted = is_free(self.own.settings, TRAIN) && free / tokens > MOST_PASSES;
        is_wanted.then(|| Cut {
            part: MOST_PASSES.saturating_mul(tokens),
            of: free,
            passes: all_tokens(self.all_steps(tables.iter())) / tokens,
            is_of_all: tables.iter().all(|table| is_cut(&table)),
        })
    }
}

/// A part of the steps, and what to say of it.
struct Cut {
    part: u64,
    of: u64,
    /// Passes over the data without it.
    passes: u64,
    /// Whether no training keeps its steps.
    is_of_all: bool,
}

impl Cut {
    fn steps(&self, all: u64) -> u64 {
        let part = u128::from(all) * u128::from(self.part) / u128::from(self.of);
        (part as u64).max(all.min(1))
    }

    /// What to say of it; `has_intervals` says whether the intervals of validations and states go with it.
    fn told(&self, has_intervals: bool) -> String {
        let about = match self.passes {
            few @ ..100 => few,
            many => many / 10 * 10,
        };
        let others = match self.is_of_all {
            true => "",
            false => " beside those of the stages whose length is set",
        };
        let intervals = match has_intervals {
            true => {
                " Validations and saved states come every quarter of it, as the usual intervals are too long for it."
            }
            false => "",
        };
        format!(
            " The usual number of steps would make some {} passes over this data, by the size of its files. This one makes \
             {MOST_PASSES} passes{others}.{intervals}",
            grouped(about)
        )
    }
}

/// Cuts the steps of trainings that would pass over the data more often than helps, where its tokens can be estimated and no other
/// length was asked for; a warm-up that is too long for what is left goes with them, and validations and saved states come more often.
/// Returns what is to be said of it, in sentences.
pub(super) fn cut(own: &Own, keys: &mut Vec<Recommended>) -> String {
    let said = Said {
        own,
        keys: keys.as_slice(),
        defaults: TrainConfig::default(),
    };
    let Some(cut) = said.cut() else {
        return String::new();
    };
    // Stages without a number of their own have that of the whole training.
    let has_own = |table: &String| keys.iter().any(|found| found.is(table, STEPS));
    let tables = training_tables(own.kind).into_iter();
    let tables = tables.filter(|table| table == TRAIN || has_own(table));
    let tables = tables.filter(|table| is_free(own.settings, table));
    let lengths = tables.map(|table| {
        let steps = cut.steps(said.steps(&table));
        (table, steps)
    });
    let lengths: Vec<(String, u64)> = lengths.filter(|(_, steps)| *steps > 0).collect();
    // Stages whose length is set have the intervals of the whole training.
    let spaced = lengths
        .iter()
        .filter(|(table, _)| cut.is_of_all || table != TRAIN);
    let intervals: Vec<Recommended> = spaced
        .flat_map(|(table, steps)| said.intervals(table, *steps))
        .collect();
    let shortest = lengths.iter().map(|(_, steps)| *steps).min();
    keys.retain(|found| {
        let warm_up = found
            .value(WARM_UP)
            .and_then(|value| value.parse::<u64>().ok());
        warm_up.is_none_or(|warm_up| shortest.is_none_or(|steps| fits(warm_up, steps)))
    });
    for (table, steps) in lengths {
        let line = Recommended::new(&table, STEPS, steps);
        match keys.iter_mut().find(|found| found.is(&table, STEPS)) {
            Some(found) => *found = line,
            None => keys.push(line),
        }
    }
    let told = cut.told(!intervals.is_empty());
    keys.extend(intervals);
    told
}

#[cfg(test)]
mod tests {
    use super::super::settings::Settings;
    use super::*;
    use crate::families::registry::find;

    /// The keys that are left of `keys` of a training on so many tokens, and what is said.
    fn cut_to(tokens: Option<u64>, keys: &[(&str, u64)], set: &[&str]) -> (Vec<String>, String) {
        let set: Vec<String> = set.iter().map(|set| (*set).to_owned()).collect();
        let own = Own {
            kind: find("eagle3").unwrap(),
            target: "nobody/nothing",
            revision: None,
            is_made: false,
            tokens,
            settings: &Settings::of(&set).unwrap(),
        };
        let keys = keys.iter();
        let mut keys: Vec<Recommended> = keys
            .map(|(key, value)| Recommended::new(TRAIN, key, value))
            .collect();
        let told = cut(&own, &mut keys);
        (keys.into_iter().map(|found| found.line).collect(), told)
    }

    /// The keys without how often it is validated and saved.
    fn lengths(mut keys: Vec<String>) -> Vec<String> {
        keys.retain(|line| !line.contains("_every = "));
        keys
    }

    #[test]
    fn a_short_training_is_validated_and_saved_as_often_as_a_long_one() {
        for (tokens, expected) in [
            (
                10_000,
                &["steps = 48", "validate_every = 12", "save_every = 12"][..],
            ),
            (
                10_240,
                &["steps = 50", "validate_every = 13", "save_every = 13"],
            ),
            (100, &["steps = 1", "validate_every = 1", "save_every = 1"]),
            // Four usual intervals.
            (163_840, &["steps = 800"]),
        ] {
            let (keys, told) = cut_to(Some(tokens), &[], &[]);
            assert_eq!(keys, expected, "{tokens}");
            let says = told.contains("saved states come every quarter of it");
            assert_eq!(says, expected.len() > 1, "{told}");
        }
        let set = ["train.validate_every=7"];
        let (keys, _) = cut_to(Some(10_240), &[("save_every", 9)], &set);
        assert_eq!(keys, ["save_every = 9", "steps = 50"]);
    }

    #[test]
    fn stages_whose_length_is_set_keep_the_usual_intervals() {
        let own = |settings: &Settings| {
            let own = Own {
                kind: find("deer").unwrap(),
                target: "nobody/nothing",
                revision: None,
                is_made: false,
                tokens: Some(2048),
                settings,
            };
            let mut keys = vec![Recommended::new("stages.refine", STEPS, 100)];
            cut(&own, &mut keys);
            let named = keys.into_iter();
            let named = named.map(|found| (found.table, found.line));
            named.collect::<Vec<_>>()
        };
        let every = |keys: &[(String, String)]| -> Vec<String> {
            let keys = keys
                .iter()
                .filter(|(_, line)| line.starts_with(VALIDATE_EVERY));
            keys.map(|(table, _)| table.clone()).collect()
        };
        let all = own(&Settings::of(&[]).unwrap());
        assert_eq!(every(&all), [TRAIN, "stages.refine"]);
        let set = ["stages.align.steps=5000".to_owned()];
        let some = own(&Settings::of(&set).unwrap());
        assert_eq!(every(&some), ["stages.refine"]);
    }

    #[test]
    fn the_usual_steps_are_cut_to_little_data() {
        // A thousand steps of 4,096 tokens.
        let (keys, told) = cut_to(Some(64_000), &[], &[]);
        assert_eq!(lengths(keys), ["steps = 312"]);
        assert!(told.contains("some 64 passes"), "{told}");
        assert!(told.contains("This one makes 20 passes."), "{told}");
        for tokens in [None, Some(0), Some(204_800)] {
            let (keys, told) = cut_to(tokens, &[], &[]);
            assert!(keys.is_empty() && told.is_empty(), "{tokens:?} {keys:?}");
        }
    }

    #[test]
    fn steps_count_with_the_tokens_that_they_have() {
        // Two rows of 3,000 tokens would be more than a batch.
        for (set, expected) in [
            (&["data.max_length=3000"][..], "steps = 426"),
            (&["train.batch_tokens=8192"], "steps = 156"),
            (&["train.gradient_accumulation=4"], "steps = 78"),
        ] {
            let (keys, _) = cut_to(Some(64_000), &[], set);
            assert_eq!(lengths(keys), [expected], "{set:?}");
        }
        let (keys, _) = cut_to(Some(64_000), &[("batch_tokens", 2048)], &[]);
        assert_eq!(lengths(keys), ["batch_tokens = 2048", "steps = 625"]);
    }

    #[test]
    fn steps_of_a_tuning_are_cut_with_their_warm_up_and_what_is_set_is_left() {
        let tuning = [("steps", 200), ("warmup_steps", 10)];
        let (keys, _) = cut_to(Some(64_000), &tuning, &[]);
        assert_eq!(keys, ["steps = 200", "warmup_steps = 10"]);
        let (keys, told) = cut_to(Some(2048), &tuning, &[]);
        assert_eq!(lengths(keys), ["steps = 10"]);
        assert!(told.contains("some 400 passes"), "{told}");
        for set in ["train.steps=1000", "train.epochs=100"] {
            let (keys, told) = cut_to(Some(2048), &[], &[set]);
            assert!(keys.is_empty() && told.is_empty(), "{set} {keys:?}");
        }
        let (keys, _) = cut_to(Some(2048), &[("epochs", 30)], &[]);
        assert_eq!(keys, ["epochs = 30"]);
    }
}

//! Defaults that depend on other keys: what was left out goes with what was set.

use spectrain_models::bounds;
use spectrain_train::{OF_EPOCHS, TrainConfig};

use crate::recipe::file::File;
use crate::recipe::settings::Settings;
use crate::recipe::tables::SyntheticTable;

/// The key of the warm-up, and the one that has it as a share of the steps.
const WARM_UP: &str = "warmup_steps";
const WARM_UP_SHARE: &str = "warmup_ratio";

/// Fills in the keys that were left out, where `given` says of a key whether it was set.
pub(super) fn fill<D: Settings, O: Settings>(file: &mut File<D, O>, given: &dyn Fn(&str) -> bool) {
    if let Some(table) = &mut file.synthetic {
        fill_synthetic(table, &|key| given(&format!("synthetic.{key}")));
    }
    let row = file.data.max_length;
    fill_training(&mut file.train, row, &|key| given(&format!("train.{key}")));
    for (stage, training) in &mut file.stages {
        let own = |key: &str| given(&format!("stages.{stage}.{key}"));
        let given = |key: &str| {
            // A stage's own share of the steps goes before the steps of all.
            let is_taken = key == WARM_UP && own(WARM_UP_SHARE);
            own(key) || (!is_taken && given(&format!("train.{key}")))
        };
        fill_training(training, row, &given);
    }
}

/// Tokens of a batch of whole rows, where one of `batch` tokens is asked for and a row, which is never empty, has `row`.
pub(crate) fn whole_rows(batch: u64, row: u64) -> u64 {
    (batch / row).max(1).saturating_mul(row)
}

/// A batch is of whole rows, and a tenth of the steps at most warms up.
fn fill_training(training: &mut TrainConfig, row: usize, given: &dyn Fn(&str) -> bool) {
    if !given("batch_tokens") && row > 0 {
        training.batch_tokens = whole_rows(training.batch_tokens as u64, row as u64) as usize;
    }
    if !given(WARM_UP) {
        training.warmup_steps = match training.steps {
            // A share of as many as it will be.
            OF_EPOCHS => OF_EPOCHS,
            _ if training.warmup_ratio.is_some() => OF_EPOCHS,
            steps => training.warmup_steps.min(steps / 10),
        };
    }
}

fn fill_synthetic(table: &mut SyntheticTable, given: &dyn Fn(&str) -> bool) {
    if !given(WARM_UP) {
        table.warmup_steps = table.warmup_steps.min(table.steps / 10);
    }
    if !given("max_length") {
        table.max_length = table.max_length.min(table.batch_tokens.max(1));
    }
    if !given("batch_tokens") {
        table.batch_tokens = table.batch_tokens.max(table.max_length);
    }
    if !given("kv_heads") && !table.heads.is_multiple_of(table.kv_heads) {
        table.kv_heads = 1;
    }
    let shared_out = table.heads.is_multiple_of(table.kv_heads.max(1));
    if !given("heads") && !shared_out && table.kv_heads <= bounds::HEADS {
        table.heads = table.kv_heads;
    }
}

#[cfg(test)]
mod tests {
    use spectrain_train::OF_EPOCHS;

    use crate::recipe::read::read;

    fn resolved(tables: &str, key: &str) -> u64 {
        let text = format!("recipe = \"deer\"\nname = \"a\"\n{tables}");
        let json = read(&text, &[]).unwrap().json;
        let value = key.split('.').fold(&json, |value, key| &value[key]);
        value.as_u64().unwrap()
    }

    #[test]
    fn what_is_left_out_goes_with_what_is_set() {
        let made = "[synthetic]\n";
        for (tables, key, expected) in [
            ("", "train.warmup_steps", 50),
            ("[train]\nsteps = 10\n", "train.warmup_steps", 1),
            ("[train]\nsteps = 10\n", "stages.align.warmup_steps", 1),
            (
                "[stages.align]\nsteps = 20\n",
                "stages.align.warmup_steps",
                2,
            ),
            (
                "[stages.align]\nsteps = 20\n",
                "stages.refine.warmup_steps",
                50,
            ),
            (
                "[train]\nwarmup_steps = 7\n[stages.align]\nsteps = 20\n",
                "stages.align.warmup_steps",
                7,
            ),
            ("[data]\nmax_length = 1000\n", "train.batch_tokens", 4000),
            ("[data]\nmax_length = 10000\n", "train.batch_tokens", 10_000),
            (
                "[data]\nmax_length = 1000\n",
                "stages.align.batch_tokens",
                4000,
            ),
        ] {
            assert_eq!(
                resolved(&format!("{tables}{made}"), key),
                expected,
                "{tables}"
            );
        }
        for (keys, key, expected) in [
            ("steps = 10", "warmup_steps", 1),
            ("max_length = 5000", "batch_tokens", 5000),
            ("batch_tokens = 100", "max_length", 100),
            ("heads = 3", "kv_heads", 1),
            ("heads = 6", "kv_heads", 2),
            ("kv_heads = 3", "heads", 3),
        ] {
            let found = resolved(
                &format!("[synthetic]\n{keys}\n"),
                &format!("synthetic.{key}"),
            );
            assert_eq!(found, expected, "{keys}");
        }
    }

    #[test]
    fn a_warm_up_is_the_share_of_the_steps_that_is_asked_for() {
        let made = "recipe = \"deer\"\nname = \"a\"\n[synthetic]\n[train]\nsteps = 40\n";
        let warm_ups = |tables: &str, set: &[&str]| {
            let set: Vec<String> = set.iter().map(|set| (*set).to_owned()).collect();
            let recipe = read(&format!("{made}{tables}"), &set).unwrap();
            let again = read(&recipe.toml, &[]).unwrap();
            assert_eq!(recipe.json, again.json);
            let of = |stage| recipe.training(stage).warm_up();
            [recipe.train.warm_up(), of("align"), of("refine")]
        };
        let share = "warmup_ratio = 0.25\n";
        let stage = "[stages.align]\nsteps = 20\n";
        for (tables, set, expected) in [
            (share.to_owned(), &[][..], [10; 3]),
            (format!("{share}{stage}"), &[], [10, 5, 10]),
            (
                format!("{share}{stage}warmup_steps = 7\n"),
                &[],
                [10, 7, 10],
            ),
            (
                format!("warmup_steps = 7\n{stage}warmup_ratio = 0.5\n"),
                &[],
                [7, 10, 7],
            ),
            // An override takes the place of the other key.
            (share.to_owned(), &["train.warmup_steps=3"], [3; 3]),
            (
                "warmup_steps = 7\n".to_owned(),
                &["train.warmup_ratio=0.5"],
                [20; 3],
            ),
        ] {
            assert_eq!(warm_ups(&tables, set), expected, "{tables} {set:?}");
        }
        let both = format!("{made}{share}warmup_steps = 7\n");
        let refused = format!("{:#}", read(&both, &[]).unwrap_err());
        for told in ["`train.warmup_ratio`", "absent beside `train.warmup_steps`"] {
            assert!(refused.contains(told), "{refused}");
        }
    }

    #[test]
    fn the_warm_up_of_epochs_is_as_it_was_set_or_goes_with_their_steps() {
        let made = "recipe = \"deer\"\nname = \"a\"\n[synthetic]\n[train]\nepochs = 2\n";
        let warm_ups = |tables: &str| {
            let recipe = read(&format!("{made}{tables}"), &[]).unwrap();
            let again = read(&recipe.toml, &[]).unwrap();
            assert_eq!(recipe.json, again.json);
            let of = |stage| recipe.training(stage).warmup_steps;
            [recipe.train.warmup_steps, of("align"), of("refine")]
        };
        assert_eq!(warm_ups(""), [OF_EPOCHS; 3]);
        assert_eq!(warm_ups("warmup_steps = 7\n"), [7; 3]);
        let stages = "[stages.align]\nsteps = 100\n[stages.refine]\nwarmup_steps = 9\n";
        assert_eq!(warm_ups(stages), [OF_EPOCHS, 10, 9]);
    }

    #[test]
    fn what_is_set_is_refused_where_it_does_not_fit() {
        let text = "recipe = \"deer\"\nname = \"a\"\n[synthetic]\n[data]\nmax_length = 1000\n[train]\nbatch_tokens = 1500\n";
        let error = format!("{:#}", read(text, &[]).unwrap_err());
        assert!(
            error.contains("line 7") && error.contains("max_length` (1000), found 1500"),
            "{error}"
        );
    }
}

//! Runs whose recipes differ in their seeds alone, pooled as a sweep pools its seeds.

use anyhow::{Result, bail};
use serde_json::Value;
use spectrain_eval::{Report, Variation, sweep};

use crate::runs::stage_names::TRAIN;

/// A run's name, its report, and how many seconds it has trained.
pub(super) type Run = (String, Report, f64);

/// The table of a sweep, with one row for the runs of a recipe that differ in `name` and `seed` alone. The first recipe is the one
/// that others are compared with.
pub(super) fn table(runs: Vec<Run>) -> Result<String> {
    let mut groups: Vec<(Value, Variation)> = Vec::new();
    for (name, report, seconds) in runs {
        let recipe = without_seed(&name, &report)?;
        match groups.iter_mut().find(|(known, _)| *known == recipe) {
            Some((_, known)) => {
                check_seed(known, &name, &report)?;
                known.name = in_common(&known.name, &name);
                known.seconds.push(seconds);
                known.reports.push(report);
            }
            None => {
                let variation = Variation {
                    name,
                    seconds: vec![seconds],
                    reports: vec![report],
                };
                groups.push((recipe, variation));
            }
        }
    }
    let variations = groups.into_iter().map(|(_, variation)| {
        let seeds = variation.reports.len();
        let name = match seeds {
            1 => variation.name,
            _ => format!("{} ({seeds} seeds)", variation.name),
        };
        Variation { name, ..variation }
    });
    Ok(sweep(&variations.collect::<Vec<_>>()))
}

/// What the names of two runs begin with, without a last word `seed`; the first name, where that is nothing.
fn in_common(one: &str, other: &str) -> String {
    let is_between = |c: char| "-_.".contains(c);
    let both = one.char_indices().zip(other.chars());
    let end = both.take_while(|((_, c), other)| c == other);
    let end = end.last().map_or(0, |((at, c), _)| at + c.len_utf8());
    let begin = one[..end].trim_end_matches(is_between);
    let begin = begin.strip_suffix("seed").unwrap_or(begin);
    match begin.trim_end_matches(is_between) {
        "" => one.to_owned(),
        begin => begin.to_owned(),
    }
}

/// The recipe of a run, but for its name and its seed.
fn without_seed(name: &str, report: &Report) -> Result<Value> {
    let mut recipe = report.recipe.clone();
    let keys = recipe.as_object_mut();
    if keys.is_none_or(|keys| keys.remove("name").is_none() || keys.remove("seed").is_none()) {
        bail!(
            "`--pool`: expected reports of runs, found `{name}`, which does not say by which recipe and seed its drafter was trained"
        );
    }
    Ok(recipe)
}

/// Fails where a seed is there already, as it is where a run is given twice.
fn check_seed(known: &Variation, name: &str, report: &Report) -> Result<()> {
    let seed = &report.recipe["seed"];
    let mut seeds = known.reports.iter().map(|report| &report.recipe["seed"]);
    if seeds.any(|known| known == seed) {
        bail!(
            "`--pool`: expected runs of one recipe to differ in `seed`, found seed {seed} twice, the second time in `{name}`"
        );
    }
    Ok(())
}

/// The stages that trained the drafter of a report's resolved recipe: not that of a target which the run has made.
pub(super) fn training_stages(recipe: &Value) -> Vec<&str> {
    match recipe["stages"].as_object().filter(|of| !of.is_empty()) {
        Some(stages) => {
            let trained = stages.iter().filter(|(_, training)| training["steps"] != 0);
            trained.map(|(stage, _)| stage.as_str()).collect()
        }
        None => vec![TRAIN],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::read::read;

    #[test]
    fn seeds_are_called_by_what_their_names_have_in_common() {
        for (one, other, name) in [
            ("a-seed-0", "a-seed-1", "a"),
            ("a-steps-9-seed-0", "a-steps-9-seed-12", "a-steps-9"),
            ("a", "a-seed-1", "a"),
            ("früh_1", "früh_2", "früh"),
            ("one", "two", "one"),
            ("seed-1", "seed-2", "seed-1"),
        ] {
            assert_eq!(in_common(one, other), name);
        }
    }

    #[test]
    fn the_stages_that_train_are_those_of_the_recipe() {
        for (own, stages) in [
            ("recipe = \"eagle3\"\n", &["train"][..]),
            ("recipe = \"deer\"\n", &["train", "align", "refine"]),
            (
                "recipe = \"deer\"\nstages.align.steps = 0\n",
                &["train", "refine"],
            ),
        ] {
            let text = format!("{own}name = \"a\"\n[synthetic]\n");
            let Ok(recipe) = read(&text, &[]) else {
                panic!("{text}");
            };
            let mut expected = recipe.training_stages();
            expected.sort_unstable();
            let mut found = training_stages(&recipe.json);
            found.sort_unstable();
            assert_eq!(found, expected);
            assert_eq!(found.len(), stages.len(), "{found:?}");
        }
    }
}

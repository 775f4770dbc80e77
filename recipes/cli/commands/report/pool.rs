//! Trainings that differ in their seeds alone, pooled as a sweep pools its seeds: runs that say so, and groups that are given.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Result, bail};
use serde_json::Value;
use spectrain_eval::{Report, TrainedSeed, Variation};

use crate::cli::arguments::key_value;
use crate::runs::stage_names::TRAIN;

/// A report under its name, and how many seconds its run has trained, where it is that of a run.
pub(super) struct Run {
    pub(super) name: String,
    pub(super) report: Report,
    pub(super) seconds: Option<f64>,
}

impl Run {
    /// The same as a seed of this name.
    fn into_seed(self, seed: String) -> TrainedSeed {
        TrainedSeed {
            seed,
            seconds: self.seconds,
            report: self.report,
        }
    }
}

/// Reports of the seeds of one drafter, whatever they say of its training.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) reports: Vec<PathBuf>,
}

impl FromStr for Group {
    type Err = String;

    /// Reads `NAME=REPORT,REPORT,…`.
    fn from_str(given: &str) -> Result<Self, String> {
        let wanted = || format!("expected NAME=REPORT,REPORT, found `{given}`");
        let known = key_value(given).map_err(|_| wanted())?;
        let (name, reports) = known.split_once('=').unwrap_or_default();
        let reports = reports.split(',').map(str::trim);
        let reports: Vec<PathBuf> = reports.map(PathBuf::from).collect();
        if reports.iter().any(|report| report.as_os_str().is_empty()) {
            return Err(wanted());
        }
        Ok(Self {
            name: name.trim().to_owned(),
            reports,
        })
    }
}

/// What a sweep would have trained: a variation for the runs of each recipe that differ in `name` and `seed` alone, and behind these
/// one for each group. The first is the one that others are compared with.
pub(super) fn variations(runs: Vec<Run>, groups: Vec<(&str, Vec<Run>)>) -> Result<Vec<Variation>> {
    let mut of_recipes: Vec<(Value, Variation)> = Vec::new();
    for run in runs {
        let recipe = without_seed(&run)?;
        let seed = run.report.recipe["seed"].to_string();
        match of_recipes.iter_mut().find(|(known, _)| *known == recipe) {
            Some((_, known)) => {
                check_seed(known, &seed, &run.name)?;
                known.name = in_common(&known.name, &run.name);
                known.seeds.push(run.into_seed(seed));
            }
            None => {
                let variation = Variation {
                    name: run.name.clone(),
                    seeds: vec![run.into_seed(seed)],
                    failed: Vec::new(),
                };
                of_recipes.push((recipe, variation));
            }
        }
    }
    let variations = of_recipes.into_iter().map(|(_, variation)| variation);
    let mut variations: Vec<Variation> = variations.collect();
    for (name, runs) in groups {
        if variations.iter().any(|known| known.name == name) {
            bail!("`--group`: expected a name of its own for each group, found `{name}` twice");
        }
        check_trainings(name, &runs)?;
        let seeds = runs.into_iter().map(|run| {
            let seed = run.name.clone();
            run.into_seed(seed)
        });
        variations.push(Variation {
            name: name.to_owned(),
            seeds: seeds.collect(),
            failed: Vec::new(),
        });
    }
    Ok(variations)
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
fn without_seed(Run { name, report, .. }: &Run) -> Result<Value> {
    let mut recipe = report.recipe.clone();
    let keys = recipe.as_object_mut();
    if keys.is_none_or(|keys| keys.remove("name").is_none() || keys.remove("seed").is_none()) {
        bail!(
            "`--pool`: expected reports of runs, found `{name}`, which does not say by which recipe and seed its drafter was trained; \
             `--group NAME=REPORT,REPORT` takes such reports together"
        );
    }
    Ok(recipe)
}

/// Fails where a seed is there already, as it is where a run is given twice.
fn check_seed(known: &Variation, seed: &str, name: &str) -> Result<()> {
    if known.seeds.iter().any(|known| known.seed == seed) {
        bail!(
            "`--pool`: expected runs of one recipe to differ in `seed`, found seed {seed} twice, the second time in `{name}`"
        );
    }
    Ok(())
}

/// Fails where two reports of a group are of one training, which says nothing of how far apart trainings are.
fn check_trainings(group: &str, runs: &[Run]) -> Result<()> {
    for (at, Run { name, report, .. }) in runs.iter().enumerate() {
        let weights = &report.drafter.sha256;
        let is_same = |known: &&Run| {
            let own = &known.report.drafter.sha256;
            known.report == *report || (!weights.is_empty() && own == weights)
        };
        if let Some(known) = runs[..at].iter().find(is_same) {
            bail!(
                "`--group`: expected a training of its own for each report of `{group}`, found the same drafter in `{}` and `{name}`",
                known.name
            );
        }
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
    use serde_json::json;
    use spectrain_eval::{DrafterReport, TargetReport};

    use super::*;
    use crate::recipe::read::read;

    /// The report of a drafter with these weights, trained by this recipe.
    fn run(name: &str, weights: &str, recipe: Value) -> Run {
        let drafter = DrafterReport {
            sha256: weights.into(),
            ..DrafterReport::default()
        };
        let mut report = Report::new(TargetReport::default(), drafter, Vec::new());
        report.recipe = recipe;
        Run {
            name: name.into(),
            report,
            seconds: None,
        }
    }

    #[test]
    fn groups_stand_behind_the_runs_that_know_their_recipes() {
        let own = |seed: u64| {
            let name = format!("own-seed-{seed}");
            run(
                &name,
                &name,
                json!({"name": name, "seed": seed, "steps": 9}),
            )
        };
        let others = || vec![run("x/a", "a", json!({})), run("x/b", "b", json!({}))];
        let found = variations(vec![own(3), own(4)], vec![("others", others())]).unwrap();
        let told = found.iter().map(|one| {
            let seeds = one.seeds.iter().map(|of| of.seed.as_str());
            (one.name.as_str(), seeds.collect::<Vec<_>>())
        });
        let expected = [("own", vec!["3", "4"]), ("others", vec!["x/a", "x/b"])];
        assert_eq!(told.collect::<Vec<_>>(), expected);
        for (runs, groups, told) in [
            (others(), vec![], "`--group NAME=REPORT,REPORT` takes such"),
            (
                vec![],
                vec![("a", others()), ("a", others())],
                "found `a` twice",
            ),
            (
                vec![],
                vec![("a", others().into_iter().chain(others()).collect())],
                "the same drafter in `x/a` and `x/a`",
            ),
        ] {
            let refused = variations(runs, groups).unwrap_err().to_string();
            assert!(refused.contains(told), "{refused}");
        }
    }

    #[test]
    fn a_group_has_a_name_and_reports() {
        let found: Group = "theirs = a, b/c".parse().unwrap();
        assert_eq!(found.name, "theirs");
        assert_eq!(found.reports, ["a", "b/c"].map(PathBuf::from));
        for wrong in ["a", "=a", "a=", "a=b,,c"] {
            let refused = wrong.parse::<Group>().unwrap_err();
            assert!(refused.contains("NAME=REPORT,REPORT"), "{refused}");
        }
    }

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

//! The part of a recipe that a stage reads, and what a change of it does to what the stage has made.

use std::borrow::Cow;

use anyhow::Result;
use serde_json::{Map, Value};
use spectrain_train::Effect;

use crate::recipe::resolved::ResolvedRecipe;
use crate::runs::run_folder::COMPUTED_IN;
use crate::runs::stage_names::TRAIN;
use crate::stages::stage::Stage;

/// The key of the settings of an objective, of which a training stage may read some.
const OBJECTIVE: &str = "objective";

/// The tables that say how a drafter is trained, and nothing of what it is.
pub(super) const HOW: [&str; 2] = [TRAIN, OBJECTIVE];

/// The table that has, for each of several training stages, one in the place of [`TRAIN`].
const STAGES: &str = "stages";

/// The part of a recipe that a stage reads.
///
/// # Errors
/// The objective is none that this stage could have.
pub fn settings(recipe: &ResolvedRecipe, stage: &Stage) -> Result<Value> {
    let mut settings = Map::new();
    for path in stage.reads {
        let (table, key) = match path.split_once('.') {
            Some((table, key)) => (table, Some(key)),
            None => (*path, None),
        };
        let value = &recipe.json[table];
        match key {
            None if table == TRAIN => {
                // Of several training stages each has a table of its own.
                let own = recipe.json[STAGES].get(stage.name);
                drop(settings.insert(table.into(), own.unwrap_or(value).clone()));
            }
            None if table == OBJECTIVE => {
                let read = recipe.method.objective_of(stage.name)?;
                drop(settings.insert(table.into(), read));
            }
            None => drop(settings.insert(table.into(), value.clone())),
            Some(key) => {
                let part = settings
                    .entry(table)
                    .or_insert_with(|| Value::Object(Map::new()));
                part[key] = value[key].clone();
            }
        }
    }
    Ok(Value::Object(settings))
}

/// What a change of a setting of a stage, such as `train.steps`, does to what it has done already.
pub fn effect(path: &str) -> Effect {
    match path.split_once('.') {
        Some((TRAIN, key)) => Effect::of(key),
        // Another device computes in its own type, and what is done stays done.
        Some(("target", COMPUTED_IN)) => Effect::Nothing,
        // Whether it is another drafter or are other features, the inputs tell: there are several paths to the same.
        None if path == "start" => Effect::Nothing,
        Some(("features", "from")) => Effect::Nothing,
        _ => Effect::StartsOver,
    }
}

/// What a change of a key of the recipe, such as `stages.refine.steps`, does to what these stages have done already, where what a key
/// names, such as a folder, counts as another than before: nothing where none of them reads it.
pub(super) fn effect_on(stages: &[Stage], key: &str) -> Effect {
    let path = as_read(key);
    let is_meant = |read: &&str| overlap(read, &path);
    let mut inputs = stages.iter().flat_map(|stage| stage.inputs);
    if inputs.any(|input| input.keys().iter().any(is_meant)) {
        return Effect::StartsOver;
    }
    let mut reads = stages.iter().flat_map(|stage| stage.reads);
    match reads.any(is_meant) {
        true => effect(&path),
        false => Effect::Nothing,
    }
}

/// A key of the recipe as the stage reads it that it is for.
fn as_read(key: &str) -> Cow<'_, str> {
    let mut parts = key.splitn(3, '.');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(STAGES), _, Some(key)) => format!("{TRAIN}.{key}").into(),
        (Some(STAGES), ..) => TRAIN.into(),
        _ => key.into(),
    }
}

/// Whether two tables or keys are the same, or one is within the other.
fn overlap(one: &str, other: &str) -> bool {
    let is_within = |inner: &str, outer: &str| {
        let rest = inner.strip_prefix(outer);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    is_within(one, other) || is_within(other, one)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::cli::commands::schema;
    use crate::families::registry::RECIPES;
    use crate::stages::order::STAGES as ALL;

    /// Keys and tables that no stage goes by, each with why another value leaves what is done as it is.
    const ELSEWHERE: &[(&str, &str)] = &[
        ("name", "where the run is, not what is in it"),
        (
            "stages",
            "each table in it is what a training stage reads as `train`",
        ),
        (
            "target.server",
            "who hands out what the target computes: the same target, whose parts are an input",
        ),
        ("target.server_model", "what the servers call that target"),
        (
            "target.server_folder",
            "where hidden states pass on the way from the servers",
        ),
        (
            "target.local_folder",
            "the same folder as this machine sees it",
        ),
        ("target.api_key_env", "how servers are asked"),
        (
            "regenerate.server",
            "who answers: `regenerate.model` and the target say what",
        ),
        ("regenerate.api_key_env", "how servers are asked"),
        (
            "regenerate.failed",
            "whether the stage may end with rows that have no answer: they are asked for again",
        ),
        (
            "regenerate.concurrency",
            "how many rows are asked for at a time",
        ),
        (
            "regenerate.retries",
            "how often a server is asked that fails",
        ),
        (
            "regenerate.requests_per_second",
            "how fast servers are asked",
        ),
        ("regenerate.timeout", "how long an answer is waited for"),
        ("regenerate.wait", "how long a server is waited for"),
        (
            "features.under_way",
            "how many texts are asked for at a time",
        ),
        ("features.timeout", "how long hidden states are waited for"),
        ("features.wait", "how long a server is waited for"),
        ("track", "where figures are sent, not what they are"),
    ];

    /// Every key of every recipe: those at the top, and those of tables that all recipes share with their tables' names. What a
    /// stage reads as a whole stands for all of its keys.
    fn keys() -> BTreeSet<String> {
        let schema = schema::of(&RECIPES.iter().collect::<Vec<_>>()).to_value();
        let mut keys = BTreeSet::new();
        for (name, property) in schema["properties"].as_object().unwrap() {
            let table = property["allOf"][0]["$ref"].as_str();
            let table = table.and_then(|table| schema.pointer(table.trim_start_matches('#')));
            match table.and_then(|table| table["properties"].as_object()) {
                Some(table) => keys.extend(table.keys().map(|key| format!("{name}.{key}"))),
                None => drop(keys.insert(name.clone())),
            }
        }
        keys
    }

    /// Whether this key, or a table that it is in, is among these.
    fn is_among<'a>(key: &str, mut among: impl Iterator<Item = &'a str>) -> bool {
        let table = key.split_once('.').map(|(table, _)| table);
        among.any(|read| read == key || Some(read) == table)
    }

    /// A new key that stands nowhere would leave what was made without it standing as done.
    #[test]
    fn every_key_is_read_by_a_stage_or_said_to_change_nothing() {
        let reads = || ALL.iter().flat_map(|stage| stage.reads).copied();
        let inputs = || ALL.iter().flat_map(|stage| stage.inputs);
        let named = || inputs().flat_map(|input| input.keys()).copied();
        let elsewhere = || ELSEWHERE.iter().map(|(key, _)| *key);
        let keys = keys();
        for key in &keys {
            let is_read = is_among(key, reads().chain(named()));
            let is_elsewhere = is_among(key, elsewhere());
            assert!(
                is_read || is_elsewhere,
                "no stage reads `{key}`: name it in the `reads` of one, or in the `keys` of an input, or in `ELSEWHERE` with why not"
            );
            assert!(!(is_read && is_elsewhere), "a stage reads `{key}`");
        }
        for key in named().chain(elsewhere()) {
            let is_there = keys.iter().any(|known| overlap(known, key));
            assert!(is_there, "there is no `{key}`");
        }
    }

    /// What a change of a key does to what is trained.
    fn on_training(key: &str) -> Effect {
        let training = ALL.iter().position(|stage| stage.name == TRAIN).unwrap();
        effect_on(&ALL[..=training], key)
    }

    #[test]
    fn a_key_concerns_the_stages_that_read_it_or_what_it_names() {
        for key in [
            "train.learning_rate",
            "stages.refine.learning_rate",
            "drafter.layers",
        ] {
            assert_eq!(on_training(key), Effect::StartsOver, "{key}");
        }
        for key in ["train.steps", "stages.refine.steps"] {
            assert_eq!(on_training(key), Effect::GoesOn, "{key}");
        }
        // What they name may be another one, which a stage itself tells by its inputs.
        for key in [
            "start",
            "features.from",
            "data.train",
            "target.model",
            "data.mask",
        ] {
            assert_eq!(on_training(key), Effect::StartsOver, "{key}");
        }
        for key in [
            "name",
            "export.dtype",
            "evaluate.verifier",
            "track",
            "features.timeout",
            "regenerate.concurrency",
            "target.server",
            "train.log_every",
            "stages.refine.log_every",
            // No key of `[data]`, though one begins so.
            "data.train_data",
        ] {
            assert_eq!(on_training(key), Effect::Nothing, "{key}");
        }
        assert_eq!(effect("start"), Effect::Nothing);
        // A table that has come or gone is all of its keys.
        assert_eq!(on_training("regenerate"), Effect::StartsOver);
    }
}

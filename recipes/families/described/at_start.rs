//! Drafters in folders as what training starts from: the keys of `[drafter]` that describe them.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use spectrain_checkpoints::dialect::{Dialect, Reading};
use spectrain_checkpoints::known::open_folder;
use spectrain_models::TargetSpec;
use spectrain_models::listing::hollow;

use super::reading::{Told, dialect_of, likeliest, reading_for};
use super::settings::{config_of, keys_of, settings};
use crate::families::drafter_folder::not_for_this;
use crate::families::family::Family;
use crate::recipe::inline::inline;

/// Fails unless the drafter in `folder` is one of the settings `config`, to start from. Its weights are not read.
pub(crate) fn check_start<D: Family>(
    config: &D::Config,
    folder: &Path,
    target: &TargetSpec,
) -> Result<()> {
    let model = open_folder(folder)?;
    let dialect = dialect_of::<D>(&model)?;
    let meanings = dialect.meanings(&model, &reading_for(target), None)?;
    let told = Told::<D>::of(&model, (dialect, likeliest(meanings, target)), target)?;
    let kept = told.draft_vocab;
    let drafter = hollow::<D>(&told.config, &told.spec, kept);
    let found = settings(&drafter.with_context(|| not_for_this(folder))?)?;
    let given = serde_json::to_value(config).context("cannot write the settings")?;
    // Where no size is asked for, the one that is there is kept.
    let draft_vocab = match given["draft_vocab"].as_u64() {
        None | Some(0) => kept,
        Some(size) => size as usize,
    };
    let other = || {
        let folder = folder.display();
        format!("the drafter `{folder}` has other settings than `[drafter]`")
    };
    let asked = settings(&hollow::<D>(config, target, draft_vocab).with_context(other)?)?;
    let Value::Object(mut given) = given else {
        return Ok(());
    };
    let known = keys_of::<D>();
    for (key, schema) in known.as_object().into_iter().flatten() {
        if let Some(default) = unwritten(schema) {
            given.entry(key.as_str()).or_insert(default);
        }
    }
    let differing = given.iter().filter_map(|(key, value)| {
        let [expected, found] =
            [&asked, &found].map(|all| all.table().get(key).unwrap_or(&Value::Null));
        // A key that is left out takes what the folder has, but a table that is left out is another drafter.
        let is_taken = value.is_null() && !(expected.is_null() && found.is_object());
        let differs = !is_taken && !is_same(expected, found);
        differs.then(|| differs_in(key, expected, found))
    });
    let (all, keys): (Vec<_>, Vec<_>) = differing.unzip();
    if all.is_empty() {
        return Ok(());
    }
    bail!(
        "{}: {}; to train it further, `[drafter]` needs {}",
        other(),
        all.join("; "),
        keys.join(", ")
    );
}

/// What a key of `[drafter]` says where it is not written: one that cannot be null is left out where it is zero or off. Nothing of one
/// that can be null, which takes what a folder has.
fn unwritten(schema: &Value) -> Option<Value> {
    match schema["type"].as_str()? {
        "integer" => Some(json!(0)),
        "boolean" => Some(json!(false)),
        _ => None,
    }
}

/// What is asked for and there under a key of `[drafter]`, and what to write for what is there.
fn differs_in(key: &str, expected: &Value, found: &Value) -> (String, String) {
    let told = |value: &Value| match value {
        Value::Null => "nothing".to_owned(),
        value => inline(value),
    };
    let to_write = match found {
        Value::Null => format!("no `{key}`"),
        found => format!("`{key} = {}`", inline(found)),
    };
    let told = format!(
        "`{key}`: expected {}, found {}",
        told(expected),
        told(found)
    );
    (told, to_write)
}

/// The keys of `[drafter]` that describe the drafter that the folder of a target holds, as far as these are not the defaults; nothing
/// where it holds none of this kind. Its weights are not read.
pub(crate) fn beside_target<D: Family>(folder: &Path) -> Result<Option<Vec<(String, Value)>>> {
    let mut dialects = D::DIALECTS.iter().map(|(dialect, _)| *dialect);
    if !dialects.any(Dialect::may_be_beside_target) {
        return Ok(None);
    }
    let model = open_folder(folder)?;
    let dialect = dialect_of::<D>(&model)?;
    if !(dialect.recognises)(&model) {
        return Ok(None);
    }
    let opened = dialect.open(&model, Reading::default())?;
    beside_defaults::<D>(&config_of::<D>(&opened.settings)?).map(Some)
}

/// The keys of `[drafter]` that describe the drafter in a folder, as far as these are not the defaults: with them training can start
/// from it. Its weights are not read.
pub(crate) fn at_start<D: Family>(
    folder: &Path,
    target: &TargetSpec,
) -> Result<Vec<(String, Value)>> {
    let model = open_folder(folder)?;
    let dialect = dialect_of::<D>(&model)?;
    let meanings = dialect.meanings(&model, &reading_for(target), None)?;
    let told = Told::<D>::of(&model, (dialect, likeliest(meanings, target)), target)?;
    beside_defaults::<D>(&told.config)
}

/// The settings that are not the defaults.
pub(crate) fn beside_defaults<D: Family>(config: &D::Config) -> Result<Vec<(String, Value)>> {
    let [found, usual] = [config, &D::Config::default()]
        .map(|config| serde_json::to_value(config).context("cannot write the settings"));
    let (Value::Object(found), usual) = (found?, usual?) else {
        return Ok(Vec::new());
    };
    let own = |(key, value): &(String, Value)| !value.is_null() && !is_same(value, &usual[key]);
    Ok(found.into_iter().filter(own).collect())
}

/// Whether two settings are the same, but for digits that somebody left out.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            let [one, other] = [one, other].map(|number| number.as_f64().unwrap_or(f64::NAN));
            (one - other).abs() <= 1e-6 * other.abs()
        }
        (Value::Object(one), Value::Object(other)) => {
            let same = |(key, value)| other.get(key).is_some_and(|other| is_same(value, other));
            one.len() == other.len() && one.iter().all(same)
        }
        (one, other) => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::registry::RECIPES;
    use crate::recipe::read;

    /// Whether the value of a key may be null.
    fn is_nullable(schema: &Value) -> bool {
        let null = json!("null");
        let kinds = schema["type"].as_array().into_iter().flatten();
        let choices = schema["anyOf"].as_array().into_iter().flatten();
        let mut all = kinds.chain(choices.map(|choice| &choice["type"]));
        all.any(|kind| *kind == null)
    }

    /// A key that is not written may be whatever a folder has, or it is known what it says.
    #[test]
    fn a_key_that_is_not_written_where_it_is_left_out_still_says_something() {
        for recipe in RECIPES {
            let [known, _] = recipe.keys();
            for trial in recipe.trials {
                let of_file = format!("recipe = \"{}\"\nname = \"a\"", recipe.name);
                let text = format!("{of_file}\n[synthetic]\nlayers = 6\n{trial}");
                let table = |set: &[String]| read(&text, set).unwrap().json["drafter"].clone();
                let written = table(&[]);
                let left_out = known.as_object().unwrap().iter();
                for (key, schema) in left_out.filter(|(key, _)| written.get(key).is_none()) {
                    let meant = unwritten(schema);
                    let which = format!("{} {key}", recipe.name);
                    assert_ne!(meant.is_some(), is_nullable(schema), "{which}");
                    let set = meant.map(|value| format!("drafter.{key}={value}"));
                    assert_eq!(table(set.as_slice()), written, "{which}");
                }
            }
        }
    }
}

//! Features that the elements of an array job capture, each its part of the samples, and all parts made the stage: what a part is.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spectrain_checkpoints::hash::sha256_file_while;

use crate::runs::prepared::printed_day;
use crate::runs::run_folder::{COMPUTED_IN, Inputs, differences};
use crate::runs::stage_names;
use crate::runtime::interruption::check_interrupted;
use crate::runtime::store::Store;
use crate::stages::array::Part;
use crate::stages::context::StageContext;
use crate::stages::settings::{effect, settings};
use crate::stages::stage::Stage;

pub mod capture;
pub(crate) mod join;

/// The stage that has parts.
pub(crate) const STAGE: &str = stage_names::FEATURES;
/// Where parts are in a run, where nothing else is said.
pub(crate) const PARTS: &str = "features-parts";
/// Where parts of an object store are in a run, until they are the stage.
pub(crate) const FETCHED: &str = ".features-parts-fetched";
/// What says how a part was made, written when it is whole.
const PART: &str = "part.json";

/// `part.json`: what a part was made from, and the files that it has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    made: Made,
    /// Length and SHA-256 of each file, by its path in the part.
    files: BTreeMap<String, FileOf>,
    /// What was done, in numbers.
    summary: Value,
}

/// What a part is made from: equal, but for its number, in all parts of a stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Made {
    part: u64,
    of: u64,
    recipe: String,
    seed: u64,
    settings: Value,
    inputs: Inputs,
    /// The day that the texts may have in them, where the chat template prints one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    date: Option<String>,
}

/// A file of a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileOf {
    bytes: u64,
    sha256: String,
}

impl FileOf {
    /// Fails where the file at `path`, which the user knows by `name`, is not as it was written.
    fn check(&self, part: Part, path: &Path, name: &str) -> Result<()> {
        let sha256 = sha256_file_while(path, &mut |_| check_interrupted())?;
        if sha256 != self.sha256 {
            bail!(
                "part {part}: `{name}`: expected the SHA-256 {}, found {sha256}; remove it there, and {}",
                self.sha256,
                captured_again(part)
            );
        }
        Ok(())
    }
}

impl Made {
    fn of(context: &StageContext, stage: &Stage, part: Part) -> Result<Self> {
        // Where servers compute, the type on this device says nothing.
        let settings = if context.recipe.features.mode.computes_target() {
            context.settings(stage)?
        } else {
            settings(context.recipe, stage)?
        };
        Ok(Self {
            part: part.part,
            of: part.of,
            recipe: context.recipe.recipe.clone(),
            seed: context.recipe.seed,
            settings,
            inputs: context.inputs(stage)?,
            date: printed_day(context.run)?.map(|day| day.to_string()),
        })
    }

    /// The first thing that differs in `found`, in words: what a stage would start over for.
    fn difference(&self, found: &Self) -> Option<String> {
        let numbers = |made: &Self| {
            [
                ("part", json!(made.part)),
                ("of", json!(made.of)),
                ("recipe", json!(made.recipe)),
                ("seed", json!(made.seed)),
            ]
        };
        for ((key, own), (_, other)) in numbers(self).into_iter().zip(numbers(found)) {
            if own != other {
                return Some(format!("`{key}`: expected {own}, found {other}"));
            }
        }
        let both = [found, self].map(|made| (&made.settings, &made.inputs));
        differences(both, effect).into_iter().next()
    }

    /// What there is to say of a difference where the texts of both have dates in them, and not the same.
    fn other_date(&self, found: &Self) -> String {
        match (&self.date, &found.date) {
            (Some(own), Some(other)) if own != other => format!(
                " (the chat template prints the date, which is {own} here and {other} there: with `data.date = \"{other}\"` it is \
                 that day on all machines)"
            ),
            _ => String::new(),
        }
    }

    /// The type that the target computed in, where it computed here.
    fn computed_in(&self) -> Option<&str> {
        self.settings["target"][COMPUTED_IN].as_str()
    }
}

/// What is said of a file of a part that is damaged, once it is removed.
fn captured_again(part: Part) -> String {
    format!("`--stage {STAGE} --part {part}` captures what was in it again")
}

/// Where the parts of a run are: as given, or in the run.
fn store(context: &StageContext, given: Option<&str>) -> Result<Store> {
    match given {
        Some(given) => Store::open(given),
        None => Ok(Store::Folder(context.run.path().join(PARTS))),
    }
}

fn check_made(store: &Store, made: &Made, part: Part, found: &Made) -> Result<()> {
    match made.difference(found) {
        Some(difference) => bail!(
            "part {part} in `{}` was made from other inputs or settings: {difference}{}; put them back, or remove the part's folder \
             there to capture it anew, or the folders of all parts there",
            store.name(),
            made.other_date(found)
        ),
        None => Ok(()),
    }
}

/// The description of a part, where it is whole.
fn description(store: &Store, folder: &str) -> Result<Option<Description>> {
    let name = format!("{folder}/{PART}");
    let read = store.read(&name)?;
    let parsed = read.map(|text| serde_json::from_slice(&text));
    parsed
        .transpose()
        .with_context(|| format!("cannot read `{}/{name}`", store.name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::run_folder::CAPTURED_LAYERS;

    pub(super) fn made(settings: Value, inputs: &[(&str, &str)]) -> Made {
        let inputs = inputs.iter();
        Made {
            part: 1,
            of: 2,
            recipe: "eagle3".into(),
            seed: 7,
            settings,
            inputs: inputs
                .map(|&(name, hash)| (name.into(), hash.into()))
                .collect(),
            date: None,
        }
    }

    /// Settings of a part with this type, which is that on the device.
    pub(super) fn computed(dtype: &str, computed_in: &str) -> Value {
        let target = json!({"dtype": dtype, "computed_in": computed_in});
        json!({"features": {"mode": "stored", "from": ["own"]}, "target": target})
    }

    #[test]
    fn a_part_of_an_earlier_version_is_the_same_until_what_it_is_of_is_not() {
        let before = json!({
            "recipe": "eagle3",
            "features": {"mode": "stored", "from": ["../own"]},
            "drafter": {"heads": 2},
            "target": {"dtype": "auto"},
        });
        let old = [("the target", "1"), ("the features `../own`", "2")];
        let found = made(before, &old);
        let new = |target: &'static str| {
            let layers = (CAPTURED_LAYERS, "3");
            [("the target", target), ("the features `own`", "2"), layers]
        };
        let difference = |dtype: &str, inputs: &[(&str, &str)]| {
            made(computed(dtype, "f32"), inputs).difference(&found)
        };
        assert_eq!(difference("auto", &new("1")), None);
        let other = difference("auto", &new("5"));
        assert_eq!(other.unwrap(), "the target has changed");
        let other = difference("int8", &new("1"));
        assert_eq!(other.unwrap(), "`target.dtype`: \"auto\" → \"int8\"");
        let mut other = made(computed("auto", "f32"), &new("1"));
        other.seed = 8;
        let told = other.difference(&found).unwrap();
        assert_eq!(told, "`seed`: expected 8, found 7");
    }
}

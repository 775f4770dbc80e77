//! Arguments that several commands have.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Result, anyhow};
use burn::prelude::Device;
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use spectrain_checkpoints::ModelFolder;
use spectrain_data::dataset::Dataset;
use spectrain_data::presets::Preset;
use spectrain_data::sources::{Origin, Sources};
use spectrain_data::template::check_names;
use spectrain_data::unusable::Unusable;
use spectrain_data::words::in_words;
use spectrain_eval::DraftChoice;
use spectrain_models::{FrozenType, TrainingFree};

use crate::errors::{Misuse, with_causes};
use crate::progress::Output;
use crate::recipe::tables::{DataTable, PromptEntry, TargetType};
use crate::runtime::{device, target};
use crate::stages::prepare::of_row;

/// Where a command computes.
#[derive(Debug, Args)]
pub struct DeviceArgument {
    /// `cpu` or `cuda:N`
    #[arg(long, default_value = "cpu", value_name = "DEVICE", value_parser = device::check_name)]
    pub device: String,
}

/// Where a command computes a target, and with what.
#[derive(Debug, Args)]
pub struct TargetDevice {
    #[command(flatten)]
    device: DeviceArgument,
    /// Number type in which the target computes, as `target.dtype` in a recipe
    #[arg(long = "target-dtype", value_enum, default_value_t = TargetType::Auto, hide_possible_values = true, value_name = "auto|f32|bf16|int8")]
    dtype: TargetType,
}

impl TargetDevice {
    /// The device's name.
    pub fn name(&self) -> &str {
        &self.device.device
    }

    /// The device, and the type of the target's weights.
    pub fn open(&self) -> Result<(Device, FrozenType)> {
        let held = self.target_type()?;
        Ok((device::device(self.name())?, held))
    }

    /// The type of the target's weights.
    pub fn target_type(&self) -> Result<FrozenType> {
        device::check_target_type(self.dtype, self.name(), "`--target-dtype`").map_err(Misuse)?;
        Ok(device::target_type(self.dtype, self.name()))
    }

    /// Whether anything was said of it.
    pub fn is_given(&self) -> bool {
        self.name() != "cpu" || self.dtype != TargetType::Auto
    }
}

/// Conversations that a command reads.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct DataArgument {
    /// Conversations: a file, a folder, a pattern such as `data/*.jsonl`, or a dataset on the hub (`hf://org/name`); or a table or a
    /// list as in `data.train` of a recipe, such as `{ path = "b.jsonl", weight = 2 }`; may be repeated
    #[arg(long, value_name = "PATH", value_parser = sources_parser())]
    data: Vec<Sources>,
    /// In place of `--data`: the name of a dataset that `spectrain data presets` lists
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
}

/// How many rows a command reads.
#[derive(Debug, Args)]
pub struct LimitArgument {
    /// Read the first N rows alone, over all files, as `data.max_samples` in a recipe; without it, all rows
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
}

impl LimitArgument {
    /// The most rows that are read.
    pub fn rows(&self) -> Option<usize> {
        self.limit
            .map(|rows| usize::try_from(rows).unwrap_or(usize::MAX))
    }
}

/// What happens to rows that cannot be used.
#[derive(Debug, Args)]
pub struct UnusableArgument {
    /// What happens to rows that cannot be read, or that the chat template refuses: `refuse` or `drop`
    #[arg(long, default_value = "refuse", value_parser = word::<Unusable>)]
    pub unusable: Unusable,
}

/// The same error; of a row that cannot be used with the option that leaves such rows out.
pub(crate) fn advised_of_rows(error: anyhow::Error) -> anyhow::Error {
    let of_data = error.downcast_ref::<spectrain_data::Error>();
    match of_data.is_some_and(spectrain_data::Error::is_of_row) {
        true => anyhow!(of_row(with_causes(&error), "--unusable drop")),
        false => error,
    }
}

impl DataArgument {
    /// Where they are.
    pub fn sources(&self) -> Result<Sources> {
        together(&self.data, self.preset.as_deref())
    }
}

/// Where the rows are that options name, or else a preset.
pub(crate) fn together(given: &[Sources], preset: Option<&str>) -> Result<Sources> {
    match preset {
        Some(name) => Ok(Origin::Preset(Preset::find(name).map_err(Misuse)?).into()),
        None => Ok(given.iter().cloned().collect()),
    }
}

/// Reads where rows are: a path or an address, or a table or a list of these as in a recipe.
pub(crate) fn sources(given: OsString) -> Result<Sources, String> {
    let written = given.to_str().map(str::trim_start);
    let read = match written.filter(|text| is_written_out(text)) {
        Some(text) => written_out::<Sources>(text)?,
        None => Origin::read(given.into())?.into(),
    };
    let data = DataTable {
        train: Some(read.clone()),
        ..DataTable::default()
    };
    data.check().map_err(|problem| problem.message)?;
    Ok(read)
}

/// The same for the command line, where a path need not be UTF-8.
pub(crate) fn sources_parser() -> impl TypedValueParser<Value = Sources> {
    OsStringValueParser::new().try_map(sources)
}

/// Whether a text is a table or a list and no path: patterns may begin with a bracket too, but not with one before a quoted text or
/// a table.
fn is_written_out(text: &str) -> bool {
    let first_inside = text.strip_prefix('[').map(str::trim_start);
    text.starts_with('{') || first_inside.is_some_and(|inside| inside.starts_with(['"', '\'', '{']))
}

/// Reads what a recipe would have behind the `=` of a key.
fn written_out<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    #[derive(serde::Deserialize)]
    struct Given<T> {
        value: T,
    }
    let read = toml::from_str::<Given<T>>(&format!("value = {text}"));
    read.map(|read| read.value)
        .map_err(|error| in_words(error.message()))
}

/// The dataset of these sources; downloads what is missing.
pub(crate) fn dataset(sources: &Sources, output: Output) -> Result<Dataset> {
    let fetched = sources.fetch(&target::hub_options())?;
    for data in fetched.of_hub() {
        output.say(data);
        if let Some(remark) = &data.remark {
            output.warn(remark);
        }
    }
    for remark in fetched.not_read() {
        output.warn(remark);
    }
    Ok(fetched)
}

/// Fails where what `option` names to write is read by the command, as part of what `read` names.
pub(crate) fn check_written(option: &str, file: &Path, read: &str, is_read: bool) -> Result<()> {
    if !is_read {
        return Ok(());
    }
    let file = file.display();
    let message =
        format!("`{option}`: expected a file that is not part of `{read}`, found `{file}`");
    Err(Misuse(message).into())
}

/// `KEY=VALUE`, as it was given.
pub fn key_value(given: &str) -> Result<String, String> {
    match given.split_once('=') {
        Some((key, _)) if !key.trim().is_empty() => Ok(given.to_owned()),
        _ => Err("expected KEY=VALUE".into()),
    }
}

/// Variables of the chat template.
#[derive(Debug, Default, Args)]
pub struct TemplateArgument {
    /// Set a variable that the chat template reads, such as `enable_thinking=false`; may be repeated. A drafter comes with the
    /// variables that it was trained or imported with
    #[arg(long = "template-variable", value_name = "KEY=VALUE", value_parser = template_variable)]
    pub template_variables: Vec<(String, Value)>,
}

impl TemplateArgument {
    /// Those given.
    pub fn given(&self) -> Map<String, Value> {
        self.template_variables.iter().cloned().collect()
    }

    /// Those given, and where nothing is given those of the drafter in a folder.
    pub fn with_those_of(&self, drafter: &Path) -> Result<Map<String, Value>> {
        let mut variables = target::template_variables(&ModelFolder::open(drafter)?);
        variables.extend(self.given());
        Ok(variables)
    }
}

/// Reads `KEY=VALUE`; a value that is not JSON is a text.
fn template_variable(given: &str) -> Result<(String, Value), String> {
    let (key, value) = given.split_once('=').ok_or("expected KEY=VALUE")?;
    let is_name = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name {
        return Err(format!("expected a name before `=`, found `{key}`"));
    }
    check_names([key]).map_err(|mismatch| mismatch.to_string())?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    Ok((key.to_owned(), value))
}

/// Reads the shape of a draft: a short form, or a table as in a recipe.
pub(crate) fn draft(given: &str) -> Result<DraftChoice, String> {
    if !given.trim_start().starts_with('{') {
        return given
            .trim()
            .parse()
            .map_err(|error: spectrain_eval::Error| error.to_string());
    }
    written_out(given)
}

/// Reads a drafter without training: its short form, or a table as in a recipe.
pub(crate) fn training_free(given: &str) -> Result<TrainingFree, String> {
    if !given.trim_start().starts_with('{') {
        return given.trim().parse();
    }
    written_out(given)
}

/// Reads prompts: a name or a path, or a table as in a recipe.
pub(crate) fn prompts(given: &str) -> Result<PromptEntry, String> {
    if !given.trim_start().starts_with('{') {
        return Ok(given.into());
    }
    let prompts: PromptEntry = written_out(given)?;
    prompts.choose()?;
    Ok(prompts)
}

/// A value by the name that recipes give it.
pub(super) fn word<T: DeserializeOwned>(name: &str) -> Result<T, String> {
    serde_json::from_value(serde_json::Value::String(name.into()))
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_named_by_paths_or_as_in_a_recipe() {
        let read = |given: &str| sources(given.into()).map(|found| serde_json::json!(found));
        for (given, expected) in [
            ("a.jsonl", serde_json::json!("a.jsonl")),
            ("[ab]*.jsonl", serde_json::json!("[ab]*.jsonl")),
            ("hf://org/name", serde_json::json!("hf://org/name")),
            (
                r#"{ path = "a.jsonl", weight = 2 }"#,
                serde_json::json!({"path": "a.jsonl", "weight": 2.0}),
            ),
            (
                r#"["a.jsonl", { preset = "gsm8k" }]"#,
                serde_json::json!(["a.jsonl", {"preset": "gsm8k", "weight": 1.0}]),
            ),
        ] {
            assert_eq!(read(given).unwrap(), expected, "{given}");
        }
        for (given, told) in [
            (
                r#"{ path = "a", wieght = 2 }"#,
                "found the key `wieght`; did you mean `weight`?",
            ),
            (r#"{ path = "a", weight = 0 }"#, "expected a weight above 0"),
            ("hf://a/b/c", "`hf://org/name@revision`"),
            (r#"["a" "b"]"#, ""),
        ] {
            let refused = read(given).unwrap_err();
            assert!(refused.contains(told), "{given}: {refused}");
        }
        let several = ["a", r#"["b", { path = "c", weight = 2 }]"#];
        let several = several.map(|given| sources(given.into()).unwrap());
        assert_eq!(together(&several, None).unwrap().each().len(), 3);
        let preset = together(&[], Some("gsm8k")).unwrap();
        assert_eq!(preset.to_string(), "the preset `gsm8k`");
        assert!(together(&[], Some("gsm9k")).is_err());
    }

    #[test]
    fn template_variables_are_json_or_else_texts() {
        let read = |given: &str| template_variable(given).unwrap().1;
        assert_eq!(read("enable_thinking=false"), Value::Bool(false));
        assert_eq!(read("reasoning_effort=low"), Value::from("low"));
        assert_eq!(read("a={\"b\": [1]}"), serde_json::json!({"b": [1]}));
        assert_eq!(read("text=\"false\""), Value::from("false"));
        for wrong in ["enable_thinking", "=1", "a b=1", "messages=[]"] {
            assert!(template_variable(wrong).is_err(), "{wrong}");
        }
        let own = template_variable("messages=[]").unwrap_err();
        let told = "expected only variables of the template itself, found `messages`, which the program sets";
        assert_eq!(own, told);
    }
}

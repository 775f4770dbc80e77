//! Where a model folder has its chat template.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;
use spectrain_checkpoints::Mismatch;
use spectrain_checkpoints::folder::{
    CHAT_TEMPLATE, CHAT_TEMPLATE_KEY as KEY, PROCESSOR_TEMPLATE, TOKENIZER_CONFIG, TOOLS_TEMPLATE,
    template_file,
};

use crate::error::{Error, Result};
use crate::tokenizer::read_config;

/// The name of the template for conversations with tools.
const TOOL_USE: &str = "tool_use";

/// The source of a template, and the file that has it.
pub(super) struct Source {
    pub(super) file: PathBuf,
    pub(super) text: String,
}

/// The sources of a model folder.
pub(super) struct Sources {
    pub(super) default: Source,
    /// That of the template for conversations with tools, where it is another one.
    pub(super) tool_use: Option<Source>,
}

/// The files from which the chat templates of a model folder are read, of all in it that might have one.
///
/// # Errors
/// Its `tokenizer_config.json` cannot be read.
pub fn files_read(folder: &Path) -> Result<Vec<PathBuf>> {
    let default = template_file(folder, &read_config(folder)?);
    let read = [default, TOOLS_TEMPLATE].map(|name| folder.join(name));
    Ok(read.into_iter().filter(|file| file.exists()).collect())
}

/// The sources in a folder with this `tokenizer_config.json`; none where it has no chat template.
///
/// # Errors
/// A file cannot be read, or has a template in another form.
pub(super) fn of_folder(folder: &Path, config: &Value) -> Result<Option<Sources>> {
    let tool_use = in_file(folder.join(TOOLS_TEMPLATE))?;
    let name = template_file(folder, config);
    let file = folder.join(name);
    let of_processor;
    let template = match name {
        CHAT_TEMPLATE => {
            let default = in_file(file)?;
            return Ok(default.map(|default| Sources { default, tool_use }));
        }
        PROCESSOR_TEMPLATE => {
            of_processor = in_json(&file)?;
            &of_processor[KEY]
        }
        _ => &config[KEY],
    };
    let source = |text: &str| Source {
        file: file.clone(),
        text: text.to_owned(),
    };
    match template.as_str().or_else(|| named(template, "default")) {
        Some(text) => Ok(Some(Sources {
            default: source(text),
            tool_use: tool_use.or_else(|| named(template, TOOL_USE).map(source)),
        })),
        None if template.is_null() => Ok(None),
        None => Err(unreadable(file, "another form")),
    }
}

/// What to say of a folder without a chat template.
pub(super) fn missing(folder: &Path) -> Error {
    unreadable(folder.join(TOKENIZER_CONFIG), "neither")
}

fn unreadable(path: PathBuf, found: &str) -> Error {
    let expected = format!(
        "`{KEY}` as a text or a list with one named `default`, or `{CHAT_TEMPLATE}` beside it"
    );
    Error::File {
        path,
        mismatch: Mismatch::new(expected, found),
    }
}

/// The one of this name in a list of templates with names.
fn named<'v>(list: &'v Value, name: &str) -> Option<&'v str> {
    let entry = list
        .as_array()?
        .iter()
        .find(|entry| entry["name"] == name)?;
    entry["template"].as_str()
}

fn in_file(file: PathBuf) -> Result<Option<Source>> {
    match std::fs::read_to_string(&file) {
        Ok(text) => Ok(Some(Source { file, text })),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(&file)(error)),
    }
}

/// What is in a file of JSON; null where there is no such file.
fn in_json(file: &Path) -> Result<Value> {
    match std::fs::read(file) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| Error::File {
            path: file.to_owned(),
            mismatch: Mismatch::new("a JSON object", error),
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Value::Null),
        Err(error) => Err(Error::io(file)(error)),
    }
}

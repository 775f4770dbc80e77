//! The conversations of speculators: its datasets by their names, and answers that a command of the script gets from the target.

use std::path::Path;

use serde_json::{Map, Value, json};
use spectrain_data::hub_data::HubAddress;
use spectrain_data::presets::Preset;

use super::rows::{Asked, Made};
use super::settings::TRAIN;
use super::shared::{base_of, sources};
use crate::recipe::tables::{OWN_KEYS, TEMPLATE_KEY};

/// What stands before the names of flags of `speculators regenerate-responses`.
pub(super) const REGENERATE: &str = "regenerate.";
const SOURCE: &str = "regenerate.dataset";
const OUTFILE: &str = "regenerate.outfile";
const RESUME: &str = "regenerate.resume";
const PREPARED: &str = "prepare_data.data";
/// What is said of answers to which the command adds those that are missing.
const UNFINISHED: &str = ". It may not be complete: remove it, or run the command to its end";

/// Which answers are trained on, where a command of the script gets some from the target.
enum Answers {
    /// Those that the target has yet to give.
    Anew,
    /// Those that the command has written into this file.
    Written(String),
    /// Others, which the script trains on as they are.
    Others,
}

impl Answers {
    /// `None` where there is no such command.
    fn of(asked: &Asked) -> Option<Self> {
        if !asked.given.called.contains(REGENERATE) {
            return None;
        }
        let written = outfile(asked);
        let plain = |path: &str| path.trim_start_matches("./").to_owned();
        let is_written = |file: &Value| match (file.as_str(), &written) {
            (Some(file), Some(written)) => plain(file) == plain(written),
            _ => false,
        };
        let is_source = match &asked.of(PREPARED) {
            Value::Null => true,
            Value::Array(files) => files.iter().all(is_written),
            file => is_written(file),
        };
        Some(match written {
            _ if !is_source => Self::Others,
            Some(file) if Path::new(&file).exists() => Self::Written(file),
            _ => Self::Anew,
        })
    }
}

/// The file that the command writes: the one that is named, else the one that it names by its data and the model.
fn outfile(asked: &Asked) -> Option<String> {
    let text = |key: &str| {
        let value = asked.of(key);
        let text = value.as_str().filter(|text| !text.is_empty())?;
        Some(text.to_owned())
    };
    text(OUTFILE).or_else(|| {
        let model = text("regenerate.model").or_else(|| text("verifier_name_or_path"))?;
        let (source, model) = (text(SOURCE)?, model.rsplit('/').next()?.to_owned());
        let source = Path::new(&source).file_stem()?.to_str()?;
        Some(format!("{source}_{model}.jsonl"))
    })
}

/// What is prepared for the training: conversations, unless they are those that the target has yet to answer.
pub(super) fn prepared(asked: &Asked) -> Made {
    match Answers::of(asked) {
        Some(Answers::Anew) => Made::nothing(),
        _ => datasets(asked),
    }
}

/// What was made of the conversations, which are known where the program that made it is called too.
pub(super) fn preprocessed(asked: &Asked) -> Made {
    let is_named = !asked.of(PREPARED).is_null() || Answers::of(asked).is_some();
    if asked.value.is_null() || is_named {
        return Made::nothing();
    }
    let why = "this is the dataset that `speculators prepare-data` made; spectrain reads the conversations themselves (`--data`)";
    Made::lacking(TRAIN, why)
}

/// The conversations that the target answers.
pub(super) fn answered(asked: &Asked) -> Made {
    match Answers::of(asked) {
        None => Made::nothing(),
        Some(Answers::Anew) => datasets(asked),
        Some(Answers::Written(file)) => {
            let unfinished = match asked.of(RESUME) {
                Value::Bool(true) => UNFINISHED,
                _ => "",
            };
            let why = format!(
                "`{file}` is there, and trained on as it is, so other settings of the command become no keys; without it the target \
                 would answer the conversations of this dataset (`[regenerate]`){unfinished}"
            );
            Made::key(TRAIN, file).with_note(why)
        }
        Some(Answers::Others) => Made::note(
            "the script trains on other files than the command writes, so this dataset is not trained on, and other settings of the \
             command become no keys",
        ),
    }
}

/// What is made of a setting of the answers that the target has yet to give; of others `regenerate.dataset` tells.
pub(super) fn anew(asked: &Asked, made: impl FnOnce(&Asked) -> Made) -> Made {
    match Answers::of(asked) {
        Some(Answers::Anew) if !asked.value.is_null() => made(asked),
        Some(Answers::Written(_) | Answers::Others) => Made::told(),
        _ => Made::nothing(),
    }
}

/// The server of the target. Conversations that it does not answer are left out, and written into a file.
pub(super) fn endpoint(asked: &Asked) -> Made {
    match asked.value.as_str() {
        Some(url) => Made::keys([
            ("regenerate.server", json!(base_of(url))),
            ("regenerate.failed", json!("drop")),
        ]),
        None => Made::expected("the address of a server"),
    }
}

/// The first conversations, of which the next command may take fewer again.
pub(super) fn limit(asked: &Asked) -> Made {
    let prepared = asked.count("prepare_data.max_samples");
    match asked.whole() {
        Some(own) => Made::key(
            "data.max_samples",
            prepared.map_or(own, |most| most.min(own)),
        ),
        None => Made::expected("a number of conversations"),
    }
}

/// Further keys of each request.
pub(super) fn sampling(asked: &Asked) -> Made {
    let Value::Object(given) = &asked.value else {
        return Made::expected("a table in JSON");
    };
    let mut made = Made::nothing();
    let (mut extra, mut others) = (Map::new(), Vec::new());
    for (name, value) in given {
        let key = match name.as_str() {
            "temperature" => "regenerate.temperature",
            "top_p" => "regenerate.top_p",
            "seed" => "regenerate.seed",
            TEMPLATE_KEY => "data.template_variables",
            // The command has values of its own for these.
            "model" | "messages" | "max_tokens" | "return_token_ids" => continue,
            own if OWN_KEYS.contains(&own) => {
                others.push(format!("`{name}`"));
                continue;
            }
            _ => {
                extra.insert(name.clone(), value.clone());
                continue;
            }
        };
        made.keys.push((key, value.clone()));
    }
    if !extra.is_empty() {
        made.keys.push(("regenerate.extra", Value::Object(extra)));
    }
    match others.is_empty() {
        true => made,
        false => made.with_note(format!("there is no key for {}", others.join(", "))),
    }
}

/// A temperature, as the only one of those from which each conversation draws its own.
pub(super) fn temperature(asked: &Asked) -> Made {
    const KEY: &str = "regenerate.temperature";
    let only = match &asked.value {
        Value::Number(one) => one.as_f64(),
        Value::Object(shares) => match shares.keys().collect::<Vec<_>>()[..] {
            [only] => only.parse().ok(),
            _ => {
                return Made::note(format!(
                    "there each conversation draws its own; here all have one, `{KEY}`"
                ));
            }
        },
        _ => None,
    };
    match only {
        Some(temperature) => Made::key(KEY, temperature),
        None => Made::expected("temperatures with their shares, in JSON"),
    }
}

/// Datasets by the names that `speculators prepare-data` has, or had before version 0.9.
fn datasets(asked: &Asked) -> Made {
    sources(asked, |text| {
        match text {
        "open-perfectblend" => Ok(json!({ "preset": "perfectblend" })),
        // Our preset of that name is another one of its datasets.
        "magpie" => Ok(json!("hf://Magpie-Align/Magpie-Llama-3.1-Pro-300K-Filtered")),
        "hermes-fc" => Ok(json!("hf://NousResearch/hermes-function-calling-v1:func_calling/train")),
        "nemotron" => Err(
            "`nemotron` (`nvidia/Llama-Nemotron-Post-Training-Dataset`) has columns that no preset reads: write it as JSON lines with \
             `messages`"
                .to_owned(),
        ),
        "sharegpt4v_coco" => Err("`sharegpt4v_coco` has images; spectrain trains on text".to_owned()),
        name if Preset::find(name).is_ok() => Ok(json!({ "preset": name })),
        path => address(path).map(Value::from),
    }
    })
}

/// `hf:org/name:subset:split` as the address that it is, and paths as they are.
fn address(path: &str) -> Result<String, String> {
    if let Some(rest) = path.strip_prefix("hf://datasets/") {
        let file = rest.splitn(3, '/').nth(2);
        return match file {
            Some(file) => Err(format!(
                "`{path}` is one file of a dataset: download `{file}` and name its path"
            )),
            None => Ok(path.to_owned()),
        };
    }
    let Some(rest) = path
        .strip_prefix("hf:")
        .filter(|rest| !rest.starts_with("//"))
    else {
        return Ok(path.to_owned());
    };
    let address = match rest.split(':').collect::<Vec<_>>()[..] {
        [id] => format!("hf://{id}"),
        [id, split] => format!("hf://{id}:{split}"),
        [id, subset, split] => format!("hf://{id}:{subset}/{split}"),
        _ => {
            return Err(format!(
                "`{path}`: expected `hf:org/name`, with `:split` or `:subset:split` behind it"
            ));
        }
    };
    match HubAddress::parse(&address) {
        Some(Err(error)) => Err(format!("`{path}`: {error}")),
        _ => Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_datasets_are_addresses() {
        for (path, expected) in [
            ("data/a.jsonl", "data/a.jsonl"),
            ("hf:org/name", "hf://org/name"),
            ("hf:org/name:train_sft", "hf://org/name:train_sft"),
            ("hf:openai/gsm8k:main:test", "hf://openai/gsm8k:main/test"),
        ] {
            assert_eq!(address(path).as_deref(), Ok(expected), "{path}");
        }
        for path in [
            "hf:a:b:c:d",
            "hf:",
            "hf:org/name::train",
            "hf://datasets/org/name/a.jsonl",
        ] {
            assert!(address(path).unwrap_err().contains(path), "{path}");
        }
    }
}

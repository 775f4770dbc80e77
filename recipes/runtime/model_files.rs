//! The files of a model's folder.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use spectrain_checkpoints::folder::{
    CONFIG, GENERATION_CONFIG, INDEX, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS, weight_map,
};
use spectrain_checkpoints::known::layer_beside_target;
use spectrain_data::template;
use spectrain_models::is_part;

/// The files that decide what a target computes. Where it stops and how it samples is in none of them: of
/// `generation_config.json`, which has more than that, stages compare what they read.
pub fn weight_files(folder: &Path) -> Result<Vec<PathBuf>> {
    files_with(folder, |_| true)
}

/// Those of them that decide what a drafter shares of a target: of weights in shards the shards with its embedding, norm or head.
/// What else of the model is on this machine changes nothing.
pub fn part_files(folder: &Path) -> Result<Vec<PathBuf>> {
    files_with(folder, is_part)
}

/// The configuration, the index and the shards with a tensor that is `wanted`; of a model in one file both. Weights that are not
/// read, such as those that an engine has downloaded beside these, are none of them.
fn files_with(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    // A folder without weights is refused, with what to do about it, where it is opened.
    let index = folder.join(INDEX).exists();
    let shards = index.then(|| weight_map(folder)).transpose()?.flatten();
    let Some(shards) = shards else {
        return files(folder, |name| [CONFIG, WEIGHTS].contains(&name));
    };
    let shards = shards.into_iter().filter(|(name, _)| wanted(name));
    let shards: BTreeSet<String> = shards.map(|(_, shard)| shard).collect();
    files(folder, |name| {
        [CONFIG, INDEX].contains(&name) || shards.contains(name)
    })
}

/// Those that decide what a drafter computes: of a layer in its target's folder, where weights are in shards, the shards with it.
pub fn drafter_files(folder: &Path) -> Result<Vec<PathBuf>> {
    match layer_beside_target(folder)? {
        None => weight_files(folder),
        Some(own) => files_with(folder, |name| own.contains(name)),
    }
}

/// The files that decide how a target's text becomes tokens: of those that may have a chat template the ones that are read.
pub fn text_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let templates = template::files_read(folder)?;
    let mut files = files(folder, |name| {
        [CONFIG, TOKENIZER, TOKENIZER_CONFIG].contains(&name)
            || templates.contains(&folder.join(name))
    })?;
    // Those in folders of their own.
    let further = templates.into_iter();
    files.extend(further.filter(|file| file.parent() != Some(folder)));
    Ok(files)
}

/// The generation settings of the target in a folder, where it has some.
pub fn generation_config(folder: &Path) -> Result<Option<Value>> {
    let path = folder.join(GENERATION_CONFIG);
    path.exists().then(|| read_json(&path)).transpose()
}

fn files(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("cannot read the folder `{}`", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let entry =
            entry.with_context(|| format!("cannot read the folder `{}`", folder.display()))?;
        if wanted(&entry.file_name().to_string_lossy()) {
            files.push(entry.path());
        }
    }
    files.sort();
    if files.is_empty() {
        bail!(
            "`{}` holds no model: expected `config.json` and `*.safetensors`",
            folder.display()
        );
    }
    Ok(files)
}

/// A JSON file.
pub fn read_json(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read `{}`", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("cannot read `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use spectrain_checkpoints::folder::{CHAT_TEMPLATE, PROCESSOR_TEMPLATE, TOOLS_TEMPLATE};

    use super::*;

    #[test]
    fn weights_that_are_not_read_are_none_of_a_models_files() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path();
        let named = |names: &[&str]| -> Vec<PathBuf> {
            names.iter().map(|name| folder.join(name)).collect()
        };
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        let strays = [
            "consolidated.safetensors",
            "model.safetensors.part",
            "generation_config.json",
        ];
        for name in strays {
            write(name, "{}");
        }
        write(CONFIG, "{}");
        let index = r#"{"weight_map": {"model.embed_tokens.weight": "a.safetensors", "x": "b.safetensors"}}"#;
        write(INDEX, index);
        write("a.safetensors", "");
        write("b.safetensors", "");
        let sharded = named(&["a.safetensors", "b.safetensors", CONFIG, INDEX]);
        assert_eq!(weight_files(folder).unwrap(), sharded);
        let parts = named(&["a.safetensors", CONFIG, INDEX]);
        assert_eq!(part_files(folder).unwrap(), parts);
        // The file is what is read where there are both.
        write(WEIGHTS, "");
        let single = named(&[CONFIG, WEIGHTS]);
        assert_eq!(weight_files(folder).unwrap(), single);
        assert_eq!(part_files(folder).unwrap(), single);
        assert_eq!(drafter_files(folder).unwrap(), single);
    }

    #[test]
    fn a_template_that_is_not_read_decides_nothing_of_a_targets_text() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        let check = |expected: &[&str]| {
            let expected: Vec<PathBuf> = expected.iter().map(|name| folder.join(name)).collect();
            assert_eq!(text_files(folder).unwrap(), expected);
        };
        write(CONFIG, "{}");
        write(TOKENIZER, "{}");
        write(PROCESSOR_TEMPLATE, "{}");
        check(&[PROCESSOR_TEMPLATE, CONFIG, TOKENIZER]);
        write(TOKENIZER_CONFIG, "{}");
        check(&[PROCESSOR_TEMPLATE, CONFIG, TOKENIZER, TOKENIZER_CONFIG]);
        write(TOKENIZER_CONFIG, r#"{"chat_template": "x"}"#);
        check(&[CONFIG, TOKENIZER, TOKENIZER_CONFIG]);
        write(CHAT_TEMPLATE, "x");
        let with_template = [CHAT_TEMPLATE, CONFIG, TOKENIZER, TOKENIZER_CONFIG];
        check(&with_template);
        write(TOKENIZER_CONFIG, "{}");
        check(&with_template);
        let tools = folder.join(TOOLS_TEMPLATE);
        std::fs::create_dir(tools.parent().unwrap()).unwrap();
        std::fs::write(tools, "x").unwrap();
        check(&[&with_template[..], &[TOOLS_TEMPLATE]].concat());
    }
}

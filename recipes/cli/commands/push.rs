//! `spectrain push`: the exported drafter to the hub.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;
use spectrain_checkpoints::hub::{
    Push, PushReport, Pushed, RepoType, Repository, Visibility, push, pushed_files,
};
use spectrain_checkpoints::{ModelFolder, printable, seal, speculators};

use crate::errors::Misuse;
use crate::progress::{print, tell};
use crate::runtime::target::hub_options;
use crate::stages::drafter_at::DrafterAt;

/// Arguments of `spectrain push`.
#[derive(Debug, clap::Args)]
pub struct PushArguments {
    /// The drafter: a run or its folder, or an exported folder
    #[arg(value_name = "RUN_OR_FOLDER")]
    drafter: String,
    /// The repository on the hub, `owner/name`; it is created if it does not exist
    #[arg(value_name = "OWNER/NAME")]
    repository: String,
    /// Make the repository public; without this it is private
    #[arg(long)]
    public: bool,
    /// The branch, which is created if it does not exist
    #[arg(long, value_name = "BRANCH", default_value = "main")]
    revision: String,
    /// The first line of the commit's message
    #[arg(long, value_name = "TEXT", default_value = "Upload the drafter")]
    message: String,
    /// Print what would be uploaded, without contacting the hub
    #[arg(long)]
    dry_run: bool,
    /// The folder of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &PushArguments) -> Result<()> {
    let repository = Repository::new(
        RepoType::Model,
        &arguments.repository,
        Some(&arguments.revision),
    );
    let repository = repository.map_err(|error| Misuse(error.to_string()))?;
    let folder = match DrafterAt::find(&arguments.drafter, &arguments.runs)? {
        DrafterAt::Hub { id, .. } => {
            let message = format!("`{id}`: expected a run or a folder here, found none");
            return Err(Misuse(message).into());
        }
        found => found.folder()?,
    };
    let model = ModelFolder::open(&folder)?;
    let files = pushed_files(&model).with_context(|| {
        format!(
            "cannot push `{}`: expected a folder as `export` left it",
            folder.display()
        )
    })?;
    if !files.iter().any(|file| file.name == seal::CARD) {
        tell(format!(
            "warning: the folder has no card (`{}`): `spectrain export {} --to ENGINE --out DIR` writes one with it, which can be \
             pushed in its place",
            seal::CARD,
            arguments.drafter
        ));
    }
    warn_of_paths(&model);
    warn_of_target(&model, &arguments.repository);
    for name in left_out(&folder, &files)? {
        tell(format!(
            "not uploaded, because it is not part of the drafter: `{}`",
            printable(&name)
        ));
    }
    print(listed(arguments, &files))?;
    if arguments.dry_run {
        return Ok(());
    }
    let wanted = Push {
        folder: &folder,
        repository: &repository,
        visibility: if arguments.public {
            Visibility::Public
        } else {
            Visibility::Private
        },
        message: &arguments.message,
    };
    print(said(&push(&wanted, &hub_options())?))
}

/// The files with their sizes, and where they go.
fn listed(arguments: &PushArguments, files: &[Pushed]) -> String {
    let seen_by = if arguments.public {
        "public"
    } else {
        "private"
    };
    let PushArguments {
        repository,
        revision,
        ..
    } = arguments;
    let all: u64 = files.iter().map(|file| file.bytes).sum();
    let mut text = format!("to `{repository}`, branch `{revision}`, {seen_by}: {all} bytes\n");
    let width = files.iter().map(|file| file.name.len()).max().unwrap_or(0);
    for file in files {
        text.push_str(&format!(
            "  {:width$}  {:>12} bytes  sha256 {}\n",
            file.name, file.bytes, file.sha256
        ));
    }
    text
}

/// What a push came to.
fn said(report: &PushReport) -> String {
    for name in &report.strangers {
        tell(format!(
            "warning: the repository also has `{name}`, which is not part of this drafter: engines may load it"
        ));
    }
    let (sent, there) = (report.sent, report.already_there);
    match &report.commit {
        Some(commit) => format!(
            "pushed: {commit}\nsent to large-file storage: {sent} bytes; large files that were there already: {there}\n"
        ),
        None => "nothing to push: the repository has all of these files already\n".to_owned(),
    }
}

/// Files of the folder that stay here.
fn left_out(folder: &Path, files: &[Pushed]) -> Result<Vec<String>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot read `{}`", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read `{}`", folder.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !files.iter().any(|file| file.name == name) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Says which keys of the configuration are paths on this machine: the card names none, but the recipe does, and so does a layout
/// that says where the target is.
fn warn_of_paths(model: &ModelFolder) {
    let found = paths_in(model.config());
    if !found.is_empty() {
        let keys = found.join("`, `");
        tell(format!(
            "warning: `config.json` names files on this machine, and whoever sees the repository sees these names: `{keys}`"
        ));
    }
}

/// Says that nobody can serve a layout by which engines find the target, where that is a path on this machine.
fn warn_of_target(model: &ModelFolder, repository: &str) {
    if let Some(target) = local_target(model.config()) {
        tell(format!(
            "warning: `vllm serve {repository}` takes the target from `config.json`, which names `{}`, a folder of this machine: \
             export the drafter again with `--target` and the target's id on the hub",
            printable(target)
        ));
    }
}

/// The target of a folder of the speculators library, where it is a path on this machine.
fn local_target(config: &Value) -> Option<&str> {
    speculators::verifier(config).filter(|named| Path::new(named).is_absolute())
}

/// Keys of a configuration that are paths on this machine; those of the recipe by their names there.
fn paths_in(config: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(provenance) = seal::provenance(config) {
        paths(provenance, "", &mut found);
    }
    let keys = config.as_object().into_iter().flatten();
    for (key, value) in keys.filter(|(key, _)| *key != seal::SEAL) {
        paths(value, key, &mut found);
    }
    found
}

/// Keys whose values are paths from the root on.
fn paths(value: &Value, key: &str, found: &mut Vec<String>) {
    match value {
        Value::String(text) if Path::new(text).is_absolute() => found.push(key.to_owned()),
        Value::Array(values) => values.iter().for_each(|value| paths(value, key, found)),
        Value::Object(table) => {
            for (name, value) in table {
                let dot = if key.is_empty() { "" } else { "." };
                paths(value, &format!("{key}{dot}{name}"), found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_of_the_recipe_and_of_the_layout_are_found() {
        let mut config = json!({
            "speculators_config": {"verifier": {"name_or_path": "/models/target", "architectures": ["A"]}},
        });
        config[seal::SEAL] =
            json!({"provenance": {"recipe": {"data": {"train": ["/data/a.jsonl", "b.jsonl"]}}}});
        assert_eq!(
            paths_in(&config),
            [
                "recipe.data.train",
                "speculators_config.verifier.name_or_path"
            ]
        );
        assert_eq!(local_target(&config), Some("/models/target"));
        config[seal::SEAL] = json!({});
        config["speculators_config"]["verifier"]["name_or_path"] = json!("org/name");
        assert!(paths_in(&config).is_empty());
        assert_eq!(local_target(&config), None);
        assert_eq!(local_target(&json!({})), None);
    }
}

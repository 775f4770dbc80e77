//! `spectrain export --into`: a layer of multi-token prediction in the checkpoint of its target.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use spectrain_checkpoints::into_target::{IntoTarget, Placed};
use spectrain_checkpoints::known::open_folder;
use spectrain_checkpoints::{ModelFolder, printable, seal};

use super::origin::exported_from;
use super::out;
use crate::families::commands::told;
use crate::progress::print;
use crate::recipe::read::read;
use crate::recipe::tables::Engine;
use crate::runs::places::{IMPORTED, trained};
use crate::runs::stage_names;
use crate::runtime::interruption::{Interrupted, interrupted};
use crate::runtime::target;
use crate::stages::drafter_at::{DrafterAt, is_done};
use crate::stages::exported::seen_from;
use crate::stages::outdated::outdated_export;

/// Tokens of a draft where nothing says how many: what FastMTP trains and drafts with.
const USUAL_DRAFT: usize = 3;

/// What is asked for.
pub(super) struct Asked<'a> {
    /// What the user calls the drafter.
    pub(super) drafter: &'a str,
    /// Hub id or folder of the target.
    pub(super) target: &'a str,
    /// The folder to write.
    pub(super) out: &'a Path,
    /// The folder of runs.
    pub(super) runs: &'a Path,
    /// Whether to copy the target's shards.
    pub(super) copies: bool,
}

/// A layer's folder, and where the layer comes from.
struct Source {
    folder: PathBuf,
    provenance: Value,
}

/// Writes the folder, and prints what became of the target's files and how to serve it.
pub(super) fn run(asked: &Asked) -> Result<()> {
    let source = Source::find(asked)?;
    let folder = target::resolve(asked.target, None)?;
    out::check(asked.out, &[&source.folder, &folder])?;
    let layer = open_folder(&source.folder)?;
    seal::check(&layer)?;
    if let Some(named) = target::trained_for_by(&source.provenance)
        && !target::is_of(&folder, &named.sha256)?
    {
        bail!(named.is_not(&source.folder, asked.target));
    }
    let into = IntoTarget {
        layer: &layer,
        target: &ModelFolder::open(&folder)?,
        copies: asked.copies,
        stop: interrupted,
    };
    let placed = into.write(asked.out).map_err(|error| match interrupted() {
        true => Interrupted::Command.into(),
        false => anyhow::Error::from(error),
    })?;
    let place = asked.out.display();
    print(format!("# {place}{}\n", seen_from(asked.out)))?;
    for line in remarks(&placed, asked.copies) {
        print(format!("# {}\n", printable(&line)))?;
    }
    let length = &source.provenance["recipe"]["evaluate"]["draft_lengths"][0];
    let length = length.as_u64().filter(|&length| length > 0);
    let lines = placed.launch(
        asked.out,
        length.map_or(USUAL_DRAFT, |length| length as usize),
    );
    let engines = [Engine::Vllm, Engine::Sglang];
    for line in told(&lines, &engines, asked.out, &source.provenance) {
        print(format!("{line}\n"))?;
    }
    Ok(())
}

impl Source {
    fn find(asked: &Asked) -> Result<Self> {
        let at = DrafterAt::find(asked.drafter, asked.runs)?;
        match &at {
            DrafterAt::Run(run) if !is_done(run, stage_names::IMPORT)? => Self::of_run(run),
            DrafterAt::Run(run) => Self::of_folder(run.join(IMPORTED)),
            other => Self::of_folder(other.folder()?),
        }
    }

    fn of_folder(folder: PathBuf) -> Result<Self> {
        let provenance = seal::provenance(open_folder(&folder)?.config()).cloned();
        Ok(Self {
            folder,
            provenance: provenance.unwrap_or_default(),
        })
    }

    /// The weights before they were rounded for the folder that the run has exported.
    fn of_run(run: &Path) -> Result<Self> {
        let path = run.join("recipe.toml");
        let cannot = || format!("cannot read `{}`", path.display());
        let text = std::fs::read_to_string(&path).with_context(cannot)?;
        let recipe = read(&text, &[]).with_context(cannot)?;
        let folder = run.join(trained(recipe.last_trained()));
        let is_trained = is_done(run, recipe.last_trained())? && is_done(run, stage_names::EXPORT)?;
        let provenance = match is_trained {
            true => exported_from(run, &folder)?,
            false => None,
        };
        let Some(provenance) = provenance else {
            let why = outdated_export(run)?;
            bail!(
                "the run `{}` has not exported what it has trained: {}",
                run.display(),
                why.as_deref().unwrap_or("run its recipe first")
            );
        };
        Ok(Self { folder, provenance })
    }
}

/// What became of the target's files.
fn remarks(placed: &Placed, copies: bool) -> Vec<String> {
    let files = &placed.files;
    let what = match placed.replaces {
        true => "in the place of the target's",
        false => "which the target did not have",
    };
    let mut lines = vec![format!(
        "`{}`: the layer's {} tensors, {what}",
        files.new, placed.tensors
    )];
    if files.kept > 0 {
        lines.push(match copies {
            true => format!("{} of the target's shards, copied", files.kept),
            false => format!(
                "{} of the target's shards, linked: change them in neither folder",
                files.kept
            ),
        });
    }
    let quoted = |names: &[String]| {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        names.join(", ")
    };
    for (names, what) in [
        (&files.rewritten, "written anew without the target's layer"),
        (&files.dropped, "left out: it held the target's layer alone"),
        (&files.left_out, "left out: no part of the model"),
    ] {
        if !names.is_empty() {
            lines.push(format!("{}: {what}", quoted(names)));
        }
    }
    for (key, value) in &placed.keys {
        lines.push(match value {
            Value::Null => format!("`config.json`: no `{key}` any more"),
            value => format!("`config.json`: `{key}` is `{value}` now"),
        });
    }
    lines
}

//! `spectrain export`: a finished run's drafter for one engine.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::recipe;
use crate::run_folder::{RunFolder, Status, manifest_in};
use crate::stages::{export, trained};
use crate::tables::{Engine, ExportTable, ExportType};
use crate::target;

/// Arguments of `spectrain export`.
#[derive(Debug, clap::Args)]
pub struct ExportArguments {
    /// The run's name
    run: String,
    /// The engine
    #[arg(long, value_enum)]
    to: Engine,
    /// The folder to write
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Type of the weights
    #[arg(long, value_enum, default_value_t = ExportType::Bf16)]
    dtype: ExportType,
    /// The folder of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &ExportArguments) -> Result<()> {
    let run = RunFolder::look(&arguments.runs, &arguments.run)?;
    if arguments.out.exists() {
        bail!(
            "`{}` exists already; choose another `--out`",
            arguments.out.display()
        );
    }
    let path = run.join("recipe.toml");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read `{}`", path.display()))?;
    let recipe =
        recipe::read(&text, &[]).with_context(|| format!("cannot read `{}`", path.display()))?;
    let manifest = manifest_in(&run, recipe.last_trained())?;
    if manifest.is_none_or(|manifest| manifest.status != Status::Done) {
        bail!(
            "the run `{}` is not trained yet: run its recipe first",
            run.display()
        );
    }
    let target = match recipe.model() {
        Some(model) => target::resolve(model, recipe.target.revision.as_deref())?,
        None => run.join("synthetic").join("target"),
    };
    let table = ExportTable {
        to: vec![arguments.to],
        dtype: arguments.dtype,
    };
    for line in export::convert(
        &run.join(trained(recipe.last_trained())),
        &target,
        &table,
        &arguments.out,
    )? {
        println!("{line}");
    }
    Ok(())
}

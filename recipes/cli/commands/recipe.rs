//! `spectrain recipe`: every stage of a recipe that is not done yet.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::Args;

use crate::cli::arguments::DeviceArgument;
use crate::cli::progress::{Output, print, print_json};
use crate::plan;
use crate::plan::preflight::Asked;
use crate::recipe::read::read_file;
use crate::runs::run_folder::{Existing, RunFolder};
use crate::runtime::device;
use crate::stages::context::StageContext;
use crate::stages::{in_order, order, report};

/// Arguments of `spectrain recipe`.
#[derive(Debug, Args)]
pub struct RecipeArguments {
    /// The recipe, a TOML file
    file: PathBuf,
    /// Print the resolved recipe, what would run and what it would take, and stop
    #[arg(long)]
    plan: bool,
    /// With `--plan`, print it as JSON
    #[arg(long, requires = "plan")]
    json: bool,
    /// Run only this stage; may be repeated
    #[arg(long = "stage", value_name = "NAME")]
    stages: Vec<String>,
    /// Set one key of the recipe, such as `train.steps=100`; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    overrides: Vec<String>,
    #[command(flatten)]
    device: DeviceArgument,
    /// Move an older run of this name aside and start anew
    #[arg(long)]
    fresh: bool,
    /// The folder of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
    /// Show no progress, only warnings and errors
    #[arg(long)]
    pub(crate) quiet: bool,
}

fn key_value(given: &str) -> Result<String, String> {
    match given.split_once('=') {
        Some((key, _)) if !key.trim().is_empty() => Ok(given.to_owned()),
        _ => Err("expected KEY=VALUE".into()),
    }
}

/// Runs the command.
pub fn run(arguments: &RecipeArguments) -> Result<()> {
    let recipe = read_file(&arguments.file, &arguments.overrides)?;
    let name = &arguments.device.device;
    order::selected(&recipe, &arguments.stages)?;
    let existing = if arguments.fresh {
        Existing::SetAside
    } else {
        Existing::Continue
    };
    let asked = Asked {
        recipe: &recipe,
        runs: &arguments.runs,
        existing,
        device: name,
    };
    if arguments.plan {
        let plan = plan::plan(&asked)?;
        if arguments.json {
            print_json(&plan.json)?;
        } else {
            print(plan.text)?;
        }
        return match plan.refusal {
            Some(refusal) => Err(refusal.context("the run would be refused")),
            None => Ok(()),
        };
    }
    asked.check()?;
    let device = device::device(name)?;
    let run = RunFolder::open(asked.run(), &recipe.toml, existing)?;
    let context = StageContext {
        recipe: &recipe,
        run: &run,
        dtype: device::target_dtype(recipe.target.dtype, name),
        device,
        device_name: name.clone(),
        output: if arguments.quiet {
            Output::Quiet
        } else {
            Output::detect()
        },
    };
    let started = Instant::now();
    in_order::run(&context, &arguments.stages)?;
    context.output.say(format!(
        "all stages: {:.0} s",
        started.elapsed().as_secs_f64()
    ));
    if arguments.stages.is_empty() || arguments.stages.iter().any(|stage| stage == "evaluate") {
        print(report::of_run(&run)?)?;
    }
    Ok(())
}

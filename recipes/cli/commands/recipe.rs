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
use crate::runtime::interruption::{Interrupted, or_interrupted};
use crate::stages::array::{ArrayJob, Part};
use crate::stages::context::StageContext;
use crate::stages::part::check_stages;
use crate::stages::{in_order, order, part, report};

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
    /// With `--stage features`, capture only this part of the samples, such as `3/16`, as an element of an array job
    #[arg(long, value_name = "N/PARTS", conflicts_with_all = ["plan", "fresh"])]
    part: Option<Part>,
    /// Where parts are: a folder, or `s3://`, `gs://` or `az://` with bucket and prefix; without it `features-parts` in the run
    #[arg(long, value_name = "DIR|URL")]
    parts: Option<String>,
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

/// Prints what would run. Fails where it would be refused.
fn show_plan(asked: &Asked, as_json: bool) -> Result<()> {
    let plan = plan::plan(asked)?;
    if as_json {
        print_json(&plan.json)?;
    } else {
        print(plan.text)?;
    }
    match plan.refusal {
        Some(refusal) => Err(refusal.context("the run would be refused")),
        None => Ok(()),
    }
}

/// Runs the command.
pub fn run(arguments: &RecipeArguments) -> Result<()> {
    let recipe = read_file(&arguments.file, &arguments.overrides)?;
    let name = &arguments.device.device;
    order::selected(&recipe, &arguments.stages)?;
    if arguments.part.is_some() {
        check_stages(&arguments.stages)?;
    }
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
        return show_plan(&asked, arguments.json);
    }
    asked.check()?;
    let device = device::device(name)?;
    let run = match arguments.part {
        None => RunFolder::open(asked.run(), &recipe.toml, existing)?,
        // Other parts may be captured in the same run.
        Some(_) => RunFolder::shared(&arguments.runs, &recipe.name)?,
    };
    let mut context = StageContext {
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
        array: ArrayJob {
            part: None,
            parts: arguments.parts.clone(),
        },
    };
    if let Some(part) = arguments.part {
        return part::capture(&mut context, part)
            .map_err(|error| or_interrupted(error, Interrupted::Run));
    }
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

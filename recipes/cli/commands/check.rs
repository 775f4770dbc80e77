//! `spectrain check`: whether a drafter's folder is as it was written, and for this target.

use std::path::PathBuf;

use anyhow::{Result, bail};
use serde_json::Value;
use spectrain_checkpoints::published::Family;
use spectrain_checkpoints::{ModelFolder, seal};
use spectrain_eval::DraftReport;

use crate::cli::commands::prompts_in;
use crate::cli::{DeviceArgument, TemplateArgument};
use crate::recipe::tables::TargetType;
use crate::runs::drafter_at;
use crate::runtime::device;
use crate::runtime::judge::Judge;
use crate::runtime::target;
use crate::stages::export::accepted;

/// Prompts to decode.
const PROMPTS: usize = 8;

/// Arguments of `spectrain check`.
#[derive(Debug, clap::Args)]
pub struct CheckArguments {
    /// The drafter: its folder, a run or its folder, or a hub id, `owner/name` or `owner/name@revision`
    #[arg(value_name = "DRAFTER")]
    drafter: String,
    /// The folder of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
    /// The target: a hub id or a folder
    #[arg(long)]
    target: String,
    /// Conversations to measure τ with; without them the target makes up texts
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    #[command(flatten)]
    template: TemplateArgument,
    #[command(flatten)]
    device: DeviceArgument,
}

/// Runs the command.
pub fn run(arguments: &CheckArguments) -> Result<()> {
    let folder = &drafter_at::folder_of(&arguments.drafter, &arguments.runs)?;
    let model = ModelFolder::open(folder)?;
    let family = Family::of(&model)?;
    match seal::check(&model)? {
        true => {
            println!("{family} drafter, as it was written: every tensor and the configuration")
        }
        false => println!("{family} drafter of another program: nothing says how it was written"),
    }
    let target = target::resolve(&arguments.target, None)?;
    match target::trained_for(&model) {
        None => println!("the folder does not say which target it is for"),
        Some(named) if named.sha256 == target::sha256(&target)? => {
            let how = match target::is_assumed(&model) {
                true => "imported",
                false => "trained",
            };
            println!("{how} for this target, `{}`", named.model);
        }
        Some(named) => match target::other_target(&model, &target)? {
            Some(named) => bail!(
                "the drafter `{}` was trained for `{}`, which has other weights than `{}`",
                folder.display(),
                named.model,
                arguments.target
            ),
            None => println!(
                "trained for `{}`; it drafts by text alone, for any target with its tokens",
                named.model
            ),
        },
    }
    let name = &arguments.device.device;
    let dtype = device::target_dtype(TargetType::Auto, name);
    let judge = Judge::open(&target, folder, &device::device(name)?, dtype)?;
    for line in reported(&model) {
        println!("{line}");
    }
    let (prompts, what) = match &arguments.prompts {
        Some(path) => {
            let prompts = prompts_in(path, (folder, &target), &arguments.template, PROMPTS)?;
            (prompts, "the prompts")
        }
        None => (
            judge.generated_prompts(PROMPTS)?,
            "texts that the target made up",
        ),
    };
    let decoded = accepted(&judge, &prompts)?;
    println!(
        "τ {:.2} on {what}: {} tokens accepted in {} passes",
        decoded.tau(),
        decoded.total(),
        decoded.accepted.len()
    );
    if arguments.prompts.is_none() {
        println!("it drafts; `--prompts FILE` or `spectrain evaluate` says how well");
    }
    Ok(())
}

/// What the report of a drafter that was evaluated says, setting by setting.
fn reported(drafter: &ModelFolder) -> Vec<String> {
    let provenance = seal::provenance(drafter.config());
    let settings = provenance.and_then(|found| found["report"]["settings"].as_array());
    let line = |setting: &Value| {
        let (temperature, tau) = (&setting["temperature"], setting["tau"].as_f64()?);
        let draft: DraftReport = serde_json::from_value(setting["draft"].clone()).ok()?;
        Some(format!(
            "its report: τ {tau:.2} at temperature {temperature}, {draft}"
        ))
    };
    let settings = settings.into_iter().flatten();
    settings.filter_map(line).collect()
}

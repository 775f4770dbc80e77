//! `spectrain check`: whether a drafter's folder is as it was written, and for this target.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::Value;
use spectrain_checkpoints::known::dialect_of;
use spectrain_checkpoints::{ModelFolder, seal};
use spectrain_eval::DraftReport;

use crate::cli::arguments::{DeviceArgument, TemplateArgument};
use crate::cli::commands::prompts::prompts_in;
use crate::cli::progress::print;
use crate::recipe::tables::TargetType;
use crate::runs::drafter_at;
use crate::runtime::decoded::accepted;
use crate::runtime::device;
use crate::runtime::pair::Pair;
use crate::runtime::target;

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
    let family = dialect_of(&model)?.family;
    let sealed = if seal::check(&model)? {
        ", as it was written: every tensor and the configuration"
    } else {
        " of another program: nothing says how it was written"
    };
    print(format!("{family} drafter{sealed}\n"))?;
    let target = target::resolve(&arguments.target, None)?;
    print(format!("{}\n", made_for(arguments, &model, &target)?))?;
    let name = &arguments.device.device;
    let dtype = device::target_dtype(TargetType::Auto, name);
    let pair = Pair::open(&target, folder, &device::device(name)?, dtype)?;
    for line in reported(&model) {
        print(format!("{line}\n"))?;
    }
    print(measured(arguments, &pair, (folder, &target))?)
}

/// Which target a drafter says it is for. Fails where that is another one and matters.
fn made_for(arguments: &CheckArguments, drafter: &ModelFolder, target: &Path) -> Result<String> {
    let Some(named) = target::trained_for(drafter) else {
        return Ok("the folder does not say which target it is for".into());
    };
    if named.sha256 == target::sha256(target)? {
        let assumed = target::is_assumed(drafter);
        let how = if assumed { "imported" } else { "trained" };
        return Ok(format!("{how} for this target, `{}`", named.model));
    }
    match target::other_target(drafter, target)? {
        Some(named) => bail!(
            "the drafter `{}` was trained for `{}`, which has other weights than `{}`",
            drafter.path().display(),
            named.model,
            arguments.target
        ),
        None => Ok(format!(
            "trained for `{}`; it drafts by text alone, for any target with its tokens",
            named.model
        )),
    }
}

/// What is accepted of the drafts for some prompts.
fn measured(
    arguments: &CheckArguments,
    pair: &Pair,
    (folder, target): (&Path, &Path),
) -> Result<String> {
    let (prompts, what, hint) = match &arguments.prompts {
        Some(path) => {
            let prompts = prompts_in(path, (folder, target), &arguments.template, PROMPTS)?;
            (prompts, "the prompts", "")
        }
        None => (
            pair.generated_prompts(PROMPTS)?,
            "texts that the target made up",
            "it drafts; `--prompts FILE` or `spectrain evaluate` says how well\n",
        ),
    };
    let decoded = accepted(pair, &prompts)?;
    Ok(format!(
        "τ {:.2} on {what}: {} tokens accepted in {} passes\n{hint}",
        decoded.tau(),
        decoded.total(),
        decoded.accepted.len()
    ))
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

//! `spectrain check`: whether a drafter's folder is as it was written, and for this target.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::{Value, json};
use spectrain_checkpoints::columns::wrapped;
use spectrain_checkpoints::known::dialect_of;
use spectrain_checkpoints::{ModelFolder, seal};
use spectrain_eval::{DraftReport, NOTHING_ACCEPTED};

use crate::cli::arguments::{TargetDevice, TemplateArgument, prompts};
use crate::cli::commands::prompts::prompts_of;
use crate::progress::{counted, print, print_json};
use crate::recipe::tables::PromptEntry;
use crate::runtime::decoded::accepted;
use crate::runtime::pair::Pair;
use crate::runtime::target;
use crate::stages::drafter_at;

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
    /// Prompts to measure τ with, as for `spectrain evaluate`; without them the target makes up texts
    #[arg(long, value_name = "PROMPTS", value_parser = prompts)]
    prompts: Option<PromptEntry>,
    /// The most prompts to decode, spread evenly over all; without `--prompts`, how many texts to make up
    #[arg(long, value_name = "N", default_value = "8")]
    count: NonZeroUsize,
    /// Print what is found as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    template: TemplateArgument,
    #[command(flatten)]
    device: TargetDevice,
}

/// What τ on texts that the target made up is worth.
const ON_MADE_UP: &str = "it drafts; less of its drafts is accepted on such texts than on those that it is for, so this τ is not comparable \
                          with that of a report: to see how well it drafts, give `--prompts` or run `spectrain evaluate`";

/// What is found of a drafter.
#[derive(Debug, Default, Serialize)]
struct Checked {
    family: String,
    /// Whether its folder says how it was written; then every tensor and the configuration is as it was.
    sealed: bool,
    target: MadeFor,
    /// What its report says, setting by setting.
    reported: Vec<Reported>,
    measured: Measured,
}

/// The target that a drafter's folder names.
#[derive(Debug, Default, Serialize)]
struct MadeFor {
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    relation: Relation,
}

/// What the target that is given has to do with the one that is named.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Relation {
    /// None is named.
    #[default]
    Unsaid,
    /// It is the one that the drafter was trained for.
    TrainedFor,
    /// It is the one that the drafter was imported for.
    ImportedFor,
    /// It is another one, and the drafter needs no more of it than its tokens.
    DraftsByText,
}

/// A setting of the report in a drafter's folder.
#[derive(Debug, Serialize)]
struct Reported {
    temperature: Value,
    draft: DraftReport,
    tau: f64,
}

/// What is accepted of the drafts for some prompts, at temperature 0.
#[derive(Debug, Default, Serialize)]
struct Measured {
    tau: f64,
    accepted: usize,
    passes: usize,
    /// How many prompts or texts.
    prompts: usize,
    /// Whether there may be more of them.
    #[serde(skip)]
    limited: bool,
    /// Whether the target made the texts up.
    made_up: bool,
}

/// Runs the command.
pub fn run(arguments: &CheckArguments) -> Result<()> {
    let folder = &drafter_at::folder_of(&arguments.drafter, &arguments.runs)?;
    let model = ModelFolder::open(folder)?;
    let mut checked = Checked {
        family: dialect_of(&model)?.family.to_string(),
        sealed: seal::check(&model)?,
        ..Checked::default()
    };
    let tell = |line: String| {
        if arguments.json {
            Ok(())
        } else {
            print(format!("{line}\n"))
        }
    };
    tell(checked.seal())?;
    let target = target::resolve(&arguments.target, None)?;
    checked.target = made_for(arguments, &model, &target)?;
    tell(checked.target.to_string())?;
    let (device, held) = arguments.device.open()?;
    let pair = Pair::open(&target, folder, &device, held)?;
    checked.reported = reported(&model);
    for report in &checked.reported {
        tell(report.to_string())?;
    }
    checked.measured = measured(arguments, &pair, (folder, &target))?;
    tell(checked.measured.to_string())?;
    if arguments.json {
        print_json(&json!(checked))?;
    }
    Ok(())
}

impl Checked {
    fn seal(&self) -> String {
        let sealed = if self.sealed {
            ", unchanged since it was written: every tensor and the configuration"
        } else {
            " of another program: nothing in its folder shows whether it was changed"
        };
        format!("{} drafter{sealed}", self.family)
    }
}

/// Which target a drafter says it is for. Fails where that is another one and matters.
fn made_for(arguments: &CheckArguments, drafter: &ModelFolder, target: &Path) -> Result<MadeFor> {
    let Some(named) = target::trained_for(drafter) else {
        return Ok(MadeFor::default());
    };
    let relation = if target::is_of(target, &named.sha256)? {
        if target::is_assumed(drafter) {
            Relation::ImportedFor
        } else {
            Relation::TrainedFor
        }
    } else if let Some(named) = target::other_target(drafter, target)? {
        bail!(named.is_not(drafter.path(), &arguments.target));
    } else {
        Relation::DraftsByText
    };
    Ok(MadeFor {
        model: Some(named.model),
        relation,
    })
}

impl fmt::Display for MadeFor {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let model = self.model.as_deref().unwrap_or_default();
        match self.relation {
            Relation::Unsaid => write!(f, "the folder does not say which target it is for"),
            Relation::TrainedFor => write!(f, "trained for this target, `{model}`"),
            Relation::ImportedFor => write!(f, "imported for this target, `{model}`"),
            Relation::DraftsByText => write!(
                f,
                "trained for `{model}`; it reads only text, so it drafts for any target with the same tokens"
            ),
        }
    }
}

/// What is accepted of the drafts for some prompts.
fn measured(
    arguments: &CheckArguments,
    pair: &Pair,
    (folder, target): (&Path, &Path),
) -> Result<Measured> {
    let count = arguments.count.get();
    let prompts = match &arguments.prompts {
        Some(entry) => prompts_of(entry, (folder, target), &arguments.template, count)?,
        None => pair.generated_prompts(count)?,
    };
    let decoded = accepted(pair, &prompts)?;
    Ok(Measured {
        tau: decoded.tau(),
        accepted: decoded.total(),
        passes: decoded.accepted.len(),
        prompts: prompts.len(),
        limited: prompts.len() == count,
        made_up: arguments.prompts.is_none(),
    })
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let what = match (self.made_up, self.prompts) {
            (true, 1) => "text that the target made up",
            (true, _) => "texts that the target made up",
            (false, 1) => "prompt",
            (false, _) => "prompts",
        };
        write!(
            f,
            "τ {:.2} on {} {what}: {} accepted in {}",
            self.tau,
            self.prompts,
            counted(self.accepted as u64, "token"),
            counted(self.passes as u64, "pass")
        )?;
        if self.limited {
            write!(f, "; `--count N` takes more")?;
        }
        match (self.accepted, self.made_up) {
            (0, _) => write!(f, "\n{}", wrapped(NOTHING_ACCEPTED, "").trim_end()),
            (_, true) => write!(f, "\n{}", wrapped(ON_MADE_UP, "").trim_end()),
            (_, false) => Ok(()),
        }
    }
}

/// What the report of a drafter that was evaluated says, setting by setting.
fn reported(drafter: &ModelFolder) -> Vec<Reported> {
    let provenance = seal::provenance(drafter.config());
    let settings = provenance.and_then(|found| found["report"]["settings"].as_array());
    let setting = |setting: &Value| {
        Some(Reported {
            temperature: setting["temperature"].clone(),
            draft: serde_json::from_value(setting["draft"].clone()).ok()?,
            tau: setting["tau"].as_f64()?,
        })
    };
    let settings = settings.into_iter().flatten();
    settings.filter_map(setting).collect()
}

impl fmt::Display for Reported {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "its report: τ {:.2} at temperature {}, {}",
            self.tau, self.temperature, self.draft
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(accepted: usize, made_up: bool) -> String {
        let tau = 1.0 + accepted as f64 / 100.0;
        let measured = Measured {
            tau,
            accepted,
            passes: 100,
            prompts: 8,
            limited: made_up,
            made_up,
        };
        measured.to_string()
    }

    #[test]
    fn what_was_measured_on_is_told_and_how_to_take_more() {
        assert_eq!(
            told(50, true),
            "τ 1.50 on 8 texts that the target made up: 50 tokens accepted in 100 passes; `--count N` takes more\n\
             it drafts; less of its drafts is accepted on such texts than on those that it is\n\
             for, so this τ is not comparable with that of a report: to see how well it\n\
             drafts, give `--prompts` or run `spectrain evaluate`"
        );
        assert_eq!(
            told(50, false),
            "τ 1.50 on 8 prompts: 50 tokens accepted in 100 passes"
        );
    }

    #[test]
    fn a_drafter_of_which_nothing_is_accepted_is_not_said_to_draft() {
        for made_up in [true, false] {
            let told = told(0, made_up);
            assert!(told.starts_with("τ 1.00 on 8 "), "{told}");
            let words = told.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words.ends_with(NOTHING_ACCEPTED), "{told}");
            assert!(!told.contains("it drafts"), "{told}");
        }
    }
}

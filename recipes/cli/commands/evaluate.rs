//! `spectrain evaluate`: an acceptance report for any drafter's folder.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::json;
use spectrain_checkpoints::{DType, ModelFolder};
use spectrain_eval::{DraftChoice, PromptSet, TargetReport};

use crate::cli::arguments::{DeviceArgument, TemplateArgument, draft};
use crate::cli::progress::{Output, print};
use crate::errors::Misuse;
use crate::recipe::tables::{DataTable, EvaluateTable, TargetType, VerifierName};
use crate::runs::drafter_at::DrafterAt;
use crate::runtime::device::{self, device_report};
use crate::runtime::prompts::{calibration, split};
use crate::runtime::target::{self, TEMPLATE_VARIABLES};
use crate::runtime::text::Text;
use crate::runtime::trial::{Ends, Trial, TrialTarget};
use crate::stages::report::write;

/// Arguments of `spectrain evaluate`.
#[derive(Debug, clap::Args)]
pub struct EvaluateArguments {
    /// The target: a hub id or a folder; may be repeated, for targets that share their tokens
    #[arg(long = "target", value_name = "TARGET", required = true)]
    targets: Vec<String>,
    /// The drafter: its folder, a run or its folder, or a hub id, `owner/name` or `owner/name@revision`
    #[arg(long, value_name = "DRAFTER")]
    drafter: String,
    /// The folder of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
    /// Conversations whose last answers are decoded: a file, a folder or a pattern; may be repeated
    #[arg(long, value_name = "FILE", required = true)]
    prompts: Vec<PathBuf>,
    /// Prompts of each file
    #[arg(long, value_name = "N", default_value_t = 64)]
    count: usize,
    /// Longest prompt, in tokens; longer ones are left out
    #[arg(long, value_name = "TOKENS", default_value_t = 2048)]
    max_length: usize,
    /// Temperature; may be repeated
    #[arg(long = "temperature", value_name = "T", default_values_t = [0.0, 1.0])]
    temperatures: Vec<f64>,
    /// Tokens of a chain to draft; 0 takes the drafter's own length; may be repeated [default: 0, without `--draft`]
    #[arg(long = "draft-length", value_name = "LENGTH")]
    draft_lengths: Vec<usize>,
    /// A draft of another shape: `dynamic:60`, `static:eagle-25`, or as in a recipe, `{ shape = "dynamic", nodes = 60 }`; may be repeated
    #[arg(long = "draft", value_name = "SHAPE", value_parser = draft)]
    drafts: Vec<DraftChoice>,
    /// Tokens after each prompt, at most
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    max_new_tokens: usize,
    /// The test that decides over drafted tokens
    #[arg(long, value_enum, default_value_t = VerifierName::Auto)]
    verifier: VerifierName,
    /// Judge a drafter with a target other than the one that its folder names
    #[arg(long)]
    other_target: bool,
    /// Decode past the target's end tokens, so that every output has the same length
    #[arg(long)]
    ignore_stop: bool,
    /// Do not decode without the drafter: no speed-up, no check that nothing is lost
    #[arg(long)]
    no_baseline: bool,
    /// Seed of sampling and of the confidence intervals
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Folder for `report.json` and `report.md`
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// File for every output and what each pass accepted, one JSON object a line
    #[arg(long, value_name = "FILE")]
    outputs: Option<PathBuf>,
    #[command(flatten)]
    template: TemplateArgument,
    #[command(flatten)]
    device: DeviceArgument,
}

/// Runs the command.
pub fn run(arguments: &EvaluateArguments) -> Result<()> {
    let table = arguments.table()?;
    let at = DrafterAt::find(&arguments.drafter, &arguments.runs)?;
    let drafter = at.folder()?;
    let name = &arguments.device.device;
    let dtype = device::target_dtype(TargetType::Auto, name);
    let targets = arguments.targets(dtype)?;
    if !arguments.other_target {
        check_target(&drafter, &targets)?;
    }
    let data = DataTable {
        max_length: arguments.max_length,
        template_variables: arguments.template.with_those_of(&drafter)?,
        ..DataTable::default()
    };
    let text = Text::of(&targets[0].folder, &data)?;
    let (sets, others) = arguments.prompts(&text, table.prompts)?;
    let trial = Trial {
        targets: &targets,
        drafter: &drafter,
        device: &device::device(name)?,
        dtype,
        sets: &sets,
        calibration: &calibration(others, &sets, &table),
        table: &table,
        ends: if arguments.ignore_stop {
            Ends::AtLength
        } else {
            Ends::AtStopTokens
        },
        outputs: arguments.outputs.as_deref(),
        output: Output::detect(),
    };
    let mut report = trial.report()?;
    report.recipe = json!({ "evaluate": table });
    if !data.template_variables.is_empty() {
        report.recipe["data"] = json!({ (TEMPLATE_VARIABLES): data.template_variables });
    }
    report.drafter.path = at.name(&drafter);
    report.drafter.sha256 = target::sha256_of_drafter(&drafter)?;
    report.device = device_report(name);
    if let Some(out) = &arguments.out {
        write(&report, out)?;
    }
    print(report.to_markdown())
}

impl EvaluateArguments {
    /// What a recipe would say of it.
    fn table(&self) -> Result<EvaluateTable> {
        for (at, target) in self.targets.iter().enumerate() {
            if self.targets[..at].contains(target) {
                return Err(Misuse(format!("`--target {target}` twice")).into());
            }
        }
        let table = EvaluateTable {
            targets: self.targets.iter().skip(1).cloned().collect(),
            prompts: self.count,
            temperatures: self.temperatures.clone(),
            draft_lengths: match (&self.draft_lengths[..], &self.drafts[..]) {
                ([], []) => EvaluateTable::default().draft_lengths,
                (lengths, _) => lengths.to_vec(),
            },
            drafts: self.drafts.clone(),
            max_new_tokens: self.max_new_tokens,
            verifier: self.verifier,
            baseline: !self.no_baseline,
            seed: self.seed,
            ..EvaluateTable::default()
        };
        table.check().map_err(Misuse::from)?;
        Ok(table)
    }

    /// The targets, downloaded where they are not here.
    fn targets(&self, dtype: DType) -> Result<Vec<TrialTarget>> {
        let resolved = |model: &String| {
            let folder = target::resolve(model, None)?;
            let report = TargetReport {
                model: model.clone(),
                revision: None,
                sha256: target::sha256(&folder)?,
                dtype: dtype.name().to_lowercase(),
            };
            Ok(TrialTarget { folder, report })
        };
        self.targets.iter().map(resolved).collect()
    }

    /// Of each file at most `count` prompts to evaluate, and all others.
    fn prompts(&self, text: &Text, count: usize) -> Result<(Vec<PromptSet>, Vec<Vec<u32>>)> {
        let mut sets: Vec<PromptSet> = Vec::new();
        let mut others = Vec::new();
        for path in &self.prompts {
            let (prompts, left) = split(text.prompts_of(path)?.tokens, count);
            others.extend(left);
            let name = path.file_stem().unwrap_or_default();
            sets.push(PromptSet {
                name: name.to_string_lossy().into_owned(),
                prompts,
            });
        }
        // Of files that overlap, what is evaluated from one is not measured on from another.
        others.retain(|prompt| sets.iter().all(|set| !set.prompts.contains(prompt)));
        Ok((sets, others))
    }
}

/// Fails where a drafter that reads a target's hidden states says that it was trained for none of these.
fn check_target(drafter: &Path, targets: &[TrialTarget]) -> Result<()> {
    let model = ModelFolder::open(drafter)?;
    let Some(named) = target::trained_for(&model) else {
        return Ok(());
    };
    let is_it = |target: &TrialTarget| target.report.sha256 == named.sha256;
    if target::drafts_by_text(&model) || targets.iter().any(is_it) {
        return Ok(());
    }
    bail!(
        "the drafter `{}` was trained for `{}`, which has other weights than `{}`; judge it all the same with \
         `--other-target`",
        drafter.display(),
        named.model,
        targets[0].report.model
    )
}

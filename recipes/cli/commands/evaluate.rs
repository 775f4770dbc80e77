//! `spectrain evaluate`: an acceptance report for any drafter's folder.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::json;
use spectrain_eval::{
    DraftChoice, DraftCost, DrafterReport, PromptSet, Recommendation, Report, of_servers,
};
use spectrain_models::TrainingFree;

use crate::cli::arguments::{
    TargetDevice, TemplateArgument, check_written, draft, prompts, training_free,
};
use crate::cli::commands::features::stored_in;
use crate::errors::Misuse;
use crate::progress::{Output, print};
use crate::recipe::tables::{DataTable, EvaluateTable, PromptEntry, Prompts, VerifierName};
use crate::runs::run_folder::RunFolder;
use crate::runtime::device::device_report;
use crate::runtime::prompt_sets;
use crate::runtime::prompts::calibration;
use crate::runtime::target::{self, TEMPLATE_VARIABLES};
use crate::runtime::text::Text;
use crate::runtime::trial::{Ends, Trial, TrialTarget};
use crate::runtime::writable::{writable, writable_file};
use crate::stages::drafter_at::DrafterAt;
use crate::stages::evaluate::choosing::choosing_of_drafter;
use crate::stages::evaluate::known::known_prompts;
use crate::stages::report::{keep_older, shown, write};

pub mod arguments;
mod prompts;
mod ready;
mod run;
mod served_model;
mod sweep;
mod targets;
mod texts;
mod workers;

use arguments::{ServedArguments, Servers};
use prompts::ServedPrompts;
use sweep::{Sweep, failure};
use targets::{check_target, choosing_in_sglang, on_thinking, targets};

/// Prompts of each set where nothing else is said.
const COUNT: usize = 64;
/// Sequences that are decoded at a time where nothing else is said.
const ONE_BY_ONE: usize = 1;
/// Tokens of an answer where nothing else is said.
const MAX_NEW_TOKENS: usize = 128;

/// Arguments of `spectrain evaluate`.
#[derive(Debug, clap::Args)]
pub struct EvaluateArguments {
    /// The target: a hub id or a folder; may be repeated, for targets with the same tokens
    #[arg(long = "target", value_name = "TARGET", required = true)]
    targets: Vec<String>,
    /// The drafter: its folder, a run or its folder, or a hub id, `owner/name` or `owner/name@revision`. It can be left out
    /// with `--training-free`, and with `--server`, in which case spectrain itself decodes nothing
    #[arg(long, value_name = "DRAFTER", required_unless_present_any = ["server", "training_free"])]
    drafter: Option<String>,
    /// A training-free drafter: `prompt-lookup`, `token-recycling`, or `early-layers:N` for the target's first N layers; may be
    /// repeated
    #[arg(long = "training-free", value_name = "NAME", value_parser = training_free)]
    training_free: Vec<TrainingFree>,
    /// The folder of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
    /// Prompts: a set that `spectrain data prompts` lists, `NAME=PATH` for such a set in a file, a file, folder or pattern of
    /// conversations, a dataset on the hub (`hf://org/name`), or as in a recipe, `{ path = "q.jsonl", turns = "asked" }` or
    /// `{ preset = "gsm8k" }`; may be repeated
    #[arg(long, value_name = "PROMPTS", required_unless_present = "features", value_parser = prompts)]
    prompts: Vec<PromptEntry>,
    /// Stored features of texts that the target wrote, as the stage `features` of a run writes them: acceptance is computed
    /// from them and nothing is decoded. Only the target's embedding, norm and head are read
    #[arg(long, value_name = "DIR", requires = "drafter", conflicts_with_all = ["prompts", "server", "outputs", "max_length", "batch_size", "ignore_stop", "no_baseline", "training_free", "template_variables"])]
    features: Option<PathBuf>,
    /// Prompts to take from each set [default: 64; all for features]
    #[arg(long, value_name = "N")]
    count: Option<usize>,
    /// Longest prompt, in tokens; longer ones are left out
    #[arg(long, value_name = "TOKENS", default_value_t = 2048)]
    max_length: usize,
    /// Temperature; may be repeated [default: 0 and 1; for features, the one at which their texts were written, 0 or 1]
    #[arg(long = "temperature", value_name = "T", allow_negative_numbers = true)]
    temperatures: Vec<f64>,
    /// Above temperature 0, keep this many of the most likely tokens; 0 keeps all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: usize,
    /// Above temperature 0, keep the fewest tokens that hold this much probability; 1 keeps all
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f64,
    /// Length in tokens of a chain to draft, or several such as `3,5`; 0 takes the drafter's own length [default: 0; with
    /// `--draft` for training-free drafters alone]
    #[arg(long = "draft-length", value_name = "LENGTH", value_delimiter = ',')]
    draft_lengths: Vec<usize>,
    /// A draft of another shape: `dynamic:60`, `static:eagle-25`, or as in a recipe, `{ shape = "dynamic", nodes = 60 }`; may be repeated
    #[arg(long = "draft", value_name = "SHAPE", value_parser = draft, requires = "drafter")]
    drafts: Vec<DraftChoice>,
    /// Sequences to decode at a time, with the drafter and without, or all prompts where they are fewer; outputs do not depend on
    /// it, speeds do
    #[arg(long, value_name = "N", default_value_t = ONE_BY_ONE)]
    batch_size: usize,
    /// The most tokens to decode after each prompt [default: 128; for features, whole answers]
    #[arg(long, value_name = "TOKENS")]
    max_new_tokens: Option<usize>,
    /// The test that accepts or rejects drafted tokens
    #[arg(long, value_enum, default_value_t = VerifierName::Auto)]
    verifier: VerifierName,
    /// Evaluate a drafter with a target other than the one that its folder names
    #[arg(long, requires = "drafter")]
    other_target: bool,
    /// Decode past the target's end tokens, so that every output has the same length
    #[arg(long)]
    ignore_stop: bool,
    /// Do not decode without the drafter: the report has no speed-up and no check that decoding is lossless
    #[arg(long)]
    no_baseline: bool,
    /// Seed of sampling and of the confidence intervals
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Folder for `report.json`, `report.md` and `report.html`
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// File for every output and what each pass accepted, with one JSON object per line
    #[arg(long, value_name = "FILE")]
    outputs: Option<PathBuf>,
    #[command(flatten)]
    served: ServedArguments,
    #[command(flatten)]
    template: TemplateArgument,
    #[command(flatten)]
    device: TargetDevice,
}

/// Runs the command.
pub fn run(arguments: &EvaluateArguments) -> Result<()> {
    let table = arguments.table()?;
    // Known before hours of decoding, not after them.
    arguments.check_written()?;
    if let Some(features) = &arguments.features {
        return arguments.judge_texts(&stored_in(features, &arguments.runs), table);
    }
    let servers = arguments.served.connect()?;
    let drafter = arguments.drafter.as_ref();
    let at = drafter.map(|name| DrafterAt::find(name, &arguments.runs));
    let at = at.transpose()?;
    let folder = at.as_ref().map(DrafterAt::folder).transpose()?;
    let held = arguments.device.target_type()?;
    let targets = targets(&arguments.targets, held, arguments.decodes())?;
    if let (Some(folder), false) = (&folder, arguments.other_target) {
        check_target(folder, &targets)?;
    }
    let data = arguments.data(folder.as_deref())?;
    let text = Text::of(&targets[0].folder, &data)?;
    let read = prompt_sets::read(&arguments.prompts, &text, arguments.count.unwrap_or(COUNT))?;
    let output = Output::detect();
    read.of_hub.iter().for_each(|data| output.say(data));
    let warnings = read.warnings(data.max_length).into_iter();
    // A drafter's folder says how it was trained.
    let on_thinking = match &drafter {
        None if servers.is_some() => on_thinking(&arguments.targets[0], &text),
        _ => None,
    };
    for warning in warnings.chain(on_thinking) {
        output.warn(warning);
    }
    let (sets, others) = (read.sets, read.others);
    let sweep = servers.map(|servers| {
        let folders = (&*targets[0].folder, folder.as_deref());
        arguments.sweep(servers, folders, &sets)
    });
    let sweep = sweep.transpose()?;
    let mut report = if arguments.decodes() {
        arguments.decode(folder.as_deref(), &targets, (&sets, others), &table)?
    } else {
        Report::new(
            targets[0].report.clone(),
            DrafterReport::default(),
            Vec::new(),
        )
    };
    report.drafter.path = match (&at, &folder) {
        (Some(at), Some(folder)) => at.name(folder),
        _ => arguments.served.server.clone().unwrap_or_default(),
    };
    report.recipe = json!({ "evaluate": table });
    if !data.template_variables.is_empty() {
        report.recipe["data"] = json!({ (TEMPLATE_VARIABLES): data.template_variables });
    }
    if let Some(sweep) = &sweep {
        report.served = sweep.measure(&table, &report.settings, Output::detect())?;
        let recommended = recommended_by_servers(&report);
        report.settings_recommended.extend(recommended);
    }
    arguments.hand_out(&report)?;
    failure(&report.served).map_or(Ok(()), |failure| bail!(failure))
}

/// What to deploy by the sweep of the servers.
fn recommended_by_servers(report: &Report) -> Vec<Recommendation> {
    let drafter = &report.drafter;
    // Without `--drafter` nothing says how the server's drafter drafts.
    let cost = match (drafter.kind.is_empty(), drafter.one_pass) {
        (true, _) => DraftCost::Unknown,
        (false, true) => DraftCost::AtOnce,
        (false, false) => DraftCost::ByStep,
    };
    of_servers(&report.served, cost)
}

impl EvaluateArguments {
    /// Fails where what is to be written cannot be, or would take the place of prompts.
    fn check_written(&self) -> Result<()> {
        if let Some(out) = &self.out {
            writable(out)?;
        }
        let Some(outputs) = &self.outputs else {
            return Ok(());
        };
        writable_file(outputs)?;
        let is_read = prompt_sets::are_read_from(&self.prompts, outputs);
        check_written("--outputs", outputs, "--prompts", is_read)
    }

    /// Whether anything is decoded here; else only servers are asked.
    fn decodes(&self) -> bool {
        self.drafter.is_some() || !self.training_free.is_empty()
    }

    /// Writes a report where that is asked for, and shows it: what took hours to find stays where it cannot be shown.
    fn hand_out(&self, report: &Report) -> Result<()> {
        if let Some(out) = &self.out {
            if let Some(older) = keep_older(out)? {
                let (out, older) = (out.display(), older.display());
                Output::detect().say(format!(
                    "the older report in `{out}` was moved to `{older}`"
                ));
            }
            write(report, out, Vec::new())?;
        }
        print(shown(report))
    }

    /// Decodes all prompts with the drafter in `folder`, where there is one, and those without training. The drafter's path is
    /// still to be filled in.
    fn decode(
        &self,
        folder: Option<&Path>,
        targets: &[TrialTarget],
        (sets, others): (&[PromptSet], Vec<Vec<u32>>),
        table: &EvaluateTable,
    ) -> Result<Report> {
        let (device, target_type) = self.device.open()?;
        let trial = Trial {
            targets,
            drafter: folder,
            device: &device,
            target_type,
            sets,
            calibration: &calibration(others, sets, table),
            table,
            ends: if self.ignore_stop {
                Ends::AtLength
            } else {
                Ends::AtStopTokens
            },
            outputs: self.outputs.as_deref(),
            kept: None,
            output: Output::detect(),
        };
        let prompts = || sets.iter().flat_map(|set| &set.prompts);
        // Told before it takes long.
        let run = folder.and_then(RunFolder::of_drafter);
        let known = run.map(|run| known_prompts(run, prompts(), trial.output));
        let known = known.transpose()?.flatten();
        let mut report = trial.report()?;
        report.known_prompts = known;
        if let Some(folder) = folder {
            report.drafter.sha256 = target::sha256_of_drafter(folder)?;
            report.choosing_prompts = choosing_of_drafter(folder, prompts())?;
        }
        report.device = device_report(self.device.name());
        Ok(report)
    }

    /// What servers are asked, which end where the target in a folder does.
    fn sweep<'a>(
        &'a self,
        servers: Servers,
        (target, drafter): (&Path, Option<&Path>),
        sets: &[PromptSet],
    ) -> Result<Sweep<'a>> {
        let stop = match self.ignore_stop {
            true => Vec::new(),
            false => target::stop_tokens_by_text(target)?,
        };
        let prompts = ServedPrompts::new(sets, self.longest(), stop);
        let choosing = drafter.and_then(|drafter| choosing_in_sglang(drafter, target));
        Sweep::ready(servers, prompts, &self.served.concurrency, choosing)
    }

    /// Tokens of an answer, at most.
    fn longest(&self) -> usize {
        self.max_new_tokens.unwrap_or(MAX_NEW_TOKENS)
    }

    /// How prompts are made, by the template's variables that the drafter in `folder` was trained with.
    fn data(&self, folder: Option<&Path>) -> Result<DataTable> {
        let template_variables = match folder {
            Some(folder) => self.template.with_those_of(folder)?,
            None => self.template.given(),
        };
        Ok(DataTable {
            max_length: self.max_length,
            template_variables,
            ..DataTable::default()
        })
    }

    /// Fails where what is asked for makes no sense together.
    fn check_asked(&self) -> Result<()> {
        for (at, target) in self.targets.iter().enumerate() {
            if self.targets[..at].contains(target) {
                return Err(Misuse(format!("`--target {target}` is given twice")).into());
            }
        }
        if self.decodes() {
            return Ok(());
        }
        let device = self.device.is_given();
        for (option, is_given) in [
            ("--outputs", self.outputs.is_some()),
            ("--batch-size", self.batch_size != ONE_BY_ONE),
            ("--draft-length", !self.draft_lengths.is_empty()),
            ("--verifier", self.verifier != VerifierName::Auto),
            ("--no-baseline", self.no_baseline),
            ("--device` or `--target-dtype", device),
        ] {
            if is_given {
                let message = format!(
                    "`{option}`: expected `--drafter` or `--training-free` beside it: without them only servers are asked, and \
                     spectrain itself decodes nothing"
                );
                return Err(Misuse(message).into());
            }
        }
        Ok(())
    }

    /// What a recipe would say of it.
    fn table(&self) -> Result<EvaluateTable> {
        self.check_asked()?;
        let table = EvaluateTable {
            targets: self.targets.iter().skip(1).cloned().collect(),
            prompts: match &self.prompts[..] {
                [] => EvaluateTable::default().prompts,
                given => Prompts::Sets(given.to_vec()),
            },
            count: (!self.prompts.is_empty()).then(|| self.count.unwrap_or(COUNT)),
            temperatures: match &self.temperatures[..] {
                [] => EvaluateTable::default().temperatures,
                given => given.to_vec(),
            },
            top_k: self.top_k,
            top_p: self.top_p,
            draft_lengths: match (&self.draft_lengths[..], &self.drafts[..]) {
                ([], []) => EvaluateTable::default().draft_lengths,
                (lengths, _) => lengths.to_vec(),
            },
            drafts: self.drafts.clone(),
            training_free: self.training_free.clone(),
            batch_size: self.batch_size,
            max_new_tokens: self.longest(),
            verifier: self.verifier,
            baseline: !self.no_baseline,
            seed: self.seed,
        };
        table.check().map_err(Misuse::from)?;
        Ok(table)
    }
}

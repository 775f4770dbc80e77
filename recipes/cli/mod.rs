//! The command line.

pub mod commands;
pub mod progress;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};
use serde_json::{Map, Value};
use spectrain_checkpoints::ModelFolder;
use spectrain_data::template::OWN_VARIABLES;
use spectrain_data::words::in_words;
use spectrain_eval::DraftChoice;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::cli::commands::check::CheckArguments;
use crate::cli::commands::clean::CleanArguments;
use crate::cli::commands::data::DataCommand;
use crate::cli::commands::evaluate::EvaluateArguments;
use crate::cli::commands::export::ExportArguments;
use crate::cli::commands::generate::GenerateArguments;
use crate::cli::commands::import::ImportArguments;
use crate::cli::commands::report::ReportArguments;
use crate::cli::commands::schema::SchemaArguments;
use crate::cli::progress::{Output, print, tell};
use crate::families::registry::{RECIPES, Recipe};
use crate::plan;
use crate::plan::preflight::Asked;
use crate::recipe;
use crate::recipe::tables::Problem;
use crate::runs::run_folder::{Existing, RunFolder};
use crate::runtime::bench;
use crate::runtime::bench::BenchArguments;
use crate::runtime::device;
use crate::runtime::target;
use crate::stages::{self, Interrupted, StageContext, or_interrupted};

/// Train the drafters of speculative decoding, export them, and judge them.
#[derive(Debug, Parser)]
#[command(name = "spectrain", version, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a recipe file: every stage that is not done yet
    Recipe(RecipeArguments),
    /// List the kinds of recipes
    Recipes,
    /// Print the JSON schema of recipe files, by which editors complete and check keys
    Schema(SchemaArguments),
    /// Judge any drafter's folder, ours or a published one
    Evaluate(EvaluateArguments),
    /// Answer one prompt and show which tokens were drafted
    Generate(GenerateArguments),
    /// Write the drafter of a run or a folder for a serving engine
    Export(ExportArguments),
    /// Turn a published drafter into a run
    Import(ImportArguments),
    /// Check that a drafter's folder is unchanged and made for this target
    Check(CheckArguments),
    /// Prepare, check or regenerate a dataset by itself
    #[command(subcommand)]
    Data(DataCommand),
    /// Remove what a run has set aside: `RUN.old-N` and `RUN/STAGE.old-N`
    Clean(CleanArguments),
    /// Compare the reports of several runs in one table or picture
    Report(ReportArguments),
    /// Measure the speed of feature capture, training and decoding
    Bench(BenchArguments),
}

/// Arguments of `spectrain recipe`.
#[derive(Debug, Args)]
pub struct RecipeArguments {
    /// The recipe, a TOML file
    file: PathBuf,
    /// Print the resolved recipe, what would run and what it would take, and stop
    #[arg(long)]
    plan: bool,
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
    quiet: bool,
}

/// Where a command computes.
#[derive(Debug, Args)]
pub struct DeviceArgument {
    /// `cpu` or `cuda:N`
    #[arg(long, default_value = "cpu", value_name = "DEVICE", value_parser = device::check_name)]
    pub device: String,
}

/// Variables of the chat template.
#[derive(Debug, Default, Args)]
pub struct TemplateArgument {
    /// Set a variable that the chat template reads, such as `enable_thinking=false`; may be repeated. A drafter brings the
    /// variables that it was trained or imported with
    #[arg(long = "template-variable", value_name = "KEY=VALUE", value_parser = template_variable)]
    pub template_variables: Vec<(String, Value)>,
}

impl TemplateArgument {
    /// Those given.
    pub fn given(&self) -> Map<String, Value> {
        self.template_variables.iter().cloned().collect()
    }

    /// Those given, and where nothing is given those of the drafter in a folder.
    pub fn with_those_of(&self, drafter: &Path) -> Result<Map<String, Value>> {
        let mut variables = target::template_variables(&ModelFolder::open(drafter)?);
        variables.extend(self.given());
        Ok(variables)
    }
}

/// Reads `KEY=VALUE`; a value that is not JSON is a text.
fn template_variable(given: &str) -> Result<(String, Value), String> {
    let (key, value) = given.split_once('=').ok_or("expected KEY=VALUE")?;
    let is_name = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    match is_name {
        false => Err(format!("expected a name before `=`, found `{key}`")),
        true if OWN_VARIABLES.contains(&key) => Err(format!("the program sets `{key}` itself")),
        true => {
            let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
            Ok((key.to_owned(), value))
        }
    }
}

/// A request that makes no sense, whatever else is on the disk: the program ends with 2, as for an unknown argument.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Misuse(pub String);

/// How the program ends when what was asked for makes no sense.
const MISUSED: u8 = 2;
/// How the program ends when the user stops it, as shells say that Ctrl-C ended a command.
const INTERRUPTED: u8 = 130;

/// The statuses that the program ends with, and what each says.
pub const EXIT_STATUS: [(u8, &str); 4] = [
    (0, "it is done"),
    (
        1,
        "it failed, or `check` or `data lint` found something wrong",
    ),
    (
        MISUSED,
        "the request makes no sense: an option, or a key or value of the recipe",
    ),
    (INTERRUPTED, "it was interrupted"),
];

/// Reads the shape of a draft: a short form, or a table as in a recipe.
pub(crate) fn draft(given: &str) -> Result<DraftChoice, String> {
    if !given.trim_start().starts_with('{') {
        return given
            .trim()
            .parse()
            .map_err(|error: spectrain_eval::Error| error.to_string());
    }
    #[derive(serde::Deserialize)]
    struct Draft {
        draft: DraftChoice,
    }
    let read = toml::from_str::<Draft>(&format!("draft = {given}"));
    read.map(|read| read.draft)
        .map_err(|error| in_words(error.message()))
}

fn key_value(given: &str) -> Result<String, String> {
    match given.split_once('=') {
        Some((key, _)) if !key.trim().is_empty() => Ok(given.to_owned()),
        _ => Err("expected KEY=VALUE".into()),
    }
}

/// Reads the command line, runs the command and says how it ended: 0 done, 1 failed, 2 misuse, 130 interrupted.
pub fn main() -> ExitCode {
    // Misuse ends here, with 2.
    let arguments = Arguments::parse();
    let level = match &arguments.command {
        Command::Recipe(recipe) if recipe.quiet => LevelFilter::WARN,
        _ => LevelFilter::INFO,
    };
    let filter = EnvFilter::builder()
        .with_default_directive(level.into())
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .without_time()
        // A log that cannot be written must not end what it is about.
        .log_internal_errors(false)
        .init();
    match install_interrupt().and_then(|()| arguments.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(format!("error: {}", explain(&error)));
            match (error.is::<Interrupted>(), error.is::<Misuse>()) {
                (true, _) => ExitCode::from(INTERRUPTED),
                (_, true) => ExitCode::from(MISUSED),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// An error and its causes. Messages that already end in their cause do not have it repeated.
fn explain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// The first Ctrl-C asks to stop where the run can go on later, the second one stops at once.
fn install_interrupt() -> Result<()> {
    ctrlc::set_handler(|| {
        if stages::interrupted() {
            std::process::exit(INTERRUPTED.into());
        }
        stages::interrupt();
        tell("stopping at the next safe point; press Ctrl-C again to stop at once");
    })
    .context("cannot listen for Ctrl-C")
}

impl From<Problem> for Misuse {
    fn from(problem: Problem) -> Self {
        Self(problem.to_string())
    }
}

impl Arguments {
    pub(crate) fn run(self) -> Result<()> {
        match self.command {
            Command::Recipe(arguments) => run_recipe(&arguments),
            Command::Recipes => {
                let width = RECIPES
                    .iter()
                    .map(|recipe| recipe.name.len())
                    .max()
                    .unwrap_or(0);
                let line = |recipe: &Recipe| format!("{:width$}  {}\n", recipe.name, recipe.about);
                print(RECIPES.iter().map(line).collect::<String>())
            }
            Command::Schema(arguments) => commands::schema::run(&arguments),
            Command::Evaluate(arguments) => stoppable(commands::evaluate::run(&arguments)),
            Command::Generate(arguments) => stoppable(commands::generate::run(&arguments)),
            Command::Export(arguments) => stoppable(commands::export::run(&arguments)),
            Command::Import(arguments) => stoppable(commands::import::run(&arguments)),
            Command::Check(arguments) => commands::check::run(&arguments),
            Command::Data(command) => commands::data::run(&command),
            Command::Clean(arguments) => commands::clean::run(&arguments),
            Command::Report(arguments) => commands::report::run(&arguments),
            Command::Bench(arguments) => bench::run(&arguments),
        }
    }
}

/// Of a command that may be stopped between two passes of a model: what it was at then is of no interest.
fn stoppable(done: Result<()>) -> Result<()> {
    done.map_err(|error| or_interrupted(error, Interrupted::Command))
}

fn run_recipe(arguments: &RecipeArguments) -> Result<()> {
    let recipe = recipe::read_file(&arguments.file, &arguments.overrides)?;
    let name = &arguments.device.device;
    stages::selected(&recipe, &arguments.stages)?;
    let existing = match arguments.fresh {
        true => Existing::SetAside,
        false => Existing::Continue,
    };
    let asked = Asked {
        recipe: &recipe,
        runs: &arguments.runs,
        existing,
        device: name,
    };
    if arguments.plan {
        print(plan::plan(&asked)?)?;
        return asked.check().context("the run would be refused");
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
        output: match arguments.quiet {
            true => Output::Quiet,
            false => Output::detect(),
        },
    };
    let started = Instant::now();
    stages::run(&context, &arguments.stages)?;
    context.output.say(format!(
        "all stages: {:.0} s",
        started.elapsed().as_secs_f64()
    ));
    if arguments.stages.is_empty() || arguments.stages.iter().any(|stage| stage == "evaluate") {
        print(stages::evaluate::table(&run)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn template_variables_are_json_or_else_texts() {
        let read = |given: &str| template_variable(given).unwrap().1;
        assert_eq!(read("enable_thinking=false"), Value::Bool(false));
        assert_eq!(read("reasoning_effort=low"), Value::from("low"));
        assert_eq!(read("a={\"b\": [1]}"), serde_json::json!({"b": [1]}));
        assert_eq!(read("text=\"false\""), Value::from("false"));
        for wrong in ["enable_thinking", "=1", "a b=1", "messages=[]"] {
            assert!(template_variable(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn misuse_is_told_from_failure() {
        let parse = |words: &[&str]| Arguments::try_parse_from([&["spectrain"], words].concat());
        for words in [
            &["recipe"][..],
            &["recipe", "a.toml", "--set", "steps"],
            &["recipe", "a.toml", "--device", "gpu"],
            &["teach"],
            &[],
        ] {
            assert_eq!(parse(words).unwrap_err().exit_code(), 2, "{words:?}");
        }
        assert_eq!(parse(&["--help"]).unwrap_err().exit_code(), 0);
        parse(&[
            "recipe",
            "a.toml",
            "--set",
            "train.steps=1",
            "--device",
            "cuda:1",
            "--plan",
        ])
        .unwrap();
    }
}

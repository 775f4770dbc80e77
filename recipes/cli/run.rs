//! Reads the command line, runs a command, and says how it ended.

use std::process::ExitCode;

use anyhow::Result;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory as _, Parser, Subcommand};
use spectrain_checkpoints::columns::{COLUMNS, listed};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::cli::commands;
use crate::cli::commands::bench::BenchArguments;
use crate::cli::commands::check::CheckArguments;
use crate::cli::commands::clean::CleanArguments;
use crate::cli::commands::completions::CompletionsArguments;
use crate::cli::commands::data::DataCommand;
use crate::cli::commands::doctor::DoctorArguments;
use crate::cli::commands::evaluate::EvaluateArguments;
use crate::cli::commands::export::ExportArguments;
use crate::cli::commands::features::FeaturesCommand;
use crate::cli::commands::generate::GenerateArguments;
use crate::cli::commands::import::ImportArguments;
use crate::cli::commands::init::InitArguments;
use crate::cli::commands::man::ManArguments;
use crate::cli::commands::push::PushArguments;
use crate::cli::commands::recipe::RecipeArguments;
use crate::cli::commands::relay::RelayArguments;
use crate::cli::commands::report::ReportArguments;
use crate::cli::commands::schema::SchemaArguments;
use crate::cli::commands::track::TrackCommand;
use crate::cli::commands::watch::WatchArguments;
use crate::cli::log::Plain;
use crate::cli::signals;
use crate::errors::{Misuse, with_causes};
use crate::families::registry::RECIPES;
use crate::progress::{print, tell};
use crate::runtime::interruption::{INTERRUPTED_STATUS, Interrupted, or_interrupted};
use crate::runtime::out_of_memory;

/// Train the drafters of speculative decoding, export them, and judge them.
#[derive(Debug, Parser)]
#[command(name = "spectrain", version, arg_required_else_help = true, max_term_width = COLUMNS)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a recipe file: every stage that is not done yet
    Recipe(RecipeArguments),
    /// Write a recipe for a target and data of your own
    Init(InitArguments),
    /// List the kinds of recipes
    Recipes,
    /// Print the JSON schema of recipe files, by which editors complete and check keys
    Schema(SchemaArguments),
    /// Judge any drafter's folder, ours or a published one
    Evaluate(Box<EvaluateArguments>),
    /// Answer one prompt and show which tokens were drafted
    Generate(GenerateArguments),
    /// Write the drafter of a run or a folder for a serving engine
    Export(ExportArguments),
    /// Turn a published drafter into a run
    Import(ImportArguments),
    /// Upload an exported drafter with its card to the hub, in one commit
    Push(PushArguments),
    /// Check that a drafter's folder is unchanged and made for this target
    Check(CheckArguments),
    /// Prepare, check or regenerate a dataset by itself
    #[command(subcommand)]
    Data(DataCommand),
    /// Bring in features that others captured, or write stored ones for others
    #[command(subcommand)]
    Features(FeaturesCommand),
    /// Send the hidden states that a server on this machine writes to trainers on other machines
    Relay(RelayArguments),
    /// Remove what a run has set aside: `RUN.old-N` and `RUN/STAGE.old-N`
    Clean(CleanArguments),
    /// Show or compare reports: on the terminal, as a page, a table, a picture or data
    Report(ReportArguments),
    /// Show on the terminal what a run is doing: stages, loss, τ, α by depth, speed and the time left
    Watch(WatchArguments),
    /// Send the figures of a run to a tracking server
    #[command(subcommand)]
    Track(TrackCommand),
    /// Measure the speed of feature capture, training and decoding
    Bench(BenchArguments),
    /// Look at what the program stands on: devices, memory, folders, the hub; and say what to do about problems
    Doctor(DoctorArguments),
    /// Print a script by which a shell completes commands and options
    Completions(CompletionsArguments),
    /// Write a manual page of each command
    Man(ManArguments),
}

/// What other trainers call the command that trains.
const RECIPE_ELSEWHERE: [&str; 5] = ["fit", "launch", "plan", "run", "train"];

/// How the program ends when what was asked for makes no sense.
const MISUSED: u8 = 2;

/// The statuses that the program ends with, and what each says.
pub const EXIT_STATUS: [(u8, &str); 4] = [
    (0, "it is done"),
    (
        1,
        "it failed, or `check`, `data lint` or `doctor` found something wrong",
    ),
    (
        MISUSED,
        "the request makes no sense: an option, or a key or value of the recipe, by itself or for a target of such sizes",
    ),
    (
        INTERRUPTED_STATUS,
        "it was interrupted, by Ctrl-C or SIGTERM. Given again, `recipe`, `data regenerate` and `features import` go on from there, \
         from the beginning of a stage that does not go on, as the message says; other commands begin again",
    ),
];

/// Reads the command line, runs the command and says how it ended: 0 done, 1 failed, 2 misuse, 130 interrupted.
pub fn main() -> ExitCode {
    join_thread_pool();
    // Misuse ends here, with 2.
    let arguments = Arguments::try_parse().unwrap_or_else(|error| with_meant(error).exit());
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
        .with_ansi(false)
        // A log that cannot be written must not end what it is about.
        .log_internal_errors(false)
        .event_format(Plain)
        .init();
    let done = signals::listen().and_then(|()| out_of_memory::as_error(|| arguments.run()));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(format!("error: {}", explain(&error)));
            match (error.is::<Interrupted>(), error.is::<Misuse>()) {
                (true, _) => ExitCode::from(INTERRUPTED_STATUS),
                (_, true) => ExitCode::from(MISUSED),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// The error of an unknown command with the one that is meant, where other trainers have a command of that name.
fn with_meant(mut error: clap::Error) -> clap::Error {
    let unknown = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(name)) => name.to_lowercase(),
        _ => return error,
    };
    if RECIPE_ELSEWHERE.contains(&unknown.as_str()) {
        let meant = ContextValue::Strings(vec!["recipe".to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, meant);
    }
    error
}

/// Makes this thread one of those that share out an operation on the CPU. Else it would wait for another to begin, for each of
/// the thousands of small operations of a pass.
///
/// Where there is one thread alone it must not be this one: it waits for batches that another thread makes, whose operations
/// would then wait for it.
fn join_thread_pool() {
    let told = std::env::var("RAYON_NUM_THREADS").ok();
    let told = told
        .and_then(|told| told.parse().ok())
        .filter(|&threads| threads > 0);
    let available = || std::thread::available_parallelism().map_or(1, usize::from);
    if told.unwrap_or_else(available) < 2 {
        return;
    }
    let pool = rayon::ThreadPoolBuilder::new().use_current_thread();
    // Fails where there is a pool already, which does the same work, only later.
    drop(pool.build_global());
}

/// Characters of an error, at most: what is wrong may be a value of megabytes.
const LONGEST_ERROR: usize = 4000;

/// An error and its causes, cut where they are too long to be read.
fn explain(error: &anyhow::Error) -> String {
    let text = with_causes(error);
    match text.char_indices().nth(LONGEST_ERROR) {
        None => text,
        Some((end, _)) => format!("{}… ({} bytes more)", &text[..end], text.len() - end),
    }
}

impl Arguments {
    pub(crate) fn run(self) -> Result<()> {
        match self.command {
            Command::Recipe(arguments) => commands::recipe::run(&arguments),
            Command::Init(arguments) => commands::init::run(&arguments),
            Command::Recipes => print(listed(RECIPES.iter().map(|of| (of.name, of.about)))),
            Command::Schema(arguments) => commands::schema::run(&arguments),
            Command::Evaluate(arguments) => stoppable(commands::evaluate::run(&arguments)),
            Command::Generate(arguments) => stoppable(commands::generate::run(&arguments)),
            Command::Export(arguments) => stoppable(commands::export::run(&arguments)),
            Command::Import(arguments) => stoppable(commands::import::run(&arguments)),
            Command::Push(arguments) => stoppable(commands::push::run(&arguments)),
            Command::Check(arguments) => stoppable(commands::check::run(&arguments)),
            Command::Data(command) => commands::data::run(&command),
            Command::Features(command) => stoppable(commands::features::run(&command)),
            Command::Relay(arguments) => commands::relay::run(&arguments),
            Command::Clean(arguments) => commands::clean::run(&arguments),
            Command::Report(arguments) => commands::report::run(&arguments),
            Command::Watch(arguments) => commands::watch::run(&arguments),
            Command::Track(command) => commands::track::run(&command),
            Command::Bench(arguments) => commands::bench::run(&arguments),
            Command::Doctor(arguments) => commands::doctor::run(&arguments),
            Command::Completions(arguments) => {
                commands::completions::run(&arguments, Self::command())
            }
            Command::Man(arguments) => commands::man::run(&arguments, Self::command()),
        }
    }
}

/// Of a command that may be stopped between two passes of a model: what it was at then is of no interest.
fn stoppable(done: Result<()>) -> Result<()> {
    done.map_err(|error| or_interrupted(error, Interrupted::Command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn what_goes_on_after_an_interruption_is_named_and_is_a_command() {
        let (_, told) = EXIT_STATUS.last().unwrap();
        let named: Vec<&str> = told.split('`').skip(1).step_by(2).collect();
        assert_eq!(named, ["recipe", "data regenerate", "features import"]);
        for words in named {
            let command = Arguments::command();
            let found = words
                .split(' ')
                .try_fold(&command, |command, name| command.find_subcommand(name));
            assert!(found.is_some(), "{words}");
        }
    }

    #[test]
    fn an_error_that_repeats_a_long_value_is_cut_and_one_of_some_lines_is_not() {
        let error = |length| anyhow::anyhow!("{}", "é".repeat(length)).context("`a.json`");
        let said = explain(&error(LONGEST_ERROR + 100));
        assert!(said.starts_with("`a.json`: é"), "{said}");
        // The name and what follows it take ten characters.
        assert!(said.ends_with("é… (220 bytes more)"), "{said}");
        assert_eq!(
            explain(&error(100)),
            format!("`a.json`: {}", "é".repeat(100))
        );
    }

    #[test]
    fn what_other_trainers_call_a_command_is_known() {
        let said = |name: &str| {
            let error = Arguments::try_parse_from(["spectrain", name, "a.toml"]).unwrap_err();
            with_meant(error).to_string()
        };
        let train = said("train");
        assert!(train.contains("'recipe'"), "{train}");
        assert!(!train.contains("'track'"), "{train}");
        let other = said("evaluat");
        assert!(other.contains("'evaluate'"), "{other}");
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

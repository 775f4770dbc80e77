//! `spectrain data regenerate`: the target's own answers in the place of a dataset's.

use std::path::Path;

use anyhow::Result;
use serde_json::{Map, Value};
use spectrain_data::Error;
use spectrain_data::dataset::Dataset;
use spectrain_data::regenerate::{ExistingAnswers, RegenerateReport, RegenerateSettings, ToolRows};

use crate::cli::arguments::{advised_of_rows, dataset};
use crate::errors::Misuse;
use crate::progress::{Output, print};
use crate::recipe::tables::WAIT;
use crate::runtime::answerer::decoder::{Decoding, TargetAnswers};
use crate::runtime::answerer::servers::Servers;
use crate::runtime::answerer::{Answered, Answerer, Pace, check_answered};
use crate::runtime::target;

pub mod arguments;
pub mod capturing;

use arguments::RegenerateArguments;
use capturing::CapturedAnswers;

/// Runs the command.
pub fn run(arguments: &RegenerateArguments) -> Result<()> {
    arguments.check()?;
    let output = if arguments.quiet {
        Output::Quiet
    } else {
        Output::detect()
    };
    let data = dataset(&arguments.data.sources()?, output)?;
    let data = data.at_most(arguments.limit.rows());
    let (answers, (tools, settings)) = Asked::open(arguments, &data, output)?;
    let wanted = RegenerateSettings {
        data: &data,
        out: &arguments.out,
        settings,
        truncated: arguments.truncated,
        tools,
        unusable: arguments.unusable.unusable,
    };
    let existing = if arguments.fresh {
        ExistingAnswers::SetAside
    } else {
        ExistingAnswers::Continue
    };
    let answered = Answered::open(&wanted, existing, output).map_err(advised)?;
    let pace = Pace {
        concurrency: arguments.concurrency.into(),
        retries: arguments.retries,
        requests_per_second: arguments.requests_per_second,
    };
    let report = answers.run(answered, &pace);
    let closed = match &answers {
        Asked::Capturing(answers) => Some(answers.close(report.is_ok())),
        Asked::Plain(_) => None,
    };
    let closed = closed.transpose();
    // What became of the conversations is said, whatever comes of the folder of features.
    if let Ok(report) = &report {
        print(format!("{report}\n"))?;
    }
    // What came first is the cause, as of a disk that is full.
    if let (Err(_), Err(further)) = (&report, &closed) {
        output.warn(format!("{further:#}"));
    }
    let (report, captured) = (report?, closed?);
    check_answered(&report, &arguments.out)?;
    match (captured, &arguments.capture) {
        (Some(0), Some(folder)) => Err(nothing_captured(&report, folder, &arguments.out)),
        _ => Ok(()),
    }
}

/// What is said where the folder of features stays empty, although nothing failed.
fn nothing_captured(report: &RegenerateReport, folder: &Path, out: &Path) -> anyhow::Error {
    let (folder, out) = (folder.display(), out.display());
    match report.from_journal {
        0 => anyhow::anyhow!("`{folder}` holds no hidden states: no conversation was answered"),
        _ => anyhow::anyhow!(
            "`{folder}` holds no hidden states: all answers are in `{out}.journal` already, and their states were captured into \
             another folder; `--fresh` asks for them again"
        ),
    }
}

/// An error with what to do about it.
fn advised(error: impl Into<anyhow::Error>) -> anyhow::Error {
    const FRESH: &str = "`--fresh` moves what is there aside and starts anew";
    let error = error.into();
    match error.downcast_ref() {
        Some(
            Error::OtherJournal { .. }
            | Error::ForeignOutput { .. }
            | Error::FeatureHeader { .. }
            | Error::Altered { .. },
        ) => anyhow::anyhow!("{error}; {FRESH}"),
        Some(Error::AlteredJournal { .. }) => {
            anyhow::anyhow!("{error}; put this line back to keep the answers, or {FRESH}")
        }
        _ => advised_of_rows(error),
    }
}

/// What answers.
enum Asked {
    Plain(Answerer),
    Capturing(Box<CapturedAnswers>),
}

/// What happens to rows with tools, and everything that the answers depend on.
type Settings = (ToolRows, Map<String, Value>);

impl Asked {
    /// What answers, what happens to rows with tools, and everything that the answers depend on.
    fn open(
        arguments: &RegenerateArguments,
        data: &Dataset,
        output: Output,
    ) -> Result<(Self, Settings)> {
        if let (Some(folder), Some(recipe)) = (&arguments.capture, &arguments.recipe) {
            let answers = CapturedAnswers::open(arguments, (recipe, data), folder, output);
            let answers = answers.map_err(advised)?;
            let settings = answers.settings();
            let settings = (ToolRows::Copy, settings);
            return Ok((Self::Capturing(Box::new(answers)), settings));
        }
        let answerer = match (&arguments.server[..], &arguments.target) {
            ([_, ..], _) => {
                let each = arguments.server.iter();
                let each = each.map(|url| arguments.server_settings(url));
                let each = each.collect::<Result<_>>()?;
                let waiting = arguments.waiting(WAIT, output);
                let servers = Servers::connect(each, arguments.concurrency, waiting)?;
                Answerer::Servers(Box::new(servers))
            }
            ([], Some(name)) => {
                let (device, held) = arguments.device.open()?;
                Answerer::Target(Box::new(TargetAnswers::open(Decoding {
                    folder: &target::resolve(name, None)?,
                    name,
                    template: None,
                    variables: arguments.template.given(),
                    day: None,
                    device,
                    held,
                    sampling: [arguments.temperature, arguments.top_p],
                    longest: arguments.longest_answer(),
                    seed: arguments.seed.unwrap_or_default(),
                    together: arguments.concurrency.into(),
                })?))
            }
            ([], None) => {
                let message = "expected `--server`, `--target` or `--capture`";
                return Err(Misuse(message.into()).into());
            }
        };
        let settings = answerer.with_tools(arguments.tools)?;
        Ok((Self::Plain(answerer), settings))
    }

    /// Answers what is left, asked as `pace` says.
    fn run(&self, answered: Answered, pace: &Pace) -> Result<RegenerateReport> {
        match self {
            Self::Plain(answerer) => answerer.run(answered, pace),
            Self::Capturing(answers) => {
                let pool = answers.pool();
                answered.run(answers.as_ref(), &pace.at(pool), Some(pool))
            }
        }
    }
}

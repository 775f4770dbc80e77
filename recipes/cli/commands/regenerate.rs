//! `spectrain data regenerate`: the target's own answers in the place of a dataset's.

use anyhow::Result;
use serde_json::{Map, Value};
use spectrain_data::Error;
use spectrain_data::dataset::Dataset;
use spectrain_data::regenerate::{Answers, ExistingAnswers, RegenerateSettings};

use crate::cli::arguments::dataset;
use crate::cli::progress::{Output, print};
use crate::errors::Misuse;
use crate::runtime::answerer::decoder::{Decoding, TargetAnswers};
use crate::runtime::answerer::server::Server;
use crate::runtime::answerer::{Answered, Answerer, check_answered, work};
use crate::runtime::interruption::Interrupted;
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
    let data = dataset(arguments.data.origin()?, output)?;
    let (answers, settings) = Asked::open(arguments, &data, output)?;
    let wanted = RegenerateSettings {
        data: &data,
        out: &arguments.out,
        settings,
        truncated: arguments.truncated,
        unusable: arguments.unusable.unusable,
    };
    let existing = if arguments.fresh {
        ExistingAnswers::SetAside
    } else {
        ExistingAnswers::Continue
    };
    let answered = Answered::open(&wanted, existing, output).map_err(advised)?;
    let work = work(
        arguments.concurrency,
        arguments.retries,
        arguments.requests_per_second,
    );
    let report = answers.asked(|answers| answered.run(answers, &work));
    if let Asked::Capturing(answers) = &answers {
        answers.close(matches!(report, Ok(Some(_))))?;
    }
    let Some(report) = report? else {
        return Err(Interrupted::Run.into());
    };
    print(format!("{report}\n"))?;
    check_answered(&report, &arguments.out)
}

/// An error with what to do about it.
fn advised(error: Error) -> anyhow::Error {
    match &error {
        Error::OtherJournal { .. } | Error::ForeignOutput { .. } => {
            anyhow::anyhow!("{error}; `--fresh` moves what is there aside and starts anew")
        }
        _ => error.into(),
    }
}

/// What answers.
enum Asked {
    Plain(Answerer),
    Capturing(Box<CapturedAnswers>),
}

impl Asked {
    /// What answers, and everything that the answers depend on.
    fn open(
        arguments: &RegenerateArguments,
        data: &Dataset,
        output: Output,
    ) -> Result<(Self, Map<String, Value>)> {
        if let (Some(folder), Some(recipe)) = (&arguments.capture, &arguments.recipe) {
            let answers = CapturedAnswers::open(arguments, (recipe, data), folder, output)?;
            let settings = answers.settings();
            return Ok((Self::Capturing(Box::new(answers)), settings));
        }
        let answerer = match (&arguments.server, &arguments.target) {
            (Some(url), _) => {
                let server = Server::connect(arguments.server_settings(url)?)?;
                Answerer::Server(Box::new(server))
            }
            (None, Some(name)) => {
                let (device, held) = arguments.device.open()?;
                Answerer::Target(Box::new(TargetAnswers::open(Decoding {
                    folder: &target::resolve(name, None)?,
                    name,
                    template: None,
                    variables: arguments.template.given(),
                    device,
                    held,
                    sampling: [arguments.temperature, arguments.top_p],
                    longest: arguments.longest_answer(),
                    seed: arguments.seed.unwrap_or_default(),
                    together: arguments.concurrency.into(),
                })?))
            }
            (None, None) => {
                let message = "expected `--server`, `--target` or `--capture`";
                return Err(Misuse(message.into()).into());
            }
        };
        let settings = answerer.settings()?;
        Ok((Self::Plain(answerer), settings))
    }

    /// Does `work` with what answers.
    fn asked<R: Send>(&self, work: impl FnOnce(&dyn Answers) -> R + Send) -> R {
        match self {
            Self::Plain(answerer) => answerer.asked(work),
            Self::Capturing(answers) => work(answers.as_ref()),
        }
    }
}

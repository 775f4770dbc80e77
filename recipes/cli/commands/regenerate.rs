//! `spectrain data regenerate`: the target's own answers in the place of a dataset's.

use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};
use spectrain_data::Error;
use spectrain_data::dataset::Dataset;
use spectrain_data::regenerate::{Answers, ExistingAnswers, Job, RegenerateSettings, Retry, Work};

use crate::cli::arguments::dataset;
use crate::cli::progress::{Output, print};
use crate::errors::Misuse;
use crate::runtime::interruption::{Interrupted, interrupted};

pub mod arguments;
pub mod capturing;
pub mod decoder;
mod protocol;
pub mod server;

use arguments::RegenerateArguments;
use capturing::CapturedAnswers;
use decoder::TargetAnswers;
use server::Server;

/// The pause before the first further try, and the longest one.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Runs the command.
pub fn run(arguments: &RegenerateArguments) -> Result<()> {
    arguments.check()?;
    let output = if arguments.quiet {
        Output::Quiet
    } else {
        Output::detect()
    };
    let data = dataset(arguments.data.origin()?, output)?;
    let (answers, settings) = Answerer::open(arguments, &data, output)?;
    let wanted = RegenerateSettings {
        data: &data,
        out: &arguments.out,
        settings,
        truncated: arguments.truncated,
    };
    let existing = if arguments.fresh {
        ExistingAnswers::SetAside
    } else {
        ExistingAnswers::Continue
    };
    let job = Job::open(&wanted, existing).map_err(advised)?;
    let total = job.conversations();
    let mut progress = output.start("regenerate", total);
    if job.finished() > 0 {
        output.say(format!(
            "regenerate: goes on after {} of {total} conversations",
            job.finished()
        ));
        progress.set(job.finished(), "");
    }
    let work = work(arguments);
    let mut shown = |done, failed| match failed {
        0 => progress.set(done, ""),
        _ => progress.set(done, format!("{failed} failed")),
    };
    let report = answers.asked(|answers| job.run(answers, &work, &mut shown));
    if let Answerer::Capturing(answers) = &answers {
        answers.close(matches!(report, Ok(Some(_))))?;
    }
    let Some(report) = report? else {
        drop(progress);
        return Err(Interrupted::Run.into());
    };
    let out = arguments.out.display();
    progress.finish(format!("`{out}`"));
    print(format!("{report}\n"))?;
    match report.failed.len() {
        0 => Ok(()),
        failed => bail!(
            "{failed} of {total} conversations were not regenerated; `{out}.report` names them, `{out}` has the \
             others; the same command tries again"
        ),
    }
}

/// How the answerer is asked.
fn work(arguments: &RegenerateArguments) -> Work<'static> {
    Work {
        concurrency: arguments.concurrency.into(),
        retry: Retry {
            retries: arguments.retries,
            first: PAUSES[0],
            longest: PAUSES[1],
        },
        requests_per_second: arguments.requests_per_second,
        interrupted: &interrupted,
    }
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
enum Answerer {
    Server(Box<Server>),
    Target(Box<TargetAnswers>),
    Capturing(Box<CapturedAnswers>),
}

impl Answerer {
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
        match (&arguments.server, &arguments.target) {
            (Some(url), _) => {
                let server = Server::connect(arguments.server_settings(url)?)?;
                let mut settings = Map::new();
                settings.insert("model".into(), server.model().into());
                settings.extend(server.body().clone());
                settings.insert("seed".into(), json!(arguments.seed));
                Ok((Self::Server(Box::new(server)), settings))
            }
            (None, Some(target)) => {
                let answers = TargetAnswers::open(arguments, target)?;
                let settings = answers.settings()?;
                Ok((Self::Target(Box::new(answers)), settings))
            }
            (None, None) => {
                Err(Misuse("expected `--server`, `--target` or `--capture`".into()).into())
            }
        }
    }

    /// Does `work` with what answers.
    fn asked<R: Send>(&self, work: impl FnOnce(&dyn Answers) -> R + Send) -> R {
        match self {
            Self::Server(server) => work(server.as_ref()),
            Self::Target(target) => target.answering(work),
            Self::Capturing(answers) => work(answers.as_ref()),
        }
    }
}

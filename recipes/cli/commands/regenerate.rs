//! `spectrain data regenerate`: the target's own answers in the place of a dataset's.

use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};
use spectrain_data::Error;
use spectrain_data::regenerate::{Answers, ExistingAnswers, Job, RegenerateSettings, Retry, Work};

use crate::cli::progress::{Output, print};
use crate::errors::Misuse;
use crate::runtime::interruption::{Interrupted, interrupted};

pub mod arguments;
pub mod decoder;
mod protocol;
pub mod server;

use arguments::RegenerateArguments;
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
    let (answers, settings) = open(arguments)?;
    let wanted = RegenerateSettings {
        data: &arguments.data,
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
    let work = Work {
        // The decoder takes one conversation at a time, with all cores.
        concurrency: arguments
            .target
            .as_ref()
            .map_or(arguments.concurrency.into(), |_| 1),
        retry: Retry {
            retries: arguments.retries,
            first: PAUSES[0],
            longest: PAUSES[1],
        },
        requests_per_second: arguments.requests_per_second,
        interrupted: &interrupted,
    };
    let mut shown = |done, failed| match failed {
        0 => progress.set(done, ""),
        _ => progress.set(done, format!("{failed} failed")),
    };
    let Some(report) = job.run(answers.as_ref(), &work, &mut shown)? else {
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

/// An error with what to do about it.
fn advised(error: Error) -> anyhow::Error {
    match &error {
        Error::OtherJournal { .. } | Error::ForeignOutput { .. } => {
            anyhow::anyhow!("{error}; `--fresh` moves what is there aside and starts anew")
        }
        _ => error.into(),
    }
}
/// What answers, and everything that the answers depend on.
fn open(arguments: &RegenerateArguments) -> Result<(Box<dyn Answers>, Map<String, Value>)> {
    let mut settings = Map::new();
    let answers: Box<dyn Answers> = match (&arguments.server, &arguments.target) {
        (Some(url), _) => {
            let server = Server::connect(arguments.server_settings(url)?)?;
            settings.insert("model".into(), server.model().into());
            settings.extend(server.body().clone());
            settings.insert("seed".into(), json!(arguments.seed));
            Box::new(server)
        }
        (None, Some(target)) => {
            let answers = TargetAnswers::open(arguments, target)?;
            settings.extend(answers.settings()?);
            Box::new(answers)
        }
        (None, None) => return Err(Misuse("expected `--server` or `--target`".into()).into()),
    };
    Ok((answers, settings))
}

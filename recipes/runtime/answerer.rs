//! Who answers conversations anew, a server or a target that is decoded here, and a job of such answers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};
use spectrain_data::regenerate::{
    Answers, ExistingAnswers, Job, RegenerateReport, RegenerateSettings, Retry, Work,
};

use crate::cli::progress::{Output, Progress};
use crate::runtime::answerer::decoder::TargetAnswers;
use crate::runtime::answerer::server::Server;
use crate::runtime::interruption::interrupted;

pub mod decoder;
mod protocol;
pub mod server;

/// The pause before the first further try, and the longest one.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// What answers.
pub enum Answerer {
    /// A server of the target.
    Server(Box<Server>),
    /// The target, decoded here.
    Target(Box<TargetAnswers>),
}

impl Answerer {
    /// Everything that the answers depend on.
    pub fn settings(&self) -> Result<Map<String, Value>> {
        match self {
            Self::Server(server) => {
                let mut settings = Map::new();
                settings.insert("model".into(), server.model().into());
                settings.extend(server.body().clone());
                settings.insert("seed".into(), json!(server.seed()));
                Ok(settings)
            }
            Self::Target(target) => target.settings(),
        }
    }

    /// Does `work` with what answers.
    pub fn asked<R: Send>(&self, work: impl FnOnce(&dyn Answers) -> R + Send) -> R {
        match self {
            Self::Server(server) => work(server.as_ref()),
            Self::Target(target) => target.answering(work),
        }
    }
}

/// How the answerer is asked.
pub fn work(concurrency: u16, retries: u32, requests_per_second: Option<f64>) -> Work<'static> {
    Work {
        concurrency: concurrency.into(),
        retry: Retry {
            retries,
            first: PAUSES[0],
            longest: PAUSES[1],
        },
        requests_per_second,
        interrupted: &interrupted,
    }
}

/// Conversations that are being answered, whose progress is shown.
pub struct Answered {
    job: Job,
    progress: Progress,
    out: PathBuf,
}

impl Answered {
    /// Reads the conversations through, and goes on with what an earlier run has answered.
    pub fn open(
        wanted: &RegenerateSettings,
        existing: ExistingAnswers,
        output: Output,
    ) -> spectrain_data::Result<Self> {
        let job = Job::open(wanted, existing)?;
        let total = job.conversations();
        let mut progress = output.start("regenerate", total);
        if job.finished() > 0 {
            output.say(format!(
                "regenerate: goes on after {} of {total} conversations",
                job.finished()
            ));
            progress.set(job.finished(), "");
        }
        Ok(Self {
            job,
            progress,
            out: wanted.out.to_owned(),
        })
    }

    /// Answers those that are left; none if it was interrupted.
    pub fn run(
        mut self,
        answers: &dyn Answers,
        work: &Work,
    ) -> spectrain_data::Result<Option<RegenerateReport>> {
        let mut shown = |done, failed| match failed {
            0 => self.progress.set(done, ""),
            _ => self.progress.set(done, format!("{failed} failed")),
        };
        let report = self.job.run(answers, work, &mut shown)?;
        if report.is_some() {
            self.progress.finish(format!("`{}`", self.out.display()));
        }
        Ok(report)
    }
}

/// Fails where conversations in `out` were not answered.
pub fn check_answered(report: &RegenerateReport, out: &Path) -> Result<()> {
    let (failed, total) = (report.failed.len(), report.rows - report.unchanged.count());
    let out = out.display();
    match failed {
        0 => Ok(()),
        failed => bail!(
            "{failed} of {total} conversations were not regenerated; `{out}.report` names them, `{out}` has the \
             others; the same command tries again"
        ),
    }
}

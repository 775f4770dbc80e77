//! Who answers conversations anew, a server or a target that is decoded here, and a job of such answers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};
use spectrain_data::regenerate::{
    Answers, ExistingAnswers, Job, RegenerateReport, RegenerateSettings, Retry, ToolRows, Work,
};
use spectrain_data::words::by_count;

use crate::progress::{Output, Progress, counted};
use crate::runtime::answerer::decoder::TargetAnswers;
use crate::runtime::answerer::servers::Servers;
use crate::runtime::interruption::{Interrupted, interrupted};
use crate::runtime::server::pool::Pool;

pub mod decoder;
mod protocol;
pub mod server;
pub mod servers;

/// The pause before the first further try, and the longest one.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// What answers.
pub enum Answerer {
    /// Servers of the target.
    Servers(Box<Servers>),
    /// The target, decoded here.
    Target(Box<TargetAnswers>),
}

impl Answerer {
    /// Everything that the answers depend on.
    pub fn settings(&self) -> Result<Map<String, Value>> {
        match self {
            Self::Servers(servers) => Ok(servers.settings()),
            Self::Target(target) => target.settings(),
        }
    }

    /// What happens to rows with tools, where this was said or not, and everything that the answers depend on. Servers answer
    /// them; the calls that this program decodes are in no form that it knows.
    pub fn with_tools(&self, given: Option<ToolRows>) -> Result<(ToolRows, Map<String, Value>)> {
        let mut settings = self.settings()?;
        match self {
            Self::Servers(_) => {
                if given == Some(ToolRows::Copy) {
                    settings.insert("tools".into(), json!(ToolRows::Copy));
                }
                Ok((given.unwrap_or(ToolRows::Answer), settings))
            }
            Self::Target(_) => Ok((ToolRows::Copy, settings)),
        }
    }

    /// Answers what is left, asked as `pace` says.
    ///
    /// # Errors
    /// Those of [`Answered::run`].
    pub fn run(&self, answered: Answered, pace: &Pace) -> Result<RegenerateReport> {
        match self {
            Self::Servers(servers) => {
                let pool = servers.pool();
                answered.run(servers.as_ref(), &pace.at(pool), Some(pool))
            }
            Self::Target(target) => target.answering(|answers| answered.run(answers, pace, None)),
        }
    }
}

/// How what answers is asked.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Conversations in progress at a time.
    pub concurrency: usize,
    /// How often a request is repeated that failed for a temporary reason.
    pub retries: u32,
    /// The most requests per second.
    pub requests_per_second: Option<f64>,
}

impl Pace {
    /// The same with as many conversations as servers take together.
    pub fn at(&self, pool: &Pool) -> Self {
        Self {
            concurrency: pool.concurrency(),
            ..*self
        }
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
                "regenerate: goes on after {} of {}",
                job.finished(),
                counted(total, "conversation")
            ));
            progress.set(job.finished(), "");
        }
        Ok(Self {
            job,
            progress,
            out: wanted.out.to_owned(),
        })
    }

    /// Answers those that are left; of a pool of servers that answer.
    ///
    /// # Errors
    /// A file cannot be read or written, the user stops it, or no server of the pool is there any more.
    pub fn run(
        mut self,
        answers: &dyn Answers,
        pace: &Pace,
        pool: Option<&Pool>,
    ) -> Result<RegenerateReport> {
        let ended = || pool.and_then(Pool::ended);
        let work = Work {
            concurrency: pace.concurrency,
            retry: Retry {
                retries: pace.retries,
                first: PAUSES[0],
                longest: PAUSES[1],
            },
            requests_per_second: pace.requests_per_second,
            interrupted: &|| interrupted() || ended().is_some(),
        };
        let mut shown = |done, failed| match failed {
            0 => self.progress.set(done, ""),
            _ => self.progress.set(done, format!("{failed} failed")),
        };
        match (self.job.run(answers, &work, &mut shown)?, ended()) {
            (Some(report), _) => {
                self.progress.finish(format!("`{}`", self.out.display()));
                Ok(report)
            }
            (None, Some(why)) => bail!("{why}; the same command goes on from here"),
            (None, None) => Err(Interrupted::Run.into()),
        }
    }
}

/// Fails where conversations in `out` were not answered.
pub fn check_answered(report: &RegenerateReport, out: &Path) -> Result<()> {
    let failed = report.failed.len() as u64;
    if failed == 0 {
        return Ok(());
    }
    let (all, out) = (
        counted(report.conversations(), "conversation"),
        out.display(),
    );
    let were = by_count(failed, ["was", "were"]);
    let them = by_count(failed, ["it", "them"]);
    bail!(
        "{failed} of {all} {were} not regenerated; `{out}.report` names {them}, `{out}` has the others; the same command tries \
         again"
    )
}

#[cfg(test)]
mod tests {
    use spectrain_data::rows::Location;

    use super::*;

    #[test]
    fn conversations_that_failed_are_told_among_those_that_were_asked_for() {
        let failed = json!({"row": 7, "place": "`a` row 7", "turn": 1, "tries": 2, "reason": "no"});
        let mut report = RegenerateReport {
            rows: 10,
            passed_over: 4,
            failed: vec![serde_json::from_value(failed).unwrap()],
            ..RegenerateReport::default()
        };
        report.unchanged.tokens.add(&Location::new("a", 3));
        let told = check_answered(&report, Path::new("out.jsonl")).unwrap_err();
        let expected = "1 of 5 conversations was not regenerated; `out.jsonl.report` names it,";
        assert!(told.to_string().starts_with(expected), "{told}");
    }
}

//! Servers at each temperature, with each number of requests under way.

use std::sync::Arc;

use anyhow::Result;
use spectrain_checkpoints::launch::Choosing;
use spectrain_eval::served::figures::{ServedFigures, ServedRun};
use spectrain_eval::served::outputs::{ComparedWith, ServedOutputs};
use spectrain_eval::served::report::{InTree, Role, ServedReport};
use spectrain_eval::{DraftReport, SettingReport};
use spectrain_models::Sampling;

use super::arguments::Servers;
use super::prompts::ServedPrompts;
use super::ready::{Tells, ready};
use super::run::{Ran, Run, asked};
use super::served_model::{Chooses, ServedModel};
use super::workers::Turns;
use crate::progress::{Output, Progress};
use crate::recipe::tables::EvaluateTable;
use crate::runtime::interruption::{Interrupted, check_interrupted};

/// Servers that can be measured, and how.
pub(super) struct Sweep<'a> {
    servers: Servers,
    /// How the drafts of the server with a drafter get known.
    tells: Tells,
    prompts: ServedPrompts,
    concurrency: &'a [u16],
    /// What SGLang drafts above temperature 0 with the drafter that is decoded with here, too.
    choosing: Option<Choosing>,
}

/// A run, or why it came to no end.
type Outcome = Result<Ran, String>;

impl<'a> Sweep<'a> {
    /// Fails unless both servers can be measured.
    pub(super) fn ready(
        servers: Servers,
        prompts: ServedPrompts,
        concurrency: &'a [u16],
        choosing: Option<Choosing>,
    ) -> Result<Self> {
        let tells = ready(&servers.drafter, &prompts)?;
        if let Some(baseline) = &servers.baseline {
            ready(baseline, &prompts)?;
        }
        Ok(Self {
            servers,
            tells,
            prompts,
            concurrency,
            choosing,
        })
    }

    /// One report for each server, temperature and number of requests under way, until a server fails. `settings` is what
    /// this program found itself.
    pub(super) fn measure(
        &self,
        table: &EvaluateTable,
        settings: &[SettingReport],
        output: Output,
    ) -> Result<Vec<ServedReport>> {
        let samplings = table.samplings();
        let (drafter, baseline) = (&self.servers.drafter, self.servers.baseline.as_ref());
        let servers = 1 + usize::from(baseline.is_some());
        let total = samplings.len() * self.concurrency.len() * servers * self.prompts.turns();
        let mut progress = output.start("served", total as u64);
        let mut reports = Vec::new();
        let mut alive = [true; 2];
        for sampling in samplings {
            // The baseline's answers with the first number of requests under way.
            let mut first: Option<ServedRun> = None;
            let mut turns = self.own_turns();
            for &concurrency in self.concurrency {
                let at = At {
                    sampling,
                    concurrency: concurrency.into(),
                    seed: table.seed,
                };
                let drafts = self.ask(
                    Some(drafter),
                    (&at, &mut turns),
                    &mut alive[0],
                    &mut progress,
                )?;
                let plain = self.ask(baseline, (&at, &mut turns), &mut alive[1], &mut progress)?;
                let plain_run = plain.as_ref().and_then(|found| found.as_ref().ok());
                let plain_run = plain_run.map(|found| &found.run);
                if let Some(outcome) = &drafts {
                    let mut report = self.report(drafter, &at, outcome, plain_run);
                    self.compare(&mut report, &at, outcome, plain_run, ComparedWith::Baseline);
                    let chooses = drafter.chooses(self.choosing);
                    add_in_tree(&mut report, (&sampling, chooses), settings);
                    reports.push(report);
                }
                if let (Some(outcome), Some(server)) = (&plain, baseline) {
                    let mut report = self.report(server, &at, outcome, None);
                    let first = first.as_ref();
                    self.compare(&mut report, &at, outcome, first, ComparedWith::FirstRun);
                    reports.push(report);
                }
                first = first.or(plain_run.cloned());
            }
        }
        let failed = reports.iter().filter(|report| report.failed.is_some());
        let failed = failed.count();
        progress.finish(format!("{} runs, {failed} failed", reports.len()));
        Ok(reports)
    }

    /// Every turn of each conversation, as long as all servers have room for it.
    fn own_turns(&self) -> Turns {
        let servers = [Some(&self.servers.drafter), self.servers.baseline.as_ref()];
        let most = servers.into_iter().flatten();
        let most = most.filter_map(|server| server.model.max_model_len).min();
        let longest = most.map_or(usize::MAX, |most| {
            most.saturating_sub(self.prompts.asked.max_new_tokens)
        });
        Turns::Own { longest }
    }

    /// A run of a server, or the words for what ended it, after which the server is not `alive` and asked no more. Only the
    /// user can end all runs. The first run decides over the `turns` of the others, so that all are asked the same.
    fn ask(
        &self,
        server: Option<&Arc<ServedModel>>,
        (at, turns): (&At, &mut Turns),
        alive: &mut bool,
        progress: &mut Progress,
    ) -> Result<Option<Outcome>> {
        let Some(server) = server.filter(|_| *alive) else {
            return Ok(None);
        };
        let run = Run {
            server,
            prompts: &self.prompts,
            sampling: at.sampling,
            concurrency: at.concurrency,
            turns: turns.clone(),
            tells: match server.role {
                Role::Drafter => self.tells,
                Role::Baseline => Tells::Nothing,
            },
        };
        let what = format!("{} at once", at.concurrency);
        match run.go(&mut || progress.step(&what)) {
            Ok(ran) => {
                *turns = asked(&ran.run);
                Ok(Some(Ok(ran)))
            }
            Err(error) if error.is::<Interrupted>() => Err(error),
            Err(error) => {
                check_interrupted()?;
                *alive = false;
                Ok(Some(Err(format!("{error:#}"))))
            }
        }
    }

    fn report(
        &self,
        server: &ServedModel,
        at: &At,
        outcome: &Outcome,
        baseline: Option<&ServedRun>,
    ) -> ServedReport {
        let found = outcome.as_ref().ok();
        let restricted = !at.sampling.is_greedy();
        ServedReport {
            role: server.role,
            url: server.url().to_owned(),
            model: server.model.id.clone(),
            engine: server.engine,
            temperature: at.sampling.temperature,
            top_k: Some(at.sampling.top_k).filter(|&top_k| restricted && top_k > 0),
            top_p: Some(at.sampling.top_p).filter(|&top_p| restricted && top_p < 1.0),
            concurrency: at.concurrency,
            prompts: found.map_or(self.prompts.turns(), |found| found.run.answers().count()) as u64,
            asked: Some(self.prompts.asked.clone()),
            figures: found.map(|found| found.run.figures(baseline, at.seed)),
            failed: outcome.as_ref().err().cloned(),
            outputs: None,
            in_tree: None,
            notes: found.map(|found| found.notes.clone()).unwrap_or_default(),
        }
    }

    /// Adds how greedy outputs differ from others.
    fn compare(
        &self,
        report: &mut ServedReport,
        at: &At,
        outcome: &Outcome,
        others: Option<&ServedRun>,
        with: ComparedWith,
    ) {
        let (Ok(found), Some(others), true) = (outcome, others, at.sampling.is_greedy()) else {
            return;
        };
        let places = self.prompts.places.iter();
        let places: Vec<_> = places.map(|(dataset, at)| (&dataset[..], *at)).collect();
        let talks = [&found.run, others].map(|run| &run.talks[..]);
        report.outputs = ServedOutputs::new(with, &places, talks);
        if report.outputs.is_none() {
            let note = "a server returns no `token_ids`, so greedy outputs were not compared";
            report.notes.push(note.to_owned());
        }
    }
}

/// Where in a sweep a run is.
struct At {
    sampling: Sampling,
    concurrency: usize,
    seed: u64,
}

/// Adds to the report of a server with a drafter what this program found with such drafts: chains of its length, of tokens that are
/// chosen as there.
fn add_in_tree(
    report: &mut ServedReport,
    (sampling, chooses): (&Sampling, Chooses),
    settings: &[SettingReport],
) {
    let Some(figures) = &report.figures else {
        return;
    };
    let Some(length) = figures.chain_length() else {
        if figures.tau.is_some() || !settings.is_empty() {
            report.notes.push(why_no_chains(figures));
        }
        return;
    };
    if settings.is_empty() {
        return;
    }
    // Of several targets the server has one.
    let is_served = |of: &&SettingReport| {
        let target = of.target.as_ref();
        target.is_none_or(|target| *target == report.model)
    };
    let settings: Vec<&SettingReport> = settings.iter().filter(is_served).collect();
    if settings.is_empty() {
        let note = format!(
            "the server calls its model `{}`, which is the name of none of the targets, so there are no in-tree figures \
             (spectrain's own) to compare with",
            report.model
        );
        report.notes.push(note);
        return;
    }
    let is_alike = |setting: &&SettingReport| {
        let is_chain =
            matches!(setting.draft, DraftReport::Chain { length: of, .. } if of == length);
        is_chain && setting.drafter.is_none() && !setting.lossy && setting.sampling() == *sampling
    };
    let alike: Vec<&SettingReport> = settings.into_iter().filter(is_alike).collect();
    let Some(rows) = Rows::of(alike, chooses) else {
        report.notes.push(format!(
            "the server drafts chains of {length}, and spectrain itself decoded none of that length (in-tree): \
             `--draft-length {length}` adds them"
        ));
        return;
    };
    let notes = rows.notes(figures.tau_ci95);
    report.notes.extend(notes);
    report.in_tree = Some(rows.in_tree());
}

/// What this program found with chains as long as a server's.
struct Rows<'a> {
    /// With tokens that are chosen as the server chooses them, for all that is known.
    likely: &'a SettingReport,
    /// With tokens chosen in the other way, where the server may do that.
    other: Option<&'a SettingReport>,
    /// Whether it is known how the server chooses them.
    is_known: bool,
}

impl<'a> Rows<'a> {
    /// Of chains as long. `None` where there are none of tokens that are chosen as the server may choose them.
    fn of(alike: Vec<&'a SettingReport>, chooses: Chooses) -> Option<Self> {
        let (wanted, is_said) = match chooses {
            Chooses::Surely(wanted) => (wanted, true),
            Chooses::Usually(wanted) => (wanted, false),
        };
        let chosen = |setting: &SettingReport| match setting.draft {
            DraftReport::Chain { tokens, .. } => tokens,
            _ => None,
        };
        // At temperature 0 there is but one way.
        let is_wanted = |setting: &&SettingReport| chosen(setting).is_none_or(|of| of == wanted);
        let (so, otherwise): (Vec<_>, Vec<_>) = alike.into_iter().partition(is_wanted);
        let otherwise = otherwise.into_iter().filter(|_| !is_said);
        let mut rows = so.into_iter().chain(otherwise);
        let likely = rows.next()?;
        Some(Self {
            likely,
            other: rows.next(),
            is_known: is_said || chosen(likely).is_none(),
        })
    }

    /// What must be known to compare them with τ of the server, which has this interval.
    fn notes(&self, served: Option<[f64; 2]>) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(other) = self.other {
            let [likely, other] = [self.likely, other].map(|row| {
                let tau = row.overall.tau.map(|tau| format!("{tau:.2}"));
                format!("{} with {}", tau.as_deref().unwrap_or("–"), row.heading())
            });
            notes.push(format!(
                "the server does not say whether it drafts the likeliest tokens or draws them: the in-tree τ (spectrain's own) is \
                 {likely}, as by default, and {other}"
            ));
        }
        let is_apart = |row: &SettingReport| {
            let intervals = served.zip(row.overall.tau_ci95);
            intervals.is_some_and(|(served, here)| served[1] < here[0] || here[1] < served[0])
        };
        if is_apart(self.likely) && self.other.is_none_or(is_apart) {
            let though = match self.is_known {
                true => ", though prompts and drafter are the same",
                false => "",
            };
            notes.push(format!(
                "the intervals of the server's τ and of the in-tree τ (spectrain's own) do not overlap{though}"
            ));
        }
        notes
    }

    /// The row that stands beside the server's figures.
    fn in_tree(&self) -> InTree {
        let overall = &self.likely.overall;
        InTree {
            setting: self.likely.heading(),
            target: self.likely.target.clone(),
            tau: overall.tau,
            tau_ci95: overall.tau_ci95,
            survival: overall.survival.clone(),
        }
    }
}

/// Why there is nothing to compare drafts of a server with, and no prediction for them: they are not known to be chains.
fn why_no_chains(figures: &ServedFigures) -> String {
    let why = match figures.draft_tokens_per_pass {
        Some(drafted) if !figures.survival.is_empty() => format!(
            "the server drafts {drafted:.0} tokens for each pass and accepted at most {} of them, and its `/server_info` does not \
             say that these are chains (`speculative_eagle_topk` of 1) and not trees",
            figures.survival.len()
        ),
        _ => "the server does not report how long its drafts are".to_owned(),
    };
    format!(
        "{why}, so there are no in-tree figures (spectrain's own) to compare with, and the best length is not predicted"
    )
}

/// What the user is told where a run failed.
pub(super) fn failure(reports: &[ServedReport]) -> Option<String> {
    let failed = reports.iter().find(|report| report.failed.is_some())?;
    Some(format!(
        "the server `{}` failed with {} requests at once and got no further requests; the report covers the runs before \
         that: {}",
        failed.url,
        failed.concurrency,
        failed.failed.as_deref().unwrap_or_default()
    ))
}

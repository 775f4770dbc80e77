//! One run: every conversation is gone through once, with some number of requests under way.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use spectrain_eval::served::acceptance::DraftCounts;
use spectrain_eval::served::counters::{Counted, Counters};
use spectrain_eval::served::figures::{ServedRun, ServedTalk};
use spectrain_models::Sampling;

use super::prompts::ServedPrompts;
use super::ready::Tells;
use super::served_model::{Asking, ServedModel};
use super::workers::{Round, Turns, ask};

/// Tokens of answers that only warm the server up.
const WARM_UP_TOKENS: usize = 8;

/// A server that is asked all prompts.
pub(super) struct Run<'a> {
    pub(super) server: &'a Arc<ServedModel>,
    pub(super) prompts: &'a ServedPrompts,
    pub(super) sampling: Sampling,
    pub(super) concurrency: usize,
    pub(super) turns: Turns,
    /// How the server's drafts get known.
    pub(super) tells: Tells,
}

/// What a run found, and what must be known to read it.
pub(super) struct Ran {
    pub(super) run: ServedRun,
    pub(super) notes: Vec<String>,
}

impl Run<'_> {
    /// Asks every prompt, after some that are not counted; `done` is called for each answer.
    pub(super) fn go(&self, done: &mut dyn FnMut()) -> Result<Ran> {
        let asking = self.prompts.asking(self.sampling);
        self.warm_up()?;
        let before = self.server.counters_at_rest(0)?;
        let begin = Instant::now();
        let talks = match (self.concurrency, self.tells) {
            (1, Tells::ByCounters) => self.ask_between_readings(&asking, before.clone(), done)?,
            _ => self.ask(self.round(&asking), done)?,
        };
        let seconds = begin.elapsed().as_secs_f64();
        let mut run = ServedRun {
            talks,
            seconds,
            counted: None,
            told: self.tells == Tells::WithAnswers,
        };
        if self.concurrency == 1 {
            // What happens between two requests is not the server's time.
            run.seconds = run.answers().map(|answer| answer.seconds).sum();
        }
        // Turns that are left out are done, too.
        (run.answers().count()..self.prompts.turns()).for_each(|_| done());
        let counted = before
            .as_ref()
            .map(|before| self.counted(before, run.tokens()));
        run.counted = counted.transpose()?.flatten();
        let notes = self.notes(&run, before.as_ref());
        Ok(Ran { run, notes })
    }

    /// What the counters grew by since `before`, in which time so many tokens were received.
    fn counted(&self, before: &Counters, received: u64) -> Result<Option<Counted>> {
        let after = self.server.counters_at_rest(before.generated + received)?;
        Ok(after.map(|after| after.since(before)).transpose()?)
    }

    /// As many short answers at a time as the run has, in which an engine compiles and tunes what it needs.
    fn warm_up(&self) -> Result<()> {
        let mut asking = self.prompts.asking(self.sampling);
        asking.max_new_tokens = WARM_UP_TOKENS.min(asking.max_new_tokens);
        asking.stop = None;
        let round = Round {
            turns: &Turns::First,
            which: 0..self.concurrency.min(self.prompts.talks.len()),
            ..self.round(&asking)
        };
        let talks = self.ask(round, &mut || {});
        talks.map(drop).context("before the run")
    }

    /// All conversations.
    fn round<'r>(&'r self, asking: &'r Asking) -> Round<'r> {
        Round {
            asking,
            turns: &self.turns,
            which: 0..self.prompts.talks.len(),
            concurrency: self.concurrency,
        }
    }

    fn ask(&self, round: Round, done: &mut dyn FnMut()) -> Result<Vec<ServedTalk>> {
        ask(self.server, self.prompts, round, done)
    }

    /// One request at a time, with the counters read around each conversation, which then tell what was drafted for it.
    fn ask_between_readings(
        &self,
        asking: &Asking,
        mut before: Option<Counters>,
        done: &mut dyn FnMut(),
    ) -> Result<Vec<ServedTalk>> {
        let mut talks = Vec::new();
        for number in 0..self.prompts.talks.len() {
            let round = Round {
                which: number..number + 1,
                ..self.round(asking)
            };
            let mut talk = self.ask(round, done)?;
            let answers = talk.iter().flat_map(|talk| &talk.answers);
            let tokens: u64 = answers.map(|answer| answer.tokens).sum();
            let least = before.as_ref().map_or(0, |before| before.generated) + tokens;
            let after = self.server.counters_at_rest(least)?;
            if let (Some(before), Some(after)) = (&before, &after) {
                let counted = after.since(before)?;
                talk.iter_mut()
                    .for_each(|talk| talk.counted.clone_from(&counted.drafts));
            }
            before = after;
            talks.append(&mut talk);
        }
        Ok(talks)
    }

    /// What must be known to read the figures.
    fn notes(&self, run: &ServedRun, before: Option<&Counters>) -> Vec<String> {
        let mut notes = Vec::new();
        let talks = self.prompts.talks.len();
        if talks < self.concurrency {
            notes.push(format!(
                "there are only {talks} prompts, so no more requests than that ran at once"
            ));
        }
        notes.extend(self.left_out(run));
        let running = before.and_then(|before| before.running).unwrap_or(0);
        if running > 0 {
            notes.push(format!(
                "{running} requests of other clients were running when it began"
            ));
        }
        let received = run.tokens();
        match &run.counted {
            None => notes.push("the server has no counters that would show requests of other clients".to_owned()),
            Some(counted) if counted.generated > received => {
                let others = counted.generated - received;
                let beside = match run.drafts() {
                    Some(_) if run.told => "the speed is not that of a server that has only these prompts to answer",
                    _ => "neither the speed nor τ is that of these prompts alone",
                };
                notes.push(format!(
                    "beside the {received} tokens of this run the server generated {others} for other clients: {beside}"
                ));
            }
            Some(counted) if counted.generated < received => notes.push(format!(
                "the server sent {received} tokens but counted only {}: its counters cover only some of its processes",
                counted.generated
            )),
            Some(_) => {}
        }
        notes.extend(other_counts(run));
        if let Some(drafts) = run.drafts().map(|of_each| DraftCounts::pooled(&of_each))
            && drafts.drafts == 0
        {
            notes.push("the server drafted nothing, so there is no τ".to_owned());
        }
        notes
    }

    /// Which turns were not asked, and why.
    fn left_out(&self, run: &ServedRun) -> Option<String> {
        let left_out = self.prompts.turns() - run.answers().count();
        let no_ids = run
            .answers()
            .any(|answer| answer.ids.is_none() && answer.tokens > 0);
        let why = match no_ids {
            true => {
                "a server returns no `token_ids`, so the tokens of its earlier answers are not known"
            }
            false => "they are too long for a server",
        };
        (left_out > 0)
            .then(|| format!("{left_out} later turns of conversations were left out: {why}"))
    }
}

/// What each conversation was asked.
pub(super) fn asked(run: &ServedRun) -> Turns {
    let of_talk = |talk: &ServedTalk| {
        let prompts = talk.answers.iter().map(|answer| answer.prompt.clone());
        prompts.collect()
    };
    Turns::Same(run.talks.iter().map(of_talk).collect())
}

/// Where the drafts told with the answers are not those of the counters, though nobody else was served.
fn other_counts(run: &ServedRun) -> Option<String> {
    let counted = run.counted.as_ref()?;
    let of_counters = counted.drafts.as_ref()?;
    let told = DraftCounts::pooled(&run.drafts()?);
    // SGLang's counter of passes gives accepted tokens only up to where answers are cut.
    let differ = (told.drafts, told.accepted) != (of_counters.drafts, of_counters.accepted);
    let exact = !of_counters.reaching.is_empty() && counted.generated == run.tokens();
    (differ && exact).then(|| {
        format!(
            "its answers report {} accepted tokens in {} drafts, its counters report {} in {}",
            told.accepted, told.drafts, of_counters.accepted, of_counters.drafts
        )
    })
}

//! What must be right with a server before anything is measured there.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use spectrain_eval::served::counters::{Counters, Engine};
use spectrain_eval::served::report::Role;
use spectrain_models::Sampling;

use super::prompts::ServedPrompts;
use super::served_model::ServedModel;
use super::workers::{Round, Turns, ask};

/// Tokens of an answer that only shows what the server tells.
const TRIAL_TOKENS: usize = 8;

/// How the drafts of a server get known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tells {
    /// With each answer.
    WithAnswers,
    /// By counters.
    ByCounters,
    /// Not at all: there are none.
    Nothing,
}

/// Fails, before hours are spent, unless the server can be measured; else says how its drafts get known.
pub(super) fn ready(server: &Arc<ServedModel>, prompts: &ServedPrompts) -> Result<Tells> {
    let url = server.url();
    let tells = check(server, prompts).with_context(|| format!("the server `{url}`"))?;
    match (server.role, tells) {
        (Role::Drafter, Tells::Nothing) => {
            let why = why_nothing(server.engine, server.counters()?.as_ref());
            let metrics = server.why_no_metrics();
            let metrics = metrics.map_or(String::new(), |why| format!(" (`/metrics`: {why})"));
            bail!(
                "the server `{url}` reports no drafts: {why}{metrics}; if it has no drafter, name it with `--baseline-server`"
            )
        }
        (Role::Baseline, Tells::WithAnswers | Tells::ByCounters) => bail!(
            "the server `{url}` drafts, too: `--baseline-server` expects one without a drafter"
        ),
        _ => Ok(tells),
    }
}

fn check(server: &Arc<ServedModel>, prompts: &ServedPrompts) -> Result<Tells> {
    let longest = prompts.asked.max_new_tokens;
    if let Some(most) = server.model.max_model_len {
        for (place, prompt) in prompts.places.iter().zip(prompts.talks.iter()) {
            let needed = prompt.tokens.len() + longest;
            if needed > most {
                let (dataset, number) = place;
                bail!(
                    "expected room for {needed} tokens (prompt {number} of `{dataset}` and `--max-new-tokens {longest}`), found a \
                     `max_model_len` of {most}"
                );
            }
        }
    }
    let mut asking = prompts.asking(Sampling::GREEDY);
    asking.max_new_tokens = TRIAL_TOKENS.min(longest);
    // At a stop token it might end before anything is drafted.
    asking.stop = None;
    let round = Round {
        asking: &asking,
        turns: &Turns::First,
        which: 0..1,
        concurrency: 1,
    };
    let talks = ask(server, prompts, round, &mut || {})?;
    let counters = server.counters_at_rest(0)?;
    let counts = counters.is_some_and(|counters| counters.drafts.is_some());
    let mut answers = talks.iter().flat_map(|talk| &talk.answers);
    let told = answers.any(|answer| answer.drafts.is_some());
    Ok(match (told, counts) {
        (true, _) => Tells::WithAnswers,
        (false, true) => Tells::ByCounters,
        (false, false) => Tells::Nothing,
    })
}

/// Why a server may tell nothing of drafts, and what would change that.
fn why_nothing(engine: Option<Engine>, counters: Option<&Counters>) -> &'static str {
    match (engine, counters) {
        (Some(Engine::Vllm), Some(_)) => {
            "its counters show no drafts, so it was started without `--speculative-config`"
        }
        (Some(Engine::Vllm), None) => {
            "`/metrics` has none of vLLM's counters; start it without `--disable-log-stats`, which turns them off"
        }
        (Some(Engine::Sglang), Some(_)) => {
            "neither its counters nor its answers show drafts, so it was started without `--speculative-algorithm`"
        }
        (Some(Engine::Sglang), None) => {
            "its answers show no drafts, so it was started without `--speculative-algorithm`, or it is an old version that \
             needs `--enable-metrics`"
        }
        (None, _) => "neither `/metrics` nor `/v1/models` says that it is vLLM or SGLang",
    }
}

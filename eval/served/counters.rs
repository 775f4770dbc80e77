//! The counters of an engine, which only grow: what a run did is their difference before and after it.
use std::fmt;

use serde::{Deserialize, Serialize};
use spectrain_checkpoints::Mismatch;

use super::acceptance::DraftCounts;
use super::samples::Samples;
use crate::error::{Error, Result};

/// An engine whose counters and answers are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vllm => "vLLM",
            Self::Sglang => "SGLang",
        })
    }
}

/// Where an engine's counters stand, over all its processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters {
    /// Whose they are.
    pub engine: Engine,
    /// Tokens generated.
    pub generated: u64,
    /// Requests that ended.
    pub requests: u64,
    /// Requests under way, where that is told as it is; no counter, and so never a difference.
    pub running: Option<u64>,
    /// Drafts; `None` where none are counted.
    pub drafts: Option<u64>,
    drafted: Option<u64>,
    accepted: Option<u64>,
    reaching: Vec<u64>,
}

/// What an engine did between two readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// Tokens generated.
    pub generated: u64,
    /// Requests that ended.
    pub requests: u64,
    /// Drafts, where they are counted.
    pub drafts: Option<DraftCounts>,
}

impl Counters {
    /// The counters on a page of metrics; `None` where it has none of a known engine.
    ///
    /// # Errors
    /// A counter is no count.
    pub fn of(samples: &Samples) -> Result<Option<Self>> {
        let count = |name: &str| {
            samples
                .total(name)
                .map(|value| whole(name, value))
                .transpose()
        };
        if let Some(generated) = count("vllm:generation_tokens_total")? {
            let name = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
            let positions = samples.by_number(name, "position");
            let reaching = positions.iter().map(|&(_, value)| whole(name, value));
            return Ok(Some(Self {
                engine: Engine::Vllm,
                generated,
                requests: count("vllm:request_success_total")?.unwrap_or(0),
                running: count("vllm:num_requests_running")?,
                drafts: count("vllm:spec_decode_num_drafts_total")?,
                drafted: count("vllm:spec_decode_num_draft_tokens_total")?,
                accepted: count("vllm:spec_decode_num_accepted_tokens_total")?,
                reaching: reaching.collect::<Result<_>>()?,
            }));
        }
        if !samples.has("sglang:") {
            return Ok(None);
        }
        // These two have no sample before the first request ends.
        Ok(Some(Self {
            engine: Engine::Sglang,
            generated: count("sglang:generation_tokens_total")?.unwrap_or(0),
            requests: count("sglang:num_requests_total")?.unwrap_or(0),
            // SGLang writes its gauges anew only every so many passes.
            running: None,
            drafts: count("sglang:spec_verify_calls_total")?,
            drafted: None,
            accepted: None,
            reaching: Vec::new(),
        }))
    }

    /// What was done since `before`.
    ///
    /// # Errors
    /// A counter went back: the engine was started anew in between.
    pub fn since(&self, before: &Self) -> Result<Counted> {
        let less = |name: &str, after: u64, before: u64| {
            after.checked_sub(before).ok_or_else(|| Error::Server {
                what: format!("the counter of {name}"),
                mismatch: Mismatch::new(
                    format!("at least {before}, as before"),
                    format!("{after}: the server was restarted"),
                ),
            })
        };
        let generated = less("tokens", self.generated, before.generated)?;
        let requests = less("requests", self.requests, before.requests)?;
        let drafts = match self.drafts {
            None => None,
            Some(after) => {
                let drafts = less("drafts", after, before.drafts.unwrap_or(0))?;
                let named = |name, after: Option<u64>, before: Option<u64>| {
                    let after = after.map(|after| less(name, after, before.unwrap_or(0)));
                    after.transpose()
                };
                let accepted = named("accepted tokens", self.accepted, before.accepted)?;
                let old = before.reaching.iter().copied().chain(std::iter::repeat(0));
                let positions = self.reaching.iter().zip(old);
                let reaching = positions.map(|(&new, old)| less("accepted tokens", new, old));
                Some(DraftCounts {
                    drafts,
                    drafted: named("drafted tokens", self.drafted, before.drafted)?,
                    // Each request's first token is the prompt's, and each pass emits one of the target's own.
                    accepted: accepted
                        .unwrap_or_else(|| generated.saturating_sub(requests + drafts)),
                    reaching: reaching.collect::<Result<_>>()?,
                })
            }
        };
        Ok(Counted {
            generated,
            requests,
            drafts,
        })
    }
}

fn whole(name: &str, value: f64) -> Result<u64> {
    // Above that not every whole number is one of the page, and sums of some of them would be none here.
    if value >= 0.0 && value <= 2f64.powi(53) {
        return Ok(value.round() as u64);
    }
    Err(Error::Server {
        what: format!("`{name}`"),
        mismatch: Mismatch::new("a count", value),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vllm(drafts: u64, accepted: [u64; 2], tokens: u64) -> String {
        format!(
            "vllm:generation_tokens_total{{engine=\"0\"}} {tokens}.0\n\
             vllm:request_success_total{{finished_reason=\"stop\"}} 2.0\n\
             vllm:request_success_total{{finished_reason=\"length\"}} 3.0\n\
             vllm:num_requests_running{{engine=\"0\"}} 1.0\n\
             vllm:spec_decode_num_drafts_total{{engine=\"0\"}} {drafts}.0\n\
             vllm:spec_decode_num_draft_tokens_total{{engine=\"0\"}} {}.0\n\
             vllm:spec_decode_num_accepted_tokens_total{{engine=\"0\"}} {}.0\n\
             vllm:spec_decode_num_accepted_tokens_per_pos_total{{position=\"1\"}} {}.0\n\
             vllm:spec_decode_num_accepted_tokens_per_pos_total{{position=\"0\"}} {}.0\n",
            2 * drafts,
            accepted[0] + accepted[1],
            accepted[1],
            accepted[0],
        )
    }

    fn counters(page: &str) -> Counters {
        let samples = Samples::parse(page).unwrap();
        Counters::of(&samples).unwrap().unwrap()
    }

    #[test]
    fn a_run_is_the_difference_of_vllms_counters() {
        let before = counters(&vllm(100, [80, 40], 300));
        let after = counters(&vllm(110, [88, 43], 325));
        assert_eq!((before.engine, before.requests), (Engine::Vllm, 5));
        assert_eq!(before.running, Some(1));
        let counted = after.since(&before).unwrap();
        assert_eq!((counted.generated, counted.requests), (25, 0));
        let drafts = counted.drafts.unwrap();
        assert_eq!((drafts.drafts, drafts.drafted), (10, Some(20)));
        assert_eq!((drafts.accepted, &drafts.reaching[..]), (11, &[8, 3][..]));
        assert_eq!(drafts.tau(), Some(2.1));
    }

    #[test]
    fn a_server_that_was_started_anew_is_noticed() {
        let before = counters(&vllm(100, [80, 40], 300));
        let error = counters(&vllm(3, [2, 1], 9)).since(&before).unwrap_err();
        let expected = "the counter of tokens: expected at least 300, as before, found 9: the server was restarted";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn sglang_counts_passes_from_which_accepted_tokens_follow() {
        let page = |tokens, requests, passes| {
            format!(
                "sglang:generation_tokens_total{{is_streaming=\"true\"}} {tokens}\n\
                 sglang:num_requests_total{{is_streaming=\"true\"}} {requests}\n\
                 sglang:num_running_reqs{{tp_rank=\"0\"}} 0\n\
                 sglang:spec_verify_calls_total{{}} {passes}\n"
            )
        };
        let before = counters(&page(10, 1, 4));
        let counted = counters(&page(70, 3, 24)).since(&before).unwrap();
        let drafts = counted.drafts.unwrap();
        assert_eq!((drafts.drafts, drafts.accepted), (20, 60 - 2 - 20));
        assert!(drafts.reaching.is_empty() && drafts.drafted.is_none());
        // Before its first request ends it counts nothing yet.
        let fresh = counters("sglang:num_running_reqs{} 0\n");
        assert_eq!(fresh.drafts, None);
        let first = counters(&page(70, 3, 24)).since(&fresh).unwrap();
        assert_eq!(first.drafts.unwrap().drafts, 24);
    }

    #[test]
    fn pages_without_counters_or_without_drafts_are_told_apart() {
        let of = |page: &str| Counters::of(&Samples::parse(page).unwrap());
        assert_eq!(of("process_cpu_seconds_total 3\n").unwrap(), None);
        let plain = of("vllm:generation_tokens_total 3\n").unwrap().unwrap();
        assert_eq!(plain.drafts, None);
        assert_eq!(plain.since(&plain).unwrap().drafts, None);
        let broken = of("vllm:generation_tokens_total NaN\n").unwrap_err();
        let expected = "`vllm:generation_tokens_total`: expected a count, found NaN";
        assert_eq!(broken.to_string(), expected);
    }
}

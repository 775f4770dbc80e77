//! An answer of the OpenAI protocol's completions, as it streams in.
use serde::Deserialize;
use serde_json::Value;
use spectrain_checkpoints::Mismatch;

use super::acceptance::DraftCounts;
use crate::error::{Error, Result};

/// What stands for the end of an answer.
const DONE: &str = "[DONE]";
/// Characters of a server's message that an error has.
const LONGEST_MESSAGE: usize = 300;
/// Tokens of an answer, at most.
const MOST_TOKENS: u64 = 1 << 20;
/// What may be counted of an answer's drafts, at most: more than they have tokens, and sums of it stay numbers.
const MOST_COUNTED: u64 = 1 << 32;
/// Places of a draft, at most.
const MOST_PLACES: usize = 1 << 12;

/// An answer that has come to its end.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// The tokens that it continues.
    pub prompt: Vec<u32>,
    /// Tokens generated, by the server's own count.
    pub tokens: u64,
    /// Their ids, where the server gives them.
    pub ids: Option<Vec<u32>>,
    /// The parts in which they came.
    pub chunks: Vec<Chunk>,
    /// Seconds from the request to the end of the answer.
    pub seconds: f64,
    /// What was drafted for it, where it is told.
    pub drafts: Option<DraftCounts>,
}

/// A part of an answer that has tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chunk {
    /// Seconds from the request to its coming.
    pub at: f64,
    /// Tokens in it, at least one.
    pub tokens: u64,
}

impl Answer {
    /// Seconds from the request to the first token; `None` where there is none.
    pub fn first_token(&self) -> Option<f64> {
        self.chunks.first().map(|chunk| chunk.at)
    }

    /// Seconds for each token behind the first part: those of one part share the time since the part before it.
    pub fn between_tokens(&self) -> Vec<f64> {
        let gaps = self.chunks.windows(2).flat_map(|two| {
            let gap = (two[1].at - two[0].at) / two[1].tokens as f64;
            std::iter::repeat_n(gap, two[1].tokens as usize)
        });
        gaps.collect()
    }

    /// Seconds between the parts, which are what a reader waits for.
    pub fn between_chunks(&self) -> Vec<f64> {
        let gaps = self.chunks.windows(2).map(|two| two[1].at - two[0].at);
        gaps.collect()
    }
}

/// An answer that has not come to its end.
#[derive(Debug, Default)]
pub struct Incoming {
    ids: Option<Vec<u32>>,
    /// Tokens up to now.
    counted: u64,
    chunks: Vec<Chunk>,
    finish: Option<String>,
    usage: Option<Usage>,
    drafts: Option<DraftCounts>,
    is_done: bool,
}

/// The data of an event, of which only this is read.
#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    /// vLLM's.
    metrics: Option<Metrics>,
    /// SGLang's.
    sglext: Option<Extension>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: Option<String>,
    token_ids: Option<Vec<u32>>,
    finish_reason: Option<String>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Usage {
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
}

#[derive(Deserialize)]
struct Metrics {
    speculative_decoding: Option<OfVllm>,
}

#[derive(Deserialize)]
struct OfVllm {
    acceptance_histogram: Vec<u64>,
    num_draft_tokens: u64,
}

#[derive(Deserialize)]
struct Extension {
    spec_tokens_details: Option<OfSglang>,
}

#[derive(Deserialize)]
struct OfSglang {
    spec_verify_ct: u64,
    spec_num_correct_drafts: u64,
    spec_num_proposed_drafts: u64,
    #[serde(default)]
    spec_correct_drafts_histogram: Vec<u64>,
}

impl Incoming {
    /// Takes the data of an event that came `at` seconds after the request.
    ///
    /// # Errors
    /// It is none of the protocol's, has tokens that are not counted, or tells of an error.
    pub fn take(&mut self, event: &str, at: f64) -> Result<()> {
        if event == DONE {
            self.is_done = true;
            return Ok(());
        }
        let part: Part = serde_json::from_str(event).map_err(|error| {
            let found = format!("`{}` ({error})", shortened(event));
            unlike("an event of the stream", "a part of an answer", found)
        })?;
        if let Some(error) = part.error {
            let message = error["message"].as_str().map(str::to_owned);
            let message = message.unwrap_or_else(|| error.to_string());
            return Err(Error::Refused(shortened(&message)));
        }
        for choice in part.choices {
            self.add(choice, part.usage.as_ref(), at)?;
        }
        self.usage = part.usage.or(self.usage);
        let of_vllm = part.metrics.and_then(|found| found.speculative_decoding);
        let of_sglang = part.sglext.and_then(|found| found.spec_tokens_details);
        let drafts = of_vllm.map(of_vllms).or(of_sglang.map(of_sglangs));
        self.drafts = drafts.transpose()?.or(self.drafts.take());
        Ok(())
    }

    fn add(&mut self, choice: Choice, usage: Option<&Usage>, at: f64) -> Result<()> {
        let ids = choice.token_ids.as_ref().map(|ids| ids.len() as u64);
        let by_usage = usage.map(|usage| usage.completion_tokens.saturating_sub(self.counted));
        let tokens = match by_usage.or(ids) {
            Some(tokens) => tokens,
            None if choice.text.unwrap_or_default().is_empty() => 0,
            None => {
                return Err(unlike(
                    "a part of the answer",
                    "its tokens counted, by `usage` or `token_ids`, as vLLM and SGLang do",
                    "neither",
                ));
            }
        };
        if tokens > MOST_TOKENS - self.counted {
            let expected = format!("at most {MOST_TOKENS}");
            return Err(unlike("the count of the answer's tokens", expected, tokens));
        }
        if tokens > 0 {
            self.chunks.push(Chunk { at, tokens });
        }
        self.counted += tokens;
        if let Some(ids) = choice.token_ids {
            self.ids.get_or_insert_default().extend(ids);
        }
        self.finish = choice.finish_reason.or(self.finish.take());
        Ok(())
    }

    /// Whether the server has said that the answer is at its end.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// The answer to `prompt`, whose stream ended `seconds` after the request.
    ///
    /// # Errors
    /// It is cut off, was ended for another reason than its length or a stop token, or is to another prompt, or its tokens
    /// are not counted.
    pub fn end(self, prompt: &[u32], seconds: f64) -> Result<Answer> {
        if !self.is_done {
            let found = format!("the end of the stream after {} tokens", self.counted);
            return Err(unlike("the answer", "a whole answer", found));
        }
        match self.finish.as_deref() {
            Some("stop" | "length") => {}
            other => {
                let found =
                    other.map_or("none".to_owned(), |other| format!("`{}`", shortened(other)));
                return Err(unlike("`finish_reason`", "`stop` or `length`", found));
            }
        }
        let Some(usage) = self.usage else {
            return Err(unlike("`usage`", "a count of the answer's tokens", "none"));
        };
        let same = |what: &str, expected: u64, found: u64| match expected == found {
            true => Ok(()),
            false => Err(unlike(what, expected, found)),
        };
        same(
            "tokens of the prompt in `usage`",
            prompt.len() as u64,
            usage.prompt_tokens,
        )?;
        same("tokens of the parts", usage.completion_tokens, self.counted)?;
        if let Some(ids) = &self.ids {
            same(
                "tokens in `token_ids`",
                usage.completion_tokens,
                ids.len() as u64,
            )?;
        }
        Ok(Answer {
            prompt: prompt.to_vec(),
            tokens: usage.completion_tokens,
            ids: self.ids,
            chunks: self.chunks,
            seconds,
            drafts: self.drafts,
        })
    }
}

fn of_vllms(found: OfVllm) -> Result<DraftCounts> {
    check_counts(&found.acceptance_histogram, &[found.num_draft_tokens])?;
    let drafted = Some(found.num_draft_tokens);
    Ok(DraftCounts::of_histogram(
        &found.acceptance_histogram,
        drafted,
    ))
}

fn of_sglangs(found: OfSglang) -> Result<DraftCounts> {
    let (drafts, drafted) = (found.spec_verify_ct, found.spec_num_proposed_drafts);
    let others = [drafts, drafted, found.spec_num_correct_drafts];
    check_counts(&found.spec_correct_drafts_histogram, &others)?;
    let length = drafted.checked_div(drafts).unwrap_or(0);
    if length > MOST_PLACES as u64 {
        let expected = format!("at most {MOST_PLACES}");
        return Err(unlike("the tokens of a draft", expected, length));
    }
    let of_histogram =
        DraftCounts::of_histogram(&found.spec_correct_drafts_histogram, Some(drafted));
    if of_histogram.drafts == drafts {
        return Ok(of_histogram);
    }
    Ok(DraftCounts {
        drafts,
        drafted: Some(drafted),
        accepted: found.spec_num_correct_drafts,
        reaching: Vec::new(),
    })
}

/// Refuses counts that cannot be of one answer.
fn check_counts(histogram: &[u64], others: &[u64]) -> Result<()> {
    if histogram.len() > MOST_PLACES {
        let expected = format!("at most {MOST_PLACES} places");
        return Err(unlike("the histogram of drafts", expected, histogram.len()));
    }
    match histogram
        .iter()
        .chain(others)
        .find(|&&count| count > MOST_COUNTED)
    {
        None => Ok(()),
        Some(count) => {
            let expected = format!("at most {MOST_COUNTED}");
            Err(unlike("a count of drafts", expected, count))
        }
    }
}

fn unlike(what: &str, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> Error {
    Error::Server {
        what: what.to_owned(),
        mismatch: Mismatch::new(expected, found),
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(LONGEST_MESSAGE).collect()
}

#[cfg(test)]
mod tests;

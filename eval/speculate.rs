//! The decoder: a drafter proposes, one target pass judges, and what is accepted is committed.
//!
//! A pass reads the last committed token, which has no feature and no cache entry yet, and after it the draft. So row 0
//! of its logits judges the first drafted tokens, and row `1 + i` what follows node `i`.
use std::time::Instant;

use rand::{SeedableRng, rngs::StdRng};
use spectrain_checkpoints::Mismatch;
use spectrain_models::{
    Caches, Capture, Draft, DraftRequest, DraftShape, Features, LogitRows, Pass, Proposal,
    Proposer, Sampling, Target, TargetOutput, chain, depths,
};

use crate::error::{Error, Result};
use crate::verify::Verifier;
use crate::verify::rows::choose;

#[cfg(test)]
mod tests;

/// How a prompt is continued.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodeSettings {
    /// Tokens after which it ends, at least 1.
    pub max_new_tokens: usize,
    /// What is drafted before each target pass.
    pub draft: DraftShape,
    /// How the target's tokens, and those of a sampled draft, are chosen.
    pub sampling: Sampling,
    /// Tokens that end it; the one found is kept.
    pub stop: Vec<u32>,
    /// Seed of a second draft before each pass, which decides nothing and is only kept. It shows what the drafter prefers,
    /// settled before the target's tokens are drawn.
    pub shadow: Option<u64>,
}

/// Where the time went, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Seconds {
    /// The drafter, taking in committed tokens included.
    pub draft: f64,
    /// The target's pass and the verdict.
    pub verify: f64,
    /// Everything else.
    pub other: f64,
}

impl std::iter::Sum for Seconds {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, more| Self {
            draft: sum.draft + more.draft,
            verify: sum.verify + more.verify,
            other: sum.other + more.other,
        })
    }
}

impl Seconds {
    /// All of it.
    pub fn total(&self) -> f64 {
        self.draft + self.verify + self.other
    }
}

/// One decoding pass of the target.
///
/// `emitted = accepted + 1` always: where a stop token cuts the pass short, what follows it counts nowhere, and the stop
/// token takes the place of the bonus token.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PassRecord {
    /// Tokens drafted.
    pub drafted: usize,
    /// Steps drafted: the longest path.
    pub depth: usize,
    /// Passes of the drafter, one after the other, that the draft took.
    pub draft_passes: usize,
    /// Steps that were judged: the accepted ones, and the one at which every candidate was rejected.
    pub tested: usize,
    /// Drafted tokens accepted.
    pub accepted: usize,
    /// Tokens emitted, the bonus token included.
    pub emitted: usize,
    /// Where the time went.
    pub seconds: Seconds,
}

/// A continued prompt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Generation {
    /// The new tokens. The first comes from the prompt's pass, the others from `passes`.
    pub tokens: Vec<u32>,
    /// Decoding passes of the target; the prompt's is not among them.
    pub passes: Vec<PassRecord>,
    /// What a second draft, which decided nothing, had at the place of each token; shorter where there was none.
    pub shadows: Vec<Vec<u32>>,
    /// Seconds for the prompt, up to its first token and the drafter's taking it in.
    pub prompt_seconds: f64,
}

impl Generation {
    /// Seconds of all passes.
    pub fn seconds(&self) -> Seconds {
        self.passes.iter().map(|pass| pass.seconds).sum()
    }

    /// Tokens that the passes emitted, and how many passes that were.
    pub(crate) fn counts(&self) -> [u64; 2] {
        let emitted = self.passes.iter().map(|pass| pass.emitted as u64);
        [emitted.sum(), self.passes.len() as u64]
    }
}

/// A target that decodes, with or without a drafter.
#[derive(Clone, Copy)]
pub struct Decoder<'a> {
    /// The target.
    pub target: &'a dyn Target,
    /// The hidden states the drafter reads.
    pub capture: &'a Capture,
    /// Whether to stop before the next pass.
    interrupted: &'a (dyn Fn() -> bool + Sync),
}

impl<'a> Decoder<'a> {
    /// One that decodes to the end.
    pub fn new(target: &'a dyn Target, capture: &'a Capture) -> Self {
        Self {
            target,
            capture,
            interrupted: &|| false,
        }
    }

    /// One that fails with [`Error::Interrupted`] once `interrupted` says so, before the next pass of the target.
    pub fn unless(self, interrupted: &'a (dyn Fn() -> bool + Sync)) -> Self {
        Self {
            interrupted,
            ..self
        }
    }

    /// Continues `prompt` with drafts of `proposer`.
    ///
    /// # Errors
    /// The prompt is empty or fills the target's context, the verifier refuses a draft, the device fails, or it is
    /// interrupted.
    pub fn generate(
        &self,
        proposer: &mut dyn Proposer,
        verifier: &dyn Verifier,
        prompt: &[u32],
        settings: &DecodeSettings,
        rng: &mut StdRng,
    ) -> Result<Generation> {
        let clock = Instant::now();
        let (mut sequence, features) = self.start(prompt, settings, self.capture, rng)?;
        let mut passes = Vec::new();
        // The first token comes from the prompt's pass.
        let mut shadows = vec![Vec::new()];
        let mut chance = settings.shadow.map(StdRng::seed_from_u64);
        if sequence.room() > 0 {
            let capacity = sequence.limit + settings.draft.nodes();
            proposer.start(capacity, sequence.text[0]);
            // The features of the whole prompt, each with the token after it; the last of those is the bonus token.
            proposer.observe(&sequence.text[1..], &features);
            self.wait()?;
        }
        let prompt_seconds = clock.elapsed().as_secs_f64();
        while sequence.room() > 0 {
            self.check_interrupted()?;
            let mut clock = Stopwatch::default();
            let steps = settings.draft.length().min(sequence.room() - 1);
            let mut drafted = |rng: &mut StdRng| propose(proposer, steps, settings, rng);
            let shadow = chance.as_mut().map(&mut drafted).transpose()?;
            let draft = clock.draft(|| drafted(rng))?;
            let held = sequence.caches.len;
            let (accepted, bonus, features) = clock.verify(|| {
                let output = self.judge(&mut sequence, &draft);
                let verdict = verifier.verify(&draft, output.logits, &settings.sampling, rng);
                verdict.map(|verdict| (verdict.accepted, verdict.bonus, output.features))
            })?;
            let mut rows = vec![0];
            rows.extend(accepted.iter().map(|node| 1 + node));
            sequence.caches.keep(held, &rows);
            let kept = accepted.iter().map(|&node| draft.tokens[node]);
            let emitted: Vec<u32> = kept.chain([bonus]).collect();
            let committed = sequence.commit(&emitted, &settings.stop);
            let tested = if committed < emitted.len() {
                committed - 1
            } else {
                tested(&draft, &accepted)
            };
            if sequence.room() > 0 {
                let features = features.select(&rows);
                clock.draft(|| proposer.observe(&emitted, &features));
            }
            passes.push(PassRecord {
                drafted: draft.len(),
                depth: depth(&draft),
                draft_passes: proposer.passes(settings.draft.asked(steps, depth(&draft))),
                tested,
                accepted: committed - 1,
                emitted: committed,
                seconds: clock.read(),
            });
            if let Some(shadow) = shadow {
                shadows.extend(shadow.along(&emitted[..committed]));
                shadows.resize(sequence.text.len() - prompt.len(), Vec::new());
            }
        }
        Ok(Generation {
            tokens: sequence.text.split_off(prompt.len()),
            passes,
            shadows,
            prompt_seconds,
        })
    }

    /// Continues `prompt` without drafting, one token for each pass: what speculation must equal, and is measured against.
    ///
    /// # Errors
    /// As for [`generate`](Self::generate).
    pub fn plain(
        &self,
        prompt: &[u32],
        settings: &DecodeSettings,
        rng: &mut StdRng,
    ) -> Result<Generation> {
        let clock = Instant::now();
        let capture = Capture::default();
        let (mut sequence, _) = self.start(prompt, settings, &capture, rng)?;
        let prompt_seconds = clock.elapsed().as_secs_f64();
        let mut passes = Vec::new();
        while sequence.room() > 0 {
            self.check_interrupted()?;
            let mut clock = Stopwatch::default();
            let token = clock.verify(|| {
                let pass = Pass {
                    tokens: &sequence.text[sequence.text.len() - 1..],
                    parents: &[None],
                    logits: LogitRows::Last,
                };
                let output = self.target.decode(pass, &mut sequence.caches, &capture);
                choose(output.logits, &settings.sampling, rng)
            })?;
            sequence.commit(&[token], &settings.stop);
            passes.push(PassRecord {
                emitted: 1,
                seconds: clock.read(),
                ..PassRecord::default()
            });
        }
        Ok(Generation {
            tokens: sequence.text.split_off(prompt.len()),
            passes,
            shadows: Vec::new(),
            prompt_seconds,
        })
    }

    /// Runs the prompt and commits the first bonus token.
    fn start(
        &self,
        prompt: &[u32],
        settings: &DecodeSettings,
        capture: &Capture,
        rng: &mut StdRng,
    ) -> Result<(Sequence, Features)> {
        self.check_interrupted()?;
        let spec = self.target.spec();
        let longest = spec.max_positions.saturating_sub(1);
        if prompt.is_empty() || prompt.len() > longest {
            return Err(Error::Prompt {
                mismatch: Mismatch::new(
                    format!("1 to {longest} tokens, so that one more fits the target's context"),
                    format!("{} tokens", prompt.len()),
                ),
            });
        }
        if settings.max_new_tokens == 0 {
            return Err(Error::Setting {
                key: "max_new_tokens",
                mismatch: Mismatch::new("at least 1", "0"),
            });
        }
        let limit = spec
            .max_positions
            .min(prompt.len() + settings.max_new_tokens);
        let mut sequence = Sequence {
            text: prompt.to_vec(),
            limit,
            stopped: false,
            caches: Caches::new(spec.layers, limit + settings.draft.nodes()),
        };
        let pass = Pass {
            tokens: prompt,
            parents: &chain(prompt.len()),
            logits: LogitRows::Last,
        };
        let output = self.target.decode(pass, &mut sequence.caches, capture);
        let bonus = choose(output.logits, &settings.sampling, rng)?;
        sequence.commit(&[bonus], &settings.stop);
        Ok((sequence, output.features))
    }

    /// Runs the last committed token and after it the draft, whose nodes so become one higher.
    fn judge(&self, sequence: &mut Sequence, draft: &Draft) -> TargetOutput {
        let mut tokens = vec![sequence.text[sequence.text.len() - 1]];
        tokens.extend(&draft.tokens);
        let mut parents = vec![None];
        let shifted = |parent: &Option<usize>| Some(parent.map_or(0, |parent| 1 + parent));
        parents.extend(draft.parents.iter().map(shifted));
        let pass = Pass {
            tokens: &tokens,
            parents: &parents,
            logits: LogitRows::All,
        };
        self.target.decode(pass, &mut sequence.caches, self.capture)
    }

    /// Fails if it is to stop here.
    pub(crate) fn check_interrupted(&self) -> Result<()> {
        if (self.interrupted)() {
            Err(Error::Interrupted)
        } else {
            Ok(())
        }
    }

    /// Waits for the device, so that the prompt's work is not counted as the first draft's.
    fn wait(&self) -> Result<()> {
        let done = self.target.device().sync();
        done.map_err(|error| Error::Device(error.to_string()))
    }
}

/// One sequence being decoded. All of its tokens but the last are in the caches.
struct Sequence {
    text: Vec<u32>,
    /// Tokens it may grow to.
    limit: usize,
    stopped: bool,
    caches: Caches,
}

impl Sequence {
    /// Tokens that may still be committed.
    fn room(&self) -> usize {
        if self.stopped {
            0
        } else {
            self.limit - self.text.len()
        }
    }

    /// Adds tokens up to the first stop token and up to the limit, and says how many.
    fn commit(&mut self, tokens: &[u32], stop: &[u32]) -> usize {
        let before = self.text.len();
        for token in tokens {
            if self.room() == 0 {
                break;
            }
            self.text.push(*token);
            self.stopped = stop.contains(token);
        }
        self.text.len() - before
    }
}

fn propose(
    proposer: &mut dyn Proposer,
    steps: usize,
    settings: &DecodeSettings,
    rng: &mut StdRng,
) -> Result<Draft> {
    if steps == 0 {
        return Ok(Draft::default());
    }
    let request = DraftRequest {
        shape: settings.draft.clone(),
        length: steps,
        sampling: settings.sampling,
    };
    let draft = proposer.propose(&request, rng);
    if matches!(draft.proposal, Proposal::Broken) {
        return Err(Error::DraftLogits);
    }
    match depth(&draft) {
        found if found > steps => Err(Error::DraftLength {
            requested: steps,
            found,
        }),
        _ => Ok(draft),
    }
}

fn depth(draft: &Draft) -> usize {
    depths(&draft.parents)
        .into_iter()
        .max()
        .map_or(0, |deepest| deepest + 1)
}

/// Steps judged: the accepted ones, and one more if the last of them had candidates after it.
fn tested(draft: &Draft, accepted: &[usize]) -> usize {
    let last = accepted.last().copied();
    accepted.len() + usize::from(draft.parents.contains(&last))
}

/// Sorts the time of one pass by what it went into.
struct Stopwatch {
    since: Instant,
    draft: f64,
    verify: f64,
}

impl Default for Stopwatch {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            draft: 0.0,
            verify: 0.0,
        }
    }
}

impl Stopwatch {
    fn draft<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let clock = Instant::now();
        let done = work();
        self.draft += clock.elapsed().as_secs_f64();
        done
    }

    fn verify<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let clock = Instant::now();
        let done = work();
        self.verify += clock.elapsed().as_secs_f64();
        done
    }

    fn read(&self) -> Seconds {
        Seconds {
            draft: self.draft,
            verify: self.verify,
            other: self.since.elapsed().as_secs_f64() - self.draft - self.verify,
        }
    }
}

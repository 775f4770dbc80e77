//! The decoder: a drafter proposes, one target pass judges, and what is accepted is committed. One sequence is decoded like
//! several: all of them draft, one pass of the target judges all drafts, and each sequence commits its own.
//!
//! A pass reads the last committed token, which has no feature and no cache entry yet, and after it the draft. So row 0
//! of its logits judges the first drafted tokens, and row `1 + i` what follows node `i`.
use std::time::Instant;

use rand::rngs::StdRng;
use spectrain_checkpoints::Mismatch;
use spectrain_models::bounds::OutOfBounds;
use spectrain_models::few_rows::Decoding;
use spectrain_models::{
    Caches, Capture, Draft, Features, LogitRows, Pass, Proposer, Target, chain,
};

use self::desk::{Counter, received};
use self::lane::{Generator, Lane, Sequence};
use self::queue::{Listed, PromptQueue};
use crate::error::{Error, Result};
use crate::verify::Verifier;
use crate::verify::rows::choose;

mod desk;
mod generation;
mod lane;
pub(crate) mod queue;
pub(crate) mod rehearsal;
#[cfg(test)]
mod tests;

pub use self::desk::{Desk, Orders};
pub use self::generation::{DecodeSettings, Generation, PassRecord, Seconds};

/// A target that decodes, with or without a drafter.
#[derive(Clone, Copy)]
pub struct Decoder<'a> {
    /// The target.
    pub target: &'a dyn Target,
    /// The hidden states the drafter reads.
    pub capture: &'a Capture,
    /// Whether to stop before the next pass.
    interrupted: &'a (dyn Fn() -> bool + Sync),
    /// Is told every draft that is judged.
    told: &'a (dyn Fn(&Draft) + Sync),
}

impl<'a> Decoder<'a> {
    /// One that decodes to the end.
    pub fn new(target: &'a dyn Target, capture: &'a Capture) -> Self {
        Self {
            target,
            capture,
            interrupted: &|| false,
            told: &|_| (),
        }
    }

    /// One that fails with [`Error::Interrupted`] once `interrupted` says so, before the next pass of the target.
    pub fn unless(self, interrupted: &'a (dyn Fn() -> bool + Sync)) -> Self {
        Self {
            interrupted,
            ..self
        }
    }

    /// One that tells `told` every draft that it judges.
    pub(crate) fn telling(self, told: &'a (dyn Fn(&Draft) + Sync)) -> Self {
        Self { told, ..self }
    }

    /// The same for a drafter that reads other hidden states.
    pub(crate) fn reading(self, capture: &'a Capture) -> Self {
        Self { capture, ..self }
    }

    /// Continues `prompt` with drafts of `proposer`, with what `rng` draws. An error leaves that behind what it has drawn by then.
    ///
    /// # Errors
    /// The prompt is empty, fills the target's context or has a token that the target has not, a setting makes no sense, the verifier
    /// refuses a draft, the device fails, or it is interrupted.
    pub fn generate(
        &self,
        proposer: &mut dyn Proposer,
        verifier: &dyn Verifier,
        prompt: &[u32],
        settings: &DecodeSettings,
        rng: &mut StdRng,
    ) -> Result<Generation> {
        let way = Way::drafting(self.capture, verifier, settings);
        self.alone(&way, Some(proposer), prompt, rng)
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
        let capture = Capture::default();
        self.alone(&Way::plain(&capture, settings), None, prompt, rng)
    }

    /// Continues prompts of any lengths, as many at a time as there are proposers, each with draws of its own: the outputs are
    /// those of [`generate`](Self::generate), one after the other. Where a sequence ends, the next prompt takes its place. The
    /// seconds of a pass are the sequence's own of its drafter, and an equal share of what is done for all together.
    ///
    /// # Errors
    /// As for [`generate`](Self::generate), or there is no proposer.
    pub fn generate_batch<'p>(
        &self,
        proposers: &mut [Box<dyn Proposer + 'p>],
        verifier: &dyn Verifier,
        prompts: Vec<(Vec<u32>, StdRng)>,
        settings: &DecodeSettings,
    ) -> Result<Vec<Generation>> {
        let mut queue = Listed::new(prompts);
        self.generate_queued(proposers, verifier, &mut queue, settings)?;
        Ok(queue.generations())
    }

    /// The same with prompts that are asked for when there is room for them.
    pub(crate) fn generate_queued<'p>(
        &self,
        proposers: &mut [Box<dyn Proposer + 'p>],
        verifier: &dyn Verifier,
        queue: &mut dyn PromptQueue,
        settings: &DecodeSettings,
    ) -> Result<()> {
        let way = Way::drafting(self.capture, verifier, settings);
        // Without `map` the compiler would have the proposers live as long as what they borrow.
        let free = proposers.iter_mut().map(|proposer| {
            let proposer: &mut dyn Proposer = proposer.as_mut();
            Some(proposer)
        });
        self.side_by_side(&way, free.collect(), queue)
    }

    /// The same without drafts, `size` sequences at a time.
    pub(crate) fn plain_queued(
        &self,
        size: usize,
        queue: &mut dyn PromptQueue,
        settings: &DecodeSettings,
    ) -> Result<()> {
        let capture = Capture::default();
        let free = (0..size).map(|_| None).collect();
        self.side_by_side(&Way::plain(&capture, settings), free, queue)
    }

    /// Continues the prompts of a desk without drafts, up to `size` at a time, until the desk is closed or the decoder is
    /// interrupted. Each gets what [`plain`](Self::plain) gives. One that fails gets its error, and the others go on.
    pub fn serve(&self, orders: Orders, size: usize, settings: &DecodeSettings) {
        let check = |prompt: &[u32]| self.check_prompt(prompt, settings);
        let mut queue = Counter::new(orders, &check);
        while queue.waits() {
            match self.plain_queued(size, &mut queue, settings) {
                Ok(()) => {}
                Err(Error::Interrupted) => return,
                Err(error) => queue.failed(error),
            }
        }
    }

    /// The same for prompts that are all there, with the same draws for each; what became of each of them.
    pub fn plain_batch(
        &self,
        prompts: impl IntoIterator<Item = Vec<u32>>,
        seed: u64,
        size: usize,
        settings: &DecodeSettings,
    ) -> Vec<Result<Generation>> {
        let (desk, orders) = Desk::open();
        let prompts = prompts.into_iter();
        let all: Vec<_> = prompts.map(|prompt| desk.hand_in(prompt, seed)).collect();
        drop(desk);
        self.serve(orders, size, settings);
        all.iter().map(received).collect()
    }

    /// Continues one prompt.
    fn alone<'l>(
        &self,
        way: &Way,
        proposer: Option<&'l mut (dyn Proposer + 'l)>,
        prompt: &[u32],
        rng: &'l mut StdRng,
    ) -> Result<Generation> {
        let mut lane = self.begin(way, proposer, (0, prompt), Generator::Lent(rng))?;
        while !lane.is_done() {
            let one = std::slice::from_mut(&mut lane);
            self.step(way, one).map_err(|failed| failed.error)?;
        }
        Ok(lane.finish().0)
    }

    /// Continues what the queue has, in as many places as are `free`.
    fn side_by_side<'l>(
        &self,
        way: &Way,
        mut free: Vec<Option<&'l mut dyn Proposer>>,
        queue: &mut dyn PromptQueue,
    ) -> Result<()> {
        if free.is_empty() {
            return Err(Error::Setting {
                key: "batch_size",
                mismatch: Mismatch::new("at least 1", "0"),
            });
        }
        let mut lanes: Vec<Lane<'l>> = Vec::new();
        loop {
            while let Some(proposer) = free.pop() {
                let Some(next) = queue.next()? else {
                    free.push(proposer);
                    break;
                };
                let ticket = next.ticket;
                let asked = (ticket, next.prompt.as_slice());
                let lane = self.begin(way, proposer, asked, Generator::Own(Box::new(next.rng)));
                lanes.push(lane.map_err(|error| queue.blame(ticket, error))?);
            }
            let done: Vec<Lane<'l>> = lanes.extract_if(.., |lane| lane.is_done()).collect();
            if done.is_empty() {
                if lanes.is_empty() {
                    return Ok(());
                }
                self.step(way, &mut lanes)
                    .map_err(|failed| queue.blame(failed.ticket, failed.error))?;
            }
            for lane in done {
                let ticket = lane.ticket;
                let (generation, proposer) = lane.finish();
                free.push(proposer);
                queue.answered(ticket, generation)?;
            }
        }
    }

    /// Runs a prompt, known by its `ticket`, commits the first bonus token and shows both to the proposer.
    fn begin<'l>(
        &self,
        way: &Way,
        proposer: Option<&'l mut (dyn Proposer + 'l)>,
        (ticket, prompt): (usize, &[u32]),
        mut generator: Generator<'l>,
    ) -> Result<Lane<'l>> {
        let clock = Instant::now();
        let _decoding = Decoding::begin();
        let (sequence, features) = self.start(prompt, way, generator.rng())?;
        let drafts = proposer.is_some();
        let started = (sequence, &features);
        let mut lane = Lane::new(ticket, proposer, generator, started, way.settings);
        if drafts && !lane.is_done() {
            self.wait()?;
        }
        lane.begun_in(clock.elapsed().as_secs_f64());
        Ok(lane)
    }

    /// One pass of the target for all sequences, none of which is done. Returns the seconds of all together.
    fn step(&self, way: &Way, lanes: &mut [Lane]) -> std::result::Result<Seconds, Failed> {
        let clock = Instant::now();
        let _decoding = Decoding::begin();
        for lane in &mut *lanes {
            self.check_interrupted().map_err(Failed::of(lane))?;
            lane.draft(way.settings).map_err(Failed::of(lane))?;
            (self.told)(lane.drafted());
        }
        let judging = Instant::now();
        let passes = lanes.iter_mut().map(Lane::pass).collect();
        let outputs = self.target.decode_batch(passes, way.capture);
        let mut features = Vec::with_capacity(lanes.len());
        for (lane, output) in lanes.iter_mut().zip(outputs) {
            lane.judge(output.logits, way.settings, way.verifier)
                .map_err(Failed::of(lane))?;
            features.push(output.features);
        }
        // Of what is done for all together each has an equal share, so that the shares add up to the time that passed.
        let judged = judging.elapsed().as_secs_f64();
        for (lane, features) in lanes.iter_mut().zip(&features) {
            lane.commit(features, way.settings);
        }
        let drafted: f64 = lanes.iter().map(Lane::draft_seconds).sum();
        let all = Seconds {
            draft: drafted,
            verify: judged,
            other: clock.elapsed().as_secs_f64() - judged - drafted,
        };
        let share = |seconds: f64| seconds / lanes.len() as f64;
        let (verify, other) = (share(all.verify), share(all.other));
        let together = lanes.len();
        (lanes.iter_mut()).for_each(|lane| lane.record(together, (verify, other)));
        Ok(all)
    }

    /// Runs the prompt and commits the first bonus token.
    fn start(&self, prompt: &[u32], way: &Way, rng: &mut StdRng) -> Result<(Sequence, Features)> {
        self.check_interrupted()?;
        let settings = way.settings;
        self.check_prompt(prompt, settings)?;
        let spec = self.target.spec();
        let limit = spec
            .max_positions
            .min(prompt.len().saturating_add(settings.max_new_tokens));
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
        let output = self.target.decode(pass, &mut sequence.caches, way.capture);
        let bonus = choose(output.logits, &settings.sampling, rng)?;
        sequence.commit(&[bonus], &settings.stop);
        Ok((sequence, output.features))
    }

    /// Fails on what cannot be continued.
    fn check_prompt(&self, prompt: &[u32], settings: &DecodeSettings) -> Result<()> {
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
        let known = |token: &u32| (*token as usize) < spec.vocab;
        if let Some(place) = prompt.iter().position(|token| !known(token)) {
            return Err(Error::Prompt {
                mismatch: Mismatch::new(
                    format!(
                        "tokens below {}, of which the target has so many",
                        spec.vocab
                    ),
                    format!("{} at place {place}", prompt[place]),
                ),
            });
        }
        if settings.max_new_tokens == 0 {
            return Err(Error::Setting {
                key: "max_new_tokens",
                mismatch: Mismatch::new("at least 1", "0"),
            });
        }
        let sampling = settings.sampling.check();
        sampling.map_err(|OutOfBounds { key, mismatch }| Error::Setting { key, mismatch })
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

/// How all sequences of a batch are decoded.
#[derive(Clone, Copy)]
struct Way<'a> {
    /// The hidden states that proposers read.
    capture: &'a Capture,
    /// What decides over drafts; none where nothing is drafted.
    verifier: Option<&'a dyn Verifier>,
    settings: &'a DecodeSettings,
}

impl<'a> Way<'a> {
    fn drafting(
        capture: &'a Capture,
        verifier: &'a dyn Verifier,
        settings: &'a DecodeSettings,
    ) -> Self {
        Self {
            capture,
            verifier: Some(verifier),
            settings,
        }
    }

    fn plain(capture: &'a Capture, settings: &'a DecodeSettings) -> Self {
        Self {
            capture,
            verifier: None,
            settings,
        }
    }
}

/// What went wrong, and with which sequence.
struct Failed {
    ticket: usize,
    error: Error,
}

impl Failed {
    fn of(lane: &Lane) -> impl FnOnce(Error) -> Self + use<> {
        let ticket = lane.ticket;
        move |error| Self { ticket, error }
    }
}

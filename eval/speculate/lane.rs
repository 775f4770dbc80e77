//! One sequence being decoded: what it drafts, what is judged of it, and what it commits, pass by pass.
use std::time::Instant;

use burn::prelude::Tensor;
use rand::{SeedableRng, rngs::StdRng};
use spectrain_models::{
    Caches, Draft, DraftRequest, Features, LogitRows, Pass, Proposal, Proposer, SequencePass,
    depths,
};

use super::generation::{DecodeSettings, Generation, PassRecord, Seconds};
use crate::error::{Error, Result};
use crate::verify::rows::choose;
use crate::verify::{Verdict, Verifier};

/// A sequence that is drafted for, or that is decoded without drafts where it has no proposer.
pub(super) struct Lane<'a> {
    /// The number by which whoever asked knows it.
    pub(super) ticket: usize,
    pub(super) proposer: Option<&'a mut dyn Proposer>,
    generator: Generator<'a>,
    /// Draws the second draft of a pass, which decides nothing.
    chance: Option<StdRng>,
    pub(super) sequence: Sequence,
    /// Tokens of the prompt.
    prompt: usize,
    under_way: UnderWay,
    generation: Generation,
}

/// What draws the tokens of a sequence.
pub(super) enum Generator<'a> {
    /// A generator of its own.
    Own(Box<StdRng>),
    /// One of whoever asked, which goes on behind what was drawn.
    Lent(&'a mut StdRng),
}

impl Generator<'_> {
    pub(super) fn rng(&mut self) -> &mut StdRng {
        match self {
            Self::Own(rng) => rng,
            Self::Lent(rng) => rng,
        }
    }
}

/// The pass that is under way.
#[derive(Default)]
struct UnderWay {
    draft: Draft,
    shadow: Option<Draft>,
    /// The longest path asked for.
    steps: usize,
    /// The last committed token, and the draft behind it.
    tokens: Vec<u32>,
    parents: Vec<Option<usize>>,
    /// Positions in the caches before the pass.
    held: usize,
    verdict: Option<Verdict>,
    /// What the target made of the tokens, for proposers that learn from it.
    logits: Option<Tensor<2>>,
    record: PassRecord,
}

/// The text of a sequence. All of its tokens but the last are in the caches.
pub(super) struct Sequence {
    pub(super) text: Vec<u32>,
    /// Tokens it may grow to.
    pub(super) limit: usize,
    pub(super) stopped: bool,
    pub(super) caches: Caches,
}

impl Sequence {
    /// Tokens that may still be committed.
    pub(super) fn room(&self) -> usize {
        if self.stopped {
            0
        } else {
            self.limit - self.text.len()
        }
    }

    /// Adds tokens up to the first stop token and up to the limit, and says how many.
    pub(super) fn commit(&mut self, tokens: &[u32], stop: &[u32]) -> usize {
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

    /// Drops every token from `length` on.
    pub(super) fn truncate(&mut self, length: usize) {
        self.text.truncate(length);
        self.caches.truncate(length - 1);
    }
}

impl<'a> Lane<'a> {
    /// A sequence whose prompt was run, and its first token committed. `features` are those of the prompt, which the
    /// proposer has not seen yet.
    pub(super) fn new(
        ticket: usize,
        mut proposer: Option<&'a mut dyn Proposer>,
        generator: Generator<'a>,
        (sequence, features): (Sequence, &Features),
        settings: &DecodeSettings,
    ) -> Self {
        let prompt = sequence.caches.len;
        if let (Some(proposer), true) = (&mut proposer, sequence.room() > 0) {
            let capacity = sequence.limit + settings.draft.nodes();
            proposer.start(capacity, sequence.text[0]);
            // The features of the whole prompt, each with the token after it; the last of those is the bonus token.
            proposer.observe(&sequence.text[1..], features);
        }
        let shadows = match proposer {
            // The first token comes from the prompt's pass.
            Some(_) => vec![Vec::new()],
            None => Vec::new(),
        };
        Self {
            ticket,
            proposer,
            generator,
            chance: settings.shadow.map(StdRng::seed_from_u64),
            sequence,
            prompt,
            under_way: UnderWay::default(),
            generation: Generation {
                shadows,
                ..Generation::default()
            },
        }
    }

    /// Whether nothing more is to be decoded.
    pub(super) fn is_done(&self) -> bool {
        self.sequence.room() == 0
    }

    /// What was decoded, and the proposer for another sequence.
    pub(super) fn finish(mut self) -> (Generation, Option<&'a mut dyn Proposer>) {
        self.generation.tokens = self.sequence.text.split_off(self.prompt);
        (self.generation, self.proposer)
    }

    /// Says how long the prompt took.
    pub(super) fn begun_in(&mut self, seconds: f64) {
        self.generation.prompt_seconds = seconds;
    }

    /// Drafts what the next pass judges.
    pub(super) fn draft(&mut self, settings: &DecodeSettings) -> Result<()> {
        let text = &self.sequence.text;
        self.under_way = UnderWay {
            tokens: vec![text[text.len() - 1]],
            parents: vec![None],
            held: self.sequence.caches.len,
            ..UnderWay::default()
        };
        let Some(proposer) = &mut self.proposer else {
            return Ok(());
        };
        let now = &mut self.under_way;
        now.steps = settings.draft.length().min(self.sequence.room() - 1);
        let mut drafted = |rng: &mut StdRng| propose(&mut **proposer, now.steps, settings, rng);
        now.shadow = self.chance.as_mut().map(&mut drafted).transpose()?;
        let clock = Instant::now();
        now.draft = drafted(self.generator.rng())?;
        now.record.seconds.draft = clock.elapsed().as_secs_f64();
        // The draft's nodes become one higher, as the last committed token stands before them.
        now.tokens.extend(&now.draft.tokens);
        let shifted = |parent: &Option<usize>| Some(parent.map_or(0, |parent| 1 + parent));
        now.parents.extend(now.draft.parents.iter().map(shifted));
        Ok(())
    }

    /// The draft that the next pass judges.
    pub(super) fn drafted(&self) -> &Draft {
        &self.under_way.draft
    }

    /// The pass that the target makes for it.
    pub(super) fn pass(&mut self) -> SequencePass<'_> {
        SequencePass {
            pass: Pass {
                tokens: &self.under_way.tokens,
                parents: &self.under_way.parents,
                logits: LogitRows::All,
            },
            caches: &mut self.sequence.caches,
        }
    }

    /// Decides over the draft; where there is no verifier, of a sequence without drafts, the target's token is taken.
    pub(super) fn judge(
        &mut self,
        logits: Tensor<2>,
        settings: &DecodeSettings,
        verifier: Option<&dyn Verifier>,
    ) -> Result<()> {
        self.under_way.logits = self.proposer.is_some().then(|| logits.clone());
        let (draft, rng) = (&self.under_way.draft, self.generator.rng());
        self.under_way.verdict = Some(match verifier {
            Some(verifier) => verifier.verify(draft, logits, &settings.sampling, rng)?,
            None => Verdict {
                accepted: Vec::new(),
                bonus: choose(logits, &settings.sampling, rng)?,
            },
        });
        Ok(())
    }

    /// Commits what was accepted, and shows it to the proposer. `features` are those of the pass.
    pub(super) fn commit(&mut self, features: &Features, settings: &DecodeSettings) {
        let now = &mut self.under_way;
        let Some(Verdict { accepted, bonus }) = now.verdict.take() else {
            unreachable!("a pass is judged before it is committed");
        };
        let mut rows = vec![0];
        rows.extend(accepted.iter().map(|node| 1 + node));
        self.sequence.caches.keep(now.held, &rows);
        let kept = accepted.iter().map(|&node| now.draft.tokens[node]);
        let emitted: Vec<u32> = kept.chain([bonus]).collect();
        let committed = self.sequence.commit(&emitted, &settings.stop);
        let record = &mut now.record;
        record.emitted = committed;
        record.accepted = committed - 1;
        let Some(proposer) = &mut self.proposer else {
            return;
        };
        record.drafted = now.draft.len();
        record.depth = depth(&now.draft);
        record.draft_passes = proposer.passes(settings.draft.asked(now.steps, record.depth));
        record.tested = if committed < emitted.len() {
            committed - 1
        } else {
            tested(&now.draft, &accepted)
        };
        if self.sequence.room() > 0 {
            let clock = Instant::now();
            if let Some(logits) = now.logits.take() {
                proposer.judged(&now.tokens, &logits);
            }
            proposer.observe(&emitted, &features.select(&rows));
            record.seconds.draft += clock.elapsed().as_secs_f64();
        }
        if let Some(shadow) = now.shadow.take() {
            let shadows = &mut self.generation.shadows;
            shadows.extend(shadow.along(&emitted[..committed]));
            shadows.resize(self.sequence.text.len() - self.prompt, Vec::new());
        }
    }

    /// Seconds that its drafter took of the pass under way.
    pub(super) fn draft_seconds(&self) -> f64 {
        self.under_way.record.seconds.draft
    }

    /// Tokens that were drafted for the last pass.
    pub(super) fn last_drafted(&self) -> usize {
        let last = self.generation.passes.last();
        last.map_or(0, |pass| pass.drafted)
    }

    /// Ends the pass under way, which was of so many sequences `together`. Its share of what was done for all of them goes into
    /// its record.
    pub(super) fn record(&mut self, together: usize, (verify, other): (f64, f64)) {
        let draft = self.draft_seconds();
        self.generation.passes.push(PassRecord {
            together,
            seconds: Seconds {
                draft,
                verify,
                other,
            },
            ..self.under_way.record
        });
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

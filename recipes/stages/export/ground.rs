//! What two drafters are compared on: prompts that are decoded with the target, or answers that it gave where it is not here.

use anyhow::Result;
use burn::prelude::Tensor;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_eval::{Estimable, OwnText, estimate};
use spectrain_models::{
    Distribution, Draft, DraftRequest, DraftShape, Features, KnownText, Proposal, Proposer,
    Sampling, TakeGuesses, TakeLogits, TargetParts,
};

use crate::families::trained::Trained;
use crate::runtime::decoded::{Decoded, accepted, decode};
use crate::runtime::pair::Pair;

/// What drafters are compared on.
pub(super) trait Ground {
    /// What a drafter shares of the target.
    fn parts(&self) -> TargetParts;
    /// What is accepted of its greedy drafts.
    fn accepted(&mut self, drafter: &dyn Trained) -> Result<Decoded>;
    /// What it drafts by its own probabilities, drawn from a seed.
    fn drawn(&mut self, drafter: &dyn Trained, seed: u64) -> Result<Drawn>;
}

/// Prompts, and a target that decodes them.
pub(super) struct OnPrompts {
    /// The target, with some drafter.
    pub(super) pair: Pair,
    /// Tokens of each prompt.
    pub(super) prompts: Vec<Vec<u32>>,
}

impl Ground for OnPrompts {
    fn parts(&self) -> TargetParts {
        self.pair.target.parts()
    }

    fn accepted(&mut self, drafter: &dyn Trained) -> Result<Decoded> {
        self.pair.take(drafter)?;
        accepted(&self.pair, &self.prompts)
    }

    fn drawn(&mut self, drafter: &dyn Trained, seed: u64) -> Result<Drawn> {
        self.pair.take(drafter)?;
        let mut recorder = Recorder::new(self.pair.drafter.session());
        let sampling = (Sampling::at(1.0), seed);
        decode(&self.pair, &mut recorder, &self.prompts, sampling)?;
        Ok(recorder.found())
    }
}

/// Texts of the target, which is not here.
pub(super) struct OnTexts {
    /// What a drafter shares of it.
    pub(super) target: TargetParts,
    /// Texts with the features that the drafter reads.
    pub(super) texts: Vec<OwnText>,
}

impl OnTexts {
    fn session(&self, drafter: &dyn Trained) -> Box<dyn Proposer> {
        let compute = self.target.dtype();
        drafter.held_in(compute).session()
    }
}

impl Ground for OnTexts {
    fn parts(&self) -> TargetParts {
        self.target.clone()
    }

    fn accepted(&mut self, drafter: &dyn Trained) -> Result<Decoded> {
        let session = self.session(drafter);
        let draft = Estimable::greedy_chain(session.draft_length());
        let mut accepted = Vec::new();
        for text in &self.texts {
            let passes = estimate(session.as_ref(), text, &draft)?.passes;
            accepted.extend(passes.iter().map(|pass| pass.accepted));
        }
        Ok(Decoded { accepted })
    }

    fn drawn(&mut self, drafter: &dyn Trained, seed: u64) -> Result<Drawn> {
        let mut recorder = Recorder::new(self.session(drafter));
        let length = recorder.draft_length();
        let request = DraftRequest {
            shape: DraftShape::Chain { length },
            length,
            sampling: Sampling::at(1.0),
        };
        for text in &self.texts {
            let before: Vec<usize> = (0..text.first).collect();
            recorder.start(text.tokens.len() + length, text.tokens[0]);
            recorder.observe(&text.tokens[1..=text.first], &text.features.select(&before));
            recorder.propose(&request, &mut StdRng::seed_from_u64(seed));
        }
        Ok(recorder.found())
    }
}

/// A proposer that keeps what it drafts.
struct Recorder {
    inner: Box<dyn Proposer>,
    drafts: Vec<Vec<u32>>,
    /// Of the first draft of each prompt.
    distributions: Vec<Distribution>,
    is_first: bool,
}

impl Proposer for Recorder {
    fn start(&mut self, capacity: usize, first: u32) {
        self.is_first = true;
        self.inner.start(capacity, first);
    }

    fn observe(&mut self, tokens: &[u32], features: &Features) {
        self.inner.observe(tokens, features);
    }

    fn judged(&mut self, tokens: &[u32], logits: &Tensor<2>) {
        self.inner.judged(tokens, logits);
    }

    fn propose(&mut self, request: &DraftRequest, rng: &mut StdRng) -> Draft {
        let draft = self.inner.propose(request, rng);
        if let (true, Proposal::Sampled(distributions)) = (self.is_first, &draft.proposal) {
            self.distributions.extend(distributions.iter().cloned());
        }
        self.is_first = false;
        self.drafts.push(draft.tokens.clone());
        draft
    }

    fn ranks(&mut self, tokens: &[u32]) -> Vec<Option<usize>> {
        self.inner.ranks(tokens)
    }

    fn forced(&mut self, tokens: &[u32]) -> Vec<Vec<f32>> {
        self.inner.forced(tokens)
    }

    fn along(&self, text: &KnownText, take: &mut TakeLogits) {
        self.inner.along(text, take);
    }

    fn guesses_along(&self, text: &KnownText, take: &mut TakeGuesses) {
        self.inner.guesses_along(text, take);
    }

    fn follows_text(&self) -> bool {
        self.inner.follows_text()
    }

    fn vocabulary(&self) -> &DraftVocabulary {
        self.inner.vocabulary()
    }

    fn max_depth(&self) -> Option<usize> {
        self.inner.max_depth()
    }

    fn draft_length(&self) -> usize {
        self.inner.draft_length()
    }

    fn passes(&self, depth: usize) -> usize {
        self.inner.passes(depth)
    }

    fn parameters_per_pass(&self) -> u64 {
        self.inner.parameters_per_pass()
    }

    fn has_confidence(&self) -> bool {
        self.inner.has_confidence()
    }
}

/// What a drafter drafts by its own probabilities, and these.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Drawn {
    pub(super) drafts: Vec<Vec<u32>>,
    pub(super) distributions: Vec<Distribution>,
}

impl Recorder {
    fn new(inner: Box<dyn Proposer>) -> Self {
        Self {
            inner,
            drafts: Vec::new(),
            distributions: Vec::new(),
            is_first: true,
        }
    }

    fn found(self) -> Drawn {
        Drawn {
            drafts: self.drafts,
            distributions: self.distributions,
        }
    }
}

//! Whether a drafter that was written and read back is the one that was trained.

use anyhow::{Context as _, Result, bail};
use burn::prelude::Tensor;
use rand::rngs::StdRng;
use spectrain_checkpoints::{DType, NamedTensor};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::{
    Distribution, Draft, DraftRequest, Features, KnownText, Proposal, Proposer, Sampling,
    TakeLogits,
};

use crate::families::family::Writing;
use crate::families::trained::Trained;
use crate::runtime::decoded::{Decoded, decode};
use crate::runtime::pair::Pair;
/// Share of the trained drafter's accepted tokens that the exported one must keep when its weights were rounded.
const KEPT_WHEN_ROUNDED: f64 = 0.8;
/// Largest difference between two probabilities that are the same, relative to the larger one: devices may add in any
/// order.
const SAME: f32 = 1e-3;

/// Fails unless the drafter that was read back is `trained`, rounded: every tensor bit for bit, the vocabulary, the
/// captured layers, and the probabilities of what it drafts, which show a setting that no tensor shows. `pair` then has the one read back.
pub(super) fn verify(
    pair: &mut Pair,
    (trained, read_back): (&dyn Trained, &dyn Trained),
    writing: &Writing,
    prompts: &[Vec<u32>],
) -> Result<()> {
    let rounded = trained.rounded(writing.dtype)?;
    let place = writing.folder.display();
    let same = check_tensors(&rounded.tensors(), &read_back.tensors());
    let complete = same.with_context(|| format!("the drafter in `{place}`"))?;
    if read_back.vocabulary() != trained.vocabulary() {
        bail!("the drafter in `{place}` has another vocabulary than the trained one");
    }
    let (expected, found) = (trained.capture()?, read_back.capture()?);
    if expected != found {
        bail!(
            "the drafter in `{place}`: captured layers: expected {:?}, found {:?}",
            expected.layers,
            found.layers
        );
    }
    // A head that was written out has been rounded, and the target's own has not.
    if !complete {
        return pair.take(read_back);
    }
    pair.take(rounded.as_ref())?;
    let expected = drawn(pair, prompts)?;
    pair.take(read_back)?;
    let found = drawn(pair, prompts)?;
    if same_drafts(&expected, &found) {
        Ok(())
    } else {
        bail!(
            "the drafter in `{place}` drafts other tokens than the trained one with its weights rounded"
        )
    }
}

/// Fails unless every tensor of `expected` is in `found`, bit for bit. Says whether these are all; a head that a layout
/// wants written out may be more.
fn check_tensors(expected: &[NamedTensor], found: &[NamedTensor]) -> Result<bool> {
    let of = |name: &str| found.iter().find(|tensor| tensor.name == name);
    for tensor in expected {
        match of(&tensor.name) {
            None => bail!("tensor `{}` is missing", tensor.name),
            Some(found) if found != tensor => {
                bail!("tensor `{}` is not the one that was trained", tensor.name)
            }
            Some(_) => {}
        }
    }
    let known = |name: &str| name == "lm_head.weight" || expected.iter().any(|t| t.name == name);
    if let Some(other) = found.iter().find(|tensor| !known(&tensor.name)) {
        bail!("tensor `{}` was not trained", other.name);
    }
    Ok(found.len() == expected.len())
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
struct Drawn {
    drafts: Vec<Vec<u32>>,
    distributions: Vec<Distribution>,
}

fn drawn(pair: &Pair, prompts: &[Vec<u32>]) -> Result<Drawn> {
    let mut recorder = Recorder {
        inner: pair.drafter.session(),
        drafts: Vec::new(),
        distributions: Vec::new(),
        is_first: true,
    };
    decode(pair, &mut recorder, prompts, Sampling::at(1.0))?;
    Ok(Drawn {
        drafts: recorder.drafts,
        distributions: recorder.distributions,
    })
}

fn same_drafts(expected: &Drawn, found: &Drawn) -> bool {
    let near = |a: &f32, b: &f32| (a - b).abs() <= SAME * a.max(*b) + f32::MIN_POSITIVE;
    let same = |(a, b): (&Distribution, &Distribution)| {
        let mut pairs = a.probabilities.iter().zip(&b.probabilities);
        a.probabilities.len() == b.probabilities.len() && pairs.all(|(a, b)| near(a, b))
    };
    let mut pairs = expected.distributions.iter().zip(&found.distributions);
    expected.drafts == found.drafts
        && expected.distributions.len() == found.distributions.len()
        && pairs.all(same)
}

/// In f32 the two drafters are the same; rounded weights may change a few drafts, but not most of them.
pub(super) fn compare(trained: &Decoded, exported: &Decoded, dtype: DType) -> Result<()> {
    let same = match dtype {
        DType::F32 => trained == exported,
        _ => exported.total() as f64 >= KEPT_WHEN_ROUNDED * trained.total() as f64,
    };
    if same {
        Ok(())
    } else {
        bail!(
            "the exported drafter drafts worse than the trained one: τ {:.3}, expected {:.3}; try `--set export.dtype=f32`",
            exported.tau(),
            trained.tau()
        )
    }
}

#[cfg(test)]
mod tests;

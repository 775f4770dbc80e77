//! What every family of drafters can do.
use burn::prelude::*;
use serde::{Serialize, de::DeserializeOwned};
use spectrain_data::vocabulary::DraftVocabulary;

use crate::error::Result;
use crate::frozen::Frozen;
use crate::known_text::{DraftStep, KnownText, TakeGuesses, TakeLogits};
use crate::target::{Capture, Features, TargetParts, TargetSpec};
use crate::tree::Tree;
use crate::units::Units;
use crate::weights::Weights;

/// Tokens of a chain of a drafter that makes one after the other, as engines are mostly told.
pub const USUAL_DRAFT: usize = 5;

/// A small model that proposes tokens for a frozen target to verify.
pub trait Drafter: Module + Sized {
    /// The recipe's `[drafter]` table.
    type Config: DeserializeOwned + Serialize + Clone + Send + Sync;
    /// What one sequence carries between proposals.
    type State;

    /// Fails on numbers that make no sense for any target.
    ///
    /// # Errors
    /// There is one, which is named.
    fn check(config: &Self::Config) -> Result<()>;

    /// Creates a drafter for `target` with parameters from `weights`: random, or of a checkpoint. A drafter whose
    /// settings have no `draft_vocab` takes a full `vocabulary`.
    ///
    /// # Errors
    /// The settings make no sense or do not fit the target, or a parameter is missing or mis-shaped.
    fn new(
        config: &Self::Config,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        weights: &mut dyn Weights,
        device: &Device,
    ) -> Result<Self>;

    /// Creates an untrained drafter; `seed` decides what is random about it.
    ///
    /// # Errors
    /// The settings make no sense or do not fit the target.
    fn fresh(
        config: &Self::Config,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        seed: u64,
        device: &Device,
    ) -> Result<Self>;

    /// The hidden states this drafter reads of a target that its settings fit.
    ///
    /// # Errors
    /// They do not fit it.
    fn capture(config: &Self::Config, target: &TargetSpec) -> Result<Capture>;

    /// What the inputs of its matrices are measured in, of those that read embeddings beside hidden states: see [`units`](crate::units).
    /// Names are those of files; a matrix has one unit for each of its inputs.
    fn units(_config: &Self::Config, _target: &TargetParts) -> Vec<Units> {
        Vec::new()
    }

    /// State of a sequence that starts with the token `first` and may grow to `capacity` tokens. No feature comes before
    /// that token, so [`observe`](Self::observe) never brings it.
    fn start(&self, capacity: usize, first: u32) -> Self::State;

    /// Takes in committed tokens. `tokens[i]` is the token *after* the position of `features[i]`: the features of a
    /// prefix `x_0..=x_t` come with `x_1..=x_{t+1}`, whose last is the bonus token, which has no feature yet.
    ///
    /// # Shapes
    /// - features: `[1, tokens.len(), ..]`
    fn observe(&self, state: &mut Self::State, tokens: &[u32], features: &Features);

    /// What it uses and does not train.
    fn frozen(&self) -> &Frozen<Self::Config>;

    /// Its settings, sizes resolved.
    fn config(&self) -> &Self::Config {
        &self.frozen().config
    }

    /// The frozen pieces of the target it drafts for.
    fn target(&self) -> &TargetParts {
        &self.frozen().target
    }

    /// The tokens it can propose.
    fn vocabulary(&self) -> &DraftVocabulary {
        &self.frozen().vocabulary
    }

    /// Logits of what follows the last observed token. The caller has observed something.
    ///
    /// # Shapes
    /// - output: `[1, draft_vocab]`, f32, outside autodiff
    fn root_logits(&self, state: &mut Self::State) -> Tensor<2>;

    /// Logits of what follows each of `nodes`, which are all of one depth and were not asked for since the last
    /// [`rewind`](Self::rewind); their parents were. What is computed for them is kept for their descendants.
    ///
    /// # Shapes
    /// - output: `[nodes.len(), draft_vocab]`, f32, outside autodiff
    fn node_logits(&self, state: &mut Self::State, tree: &Tree, nodes: &[usize]) -> Tensor<2>;

    /// Whether the logits of what follows a node depend on its depth and on no token drafted before it, so that one node stands
    /// for all of its depth. Then [`node_logits`](Self::node_logits) may be asked for one of them only, which need not be the
    /// parent of those asked for next.
    fn depends_on_depth_alone(&self) -> bool {
        false
    }

    /// Says how long the longest path of the next draft may be, which a drafter that makes all of a path in one pass
    /// wants to know before [`root_logits`](Self::root_logits).
    fn plan(&self, _state: &mut Self::State, _depth: usize) {}

    /// How likely the target keeps what follows each of `nodes`, or the last observed token if there are none, as a drafter
    /// guesses that has a head for it. The guess is made before the token is chosen and does not depend on it. Otherwise
    /// the conditions are those of [`node_logits`](Self::node_logits), which comes after it.
    fn confidence(
        &self,
        _state: &mut Self::State,
        _tree: &Tree,
        _nodes: &[usize],
    ) -> Option<Vec<f32>> {
        None
    }

    /// Whether [`confidence`](Self::confidence) knows anything.
    fn has_confidence(&self) -> bool {
        false
    }

    /// Gives `take` the logits of every step that a draft behind a place of `text` has, where the tokens drafted before it
    /// are those of the text: what [`node_logits`](Self::node_logits) gives when all of the text up to the place was
    /// observed. Steps whose token is not known are left out, and so are those that it cannot draft; each of the others
    /// comes once, in any order, until `take` wants no more: then it ends, and makes no others.
    fn along(&self, text: &KnownText, take: &mut TakeLogits) {
        walk(self, text, take);
    }

    /// Gives `take` what [`confidence`](Self::confidence) says of the same steps, where it knows anything.
    fn guesses_along(&self, _text: &KnownText, _take: &mut TakeGuesses) {}

    /// Forgets all nodes; what was observed stays.
    fn rewind(&self, state: &mut Self::State);

    /// The longest path it can draft, such as the number of its heads; `None` without a limit.
    fn max_depth(&self) -> Option<usize> {
        None
    }

    /// Tokens of a chain that nothing else is said of: as many as it can draft, or of a drafter without a limit
    /// [`USUAL_DRAFT`].
    fn draft_length(&self) -> usize {
        self.max_depth().unwrap_or(USUAL_DRAFT)
    }

    /// Passes of the drafter, one after the other, that a draft takes whose longest path is `depth`: as many as its steps,
    /// unless it makes several steps in one.
    fn passes(&self, depth: usize) -> usize {
        depth
    }

    /// Parameters of experts that a token does not go through, for settings that fit the target.
    fn idle_parameters(_config: &Self::Config, _target: &TargetSpec) -> u64 {
        0
    }

    /// Parameters that one of these passes reads: its own, and the target's head where that is used in place of one. The
    /// target's embedding, of which a pass reads a few rows, does not count.
    fn parameters_per_pass(&self) -> u64;
}

/// See [`Drafter::along`]: place by place, as a decoder would draft if it stood there.
pub(crate) fn walk<D: Drafter>(drafter: &D, text: &KnownText, take: &mut TakeLogits) {
    let longest = drafter.max_depth().unwrap_or(usize::MAX);
    let capacity = text.limit.max(text.tokens.len()) + text.depth;
    let mut state = drafter.start(capacity, text.tokens[0]);
    let mut observed = 0;
    for place in text.places(0) {
        let known = text.known(place).min(longest);
        let tokens = &text.tokens[observed + 1..=place];
        drafter.observe(&mut state, tokens, &text.features(observed, place));
        observed = place;
        drafter.plan(&mut state, text.steps(place).min(longest));
        let mut tree = Tree::default();
        let mut logits = vec![drafter.root_logits(&mut state)];
        for &token in &text.tokens[place + 1..place + known] {
            let node = tree.push(token, tree.len().checked_sub(1));
            logits.push(drafter.node_logits(&mut state, &tree, &[node]));
        }
        drafter.rewind(&mut state);
        let steps: Vec<_> = (0..known).map(|step| DraftStep { place, step }).collect();
        if take(&steps, Tensor::cat(logits, 0)).is_break() {
            return;
        }
    }
}

use burn::prelude::*;
use rand::rngs::StdRng;
use serde::{Serialize, de::DeserializeOwned};

use spectrain_data::vocabulary::DraftVocabulary;

use crate::{
    Distribution, DraftShape, Features, Result, Sampling, TargetParts, Weights, draft_tree,
};

/// Hidden states of the target that a drafter reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capture {
    /// Captured layers, ascending: 0-based index of the decoder layer whose output, before any final norm, is kept.
    /// The last hidden state, after the final norm, is always kept.
    pub layers: Vec<usize>,
}

/// Draft nodes that a drafter has run or may be asked to run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// Token of each node, an id of the target's vocabulary; parents before children.
    pub tokens: Vec<u32>,
    /// Parent of each node; `None` for a child of the last observed token.
    pub parents: Vec<Option<usize>>,
}

impl Tree {
    /// Adds a node and returns its index.
    pub fn push(&mut self, token: u32, parent: Option<usize>) -> usize {
        self.tokens.push(token);
        self.parents.push(parent);
        self.tokens.len() - 1
    }

    /// Steps from a child of the last observed token to a node.
    pub fn depth(&self, node: usize) -> usize {
        let parents = std::iter::successors(Some(node), |&node| self.parents[node]);
        parents.count() - 1
    }

    /// The tokens from a child of the last observed token to a node, that one included.
    pub fn path(&self, node: usize) -> Vec<u32> {
        let nodes = std::iter::successors(Some(node), |&node| self.parents[node]);
        let mut path: Vec<u32> = nodes.map(|node| self.tokens[node]).collect();
        path.reverse();
        path
    }

    /// Nodes in the tree.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// Draft tokens as a tree: a chain is a tree in which each node's parent is the one before it.
#[derive(Debug, Clone, Default)]
pub struct Draft {
    /// Token of each node, parents before children.
    pub tokens: Vec<u32>,
    /// Parent of each node; `None` for a child of the last committed token.
    pub parents: Vec<Option<usize>>,
    /// How the nodes were chosen.
    pub proposal: Proposal,
}

/// How the tokens of a draft were chosen, which decides the exact test they must pass.
#[derive(Debug, Clone, Default)]
pub enum Proposal {
    /// As the most likely ones: the proposal puts all its mass on them.
    #[default]
    Deterministic,
    /// Each node was drawn from the distribution at its index, over the target's vocabulary. Where siblings differ by
    /// construction, that of a node has no mass on the siblings before it.
    Sampled(Vec<Distribution>),
    /// Not at all, as the drafter's logits were infinite or no numbers: there are no nodes.
    Broken,
}

impl Draft {
    /// Tokens one after the other.
    pub fn chain(tokens: Vec<u32>, proposal: Proposal) -> Self {
        let parents = (0..tokens.len()).map(|node| node.checked_sub(1)).collect();
        Self {
            tokens,
            parents,
            proposal,
        }
    }

    /// Nodes in the draft.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing was drafted.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The nodes that follow `parent`, or the last committed token, in their order.
    pub fn children(&self, parent: Option<usize>) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(move |&node| self.parents[node] == parent)
    }

    /// What was drafted for the place of each of `tokens` behind those before it, each once, up to where that was not drafted.
    pub fn along(&self, tokens: &[u32]) -> Vec<Vec<u32>> {
        let mut drafted = Vec::new();
        let mut parent = Some(None);
        for token in tokens {
            let Some(at) = parent else { break };
            let mut here: Vec<u32> = Vec::new();
            for node in self.children(at) {
                if !here.contains(&self.tokens[node]) {
                    here.push(self.tokens[node]);
                }
            }
            drafted.push(here);
            let follow = |&node: &usize| self.tokens[node] == *token;
            parent = self.children(at).find(follow).map(Some);
        }
        drafted
    }
}

/// The draft that a decoder asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftRequest {
    /// The shape of the draft.
    pub shape: DraftShape,
    /// The longest path still wanted; a deeper shape is cut.
    pub length: usize,
    /// How tokens are chosen. At temperature 0 they are the most likely ones.
    pub sampling: Sampling,
}

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

    /// Creates a drafter for `target` with parameters from `weights`: random, or of a checkpoint. A drafter without a
    /// head of its own takes a full `vocabulary`.
    ///
    /// # Errors
    /// The settings do not fit the target, or a parameter is missing or mis-shaped.
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
    /// The settings do not fit the target.
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
    fn capture(config: &Self::Config, target: &crate::TargetSpec) -> Result<Capture>;

    /// State of a sequence that starts with the token `first` and may grow to `capacity` tokens. No feature comes before
    /// that token, so [`observe`](Self::observe) never brings it.
    fn start(&self, capacity: usize, first: u32) -> Self::State;

    /// Takes in committed tokens. `tokens[i]` is the token *after* the position of `features[i]`: the features of a
    /// prefix `x_0..=x_t` come with `x_1..=x_{t+1}`, whose last is the bonus token, which has no feature yet.
    ///
    /// # Shapes
    /// - features: `[1, tokens.len(), ..]`
    fn observe(&self, state: &mut Self::State, tokens: &[u32], features: &Features);

    /// The tokens it can propose.
    fn vocabulary(&self) -> &DraftVocabulary;

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

    /// Parameters that one of these passes reads: its own, and the target's head where that is used in place of one. The
    /// target's embedding, of which a pass reads a few rows, does not count.
    fn parameters_per_pass(&self) -> u64 {
        self.num_params() as u64
    }
}

/// A [`Drafter`] at work on one sequence, without its type. What the decoder holds.
pub trait Proposer {
    /// See [`Drafter::start`].
    fn start(&mut self, capacity: usize, first: u32);
    /// See [`Drafter::observe`].
    fn observe(&mut self, tokens: &[u32], features: &Features);
    /// Proposes tokens to follow what was observed.
    fn propose(&mut self, request: &DraftRequest, rng: &mut StdRng) -> Draft;
    /// Rank of each of `tokens`, 0 for the likeliest, when those before it were drafted. Ends with the first that cannot
    /// be proposed, which has none, or at the longest path that can be drafted.
    fn ranks(&mut self, tokens: &[u32]) -> Vec<Option<usize>>;
    /// See [`Drafter::draft_length`].
    fn draft_length(&self) -> usize;
    /// See [`Drafter::passes`]; a path longer than can be drafted counts as the longest that can.
    fn passes(&self, depth: usize) -> usize;
    /// See [`Drafter::parameters_per_pass`].
    fn parameters_per_pass(&self) -> u64;
    /// See [`Drafter::has_confidence`].
    fn has_confidence(&self) -> bool;
}

/// A drafter with the state of one sequence.
pub struct Session<D: Drafter> {
    drafter: D,
    state: D::State,
}

impl<D: Drafter> Session<D> {
    /// Starts an empty sequence.
    pub fn new(drafter: D) -> Self {
        Self {
            state: drafter.start(1, 0),
            drafter,
        }
    }
}

impl<D: Drafter> Proposer for Session<D> {
    fn start(&mut self, capacity: usize, first: u32) {
        self.state = self.drafter.start(capacity, first);
    }

    fn observe(&mut self, tokens: &[u32], features: &Features) {
        self.drafter.observe(&mut self.state, tokens, features);
    }

    fn propose(&mut self, request: &DraftRequest, rng: &mut StdRng) -> Draft {
        draft_tree::draft(&self.drafter, &mut self.state, request, rng)
    }

    fn ranks(&mut self, tokens: &[u32]) -> Vec<Option<usize>> {
        draft_tree::ranks(&self.drafter, &mut self.state, tokens)
    }

    fn draft_length(&self) -> usize {
        self.drafter.draft_length()
    }

    fn passes(&self, depth: usize) -> usize {
        let longest = self.drafter.max_depth().unwrap_or(usize::MAX);
        self.drafter.passes(depth.min(longest))
    }

    fn parameters_per_pass(&self) -> u64 {
        self.drafter.parameters_per_pass()
    }

    fn has_confidence(&self) -> bool {
        self.drafter.has_confidence()
    }
}

//! What a drafter is asked for, and what it proposes.
use crate::draft_shape::DraftShape;
use crate::sampling::{Distribution, Sampling};

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

//! Token recycling (<https://arxiv.org/abs/2408.08696>): each token is followed by what the target held for its likeliest
//! successors when it last read that token, in whatever context.
//!
//! The matrix of successors is empty at the start of every text: what is found for one prompt then depends on no other, as
//! the intervals over prompts assume. The paper keeps the matrix from text to text, and fills it at first with token 0. Its
//! tree was found by hand for another target and has 80 nodes; the one here follows from a rule, see [`tree`].
use std::collections::HashMap;

use burn::prelude::*;
use burn::tensor::DType;
use rand::rngs::StdRng;
use spectrain_data::vocabulary::DraftVocabulary;

use crate::draft::{Draft, DraftRequest, Proposal};
use crate::draft_shape::{DraftShape, StaticTree};
use crate::drafter::USUAL_DRAFT;
use crate::known_text::{KnownText, TakeLogits};
use crate::linear::Linear;
use crate::proposer::Proposer;
use crate::target::Features;
use crate::tree::Tree;

/// Successors that are kept of a token (section 4.1 of the paper).
const SUCCESSORS: usize = 8;
/// Rows of logits of a prompt that are in memory at a time.
const ROWS: usize = 64;
/// A node of the tree is expected to be right at least once in so many passes.
const RAREST: usize = 50;

/// See the module. Its nodes are certain tokens; trees that grow with likelihoods it drafts as chains, as it has none.
#[derive(Debug, Clone)]
pub struct TokenRecycling {
    vocabulary: DraftVocabulary,
    head: Linear,
    /// The likeliest successors of each token that was read, likeliest first.
    matrix: HashMap<u32, Vec<u32>>,
    /// The token whose successors are drafted.
    last: u32,
    /// Whether the prompt was observed; later tokens are read in passes that [`Proposer::judged`] brings.
    begun: bool,
}

impl TokenRecycling {
    /// With the head of the target.
    pub fn new(head: Linear) -> Self {
        Self {
            vocabulary: DraftVocabulary::full(head.weight.dims()[1]),
            head,
            matrix: HashMap::new(),
            last: 0,
            begun: false,
        }
    }

    /// The static tree that this drafter is best asked for.
    pub fn tree() -> StaticTree {
        tree()
    }

    /// Keeps the likeliest successors of `tokens`, one row of `logits` for each; of a token read twice, the later ones.
    fn keep(&mut self, tokens: &[u32], logits: Tensor<2>) {
        let count = SUCCESSORS.min(self.vocabulary.len());
        let (_, best) = logits.topk_with_indices(count, 1);
        let best: Vec<u32> = (best.into_data().iter::<i64>())
            .map(|token| token as u32)
            .collect();
        for (&token, successors) in tokens.iter().zip(best.chunks(count)) {
            self.matrix.insert(token, successors.to_vec());
        }
    }

    fn successors(&self, token: u32) -> &[u32] {
        self.matrix.get(&token).map_or(&[], Vec::as_slice)
    }
}

/// Nodes in the order of their likelihood, which is taken to be halved with each step and to be shared among siblings by
/// rank: `2^-depth / Π rank`, ranks from 1 on, down to one in [`RAREST`].
fn tree() -> StaticTree {
    let mut paths: Vec<Vec<usize>> = Vec::new();
    let mut open: Vec<(Vec<usize>, usize)> = vec![(Vec::new(), 1)];
    while let Some((path, odds)) = open.pop() {
        for rank in 0..SUCCESSORS {
            let odds = odds * 2 * (rank + 1);
            if odds <= RAREST {
                let path = [&path[..], &[rank]].concat();
                open.push((path.clone(), odds));
                paths.push(path);
            }
        }
    }
    match StaticTree::new(paths) {
        Ok(tree) => tree,
        Err(problem) => {
            unreachable!("with each node its parent and siblings are likelier: {problem}")
        }
    }
}

impl Proposer for TokenRecycling {
    fn start(&mut self, _: usize, first: u32) {
        self.matrix.clear();
        (self.last, self.begun) = (first, false);
    }

    fn observe(&mut self, tokens: &[u32], features: &Features) {
        if !std::mem::replace(&mut self.begun, true) {
            // Features belong to the token before each.
            let read: Vec<u32> = std::iter::once(self.last)
                .chain(tokens[..tokens.len() - 1].iter().copied())
                .collect();
            for (chunk, read) in read.chunks(ROWS).enumerate() {
                let states = (features.last.clone()).narrow(1, chunk * ROWS, read.len());
                let logits = self.head.forward(states).cast(DType::F32);
                self.keep(read, logits.squeeze_dim(0));
            }
        }
        if let Some(&last) = tokens.last() {
            self.last = last;
        }
    }

    fn judged(&mut self, tokens: &[u32], logits: &Tensor<2>) {
        self.keep(tokens, logits.clone());
    }

    fn propose(&mut self, request: &DraftRequest, _: &mut StdRng) -> Draft {
        let length = request.length.min(request.shape.length());
        let shape = match &request.shape {
            DraftShape::Static { tree, .. } => tree.clone(),
            _ => StaticTree::chain(length),
        };
        let mut tree = Tree::default();
        // Nodes of the draft with their places in the shape.
        let mut level: Vec<(Option<usize>, Option<usize>)> = vec![(None, None)];
        for _ in 0..length {
            let mut next = Vec::new();
            for (node, place) in level {
                let token = node.map_or(self.last, |node: usize| tree.tokens[node]);
                for (child, &token) in shape.children(place).zip(self.successors(token)) {
                    next.push((Some(tree.push(token, node)), Some(child)));
                }
            }
            level = next;
        }
        Draft {
            tokens: tree.tokens,
            parents: tree.parents,
            proposal: Proposal::Deterministic,
        }
    }

    fn ranks(&mut self, tokens: &[u32]) -> Vec<Option<usize>> {
        let mut ranks = Vec::new();
        let mut before = self.last;
        for &token in tokens {
            let rank = (self.successors(before).iter()).position(|&other| other == token);
            ranks.push(rank);
            if rank.is_none() {
                break;
            }
            before = token;
        }
        ranks
    }

    /// By rank alone, as the matrix holds no logits: 0 for the likeliest, then -1, -2, …
    fn forced(&mut self, tokens: &[u32]) -> Vec<Vec<f32>> {
        let before = std::iter::once(self.last).chain(tokens.iter().copied());
        let row = |token: u32| {
            let mut row = vec![f32::NEG_INFINITY; self.vocabulary.len()];
            for (rank, &successor) in self.successors(token).iter().enumerate() {
                row[successor as usize] = -(rank as f32);
            }
            row
        };
        before.map(row).collect()
    }

    fn along(&self, _: &KnownText, _: &mut TakeLogits) {
        panic!("asked for its drafts along a text, which depend on the drafts before")
    }

    fn follows_text(&self) -> bool {
        false
    }

    fn vocabulary(&self) -> &DraftVocabulary {
        &self.vocabulary
    }

    fn max_depth(&self) -> Option<usize> {
        None
    }

    fn draft_length(&self) -> usize {
        USUAL_DRAFT
    }

    fn passes(&self, depth: usize) -> usize {
        depth.min(1)
    }

    /// None: an engine has the logits from its own pass. The head that a prompt is read with here runs before decoding.
    fn parameters_per_pass(&self) -> u64 {
        0
    }

    fn has_confidence(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use crate::device::test_device;
    use burn::module::{Param, ParamId};
    use rand::SeedableRng as _;

    use super::*;
    use crate::draft_shape::Children;
    use crate::sampling::Sampling;

    const VOCAB: usize = 10;

    /// With a head that gives back the hidden states.
    fn recycling() -> TokenRecycling {
        let weight = Tensor::<2>::eye(VOCAB, &test_device());
        TokenRecycling::new(Linear {
            weight: Param::initialized(ParamId::new(), weight),
            bias: None,
            lora: None,
        })
    }

    /// Rows in which the tokens listed are the likeliest, in that order.
    fn logits(best: &[&[usize]]) -> Tensor<2> {
        let mut rows = vec![0.0_f32; best.len() * VOCAB];
        for (at, best) in best.iter().enumerate() {
            for (rank, token) in best.iter().enumerate() {
                rows[at * VOCAB + token] = 10.0 - rank as f32;
            }
        }
        Tensor::<1>::from_floats(rows.as_slice(), &test_device()).reshape([best.len(), VOCAB])
    }

    fn drafted(drafter: &mut TokenRecycling, shape: DraftShape, length: usize) -> Draft {
        let request = DraftRequest {
            shape,
            length,
            sampling: Sampling::GREEDY,
        };
        drafter.propose(&request, &mut StdRng::seed_from_u64(0))
    }

    #[test]
    fn a_draft_follows_the_successors_that_were_read_last() {
        let mut drafter = recycling();
        drafter.start(16, 1);
        // The prompt 1 2 and the token after it, 3.
        let last = logits(&[&[2, 5], &[3, 1]]).unsqueeze();
        let captured = last.clone();
        drafter.observe(&[2, 3], &Features { captured, last });
        let chain = |length| DraftShape::Chain { length };
        assert!(drafted(&mut drafter, chain(4), 4).is_empty(), "3 is new");

        // A pass read 3 and, rejected, 2: its older successors are replaced, and the rejected token's are kept.
        drafter.judged(&[3, 2], &logits(&[&[1, 2], &[4, 0]]));
        drafter.observe(&[1], &features_of_nothing());
        assert_eq!(drafted(&mut drafter, chain(3), 3).tokens, [2, 4]);
        assert_eq!(drafter.ranks(&[5, 1]), [Some(1), None]);

        let paths = vec![vec![0], vec![1], vec![0, 0], vec![0, 1], vec![1, 0]];
        let tree = StaticTree::new(paths).unwrap();
        let shape = DraftShape::Static {
            tree,
            children: Children::Top,
        };
        let draft = drafted(&mut drafter, shape.clone(), 2);
        assert_eq!(draft.tokens, [2, 5, 4, 0]);
        assert_eq!(draft.parents, [None, None, Some(0), Some(0)]);
        assert_eq!(drafted(&mut drafter, shape, 1).tokens, [2, 5]);

        drafter.start(16, 1);
        assert!(
            drafted(&mut drafter, chain(4), 4).is_empty(),
            "each text begins anew"
        );
    }

    fn features_of_nothing() -> Features {
        let none = Tensor::zeros([1, 1, 0], &test_device());
        Features {
            captured: none.clone(),
            last: none,
        }
    }

    #[test]
    fn the_tree_is_the_likeliest_by_its_rule() {
        let tree = TokenRecycling::tree();
        assert_eq!((tree.len(), tree.depth()), (70, 5));
        assert_eq!(tree.children(None).len(), SUCCESSORS);
        // 4 · 1 · 6 and 4 · 2 · 6 are at most 50, 4 · 3 · 6 is more.
        for (path, is_in) in [([0, 5], true), ([1, 5], true), ([2, 5], false)] {
            assert_eq!(tree.paths().contains(&path.to_vec()), is_in, "{path:?}");
        }
    }
}

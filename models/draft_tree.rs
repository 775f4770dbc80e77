//! Drafts of every shape, from the logits that a drafter gives for nodes.
use burn::prelude::*;
use rand::rngs::StdRng;
use spectrain_data::vocabulary::DraftVocabulary;

use crate::{
    Children, Distribution, Draft, DraftRequest, DraftShape, Drafter, Proposal, Sampling,
    StaticTree, Tree, weights::host_f32,
};

/// Drafts what `request` asks for.
pub(crate) fn draft<D: Drafter>(
    drafter: &D,
    state: &mut D::State,
    request: &DraftRequest,
    rng: &mut StdRng,
) -> Draft {
    let depth = request
        .length
        .min(drafter.max_depth().unwrap_or(usize::MAX));
    let mut run = Run { drafter, state };
    let sampling = &request.sampling;
    let draft = match &request.shape {
        DraftShape::Chain { length } => {
            let tree = StaticTree::chain(depth.min(*length));
            let rule = Rule::of(Children::WithoutReplacement, sampling);
            fill(&mut run, &tree, depth, rule, rng)
        }
        DraftShape::Static { tree, children } => {
            fill(&mut run, tree, depth, Rule::of(*children, sampling), rng)
        }
    };
    drafter.rewind(state);
    draft
}

/// Logits over the draft vocabulary of each draft step when the drafts are `tokens`: one more row than tokens. What
/// was observed is left as it is.
pub fn forced<D: Drafter>(drafter: &D, state: &mut D::State, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut tree = Tree::default();
    let mut logits = vec![host_f32(drafter.root_logits(state))];
    for &token in tokens {
        let node = tree.push(token, tree.len().checked_sub(1));
        logits.push(host_f32(drafter.node_logits(state, &tree, &[node])));
    }
    drafter.rewind(state);
    logits
}

/// A drafter at work on one draft.
struct Run<'a, D: Drafter> {
    drafter: &'a D,
    state: &'a mut D::State,
}

impl<D: Drafter> Run<'_, D> {
    /// Logits of what follows each node, or the root if there is none: one row for each, over the draft vocabulary.
    fn logits(&mut self, tree: &Tree, nodes: &[usize]) -> Vec<Vec<f32>> {
        let logits: Tensor<2> = match nodes.is_empty() {
            true => self.drafter.root_logits(self.state),
            false => self.drafter.node_logits(self.state, tree, nodes),
        };
        let width = self.drafter.vocabulary().len();
        host_f32(logits)
            .chunks(width)
            .map(<[f32]>::to_vec)
            .collect()
    }
}

/// How the children of one node are chosen.
#[derive(Clone, Copy)]
enum Rule<'a> {
    Top,
    WithoutReplacement(&'a Sampling),
    WithReplacement(&'a Sampling),
}

impl<'a> Rule<'a> {
    fn of(children: Children, sampling: &'a Sampling) -> Self {
        match children {
            _ if sampling.is_greedy() => Self::Top,
            Children::Top => Self::Top,
            Children::WithoutReplacement => Self::WithoutReplacement(sampling),
            Children::WithReplacement => Self::WithReplacement(sampling),
        }
    }

    /// At most `count` tokens of the target's vocabulary, and what each was drawn from.
    fn choose(
        self,
        logits: &[f32],
        count: usize,
        vocabulary: &DraftVocabulary,
        rng: &mut StdRng,
    ) -> Vec<(u32, Option<Distribution>)> {
        let of_target = |token: usize| vocabulary.to_target(token as u32);
        match self {
            Self::Top => {
                let best = largest(logits, count).into_iter();
                best.map(|token| (of_target(token), None)).collect()
            }
            Self::WithReplacement(sampling) => {
                let law = sampling.distribution(&scatter(logits, vocabulary));
                let draw = |_| (law.sample(rng), Some(law.clone()));
                (0..count).map(draw).collect()
            }
            Self::WithoutReplacement(sampling) => {
                let mut law = sampling.distribution(&scatter(logits, vocabulary));
                let mut drawn = Vec::with_capacity(count);
                while drawn.len() < count {
                    let token = law.sample(rng);
                    let left = without(&law, token);
                    drawn.push((token, Some(law)));
                    match left {
                        Some(left) => law = left,
                        None => break,
                    }
                }
                drawn
            }
        }
    }
}

/// The distribution of another token than `token`; `None` if there is no other.
fn without(law: &Distribution, token: u32) -> Option<Distribution> {
    let mut probabilities = law.probabilities.clone();
    probabilities[token as usize] = 0.0;
    let total: f64 = probabilities.iter().map(|&p| p as f64).sum();
    if total <= 0.0 {
        return None;
    }
    for p in &mut probabilities {
        *p = (*p as f64 / total) as f32;
    }
    Some(Distribution { probabilities })
}

/// Logits over the target's vocabulary; tokens that cannot be proposed are at minus infinity.
fn scatter(logits: &[f32], vocabulary: &DraftVocabulary) -> Vec<f32> {
    let mut full = vec![f32::NEG_INFINITY; vocabulary.target_len()];
    for (token, &logit) in logits.iter().enumerate() {
        full[vocabulary.to_target(token as u32) as usize] = logit;
    }
    full
}

/// Indices of the `count` largest values in descending order, of equals the smaller first. Minus infinity marks what
/// cannot be chosen.
fn largest(values: &[f32], count: usize) -> Vec<usize> {
    let before = |a: &usize, b: &usize| values[*b].total_cmp(&values[*a]).then(a.cmp(b));
    let mut indices: Vec<usize> = (0..values.len())
        .filter(|&index| values[index] > f32::NEG_INFINITY)
        .collect();
    if count < indices.len() && count > 0 {
        indices.select_nth_unstable_by(count - 1, before);
    }
    indices.truncate(count);
    indices.sort_by(before);
    indices
}

/// A draft of the shape of `tree`, down to `depth`. Where a node has fewer candidates than the tree has children, there
/// are fewer, and no descendants of the missing ones.
fn fill<D: Drafter>(
    run: &mut Run<D>,
    tree: &StaticTree,
    depth: usize,
    rule: Rule,
    rng: &mut StdRng,
) -> Draft {
    let mut drafted = Tree::default();
    let mut laws = Vec::new();
    // Nodes that get children, in the draft and in the shape.
    let mut inner: Vec<usize> = Vec::new();
    let mut shape: Vec<Option<usize>> = vec![None];
    for _ in 0..depth.min(tree.depth()) {
        let logits = run.logits(&drafted, &inner);
        let (mut next, mut next_shape) = (Vec::new(), Vec::new());
        for (at, (row, &place)) in logits.iter().zip(&shape).enumerate() {
            let children = tree.children(place);
            let chosen = rule.choose(row, children.len(), run.drafter.vocabulary(), rng);
            for (child, (token, law)) in children.zip(chosen) {
                let node = drafted.push(token, inner.get(at).copied());
                laws.extend(law);
                if !tree.children(Some(child)).is_empty() {
                    next.push(node);
                    next_shape.push(Some(child));
                }
            }
        }
        if next.is_empty() {
            break;
        }
        (inner, shape) = (next, next_shape);
    }
    Draft {
        tokens: drafted.tokens,
        parents: drafted.parents,
        proposal: match rule {
            Rule::Top => Proposal::Deterministic,
            _ => Proposal::Sampled(laws),
        },
    }
}

//! Drafts of every shape, from the logits that a drafter gives for nodes.
use std::cmp::Ordering;
use std::collections::BinaryHeap;

use burn::prelude::*;
use rand::rngs::StdRng;
use rayon::prelude::*;
use spectrain_data::vocabulary::DraftVocabulary;

use crate::draft::{Draft, DraftRequest, Proposal};
use crate::draft_shape::{Children, DraftShape, StaticTree};
use crate::drafter::Drafter;
use crate::reductions::{candidates, is_sound, log_likelihoods, possible};
use crate::sampling::{Distribution, Sampling, sample};
use crate::stop::{Stop, StopBy, acceptance_bound};
use crate::tree::Tree;
use crate::weights::host_f32;

#[cfg(test)]
mod tests;

/// What a draft is built from.
pub trait DraftSource {
    /// Logits of what follows each of `nodes`, or the root if there are none. The conditions are those of
    /// [`Drafter::node_logits`], and so is the shape. Minus infinity marks a token that is no candidate.
    fn logits(&mut self, tree: &Tree, nodes: &[usize]) -> Tensor<2>;
    /// See [`Drafter::depends_on_depth_alone`].
    fn depends_on_depth_alone(&self) -> bool {
        false
    }
    /// See [`Drafter::confidence`].
    fn confidence(&mut self, _tree: &Tree, _nodes: &[usize]) -> Option<Vec<f32>> {
        None
    }
    /// Draws an index with probability proportional to its weight.
    fn draw(&mut self, weights: &[f32]) -> u32;
}

/// Drafts what `request` asks for.
pub(crate) fn draft<D: Drafter>(
    drafter: &D,
    state: &mut D::State,
    request: &DraftRequest,
    rng: &mut StdRng,
) -> Draft {
    let longest = drafter.max_depth().unwrap_or(usize::MAX);
    let request = DraftRequest {
        length: request.length.min(longest),
        ..request.clone()
    };
    drafter.plan(state, request.length.min(request.shape.length()));
    let mut run = Run {
        drafter,
        state,
        rng,
    };
    let draft = build(&request, drafter.vocabulary(), &mut run);
    drafter.rewind(state);
    draft
}

/// Logits over the draft vocabulary of each draft step when the drafts are `tokens`: one more row than tokens. What
/// was observed is left as it is.
pub fn forced<D: Drafter>(drafter: &D, state: &mut D::State, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut tree = Tree::default();
    drafter.plan(state, 1 + tokens.len());
    let mut logits = vec![host_f32(drafter.root_logits(state))];
    for &token in tokens {
        let node = tree.push(token, tree.len().checked_sub(1));
        logits.push(host_f32(drafter.node_logits(state, &tree, &[node])));
    }
    drafter.rewind(state);
    logits
}

/// See [`Proposer::ranks`](crate::Proposer::ranks).
pub(crate) fn ranks<D: Drafter>(
    drafter: &D,
    state: &mut D::State,
    tokens: &[u32],
) -> Vec<Option<usize>> {
    let longest = drafter.max_depth().unwrap_or(usize::MAX);
    let mut tree = Tree::default();
    let mut ranks = Vec::new();
    drafter.plan(state, tokens.len().min(longest));
    for &token in tokens.iter().take(longest) {
        let logits = match tree.len() {
            0 => drafter.root_logits(state),
            nodes => drafter.node_logits(state, &tree, &[nodes - 1]),
        };
        let Some(draft) = drafter.vocabulary().to_draft(token) else {
            ranks.push(None);
            break;
        };
        let logits = host_f32(logits);
        if logits[draft as usize] == f32::NEG_INFINITY {
            ranks.push(None);
            break;
        }
        ranks.push(Some(rank(&logits, draft as usize)));
        tree.push(token, tree.len().checked_sub(1));
    }
    drafter.rewind(state);
    ranks
}

/// How many tokens are likelier than `token`, of equals those of smaller ids.
fn rank(logits: &[f32], token: usize) -> usize {
    let before = |(other, logit): (usize, &f32)| {
        *logit > logits[token] || (*logit == logits[token] && other < token)
    };
    logits
        .iter()
        .enumerate()
        .filter(|&pair| before(pair))
        .count()
}

/// A drafter at work on one draft.
struct Run<'a, D: Drafter> {
    drafter: &'a D,
    state: &'a mut D::State,
    rng: &'a mut StdRng,
}

impl<D: Drafter> DraftSource for Run<'_, D> {
    fn logits(&mut self, tree: &Tree, nodes: &[usize]) -> Tensor<2> {
        if nodes.is_empty() {
            self.drafter.root_logits(self.state)
        } else {
            self.drafter.node_logits(self.state, tree, nodes)
        }
    }

    fn depends_on_depth_alone(&self) -> bool {
        self.drafter.depends_on_depth_alone()
    }

    fn confidence(&mut self, tree: &Tree, nodes: &[usize]) -> Option<Vec<f32>> {
        self.drafter.confidence(self.state, tree, nodes)
    }

    fn draw(&mut self, weights: &[f32]) -> u32 {
        sample(weights, self.rng)
    }
}

/// Builds the draft that `request` asks for, of tokens of `vocabulary`.
pub fn build(
    request: &DraftRequest,
    vocabulary: &DraftVocabulary,
    source: &mut dyn DraftSource,
) -> Draft {
    let builder = Builder {
        vocabulary,
        source,
        tree: Tree::default(),
    };
    let length = request.length;
    match &request.shape {
        DraftShape::Chain { length: chain } => {
            let tree = StaticTree::chain(length.min(*chain));
            let rule = Rule::of(Children::WithoutReplacement, &request.sampling);
            builder.fill(&tree, length, rule, None)
        }
        DraftShape::Confident {
            length: chain,
            stop,
        } => {
            let tree = StaticTree::chain(length.min(*chain));
            let rule = Rule::of(Children::WithoutReplacement, &request.sampling);
            builder.fill(&tree, length, rule, Some(*stop))
        }
        DraftShape::Static { tree, children } => {
            builder.fill(tree, length, Rule::of(*children, &request.sampling), None)
        }
        &DraftShape::Dynamic {
            depth,
            top_k,
            nodes,
        } => builder.expand(length.min(depth), top_k, nodes),
        &DraftShape::BestFirst { depth, nodes } => builder.best_first(length.min(depth), nodes),
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

    /// What the drafter holds of each token: what a token is drawn from, else its distribution at temperature 1.
    fn distribution(self, row: &[f32]) -> Distribution {
        match self {
            Self::Top => Sampling::at(1.0).distribution(row),
            Self::WithoutReplacement(sampling) | Self::WithReplacement(sampling) => {
                sampling.distribution(row)
            }
        }
    }

    /// What children are chosen from where these are the logits over `vocabulary`: of the likeliest tokens `count`.
    fn choice(self, row: &[f32], vocabulary: &DraftVocabulary, count: usize) -> Choice {
        match self {
            Self::Top => Choice::Likeliest(possible(row, count)),
            Self::WithoutReplacement(sampling) => {
                Choice::WithoutReplacement(sampling.distribution(&scatter(row, vocabulary)))
            }
            Self::WithReplacement(sampling) => {
                Choice::WithReplacement(sampling.distribution(&scatter(row, vocabulary)))
            }
        }
    }

    /// Whether the drafter is too unsure of a step with these logits.
    fn is_ended(self, stop: Stop, row: &[f32]) -> bool {
        stop.ends(acceptance_bound(self.distribution(row).entropy()))
    }
}

/// What the children of one node are chosen from.
#[derive(Clone)]
enum Choice {
    /// The likeliest tokens of the draft vocabulary, the likeliest first.
    Likeliest(Vec<u32>),
    /// See [`Rule`].
    WithoutReplacement(Distribution),
    /// See [`Rule`].
    WithReplacement(Distribution),
}

/// Why nothing follows some nodes.
enum End {
    /// Logits are no numbers, or none can be chosen.
    Broken,
    /// The drafter is too unsure.
    Unsure,
}

struct Builder<'a> {
    vocabulary: &'a DraftVocabulary,
    source: &'a mut dyn DraftSource,
    tree: Tree,
}

impl Builder<'_> {
    /// A draft of the shape of `shape`, down to `depth`. Where a node has fewer candidates than the shape has children,
    /// there are fewer, and no descendants of the missing ones. A chain ends before a step that `stop` leaves out.
    fn fill(mut self, shape: &StaticTree, depth: usize, rule: Rule, stop: Option<Stop>) -> Draft {
        let mut distributions = Vec::new();
        let mut score = 1.0;
        // Nodes that get children, and their places in the shape.
        let mut inner: Vec<usize> = Vec::new();
        let mut places: Vec<Option<usize>> = vec![None];
        for _ in 0..depth.min(shape.depth()) {
            // Head and entropy are asked before the token is drawn, so that it decides nothing about itself.
            if self.ends_by_head(stop, &inner, &mut score) {
                break;
            }
            let counts = places.iter().map(|&place| shape.children(place).len());
            let most = counts.max().unwrap_or_default();
            let choices = match self.choices(&inner, rule, stop, most) {
                Ok(choices) => choices,
                Err(End::Broken) => return broken(),
                Err(End::Unsure) => break,
            };
            let (mut next, mut next_places) = (Vec::new(), Vec::new());
            for (at, (choice, &place)) in choices.into_iter().zip(&places).enumerate() {
                let children = shape.children(place);
                for (child, (token, distribution)) in
                    children.clone().zip(self.choose(choice, children.len()))
                {
                    let node = self.tree.push(token, inner.get(at).copied());
                    distributions.extend(distribution);
                    if !shape.children(Some(child)).is_empty() {
                        next.push(node);
                        next_places.push(Some(child));
                    }
                }
            }
            if next.is_empty() {
                break;
            }
            (inner, places) = (next, next_places);
        }
        Draft {
            tokens: self.tree.tokens,
            parents: self.tree.parents,
            proposal: match rule {
                Rule::Top => Proposal::Deterministic,
                _ => Proposal::Sampled(distributions),
            },
        }
    }

    /// Whether the head has too little hope for what follows `nodes`. `score` is that of the step before, and becomes that of
    /// this one.
    fn ends_by_head(&mut self, stop: Option<Stop>, nodes: &[usize], score: &mut f64) -> bool {
        let by_head = |stop: &Stop| stop.by == StopBy::Head && stop.threshold > 0.0;
        let Some(stop) = stop.filter(by_head) else {
            return false;
        };
        let guesses = self.source.confidence(&self.tree, nodes);
        *score = (stop.by).score(*score, guesses.map_or(1.0, |guesses| guesses[0] as f64));
        stop.ends(*score)
    }

    /// The logits of what follows `nodes`: of one for all, where it stands for all.
    fn logits(&mut self, nodes: &[usize]) -> Tensor<2> {
        let asked = match self.source.depends_on_depth_alone() {
            true => nodes.len().min(1),
            false => nodes.len(),
        };
        self.source.logits(&self.tree, &nodes[..asked])
    }

    /// What the children of each of `nodes`, or of the root if there are none, are chosen from: of the likeliest tokens `count`.
    fn choices(
        &mut self,
        nodes: &[usize],
        rule: Rule,
        stop: Option<Stop>,
        count: usize,
    ) -> Result<Vec<Choice>, End> {
        let logits = self.logits(nodes);
        let by_entropy = |stop: &Stop| stop.by == StopBy::Entropy && stop.threshold > 0.0;
        let stop = stop.filter(by_entropy);
        let choices: Vec<Choice> = if let (Rule::Top, None) = (rule, stop) {
            let likeliest = candidates(logits, count).ok_or(End::Broken)?.into_iter();
            likeliest.map(Choice::Likeliest).collect()
        } else {
            let [_, width] = logits.dims();
            let values = host_f32(logits);
            if !values.chunks(width).all(is_sound) {
                return Err(End::Broken);
            }
            if stop.is_some_and(|stop| rule.is_ended(stop, &values[..width])) {
                return Err(End::Unsure);
            }
            let vocabulary = self.vocabulary;
            let choice = |row: &[f32]| rule.choice(row, vocabulary, count);
            values.par_chunks(width).map(choice).collect()
        };
        Ok(for_each(nodes, choices))
    }

    /// At most `count` tokens of the target's vocabulary, and what each was drawn from.
    fn choose(&mut self, choice: Choice, count: usize) -> Vec<(u32, Option<Distribution>)> {
        match choice {
            Choice::Likeliest(tokens) => {
                let best = tokens.into_iter().take(count);
                best.map(|token| (self.vocabulary.to_target(token), None))
                    .collect()
            }
            Choice::WithReplacement(distribution) => {
                let mut draw = || {
                    (
                        self.source.draw(&distribution.probabilities),
                        Some(distribution.clone()),
                    )
                };
                (0..count).map(|_| draw()).collect()
            }
            Choice::WithoutReplacement(distribution) => {
                let mut distribution = Some(distribution);
                let mut drawn = Vec::with_capacity(count);
                while let (true, Some(from)) = (drawn.len() < count, distribution.take()) {
                    let token = self.source.draw(&from.probabilities);
                    if drawn.len() + 1 < count {
                        distribution = without(&from, token);
                    }
                    drawn.push((token, Some(from)));
                }
                drawn
            }
        }
    }

    /// The `nodes` likeliest paths of at most `depth` tokens.
    fn best_first(mut self, depth: usize, nodes: usize) -> Draft {
        let mut open = BinaryHeap::new();
        let mut found = 0;
        // What follows a path of each length, where it follows all of them.
        let mut known = Vec::new();
        // The node to continue next, with the logarithm of its likelihood and the length of its path.
        let mut next = Some((None, 0.0, 0));
        while self.tree.len() < nodes {
            if let Some((node, so_far, length)) = next.take().filter(|(.., length)| *length < depth)
            {
                // More children than are still wanted are never chosen.
                let wanted = nodes - self.tree.len();
                let Some(likeliest) = self.behind(node, length, wanted, &mut known) else {
                    return broken();
                };
                for (token, value) in likeliest.into_iter().take(wanted) {
                    open.push(Open {
                        value: so_far + value,
                        found,
                        token: self.vocabulary.to_target(token),
                        parent: node,
                        depth: length + 1,
                    });
                    found += 1;
                }
            }
            let Some(best) = open.pop() else {
                break;
            };
            let node = self.tree.push(best.token, best.parent);
            next = Some((Some(node), best.value, best.depth));
        }
        Draft {
            tokens: self.tree.tokens,
            parents: self.tree.parents,
            proposal: Proposal::Deterministic,
        }
    }

    /// The `wanted` likeliest tokens, or more, behind a path of `length` tokens to `node`, with the logarithms of their
    /// likelihoods. `known` are those behind the paths of each length, where they are the same. It holds enough of them: before
    /// a path is continued one was that is a token shorter, and later ever fewer are wanted.
    fn behind(
        &mut self,
        node: Option<usize>,
        length: usize,
        wanted: usize,
        known: &mut Vec<Vec<(u32, f64)>>,
    ) -> Option<Vec<(u32, f64)>> {
        if let Some(same) = known.get(length) {
            return Some(same.clone());
        }
        let likeliest = log_likelihoods(self.logits(node.as_slice()), wanted)?.concat();
        if self.source.depends_on_depth_alone() {
            known.push(likeliest.clone());
        }
        Some(likeliest)
    }

    /// The tree of EAGLE-2.
    fn expand(mut self, depth: usize, top_k: usize, nodes: usize) -> Draft {
        // Logarithm of each path's likelihood. A child's is never the greater, so no node is chosen without its parent:
        // of equals the one found first is.
        let mut values: Vec<f64> = Vec::new();
        let mut frontier: Vec<usize> = Vec::new();
        for step in 0..depth {
            if step > 0 && frontier.is_empty() {
                break;
            }
            let Some(rows) = log_likelihoods(self.logits(&frontier), top_k) else {
                return broken();
            };
            let found = self.tree.len();
            for (at, row) in for_each(&frontier, rows).into_iter().enumerate() {
                let parent = frontier.get(at).copied();
                let so_far = parent.map_or(0.0, |parent| values[parent]);
                for (token, value) in row {
                    self.tree.push(self.vocabulary.to_target(token), parent);
                    values.push(so_far + value);
                }
            }
            frontier = likeliest(&values, found, top_k);
        }
        let mut chosen = likeliest(&values, 0, nodes);
        chosen.sort_unstable();
        // Chosen nodes are in the order in which they were found, parents first.
        let place = |node: usize| chosen.binary_search(&node).ok();
        let parents = chosen
            .iter()
            .map(|&node| self.tree.parents[node].and_then(place))
            .collect();
        Draft {
            tokens: chosen.iter().map(|&node| self.tree.tokens[node]).collect(),
            parents,
            proposal: Proposal::Deterministic,
        }
    }
}

/// What there is of each of `nodes`, or of the root if there are none, where `rows` has it for each or once for all.
fn for_each<T: Clone>(nodes: &[usize], mut rows: Vec<T>) -> Vec<T> {
    if let ([one], 2..) = (&rows[..], nodes.len()) {
        let others = vec![one.clone(); nodes.len() - 1];
        rows.extend(others);
    }
    rows
}

/// Logits over the target's vocabulary; tokens that cannot be proposed are at minus infinity.
fn scatter(row: &[f32], vocabulary: &DraftVocabulary) -> Vec<f32> {
    let mut full = vec![f32::NEG_INFINITY; vocabulary.target_len()];
    for (token, &logit) in row.iter().enumerate() {
        full[vocabulary.to_target(token as u32) as usize] = logit;
    }
    full
}

fn broken() -> Draft {
    Draft {
        proposal: Proposal::Broken,
        ..Draft::default()
    }
}

/// A path that may be continued.
#[derive(PartialEq)]
struct Open {
    /// Logarithm of its likelihood.
    value: f64,
    /// How many were found before it.
    found: usize,
    token: u32,
    parent: Option<usize>,
    depth: usize,
}

impl Eq for Open {}

impl Ord for Open {
    /// The likelier one is the greater, of equals the one found first.
    fn cmp(&self, other: &Self) -> Ordering {
        let by_value = self.value.total_cmp(&other.value);
        by_value.then(other.found.cmp(&self.found))
    }
}

impl PartialOrd for Open {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Indices from `start` on of the `count` largest values, largest first, of equals the smaller index first.
fn likeliest(values: &[f64], start: usize, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (start..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    order.truncate(count);
    order
}

/// The distribution of another token than `token`; `None` if there is no other.
fn without(distribution: &Distribution, token: u32) -> Option<Distribution> {
    let mut probabilities = distribution.probabilities.clone();
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

//! The best static tree for a drafter: how often its first, second, … guess is right at each step, measured on the
//! target's own text, and the tree of a given size in which most of the target's tokens would be found.
//!
//! As Sequoia (<https://arxiv.org/abs/2402.12374>) and Medusa build theirs, a path is taken to be right with the product
//! of the rates of its steps, and the tree is grown by the likeliest path there is.
use std::cmp::Ordering;
use std::collections::BinaryHeap;

use rand::{SeedableRng, rngs::StdRng};
use spectrain_models::{Caches, LogitRows, Pass, Proposer, StaticTree, chain};

use crate::draft::Calibration;
use crate::error::Result;
use crate::speculate::{DecodeSettings, Decoder};

/// How often each guess of a drafter was right.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RankTable {
    /// `right[d][r]`: how often the token of step `d` was the guess of rank `r`.
    right: Vec<Vec<u64>>,
    /// `tested[d]`: how often step `d` was reached, by steps of which each was among the guesses.
    tested: Vec<u64>,
    ranks: usize,
}

impl RankTable {
    /// An empty table of `ranks` guesses at each of `depth` steps.
    pub fn new(depth: usize, ranks: usize) -> Self {
        Self {
            right: vec![vec![0; ranks]; depth],
            tested: vec![0; depth],
            ranks,
        }
    }

    /// Counts the ranks of the target's tokens along one draft.
    pub fn add(&mut self, ranks: &[Option<usize>]) {
        for (step, rank) in ranks.iter().enumerate().take(self.tested.len()) {
            self.tested[step] += 1;
            match rank {
                Some(rank) if *rank < self.ranks => self.right[step][*rank] += 1,
                _ => break,
            }
        }
    }

    /// How often the guess of rank `rank` was right at a step, of the times that the step was reached.
    pub fn rate(&self, step: usize, rank: usize) -> f64 {
        let right = self.right.get(step).and_then(|ranks| ranks.get(rank));
        match (right, self.tested.get(step)) {
            (Some(&right), Some(&tested)) if tested > 0 => right as f64 / tested as f64,
            _ => 0.0,
        }
    }

    /// The tree of at most `nodes` nodes with the greatest sum of path rates. A path that was never right is left out,
    /// and the first guess never is.
    pub fn best_tree(&self, nodes: usize) -> StaticTree {
        let mut heap = BinaryHeap::from([self.candidate(&[], 1.0, 0)]);
        let mut paths: Vec<Vec<usize>> = Vec::new();
        while let Some(best) = heap.pop() {
            if paths.len() == nodes || best.rate <= 0.0 {
                break;
            }
            let (&rank, parent) = match best.path.split_last() {
                Some(split) => split,
                None => unreachable!("every candidate has a rank"),
            };
            heap.push(self.candidate(parent, best.parent, rank + 1));
            heap.push(self.candidate(&best.path, best.rate, 0));
            paths.push(best.path);
        }
        if paths.is_empty() {
            return StaticTree::chain(1);
        }
        match StaticTree::new(paths) {
            Ok(tree) => tree,
            Err(error) => unreachable!("grown from the root, sibling by sibling: {error}"),
        }
    }

    fn candidate(&self, parent: &[usize], rate: f64, rank: usize) -> Candidate {
        Candidate {
            rate: rate * self.rate(parent.len(), rank),
            parent: rate,
            path: [parent, &[rank]].concat(),
        }
    }
}

/// A node that the tree may get next.
struct Candidate {
    /// Product of the rates of its path, and of its parent's.
    rate: f64,
    parent: f64,
    path: Vec<usize>,
}

impl Ord for Candidate {
    /// By rate; of equals the shorter path, then the one of the smaller ranks, is the greater.
    fn cmp(&self, other: &Self) -> Ordering {
        let rate = self.rate.total_cmp(&other.rate);
        let shorter = other.path.len().cmp(&self.path.len());
        rate.then(shorter).then_with(|| other.path.cmp(&self.path))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}

/// Measures `proposer` on the continuations that the target itself gives the prompts, drawn from the seed beside `settings`: at
/// every token of them at which a decoder might draft. What is said in `settings` of drafts has no effect. `told` hears how far
/// it is.
///
/// # Errors
/// As for [`Decoder::generate`].
pub fn measure(
    decoder: &Decoder,
    proposer: &mut dyn Proposer,
    prompts: &[Vec<u32>],
    (settings, seed): (&DecodeSettings, u64),
    calibration: &Calibration,
    told: &mut dyn FnMut(&str),
) -> Result<RankTable> {
    let mut table = RankTable::new(calibration.depth, calibration.ranks);
    let mut rng = StdRng::seed_from_u64(seed);
    for (number, prompt) in (1..).zip(prompts) {
        let at = format!("calibrating a tree: prompt {number} of {}", prompts.len());
        told(&at);
        let plain = decoder.plain(prompt, settings, &mut rng)?;
        let text = [&prompt[..], &plain.tokens].concat();
        // The last token has no feature yet where it is drafted after.
        let read = &text[..text.len() - 1];
        let pass = Pass {
            tokens: read,
            parents: &chain(read.len()),
            logits: LogitRows::Last,
        };
        let mut caches = Caches::new(decoder.target.spec().layers, read.len());
        let features = decoder
            .target
            .decode(pass, &mut caches, decoder.capture)
            .features;
        proposer.start(text.len() + calibration.depth, text[0]);
        let mut observed = 0;
        // `last` is the token that a decoder would draft after.
        for last in prompt.len()..read.len() {
            decoder.check_interrupted()?;
            let (done, all) = (last - prompt.len(), read.len() - prompt.len());
            told(&format!("{at}, token {done} of {all}"));
            let positions: Vec<usize> = (observed..last).collect();
            proposer.observe(&text[observed + 1..=last], &features.select(&positions));
            observed = last;
            let end = text.len().min(last + 1 + calibration.depth);
            table.add(&proposer.ranks(&text[last + 1..end]));
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rates: &[&[u64]], tested: u64) -> RankTable {
        RankTable {
            right: rates.iter().map(|ranks| ranks.to_vec()).collect(),
            tested: vec![tested; rates.len()],
            ranks: rates[0].len(),
        }
    }

    #[test]
    fn a_step_counts_while_the_steps_before_it_were_among_the_guesses() {
        let mut table = RankTable::new(3, 2);
        table.add(&[Some(0), Some(1), Some(0)]);
        table.add(&[Some(0), Some(5), Some(0)]);
        table.add(&[Some(1), None]);
        table.add(&[Some(0)]);
        assert_eq!(table.tested, [4, 3, 1]);
        assert_eq!((table.rate(0, 0), table.rate(0, 1)), (0.75, 0.25));
        assert_eq!((table.rate(1, 1), table.rate(2, 0)), (1.0 / 3.0, 1.0));
        assert_eq!((table.rate(9, 0), table.rate(0, 9)), (0.0, 0.0));
    }

    /// The best sum of path rates over all trees of `nodes` nodes, by trying each: a tree is its first child's subtree
    /// and what else the parent has.
    fn best_sum(table: &RankTable, depth: usize, rank: usize, rate: f64, nodes: usize) -> f64 {
        if nodes == 0 || depth == table.tested.len() || rank == table.ranks {
            return 0.0;
        }
        let own = rate * table.rate(depth, rank);
        (0..nodes)
            .map(|below| {
                let children = best_sum(table, depth + 1, 0, own, below);
                own + children + best_sum(table, depth, rank + 1, rate, nodes - 1 - below)
            })
            .fold(0.0, f64::max)
    }

    #[test]
    fn the_best_tree_is_the_best_of_all_trees() {
        let table = table(&[&[60, 20, 5], &[50, 25, 12], &[40, 30, 20]], 100);
        for nodes in 1..=12 {
            let tree = table.best_tree(nodes);
            assert_eq!(tree.len(), nodes);
            let rate = |path: &Vec<usize>| {
                let steps = path.iter().enumerate();
                steps
                    .map(|(step, &rank)| table.rate(step, rank))
                    .product::<f64>()
            };
            let sum: f64 = tree.paths().iter().map(rate).sum();
            let best = best_sum(&table, 0, 0, 1.0, nodes);
            assert!((sum - best).abs() < 1e-12, "{nodes}: {sum}, not {best}");
        }
    }

    #[test]
    fn paths_that_were_never_right_are_left_out() {
        let found = table(&[&[9, 1, 0], &[0, 0, 0]], 10).best_tree(20);
        assert_eq!(found.paths(), [vec![0], vec![1]]);
        assert_eq!(RankTable::new(2, 2).best_tree(20).paths(), [vec![0]]);
    }
}

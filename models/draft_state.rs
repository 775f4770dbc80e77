//! Decoding state of a drafter that reads its own outputs where there are no features yet.
use burn::prelude::*;

use crate::cache::KvCache;
use crate::mask::{Mask, draft_mask, draft_positions, tree_mask, tree_positions};
use crate::tree::{Tree, chain};

/// Keys, values and outputs of one sequence: of what was observed, made from true features only, and after it of draft
/// nodes.
#[derive(Debug, Clone)]
pub struct DraftState {
    /// One for each layer, all equally long.
    caches: Vec<KvCache>,
    /// `[1, 1 + drafted, d_model]`: outputs at the last committed position and of the nodes.
    outputs: Option<Tensor<3>>,
    /// Nodes that were run, in the order of their rows.
    drafted: Vec<usize>,
    /// How many positions back a token sees, the own one counted.
    window: Option<usize>,
}

/// Where the tokens of one pass stand.
pub struct DraftPass<'a> {
    /// `[1, tokens]`
    pub positions: Tensor<2, Int>,
    /// See [`attend`](crate::attend::attend).
    pub mask: Option<Mask>,
    /// Take the pass's keys and values, one for each layer.
    pub caches: &'a mut [KvCache],
}

impl DraftState {
    /// An empty sequence, for a drafter of so many layers, that may grow to `capacity` tokens.
    pub fn new(layers: usize, capacity: usize) -> Self {
        Self {
            caches: vec![KvCache::new(capacity); layers],
            outputs: None,
            drafted: Vec::new(),
            window: None,
        }
    }

    /// The same where a token sees at most `window` positions back, the own one counted.
    pub fn within(self, window: Option<usize>) -> Self {
        Self { window, ..self }
    }

    /// Takes in `tokens` committed tokens, whose outputs `run` computes.
    ///
    /// # Shapes
    /// - output of `run`: `[1, tokens, d_model]`
    pub fn observe(
        &mut self,
        tokens: usize,
        device: &Device,
        run: impl FnOnce(DraftPass) -> Tensor<3>,
    ) {
        let (parents, cached) = (chain(tokens), self.cached());
        let outputs = run(DraftPass {
            positions: tree_positions(&parents, cached, device),
            mask: tree_mask(&parents, cached, self.window, device),
            caches: &mut self.caches,
        });
        self.outputs = Some(outputs.narrow(1, tokens - 1, 1));
    }

    /// Takes in draft nodes, whose outputs `run` computes from those of their parents. Returns them.
    ///
    /// # Shapes
    /// - input and output of `run`, output: `[1, nodes.len(), d_model]`
    ///
    /// # Panics
    /// Nothing was observed, or a node's parent was not taken in.
    pub fn draft(
        &mut self,
        tree: &Tree,
        nodes: &[usize],
        run: impl FnOnce(Tensor<3>, DraftPass) -> Tensor<3>,
    ) -> Tensor<3> {
        let parents = self.parent_outputs(tree, nodes);
        let device = parents.device();
        let (committed, window) = (self.committed(), self.window);
        let pass = DraftPass {
            positions: draft_positions(tree, nodes, committed, &device),
            mask: draft_mask(tree, &self.drafted, nodes, committed, window, &device),
            caches: &mut self.caches,
        };
        let outputs = run(parents, pass);
        self.drafted.extend(nodes);
        self.outputs = Some(Tensor::cat(vec![self.outputs(), outputs.clone()], 1));
        outputs
    }

    /// Output at the last committed position, `[1, 1, d_model]`.
    ///
    /// # Panics
    /// Nothing was observed.
    pub fn root(&self) -> Tensor<3> {
        self.outputs().narrow(1, 0, 1)
    }

    /// Forgets all nodes; what was observed stays.
    pub fn rewind(&mut self) {
        let committed = self.committed();
        for cache in &mut self.caches {
            cache.truncate(committed);
        }
        self.drafted.clear();
        self.outputs = self.outputs.take().map(|outputs| outputs.narrow(1, 0, 1));
    }

    /// Positions observed.
    fn committed(&self) -> usize {
        self.cached() - self.drafted.len()
    }

    /// Positions in the caches.
    fn cached(&self) -> usize {
        self.caches.first().map_or(0, KvCache::len)
    }

    /// Outputs so far, that of what was observed first.
    fn outputs(&self) -> Tensor<3> {
        match &self.outputs {
            Some(outputs) => outputs.clone(),
            None => panic!("drafting before anything was observed"),
        }
    }

    /// Output of each node's parent, `[1, nodes.len(), d_model]`.
    fn parent_outputs(&self, tree: &Tree, nodes: &[usize]) -> Tensor<3> {
        let row = |parent: usize| self.drafted.iter().position(|&node| node == parent);
        let rows: Vec<i64> = nodes
            .iter()
            .map(|&node| match tree.parents[node] {
                None => 0,
                Some(parent) => match row(parent) {
                    Some(row) => 1 + row as i64,
                    None => panic!("node {node} was asked for before its parent"),
                },
            })
            .collect();
        let outputs = self.outputs();
        let rows = Tensor::from_ints(rows.as_slice(), &outputs.device());
        outputs.select(1, rows)
    }
}

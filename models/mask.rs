//! Which position sees which.
use burn::prelude::*;

use crate::tree::{Tree, depths};

/// A matrix added to attention scores: 0 where a query may look, minus infinity where it may not.
///
/// # Shapes
/// `[batch or 1, 1, seq, total]`
#[derive(Debug, Clone)]
pub struct Mask {
    entries: Tensor<4>,
    is_back: bool,
}

impl Mask {
    /// A mask that hides every key behind a query's own index, so that attention need not compute it.
    pub fn causal(entries: Tensor<4>) -> Self {
        Self {
            entries,
            is_back: true,
        }
    }

    /// A mask of any form.
    pub fn of(entries: Tensor<4>) -> Self {
        Self {
            entries,
            is_back: false,
        }
    }

    /// `[batch or 1, 1, seq, total]`
    pub fn entries(&self) -> &Tensor<4> {
        &self.entries
    }

    /// The same mask in no graph.
    pub fn without_autodiff(&self) -> Self {
        Self {
            entries: self.entries.clone().without_autodiff(),
            is_back: self.is_back,
        }
    }

    /// Whether every key behind a query's own index is hidden.
    pub(crate) fn is_back(&self) -> bool {
        self.is_back
    }
}

/// The documents and positions of packed rows.
#[derive(Debug, Clone)]
pub struct Layout {
    /// `[batch, seq]`: number of the document each position belongs to; padding is a document of its own.
    pub documents: Tensor<2, Int>,
    /// `[batch, seq]`: position within the document.
    pub positions: Tensor<2, Int>,
}

impl Layout {
    /// Causal within each document, at most `window` positions back, the own one counted.
    ///
    /// # Shapes
    /// - output: `[batch, 1, seq, seq]`
    pub fn mask(&self, window: Option<usize>) -> Mask {
        let [batch, seq] = self.documents.dims();
        let device = self.documents.device();
        let rows = self.documents.clone().reshape([batch, seq, 1]);
        let columns = self.documents.clone().reshape([batch, 1, seq]);
        let other_document = rows
            .expand([batch, seq, seq])
            .not_equal(columns.expand([batch, seq, seq]));
        let index = Tensor::<1, Int>::arange(0..seq as i64, &device);
        let back = index.clone().reshape([1, seq, 1]) - index.reshape([1, 1, seq]); // query - key
        let mut hidden = back.clone().lower_scalar(0);
        if let Some(window) = window {
            hidden = hidden.bool_or(back.greater_equal_scalar(window as i64));
        }
        let hidden = other_document.bool_or(hidden.expand([batch, seq, seq]));
        let entries = Tensor::<3>::zeros([batch, seq, seq], (&device, burn::tensor::DType::F32))
            .mask_fill(hidden, f32::NEG_INFINITY);
        Mask::causal(entries.reshape([batch, 1, seq, seq]))
    }
}

/// The mask of a tree of `parents` after `cached` positions: a node sees the cache, its ancestors and itself, at most
/// `window` positions back. `None` when nothing is hidden.
///
/// # Shapes
/// - output: `[1, 1, nodes, cached + nodes]`
pub fn tree_mask(
    parents: &[Option<usize>],
    cached: usize,
    window: Option<usize>,
    device: &Device,
) -> Option<Mask> {
    let nodes = parents.len();
    let total = cached + nodes;
    let far = |span: usize| window.is_some_and(|window| span >= window);
    if nodes == 1 && !far(cached) {
        return None;
    }
    let depths = depths(parents);
    let mut mask = vec![f32::NEG_INFINITY; nodes * total];
    for node in 0..nodes {
        let row = &mut mask[node * total..(node + 1) * total];
        let position = cached + depths[node];
        for (key, entry) in row[..cached].iter_mut().enumerate() {
            if !far(position - key) {
                *entry = 0.0;
            }
        }
        let mut ancestor = Some(node);
        while let Some(at) = ancestor {
            if !far(depths[node] - depths[at]) {
                row[cached + at] = 0.0;
            }
            ancestor = parents[at];
        }
    }
    let mask = Tensor::<1>::from_floats(mask.as_slice(), device);
    Some(Mask::of(mask.reshape([1, 1, nodes, total])))
}

/// The masks of a pass: one for each window among the layers.
pub(crate) struct Masks {
    masks: Vec<(Option<usize>, Option<Mask>)>,
    of: Vec<usize>,
}

impl Masks {
    pub(crate) fn new(
        windows: &[Option<usize>],
        make: &dyn Fn(Option<usize>) -> Option<Mask>,
    ) -> Self {
        let mut masks: Vec<(Option<usize>, Option<Mask>)> = Vec::new();
        let mut of = Vec::with_capacity(windows.len());
        for &window in windows {
            let known = masks.iter().position(|(known, _)| *known == window);
            of.push(known.unwrap_or_else(|| {
                masks.push((window, make(window)));
                masks.len() - 1
            }));
        }
        Self { masks, of }
    }

    pub(crate) fn of(&self, layer: usize) -> Option<&Mask> {
        self.masks[self.of[layer]].1.as_ref()
    }
}

/// The mask of some nodes of a draft tree that are run after `committed` positions and the nodes `before`: a node sees
/// what is committed, its ancestors, which are all in `before`, and itself, at most `window` positions back. `None` when
/// nothing is hidden.
///
/// # Shapes
/// - output: `[1, 1, nodes, committed + before + nodes]`
pub fn draft_mask(
    tree: &Tree,
    before: &[usize],
    nodes: &[usize],
    committed: usize,
    window: Option<usize>,
    device: &Device,
) -> Option<Mask> {
    let total = committed + before.len() + nodes.len();
    let mut row_of = vec![None; tree.len()];
    for (row, &node) in before.iter().chain(nodes).enumerate() {
        row_of[node] = Some(row);
    }
    let depths = depths(&tree.parents);
    let window = window.unwrap_or(usize::MAX);
    let mut mask = vec![f32::NEG_INFINITY; nodes.len() * total];
    for (&node, row) in nodes.iter().zip(mask.chunks_mut(total)) {
        let position = committed + depths[node];
        row[(position + 1).saturating_sub(window).min(committed)..committed].fill(0.0);
        let mut ancestor = Some(node);
        while let Some(at) = ancestor {
            match row_of[at] {
                Some(_) if depths[node] - depths[at] >= window => {}
                Some(place) => row[committed + place] = 0.0,
                None => panic!("node {node} was asked for before its ancestor {at}"),
            }
            ancestor = tree.parents[at];
        }
    }
    if mask.iter().all(|&entry| entry == 0.0) {
        return None;
    }
    let mask = Tensor::<1>::from_floats(mask.as_slice(), device);
    Some(Mask::of(mask.reshape([1, 1, nodes.len(), total])))
}

/// Position of some nodes of a draft tree after `committed` positions, `[1, nodes]`.
pub fn draft_positions(
    tree: &Tree,
    nodes: &[usize],
    committed: usize,
    device: &Device,
) -> Tensor<2, Int> {
    let depths = depths(&tree.parents);
    let positions: Vec<i64> = nodes
        .iter()
        .map(|&node| (committed + depths[node]) as i64)
        .collect();
    Tensor::<1, Int>::from_ints(positions.as_slice(), device).reshape([1, nodes.len()])
}

/// Tensor of token ids, `[1, tokens]`.
pub fn token_ids(tokens: &[u32], device: &Device) -> Tensor<2, Int> {
    let ids: Vec<i64> = tokens.iter().map(|&token| token as i64).collect();
    Tensor::<1, Int>::from_ints(ids.as_slice(), device).reshape([1, tokens.len()])
}

/// Drops the first `by` tokens of each row and fills the end with zeros. `[batch, seq]`.
pub fn shift_left(tokens: Tensor<2, Int>, by: usize) -> Tensor<2, Int> {
    let [batch, seq] = tokens.dims();
    let by = by.min(seq);
    let fill = Tensor::zeros([batch, by], &tokens.device());
    if by == seq {
        return fill;
    }
    Tensor::cat(vec![tokens.narrow(1, by, seq - by), fill], 1)
}

/// Position of each node of a tree after `cached` positions, `[1, nodes]`.
pub fn tree_positions(parents: &[Option<usize>], cached: usize, device: &Device) -> Tensor<2, Int> {
    let positions: Vec<i64> = depths(parents)
        .into_iter()
        .map(|depth| (cached + depth) as i64)
        .collect();
    Tensor::<1, Int>::from_ints(positions.as_slice(), device).reshape([1, parents.len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::test_device;
    use crate::weights::host_f32;

    const NO: f32 = f32::NEG_INFINITY;

    #[test]
    fn siblings_do_not_see_each_other() {
        let device = test_device();
        // 0 is the last committed token, 1 and 2 its children, 3 a child of 2.
        let parents = [None, Some(0), Some(0), Some(2)];
        let mask = tree_mask(&parents, 1, None, &device).unwrap();
        let expected = [
            0.0, 0.0, NO, NO, NO, //
            0.0, 0.0, 0.0, NO, NO, //
            0.0, 0.0, NO, 0.0, NO, //
            0.0, 0.0, NO, 0.0, 0.0,
        ];
        assert_eq!(host_f32(mask.entries), expected);
    }

    #[test]
    fn a_draft_node_sees_its_ancestors_wherever_their_rows_are() {
        let device = test_device();
        // 0 and 1 are children of the root, 2 a child of 1, 3 of 0, 4 of 2; the rows before are those of 1, 0 and 2.
        let tree = Tree {
            tokens: vec![5; 5],
            parents: vec![None, None, Some(1), Some(0), Some(2)],
        };
        let mask = draft_mask(&tree, &[1, 0, 2], &[4], 2, None, &device).unwrap();
        assert_eq!(host_f32(mask.entries), [0.0, 0.0, 0.0, NO, 0.0, 0.0]);
        let windowed = draft_mask(&tree, &[1, 0, 2], &[4], 2, Some(2), &device).unwrap();
        assert_eq!(host_f32(windowed.entries), [NO, NO, NO, NO, 0.0, 0.0]);
        let mask = draft_mask(&tree, &[1, 0], &[2, 3], 1, None, &device).unwrap();
        let expected = [0.0, 0.0, NO, 0.0, NO, 0.0, NO, 0.0, NO, 0.0];
        assert_eq!(host_f32(mask.entries), expected);
        assert!(draft_mask(&tree, &[1], &[2], 1, None, &device).is_none());
        let positions = draft_positions(&tree, &[2, 3], 7, &device).into_data();
        assert_eq!(positions.iter::<i64>().collect::<Vec<_>>(), [8, 8]);
    }

    #[test]
    fn packed_documents_do_not_see_each_other() {
        let device = test_device();
        let layout = Layout {
            documents: Tensor::from_ints([[1, 1, 2, 0]], &device),
            positions: Tensor::from_ints([[0, 1, 0, 0]], &device),
        };
        let expected = [
            0.0, NO, NO, NO, //
            0.0, 0.0, NO, NO, //
            NO, NO, 0.0, NO, //
            NO, NO, NO, 0.0,
        ];
        assert_eq!(host_f32(layout.mask(None).entries), expected);
        let windowed = host_f32(layout.mask(Some(1)).entries);
        assert_eq!(windowed[4..8], [NO, 0.0, NO, NO]);
    }
}

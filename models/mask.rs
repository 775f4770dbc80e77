//! Which position sees which.
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use burn::prelude::*;
use burn::tensor::DType;
use spectrain_data::packing::RowLayout;

use crate::sight::{Sight, last_of};
use crate::tree::{Tree, depths};

/// A [`Sight`] on a device: as ranges for attention that keeps no weights, as a matrix for any other.
#[derive(Debug, Clone)]
pub struct Mask {
    sight: Arc<Sight>,
    device: Device,
    ranges: Arc<OnceLock<Tensor<4>>>,
    entries: Arc<OnceLock<Tensor<4>>>,
}

impl Mask {
    /// The mask of what queries see.
    pub fn new(sight: Sight, device: &Device) -> Self {
        Self::of(Arc::new(sight), device)
    }

    fn of(sight: Arc<Sight>, device: &Device) -> Self {
        Self {
            sight,
            device: device.clone(),
            ranges: Arc::default(),
            entries: Arc::default(),
        }
    }

    /// The same where something is hidden.
    pub(crate) fn hiding(sight: Sight, device: &Device) -> Option<Self> {
        (!sight.hides_nothing()).then(|| Self::new(sight, device))
    }

    /// The mask of [queries that see places of a cache](Sight::of_cache), where something is hidden.
    pub(crate) fn of_cache<S: IntoIterator<Item = Range<usize>>>(
        [queries, held]: [usize; 2],
        sees: impl IntoIterator<Item = S>,
        device: &Device,
    ) -> Option<Self> {
        Self::hiding(Sight::of_cache([queries, held], sees, device), device)
    }

    /// What queries see.
    pub fn sight(&self) -> &Sight {
        &self.sight
    }

    /// What is added to attention scores: 0 where a query may look, minus infinity where it may not.
    ///
    /// # Shapes
    /// - output: `[batch or 1, 1, queries, keys]`, f32
    pub fn entries(&self) -> &Tensor<4> {
        let [queries, keys] = self.sight.dims();
        let shape = [self.sight.sequences(), 1, queries, keys];
        let made = || {
            let entries = TensorData::new(self.sight.entries(), shape);
            Tensor::from_data(entries, (&self.device, DType::F32))
        };
        self.entries.get_or_init(made)
    }

    /// Where the ranges of keys begin and end that a query sees, ascending: places are whole numbers that f32 holds.
    ///
    /// # Shapes
    /// - output: `[batch or 1, 1, queries, 2 * ranges]`, f32
    pub(crate) fn ranges(&self) -> &Tensor<4> {
        let [queries, _] = self.sight.dims();
        let shape = [self.sight.sequences(), 1, queries, 2 * self.sight.most()];
        let made = || {
            let places = self.sight.ranges().as_flattened();
            let places: Vec<f32> = places.iter().map(|&place| place as f32).collect();
            Tensor::from_data(TensorData::new(places, shape), (&self.device, DType::F32))
        };
        self.ranges.get_or_init(made)
    }

    /// The same mask in the graph, or in none, that tensors on `device` are in.
    pub fn on(&self, device: &Device) -> Self {
        Self::of(self.sight.clone(), device)
    }
}

/// The documents and positions of packed rows.
#[derive(Debug, Clone)]
pub struct Layout {
    rows: Arc<RowLayout>,
    /// `[batch, seq]`: position within the document.
    pub positions: Tensor<2, Int>,
}

impl Layout {
    /// The layout of such rows on a device.
    pub fn new(rows: RowLayout, device: &Device) -> Self {
        let positions: Vec<i64> = rows.positions.iter().map(|&at| at.into()).collect();
        let positions = Tensor::<1, Int>::from_ints(positions.as_slice(), device);
        Self {
            positions: positions.reshape([rows.rows, rows.row_length]),
            rows: Arc::new(rows),
        }
    }

    /// Rows of one document each.
    pub fn whole([rows, row_length]: [usize; 2], device: &Device) -> Self {
        let all = rows * row_length;
        let layout = RowLayout {
            rows,
            row_length,
            documents: vec![1; all],
            positions: (0..all).map(|at| (at % row_length) as u32).collect(),
        };
        Self::new(layout, device)
    }

    /// The rows on the host. The places of a document stand side by side.
    pub fn rows(&self) -> &RowLayout {
        &self.rows
    }

    /// One of the rows.
    pub fn row(&self, row: usize) -> Self {
        let row_length = self.rows.row_length;
        let own = |of: &[u32]| of[row * row_length..][..row_length].to_vec();
        let layout = RowLayout {
            rows: 1,
            row_length,
            documents: own(&self.rows.documents),
            positions: own(&self.rows.positions),
        };
        Self::new(layout, &self.positions.device())
    }

    /// The same with its positions moved, into a graph or out of one.
    pub fn moved(&self, change: impl FnOnce(Tensor<2, Int>) -> Tensor<2, Int>) -> Self {
        Self {
            rows: self.rows.clone(),
            positions: change(self.positions.clone()),
        }
    }

    /// Which places fill up. `[batch, seq]`
    pub fn padding(&self) -> Tensor<2, Bool> {
        let fills = self.rows.documents.iter().map(|&document| document == 0);
        let shape = [self.rows.rows, self.rows.row_length];
        let fills = TensorData::new(fills.collect::<Vec<bool>>(), shape);
        Tensor::from_data(fills, &self.positions.device())
    }

    /// Causal within each document, at most `window` positions back, the own one counted.
    pub fn mask(&self, window: Option<usize>) -> Mask {
        let length = self.rows.row_length;
        let window = window.unwrap_or(usize::MAX);
        let documents = self.rows.documents.chunks(length.max(1));
        let sees = documents.flat_map(|documents| {
            let mut start = 0;
            documents.iter().enumerate().map(move |(at, document)| {
                if at > 0 && documents[at - 1] != *document {
                    start = at;
                }
                let nearest = (at + 1).saturating_sub(window);
                Some(start.max(nearest)..at + 1)
            })
        });
        let device = self.positions.device();
        Mask::new(Sight::new([length, length], sees), &device)
    }
}

/// The mask of a tree of `parents` after `cached` positions: a node sees the cache, its ancestors and itself, at most
/// `window` positions back. `None` when nothing is hidden. Of `[1, 1, nodes, cached + nodes]` entries, on a GPU of as many more keys
/// as are taken of a cache and hidden.
pub fn tree_mask(
    parents: &[Option<usize>],
    cached: usize,
    window: Option<usize>,
    device: &Device,
) -> Option<Mask> {
    let nodes = parents.len();
    let sees = seen_in_tree(parents, cached, window);
    Mask::of_cache([nodes, cached + nodes], sees, device)
}

/// What each node of such a tree sees.
pub(crate) fn seen_in_tree(
    parents: &[Option<usize>],
    cached: usize,
    window: Option<usize>,
) -> Vec<Vec<Range<usize>>> {
    let window = window.unwrap_or(usize::MAX);
    let before = || std::iter::once(0..cached).collect();
    let mut sees: Vec<Vec<Range<usize>>> = Vec::with_capacity(parents.len());
    for (node, &parent) in parents.iter().enumerate() {
        let mut seen = parent.map_or_else(before, |parent| sees[parent].clone());
        let own = cached + node;
        match seen.last_mut() {
            Some(last) if last.end == own => last.end += 1,
            _ => seen.push(own..own + 1),
        }
        sees.push(last_of(seen, window));
    }
    sees
}

/// What layers have that follows from something in which most of them are alike, such as the mask from the window: made
/// once for each kind of layer.
#[derive(Debug, Clone)]
pub(crate) struct ByLayer<T> {
    made: Vec<T>,
    of: Vec<usize>,
}

impl<T> ByLayer<T> {
    /// What is made of the key of each layer.
    pub(crate) fn new<K: Copy + PartialEq>(keys: &[K], mut make: impl FnMut(K) -> T) -> Self {
        let mut kinds: Vec<K> = Vec::new();
        let mut of = Vec::with_capacity(keys.len());
        for &key in keys {
            let known = kinds.iter().position(|known| *known == key);
            of.push(known.unwrap_or_else(|| {
                kinds.push(key);
                kinds.len() - 1
            }));
        }
        Self {
            made: kinds.into_iter().map(&mut make).collect(),
            of,
        }
    }

    pub(crate) fn of(&self, layer: usize) -> &T {
        &self.made[self.of[layer]]
    }
}

/// The masks of a pass: one for each window among the layers.
pub(crate) type Masks = ByLayer<Option<Mask>>;

/// The mask of some nodes of a draft tree that are run after `committed` positions and the nodes `before`: a node sees
/// what is committed, its ancestors, which are all in `before`, and itself, at most `window` positions back. `None` when
/// nothing is hidden. Of `[1, 1, nodes, committed + before + nodes]` entries, on a GPU of more keys as that of a [tree](tree_mask).
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
    let sees = nodes.iter().map(|&node| {
        let position = committed + depths[node];
        let nearest = (position + 1).saturating_sub(window).min(committed);
        let mut seen: Vec<_> = std::iter::once(nearest..committed).collect();
        let mut ancestor = Some(node);
        while let Some(at) = ancestor {
            match row_of[at] {
                Some(_) if depths[node] - depths[at] >= window => {}
                Some(place) => seen.push(committed + place..committed + place + 1),
                None => panic!("node {node} was asked for before its ancestor {at}"),
            }
            ancestor = tree.parents[at];
        }
        seen
    });
    Mask::of_cache([nodes.len(), total], sees, device)
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
    use crate::sight::AtATime;
    use crate::weights::host_f32;

    const NO: f32 = f32::NEG_INFINITY;

    /// The entries of a mask for the places that a cache holds; others are hidden.
    fn of_held(mask: &Mask, held: usize) -> Vec<f32> {
        let entries = host_f32(mask.entries().clone());
        let mut found = Vec::new();
        for row in entries.chunks(mask.sight().dims()[1]) {
            let (of_held, others) = row.split_at(held);
            assert!(others.iter().all(|&entry| entry == NO), "{others:?}");
            found.extend_from_slice(of_held);
        }
        found
    }

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
        assert_eq!(of_held(&mask, 5), expected);
    }

    #[test]
    fn a_token_alone_sees_all_that_a_cache_holds_and_nothing_behind() {
        let device = test_device();
        let mask = tree_mask(&[None], 299, None, &device);
        assert_eq!(mask.is_none(), AtATime::on(&device).of_cache(300) == 300);
        assert!(mask.is_none_or(|mask| of_held(&mask, 300) == [0.0; 300]));
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
        assert_eq!(of_held(&mask, 6), [0.0, 0.0, 0.0, NO, 0.0, 0.0]);
        let windowed = draft_mask(&tree, &[1, 0, 2], &[4], 2, Some(2), &device).unwrap();
        assert_eq!(of_held(&windowed, 6), [NO, NO, NO, NO, 0.0, 0.0]);
        let mask = draft_mask(&tree, &[1, 0], &[2, 3], 1, None, &device).unwrap();
        let expected = [0.0, 0.0, NO, 0.0, NO, 0.0, NO, 0.0, NO, 0.0];
        assert_eq!(of_held(&mask, 5), expected);
        let whole = draft_mask(&tree, &[1], &[2], 1, None, &device);
        assert_eq!(whole.is_none(), AtATime::on(&device).of_cache(3) == 3);
        assert!(whole.is_none_or(|mask| of_held(&mask, 3) == [0.0; 3]));
        let positions = draft_positions(&tree, &[2, 3], 7, &device).into_data();
        assert_eq!(positions.iter::<i64>().collect::<Vec<_>>(), [8, 8]);
    }

    #[test]
    fn packed_documents_do_not_see_each_other() {
        let device = test_device();
        let rows = RowLayout {
            rows: 1,
            row_length: 4,
            documents: vec![1, 1, 2, 0],
            positions: vec![0, 1, 0, 0],
        };
        let layout = Layout::new(rows, &device);
        let expected = [
            0.0, NO, NO, NO, //
            0.0, 0.0, NO, NO, //
            NO, NO, 0.0, NO, //
            NO, NO, NO, 0.0,
        ];
        assert_eq!(host_f32(layout.mask(None).entries().clone()), expected);
        let windowed = host_f32(layout.mask(Some(1)).entries().clone());
        assert_eq!(windowed[4..8], [NO, 0.0, NO, NO]);
    }
}

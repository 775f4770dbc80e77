//! Attention whose weights are kept nowhere: they are computed for some queries at a time, and once more for the backward pass
//! (recomputation of Dao et al. 2022, <https://arxiv.org/abs/2205.14135>, section 3.1, in blocks of queries over all their keys).
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, AutodiffBackend, Backend, ExtensionType, TensorMetadata as _, backend_extension,
};
use burn::tensor::{DType, Device, Shape, Slice};

use super::operations::Backwards;
use crate::device::is_cpu;

/// Queries of a row whose scores are computed at a time on a GPU.
pub const QUERY_BLOCK: usize = 256;
/// On the CPU, where their scores are to stay in the caches.
pub const QUERY_BLOCK_CPU: usize = 128;

/// Which queries are taken at a time, and what they see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// Queries of a block. As many rows of a mask as divide them are for them.
    pub(crate) queries: usize,
    /// Whether a query sees no key behind its own index, so that none is computed that all of a block are before.
    pub(crate) back: bool,
}

/// Attention in no graph and in one.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff, Fusion: cfg(feature = "fusion"))]
pub(super) trait Gathers: Backend {
    /// Of each query the values summed by `exp(query · key + mask - largest)` and, as one number more, these weights summed, f32;
    /// and `largest`, which no gradient goes through.
    ///
    /// # Shapes
    /// - query: `[batch, heads, rows, d_head]`
    /// - key, value: `[batch, kv_heads, keys, d_head]`
    /// - mask: `[batch or 1, 1, rows / n, keys]`, f32, 0 or minus infinity; each of its rows is for `n` rows of a head
    /// - floor, largest: `[batch, heads, rows, 1]`, f32; `largest` is at least `floor`
    /// - sums: `[batch, heads, rows, d_head + 1]`
    #[fusion(meta = |given, _| (sums_of(&given.query), given.floor.clone()))]
    fn gather(
        #[extension_type] given: Given<Self>,
        blocks: Blocks,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// What [`Gathers::gather`] sums up for such queries.
#[cfg(feature = "fusion")]
fn sums_of(query: &TensorSpec) -> TensorSpec {
    let mut shape = query.shape.clone();
    shape[3] += 1;
    TensorSpec::new(shape, DType::F32)
}

/// What [`Gathers::gather`] reads, of some queries and the keys that they see.
#[derive(Debug, Clone, ExtensionType)]
#[cfg_attr(feature = "fusion", extension_type(fusion))]
pub(super) struct Given<B: Backend> {
    pub(super) query: FloatTensor<B>,
    pub(super) key: FloatTensor<B>,
    pub(super) value: FloatTensor<B>,
    pub(super) mask: FloatTensor<B>,
    pub(super) floor: FloatTensor<B>,
}

/// Places of queries, and how many keys they see.
#[derive(Debug, Clone, Copy)]
struct Block {
    start: usize,
    rows: usize,
    seen: usize,
}

impl Blocks {
    /// As many queries as a device takes at a time.
    pub(crate) fn on(device: &Device, back: bool) -> Self {
        let queries = match is_cpu(device) {
            true => QUERY_BLOCK_CPU,
            false => QUERY_BLOCK,
        };
        Self { queries, back }
    }

    /// The blocks of so many queries, of which a mask has a row for each `sharing`.
    fn of(self, queries: usize, keys: usize, sharing: usize) -> Vec<Block> {
        let size = (self.queries / sharing).max(1) * sharing;
        let starts = (0..queries).step_by(size);
        let block = |start| {
            let rows = size.min(queries - start);
            let seen = if self.back { start + rows } else { keys };
            Block { start, rows, seen }
        };
        starts.map(block).collect()
    }
}

impl<B: Backwards> Given<B> {
    fn blocks(&self, blocks: Blocks) -> Vec<Block> {
        let (queries, keys) = (self.query.shape()[2], self.key.shape()[2]);
        blocks.of(queries, keys, queries / self.mask.shape()[2])
    }

    fn at(&self, block: Block) -> Self {
        let Block { start, rows, seen } = block;
        let queries = |x: &FloatTensor<B>| within::<B>(x.clone(), 2, start, rows);
        let keys = |x: &FloatTensor<B>| within::<B>(x.clone(), 2, 0, seen);
        let sharing = self.query.shape()[2] / self.mask.shape()[2];
        let mask = within::<B>(self.mask.clone(), 2, start / sharing, rows / sharing);
        Self {
            query: queries(&self.query),
            key: keys(&self.key),
            value: keys(&self.value),
            mask: within::<B>(mask, 3, 0, seen),
            floor: queries(&self.floor),
        }
    }

    /// The query heads that share a key head become rows of one product, so keys are never repeated.
    /// `[batch, kv_heads, heads / kv_heads * rows, width]`
    fn grouped(&self, x: FloatTensor<B>) -> FloatTensor<B> {
        let [batch, heads, rows, width] = x.shape().dims();
        let kv_heads = self.key.shape()[1];
        let shape = [batch, kv_heads, heads / kv_heads * rows, width];
        B::float_reshape(x, Shape::from(shape))
    }

    /// The product of what is [`grouped`](Self::grouped) with keys or values, by head again.
    fn by_head(&self, grouped: FloatTensor<B>, other: FloatTensor<B>) -> FloatTensor<B> {
        let product = B::float_matmul(grouped, other);
        let [batch, heads, rows, _] = self.query.shape().dims();
        let width = product.shape()[3];
        B::float_reshape(product, Shape::from([batch, heads, rows, width]))
    }

    /// Unnormalised weights `[batch, heads, rows, keys]`, and the largest scores.
    fn weights(&self) -> (FloatTensor<B>, FloatTensor<B>) {
        let keys = B::float_swap_dims(self.key.clone(), 2, 3);
        let scores = self.by_head(self.grouped(self.query.clone()), keys);
        B::exponentials(scores, self.mask.clone(), self.floor.clone())
    }

    pub(super) fn gather(&self, blocks: Blocks) -> (FloatTensor<B>, FloatTensor<B>) {
        let (mut sums, mut largest) = (Vec::new(), Vec::new());
        for block in self.blocks(blocks) {
            let given = self.at(block);
            let (weights, floor) = given.weights();
            let sum = B::float_sum_dim(wide::<B>(weights.clone()), 3);
            let context = given.by_head(given.grouped(weights), given.value.clone());
            sums.push(B::float_cat(vec![wide::<B>(context), sum], 3));
            largest.push(floor);
        }
        (joined::<B>(sums), joined::<B>(largest))
    }

    /// The gradients with respect to queries, keys and values from that of the sums; `floor` is the largest of the scores here, so
    /// that the weights are those of the forward pass.
    fn gradients(&self, of_sums: FloatTensor<B>, blocks: Blocks) -> [FloatTensor<B>; 3] {
        let [_, _, _, d_head] = self.query.shape().dims();
        let mut by_query = Vec::new();
        let (mut by_key, mut by_value) = (None, None);
        // From the last one on, which sees all keys.
        for block in self.blocks(blocks).into_iter().rev() {
            let given = self.at(block);
            let (weights, _) = given.weights();
            let of_sums = within::<B>(of_sums.clone(), 2, block.start, block.rows);
            let of_sum = within::<B>(of_sums.clone(), 3, d_head, 1);
            let of_context = within::<B>(of_sums, 3, 0, d_head);
            let of_context = given.grouped(of_type::<B>(of_context, self.query.dtype()));
            let part = B::float_matmul(
                transposed::<B>(given.grouped(weights.clone())),
                of_context.clone(),
            );
            by_value = Some(added::<B>(by_value, part));
            let of_weights = given.by_head(of_context, transposed::<B>(given.value.clone()));
            let of_weights = B::float_add(wide::<B>(of_weights), of_sum);
            let of_scores = B::float_mul(wide::<B>(weights), of_weights);
            let of_scores = given.grouped(of_type::<B>(of_scores, self.query.dtype()));
            by_query.push(given.by_head(of_scores.clone(), given.key.clone()));
            let part = B::float_matmul(
                transposed::<B>(of_scores),
                given.grouped(given.query.clone()),
            );
            by_key = Some(added::<B>(by_key, part));
        }
        by_query.reverse();
        let all = "there are queries";
        [
            joined::<B>(by_query),
            by_key.expect(all),
            by_value.expect(all),
        ]
    }
}

fn within<B: Backend>(
    x: FloatTensor<B>,
    dim: usize,
    start: usize,
    length: usize,
) -> FloatTensor<B> {
    let shape = x.shape();
    if length == shape[dim] {
        return x;
    }
    let slice = |at| match at == dim {
        true => Slice::from(start..start + length),
        false => Slice::from(0..shape[at]),
    };
    B::float_slice(x, &[0, 1, 2, 3].map(slice))
}

fn transposed<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    B::float_swap_dims(x, 2, 3)
}

fn wide<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    of_type::<B>(x, DType::F32)
}

fn of_type<B: Backend>(x: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    match x.dtype() == dtype {
        true => x,
        false => B::float_cast(x, dtype.into()),
    }
}

/// Blocks of queries below one another.
fn joined<B: Backend>(mut blocks: Vec<FloatTensor<B>>) -> FloatTensor<B> {
    match blocks.len() {
        1 => blocks.remove(0),
        _ => B::float_cat(blocks, 2),
    }
}

/// Adds to the first keys of a sum what some of them have more.
fn added<B: Backend>(sum: Option<FloatTensor<B>>, more: FloatTensor<B>) -> FloatTensor<B> {
    let Some(sum) = sum else {
        return more;
    };
    let first = more.shape()[2];
    if first == sum.shape()[2] {
        return B::float_add(sum, more);
    }
    let places = more.shape();
    let slices = [0, 1, 2, 3].map(|at| Slice::from(0..places[at]));
    let there = within::<B>(sum.clone(), 2, 0, first);
    B::float_slice_assign(sum, &slices, B::float_add(there, more))
}

impl<B: Gathers + Backwards, C: CheckpointStrategy> Gathers for Autodiff<B, C> {
    fn gather(given: Given<Self>, blocks: Blocks) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (query, at_query) = given.query.into_parts();
        let (key, at_key) = given.key.into_parts();
        let (value, at_value) = given.value.into_parts();
        let given = Given {
            query,
            key,
            value,
            mask: given.mask.into_primitive(),
            floor: given.floor.into_primitive(),
        };
        let (sums, largest) = B::gather(given.clone(), blocks);
        let prepared = Gathered
            .prepare::<C>([at_query, at_key, at_value])
            .compute_bound();
        let sums = match prepared.stateful() {
            OpsKind::Tracked(prepared) => {
                let floor = largest.clone();
                prepared.finish((Given { floor, ..given }, blocks), sums)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(sums),
        };
        (sums, <Self as AutodiffBackend>::from_inner(largest))
    }
}

/// Of [`Gathers::gather`].
#[derive(Debug)]
struct Gathered;

impl<B: Backwards> Backward<B, 3> for Gathered {
    /// Its inputs, with the largest scores as floor.
    type State = (Given<B>, Blocks);

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let (given, blocks) = ops.state;
        let gradient = gradients.consume::<B>(&ops.node);
        let found = given.gradients(gradient, blocks);
        for (parent, gradient) in ops.parents.into_iter().zip(found) {
            if let Some(parent) = parent {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}

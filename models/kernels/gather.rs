//! Attention whose weights are kept nowhere: they are computed for some queries at a time, and once more for the backward pass
//! (recomputation of Dao et al. 2022, <https://arxiv.org/abs/2205.14135>, section 3.1, in blocks of queries over the keys that one of them sees).
use std::ops::Range;
use std::sync::Arc;

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
#[cfg(feature = "fusion")]
use burn::tensor::DType;
use burn::tensor::Shape;

use super::operations::Backwards;
use super::within::within;
use crate::few_rows;
use crate::products::of_type;
use crate::sight::{Block, Group};

/// The blocks that queries are taken in.
pub(crate) type Blocks = Arc<[Group]>;

/// Attention in no graph and in one.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff, Fusion: cfg(feature = "fusion"))]
pub(super) trait Gathers: Backend {
    /// Of each query the values of the keys that it sees summed by `exp(query · key * scale - largest)` and, as one number more, these
    /// weights summed; and `largest`, which no gradient goes through. Scores and sums are in f32; only a weight is rounded to the type of
    /// the values that it is multiplied by.
    ///
    /// # Shapes
    /// - query: `[batch, heads, rows, d_head]`
    /// - key, value: `[batch, kv_heads, keys, d_head]`
    /// - ranges: `[batch or 1, 1, rows / n, 2 * ranges]`, f32, of [`Mask::ranges`](crate::Mask); each of its rows is for `n` rows of a head
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
pub(super) fn sums_of(query: &TensorSpec) -> TensorSpec {
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
    pub(super) ranges: FloatTensor<B>,
    pub(super) floor: FloatTensor<B>,
    /// What scores are multiplied by.
    pub(super) scale: f32,
}

impl<B: Backwards> Given<B> {
    /// What some sequences are given.
    pub(super) fn of_sequences(&self, sequences: &Range<usize>) -> Self {
        let own = |x: &FloatTensor<B>| within::<B>(x.clone(), 0, sequences);
        Self {
            query: own(&self.query),
            key: own(&self.key),
            value: own(&self.value),
            ranges: match self.ranges.shape()[0] {
                1 => self.ranges.clone(),
                _ => own(&self.ranges),
            },
            floor: own(&self.floor),
            scale: self.scale,
        }
    }

    /// What the queries of a block are given, with all keys.
    pub(super) fn of_queries(&self, block: &Block) -> Self {
        let queries = |x: &FloatTensor<B>| within::<B>(x.clone(), 2, &block.queries);
        let sharing = self.query.shape()[2] / self.ranges.shape()[2];
        let rows = block.queries.start / sharing..block.queries.end / sharing;
        Self {
            query: B::in_row_order(queries(&self.query)),
            ranges: within::<B>(self.ranges.clone(), 2, &rows),
            floor: queries(&self.floor),
            ..self.clone()
        }
    }

    /// The same with some keys.
    pub(super) fn of_keys(&self, keys: &Range<usize>, floor: FloatTensor<B>) -> Self {
        let own = |x: &FloatTensor<B>| within::<B>(x.clone(), 2, keys);
        Self {
            key: own(&self.key),
            value: own(&self.value),
            floor,
            ..self.clone()
        }
    }

    /// The query heads that share a key head become rows of one product, so keys are never repeated.
    /// `[batch, kv_heads, heads / kv_heads * rows, width]`
    fn grouped(&self, x: FloatTensor<B>) -> FloatTensor<B> {
        let [batch, heads, rows, width] = x.shape().dims();
        let kv_heads = self.key.shape()[1];
        let shape = [batch, kv_heads, heads / kv_heads * rows, width];
        B::float_reshape(B::in_row_order(x), Shape::from(shape))
    }

    /// The product of what is [`grouped`](Self::grouped) with keys or values, by head again, in f32.
    fn by_head(&self, grouped: FloatTensor<B>, other: FloatTensor<B>) -> FloatTensor<B> {
        let product = B::wide_product(grouped, other);
        let [batch, heads, rows, _] = self.query.shape().dims();
        let width = product.shape()[3];
        B::float_reshape(product, Shape::from([batch, heads, rows, width]))
    }

    /// Unnormalised weights `[batch, heads, rows, keys]` where the keys of a block begin at `first`, and the largest scores.
    fn weights(&self, first: usize) -> (FloatTensor<B>, FloatTensor<B>) {
        let queries = self.grouped(self.query.clone());
        let keys = across_the_sum::<B>(transposed::<B>(self.key.clone()), queries.shape()[2]);
        let scores = self.by_head(queries, keys);
        let (ranges, floor) = (self.ranges.clone(), self.floor.clone());
        let dtype = self.value.dtype();
        B::exponentials(scores, ranges, floor, first, self.scale, dtype)
    }

    /// The values of the keys of a block, which begin at `first`, summed by their weights, these weights summed, and the largest scores.
    pub(super) fn sums(&self, first: usize) -> [FloatTensor<B>; 3] {
        let (weights, largest) = self.weights(first);
        let (ranges, of_rows) = (self.ranges.clone(), largest.clone());
        let sum = B::sums_of_seen(weights.clone(), ranges, of_rows, first);
        let context = self.by_head(self.grouped(weights), self.value.clone());
        [context, sum, largest]
    }

    pub(super) fn gather(&self, blocks: &[Group]) -> (FloatTensor<B>, FloatTensor<B>) {
        let groups = blocks.iter().map(|group| {
            let of_group = self.of_sequences(&group.sequences);
            let of_block = |block| of_group.of_queries(block).gather_block(&block.keys);
            let (sums, largest) = group.blocks.iter().map(of_block).unzip();
            (joined::<B>(sums, 2), joined::<B>(largest, 2))
        });
        let (sums, largest) = groups.unzip();
        (joined::<B>(sums, 0), joined::<B>(largest, 0))
    }

    /// The sums of a block over its `keys`, one range after the other: a score larger than those before weakens their sums.
    fn gather_block(&self, keys: &[Range<usize>]) -> (FloatTensor<B>, FloatTensor<B>) {
        let (mut all, mut floor) = (None, self.floor.clone());
        for keys in keys {
            let given = self.of_keys(keys, floor.clone());
            let [context, sum, largest] = given.sums(keys.start);
            let sums = B::float_cat(vec![context, sum], 3);
            all = Some(match all {
                None => sums,
                Some(before) => {
                    let kept = B::float_exp(B::float_sub(floor, largest.clone()));
                    B::float_add(B::float_mul(before, kept), sums)
                }
            });
            floor = largest;
        }
        (all.expect("a block sees keys"), floor)
    }

    /// The gradients with respect to queries, keys and values from that of the sums; `floor` is the largest of the scores here, so
    /// that the weights are those of the forward pass.
    fn gradients(&self, of_sums: &FloatTensor<B>, blocks: &[Group]) -> [FloatTensor<B>; 3] {
        let mut found = [Vec::new(), Vec::new(), Vec::new()];
        for Group { sequences, blocks } in blocks {
            let of_sums = within::<B>(of_sums.clone(), 0, sequences);
            let gradients = self.of_sequences(sequences).of_group(&of_sums, blocks);
            for (found, gradient) in found.iter_mut().zip(gradients) {
                found.push(gradient);
            }
        }
        found.map(|of_groups| joined::<B>(of_groups, 0))
    }

    /// The [gradients](Self::gradients) of one group.
    fn of_group(&self, of_sums: &FloatTensor<B>, blocks: &[Block]) -> [FloatTensor<B>; 3] {
        let all_keys = self.key.shape()[2];
        let dtype = self.query.dtype();
        let mut by_query = Vec::new();
        let (mut by_key, mut by_value) = (None, None);
        for block in blocks {
            let of_block = self.of_queries(block);
            let queries = &block.queries;
            let (of_context, of_sum) =
                B::parts_of_sums(of_sums.clone(), queries.start, queries.len(), dtype);
            let of_context = self.grouped(of_context);
            let mut by_own: Option<FloatTensor<B>> = None;
            for keys in &block.keys {
                let given = of_block.of_keys(keys, of_block.floor.clone());
                let [query, key, value] = given.of_keys_alone([&of_context, &of_sum], keys.start);
                by_own = Some(match by_own {
                    None => query,
                    Some(before) => B::float_add(before, query),
                });
                by_key = Some(added::<B>(by_key, key, keys, all_keys));
                by_value = Some(added::<B>(by_value, value, keys, all_keys));
            }
            by_query.extend(by_own);
        }
        let all = "there are queries, and each block sees keys";
        [
            self.scaled(joined::<B>(by_query, 2)),
            self.scaled(by_key.expect(all)),
            of_type::<B>(by_value.expect(all), dtype),
        ]
    }

    /// A gradient with respect to queries or keys, in their type: the product with that of the scaled scores lacks the scale.
    fn scaled(&self, x: FloatTensor<B>) -> FloatTensor<B> {
        let scaled = B::float_mul_scalar(x, self.scale.into());
        of_type::<B>(scaled, self.query.dtype())
    }

    /// The [gradients](Self::gradients) with respect to a block's queries and to some of its keys, which begin at `first`, both not yet
    /// [scaled](Self::scaled), and their values, all in f32; from those of the block's context, [grouped](Self::grouped), and of its sum.
    fn of_keys_alone(
        &self,
        [of_context, of_sum]: [&FloatTensor<B>; 2],
        first: usize,
    ) -> [FloatTensor<B>; 3] {
        let (weights, _) = self.weights(first);
        let by_value = B::wide_product(
            transposed::<B>(self.grouped(weights.clone())),
            of_context.clone(),
        );
        let of_weights = self.by_head(of_context.clone(), transposed::<B>(self.value.clone()));
        let of_scores = B::by_scores(weights, of_weights, of_sum.clone(), self.query.dtype());
        let of_scores = self.grouped(of_scores);
        let by_query = self.by_head(of_scores.clone(), self.key.clone());
        let by_key = B::wide_product(transposed::<B>(of_scores), self.grouped(self.query.clone()));
        [by_query, by_key, by_value]
    }
}

/// What [`few_rows::across_the_sum`] gives of keys for so many rows of queries.
fn across_the_sum<B: Backend>(keys: FloatTensor<B>, rows: usize) -> FloatTensor<B> {
    let [batch, heads, width, count] = keys.shape().dims();
    if rows * count > few_rows::LOOPS_OF_THEIR_OWN {
        return keys;
    }
    let flat = B::float_reshape(keys, Shape::from([batch, heads, 1, width * count]));
    B::float_reshape(flat, Shape::from([batch, heads, width, count]))
}

fn transposed<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    B::float_swap_dims(x, 2, 3)
}

/// Parts side by side.
fn joined<B: Backend>(mut parts: Vec<FloatTensor<B>>, dim: usize) -> FloatTensor<B> {
    match parts.len() {
        1 => parts.remove(0),
        _ => B::float_cat(parts, dim),
    }
}

/// Adds what some of `all` keys have more to their places in a sum, which is 0 before.
fn added<B: Backwards>(
    sum: Option<FloatTensor<B>>,
    more: FloatTensor<B>,
    keys: &Range<usize>,
    all: usize,
) -> FloatTensor<B> {
    let (mut shape, dtype) = (more.shape(), more.dtype());
    let is_all = keys.len() == all;
    let sum = match sum {
        None if is_all => return more,
        Some(sum) if is_all => return B::float_add(sum, more),
        Some(sum) => sum,
        None => {
            shape[2] = all;
            B::float_zeros(shape, &more.device(), dtype.into())
        }
    };
    B::added_at(sum, more, keys.start)
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
            ranges: given.ranges.into_primitive(),
            floor: given.floor.into_primitive(),
            scale: given.scale,
        };
        let (sums, largest) = B::gather(given.clone(), blocks.clone());
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
        let found = given.gradients(&gradient, &blocks);
        for (parent, gradient) in ops.parents.into_iter().zip(found) {
            if let Some(parent) = parent {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}

//! Paths through the likeliest tokens of all slots of a block, scored at once (LiLiCorr, <https://arxiv.org/abs/2608.20530>).
//!
//! Slots guess their tokens without knowing of each other. So the `top_k` likeliest tokens of each, together a lattice, see each other
//! in a few layers, and each gets two vectors: `o` for the token behind it, and `i` for the one before it. A token `b` of slot `t`
//! behind the token `a` of the slot before has the logit `scale · cos(o_a, i_b)`; in the first slot the block's context, by the row
//! before the anchor, stands for `a`. All this is one pass, whatever path is drafted then. It is computed in f32, whatever the drafter is:
//! the tokens of a slot differ little from each other beside what they have in common, and bf16 would round that away.
use burn::module::Param;
use burn::prelude::*;
use burn::tensor::DType;

use super::lattice_table::LatticeTable;
use crate::attend::{scores, weigh};
use crate::error::Result;
use crate::few_rows::product;
use crate::kernels::{rms_norm, silu, softmax};
use crate::linear::{Linear, by_rows};
use crate::norm::RmsNorm;
use crate::reductions::{likeliest_of_each, log_partition};
use crate::weights::{Init, Scope};

/// What is known of a candidate besides: its log-probability, its probability, how far the likeliest is from it, its rank, and whether
/// it is the first.
const FEATURES: usize = 5;
/// What is added to the variance of these.
const FEATURE_EPSILON: f64 = 1e-5;

/// See the module.
#[derive(Module, Debug)]
pub struct Lattice {
    /// None where its layers are as wide as the target.
    token_proj: Option<Linear>,
    pass_hidden_proj: Linear,
    feature_norm: FeatureNorm,
    feature_mlp: FeedForward,
    /// `[1, 1, slots, 1, width]`
    slot_embedding: Param<Tensor<5>>,
    /// `[1, 1, 1, top_k, width]`
    rank_embedding: Param<Tensor<5>>,
    /// What is added to the scores of a head for each distance between two slots, `[heads, 2 * block_size - 1]`.
    relative_slot_bias: Param<Tensor<2>>,
    /// What is added besides where two tokens are of one slot, `[heads]`.
    same_slot_bias: Param<Tensor<1>>,
    context_proj: Linear,
    layers: Vec<LatticeLayer>,
    output_norm: RmsNorm,
    anchor_norm: RmsNorm,
    /// Of a token's state, of the context, and of their product.
    factor_input_proj: Linear,
    out_head: Linear,
    in_head: Linear,
    anchor_out_head: Linear,
    #[module(skip)]
    sizes: LatticeTable,
}

/// Sizes of a [`Lattice`].
#[derive(Debug, Clone)]
pub(super) struct LatticeSizes<'a> {
    /// Resolved.
    pub(super) table: &'a LatticeTable,
    /// Width of the drafter.
    pub(super) d_model: usize,
    /// Places of a block.
    pub(super) block: usize,
    /// What norms add to the mean square.
    pub(super) epsilon: f64,
}

/// What lattices are scored by.
#[derive(Debug, Clone)]
pub struct LatticeRead {
    /// The target's embeddings of the candidates. `[blocks, slots * top_k, d_model]`
    pub(super) embedded: Tensor<3>,
    /// Their log-probabilities among all tokens, the likeliest first. `[blocks, slots, top_k]`, f32
    pub(super) log_p: Tensor<3>,
    /// What the head reads. `[blocks, slots, d_model]`
    pub(super) hidden: Tensor<3>,
    /// The row of the context that stands before the anchor. `[blocks, d_model]`
    pub(super) before: Tensor<2>,
    /// 1, or 0 where no row stands there. `[blocks, 1]`
    pub(super) is_there: Tensor<2>,
}

/// Logits of the candidates of all slots of some blocks, behind each candidate of the slot before.
#[derive(Debug, Clone)]
pub struct PathScores {
    /// `[rows, top_k]`, f32: see [`Self::row`].
    pub scores: Tensor<2>,
    blocks: usize,
    slots: usize,
}

impl PathScores {
    /// The row of `scores` that holds the logits of the candidates of a slot behind a candidate, by its number, of the slot before. In
    /// the first slot nothing stands before; in another, where it is none of the candidates, a slot has its own log-probabilities.
    pub fn row(&self, block: usize, slot: usize, before: Option<usize>) -> usize {
        let [_, top_k] = self.scores.dims();
        match (slot.checked_sub(1), before) {
            (Some(last), Some(before)) => {
                let transition = block * (self.slots - 1) + last;
                self.blocks * self.slots + transition * top_k + before
            }
            _ => block * self.slots + slot,
        }
    }
}

impl Lattice {
    /// The part `scope` names.
    ///
    /// # Errors
    /// The source lacks a parameter, or holds it in another shape.
    pub(super) fn new(scope: &mut Scope, sizes: LatticeSizes) -> Result<Self> {
        let (table, d_model) = (sizes.table, sizes.d_model);
        let (width, slots) = (table.d_model, sizes.block - 1);
        let zeros = Init::Constant(0.0);
        let norm = |scope: &mut Scope, name: &str| {
            RmsNorm::new(&mut scope.child(name), width, sizes.epsilon)
        };
        let token_proj = match width == d_model {
            true => None,
            false => Some(linear(scope, "token_proj", [d_model, width])?),
        };
        let relative = [table.heads, 2 * sizes.block - 1];
        let mut layers = Vec::new();
        for index in 0..table.layers {
            let scope = &mut scope.child(format!("layers.{index}"));
            layers.push(LatticeLayer::new(scope, &sizes)?);
        }
        Ok(Self {
            token_proj,
            pass_hidden_proj: linear(scope, "pass_hidden_proj", [d_model, width])?,
            feature_norm: FeatureNorm::new(&mut scope.child("feature_norm"))?,
            feature_mlp: FeedForward::new(
                &mut scope.child("feature_mlp"),
                [FEATURES, width, width],
            )?,
            slot_embedding: scope.tensor("slot_embedding", [1, 1, slots, 1, width], zeros)?,
            rank_embedding: scope.tensor("rank_embedding", [1, 1, 1, table.top_k, width], zeros)?,
            relative_slot_bias: scope.matrix("relative_slot_bias", relative, zeros)?,
            same_slot_bias: scope.vector("same_slot_bias", table.heads, zeros)?,
            context_proj: linear(scope, "context_proj", [d_model, width])?,
            layers,
            output_norm: norm(scope, "output_norm")?,
            anchor_norm: norm(scope, "anchor_norm")?,
            factor_input_proj: linear(scope, "factor_input_proj", [3 * width, width])?,
            out_head: linear(scope, "out_head", [width, table.rank])?,
            in_head: linear(scope, "in_head", [width, table.rank])?,
            anchor_out_head: linear(scope, "anchor_out_head", [width, table.rank])?,
            sizes: table.clone(),
        })
    }

    /// Candidates of a slot.
    pub fn top_k(&self) -> usize {
        self.sizes.top_k
    }

    /// The logits of candidates behind each other.
    pub(super) fn scores(&self, read: LatticeRead) -> PathScores {
        let [blocks, slots, top_k] = read.log_p.dims();
        let [before, is_there] = [read.before, read.is_there].map(|x| x.cast(DType::F32));
        let context = self.context(before, is_there); // [blocks, 1, width]
        let [embedded, hidden] = [read.embedded, read.hidden].map(|x| x.cast(DType::F32));
        let mut x = self.beginnings(embedded, hidden, read.log_p.clone());
        let bias = self.bias(slots, top_k);
        for layer in &self.layers {
            x = layer.forward(x, bias.clone(), self.sizes.heads);
        }
        let factors = self.factors(self.output_norm.forward(x), context.clone());
        let by_slot = |head: &Linear| -> Tensor<4> {
            let vectors = head.forward(factors.clone());
            vectors.reshape([blocks, slots, top_k, self.sizes.rank])
        };
        let [out, into] = [&self.out_head, &self.in_head].map(by_slot);
        let start: Tensor<4> = self.anchor_out_head.forward(context).unsqueeze_dim(1);
        let start = self.cosines(start, into.clone().narrow(1, 0, 1)); // [blocks, 1, 1, top_k]
        let start: Tensor<3> = start.reshape([blocks, 1, top_k]) * self.sizes.scale;
        let rows = match slots - 1 {
            0 => start.squeeze_dim(1),
            others => {
                // Of other slots behind what is none of their candidates.
                let own = read.log_p.narrow(1, 1, others);
                let own = Tensor::cat(vec![start, own], 1).reshape([blocks * slots, top_k]);
                let pairs = self.cosines(out.narrow(1, 0, others), into.narrow(1, 1, others));
                let pairs = pairs * self.sizes.scale; // [blocks, slots - 1, top_k, top_k]
                let pairs: Tensor<2> = pairs.reshape([blocks * others * top_k, top_k]);
                Tensor::cat(vec![own, pairs], 0)
            }
        };
        PathScores {
            scores: rows,
            blocks,
            slots,
        }
    }

    /// What the layers read of candidates. `[blocks, slots * top_k, width]`; the others as in [`LatticeRead`].
    fn beginnings(&self, embedded: Tensor<3>, hidden: Tensor<3>, log_p: Tensor<3>) -> Tensor<3> {
        let ([blocks, slots, top_k], width) = (log_p.dims(), self.sizes.d_model);
        let tokens = match &self.token_proj {
            None => embedded,
            Some(to_width) => to_width.forward(embedded),
        };
        let tokens: Tensor<4> = tokens.reshape([blocks, slots, top_k, width]);
        let passed: Tensor<4> = self.pass_hidden_proj.forward(hidden).unsqueeze_dim(2);
        let features = self.feature_norm.forward(self.features(log_p));
        let table = |of: &Param<Tensor<5>>, [slots, ranks]: [usize; 2]| -> Tensor<4> {
            let table: Tensor<4> = of.val().reshape([1, of.dims()[2], of.dims()[3], width]);
            table
                .slice([0..1, 0..slots, 0..ranks, 0..width])
                .cast(DType::F32)
        };
        let places = table(&self.slot_embedding, [slots, 1]);
        let ranks = table(&self.rank_embedding, [1, top_k]);
        let sum = tokens + self.feature_mlp.forward(features) + (passed + places) + ranks;
        sum.reshape([blocks, slots * top_k, width])
    }

    /// What is known of candidates besides. `[blocks, slots, top_k]` to `[blocks, slots, top_k, FEATURES]`.
    fn features(&self, log_p: Tensor<3>) -> Tensor<4> {
        let [blocks, slots, top_k] = log_p.dims();
        let rank = |rank: usize| rank as f32 / (top_k.max(2) - 1) as f32;
        let ranks: Vec<f32> = (0..top_k).map(rank).collect();
        let firsts: Vec<f32> = (0..top_k)
            .map(|rank| f32::from(u8::from(rank == 0)))
            .collect();
        let device = log_p.device();
        let fixed = |of_ranks: &[f32]| -> Tensor<3> {
            let of_ranks = Tensor::<1>::from_floats(of_ranks, &device).cast(DType::F32);
            of_ranks
                .reshape([1, 1, top_k])
                .expand([blocks, slots, top_k])
        };
        let likeliest = log_p.clone().narrow(2, 0, 1);
        let all = vec![
            log_p.clone(),
            log_p.clone().exp(),
            log_p - likeliest,
            fixed(&ranks),
            fixed(&firsts),
        ];
        Tensor::stack(all, 3)
    }

    /// What is added to the scores of attention between the candidates of so many slots. `[1, heads, slots * top_k, slots * top_k]`,
    /// f32
    fn bias(&self, slots: usize, top_k: usize) -> Tensor<4> {
        let [heads, distances] = self.relative_slot_bias.dims();
        // As a product, whose gradient is one: of each pair of slots the column of its distance, and the last one if they are one.
        let mut chosen = vec![0.0; (distances + 1) * slots * slots];
        for (pair, (query, key)) in pairs(slots).enumerate() {
            let distance = query + distances / 2 - key;
            chosen[distance * slots * slots + pair] = 1.0;
            chosen[distances * slots * slots + pair] = f32::from(u8::from(query == key));
        }
        let device = self.relative_slot_bias.device();
        let chosen = Tensor::<1>::from_floats(chosen.as_slice(), &device).cast(DType::F32);
        let chosen = chosen.reshape([distances + 1, slots * slots]);
        let of_one: Tensor<2> = self.same_slot_bias.val().unsqueeze_dim(1);
        let known = Tensor::cat(vec![self.relative_slot_bias.val(), of_one], 1);
        let bias = known.cast(DType::F32).matmul(chosen);
        let bias: Tensor<5> = bias.reshape([heads, slots, 1, slots, 1]);
        let bias = bias.expand([heads, slots, top_k, slots, top_k]);
        bias.reshape([1, heads, slots * top_k, slots * top_k])
    }

    /// What vectors are made with of the context. `[blocks, d_model]` and `[blocks, 1]` to `[blocks, 1, width]`.
    fn context(&self, before: Tensor<2>, is_there: Tensor<2>) -> Tensor<3> {
        let context = self.context_proj.forward(before);
        self.anchor_norm
            .forward(context * is_there)
            .unsqueeze_dim(1)
    }

    /// What the vectors of candidates are made of: of states, of the context, and of the product of both. `[blocks, candidates, width]`
    fn factors(&self, x: Tensor<3>, context: Tensor<3>) -> Tensor<3> {
        let width = self.sizes.d_model;
        let weight = self.factor_input_proj.weight.val();
        let [of_x, of_context, of_both] =
            [0, 1, 2].map(|part| weight.clone().narrow(0, part * width, width));
        let both = by_rows(x.clone() * context.clone(), |both| product(both, of_both));
        let x = by_rows(x, |x| self.factor_input_proj.biased(product(x, of_x)));
        let context = by_rows(context, |context| product(context, of_context));
        silu(x + both + context)
    }

    /// The cosines of vectors, f32. `[.., rows, rank]` and `[.., columns, rank]` to `[.., rows, columns]`
    fn cosines(&self, rows: Tensor<4>, columns: Tensor<4>) -> Tensor<4> {
        // Divided behind the product, so that no divided vectors are kept.
        let lengths = self.length(rows.clone()) * self.length(columns.clone()).swap_dims(2, 3);
        scores(rows, columns) / lengths
    }

    /// The lengths of vectors, f32, and no less than the least. `[.., rank]` to `[.., 1]`
    fn length(&self, vectors: Tensor<4>) -> Tensor<4> {
        let least = self.sizes.epsilon * self.sizes.epsilon;
        let squares = vectors.clone() * vectors;
        squares.sum_dim(3).clamp_min(least).sqrt()
    }
}

/// Every pair of slots, the second one running faster.
fn pairs(slots: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..slots).flat_map(move |query| (0..slots).map(move |key| (query, key)))
}

/// A layer in which all candidates of a block see each other.
#[derive(Module, Debug)]
pub struct LatticeLayer {
    attn_norm: RmsNorm,
    attn: LatticeAttention,
    mlp_norm: RmsNorm,
    mlp: FeedForward,
}

/// Its attention, with biases as PyTorch's has them.
#[derive(Module, Debug)]
pub struct LatticeAttention {
    /// To queries, keys and values, one behind the other.
    in_proj: Linear,
    out_proj: Linear,
}

impl LatticeLayer {
    fn new(scope: &mut Scope, sizes: &LatticeSizes) -> Result<Self> {
        let (width, d_ff) = (sizes.table.d_model, sizes.table.d_ff);
        let norm = |scope: &mut Scope, name: &str| {
            RmsNorm::new(&mut scope.child(name), width, sizes.epsilon)
        };
        let attn_norm = norm(scope, "attn_norm")?;
        let mut attn = scope.child("attn");
        let attn = LatticeAttention {
            in_proj: linear(&mut attn, "in_proj", [width, 3 * width])?,
            out_proj: linear(&mut attn, "out_proj", [width, width])?,
        };
        Ok(Self {
            attn_norm,
            attn,
            mlp_norm: norm(scope, "mlp_norm")?,
            mlp: FeedForward::new(&mut scope.child("mlp"), [width, d_ff, width])?,
        })
    }

    /// `[blocks, candidates, width]` to the same; `bias` is added to the scores.
    fn forward(&self, x: Tensor<3>, bias: Tensor<4>, heads: usize) -> Tensor<3> {
        let attended = self
            .attn
            .forward(self.attn_norm.forward(x.clone()), bias, heads);
        let x = x + attended;
        x.clone() + self.mlp.forward(self.mlp_norm.forward(x))
    }
}

impl LatticeAttention {
    fn forward(&self, x: Tensor<3>, bias: Tensor<4>, heads: usize) -> Tensor<3> {
        let [blocks, count, width] = x.dims();
        let d_head = width / heads;
        let all = self
            .in_proj
            .forward(x)
            .reshape([blocks, count, 3 * heads, d_head]);
        let all: Tensor<4> = all.swap_dims(1, 2);
        let [query, key, value] = [0, 1, 2].map(|part| all.clone().narrow(1, part * heads, heads));
        let scale = 1.0 / (d_head as f64).sqrt();
        let weights = softmax(scores(query, key) * scale + bias, None, 1.0, DType::F32);
        let context = weigh(weights, value).swap_dims(1, 2);
        self.out_proj
            .forward(context.reshape([blocks, count, width]))
    }
}

/// A feed-forward part without a gate.
#[derive(Module, Debug)]
pub struct FeedForward {
    up_proj: Linear,
    down_proj: Linear,
}

impl FeedForward {
    fn new(scope: &mut Scope, [d_in, d_ff, d_out]: [usize; 3]) -> Result<Self> {
        Ok(Self {
            up_proj: linear(scope, "up_proj", [d_in, d_ff])?,
            down_proj: linear(scope, "down_proj", [d_ff, d_out])?,
        })
    }

    fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.down_proj.forward(silu(self.up_proj.forward(x)))
    }
}

/// A norm that takes the mean away first.
#[derive(Module, Debug)]
pub struct FeatureNorm {
    weight: Param<Tensor<1>>,
    bias: Param<Tensor<1>>,
}

impl FeatureNorm {
    fn new(scope: &mut Scope) -> Result<Self> {
        Ok(Self {
            weight: scope.vector("weight", FEATURES, Init::Constant(1.0))?,
            bias: scope.vector("bias", FEATURES, Init::Constant(0.0))?,
        })
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let centred = x.clone() - x.mean_dim(3);
        let bias: Tensor<4> = self.bias.val().cast(DType::F32).unsqueeze();
        rms_norm(centred, self.weight.val(), FEATURE_EPSILON) + bias
    }
}

/// The likeliest tokens of slots, the likeliest first, and their log-probabilities: no numbers where one of all tokens is none.
///
/// # Shapes
/// - logits: `[slots, vocab]`, f32, in no graph
/// - output: `[slots, top_k]` each
pub fn candidates(logits: Tensor<2>, top_k: usize) -> (Tensor<2, Int>, Tensor<2>) {
    let ids = likeliest_of_each(logits.clone(), top_k);
    let log_p = logits.clone().gather(1, ids.clone()) - log_partition(logits);
    (ids, log_p)
}

/// A layer whose matrix is drawn, and whose bias is 0 at first. Its authors draw with a standard deviation of 0.02, which this is for their
/// width; in narrow layers all tokens would be alike at first, and rounding to bf16 would make up what tells them apart.
fn linear(scope: &mut Scope, name: &str, sizes: [usize; 2]) -> Result<Linear> {
    let mut scope = scope.child(name);
    let init = Init::Linear { fan_in: sizes[0] };
    Ok(Linear {
        weight: scope.transposed("weight", sizes, init)?,
        bias: Some(scope.vector("bias", sizes[1], Init::Constant(0.0))?),
        lora: None,
    })
}

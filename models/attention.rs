use burn::module::Param;
use burn::prelude::*;
use burn::tensor::activation::sigmoid;

use crate::attend::{Projected, attend_in_blocks, attend_to_cache};
use crate::cache::KvCache;
use crate::error::Result;
use crate::fused::Fused;
use crate::linear::{Bias, Linear};
use crate::mask::Mask;
use crate::norm::{NormConfig, RmsNorm};
use crate::rope::Rotation;
use crate::target::TargetSpec;
use crate::weights::{Init, Scope};

pub(crate) mod halves;

/// Sizes and options of an [`Attention`] layer.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionConfig {
    /// Width of the input.
    pub d_input: usize,
    /// Width of the output.
    pub d_model: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub d_head: usize,
    /// Whether query, key and value projections add a bias.
    pub qkv_bias: Bias,
    /// Whether the output projection adds one.
    pub output_bias: Bias,
    /// The norms on each head's queries and keys, where there are such norms.
    pub head_norm: Option<NormConfig>,
    /// Whether what each head gives is scaled, by the sigmoid of a projection of the input (Qwen3-Next).
    pub gated: bool,
    /// Whether each head has a [sink](Projects::sinks).
    pub sinks: bool,
}

impl AttentionConfig {
    /// As wide as the target's and with as many heads, and nothing beside its projections.
    pub fn of(target: &TargetSpec) -> Self {
        Self {
            d_input: target.d_model,
            d_model: target.d_model,
            heads: target.heads,
            kv_heads: target.kv_heads,
            d_head: target.d_head,
            qkv_bias: Bias::Without,
            output_bias: Bias::Without,
            head_norm: None,
            gated: false,
            sinks: false,
        }
    }
}

/// Rows of one sequence among those of several.
pub struct SequenceRows<'a> {
    /// How many there are.
    pub count: usize,
    /// See [`attend`](crate::attend::attend).
    pub mask: Option<&'a Mask>,
    /// What the sequence holds before them.
    pub cache: &'a mut KvCache,
}

/// What an attention layer makes of what it reads, and of what comes of it.
pub trait Projects {
    /// Queries, keys and values of `x`, rotated to their positions.
    ///
    /// # Shapes
    /// - x: `[batch, seq, d_input]`
    fn project(&self, x: Tensor<3>, rotation: &Rotation) -> Projected;

    /// Joins the heads of what was attended to from `x`, and projects them to the residual stream.
    ///
    /// # Shapes
    /// - x: `[batch, seq, d_input]`
    /// - context: `[batch, heads, seq, d_head]`
    /// - output: `[batch, seq, d_model]`
    fn joined(&self, x: Tensor<3>, context: Tensor<4>) -> Tensor<3>;

    /// Of each query head a score of its own, which takes its share of every softmax and stands for no value (attention sinks as
    /// in gpt-oss), where there are such scores. `[heads]`
    fn sinks(&self) -> Option<Tensor<1>> {
        None
    }
}

/// The whole layer, of any kind.
pub trait Attends: Projects {
    /// The layer with a way to attend, given what `x` is projected to.
    ///
    /// # Shapes
    /// - x: `[batch, seq, d_input]`
    /// - output of `attend`: `[batch, heads, seq, d_head]`
    /// - output: `[batch, seq, d_model]`
    fn around(
        &self,
        x: Tensor<3>,
        rotation: &Rotation,
        attend: impl FnOnce(Projected) -> Tensor<4>,
    ) -> Tensor<3> {
        let context = attend(self.project(x.clone(), rotation));
        self.joined(x, context)
    }

    /// Attends from `x` to itself and, with a cache, to what the cache holds.
    ///
    /// # Shapes
    /// - x: `[batch, seq, d_input]`
    /// - mask: see [`attend`](crate::attend::attend)
    /// - output: `[batch, seq, d_model]`
    fn forward(
        &self,
        x: Tensor<3>,
        rotation: &Rotation,
        mask: Option<&Mask>,
        cache: Option<&mut KvCache>,
    ) -> Tensor<3> {
        self.around(x, rotation, |Projected { query, key, value }| {
            match (cache, mask) {
                // No weight is kept for a backward pass, and few are there at a time.
                (None, Some(mask)) => {
                    attend_in_blocks(query, (&key, &value), &[], self.sinks(), mask)
                }
                (None, None) => attend_to_cache(query, (key, value), self.sinks(), None),
                (Some(cache), mask) => {
                    let keys_values = cached(cache, (key, value), mask);
                    attend_to_cache(query, keys_values, self.sinks(), mask)
                }
            }
        })
    }

    /// Attends from the rows of several sequences, one behind the other in `x`, to what each of them holds. Only this is done
    /// sequence by sequence; what reads weights is done for all rows together.
    ///
    /// # Shapes
    /// - x, output: `[1, rows of all, d_model]`
    fn forward_sequences(
        &self,
        x: Tensor<3>,
        rotation: &Rotation,
        sequences: Vec<SequenceRows>,
    ) -> Tensor<3> {
        self.around(x, rotation, |Projected { query, key, value }| {
            let mut start = 0;
            let mut contexts = Vec::with_capacity(sequences.len());
            for SequenceRows { count, mask, cache } in sequences {
                let own = |x: &Tensor<4>| x.clone().narrow(2, start, count);
                let keys_values = cached(cache, (own(&key), own(&value)), mask);
                contexts.push(attend_to_cache(
                    own(&query),
                    keys_values,
                    self.sinks(),
                    mask,
                ));
                start += count;
            }
            Tensor::cat(contexts, 2)
        })
    }
}

impl<A: Projects + ?Sized> Attends for A {}

/// Adds keys and values to a cache, and takes as many of it as the mask has: those behind all that are held it hides. Without a mask
/// all that are held are seen.
fn cached(
    cache: &mut KvCache,
    (key, value): (Tensor<4>, Tensor<4>),
    mask: Option<&Mask>,
) -> (Tensor<4>, Tensor<4>) {
    cache.append(key, value);
    let keys = match mask {
        Some(mask) => mask.sight().dims()[1],
        None => cache.len(),
    };
    cache.first(keys)
}

/// Grouped-query attention with rotary positions.
#[derive(Module, Debug)]
pub struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    /// Where heads are gated; in files its rows stand between those of `q_proj`.
    gate_proj: Option<Linear>,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    attention_sink_bias: Option<Param<Tensor<1>>>,
    qkv: Fused,
    #[module(skip)]
    heads: usize,
    #[module(skip)]
    kv_heads: usize,
}

impl Attention {
    /// The layer `scope` names.
    ///
    /// # Errors
    /// The source lacks a parameter, or holds it in another shape.
    pub fn new(scope: &mut Scope, config: &AttentionConfig) -> Result<Self> {
        let (d_q, d_kv) = (
            config.heads * config.d_head,
            config.kv_heads * config.d_head,
        );
        let qkv = |scope: &mut Scope, name, width| {
            Linear::new(
                &mut scope.child(name),
                config.d_input,
                width,
                config.qkv_bias,
            )
        };
        let norm = |scope: &mut Scope, name| {
            let norm = |epsilon| RmsNorm::new(&mut scope.child(name), config.d_head, epsilon);
            config.head_norm.map(norm).transpose()
        };
        let made = Self {
            q_proj: qkv(scope, "q_proj", d_q)?,
            k_proj: qkv(scope, "k_proj", d_kv)?,
            v_proj: qkv(scope, "v_proj", d_kv)?,
            o_proj: Linear::new(
                &mut scope.child("o_proj"),
                d_q,
                config.d_model,
                config.output_bias,
            )?,
            gate_proj: match config.gated {
                false => None,
                true => {
                    let scope = &mut scope.child("gate_proj");
                    Some(Linear::new(scope, config.d_input, d_q, Bias::Without)?)
                }
            },
            q_norm: norm(scope, "q_norm")?,
            k_norm: norm(scope, "k_norm")?,
            attention_sink_bias: match config.sinks {
                false => None,
                true => {
                    let start = Init::Constant(0.0);
                    Some(scope.tensor("attention_sink_bias", [config.heads], start)?)
                }
            },
            qkv: Fused::default(),
            heads: config.heads,
            kv_heads: config.kv_heads,
        };
        Ok(if scope.fuses() { made.fused() } else { made })
    }

    /// The same with queries, keys and values as one product.
    pub(crate) fn fused(mut self) -> Self {
        self.qkv = Fused::of([&mut self.q_proj, &mut self.k_proj, &mut self.v_proj]);
        self
    }

    #[cfg(test)]
    pub(crate) fn is_fused(&self) -> bool {
        self.qkv.is_some()
    }

    /// The same layer with each linear layer in it changed.
    pub(crate) fn map_linear(
        self,
        change: &mut dyn FnMut(Linear) -> Result<Linear>,
    ) -> Result<Self> {
        Ok(Self {
            q_proj: change(self.q_proj)?,
            k_proj: change(self.k_proj)?,
            v_proj: change(self.v_proj)?,
            o_proj: change(self.o_proj)?,
            gate_proj: self.gate_proj.map(change).transpose()?,
            qkv: Fused::default(),
            ..self
        })
    }

    /// Queries, keys and values, as projections give them: `[batch, seq, heads * d_head]` each.
    fn at_positions(&self, projected: [Tensor<3>; 3], rotation: &Rotation) -> Projected {
        let [query, key, value] = projected;
        let [key, value] = [key, value].map(|x| split(x, self.kv_heads));
        self.heads_at_positions([split(query, self.heads), key, value], rotation)
    }

    /// The same by head: `[batch, seq, heads, d_head]` each.
    fn heads_at_positions(&self, by_head: [Tensor<4>; 3], rotation: &Rotation) -> Projected {
        let [query, key, value] = by_head;
        Projected {
            query: turned(query, &self.q_norm, rotation),
            key: turned(key, &self.k_norm, rotation),
            value: value.swap_dims(1, 2),
        }
    }

    /// Keys and values of `x` alone, for queries of something else.
    ///
    /// # Shapes
    /// - x: `[batch, seq, d_input]`
    /// - output: `[batch, kv_heads, seq, d_head]`, twice
    pub fn keys_and_values(&self, x: Tensor<3>, rotation: &Rotation) -> (Tensor<4>, Tensor<4>) {
        let key = split(self.k_proj.forward(x.clone()), self.kv_heads);
        let value = split(self.v_proj.forward(x), self.kv_heads);
        (turned(key, &self.k_norm, rotation), value.swap_dims(1, 2))
    }
}

impl Projects for Attention {
    fn project(&self, x: Tensor<3>, rotation: &Rotation) -> Projected {
        let Some(all) = self.qkv.forward(&x) else {
            let layers = [&self.q_proj, &self.k_proj, &self.v_proj];
            return self.at_positions(layers.map(|layer| layer.forward(x.clone())), rotation);
        };
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        let all = split(all, heads + 2 * kv_heads);
        let by_head = [(0, heads), (heads, kv_heads), (heads + kv_heads, kv_heads)];
        let by_head = by_head.map(|(first, count)| all.clone().narrow(2, first, count));
        self.heads_at_positions(by_head, rotation)
    }

    fn joined(&self, x: Tensor<3>, context: Tensor<4>) -> Tensor<3> {
        let context = joined(context);
        self.o_proj.forward(match &self.gate_proj {
            Some(gate) => context * sigmoid(gate.forward(x)),
            None => context,
        })
    }

    fn sinks(&self) -> Option<Tensor<1>> {
        self.attention_sink_bias.as_ref().map(Param::val)
    }
}

/// `[batch, heads, seq, d_head]` to `[batch, seq, heads * d_head]`.
fn joined(context: Tensor<4>) -> Tensor<3> {
    let [batch, heads, seq, d_head] = context.dims();
    context
        .swap_dims(1, 2)
        .reshape([batch, seq, heads * d_head])
}

/// `[batch, seq, heads * d_head]` to `[batch, seq, heads, d_head]`.
fn split(x: Tensor<3>, heads: usize) -> Tensor<4> {
    let [batch, seq, width] = x.dims();
    x.reshape([batch, seq, heads, width / heads])
}

/// `[batch, seq, heads, d_head]` to `[batch, heads, seq, d_head]` at their positions, each head normed first where there is a norm.
fn turned(heads: Tensor<4>, norm: &Option<RmsNorm>, rotation: &Rotation) -> Tensor<4> {
    match norm {
        Some(norm) => rotation.rotate_normed(heads, norm),
        None => rotation.rotate(heads.swap_dims(1, 2)),
    }
}

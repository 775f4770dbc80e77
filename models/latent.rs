//! Attention whose keys and values come out of one narrow state a token (multi-head latent attention, DeepSeek-V2,
//! <https://arxiv.org/abs/2405.04434>, section 2.1), in the expanded form in which it is trained.
use burn::prelude::*;

use crate::attend::Projected;
use crate::attention::{Attention, Projects};
use crate::error::Result;
use crate::linear::{Bias, Linear};
use crate::norm::{NormConfig, RmsNorm};
use crate::rope::Rotation;
use crate::weights::Scope;

/// Sizes of a [`LatentAttention`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentConfig {
    /// Width of the input.
    pub d_input: usize,
    /// Width of the output.
    pub d_model: usize,
    /// Heads, each with keys and values of its own.
    pub heads: usize,
    /// Width of the state that queries come out of; 0 where they come out of the input.
    pub q_rank: usize,
    /// Width of the state that keys and values come out of.
    pub kv_rank: usize,
    /// Dimensions of a head's queries and keys that do not turn with the position.
    pub d_fixed: usize,
    /// Those that do. All heads share these of the keys.
    pub d_turned: usize,
    /// Width of a head's values, at most that of its queries.
    pub d_value: usize,
    /// What scores are multiplied with beside `1 / sqrt(d_fixed + d_turned)`.
    pub scale: f64,
    /// Its norms.
    pub norm: NormConfig,
}

/// Multi-head latent attention. The turned dimensions of a head stand before the others, and the first half of them turns with
/// the second; in files they stand behind, and neighbours turn.
#[derive(Module, Debug)]
pub struct LatentAttention {
    /// `[d_input, heads * (d_turned + d_fixed)]`, without a state for queries.
    q_proj: Option<Linear>,
    q_a_proj: Option<Linear>,
    q_a_layernorm: Option<RmsNorm>,
    /// `[q_rank, heads * (d_turned + d_fixed)]`
    q_b_proj: Option<Linear>,
    /// `[d_input, kv_rank + d_turned]`
    kv_a_proj_with_mqa: Linear,
    kv_a_layernorm: RmsNorm,
    /// `[kv_rank, heads * (d_fixed + d_value)]`
    kv_b_proj: Linear,
    /// `[heads * d_value, d_model]`
    o_proj: Linear,
    #[module(skip)]
    config: LatentConfig,
}

impl LatentAttention {
    /// The layer `scope` names.
    ///
    /// # Errors
    /// The source lacks a parameter, or holds it in another shape.
    pub fn new(scope: &mut Scope, config: LatentConfig) -> Result<Self> {
        let LatentConfig {
            d_input,
            d_model,
            heads,
            q_rank,
            kv_rank,
            ..
        } = config;
        let linear = |scope: &mut Scope, name, d_in, d_out| {
            Linear::new(&mut scope.child(name), d_in, d_out, Bias::Without)
        };
        let norm = |scope: &mut Scope, name, width| {
            RmsNorm::new(&mut scope.child(name), width, config.norm)
        };
        let queries = heads * config.d_query();
        let (q_proj, q_a_proj, q_a_layernorm, q_b_proj) = match q_rank {
            0 => (
                Some(linear(scope, "q_proj", d_input, queries)?),
                None,
                None,
                None,
            ),
            _ => (
                None,
                Some(linear(scope, "q_a_proj", d_input, q_rank)?),
                Some(norm(scope, "q_a_layernorm", q_rank)?),
                Some(linear(scope, "q_b_proj", q_rank, queries)?),
            ),
        };
        Ok(Self {
            q_proj,
            q_a_proj,
            q_a_layernorm,
            q_b_proj,
            kv_a_proj_with_mqa: linear(
                scope,
                "kv_a_proj_with_mqa",
                d_input,
                kv_rank + config.d_turned,
            )?,
            kv_a_layernorm: norm(scope, "kv_a_layernorm", kv_rank)?,
            kv_b_proj: linear(
                scope,
                "kv_b_proj",
                kv_rank,
                heads * (config.d_fixed + config.d_value),
            )?,
            o_proj: linear(scope, "o_proj", heads * config.d_value, d_model)?,
            config,
        })
    }

    /// `[batch, seq, d_input]` to `[batch, heads, seq, d_turned + d_fixed]`, not yet rotated.
    fn queries(&self, x: Tensor<3>) -> Tensor<4> {
        let queries = match (
            &self.q_proj,
            &self.q_a_proj,
            &self.q_a_layernorm,
            &self.q_b_proj,
        ) {
            (Some(whole), ..) => whole.forward(x),
            (None, Some(down), Some(norm), Some(up)) => up.forward(norm.forward(down.forward(x))),
            _ => unreachable!("a layer is made with one of them"),
        };
        self.by_head(queries)
    }

    /// `[batch, seq, heads * width]` to `[batch, heads, seq, width]`.
    fn by_head(&self, x: Tensor<3>) -> Tensor<4> {
        let ([batch, seq, width], heads) = (x.dims(), self.config.heads);
        x.reshape([batch, seq, heads, width / heads])
            .swap_dims(1, 2)
    }
}

/// The attention of a layer that has grouped heads or this.
///
/// # Panics
/// It has neither.
pub(crate) fn one_of<'a>(
    grouped: Option<&'a Attention>,
    latent: Option<&'a LatentAttention>,
) -> &'a dyn Projects {
    match (grouped, latent) {
        (Some(grouped), _) => grouped,
        (None, Some(latent)) => latent,
        (None, None) => unreachable!("a layer is made with one of them"),
    }
}

impl LatentConfig {
    /// Width of a head's queries and keys.
    pub fn d_query(&self) -> usize {
        self.d_turned + self.d_fixed
    }
}

impl Projects for LatentAttention {
    /// Values have as many dimensions as queries, the last of them zeros.
    fn project(&self, x: Tensor<3>, rotation: &Rotation) -> Projected {
        let LatentConfig {
            heads,
            kv_rank,
            d_fixed,
            d_turned,
            d_value,
            scale,
            ..
        } = self.config;
        let [batch, seq, _] = x.dims();
        let query = self.queries(x.clone());
        let states = self.kv_a_proj_with_mqa.forward(x);
        let turned = states.clone().narrow(2, kv_rank, d_turned);
        let turned: Tensor<4> = turned.unsqueeze_dim(1);
        let turned = turned.expand([batch, heads, seq, d_turned]);
        let states = self.kv_a_layernorm.forward(states.narrow(2, 0, kv_rank));
        let both = self.by_head(self.kv_b_proj.forward(states)); // [batch, heads, seq, d_fixed + d_value]
        let key = Tensor::cat(vec![turned, both.clone().narrow(3, 0, d_fixed)], 3);
        let value = both.narrow(3, d_fixed, d_value);
        let wanting = self.config.d_query() - d_value;
        let value = match wanting {
            0 => value,
            _ => {
                let zeros = [batch, heads, seq, wanting];
                let zeros = Tensor::<4>::zeros(zeros, &value.device()).cast(value.dtype());
                Tensor::cat(vec![value, zeros], 3)
            }
        };
        let query = rotation.rotate(query);
        Projected {
            query: if scale == 1.0 { query } else { query * scale },
            key: rotation.rotate(key),
            value,
        }
    }

    fn joined(&self, _: Tensor<3>, context: Tensor<4>) -> Tensor<3> {
        let [batch, heads, seq, _] = context.dims();
        let d_value = self.config.d_value;
        let context = context.narrow(3, 0, d_value).swap_dims(1, 2);
        self.o_proj
            .forward(context.reshape([batch, seq, heads * d_value]))
    }
}

//! What drafters have in common whose hidden states of all draft steps follow from the target's and from known tokens, and need no
//! cache of their own steps: Medusa and Hydra, with one head for each draft depth, and ReDrafter, with one for all.
//!
//! The bonus token `x_{t+1}` is the target's own, so head `k` predicts `x_{t+2+k}` from the target's last hidden state
//! of `x_t`.
use burn::module::ParamId;
use burn::prelude::*;
use burn::tensor::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::Mismatch;
use spectrain_data::vocabulary::DraftVocabulary;

use crate::bounds;
use crate::drafter::Drafter;
use crate::error::{Error, Result};
use crate::few_rows::product;
use crate::frozen::Frozen;
use crate::kernels::silu;
use crate::linear::{Bias, Linear};
use crate::mask::Layout;
use crate::target::{TargetParts, TargetSpec};
use crate::untrained::Untrained;
use crate::weights::{Init, RandomWeights, Scope};

/// Where the output layers of the heads come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OutputHead {
    /// Each head has its own, which starts as a copy of the target's and is trained. EAGLE-3 calls that `"copied"`, and a random head
    /// `"own"`.
    #[default]
    Own,
    /// All heads use the target's, frozen, which saves heads × width × vocabulary parameters.
    Shared,
}

impl OutputHead {
    /// How many of so many heads are judged together.
    pub fn judged_together(self, heads: usize) -> usize {
        match self {
            Self::Own => 1,
            Self::Shared => heads,
        }
    }
}

/// A drafter with one head for each draft depth, or anything else that gives what each step's output layer reads. It has a
/// [largest depth](Drafter::max_depth), which says how many steps are trained.
pub trait DraftHeads: Drafter {
    /// The paper's weight of the loss of head `k`, from 0, is this to the power of `k`.
    const LOSS_DECAY: f64;

    /// What the output layer of each head reads, over whole packed rows: index `t` of head `k` predicts `x_{t+2+k}`.
    ///
    /// # Shapes
    /// - following: `[batch, seq]` for each head; index `t` of entry `k` is `x_{t+1+k}`
    /// - last: `[batch, seq, d_model]`, the target's last hidden states
    /// - output: for each head `[batch * seq, width]`, as wide as its output layer reads
    fn hidden(
        &self,
        following: &[Tensor<2, Int>],
        layout: &Layout,
        last: Tensor<3>,
    ) -> Vec<Tensor<2>>;

    /// The output layer of a head.
    fn output(&self, head: usize) -> OutputLayer;

    /// Whether that is the same for all heads.
    fn shares_output(&self) -> bool;
}

/// The layer that turns a head's hidden states into logits.
#[derive(Debug, Clone)]
pub struct OutputLayer {
    /// `[width, draft_vocab]`
    pub weight: Tensor<2>,
    /// `[draft_vocab]`
    pub bias: Option<Tensor<1>>,
    /// The parameter that holds the weight, unless it is the target's.
    pub parameter: Option<ParamId>,
}

impl OutputLayer {
    /// # Shapes
    /// - hidden: `[rows, width]`
    /// - output: `[rows, draft_vocab]`, f32
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        let logits = product(hidden, self.weight.clone()).cast(DType::F32);
        match &self.bias {
            None => logits,
            Some(bias) => logits + bias.clone().cast(DType::F32).unsqueeze(),
        }
    }
}

/// The output layer of head `head`: one of its `own` or, where there is none, the target's, in the graph that parameters on
/// `device` are in.
pub(crate) fn output_layer<Config>(
    frozen: &Frozen<Config>,
    own: &[Linear],
    head: usize,
    device: &Device,
) -> OutputLayer {
    let own = own.get(head);
    OutputLayer {
        weight: frozen.head(own, device),
        bias: own.and_then(|own| own.bias.as_ref().map(|bias| bias.val())),
        parameter: own.map(|own| own.weight.id),
    }
}

/// The heads' own output layers; none when the target's is shared.
pub(crate) fn own_outputs(
    root: &mut Scope,
    heads: usize,
    [d_model, draft_vocab]: [usize; 2],
    head: OutputHead,
    bias: Bias,
) -> Result<Vec<Linear>> {
    let heads = match head {
        OutputHead::Own => heads,
        OutputHead::Shared => 0,
    };
    let own = |head| {
        let mut scope = root.child(format!("lm_heads.{head}"));
        Linear::new(&mut scope, d_model, draft_vocab, bias)
    };
    (0..heads).map(own).collect()
}

/// The layer of a residual block. Its weight starts at zero, so that the block starts as nearly nothing.
pub(crate) fn residual(scope: &mut Scope, d_in: usize, d_model: usize) -> Result<Linear> {
    Ok(Linear {
        weight: scope.transposed("weight", [d_in, d_model], Init::Constant(0.0))?,
        bias: Some(scope.vector("bias", d_model, Init::Linear { fan_in: d_in })?),
        lora: None,
    })
}

/// `x + SiLU(layer(x))` for each layer in turn.
pub(crate) fn residual_blocks(layers: &[Linear], mut x: Tensor<2>) -> Tensor<2> {
    for layer in layers {
        x = x.clone() + silu(layer.forward(x));
    }
    x
}

/// Fails on numbers that make no sense for any target; that of the heads comes with its key.
pub(crate) fn check_numbers(
    (key, heads): (&'static str, usize),
    head_layers: usize,
    draft_vocab: usize,
) -> Result<()> {
    Ok(bounds::check([
        bounds::up_to(key, heads, bounds::DRAFT),
        bounds::up_to("head_layers", head_layers, bounds::LAYERS),
        bounds::or_none("draft_vocab", draft_vocab, bounds::VOCABULARY),
    ])?)
}

/// Fails where more tokens can be proposed than the target has.
pub(crate) fn check_vocabulary(draft_vocab: usize, target: &TargetSpec) -> Result<()> {
    if draft_vocab <= target.vocab {
        return Ok(());
    }
    Err(Error::Drafter {
        key: "draft_vocab",
        mismatch: Mismatch::new(
            format!("at most the target's {} tokens", target.vocab),
            draft_vocab,
        ),
    })
}

/// The parameters of untrained heads: random, with output layers that start as the target's.
pub(crate) fn fresh_weights<'a>(
    seed: u64,
    target: &'a TargetParts,
    vocabulary: &'a DraftVocabulary,
) -> Untrained<'a> {
    Untrained {
        random: RandomWeights::new(seed),
        heads: Some("lm_heads."),
        norm: false,
        target,
        vocabulary,
    }
}

/// The head that predicts the children of a node.
///
/// # Panics
/// There is none.
pub(crate) fn head_after(parents: &[Option<usize>], node: usize, heads: usize) -> usize {
    let mut head = 1;
    let mut at = parents[node];
    while let Some(parent) = at {
        head += 1;
        at = parents[parent];
    }
    assert!(head < heads, "a draft deeper than its {heads} heads");
    head
}

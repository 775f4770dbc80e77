//! ReDrafter: one head for all draft steps, which reads the target's last hidden state beside the state of a recurrent cell
//! over the tokens drafted so far (<https://arxiv.org/abs/2403.09919>).
use burn::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_data::vocabulary::DraftVocabulary;

use crate::along::heads;
use crate::bounds;
use crate::draft_heads::{
    DraftHeads, OutputHead, OutputLayer, fresh_weights, output_layer, own_outputs, residual,
    residual_blocks,
};
use crate::drafter::Drafter;
use crate::error::Result;
use crate::frozen::Frozen;
use crate::kernels::silu;
use crate::known_text::{KnownText, TakeLogits};
use crate::linear::{Bias, Linear};
use crate::mask::{Layout, token_ids};
use crate::target::{Capture, Features, TargetParts, TargetSpec};
use crate::tree::Tree;
use crate::units::{InUnits, Sizes, Units};
use crate::weights::{Scope, Weights};

/// The `[drafter]` table of a ReDrafter recipe. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RedrafterConfig {
    /// Tokens of the longest draft, and draft steps in training.
    pub draft_tokens: usize,
    /// Residual blocks before the output layer.
    pub head_layers: usize,
    /// Whether the cell is recurrent. If not, it sums up the embeddings of the tokens.
    pub recurrent: bool,
}

impl Default for RedrafterConfig {
    fn default() -> Self {
        Self {
            draft_tokens: 5,
            head_layers: 2,
            recurrent: true,
        }
    }
}

/// The ReDrafter drafter.
#[derive(Module, Debug)]
pub struct Redrafter {
    /// Of the state before a token.
    rnn_u: Option<Linear>,
    /// Of the token's embedding.
    rnn_w: Option<Linear>,
    /// Each `[2 * d_model, 2 * d_model]`.
    blocks: Vec<Linear>,
    /// One: `[2 * d_model, vocab]`.
    lm_heads: Vec<Linear>,
    #[module(skip)]
    frozen: Frozen<RedrafterConfig>,
}

/// Decoding state of one sequence.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// `[1, d_model]`: the target's last hidden state at the last position that has one.
    hidden: Option<Tensor<2>>,
    /// The token after it, which has none.
    bonus: u32,
}

impl Redrafter {
    fn device(&self) -> Device {
        self.lm_heads[0].weight.device()
    }

    /// The cell's states behind each of some tokens, the first of which it meets as it starts: `SiLU(W e + U s + b)`, or `e + s`,
    /// with `s` 0 at the start.
    ///
    /// # Shapes
    /// - tokens, output: `[rows, d_model]` each, the tokens' embeddings
    fn states(&self, tokens: Vec<Tensor<2>>) -> Vec<Tensor<2>> {
        let mut before: Option<Tensor<2>> = None;
        let step = |token: Tensor<2>| {
            let state = match (&self.rnn_u, &self.rnn_w, before.take()) {
                (Some(u), Some(w), None) => {
                    let bias = u.bias.as_ref().map(|bias| bias.val().cast(token.dtype()));
                    let read = w.forward(token);
                    silu(match bias {
                        Some(bias) => read + bias.unsqueeze(),
                        None => read,
                    })
                }
                (Some(u), Some(w), Some(before)) => silu(w.forward(token) + u.forward(before)),
                (_, _, Some(before)) => before + token,
                (_, _, None) => token,
            };
            before = Some(state.clone());
            state
        };
        tokens.into_iter().map(step).collect()
    }

    /// What the output layer reads. `[rows, d_model]` twice to `[rows, 2 * d_model]`.
    fn read(&self, hidden: Tensor<2>, state: Tensor<2>) -> Tensor<2> {
        residual_blocks(&self.blocks, Tensor::cat(vec![hidden, state], 1))
    }

    /// Logits behind each path of tokens, the bonus token first. All are of one length.
    fn logits(&self, state: &State, paths: &[Vec<u32>]) -> Tensor<2> {
        let Some(hidden) = state.hidden.clone() else {
            panic!("drafting before anything was observed");
        };
        let [_, d_model] = hidden.dims();
        let (rows, device) = (paths.len(), self.device());
        let embedded = |place: usize| {
            let tokens: Vec<u32> = paths.iter().map(|path| path[place]).collect();
            let tokens = token_ids(&tokens, &hidden.device());
            let embedded: Tensor<2> = self.frozen.target.embed(tokens, &device).squeeze_dim(0);
            embedded.cast(hidden.dtype())
        };
        let mut states = self.states((0..paths[0].len()).map(embedded).collect());
        let last = states.pop().expect("a path begins with the bonus token");
        let read = self.read(hidden.expand([rows, d_model]), last);
        self.output(0).logits(read)
    }
}

impl DraftHeads for Redrafter {
    const LOSS_DECAY: f64 = 1.0;

    fn hidden(&self, following: &[Tensor<2, Int>], _: &Layout, last: Tensor<3>) -> Vec<Tensor<2>> {
        let [batch, seq, d_model] = last.dims();
        let (steps, rows) = (following.len(), batch * seq);
        let embedded = |tokens: &Tensor<2, Int>| {
            let embedded = self.frozen.target.embed(tokens.clone(), &self.device());
            embedded.cast(last.dtype()).reshape([rows, d_model])
        };
        let states = self.states(following.iter().map(embedded).collect());
        // The blocks take all steps together, so that their weights are read, and cast, once.
        let last = last.clone().reshape([rows, d_model]).repeat_dim(0, steps);
        let read = self.read(last, Tensor::cat(states, 0));
        let of_step = |step: usize| read.clone().narrow(0, step * rows, rows);
        (0..steps).map(of_step).collect()
    }

    fn output(&self, _: usize) -> OutputLayer {
        output_layer(&self.frozen, &self.lm_heads, 0, &self.device())
    }

    fn shares_output(&self) -> bool {
        true
    }
}

impl Drafter for Redrafter {
    type Config = RedrafterConfig;
    type State = State;

    fn check(config: &RedrafterConfig) -> Result<()> {
        Ok(bounds::check([
            bounds::up_to("draft_tokens", config.draft_tokens, bounds::DRAFT),
            bounds::up_to("head_layers", config.head_layers, bounds::LAYERS),
        ])?)
    }

    fn new(
        config: &RedrafterConfig,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        weights: &mut dyn Weights,
        device: &Device,
    ) -> Result<Self> {
        Self::capture(config, &target.spec)?;
        let (d, vocab) = (target.spec.d_model, vocabulary.len());
        // Master weights are f32 whatever the target is.
        let mut root = Scope::root(weights, device, spectrain_checkpoints::DType::F32);
        let (mut rnn_u, mut rnn_w) = (None, None);
        if config.recurrent {
            rnn_u = Some(Linear::new(&mut root.child("rnn_u"), d, d, Bias::With)?);
            rnn_w = Some(Linear::new(&mut root.child("rnn_w"), d, d, Bias::Without)?);
        }
        let mut blocks = Vec::with_capacity(config.head_layers);
        for block in 0..config.head_layers {
            let mut scope = root.child(format!("blocks.{block}"));
            blocks.push(residual(&mut scope, 2 * d, 2 * d)?);
        }
        Ok(Self {
            rnn_u,
            rnn_w,
            blocks,
            lm_heads: own_outputs(&mut root, 1, [2 * d, vocab], OutputHead::Own, Bias::Without)?,
            frozen: Frozen::new(config.clone(), target, vocabulary),
        })
    }

    fn fresh(
        config: &RedrafterConfig,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        seed: u64,
        device: &Device,
    ) -> Result<Self> {
        let mut weights = InUnits {
            drawn: fresh_weights(seed, target, vocabulary),
            units: Self::units(config, target),
        };
        Self::new(config, target, vocabulary, &mut weights, device)
    }

    /// The cell's matrix of a token reads embeddings alone. Without it the first block reads sums of them beside hidden states.
    fn units(config: &RedrafterConfig, target: &TargetParts) -> Vec<Units> {
        let (sizes, d) = (Sizes::of(target), target.spec.d_model);
        vec![match config.recurrent {
            true => ("rnn_w.weight".into(), vec![sizes.embedding; d]),
            false => {
                let read = [vec![sizes.state; d], vec![sizes.embedding; d]];
                ("blocks.0.weight".into(), read.concat())
            }
        }]
    }

    fn capture(config: &RedrafterConfig, _: &TargetSpec) -> Result<Capture> {
        Self::check(config)?;
        Ok(Capture::default())
    }

    fn frozen(&self) -> &Frozen<RedrafterConfig> {
        &self.frozen
    }

    fn max_depth(&self) -> Option<usize> {
        Some(self.frozen.config.draft_tokens)
    }

    fn parameters_per_pass(&self) -> u64 {
        self.num_params() as u64
    }

    fn start(&self, _: usize, _: u32) -> State {
        State::default()
    }

    fn observe(&self, state: &mut State, tokens: &[u32], features: &Features) {
        let last = features.last.clone().narrow(1, tokens.len() - 1, 1);
        state.hidden = Some(last.squeeze_dim(0));
        state.bonus = tokens[tokens.len() - 1];
    }

    fn root_logits(&self, state: &mut State) -> Tensor<2> {
        self.logits(state, &[vec![state.bonus]])
    }

    fn node_logits(&self, state: &mut State, tree: &Tree, nodes: &[usize]) -> Tensor<2> {
        self.logits(state, &tree.paths_behind(state.bonus, nodes))
    }

    fn along(&self, text: &KnownText, take: &mut TakeLogits) {
        heads(self, text, take);
    }

    fn rewind(&self, _: &mut State) {}
}

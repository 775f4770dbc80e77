//! The one decoder that computes Llama, Mistral, Qwen2, Qwen3 and Qwen3-MoE targets; what differs is read from `config.json`.
use std::path::{Path, PathBuf};

use burn::module::{Param, ParamId};
use burn::nn::Embedding;
use burn::prelude::*;
use burn::tensor::DType;

use crate::attention::{Attends as _, Attention, AttentionConfig};
use crate::decoder::{DecoderLayer, DecoderLayerConfig, Stream};
use crate::error::Result;
use crate::joined::{self, Joined};
use crate::linear::{Bias, Linear};
use crate::mask::{Layout, Mask, Masks, token_ids, tree_mask, tree_positions};
use crate::norm::RmsNorm;
use crate::routing::Routing;
use crate::target::{
    Caches, Capture, Features, LogitRows, Pass, SequencePass, SoftCap, Target, TargetOutput,
    TargetParts, TargetSpec,
};
use crate::weights::{Init, Scope, fuses_on};

/// What `config.json` says of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformerConfig {
    /// Sizes.
    pub spec: TargetSpec,
    /// Bias on query, key and value projections.
    pub qkv_bias: Bias,
    /// Bias on the attention's output projection.
    pub output_bias: Bias,
    /// Bias on the feed-forward projections.
    pub mlp_bias: Bias,
    /// Whether each head's queries and keys are normalised (Qwen3).
    pub head_norm: bool,
    /// Whether the head is the embedding.
    pub tied_head: bool,
    /// For each layer, how many positions back it sees, the own one counted; `None` for all.
    pub windows: Vec<Option<usize>>,
}

impl TransformerConfig {
    /// A decoder of these sizes with Qwen3's layers, each of which sees all positions, and a head of its own.
    pub fn qwen3(spec: TargetSpec) -> Self {
        Self {
            windows: vec![None; spec.layers],
            spec,
            qkv_bias: Bias::Without,
            output_bias: Bias::Without,
            mlp_bias: Bias::Without,
            head_norm: true,
            tied_head: false,
        }
    }
}

/// A decoder-only transformer of the Llama family.
#[derive(Module, Debug)]
pub struct Transformer {
    embed_tokens: Embedding,
    layers: Vec<DecoderLayer>,
    norm: RmsNorm,
    /// Absent when tied to the embedding.
    lm_head: Option<Linear>,
    #[module(skip)]
    config: TransformerConfig,
    #[module(skip)]
    folder: Option<PathBuf>,
}

impl Transformer {
    /// The model `scope` names.
    ///
    /// # Errors
    /// The source lacks a parameter, or holds it in another shape.
    pub fn new(scope: &mut Scope, config: TransformerConfig) -> Result<Self> {
        let spec = &config.spec;
        let layer = DecoderLayerConfig {
            attention: AttentionConfig {
                qkv_bias: config.qkv_bias,
                output_bias: config.output_bias,
                head_norm: config.head_norm.then_some(spec.norm_epsilon.into()),
                ..AttentionConfig::of(spec)
            },
            d_ff: spec.d_ff,
            mlp_bias: config.mlp_bias,
            experts: None,
            norm: spec.norm_epsilon.into(),
        };
        // Grown by what was found: what a file claims must not decide how much memory is asked for.
        let mut layers = Vec::new();
        for index in 0..spec.layers {
            let path = format!("layers.{index}");
            let layer = DecoderLayerConfig {
                experts: spec.experts_of(index),
                ..layer.clone()
            };
            layers.push(DecoderLayer::new(&mut scope.child(path), &layer)?);
        }
        let head = |scope: &mut Scope| {
            Linear::new(
                &mut scope.child("lm_head").shared(),
                spec.d_model,
                spec.vocab,
                Bias::Without,
            )
        };
        Ok(Self {
            embed_tokens: embedding(&mut scope.child("embed_tokens"), spec.vocab, spec.d_model)?,
            layers,
            norm: RmsNorm::new(&mut scope.child("norm"), spec.d_model, spec.norm_epsilon)?,
            lm_head: if config.tied_head {
                None
            } else {
                Some(head(scope)?)
            },
            config,
            folder: None,
        })
    }

    /// What `config.json` said.
    pub fn config(&self) -> &TransformerConfig {
        &self.config
    }

    /// The same model, said to come from `folder`.
    pub fn from_folder(self, folder: &Path) -> Self {
        Self {
            folder: Some(folder.to_owned()),
            ..self
        }
    }

    /// The pieces a drafter may share.
    pub fn parts(&self) -> TargetParts {
        TargetParts {
            spec: self.config.spec.clone(),
            embed_tokens: self.embed_tokens.clone(),
            norm: self.norm.clone(),
            lm_head: self.head(),
            soft_cap: SoftCap::default(),
            folder: self.folder.clone(),
        }
    }

    /// The head as a layer of its own; a tied one is the transposed embedding.
    pub fn head(&self) -> Linear {
        self.lm_head.clone().unwrap_or_else(|| Linear {
            // In a graph the transposed embedding is no leaf, and must not be made one.
            weight: Param::initialized(ParamId::new(), self.embed_tokens.weight.val().transpose()),
            bias: None,
            lora: None,
        })
    }

    /// The parameter that holds the head: its weight, or the embedding it is tied to.
    pub fn head_parameter(&self) -> ParamId {
        match &self.lm_head {
            Some(head) => head.weight.id,
            None => self.embed_tokens.weight.id,
        }
    }

    /// The last hidden state after the final norm, and the captured layers, of whole packed rows.
    ///
    /// # Shapes
    /// - tokens: `[batch, seq]`
    pub fn features(&self, tokens: Tensor<2, Int>, layout: &Layout, capture: &Capture) -> Features {
        let mask = |window| Some(layout.mask(window));
        let inputs = self.embed(tokens);
        self.states(inputs, layout.positions.clone(), &mask, None, capture)
    }

    /// The embedding of tokens. `[batch, seq]` to `[batch, seq, d_model]`.
    pub fn embed(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.embed_tokens.forward(tokens)
    }

    /// The embedding of tokens of a target that may know more of them: those beyond this model's are read as its last one,
    /// which makes drafts after them worse and nothing wrong. `[batch, seq]` to `[batch, seq, d_model]`.
    pub(crate) fn embed_known(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.embed(tokens.clamp_max(self.config.spec.vocab as i64 - 1))
    }

    /// The last hidden state after the final norm, and the captured layers, of inputs that stand at `positions` and see
    /// what `mask` says for the window of each layer. With caches, they come after what these hold and are added to it.
    ///
    /// # Shapes
    /// - inputs: `[batch, seq, d_model]`
    /// - positions: `[batch, seq]`
    /// - output of `mask`: `[batch, 1, seq, cached + seq]`, or of more keys that it hides; `None` where nothing is hidden
    pub fn states(
        &self,
        inputs: Tensor<3>,
        positions: Tensor<2, Int>,
        mask: &dyn Fn(Option<usize>) -> Option<Mask>,
        caches: Option<&mut Caches>,
        capture: &Capture,
    ) -> Features {
        let rotation = self.config.spec.rotary(&inputs.device()).at(positions);
        let masks = Masks::new(&self.config.windows, mask);
        let Some(caches) = caches else {
            return self.run(inputs, capture, |index, attention, x| {
                attention.forward(x, &rotation, masks.of(index).as_ref(), None)
            });
        };
        caches.len += inputs.dims()[1];
        self.run(inputs, capture, |index, attention, x| {
            let cache = &mut caches.layers[index];
            attention.forward(x, &rotation, masks.of(index).as_ref(), Some(cache))
        })
    }

    /// The same model with each linear layer changed, but the head and the parts with experts.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn map_linear(mut self, change: &mut dyn FnMut(Linear) -> Result<Linear>) -> Result<Self> {
        let layers = std::mem::take(&mut self.layers).into_iter();
        self.layers = layers
            .map(|layer| layer.map_linear(change))
            .collect::<Result<_>>()?;
        Ok(self)
    }

    /// The same model, frozen from now on, with linear layers that read the same as one product. On the CPU it stays as it is.
    pub fn fused(mut self) -> Self {
        if !fuses_on(&self.embed_tokens.weight.device()) {
            return self;
        }
        let layers = std::mem::take(&mut self.layers).into_iter();
        self.layers = layers.map(DecoderLayer::fused).collect();
        self
    }

    /// The same model without the layers behind its first `count`.
    pub(crate) fn first_layers(mut self, count: usize) -> Self {
        self.layers.truncate(count);
        self.config.windows.truncate(count);
        if let Some(routing) = &mut self.config.spec.routing {
            routing.layers.truncate(count);
        }
        self.config.spec.layers = self.layers.len();
        self
    }

    /// All layers with attention by `attend`, which is given a layer's number and what its attention reads.
    fn run(
        &self,
        inputs: Tensor<3>,
        capture: &Capture,
        mut attend: impl FnMut(usize, &Attention, Tensor<3>) -> Tensor<3>,
    ) -> Features {
        let mut stream = Stream::from(inputs);
        let mut captured = Vec::with_capacity(capture.layers.len());
        for (index, layer) in self.layers.iter().enumerate() {
            stream = layer.carry(stream, |attention, x| attend(index, attention, x));
            if capture.layers.contains(&index) {
                let x = stream.sum();
                captured.push(x.clone());
                stream = Stream::from(x);
            }
        }
        let (_, last) = stream.normed(&self.norm);
        let captured = if captured.is_empty() {
            let [batch, seq, _] = last.dims();
            Tensor::zeros([batch, seq, 0], (&last.device(), last.dtype()))
        } else {
            Tensor::cat(captured, 2)
        };
        Features { captured, last }
    }
}

impl Target for Transformer {
    fn spec(&self) -> &TargetSpec {
        &self.config.spec
    }

    fn device(&self) -> Device {
        self.embed_tokens.weight.device()
    }

    fn parameters(&self) -> u64 {
        self.num_params() as u64
    }

    fn parameters_per_pass(&self) -> u64 {
        let spec = &self.config.spec;
        let idle = |routing: &Routing| routing.idle_parameters(spec.d_model);
        // Of the embedding a pass reads the rows of its tokens alone, but all of it where it is the head.
        let looked_up = match self.config.tied_head {
            true => 0,
            false => spec.vocab * spec.d_model,
        };
        self.parameters() - looked_up as u64 - spec.routing.as_ref().map_or(0, idle)
    }

    fn dtype(&self) -> DType {
        self.embed_tokens.weight.val().dtype()
    }

    fn parts(&self) -> TargetParts {
        Self::parts(self)
    }

    fn decode(&self, pass: Pass, caches: &mut Caches, capture: &Capture) -> TargetOutput {
        let device = self.device();
        let cached = caches.len;
        let positions = tree_positions(pass.parents, cached, &device);
        let mask = |window| tree_mask(pass.parents, cached, window, &device);
        let inputs = self.embed(token_ids(pass.tokens, &device));
        let features = self.states(inputs, positions, &mask, Some(caches), capture);
        let rows = match pass.logits {
            LogitRows::All => features.last.clone(),
            LogitRows::Last => features.last.clone().narrow(1, pass.tokens.len() - 1, 1),
        };
        let logits = self.head().forward(rows).cast(DType::F32);
        TargetOutput {
            logits: logits.squeeze_dim(0),
            features,
        }
    }

    /// What works row by row is done for the rows of all sequences together, attention for each with its own cache.
    fn decode_batch(&self, passes: Vec<SequencePass>, capture: &Capture) -> Vec<TargetOutput> {
        let passes = match <[SequencePass; 1]>::try_from(passes) {
            Ok([one]) => return vec![self.decode(one.pass, one.caches, capture)],
            Err(several) => several,
        };
        let device = self.device();
        let of = |SequencePass { pass, caches }| {
            Joined::new(pass, caches, &self.config.windows, &device)
        };
        let mut joined: Vec<Joined> = passes.into_iter().map(of).collect();
        if joined.is_empty() {
            return Vec::new();
        }
        let tokens: Vec<u32> = joined.iter().flat_map(|of| of.tokens).copied().collect();
        let positions = joined.iter().map(|of| of.positions.clone()).collect();
        let rotation = self
            .config
            .spec
            .rotary(&device)
            .at(Tensor::cat(positions, 1));
        let inputs = self.embed(token_ids(&tokens, &device));
        let features = self.run(inputs, capture, |index, attention, x| {
            let rows = joined.iter_mut().map(|of| of.rows(index)).collect();
            attention.forward_sequences(x, &rotation, rows)
        });
        let last = joined::wanted(&joined, features.last.clone());
        let logits = self.head().forward(last).cast(DType::F32);
        joined::apart(&joined, &features, &logits)
    }
}

/// A table of token embeddings, `[vocab, d_model]`.
///
/// # Errors
/// The source lacks `weight`, or holds it in another shape.
pub fn embedding(scope: &mut Scope, vocab: usize, d_model: usize) -> Result<Embedding> {
    Ok(Embedding {
        weight: scope.matrix("weight", [vocab, d_model], Init::Normal(0.02))?,
    })
}

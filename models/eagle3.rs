//! EAGLE-3: one decoder layer, or several, over fused hidden states (<https://arxiv.org/abs/2503.01840>), with the two norms of
//! EAGLE-3.1 as options.
use burn::module::ParamId;
use burn::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::Mismatch;
use spectrain_checkpoints::eagle3::paper_layers;
use spectrain_data::vocabulary::DraftVocabulary;

use crate::attention::Projects;
use crate::bounds;
use crate::draft_state::DraftState;
use crate::drafter::Drafter;
use crate::drafts_unrolled::drafts_unrolled;
use crate::eagle_layer::{EagleLayer, Inside, fuse, fuse_norms};
use crate::error::{Error, Result};
use crate::frozen::Frozen;
use crate::latent_table::LatentTable;
use crate::linear::{Bias, Linear};
use crate::norm::RmsNorm;
use crate::of_tokens::OfTokens;
use crate::target::{Capture, Features, TargetParts, TargetSpec};
use crate::unrolls::Unrolls;
use crate::untrained::Untrained;
use crate::weights::{Scope, Weights};

/// The `[drafter]` table of an EAGLE-3 recipe. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Eagle3Config {
    /// The layers whose output the drafter reads, 0-based and ascending. Empty takes the paper's three: `[1, layers / 2
    /// - 1, layers - 4]`.
    pub captured_layers: Vec<usize>,
    /// Number of tokens that the drafter can propose: the most frequent ones in the training data, and the stop tokens; 0 takes
    /// all of the target's tokens.
    pub draft_vocab: usize,
    /// Where the head comes from.
    pub head: Head,
    /// Decoder layers, the first of which reads embeddings as well as hidden states; the paper has 1. vLLM and SGLang support more.
    pub layers: usize,
    /// Width inside the feed-forward part; 0 takes the target's.
    pub d_ff: usize,
    /// Query heads; 0 takes as many, up to the target's, as divide the width.
    pub heads: usize,
    /// Key and value heads; 0 takes as many of the target's as divide `heads`.
    pub kv_heads: usize,
    /// Width of a head, an even number; left out, or 0, it is the target's. Engines' kernels take multiples of 8 from 32 to 256.
    #[serde(skip_serializing_if = "bounds::is_left_out")]
    pub d_head: usize,
    /// Latent attention in place of grouped heads, as in drafters for Kimi-K2, so that engines cache as little of the drafter as of such a
    /// target. vLLM refuses it beside a target that has none itself.
    pub latent: Option<LatentTable>,
    /// Whether the layers normalise queries and keys head by head, as Qwen3's layers do and Llama's do not. Of the engines, only
    /// vLLM supports it, from 0.24 on.
    pub head_norm: bool,
    /// Whether the residual branch takes the normalised fused state (speculators) instead of the plain one (the paper). SGLang
    /// cannot serve such a drafter.
    pub norm_before_residual: bool,
    /// Whether each captured layer is normalised before the layers are fused (EAGLE-3.1).
    pub fc_norm: bool,
    /// Whether the captured layers are normalised together before they are fused, as the speculators library does by default.
    /// vLLM and SGLang support it.
    pub norm_before_fc: bool,
    /// Whether the next draft step reads the output after the final norm (EAGLE-3.1) instead of before it (the paper).
    pub norm_output: bool,
    /// How many positions back the layers see, including their own, as in drafters of the speculators library; 0 sees all.
    /// vLLM and SGLang support it, SGLang by a flag and from 2 on.
    pub window: usize,
}

/// Where the drafter's head comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Head {
    /// Drawn at random and trained, as in the paper. Medusa's and Hydra's `"own"` heads start as copies, as with `"copied"` here.
    Own,
    /// Starts as the target's rows and is trained, as is the norm before it.
    #[default]
    Copied,
    /// The target's rows, frozen; the norm before it starts as the target's.
    Shared,
}

impl Head {
    /// The parameters of a drafter with such a head before its training, drawn from `seed`.
    pub(crate) fn untrained<'a>(
        self,
        seed: u64,
        target: &'a TargetParts,
        vocabulary: &'a DraftVocabulary,
    ) -> Untrained<'a> {
        Untrained {
            heads: (self == Self::Copied).then_some("lm_head."),
            norm: self != Self::Own,
            ..Untrained::beside_head(seed, target, vocabulary)
        }
    }
}

impl Default for Eagle3Config {
    fn default() -> Self {
        Self {
            captured_layers: Vec::new(),
            draft_vocab: 0,
            head: Head::Copied,
            layers: 1,
            d_ff: 0,
            heads: 0,
            kv_heads: 0,
            d_head: 0,
            latent: None,
            head_norm: false,
            norm_before_residual: false,
            fc_norm: false,
            norm_before_fc: false,
            norm_output: false,
            window: 0,
        }
    }
}

/// The EAGLE-3 drafter. Its fields carry the names of the checkpoint.
#[derive(Module, Debug)]
pub struct Eagle3 {
    /// One for each captured layer in EAGLE-3.1, none otherwise.
    fc_norm: Vec<RmsNorm>,
    /// Of all captured layers together, with `norm_before_fc`.
    input_norm: Option<RmsNorm>,
    fc: Linear,
    layers: Vec<EagleLayer>,
    norm: RmsNorm,
    /// Absent when the target's head is shared.
    lm_head: Option<Linear>,
    #[module(skip)]
    frozen: Frozen<Eagle3Config>,
}

impl Eagle3 {
    /// Fuses captured layers into one hidden state per position.
    ///
    /// # Shapes
    /// - captured: `[batch, seq, captured layers * d_model]`
    /// - output: `[batch, seq, d_model]`
    pub fn fuse(&self, captured: Tensor<3>) -> Tensor<3> {
        fuse(&self.fc, self.input_norm.as_ref(), &self.fc_norm, captured)
    }
}

impl Drafter for Eagle3 {
    type Config = Eagle3Config;
    type State = DraftState;

    fn check(config: &Eagle3Config) -> Result<()> {
        bounds::check([
            bounds::or_none("draft_vocab", config.draft_vocab, bounds::VOCABULARY),
            bounds::up_to("layers", config.layers, bounds::LAYERS),
            bounds::or_none("d_ff", config.d_ff, bounds::FEED_FORWARD),
            bounds::or_none("heads", config.heads, bounds::HEADS),
            bounds::or_none("kv_heads", config.kv_heads, bounds::HEADS),
            bounds::or_none("window", config.window, bounds::TEXT),
        ])?;
        bounds::check_heads("d_head", config.d_head)?;
        match &config.latent {
            Some(latent) => config.check_beside(latent),
            None => Ok(()),
        }
    }

    fn new(
        config: &Eagle3Config,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        weights: &mut dyn Weights,
        device: &Device,
    ) -> Result<Self> {
        Self::check(config)?;
        let target = &target.with_heads(config.d_head)?;
        let spec = &target.spec;
        let captured = Self::capture(config, spec)?.layers.len();
        let config = config.resolve(spec)?;
        let d = spec.d_model;
        // Master weights are f32 whatever the target is.
        let mut root = Scope::root(weights, device, spectrain_checkpoints::DType::F32);
        let norms = [config.norm_before_fc, config.fc_norm];
        let (input_norm, fc_norm) = fuse_norms(&mut root, norms, captured, spec)?;
        let fc = Linear::new(&mut root.child("fc"), captured * d, d, Bias::Without)?;
        let layers = EagleLayer::stack(&mut root, spec, config.inside(spec), config.layers)?;
        let norm = RmsNorm::new(&mut root.child("norm"), d, spec.norm_epsilon)?;
        let lm_head = match config.head {
            Head::Shared => None,
            Head::Own | Head::Copied => {
                let mut scope = root.child("lm_head");
                Some(Linear::new(&mut scope, d, vocabulary.len(), Bias::Without)?)
            }
        };
        let shared = config.head == Head::Shared;
        let frozen = Frozen::new(config, target, vocabulary).sharing_head(shared);
        Ok(Self {
            fc_norm,
            input_norm,
            fc,
            layers,
            norm,
            lm_head,
            frozen,
        })
    }

    fn fresh(
        config: &Eagle3Config,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        seed: u64,
        device: &Device,
    ) -> Result<Self> {
        let mut weights = config.head.untrained(seed, target, vocabulary);
        Self::new(config, target, vocabulary, &mut weights, device)
    }

    fn capture(config: &Eagle3Config, target: &TargetSpec) -> Result<Capture> {
        Ok(Capture {
            layers: config.resolve(target)?.captured_layers,
        })
    }

    drafts_unrolled!();

    fn parameters_per_pass(&self) -> u64 {
        let shared = self.frozen.shared_parameters(self.lm_head.as_ref());
        (self.num_params() + shared) as u64
    }

    fn frozen(&self) -> &Frozen<Eagle3Config> {
        &self.frozen
    }
}

impl Unrolls for Eagle3 {
    fn begin(&self, features: &Features) -> Tensor<3> {
        self.fuse(features.captured.clone())
    }

    fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Half of what the first attention multiplies.
    fn of_tokens(&self, embedded: Tensor<3>) -> OfTokens {
        self.layers[0].of_tokens(embedded)
    }

    /// Before the final norm.
    fn pass(
        &self,
        tokens: OfTokens,
        hidden: Tensor<3>,
        mut attend: impl FnMut(usize, &dyn Projects, Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let first = self.frozen.config.norm_before_residual;
        EagleLayer::through(&self.layers, (tokens, hidden), first, &mut attend)
    }

    fn next(&self, output: Tensor<3>) -> Tensor<3> {
        if self.frozen.config.norm_output {
            self.norm.forward(output)
        } else {
            output
        }
    }

    fn normed(&self, output: Tensor<3>) -> Tensor<3> {
        self.norm.forward(output)
    }

    fn head(&self) -> Tensor<2> {
        self.frozen
            .head(self.lm_head.as_ref(), &self.fc.weight.device())
    }

    fn head_parameter(&self) -> Option<ParamId> {
        self.lm_head.as_ref().map(|head| head.weight.id)
    }

    fn sees_back(&self) -> Option<usize> {
        let window = self.frozen.config.window;
        (window > 0).then_some(window)
    }

    fn turned(&self) -> usize {
        match &self.frozen.config.latent {
            Some(latent) => latent.d_turned,
            None => self.target().spec.d_head,
        }
    }
}

impl Eagle3Config {
    /// Of settings whose sizes are filled in, for a target.
    pub(crate) fn inside(&self, target: &TargetSpec) -> Inside {
        let latent = self.latent.as_ref();
        Inside {
            latent: latent.map(|latent| latent.attention(target, self.heads)),
            sizes: [self.d_ff, self.heads, self.kv_heads],
            head_norm: self.head_norm,
            qkv_bias: Bias::Without,
        }
    }

    /// Fails on what makes no sense beside latent attention, or what no engine gives it.
    fn check_beside(&self, latent: &LatentTable) -> Result<()> {
        latent.check()?;
        if latent.q_rank == 0 {
            let expected = "at least 1, as engines load no other layer of EAGLE-3";
            return Err(Error::of_key("latent.q_rank", expected, 0));
        }
        if self.kv_heads != 0 && self.kv_heads != self.heads {
            let expected = "nothing beside `latent`, or as many as `heads`: each has keys and values of its own";
            return Err(Error::of_key("kv_heads", expected, self.kv_heads));
        }
        for (key, found, is_set) in [
            ("d_head", self.d_head.to_string(), self.d_head != 0),
            ("window", self.window.to_string(), self.window != 0),
            ("head_norm", "true".to_owned(), self.head_norm),
            ("norm_before_fc", "true".to_owned(), self.norm_before_fc),
        ] {
            if is_set {
                return Err(Error::of_key(
                    key,
                    "nothing beside `latent`, which no engine gives it",
                    found,
                ));
            }
        }
        Ok(())
    }

    /// The captured layers, ascending.
    fn captured(&self, target: &TargetSpec) -> Result<Vec<usize>> {
        let layers = target.layers;
        let chosen = match self.captured_layers.as_slice() {
            [] => paper_layers(layers),
            given => given.to_vec(),
        };
        let ascending = chosen.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || chosen.last().is_some_and(|&last| last >= layers) {
            return Err(Error::Drafter {
                key: "captured_layers",
                mismatch: Mismatch::new(
                    format!("ascending layers below {layers}"),
                    format!("{chosen:?}"),
                ),
            });
        }
        Ok(chosen)
    }

    /// With the sizes that were left out taken from the target.
    pub(crate) fn resolve(&self, target: &TargetSpec) -> Result<Self> {
        let [d_ff, heads, kv_heads] = target.layer_sizes(self.d_ff, self.heads, self.kv_heads)?;
        let latent = self.latent.as_ref();
        latent.map_or(Ok(()), |latent| latent.check_positions(target))?;
        let resolved = Self {
            latent: latent.map(LatentTable::filled),
            captured_layers: self.captured(target)?,
            draft_vocab: match self.draft_vocab {
                0 => target.vocab,
                given => given,
            },
            d_ff,
            heads,
            // Each of latent attention has keys of its own.
            kv_heads: latent.map_or(kv_heads, |_| heads),
            ..self.clone()
        };
        if resolved.norm_before_fc && resolved.fc_norm {
            return Err(Error::Drafter {
                key: "norm_before_fc",
                mismatch: Mismatch::new("false where `fc_norm` is true", true),
            });
        }
        if resolved.draft_vocab > target.vocab {
            return Err(Error::Drafter {
                key: "draft_vocab",
                mismatch: Mismatch::new(
                    format!("at most the target's {} tokens", target.vocab),
                    resolved.draft_vocab,
                ),
            });
        }
        Ok(resolved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beside_latent_attention_no_key_of_grouped_heads_is_taken() {
        let latent = || Eagle3Config {
            latent: Some(LatentTable::default()),
            ..Eagle3Config::default()
        };
        let with = |change: fn(&mut Eagle3Config)| {
            let mut config = latent();
            change(&mut config);
            Eagle3::check(&config).map_err(|error| error.to_string())
        };
        assert_eq!(with(|_| ()), Ok(()));
        assert_eq!(
            with(|config| (config.heads, config.kv_heads) = (8, 8)),
            Ok(())
        );
        for (key, change) in [
            (
                "kv_heads",
                (|config| (config.heads, config.kv_heads) = (8, 4)) as fn(&mut Eagle3Config),
            ),
            ("d_head", |config| config.d_head = 64),
            ("window", |config| config.window = 9),
            ("head_norm", |config| config.head_norm = true),
            ("norm_before_fc", |config| config.norm_before_fc = true),
            ("latent.q_rank", |config| {
                config.latent.as_mut().unwrap().q_rank = 0;
            }),
            ("latent.d_turned", |config| {
                config.latent.as_mut().unwrap().d_turned = 7;
            }),
        ] {
            let refused = with(change).unwrap_err();
            assert!(
                refused.contains(&format!("`[drafter] {key}`: expected ")),
                "{key}: {refused}"
            );
        }
    }
}

//! What a drafter that is a language model starts from: a model on the disk, some layers of one, or chance.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use spectrain_checkpoints::folder::CONFIG;
use spectrain_checkpoints::language_model::{self, TARGET_PROJ};
use spectrain_checkpoints::{
    HubOptions, Mismatch, ModelFolder, NamedTensor, masked_language_model, resolve,
};

use crate::bounds;
use crate::config::{check_tied_head, unread_tensors};
use crate::error::{Error, Result};
use crate::lora::{self, LoraConfig};
use crate::routing::Routing;
use crate::target::{TargetParts, TargetSpec};
use crate::transformer::{Transformer, TransformerConfig};
use crate::weights::{FolderWeights, Init, RandomWeights, Weights};

/// The table `[drafter.fresh]`: sizes of a model that starts at random, with Qwen3's layers. Every key may be left out; where it is 0 or left
/// out, the target's size is taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FreshConfig {
    /// Decoder layers.
    pub layers: usize,
    /// Width; 0 takes the target's.
    pub d_model: usize,
    /// Width inside the feed-forward part; 0 takes the target's.
    pub d_ff: usize,
    /// Query heads; 0 takes as many, up to the target's, as divide the width.
    pub heads: usize,
    /// Key and value heads; 0 takes as many of the target's as divide `heads`.
    pub kv_heads: usize,
    /// Width of a head, an even number; 0 takes the target's. Engines' kernels take multiples of 8 from 32 to 256.
    pub d_head: usize,
    /// Whether the head shares the weights of the embedding.
    pub tied_head: bool,
}

impl Default for FreshConfig {
    fn default() -> Self {
        Self {
            layers: 2,
            d_model: 0,
            d_ff: 0,
            heads: 0,
            kv_heads: 0,
            d_head: 0,
            tied_head: true,
        }
    }
}

impl FreshConfig {
    fn check(&self) -> Result<()> {
        bounds::check([
            bounds::up_to("fresh.layers", self.layers, bounds::LAYERS),
            bounds::or_none("fresh.d_model", self.d_model, bounds::WIDTH),
            bounds::or_none("fresh.d_ff", self.d_ff, bounds::FEED_FORWARD),
            bounds::or_none("fresh.heads", self.heads, bounds::HEADS),
            bounds::or_none("fresh.kv_heads", self.kv_heads, bounds::HEADS),
        ])?;
        Ok(bounds::check_heads("fresh.d_head", self.d_head)?)
    }

    /// The structure of such a model for `target`.
    ///
    /// # Errors
    /// The sizes make no sense.
    pub fn structure(&self, target: &TargetSpec) -> Result<TransformerConfig> {
        let or = |given: usize, default: usize| if given == 0 { default } else { given };
        let spec = TargetSpec {
            layers: self.layers,
            d_model: or(self.d_model, target.d_model),
            d_head: or(self.d_head, target.d_head),
            routing: None,
            ..target.clone()
        };
        let sizes = spec.layer_sizes(self.d_ff, self.heads, self.kv_heads);
        let [d_ff, heads, kv_heads] = sizes.map_err(|error| match error {
            Error::Drafter { mismatch, .. } => Error::Drafter {
                key: "fresh.kv_heads",
                mismatch,
            },
            other => other,
        })?;
        self.check()?;
        let spec = TargetSpec {
            d_ff,
            heads,
            kv_heads,
            ..spec
        };
        Ok(TransformerConfig {
            tied_head: self.tied_head,
            ..TransformerConfig::qwen3(spec)
        })
    }
}

/// Declares the `[drafter]` table of a family that starts from a language model: the keys that say what it starts from,
/// and behind them its own.
macro_rules! table_with_start {
    (
        $(#[$of_table:meta])*
        pub struct $name:ident { $($(#[$of_key:meta])* pub $key:ident: $type:ty,)* }
    ) => {
        $(#[$of_table])*
        pub struct $name {
            /// Hub id or folder of the model to start from. Empty starts from the target, cut down to `keep_layers`, or from
            /// random weights with `fresh`.
            pub model: String,
            /// Branch, tag or commit of a hub id in `model`. Left out: the hub's main branch.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub revision: Option<String>,
            /// Layers to keep, 0-based and ascending, of `model` or, without it, of the target. Empty keeps all of
            /// `model`.
            pub keep_layers: Vec<usize>,
            /// Sizes of a model that starts from random weights.
            pub fresh: Option<$crate::start::FreshConfig>,
            /// Trains low-rank matrices beside every linear layer instead of its weights, to which they are added when the
            /// drafter is written.
            pub lora: Option<$crate::lora::LoraConfig>,
            $($(#[$of_key])* pub $key: $type,)*
        }

        impl $crate::start::StartConfig for $name {
            fn start(&self) -> $crate::start::Start<'_> {
                $crate::start::Start {
                    model: &self.model,
                    revision: self.revision.as_deref(),
                    keep_layers: &self.keep_layers,
                    fresh: self.fresh.as_ref(),
                    lora: self.lora.as_ref(),
                }
            }

            fn without_start(&self) -> Self {
                Self {
                    model: String::new(),
                    revision: None,
                    keep_layers: Vec::new(),
                    fresh: Some($crate::start::FreshConfig::default()),
                    ..self.clone()
                }
            }
        }
    };
}
pub(crate) use table_with_start;

/// The settings of a drafter that starts from a language model.
pub trait StartConfig {
    /// What it starts from.
    fn start(&self) -> Start<'_>;

    /// The same settings of a drafter that starts from random weights in the sizes that a target suggests.
    fn without_start(&self) -> Self
    where
        Self: Sized;

    /// What the model looks like at the start.
    ///
    /// # Errors
    /// No model to start from is named, or it does not go with the target.
    fn structure(&self, target: &TargetParts) -> Result<TransformerConfig> {
        self.start().structure(target)
    }
}

/// The keys that say what a model starts from, and which of it is trained.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// Hub id or folder; empty for the target.
    pub model: &'a str,
    /// Branch, tag or commit of a hub id.
    pub revision: Option<&'a str>,
    /// Layers to keep; empty for all.
    pub keep_layers: &'a [usize],
    /// Sizes, where it starts at random.
    pub fresh: Option<&'a FreshConfig>,
    /// The low-rank matrices, where those alone are trained.
    pub lora: Option<&'a LoraConfig>,
}

impl Start<'_> {
    /// Fails on numbers that make no sense for any target.
    pub(crate) fn check_numbers(&self) -> Result<()> {
        if let Some(lora) = self.lora {
            lora.check()?;
        }
        self.fresh.map_or(Ok(()), FreshConfig::check)
    }

    /// Fails where a drafter of the target's own layers, or a fresh one, does not fit a target of these sizes.
    pub(crate) fn check_fit(&self, target: &TargetSpec) -> Result<()> {
        self.check()?;
        if let Some(fresh) = self.fresh {
            fresh.structure(target)?;
        }
        if self.model.is_empty() && self.fresh.is_none() {
            self.check_dense(target)?;
            self.check_kept(target.layers)?;
        }
        Ok(())
    }

    /// Fails where the model to start from, which has these sizes, has experts: these are computed, not trained.
    ///
    /// # Errors
    /// It has.
    pub fn check_dense(&self, start: &TargetSpec) -> Result<()> {
        let key = if self.model.is_empty() {
            "keep_layers"
        } else {
            "model"
        };
        match start.routing {
            None => Ok(()),
            Some(_) => Err(Routing::not_trained(key)),
        }
    }

    /// Fails where a drafter of the target's tokens does not know one that it is to set.
    pub(crate) fn check_token(
        &self,
        key: &'static str,
        token: u32,
        target: &TargetSpec,
    ) -> Result<()> {
        if !self.model.is_empty() || (token as usize) < target.vocab {
            return Ok(());
        }
        Err(Error::Drafter {
            key,
            mismatch: Mismatch::new(
                format!(
                    "an id below {}, the number of the target's tokens",
                    target.vocab
                ),
                token,
            ),
        })
    }

    /// Fails where a layer is to be kept that is none of `layers`.
    fn check_kept(&self, layers: usize) -> Result<()> {
        match self.keep_layers.iter().find(|&&layer| layer >= layers) {
            None => Ok(()),
            Some(layer) => Err(Error::Drafter {
                key: "keep_layers",
                mismatch: Mismatch::new(format!("layers below {layers}"), layer),
            }),
        }
    }

    /// Fails unless exactly one beginning is named.
    pub(crate) fn check(&self) -> Result<()> {
        let problem = |key, expected: &str, got: String| {
            Err(Error::Drafter {
                key,
                mismatch: Mismatch::new(expected, got),
            })
        };
        if let Some(revision) = self.revision.filter(|_| self.model.is_empty()) {
            let got = format!("`{revision}`");
            return problem("revision", "none, as no `model` is named", got);
        }
        if !self.keep_layers.is_sorted_by(|a, b| a < b) {
            let got = format!("{:?}", self.keep_layers);
            return problem("keep_layers", "ascending layers", got);
        }
        match (
            self.fresh,
            self.model.is_empty(),
            self.keep_layers.is_empty(),
        ) {
            (None, true, true) => problem(
                "model",
                "a hub id or a folder, unless `keep_layers` or `fresh` is there",
                "none of these".into(),
            ),
            (Some(_), false, _) => problem("fresh", "no such table beside `model`", "one".into()),
            (Some(_), true, false) => {
                problem("fresh", "no such table beside `keep_layers`", "one".into())
            }
            _ => Ok(()),
        }
    }

    /// The structure of the model at the start. One that no folder can hold is refused here, before it is trained.
    pub(crate) fn structure(&self, target: &TargetParts) -> Result<TransformerConfig> {
        self.check()?;
        let config = self.structure_at_start(target)?;
        config.to_json()?;
        Ok(config)
    }

    fn structure_at_start(&self, target: &TargetParts) -> Result<TransformerConfig> {
        if let Some(fresh) = self.fresh {
            return fresh.structure(&target.spec);
        }
        let folder = self.folder(target)?;
        let config = self.structure_of(&folder)?;
        check_tied_head(&folder, &config)?;
        self.check_dense(&config.spec)?;
        Ok(config)
    }

    /// The structure of the model in the folder to start from, as far as its layers are kept.
    pub(crate) fn structure_of(&self, folder: &ModelFolder) -> Result<TransformerConfig> {
        let mut config = structure_in(folder)?;
        if self.keep_layers.is_empty() {
            return Ok(config);
        }
        self.check_kept(config.spec.layers)?;
        config.windows = self
            .keep_layers
            .iter()
            .map(|&i| config.windows[i])
            .collect();
        config.spec.layers = self.keep_layers.len();
        Ok(config)
    }

    /// The model as it is trained, with what is drawn from `seed`: itself, or low-rank matrices beside it.
    ///
    /// # Errors
    /// A setting makes no sense.
    pub(crate) fn adapted(
        &self,
        model: Transformer,
        target: &TargetParts,
        seed: u64,
    ) -> Result<Transformer> {
        match self.lora {
            Some(settings) => lora::adapt(model, settings, seed, target.dtype()),
            None => Ok(model),
        }
    }

    /// Calls `make` with the parameters at the start.
    pub(crate) fn with_weights<T>(
        &self,
        target: &TargetParts,
        seed: u64,
        make: impl FnOnce(&mut dyn Weights) -> Result<T>,
    ) -> Result<T> {
        self.check()?;
        if self.fresh.is_some() {
            return make(&mut RandomWeights::new(seed));
        }
        let folder = self.folder(target)?;
        let mut kept = Kept {
            folder: FolderWeights::new(&folder, "model."),
            layers: self.keep_layers,
        };
        let made = make(&mut kept)?;
        kept.folder.finish(&self.unread(&folder)?)?;
        Ok(made)
    }

    /// Tensors of the folder that may be there without being read: those that a target may have, those of layers that are not kept,
    /// and a projection, which [`beside`](Self::beside) reads.
    pub(crate) fn unread(&self, folder: &ModelFolder) -> Result<Vec<String>> {
        let mut unread = unread_tensors(folder, &structure_in(folder)?);
        unread.push(TARGET_PROJ.to_owned());
        let kept: Vec<String> = (self.keep_layers.iter())
            .map(|layer| format!("model.layers.{layer}."))
            .collect();
        let is_left = |name: &str| {
            let of_layer = name.starts_with("model.layers.") && !kept.is_empty();
            of_layer && !kept.iter().any(|layer| name.starts_with(layer))
        };
        let names = folder.tensors().map(|tensor| tensor.name.clone());
        unread.extend(names.filter(|name| is_left(name)));
        Ok(unread)
    }

    /// A tensor beside the model in the folder to start from; nothing where it has none, or where there is no folder.
    ///
    /// # Errors
    /// It has another shape.
    pub(crate) fn beside(
        &self,
        target: &TargetParts,
        name: &str,
        shape: &[usize],
    ) -> Result<Option<NamedTensor>> {
        if self.model.is_empty() {
            return Ok(None);
        }
        let folder = self.folder(target)?;
        if folder.info(name).is_err() {
            return Ok(None);
        }
        let mut weights = FolderWeights::new(&folder, "");
        weights.tensor(name, shape, Init::Constant(0.0)).map(Some)
    }

    /// Warns where the folder to start from is of a drafter with another mask token, of which it learned what it stands for.
    pub(crate) fn compare_mask(&self, target: &TargetParts, mask_token: u32) -> Result<()> {
        if self.model.is_empty() {
            return Ok(());
        }
        let folder = self.folder(target)?;
        let config = folder.config();
        let learned = language_model::mask_token(config);
        let learned = learned.or_else(|| masked_language_model::mask_token(config));
        let learned = learned.and_then(Value::as_u64);
        if let Some(learned) = learned.filter(|&learned| learned != u64::from(mask_token)) {
            tracing::warn!(
                "`drafter.mask_token` is {mask_token}, but the drafter in `{}` was trained with {learned}, and has to learn it anew",
                folder.path().display()
            );
        }
        Ok(())
    }

    fn folder(&self, target: &TargetParts) -> Result<ModelFolder> {
        if !self.model.is_empty() {
            let folder = resolve(self.model, self.revision, &HubOptions::default())?;
            return Ok(ModelFolder::open(folder)?);
        }
        match &target.folder {
            Some(folder) => Ok(ModelFolder::open(folder)?),
            None => Err(Error::Drafter {
                key: "keep_layers",
                mismatch: Mismatch::new(
                    "a target that was loaded from a folder",
                    "one that was not",
                ),
            }),
        }
    }
}

/// The structure of the model in a folder that a drafter starts from: an ordinary model's, or that of a masked-diffusion drafter's
/// decoder.
///
/// # Errors
/// Its architecture is not supported, or a key is missing or of the wrong kind.
fn structure_in(folder: &ModelFolder) -> Result<TransformerConfig> {
    let decoder = masked_language_model::decoder(folder.config());
    TransformerConfig::read(&decoder, &folder.path().join(CONFIG))
}

/// The parameters of some layers of a folder, under the numbers that they get.
pub(crate) struct Kept<'a, W> {
    pub(crate) folder: W,
    /// All where empty.
    pub(crate) layers: &'a [usize],
}

impl<W: Weights> Weights for Kept<'_, W> {
    fn tensor(&mut self, name: &str, shape: &[usize], init: Init) -> Result<NamedTensor> {
        let numbered = name.strip_prefix("layers.").and_then(|rest| {
            let (number, rest) = rest.split_once('.')?;
            let layer = self.layers.get(number.parse::<usize>().ok()?)?;
            Some(format!("layers.{layer}.{rest}"))
        });
        let stored = numbered.as_deref().unwrap_or(name);
        let tensor = self.folder.tensor(stored, shape, init)?;
        Ok(NamedTensor {
            name: name.to_owned(),
            ..tensor
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    #[test]
    fn a_revision_is_of_a_model_that_is_named() {
        let start = |model: &'static str| Start {
            model,
            revision: Some("v1"),
            keep_layers: &[0],
            fresh: None,
            lora: None,
        };
        start("org/name").check().unwrap();
        let error = start("").check().unwrap_err().to_string();
        let words = ["revision`", "no `model` is named", "`v1`"];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }

    #[test]
    fn a_fresh_models_heads_divide_its_own_width() {
        let target = json!({
            "model_type": "qwen3", "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 8, "num_hidden_layers": 2, "vocab_size": 20, "max_position_embeddings": 64,
        });
        let target = TransformerConfig::read(&target, Path::new(CONFIG)).unwrap();
        let heads = |d_model: usize| {
            let fresh = FreshConfig {
                d_model,
                ..FreshConfig::default()
            };
            let spec = fresh.structure(&target.spec).unwrap().spec;
            (spec.d_model, spec.heads, spec.kv_heads)
        };
        assert_eq!(heads(0), (16, 4, 2));
        assert_eq!(heads(18), (18, 3, 1));
        assert_eq!(heads(20), (20, 4, 2));
    }
}

//! What a DFlash drafter may have beside its layers: the parts of DFlash 2 and of DSpark.
use serde_json::{Value, json};

use super::variants::{CONFIDENCE, CONFIDENCE_WITH_MARKOV, MARKOV_RANK, MARKOV_TYPE};
use crate::Result;
use crate::config::Config;

/// Parts of a drafter and what else sets it apart from plain DFlash.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DFlashParts {
    /// Convolutions around the parts of a layer.
    pub convolution: Option<Convolution>,
    /// The selector of paths.
    pub selector: Option<Selector>,
    /// The bias by the token before.
    pub markov: Option<Markov>,
    /// Whether there is a head that guesses how likely a draft is kept.
    pub confidence: bool,
    /// Whether the anchor's own place predicts too.
    pub sample_from_anchor: bool,
    /// Whether the context is made of tokens alone, which no engine knows.
    pub of_tokens: bool,
}

/// Sizes of the convolutions.
#[derive(Clone, Debug, PartialEq)]
pub struct Convolution {
    /// Places that are mixed, the own one counted.
    pub taps: usize,
    /// Channels that share what a place changes about the kernel.
    pub group: usize,
}

/// Sizes of the selector.
#[derive(Clone, Debug, PartialEq)]
pub struct Selector {
    /// Width of its codes.
    pub rank: usize,
    /// Candidates of a slot.
    pub top_k: usize,
}

/// The bias by the token before.
#[derive(Clone, Debug, PartialEq)]
pub struct Markov {
    /// Width of its codes.
    pub rank: usize,
    /// `"vanilla"`, `"gated"` or `"rnn"`.
    pub kind: String,
}

/// What holds where a configuration says nothing.
pub(super) struct Defaults {
    pub(super) sample_from_anchor: bool,
    pub(super) confidence: bool,
}

/// Which program runs a drafter with its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    DFlash,
    DFlash2,
    DSpark,
    /// Only this program.
    Own,
}

impl Family {
    const ALL: [Self; 4] = [Self::DFlash, Self::DFlash2, Self::DSpark, Self::Own];

    pub(super) fn architecture(self) -> &'static str {
        match self {
            Self::DFlash => "DFlashDraftModel",
            Self::DFlash2 => "DFlash2DraftModel",
            Self::DSpark => "Qwen3DSparkModel",
            Self::Own => "SpectrainBlockDrafter",
        }
    }

    /// The family that folders of this architecture are of.
    pub(super) fn named(name: &str) -> Option<Self> {
        if name == "DSparkDraftModel" {
            return Some(Self::DSpark);
        }
        Self::ALL
            .into_iter()
            .find(|family| family.architecture() == name)
    }

    /// Names for an error message.
    pub(super) fn names() -> String {
        let names = Self::ALL.map(|family| format!("`{}`", family.architecture()));
        names.join(", ")
    }
}

impl DFlashParts {
    pub(super) fn family(&self) -> Family {
        let plain = !self.sample_from_anchor && !self.of_tokens;
        match self {
            Self {
                of_tokens: true, ..
            } => Family::Own,
            Self {
                convolution: None,
                selector: None,
                markov: None,
                confidence: false,
                ..
            } if plain => Family::DFlash,
            Self {
                convolution: Some(_),
                selector: Some(_),
                markov: None,
                confidence: false,
                ..
            } if plain => Family::DFlash2,
            Self {
                convolution: None,
                selector: None,
                markov: Some(_),
                ..
            } => Family::DSpark,
            _ => Family::Own,
        }
    }

    /// Names and shapes of their tensors, by width and vocabulary of a drafter of so many layers.
    pub(super) fn tensors(
        &self,
        [hidden, vocab]: [usize; 2],
        layers: usize,
    ) -> Vec<(String, Vec<usize>)> {
        let mut tensors = Vec::new();
        let mut add = |name: String, shape: &[usize]| tensors.push((name, shape.to_vec()));
        if let Some(Convolution { taps, group }) = self.convolution {
            for layer in 0..layers {
                for part in ["attention_conv", "mlp_conv"] {
                    let name = |last| format!("layers.{layer}.{part}.{last}");
                    add(name("base_kernel"), &[2, taps, hidden]);
                    let kernels = 2 * taps * (hidden / group);
                    add(name("kernel_projection.weight"), &[kernels, hidden]);
                }
            }
        }
        if let Some(Selector { rank, .. }) = self.selector {
            let name = |last| format!("candidate_selector.{last}");
            add(name("predecessor_codebook"), &[vocab, rank]);
            add(name("successor_codebook"), &[vocab, rank]);
            add(name("hidden_projection.weight"), &[rank, hidden]);
        }
        let rank = self.markov.as_ref().map_or(0, |markov| markov.rank);
        if let Some(Markov { kind, .. }) = &self.markov {
            let name = |last| format!("markov_head.{last}");
            add(name("markov_w1.weight"), &[vocab, rank]);
            add(name("markov_w2.weight"), &[vocab, rank]);
            if kind == "gated" {
                add(name("gate_proj.weight"), &[rank, hidden + rank]);
                add(name("gate_proj.bias"), &[rank]);
            }
            if kind == "rnn" {
                add(name("joint_proj.weight"), &[3 * rank, 2 * rank + hidden]);
                add(name("joint_proj.bias"), &[3 * rank]);
            }
        }
        if self.confidence {
            add("confidence_head.proj.weight".into(), &[1, hidden + rank]);
            add("confidence_head.proj.bias".into(), &[1]);
        }
        tensors
    }

    /// Adds the keys of DFlash 2 to a table.
    pub(super) fn write_sizes(&self, table: &mut Value) {
        if let Some(Convolution { taps, group }) = self.convolution {
            table["conv_kernel_size"] = json!(taps);
            table["conv_group_size"] = json!(group);
        }
        if let Some(Selector { rank, top_k }) = self.selector {
            table["selector_rank"] = json!(rank);
            table["selector_top_k"] = json!(top_k);
        }
    }

    /// Adds the keys of DSpark's heads to a table.
    pub(super) fn write_heads(&self, table: &mut Value) {
        table["sample_from_anchor"] = json!(self.sample_from_anchor);
        table["markov_rank"] = json!(self.markov.as_ref().map_or(0, |markov| markov.rank));
        table["enable_confidence_head"] = json!(self.confidence);
        table["confidence_head_with_markov"] = json!(self.markov.is_some());
        if let Some(Markov { kind, .. }) = &self.markov {
            table["markov_head_type"] = json!(kind);
        }
    }

    /// Adds their keys to a `config.json`.
    pub(super) fn write(&self, config: &mut Value) {
        self.write_sizes(&mut config["dflash_config"]);
        if self.of_tokens {
            config["dflash_config"]["context"] = json!("tokens");
        }
        if self.sample_from_anchor || self.markov.is_some() || self.confidence {
            // vLLM reads what says how DSpark drafts beside the table of DFlash.
            self.write_heads(config);
            config["dspark_bonus_anchor"] = json!(!self.sample_from_anchor);
            config["target_layer_ids"] = config["dflash_config"]["target_layer_ids"].clone();
            config["mask_token_id"] = config["dflash_config"]["mask_token_id"].clone();
        }
    }

    /// Reads their keys of a `config.json`, those of DFlash 2 behind `prefix`.
    pub(super) fn read(config: &Config, prefix: &str, defaults: &Defaults) -> Result<Self> {
        let behind = |key: &str| format!("{prefix}{key}");
        let given = |key: &str| config.get(key).is_some_and(|value| *value != json!(0));
        let size = |key: &str| config.size(key, None);
        let (taps, rank) = (behind("conv_kernel_size"), behind("selector_rank"));
        let convolution = match given(&taps) {
            false => None,
            true => Some(Convolution {
                taps: size(&taps)?,
                group: size(&behind("conv_group_size"))?,
            }),
        };
        let selector = match given(&rank) {
            false => None,
            true => Some(Selector {
                rank: size(&rank)?,
                top_k: size(&behind("selector_top_k"))?,
            }),
        };
        let (rank, kind) = (config.one_key(MARKOV_RANK)?, config.one_key(MARKOV_TYPE)?);
        let markov = match given(rank) {
            false => None,
            true => Some(Markov {
                rank: size(rank)?,
                kind: config.one_of(kind, &["vanilla", "gated", "rnn"])?,
            }),
        };
        let confidence = config.flag(config.one_key(CONFIDENCE)?, defaults.confidence)?;
        let with_markov = config.one_key(CONFIDENCE_WITH_MARKOV)?;
        if confidence && config.flag(with_markov, markov.is_some())? != markov.is_some() {
            let expected = format!("`{}`, as this program's heads are", markov.is_some());
            return Err(config.wrong(with_markov, expected));
        }
        let of_tokens = config.get("dflash_config.context");
        if of_tokens.is_some_and(|context| context != "tokens") {
            return Err(config.wrong("dflash_config.context", "`\"tokens\"` or nothing"));
        }
        Ok(Self {
            convolution,
            selector,
            markov,
            confidence,
            sample_from_anchor: config.flag("sample_from_anchor", defaults.sample_from_anchor)?,
            of_tokens: of_tokens.is_some(),
        })
    }
}

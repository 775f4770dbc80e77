//! DFlash drafters as folders that engines load, and as sizes.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use burn::prelude::Device;
use serde_json::Value;
use spectrain_checkpoints::DType;
use spectrain_checkpoints::dflash::{
    self, Convolution, DFlashLayout, DFlashParts, Markov, Selector,
};
use spectrain_checkpoints::launch::{self, Launch};
use spectrain_checkpoints::published::Family;
use spectrain_checkpoints::speculators::Verifier;
use spectrain_data::tokens::TokenShards;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::dflash::{Context as Read, DFlash, DFlashConfig, MarkovKind};
use spectrain_models::weights::{TensorWeights, export};
use spectrain_models::{Capture, Drafter, TargetParts, TargetSpec};
use spectrain_train::{WorkRows, Workload};

use crate::families::drafter_folder::{
    architectures, cast, check_mask_token, check_sizes, rope_config, rope_layout, warn_of_own,
};
use crate::families::footprint::{Activations, Attended, Footprint, LayerSizes, Packed, decoder};
use crate::families::shipped::{Layout, Shipped, Writing, check_start};
use crate::recipe::tables::Engine;

impl Shipped for DFlash {
    const KIND: &'static str = "dflash";
    const FAMILY: Family = Family::DFlash;
    const ENGINES: &'static [Engine] = &[
        Engine::Vllm,
        Engine::Sglang,
        Engine::LlamaCpp,
        Engine::TensorrtLlm,
        Engine::Speculators,
        Engine::Hf,
    ];
    const LAYOUTS: &'static [Layout<Self>] = &[
        Layout {
            engine: Engine::Speculators,
            write: write_speculators,
            launch: |drafter, writing| match drafter.config().markov {
                MarkovKind::Vanilla => launch::vllm_of_speculators(writing.folder),
                _ => Launch::remark(
                    "vLLM does not load this kind of bias; the speculators library does",
                ),
            },
        },
        Layout {
            engine: Engine::Hf,
            write: write_transformers,
            launch: |_, writing| launch::transformers_dflash(writing.folder, writing.target),
        },
    ];

    fn begin(config: &Self::Config, _: &TargetParts, texts: &TokenShards) -> Result<()> {
        check_mask_token(config.mask_token, texts)
    }

    fn open(folder: &Path, target: &TargetParts, device: &Device) -> Result<Self> {
        let (layout, tensors) = dflash::read_for_target(
            folder,
            dflash::TargetSizes {
                layers: target.spec.layers,
                vocab: target.spec.vocab,
            },
        )?;
        let spec = &target.spec;
        check_sizes(&[
            ("hidden size", layout.hidden_size, spec.d_model),
            ("width of a head", layout.head_dim, spec.d_head),
            ("target vocabulary", layout.vocab_size, spec.vocab),
            ("layers of its target", layout.target_layers, spec.layers),
        ])
        .with_context(|| format!("the drafter `{}` is not for this target", folder.display()))?;
        warn_of_own(folder, target)?;
        let DFlashParts {
            convolution,
            selector,
            markov,
            confidence,
            sample_from_anchor,
            of_tokens,
        } = layout.parts;
        let config = DFlashConfig {
            context: match of_tokens {
                true => Read::Tokens,
                false => Read::Features,
            },
            captured_layers: layout.captured_layers,
            layers: layout.layers,
            block_size: layout.block_size,
            mask_token: Some(layout.mask_token),
            window: layout.window,
            causal: layout.causal,
            d_ff: layout.intermediate_size,
            heads: layout.heads,
            kv_heads: layout.kv_heads,
            sample_from_anchor,
            conv_taps: convolution.as_ref().map_or(0, |found| found.taps),
            selector_rank: selector.as_ref().map_or(0, |found| found.rank),
            markov_rank: markov.as_ref().map_or(0, |found| found.rank),
            confidence,
            ..DFlashConfig::default()
        };
        let config = DFlashConfig {
            conv_group: convolution.map_or(config.conv_group, |found| found.group),
            selector_top_k: selector.map_or(config.selector_top_k, |found| found.top_k),
            markov: match markov.as_ref().map(|found| found.kind.as_str()) {
                Some("gated") => MarkovKind::Gated,
                Some("rnn") => MarkovKind::Rnn,
                _ => MarkovKind::Vanilla,
            },
            ..config
        };
        // A drafter's norms and positions may be other than its target's.
        let mut parts = target.clone();
        parts.spec.norm_epsilon = layout.rms_norm_eps;
        let sizes = [layout.head_dim, layout.max_position_embeddings];
        parts.spec.rope = rope_config(folder, &layout.rope, sizes)?;
        let vocabulary = DraftVocabulary::full(spec.vocab);
        let mut weights = TensorWeights::new(tensors, folder.display().to_string());
        Ok(Self::new(
            &config,
            &parts,
            &vocabulary,
            &mut weights,
            device,
        )?)
    }

    fn write(&self, folder: &Path, dtype: DType, provenance: &Value) -> Result<()> {
        let tensors = cast(export(self), dtype)?;
        Ok(dflash::write(
            folder,
            &layout(self, dtype)?,
            &tensors,
            provenance,
        )?)
    }

    fn warm_start(
        config: &DFlashConfig,
        folder: &Path,
        target: &TargetParts,
        device: &Device,
    ) -> Result<Self> {
        let drafter = Self::open(folder, target, device)?;
        // No tensor shows these.
        let found = drafter.config();
        let sizes = [
            ("block_size", found.block_size, config.block_size),
            ("window", found.window, config.window),
            ("causal", found.causal.into(), config.causal.into()),
            (
                "sample_from_anchor",
                found.sample_from_anchor.into(),
                config.sample_from_anchor.into(),
            ),
            (
                "selector_top_k",
                found.selector_top_k,
                config.selector_top_k,
            ),
        ];
        let other = || {
            format!(
                "the drafter `{}` has other settings than `[drafter]`",
                folder.display()
            )
        };
        check_sizes(&sizes).with_context(other)?;
        if let Some(expected) = config.mask_token
            && expected != drafter.mask_token()
        {
            let found = drafter.mask_token();
            bail!(
                "{}: `mask_token`: expected {expected}, found {found}",
                other()
            );
        }
        check_start(config, &drafter, folder, (target, device))?;
        Ok(drafter)
    }

    fn captured(&self) -> Result<Capture> {
        Ok(Self::capture(self.config(), &self.target().spec)?)
    }

    fn launch_lines(
        &self,
        folder: &Path,
        target: &str,
        draft_length: usize,
    ) -> Result<Vec<Launch>> {
        let layout = layout(self, DType::F32)?;
        Ok(dflash::launch_lines(folder, &layout, target, draft_length))
    }

    fn footprint(config: &DFlashConfig, target: &TargetSpec) -> Result<Footprint> {
        let captured = Self::capture(config, target)?.layers.len() as u64;
        let (d, d_head, layers) = (
            target.d_model as u64,
            target.d_head as u64,
            config.layers as u64,
        );
        let sizes = target.layer_sizes(config.d_ff, config.heads, config.kv_heads)?;
        let [d_ff, heads, kv_heads] = sizes.map(|size| size as u64);
        let group = config.conv_group.max(1) as u64;
        let of_convolutions = 4 * config.conv_taps as u64 * (d + d / group * d);
        let of_layer = 2 * (heads + kv_heads) * d_head * d
            + 3 * d * d_ff
            + 2 * d
            + 2 * d_head
            + of_convolutions;
        let (vocab, selector, markov) = (
            target.vocab as u64,
            config.selector_rank as u64,
            config.markov_rank as u64,
        );
        let of_markov = match config.markov {
            MarkovKind::Vanilla => 0,
            MarkovKind::Gated => markov * (d + markov) + markov,
            MarkovKind::Rnn => 3 * markov * (2 * markov + d) + 3 * markov,
        };
        let of_confidence = u64::from(config.confidence) * (d + markov + 1);
        let of_heads = selector * (2 * vocab + d) + markov * 2 * vocab + of_markov + of_confidence;
        Ok(Footprint {
            parameters: captured.max(1) * d * d + 2 * d + layers * of_layer + of_heads,
            head: 0,
            draft_vocab: target.vocab as u64,
            frozen: 0,
            captured,
        })
    }

    fn activations(
        config: &DFlashConfig,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        let layer = LayerSizes::of(target, [config.d_ff, config.heads, config.kv_heads])?;
        let (size, layers) = (config.block_size as u64, config.layers as u64);
        let blocks = match work.rows {
            WorkRows::Blocks(most) => (most as u64).min(batch.length),
            _ => 1,
        };
        let slots = if config.window > 0 { size } else { 1 };
        let positions = batch.positions() as f64;
        let places = (batch.rows * blocks * size) as f64;
        // A place sees the context of its row and its own block; all of it is computed at a time.
        let entries = places * (batch.length + size) as f64;
        let attended = Attended {
            rows: places,
            entries,
            widest: entries,
            mask: (blocks * slots) as f64 * positions,
        };
        let all = decoder(&layer, layers, work, attended);
        // The context's norm, and its keys and values for every layer.
        let context = positions * (3 * layer.d_model + 5 * layers * layer.keys()) as f64;
        let convolved = match config.conv_taps as u64 {
            0 => 0,
            taps => 4 * layers * (taps + 1) * layer.d_model,
        };
        let ranks = (2 * config.selector_rank + 4 * config.markov_rank) as u64;
        Ok(Activations {
            kept: all.kept + context + places * (convolved + ranks) as f64,
            ..all
        })
    }
}

fn write_transformers(drafter: &DFlash, writing: &Writing) -> Result<()> {
    let tensors = cast(export(drafter), writing.dtype)?;
    let layout = layout(drafter, writing.dtype)?;
    let (folder, provenance) = (writing.folder, writing.provenance);
    Ok(dflash::transformers::write(
        folder, &layout, &tensors, provenance,
    )?)
}

fn write_speculators(drafter: &DFlash, writing: &Writing) -> Result<()> {
    let tensors = cast(export(drafter), writing.dtype)?;
    let layout = layout(drafter, writing.dtype)?;
    let verifier = Verifier {
        name: writing.target.to_owned(),
        architectures: architectures(drafter.target())?,
        draft_tokens: drafter.config().slots(),
    };
    Ok(dflash::speculators::write(
        writing.folder,
        &layout,
        &tensors,
        &verifier,
        writing.provenance,
    )?)
}

fn layout(drafter: &DFlash, dtype: DType) -> Result<DFlashLayout> {
    let (config, spec) = (drafter.config(), &drafter.target().spec);
    Ok(DFlashLayout {
        hidden_size: spec.d_model,
        intermediate_size: config.d_ff,
        layers: config.layers,
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: spec.d_head,
        vocab_size: spec.vocab,
        target_layers: spec.layers,
        captured_layers: config.captured_layers.clone(),
        block_size: config.block_size,
        mask_token: drafter.mask_token(),
        window: config.window,
        causal: config.causal,
        rms_norm_eps: spec.norm_epsilon,
        max_position_embeddings: spec.max_positions,
        parts: parts(config),
        rope: rope_layout(&spec.rope)?,
        dtype,
    })
}

fn parts(config: &DFlashConfig) -> DFlashParts {
    let kind = match config.markov {
        MarkovKind::Vanilla => "vanilla",
        MarkovKind::Gated => "gated",
        MarkovKind::Rnn => "rnn",
    };
    DFlashParts {
        convolution: (config.conv_taps > 0).then_some(Convolution {
            taps: config.conv_taps,
            group: config.conv_group,
        }),
        selector: (config.selector_rank > 0).then_some(Selector {
            rank: config.selector_rank,
            top_k: config.selector_top_k,
        }),
        markov: (config.markov_rank > 0).then(|| Markov {
            rank: config.markov_rank,
            kind: kind.into(),
        }),
        confidence: config.confidence,
        sample_from_anchor: config.sample_from_anchor,
        of_tokens: config.context == Read::Tokens,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::drafter_folder::samples::target;
    use spectrain_models::RandomWeights;

    fn drafter(config: &DFlashConfig) -> DFlash {
        let (target, mut weights) = (target(), RandomWeights::new(3));
        let full = DraftVocabulary::full(target.spec.vocab);
        DFlash::new(config, &target, &full, &mut weights, &Device::flex()).unwrap()
    }

    fn variants() -> [DFlashConfig; 6] {
        let plain = DFlashConfig {
            layers: 2,
            block_size: 4,
            mask_token: Some(5),
            ..DFlashConfig::default()
        };
        let other = DFlashConfig {
            captured_layers: vec![0, 2],
            window: 9,
            causal: true,
            d_ff: 24,
            ..plain.clone()
        };
        let dflash_2 = DFlashConfig {
            conv_taps: 2,
            conv_group: 4,
            selector_rank: 3,
            selector_top_k: 5,
            ..plain.clone()
        };
        let dspark = |markov| DFlashConfig {
            markov_rank: 3,
            markov,
            confidence: true,
            sample_from_anchor: true,
            ..plain.clone()
        };
        let of_tokens = DFlashConfig {
            context: Read::Tokens,
            ..plain.clone()
        };
        let (gated, rnn) = (dspark(MarkovKind::Gated), dspark(MarkovKind::Rnn));
        [plain, other, dflash_2, gated, rnn, of_tokens]
    }

    #[test]
    fn a_drafter_read_back_has_the_same_tensors_and_settings() {
        let root = tempfile::tempdir().unwrap();
        for (number, config) in variants().iter().enumerate() {
            let folder = root.path().join(number.to_string());
            let written = drafter(config);
            written.write(&folder, DType::F32, &Value::Null).unwrap();
            let read = DFlash::open(&folder, &target(), &Device::flex()).unwrap();
            assert_eq!(export(&read), export(&written));
            assert_eq!(read.config(), written.config());
            assert_eq!(read.target().spec, target().spec);
        }
    }

    #[test]
    fn a_drafter_of_another_target_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("d");
        drafter(&variants()[0])
            .write(&folder, DType::F32, &Value::Null)
            .unwrap();
        let mut other = target();
        other.spec.layers += 1;
        let error = DFlash::open(&folder, &other, &Device::flex()).unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.contains("not for this target") && error.contains("layers of its target"),
            "{error}"
        );
    }

    #[test]
    fn the_footprint_counts_the_parameters_that_there_are() {
        for config in variants() {
            let expected: usize = export(&drafter(&config))
                .iter()
                .map(|tensor| tensor.shape.iter().product::<usize>())
                .sum();
            let footprint = DFlash::footprint(&config, &target().spec).unwrap();
            assert_eq!(footprint.parameters, expected as u64);
        }
    }
}

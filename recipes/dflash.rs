//! DFlash drafters as folders that engines load, and as sizes.

use std::path::Path;

use anyhow::{Context as _, Result};
use burn::prelude::Device;
use serde_json::Value;
use spectrain_checkpoints::DType;
use spectrain_checkpoints::dflash::{self, DFlashLayout};
use spectrain_data::tokens::TokenShards;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::dflash::{DFlash, DFlashConfig};
use spectrain_models::weights::{TensorWeights, export};
use spectrain_models::{Capture, Drafter, TargetParts, TargetSpec};

use crate::drafter_folder::{cast, check_mask_token, check_sizes, rope_config, rope_layout};
use crate::registry::{Footprint, Shipped};

impl Shipped for DFlash {
    const KIND: &'static str = "dflash";

    fn recognises(config: &Value) -> bool {
        dflash::recognises(config)
    }

    fn begin(config: &Self::Config, _: &TargetParts, texts: &TokenShards) -> Result<()> {
        check_mask_token(config.mask_token, texts)
    }

    fn open(folder: &Path, target: &TargetParts, device: &Device) -> Result<Self> {
        let (layout, tensors) = dflash::read(folder)?;
        let spec = &target.spec;
        check_sizes(&[
            ("hidden size", layout.hidden_size, spec.d_model),
            ("width of a head", layout.head_dim, spec.d_head),
            ("target vocabulary", layout.vocab_size, spec.vocab),
            ("layers of its target", layout.target_layers, spec.layers),
        ])
        .with_context(|| format!("the drafter `{}` is not for this target", folder.display()))?;
        let config = DFlashConfig {
            captured_layers: layout.captured_layers,
            layers: layout.layers,
            block_size: layout.block_size,
            mask_token: Some(layout.mask_token),
            window: layout.window,
            causal: layout.causal,
            d_ff: layout.intermediate_size,
            heads: layout.heads,
            kv_heads: layout.kv_heads,
        };
        // A drafter's norms and positions may be other than its target's.
        let mut parts = target.clone();
        parts.spec.norm_epsilon = layout.rms_norm_eps;
        parts.spec.rope = rope_config(&layout.rope, layout.max_position_embeddings)?;
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

    fn captured(&self) -> Result<Capture> {
        Ok(Self::capture(self.config(), &self.target().spec)?)
    }

    fn launch_lines(
        &self,
        folder: &Path,
        target: &str,
        draft_length: usize,
    ) -> Result<Vec<String>> {
        let layout = layout(self, DType::F32)?;
        Ok(dflash::launch_lines(folder, &layout, target, draft_length))
    }

    fn footprint(config: &DFlashConfig, target: &TargetSpec) -> Result<Footprint> {
        let or = |own: usize, theirs: usize| (if own == 0 { theirs } else { own }) as u64;
        let captured = Self::capture(config, target)?.layers.len() as u64;
        let (d, d_head, layers) = (
            target.d_model as u64,
            target.d_head as u64,
            config.layers as u64,
        );
        let (heads, kv_heads) = (
            or(config.heads, target.heads),
            or(config.kv_heads, target.kv_heads),
        );
        let d_ff = or(config.d_ff, target.d_ff);
        let of_layer = 2 * (heads + kv_heads) * d_head * d + 3 * d * d_ff + 2 * d + 2 * d_head;
        Ok(Footprint {
            parameters: captured * d * d + 2 * d + layers * of_layer,
            head: 0,
            draft_vocab: target.vocab as u64,
            // Every layer keeps its scores.
            heads: layers * heads,
            captured,
            activations: layers * (8 * d + 2 * (heads + kv_heads) * d_head + 4 * d_ff),
        })
    }
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
        rope: rope_layout(&spec.rope)?,
        dtype,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drafter_folder::samples::target;
    use spectrain_models::RandomWeights;

    fn drafter(config: &DFlashConfig) -> DFlash {
        let (target, mut weights) = (target(), RandomWeights::new(3));
        let full = DraftVocabulary::full(target.spec.vocab);
        DFlash::new(config, &target, &full, &mut weights, &Device::flex()).unwrap()
    }

    fn variants() -> [DFlashConfig; 2] {
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
        [plain, other]
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

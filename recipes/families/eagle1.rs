//! EAGLE-1 drafters, HASS's included, as folders that engines load, and as sizes.

use std::path::Path;

use anyhow::{Context as _, Result};
use burn::prelude::Device;
use serde_json::Value;
use spectrain_checkpoints::eagle1::{self, Eagle1Layout};
use spectrain_checkpoints::launch::Launch;
use spectrain_checkpoints::published::Family;
use spectrain_checkpoints::{DType, NamedTensor};
use spectrain_data::tokens::TokenShards;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::eagle1::{Eagle1, Eagle1Config};
use spectrain_models::weights::{TensorWeights, export};
use spectrain_models::{Capture, Drafter, TargetParts, TargetSpec};
use spectrain_train::Workload;

use crate::families::drafter_folder::{cast, check_sizes, rope_config, rope_layout, warn_of_own};
use crate::families::footprint::{
    Activations, Attended, Footprint, LayerSizes, Packed, Sees, decoder,
};
use crate::families::shipped::{Layout, Shipped};
use crate::recipe::tables::Engine;

impl Shipped for Eagle1 {
    const KIND: &'static str = "eagle1";
    const FAMILY: Family = Family::Eagle1;
    const ENGINES: &'static [Engine] = &[Engine::Vllm, Engine::Sglang];
    const LAYOUTS: &'static [Layout<Self>] = &[];

    fn begin(_: &Self::Config, _: &TargetParts, _: &TokenShards) -> Result<()> {
        Ok(())
    }

    fn open(folder: &Path, target: &TargetParts, device: &Device) -> Result<Self> {
        let (layout, tensors) = eagle1::read(folder)?;
        let spec = &target.spec;
        check_sizes(&[
            ("hidden size", layout.hidden_size, spec.d_model),
            ("width of a head", layout.head_dim, spec.d_head),
            ("target vocabulary", layout.vocab_size, spec.vocab),
        ])
        .with_context(|| format!("the drafter `{}` is not for this target", folder.display()))?;
        warn_of_own(folder, target)?;
        let config = Eagle1Config {
            bias: layout.bias,
            d_ff: layout.intermediate_size,
            heads: layout.heads,
            kv_heads: layout.kv_heads,
        };
        // A drafter's norm and positions may be other than its target's.
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
        let mut tensors = export(self);
        if !self.config().bias {
            let d_model = self.target().spec.d_model;
            tensors.push(NamedTensor::from_f32(
                "fc.bias",
                [d_model],
                vec![0.0; d_model],
            ));
        }
        let tensors = cast(tensors, dtype)?;
        Ok(eagle1::write(
            folder,
            &layout(self, dtype)?,
            tensors,
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
    ) -> Result<Vec<Launch>> {
        Ok(eagle1::launch_lines(
            folder,
            &layout(self, DType::F32)?,
            target,
            draft_length,
        ))
    }

    fn footprint(config: &Eagle1Config, target: &TargetSpec) -> Result<Footprint> {
        let (d, d_head) = (target.d_model as u64, target.d_head as u64);
        let sizes = target.layer_sizes(config.d_ff, config.heads, config.kv_heads)?;
        let [d_ff, heads, kv_heads] = sizes.map(|size| size as u64);
        let attention = 2 * (heads + kv_heads) * d_head * d;
        let bias = if config.bias { d } else { 0 };
        Ok(Footprint {
            parameters: 2 * d * d + bias + attention + d + 3 * d * d_ff,
            head: 0,
            draft_vocab: target.vocab as u64,
            frozen: 0,
            captured: 0,
        })
    }

    fn activations(
        config: &Eagle1Config,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        let layer = LayerSizes {
            head_norms: false,
            ..LayerSizes::of(target, [config.d_ff, config.heads, config.kv_heads])?
        };
        let attended = Attended::of(work, batch, Sees::Back);
        Ok(decoder(&layer, 1, work, attended))
    }
}

fn layout(drafter: &Eagle1, dtype: DType) -> Result<Eagle1Layout> {
    let (config, spec) = (drafter.config(), &drafter.target().spec);
    Ok(Eagle1Layout {
        hidden_size: spec.d_model,
        intermediate_size: config.d_ff,
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: spec.d_head,
        vocab_size: spec.vocab,
        bias: config.bias,
        rms_norm_eps: spec.norm_epsilon,
        max_position_embeddings: spec.max_positions,
        rope: rope_layout(&spec.rope)?,
        dtype,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::drafter_folder::samples::target;
    use spectrain_checkpoints::ModelFolder;
    use spectrain_models::RandomWeights;

    fn drafter(config: &Eagle1Config) -> Eagle1 {
        let (target, mut weights) = (target(), RandomWeights::new(3));
        let full = DraftVocabulary::full(target.spec.vocab);
        Eagle1::new(config, &target, &full, &mut weights, &Device::flex()).unwrap()
    }

    fn variants() -> [(&'static str, Eagle1Config); 2] {
        [
            ("plain", Eagle1Config::default()),
            (
                "biased",
                Eagle1Config {
                    bias: true,
                    d_ff: 24,
                    ..Eagle1Config::default()
                },
            ),
        ]
    }

    #[test]
    fn a_drafter_read_back_has_the_same_tensors_and_settings() {
        let root = tempfile::tempdir().unwrap();
        for (name, config) in variants() {
            let folder = root.path().join(name);
            let written = drafter(&config);
            written.write(&folder, DType::F32, &Value::Null).unwrap();
            let read = Eagle1::open(&folder, &target(), &Device::flex()).unwrap();
            assert_eq!(export(&read), export(&written), "{name}");
            assert_eq!(read.config(), written.config(), "{name}");
            assert_eq!(read.target().spec, target().spec, "{name}");
            let config = ModelFolder::open(&folder).unwrap().config().clone();
            assert!(eagle1::recognises(&config), "{name}");
        }
    }

    #[test]
    fn a_drafter_of_another_target_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("d");
        drafter(&Eagle1Config::default())
            .write(&folder, DType::F32, &Value::Null)
            .unwrap();
        let mut other = target();
        other.spec.vocab += 1;
        let error = Eagle1::open(&folder, &other, &Device::flex()).unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.contains("not for this target") && error.contains("target vocabulary"),
            "{error}"
        );
    }

    #[test]
    fn the_footprint_counts_the_parameters_that_there_are() {
        for (name, config) in variants() {
            let expected: usize = export(&drafter(&config))
                .iter()
                .map(|tensor| tensor.shape.iter().product::<usize>())
                .sum();
            let footprint = Eagle1::footprint(&config, &target().spec).unwrap();
            assert_eq!(footprint.parameters, expected as u64, "{name}");
        }
    }
}

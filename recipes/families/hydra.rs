//! Hydra heads as a folder of this program's own, and as sizes.

use std::path::Path;

use anyhow::{Context as _, Result};
use burn::prelude::Device;
use serde_json::Value;
use spectrain_checkpoints::DType;
use spectrain_checkpoints::hydra::{self, HydraLayout, PrefixLayout};
use spectrain_checkpoints::launch::Launch;
use spectrain_checkpoints::published::Family;
use spectrain_data::tokens::TokenShards;
use spectrain_models::draft_heads::{DraftHeads as _, OutputHead};
use spectrain_models::hydra::{Hydra, HydraConfig};
use spectrain_models::weights::{TensorWeights, export};
use spectrain_models::{Capture, Drafter, TargetParts, TargetSpec};
use spectrain_train::Workload;

use crate::families::draft_heads::{output_head, take_vocabulary, token_map};
use crate::families::drafter_folder::{cast, check_sizes, rope_config, rope_layout};
use crate::families::footprint::{
    Activations, Attended, Footprint, LayerSizes, Packed, Sees, decoder,
};
use crate::families::shipped::{Layout, Shipped};
use crate::recipe::tables::Engine;

impl Shipped for Hydra {
    const KIND: &'static str = "hydra";
    const FAMILY: Family = Family::Hydra;
    const ENGINES: &'static [Engine] = &[];
    const LAYOUTS: &'static [Layout<Self>] = &[];

    fn begin(_: &Self::Config, _: &TargetParts, _: &TokenShards) -> Result<()> {
        Ok(())
    }

    fn open(folder: &Path, target: &TargetParts, device: &Device) -> Result<Self> {
        let (layout, mut tensors) = hydra::read(folder)?;
        let mut parts = target.clone();
        fit(folder, &layout, &mut parts.spec)
            .with_context(|| format!("the heads `{}` are not for this target", folder.display()))?;
        let vocabulary = take_vocabulary(&mut tensors, target.spec.vocab)?;
        let config = HydraConfig {
            hydra_heads: layout.heads,
            head_layers: layout.layers,
            prefix_layer: layout.prefix.is_some(),
            head: output_head(layout.shared_head),
            draft_vocab: layout.draft_vocab_size,
        };
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
        let mut tensors = cast(export(self), dtype)?;
        tensors.extend(token_map(self.vocabulary()));
        Ok(hydra::write(
            folder,
            &layout(self, dtype)?,
            &tensors,
            provenance,
        )?)
    }

    fn captured(&self) -> Result<Capture> {
        Ok(Self::capture(self.config(), &self.target().spec)?)
    }

    fn launch_lines(&self, _: &Path, _: &str, _: usize) -> Result<Vec<Launch>> {
        Ok(hydra::launch_lines())
    }

    fn footprint(config: &HydraConfig, target: &TargetSpec) -> Result<Footprint> {
        Self::capture(config, target)?;
        let (d, d_ff) = (target.d_model as u64, target.d_ff as u64);
        let (heads, layers) = (config.hydra_heads as u64, config.head_layers as u64);
        let draft_vocab = match config.draft_vocab {
            0 => target.vocab as u64,
            given => given as u64,
        };
        let head = match config.head {
            OutputHead::Own => heads * (draft_vocab * d + draft_vocab),
            OutputHead::Shared => 0,
        };
        // Head i reads i + 2 vectors.
        let read = heads * (heads + 3) / 2 * d;
        let blocks = 2 * (read * d + heads * d) + heads * (layers - 1) * (d * d + d);
        let d_heads = ((target.heads + target.kv_heads) * target.d_head) as u64;
        let prefix = match config.prefix_layer {
            true => 2 * d * d_heads + 3 * d * d_ff + 3 * d,
            false => 0,
        };
        Ok(Footprint {
            parameters: blocks + prefix + head,
            head,
            draft_vocab,
            frozen: 0,
            captured: 0,
        })
    }

    fn activations(
        config: &HydraConfig,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        let (d, positions) = (target.d_model as u64, batch.positions() as f64);
        let (heads, layers) = (config.hydra_heads as u64, config.head_layers as u64);
        let layer = LayerSizes {
            head_norms: false,
            ..LayerSizes::of(target, [0; 3])?
        };
        let prefix = match config.prefix_layer {
            true => decoder(&layer, 1, work, Attended::of(work, batch, Sees::Back)),
            false => Activations::default(),
        };
        // Head i reads i + 2 vectors; of each the product and the sum of every block, and the gradient of the last sum.
        let vectors = heads * (heads + 3) / 2 + heads * (2 * layers + 1);
        Ok(Activations {
            kept: prefix.kept + positions * (d * vectors) as f64,
            judged: positions * work.judged,
            rows: positions,
            ..prefix
        })
    }
}

/// Fails where the heads are not for this target; norms and positions of the prefix layer become those of the folder.
fn fit(folder: &Path, layout: &HydraLayout, spec: &mut TargetSpec) -> Result<()> {
    check_sizes(&[
        ("hidden size", layout.hidden_size, spec.d_model),
        ("target vocabulary", layout.vocab_size, spec.vocab),
    ])?;
    let Some(prefix) = &layout.prefix else {
        return Ok(());
    };
    check_sizes(&[
        ("feed-forward width", prefix.intermediate_size, spec.d_ff),
        ("query heads", prefix.heads, spec.heads),
        ("key and value heads", prefix.kv_heads, spec.kv_heads),
        ("width of a head", prefix.head_dim, spec.d_head),
    ])?;
    spec.norm_epsilon = prefix.rms_norm_eps;
    let sizes = [prefix.head_dim, prefix.max_position_embeddings];
    spec.rope = rope_config(folder, &prefix.rope, sizes)?;
    Ok(())
}

fn layout(drafter: &Hydra, dtype: DType) -> Result<HydraLayout> {
    let (config, spec) = (drafter.config(), &drafter.target().spec);
    let prefix = match config.prefix_layer {
        false => None,
        true => Some(PrefixLayout {
            intermediate_size: spec.d_ff,
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim: spec.d_head,
            rms_norm_eps: spec.norm_epsilon,
            max_position_embeddings: spec.max_positions,
            rope: rope_layout(&spec.rope)?,
        }),
    };
    Ok(HydraLayout {
        hidden_size: spec.d_model,
        vocab_size: spec.vocab,
        draft_vocab_size: drafter.vocabulary().len(),
        heads: config.hydra_heads,
        layers: config.head_layers,
        shared_head: config.head == OutputHead::Shared,
        prefix,
        dtype,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::drafter_folder::samples::{target, vocabulary};
    use spectrain_checkpoints::ModelFolder;
    use spectrain_models::RandomWeights;

    fn drafter(config: &HydraConfig) -> Hydra {
        let (vocabulary, mut weights) = (vocabulary(config.draft_vocab), RandomWeights::new(3));
        let device = Device::flex();
        Hydra::new(config, &target(), &vocabulary, &mut weights, &device).unwrap()
    }

    fn cases() -> [HydraConfig; 3] {
        let of = |head, head_layers, prefix_layer, draft_vocab| HydraConfig {
            hydra_heads: 3,
            head_layers,
            prefix_layer,
            head,
            draft_vocab,
        };
        [
            of(OutputHead::Own, 1, false, 0),
            of(OutputHead::Own, 2, true, 20),
            of(OutputHead::Shared, 1, true, 0),
        ]
    }

    #[test]
    fn heads_read_back_have_the_same_tensors_and_settings() {
        let root = tempfile::tempdir().unwrap();
        for (number, config) in cases().iter().enumerate() {
            let folder = root.path().join(number.to_string());
            let written = drafter(config);
            written.write(&folder, DType::F32, &Value::Null).unwrap();
            let read = Hydra::open(&folder, &target(), &Device::flex()).unwrap();
            assert_eq!(export(&read), export(&written));
            assert_eq!(read.config(), written.config());
            assert_eq!(read.vocabulary(), written.vocabulary());
            assert_eq!(read.target().spec, target().spec);
            let config = ModelFolder::open(&folder).unwrap().config().clone();
            assert!(hydra::recognises(&config));
        }
    }

    #[test]
    fn heads_of_another_target_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("d");
        let written = drafter(&cases()[1]);
        written.write(&folder, DType::F32, &Value::Null).unwrap();
        let mut other = target();
        other.spec.d_ff += 1;
        let error = Hydra::open(&folder, &other, &Device::flex()).unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.contains("not for this target") && error.contains("feed-forward width"),
            "{error}"
        );
    }

    #[test]
    fn the_footprint_counts_the_parameters_that_there_are() {
        for config in cases() {
            let tensors = export(&drafter(&config));
            let expected: usize = tensors
                .iter()
                .map(|tensor| tensor.shape.iter().product::<usize>())
                .sum();
            let footprint = Hydra::footprint(&config, &target().spec).unwrap();
            assert_eq!(footprint.parameters, expected as u64, "{config:?}");
        }
    }
}

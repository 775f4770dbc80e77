//! Medusa heads as the folder that vLLM loads, and as sizes.

use std::path::Path;

use anyhow::{Context as _, Result};
use burn::prelude::Device;
use serde_json::Value;
use spectrain_checkpoints::launch::Launch;
use spectrain_checkpoints::medusa::{self, MedusaLayout};
use spectrain_checkpoints::published::Family;
use spectrain_checkpoints::{DType, NamedTensor};
use spectrain_data::tokens::TokenShards;
use spectrain_models::draft_heads::{DraftHeads as _, OutputHead};
use spectrain_models::medusa::{Medusa, MedusaConfig};
use spectrain_models::weights::{TensorWeights, export};
use spectrain_models::{Capture, Drafter, TargetParts, TargetSpec};
use spectrain_train::Workload;

use crate::families::draft_heads::{output_head, take_target_head, take_vocabulary, token_map};
use crate::families::drafter_folder::{cast, check_sizes, target_head};
use crate::families::footprint::{Activations, Footprint, Packed};
use crate::families::shipped::{Layout, Shipped};
use crate::recipe::tables::Engine;

impl Shipped for Medusa {
    const KIND: &'static str = "medusa";
    const FAMILY: Family = Family::Medusa;
    const ENGINES: &'static [Engine] = &[Engine::Vllm];
    const LAYOUTS: &'static [Layout<Self>] = &[];

    fn begin(_: &Self::Config, _: &TargetParts, _: &TokenShards) -> Result<()> {
        Ok(())
    }

    fn open(folder: &Path, target: &TargetParts, device: &Device) -> Result<Self> {
        let (layout, mut tensors) = medusa::read(folder)?;
        let not_for_this = || format!("the heads `{}` are not for this target", folder.display());
        check_sizes(&[
            ("hidden size", layout.hidden_size, target.spec.d_model),
            ("target vocabulary", layout.vocab_size, target.spec.vocab),
        ])
        .with_context(not_for_this)?;
        let vocabulary = take_vocabulary(&mut tensors, target.spec.vocab)?;
        if layout.shared_head {
            take_target_head(&mut tensors, target, &vocabulary).with_context(not_for_this)?;
        }
        if !layout.bias {
            for head in 0..layout.heads {
                tensors.extend((0..layout.layers).map(|layer| {
                    let name = format!("blocks.{head}.layers.{layer}.bias");
                    NamedTensor::from_f32(name, [layout.hidden_size], vec![0.0; layout.hidden_size])
                }));
            }
        }
        let config = MedusaConfig {
            medusa_heads: layout.heads,
            head_layers: layout.layers,
            head: output_head(layout.shared_head),
            draft_vocab: layout.draft_vocab_size,
        };
        let mut weights = TensorWeights::new(tensors, folder.display().to_string());
        Ok(Self::new(
            &config,
            target,
            &vocabulary,
            &mut weights,
            device,
        )?)
    }

    fn write(&self, folder: &Path, dtype: DType, provenance: &Value) -> Result<()> {
        let mut tensors = export(self);
        if self.config().head == OutputHead::Shared {
            // vLLM does not share the target's head, so it is written out once for all heads.
            tensors.push(target_head(self.target(), self.vocabulary()));
        }
        let mut tensors = cast(tensors, dtype)?;
        tensors.extend(token_map(self.vocabulary()));
        Ok(medusa::write(
            folder,
            &layout(self, dtype),
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
    ) -> Result<Vec<Launch>> {
        let layout = layout(self, DType::F32);
        Ok(medusa::launch_lines(folder, &layout, target, draft_length))
    }

    fn footprint(config: &MedusaConfig, target: &TargetSpec) -> Result<Footprint> {
        Self::capture(config, target)?;
        let d = target.d_model as u64;
        let (heads, layers) = (config.medusa_heads as u64, config.head_layers as u64);
        let draft_vocab = match config.draft_vocab {
            0 => target.vocab as u64,
            given => given as u64,
        };
        let head = match config.head {
            OutputHead::Own => heads * draft_vocab * d,
            OutputHead::Shared => 0,
        };
        Ok(Footprint {
            parameters: heads * layers * (d * d + d) + head,
            head,
            draft_vocab,
            frozen: 0,
            captured: 0,
        })
    }

    fn activations(
        config: &MedusaConfig,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        let (d, positions) = (target.d_model as u64, batch.positions() as f64);
        let (heads, layers) = (config.medusa_heads as u64, config.head_layers as u64);
        Ok(Activations {
            // What all blocks read; of each head the product and the sum of every block, and the gradient of the last sum.
            kept: positions * (d * (1 + heads * (2 * layers + 1))) as f64,
            judged: positions * work.judged,
            rows: positions,
            ..Activations::default()
        })
    }
}

fn layout(drafter: &Medusa, dtype: DType) -> MedusaLayout {
    let (config, spec) = (drafter.config(), &drafter.target().spec);
    MedusaLayout {
        hidden_size: spec.d_model,
        vocab_size: spec.vocab,
        draft_vocab_size: drafter.vocabulary().len(),
        heads: config.medusa_heads,
        layers: config.head_layers,
        bias: true,
        shared_head: config.head == OutputHead::Shared,
        dtype,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::drafter_folder::samples::{target, vocabulary};
    use spectrain_checkpoints::ModelFolder;
    use spectrain_models::RandomWeights;

    fn drafter(config: &MedusaConfig) -> Medusa {
        let (vocabulary, mut weights) = (vocabulary(config.draft_vocab), RandomWeights::new(3));
        let device = Device::flex();
        Medusa::new(config, &target(), &vocabulary, &mut weights, &device).unwrap()
    }

    fn cases() -> [MedusaConfig; 3] {
        let of = |head, head_layers, draft_vocab| MedusaConfig {
            medusa_heads: 3,
            head_layers,
            head,
            draft_vocab,
        };
        [
            of(OutputHead::Own, 1, 0),
            of(OutputHead::Own, 2, 20),
            of(OutputHead::Shared, 1, 20),
        ]
    }

    #[test]
    fn heads_read_back_have_the_same_tensors_and_settings() {
        let root = tempfile::tempdir().unwrap();
        for (number, config) in cases().iter().enumerate() {
            let folder = root.path().join(number.to_string());
            let written = drafter(config);
            written.write(&folder, DType::F32, &Value::Null).unwrap();
            let read = Medusa::open(&folder, &target(), &Device::flex()).unwrap();
            assert_eq!(export(&read), export(&written));
            assert_eq!(read.config(), written.config());
            assert_eq!(read.vocabulary(), written.vocabulary());
            let config = ModelFolder::open(&folder).unwrap().config().clone();
            assert!(medusa::recognises(&config));
        }
    }

    #[test]
    fn heads_of_another_target_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("d");
        let shared = drafter(&cases()[2]);
        shared.write(&folder, DType::BF16, &Value::Null).unwrap();
        Medusa::open(&folder, &target(), &Device::flex()).unwrap();
        let refused = |target: TargetParts, part: &str| {
            let error = Medusa::open(&folder, &target, &Device::flex()).unwrap_err();
            let error = format!("{error:#}");
            assert!(
                error.contains("not for this target") && error.contains(part),
                "{error}"
            );
        };
        let mut other = target();
        other.spec.vocab += 1;
        refused(other, "target vocabulary");
        let mut other = target();
        let weight = other.lm_head.weight.val() * 1.5;
        other.lm_head.weight = burn::module::Param::from_tensor(weight);
        refused(other, "`lm_head.weight`");
    }

    #[test]
    fn the_footprint_counts_the_parameters_that_there_are() {
        for config in cases() {
            let tensors = export(&drafter(&config));
            let expected: usize = tensors
                .iter()
                .map(|t| t.shape.iter().product::<usize>())
                .sum();
            let footprint = Medusa::footprint(&config, &target().spec).unwrap();
            assert_eq!(footprint.parameters, expected as u64, "{config:?}");
        }
    }
}

//! EAGLE-3 drafters as the tensors and sizes of a checkpoint.
use std::path::Path;

use burn::prelude::*;
use serde_json::{Value, json};
use spectrain_checkpoints::eagle3::{self, Eagle3Layout, Rope};
use spectrain_checkpoints::{DType, NamedTensor};
use spectrain_data::vocabulary::DraftVocabulary;

use crate::eagle3::{Eagle3, Eagle3Config, Head};
use crate::weights::{export, host_f32};
use crate::{Drafter, Error, Result, RopeScaling, TargetParts, TensorWeights};

const MAPS: [&str; 2] = ["d2t", "t2d"];
const EMBEDDING: &str = "embed_tokens.weight";

impl Eagle3 {
    /// Sizes and tensors, f32. A head shared with the target is left out where the drafter proposes every token, and
    /// written where it proposes some: no engine would pick the rows by itself.
    pub fn to_checkpoint(&self) -> (Eagle3Layout, Vec<NamedTensor>) {
        let (config, target, vocabulary) = (self.config(), self.target(), self.vocabulary());
        let spec = &target.spec;
        let shared_head = config.head == Head::Shared && vocabulary.is_full();
        let layout = Eagle3Layout {
            hidden_size: spec.d_model,
            target_hidden_size: spec.d_model,
            intermediate_size: config.d_ff,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: spec.d_head,
            layers: 1,
            vocab_size: spec.vocab,
            draft_vocab_size: vocabulary.len(),
            captured_layers: config.captured_layers.clone(),
            norm_before_residual: config.norm_before_residual,
            fc_norm: config.fc_norm,
            norm_output: config.norm_output,
            rms_norm_eps: spec.norm_epsilon,
            max_position_embeddings: spec.max_positions,
            rope: Rope {
                rope_theta: spec.rope.theta,
                scaling: match &spec.rope.scaling {
                    RopeScaling::Default => None,
                    scaling => Some(json!(scaling)),
                },
            },
            shared_head,
            dtype: DType::F32,
        };
        let mut tensors = export(self);
        if config.head == Head::Shared && !shared_head {
            let rows = host_f32(self.head().transpose());
            let shape = [vocabulary.len(), spec.d_model];
            tensors.push(NamedTensor::from_f32("lm_head.weight", shape, rows));
        }
        if !vocabulary.is_full() {
            let (d2t, t2d) = (vocabulary.d2t().to_vec(), vocabulary.t2d().to_vec());
            tensors.push(NamedTensor::from_i64("d2t", [d2t.len()], d2t));
            tensors.push(NamedTensor::from_bool("t2d", [t2d.len()], t2d));
        }
        (layout, tensors)
    }

    /// The drafter of a folder that [`Self::to_checkpoint`] and the EAGLE-3 dialect wrote, or a published one.
    ///
    /// # Errors
    /// The folder is not one, or not for this target.
    pub fn from_checkpoint(folder: &Path, target: &TargetParts, device: &Device) -> Result<Self> {
        let spec = &target.spec;
        let (layout, mut tensors) = eagle3::read_for_target(folder, spec.layers)?;
        let file = folder.join("config.json");
        let sizes = [
            ("vocab_size", layout.vocab_size, spec.vocab),
            (
                "target_hidden_size",
                layout.target_hidden_size,
                spec.d_model,
            ),
            ("hidden_size", layout.hidden_size, spec.d_model),
            ("head_dim", layout.head_dim, spec.d_head),
        ];
        for (key, got, expected) in sizes {
            if got != expected {
                return Err(Error::Config {
                    file,
                    key: key.into(),
                    expected: format!("{expected}, as the target has"),
                    got: got.to_string(),
                });
            }
        }
        let rope = json!({ "theta": spec.rope.theta, "scaling": spec.rope.scaling });
        let found = json!({ "theta": layout.rope.rope_theta, "scaling": scaling(&layout.rope) });
        if rope != found {
            return Err(Error::Config {
                file,
                key: "rope_parameters".into(),
                expected: format!("the target's rotary positions, {rope}"),
                got: found.to_string(),
            });
        }
        let vocabulary = match tensors.iter().find(|tensor| tensor.name == "d2t") {
            Some(d2t) => DraftVocabulary::from_d2t(&d2t.to_i64()?, spec.vocab)?,
            None => DraftVocabulary::full(spec.vocab),
        };
        tensors.retain(|tensor| !MAPS.contains(&tensor.name.as_str()) && tensor.name != EMBEDDING);
        let config = Eagle3Config {
            captured_layers: layout.captured_layers,
            draft_vocab: layout.draft_vocab_size,
            head: match layout.shared_head {
                true => Head::Shared,
                false => Head::Own,
            },
            d_ff: layout.intermediate_size,
            heads: layout.heads,
            kv_heads: layout.kv_heads,
            norm_before_residual: layout.norm_before_residual,
            fc_norm: layout.fc_norm,
            norm_output: layout.norm_output,
        };
        let source = folder.display().to_string();
        let mut weights = TensorWeights::new(tensors, source);
        Self::new(&config, target, &vocabulary, &mut weights, device)
    }
}

fn scaling(rope: &Rope) -> Value {
    rope.scaling
        .clone()
        .unwrap_or_else(|| json!(RopeScaling::Default))
}

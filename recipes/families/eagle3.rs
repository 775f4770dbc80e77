//! EAGLE-3 drafters as folders that engines load, and as sizes.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use burn::prelude::Device;
use serde_json::Value;
use spectrain_checkpoints::eagle3::speculators;
use spectrain_checkpoints::eagle3::{self, Eagle3Layout, Reading};
use spectrain_checkpoints::launch::{self, Launch};
use spectrain_checkpoints::published::Family;
use spectrain_checkpoints::speculators::Verifier;
use spectrain_checkpoints::{DType, NamedTensor};
use spectrain_data::tokens::TokenShards;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::eagle3::{Eagle3, Eagle3Config, Head};
use spectrain_models::weights::{TensorWeights, export};
use spectrain_models::{Capture, Drafter, TargetParts, TargetSpec};
use spectrain_train::Workload;

use crate::families::drafter_folder::{
    architectures, cast, check_sizes, is_copy, rope_config, rope_layout, target_embedding,
    target_head,
};
use crate::families::footprint::{
    Activations, Attended, Footprint, LayerSizes, Packed, Sees, decoder,
};
use crate::families::shipped::{Layout, Shipped, Writing, check_start};
use crate::recipe::tables::Engine;

/// Draft vocabulary, and the target's embedding that some published folders repeat: no parameters of the drafter.
const NOT_TRAINED: [&str; 3] = ["d2t", "t2d", EMBEDDING];
const EMBEDDING: &str = "embed_tokens.weight";

impl Shipped for Eagle3 {
    const KIND: &'static str = "eagle3";
    const FAMILY: Family = Family::Eagle3;
    const ENGINES: &'static [Engine] = &[
        Engine::Vllm,
        Engine::Sglang,
        Engine::TensorrtLlm,
        Engine::LlamaCpp,
        Engine::Speculators,
    ];
    const LAYOUTS: &'static [Layout<Self>] = &[Layout {
        engine: Engine::Speculators,
        write: write_speculators,
        launch: |_, writing| launch::vllm_of_speculators(writing.folder),
    }];

    fn begin(_: &Self::Config, _: &TargetParts, _: &TokenShards) -> Result<()> {
        Ok(())
    }

    fn open(folder: &Path, target: &TargetParts, device: &Device) -> Result<Self> {
        let meanings = eagle3::meanings(folder, target.spec.layers, None)?;
        if let [taken, other, ..] = &meanings[..] {
            tracing::warn!(
                "`{}` can be meant in {} ways; taken: {}; another: {}; `spectrain import` measures which is the one",
                folder.display(),
                meanings.len(),
                taken.text,
                other.text
            );
        }
        let reading = meanings.into_iter().next();
        let reading = reading.map_or_else(Reading::default, |meaning| meaning.reading);
        let (layout, mut tensors) = eagle3::read_as(folder, &reading)?;
        check_fit(&layout, &target.spec).with_context(|| {
            format!("the drafter `{}` is not for this target", folder.display())
        })?;
        let d2t = tensors.iter().find(|tensor| tensor.name == "d2t");
        let vocabulary = match d2t {
            Some(d2t) => DraftVocabulary::from_d2t(&d2t.to_i64()?, target.spec.vocab)?,
            None => DraftVocabulary::full(target.spec.vocab),
        };
        if let Some(own) = tensors.iter().find(|tensor| tensor.name == EMBEDDING)
            && !is_copy(own, &target_embedding(target))?
        {
            tracing::warn!(
                "`{EMBEDDING}` in `{}` is not the target's; the target's is used, as SGLang does",
                folder.display()
            );
        }
        tensors.retain(|tensor| !NOT_TRAINED.contains(&tensor.name.as_str()));
        let config = Eagle3Config {
            captured_layers: layout.captured_layers.clone(),
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
            window: layout.window,
        };
        // A drafter's norms and positions may be other than its target's.
        let mut parts = target.clone();
        parts.spec.norm_epsilon = layout.rms_norm_eps;
        let sizes = [layout.head_dim, layout.max_position_embeddings];
        parts.spec.rope = rope_config(folder, &layout.rope, sizes)?;
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
        if self.config().head == Head::Shared && !self.vocabulary().is_full() {
            // Engines share the target's whole head or none, so the rows of the draft vocabulary are written out.
            tensors.push(target_head(self.target(), self.vocabulary()));
        }
        let mut tensors = cast(tensors, dtype)?;
        tensors.extend(map(self));
        Ok(eagle3::write(
            folder,
            &layout(self, dtype)?,
            tensors,
            provenance,
        )?)
    }

    fn warm_start(
        config: &Eagle3Config,
        folder: &Path,
        target: &TargetParts,
        device: &Device,
    ) -> Result<Self> {
        let drafter = Self::open(folder, target, device)?;
        // No tensor shows these.
        let found = drafter.config();
        let settings = |config: &Eagle3Config| {
            [
                (
                    "norm_before_residual",
                    config.norm_before_residual.to_string(),
                ),
                ("norm_output", config.norm_output.to_string()),
                ("window", config.window.to_string()),
            ]
        };
        for ((key, expected), (_, found)) in settings(config).into_iter().zip(settings(found)) {
            if expected != found {
                bail!(
                    "the drafter `{}` has other settings than `[drafter]`: `{key}`: expected {expected}, found {found}",
                    folder.display()
                );
            }
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
        Ok(eagle3::launch_lines(
            folder,
            &layout(self, DType::F32)?,
            target,
            draft_length,
        ))
    }

    fn footprint(config: &Eagle3Config, target: &TargetSpec) -> Result<Footprint> {
        let or = |own: usize, theirs: usize| (if own == 0 { theirs } else { own }) as u64;
        let captured = Self::capture(config, target)?.layers.len() as u64;
        let (d, d_head) = (target.d_model as u64, target.d_head as u64);
        let sizes = target.layer_sizes(config.d_ff, config.heads, config.kv_heads)?;
        let [d_ff, heads, kv_heads] = sizes.map(|size| size as u64);
        let draft_vocab = or(config.draft_vocab, target.vocab);
        let projections = (heads + 2 * kv_heads) * d_head * 2 * d + heads * d_head * d;
        let norms = 4 * d + if config.fc_norm { captured * d } else { 0 };
        let head = match config.head {
            Head::Shared => 0,
            Head::Own | Head::Copied => draft_vocab * d,
        };
        Ok(Footprint {
            parameters: captured * d * d + projections + 3 * d * d_ff + norms + head,
            head,
            draft_vocab,
            frozen: 0,
            captured,
        })
    }

    fn activations(
        config: &Eagle3Config,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        let layer = layer(config, target)?;
        let attended = Attended::of(work, batch, Sees::Back);
        let one = decoder(&layer, 1, work, attended);
        let (d, keys) = (layer.d_model, layer.keys());
        let recomputed = work.held < work.passes;
        Ok(Activations {
            // One norm more than a layer of the target has.
            kept: one.kept + work.held as f64 * attended.rows * d as f64,
            // Hidden states, keys and values of every pass, and what the head reads.
            carried: match recomputed {
                true => one.rows * (2 * d + 2 * keys) as f64,
                false => 0.0,
            },
            ..one
        })
    }
}

/// The one layer, which reads a token and a hidden state side by side.
fn layer(config: &Eagle3Config, target: &TargetSpec) -> Result<LayerSizes> {
    let layer = LayerSizes::of(target, [config.d_ff, config.heads, config.kv_heads])?;
    Ok(LayerSizes {
        d_input: 2 * layer.d_model,
        head_norms: false,
        ..layer
    })
}

/// Writes the layout of the speculators library, which shares no head.
fn write_speculators(drafter: &Eagle3, writing: &Writing) -> Result<()> {
    let mut tensors = export(drafter);
    if drafter.config().head == Head::Shared {
        tensors.push(target_head(drafter.target(), drafter.vocabulary()));
    }
    let mut tensors = cast(tensors, writing.dtype)?;
    tensors.extend(map(drafter));
    let layout = Eagle3Layout {
        shared_head: false,
        ..layout(drafter, writing.dtype)?
    };
    let verifier = Verifier {
        name: writing.target.to_owned(),
        architectures: architectures(drafter.target())?,
        draft_tokens: writing.draft_length,
    };
    Ok(speculators::write(
        writing.folder,
        &layout,
        tensors,
        &verifier,
        writing.provenance,
    )?)
}

fn layout(drafter: &Eagle3, dtype: DType) -> Result<Eagle3Layout> {
    let (config, spec) = (drafter.config(), &drafter.target().spec);
    Ok(Eagle3Layout {
        hidden_size: spec.d_model,
        target_hidden_size: spec.d_model,
        intermediate_size: config.d_ff,
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: spec.d_head,
        layers: 1,
        vocab_size: spec.vocab,
        draft_vocab_size: drafter.vocabulary().len(),
        captured_layers: config.captured_layers.clone(),
        norm_before_residual: config.norm_before_residual,
        fc_norm: config.fc_norm,
        norm_output: config.norm_output,
        window: config.window,
        rms_norm_eps: spec.norm_epsilon,
        max_position_embeddings: spec.max_positions,
        rope: rope_layout(&spec.rope)?,
        shared_head: config.head == Head::Shared && drafter.vocabulary().is_full(),
        dtype,
    })
}

/// The draft vocabulary as tensors, unless it is the whole one.
fn map(drafter: &Eagle3) -> Vec<NamedTensor> {
    let vocabulary = drafter.vocabulary();
    if vocabulary.is_full() {
        return Vec::new();
    }
    let (d2t, t2d) = (vocabulary.d2t().to_vec(), vocabulary.t2d().to_vec());
    vec![
        NamedTensor::from_i64("d2t", [d2t.len()], d2t),
        NamedTensor::from_bool("t2d", [t2d.len()], t2d),
    ]
}

fn check_fit(layout: &Eagle3Layout, target: &TargetSpec) -> Result<()> {
    let last = layout.captured_layers.last().copied().unwrap_or(0);
    if last >= target.layers {
        bail!(
            "captured layers: expected layers of a target of {}, found {:?}",
            target.layers,
            layout.captured_layers
        );
    }
    check_sizes(&[
        ("decoder layers", layout.layers, 1),
        ("hidden size", layout.hidden_size, target.d_model),
        (
            "hidden size of its target",
            layout.target_hidden_size,
            target.d_model,
        ),
        ("width of a head", layout.head_dim, target.d_head),
        ("target vocabulary", layout.vocab_size, target.vocab),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::drafter_folder::samples::{target, vocabulary};
    use spectrain_checkpoints::ModelFolder;
    use spectrain_models::RandomWeights;
    use spectrain_models::weights::host_f32;

    fn drafter(config: &Eagle3Config, vocabulary: &DraftVocabulary) -> Eagle3 {
        let mut weights = RandomWeights::new(3);
        Eagle3::new(config, &target(), vocabulary, &mut weights, &Device::flex()).unwrap()
    }

    fn half_vocabulary() -> DraftVocabulary {
        vocabulary(target().spec.vocab / 2)
    }

    #[test]
    fn a_drafter_read_back_has_the_same_tensors_and_settings() {
        let root = tempfile::tempdir().unwrap();
        let base = Eagle3Config {
            captured_layers: vec![0, 1, 2],
            // What it started as is in no folder.
            head: Head::Own,
            ..Eagle3Config::default()
        };
        let full = DraftVocabulary::full(target().spec.vocab);
        let half = half_vocabulary();
        let half_size = half.len();
        let cases = [
            ("plain", base.clone(), &full),
            (
                "draft-vocabulary",
                Eagle3Config {
                    draft_vocab: half_size,
                    ..base.clone()
                },
                &half,
            ),
            (
                "shared",
                Eagle3Config {
                    head: Head::Shared,
                    ..base.clone()
                },
                &full,
            ),
            (
                "eagle-3.1",
                Eagle3Config {
                    fc_norm: true,
                    norm_output: true,
                    norm_before_residual: true,
                    d_ff: 24,
                    ..base
                },
                &full,
            ),
        ];
        for (name, config, vocabulary) in cases {
            let folder = root.path().join(name);
            let written = drafter(&config, vocabulary);
            written.write(&folder, DType::F32, &Value::Null).unwrap();
            let read = Eagle3::open(&folder, &target(), &Device::flex()).unwrap();
            assert_eq!(export(&read), export(&written), "{name}");
            assert_eq!(read.config(), written.config(), "{name}");
            assert_eq!(read.vocabulary(), vocabulary, "{name}");
            assert_eq!(read.target().spec, target().spec, "{name}");
            let config = ModelFolder::open(&folder).unwrap().config().clone();
            assert!(eagle3::recognises(&config), "{name}");
        }
    }

    #[test]
    fn a_shared_head_over_a_draft_vocabulary_is_written_out() {
        let root = tempfile::tempdir().unwrap();
        let vocabulary = half_vocabulary();
        let config = Eagle3Config {
            head: Head::Shared,
            draft_vocab: vocabulary.len(),
            ..Eagle3Config::default()
        };
        drafter(&config, &vocabulary)
            .write(root.path().join("d").as_path(), DType::F32, &Value::Null)
            .unwrap();
        let folder = ModelFolder::open(root.path().join("d")).unwrap();
        let head = folder.read("lm_head.weight").unwrap().to_f32().unwrap();
        let target = target();
        let rows = host_f32(target.lm_head.weight.val().transpose());
        let d = target.spec.d_model;
        for (draft, row) in head.chunks(d).enumerate() {
            let token = vocabulary.to_target(draft as u32) as usize;
            assert_eq!(
                row,
                &rows[token * d..(token + 1) * d],
                "draft token {draft}"
            );
        }
    }

    #[test]
    fn a_drafter_of_another_target_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("d");
        let full = DraftVocabulary::full(target().spec.vocab);
        drafter(&Eagle3Config::default(), &full)
            .write(&folder, DType::F32, &Value::Null)
            .unwrap();
        let mut other = target();
        other.spec.vocab += 1;
        let error = format!(
            "{:#}",
            Eagle3::open(&folder, &other, &Device::flex()).unwrap_err()
        );
        assert!(
            error.contains("not for this target") && error.contains("target vocabulary"),
            "{error}"
        );
    }

    #[test]
    fn the_footprint_counts_the_parameters_that_there_are() {
        let vocabulary = half_vocabulary();
        for (fc_norm, head) in [(false, Head::Own), (true, Head::Shared)] {
            let config = Eagle3Config {
                fc_norm,
                head,
                d_ff: 24,
                draft_vocab: vocabulary.len(),
                ..Eagle3Config::default()
            };
            let expected: usize = export(&drafter(&config, &vocabulary))
                .iter()
                .map(|tensor| tensor.shape.iter().product::<usize>())
                .sum();
            let footprint = Eagle3::footprint(&config, &target().spec).unwrap();
            assert_eq!(footprint.parameters, expected as u64);
        }
    }
}

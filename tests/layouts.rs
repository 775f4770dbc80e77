//! Folders of every recipe in every layout: what is written is read back, and nothing that is missing, left over, of another
//! shape or of another target passes.
use std::collections::BTreeSet;

use spectrain::families::registry::open_drafter;
use spectrain_checkpoints::eagle3::EAGLE3;
use spectrain_checkpoints::known::dialect_of;
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor};

use crate::samples::{Folder, Sample, parts, samples, sorted};
use spectrain_models::device::test_device;

/// Every folder that a registered drafter can be written as.
fn folders() -> impl Iterator<Item = (String, Sample, Folder)> {
    let of = |sample: Sample| {
        let layouts = sample.layouts().into_iter();
        layouts.filter_map(move |layout| {
            let name = format!("{} {layout:?}", sample.name());
            Some((name, sample, sample.folder(layout)?))
        })
    };
    samples().flat_map(of)
}

#[test]
fn training_goes_on_from_every_usual_folder_with_the_same_settings() {
    let target = parts();
    let usual = folders().filter(|(name, ..)| name.ends_with("None"));
    for (name, sample, folder) in usual {
        let resolved = sample.resolved();
        let checked = resolved.method.check_start(folder.path(), &target.spec);
        let told = checked.map_or_else(|error| format!("{error:#}"), |()| String::new());
        // A shared head over some tokens is written out, and is one of the drafter's own then.
        let is_of_head = told.contains("`head`: expected \"shared\", found \"own\"");
        let differs = told.contains("has other settings");
        assert!(!differs || is_of_head, "{name}: {told}");
    }
}

#[test]
fn every_drafter_is_the_same_again_from_every_layout() {
    for (name, sample, folder) in folders() {
        let (written, read) = (sample.drafter(), folder.open().unwrap());
        assert_eq!(read.kind(), written.kind(), "{name}");
        assert_eq!(read.vocabulary(), written.vocabulary(), "{name}");
        assert_eq!(
            read.capture().unwrap(),
            written.capture().unwrap(),
            "{name}"
        );
        if !sample.recipe.samples[sample.number].contains("lora") {
            let (read, written) = (read.tensors(), written.tensors());
            // A shared head over a draft vocabulary is a head of its own there.
            let read: Vec<NamedTensor> = if read.len() == written.len() + 1 {
                read.into_iter()
                    .filter(|t| t.name != "lm_head.weight")
                    .collect()
            } else {
                read
            };
            assert_eq!(sorted(read), sorted(written), "{name}");
        }
        let model = ModelFolder::open(folder.path()).unwrap();
        assert_eq!(
            dialect_of(&model).unwrap().family,
            sample.recipe.family,
            "{name}"
        );
    }
}

#[test]
fn the_list_of_a_drafters_parameters_is_what_it_has() {
    for sample in samples() {
        let footprint = sample.resolved().method.footprint(&parts().spec).unwrap();
        let parameters: usize = sample
            .drafter()
            .tensors()
            .iter()
            .map(|tensor| tensor.shape.iter().product::<usize>())
            .sum();
        let counted = footprint.parameters + footprint.frozen;
        assert_eq!(counted, parameters as u64, "{}", sample.name());
    }
}

/// What a folder may lack: no engine reads it, it says nothing, or the target's is taken in its place.
const SPARE: [&str; 5] = [
    "t2d",
    "fc.bias",
    "lm_head.weight",
    "embed_tokens.weight",
    "target_proj.weight",
];

/// Whether it is a norm of a layer behind the first, which in the engines' layout of EAGLE-3 stands under the names of both.
fn stands_twice(name: &str) -> bool {
    let layer = name
        .strip_prefix("layers.")
        .filter(|rest| !rest.starts_with("0."));
    let norms = [".input_layernorm.weight", ".hidden_norm.weight"];
    layer.is_some_and(|rest| norms.iter().any(|norm| rest.ends_with(norm)))
}

#[test]
fn a_missing_tensor_is_refused_by_name() {
    for (name, sample, folder) in folders() {
        let (config, tensors) = (folder.config(), folder.tensors());
        let model = ModelFolder::open(folder.path()).unwrap();
        let is_for_engines = dialect_of(&model).unwrap().name == EAGLE3.name;
        for missing in 0..tensors.len() {
            let mut kept = tensors.clone();
            let removed = kept.remove(missing).name;
            folder.rewrite(config.clone(), &kept);
            match folder.open() {
                Err(error) => {
                    let last = removed.rsplit("layers.0.").next().unwrap();
                    let last = last.strip_prefix("encoder.").unwrap_or(last);
                    let text = format!("{error:#}");
                    let told = text.contains(last) || removed.contains("output_norm_enc");
                    assert!(told, "{name}: {text} does not name {removed}");
                }
                Ok(_) => assert!(
                    SPARE.contains(&removed.as_str()) || (is_for_engines && stands_twice(&removed)),
                    "{name}: {removed} {}",
                    sample.name()
                ),
            }
        }
    }
}

#[test]
fn a_head_that_is_said_to_be_the_embedding_and_is_not_is_refused() {
    let mut families = BTreeSet::new();
    for (name, sample, folder) in folders() {
        if folder.config()["tie_word_embeddings"] != true {
            continue;
        }
        let with_head = |folder: Folder, changed: u8| {
            folder.with_tensors(|tensors| {
                let is_embedding = |t: &&NamedTensor| t.name == "model.embed_tokens.weight";
                let mut head = tensors.iter().find(is_embedding).unwrap().clone();
                head.name = "lm_head.weight".into();
                head.bytes[2] ^= changed;
                tensors.retain(|tensor| tensor.name != head.name);
                tensors.push(head);
            })
        };
        let folder = with_head(folder, 0);
        let same = folder.open().map(drop);
        same.unwrap_or_else(|error| panic!("{name}: {error:#}"));
        with_head(folder, 1).is_refused("`tie_word_embeddings`");
        families.insert(sample.recipe.family);
    }
    // Whatever is a language model.
    assert_eq!(families.len(), 3, "{families:?}");
}

#[test]
fn a_tensor_too_many_is_refused_by_name() {
    for (name, _, folder) in folders() {
        let folder = folder.with_tensors(|tensors| {
            let more = ["extra.weight", "layers.0.self_attn.q_proj.scale"];
            tensors.extend(more.map(|name| NamedTensor::from_f32(name, [7], vec![0.0; 7])));
        });
        let error = format!("{:#}", folder.open().err().unwrap());
        assert!(error.contains("extra.weight"), "{name}: {error}");
    }
}

#[test]
fn a_transposed_matrix_is_refused_with_both_shapes() {
    for (name, _, folder) in folders() {
        let (config, tensors) = (folder.config(), folder.tensors());
        for (number, tensor) in tensors.iter().enumerate() {
            let reversed: Vec<usize> = tensor.shape.iter().rev().copied().collect();
            if reversed == tensor.shape {
                continue;
            }
            let mut changed = tensors.clone();
            changed[number].shape = reversed.clone();
            folder.rewrite(config.clone(), &changed);
            let error = format!("{:#}", folder.open().err().unwrap());
            let (expected, got) = (format!("{:?}", tensor.shape), format!("{reversed:?}"));
            // As wide as the features of some target, this one may be.
            let of_another = tensor.name == "target_proj.weight";
            let told = error.contains(&got) && (error.contains(&expected) || of_another);
            assert!(told, "{name}: {}: {error}", tensor.name);
        }
    }
}

#[test]
fn a_weight_that_is_no_number_is_refused_when_it_is_read() {
    for (name, _, folder) in folders() {
        let folder = folder.with_tensors(|tensors| {
            let float = tensors.iter_mut().find(|t| t.dtype == DType::F32).unwrap();
            float.bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        });
        assert!(folder.open().is_err(), "{name}");
    }
}

#[test]
fn the_drafter_of_a_larger_target_is_refused() {
    for (name, _, folder) in folders() {
        let mut other = parts();
        other.spec.vocab -= 1;
        other.spec.d_model += 2;
        let opened = open_drafter(folder.path(), &other, &test_device());
        let error = opened.err().map(|error| format!("{error:#}"));
        let by_text = name.starts_with("distillspec") || name.starts_with("pard");
        let text = error.unwrap_or_else(|| panic!("{name} is taken"));
        assert!(
            text.contains("not for this target") || by_text,
            "{name}: {text}"
        );
    }
}

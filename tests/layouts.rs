//! Folders of every recipe in every layout: what is written is read back, and nothing that is missing, left over, of another
//! shape or of another target passes.
use std::collections::BTreeSet;

use serde_json::Value;
use spectrain::families::registry::open_drafter;
use spectrain::families::shipped::NamedBy;
use spectrain::recipe::ResolvedRecipe;
use spectrain::recipe::read::read;
use spectrain_checkpoints::known::dialect_of;
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor};

use crate::samples::{Folder, Sample, parts, remove, samples, sorted};
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

/// Whether it is of a language model, which knows the target by its tokens and not by its hidden states.
fn reads_text(folder: &Folder) -> bool {
    let model = ModelFolder::open(folder.path()).unwrap();
    dialect_of(&model).unwrap().by_text
}

#[test]
fn training_goes_on_from_every_folder_with_the_same_settings() {
    let target = parts();
    for (name, sample, folder) in folders() {
        let resolved = sample.resolved();
        let checked = resolved.method.check_start(folder.path(), &target.spec);
        let told = checked.map_or_else(|error| format!("{error:#}"), |()| String::new());
        // A shared head over some tokens, and in some layouts any, is written out, and is one of the drafter's own then.
        let is_of_head = told.contains("`head`: expected \"shared\", found \"own\"")
            && told.matches("`: expected ").count() == 1;
        let is_language_model = told.contains("starts from `[drafter] model`");
        let is_same = told.is_empty() || is_of_head || is_language_model;
        assert!(is_same, "{name}: {told}");
    }
}

#[test]
fn the_keys_that_are_read_from_a_folder_are_those_that_training_goes_on_with() {
    let target = parts();
    for (name, sample, folder) in folders() {
        let named = (sample.recipe.at_start)(folder.path(), &target.spec);
        match named.unwrap_or_else(|refused| panic!("{name}: {refused:#}")) {
            NamedBy::Start(keys) => {
                let tuned = with_keys(&name, sample, keys);
                let checked = tuned.method.check_start(folder.path(), &target.spec);
                checked.unwrap_or_else(|refused| panic!("{name}: {refused:#}"));
            }
            NamedBy::Model(keys) => {
                assert!(reads_text(&folder), "{name}");
                let tuned = with_keys(&name, sample, keys);
                assert_eq!(kept(&tuned), kept(&sample.resolved()), "{name}");
            }
        }
    }
}

/// The recipe of a sample's kind with these keys of `[drafter]`.
fn with_keys(name: &str, sample: Sample, keys: Vec<(String, Value)>) -> ResolvedRecipe {
    let keys: serde_json::Map<_, _> = keys.into_iter().collect();
    let drafter = toml::to_string(&serde_json::json!({ "drafter": keys })).unwrap();
    let recipe = format!(
        "recipe = \"{}\"\nname = \"tuned\"\ntarget.model = \"t\"\ndata.train = \"t.jsonl\"\n{drafter}",
        sample.recipe.name
    );
    read(&recipe, &[]).unwrap_or_else(|error| panic!("{name}: {error:#}"))
}

/// The table `[drafter]` of a language model, without what it started from and which of it was trained.
fn kept(recipe: &ResolvedRecipe) -> Value {
    let mut table = recipe.json["drafter"].clone();
    remove(&mut table, &["model", "keep_layers", "fresh", "lora"]);
    table
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

/// Whether it is a norm of a layer behind the first that stands among `others` too, under another name, as in the engines' layout of
/// EAGLE-3.
fn stands_twice(norm: &NamedTensor, others: &[NamedTensor]) -> bool {
    let names = [".input_layernorm.", ".hidden_norm."];
    let twins = [(0, 1), (1, 0)].map(|(own, other)| norm.name.replace(names[own], names[other]));
    let is_twin = |other: &NamedTensor| twins.contains(&other.name) && other.bytes == norm.bytes;
    !norm.name.starts_with("layers.0.") && others.iter().any(is_twin)
}

#[test]
fn a_missing_tensor_is_refused_by_name() {
    for (name, sample, folder) in folders() {
        let (config, tensors) = (folder.config(), folder.tensors());
        for missing in 0..tensors.len() {
            let mut kept = tensors.clone();
            let tensor = kept.remove(missing);
            let removed = &tensor.name;
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
                    SPARE.contains(&removed.as_str()) || stands_twice(&tensor, &kept),
                    "{name}: {removed} {}",
                    sample.name()
                ),
            }
        }
    }
}

#[test]
fn a_head_that_is_said_to_be_the_embedding_and_is_not_is_refused() {
    let (mut families, mut language_models) = (BTreeSet::new(), BTreeSet::new());
    for (name, sample, folder) in folders() {
        if reads_text(&folder) {
            language_models.insert(sample.recipe.family);
        }
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
    assert!(!families.is_empty());
    assert_eq!(families, language_models);
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
        let by_text = reads_text(&folder);
        let text = error.unwrap_or_else(|| panic!("{name} is taken"));
        assert!(
            text.contains("not for this target") || by_text,
            "{name}: {text}"
        );
    }
}

//! Every layer's hidden state and the logits of each architecture, against `transformers`.
use std::collections::BTreeSet;
use std::path::Path;

use burn::prelude::*;
use serde_json::{Value, json};
use spectrain_checkpoints::language_model::ARCHITECTURES;
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor, write_folder};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::device::test_device;
use spectrain_models::language_model::{LanguageModel, LanguageModelConfig};
use spectrain_models::weights::host_f32;
use spectrain_models::{
    Caches, Capture, Drafter as _, FrozenType, Layout, LogitRows, Pass, Target, TransformerConfig,
    chain, load_first_layers, load_target,
};

use crate::golden::{assert_close, folders, path, tensors};

const TOLERANCE: f32 = 1e-4;

/// Architectures without a golden target, as the library has no class of them, with that whose layers theirs are.
const BY_ANOTHER_NAME: [(&str, &str); 1] = [("mimo", "qwen2")];

fn golden_target(name: &str) -> ModelFolder {
    ModelFolder::open(path(&format!("targets/{name}"))).unwrap()
}

/// Compares the target in a folder with what the library made of the golden one of this name.
fn parity(folder: &ModelFolder, name: &str) {
    let device = test_device();
    let target = load_target(folder, &device, DType::F32).unwrap();
    let golden = tensors(&format!("targets/{name}/golden.safetensors"));
    let spec = target.spec().clone();
    let ids = &golden["input_ids"];
    let [batch, seq] = ids.shape[..] else {
        panic!()
    };
    let ids: Vec<u32> = ids.values.iter().map(|&id| id as u32).collect();
    let tokens = ids.iter().map(|&id| id as i64).collect::<Vec<_>>();
    let tokens = Tensor::<1, Int>::from_ints(tokens.as_slice(), &device).reshape([batch, seq]);
    let layout = Layout::whole([batch, seq], &device);
    for layer in 0..spec.layers {
        let capture = Capture {
            layers: vec![layer],
        };
        let features = target.features(tokens.clone(), &layout, &capture);
        let expected = golden[&format!("hidden.{layer}")].f32();
        assert_close(
            &format!("{name} hidden.{layer}"),
            &host_f32(features.captured),
            &expected,
            TOLERANCE,
        );
        assert_close(
            &format!("{name} last"),
            &host_f32(features.last),
            &golden["last"].f32(),
            TOLERANCE,
        );
    }
    // The decoding path, in two passes over a cache.
    let logits = golden["logits"].f32();
    for row in 0..batch {
        let mut caches = Caches::new(spec.layers, 4);
        let row_ids = &ids[row * seq..(row + 1) * seq];
        let mut got = Vec::new();
        for part in [&row_ids[..seq - 5], &row_ids[seq - 5..]] {
            let pass = Pass {
                tokens: part,
                parents: &chain(part.len()),
                logits: LogitRows::All,
            };
            got.extend(host_f32(
                target.decode(pass, &mut caches, &Capture::default()).logits,
            ));
        }
        let expected = &logits[row * seq * spec.vocab..(row + 1) * seq * spec.vocab];
        assert_close(&format!("{name} logits"), &got, expected, TOLERANCE);
    }
}

#[test]
fn every_target_equals_transformers() {
    let names = folders("targets");
    assert!(names.len() >= 12, "{names:?}");
    for name in names {
        parity(&golden_target(&name), &name);
    }
}

#[test]
fn every_architecture_has_a_golden_target_unless_it_is_another_one_by_name() {
    let kind = |name: &String| {
        let folder = golden_target(name);
        folder.config()["model_type"].as_str().unwrap().to_owned()
    };
    let mut kinds: BTreeSet<String> = folders("targets").iter().map(kind).collect();
    for (kind, _) in BY_ANOTHER_NAME {
        assert!(kinds.insert(kind.to_owned()), "{kind} has a golden target");
    }
    let known = ARCHITECTURES.map(|(kind, _)| kind.to_owned());
    assert_eq!(kinds, BTreeSet::from(known));
}

#[test]
fn an_architecture_that_is_another_one_by_name_computes_what_that_one_does() {
    for (kind, golden) in BY_ANOTHER_NAME {
        let known = |(other, _): &&(&str, &str)| *other == kind;
        let (_, class) = ARCHITECTURES.iter().find(known).unwrap();
        let folder = changed(golden, |config, _| {
            config["model_type"] = json!(kind);
            config["architectures"] = json!([class]);
        });
        parity(&ModelFolder::open(at(&folder)).unwrap(), golden);
    }
}

#[test]
fn what_is_read_of_every_target_is_read_again_of_what_is_written_of_it() {
    let read = |config: &Value| TransformerConfig::read(config, Path::new("config.json")).unwrap();
    for name in folders("targets") {
        let config = read(golden_target(&name).config());
        assert_eq!(read(&config.to_json().unwrap()), config, "{name}");
    }
}

/// Where such a folder has the target.
fn at(folder: &tempfile::TempDir) -> std::path::PathBuf {
    folder.path().join("target")
}

/// A folder with that of a golden target with another configuration or other tensors.
fn changed(
    name: &str,
    change: impl FnOnce(&mut Value, &mut Vec<NamedTensor>),
) -> tempfile::TempDir {
    let model = golden_target(name);
    let mut config = model.config().clone();
    let names = model.tensors().map(|info| info.name.clone());
    let mut tensors: Vec<_> = names.map(|name| model.read(&name).unwrap()).collect();
    change(&mut config, &mut tensors);
    let folder = tempfile::tempdir().unwrap();
    write_folder(&at(&folder), &config, &tensors, &[]).unwrap();
    folder
}

/// The same with other tensors alone.
fn with_tensors(name: &str, change: impl FnOnce(&mut Vec<NamedTensor>)) -> tempfile::TempDir {
    changed(name, |_, tensors| change(tensors))
}

/// What is said of a folder that is refused.
fn refused(folder: &Path, held: impl Into<FrozenType>) -> String {
    let model = ModelFolder::open(folder).unwrap();
    let loaded = load_target(&model, &Device::flex(), held);
    loaded.map(drop).unwrap_err().to_string()
}

/// A folder whose head is said to be the embedding and stands beside it, changed by so many bits.
fn with_head(changed: u8) -> tempfile::TempDir {
    with_tensors("qwen2", |tensors| {
        let is_embedding = |tensor: &&NamedTensor| tensor.name == "model.embed_tokens.weight";
        let mut head = tensors.iter().find(is_embedding).unwrap().clone();
        head.name = "lm_head.weight".into();
        head.bytes[2] ^= changed;
        tensors.push(head);
    })
}

#[test]
fn a_head_that_is_said_to_be_the_embedding_and_is_not_is_refused() {
    let same = with_head(0);
    let model = ModelFolder::open(at(&same)).unwrap();
    load_target(&model, &Device::flex(), DType::F32).unwrap();
    let other = with_head(1);
    let first = load_first_layers(&at(&other), 1, &Device::flex(), DType::F32);
    let first = first.map(drop).unwrap_err().to_string();
    for error in [refused(&at(&other), DType::F32), first] {
        for word in [
            "config.json",
            "`tie_word_embeddings`",
            "`lm_head.weight`",
            "`model.embed_tokens.weight`",
        ] {
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}

#[test]
fn no_drafter_starts_from_a_model_with_such_a_head() {
    let device = test_device();
    let model = golden_target("qwen2");
    let target = load_target(&model, &device, DType::F32).unwrap().parts();
    let vocabulary = DraftVocabulary::full(target.spec.vocab);
    let started = |folder: &Path, keep_layers: &[usize]| {
        let config = LanguageModelConfig {
            model: folder.display().to_string(),
            keep_layers: keep_layers.to_vec(),
            ..LanguageModelConfig::default()
        };
        LanguageModel::fresh(&config, &target, &vocabulary, 0, &device).map(drop)
    };
    let (same, other) = (with_head(0), with_head(1));
    for keep_layers in [Vec::new(), vec![0]] {
        started(&at(&same), &keep_layers).unwrap();
        let error = started(&at(&other), &keep_layers).unwrap_err().to_string();
        assert!(error.contains("`tie_word_embeddings`"), "{error}");
    }
}

#[test]
fn a_matrix_with_what_is_no_number_is_refused_in_eight_bits_too() {
    let name = "model.layers.1.mlp.up_proj.weight";
    for number in [f32::NAN, f32::INFINITY] {
        let folder = with_tensors("llama", |tensors| {
            let matrix = tensors
                .iter_mut()
                .find(|tensor| tensor.name == name)
                .unwrap();
            matrix.bytes[4..8].copy_from_slice(&number.to_le_bytes());
        });
        let held = FrozenType {
            int8: true,
            ..DType::F32.into()
        };
        let error = refused(&at(&folder), held);
        assert!(error.contains(name), "{error}");
    }
}

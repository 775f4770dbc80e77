//! Folders of models: targets of every architecture, parts of those that are only served, and drafters of every layout.
use std::collections::BTreeMap;
use std::path::Path;

use rand::{RngExt, rngs::StdRng};
use serde_json::Value;
use spectrain::families::registry::open_drafter;
use spectrain_checkpoints::dialect::Reading;
use spectrain_checkpoints::known::dialect_of;
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor, seal};
use spectrain_models::device::test_device;
use spectrain_models::{TargetParts, load_parts, load_target};

use super::bytes;
use super::fuzz::{Expected, Files, Fuzz, files_of};
use super::json;
use crate::golden::path;
use crate::samples::{parts, samples};

/// Changes the weights, most often in a header that stays well formed.
pub fn change_weights(files: &mut Files, rng: &mut StdRng) {
    let weights = files
        .iter_mut()
        .find(|(name, _)| name.ends_with(".safetensors"));
    let (_, weights) = weights.unwrap();
    let parsed = parse(weights).filter(|_| rng.random_bool(0.6));
    let Some((mut header, data)) = parsed else {
        return bytes::change(weights, rng);
    };
    for _ in 0..rng.random_range(1..3) {
        json::change(&mut header, rng);
    }
    let header = header.to_string().into_bytes();
    let length = (header.len() as u64).to_le_bytes();
    *weights = [&length[..], &header, &data].concat();
}

/// The header of safetensors, and what follows it.
fn parse(weights: &[u8]) -> Option<(Value, Vec<u8>)> {
    let length = u64::from_le_bytes(weights.get(..8)?.try_into().ok()?);
    let end = usize::try_from(length).ok()?.checked_add(8)?;
    let header = serde_json::from_slice(weights.get(8..end)?).ok()?;
    Some((header, weights[end..].to_vec()))
}

fn mutate(files: &mut Files, rng: &mut StdRng) {
    if rng.random_bool(0.35) {
        return change_weights(files, rng);
    }
    let texts = files.iter_mut().filter(|(name, _)| name.ends_with(".json"));
    let mut texts: Vec<&mut Vec<u8>> = texts.map(|(_, text)| text).collect();
    let at = rng.random_range(0..texts.len());
    json::change_bytes(texts[at], rng);
}

/// The models in a folder of the golden data.
fn golden(folder: &str) -> Vec<Files> {
    let root = std::fs::read_dir(path(folder)).unwrap();
    let mut models: Vec<_> = root.map(|entry| entry.unwrap().path()).collect();
    models.retain(|path| path.join("config.json").exists());
    models.sort();
    let of = |path: &std::path::PathBuf| {
        let mut files = files_of(path);
        files.remove("golden.safetensors");
        files
    };
    models.iter().map(of).collect()
}

#[test]
fn targets_are_read_or_refused() {
    Fuzz {
        name: "targets",
        corpus: golden("targets"),
        mutate,
        read: |folder: &Path| {
            let model = ModelFolder::open(folder).map_err(|error| error.to_string())?;
            let target = load_target(&model, &test_device(), DType::F32);
            let target = target.map_err(|error| error.to_string())?;
            Ok(format!(
                "{:?}",
                spectrain_models::Target::spec(&target).vocab
            ))
        },
        expected: Expected::default(),
    }
    .run();
}

#[test]
fn parts_of_targets_are_read_or_refused() {
    Fuzz {
        name: "parts",
        corpus: golden("parts"),
        mutate,
        read: |folder: &Path| {
            let parts = load_parts(folder, &test_device(), DType::F32);
            let parts = parts.map_err(|error| error.to_string())?;
            Ok(parts.spec.vocab.to_string())
        },
        expected: Expected::default(),
    }
    .run();
}

/// Drafters of every family, in every layout, as this program writes them: with a seal.
fn sealed() -> Vec<Files> {
    let of = |sample: crate::samples::Sample| {
        let layouts = sample.layouts().into_iter();
        layouts.filter_map(move |layout| Some(files_of(sample.folder(layout)?.path())))
    };
    samples().flat_map(of).collect()
}

/// Configuration and weights without what an evaluation adds.
fn content(model: &ModelFolder) -> String {
    let tensors: BTreeMap<String, NamedTensor> = model
        .tensors()
        .map(|info| (info.name.clone(), model.read(&info.name).unwrap()))
        .collect();
    let config = seal::sha256_of_config(model.config());
    format!(
        "{config} {}",
        spectrain_checkpoints::hash::sha256_bytes(format!("{tensors:?}").as_bytes())
    )
}

fn open(folder: &Path, target: &TargetParts) -> Result<String, String> {
    let opened = open_drafter(folder, target, &test_device());
    opened.map_err(|error| format!("{error:#}"))?;
    let model = ModelFolder::open(folder).map_err(|error| error.to_string())?;
    // Without its seal a folder may be anyone's.
    if model.config().get(seal::SEAL).is_none() {
        return Err(folder.display().to_string());
    }
    Ok(content(&model))
}

#[test]
fn altered_drafters_of_every_family_are_refused() {
    let target = parts();
    Fuzz {
        name: "drafters",
        corpus: sealed(),
        mutate,
        read: |folder: &Path| open(folder, &target),
        expected: Expected {
            sealed: true,
            ..Expected::default()
        },
    }
    .run();
}

fn understand(folder: &Path) -> Result<String, String> {
    let model = ModelFolder::open(folder).map_err(|error| error.to_string())?;
    let dialect = dialect_of(&model).map_err(|error| error.to_string())?;
    let reading = Reading {
        target_layers: Some(6),
        ..Reading::default()
    };
    let meanings = dialect.meanings(&model, &reading, None);
    meanings.map_err(|error| error.to_string())?;
    let opened = dialect.open(&model, reading);
    let settings = opened.map_err(|error| error.to_string())?.settings;
    Ok(format!("{settings:?}").len().to_string())
}

/// Drafters that others have published, but for those with parts that nobody here computes.
fn published() -> Vec<Files> {
    let mut all = golden("published");
    all.extend(golden("engines"));
    let folder = tempfile::tempdir().unwrap();
    all.retain(|files| {
        super::fuzz::write(folder.path(), files);
        understand(folder.path()).is_ok()
    });
    assert!(all.len() > 15, "{}", all.len());
    all
}

#[test]
fn published_drafters_are_understood_or_refused() {
    Fuzz {
        name: "published",
        corpus: published(),
        mutate,
        read: understand,
        expected: Expected::default(),
    }
    .run();
}

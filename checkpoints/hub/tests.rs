mod hostile;
mod listing;
mod log;
mod model;
mod resume;
mod secrets;
mod server;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use crate::tensors::{NamedTensor, write_safetensors};
use server::Hub;

/// Options for a hub of this test: no pauses, and room for a loaded machine.
fn options(hub: &Hub, cache: &Path) -> HubOptions {
    HubOptions {
        endpoint: Some(hub.endpoint.clone()),
        cache: Some(cache.join("hub")),
        limits: HubLimits {
            attempts: 3,
            pause: Duration::ZERO,
            ..HubLimits::default()
        },
        ..HubOptions::default()
    }
}

/// Downloads the model `org/name` as this program does, with none of the variables of who runs the tests.
fn fetch_with(revision: Option<&str>, options: &HubOptions) -> Result<PathBuf> {
    fetch_in(&[], revision, options)
}

fn fetch_in(
    variables: &[(&str, &str)],
    revision: Option<&str>,
    options: &HubOptions,
) -> Result<PathBuf> {
    let environment = Environment::of(Path::new("/nonexistent"), variables);
    let repository = Repository::new(RepoType::Model, "org/name", revision)?;
    Download::new(&repository, options, &environment)?.run(Files::Model)
}

/// The snapshot with these files alone.
fn fetch_files(files: Files<'_>, options: &HubOptions) -> Result<PathBuf> {
    let environment = Environment::of(Path::new("/nonexistent"), &[]);
    let repository = Repository::new(RepoType::Model, "org/name", None)?;
    Download::new(&repository, options, &environment)?.run(files)
}

fn fetch(hub: &Hub, cache: &Path) -> Result<PathBuf> {
    fetch_with(None, &options(hub, cache))
}

fn error(hub: &Hub, cache: &Path) -> String {
    fetch(hub, cache).unwrap_err().to_string()
}

fn weight(name: &str) -> NamedTensor {
    NamedTensor::from_f32(name, [1], vec![1.0])
}

fn weights(name: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    write_safetensors(&path, &[weight(name)], &BTreeMap::new()).unwrap();
    fs::read(path).unwrap()
}

/// Files of a model with all that is asked for first.
fn model() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("config.json", b"{\"a\": 1}".to_vec()),
        ("tokenizer.json", b"{}".to_vec()),
        ("model.safetensors", weights("w")),
    ]
}

/// Names in a folder of the cache of `org/name`.
fn names(cache: &Path, folder: &str) -> Vec<String> {
    let folder = cache.join("hub/models--org--name").join(folder);
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

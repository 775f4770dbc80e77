//! Settings of other trainers: whatever a file or a script says, it becomes keys of a recipe or is refused.
use std::fs;
use std::path::Path;

use rand::rngs::StdRng;
use spectrain::trainers::{TRAINERS, translate};

use super::bytes::change_text;
use super::fuzz::{Expected, Files, Fuzz, file};
use crate::other_trainers::file_of;

/// A file of every trainer for each kind of drafter that it trains.
fn corpus() -> Vec<Files> {
    let of = |trainer: &'static spectrain::trainers::Trainer| {
        let kinds = trainer.kinds.iter();
        kinds.map(move |(kind, _)| {
            let [name, text] = file_of(trainer, kind);
            file(&name, text)
        })
    };
    TRAINERS.into_iter().flat_map(of).collect()
}

fn mutate(files: &mut Files, rng: &mut StdRng) {
    let text = files.values_mut().next().unwrap();
    change_text(text, rng);
}

fn read(folder: &Path) -> Result<String, String> {
    let entry = fs::read_dir(folder).unwrap().next().unwrap().unwrap();
    let text = fs::read_to_string(entry.path()).map_err(|error| {
        let path = entry.path();
        format!("`{}`: {error}", path.display())
    })?;
    let found = translate(&text, &entry.path()).map_err(|error| format!("{error:#}"))?;
    assert!(
        found.summary().contains("settings of"),
        "{}",
        found.summary()
    );
    Ok(found.recipe.to_owned())
}

#[test]
fn settings_of_other_trainers_are_read_or_refused() {
    Fuzz {
        name: "other-trainers",
        corpus: corpus(),
        mutate,
        read,
        expected: Expected::default(),
    }
    .run();
}

//! Words of the command line and of recipes: names of datasets, repositories, drafts and drafters.
use std::fs;
use std::path::Path;

use rand::{RngExt, rngs::StdRng};
use spectrain_checkpoints::hub::{RepoType, Repository};
use spectrain_data::hub_data::HubAddress;
use spectrain_data::rows;
use spectrain_data::sources::Origin;
use spectrain_eval::DraftChoice;
use spectrain_models::TrainingFree;

use super::bytes::{change_text, odd};
use super::fuzz::{Expected, Files, Fuzz, file};

const WORD: &str = "word";

const WORDS: [&str; 14] = [
    "hf://org/name",
    "hf://datasets/org/name@refs/convert/parquet:en/train",
    "hf://name@0123456789abcdef0123456789abcdef01234567:test",
    "org/name@v1.0",
    "data/*.jsonl",
    "data/[a-z]?/**/x.parquet",
    "chain:5",
    "static:medusa-63,children=without_replacement",
    "dynamic:20,depth=4,top_k=3",
    "best_first:12,depth=4",
    "confident:5,threshold=0.5,by=entropy",
    "calibrated:16,prompts=4",
    "early-layers:4",
    "prompt-lookup",
];

fn mutate(files: &mut Files, rng: &mut StdRng) {
    let word = files.get_mut(WORD).unwrap();
    if rng.random_bool(0.3) {
        let at = rng.random_range(0..=word.len());
        word.splice(at..at, odd(rng).bytes());
    }
    if rng.random_bool(0.2) {
        let at = rng.random_range(0..=word.len());
        word.splice(at..at, *b"/../");
    }
    for _ in 0..rng.random_range(1..3) {
        change_text(word, rng);
    }
    // Longer ones are no words, and a pattern of so many stars is the user's own.
    word.truncate(300);
}

/// How many kinds of words it is.
fn read(folder: &Path) -> Result<String, String> {
    let bytes = fs::read(folder.join(WORD)).unwrap();
    let word = String::from_utf8_lossy(&bytes).into_owned();
    let mut taken = 0;
    if let Some(Ok(address)) = HubAddress::parse(&word) {
        let again = HubAddress::parse(&address.to_string());
        assert_eq!(again, Some(Ok(address)), "{word}");
        taken += 1;
    }
    for kind in [RepoType::Model, RepoType::Dataset] {
        if let Ok(repository) = Repository::read(kind, &word) {
            let leads_away = |part: &str| part.is_empty() || part == "." || part == "..";
            let id = repository.id();
            assert!(!id.split('/').any(leads_away), "{word}: {id}");
            taken += 1;
        }
    }
    if let Ok(origin) = Origin::read(word.clone().into()) {
        assert!(!origin.to_string().is_empty() || word.is_empty());
    }
    taken += usize::from(word.parse::<DraftChoice>().is_ok());
    taken += usize::from(word.parse::<TrainingFree>().is_ok());
    taken += usize::from(rows::files(&folder.join(&word)).is_ok());
    match taken {
        0 => Err(folder.display().to_string()),
        _ => Ok(taken.to_string()),
    }
}

#[test]
fn words_are_understood_or_refused() {
    let mut corpus: Vec<Files> = WORDS.iter().map(|word| file(WORD, *word)).collect();
    for files in &mut corpus {
        files.extend(file("data/a.jsonl", "{}\n"));
        files.extend(file("data/b1/c/x.parquet", ""));
    }
    Fuzz {
        name: "words",
        corpus,
        mutate,
        read,
        expected: Expected::default(),
    }
    .run();
}

//! What this program writes for itself, and what others write of the same kind: what was altered is refused or made anew.
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rand::rngs::StdRng;
use serde_json::{Map, Value, json};
use spectrain::runtime::capture::file::Received;
use spectrain::runtime::capture::{server, states};
use spectrain_checkpoints::folder::read_safetensors;
use spectrain_checkpoints::hash::sha256_bytes;
use spectrain_checkpoints::{NamedTensor, state, write_safetensors};
use spectrain_data::features::{
    FeatureHeader, FeatureShards, FeatureWriter, StoredSample, StoredType,
};
use spectrain_data::foreign::{self, RowsWriter};
use spectrain_data::regenerate::{
    Answer, Answers, ExistingAnswers, Failure, Job, RegenerateSettings, Request, Retry, ToolRows,
    Truncated, Work,
};
use spectrain_data::tokens::{TokenShards, TokenWriter};
use spectrain_data::unusable::Unusable;
use spectrain_data::{Message, Sample};

use super::bytes;
use super::fuzz::{Expected, Files, Fuzz, any, files_of};
use super::json::{change_bytes, change_line};

/// Changes a file as its kind allows.
fn mutate(files: &mut Files, rng: &mut StdRng) {
    match any(files, rng) {
        (name, contents) if name.ends_with(".json") => change_bytes(contents, rng),
        (name, contents) if name.ends_with(".journal") => change_line(contents, rng),
        (_, contents) => bytes::change(contents, rng),
    }
}

const SEALED: Expected = Expected {
    memory_per_byte: 64,
    memory: 8 << 20,
    seconds: 60,
    sealed: true,
    names_files: true,
};

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// What `make` writes into a folder.
fn made(make: impl FnOnce(&Path)) -> Files {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path());
    files_of(folder.path())
}

fn tokens() -> Vec<Files> {
    let of = |count: u32| {
        made(|folder| {
            let mut writer = TokenWriter::create(folder, 30).unwrap();
            for number in 0..count {
                let tokens: Vec<u32> = (number..number + 12).collect();
                let loss_mask = tokens.iter().map(|token| token % 3 != 0).collect();
                writer.push(&Sample { tokens, loss_mask }).unwrap();
            }
            let extra = json!({"tokenizer": "abc"});
            writer.finish(extra.as_object().unwrap().clone()).unwrap();
        })
    };
    [3, 9].map(of).into()
}

fn read_tokens(folder: &Path) -> Result<String, String> {
    let shards = TokenShards::open(folder).map_err(said)?;
    let samples: Vec<_> = shards.iter().collect();
    Ok(sha256_bytes(
        format!("{samples:?} {:?}", shards.lengths()).as_bytes(),
    ))
}

#[test]
fn altered_tokens_are_refused() {
    Fuzz {
        name: "tokens",
        corpus: tokens(),
        mutate,
        read: read_tokens,
        expected: SEALED,
    }
    .run();
}

/// Samples with features.
const FEATURES: u32 = 5;

fn features() -> Vec<Files> {
    vec![made(|folder| {
        let header = FeatureHeader {
            target_sha256: "ab".repeat(32),
            captured_layers: vec![0, 2],
            d_model: 4,
            tokens_fingerprint: "cd".repeat(32),
            dtype: StoredType::Bf16,
        };
        let mut writer = FeatureWriter::open(folder, header, 2).unwrap();
        for number in 0..FEATURES {
            let length = 3 + number as usize;
            let captured: Vec<u16> = (0..length as u16 * 8).collect();
            let sample = StoredSample {
                tokens: &(0..length as u32).collect::<Vec<_>>(),
                loss_mask: &vec![1; length],
                captured: captured[..].into(),
                last: captured[..length * 4].into(),
            };
            writer.push(&sample).unwrap();
        }
        writer.finish().unwrap();
    })]
}

fn read_features(folder: &Path) -> Result<String, String> {
    let shards = FeatureShards::open(folder).map_err(said)?;
    let samples: Vec<_> = (0..shards.len()).map(|sample| shards.get(sample)).collect();
    if samples.len() < FEATURES as usize {
        // Whoever reads them knows how many there must be, and counts them.
        return Err(folder.display().to_string());
    }
    Ok(sha256_bytes(format!("{samples:?}").as_bytes()))
}

/// The header says what the features are of, and is judged by whoever wants them: another one is no damage.
#[test]
fn altered_features_are_refused() {
    Fuzz {
        name: "arrow",
        corpus: features(),
        mutate,
        read: read_features,
        expected: SEALED,
    }
    .run();
}

fn tensors() -> Vec<NamedTensor> {
    let values = (0..24).map(|value| value as f32).collect();
    vec![
        NamedTensor::from_f32("hidden_states", [4, 3, 2], values),
        NamedTensor::from_i64("token_ids", [4], vec![0, 1, 2, 3]),
        NamedTensor::from_bool("loss_mask", [4], vec![false, true, true, true]),
    ]
}

fn read_state(folder: &Path) -> Result<String, String> {
    let saved = state::latest(folder).map_err(said)?;
    let saved = saved.ok_or_else(|| folder.display().to_string())?;
    let state = state::load(&saved.path).map_err(said)?;
    Ok(sha256_bytes(format!("{state:?}").as_bytes()))
}

#[test]
fn altered_states_of_a_training_are_refused() {
    let corpus = made(|folder| {
        let kept = json!({"epoch": 1, "loss": [0.5, 0.25]});
        let groups = [("weights", &tensors()[..]), ("optimizer", &tensors()[..1])];
        state::save_state(folder, 3, &kept, &groups).unwrap();
    });
    Fuzz {
        name: "states",
        corpus: vec![corpus],
        mutate,
        read: read_state,
        expected: SEALED,
    }
    .run();
}

#[test]
fn tensors_are_read_or_refused() {
    let mut corpus = vec![made(|folder| {
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        write_safetensors(&folder.join("a.safetensors"), &tensors(), &metadata).unwrap();
    })];
    corpus.push(made(|folder| {
        write_safetensors(&folder.join("a.safetensors"), &[], &BTreeMap::new()).unwrap();
    }));
    Fuzz {
        name: "safetensors",
        corpus,
        mutate: super::models::change_weights,
        read: |folder: &Path| {
            let tensors = read_safetensors(&folder.join("a.safetensors")).map_err(said)?;
            Ok(tensors
                .iter()
                .map(|tensor| tensor.bytes.len())
                .sum::<usize>()
                .to_string())
        },
        expected: Expected::default(),
    }
    .run();
}

/// Hidden states beside the rows of a dataset.
fn foreign_features() -> Files {
    made(|folder| {
        let states = folder.join("hidden_states");
        fs::create_dir(&states).unwrap();
        for (name, count) in [("hs_0", 2), ("hs_1", 3)] {
            let path = states.join(format!("{name}.safetensors"));
            write_safetensors(&path, &tensors()[..count], &BTreeMap::new()).unwrap();
        }
        fs::write(folder.join(foreign::LAYERS), r#"{"layer_ids": [0, 3, 6]}"#).unwrap();
        let mut rows = RowsWriter::create(folder).unwrap();
        rows.push(&[0, 1, 2, 3], &[0, 1, 1, 1]).unwrap();
        rows.push(&[0, 1, 2, 3], &[0, 0, 1, 1]).unwrap();
        rows.finish().unwrap();
    })
}

fn change_foreign(files: &mut Files, rng: &mut StdRng) {
    match any(files, rng) {
        (name, contents) if name.ends_with(".json") => change_bytes(contents, rng),
        (name, _) if name.ends_with(".safetensors") => {
            let name = name.to_owned();
            let mut one = Files::from([(name.clone(), files[&name].clone())]);
            super::models::change_weights(&mut one, rng);
            files.extend(one);
        }
        (_, contents) => bytes::change(contents, rng),
    }
}

#[test]
fn features_of_other_programs_are_read_or_refused() {
    Fuzz {
        name: "foreign",
        corpus: vec![foreign_features()],
        mutate: change_foreign,
        read: |folder: &Path| {
            let found = foreign::open(folder, None).map_err(said)?;
            let mut bytes = 0;
            for sample in 0..found.samples() {
                bytes += found.text(sample).map_err(said)?.tokens.len();
                bytes += found.states(sample).map_err(said)?.states.bytes.len();
            }
            Ok(bytes.to_string())
        },
        expected: Expected {
            // What the library sets aside for a message that claims to be long.
            memory: 80 << 20,
            ..Expected::default()
        },
    }
    .run();
}

/// Hidden states of a server in a folder that is shared with it, which are deleted once they are read.
#[test]
fn hidden_states_of_servers_are_read_or_refused() {
    Fuzz {
        name: "captured",
        corpus: vec![made(|folder| {
            write_safetensors(&folder.join("a.safetensors"), &tensors(), &BTreeMap::new()).unwrap();
        })],
        mutate: super::models::change_weights,
        read: |folder: &Path| {
            let path = folder.join("a.safetensors");
            let taken = Received::none(server::NAMED);
            let taken = taken.take(&path, Duration::from_secs(5), |path| {
                states::read(path, [8, 3, 2])
            });
            assert!(!path.exists(), "it stays");
            let taken = taken.map_err(|failure| match failure {
                Failure::Passing { reason, .. } | Failure::Lasting { reason } => reason,
            })?;
            Ok(taken.states.bytes.len().to_string() + &taken.tokens.len().to_string())
        },
        expected: Expected::default(),
    }
    .run();
}

/// Says of each turn what was asked.
struct Echo;

impl Answers for Echo {
    fn answer(&self, request: &Request) -> Result<Answer, Failure> {
        let asked = &request.exchange.messages.last().unwrap().content;
        let text = format!("{}.{}: {asked}", request.row, request.turn);
        Ok(Answer {
            message: Message::new("assistant", text),
            truncated: false,
            written: None,
        })
    }
}

/// Answers what the journal does not hold, and reads what comes of it.
fn regenerate(folder: &Path) -> Result<String, String> {
    let out = folder.join("out.jsonl");
    let data = folder.join("data.json");
    let rows: Value = serde_json::from_slice(DATA.as_bytes()).unwrap();
    fs::write(&data, rows.to_string()).unwrap();
    let wanted = RegenerateSettings {
        data: &data.into(),
        out: &out,
        settings: Map::from_iter([("model".to_owned(), json!("m"))]),
        truncated: Truncated::Keep,
        tools: ToolRows::Copy,
        unusable: Unusable::Refuse,
    };
    let work = Work {
        concurrency: 1,
        retry: Retry {
            retries: 0,
            first: Duration::ZERO,
            longest: Duration::ZERO,
        },
        requests_per_second: None,
        interrupted: &|| false,
    };
    let job = Job::open(&wanted, ExistingAnswers::Continue).map_err(said)?;
    job.run(&Echo, &work, &mut |_, _| {}).map_err(said)?;
    Ok(fs::read_to_string(&out).unwrap())
}

const DATA: &str = r#"[
    {"messages": [{"role": "user", "content": "a"}]},
    {"messages": [{"role": "user", "content": "b"}, {"role": "assistant", "content": "?"}, {"role": "user", "content": "c"}]},
    {"messages": [{"role": "user", "content": "d"}]}
]"#;

#[test]
fn altered_answers_of_a_journal_are_asked_for_again() {
    let corpus = made(|folder| {
        regenerate(folder).unwrap();
        for name in ["out.jsonl", "out.jsonl.report", "data.json"] {
            fs::remove_file(folder.join(name)).unwrap();
        }
    });
    assert!(corpus.contains_key("out.jsonl.journal"), "{corpus:?}");
    Fuzz {
        name: "journal",
        corpus: vec![corpus],
        mutate,
        read: regenerate,
        expected: SEALED,
    }
    .run();
}

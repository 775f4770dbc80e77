//! A run's figures in a file of Weights & Biases. What reads it here also reads one that its own client has written.
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::workspace::Workspace;

/// The records of a file: LevelDB's log, with checksums of zlib.
fn records(path: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).unwrap();
    assert_eq!(&bytes[..7], b":W&B\xe1\xbe\x00");
    let mut records: Vec<Vec<u8>> = Vec::new();
    let (mut at, mut is_open) = (7, false);
    while at < bytes.len() {
        let room = 32768 - at % 32768;
        if room < 7 {
            assert!(bytes[at..at + room].iter().all(|byte| *byte == 0));
            at += room;
            continue;
        }
        let sum = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let length = usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]));
        let kind = bytes[at + 6];
        assert!(length + 7 <= room, "a part over the end of its block");
        let part = &bytes[at + 7..at + 7 + length];
        let mut found = flate2::Crc::new();
        found.update(&[kind]);
        found.update(part);
        assert_eq!(found.sum(), sum);
        // 1: whole; 2: the first part; 3: one in the middle; 4: the last.
        assert_eq!(is_open, kind == 3 || kind == 4);
        if is_open {
            records.last_mut().unwrap().extend(part);
        } else {
            records.push(part.to_vec());
        }
        is_open = kind == 2 || kind == 3;
        at += 7 + length;
    }
    assert!(!is_open);
    records
}

/// The fields of a message of protocol buffers: numbers as eight bytes, all else as it is.
fn fields(message: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut at = 0;
    let varint = |at: &mut usize| {
        let mut value = 0u64;
        for shift in (0..).step_by(7) {
            let byte = message[*at];
            *at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    };
    let mut fields = Vec::new();
    while at < message.len() {
        let tag = varint(&mut at);
        let value = match tag & 7 {
            0 => varint(&mut at).to_le_bytes().to_vec(),
            2 => {
                let length = varint(&mut at) as usize;
                at += length;
                message[at - length..at].to_vec()
            }
            other => panic!("a field of kind {other}"),
        };
        fields.push((tag >> 3, value));
    }
    fields
}

fn all(message: &[u8], field: u64) -> Vec<Vec<u8>> {
    let wanted = fields(message)
        .into_iter()
        .filter(|(number, _)| *number == field);
    wanted.map(|(_, value)| value).collect()
}

fn text(message: &[u8], field: u64) -> String {
    String::from_utf8(all(message, field).concat()).unwrap()
}

/// Items of a configuration, a row or a summary: `key` is field 1, `value_json` field 16.
fn items(message: &[u8]) -> BTreeMap<String, Value> {
    let item = |item: &Vec<u8>| {
        let value = serde_json::from_str(&text(item, 16)).unwrap();
        (text(item, 1), value)
    };
    all(message, 1).iter().map(item).collect()
}

/// A run as the file tells it.
struct Told {
    id: String,
    project: String,
    name: String,
    seconds: u64,
    config: BTreeMap<String, Value>,
    rows: Vec<BTreeMap<String, Value>>,
    summary: BTreeMap<String, Value>,
}

impl Told {
    fn read(path: &Path) -> Self {
        let records = records(path);
        for (place, record) in (1u64..).zip(&records) {
            assert_eq!(all(record, 1).concat(), place.to_le_bytes());
        }
        let of = |kind: u64| -> Vec<Vec<u8>> {
            records
                .iter()
                .flat_map(|record| all(record, kind))
                .collect()
        };
        let [run] = &of(17)[..] else {
            panic!("one record of a run");
        };
        assert_eq!(of(18).len(), 1, "the run's end");
        let start = all(run, 17).concat();
        Self {
            id: text(run, 1),
            project: text(run, 3),
            name: text(run, 8),
            seconds: u64::from_le_bytes(all(&start, 1).concat().try_into().unwrap()),
            config: items(&all(run, 4).concat()),
            rows: of(2).iter().map(|row| items(row)).collect(),
            summary: items(&of(3).concat()),
        }
    }
}

/// The one file of a run.
fn file(workspace: &Workspace) -> PathBuf {
    let mut files = files(workspace);
    assert_eq!(files.len(), 1);
    files.remove(0)
}

/// The files of a run.
fn files(workspace: &Workspace) -> Vec<PathBuf> {
    let folders = fs::read_dir(workspace.path("runs/run/wandb")).unwrap();
    folders
        .map(|folder| file_in(&folder.unwrap().path()))
        .collect()
}

fn file_in(run: &Path) -> PathBuf {
    let name = run.file_name().unwrap().to_str().unwrap();
    let id = name.rsplit_once('-').unwrap().1;
    assert!(name.starts_with("offline-run-2"), "{name}");
    // The client expects it.
    assert!(run.join("files").is_dir());
    run.join(format!("run-{id}.wandb"))
}

const SYNC: [&str; 4] = ["track", "sync", "run", "--wandb"];

#[test]
fn what_its_own_client_writes_is_read() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/wandb_run.wandb");
    let told = Told::read(&golden);
    assert_eq!(
        (&*told.id, &*told.project, &*told.name),
        ("golden00", "golden", "drafter")
    );
    assert_eq!(told.config["train.steps"], 3);
    assert_eq!(told.config["text"], "é".repeat(6000));
    let losses: Vec<&Value> = told.rows.iter().map(|row| &row["train/loss"]).collect();
    assert_eq!(losses, [&json!(1.0), &json!(0.5), &json!(1.0 / 3.0)]);
    assert!(
        told.rows
            .iter()
            .zip([0, 10, 20])
            .all(|(row, step)| row["_step"] == step)
    );
    assert_eq!(told.summary["tau"], 3.5);
}

/// Fails unless the file has what the run's own files have.
fn is_whole(told: &Told, workspace: &Workspace) {
    assert_eq!((&*told.project, &*told.name), ("spectrain", "run"));
    assert_eq!(told.config["train"]["steps"], 6);
    let mut rows: BTreeMap<u64, BTreeMap<String, Value>> = BTreeMap::new();
    let lines = workspace.text("runs/run/train/events/metrics.jsonl");
    let mut first = f64::MAX;
    for line in lines.lines() {
        let mut line: BTreeMap<String, Value> = serde_json::from_str(line).unwrap();
        let step = line.remove("step").unwrap().as_u64().unwrap();
        first = first.min(line.remove("time").unwrap().as_f64().unwrap());
        line.retain(|_, value| value.is_number());
        rows.entry(step).or_default().extend(line);
    }
    assert_eq!(told.seconds, first as u64);
    assert_eq!(told.rows.len(), rows.len());
    let mut last = BTreeMap::new();
    for (row, (step, wanted)) in told.rows.iter().zip(&rows) {
        let mut row = row.clone();
        assert_eq!(row.remove("_step").unwrap(), *step);
        assert!(row.remove("_timestamp").unwrap().as_f64().unwrap() >= first - 0.001);
        assert!(row.remove("_runtime").unwrap().as_f64().unwrap() >= 0.0);
        assert_eq!(row, *wanted);
        last.extend(row);
    }
    let mut summary = told.summary.clone();
    summary.retain(|key, _| !key.starts_with("evaluate/"));
    assert_eq!(summary, last);
}

#[test]
fn a_run_is_written_whole_and_sent_again_where_it_has_changed() {
    let workspace = Workspace::finished();
    let written = workspace.run(&SYNC).succeeded();
    assert!(
        written
            .stdout
            .contains("written for `wandb sync runs/run/wandb/offline-run-2")
    );
    assert!(written.stdout.contains("the report's among them"));
    let path = file(&workspace);
    let told = Told::read(&path);
    is_whole(&told, &workspace);
    let of_report = told.summary.keys().filter(|key| key.ends_with("/eval/tau"));
    assert!(of_report.count() > 0);

    // What the client leaves beside a file that it has sent.
    let mark = path.with_extension("wandb.synced");
    fs::write(&mark, "").unwrap();
    workspace.run(&SYNC).succeeded();
    assert!(mark.exists(), "nothing has changed");
    // A line of more than a block, and many of all lengths, so that records end everywhere in a block.
    let metrics = workspace.path("runs/run/train/events/metrics.jsonl");
    let mut lines = fs::read_to_string(&metrics).unwrap();
    for step in 7..1500 {
        let key = "k".repeat(if step == 900 {
            70_000
        } else {
            step as usize % 97
        });
        lines += &format!(
            "{}\n",
            json!({"step": step, "time": 1.8e9, key: f64::from(step)})
        );
    }
    fs::write(&metrics, lines).unwrap();
    workspace.run(&SYNC).succeeded();
    assert!(!mark.exists(), "the file has changed");
    is_whole(&Told::read(&file(&workspace)), &workspace);
}

#[test]
fn a_training_that_starts_over_has_a_file_and_an_id_of_its_own() {
    let workspace = Workspace::new();
    let wandb = "track={ wandb = true }";
    workspace.run_recipe(&[wandb]).succeeded();
    let first = file(&workspace);
    let before = fs::read(&first).unwrap();
    let outcome = workspace
        .run_recipe(&[wandb, "train.learning_rate=2e-3"])
        .succeeded();
    assert!(
        outcome.stderr.contains("train: starts over"),
        "{outcome:#?}"
    );
    let mut files = files(&workspace);
    assert_eq!(files.len(), 2);
    files.retain(|file| *file != first);
    assert!(fs::read(&first).unwrap() == before);
    let [old, new] = [&first, &files[0]].map(|file| Told::read(file));
    assert_ne!(old.id, new.id);
    assert_eq!(old.config["train"]["learning_rate"], 0.001);
    assert_eq!(new.config["train"]["learning_rate"], 0.002);
    is_whole(&new, &workspace);
}

#[test]
fn a_recipe_asks_for_the_file_and_one_tracker_is_enough() {
    let workspace = Workspace::new();
    workspace
        .run_recipe(&["track={ wandb = true, experiment = \"p\" }"])
        .succeeded();
    let told = Told::read(&file(&workspace));
    assert_eq!(told.project, "p");
    let address = "http://localhost:1";
    let both = format!("track={{ wandb = true, mlflow = \"{address}\" }}");
    workspace
        .run_recipe(&[&both])
        .misused(&["track.wandb", "expected one tracker", "`mlflow`"]);
    let none = "track={ experiment = \"p\" }";
    workspace
        .run_recipe(&[none])
        .misused(&["track.mlflow", "`trackio`", "`wandb`"]);
    workspace
        .run(&["track", "sync", "run", "--wandb", "--mlflow", address])
        .misused_by_usage(&["--mlflow"]);
}

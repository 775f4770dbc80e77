//! A run as a file of Weights & Biases: what its own client writes where there is no network, and `wandb sync` sends later. Nothing is
//! sent from here, and the file holds no key.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use chrono::DateTime;
use serde_json::{Value, json};
use spectrain_checkpoints::atomic::write_file;

use super::figures::Figure;
use super::records::{Message, RecordLog};
use super::server::NewRun;

/// Fields of `Record` in `wandb_internal.proto` of <https://github.com/wandb/wandb>.
mod record {
    pub(super) const NUMBER: u32 = 1;
    pub(super) const HISTORY: u32 = 2;
    pub(super) const SUMMARY: u32 = 3;
    pub(super) const RUN: u32 = 17;
    pub(super) const EXIT: u32 = 18;
    pub(super) const HEADER: u32 = 21;
}

/// Fields of `RunRecord`.
mod run {
    pub(super) const ID: u32 = 1;
    pub(super) const PROJECT: u32 = 3;
    pub(super) const CONFIG: u32 = 4;
    pub(super) const JOB_TYPE: u32 = 7;
    pub(super) const DISPLAY_NAME: u32 = 8;
    pub(super) const START_TIME: u32 = 17;
}

/// Fields of the items of a configuration, of a line of the history and of the summary, which are the same.
mod item {
    pub(super) const KEY: u32 = 1;
    pub(super) const VALUE_JSON: u32 = 16;
}

/// The one field of messages that hold items alone, or a step's number.
const FIRST: u32 = 1;
/// `HistoryRecord.step`.
const HISTORY_STEP: u32 = 2;
/// `Timestamp.nanos`, beside its seconds.
const NANOS: u32 = 2;

/// Everything that is known of a run.
pub(super) struct Whole<'a> {
    /// What it is called; its tag is its id.
    pub(super) new: NewRun<'a>,
    /// Its recipe: tables of settings.
    pub(super) recipe: &'a Value,
    /// The figures of each training stage, line by line.
    pub(super) stages: &'a [Vec<Figure>],
    /// The figures of its report, where there is one.
    pub(super) report: &'a [Figure],
}

/// Writes the file of a run into its folder, and says where. It is written whole: one that was sent and has changed may be sent again.
///
/// # Errors
/// It cannot be written.
pub(super) fn write(folder: &Path, whole: &Whole) -> Result<PathBuf> {
    let start = start(whole);
    let id = whole.new.tag;
    let when = DateTime::from_timestamp_millis(start).unwrap_or_default();
    let name = format!("offline-run-{}-{id}", when.format("%Y%m%d_%H%M%S"));
    let path = folder
        .join("wandb")
        .join(name)
        .join(format!("run-{id}.wandb"));
    // Where the client writes what it sends beside the file; it does not make the folder.
    let files = path.with_file_name("files");
    fs::create_dir_all(&files).with_context(|| format!("cannot make `{}`", files.display()))?;
    let bytes = file(whole, start);
    if fs::read(&path).is_ok_and(|old| old == bytes) {
        return Ok(path);
    }
    write_file(&path, &bytes)?;
    forget_sent(&path)?;
    Ok(path)
}

/// Removes what the client leaves beside a file that it has sent, or sent in part.
fn forget_sent(path: &Path) -> Result<()> {
    for mark in ["wandb.synced", "wandb.syncstate"].map(|ending| path.with_extension(ending)) {
        if mark.exists() {
            fs::remove_file(&mark)
                .with_context(|| format!("cannot remove `{}`", mark.display()))?;
        }
    }
    Ok(())
}

/// Milliseconds since 1970 at which the first figure was found.
fn start(whole: &Whole) -> i64 {
    let logged = whole.stages.iter().flatten();
    let times = logged.chain(whole.report).map(|figure| figure.time);
    times.min().unwrap_or(0)
}

fn file(whole: &Whole, start: i64) -> Vec<u8> {
    let mut records = vec![
        (record::HEADER, Message::default()),
        (record::RUN, of_run(whole, start)),
    ];
    let rows = rows(whole.stages);
    records.extend(
        rows.iter()
            .map(|row| (record::HISTORY, history(row, start))),
    );
    records.push((record::SUMMARY, summary(&rows, whole.report)));
    records.push((record::EXIT, Message::default()));
    let mut log = RecordLog::new();
    for (number, (kind, message)) in (1..).zip(records) {
        let record = Message::default()
            .number(record::NUMBER, number)
            .message(kind, message);
        log.append(&record.into_bytes());
    }
    log.into_bytes()
}

fn of_run(whole: &Whole, start: i64) -> Message {
    let tables = whole.recipe.as_object().into_iter().flatten();
    let config = items(tables.map(|(key, value)| (key.as_str(), value.clone())));
    let time = Message::default()
        .number(FIRST, start.unsigned_abs() / 1000)
        .number(NANOS, start.unsigned_abs() % 1000 * 1_000_000);
    Message::default()
        .text(run::ID, whole.new.tag)
        .text(run::PROJECT, whole.new.experiment)
        .message(run::CONFIG, config)
        .text(run::JOB_TYPE, whole.new.recipe)
        .text(run::DISPLAY_NAME, whole.new.name)
        .message(run::START_TIME, time)
}

/// What was found at a step.
struct Row {
    step: u64,
    /// Milliseconds since 1970.
    time: i64,
    values: BTreeMap<String, f64>,
}

/// The lines of all stages as rows of rising steps: a row each step, and each stage behind the last step of the one before.
fn rows(stages: &[Vec<Figure>]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for stage in stages {
        let before = rows.last().map_or(0, |row| row.step);
        for figure in stage {
            let (step, time) = (before + figure.step, figure.time);
            if rows.last().is_none_or(|row| row.step < step) {
                let values = BTreeMap::new();
                rows.push(Row { step, time, values });
            }
            if let Some(row) = rows.last_mut() {
                row.time = row.time.max(time);
                row.values.insert(figure.key.clone(), figure.value);
            }
        }
    }
    rows
}

fn history(row: &Row, start: i64) -> Message {
    let own = row
        .values
        .iter()
        .map(|(key, value)| (key.as_str(), json!(value)));
    let step = Message::default().number(FIRST, row.step);
    items(own.chain(row.place(start))).message(HISTORY_STEP, step)
}

impl Row {
    /// What the client adds to each row.
    fn place(&self, start: i64) -> [(&'static str, Value); 3] {
        let seconds = |milliseconds: i64| json!(milliseconds as f64 / 1000.0);
        [
            ("_step", json!(self.step)),
            ("_timestamp", seconds(self.time)),
            ("_runtime", seconds(self.time - start)),
        ]
    }
}

/// What the table of runs shows: the last value of each figure, and the report's.
fn summary(rows: &[Row], report: &[Figure]) -> Message {
    let mut last: BTreeMap<&str, f64> = BTreeMap::new();
    for row in rows {
        last.extend(row.values.iter().map(|(key, value)| (key.as_str(), *value)));
    }
    last.extend(
        report
            .iter()
            .map(|figure| (figure.key.as_str(), figure.value)),
    );
    items(last.into_iter().map(|(key, value)| (key, json!(value))))
}

fn items<'a>(values: impl Iterator<Item = (&'a str, Value)>) -> Message {
    values.fold(Message::default(), |message, (key, value)| {
        let item = Message::default()
            .text(item::KEY, key)
            .text(item::VALUE_JSON, &value.to_string());
        message.message(FIRST, item)
    })
}

//! The same figures as in the TensorBoard events, for programs: `events/metrics.jsonl`, one JSON object a line.
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use spectrain_checkpoints::atomic::write_file;

/// The file's name.
const NAME: &str = "metrics.jsonl";
/// The file beside it that says at which step a training began, and when: its first lines may be dropped and logged anew.
const BEGUN: &str = "begun.json";

/// The file of one training, all of its sessions together. A line is in it whole or not at all.
#[derive(Debug)]
pub(crate) struct Metrics {
    path: PathBuf,
    file: File,
    /// Bytes of whole lines in the file.
    length: u64,
    /// Values of the next line.
    line: Map<String, Value>,
}

impl Metrics {
    /// Goes on with the file in `folder` behind `step`, up to which the training is done: lines of later steps, which are
    /// trained again, and the rest of one that was not finished are dropped, and so are lines that cannot be read, with a warning.
    pub(crate) fn resume(folder: &Path, step: usize) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let path = folder.join(NAME);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            text => text?,
        };
        note_beginning(folder, step, &text)?;
        let (kept, unreadable) = kept(&text, step);
        if unreadable > 0 {
            tracing::warn!(
                "`{}`: {unreadable} of its lines cannot be read and are left out",
                path.display()
            );
        }
        if !text.starts_with(&kept) {
            write_file(&path, &kept).map_err(io::Error::other)?;
        }
        let length = kept.len() as u64;
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        if length < file.metadata()?.len() {
            file.set_len(length)?;
        }
        Ok(Self {
            path,
            file,
            length,
            line: Map::new(),
        })
    }

    /// Drops the last line where it is of a validation of this step. One that was not saved behind it is made again.
    pub(crate) fn forget_validation(&mut self, step: usize) -> io::Result<()> {
        let text = fs::read(&self.path)?;
        let last = text.split_inclusive(|&byte| byte == b'\n').next_back();
        let last = last.unwrap_or_default();
        let line: Map<String, Value> = serde_json::from_slice(last).unwrap_or_default();
        let is_validation = line.keys().any(|key| key.starts_with("validation/"));
        if is_validation && line.get("step") == Some(&json!(step)) {
            self.length -= last.len() as u64;
            self.file.set_len(self.length)?;
        }
        Ok(())
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a value to the next line. What is no finite number is `null`.
    pub(crate) fn scalar(&mut self, tag: &str, value: f64) {
        self.line.insert(tag.to_owned(), json!(value));
    }

    /// Writes the values that were added, of this step, as a line. What cannot be written is lost.
    pub(crate) fn flush(&mut self, step: usize) -> io::Result<()> {
        if self.line.is_empty() {
            return Ok(());
        }
        let mut line = Map::new();
        line.insert("step".into(), json!(step));
        line.insert("time".into(), json!(seconds_since_1970()));
        line.append(&mut self.line);
        let text = format!("{}\n", Value::Object(line));
        let written = self.file.write_all(text.as_bytes());
        if written.is_ok() {
            self.length += text.len() as u64;
        } else {
            // Half a line would spoil the next one. If this fails too there is nothing left to do.
            let _ = self.file.set_len(self.length);
        }
        written
    }
}

/// The lines of steps up to `step`, and how many others there are that are whole and cannot be read.
fn kept(text: &[u8], step: usize) -> (Vec<u8>, usize) {
    let (mut kept, mut unreadable) = (Vec::new(), 0);
    let lines = text.split_inclusive(|&byte| byte == b'\n');
    for line in lines.filter(|line| line.ends_with(b"\n")) {
        let read: Option<Value> = serde_json::from_slice(line).ok();
        match read.and_then(|line| line["step"].as_u64()) {
            Some(of) if of <= step as u64 => kept.extend_from_slice(line),
            Some(_) => {}
            None => unreadable += 1,
        }
    }
    (kept, unreadable)
}

/// Notes that a training begins at `step`, unless it began before. One that an earlier version has begun is known by its first line.
fn note_beginning(folder: &Path, step: usize, lines: &[u8]) -> io::Result<()> {
    let path = folder.join(BEGUN);
    if path.exists() {
        return Ok(());
    }
    let first = lines.split(|&byte| byte == b'\n').next();
    let first = first.and_then(|line| serde_json::from_slice::<Map<String, Value>>(line).ok());
    let begun = match first {
        Some(line) => json!({"step": line.get("step"), "time": line.get("time")}),
        None => json!({"step": step, "time": seconds_since_1970()}),
    };
    write_file(&path, begun.to_string().as_bytes()).map_err(io::Error::other)
}

fn seconds_since_1970() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps and losses of the lines, each of which must be whole.
    fn read(folder: &Path) -> Vec<(u64, Option<f64>)> {
        let text = fs::read_to_string(folder.join(NAME)).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'), "{text}");
        let of = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            assert!(line["time"].as_f64().unwrap() > 1e9);
            (line["step"].as_u64().unwrap(), line["train/loss"].as_f64())
        };
        text.lines().map(of).collect()
    }

    fn log(metrics: &mut Metrics, step: usize, loss: f64) {
        metrics.scalar("train/loss", loss);
        metrics.flush(step).unwrap();
    }

    #[test]
    fn a_session_goes_on_behind_its_state_and_repeats_no_line() {
        let folder = tempfile::tempdir().unwrap();
        let folder = &folder.path().join("events");
        let mut metrics = Metrics::resume(folder, 0).unwrap();
        log(&mut metrics, 10, 0.5);
        log(&mut metrics, 20, f64::NAN);
        log(&mut metrics, 30, 0.25);
        metrics.flush(40).unwrap();
        assert_eq!(
            read(folder),
            [(10, Some(0.5)), (20, None), (30, Some(0.25))]
        );

        // Saved at step 20, and killed within a line.
        let mut file = OpenOptions::new()
            .append(true)
            .open(metrics.path())
            .unwrap();
        file.write_all(b"{\"step\": 4").unwrap();
        let mut metrics = Metrics::resume(folder, 20).unwrap();
        log(&mut metrics, 30, 0.125);
        assert_eq!(
            read(folder),
            [(10, Some(0.5)), (20, None), (30, Some(0.125))]
        );

        let mut metrics = Metrics::resume(folder, 30).unwrap();
        log(&mut metrics, 40, 1.0);
        assert_eq!(read(folder).len(), 4);
        // From the start again.
        Metrics::resume(folder, 0).unwrap();
        assert_eq!(read(folder), []);
    }

    #[test]
    fn a_line_that_cannot_be_read_takes_no_other_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let mut metrics = Metrics::resume(folder, 0).unwrap();
        for step in [10, 20, 30, 40] {
            log(&mut metrics, step, 0.5);
        }
        let path = folder.join(NAME);
        let mut bytes = fs::read(&path).unwrap();
        let second = 1 + bytes.iter().position(|&byte| byte == b'\n').unwrap();
        bytes[second] ^= 1;
        fs::write(&path, bytes).unwrap();
        let mut metrics = Metrics::resume(folder, 30).unwrap();
        log(&mut metrics, 40, 0.25);
        let expected = [(10, Some(0.5)), (30, Some(0.5)), (40, Some(0.25))];
        assert_eq!(read(folder), expected);
        // What stands there instead of lines is no line either.
        fs::write(&path, "\n\u{0}\n").unwrap();
        Metrics::resume(folder, 40).unwrap();
        assert_eq!(read(folder), []);
    }

    #[test]
    fn when_a_training_began_is_known_after_its_lines_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let begun = || -> Value {
            let text = fs::read(folder.join(BEGUN)).unwrap();
            serde_json::from_slice(&text).unwrap()
        };
        let mut metrics = Metrics::resume(folder, 0).unwrap();
        let first = begun();
        assert!(first["step"] == 0 && first["time"].as_f64().unwrap() > 1e9);
        log(&mut metrics, 10, 0.5);
        Metrics::resume(folder, 0).unwrap();
        assert_eq!((begun(), read(folder)), (first, vec![]));
        // An earlier version left lines alone.
        fs::remove_file(folder.join(BEGUN)).unwrap();
        fs::write(folder.join(NAME), "{\"step\":5,\"time\":1764100000.123}\n").unwrap();
        for step in [0, 10] {
            Metrics::resume(folder, step).unwrap();
            assert_eq!(begun(), json!({"step": 5, "time": 1_764_100_000.123}));
        }
    }

    #[test]
    fn a_validation_that_is_made_again_is_forgotten_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let lines = || fs::read_to_string(folder.join(NAME)).unwrap();
        let mut metrics = Metrics::resume(folder, 0).unwrap();
        metrics.forget_validation(0).unwrap();
        log(&mut metrics, 10, 0.5);
        let trained = lines();
        metrics.scalar("validation/loss", 0.5);
        metrics.flush(10).unwrap();
        let validated = lines();
        let mut metrics = Metrics::resume(folder, 10).unwrap();
        metrics.forget_validation(20).unwrap();
        assert_eq!(lines(), validated);
        for _ in 0..2 {
            metrics.forget_validation(10).unwrap();
            assert_eq!(lines(), trained);
        }
        log(&mut metrics, 20, 0.25);
        assert_eq!(read(folder), [(10, Some(0.5)), (20, Some(0.25))]);
    }

    /// Where every write fails as on a full disk.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_leaves_no_half_line() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let mut metrics = Metrics::resume(folder, 0).unwrap();
        log(&mut metrics, 10, 0.5);
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let file = std::mem::replace(&mut metrics.file, full);
        metrics.scalar("train/loss", 0.25);
        assert!(metrics.flush(20).is_err());
        metrics.file = file;
        log(&mut metrics, 30, 0.125);
        assert_eq!(read(folder), [(10, Some(0.5)), (30, Some(0.125))]);
    }
}

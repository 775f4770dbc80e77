//! TensorBoard events: records that `tensorboard-rs` makes, in a file of our own, whose errors end no training.
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use protobuf::Message;
use tensorboard_proto::event::{Event, SessionLog, SessionLog_SessionStatus};
use tensorboard_rs::record_writer::RecordWriter;
use tensorboard_rs::summary::scalar;

/// What the first record of a file says that it is.
const FILE_VERSION: &str = "brain.Event:2";

/// A file of events. Whatever happens to it is told once, as a warning; a record is in it whole or not at all.
#[derive(Debug)]
pub(crate) struct Events {
    path: PathBuf,
    file: Option<File>,
    /// Records to be written with the next flush.
    pending: Vec<u8>,
    /// Bytes of whole records in the file.
    length: u64,
    warned: bool,
}

impl Events {
    /// Starts a file in `folder`, beside those of earlier sessions, behind step `done`, up to which the training is done: what those
    /// files say of later steps, which are trained again, TensorBoard drops.
    pub(crate) fn start(folder: &Path, done: usize) -> Self {
        let mut events = Self {
            path: folder.to_owned(),
            file: None,
            pending: Vec::new(),
            length: 0,
            warned: false,
        };
        match create(folder) {
            Ok((path, file)) => events.begin((path, file), done),
            Err(error) => events.warn(&error, folder),
        }
        events
    }

    fn begin(&mut self, (path, file): (PathBuf, File), done: usize) {
        (self.path, self.file) = (path, Some(file));
        let mut first = event();
        first.set_file_version(FILE_VERSION.to_owned());
        self.add(&first);
        self.add(&session(done));
        self.flush();
    }

    /// Adds a value, which the next flush writes.
    pub(crate) fn scalar(&mut self, tag: &str, value: f64, step: usize) {
        let mut event = event();
        event.set_step(step as i64);
        event.set_summary(scalar(tag, value as f32));
        self.add(&event);
    }

    fn add(&mut self, event: &Event) {
        // Neither fails: the fields are plain and a vector takes every byte.
        if let Ok(bytes) = event.write_to_bytes() {
            let _ = RecordWriter::new(&mut self.pending).write(&bytes);
        }
    }

    /// Writes what was added. What cannot be written is lost, and what comes later is tried again.
    pub(crate) fn flush(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let Some(file) = &mut self.file else {
            return;
        };
        match file.write_all(&pending) {
            Ok(()) => self.length += pending.len() as u64,
            Err(error) => {
                // Half a record would hide all that comes behind it. If this fails too there is nothing left to do.
                let _ = file.set_len(self.length);
                let _ = file.seek(SeekFrom::Start(self.length));
                let path = self.path.clone();
                self.warn(&error, &path);
            }
        }
    }

    /// Tells what happened to the curves at `path`, the first time that something does.
    pub(crate) fn warn(&mut self, error: &io::Error, path: &Path) {
        if !self.warned {
            let path = path.display();
            tracing::warn!("cannot write `{path}`: {error}; training goes on without its curves");
        }
        self.warned = true;
    }
}

/// The start of a session behind step `done`. TensorBoard drops what it has read before of the steps from that of this event on
/// (`_CheckForRestartAndMaybePurge` of its `event_accumulator.py`).
fn session(done: usize) -> Event {
    let mut log = SessionLog::new();
    log.set_status(SessionLog_SessionStatus::START);
    let mut event = event();
    // A training without a state begins anew, with the validation at step 0 where there is one.
    event.set_step(if done == 0 { 0 } else { done as i64 + 1 });
    event.set_session_log(log);
    event
}

/// An event of now.
fn event() -> Event {
    let mut event = Event::new();
    event.set_wall_time(since_1970().as_secs_f64());
    event
}

fn since_1970() -> std::time::Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// A file that is not there yet, by a name that TensorBoard knows and that sorts by time.
fn create(folder: &Path) -> io::Result<(PathBuf, File)> {
    fs::create_dir_all(folder)?;
    let (seconds, process) = (since_1970().as_secs(), std::process::id());
    let mut number = 0;
    loop {
        let name = format!("events.out.tfevents.{seconds:010}.{process}.{number}");
        let path = folder.join(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        match file {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            file => return Ok((path, file?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tensorboard_rs::masked_crc32c::masked_crc32c;

    use super::*;

    /// The events of a file, whose records must be whole.
    fn read(path: &Path) -> Vec<Event> {
        let bytes = fs::read(path).unwrap();
        let mut rest = &bytes[..];
        let mut events = Vec::new();
        while !rest.is_empty() {
            let (header, behind) = rest.split_at(8);
            let length = u64::from_le_bytes(header.try_into().unwrap()) as usize;
            let (checksum, behind) = behind.split_at(4);
            assert_eq!(checksum, masked_crc32c(header).to_le_bytes());
            let (data, behind) = behind.split_at(length);
            let (checksum, behind) = behind.split_at(4);
            assert_eq!(checksum, masked_crc32c(data).to_le_bytes());
            events.push(Event::parse_from_bytes(data).unwrap());
            rest = behind;
        }
        events
    }

    #[test]
    fn values_are_read_back_with_their_tags_and_steps() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = Events::start(&folder.path().join("events"), 0);
        events.scalar("train/loss", 0.5, 10);
        events.scalar("train/loss", 0.25, 20);
        events.flush();
        let found = read(&events.path);
        assert_eq!(found[0].get_file_version(), FILE_VERSION);
        let values: Vec<_> = found[2..]
            .iter()
            .map(|event| {
                let value = &event.get_summary().get_value()[0];
                (event.get_step(), value.get_tag(), value.get_simple_value())
            })
            .collect();
        assert_eq!(values, [(10, "train/loss", 0.5), (20, "train/loss", 0.25)]);
        assert!(found[2].get_wall_time() >= found[0].get_wall_time());
    }

    #[test]
    fn every_session_has_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = [(); 2].map(|()| Events::start(folder.path(), 0));
        assert_ne!(first.path, second.path);
        assert_eq!(read(&first.path).len(), 2);
    }

    #[test]
    fn a_session_says_from_which_step_on_it_repeats_what_others_have_written() {
        let folder = tempfile::tempdir().unwrap();
        for (done, first) in [(0, 0), (20, 21)] {
            let events = Events::start(folder.path(), done);
            let found = read(&events.path);
            // Only behind the version does TensorBoard know such an event.
            assert_eq!(found[0].get_file_version(), FILE_VERSION);
            let started = found[1].get_session_log().get_status();
            assert_eq!(started, SessionLog_SessionStatus::START);
            assert_eq!(found[1].get_step(), first, "{done}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("events");
        fs::write(&file, "of someone else").unwrap();
        let mut events = Events::start(&file, 0);
        events.scalar("train/loss", 0.5, 10);
        events.flush();
        assert!(events.warned && events.pending.is_empty());
        assert_eq!(fs::read_to_string(&file).unwrap(), "of someone else");
    }

    /// Where every write fails as on a full disk.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_no_error_and_leaves_no_half_record() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = Events::start(folder.path(), 0);
        events.scalar("train/loss", 0.5, 10);
        events.flush();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let file = events.file.replace(full);
        events.scalar("train/loss", 0.25, 20);
        events.flush();
        assert!(events.warned);
        events.file = file;
        events.scalar("train/loss", 0.125, 30);
        events.flush();
        let steps: Vec<i64> = read(&events.path).iter().map(Event::get_step).collect();
        assert_eq!(steps, [0, 0, 10, 30]);
    }
}

//! The journal: a line for every conversation that is answered, in the order in which they were, synced as it is written.
//!
//! A line is whole or it does not count, so a journal cut off at any point holds what was finished before. Each ends in
//! a digest of itself, so that an answer that was damaged on the disk is asked for again and never taken. The first line
//! says what the answers are of, and answers of anything else are not added to it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, ErrorKind, Seek, SeekFrom, Write};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use spectrain_checkpoints::Mismatch;
use spectrain_checkpoints::sealed_lines::{sealed, unsealed};

use super::answers::Answer;
use crate::durable::sync_folder_of;
use crate::error::{Error, Result};

/// The version of the journal's form.
const VERSION: u64 = 2;

/// How often a lock is tried before another process is taken to hold it.
const LOCK_TRIES: usize = 20;

/// A conversation that is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// Its row, from 1.
    pub(super) row: u64,
    /// One answer for each turn; fewer where one was cut short and the conversation is left out for it.
    pub(super) answers: Vec<Answer>,
    /// Whether it is left out.
    #[serde(default)]
    pub(super) dropped: bool,
}

/// The first line: what the answers are of.
pub(super) fn header(
    (data, most): (&str, Option<usize>),
    rows: u64,
    settings: &Map<String, Value>,
) -> Map<String, Value> {
    let mut header = Map::new();
    header.insert("journal".into(), "spectrain data regenerate".into());
    header.insert("version".into(), VERSION.into());
    // Before the digest of the rows, which another limit changes as well.
    if let Some(most) = most {
        header.insert("limit".into(), most.into());
    }
    header.insert("data".into(), data.into());
    header.insert("rows".into(), rows.into());
    header.insert("settings".into(), settings.clone().into());
    header
}

/// An open journal, which no other process writes to.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    /// Where the line of each row begins; never at the start, where the header is.
    places: Vec<Option<NonZeroU64>>,
    end: u64,
    /// Whole lines that are not entries: what a power cut can leave between others.
    pub(super) unreadable: u64,
}

impl Journal {
    /// Opens the journal of `rows` rows, or begins it.
    pub(super) fn open(path: &Path, header: &Map<String, Value>, rows: usize) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .map_err(|source| Error::write(path, source))?;
        lock(&file, path)?;
        let mut journal = Self {
            path: path.to_owned(),
            file,
            places: vec![None; rows],
            end: 0,
            unreadable: 0,
        };
        journal.read(header)?;
        if journal.end == 0 {
            journal.write(&line(header))?;
            sync_folder_of(path).map_err(|source| Error::write(path, source))?;
        }
        Ok(journal)
    }

    /// Refuses a journal that another process writes to.
    pub(super) fn check_free(path: &Path) -> Result<()> {
        match File::open(path) {
            Ok(file) => lock(&file, path),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Error::read(path, error)),
        }
    }

    /// Finds the entries and cuts off what follows the last whole line.
    fn read(&mut self, header: &Map<String, Value>) -> Result<()> {
        let failed = |source| Error::read(&self.path, source);
        let mut lines = BufReader::new(&self.file);
        let mut bytes = Vec::new();
        let mut end = 0_u64;
        loop {
            bytes.clear();
            lines.read_until(b'\n', &mut bytes).map_err(failed)?;
            let whole = bytes.ends_with(b"\n");
            if end == 0 && (whole || !line(header).starts_with(&bytes)) {
                check_header(&self.path, header, &bytes)?;
            } else if whole {
                let row = read_entry(&bytes).and_then(|entry| usize::try_from(entry.row).ok());
                let slot = row.and_then(|row| self.places.get_mut(row.checked_sub(1)?));
                match slot {
                    Some(slot) => *slot = NonZeroU64::new(end),
                    None => self.unreadable += 1,
                }
            }
            if !whole {
                break;
            }
            end += bytes.len() as u64;
        }
        self.file
            .set_len(end)
            .map_err(|source| Error::write(&self.path, source))?;
        self.end = end;
        Ok(())
    }

    /// Whether a row, from 1, is answered.
    pub(super) fn holds(&self, row: u64) -> bool {
        self.place(row).is_some()
    }

    fn place(&self, row: u64) -> Option<NonZeroU64> {
        let index = usize::try_from(row).ok()?.checked_sub(1)?;
        self.places.get(index).copied().flatten()
    }

    /// Adds entries, and returns when they will survive a power cut.
    pub(super) fn append(&mut self, entries: &[Entry]) -> Result<()> {
        let mut text = Vec::new();
        let mut places = Vec::with_capacity(entries.len());
        for entry in entries {
            places.push((entry.row, self.end + text.len() as u64));
            text.append(&mut line(entry));
        }
        self.write(&text)?;
        for (row, place) in places {
            let index = usize::try_from(row).unwrap_or(usize::MAX);
            if let Some(slot) = self.places.get_mut(index.wrapping_sub(1)) {
                *slot = NonZeroU64::new(place);
            }
        }
        Ok(())
    }

    fn write(&mut self, text: &[u8]) -> Result<()> {
        let written = self.file.write_all(text);
        written
            .and_then(|()| self.file.sync_data())
            .map_err(|source| Error::write(&self.path, source))?;
        self.end += text.len() as u64;
        Ok(())
    }

    /// The entry of a row, from 1.
    pub(super) fn entry(&mut self, row: u64) -> Result<Option<Entry>> {
        let Some(place) = self.place(row) else {
            return Ok(None);
        };
        let mut text = Vec::new();
        let read = self.file.seek(SeekFrom::Start(place.get()));
        read.and_then(|_| BufReader::new(&self.file).read_until(b'\n', &mut text))
            .map_err(|source| Error::read(&self.path, source))?;
        match read_entry(&text) {
            Some(entry) if entry.row == row => Ok(Some(entry)),
            _ => Err(Error::altered(
                &self.path,
                "a line",
                format!("the answers of row {row}"),
                "something else",
            )),
        }
    }
}

/// Takes the lock, which a program that this process has just started may hold until it has replaced its own image.
fn lock(file: &File, path: &Path) -> Result<()> {
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(5)),
            Err(TryLockError::Error(source)) => return Err(Error::write(path, source)),
        }
    }
    let path = path.to_owned();
    Err(Error::JournalInUse { path })
}

/// A value, an object with some key, as a line of its own.
fn line(value: &impl Serialize) -> Vec<u8> {
    // Maps with keys of text and plain structs can always be written.
    sealed(value).unwrap_or_default()
}

fn read_entry(line: &[u8]) -> Option<Entry> {
    serde_json::from_slice(&unsealed(line)?).ok()
}

/// Refuses a first line that is not the one expected, and names the first key that differs.
fn check_header(path: &Path, expected: &Map<String, Value>, found: &[u8]) -> Result<()> {
    let other = |key: &str, expected: Option<&Value>, found: Option<&Value>| {
        let show = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
        Error::OtherJournal {
            path: path.to_owned(),
            key: key.to_owned(),
            mismatch: Mismatch::new(show(expected), show(found)),
        }
    };
    let (line, written) = (found, line(expected));
    if unsealed(line).is_none() && is_nearly(line, &written) {
        return Err(Error::AlteredJournal {
            path: path.to_owned(),
            expected: String::from_utf8_lossy(&written).trim_end().to_owned(),
        });
    }
    let Ok(found) = serde_json::from_slice::<Map<String, Value>>(line) else {
        return Err(other("journal", expected.get("journal"), None));
    };
    // The journal of another version has its digests elsewhere, or none.
    let ours = ["journal", "version"].map(|key| found.get(key) == expected.get(key));
    if ours == [true; 2] && unsealed(line).is_none() {
        let what = ("as it was written", "changed, or of other settings as well");
        return Err(Error::altered(path, "first line", what.0, what.1));
    }
    for (key, value) in expected {
        if found.get(key) == Some(value) {
            continue;
        }
        if let (Some(expected), Some(Value::Object(found))) = (value.as_object(), found.get(key)) {
            let keys = expected.keys().chain(found.keys());
            for inner in keys {
                if expected.get(inner) != found.get(inner) {
                    return Err(other(inner, expected.get(inner), found.get(inner)));
                }
            }
        }
        return Err(other(key, Some(value), found.get(key)));
    }
    Ok(())
}

/// Whether a line was once this other one, but for a few bytes of damage: lines of other settings have another digest, whose 64 digits
/// differ at most places.
fn is_nearly(line: &[u8], other: &[u8]) -> bool {
    const DAMAGED: usize = 8;
    let differ = line.iter().zip(other).filter(|(byte, other)| byte != other);
    line.len() == other.len() && differ.count() <= DAMAGED
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::Message;
    use serde_json::json;

    fn entry(row: u64, text: &str) -> Entry {
        Entry {
            row,
            answers: vec![Answer {
                message: Message::new("assistant", text),
                truncated: false,
                written: None,
            }],
            dropped: false,
        }
    }

    fn settings(temperature: f64) -> Map<String, Value> {
        let settings = json!({"model": "m", "temperature": temperature});
        header(("abc", None), 3, settings.as_object().unwrap())
    }

    #[test]
    fn a_journal_cut_anywhere_holds_its_whole_lines_and_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let header = settings(0.5);
        let open = || Journal::open(&path, &header, 3).unwrap();
        let mut journal = open();
        journal.append(&[entry(3, "ü\n"), entry(1, "one")]).unwrap();
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        let ends: Vec<usize> = (1..=whole.len())
            .filter(|&end| whole[end - 1] == b'\n')
            .collect();
        assert_eq!(ends.len(), 3);
        for cut in (0..ends[0]).step_by(9).chain(ends[0]..=whole.len()) {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let mut journal = open();
            let held = [3, 1].map(|row| journal.holds(row));
            assert_eq!(held, [cut >= ends[1], cut >= ends[2]], "cut at {cut}");
            journal.append(&[entry(2, "two")]).unwrap();
            drop(journal);
            let mut journal = open();
            assert_eq!(
                journal.entry(2).unwrap(),
                Some(entry(2, "two")),
                "cut at {cut}"
            );
            let third = held[0].then(|| entry(3, "ü\n"));
            assert_eq!(journal.entry(3).unwrap(), third, "cut at {cut}");
            assert_eq!(journal.unreadable, 0);
        }
    }

    #[test]
    fn a_journal_of_something_else_is_refused_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        drop(Journal::open(&path, &settings(0.5), 3).unwrap());
        let error = Journal::open(&path, &settings(0.7), 3)
            .unwrap_err()
            .to_string();
        assert!(
            error.ends_with("`temperature`: expected 0.7, found 0.5"),
            "{error}"
        );
        let other = header(("abd", None), 3, &Map::new());
        let error = Journal::open(&path, &other, 3).unwrap_err().to_string();
        assert!(
            error.contains("`data`: expected \"abd\", found \"abc\""),
            "{error}"
        );
        for foreign in ["dear diary", "dear diary\n", "{}\n"] {
            std::fs::write(&path, foreign).unwrap();
            assert!(matches!(
                Journal::open(&path, &settings(0.5), 3),
                Err(Error::OtherJournal { .. })
            ));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), foreign);
        }
    }

    #[test]
    fn a_damaged_line_is_counted_and_only_its_row_is_asked_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let mut journal = Journal::open(&path, &settings(0.5), 3).unwrap();
        journal.append(&[entry(1, "one"), entry(2, "two")]).unwrap();
        drop(journal);
        let text = std::fs::read_to_string(&path).unwrap();
        for damaged in ["\u{0}\u{0}row\":1", "\"row\":3", "\"row\":01"] {
            std::fs::write(&path, text.replace("\"row\":1", damaged)).unwrap();
            let journal = Journal::open(&path, &settings(0.5), 3).unwrap();
            assert_eq!(journal.unreadable, 1);
            assert_eq!(
                [1, 2, 3].map(|row| journal.holds(row)),
                [false, true, false]
            );
        }
    }

    #[test]
    fn no_byte_of_an_answer_can_change_unnoticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let mut journal = Journal::open(&path, &settings(0.5), 3).unwrap();
        let start = journal.end as usize;
        journal.append(&[entry(2, "two")]).unwrap();
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        for at in start..whole.len() - 1 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            let journal = Journal::open(&path, &settings(0.5), 3).unwrap();
            assert_eq!((journal.unreadable, journal.holds(2)), (1, false), "{at}");
        }
        // What is damaged while the journal is open is found when it is read.
        std::fs::write(&path, &whole).unwrap();
        let mut journal = Journal::open(&path, &settings(0.5), 3).unwrap();
        let text = String::from_utf8(whole).unwrap();
        std::fs::write(&path, text.replace("two", "owt")).unwrap();
        assert!(matches!(journal.entry(2), Err(Error::Altered { .. })));
    }

    #[test]
    fn a_damaged_first_line_is_told_from_the_journal_of_something_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        drop(Journal::open(&path, &settings(0.5), 3).unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        // Wherever it is damaged, what to put back is said, with which it goes on.
        for at in 0..text.len() - 1 {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            match Journal::open(&path, &settings(0.5), 3) {
                Err(Error::AlteredJournal { expected, .. }) => {
                    assert_eq!(expected, text.trim_end(), "{at}");
                }
                opened => panic!("{at}: {opened:?}"),
            }
        }
        // Of a damaged line of other settings nobody knows what it was.
        std::fs::write(&path, text.replace("\"rows\":3", "\"rows\":2")).unwrap();
        let error = Journal::open(&path, &settings(0.7), 3).unwrap_err();
        assert!(matches!(error, Error::Altered { .. }), "{error}");
        let mut older = settings(0.5);
        older.insert("version".into(), 1.into());
        std::fs::write(&path, line(&older)).unwrap();
        let error = Journal::open(&path, &settings(0.5), 3).unwrap_err();
        assert!(
            error.to_string().contains("`version`: expected 2, found 1"),
            "{error}"
        );
    }

    #[test]
    fn two_processes_do_not_write_to_one_journal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let _held = Journal::open(&path, &settings(0.5), 3).unwrap();
        assert!(matches!(
            Journal::open(&path, &settings(0.5), 3),
            Err(Error::JournalInUse { .. })
        ));
        let free = Journal::check_free(&path);
        assert!(matches!(free, Err(Error::JournalInUse { .. })));
        Journal::check_free(&folder.path().join("other")).unwrap();
    }
}

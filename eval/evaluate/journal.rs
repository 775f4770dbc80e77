//! What an evaluation finds, kept as it is found: one that was interrupted goes on from there.
//!
//! A line holds a digest of everything that what was found depends on, what was found, and a digest of itself. A line that was cut
//! off or damaged does not count, and what depends on something else is never taken.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::hash::sha256_bytes;
use spectrain_checkpoints::sealed_lines::{sealed, unsealed};

use crate::error::{Error, Result};
use crate::speculate::Generation;

/// A line.
#[derive(Serialize, Deserialize)]
struct Line<T> {
    of: String,
    found: T,
}

/// What evaluations have found, in a file that no other process writes to.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// What all that is found here depends on.
    about: String,
    /// Where the line of each digest begins.
    places: HashMap<String, u64>,
    /// Outputs that were taken.
    outputs: usize,
}

impl Journal {
    /// Opens the file, or begins it. `about` is what the figures depend on beside the prompts and the settings of the evaluation:
    /// the weights of target and drafter, and, as times are kept too, the program and what it computes on.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn open(path: &Path, about: &str) -> Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).open(path);
        let file = file.map_err(failed("open", path))?;
        let (places, end) = whole_lines(&file).map_err(failed("read", path))?;
        file.set_len(end).map_err(failed("write", path))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            about: about.to_owned(),
            places,
            outputs: 0,
        })
    }

    /// How many outputs, those without a drafter too, were decoded before it was opened and have been taken since.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// What is found from here on depends on this, too.
    pub(super) fn depends_on(&mut self, more: &str) {
        self.about = self.digest(more);
    }

    /// What was found of this before, once.
    pub(super) fn take<T: DeserializeOwned>(&mut self, of: &str) -> Result<Option<T>> {
        let of = self.digest(of);
        let Some(place) = self.places.remove(&of) else {
            return Ok(None);
        };
        let mut line = Vec::new();
        let found = self.file.seek(SeekFrom::Start(place));
        found
            .and_then(|_| BufReader::new(&self.file).read_until(b'\n', &mut line))
            .map_err(failed("read", &self.path))?;
        let line = whole::<T>(&line).filter(|line| line.of == of);
        Ok(line.map(|line| line.found))
    }

    /// The output that was decoded of this before, once.
    pub(super) fn take_output(&mut self, of: &str) -> Result<Option<Generation>> {
        let found = self.take(of)?;
        self.outputs += usize::from(found.is_some());
        Ok(found)
    }

    /// Keeps what was found of this.
    pub(super) fn keep<T: Serialize>(&mut self, of: &str, found: &T) -> Result<()> {
        let of = self.digest(of);
        let written = sealed(&Line { of, found }).and_then(|line| self.file.write_all(&line));
        written.map_err(failed("write", &self.path))
    }

    fn digest(&self, of: &str) -> String {
        sha256_bytes(format!("{}\n{of}", self.about).as_bytes())
    }
}

/// Where the line of each digest begins, and the end of the last whole line.
fn whole_lines(file: &File) -> io::Result<(HashMap<String, u64>, u64)> {
    let (mut places, mut end) = (HashMap::new(), 0);
    let (mut lines, mut line) = (BufReader::new(file), Vec::new());
    loop {
        line.clear();
        let length = lines.read_until(b'\n', &mut line)? as u64;
        if !line.ends_with(b"\n") {
            return Ok((places, end));
        }
        if let Some(line) = whole::<IgnoredAny>(&line) {
            places.insert(line.of, end);
        }
        end += length;
    }
}

/// A line as it was written; none where it is damaged.
fn whole<T: DeserializeOwned>(line: &[u8]) -> Option<Line<T>> {
    serde_json::from_slice(&unsealed(line)?).ok()
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |source| Error::Journal {
        action,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_journal_cut_anywhere_holds_its_whole_lines_and_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.journal");
        let open = || Journal::open(&path, "a").unwrap();
        let mut journal = open();
        journal.keep("one", &[0.1, 1.0 / 3.0]).unwrap();
        journal.keep("two", &"ü\n").unwrap();
        let whole = fs::read(&path).unwrap();
        let first = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        for cut in 0..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            open().keep("three", &3).unwrap();
            let mut journal = open();
            let one: Option<[f64; 2]> = journal.take("one").unwrap();
            assert_eq!(one, (cut >= first).then_some([0.1, 1.0 / 3.0]), "{cut}");
            let two: Option<String> = journal.take("two").unwrap();
            assert_eq!(two, (cut == whole.len()).then(|| "ü\n".into()), "{cut}");
            assert_eq!(journal.take("three").unwrap(), Some(3), "{cut}");
            assert_eq!(journal.take::<i32>("three").unwrap(), None);
        }
    }

    #[test]
    fn what_depends_on_something_else_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.journal");
        let open = |about: &str, more: &str| {
            let mut journal = Journal::open(&path, about).unwrap();
            journal.depends_on(more);
            journal
        };
        let mut journal = open("device 1", "settings");
        journal.keep("one", &1).unwrap();
        journal.keep("two", &2).unwrap();
        for other in [("device 2", "settings"), ("device 1", "others")] {
            assert_eq!(open(other.0, other.1).take::<i32>("one").unwrap(), None);
        }
    }

    #[test]
    fn no_byte_of_a_line_can_change_unnoticed_and_the_others_are_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.journal");
        let open = || Journal::open(&path, "a").unwrap();
        let kept = Generation {
            tokens: vec![1, 22],
            ..Generation::default()
        };
        let mut journal = open();
        journal.keep("one", &kept).unwrap();
        journal.keep("two", &2).unwrap();
        let whole = fs::read(&path).unwrap();
        let first = whole.iter().position(|&byte| byte == b'\n').unwrap();
        for at in 0..first {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            let mut journal = open();
            assert_eq!(journal.take_output("one").unwrap(), None, "{at}");
            assert_eq!(journal.take("two").unwrap(), Some(2), "{at}");
            assert_eq!(journal.outputs(), 0);
        }
        // What is damaged while the journal is open is found when it is read.
        fs::write(&path, &whole).unwrap();
        let mut journal = open();
        let text = String::from_utf8(whole.clone()).unwrap();
        fs::write(&path, text.replace("22", "23")).unwrap();
        assert_eq!(journal.take_output("one").unwrap(), None);
        fs::write(&path, whole).unwrap();
        let mut journal = open();
        assert_eq!(journal.take_output("one").unwrap(), Some(kept));
        assert_eq!(journal.outputs(), 1);
    }
}

//! Runs a reader on inputs that a seed makes: none panics, ends the process, hangs, asks for much memory, or takes what was
//! altered for what was written.
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use rand::{SeedableRng, rngs::StdRng, seq::IndexedRandom};

use super::{number, times};
use crate::allocation::{is_alone, peak_during};

/// Inputs to a reader in short.
const INPUTS: u64 = 500;
/// The variable that names the one input to be made and read.
pub const SEED: &str = "SPECTRAIN_CAMPAIGN_SEED";
/// Inputs that fail, after which no more are tried.
const ENOUGH: usize = 5;
/// What a reader may hold beside what an input needs.
const ROOM: usize = 8 << 20;

/// Files by their names in a folder.
pub type Files = BTreeMap<String, Vec<u8>>;

/// What a reader is worth, and on what it is tried.
pub struct Fuzz<F> {
    /// Names the folder in which inputs are kept.
    pub name: &'static str,
    /// What it reads without an error.
    pub corpus: Vec<Files>,
    /// Changes an input.
    pub mutate: fn(&mut Files, &mut StdRng),
    /// Reads the folder of an input: a word for what it has read, or the message of its error.
    pub read: F,
    pub expected: Expected,
}

/// What is expected of a reader.
#[derive(Clone, Copy)]
pub struct Expected {
    /// Bytes that it may hold for each byte of input, where the test is alone in its process (nextest).
    pub memory_per_byte: usize,
    /// Bytes that it may hold whatever the input.
    pub memory: usize,
    /// Seconds after which it is taken to hang.
    pub seconds: u64,
    /// Whether its files have digests, so that it reads nothing but what the corpus holds.
    pub sealed: bool,
    /// Whether an error must name the folder or a file of it.
    pub names_files: bool,
}

impl Default for Expected {
    fn default() -> Self {
        Self {
            memory_per_byte: 64,
            memory: ROOM,
            seconds: 60,
            sealed: false,
            names_files: true,
        }
    }
}

/// What became of an input.
struct Outcome {
    read: thread::Result<Result<String, String>>,
    peak: usize,
}

/// Sums over the inputs.
#[derive(Default)]
struct Tally {
    taken: u64,
    refused: u64,
    peak: usize,
    slowest: Duration,
    failures: Vec<String>,
}

impl<F: FnMut(&Path) -> Result<String, String> + Send> Fuzz<F> {
    /// Reads the corpus and what becomes of it, and prints a line of figures.
    pub fn run(mut self) {
        let clock = Instant::now();
        let folder = folder(self.name);
        let contents: BTreeSet<String> = (self.corpus.clone().iter())
            .map(|files| {
                write(&folder, files);
                let read = (self.read)(&folder);
                read.unwrap_or_else(|error| panic!("{}: the corpus itself: {error}", self.name))
            })
            .collect();
        let begun = Mutex::new(None);
        let mut tally = Tally::default();
        let (name, limit) = (self.name, Duration::from_secs(self.expected.seconds));
        thread::scope(|scope| {
            let worker = scope.spawn(|| self.all(&folder, &contents, &begun, &mut tally));
            while !worker.is_finished() {
                thread::sleep(Duration::from_millis(5));
                let now: Option<(u64, Instant)> = *begun.lock().unwrap();
                if let Some((seed, since)) = now.filter(|(_, since)| since.elapsed() > limit) {
                    // A thread cannot be ended from outside, so the process is.
                    let seconds = since.elapsed().as_secs();
                    eprintln!("{name}: input {seed} hangs, for {seconds} s; it is in {folder:?}");
                    std::process::exit(101);
                }
            }
        });
        let seconds = clock.elapsed().as_secs_f64();
        tally.conclude(name, seconds);
        fs::remove_dir_all(&folder).unwrap();
    }

    fn all(
        &mut self,
        folder: &Path,
        contents: &BTreeSet<String>,
        begun: &Mutex<Option<(u64, Instant)>>,
        tally: &mut Tally,
    ) {
        let seeds = match number(SEED) {
            Some(seed) => seed..seed + 1,
            None => 0..times(INPUTS),
        };
        for seed in seeds {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut files = self.corpus.choose(&mut rng).unwrap().clone();
            (self.mutate)(&mut files, &mut rng);
            // It stays there where the process ends.
            write(folder, &files);
            fs::write(folder.with_extension("seed"), seed.to_string()).unwrap();
            let since = Instant::now();
            *begun.lock().unwrap() = Some((seed, since));
            let outcome = self.one(folder);
            *begun.lock().unwrap() = None;
            tally.slowest = tally.slowest.max(since.elapsed());
            tally.peak = tally.peak.max(outcome.peak);
            let complaint = self.complaint(folder, &files, contents, &outcome);
            match &outcome.read {
                Ok(Ok(_)) => tally.taken += 1,
                _ => tally.refused += 1,
            }
            if let Some(complaint) = complaint {
                let kept = folder.with_extension(format!("{seed}"));
                write(&kept, &files);
                let again = format!("{SEED}={seed}, files in {}", kept.display());
                tally.failures.push(format!("{complaint} ({again})"));
            }
            if tally.failures.len() >= ENOUGH {
                return;
            }
        }
    }

    fn one(&mut self, folder: &Path) -> Outcome {
        let mut read = None;
        let peak = peak_during(|| {
            read = Some(catch_unwind(AssertUnwindSafe(|| (self.read)(folder))));
        });
        Outcome {
            read: read.unwrap(),
            peak,
        }
    }

    /// What is wrong with what became of an input.
    fn complaint(
        &self,
        folder: &Path,
        files: &Files,
        contents: &BTreeSet<String>,
        outcome: &Outcome,
    ) -> Option<String> {
        let bytes: usize = files.values().map(Vec::len).sum();
        let most = self.expected.memory + self.expected.memory_per_byte * bytes;
        match &outcome.read {
            // What it holds to say so is not counted.
            Err(_) => Some("it panicked".into()),
            _ if is_alone() && outcome.peak > most => {
                let peak = outcome.peak;
                Some(format!("{peak} bytes held for an input of {bytes}"))
            }
            Ok(Ok(content)) if self.expected.sealed && !contents.contains(content) => {
                Some(format!("what was altered was taken: {content}"))
            }
            Ok(Ok(_)) => None,
            Ok(Err(message)) => self.wrong_message(message, folder),
        }
    }

    fn wrong_message(&self, message: &str, folder: &Path) -> Option<String> {
        let place = folder.display().to_string();
        if self.expected.names_files && !message.contains(&place) {
            return Some(format!("the error names no file: {message}"));
        }
        message.is_empty().then(|| "an error without a word".into())
    }
}

impl Tally {
    fn conclude(self, name: &str, seconds: f64) {
        let (taken, refused) = (self.taken, self.refused);
        eprintln!(
            "{name}: {} inputs in {seconds:.1} s, {taken} taken, {refused} refused; at most {} KiB and {:.2} s each",
            taken + refused,
            self.peak >> 10,
            self.slowest.as_secs_f64()
        );
        assert!(
            self.failures.is_empty(),
            "{name}:\n{}",
            self.failures.join("\n")
        );
        if number(SEED).is_none() {
            assert!(refused > taken / 100, "{name} refuses next to nothing");
            assert!(
                taken > 0,
                "{name} takes nothing: one check finds every change"
            );
        }
    }
}

/// The folder of the inputs to a reader, outside of the folders that tests remove when they end.
fn folder(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("campaign");
    root.join(format!("{name}-{}", std::process::id()))
        .join("input")
}

/// Makes a folder hold these files and no others.
pub fn write(folder: &Path, files: &Files) {
    let _ = fs::remove_dir_all(folder);
    for (name, bytes) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// The files of a folder.
pub fn files_of(folder: &Path) -> Files {
    let mut files = Files::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(inner) = folders.pop() {
        for entry in fs::read_dir(inner).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap();
                files.insert(name.to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    files
}

/// One file.
pub fn file(name: &str, bytes: impl Into<Vec<u8>>) -> Files {
    Files::from([(name.to_owned(), bytes.into())])
}

/// One of the files, by its name.
pub fn any<'f>(files: &'f mut Files, rng: &mut StdRng) -> (&'f str, &'f mut Vec<u8>) {
    let names: Vec<&String> = files.keys().collect();
    let name = (*names.choose(rng).unwrap()).clone();
    let (name, bytes) = files.iter_mut().find(|(key, _)| **key == name).unwrap();
    (name, bytes)
}

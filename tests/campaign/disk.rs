//! Disks that fail at any access, clocks that jump, and several processes at once: an error names the file, nothing that is half
//! written is taken for whole, and the next run ends as if nothing had been.
//!
//! What a process does to files goes through `faults.c`, which is compiled with the C compiler and loaded before the C library.
#![cfg(target_os = "linux")]
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::kills::{Case, REGENERATION, Results, STORED, results};
use super::times;
use crate::workspace::{Outcome, Workspace};

/// Accesses that fail in short, of each kind and run.
const FAULTS: u64 = 1;

/// What goes wrong with files.
struct Fault {
    name: &'static str,
    /// What is counted: `write` or `read`.
    kind: &'static str,
    number: i32,
    /// How errors call it.
    says: &'static str,
    /// How many accesses in a row fail.
    many: u64,
}

/// A disk that is full from then on, one that becomes read-only, and ones on which one access fails.
const KINDS: [Fault; 4] = [
    Fault {
        name: "full disk",
        kind: "write",
        number: 28,
        says: "No space left on device",
        many: 1 << 40,
    },
    Fault {
        name: "read-only disk",
        kind: "write",
        number: 30,
        says: "Read-only file system",
        many: 1 << 40,
    },
    Fault {
        name: "failed write",
        kind: "write",
        number: 5,
        says: "Input/output error",
        many: 1,
    },
    Fault {
        name: "failed read",
        kind: "read",
        number: 5,
        says: "Input/output error",
        many: 1,
    },
];

/// The library, compiled for this process.
struct Library {
    folder: tempfile::TempDir,
}

impl Library {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/campaign/faults.c");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let mut compile = Command::new(compiler);
        compile
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .arg(folder.path().join("faults.so"));
        assert!(compile.arg(source).status().unwrap().success());
        Self { folder }
    }

    fn count(&self) -> PathBuf {
        self.folder.path().join("count")
    }

    fn load(&self, command: &mut Command) {
        command.env("LD_PRELOAD", self.folder.path().join("faults.so"));
    }

    /// Runs the program in a workspace; the access of this number fails, none for 0. With it, how many there were.
    fn run(&self, workspace: &Workspace, case: &Case, fault: &Fault, at: u64) -> (Outcome, u64) {
        let mut command = workspace.command(case.words);
        self.load(&mut command);
        command
            .env("FAULT_ROOT", workspace.path("").canonicalize().unwrap())
            .env("FAULT_KIND", fault.kind)
            .env("FAULT_AT", at.to_string())
            .env("FAULT_FOR", fault.many.to_string())
            .env("FAULT_ERRNO", fault.number.to_string())
            .env("FAULT_COUNT", self.count());
        let outcome = Outcome::from(command.output().unwrap());
        let count = std::fs::read_to_string(self.count()).unwrap();
        (outcome, count.trim().parse().unwrap())
    }
}

/// How runs ended.
#[derive(Default)]
struct Ends {
    failed: u64,
    went_on: u64,
}

/// Fails unless a run ended as it may: with one error that says what went wrong and where, or as if nothing had.
fn ended(outcome: Outcome, fault: &Fault, what: &str, ends: &mut Ends) {
    assert!(!outcome.stderr.contains("panicked"), "{what}: {outcome:#?}");
    if outcome.code == Some(0) {
        ends.went_on += 1;
        return;
    }
    let error = outcome
        .stderr
        .lines()
        .find(|line| line.starts_with("error: "));
    let error = error
        .unwrap_or_else(|| panic!("{what}: no error: {outcome:#?}"))
        .to_owned();
    assert!(error.contains(fault.says), "{what}: {error}");
    assert!(
        error.matches('`').count() >= 2,
        "{what}: names no file: {error}"
    );
    outcome.failed(&[fault.says]);
    ends.failed += 1;
}

/// Fails unless both are the same, but for what a run goes on without and warns of: curves, and answers kept for other validations.
fn same(found: &Results, expected: &Results, what: &str) {
    let needed = |results: &Results| -> Results {
        let entries = results.clone().into_iter();
        let is_needed = |name: &str| !name.contains("/events/") && !name.ends_with("answers.json");
        entries.filter(|(name, _)| is_needed(name)).collect()
    };
    let (found, expected) = (needed(found), needed(expected));
    let names = |results: &Results| results.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected), "{what}");
    let differ: Vec<&String> = found
        .keys()
        .filter(|name| found[*name] != expected[*name])
        .collect();
    assert!(differ.is_empty(), "{what}: {differ:?} differ");
}

/// Lets accesses of a run fail, one run for each, and runs it again.
fn fail_each(library: &Library, case: &Case, fault: &Fault, seed: u64) -> Ends {
    let whole = (case.workspace)();
    let (outcome, count) = library.run(&whole, case, fault, 0);
    outcome.succeeded();
    let expected = results(&whole);
    assert!(count > 10, "{count} accesses");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut ends = Ends::default();
    for _ in 0..times(FAULTS).min(count) {
        let at = rng.random_range(1..=count);
        let what = format!("{}, {} {at} of {count}", case.name, fault.name);
        let workspace = (case.workspace)();
        let (outcome, _) = library.run(&workspace, case, fault, at);
        ended(outcome, fault, &what, &mut ends);
        let again = workspace.run(case.words);
        assert_eq!(again.code, Some(0), "{what}, the next run: {again:#?}");
        same(&results(&workspace), &expected, &what);
    }
    ends
}

#[test]
fn wherever_an_access_to_the_disk_fails_the_error_says_so_and_the_next_run_ends_well() {
    let clock = Instant::now();
    let library = Library::new();
    let mut all = 0;
    for case in [&STORED, &REGENERATION] {
        for (number, fault) in KINDS.iter().enumerate() {
            let ends = fail_each(&library, case, fault, number as u64);
            let Ends { failed, went_on } = ends;
            eprintln!(
                "{}, {}: {failed} ended with an error, {went_on} went on",
                case.name, fault.name
            );
            all += failed + went_on;
        }
    }
    eprintln!(
        "faults: {all} runs in {:.0} s",
        clock.elapsed().as_secs_f64()
    );
}

#[test]
fn a_time_of_day_that_jumps_by_decades_changes_no_result() {
    let library = Library::new();
    for case in [&STORED, &REGENERATION] {
        let whole = (case.workspace)();
        whole.run(case.words).succeeded();
        // Once around now, and once to before 1970 and back.
        for seconds in [3 << 28, 1 << 31] {
            let workspace = (case.workspace)();
            let mut command = workspace.command(case.words);
            library.load(&mut command);
            command.env("FAULT_CLOCK", seconds.to_string());
            let outcome = Outcome::from(command.output().unwrap()).succeeded();
            assert!(!outcome.stderr.contains("panicked"), "{outcome:#?}");
            same(&results(&workspace), &results(&whole), case.name);
        }
    }
}

#[test]
fn a_program_that_is_stopped_for_a_day_in_the_midst_of_a_run_has_the_same_results() {
    let library = Library::new();
    for case in [&STORED, &REGENERATION] {
        let whole = (case.workspace)();
        whole.run(case.words).succeeded();
        let mut rng = StdRng::seed_from_u64(0);
        for _ in 0..times(3) {
            // The look at the clock before which it was stopped.
            let at = rng.random_range(1..400);
            let workspace = (case.workspace)();
            let mut command = workspace.command(case.words);
            library.load(&mut command);
            command
                .env("FAULT_SLEEP", "86400")
                .env("FAULT_AT", at.to_string());
            let outcome = Outcome::from(command.output().unwrap()).succeeded();
            assert!(!outcome.stderr.contains("panicked"), "{at}: {outcome:#?}");
            same(&results(&workspace), &results(&whole), case.name);
        }
    }
}

#[test]
fn of_processes_that_begin_one_run_at_the_same_moment_one_does_it_and_the_others_say_so() {
    for case in [&STORED, &REGENERATION] {
        let whole = (case.workspace)();
        whole.run(case.words).succeeded();
        let mut codes = BTreeMap::new();
        for _ in 0..times(1) {
            let workspace = (case.workspace)();
            let start = |_| {
                let mut command = workspace.command(case.words);
                command
                    .stdout(Stdio::null())
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap()
            };
            let children: Vec<Child> = (0..3).map(start).collect();
            for child in children {
                let outcome = Outcome::from(child.wait_with_output().unwrap());
                *codes.entry(outcome.code).or_insert(0) += 1;
                if outcome.code != Some(0) {
                    outcome.failed(&["in use by another"]);
                }
            }
            workspace.run(case.words).succeeded();
            same(&results(&workspace), &results(&whole), case.name);
        }
        eprintln!("{}: ended with {codes:?}", case.name);
        assert!(codes[&Some(0)] >= times(1), "{codes:?}");
    }
}

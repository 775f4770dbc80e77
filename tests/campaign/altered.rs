//! Runs of which any file was altered: the next run takes nothing of it for what was written, and ends as if it had been whole, or
//! says which file is at fault.
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use super::fuzz::SEED;
use super::kills::{Case, REGENERATION, Results, STORED, results};
use super::{bytes, json, number, times};
use crate::workspace::Workspace;

/// Files altered in short.
const ALTERED: u64 = 5;

/// Copies what is in a folder to another.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, name) = entry
            .map(|entry| (entry.path(), entry.file_name()))
            .unwrap();
        if path.is_dir() {
            copy(&path, &to.join(name));
        } else {
            fs::copy(&path, to.join(name)).unwrap();
        }
    }
}

/// The files that a run has made, in their order, without those that only people read while it is under way.
fn made(workspace: &Workspace, before: &Workspace) -> Vec<PathBuf> {
    let given = before.files("");
    let made = workspace.files("").into_keys();
    let made = made.filter(|name| !given.contains_key(name));
    made.filter(|name| !name.components().any(|part| part.as_os_str() == "events"))
        .collect()
}

/// Changes a file, or takes it away.
fn alter(path: &Path, rng: &mut StdRng) -> &'static str {
    let mut contents = fs::read(path).unwrap();
    let is_json = path.extension().is_some_and(|ending| ending == "json");
    let what = match rng.random_range(0..10) {
        0 => {
            fs::remove_file(path).unwrap();
            return "taken away";
        }
        1 => {
            contents.clear();
            "emptied"
        }
        2 => {
            contents.truncate(contents.len() / 2);
            "cut in half"
        }
        3..7 if is_json => {
            json::change_bytes(&mut contents, rng);
            "changed as JSON"
        }
        _ => {
            bytes::change(&mut contents, rng);
            "changed"
        }
    };
    fs::write(path, contents).unwrap();
    what
}

/// A finished run, and the command that is given again.
struct Finished {
    name: &'static str,
    words: Vec<&'static str>,
    whole: Workspace,
    /// What it has made.
    files: Vec<PathBuf>,
    /// What the command leaves where nothing was altered.
    expected: Results,
}

impl Finished {
    fn of(case: &Case, first: &[&'static str], again: &[&'static str]) -> Self {
        let (before, whole) = ((case.workspace)(), (case.workspace)());
        let words = |more: &[&'static str]| [case.words, more].concat();
        whole.run(&words(first)).succeeded();
        let files = made(&whole, &before);
        let unaltered = Workspace::of("");
        copy(&whole.path(""), &unaltered.path(""));
        unaltered.run(&words(again)).succeeded();
        Self {
            name: case.name,
            words: words(again),
            files,
            expected: results(&unaltered),
            whole,
        }
    }

    /// Alters a file and runs the command. Whether it came to its end.
    fn run_again(&self, rng: &mut StdRng) -> bool {
        let workspace = Workspace::of("");
        copy(&self.whole.path(""), &workspace.path(""));
        let file = self.files.choose(rng).unwrap();
        let what = alter(&workspace.path(file), rng);
        let words = self.words.join(" ");
        let what = format!("{}, `{words}`: `{}` {what}", self.name, file.display());
        let outcome = workspace.run(&self.words);
        assert!(!outcome.stderr.contains("panicked"), "{what}: {outcome:#?}");
        if outcome.code != Some(0) {
            let named = file.file_name().unwrap().to_str().unwrap().to_owned();
            outcome.failed(&[&named]);
            return false;
        }
        let found = results(&workspace);
        for (name, bytes) in &self.expected {
            // Where no training goes on, nothing is read, and judged, that is only there for that.
            let is_for_going_on = name.contains("/step-") || name.ends_with("answers.json");
            let is_same = found.get(name) == Some(bytes);
            assert!(is_same || is_for_going_on, "{what}: `{name}` differs");
        }
        true
    }
}

const CONSTANT: [&str; 2] = ["--set", "train.schedule=constant"];
const LONGER: [&str; 4] = ["--set", "train.schedule=constant", "--set", "train.steps=9"];

#[test]
fn whatever_file_of_a_run_is_altered_it_is_noticed() {
    let clock = Instant::now();
    let runs = [
        Finished::of(&STORED, &[], &[]),
        Finished::of(&STORED, &CONSTANT, &LONGER),
        Finished::of(&REGENERATION, &[], &[]),
    ];
    let seeds = match number(SEED) {
        Some(seed) => seed..seed + 1,
        None => 0..times(ALTERED),
    };
    let (mut ended, mut refused) = (0, 0);
    for seed in seeds {
        let mut rng = StdRng::seed_from_u64(seed);
        eprintln!("{SEED}={seed}");
        // Most files are those of the recipe.
        let run = &runs[[0, 1, 0, 1, 2][seed as usize % 5]];
        match run.run_again(&mut rng) {
            true => ended += 1,
            false => refused += 1,
        }
    }
    let seconds = clock.elapsed().as_secs_f64();
    eprintln!("altered: {ended} runs ended well, {refused} were refused, {seconds:.0} s");
}

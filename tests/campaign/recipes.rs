//! Recipes: whatever the file and `--set` say, they are read or refused, and one that is read is written so that it can be read
//! again.
use std::fs;
use std::path::Path;

use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};
use serde_json::Value;
use spectrain::families::registry::RECIPES;
use spectrain::plan::{estimate, preflight::Asked};
use spectrain::recipe::shipped::SHIPPED;
use spectrain::recipe::{ResolvedRecipe, read, read_file};
use spectrain::runs::run_folder::Existing;

use super::bytes::change_text;
use super::fuzz::{Expected, Files, Fuzz, file};
use super::json;

const NAME: &str = "recipe.toml";
/// What follows `--set`, a line each.
const SETTINGS: &str = "set";

/// Recipes that are shipped, and those with which the tests train every family.
fn corpus() -> Vec<Files> {
    let shipped = SHIPPED.iter().map(|shipped| shipped.text.to_owned());
    let of_tests = RECIPES.iter().flat_map(|recipe| {
        let head = format!(
            "recipe = \"{}\"\nname = \"a\"\nseed = 3\n[synthetic]\nlayers = 4\n[data]\nmax_length = 64\n",
            recipe.name
        );
        let tables = recipe.trials.iter();
        tables.map(move |tables| format!("{head}{tables}\n"))
    });
    let with_settings = |(number, text): (usize, String)| {
        let settings = ["train.keep=3", "seed=9\ntrain.log_every=5", ""][number % 3];
        let mut files = file(NAME, text);
        files.extend(file(SETTINGS, settings));
        files
    };
    shipped
        .chain(of_tests)
        .enumerate()
        .map(with_settings)
        .collect()
}

fn mutate(files: &mut Files, rng: &mut StdRng) {
    if rng.random_bool(0.15) {
        return change_text(files.get_mut(SETTINGS).unwrap(), rng);
    }
    let text = files.get_mut(NAME).unwrap();
    let table: Option<Value> = toml::from_slice(text).ok();
    let changed = table
        .filter(|_| rng.random_bool(0.8))
        .and_then(|mut table| {
            for _ in 0..rng.random_range(1..4) {
                json::change(&mut table, rng);
            }
            // TOML has no null.
            toml::to_string(&table).ok()
        });
    match changed {
        Some(changed) => *text = changed.into_bytes(),
        None => change_lines(text, rng),
    }
}

/// Lines of TOML twice, elsewhere or missing, or changed as any text.
fn change_lines(text: &mut Vec<u8>, rng: &mut StdRng) {
    let mut lines: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
    let at = rng.random_range(0..lines.len());
    match rng.random_range(0..6) {
        0 => drop(lines.remove(at)),
        1 => lines.push(lines[at]),
        2 => lines.insert(0, lines[at]),
        3 => {
            let odd = [
                "a.b.c = 1",
                "[a]",
                "[[train]]",
                "train.steps = 2",
                "x = 2024-01-01",
            ];
            lines.insert(at, odd.choose(rng).unwrap().as_bytes());
        }
        _ => return change_text(text, rng),
    }
    *text = lines.join(&b'\n');
}

fn read_recipe(folder: &Path) -> Result<String, String> {
    let settings = String::from_utf8_lossy(&fs::read(folder.join(SETTINGS)).unwrap()).into_owned();
    let settings: Vec<String> = settings.lines().map(str::to_owned).collect();
    let recipe = read_file(&folder.join(NAME), &settings);
    let recipe = recipe.map_err(|error| match error {
        // A wrong `--set` is no fault of the file.
        error if format!("{error:#}").contains("--set") => folder.display().to_string(),
        error => format!("{error:#}"),
    })?;
    let again = read(&recipe.toml, &[]);
    let again = again.unwrap_or_else(|error| panic!("{error:#}\nin\n{}", recipe.toml));
    assert_eq!((&again.toml, &again.json), (&recipe.toml, &recipe.json));
    plan(&recipe, folder);
    Ok(recipe.recipe)
}

/// What it would take is counted, or it is said why not.
fn plan(recipe: &ResolvedRecipe, runs: &Path) {
    let asked = Asked {
        recipe,
        runs,
        existing: Existing::Continue,
        device: "cpu",
        ranks: 1,
        only: &[],
        parts: None,
    };
    match estimate(&asked) {
        Ok(_) => {}
        Err(error) => assert!(!format!("{error:#}").is_empty()),
    }
}

#[test]
fn recipes_are_read_or_refused() {
    Fuzz {
        name: "recipes",
        corpus: corpus(),
        mutate,
        read: read_recipe,
        expected: Expected::default(),
    }
    .run();
}

//! The pages and their tables against what they are about.
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use clap::{Command, CommandFactory as _};
use spectrain::cli::{Arguments, EXIT_STATUS};
use spectrain::families::registry::RECIPES;
use spectrain::recipe;
use spectrain::recipe::tables::Engine;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn page(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap()
}

const README: &str = "README.md";
const REFERENCE: &str = "recipes/README.md";

/// The rows of the table of a page under these heads, each as its cells.
fn rows(name: &str, heads: &str) -> Vec<Vec<String>> {
    let text = page(name);
    let (_, after) = text
        .split_once(&format!("{heads}\n"))
        .unwrap_or_else(|| panic!("{name} has no table `{heads}`"));
    let lines = after.lines().skip(1);
    lines
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let line = line.trim_start_matches("| ").trim_end_matches(" |");
            line.split(" | ").map(str::to_owned).collect()
        })
        .collect()
}

/// Fails, with the table that it should have, unless [`REFERENCE`] has exactly this one.
fn has_table(heads: &[&str], rows: &[Vec<String>]) {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
    let rule = format!("|{}\n", "---|".repeat(heads.len()));
    let rows: String = rows.iter().map(|cells| line(cells)).collect();
    let table = format!("\n{}{rule}{rows}\n", line(&heads));
    assert!(
        page(REFERENCE).contains(&table),
        "{REFERENCE} lacks this table:\n{table}"
    );
}

/// The recipes in a folder, by their file names.
fn recipes_in(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".toml")).collect();
    names.sort();
    assert!(names.len() > 10, "{names:?}");
    names
}

#[test]
fn every_recipe_that_is_shipped_is_named() {
    let text = page(REFERENCE);
    for name in recipes_in("recipes") {
        assert!(
            text.contains(&format!("`{name}`")),
            "{REFERENCE} does not name `{name}`"
        );
    }
    let text = page("eval/README.md");
    for name in recipes_in("recipes/compare") {
        let stem = name.trim_end_matches(".toml");
        let short = stem.trim_start_matches("compare-");
        let in_loop = text.lines().any(|line| {
            line.contains("for name in ")
                && line
                    .split(' ')
                    .any(|word| word.trim_end_matches(';') == short)
        });
        assert!(
            text.contains(&format!("{stem}.toml")) || in_loop,
            "eval/README.md does not name `{name}`"
        );
    }
}

const DRAFTERS: &str = "| drafter | `recipe` | what it is | smallest recipe | served by |";

/// The first value between quotes and backticks.
fn quoted(cell: &str) -> &str {
    cell.split("`\"")
        .nth(1)
        .unwrap()
        .split("\"`")
        .next()
        .unwrap()
}

#[test]
fn every_kind_of_recipe_is_in_the_table_of_drafters_with_a_recipe_of_that_kind() {
    let rows = rows(README, DRAFTERS);
    let named: BTreeSet<&str> = rows.iter().map(|row| quoted(&row[1])).collect();
    let known: BTreeSet<&str> = RECIPES.iter().map(|kind| kind.name).collect();
    assert_eq!(named, known, "{README}, `{DRAFTERS}`");
    for row in &rows {
        let file = row[3].trim_matches('`');
        let read = recipe::read_file(&root().join("recipes").join(file), &[]).unwrap();
        assert_eq!(
            read.recipe,
            quoted(&row[1]),
            "{README}, the row of `{file}`"
        );
    }
}

#[test]
fn the_table_of_drafters_names_the_engines_that_load_them() {
    let engines = [
        Engine::Vllm,
        Engine::Sglang,
        Engine::Hf,
        Engine::LlamaCpp,
        Engine::TensorrtLlm,
    ];
    let mut served: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for row in rows(README, DRAFTERS) {
        // PARD-2 is said to be served as PARD is.
        let named = engines.iter().map(|engine| engine.name());
        let named = named.filter(|name| row[4].contains(name));
        served
            .entry(quoted(&row[1]).to_owned())
            .or_default()
            .extend(named);
    }
    for kind in RECIPES {
        // Folders of speculators are vLLM's.
        let engines = kind
            .engines
            .iter()
            .filter(|engine| **engine != Engine::Speculators);
        let expected: BTreeSet<&str> = engines.map(|engine| engine.name()).collect();
        let Some(served) = served.get(kind.name) else {
            panic!(
                "{README}: the table of drafters has no row of `{}`",
                kind.name
            );
        };
        assert_eq!(*served, expected, "{README}, engines of `{}`", kind.name);
    }
}

/// Every command without commands of its own, by its words behind `spectrain`.
fn commands(command: &Command, words: &str, found: &mut BTreeMap<String, Command>) {
    let inner = command
        .get_subcommands()
        .filter(|inner| inner.get_name() != "help");
    let mut is_last = true;
    for inner in inner {
        is_last = false;
        let words = format!("{words} {}", inner.get_name());
        commands(inner, words.trim(), found);
    }
    if is_last {
        found.insert(words.to_owned(), command.clone());
    }
}

/// The long options that a text names.
fn options(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    let named = words.filter_map(|word| word.strip_prefix("--"));
    named
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_command_is_in_a_table_with_options_that_it_has() {
    let mut known = BTreeMap::new();
    commands(&Arguments::command(), "", &mut known);
    let mut named = BTreeSet::new();
    for row in rows(REFERENCE, "| command | what it does |") {
        let usage = row[0].trim_matches('`').strip_prefix("spectrain ").unwrap();
        let is_word = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
        let words: Vec<&str> = usage.split(' ').take_while(is_word).collect();
        let words = words.join(" ");
        let command = known
            .get(&words)
            .unwrap_or_else(|| panic!("{REFERENCE}: there is no command `{words}`"));
        let longs = command
            .get_arguments()
            .filter_map(|argument| argument.get_long());
        let longs: BTreeSet<String> = longs.map(str::to_owned).collect();
        let told = options(&row.join(" | "));
        let unknown: Vec<_> = told.difference(&longs).collect();
        assert!(
            unknown.is_empty(),
            "{REFERENCE}: `spectrain {words}` has no {unknown:?}"
        );
        named.insert(words);
    }
    let known: BTreeSet<String> = known.into_keys().collect();
    assert_eq!(named, known, "{REFERENCE}, commands");
}

#[test]
fn the_exit_statuses_are_in_a_table() {
    let row = |(status, when): &(u8, &str)| vec![status.to_string(), (*when).to_owned()];
    let rows: Vec<Vec<String>> = EXIT_STATUS.iter().map(row).collect();
    has_table(&["exit status", "when"], &rows);
}

#[test]
fn the_first_page_is_short() {
    let page = page(README);
    // Every family has a row of its own, and is not to be left out for the page's length.
    let is_of_family = |line: &&str| line.starts_with("| ") && line.contains("| `\"");
    let without = page.lines().filter(|line| !is_of_family(line));
    let length: usize = without.map(|line| line.len() + 1).sum();
    assert!(
        length <= 11_776,
        "{README} has {length} bytes without its families"
    );
}

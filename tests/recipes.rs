//! The recipes that are shipped, and what README.md says of recipes and commands.
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::Parser as _;
use serde_json::Value;
use spectrain::cli::Arguments;
use spectrain::families::registry::RECIPES;
use spectrain::recipe;

use crate::workspace::Workspace;

fn shipped() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes");
    let of = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().path())
    };
    let mut recipes: Vec<_> = of(folder.clone())
        .chain(of(folder.join("compare")))
        .filter(|path| path.extension().is_some_and(|kind| kind == "toml"))
        .collect();
    recipes.sort();
    assert!(recipes.len() >= 20, "{recipes:?}");
    recipes
}

fn readme() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap()
}

#[test]
fn every_shipped_recipe_has_a_plan_without_a_network() {
    for path in shipped() {
        let workspace = Workspace::of("");
        let file = path.display().to_string();
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        let resolved = recipe::read_file(&path, &[]).unwrap();
        assert_eq!(resolved.name, stem, "a recipe's run is called as its file");
        // A real size is one that is not trained on a CPU.
        let real = stem.ends_with("-8b");
        let device = if real { "cuda:0" } else { "cpu" };
        let plan = workspace.run(&["recipe", &file, "--plan", "--device", device]);
        // Nothing is missing but what a user brings.
        let refused = plan.stdout.split("\nrefused:\n").nth(1);
        let refused = refused.map_or("", |rest| rest.split("\n\n").next().unwrap());
        let brought = |line: &str| line.contains("`data.") || line.contains("feature `cuda`");
        assert!(refused.lines().all(brought), "{plan:#?}");
        assert_eq!(plan.code, Some(i32::from(!refused.is_empty())), "{plan:#?}");
        assert!(
            plan.stdout.contains(&format!("name = \"{stem}\"")),
            "{plan:#?}"
        );
        let last = resolved.last_trained();
        let line = format!("  {last:9} runs");
        assert!(plan.stdout.contains(&line), "no `{line}`: {plan:#?}");
        if real {
            for part in ["from this program's list", "GiB", "training time"] {
                assert!(plan.stdout.contains(part), "no `{part}`: {plan:#?}");
            }
            fits_its_gpu(&std::fs::read_to_string(&path).unwrap(), &plan.stdout);
        }
        let left: Vec<_> = workspace.files("").into_keys().collect();
        assert_eq!(left, [Path::new("recipe.toml")], "a plan leaves nothing");
    }
}

/// The memory that the plan counts is what the recipe says, and less than the GPU that it names has.
fn fits_its_gpu(recipe: &str, plan: &str) {
    let comments = recipe.lines().take_while(|line| line.starts_with('#'));
    let comments: Vec<&str> = comments.map(|line| line[1..].trim()).collect();
    let comments = comments.join(" ");
    let number = |text: &str, before: &str, after: &str| -> f64 {
        let rest = text.split_once(before).unwrap().1;
        let (number, _) = rest.split_once(after).unwrap();
        let number = number.rsplit(' ').next().unwrap();
        number
            .parse()
            .unwrap_or_else(|_| panic!("`{number}` in `{rest}`"))
    };
    let gigabytes = number(&comments, "on one H200 (", " GB)");
    let said = number(&comments, "TFLOP/s:", " GiB of GPU memory");
    let planned = number(plan, "memory, together", " GiB");
    assert!(
        (said - planned).abs() <= 1.0,
        "says {said} GiB, plans {planned}"
    );
    let gpu = gigabytes * 1e9 / f64::from(1 << 30);
    assert!(planned < 0.9 * gpu, "{planned} GiB on a GPU of {gpu}");
}

#[test]
fn every_shipped_recipe_begins_with_a_command_that_is_understood() {
    for path in shipped() {
        let text = std::fs::read_to_string(&path).unwrap();
        let command = text.lines().next().unwrap().strip_prefix("# ").unwrap();
        let file = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = file.display();
        assert!(
            command.starts_with(&format!("spectrain recipe {file}")),
            "{command}"
        );
        understood(command);
    }
}

/// A command line of which the program knows every word.
fn understood(command: &str) {
    if let Err(error) = Arguments::try_parse_from(words(command)) {
        panic!("`{command}`: {error}");
    }
}

/// Splits at spaces outside of double quotes.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for letter in command.chars() {
        match letter {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            _ => words.last_mut().unwrap().push(letter),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn every_command_in_the_readme_is_understood() {
    let text = readme().replace("\\\n", " ");
    let mut seen = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix("    ")) {
        let command = line.split("  #").next().unwrap().trim();
        let ours = [
            "cargo run --release -- ",
            "target/release/spectrain ",
            "spectrain ",
        ];
        let Some(rest) = ours.iter().find_map(|start| command.strip_prefix(start)) else {
            continue;
        };
        understood(&format!("spectrain {rest}"));
        for file in words(rest)
            .iter()
            .filter(|word| word.starts_with("recipes/"))
        {
            assert!(
                Path::new(env!("CARGO_MANIFEST_DIR")).join(file).exists(),
                "`{command}`: no `{file}`"
            );
        }
        seen += 1;
    }
    assert!(seen >= 5, "{seen} commands");
}

type Keys = BTreeMap<String, BTreeSet<String>>;

/// Every key of every table, with the optional ones; those outside of tables under the empty name, and those of tables
/// that differ from recipe to recipe under the table's name and the recipe's.
fn keys() -> Keys {
    let given = "name = \"a\"\nstart = \"s\"\n\
        [target]\nmodel = \"m\"\nrevision = \"r\"\n[data]\ntrain = \"t\"\neval = \"e\"\ntemplate = \"j\"\ntemplate_variables = { a = 1 }\n";
    let held_out = "name = \"a\"\n[target]\nmodel = \"m\"\n[data]\ntrain = \"t\"\nheld_out = 0.1\n\
        [train]\nepochs = 2\n";
    let made = "name = \"a\"\n[synthetic]\n";
    let mut keys = Keys::new();
    for (kind, text) in RECIPES
        .iter()
        .flat_map(|kind| [given, held_out, made].map(|text| (kind, text)))
    {
        let text = format!("recipe = \"{}\"\n{text}", kind.name);
        let resolved = recipe::read(&text, &[]).unwrap();
        for (key, value) in resolved.json.as_object().unwrap() {
            let (table, found) = match (key.as_str(), value) {
                ("drafter" | "objective", Value::Object(table)) => (
                    format!("{key} of {}", kind.name),
                    table.keys().cloned().collect(),
                ),
                (_, Value::Object(table)) => (key.clone(), table.keys().cloned().collect()),
                _ => (String::new(), vec![key.clone()]),
            };
            keys.entry(table).or_default().extend(found);
        }
    }
    keys
}

/// The keys in the first column of the tables under `### Top level`, ``### `[table]` …`` and
/// ``### `[table]` of `recipe = "name"` ``, also of several names.
fn documented(text: &str) -> Keys {
    let mut keys = Keys::new();
    let mut sections: Vec<String> = Vec::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix('#') {
            let heading = heading.trim_start_matches('#').trim();
            let table = heading
                .strip_prefix("`[")
                .and_then(|rest| rest.split_once("]`"));
            sections = match table {
                Some((table, rest)) if rest.contains('"') => {
                    let kinds = rest.split('"').skip(1).step_by(2);
                    kinds.map(|kind| format!("{table} of {kind}")).collect()
                }
                Some((table, _)) => vec![table.to_owned()],
                None if heading == "Top level" => vec![String::new()],
                None => Vec::new(),
            };
        }
        let Some(key) = line
            .strip_prefix("| `")
            .and_then(|rest| rest.split('`').next())
        else {
            continue;
        };
        let is_key = key
            .chars()
            .all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_');
        for section in sections.iter().filter(|_| is_key) {
            keys.entry(section.clone())
                .or_default()
                .insert(key.to_owned());
        }
    }
    keys
}

#[test]
fn the_readme_names_every_key_of_every_table_and_no_other() {
    let (expected, found) = (keys(), documented(&readme()));
    assert!(expected.values().map(BTreeSet::len).sum::<usize>() > 50);
    for (table, keys) in &expected {
        assert_eq!(found.get(table), Some(keys), "README.md, `[{table}]`");
    }
    assert_eq!(found.len(), expected.len(), "{:?}", found.keys());
}

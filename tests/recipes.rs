//! The recipes that are shipped, and the commands that pages show.
use std::path::{Path, PathBuf};

use clap::Parser as _;
use spectrain::cli::Arguments;
use spectrain::recipe;

use crate::links::pages;
use crate::workspace::Workspace;

pub fn shipped() -> Vec<PathBuf> {
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
        // Nothing is missing but what a user brings, and the target, which would be downloaded.
        let refused = plan.stderr.split("the run would be refused:").nth(1);
        let refused = refused.unwrap_or("").trim();
        let brought = ["`data.", "the target `py-qwen3`", "`HF_HUB_OFFLINE` is set"];
        let brought = |line: &str| brought.iter().any(|part| line.contains(part));
        assert!(refused.lines().all(brought), "{plan:#?}");
        assert_eq!(plan.code, Some(i32::from(!refused.is_empty())), "{plan:#?}");
        // A GPU that is elsewhere is no reason.
        let lacks = real && !cfg!(feature = "cuda");
        let warned = plan.stdout.contains("feature `cuda`");
        assert_eq!(warned, lacks, "{plan:#?}");
        assert!(
            plan.stdout.contains(&format!("name = \"{stem}\"")),
            "{plan:#?}"
        );
        let last = resolved.last_trained();
        let line = format!("  {last:9} runs");
        assert!(plan.stdout.contains(&line), "no `{line}`: {plan:#?}");
        if real {
            // Long lines are wrapped.
            let told = plan.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
            for part in ["from this program's list", "GiB", "training time"] {
                assert!(told.contains(part), "no `{part}`: {plan:#?}");
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
    let (_, of_gpu) = comments.split_once("on one ").unwrap();
    let gigabytes = number(of_gpu, "(", " GB)");
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
        // The schema is named before it.
        let command = text.lines().nth(1).unwrap().strip_prefix("# ").unwrap();
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
fn every_command_on_a_page_is_understood() {
    let mut seen = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap().replace("\\\n", " ");
        let mut variables: Vec<(String, String)> = Vec::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("    ")) {
            let command = line.split("  #").next().unwrap();
            // Where the shell writes to is not the program's business.
            let mut command = command.split(" > ").next().unwrap().trim().to_owned();
            for (name, value) in &variables {
                command = command.replace(&format!("${name}"), value);
            }
            if let Some((name, value)) = command.split_once('=')
                && name.chars().all(|c| c.is_ascii_lowercase())
            {
                variables.push((name.to_owned(), value.trim_matches('"').to_owned()));
                continue;
            }
            let ours = [
                "cargo run --release -- ",
                "target/release/spectrain ",
                "spectrain ",
            ];
            let Some(rest) = ours.iter().find_map(|start| command.strip_prefix(start)) else {
                continue;
            };
            understood(&format!("spectrain {rest}"));
            let words = words(rest);
            for file in words.iter().filter(|word| word.starts_with("recipes/")) {
                let exists = Path::new(env!("CARGO_MANIFEST_DIR")).join(file).exists();
                assert!(exists, "{}: `{command}`: no `{file}`", page.display());
            }
            seen += 1;
        }
    }
    assert!(seen >= 15, "{seen} commands");
}

//! Whole numbers in recipes: far too large and very small ones, each alone, in every kind of recipe there is.
use std::collections::BTreeSet;

use serde_json::{Map, Value};
use spectrain::cli::commands::schema;
use spectrain::families::registry::{self, RECIPES};
use spectrain::plan;
use spectrain::plan::preflight::Asked;
use spectrain::recipe::{self, ResolvedRecipe};
use spectrain::runs::run_folder::Existing;

use crate::allocation::{alone, largest_during};
use crate::samples::samples;
use crate::workspace::Workspace;

/// What a schema that refers to another one refers to.
fn resolved_in<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let only = schema.pointer("/allOf/0").unwrap_or(schema);
    let place = only["$ref"].as_str().map(|name| &name[1..]);
    place.map_or(only, |place| root.pointer(place).unwrap())
}

/// The keys of `[drafter]` of a kind of recipe, with their schemas, and those of them that are tables.
pub fn drafter_keys(kind: &registry::Recipe) -> (Map<String, Value>, Vec<String>) {
    let root = schema::of(&[kind]).to_value();
    let drafter = &root["allOf"][0]["then"]["properties"]["drafter"];
    let keys = resolved_in(&root, drafter)["properties"].as_object();
    let keys = keys.unwrap_or_else(|| panic!("`{}` has no keys of `[drafter]`", kind.name));
    let is_table = |schema: &Value| resolved_in(&root, schema)["type"] == "object";
    let tables = keys.iter().filter(|(_, schema)| is_table(schema));
    (keys.clone(), tables.map(|(key, _)| key.clone()).collect())
}

/// The tokens that a kind of recipe does not do without, in `[drafter]`: the last of so many, which no text holds.
pub fn tokens(kind: &registry::Recipe, vocab: usize) -> String {
    let (keys, _) = drafter_keys(kind);
    let tokens = keys.keys().filter(|key| key.ends_with("_token"));
    let lines = tokens
        .enumerate()
        .map(|(number, key)| format!("{key} = {}\n", vocab - 1 - number));
    format!("[drafter]\n{}", lines.collect::<String>())
}

#[test]
fn texts_are_searched_for_every_token_that_no_text_may_hold() {
    let mut seen = BTreeSet::new();
    for sample in samples() {
        let resolved = sample.resolved();
        let table = resolved.json["drafter"].as_object().unwrap();
        let named = table.iter().filter(|(key, _)| key.ends_with("_token"));
        let named = named.filter_map(|(key, token)| Some((key.as_str(), token.as_u64()?)));
        let named: BTreeSet<(&str, u64)> = named.collect();
        let unheld = resolved.method.unheld().into_iter();
        let unheld: BTreeSet<_> = unheld.map(|(key, token)| (key, token.into())).collect();
        assert_eq!(unheld, named, "{}", sample.name());
        seen.extend(unheld.into_iter().map(|(key, _)| key));
    }
    assert_eq!(seen, ["mask_token", "separator_token"].into());
}

/// The keys that a kind of recipe does not do without, and its optional tables.
fn needed(kind: &registry::Recipe) -> String {
    let (_, tables) = drafter_keys(kind);
    let tables = tables.iter().map(|name| format!("[drafter.{name}]\n"));
    tokens(kind, 300) + &tables.collect::<String>()
}

/// A recipe of each kind for the target and the data of `workspace`, and one that makes its own.
fn recipes(workspace: &Workspace) -> Vec<String> {
    let [target, train, eval] =
        ["target", "train.jsonl", "eval.jsonl"].map(|name| workspace.path(name));
    let given = format!(
        "[target]\nmodel = {target:?}\n[data]\ntrain = {train:?}\neval = {eval:?}\n[evaluate]\n\
         drafts = [{{ shape = \"dynamic\", nodes = 9 }}, {{ shape = \"calibrated\", nodes = 9 }}]\n"
    );
    let of = |kind: &registry::Recipe, tables: &str| {
        let (name, needed) = (kind.name, needed(kind));
        format!("recipe = \"{name}\"\nname = \"a\"\n{tables}{needed}")
    };
    let kinds = RECIPES.iter().map(|kind| of(kind, &given));
    kinds.chain([of(&RECIPES[0], "[synthetic]\n")]).collect()
}

/// The path of every whole number in a resolved recipe, and whether it is one of a list.
fn numbers(value: &Value, path: &str, found: &mut Vec<(String, bool)>) {
    match value {
        Value::Object(table) => {
            for (key, value) in table {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                numbers(value, &path, found);
            }
        }
        Value::Number(number) if number.is_u64() => found.push((path.to_owned(), false)),
        Value::Array(items) if items.iter().any(Value::is_u64) => {
            found.push((path.to_owned(), true));
        }
        _ => {}
    }
}

/// The recipe with one number changed, and its plan, or why there is none.
fn tried(
    text: &str,
    (path, is_list): (&str, bool),
    value: u64,
    workspace: &Workspace,
) -> Result<(), String> {
    let value = match is_list {
        true => format!("[{value}]"),
        false => value.to_string(),
    };
    let try_it = || -> anyhow::Result<()> {
        let recipe = recipe::read(text, &[format!("{path}={value}")])?;
        let runs = workspace.path("runs");
        let asked = Asked {
            recipe: &recipe,
            runs: &runs,
            existing: Existing::Continue,
            device: "cpu",
            ranks: 1,
            only: &[],
            parts: None,
        };
        plan::plan(&asked)?;
        asked.check()
    };
    try_it().map_err(|error| format!("{error:#}"))
}

fn resolved(text: &str) -> ResolvedRecipe {
    recipe::read(text, &[]).unwrap()
}

/// What an error is about: the first key that it quotes, or the override that it repeats.
fn names(error: &str, path: &str) -> bool {
    let (table, key) = path.split_once('.').unwrap_or(("", path));
    let last = path.rsplit('.').next().unwrap();
    let subjects = [
        format!("key `{path}`"),
        format!("`[{table}] {key}`"),
        format!(
            "key `objective.{}`",
            key.rsplit_once('.').map_or(key, |(table, _)| table)
        ),
    ];
    let about = subjects.iter().any(|subject| error.contains(subject));
    about || error.starts_with(&format!("`--set {path}=")) && error.contains(last)
}

/// Keys for which every number makes sense.
const HARMLESS: [&str; 9] = [
    "seed",
    "warmup_steps",
    "keep",
    "log_every",
    "save_every",
    "validate_every",
    "validate_samples",
    "decode_prompts",
    "top_k",
];

#[test]
fn a_number_beyond_any_use_is_refused_by_its_key_or_harmless() {
    alone(|| {
        let workspace = Workspace::new();
        let mut accepted = BTreeSet::new();
        let mut tried_keys = BTreeSet::new();
        for text in recipes(&workspace) {
            let mut paths = Vec::new();
            numbers(&resolved(&text).json, "", &mut paths);
            assert!(paths.len() > 20, "{paths:?}");
            for (path, is_list) in paths {
                let place = (path.as_str(), is_list);
                for value in [0, 1 << 32, 1 << 53] {
                    let mut outcome = Ok(());
                    let largest =
                        largest_during(|| outcome = tried(&text, place, value, &workspace));
                    assert!(largest < 64 << 20, "`{path}` = {value}: {largest} bytes");
                    match outcome {
                        Err(error) => assert!(names(&error, &path), "`{path}` = {value}: {error}"),
                        Ok(()) if value > 0 => drop(accepted.insert(path.clone())),
                        Ok(()) => {}
                    }
                }
                tried_keys.insert(path);
            }
        }
        let key = |path: &String| path.rsplit('.').next().unwrap_or_default().to_owned();
        let mut dangerous: Vec<&String> = accepted.iter().collect();
        dangerous.retain(|path| !HARMLESS.contains(&key(path).as_str()));
        assert!(dangerous.is_empty(), "{dangerous:?}");
        assert!(tried_keys.len() > 80, "{tried_keys:?}");
    });
}

#[test]
fn no_default_contradicts_a_number_that_was_set() {
    let workspace = Workspace::new();
    for text in recipes(&workspace) {
        let mut paths = Vec::new();
        numbers(&resolved(&text).json, "", &mut paths);
        for (path, is_list) in paths {
            for value in [1, 2, 10] {
                if let Err(error) = tried(&text, (&path, is_list), value, &workspace) {
                    assert!(names(&error, &path), "`{path}` = {value}: {error}");
                }
            }
        }
    }
}

#[test]
fn the_largest_numbers_together_have_a_plan_too() {
    let workspace = Workspace::new();
    let cases: [(&str, &[&str]); 3] = [
        (
            "pard",
            &[
                "objective.draft_tokens=1024",
                "objective.keep=1.0",
                "drafter.fresh.heads=4096",
            ],
        ),
        (
            "deer",
            &[
                "objective.cuts=1024",
                "objective.span=1024",
                "drafter.fresh.layers=1024",
            ],
        ),
        (
            "dflash",
            &[
                "objective.anchors=4194304",
                "drafter.block_size=1024",
                "drafter.layers=1024",
            ],
        ),
    ];
    for (kind, changes) in cases {
        let (name, needed) = (kind, needed(registry::find(kind).unwrap()));
        let text = format!(
            "recipe = {name:?}\nname = \"a\"\n[synthetic]\nvocab = 320\nd_model = 65536\nlayers = 1024\n\
             [data]\nmax_length = 4194304\n[train]\nsteps = 1073741824\ngradient_accumulation = 65536\n{needed}"
        );
        let changes: Vec<String> = changes.iter().map(|&change| change.to_owned()).collect();
        let recipe = recipe::read(&text, &changes).unwrap();
        let runs = workspace.path("runs");
        let asked = Asked {
            recipe: &recipe,
            runs: &runs,
            existing: Existing::Continue,
            device: "cpu",
            ranks: 1,
            only: &[],
            parts: None,
        };
        let text = plan::plan(&asked).unwrap().text;
        assert!(text.contains("memory, together"), "{text}");
    }
}

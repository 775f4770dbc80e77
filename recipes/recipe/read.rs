//! Reads a recipe file, with overrides from the command line.

use std::path::Path;

use anyhow::{Context as _, Error, Result, anyhow};
use spectrain_checkpoints::launch::quote;
use spectrain_checkpoints::printable;
use toml::de::DeTable;

use crate::errors::Misuse;
use crate::families::registry;
use crate::recipe::change::Change;
use crate::recipe::document::Document;
use crate::recipe::problem::Problem;
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::shipped::found;
use crate::recipe::wording::UNKNOWN_KEY;

/// What `recipe.toml` of an imported drafter says in the place of a recipe's name.
pub const IMPORTED_RECIPE: &str = "import";

/// Reads the recipe that a user names, a file or one that is shipped, and changes the keys that `overrides` (`train.steps=100`)
/// name.
pub fn read_file(path: &Path, overrides: &[String]) -> Result<ResolvedRecipe> {
    let (text, origin) = found(path)?;
    if let Some(instead) = other_file(path, &text) {
        return Err(Misuse(instead).into());
    }
    let wrong = || Misuse(format!("cannot read the recipe `{}`", path.display()));
    let mut recipe = read(&text, overrides).with_context(wrong)?;
    recipe.origin = Some(origin);
    Ok(recipe)
}

/// What is said of a file that is no TOML and, by the ending of its name, something else that users have: settings of another
/// trainer, or conversations.
fn other_file(path: &Path, text: &str) -> Option<String> {
    let ending = path.extension()?.to_str()?.to_lowercase();
    let is_settings = ["yaml", "yml", "json"].contains(&ending.as_str());
    if !(is_settings || ending == "jsonl") || DeTable::parse(text).is_ok() {
        return None;
    }
    let shown = printable(&path.display().to_string());
    Some(match is_settings {
        true => format!(
            "`{shown}` is no recipe, which is a TOML file; `spectrain init --from {}` makes one of another trainer's settings",
            quote(&shown)
        ),
        false => format!(
            "`{shown}` is no recipe, which is a TOML file: it holds conversations, and a recipe names it under `data.train`"
        ),
    })
}

/// Whether the recipe that a user names, or one of the overrides, sets one of these keys, such as `train.warmup_steps`.
pub fn is_set(path: &Path, overrides: &[String], keys: &[String]) -> Result<bool> {
    let (text, _) = found(path)?;
    let changes = Change::all(overrides, text.len() + 1)?;
    let document = Document::parse(&text, &changes)?;
    Ok(keys.iter().any(|key| document.sets(key)))
}

/// The tables that overrides make by themselves, without those of a recipe.
pub fn overridden(overrides: &[String]) -> Result<toml::Table> {
    let changes = Change::all(overrides, 1)?;
    Document::parse("", &changes)?.tables()
}

/// The table of a text in whose lines a parser's error is, by the line that it names.
fn table_of<'t>(text: &'t str, message: &str) -> Option<&'t str> {
    let (_, behind) = message.split_once("at line ")?;
    let (line, _) = behind.split_once(',')?;
    let lines: Vec<&str> = text.lines().take(line.parse().ok()?).collect();
    let headers = lines.iter().rev().map(|line| line.trim());
    let name = |line: &'t str| line.strip_prefix('[')?.split_once(']');
    headers
        .into_iter()
        .find_map(name)
        .map(|(table, _)| table.trim())
}

/// The error of a recipe of this kind about a key of `[drafter]` or `[objective]` that it does not have there, with where it is a key;
/// and where an override has made the recipe one of this kind, with what to do about the keys of the file.
fn of_other(kind: &str, (text, changes): (&str, &[Change]), error: Error) -> Error {
    let message = format!("{error:#}");
    let found = table_of(text, &message);
    let key = message.split_once(UNKNOWN_KEY).map(|(_, rest)| rest);
    let Some((key, _)) = key.and_then(|rest| rest.split_once('`')) else {
        return error;
    };
    let tables = registry::with_key(key);
    let is_given = |table: &str| message.contains(&format!("`--set {table}"));
    let is_in = |(table, _): &(&str, Vec<&str>)| found == Some(*table) || is_given(table);
    if !tables.iter().any(is_in) {
        return error;
    }
    let own = tables.iter().find(|(_, kinds)| kinds.contains(&kind));
    let place = match own.or_else(|| tables.iter().find(|(_, kinds)| !kinds.is_empty())) {
        None => return error,
        Some((table, _)) if own.is_some() => format!("`[{table}]`"),
        Some((table, kinds)) => {
            let kinds = kinds.join(", ");
            format!("`[{table}]` in recipes of other kinds ({kinds}), and this one is of `{kind}`")
        }
    };
    let is_kind_given = changes.iter().any(|change| change.key() == "recipe");
    let stays = found.filter(|table| is_kind_given && !is_given(table));
    let instead = stays.map_or(String::new(), |table| {
        format!(
            "; another `recipe` leaves the file's `[{table}]` as it is: delete the key from the file, and set it beside the kind that \
             has it, as in `--vary 'recipe=KIND; {table}.{key}=VALUE'`"
        )
    });
    anyhow!(
        "{}; `{key}` is a key of {place}{instead}",
        message.trim_end()
    )
}

/// Reads the text of a recipe file.
pub fn read(text: &str, overrides: &[String]) -> Result<ResolvedRecipe> {
    let changes = Change::all(overrides, text.len() + 1)?;
    let document = Document::parse(text, &changes)?;
    let known = registry::names();
    let name = document.recipe(&known)?;
    let Some(kind) = registry::find(name) else {
        let message = match name {
            IMPORTED_RECIPE => "a run that `spectrain import` made has no stages and nothing to train; its drafter can be exported, \
                         evaluated and decoded with"
                .to_owned(),
            _ => format!("unknown recipe `{name}`; {}", registry::known(name)),
        };
        return Err(document.locate(&Problem::new("recipe", message)));
    };
    let resolved =
        (kind.read)(&document).map_err(|error| of_other(kind.name, (text, &changes), error))?;
    resolved
        .check()
        .map_err(|problem| document.locate(&problem))?;
    Ok(resolved)
}

//! "Did you mean": what a wrong name is likeliest a slip of.

use std::io;
use std::path::{Component, Path, PathBuf};

use crate::printable::printable;

/// Letters of which one may be wrong.
const LETTERS: usize = 3;
/// Entries of a folder that are looked at.
const ENTRIES: usize = 10_000;

/// The one of `known` that `given` is likeliest a slip of: at most a third of its letters are other ones, are missing, too many or
/// change places, or else it is how exactly one of them begins.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_by(given, given, known)
}

/// The same where it is a third of the letters of `own` that may be wrong.
fn nearest_by<'a>(
    given: &str,
    own: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let given = given.to_lowercase();
    let length = given.chars().count();
    let most = (own.chars().count() / LETTERS).max(1);
    let known: Vec<&str> = known.into_iter().collect();
    let distances = known.iter().map(|name| {
        let distance = strsim::osa_distance(&given, &name.to_lowercase());
        (distance, *name)
    });
    // What has no letter of it is no slip of it.
    let slips = distances.filter(|(distance, _)| *distance <= most && *distance < length);
    if let Some((_, name)) = slips.min_by_key(|(distance, _)| *distance) {
        return Some(name);
    }
    let mut begun = known
        .iter()
        .filter(|name| length >= LETTERS && name.to_lowercase().starts_with(&given));
    match (begun.next(), begun.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    }
}

/// ``; did you mean `NAME`?`` with the nearest of `known`; empty where none is near.
pub fn did_you_mean<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(given, known).map_or_else(String::new, question)
}

/// The question behind a message about a file or folder that is not there, where one with a similar name is; else empty.
pub fn near_file(path: &Path) -> String {
    near_path(path).map_or_else(String::new, |near| question(&near.to_string_lossy()))
}

/// The same behind an error of the file system, where that is that nothing is there.
pub fn if_missing(path: &Path, cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::NotFound => near_file(path),
        _ => String::new(),
    }
}

fn question(name: &str) -> String {
    format!("; did you mean `{}`?", printable(name))
}

/// A file's name without its ending, such as `.jsonl`, which files have in common that are no slips of each other.
fn without_ending(name: &str) -> &str {
    let is_ending = |ending: &str| ending.chars().all(|c| c.is_ascii_alphanumeric());
    match name.rsplit_once('.') {
        Some((own, ending)) if !own.is_empty() && is_ending(ending) => own,
        _ => name,
    }
}

/// A path that is there and differs from one that is not in names of folders and files that are slips.
fn near_path(path: &Path) -> Option<PathBuf> {
    let mut found = PathBuf::new();
    let mut is_other = false;
    for part in path.components() {
        let next = found.join(part);
        if next.symlink_metadata().is_ok() {
            found = next;
            continue;
        }
        let Component::Normal(name) = part else {
            return None;
        };
        let folder = match found.as_os_str().is_empty() {
            true => Path::new("."),
            false => &found,
        };
        let entries = folder.read_dir().ok()?.take(ENTRIES).flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        let name = name.to_str()?;
        let names = names.iter().map(String::as_str);
        found.push(nearest_by(name, without_ending(name), names)?);
        is_other = true;
    }
    is_other.then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_known_by_few_other_letters_and_a_beginning_where_it_is_of_one_name() {
        let known = ["learning_rate", "steps", "seed", "captured_layers", "to"];
        for (given, expected) in [
            ("stpes", Some("steps")),
            ("Steps", Some("steps")),
            ("sead", Some("seed")),
            ("lerning_rat", Some("learning_rate")),
            ("too", Some("to")),
            ("captured", Some("captured_layers")),
            ("s", None),
            ("x", None),
            ("warmup", None),
            ("", None),
        ] {
            assert_eq!(nearest(given, known), expected, "{given}");
        }
        assert_eq!(nearest("fres", ["fresh", "fresher"]), Some("fresh"));
        assert_eq!(nearest("prefix", ["prefix_layer", "prefix_rows"]), None);
        assert_eq!(did_you_mean("stpes", known), "; did you mean `steps`?");
        assert_eq!(did_you_mean("warmup", known), "");
    }

    #[test]
    fn a_missing_file_is_asked_about_where_a_similar_path_is_there() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        std::fs::create_dir_all(at("data/chats")).unwrap();
        std::fs::write(at("data/chats/train.jsonl"), "").unwrap();
        let expected = format!(
            "; did you mean `{}`?",
            at("data/chats/train.jsonl").display()
        );
        for wrong in [
            "data/chats/trian.jsonl",
            "data/chat/train.json",
            "dta/chats/train.jsonl",
        ] {
            assert_eq!(near_file(&at(wrong)), expected, "{wrong}");
        }
        std::fs::write(at("data/bom.jsonl"), "").unwrap();
        for nowhere in [
            "data/chats/eval.jsonl",
            "data/chats/train.jsonl",
            "data/nope.jsonl",
            "x/../y",
        ] {
            assert_eq!(near_file(&at(nowhere)), "", "{nowhere}");
        }
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(if_missing(&at("dta/chats/train.jsonl"), &denied), "");
    }
}

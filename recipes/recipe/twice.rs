//! The parser's error at a key or table that a text has twice, with the line in which it stands first.

use toml::de::{DeTable, Error};

/// What the parser says of a key that is there already.
const TWICE: &str = "duplicate key";

/// The parser's error, with the line of the first of two equal keys.
pub(super) fn told(text: &str, error: &Error) -> String {
    let message = error.to_string();
    let message = message.trim_end();
    match first_line(text, error) {
        Some(line) => format!("{message}: line {line} has it already"),
        None => message.to_owned(),
    }
}

/// The line of the first of two equal keys; none where they are in one line.
fn first_line(text: &str, error: &Error) -> Option<usize> {
    let at = error.span().filter(|_| error.message() == TWICE)?.start;
    let start = text.get(..at)?.rfind('\n').map_or(0, |end| end + 1);
    let (before, rest) = text.split_at(start);
    let line = rest.lines().next()?;
    // Its path shows where it stands alone, in the table that it is of.
    let is_table = |line: &&str| line.trim_start().starts_with('[');
    let table = before.lines().rev().find(is_table);
    let table = table.filter(|_| !is_table(&line)).unwrap_or_default();
    let alone = format!("{table}\n{line}");
    let at = table.len() + 1 + at - start;
    let path = path_to(DeTable::parse(&alone).ok()?.get_ref(), at)?;
    let first = place_of(DeTable::parse(before).ok()?.get_ref(), &path)?;
    Some(before[..first].matches('\n').count() + 1)
}

/// The keys that lead to the one at this place, in tables each of which has one key.
fn path_to(table: &DeTable<'_>, place: usize) -> Option<Vec<String>> {
    let (key, value) = table.iter().next()?;
    let mut path = vec![key.get_ref().to_string()];
    if key.span().start != place {
        path.extend(path_to(value.get_ref().as_table()?, place)?);
    }
    Some(path)
}

/// Where the last key of a path stands.
fn place_of(table: &DeTable<'_>, path: &[String]) -> Option<usize> {
    let (first, rest) = path.split_first()?;
    let (key, value) = table.iter().find(|(key, _)| key.get_ref() == first)?;
    match rest {
        [] => Some(key.span().start),
        rest => place_of(value.get_ref().as_table()?, rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> String {
        told(text, &DeTable::parse(text).unwrap_err())
    }

    #[test]
    fn the_first_of_two_equal_tables_or_keys_is_named_by_its_line() {
        for (text, first) in [
            ("a = 1\n\n[train]\nb = 2\n[data]\n[train]\nc = 3\n", 3),
            ("[a.b]\n[c]\n[a.b]\n", 1),
            ("train.b = 2\n[c]\n[train]\n", 1),
            ("[c]\nx = [\n1]\n[train]\nb = 2\na = 1\nb = 3\n", 5),
            ("[train]\nb = 2\n[d]\nb = 1\n\"b\" = 3\n", 4),
            ("a = 1\nb = { a = 2 }\na = { a = 2 }\n", 1),
            ("[b]\nb = 1\nb = 2\n", 2),
        ] {
            let told = of(text);
            let words = format!("duplicate key: line {first} has it already");
            assert!(told.contains("TOML parse error"), "{told}");
            assert!(told.ends_with(&words), "{text}: {told}");
        }
    }

    #[test]
    fn of_other_errors_and_of_one_line_nothing_more_is_said() {
        for text in ["a = \n", "a = { b = 1, b = 2 }\n", "[a\n"] {
            assert!(!of(text).contains("already"), "{}", of(text));
        }
    }
}

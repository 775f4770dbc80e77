//! Text for a terminal of 80 columns.

use std::fmt::Write as _;

use crate::printable::printable;

/// Columns of a terminal.
pub const COLUMNS: usize = 80;

/// Names with what is said of each beside them, in lines of at most 80 columns.
pub fn listed<N: AsRef<str>, A: AsRef<str>>(rows: impl IntoIterator<Item = (N, A)>) -> String {
    let rows: Vec<(N, A)> = rows.into_iter().collect();
    let widths = rows.iter().map(|(name, _)| name.as_ref().chars().count());
    let width = widths.max().unwrap_or(0) + 2;
    let lines = rows
        .iter()
        .map(|(name, about)| beside(name.as_ref(), width, about.as_ref()));
    lines.collect()
}

/// A name with what is said of it behind so many columns, in lines of at most 80.
pub fn beside(name: &str, width: usize, about: &str) -> String {
    let indent = " ".repeat(width);
    let about = wrapped(&format!("{indent}{about}"), &indent);
    about.replacen(&indent, &format!("{name:width$}"), 1)
}

/// Text in lines of at most 80 columns, all but the first behind `indent`.
pub fn wrapped(text: &str, indent: &str) -> String {
    let text = printable(text);
    let mut lines = String::new();
    // Spaces at the start of a name stay.
    let start = text.len() - text.trim_start().len();
    let mut line = text[..start].to_owned();
    let mut is_empty = true;
    for word in text.split_whitespace().flat_map(pieces) {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            _ = writeln!(lines, "{line}");
            line = indent.to_owned();
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line += &word;
        is_empty = false;
    }
    lines + &line + "\n"
}

/// A word, or what fits into a line of one that does not.
fn pieces(word: &str) -> Vec<String> {
    let letters: Vec<char> = word.chars().collect();
    let pieces = letters.chunks(COLUMNS - 2);
    pieces.map(String::from_iter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_name_stays_beside_it() {
        let long = "word ".repeat(30);
        let text = listed([("a", "short"), ("longer", long.trim())]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "a       short");
        assert!(lines[1].starts_with("longer  word word"), "{text}");
        assert!(lines[2].starts_with("        word"), "{text}");
        assert!(lines.iter().all(|line| line.len() <= COLUMNS), "{text}");
        assert_eq!(text.matches("word").count(), 30);
    }
}

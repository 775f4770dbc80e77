//! Text that was read from a file, as it may be printed: what would steer a terminal is escaped.

/// Characters that no name needs, though they are not control characters: they turn the direction of what follows.
const STEERING: [std::ops::RangeInclusive<char>; 3] = [
    '\u{200e}'..='\u{200f}',
    '\u{202a}'..='\u{202e}',
    '\u{2066}'..='\u{2069}',
];

/// The text with each character that steers a terminal in the place of itself, as `\n` or `\u{1b}`.
pub fn shown(text: &str) -> String {
    let steers = |character: char| {
        character.is_control() || STEERING.iter().any(|range| range.contains(&character))
    };
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if steers(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// The same of several lines, which stay lines.
pub fn shown_lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(shown_line).collect();
    lines.join("\n")
}

fn shown_line(line: &str) -> String {
    let parts: Vec<String> = line.split('\t').map(shown).collect();
    parts.join("\t")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_escaped_and_nothing_else() {
        assert_eq!(
            shown("a\u{1b}[31m\nb\u{9b}c\u{202e}d\u{7f}"),
            r"a\u{1b}[31m\nb\u{9b}c\u{202e}d\u{7f}"
        );
        assert_eq!(
            shown("größe `x` \\ \"y\" \u{1f600}"),
            "größe `x` \\ \"y\" \u{1f600}"
        );
        assert_eq!(shown_lines("a\n\tb\u{7}\n"), "a\n\tb\\u{7}\n");
    }
}

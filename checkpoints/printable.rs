//! Text of others, made safe to print.

/// The text with control characters and marks that turn the direction of writing escaped, as `\n` or `\u{1b}`: neither can
/// move the cursor, recolour a terminal or make one name look like another.
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() || turns(character) {
            safe.extend(character.escape_default());
        } else {
            safe.push(character);
        }
    }
    safe
}

/// The same of several lines, which stay lines, and tabs, which stay tabs.
pub fn printable_lines(text: &str) -> String {
    text.split_inclusive(['\n', '\t'])
        .map(|part| match part.strip_suffix(['\n', '\t']) {
            Some(line) => printable(line) + &part[line.len()..],
            None => printable(part),
        })
        .collect()
}

/// Marks without a shape of their own that change how what follows them is laid out.
fn turns(character: char) -> bool {
    matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_the_cursor_or_turns_the_text_is_escaped_and_the_rest_stays() {
        assert_eq!(printable("a\u{1b}[2J\r\nb"), r"a\u{1b}[2J\r\nb");
        assert_eq!(
            printable("\u{9b}0m\u{7f}\u{202e}"),
            r"\u{9b}0m\u{7f}\u{202e}"
        );
        assert_eq!(
            printable("Ünïcode/模型 `x` \\ \"y\" \u{1f600}"),
            "Ünïcode/模型 `x` \\ \"y\" \u{1f600}"
        );
        assert_eq!(printable_lines("a\n\tb\u{7}\n"), "a\n\tb\\u{7}\n");
        assert_eq!(printable_lines("τ 2.5\nα 0.7"), "τ 2.5\nα 0.7");
    }
}

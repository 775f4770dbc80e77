//! Text of others, made safe to print.

/// The text with control characters and marks that turn the direction of writing escaped, as `\u{1b}`: neither can
/// move the cursor, recolour a terminal or make one name look like another.
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() || turns(character) {
            safe.extend(character.escape_unicode());
        } else {
            safe.push(character);
        }
    }
    safe
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
        assert_eq!(printable("a\u{1b}[2J\r\nb"), r"a\u{1b}[2J\u{d}\u{a}b");
        assert_eq!(
            printable("\u{9b}0m\u{7f}\u{202e}"),
            r"\u{9b}0m\u{7f}\u{202e}"
        );
        assert_eq!(printable("Ünïcode/模型 `x`"), "Ünïcode/模型 `x`");
    }
}

//! `{% generation %}` blocks of chat templates: which part of a rendering the assistant wrote.
//!
//! The tag belongs to `transformers`, not to Jinja. It is rewritten, before the template is compiled, into tags
//! that print a private-use character before and after the block; after rendering the characters are taken
//! out again and leave byte ranges behind. Which characters is decided for each rendering, from those that
//! occur nowhere in its input, so no text can be mistaken for a mark.

use std::ops::Range;

use super::lexer::{Piece, pieces};
use crate::error::Result;

/// Template variable that holds the mark before a block.
pub(crate) const START: &str = "generation_start__";
/// Template variable that holds the mark after a block.
pub(crate) const END: &str = "generation_end__";

/// The Unicode private-use area, from which the marks come.
const PRIVATE_USE: Range<u32> = 0xE000..0xF900;

/// A template source with its generation tags replaced, and whether there were any.
///
/// Whitespace control and `trim_blocks` / `lstrip_blocks` act at the outer edges of a replacement as they did
/// on the tag, because it begins and ends with a block tag. A block has its own scope, as in `transformers`.
pub(crate) fn rewrite(source: &str) -> Result<(String, bool)> {
    let mut output = String::with_capacity(source.len() + 256);
    let mut found = false;
    for piece in pieces(source)? {
        let tag = match piece {
            Piece::Text(text) | Piece::Comment(text) => {
                output.push_str(text);
                continue;
            }
            Piece::Tag(tag) => tag,
        };
        let (left, right) = (tag.left, tag.right);
        match tag.keyword() {
            Some("generation") => {
                found = true;
                output.push_str(&format!(
                    "{{%{left} with %}}{{{{ {START} }}}}{{% set {END} = {END} {right}%}}"
                ));
            }
            Some("endgeneration") => {
                output.push_str(&format!(
                    "{{%{left} set {END} = {END} %}}{{{{ {END} }}}}{{% endwith {right}%}}"
                ));
            }
            _ => output.push_str(&source[tag.range]),
        }
    }
    Ok((output, found))
}

/// Two characters that do not occur in any of the texts; none where all are taken.
pub(crate) fn marks<'a>(texts: impl IntoIterator<Item = &'a str>) -> Option<(char, char)> {
    let mut taken: Vec<char> = texts
        .into_iter()
        .flat_map(str::chars)
        .filter(|&character| PRIVATE_USE.contains(&u32::from(character)))
        .collect();
    taken.sort_unstable();
    let mut free = PRIVATE_USE
        .filter_map(char::from_u32)
        .filter(|character| taken.binary_search(character).is_err());
    free.next().zip(free.next())
}

/// A rendering without its marks, and the byte ranges that stood between them; none if the marks do not pair up.
pub(crate) fn unmark(
    marked: &str,
    (start, end): (char, char),
) -> Option<(String, Vec<Range<usize>>)> {
    let mut text = String::with_capacity(marked.len());
    let mut spans = Vec::new();
    let mut open = None;
    for character in marked.chars() {
        if character == start {
            if open.replace(text.len()).is_some() {
                return None;
            }
        } else if character == end {
            spans.push(open.take()?..text.len());
        } else {
            text.push(character);
        }
    }
    open.is_none().then_some((text, spans))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_tags_are_rewritten() {
        let untouched = "{# {% generation %} #}{{ '{% generation %}' }}{% raw %}{% generation %}{%- endraw -%}{ %}\
                         {% set x = \"%}{% generation %}\" %}{% if a %}{";
        assert_eq!(rewrite(untouched).unwrap(), (untouched.to_owned(), false));
        let (written, found) = rewrite("a{%- generation -%} b {%endgeneration+%}c").unwrap();
        assert!(found);
        assert_eq!(
            written,
            "a{%- with %}{{ generation_start__ }}{% set generation_end__ = generation_end__ -%} b \
             {% set generation_end__ = generation_end__ %}{{ generation_end__ }}{% endwith +%}c"
        );
    }

    #[test]
    fn marks_avoid_what_the_texts_contain() {
        assert_eq!(marks(["plain"]), Some(('\u{e000}', '\u{e001}')));
        assert_eq!(
            marks(["\u{e000}", "x\u{e002}"]),
            Some(('\u{e001}', '\u{e003}'))
        );
        let all: String = PRIVATE_USE.filter_map(char::from_u32).collect();
        assert_eq!(marks([all.as_str()]), None);
    }

    #[test]
    fn spans_are_bytes_of_the_text_without_marks() {
        let (text, spans) = unmark("é<a>b<cc>", ('<', '>')).unwrap();
        assert_eq!((text.as_str(), spans), ("éabcc", vec![2..3, 4..6]));
        assert_eq!(unmark("<<a>>", ('<', '>')), None);
        assert_eq!(unmark("a>", ('<', '>')), None);
        assert_eq!(unmark("<a", ('<', '>')), None);
    }
}

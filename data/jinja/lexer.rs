//! The source of a template as pieces of text and tags, and the tags as tokens: cut where minijinja cuts them.

use std::ops::Range;

use crate::error::{Error, Result};

/// What stands in one place of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece<'s> {
    /// Text that is printed, between tags or in a raw block, with the tags around the latter.
    Text(&'s str),
    /// A comment.
    Comment(&'s str),
    /// `{{ … }}` or `{% … %}`.
    Tag(Tag<'s>),
}

/// What a tag is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TagKind {
    /// `{{ … }}`: it prints.
    Print,
    /// `{% … %}`.
    Statement,
}

/// A tag, from its opening to its closing mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tag<'s> {
    pub(crate) kind: TagKind,
    /// Its bytes in the source.
    pub(crate) range: Range<usize>,
    /// Whitespace control at its opening mark: `-`, `+` or nothing.
    pub(crate) left: &'s str,
    /// The same at its closing mark.
    pub(crate) right: &'s str,
    pub(crate) tokens: Vec<Token<'s>>,
}

impl<'s> Tag<'s> {
    /// The first word of a statement.
    pub(crate) fn keyword(&self) -> Option<&'s str> {
        let first = self.tokens.first()?;
        (self.kind == TagKind::Statement && first.kind == TokenKind::Name).then_some(first.text)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Name,
    Number,
    /// A text between quotes.
    Quoted,
    Symbol,
}

/// A word, number, quoted text or symbol inside of a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<'s> {
    pub(crate) kind: TokenKind,
    pub(crate) text: &'s str,
    /// Where it starts in the source.
    pub(crate) start: usize,
}

impl Token<'_> {
    /// Where it ends in the source.
    pub(crate) fn end(&self) -> usize {
        self.start + self.text.len()
    }

    /// Whether it is this symbol.
    pub(crate) fn is(&self, symbol: &str) -> bool {
        self.kind == TokenKind::Symbol && self.text == symbol
    }

    /// Whether it is this word.
    pub(crate) fn is_name(&self, name: &str) -> bool {
        self.kind == TokenKind::Name && self.text == name
    }
}

/// Splits a template; an unclosed tag, comment or quoted text is an error with its line.
pub(crate) fn pieces(source: &str) -> Result<Vec<Piece<'_>>> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while let Some(found) = next_mark(source, at) {
        if found > at {
            pieces.push(Piece::Text(&source[at..found]));
        }
        at = match &source[found..found + 2] {
            "{#" => {
                let end = source[found + 2..].find("#}");
                let end = end.ok_or_else(|| unclosed(source, found, "comment"))?;
                let end = found + 2 + end + 2;
                pieces.push(Piece::Comment(&source[found..end]));
                end
            }
            "{%" if raw_tag(&source[found + 2..]).is_some() => {
                let end = end_of_raw(source, found)
                    .ok_or_else(|| unclosed(source, found, "raw block"))?;
                pieces.push(Piece::Text(&source[found..end]));
                end
            }
            open => {
                let kind = match open {
                    "{{" => TagKind::Print,
                    _ => TagKind::Statement,
                };
                let tag = tag(source, found, kind)?;
                let end = tag.range.end;
                pieces.push(Piece::Tag(tag));
                end
            }
        };
    }
    if at < source.len() {
        pieces.push(Piece::Text(&source[at..]));
    }
    Ok(pieces)
}

/// The line, from 1, on which a byte stands.
pub(crate) fn line_of(source: &str, at: usize) -> usize {
    let before = &source.as_bytes()[..at.min(source.len())];
    before.iter().filter(|&&byte| byte == b'\n').count() + 1
}

fn next_mark(source: &str, from: usize) -> Option<usize> {
    let bytes = source.as_bytes();
    let mut at = from;
    loop {
        at += source[at..].find('{')?;
        if matches!(bytes.get(at + 1), Some(b'{' | b'%' | b'#')) {
            return Some(at);
        }
        at += 1;
    }
}

fn unclosed(source: &str, at: usize, what: &str) -> Error {
    syntax(
        source,
        at,
        format!("the {what} that begins here has no end"),
    )
}

/// An error with the line of a byte.
pub(crate) fn syntax(source: &str, at: usize, message: String) -> Error {
    Error::TemplateSyntax {
        line: line_of(source, at),
        message,
    }
}

/// Length of ` raw %}` after an opening mark.
fn raw_tag(after: &str) -> Option<usize> {
    basic_tag(after, "raw")
}

/// Length of a tag of this one word after its opening mark, closing mark included.
fn basic_tag(after: &str, name: &str) -> Option<usize> {
    let space = |c: char| c.is_ascii_whitespace();
    let rest = after.strip_prefix(['-', '+']).unwrap_or(after);
    let rest = rest.trim_start_matches(space).strip_prefix(name)?;
    let rest = rest.trim_start_matches(space);
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest);
    Some(after.len() - rest.strip_prefix("%}")?.len())
}

/// Where the raw block that begins at `start` ends, its last tag included.
fn end_of_raw(source: &str, start: usize) -> Option<usize> {
    let mut at = start + 2 + raw_tag(&source[start + 2..])?;
    loop {
        at += source[at..].find("{%")? + 2;
        if let Some(length) = basic_tag(&source[at..], "endraw") {
            return Some(at + length);
        }
    }
}

/// The tag at `start`. Its closing mark counts only outside of brackets.
fn tag(source: &str, start: usize, kind: TagKind) -> Result<Tag<'_>> {
    let close = match kind {
        TagKind::Print => "}}",
        TagKind::Statement => "%}",
    };
    let sign = |at: usize| match source.as_bytes().get(at) {
        Some(b'-' | b'+') => &source[at..at + 1],
        _ => "",
    };
    let left = sign(start + 2);
    let mut at = start + 2 + left.len();
    let mut tokens: Vec<Token> = Vec::new();
    let mut open = 0_i64;
    loop {
        let rest = source[at..].trim_start_matches(|c: char| c.is_ascii_whitespace());
        at = source.len() - rest.len();
        if rest.is_empty() {
            return Err(unclosed(source, start, "tag"));
        }
        if open == 0 {
            let right = sign(at);
            if let Some(after) = rest[right.len()..].strip_prefix(close) {
                return Ok(Tag {
                    kind,
                    range: start..source.len() - after.len(),
                    left,
                    right,
                    tokens,
                });
            }
        }
        let token = token(source, at)?;
        if token.kind == TokenKind::Symbol {
            match token.text {
                "(" | "[" | "{" => open += 1,
                ")" | "]" | "}" => open -= 1,
                _ => {}
            }
        }
        at = token.end();
        tokens.push(token);
    }
}

const SYMBOLS: [&str; 6] = ["//", "**", "==", "!=", ">=", "<="];

fn token(source: &str, start: usize) -> Result<Token<'_>> {
    let rest = &source[start..];
    let of = |kind, length: usize| Token {
        kind,
        text: &rest[..length],
        start,
    };
    if SYMBOLS.iter().any(|symbol| rest.starts_with(symbol)) {
        return Ok(of(TokenKind::Symbol, 2));
    }
    let first = rest.as_bytes()[0];
    match first {
        b'\'' | b'"' => match quoted(rest, first) {
            Some(length) => Ok(of(TokenKind::Quoted, length)),
            None => Err(unclosed(source, start, "text")),
        },
        b'0'..=b'9' => Ok(of(TokenKind::Number, number(rest.as_bytes()))),
        b'_' | b'a'..=b'z' | b'A'..=b'Z' => Ok(of(TokenKind::Name, name(rest.as_bytes()))),
        _ if b"+-*/%.,:~|=><()[]{}".contains(&first) => Ok(of(TokenKind::Symbol, 1)),
        _ => {
            let found = rest.chars().next().unwrap_or_default();
            Err(syntax(source, start, format!("unexpected `{found}`")))
        }
    }
}

/// Length of the quoted text at the start, quotes included.
fn quoted(text: &str, quote: u8) -> Option<usize> {
    let mut escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let ends = !escaped && byte == quote;
        escaped = !escaped && byte == b'\\';
        ends
    })?;
    Some(end + 2)
}

fn name(bytes: &[u8]) -> usize {
    let part = |byte: &&u8| **byte == b'_' || byte.is_ascii_alphanumeric();
    bytes.iter().take_while(part).count()
}

/// Length of the number at the start: a point belongs to it unless a name follows, which is an attribute.
fn number(bytes: &[u8]) -> usize {
    let mut length = name(bytes);
    let decimal = !matches!(bytes.get(1), Some(b'x' | b'X' | b'o' | b'O' | b'b' | b'B'));
    let is_name = |byte: Option<&u8>| byte.is_some_and(|b| *b == b'_' || b.is_ascii_alphabetic());
    if decimal && bytes.get(length) == Some(&b'.') && !is_name(bytes.get(length + 1)) {
        length += 1 + name(&bytes[length + 1..]);
    }
    let exponent = decimal && matches!(bytes[length - 1], b'e' | b'E');
    if exponent && matches!(bytes.get(length), Some(b'+' | b'-')) {
        length += 1 + name(&bytes[length + 1..]);
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        let mut words = Vec::new();
        for piece in pieces(source).unwrap() {
            match piece {
                Piece::Text(text) => words.push(format!("text {text}")),
                Piece::Comment(text) => words.push(format!("comment {text}")),
                Piece::Tag(tag) => {
                    let tokens: Vec<&str> = tag.tokens.iter().map(|token| token.text).collect();
                    words.push(format!("{}{}{}", tag.left, tokens.join(" "), tag.right));
                }
            }
        }
        words
    }

    #[test]
    fn a_template_is_cut_into_text_and_tokens() {
        assert_eq!(
            words("a {b {{- x.y[1:]~'}}' +}}{# {{ #}{%if not a//2!=1.5e-3%}\nc"),
            [
                "text a {b ",
                "-x . y [ 1 : ] ~ '}}'+",
                "comment {# {{ #}",
                "if not a // 2 != 1.5e-3",
                "text \nc"
            ]
        );
        assert_eq!(words("{{ {'a': {'b': 1}} }}"), ["{ 'a' : { 'b' : 1 } }"]);
        assert_eq!(
            words(r"{{ 'it\'s' 0x1F x.0.y }}"),
            [r"'it\'s' 0x1F x . 0 . y"]
        );
        assert_eq!(
            words("{% raw -%}{{ x }}{%- endraw %}{% x %}"),
            ["text {% raw -%}{{ x }}{%- endraw %}", "x"]
        );
    }

    #[test]
    fn what_has_no_end_is_named_by_its_line() {
        for source in [
            "\n{{ x",
            "\n{% if ')' ",
            "\n{# x",
            "\n{{ 'x }}",
            "\n{% raw %}{{",
        ] {
            let message = pieces(source).unwrap_err().to_string();
            assert!(
                message.starts_with("chat template line 2: ") && message.ends_with("has no end"),
                "{source}: {message}"
            );
        }
        let message = pieces("{{ a ? b }}").unwrap_err().to_string();
        assert!(message.ends_with("unexpected `?`"), "{message}");
    }
}

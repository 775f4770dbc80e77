//! The names that a template looks up.

use std::collections::BTreeSet;

use super::lexer::{Piece, Tag, TokenKind, pieces};
use crate::error::Result;

/// The names that a template may look up, those among them that it sets itself. A name that is not among them it does not read:
/// there is no other way to a variable.
///
/// # Errors
/// A tag, a comment or a text in it has no end.
pub(crate) fn looked_up(source: &str) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for piece in pieces(source)? {
        if let Piece::Tag(tag) = piece {
            names.extend(of_tag(&tag));
        }
    }
    Ok(names)
}

/// The words of a tag that can be variables.
fn of_tag(tag: &Tag<'_>) -> Vec<String> {
    let keywords = usize::from(tag.keyword().is_some());
    let names = tag.tokens.iter().enumerate().skip(keywords);
    let names = names.filter(|(at, token)| token.kind == TokenKind::Name && is_read(tag, *at));
    names.map(|(_, token)| token.text.to_owned()).collect()
}

/// Whether the word at a place is no attribute, no filter, no test and nothing that a value is given to.
fn is_read(tag: &Tag<'_>, at: usize) -> bool {
    let before = |count: usize| at.checked_sub(count).and_then(|at| tag.tokens.get(at));
    let is_part = before(1).is_some_and(|token| token.is(".") || token.is("|"));
    let is_test = |count: usize| before(count).is_some_and(|token| token.is_name("is"));
    let is_negated = before(1).is_some_and(|token| token.is_name("not")) && is_test(2);
    let is_given = tag.tokens.get(at + 1).is_some_and(|token| token.is("="));
    !is_part && !is_test(1) && !is_negated && !is_given
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_up_where_its_value_is_taken() {
        let reads = |source: &str| looked_up(source).unwrap().contains("thinking");
        for source in [
            "{{ thinking }}",
            "{% if thinking is not defined %}{% endif %}",
            "{% set thinking = thinking if thinking is defined else true %}",
            "{% set ns = namespace(on=thinking) %}",
            "{% macro f(x) %}{{ x }}{{ thinking }}{% endmacro %}{{ f(1) }}",
            "{{ messages[thinking] }}{% for m in thinking %}{% endfor %}",
            "{% if a == thinking and not b %}{% endif %}",
        ] {
            assert!(reads(source), "{source}");
        }
        for source in [
            "thinking {# {{ thinking }} #}{% raw %}{{ thinking }}{% endraw %}",
            "{{ m.thinking }}{{ m['thinking'] }}",
            "{% set thinking = true %}",
            "{{ f(thinking=1) }}{{ m | thinking }}{% if m is not thinking %}{% endif %}",
        ] {
            assert!(!reads(source), "{source}");
        }
    }
}

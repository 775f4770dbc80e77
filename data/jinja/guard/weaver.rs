//! Goes through a tag's tokens and notes what is put between them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::super::accounts::MODULO;
use super::super::lexer::{Token, syntax};
use crate::error::{Error, Result};

/// What is put into the source and where.
#[derive(Default)]
pub(super) struct Edits {
    /// Put before what stands there.
    pub(super) opened: BTreeMap<usize, String>,
    /// Put after what ends there.
    pub(super) closed: BTreeMap<usize, String>,
    /// Put in the place of one byte.
    pub(super) replaced: BTreeMap<usize, &'static str>,
}

impl Edits {
    /// Wraps a part that lies in no other one wrapped before.
    pub(super) fn wrap(&mut self, function: &str, start: usize, end: usize) {
        self.opened
            .entry(start)
            .or_default()
            .insert_str(0, &format!("{function}("));
        self.closed.entry(end).or_default().push(')');
    }

    /// Makes a call of the operands in `range` and the `%` at `sign` between them.
    pub(super) fn modulo(&mut self, sign: usize, range: Range<usize>, is_tuple: bool) {
        let opened = self.opened.entry(range.start).or_default();
        opened.insert_str(0, &format!("{MODULO}("));
        self.replaced.insert(sign, ",");
        let close = if is_tuple { ", true)" } else { ")" };
        self.closed.entry(range.end).or_default().push_str(close);
    }

    pub(super) fn apply(self, source: &str) -> String {
        let mut output = String::with_capacity(source.len() * 2);
        let mut at = 0;
        let places = self.opened.keys().chain(self.closed.keys());
        let places: BTreeSet<usize> = places.chain(self.replaced.keys()).copied().collect();
        for place in places {
            output.push_str(&source[at..place]);
            at = place;
            for texts in [&self.closed, &self.opened] {
                output.push_str(texts.get(&place).map_or("", String::as_str));
            }
            if let Some(text) = self.replaced.get(&place) {
                output.push_str(text);
                at += 1;
            }
        }
        output.push_str(&source[at..]);
        output
    }
}

/// Where an expression ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// A bracket, comma, colon or the end of the tag.
    End,
    /// Also at `if`, as in `for x in y if z`.
    If,
}

/// Goes through the tokens of one tag.
pub(super) struct Weaver<'w, 's> {
    pub(super) source: &'s str,
    pub(super) tokens: &'w [Token<'s>],
    pub(super) at: usize,
    pub(super) open: usize,
    pub(super) edits: &'w mut Edits,
}

impl<'s> Weaver<'_, 's> {
    pub(super) fn peek(&self) -> Option<Token<'s>> {
        self.tokens.get(self.at).copied()
    }

    pub(super) fn next(&mut self) -> Option<Token<'s>> {
        let token = self.peek()?;
        self.at += 1;
        Some(token)
    }

    pub(super) fn take(&mut self, symbol: &str) -> bool {
        let found = self.peek().is_some_and(|token| token.is(symbol));
        self.at += usize::from(found);
        found
    }

    pub(super) fn take_name(&mut self, name: &str) -> bool {
        let found = self.peek().is_some_and(|token| token.is_name(name));
        self.at += usize::from(found);
        found
    }

    /// Where the next token starts.
    pub(super) fn start(&self) -> usize {
        self.peek().map_or(self.source.len(), |token| token.start)
    }

    /// Where the last token ended.
    pub(super) fn end(&self) -> usize {
        self.at
            .checked_sub(1)
            .map_or(0, |last| self.tokens[last].end())
    }

    pub(super) fn unexpected(&self) -> Error {
        match self.peek() {
            Some(token) => {
                let message = format!("unexpected `{}`", token.text);
                syntax(self.source, token.start, message)
            }
            None => syntax(self.source, self.end(), "the tag ends too early".to_owned()),
        }
    }

    pub(super) fn expect(&mut self, symbol: &str) -> Result<()> {
        if self.take(symbol) {
            Ok(())
        } else {
            Err(self.unexpected())
        }
    }
}

//! Expressions of templates, parsed as minijinja parses them, with accounts around what may grow.

use super::super::accounts::{COUNTED, KEPT, SLICE, TEXT};
use super::super::lexer::{Token, TokenKind, syntax};
use super::weaver::{Until, Weaver};
use crate::error::Result;

/// Brackets inside of brackets, at most.
const DEEPEST_BRACKETS: usize = 30;

/// Operators by how tight they bind, the loosest first.
const OPERATORS: [&[&str]; 4] = [&["+", "-"], &["~"], &["*", "/", "//", "%"], &["**"]];
/// What stands between operands and is of no account: comparing and choosing makes nothing.
const SEPARATORS: [&str; 6] = ["==", "!=", "<", ">", "<=", ">="];
pub(super) const SEPARATING_WORDS: [&str; 6] = ["or", "and", "not", "in", "if", "else"];

/// Whether tokens are several values in brackets, and nothing around these.
fn is_tuple(tokens: &[Token]) -> bool {
    let mut depth = 0_usize;
    let mut has_comma = false;
    for (at, token) in tokens.iter().enumerate() {
        let is_one_of = |symbols: [&str; 3]| symbols.iter().any(|symbol| token.is(symbol));
        if is_one_of(["(", "[", "{"]) {
            depth += 1;
        } else if is_one_of([")", "]", "}"]) {
            depth = depth.saturating_sub(1);
        }
        if depth == 0 && at + 1 < tokens.len() {
            return false;
        }
        has_comma |= depth == 1 && token.is(",");
    }
    has_comma && tokens.first().is_some_and(|token| token.is("("))
}

impl Weaver<'_, '_> {
    /// A filter's name and arguments, and the filters behind it.
    pub(super) fn filter(&mut self) -> Result<()> {
        loop {
            self.dotted_name()?;
            if self.take("(") {
                self.arguments()?;
            }
            if !self.take("|") {
                return Ok(());
            }
        }
    }

    fn dotted_name(&mut self) -> Result<()> {
        loop {
            match self.next() {
                Some(token) if token.kind == TokenKind::Name => {}
                _ => {
                    self.at = self.at.saturating_sub(1);
                    return Err(self.unexpected());
                }
            }
            if !self.take(".") {
                return Ok(());
            }
        }
    }

    /// Operands with what separates them. What is accepted beyond the grammar, minijinja refuses afterwards.
    pub(super) fn expression(&mut self, until: Until) -> Result<()> {
        let mut any = false;
        while let Some(token) = self.peek() {
            match token.kind {
                TokenKind::Symbol if SEPARATORS.contains(&token.text) => self.at += 1,
                TokenKind::Name if until == Until::If && token.text == "if" => break,
                TokenKind::Name if SEPARATING_WORDS.contains(&token.text) => self.at += 1,
                TokenKind::Symbol if [")", "]", "}", ",", ":", "="].contains(&token.text) => break,
                _ => _ = self.chain(0)?,
            }
            any = true;
        }
        if any { Ok(()) } else { Err(self.unexpected()) }
    }

    /// A chain of operators that bind equally tight; whether it was wrapped.
    fn chain(&mut self, level: usize) -> Result<bool> {
        let Some(operators) = OPERATORS.get(level) else {
            return self.operand().map(|()| false);
        };
        // Printed by `~`, a value must be one that has a plain text.
        let function = if operators == &["~"] { TEXT } else { COUNTED };
        let start = self.start();
        let mut wrapped = self.chain(level + 1)?;
        let mut end = self.end();
        let mut chained = false;
        while let Some(token) = self.peek()
            && token.kind == TokenKind::Symbol
            && operators.contains(&token.text)
        {
            if !chained && (!wrapped || function == TEXT) {
                self.edits.wrap(function, start, end);
            }
            chained = true;
            self.at += 1;
            let (next, first) = (self.start(), self.at);
            wrapped = self.chain(level + 1)?;
            if !wrapped || function == TEXT {
                self.edits.wrap(function, next, self.end());
            }
            end = self.end();
            if token.is("%") {
                let is_tuple = is_tuple(&self.tokens[first..self.at]);
                self.edits.modulo(token.start, start..end, is_tuple);
            }
        }
        if chained {
            self.edits.wrap(COUNTED, start, end);
        }
        Ok(chained || wrapped)
    }

    fn operand(&mut self) -> Result<()> {
        let start = self.start();
        while self.take("-") {}
        self.primary()?;
        self.attributes(start)?;
        loop {
            if self.take("|") {
                self.dotted_name()?;
                if self.take("(") {
                    self.arguments()?;
                }
            } else if self.take_name("is") {
                self.test()?;
            } else {
                return Ok(());
            }
        }
    }

    fn test(&mut self) -> Result<()> {
        self.take_name("not");
        self.dotted_name()?;
        if self.take("(") {
            return self.arguments();
        }
        let starts = |token: Token| match token.kind {
            TokenKind::Name => {
                !["and", "or", "else", "is", "if", "in", "not"].contains(&token.text)
            }
            TokenKind::Number | TokenKind::Quoted => true,
            TokenKind::Symbol => ["[", "{", "-"].contains(&token.text),
        };
        if self.peek().is_some_and(starts) {
            let start = self.start();
            while self.take("-") {}
            self.primary()?;
            self.attributes(start)?;
        }
        Ok(())
    }

    fn primary(&mut self) -> Result<()> {
        let Some(token) = self.next() else {
            return Err(self.unexpected());
        };
        match (token.kind, token.text) {
            (TokenKind::Name | TokenKind::Number, _) => Ok(()),
            (TokenKind::Quoted, _) => {
                while self
                    .peek()
                    .is_some_and(|next| next.kind == TokenKind::Quoted)
                {
                    self.at += 1;
                }
                Ok(())
            }
            (_, "(") => self.items(")").map(drop),
            (_, "[") => {
                self.items("]")?;
                self.edits.wrap(KEPT, token.start, self.end());
                Ok(())
            }
            (_, "{") => {
                self.items("}")?;
                self.edits.wrap(KEPT, token.start, self.end());
                Ok(())
            }
            _ => {
                self.at -= 1;
                Err(self.unexpected())
            }
        }
    }

    /// What stands between brackets, the closing one included.
    fn items(&mut self, close: &str) -> Result<()> {
        self.deeper()?;
        while !self.take(close) {
            self.expression(Until::End)?;
            if close == "}" && self.take(":") {
                self.expression(Until::End)?;
            }
            if !self.take(",") {
                self.expect(close)?;
                break;
            }
        }
        self.open -= 1;
        Ok(())
    }

    fn deeper(&mut self) -> Result<()> {
        self.open += 1;
        match self.open {
            0..=DEEPEST_BRACKETS => Ok(()),
            _ => {
                let message =
                    format!("expected at most {DEEPEST_BRACKETS} brackets inside of each other");
                Err(syntax(self.source, self.end(), message))
            }
        }
    }

    /// Arguments behind their opening bracket.
    fn arguments(&mut self) -> Result<()> {
        self.deeper()?;
        while !self.take(")") {
            // Lists and mappings that are spread over the arguments.
            if !self.take("**") {
                self.take("*");
            }
            let named = self
                .tokens
                .get(self.at + 1)
                .is_some_and(|next| next.is("="));
            if named {
                self.at += 2;
            }
            self.expression(Until::End)?;
            if !self.take(",") {
                self.expect(")")?;
                break;
            }
        }
        self.open -= 1;
        Ok(())
    }

    /// `.name`, `(…)`, `[…]` and slices behind an operand that starts at `start`.
    fn attributes(&mut self, start: usize) -> Result<()> {
        loop {
            if self.take(".") {
                let name = [TokenKind::Name, TokenKind::Number];
                match self.next() {
                    Some(token) if name.contains(&token.kind) => {}
                    _ => return Err(self.unexpected()),
                }
            } else if self.take("(") {
                self.arguments()?;
            } else if self.take("[") {
                self.subscript(start)?;
            } else {
                return Ok(());
            }
        }
    }

    /// `[i]` stays as it is; `x[a:b:c]` becomes a call with three more arguments.
    fn subscript(&mut self, start: usize) -> Result<()> {
        self.deeper()?;
        let bracket = self.end() - 1;
        let mut colons = Vec::new();
        let mut parts = [false; 3];
        loop {
            if self.take(":") {
                colons.push(self.end() - 1);
                if colons.len() > 2 {
                    self.at -= 1;
                    return Err(self.unexpected());
                }
            } else if self.take("]") {
                break;
            } else if parts[colons.len()] {
                return Err(self.unexpected());
            } else {
                parts[colons.len()] = true;
                self.expression(Until::End)?;
            }
        }
        self.open -= 1;
        if colons.is_empty() {
            return Ok(());
        }
        let marks = [
            Some(bracket),
            colons.first().copied(),
            colons.get(1).copied(),
        ];
        for (mark, given) in marks.into_iter().zip(parts) {
            if let Some(mark) = mark {
                self.edits
                    .replaced
                    .insert(mark, if given { ", " } else { ", none" });
            }
        }
        self.edits.replaced.insert(self.end() - 1, ")");
        let opened = self.edits.opened.entry(start).or_default();
        opened.insert_str(0, &format!("{SLICE}("));
        Ok(())
    }
}

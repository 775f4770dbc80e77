//! Weaves accounts into a template, so that what it computes is bounded.
//!
//! minijinja counts the instructions of a rendering, but one of them can double a text, nest a list or compare two
//! large values. Before a template is compiled, its source is therefore parsed as minijinja does, and calls of the
//! functions of [`super::accounts`] are put around what may grow: operands and results of `+`, `~` and `*`, slices,
//! lists and mappings, and what is kept in a namespace. Whitespace control and line numbers stay as they are, because
//! nothing outside of expressions changes.
//!
//! Nor does minijinja bound how deep its own parser goes into chains of operators and of `elif`: these are counted here.

use super::accounts::{KEPT, RESERVED, TIMED};
use super::lexer::{Piece, Tag, TagKind, Token, TokenKind, pieces, syntax};
use crate::error::Result;

mod expressions;
mod weaver;

use expressions::SEPARATING_WORDS;
use weaver::{Edits, Until, Weaver};

/// The longest source, in bytes.
pub(crate) const LONGEST_SOURCE: usize = 1 << 20;
/// Tokens of one tag, at most: the parser goes one call deeper for each of a chain of operators.
const LONGEST_TAG: usize = 4096;
/// Branches of one condition, at most: each is a condition inside of the one before.
const MOST_BRANCHES: usize = 1000;
/// Statements that need another template.
const FOREIGN: [&str; 5] = ["include", "import", "from", "extends", "block"];

/// The source with accounts woven into it.
pub(crate) fn guarded(source: &str) -> Result<String> {
    if source.len() > LONGEST_SOURCE {
        let message = format!(
            "expected a source of at most {LONGEST_SOURCE} bytes, found {}",
            source.len()
        );
        return Err(syntax(source, 0, message));
    }
    let mut edits = Edits::default();
    let mut blocks = Blocks::default();
    for piece in pieces(source)? {
        match piece {
            Piece::Text(text) => blocks.text(text.len()),
            Piece::Comment(_) => {}
            Piece::Tag(tag) => {
                let mut weaver = Weaver {
                    source,
                    tokens: &tag.tokens,
                    at: 0,
                    open: 0,
                    edits: &mut edits,
                };
                weaver.check_tag(&tag)?;
                match tag.kind {
                    TagKind::Print => weaver.print()?,
                    TagKind::Statement => weaver.statement(&mut blocks)?,
                }
            }
        }
    }
    Ok(edits.apply(source))
}

/// The blocks that are open at a place, as far as they matter.
#[derive(Default)]
struct Blocks {
    /// For each loop where what it goes over ends, and bytes that each round adds to a text being made.
    loops: Vec<(usize, usize)>,
    /// Blocks whose output becomes a value.
    captures: usize,
    /// For each condition how many branches it has.
    conditions: Vec<usize>,
}

impl Blocks {
    /// Text between tags. What is printed is counted as it is written; what becomes part of a value, by round.
    fn text(&mut self, length: usize) {
        if self.captures > 0
            && let Some((_, added)) = self.loops.last_mut()
        {
            *added += length;
        }
    }
}

impl<'s> Weaver<'_, 's> {
    fn check_tag(&self, tag: &Tag<'s>) -> Result<()> {
        let start = tag.range.start;
        if tag.tokens.len() > LONGEST_TAG {
            let found = tag.tokens.len();
            let message = format!("expected a tag of at most {LONGEST_TAG} parts, found {found}");
            return Err(syntax(self.source, start, message));
        }
        let ours = |token: &&Token| token.kind == TokenKind::Name && token.text.ends_with(RESERVED);
        match tag.tokens.iter().find(ours) {
            // The end of a name of Python's own, which no template can use either.
            Some(token) if !token.text.starts_with("__") => {
                let message = format!(
                    "`{}`: names that end in `{RESERVED}` are kept for the program",
                    token.text
                );
                Err(syntax(self.source, token.start, message))
            }
            _ => Ok(()),
        }
    }

    fn print(&mut self) -> Result<()> {
        self.whole(TIMED, Until::End)?;
        self.at_end()
    }

    fn at_end(&self) -> Result<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.unexpected()),
        }
    }

    /// An expression, wrapped.
    fn whole(&mut self, function: &str, until: Until) -> Result<()> {
        let start = self.start();
        self.expression(until)?;
        self.edits.wrap(function, start, self.end());
        Ok(())
    }

    fn statement(&mut self, blocks: &mut Blocks) -> Result<()> {
        let Some(keyword) = self.next() else {
            return Err(self.unexpected());
        };
        match keyword.text {
            "if" => {
                blocks.conditions.push(0);
                self.whole(TIMED, Until::If)?;
            }
            "elif" => {
                self.count_branch(blocks)?;
                self.whole(TIMED, Until::If)?;
            }
            "endif" => drop(blocks.conditions.pop()),
            "for" => self.for_loop(blocks)?,
            "endfor" => self.end_for(blocks),
            "set" => self.set(blocks)?,
            "with" => self.assignments(TIMED)?,
            "macro" => {
                blocks.captures += 1;
                self.next();
                self.expect("(")?;
                self.parameters()?;
            }
            "call" => {
                blocks.captures += 1;
                if self.take("(") {
                    self.parameters()?;
                }
                // It has to stay a call.
                self.expression(Until::End)?;
            }
            "do" => self.expression(Until::End)?,
            "filter" => {
                blocks.captures += 1;
                self.filter()?;
            }
            "autoescape" => self.whole(TIMED, Until::End)?,
            "endset" | "endfilter" | "endmacro" | "endcall" => {
                blocks.captures = blocks.captures.saturating_sub(1);
            }
            foreign if FOREIGN.contains(&foreign) => {
                let message = format!("`{foreign}`: a chat template cannot use other templates");
                return Err(syntax(self.source, keyword.start, message));
            }
            // Without an expression, or unknown to minijinja too.
            _ => return Ok(()),
        }
        self.at_end()
    }

    fn count_branch(&self, blocks: &mut Blocks) -> Result<()> {
        let Some(branches) = blocks.conditions.last_mut() else {
            return Ok(());
        };
        *branches += 1;
        match *branches {
            0..=MOST_BRANCHES => Ok(()),
            _ => {
                let message = format!("expected a condition of at most {MOST_BRANCHES} branches");
                Err(syntax(self.source, self.end(), message))
            }
        }
    }

    fn for_loop(&mut self, blocks: &mut Blocks) -> Result<()> {
        self.check_recursive()?;
        while !self.take_name("in") {
            if self.next().is_none() {
                return Err(self.unexpected());
            }
        }
        let start = self.start();
        self.expression(Until::If)?;
        // Closed at the end of the loop, when it is known what a round adds.
        let opened = self.edits.opened.entry(start).or_default();
        opened.insert_str(0, &format!("{TIMED}("));
        blocks.loops.push((self.end(), 0));
        if self.take_name("if") {
            self.whole(TIMED, Until::End)
        } else {
            Ok(())
        }
    }

    /// Refuses a loop that can be entered again from inside: nothing would count its rounds.
    fn check_recursive(&self) -> Result<()> {
        let [.., before, last] = self.tokens else {
            return Ok(());
        };
        let is_operand = match before.kind {
            TokenKind::Name => !SEPARATING_WORDS.contains(&before.text),
            TokenKind::Number | TokenKind::Quoted => true,
            TokenKind::Symbol => [")", "]", "}"].contains(&before.text),
        };
        if !(last.is_name("recursive") && is_operand) {
            return Ok(());
        }
        let message = "`recursive` loops are not supported; a macro may call itself instead";
        Err(syntax(self.source, last.start, message.to_owned()))
    }

    fn end_for(&mut self, blocks: &mut Blocks) {
        let Some((end, added)) = blocks.loops.pop() else {
            return;
        };
        let close = match added {
            0 => ")".to_owned(),
            added => format!(", {added})"),
        };
        self.edits.closed.entry(end).or_default().push_str(&close);
    }

    fn set(&mut self, blocks: &mut Blocks) -> Result<()> {
        let mut function = TIMED;
        while let Some(token) = self.peek()
            && !token.is("=")
            && !token.is("|")
        {
            if token.is(".") {
                function = KEPT;
            }
            self.at += 1;
        }
        if self.take("=") {
            self.whole(function, Until::End)?;
            while self.take(",") && self.peek().is_some() {
                self.whole(function, Until::End)?;
            }
            return Ok(());
        }
        blocks.captures += 1;
        if self.take("|") {
            self.filter()
        } else {
            Ok(())
        }
    }

    /// `a = x, b = y`, up to the end of the tag.
    fn assignments(&mut self, function: &str) -> Result<()> {
        while self.peek().is_some() {
            while !self.take("=") {
                if self.next().is_none() {
                    return Err(self.unexpected());
                }
            }
            self.whole(function, Until::End)?;
            if !self.take(",") {
                break;
            }
        }
        Ok(())
    }

    /// Names with their defaults, behind the opening bracket.
    fn parameters(&mut self) -> Result<()> {
        while !self.take(")") {
            if self.next().is_none() {
                return Err(self.unexpected());
            }
            if self.take("=") {
                self.whole(TIMED, Until::End)?;
            }
            if !self.take(",") {
                return self.expect(")");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

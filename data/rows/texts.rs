//! The texts of a JSON file's rows: its lines, or the items of the one list that it is.

use std::io::{self, BufRead};

use spectrain_checkpoints::Mismatch;

use super::location::{LONGEST_ROW, Location};
use crate::error::{Error, Result};
use crate::json::Scanner;

/// What some programs put before a text to say that it is UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Bytes by which it is told that a text is in UTF-16.
const LOOKED_AT: usize = 64;

/// The name of the UTF-16 that a file begins in, as `iconv` calls it: by its mark, or by every second byte being zero, which none
/// is in JSON in UTF-8.
pub(super) fn utf_16(begin: &[u8]) -> Option<&'static str> {
    if begin.starts_with(b"\xff\xfe") || begin.starts_with(b"\xfe\xff") {
        return Some("UTF-16");
    }
    let pairs = begin[..begin.len().min(LOOKED_AT)].chunks_exact(2);
    let is_zero = |at: usize| {
        let mut pairs = pairs.clone();
        pairs.len() > 0 && pairs.all(|pair| pair[at] == 0 && pair[1 - at] != 0)
    };
    match (is_zero(1), is_zero(0)) {
        (true, _) => Some("UTF-16LE"),
        (_, true) => Some("UTF-16BE"),
        _ => None,
    }
}

/// An open file.
pub(super) struct Texts<R> {
    reader: R,
    shape: Shape,
    /// Lines before the first that was kept.
    skipped: usize,
    row: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Lines,
    /// A list whose opening bracket was read.
    List,
    /// A list that has ended.
    Ended,
}

impl<R: BufRead> Texts<R> {
    /// A text for each line that is not empty.
    pub(super) fn lines(mut reader: R) -> io::Result<Self> {
        // A first piece is as long as the file or longer than the mark.
        if reader.fill_buf()?.starts_with(BYTE_ORDER_MARK) {
            reader.consume(BYTE_ORDER_MARK.len());
        }
        Ok(Self {
            reader,
            shape: Shape::Lines,
            skipped: 0,
            row: Vec::new(),
        })
    }

    /// The same, or a text for each item of a list if that is what the file begins with.
    pub(super) fn json(reader: R) -> io::Result<Self> {
        let mut texts = Self::lines(reader)?;
        loop {
            let piece = texts.reader.fill_buf()?;
            let blank = piece
                .iter()
                .take_while(|byte| byte.is_ascii_whitespace())
                .count();
            let (is_end, is_list) = (piece.is_empty(), piece.get(blank) == Some(&b'['));
            let only_blank = blank == piece.len();
            let lines = piece[..blank].iter().filter(|&&byte| byte == b'\n').count();
            texts.reader.consume(blank);
            texts.skipped += lines;
            if is_list {
                texts.reader.consume(1);
                texts.shape = Shape::List;
            }
            if is_end || !only_blank {
                return Ok(texts);
            }
        }
    }

    /// The next text, and its number in `location`; none at the end.
    pub(super) fn next(&mut self, location: &mut Location) -> Option<Result<String>> {
        self.row.clear();
        let read = match self.shape {
            Shape::Lines => self.next_line(location),
            Shape::List => self.next_item(location),
            Shape::Ended => return None,
        };
        match read {
            Err(error) => return Some(Err(Error::io(&location.file)(error))),
            Ok(Read::End) => return None,
            Ok(Read::Row) => {}
            Ok(Read::TooLong) => {
                let mebibytes = LONGEST_ROW >> 20;
                return Some(Err(refused(
                    location,
                    format!("a row of at most {mebibytes} MiB"),
                    "a longer one".into(),
                )));
            }
            Ok(Read::Broken(found)) => {
                self.shape = Shape::Ended;
                return Some(Err(Error::File {
                    path: location.file.to_path_buf(),
                    mismatch: Mismatch::new(
                        "one list of objects",
                        format!("{found} after {} of them", location.row),
                    ),
                }));
            }
        }
        match String::from_utf8(std::mem::take(&mut self.row)) {
            Ok(text) => Some(Ok(text)),
            Err(error) => {
                let found = format!(
                    "a byte that is not UTF-8 at place {} (of a file in Latin-1, `iconv -f ISO-8859-1 -t UTF-8` makes one in UTF-8)",
                    error.utf8_error().valid_up_to() + 1
                );
                Some(Err(refused(location, "text in UTF-8".into(), found)))
            }
        }
    }

    fn next_line(&mut self, location: &mut Location) -> io::Result<Read> {
        location.row += std::mem::take(&mut self.skipped);
        loop {
            location.row += 1;
            let mut read = Read::End;
            loop {
                let piece = self.reader.fill_buf()?;
                if piece.is_empty() {
                    break;
                }
                let end = piece.iter().position(|&byte| byte == b'\n');
                let length = end.map_or(piece.len(), |end| end + 1);
                read = take(&mut self.row, &piece[..length], &read);
                self.reader.consume(length);
                if end.is_some() {
                    break;
                }
            }
            let is_blank =
                matches!(read, Read::Row) && self.row.iter().all(u8::is_ascii_whitespace);
            if !is_blank {
                return Ok(read);
            }
            self.row.clear();
        }
    }

    /// An item, of which the text is taken up to the comma or bracket after it.
    fn next_item(&mut self, location: &mut Location) -> io::Result<Read> {
        let mut scanner = Scanner::default();
        let mut read = Read::Row;
        loop {
            let piece = self.reader.fill_buf()?;
            if piece.is_empty() {
                return Ok(Read::Broken("the file's end"));
            }
            let ends = piece.iter().position(|&byte| {
                let outside = scanner.depth == 0 && !scanner.in_text;
                let ends = outside && matches!(byte, b',' | b']');
                if !ends {
                    scanner.step(byte);
                }
                ends
            });
            let length = ends.unwrap_or(piece.len());
            read = take(&mut self.row, &piece[..length], &read);
            let closing = ends.map(|end| piece[end]);
            self.reader.consume(length + usize::from(ends.is_some()));
            let Some(closing) = closing else {
                continue;
            };
            let is_blank = self.row.iter().all(u8::is_ascii_whitespace);
            if closing == b']' {
                self.shape = Shape::Ended;
                // A list may be empty, and some programs write a comma after the last item.
                let is_item = !is_blank || matches!(read, Read::TooLong);
                if !self.rest_is_blank()? {
                    location.row += usize::from(is_item);
                    return Ok(Read::Broken("more text"));
                }
                if !is_item {
                    return Ok(Read::End);
                }
            } else if is_blank && matches!(read, Read::Row) {
                return Ok(Read::Broken("nothing between two commas"));
            }
            location.row += 1;
            return Ok(read);
        }
    }

    fn rest_is_blank(&mut self) -> io::Result<bool> {
        loop {
            let piece = self.reader.fill_buf()?;
            if piece.is_empty() {
                return Ok(true);
            }
            if !piece.iter().all(u8::is_ascii_whitespace) {
                return Ok(false);
            }
            let length = piece.len();
            self.reader.consume(length);
        }
    }
}

/// What was read of a row.
enum Read {
    /// All of it.
    Row,
    /// All of it, and it is not kept.
    TooLong,
    /// There is none any more.
    End,
    /// What should not be there.
    Broken(&'static str),
}

/// Adds a piece to a row, up to the longest.
fn take(row: &mut Vec<u8>, piece: &[u8], so_far: &Read) -> Read {
    if matches!(so_far, Read::TooLong) || row.len() + piece.len() > LONGEST_ROW {
        *row = Vec::new();
        return Read::TooLong;
    }
    row.extend_from_slice(piece);
    Read::Row
}

fn refused(location: &Location, expected: String, found: String) -> Error {
    Error::Row {
        location: location.to_string(),
        mismatch: Mismatch::new(expected, found),
    }
}

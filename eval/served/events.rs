//! Server-sent events (WHATWG HTML, section 9.2): the form in which answers stream in.

/// The byte order mark that a stream may begin with.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Takes events out of a stream, wherever its pieces are cut.
#[derive(Debug, Default)]
pub struct Events {
    /// The line that is not at its end yet.
    line: Vec<u8>,
    /// The data of the event that is not at its end yet, each line with a line feed.
    data: String,
    /// Whether the last byte was a carriage return, which a line feed may follow without ending another line.
    after_return: bool,
    /// Whether the first line is over.
    begun: bool,
}

impl Events {
    /// The data of each event that ends in `piece`. Fields other than `data` and events without data are passed over, as
    /// the specification has it.
    pub fn push(&mut self, piece: &[u8]) -> Vec<String> {
        let mut events = Vec::new();
        for &byte in piece {
            let ends_return = std::mem::take(&mut self.after_return);
            match byte {
                b'\n' if ends_return => {}
                b'\n' | b'\r' => {
                    self.after_return = byte == b'\r';
                    events.extend(self.end_line());
                }
                _ => self.line.push(byte),
            }
        }
        events
    }

    /// Bytes of what is not at its end yet.
    pub fn pending(&self) -> usize {
        self.line.len() + self.data.len()
    }

    fn end_line(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.line);
        let line = match std::mem::replace(&mut self.begun, true) {
            true => &line[..],
            false => line.strip_prefix(MARK).unwrap_or(&line),
        };
        if line.is_empty() {
            // The line feed behind the last line is no part of the data.
            let mut data = std::mem::take(&mut self.data);
            return data.pop().map(|_| data);
        }
        let text = String::from_utf8_lossy(line);
        let (field, value) = text.split_once(':').unwrap_or((&text, ""));
        if field == "data" {
            self.data += value.strip_prefix(' ').unwrap_or(value);
            self.data.push('\n');
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "\u{feff}data: {\"a\": \"ä\"}\n\n: a comment\r\ndata:one\rdata: two\r\n\r\nevent: x\nid: 3\n\ndata\n\n\
                          data:  three\r\rdata: [DONE]\n\ndata: cut";
    const EVENTS: [&str; 5] = ["{\"a\": \"ä\"}", "one\ntwo", "", " three", "[DONE]"];

    #[test]
    fn events_are_the_same_wherever_the_stream_is_cut() {
        let bytes = STREAM.as_bytes();
        for size in 1..=bytes.len() {
            let mut events = Events::default();
            let found: Vec<String> = bytes.chunks(size).flat_map(|p| events.push(p)).collect();
            assert_eq!(found, EVENTS, "pieces of {size}");
            assert!(events.pending() > 0, "the last event is not at its end");
        }
        for at in 0..=bytes.len() {
            let mut events = Events::default();
            let mut found = events.push(&bytes[..at]);
            found.extend(events.push(&bytes[at..]));
            assert_eq!(found, EVENTS, "cut at {at}");
        }
    }

    #[test]
    fn an_empty_piece_ends_nothing() {
        let mut events = Events::default();
        assert!(events.push(b"data: a\r").is_empty());
        assert!(events.push(b"").is_empty());
        assert!(events.push(b"\n").is_empty(), "the rest of the line's end");
        assert_eq!(events.push(b"\r"), ["a"]);
        assert!(events.push(b"\n\n").is_empty());
        assert_eq!(events.pending(), 0);
    }
}

//! The file format of Weights & Biases' client: messages of protocol buffers, in blocks as LevelDB's log has them
//! (<https://github.com/google/leveldb/blob/main/doc/log_format.md>), but for the checksum, which is zlib's.

use flate2::Crc;

/// What a file begins with: the client's name, a number that tells it from others, the version of the format.
const HEADER: [u8; 7] = [b':', b'W', b'&', b'B', 0xe1, 0xbe, 0];
const BLOCK: usize = 32 * 1024;
/// Checksum, length and kind of a part.
const PART_HEADER: usize = 7;
/// Kinds of parts: a record that is whole, and the first, those in the middle and the last of one that is not.
const WHOLE: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// Records, one behind the other.
pub(super) struct RecordLog {
    bytes: Vec<u8>,
}

impl RecordLog {
    pub(super) fn new() -> Self {
        Self {
            bytes: HEADER.to_vec(),
        }
    }

    /// Adds a record. No part of one lies in two blocks.
    pub(super) fn append(&mut self, mut record: &[u8]) {
        let mut is_first = true;
        loop {
            if self.room() < PART_HEADER {
                self.bytes.resize(self.bytes.len() + self.room(), 0);
            }
            let (part, rest) = record.split_at(record.len().min(self.room() - PART_HEADER));
            let kind = match (is_first, rest.is_empty()) {
                (true, true) => WHOLE,
                (true, false) => FIRST,
                (false, false) => MIDDLE,
                (false, true) => LAST,
            };
            self.part(kind, part);
            if rest.is_empty() {
                return;
            }
            (record, is_first) = (rest, false);
        }
    }

    /// Bytes left in the block.
    fn room(&self) -> usize {
        BLOCK - self.bytes.len() % BLOCK
    }

    fn part(&mut self, kind: u8, part: &[u8]) {
        let mut sum = Crc::new();
        sum.update(&[kind]);
        sum.update(part);
        self.bytes.extend(sum.sum().to_le_bytes());
        // A part is shorter than a block.
        self.bytes.extend((part.len() as u16).to_le_bytes());
        self.bytes.push(kind);
        self.bytes.extend(part);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// A message of protocol buffers (<https://protobuf.dev/programming-guides/encoding/>).
#[derive(Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// Adds a number.
    pub(super) fn number(mut self, field: u32, value: u64) -> Self {
        self.varint(u64::from(field) << 3);
        self.varint(value);
        self
    }

    /// Adds a text.
    pub(super) fn text(self, field: u32, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    /// Adds a message.
    pub(super) fn message(self, field: u32, message: Message) -> Self {
        self.bytes(field, &message.0)
    }

    fn bytes(mut self, field: u32, bytes: &[u8]) -> Self {
        self.varint((u64::from(field) << 3) | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

//! Changes to bytes and to texts of any format.
use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};

/// Numbers at which counts, offsets and lengths overflow.
const NUMBERS: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    1 << 25,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    1 << 63,
    u64::MAX,
];

/// What hardly any reader is ready for.
const ODD: [&str; 24] = [
    "\0",
    "\u{feff}",
    "\u{202e}",
    "\u{1b}[2J",
    "\u{ffff}",
    "\u{10ffff}",
    "\\ud800",
    "\\u0000",
    "\r",
    "1e999",
    "-0",
    "NaN",
    "inf",
    "9223372036854775808",
    "-9223372036854775809",
    "340282366920938463463374607431768211456",
    "0.0000000000000000000000000000001",
    "0x7fffffffffffffff",
    "\"\"",
    "{}",
    "[]",
    "null",
    "../../etc/passwd",
    "\u{e000}\u{e001}",
];

/// Some changes to any bytes.
pub fn change(bytes: &mut Vec<u8>, rng: &mut StdRng) {
    for _ in 0..rng.random_range(1..4) {
        once(bytes, rng);
    }
}

fn once(bytes: &mut Vec<u8>, rng: &mut StdRng) {
    if bytes.is_empty() {
        bytes.push(rng.random());
        return;
    }
    let at = place(bytes.len(), rng);
    match rng.random_range(0..9) {
        0 => bytes[at] ^= 1 << rng.random_range(0..8),
        1 => bytes[at] = rng.random(),
        2 => bytes[at] = *[0, 1, 0x7f, 0x80, 0xff].choose(rng).unwrap(),
        3 => bytes.truncate(at),
        4 => bytes.insert(at, rng.random()),
        5 => drop(bytes.drain(at..(at + rng.random_range(1..9)).min(bytes.len()))),
        6 => {
            let end = (at + rng.random_range(1..64)).min(bytes.len());
            let piece = bytes[at..end].to_vec();
            let to = rng.random_range(0..=bytes.len());
            bytes.splice(to..to, piece);
        }
        _ => {
            let number = number(rng).to_le_bytes();
            let width = *[1, 2, 4, 8].choose(rng).unwrap();
            let end = (at + width).min(bytes.len());
            bytes[at..end].copy_from_slice(&number[..end - at]);
        }
    }
}

/// A place in a file, most often near its beginning or its end, where formats describe themselves.
fn place(length: usize, rng: &mut StdRng) -> usize {
    let edge = length.min(400);
    match rng.random_range(0..3) {
        0 => rng.random_range(0..length),
        1 => rng.random_range(0..edge),
        _ => length - 1 - rng.random_range(0..edge),
    }
}

fn number(rng: &mut StdRng) -> u64 {
    let number = *NUMBERS.choose(rng).unwrap();
    match rng.random_range(0..3) {
        0 => number,
        1 => number.wrapping_sub(1),
        _ => number.wrapping_sub(rng.random_range(0..64)),
    }
}

/// Changes to a text that need not leave it one.
pub fn change_text(bytes: &mut Vec<u8>, rng: &mut StdRng) {
    let at = rng.random_range(0..=bytes.len());
    match rng.random_range(0..8) {
        0..3 => once(bytes, rng),
        3..5 => insert(bytes, at, ODD.choose(rng).unwrap().as_bytes()),
        5 => {
            let open = *["[", "{\"a\":", "(", "a = {", "[[", "'", "\"\"\""]
                .choose(rng)
                .unwrap();
            let depth = *[1, 3, 40, 200, 3000, 60_000].choose(rng).unwrap();
            insert(bytes, at, open.repeat(depth).as_bytes());
        }
        6 => {
            let long = *["a", "é", "1", "\n", " ", "\u{1f600}"].choose(rng).unwrap();
            insert(bytes, at, long.repeat(rng.random_range(1..5000)).as_bytes());
        }
        _ => digits(bytes, rng),
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, piece: &[u8]) {
    bytes.splice(at..at, piece.iter().copied());
}

/// Puts another number in the place of one.
fn digits(bytes: &mut Vec<u8>, rng: &mut StdRng) {
    let is_digit = |at: &usize| bytes[*at].is_ascii_digit();
    let starts: Vec<usize> = (0..bytes.len()).filter(is_digit).collect();
    let Some(&at) = starts.choose(rng) else {
        return;
    };
    let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit());
    let end = at + digits.count();
    let odd = ["-1", "1e400", "0.5", "00", "1_0", ""].choose(rng).unwrap();
    let text = match rng.random_bool(0.5) {
        true => number(rng).to_string(),
        false => (*odd).to_owned(),
    };
    bytes.splice(at..end, text.into_bytes());
}

/// A text that is no word.
pub fn odd(rng: &mut StdRng) -> &'static str {
    ODD.choose(rng).unwrap()
}

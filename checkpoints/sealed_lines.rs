//! Lines of JSON, each of which ends in a digest of itself: what was cut off or damaged on the disk is told from what was written.

use std::io;

use serde::Serialize;

use crate::hash::sha256_bytes;

/// What stands before the digest of a line, its last key, and the length of the digest.
const DIGEST: &str = ",\"sha256\":\"";
const DIGITS: usize = 64;

/// A value, which becomes an object with some key, as a line of its own. JSON has no line breaks inside.
///
/// # Errors
/// The value is none that JSON knows.
pub fn sealed(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    let digest = sha256_bytes(&line);
    line.pop();
    line.extend_from_slice(DIGEST.as_bytes());
    line.extend_from_slice(digest.as_bytes());
    line.extend_from_slice(b"\"}\n");
    Ok(line)
}

/// What [`sealed`] made a line of: the object without its digest. None where the digest is another, or missing.
pub fn unsealed(line: &[u8]) -> Option<Vec<u8>> {
    let rest = line.strip_suffix(b"\"}\n")?;
    let (rest, stated) = rest.split_at_checked(rest.len().checked_sub(DIGITS)?)?;
    let mut object = rest.strip_suffix(DIGEST.as_bytes())?.to_vec();
    object.push(b'}');
    (sha256_bytes(&object).as_bytes() == stated).then_some(object)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_line_is_what_was_sealed_or_nothing() {
        let value = json!({"one": "ü\n", "two": [0.1, 3]});
        let line = sealed(&value).unwrap();
        let found: Value = serde_json::from_slice(&unsealed(&line).unwrap()).unwrap();
        assert_eq!(found, value);
        for at in 0..line.len() {
            assert_eq!(unsealed(&line[..at]), None, "cut at {at}");
            let mut damaged = line.clone();
            damaged[at] ^= 1;
            assert_eq!(unsealed(&damaged), None, "damaged at {at}");
        }
        for foreign in ["", "\n", "\"}\n", "{}\n", "{\"one\":1}\n"] {
            assert_eq!(unsealed(foreign.as_bytes()), None, "{foreign:?}");
        }
    }
}

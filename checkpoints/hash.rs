//! SHA-256 of files and bytes, in lower-case hexadecimal.

use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::regular;

const CHUNK: usize = 1 << 20;

/// The digest of a file's contents, read in chunks.
pub fn sha256_file(path: &Path) -> Result<String> {
    sha256_file_while(path, &mut |_| Ok(()))
}

/// The same, telling `go_on` the bytes of each chunk; where that fails, no more is read.
///
/// # Errors
/// Those of `go_on`; the file cannot be read.
pub fn sha256_file_while<E: From<Error>>(
    path: &Path,
    go_on: &mut dyn FnMut(usize) -> std::result::Result<(), E>,
) -> std::result::Result<String, E> {
    let mut file = regular::open(path)?;
    let mut digest = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk).map_err(Error::io("read", path))? {
            0 => return Ok(hex(&digest.finalize())),
            count => {
                digest.update(&chunk[..count]);
                go_on(count)?;
            }
        }
    }
}

/// The digest of bytes in memory.
pub fn sha256_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// The digest of named parts: names and lengths are hashed too, so bytes cannot move from one part to the next unseen.
pub(crate) fn sha256_parts<'a>(parts: impl Iterator<Item = (&'a str, &'a [u8])>) -> String {
    let mut digest = Sha256::new();
    for (name, bytes) in parts {
        digest.update((name.len() as u64).to_le_bytes());
        digest.update(name.as_bytes());
        digest.update((bytes.len() as u64).to_le_bytes());
        digest.update(bytes);
    }
    hex(&digest.finalize())
}

/// Bytes in lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_its_bytes_have_the_published_digest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abc");
        std::fs::write(&path, "abc").unwrap();
        // FIPS 180-2, appendix B.1.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256_bytes(b"abc"), expected);
        assert_eq!(sha256_file(&path).unwrap(), expected);
    }

    #[test]
    fn a_file_longer_than_a_chunk_is_hashed_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long");
        let bytes = vec![7; CHUNK + 3];
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(sha256_file(&path).unwrap(), sha256_bytes(&bytes));
    }

    #[test]
    fn a_file_is_read_no_further_than_its_reader_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long");
        std::fs::write(&path, vec![7; 2 * CHUNK]).unwrap();
        let mut read = Vec::new();
        let stopped = sha256_file_while(&path, &mut |bytes| {
            read.push(bytes);
            Err(Error::Folder {
                path: path.clone(),
                reason: "stopped".to_string(),
            })
        });
        assert!(matches!(stopped, Err(Error::Folder { .. })));
        assert_eq!(read, [CHUNK]);
    }

    #[test]
    fn bytes_that_move_between_parts_change_the_digest() {
        let one = sha256_parts([("a", &b"12"[..]), ("b", b"3")].into_iter());
        let two = sha256_parts([("a", &b"1"[..]), ("b", b"23")].into_iter());
        assert_ne!(one, two);
    }
}

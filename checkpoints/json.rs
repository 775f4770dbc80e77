//! JSON files of bounded size.

use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::regular;

/// Far above any configuration or shard index in use; a file above it is not one of them.
const MAX_BYTES: u64 = 64 << 20;

/// The bytes of a JSON file.
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    regular::open(path)?
        .take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(Error::io("read", path))?;
    if bytes.len() as u64 > MAX_BYTES {
        let reason = format!("expected at most {MAX_BYTES} bytes of JSON, found more");
        return Err(Error::Folder {
            path: path.to_path_buf(),
            reason,
        });
    }
    Ok(bytes)
}

/// A JSON file, parsed.
pub(crate) fn read(path: &Path) -> Result<Value> {
    parse(path, &read_bytes(path)?)
}

/// Parses what was read from `path`.
pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes).map_err(|cause| Error::Json {
        path: path.to_path_buf(),
        cause,
    })
}

/// Indented JSON with a final newline.
pub(crate) fn to_bytes(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

//! One safetensors file, mapped into memory or held there.

use std::ops::{Deref, Range};
use std::path::Path;

use memmap2::Mmap;
use safetensors::tensor::Metadata;

use super::parts::TensorInfo;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::regular;

/// Bytes of the field that holds the header's length.
const LENGTH: usize = 8;
/// Above a hundred times what the largest shards in use need, and small enough to parse without a second thought.
const MAX_HEADER: usize = 32 << 20;

/// How a file begins that Git LFS puts in the place of a large one.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Where the bytes of a file are.
#[derive(Debug)]
enum Contents {
    Mapped(Mmap),
    Held(Vec<u8>),
}

impl Deref for Contents {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Held(bytes) => bytes,
        }
    }
}

/// A file whose header accounts for every byte behind it.
#[derive(Debug)]
pub(super) struct WeightFile {
    contents: Contents,
    start: usize,
}

impl WeightFile {
    /// Maps a file and checks its header. Ranges in the returned descriptions lie inside the file.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<TensorInfo>)> {
        Self::of(Contents::Mapped(map(path)?), path)
    }

    /// The same of a file's bytes, which errors call `path`.
    pub(super) fn held(bytes: Vec<u8>, path: &Path) -> Result<(Self, Vec<TensorInfo>)> {
        Self::of(Contents::Held(bytes), path)
    }

    fn of(contents: Contents, path: &Path) -> Result<(Self, Vec<TensorInfo>)> {
        let invalid = |reason: String| Error::Safetensors {
            path: path.to_path_buf(),
            reason,
        };
        let header = header(&contents).map_err(invalid)?;
        let start = LENGTH + header.len();
        let metadata: Metadata =
            serde_json::from_slice(header).map_err(|error| invalid(format!("header: {error}")))?;
        let (expected, got) = (metadata.data_len(), contents.len() - start);
        if expected != got {
            return Err(invalid(format!(
                "expected {expected} bytes of tensors after the header, found {got}"
            )));
        }
        let mut tensors = Vec::new();
        for (name, entry) in metadata.tensors() {
            let stored = entry.dtype.to_string();
            let dtype = DType::from_name(&stored).ok_or_else(|| {
                invalid(format!(
                    "tensor `{name}` has the type `{stored}`, which is not supported"
                ))
            })?;
            tensors.push(TensorInfo {
                name,
                shape: entry.shape.clone(),
                dtype,
                file: path.to_path_buf(),
                range: entry.data_offsets.0..entry.data_offsets.1,
            });
        }
        Ok((Self { contents, start }, tensors))
    }

    /// The bytes of one tensor.
    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.contents[self.start..][range]
    }

    /// The whole file.
    pub(super) fn whole(&self) -> &[u8] {
        &self.contents
    }
}

fn map(path: &Path) -> Result<Mmap> {
    let file = regular::open(path)?;
    #[expect(
        unsafe_code,
        reason = "weights are larger than memory allows to copy; this program replaces files, it never rewrites them"
    )]
    // SAFETY: the map is read-only, and every writer in this crate renames a new file into place, which leaves a mapped one as it is.
    let map = unsafe { Mmap::map(&file) };
    map.map_err(Error::io("map", path))
}

/// The JSON header of a file, or why there is none. Its length is checked before anything is read or allocated.
fn header(file: &[u8]) -> std::result::Result<&[u8], String> {
    let Some((length, rest)) = file.split_first_chunk::<LENGTH>() else {
        return Err(format!(
            "expected at least {LENGTH} bytes, found {}",
            file.len()
        ));
    };
    if file.starts_with(POINTER) {
        return Err(
            "it is a pointer of Git LFS, which stands for the file: `git lfs pull` fetches that"
                .to_string(),
        );
    }
    let length = u64::from_le_bytes(*length);
    let within = usize::try_from(length)
        .ok()
        .filter(|&length| length <= MAX_HEADER);
    let Some(length) = within else {
        return Err(format!(
            "expected a header of at most {MAX_HEADER} bytes, found {length}"
        ));
    };
    rest.get(..length)
        .ok_or_else(|| format!("expected a header of {length} bytes, found {}", rest.len()))
}

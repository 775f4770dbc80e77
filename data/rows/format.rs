//! How files of rows are written, by their names.

use std::path::Path;

/// Files of rows, for messages.
pub(super) const FILES: &str =
    "rows in `.jsonl` or `.json` files, also compressed as `.gz` or `.zst`, or in `.parquet` files";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// An object on each line.
    Lines,
    /// The same, or a list of objects.
    Json,
    Parquet,
}

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Format {
    /// That of a file with this name, whose ending may be in capitals; none where it holds no rows.
    pub(super) fn of(path: &Path) -> Option<(Self, Compression)> {
        // Of a name that is no text the ending still is one.
        let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
        let (name, compression) = match name.rsplit_once('.')? {
            (name, "gz") => (name, Compression::Gzip),
            (name, "zst") => (name, Compression::Zstd),
            _ => (&name[..], Compression::None),
        };
        match (name.rsplit_once('.')?.1, compression) {
            ("jsonl", _) => Some((Self::Lines, compression)),
            ("json", _) => Some((Self::Json, compression)),
            ("parquet", Compression::None) => Some((Self::Parquet, compression)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_how_a_file_is_written_in_any_case() {
        let of = |name: &str| Format::of(Path::new(name));
        assert_eq!(of("A.JSONL"), Some((Format::Lines, Compression::None)));
        assert_eq!(of("a.Json.GZ"), Some((Format::Json, Compression::Gzip)));
        assert_eq!(of("a.jsonl.zst"), Some((Format::Lines, Compression::Zstd)));
        assert_eq!(of("a.PARQUET"), Some((Format::Parquet, Compression::None)));
        for other in ["a.jsonl.bz2", "a.parquet.gz", "a.txt", "a", "jsonl"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}

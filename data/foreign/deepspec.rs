//! DeepSpec's cache of a target, version 2 (<https://github.com/deepseek-ai/DeepSpec>): `manifest.json`, an index of 56 bytes a
//! sample, and raw shards.
//!
//! Ids of layers are 0-based, and the last hidden state is said to be after the norm.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use spectrain_checkpoints::{DType, NamedTensor};

use super::layout::{
    ForeignFeatures, ForeignStates, ForeignText, SaidLayers, as_mask, as_tokens, inside, read_json,
};
use crate::error::{Error, Result};

pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const INDEX: &str = "samples.idx";
/// Bytes of a record: sample, shard, length, and where its five pieces begin.
const RECORD: usize = 56;
/// Bytes of the manifest, at most.
const LONGEST_MANIFEST: u64 = 64 << 20;

/// What must stand in the manifest.
const FIXED: [(&str, &str); 5] = [
    ("version", "2"),
    ("index_record_size", "56"),
    ("hidden_dtype", "\"bfloat16\""),
    ("token_dtype", "\"int32\""),
    ("mask_dtype", "\"uint8\""),
];

#[derive(Deserialize)]
struct Manifest {
    num_samples: usize,
    target_layer_ids: Vec<i64>,
    hidden_size: usize,
    shards: Vec<ShardName>,
}

#[derive(Deserialize)]
struct ShardName {
    shard_id: u32,
    file_name: String,
    #[serde(default)]
    nbytes: Option<u64>,
}

struct Shard {
    path: PathBuf,
    file: File,
    bytes: u64,
}

/// Where a sample lies.
struct Record {
    shard: u32,
    length: usize,
    /// Tokens, attention mask, loss mask, captured layers, last state.
    pieces: [Range<u64>; 5],
}

/// A folder of such features.
pub(super) struct DeepSpec {
    shards: BTreeMap<u32, Shard>,
    records: Vec<Record>,
    layers: SaidLayers,
    d_model: usize,
}

impl DeepSpec {
    /// Opens the features in a folder; every piece lies in its shard, and none on another.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let path = inside(folder, MANIFEST)?;
        let manifest = manifest(&path)?;
        let width = manifest
            .target_layer_ids
            .len()
            .checked_mul(manifest.hidden_size)
            .filter(|width| *width > 0 && *width < 1 << 31);
        let Some(width) = width else {
            let found = format!(
                "{} layers of width {}",
                manifest.target_layer_ids.len(),
                manifest.hidden_size
            );
            return Err(Error::altered(
                &path,
                "target_layer_ids",
                "layers of a width, of which the product is 1 to 2147483647",
                found,
            ));
        };
        let mut shards = BTreeMap::new();
        for shard in &manifest.shards {
            let opened = Shard::open(folder, shard)?;
            if shards.insert(shard.shard_id, opened).is_some() {
                let found = format!("{} twice", shard.shard_id);
                return Err(Error::altered(&path, "shards", "different numbers", found));
            }
        }
        let index = inside(folder, INDEX)?;
        let records = records(&index, &manifest, width)?;
        check_places(&index, &records, &shards)?;
        Ok(Self {
            shards,
            records,
            layers: SaidLayers {
                captured: manifest.target_layer_ids,
                last: None,
            },
            d_model: manifest.hidden_size,
        })
    }

    fn piece(&self, sample: usize, piece: usize) -> Result<Vec<u8>> {
        let record = &self.records[sample];
        let range = record.pieces[piece].clone();
        self.shards[&record.shard].read(range)
    }

    /// An error about a sample's piece.
    fn wrong(&self, sample: usize, what: &'static str, expected: &str, found: &str) -> Error {
        let path = &self.shards[&self.records[sample].shard].path;
        Error::altered(path, what, expected, format!("{found} in sample {sample}"))
    }
}

impl ForeignFeatures for DeepSpec {
    fn layout(&self) -> &'static str {
        "DeepSpec's cache, version 2"
    }

    fn samples(&self) -> usize {
        self.records.len()
    }

    fn without_states(&self) -> usize {
        0
    }

    fn slots(&self) -> usize {
        self.layers.captured.len() + 1
    }

    fn d_model(&self) -> usize {
        self.d_model
    }

    fn layers(&self) -> Option<&SaidLayers> {
        Some(&self.layers)
    }

    fn text(&self, sample: usize) -> Result<ForeignText> {
        let tokens = self.piece(sample, 0)?;
        let (words, _) = tokens.as_chunks::<4>();
        let tokens = as_tokens(words.iter().map(|word| i32::from_le_bytes(*word).into()));
        let tokens =
            tokens.ok_or_else(|| self.wrong(sample, "input_ids", "token ids", "another number"))?;
        if self.piece(sample, 1)?.iter().any(|&bit| bit != 1) {
            let expected = "1 for every token, as samples have no padding";
            return Err(self.wrong(sample, "attention_mask", expected, "another number"));
        }
        let loss_mask = as_mask(self.piece(sample, 2)?.into_iter().map(i64::from));
        let loss_mask =
            loss_mask.ok_or_else(|| self.wrong(sample, "loss_mask", "0 or 1", "another number"))?;
        Ok(ForeignText {
            tokens,
            loss_mask: Some(loss_mask),
        })
    }

    fn states(&self, sample: usize) -> Result<ForeignStates> {
        let length = self.records[sample].length;
        let (captured, last) = (self.piece(sample, 3)?, self.piece(sample, 4)?);
        let mut bytes = Vec::with_capacity(captured.len() + last.len());
        let rows = captured
            .chunks(captured.len() / length)
            .zip(last.chunks(last.len() / length));
        for (captured, last) in rows {
            bytes.extend_from_slice(captured);
            bytes.extend_from_slice(last);
        }
        let states = NamedTensor {
            name: "hidden_states".into(),
            shape: vec![length, self.slots(), self.d_model],
            dtype: DType::BF16,
            bytes,
        };
        Ok(ForeignStates {
            states,
            normed: None,
        })
    }
}

impl Shard {
    fn open(folder: &Path, named: &ShardName) -> Result<Self> {
        let path = inside(folder, &named.file_name)?;
        if !path.is_file() {
            return Err(Error::altered(
                &path,
                "kind",
                "a regular file",
                "something else",
            ));
        }
        let read = || {
            let file = File::open(&path)?;
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        };
        let (file, bytes) = read().map_err(|source: std::io::Error| Error::read(&path, source))?;
        match named.nbytes {
            Some(expected) if expected != bytes => {
                Err(Error::altered(&path, "bytes", expected, bytes))
            }
            _ => Ok(Self { path, file, bytes }),
        }
    }

    /// Bytes of a range that lies in the file.
    fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let mut file = &self.file;
        file.seek(SeekFrom::Start(range.start))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(|source| Error::read(&self.path, source))?;
        Ok(bytes)
    }
}

fn manifest(path: &Path) -> Result<Manifest> {
    let value = read_json(path, LONGEST_MANIFEST)?;
    for (key, expected) in FIXED {
        let found = value[key].to_string();
        if found != expected {
            return Err(Error::altered(path, key, expected, found));
        }
    }
    serde_json::from_value(value).map_err(|source| Error::read(path, source))
}

/// The records of an index, in the order of their samples.
fn records(path: &Path, manifest: &Manifest, width: usize) -> Result<Vec<Record>> {
    let bytes = fs::read(path).map_err(|source| Error::read(path, source))?;
    let expected = manifest.num_samples.checked_mul(RECORD);
    if expected != Some(bytes.len()) || bytes.is_empty() {
        let expected = format!("{RECORD} for each of {} samples", manifest.num_samples);
        return Err(Error::altered(path, "bytes", expected, bytes.len()));
    }
    let (raw, _) = bytes.as_chunks::<RECORD>();
    let record = |(sample, raw): (usize, &[u8; RECORD])| {
        let (head, offsets) = raw.split_at(16);
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&head[at..at + 4]);
            u32::from_le_bytes(word)
        };
        let (number, _) = head.as_chunks::<8>();
        let number = u64::from_le_bytes(number[0]);
        if number != sample as u64 {
            return Err(Error::altered(path, "sample", sample, number));
        }
        let length = u64::from(word(12));
        if length == 0 {
            return Err(Error::sample(number, "tokens", "at least one", 0));
        }
        let (width, last) = (2 * width as u64, 2 * manifest.hidden_size as u64);
        let sizes = [4, 1, 1, width, last].map(|size| length.checked_mul(size));
        let (offsets, _) = offsets.as_chunks::<8>();
        let piece = |at: usize| {
            let start = u64::from_le_bytes(offsets[at]);
            let end = sizes[at].and_then(|size| start.checked_add(size));
            let outside = || Error::sample(number, "first byte", "one of its shard", start);
            Ok(start..end.ok_or_else(outside)?)
        };
        Ok(Record {
            shard: word(8),
            length: length as usize,
            pieces: [piece(0)?, piece(1)?, piece(2)?, piece(3)?, piece(4)?],
        })
    };
    raw.iter().enumerate().map(record).collect()
}

/// Fails where a piece is not within its shard, or lies on another one.
fn check_places(path: &Path, records: &[Record], shards: &BTreeMap<u32, Shard>) -> Result<()> {
    let mut places: BTreeMap<u32, Vec<(u64, u64, usize)>> = BTreeMap::new();
    for (sample, record) in records.iter().enumerate() {
        let Some(shard) = shards.get(&record.shard) else {
            let found = format!("number {} for sample {sample}", record.shard);
            return Err(Error::altered(
                path,
                "shard",
                "one that the manifest names",
                found,
            ));
        };
        for piece in &record.pieces {
            if piece.end > shard.bytes {
                let expected = format!("within the {} bytes of its shard", shard.bytes);
                let found = format!("bytes {} to {}", piece.start, piece.end);
                return Err(Error::sample(sample as u64, "data", expected, found));
            }
            let of_shard = places.entry(record.shard).or_default();
            of_shard.push((piece.start, piece.end, sample));
        }
    }
    for of_shard in places.values_mut() {
        of_shard.sort_unstable();
        if let Some([first, second]) = of_shard.array_windows().find(|[one, two]| one.1 > two.0) {
            let found = format!("bytes of another piece, of sample {}", first.2);
            return Err(Error::sample(
                second.2 as u64,
                "data",
                "bytes of its own",
                found,
            ));
        }
    }
    Ok(())
}

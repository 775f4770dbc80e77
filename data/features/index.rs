//! What a folder of features holds and was computed from.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::Path;

use arrow::datatypes::{DataType, Field, Schema};
use serde::{Deserialize, Serialize};

use spectrain_checkpoints::Mismatch;

use super::recorded::Recorded;
use super::states::{States, StoredType};
use crate::durable::{self, TEMPORARY};
use crate::error::{Error, Result};

pub(super) const INDEX: &str = "features.json";
pub(super) const VERSION: u32 = 1;

/// The name of the shard of this number, from 0.
pub(super) fn shard_name(number: usize) -> String {
    format!("features-{number:05}.arrow")
}

/// The number of the shard that has this name, if it is that of one.
pub(super) fn shard_number(name: &str) -> Option<usize> {
    let number = name.strip_prefix("features-")?.strip_suffix(".arrow")?;
    let number = number.parse().ok()?;
    (shard_name(number) == name).then_some(number)
}

/// Whether a file of a folder of features is one of those that are written there, whole or not.
pub(super) fn is_ours(name: &str) -> bool {
    let whole = name.strip_suffix(TEMPORARY).unwrap_or(name);
    whole == INDEX || (whole.starts_with("features-") && whole.ends_with(".arrow"))
}

/// What a folder of features was computed from; two folders with equal headers hold the same numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureHeader {
    /// Hexadecimal SHA-256 of the target's weights.
    pub target_sha256: String,
    /// Captured layers, 0-based, in the order in which their outputs are concatenated.
    pub captured_layers: Vec<usize>,
    /// Width of one hidden state of the target.
    pub d_model: usize,
    /// Fingerprint of the token folder whose samples the rows are.
    pub tokens_fingerprint: String,
    /// What the hidden states are stored in.
    #[serde(default, skip_serializing_if = "StoredType::is_default")]
    pub dtype: StoredType,
}

impl FeatureHeader {
    /// Fails, naming the first key, where `found` at `path` is not this header.
    pub fn require(&self, found: &FeatureHeader, path: &Path) -> Result<()> {
        for (key, expected, found) in [
            ("target_sha256", &self.target_sha256, &found.target_sha256),
            (
                "captured_layers",
                &format!("{:?}", self.captured_layers),
                &format!("{:?}", found.captured_layers),
            ),
            (
                "d_model",
                &self.d_model.to_string(),
                &found.d_model.to_string(),
            ),
            (
                "tokens_fingerprint",
                &self.tokens_fingerprint,
                &found.tokens_fingerprint,
            ),
            (
                "dtype",
                &self.dtype.name().to_owned(),
                &found.dtype.name().to_owned(),
            ),
        ] {
            if expected != found {
                return Err(Error::FeatureHeader {
                    path: path.to_owned(),
                    key,
                    mismatch: Mismatch::new(expected.clone(), found.clone()),
                });
            }
        }
        Ok(())
    }

    pub(super) fn metadata(&self) -> HashMap<String, String> {
        let layers: Vec<String> = self.captured_layers.iter().map(usize::to_string).collect();
        let pairs = [
            ("version", VERSION.to_string()),
            ("target_sha256", self.target_sha256.clone()),
            ("captured_layers", layers.join(",")),
            ("d_model", self.d_model.to_string()),
            ("dtype", self.dtype.name().to_owned()),
            ("tokens_fingerprint", self.tokens_fingerprint.clone()),
        ];
        pairs
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
    }

    pub(super) fn schema(&self) -> Schema {
        let list = |name: &str, item: DataType| {
            Field::new_list(name, Field::new_list_field(item, false), false)
        };
        let mut fields = vec![
            Field::new("sample", DataType::UInt64, false),
            list("tokens", DataType::UInt32),
            list("loss_mask", DataType::UInt8),
        ];
        for name in ["captured", "last"] {
            match self.dtype {
                StoredType::Bf16 => fields.push(list(name, DataType::UInt16)),
                StoredType::Int8 => fields.extend([
                    list(name, DataType::Int8),
                    list(&format!("{name}_scales"), DataType::UInt16),
                    list(&format!("{name}_exponents"), DataType::Int8),
                ]),
            }
        }
        Schema::new_with_metadata(fields, self.metadata())
    }

    pub(super) fn require_lengths(&self, number: u64, sample: &StoredSample<'_>) -> Result<()> {
        let seq = sample.tokens.len();
        let [captured, last] = self.widths();
        for (what, expected, found) in [
            ("loss mask", seq, sample.loss_mask.len()),
            ("captured features", seq * captured, sample.captured.len()),
            ("last hidden states", seq * last, sample.last.len()),
        ] {
            if expected != found {
                return Err(Error::sample(number, what, expected, found));
            }
        }
        let states = [sample.captured, sample.last];
        for (states, width) in states.into_iter().zip(self.widths()) {
            if let States::Int8(states) = states {
                states.require_scales(number, width)?;
            }
        }
        Ok(())
    }

    /// Numbers of one token: of its captured layers, and of the last hidden state.
    pub fn widths(&self) -> [usize; 2] {
        [self.captured_layers.len() * self.d_model, self.d_model]
    }
}

/// One sample with its features, borrowed from wherever they lie.
///
/// # Shapes
///
/// - tokens, loss_mask: `[seq]`
/// - captured: `[seq, layers * d_model]`
/// - last: `[seq, d_model]`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredSample<'a> {
    /// Token ids of the target's tokenizer.
    pub tokens: &'a [u32],
    /// One per token: 1 where the token is trained on, else 0.
    pub loss_mask: &'a [u8],
    /// For every token its captured layers' outputs, one after the other.
    pub captured: States<'a>,
    /// For every token the last hidden state after the final norm; the head turns it into logits.
    pub last: States<'a>,
}

/// Bytes on disk that features of so many tokens take, but for what a sample takes beside its tokens: some hundred bytes, and in eight
/// bits one for each number of a token.
pub fn disk_bytes(tokens: u64, captured_layers: u64, d_model: u64, dtype: StoredType) -> u64 {
    let captured = dtype.bytes(tokens, captured_layers.saturating_mul(d_model));
    let states = captured.saturating_add(dtype.bytes(tokens, d_model));
    states.saturating_add(tokens.saturating_mul(4 + 1))
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FeatureShard {
    pub(super) file: String,
    pub(super) first: u64,
    pub(super) samples: u64,
    pub(super) tokens: u64,
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

impl FeatureShard {
    /// One of these samples that is still to be written: nothing of its file is on record.
    pub(super) fn lost(file: String, samples: Range<u64>) -> Self {
        Self {
            file,
            first: samples.start,
            samples: samples.end - samples.start,
            tokens: 0,
            bytes: 0,
            sha256: String::new(),
        }
    }

    /// Whether its file was written, and is not known to be gone.
    pub(super) fn is_on_record(&self) -> bool {
        !self.sha256.is_empty()
    }

    /// The numbers of its samples.
    pub(super) fn range(&self) -> Range<u64> {
        self.first..self.first + self.samples
    }

    /// What is on record of it in this folder.
    pub(super) fn recorded(&self, folder: &Path) -> Recorded {
        Recorded {
            path: folder.join(&self.file),
            bytes: self.bytes,
            sha256: self.sha256.clone(),
        }
    }
}

/// `features.json`: the finished shards, and whether they are all there is. Until then some may be lost, between others that are there.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FeatureIndex {
    pub(super) version: u32,
    pub(super) complete: bool,
    pub(super) header: FeatureHeader,
    /// Which samples these are, where they are not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) part: Option<SampleRange>,
    pub(super) shards: Vec<FeatureShard>,
}

/// A run of samples, of so many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleRange {
    /// The first one.
    pub first: u64,
    /// The one behind the last.
    pub end: u64,
    /// How many there are in all.
    pub all: u64,
}

impl SampleRange {
    /// The range of the part numbered `part`, from 1, of `parts`: as even as whole samples allow, in their order.
    pub fn of_part(part: u64, parts: u64, all: u64) -> Self {
        let place =
            |part: u64| (u128::from(all) * u128::from(part) / u128::from(parts.max(1))) as u64;
        Self {
            first: place(part.saturating_sub(1)),
            end: place(part),
            all,
        }
    }

    /// Whether no sample is in it.
    pub fn is_empty(&self) -> bool {
        self.first >= self.end
    }
}

impl fmt::Display for SampleRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "samples {} to {} of {}",
            self.first, self.end, self.all
        )
    }
}

impl FeatureIndex {
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(INDEX);
        let text = fs::read(&path).map_err(|source| Error::read(&path, source))?;
        let index: Self =
            serde_json::from_slice(&text).map_err(|source| Error::read(&path, source))?;
        if index.version != VERSION {
            return Err(Error::altered(&path, "version", VERSION, index.version));
        }
        let mut first: u64 = index.part.map_or(0, |part| part.first);
        for shard in &index.shards {
            if shard.first != first {
                return Err(Error::altered(
                    &folder.join(&shard.file),
                    "first sample",
                    first,
                    shard.first,
                ));
            }
            let next = first.checked_add(shard.samples);
            first = next.ok_or_else(|| {
                let path = folder.join(&shard.file);
                Error::altered(&path, "samples", "fewer", shard.samples)
            })?;
        }
        Ok(index)
    }

    /// That of a folder that holds all samples.
    pub(super) fn read_whole(folder: &Path) -> Result<Self> {
        let index = Self::read(folder)?;
        if !index.complete {
            return Err(Error::FeaturesUnfinished {
                folder: folder.to_owned(),
                samples: index.on_record().map(|shard| shard.samples).sum(),
            });
        }
        let path = folder.join(INDEX);
        if let Some(part) = index.part {
            let expected = "features of all samples";
            return Err(Error::altered(&path, "part", expected, part));
        }
        if index.shards.is_empty() {
            return Err(Error::altered(&path, "shards", "at least one", 0));
        }
        Ok(index)
    }

    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(INDEX);
        let text = serde_json::to_vec_pretty(self).map_err(|source| Error::write(&path, source))?;
        durable::write_whole(&path, &text).map(drop)
    }

    /// That of a folder in which nothing is written yet.
    pub(super) fn new(header: FeatureHeader, part: Option<SampleRange>) -> Self {
        Self {
            version: VERSION,
            complete: false,
            header,
            part,
            shards: Vec::new(),
        }
    }

    /// The name and the SHA-256 of each shard.
    pub(super) fn named(self) -> Vec<(String, String)> {
        let shards = self.shards.into_iter();
        shards.map(|shard| (shard.file, shard.sha256)).collect()
    }

    /// The shards of which a file is on record.
    pub(super) fn on_record(&self) -> impl Iterator<Item = &FeatureShard> {
        self.shards.iter().filter(|shard| shard.is_on_record())
    }

    /// What is on record of its files in this folder.
    pub(super) fn recorded(&self, folder: &Path) -> Vec<Recorded> {
        self.on_record()
            .map(|shard| shard.recorded(folder))
            .collect()
    }

    /// The number behind that of the last sample.
    pub(super) fn samples(&self) -> u64 {
        let none = self.part.map_or(0, |part| part.first);
        self.shards
            .last()
            .map_or(none, |shard| shard.first + shard.samples)
    }
}

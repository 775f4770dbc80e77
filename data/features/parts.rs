//! Features that several processes captured, each some of the samples, made one folder.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::index::{FeatureHeader, FeatureIndex, INDEX, SampleRange, VERSION, is_ours};
use crate::durable::{self, PendingFile};
use crate::error::{Error, Result};

/// Makes one folder of `parts`, which come in the order of their samples and hold all of them. Their files are linked, or copied
/// where that cannot be, and read once. Returns the name and the SHA-256 of each shard.
///
/// # Errors
/// A part is unfinished, of something else, or not as it was written; or samples are missing or there twice.
pub fn join(parts: &[PathBuf], folder: &Path) -> Result<Vec<(String, String)>> {
    let Some(first) = parts.first() else {
        return Err(Error::NoSamples {
            folder: folder.to_owned(),
        });
    };
    let header = FeatureIndex::read(first)?.header;
    let read = |part: &PathBuf| read(part, &header);
    let indices = parts.iter().map(read).collect::<Result<Vec<_>>>()?;
    check_ranges(parts, &indices)?;
    fs::create_dir_all(folder).map_err(|source| Error::write(folder, source))?;
    durable::remove_files(folder, is_ours)?;
    let mut shards = Vec::new();
    for (part, index) in parts.iter().zip(indices) {
        for mut shard in index.shards {
            let from = part.join(&shard.file);
            durable::verify(&from, &shard.written())?;
            shard.file = format!("features-{:05}.arrow", shards.len());
            let to = folder.join(&shard.file);
            if fs::hard_link(&from, &to).is_err() {
                copy(&from, &to)?;
                durable::verify(&to, &shard.written())?;
            }
            shards.push(shard);
        }
    }
    let joined = FeatureIndex {
        version: VERSION,
        complete: true,
        header,
        part: None,
        shards,
    };
    joined.write(folder)?;
    let shards = joined.shards.into_iter();
    Ok(shards.map(|shard| (shard.file, shard.sha256)).collect())
}

/// The index of a part that is finished.
fn read(part: &Path, header: &FeatureHeader) -> Result<FeatureIndex> {
    let index = FeatureIndex::read(part)?;
    header.require(&index.header, &part.join(INDEX))?;
    let end = index.part.map(|part| part.end);
    if !index.complete || end != Some(index.samples()) {
        return Err(Error::FeaturesUnfinished {
            folder: part.to_owned(),
            samples: index.samples(),
        });
    }
    Ok(index)
}

/// Fails unless each part begins where the one before ends, and the last one ends with the samples.
fn check_ranges(parts: &[PathBuf], indices: &[FeatureIndex]) -> Result<()> {
    let mut next = 0;
    let mut all: Option<u64> = None;
    for (part, index) in parts.iter().zip(indices) {
        let Some(SampleRange { first, .. }) = index.part else {
            return Err(Error::altered(
                &part.join(INDEX),
                "part",
                "a range of samples",
                "all samples",
            ));
        };
        if first != next {
            return Err(Error::altered(
                &part.join(INDEX),
                "first sample",
                next,
                first,
            ));
        }
        let of = index.part.map(|part| part.all);
        if all.is_some() && all != of {
            let expected = "as many samples as in the part before";
            let found = of.unwrap_or_default();
            return Err(Error::altered(
                &part.join(INDEX),
                "samples",
                expected,
                found,
            ));
        }
        all = of;
        next = index.samples();
    }
    match (all, parts.last()) {
        (Some(all), Some(last)) if all != next => {
            Err(Error::altered(&last.join(INDEX), "samples", all, next))
        }
        _ => Ok(()),
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut source = File::open(from).map_err(|source| Error::read(from, source))?;
    let mut file = PendingFile::create(to)?;
    io::copy(&mut source, &mut file).map_err(|source| Error::write(to, source))?;
    file.commit().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::{FeatureShards, FeatureWriter, StoredSample};

    fn header() -> FeatureHeader {
        FeatureHeader {
            target_sha256: "t".into(),
            captured_layers: vec![1],
            d_model: 2,
            tokens_fingerprint: "f".into(),
        }
    }

    /// Writes the samples of a range, of which sample `n` has `n + 1` tokens.
    fn write(mut writer: FeatureWriter, end: u64) {
        for number in writer.next_sample()..end {
            let (seq, bits) = (number as usize + 1, number as u16);
            writer
                .push(&StoredSample {
                    tokens: &vec![number as u32; seq],
                    loss_mask: &vec![1; seq],
                    captured: &vec![bits; 2 * seq],
                    last: &vec![bits + 100; 2 * seq],
                })
                .unwrap();
        }
        writer.finish().unwrap();
    }

    fn parts(root: &Path, of: u64, all: u64) -> Vec<PathBuf> {
        let part = |number: u64| {
            let folder = root.join(format!("{number}-{of}"));
            let range = SampleRange::of_part(number, of, all);
            write(
                FeatureWriter::open_part(&folder, header(), 2, range).unwrap(),
                range.end,
            );
            folder
        };
        (1..=of).map(part).collect()
    }

    #[test]
    fn parts_hold_every_sample_once_however_many_there_are() {
        for (of, all) in [(1, 5), (3, 10), (4, 10), (7, 3), (16, 1000)] {
            let ranges: Vec<_> = (1..=of)
                .map(|part| SampleRange::of_part(part, of, all))
                .collect();
            assert_eq!((ranges[0].first, ranges[of as usize - 1].end), (0, all));
            assert!(
                ranges
                    .array_windows()
                    .all(|[one, two]| one.end == two.first)
            );
            let sizes = ranges.iter().map(|range| range.end - range.first);
            assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
        }
    }

    #[test]
    fn joined_parts_are_what_one_writer_writes() {
        let root = tempfile::tempdir().unwrap();
        let (joined, whole) = (root.path().join("joined"), root.path().join("whole"));
        join(&parts(root.path(), 3, 10), &joined).unwrap();
        write(FeatureWriter::open(&whole, header(), 2).unwrap(), 10);
        let [joined, whole] = [joined, whole].map(|folder| FeatureShards::open(folder).unwrap());
        assert_eq!((joined.len(), whole.len()), (10, 10));
        for sample in 0..10 {
            assert_eq!(joined.get(sample), whole.get(sample));
        }
    }

    #[test]
    fn parts_that_are_not_all_there_is_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let (out, all) = (root.path().join("out"), parts(root.path(), 3, 10));
        let told = |parts: &[PathBuf]| join(parts, &out).unwrap_err().to_string();
        assert!(told(&all[..2]).contains("samples: expected 10, found 6"));
        assert!(told(&all[1..]).contains("first sample: expected 0, found 3"));
        let twice = [&all[..2], &all[1..]].concat();
        assert!(told(&twice).contains("first sample: expected 6, found 3"));
        let mixed = [&all[..1], &parts(root.path(), 2, 6)[1..]].concat();
        assert!(told(&mixed).contains("as many samples as in the part before"));
        let other = FeatureHeader {
            target_sha256: "other".into(),
            ..header()
        };
        let folder = root.path().join("other");
        let range = SampleRange::of_part(2, 3, 10);
        write(
            FeatureWriter::open_part(&folder, other, 2, range).unwrap(),
            range.end,
        );
        let message = told(&[all[0].clone(), folder, all[2].clone()]);
        assert!(message.contains("target_sha256"), "{message}");
        let path = all[1].join("features-00000.arrow");
        let mut bytes = fs::read(&path).unwrap();
        bytes[100] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(told(&all).contains("sha256"));
        fs::remove_file(&path).unwrap();
        assert!(told(&all).contains("features-00000.arrow"));
        let alone = FeatureShards::open(&all[0]).unwrap_err().to_string();
        assert!(
            alone.contains("expected features of all samples, found samples 0 to 3 of 10"),
            "{alone}"
        );
        let folder = root.path().join("1-3");
        let range = SampleRange::of_part(1, 4, 10);
        let message = FeatureWriter::open_part(folder, header(), 2, range)
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("samples 0 to 2 of 10, found samples 0 to 3 of 10"),
            "{message}"
        );
    }
}

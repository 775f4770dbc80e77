//! Features that several processes captured, each some of the samples, made one folder.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::index::{
    FeatureHeader, FeatureIndex, FeatureShard, INDEX, SampleRange, VERSION, is_ours, shard_name,
};
use super::recorded::{Recorded, prove};
use crate::durable::{self, PendingFile};
use crate::error::{Error, Result};

/// Bytes that are copied between two questions whether to go on.
const BLOCK: u64 = 64 << 20;

/// A shard of a part, and what it is in the folder of all.
struct Joining {
    from: Recorded,
    shard: FeatureShard,
}

/// Makes one folder of `parts`, which come in the order of their samples and hold all of them. Their files are linked, or copied
/// where that cannot be; what an earlier call has copied stays. Each file has the length on record, and `proof` finds all
/// unaltered; `go_on` is asked before each one, and while it is copied. Returns the name and the SHA-256 of each shard.
///
/// # Errors
/// Those of `proof` and `go_on`. A part is unfinished or of something else; or samples are missing or there twice.
pub fn join<E: From<Error>>(
    parts: &[PathBuf],
    folder: &Path,
    proof: impl FnOnce(&[Recorded]) -> Result<(), E>,
    go_on: &dyn Fn() -> Result<(), E>,
) -> Result<Vec<(String, String)>, E> {
    let Some(first) = parts.first() else {
        let folder = folder.to_owned();
        return Err(Error::NoSamples { folder }.into());
    };
    let header = FeatureIndex::read(first)?.header;
    let read = |part: &PathBuf| read(part, &header);
    let indices = parts.iter().map(read).collect::<Result<Vec<_>>>()?;
    check_ranges(parts, &indices)?;
    fs::create_dir_all(folder).map_err(|source| Error::write(folder, source))?;
    let mut joining = joining(parts, indices);
    let rest = joining.split_off(kept(folder, &header, &joining));
    let kept: Vec<FeatureShard> = joining.into_iter().map(|kept| kept.shard).collect();
    let there = kept.iter().map(|shard| shard.recorded(folder));
    let files: Vec<Recorded> = there
        .chain(rest.iter().map(|each| each.from.clone()))
        .collect();
    prove(&files, proof)?;
    let mut joined = FeatureIndex {
        version: VERSION,
        complete: false,
        header,
        part: None,
        shards: kept,
    };
    // The index stays, of what is kept: a call that is stopped from here on leaves that for the next one.
    joined.write(folder)?;
    durable::remove_files(folder, |name| {
        let is_listed = name == INDEX || joined.shards.iter().any(|shard| shard.file == name);
        is_ours(name) && !is_listed
    })?;
    for Joining { from, shard } in rest {
        go_on()?;
        let to = folder.join(&shard.file);
        let is_linked = fs::hard_link(&from.path, &to).is_ok();
        if !is_linked {
            copy(&from, &to, go_on)?;
        }
        joined.shards.push(shard);
        // A link is made again in no time.
        if !is_linked {
            joined.write(folder)?;
        }
    }
    joined.complete = true;
    joined.write(folder)?;
    Ok(joined.named())
}

/// The shards of all parts in their order.
fn joining(parts: &[PathBuf], indices: Vec<FeatureIndex>) -> Vec<Joining> {
    let shards = parts.iter().zip(indices).flat_map(|(part, index)| {
        let shards = index.shards.into_iter();
        shards.map(move |shard| (shard.recorded(part), shard))
    });
    let named = |(number, (from, shard)): (usize, (Recorded, FeatureShard))| {
        let file = shard_name(number);
        let shard = FeatureShard { file, ..shard };
        Joining { from, shard }
    };
    shards.enumerate().map(named).collect()
}

/// How many of these shards, from the first one on, an earlier call has left in the folder.
fn kept(folder: &Path, header: &FeatureHeader, joining: &[Joining]) -> usize {
    // What cannot be read is made anew.
    let Ok(index) = FeatureIndex::read(folder) else {
        return 0;
    };
    if index.part.is_some() || index.header != *header {
        return 0;
    }
    let there = index.shards.iter().zip(joining);
    let is_kept = |(found, wanted): &(&FeatureShard, &Joining)| {
        let path = folder.join(&found.file);
        **found == wanted.shard && durable::check_length(&path, found.bytes).is_ok()
    };
    there.take_while(is_kept).count()
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

/// Copies a shard, which has to have the SHA-256 on record as it is written, while `go_on` says so.
fn copy<E: From<Error>>(
    from: &Recorded,
    to: &Path,
    go_on: &dyn Fn() -> Result<(), E>,
) -> Result<(), E> {
    let source = File::open(&from.path).map_err(|source| Error::read(&from.path, source))?;
    let mut file = PendingFile::create(to)?;
    loop {
        go_on()?;
        let copied = io::copy(&mut (&source).take(BLOCK), &mut file);
        if copied.map_err(|source| Error::write(to, source))? == 0 {
            break;
        }
    }
    let written = file.commit()?;
    Ok(from.check(&written.sha256)?)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use spectrain_checkpoints::hash::sha256_file;

    use super::*;
    use crate::features::recorded::by_reading;
    use crate::features::{FeatureShards, FeatureWriter, StoredSample, StoredType};

    fn header() -> FeatureHeader {
        FeatureHeader {
            target_sha256: "t".into(),
            captured_layers: vec![1],
            d_model: 2,
            tokens_fingerprint: "f".into(),
            dtype: StoredType::Bf16,
        }
    }

    /// Writes the samples of a range, of which sample `n` has `n + 1` tokens.
    fn write(mut writer: FeatureWriter, end: u64) {
        push(&mut writer, end);
        writer.finish().unwrap();
    }

    fn push(writer: &mut FeatureWriter, end: u64) {
        for number in writer.next_sample()..end {
            let (seq, bits) = (number as usize + 1, number as u16);
            writer
                .push(&StoredSample {
                    tokens: &vec![number as u32; seq],
                    loss_mask: &vec![1; seq],
                    captured: (&vec![bits; 2 * seq]).into(),
                    last: (&vec![bits + 100; 2 * seq]).into(),
                })
                .unwrap();
        }
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
        join(&parts(root.path(), 3, 10), &joined, by_reading, &|| Ok(())).unwrap();
        write(FeatureWriter::open(&whole, header(), 2).unwrap(), 10);
        let [joined, whole] = [joined, whole].map(|folder| FeatureShards::open(folder).unwrap());
        assert_eq!((joined.len(), whole.len()), (10, 10));
        for sample in 0..10 {
            assert_eq!(joined.get(sample), whole.get(sample));
        }
    }

    #[test]
    fn what_a_join_that_was_stopped_has_left_stays_and_is_proven() {
        let root = tempfile::tempdir().unwrap();
        let (joined, parts) = (root.path().join("joined"), parts(root.path(), 2, 8));
        // A copy of the first shard, as it is where there are no links.
        let mut writer = FeatureWriter::open(&joined, header(), 2).unwrap();
        push(&mut writer, 2);
        writer.pause().unwrap();
        let file = |folder: &Path, number: usize| folder.join(shard_name(number));
        let mut proven = Vec::new();
        let stopped = join(
            &parts,
            &joined,
            |files| {
                proven.extend(files.iter().map(|file| file.path.clone()));
                by_reading(files)
            },
            &|| {
                let folder = joined.clone();
                Err(Error::NoSamples { folder })
            },
        );
        assert!(matches!(stopped, Err(Error::NoSamples { .. })));
        let expected = [
            file(&joined, 0),
            file(&parts[0], 1),
            file(&parts[1], 0),
            file(&parts[1], 1),
        ];
        assert_eq!(proven, expected);
        fs::remove_file(file(&parts[0], 0)).unwrap();
        join(&parts, &joined, by_reading, &|| Ok(())).unwrap();
        assert_eq!(FeatureShards::open(&joined).unwrap().len(), 8);
    }

    #[test]
    fn a_copy_that_is_stopped_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let [path, to] = ["from", "to"].map(|name| root.path().join(name));
        fs::write(&path, "a shard").unwrap();
        let from = Recorded {
            sha256: sha256_file(&path).unwrap(),
            bytes: 7,
            path,
        };
        let asked = Cell::new(0);
        let stopped = copy(&from, &to, &|| {
            asked.set(asked.get() + 1);
            match asked.get() {
                1 => Ok(()),
                _ => Err(Error::NoSamples { folder: to.clone() }),
            }
        });
        // Again behind the first block, which is all of it.
        assert!(matches!(stopped, Err(Error::NoSamples { .. })));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
        copy(&from, &to, &|| Ok::<(), Error>(())).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"a shard");
    }

    #[test]
    fn parts_that_are_not_all_there_is_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let (out, all) = (root.path().join("out"), parts(root.path(), 3, 10));
        let told = |parts: &[PathBuf]| {
            let joined = join(parts, &out, by_reading, &|| Ok(()));
            joined.unwrap_err().to_string()
        };
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

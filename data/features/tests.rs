use std::fs;

use spectrain_checkpoints::hash::sha256_bytes;

use super::index::{INDEX, VERSION};
use super::*;
use crate::durable;
use crate::forged::refusals;

/// A sample with its numbers made from its own number.
struct Owned {
    tokens: Vec<u32>,
    loss_mask: Vec<u8>,
    captured: Vec<u16>,
    last: Vec<u16>,
}

impl Owned {
    fn new(number: usize) -> Self {
        let seq = 1 + number % 4;
        Self {
            tokens: (0..seq).map(|at| (number * 10 + at) as u32).collect(),
            loss_mask: (0..seq).map(|at| (at % 2) as u8).collect(),
            captured: (0..seq * 2 * 3)
                .map(|at| (number * 100 + at) as u16)
                .collect(),
            last: (0..seq * 3).map(|at| (number * 1000 + at) as u16).collect(),
        }
    }

    fn view(&self) -> StoredSample<'_> {
        StoredSample {
            tokens: &self.tokens,
            loss_mask: &self.loss_mask,
            captured: (&self.captured).into(),
            last: (&self.last).into(),
        }
    }
}

fn header() -> FeatureHeader {
    FeatureHeader {
        target_sha256: "aa".to_owned(),
        captured_layers: vec![1, 4],
        d_model: 3,
        tokens_fingerprint: "bb".to_owned(),
        dtype: StoredType::Bf16,
    }
}

fn write(folder: &Path, samples: std::ops::Range<usize>) -> FeatureWriter {
    let mut writer = FeatureWriter::open(folder, header(), 3).unwrap();
    for number in samples {
        assert_eq!(writer.next_sample(), number as u64);
        writer.push(&Owned::new(number).view()).unwrap();
    }
    writer
}

fn assert_samples(folder: &Path, count: usize) {
    let shards = FeatureShards::open(folder).unwrap();
    assert_eq!(shards.len(), count);
    for number in 0..count {
        assert_eq!(shards.get(number), Owned::new(number).view());
    }
}

fn open_error(folder: &Path) -> String {
    FeatureShards::open(folder).unwrap_err().to_string()
}

#[test]
fn a_writer_tells_of_the_shards_that_it_has_written_itself() {
    let folder = tempfile::tempdir().unwrap();
    let told = |samples: std::ops::Range<usize>| {
        let written = write(folder.path(), samples).pause().unwrap();
        for shard in &written {
            let path = folder.path().join(&shard.file);
            assert_eq!(shard.sha256, sha256_bytes(&fs::read(&path).unwrap()));
            let data = fs::metadata(&path).unwrap();
            assert_eq!(shard.look.len(), data.len());
            assert_eq!(shard.look.modified().unwrap(), data.modified().unwrap());
        }
        written.into_iter().map(|shard| shard.file)
    };
    let first = told(0..4).collect::<Vec<_>>();
    assert_eq!(first, ["features-00000.arrow", "features-00001.arrow"]);
    assert!(told(4..8).eq(["features-00002.arrow", "features-00003.arrow"]));
    assert_eq!(told(8..8).count(), 0);
}

#[test]
fn features_come_back_as_they_went_in_across_shards() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 0..8).finish().unwrap();
    assert_samples(folder.path(), 8);
    let shards = FeatureShards::open(folder.path()).unwrap();
    assert_eq!(shards.lengths(), [1, 2, 3, 4, 1, 2, 3, 4]);
    assert_eq!(shards.header(), &header());
    assert!(folder.path().join("features-00002.arrow").exists());
}

#[test]
fn a_killed_run_goes_on_without_losing_or_repeating_a_sample() {
    let folder = tempfile::tempdir().unwrap();
    // Killed with two samples in an unfinished shard: nothing of the writer's own clean-up runs.
    std::mem::forget(write(folder.path(), 0..5));
    assert!(folder.path().join("features-00001.arrow.tmp").exists());
    assert!(open_error(folder.path()).contains("unfinished"));
    // Killed between the rename of a shard and its line in the index.
    let shard = folder.path().join("features-00000.arrow");
    fs::copy(&shard, folder.path().join("features-00001.arrow")).unwrap();

    let writer = FeatureWriter::open(folder.path(), header(), 3).unwrap();
    assert_eq!(writer.next_sample(), 3);
    assert!(!folder.path().join("features-00001.arrow.tmp").exists());
    drop(writer);
    write(folder.path(), 3..7).finish().unwrap();
    assert_samples(folder.path(), 7);

    let whole = tempfile::tempdir().unwrap();
    write(whole.path(), 0..7).finish().unwrap();
    let fingerprint = |folder: &Path| FeatureShards::open(folder).unwrap().fingerprint();
    assert_eq!(fingerprint(whole.path()), fingerprint(folder.path()));
}

#[test]
fn a_paused_writer_loses_not_even_the_samples_of_its_open_shard() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 0..5).pause().unwrap();
    let mut writer = FeatureWriter::open(folder.path(), header(), 3).unwrap();
    assert_eq!(writer.next_sample(), 5);
    for number in 5..8 {
        writer.push(&Owned::new(number).view()).unwrap();
    }
    writer.finish().unwrap();
    assert_samples(folder.path(), 8);
}

#[test]
fn the_samples_of_an_unfinished_folder_are_known() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 0..5).pause().unwrap();
    let writer = FeatureWriter::open(folder.path(), header(), 3).unwrap();
    let mut number = 0;
    let each = writer.each_sample(&mut |found, sample| {
        assert_eq!((found, sample), (number as u64, Owned::new(number).view()));
        number += 1;
        Ok::<(), Error>(())
    });
    each.unwrap();
    assert_eq!(number, 5);
    // Whoever has seen enough sees no more.
    let mut seen = 0;
    let each = writer.each_sample(&mut |_, _| {
        seen += 1;
        Err(Error::NoSamples {
            folder: folder.path().to_owned(),
        })
    });
    assert!(matches!(each, Err(Error::NoSamples { .. })));
    assert_eq!(seen, 1);
}

#[test]
fn another_header_is_refused_by_key() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 0..3).finish().unwrap();
    let other = FeatureHeader {
        captured_layers: vec![1, 5],
        ..header()
    };
    let message = FeatureWriter::open(folder.path(), other.clone(), 3)
        .err()
        .unwrap()
        .to_string();
    assert!(
        message.contains("`captured_layers`: expected [1, 5], found [1, 4]"),
        "{message}"
    );
    let shards = FeatureShards::open(folder.path()).unwrap();
    assert_eq!(shards.require(&other).unwrap_err().to_string(), message);
    shards.require(&header()).unwrap();
}

#[test]
fn a_truncated_or_altered_shard_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 0..6).finish().unwrap();
    let path = folder.path().join("features-00001.arrow");
    let content = fs::read(&path).unwrap();
    fs::write(&path, &content[..content.len() / 2]).unwrap();
    let expected = format!(
        "bytes: expected {}, found {}",
        content.len(),
        content.len() / 2
    );
    let message = open_error(folder.path());
    assert!(
        message.contains("features-00001.arrow") && message.contains(&expected),
        "{message}"
    );
    let message = FeatureWriter::open(folder.path(), header(), 3)
        .err()
        .unwrap()
        .to_string();
    assert!(
        message.contains("features-00001.arrow") && message.contains(&expected),
        "{message}"
    );

    let mut altered = content.clone();
    altered[content.len() / 2] ^= 1;
    fs::write(&path, &altered).unwrap();
    let message = open_error(folder.path());
    assert!(
        message.contains("features-00001.arrow") && message.contains("sha256: expected"),
        "{message}"
    );

    let message = FeatureWriter::open(folder.path(), header(), 3)
        .err()
        .unwrap()
        .to_string();
    assert!(message.contains("sha256: expected"), "{message}");

    fs::remove_file(&path).unwrap();
    assert!(open_error(folder.path()).contains("features-00001.arrow"));
}

#[test]
fn whoever_knows_the_shards_proves_them_without_reading_any() {
    let folder = tempfile::tempdir().unwrap();
    let written = write(folder.path(), 0..8).finish().unwrap();
    // What is on record is another hash than the shard's own, so that it shows who reads it.
    let WrittenShard {
        file: name, sha256, ..
    } = &written[1];
    let text = fs::read_to_string(folder.path().join(INDEX)).unwrap();
    fs::write(folder.path().join(INDEX), text.replace(sha256, "known")).unwrap();
    assert!(open_error(folder.path()).contains("sha256: expected known"));
    let proof = |files: &[Recorded]| {
        assert_eq!(files.len(), 3);
        assert_eq!(files[1].path, folder.path().join(name));
        files[1].check("known")
    };
    let shards = FeatureShards::open_with(folder.path(), proof).unwrap();
    assert_eq!(shards.get(4), Owned::new(4).view());
    let files = shards.files_of([7, 0, 2, 6]);
    let names = files.iter().map(|file| file.path.file_name().unwrap());
    assert!(names.eq(["features-00000.arrow", "features-00002.arrow"]));
    assert!(shards.files_of([]).is_empty());
    let writer = FeatureWriter::open_with(folder.path(), header(), 3, None, proof).unwrap();
    assert_eq!(writer.next_sample(), 8);
    drop(writer);
    let refused = FeatureShards::open_with(folder.path(), |files| files[1].check("other"));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains(name.as_str()), "{refused}");
    // One of another length is nobody's.
    let path = folder.path().join(name);
    let content = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, &content[1..]).unwrap();
    let refused = FeatureShards::open_with(folder.path(), proof).unwrap_err();
    assert!(refused.to_string().contains("bytes: expected"), "{refused}");
}

/// What a writer finds in a folder.
fn reopen(folder: &Path) -> FeatureWriter {
    FeatureWriter::open(folder, header(), 3).unwrap()
}

/// The name and the hash of each of these shards.
fn named(written: &[WrittenShard]) -> Vec<(String, String)> {
    let named = |shard: &WrittenShard| (shard.file.clone(), shard.sha256.clone());
    written.iter().map(named).collect()
}

/// Pushes what a writer misses of so many samples.
fn fill(writer: &mut FeatureWriter, count: u64) {
    for number in writer.missing(count).into_iter().flatten() {
        assert_eq!(writer.next_sample(), number);
        writer.push(&Owned::new(number as usize).view()).unwrap();
    }
}

/// Where the shard of this number is.
fn shard(folder: &Path, number: usize) -> PathBuf {
    folder.join(shard_name(number))
}

#[test]
fn a_shard_that_is_gone_is_computed_again_and_no_other_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let written = write(folder, 0..11).finish().unwrap();
    assert_eq!(written.len(), 4);
    for number in [1, 2] {
        fs::remove_file(shard(folder, number)).unwrap();
    }
    // With other sizes than they had.
    let mut writer = FeatureWriter::open(folder, header(), 2).unwrap();
    assert_eq!(writer.amiss().len(), 2);
    assert!(writer.amiss()[0].contains("features-00001.arrow`, of samples 3 to 6, is missing"));
    assert_eq!(writer.missing(12), [3..6, 6..9, 11..12]);
    assert!(open_error(folder).contains("unfinished: they are of 5 samples"));
    for number in 3..5 {
        writer.push(&Owned::new(number).view()).unwrap();
    }
    assert_eq!(writer.missing(11), [5..6, 6..9]);
    // Of one that lies between others all is written or nothing.
    assert_eq!(writer.pause().unwrap().len(), 0);
    let mut writer = reopen(folder);
    assert_eq!((writer.amiss(), writer.next_sample()), (&[][..], 3));
    let mut seen = Vec::new();
    let each = writer.each_sample(&mut |number, sample| {
        assert_eq!(sample, Owned::new(number as usize).view());
        seen.push(number);
        Ok::<(), Error>(())
    });
    each.unwrap();
    assert_eq!(seen, [0, 1, 2, 9, 10]);
    for number in 3..6 {
        writer.push(&Owned::new(number).view()).unwrap();
    }
    let unfinished = writer.finish().unwrap_err();
    assert!(matches!(
        unfinished,
        Error::FeaturesUnfinished { samples: 8, .. }
    ));
    let mut writer = reopen(folder);
    fill(&mut writer, 11);
    assert_eq!(named(&writer.finish().unwrap()), named(&written[2..3]));
    assert_samples(folder, 11);
    // The last one is begun as any new one is.
    fs::remove_file(shard(folder, 3)).unwrap();
    let mut writer = reopen(folder);
    fill(&mut writer, 13);
    writer.finish().unwrap();
    assert_samples(folder, 13);
}

#[test]
fn samples_that_come_in_no_order_end_before_a_shard_that_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, 0..8).finish().unwrap();
    fs::remove_file(shard(folder, 1)).unwrap();
    let mut writer = reopen(folder);
    writer.cut().unwrap();
    assert_eq!(writer.next_sample(), 3);
    assert!(writer.amiss()[1].contains("features-00002.arrow.old-1"));
    assert!(folder.join("features-00002.arrow.old-1").exists());
    fill(&mut writer, 7);
    writer.finish().unwrap();
    assert_samples(folder, 7);
}

#[test]
fn an_index_that_is_gone_or_damaged_is_made_anew_of_its_shards() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let written = write(folder, 0..8).finish().unwrap();
    let index = fs::read(folder.join(INDEX)).unwrap();
    for (old, damaged) in [
        (None, None),
        (Some(1), Some(index[..index.len() / 2].to_vec())),
        (Some(2), Some(b"{}".to_vec())),
        (
            Some(3),
            Some(
                String::from_utf8(index.clone())
                    .unwrap()
                    .replacen("\"first\": 3", "\"first\": 2", 1)
                    .into(),
            ),
        ),
    ] {
        fs::remove_file(folder.join(INDEX)).unwrap();
        if let Some(damaged) = &damaged {
            fs::write(folder.join(INDEX), damaged).unwrap();
        }
        let writer = reopen(folder);
        assert_eq!(writer.missing(8), []);
        let told = writer.amiss().join("\n");
        assert!(
            told.contains("features.json` is made anew of what 3 shards say"),
            "{told}"
        );
        if let Some(old) = old {
            let kept = folder.join(format!("features.json.old-{old}"));
            assert_eq!(Some(fs::read(kept).unwrap()), damaged);
        }
        assert_eq!(named(&writer.finish().unwrap()), []);
        assert_eq!(fs::read(folder.join(INDEX)).unwrap(), index);
        assert_samples(folder, 8);
    }
    assert_eq!(written.len(), 3);
    // One that cannot be opened, or is of another version, may be whole.
    let version = String::from_utf8(index)
        .unwrap()
        .replacen("\"version\": 1", "\"version\": 2", 1);
    fs::write(folder.join(INDEX), &version).unwrap();
    let error = FeatureWriter::open(folder, header(), 3)
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("version: expected 1, found 2"), "{error}");
    assert_eq!(fs::read_to_string(folder.join(INDEX)).unwrap(), version);
}

#[test]
fn without_an_index_only_whole_shards_of_the_same_are_taken_and_none_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let written = write(folder, 0..17).finish().unwrap();
    assert_eq!(written.len(), 6);
    fs::remove_file(folder.join(INDEX)).unwrap();
    // Cut, missing, of other samples than its number says, and of another target.
    let content = fs::read(shard(folder, 1)).unwrap();
    fs::write(shard(folder, 1), &content[..content.len() - 1]).unwrap();
    fs::remove_file(shard(folder, 2)).unwrap();
    fs::copy(shard(folder, 0), shard(folder, 4)).unwrap();
    let other = FeatureHeader {
        target_sha256: "other".to_owned(),
        ..header()
    };
    let foreign = tempfile::tempdir().unwrap();
    let mut writer = FeatureWriter::open(foreign.path(), other, 3).unwrap();
    writer.push(&Owned::new(0).view()).unwrap();
    writer.finish().unwrap();
    fs::copy(shard(foreign.path(), 0), shard(folder, 6)).unwrap();
    let mut writer = reopen(folder);
    assert_eq!(writer.missing(17), [3..6, 6..9, 12..15]);
    let told = writer.amiss().join("\n");
    for number in [1, 4, 6] {
        let old = format!("features-{number:05}.arrow.old-1");
        assert!(told.contains(&old) && folder.join(&old).exists(), "{told}");
    }
    assert!(told.contains("what 3 shards say"), "{told}");
    fill(&mut writer, 17);
    let again = named(&writer.finish().unwrap());
    let before = named(&written);
    assert_eq!(again, [&before[1..3], &before[4..5]].concat());
    assert_samples(folder, 17);
}

#[test]
fn a_part_without_an_index_has_its_own_samples_alone() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("part");
    let part = SampleRange {
        first: 4,
        end: 8,
        all: 12,
    };
    let open = || FeatureWriter::open_part(&folder, header(), 2, part).unwrap();
    let mut writer = open();
    fill(&mut writer, 8);
    writer.finish().unwrap();
    for file in [INDEX, "features-00000.arrow"] {
        fs::remove_file(folder.join(file)).unwrap();
    }
    // Shards of all samples are none of it.
    let all = root.path().join("all");
    write(&all, 0..12).finish().unwrap();
    fs::copy(shard(&all, 3), shard(&folder, 2)).unwrap();
    let mut writer = open();
    assert_eq!(writer.missing(8).first(), Some(&(4..6)));
    assert!(folder.join("features-00002.arrow.old-1").exists());
    fill(&mut writer, 8);
    writer.finish().unwrap();
}

#[test]
fn a_shard_that_no_index_has_on_record_is_kept_aside() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, 0..9).finish().unwrap();
    let mut index = FeatureIndex::read(folder).unwrap();
    index.shards.truncate(1);
    index.write(folder).unwrap();
    let writer = reopen(folder);
    assert_eq!(writer.next_sample(), 3);
    // The next one may have been renamed and not yet entered; no kill leaves two.
    assert!(!shard(folder, 1).exists());
    assert!(folder.join("features-00002.arrow.old-1").exists());
    assert!(writer.amiss()[0].contains("features-00002.arrow.old-1"));
}

#[test]
fn features_of_the_wrong_size_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = write(folder.path(), 0..1);
    let sample = Owned::new(1);
    let short = StoredSample {
        captured: sample.captured[1..].into(),
        ..sample.view()
    };
    let message = writer.push(&short).unwrap_err().to_string();
    assert!(
        message.contains("sample 1: captured features: expected 12, found 11"),
        "{message}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_that_names_the_shard_and_leaves_no_half_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = write(folder.path(), 0..3);
    let path = folder.path().join("features-00001.arrow");
    std::os::unix::fs::symlink("/dev/full", durable::temporary_path(&path)).unwrap();
    let message = (3..6)
        .find_map(|number| writer.push(&Owned::new(number).view()).err())
        .unwrap()
        .to_string();
    assert!(
        message.contains("features-00001.arrow") && message.contains("No space left"),
        "{message}"
    );
    assert_eq!(writer.next_sample(), 3);
    drop(writer);
    assert!(!path.exists() && !durable::temporary_path(&path).exists());
}

/// A header of states in eight bits, wider than a block.
fn int8_header() -> FeatureHeader {
    FeatureHeader {
        d_model: 70,
        dtype: StoredType::Int8,
        ..header()
    }
}

/// A sample of such states: its number, its tokens, and states that differ from channel to channel.
fn int8_sample(number: u32, seq: usize) -> [Vec<u16>; 2] {
    let [captured, last] = int8_header().widths();
    let numbers = |width: usize| {
        let value = |at: usize| {
            let sign = if at.is_multiple_of(3) { -1.0 } else { 1.0 };
            let size = 1.0 + (at * 7 + number as usize) as f32 % 11.0;
            sign * size
                * if (at % width).is_multiple_of(13) {
                    50.0
                } else {
                    1.0
                }
        };
        let bits = (0..seq * width).map(|at| (value(at).to_bits() >> 16) as u16);
        bits.collect()
    };
    [numbers(captured), numbers(last)]
}

fn write_int8(folder: &Path, lengths: &[usize]) -> FeatureWriter {
    let mut writer = FeatureWriter::open(folder, int8_header(), 2).unwrap();
    for (number, &seq) in (0..).zip(lengths) {
        let [captured, last] = int8_sample(number, seq);
        let sample = StoredSample {
            tokens: &vec![number; seq],
            loss_mask: &vec![1; seq],
            captured: (&captured).into(),
            last: (&last).into(),
        };
        writer.push(&sample).unwrap();
    }
    writer
}

#[test]
fn states_in_eight_bits_are_read_as_they_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let lengths = [5, 1, 300];
    write_int8(folder.path(), &lengths).finish().unwrap();
    let shards = FeatureShards::open(folder.path()).unwrap();
    assert_eq!(shards.lengths(), lengths);
    let read_back = |bits: &[u16], width| {
        let read = StoredType::Int8.read_back(bits, width);
        read.unwrap().into_owned()
    };
    for (number, &seq) in (0..).zip(&lengths) {
        let stored = shards.get(number as usize);
        let [captured, last] = int8_sample(number, seq);
        let widths = int8_header().widths();
        assert_eq!(*stored.captured.bits(), read_back(&captured, widths[0]));
        assert_eq!(*stored.last.bits(), read_back(&last, widths[1]));
        assert_ne!(*stored.last.bits(), last, "eight bits are fewer");
    }
    // What is not written so is refused by name, and so is what no integer is of.
    let other = FeatureHeader {
        dtype: StoredType::Bf16,
        ..int8_header()
    };
    let refused = shards.require(&other).unwrap_err().to_string();
    assert!(
        refused.contains("`dtype`: expected bf16, found int8"),
        "{refused}"
    );
    let mut writer = write_int8(&folder.path().join("none"), &lengths[..1]);
    let [captured, mut last] = int8_sample(1, 1);
    last[3] = 0x7fc0;
    let sample = StoredSample {
        tokens: &[1],
        loss_mask: &[1],
        captured: (&captured).into(),
        last: (&last).into(),
    };
    let refused = writer.push(&sample).unwrap_err().to_string();
    assert!(
        refused.contains("sample 1: hidden states: expected numbers"),
        "{refused}"
    );
    assert_eq!(writer.next_sample(), 1, "what was there is still there");
}

#[test]
fn disk_estimates_count_every_number() {
    assert_eq!(disk_bytes(10, 3, 8, StoredType::Bf16), 10 * (4 * 8 * 2 + 5));
    for dtype in [StoredType::Bf16, StoredType::Int8] {
        let folder = tempfile::tempdir().unwrap();
        let header = FeatureHeader {
            d_model: 256,
            dtype,
            ..header()
        };
        let mut writer = FeatureWriter::open(folder.path(), header, 3).unwrap();
        let (tokens, loss_mask, numbers) = (vec![0; 400], vec![0; 400], vec![0; 400 * 256 * 2]);
        let sample = StoredSample {
            tokens: &tokens,
            loss_mask: &loss_mask,
            captured: (&numbers).into(),
            last: numbers[..400 * 256].into(),
        };
        writer.push(&sample).unwrap();
        writer.finish().unwrap();
        let shard = folder.path().join("features-00000.arrow");
        let written = fs::metadata(shard).unwrap().len() as f64;
        let estimate = disk_bytes(400, 2, 256, dtype) as f64;
        assert!(
            (written / estimate - 1.0).abs() < 0.03,
            "{dtype:?}: {written} {estimate}"
        );
    }
}

#[test]
fn a_forged_shard_with_the_right_checksum_is_an_error_and_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 0..1).finish().unwrap();
    assert_forgeries_are_refused(folder.path());
    let folder = tempfile::tempdir().unwrap();
    write_int8(folder.path(), &[2]).finish().unwrap();
    assert_forgeries_are_refused(folder.path());
}

fn assert_forgeries_are_refused(folder: &Path) {
    let shard = folder.join("features-00000.arrow");
    let whole = fs::read(&shard).unwrap();
    let text = fs::read_to_string(folder.join(INDEX)).unwrap();
    let checksum = |bytes: &[u8]| sha256_bytes(bytes);
    let messages = refusals(&whole, 300, |bytes| {
        // Another file each time: one that is mapped is not to be written to.
        fs::remove_file(&shard).unwrap();
        fs::write(&shard, &bytes).unwrap();
        let text = text.replace(&checksum(&whole), &checksum(&bytes));
        fs::write(folder.join(INDEX), text).unwrap();
        FeatureShards::open(folder).map(|shards| {
            let samples = (0..shards.len()).map(|sample| shards.get(sample));
            samples.for_each(|sample| drop((sample.captured.bits(), sample.last.bits())));
        })
    });
    assert!(
        messages
            .iter()
            .all(|message| message.contains("features-00000.arrow"))
    );
}

#[test]
fn features_without_shards_are_an_error_to_write_and_to_read() {
    let folder = tempfile::tempdir().unwrap();
    let error = write(folder.path(), 0..0).finish().unwrap_err();
    assert!(matches!(error, Error::NoSamples { .. }), "{error}");
    let index = FeatureIndex {
        part: None,
        version: VERSION,
        complete: true,
        header: header(),
        shards: Vec::new(),
    };
    index.write(folder.path()).unwrap();
    let error = FeatureShards::open(folder.path()).unwrap_err().to_string();
    assert!(
        error.ends_with("shards: expected at least one, found 0"),
        "{error}"
    );
}

#[test]
fn an_index_whose_counts_overflow_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 0..4).finish().unwrap();
    let path = folder.path().join(INDEX);
    let text = fs::read_to_string(&path).unwrap();
    let many = format!("\"samples\": {}", u64::MAX);
    fs::write(
        &path,
        text.replace("\"samples\": 3", &many)
            .replace("\"first\": 3", &format!("\"first\": {}", u64::MAX)),
    )
    .unwrap();
    let error = FeatureShards::open(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("features-00001.arrow") && error.contains("samples: expected fewer"),
        "{error}"
    );
}

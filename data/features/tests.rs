use std::fs;

use spectrain_checkpoints::hash::sha256_bytes;

use super::index::VERSION;
use super::*;
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
            captured: &self.captured,
            last: &self.last,
        }
    }
}

fn header() -> FeatureHeader {
    FeatureHeader {
        target_sha256: "aa".to_owned(),
        captured_layers: vec![1, 4],
        d_model: 3,
        tokens_fingerprint: "bb".to_owned(),
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
    let each = writer.each_sample(&mut |sample| {
        assert_eq!(sample, Owned::new(number).view());
        number += 1;
        Ok::<(), Error>(())
    });
    each.unwrap();
    assert_eq!(number, 5);
    // Whoever has seen enough sees no more.
    let mut seen = 0;
    let each = writer.each_sample(&mut |_| {
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

#[test]
fn a_shard_that_is_gone_is_computed_again_with_those_behind_it() {
    let folder = tempfile::tempdir().unwrap();
    let written = write(folder.path(), 0..8).finish().unwrap();
    assert_eq!(written.len(), 3);
    fs::remove_file(folder.path().join("features-00001.arrow")).unwrap();
    let mut writer = FeatureWriter::open(folder.path(), header(), 3).unwrap();
    assert_eq!(writer.next_sample(), 3);
    assert!(!folder.path().join("features-00002.arrow").exists());
    assert!(open_error(folder.path()).contains("unfinished"));
    for number in 3..8 {
        writer.push(&Owned::new(number).view()).unwrap();
    }
    let again = writer.finish().unwrap();
    let named = |shard: &WrittenShard| (shard.file.clone(), shard.sha256.clone());
    assert!(again.iter().map(named).eq(written[1..].iter().map(named)));
    assert_samples(folder.path(), 8);
}

#[test]
fn features_of_the_wrong_size_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = write(folder.path(), 0..1);
    let sample = Owned::new(1);
    let short = StoredSample {
        captured: &sample.captured[1..],
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

#[test]
fn disk_estimates_count_two_bytes_for_every_number() {
    assert_eq!(disk_bytes(10, 3, 8), 10 * (4 * 8 * 2 + 5));
    let folder = tempfile::tempdir().unwrap();
    let mut writer = FeatureWriter::open(
        folder.path(),
        FeatureHeader {
            d_model: 256,
            ..header()
        },
        3,
    )
    .unwrap();
    let (tokens, loss_mask, numbers) = (vec![0; 100], vec![0; 100], vec![0; 100 * 256 * 2]);
    let last = &numbers[..100 * 256];
    writer
        .push(&StoredSample {
            tokens: &tokens,
            loss_mask: &loss_mask,
            captured: &numbers,
            last,
        })
        .unwrap();
    writer.finish().unwrap();
    let written = fs::metadata(folder.path().join("features-00000.arrow"))
        .unwrap()
        .len() as f64;
    let estimate = disk_bytes(100, 2, 256) as f64;
    assert!(
        (written / estimate - 1.0).abs() < 0.03,
        "{written} {estimate}"
    );
}

#[test]
fn a_forged_shard_with_the_right_checksum_is_an_error_and_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 0..1).finish().unwrap();
    let shard = folder.path().join("features-00000.arrow");
    let whole = fs::read(&shard).unwrap();
    let text = fs::read_to_string(folder.path().join(INDEX)).unwrap();
    let checksum = |bytes: &[u8]| sha256_bytes(bytes);
    let messages = refusals(&whole, 300, |bytes| {
        // Another file each time: one that is mapped is not to be written to.
        fs::remove_file(&shard).unwrap();
        fs::write(&shard, &bytes).unwrap();
        let text = text.replace(&checksum(&whole), &checksum(&bytes));
        fs::write(folder.path().join(INDEX), text).unwrap();
        FeatureShards::open(folder.path()).map(drop)
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

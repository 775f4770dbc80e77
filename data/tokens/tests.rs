use spectrain_checkpoints::hash::sha256_bytes;

use super::*;
use crate::forged::refusals;

fn sample(first: u32, length: u32) -> Sample {
    Sample {
        tokens: (first..first + length).collect(),
        loss_mask: (0..length).map(|at| at % 3 != 0).collect(),
    }
}

fn write(folder: &Path, lengths: &[u32], tokens_per_shard: usize) -> TokenIndex {
    let mut writer = TokenWriter::create(folder, tokens_per_shard).unwrap();
    for (number, &length) in lengths.iter().enumerate() {
        writer
            .push(&sample(number as u32 * 100_000, length))
            .unwrap();
    }
    let extra = serde_json::json!({ "tokenizer": "abc" });
    writer.finish(extra.as_object().unwrap().clone()).unwrap()
}

#[test]
fn samples_come_back_as_they_went_in_across_shards() {
    let folder = tempfile::tempdir().unwrap();
    let lengths = [5, 1, 9, 4, 7];
    let index = write(folder.path(), &lengths, 10);
    assert_eq!(index.shards.len(), 2);
    assert_eq!((index.samples, index.tokens), (5, 26));
    let shards = TokenShards::open(folder.path()).unwrap();
    assert_eq!(shards.lengths(), [5, 1, 9, 4, 7]);
    for (number, &length) in lengths.iter().enumerate() {
        let expected = sample(number as u32 * 100_000, length);
        let mask: Vec<u8> = expected
            .loss_mask
            .iter()
            .map(|&trained| u8::from(trained))
            .collect();
        assert_eq!(
            shards.get(number),
            SampleView {
                tokens: &expected.tokens,
                loss_mask: &mask
            }
        );
    }
    assert_eq!(shards.index().extra["tokenizer"], "abc");
    assert_eq!(
        shards.index().trained_tokens,
        shards
            .iter()
            .flat_map(|view| view.loss_mask)
            .map(|&m| u64::from(m))
            .sum::<u64>()
    );
}

#[test]
fn of_some_samples_the_shards_that_hold_them_are_read_alone() {
    let folder = tempfile::tempdir().unwrap();
    let lengths = [5, 5, 9, 1, 4, 6, 10];
    let index = write(folder.path(), &lengths, 10);
    assert_eq!(index.shards.len(), 4);
    let all = TokenShards::open(folder.path()).unwrap();
    // Those of other shards are not looked at.
    for shard in ["tokens-00000.parquet", "tokens-00003.parquet"] {
        fs::write(folder.path().join(shard), "else").unwrap();
    }
    let some = |wanted: Range<usize>| TokenShards::open_some(folder.path(), |_| wanted);
    let found = some(3..5).unwrap();
    assert_eq!(found.len(), 7);
    assert_eq!(found.lengths(), [0, 0, 9, 1, 4, 6, 0]);
    assert_eq!(found.fingerprint(), all.fingerprint());
    for sample in 2..6 {
        assert_eq!(found.get(sample), all.get(sample));
    }
    assert_eq!(some(4..6).unwrap().lengths(), [0, 0, 0, 0, 4, 6, 0]);
    assert_eq!(some(2..2).unwrap().lengths(), [0; 7]);
    for wanted in [1..3, 5..7, 0..7] {
        assert!(some(wanted).is_err());
    }
}

#[test]
fn memory_is_taken_for_the_tokens_that_are_there_and_for_no_more() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[700; 9], 1000);
    let Columns {
        tokens,
        loss_mask,
        ends,
    } = TokenShards::open(folder.path()).unwrap().columns;
    assert_eq!((tokens.capacity(), loss_mask.capacity()), (6300, 6300));
    assert_eq!(ends.capacity(), 9);
    let bytes = size_of_val(&tokens[..]) + size_of_val(&loss_mask[..]);
    assert_eq!(bytes as u64, 6300 * BYTES_PER_TOKEN);
}

#[test]
fn an_index_of_more_tokens_than_memory_can_have_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut index = write(folder.path(), &[5], 100);
    index.shards[0].tokens = 1 << 62;
    index.tokens = 1 << 62;
    let text = serde_json::to_vec(&index).unwrap();
    fs::write(folder.path().join(INDEX), text).unwrap();
    let message = TokenShards::open(folder.path()).unwrap_err().to_string();
    let expected = "tokens: expected as many as there is memory for, found 4611686018427387904";
    assert!(
        message.contains(INDEX) && message.contains(expected),
        "{message}"
    );
}

#[test]
fn texts_come_one_after_the_other_until_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[5, 1, 9, 4, 7], 10);
    let shards = TokenShards::open(folder.path()).unwrap();
    let expected: Vec<Vec<u32>> = shards.iter().map(|view| view.tokens.to_vec()).collect();
    let mut found: Vec<Vec<u32>> = Vec::new();
    let mut until = |most: usize| {
        found.clear();
        let ended = each_text(folder.path(), &mut |tokens| {
            if found.len() == most {
                let folder = folder.path().to_owned();
                return Err(Error::NoSamples { folder });
            }
            found.push(tokens.to_vec());
            Ok(())
        });
        (ended.is_ok(), found.clone())
    };
    assert_eq!(until(5), (true, expected.clone()));
    assert_eq!(until(3), (false, expected[..3].to_vec()));
    let shard = folder.path().join("tokens-00001.parquet");
    fs::write(&shard, "PAR1").unwrap();
    let ended: Result<()> = each_text(folder.path(), &mut |_| Ok(()));
    let message = ended.unwrap_err().to_string();
    assert!(message.contains("tokens-00001.parquet"), "{message}");
}

#[test]
fn equal_samples_have_equal_fingerprints_and_others_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let first = write(folder.path(), &[3, 4], 100).fingerprint();
    assert_eq!(write(folder.path(), &[3, 4], 100).fingerprint(), first);
    assert_ne!(write(folder.path(), &[3, 5], 100).fingerprint(), first);
}

#[test]
fn a_truncated_or_altered_shard_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[50, 60], 50);
    let path = folder.path().join("tokens-00001.parquet");
    let content = fs::read(&path).unwrap();
    fs::write(&path, &content[..content.len() - 1]).unwrap();
    let message = TokenShards::open(folder.path()).unwrap_err().to_string();
    let expected = format!(
        "bytes: expected {}, found {}",
        content.len(),
        content.len() - 1
    );
    assert!(
        message.contains("tokens-00001.parquet") && message.contains(&expected),
        "{message}"
    );

    let mut altered = content.clone();
    altered[content.len() / 2] ^= 1;
    fs::write(&path, &altered).unwrap();
    let message = TokenShards::open(folder.path()).unwrap_err().to_string();
    assert!(
        message.contains("tokens-00001.parquet") && message.contains("sha256: expected"),
        "{message}"
    );
}

#[test]
fn a_wrong_row_count_in_the_index_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut index = write(folder.path(), &[5, 6], 100);
    index.shards[0].samples = 3;
    index.samples = 3;
    fs::write(
        folder.path().join(INDEX),
        serde_json::to_vec(&index).unwrap(),
    )
    .unwrap();
    let message = TokenShards::open(folder.path()).unwrap_err().to_string();
    assert!(
        message.contains("tokens-00000.parquet") && message.contains("rows: expected 3, found 2"),
        "{message}"
    );
}

#[test]
fn an_index_with_shards_left_out_twice_or_in_another_order_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let index = write(folder.path(), &[5, 5, 5], 5);
    let last = index.shards[2].clone();
    let refused = |change: &dyn Fn(&mut TokenIndex)| {
        let mut changed = index.clone();
        change(&mut changed);
        let text = serde_json::to_vec(&changed).unwrap();
        fs::write(folder.path().join(INDEX), text).unwrap();
        TokenShards::open(folder.path()).unwrap_err().to_string()
    };
    for (change, expected) in [
        (
            &(|index: &mut TokenIndex| index.shards.truncate(2)) as &dyn Fn(&mut TokenIndex),
            "samples: expected 3, found 2",
        ),
        (
            &|index| index.shards.push(last.clone()),
            "file: expected tokens-00003.parquet, found tokens-00002.parquet",
        ),
        (
            &|index| index.shards.swap(0, 1),
            "file: expected tokens-00000.parquet, found tokens-00001.parquet",
        ),
        (
            &|index| index.shards[1].file = "../tokens-00001.parquet".into(),
            "found ../tokens-00001.parquet",
        ),
        (
            &|index| index.shards[1].tokens = u64::MAX,
            "tokens: expected 15",
        ),
        (
            &|index| index.trained_tokens += 1,
            "trained_tokens: expected 10, found 9",
        ),
    ] {
        let message = refused(change);
        assert!(
            message.contains(INDEX) && message.contains(expected),
            "{message}"
        );
    }
}

#[test]
fn an_unfinished_folder_does_not_open() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[5, 6], 5);
    let mut writer = TokenWriter::create(folder.path(), 5).unwrap();
    writer.push(&sample(0, 5)).unwrap();
    drop(writer);
    let message = TokenShards::open(folder.path()).unwrap_err().to_string();
    assert!(message.contains(INDEX), "{message}");
    assert!(!folder.path().join("tokens-00001.parquet").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_that_names_the_shard_and_leaves_no_half_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = TokenWriter::create(folder.path(), 5).unwrap();
    let path = folder.path().join("tokens-00000.parquet");
    std::os::unix::fs::symlink("/dev/full", durable::temporary_path(&path)).unwrap();
    let message = writer.push(&sample(0, 5)).unwrap_err().to_string();
    assert!(
        message.contains("tokens-00000.parquet") && message.contains("No space left"),
        "{message}"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_sample_without_tokens_or_with_a_short_mask_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = TokenWriter::create(folder.path(), 5).unwrap();
    assert!(
        writer
            .push(&Sample {
                tokens: vec![],
                loss_mask: vec![]
            })
            .is_err()
    );
    let message = writer
        .push(&Sample {
            tokens: vec![1, 2],
            loss_mask: vec![true],
        })
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("loss mask: expected 2, found 1"),
        "{message}"
    );
    assert!(matches!(
        writer.finish(serde_json::Map::new()),
        Err(Error::NoSamples { .. })
    ));
}

#[test]
fn a_forged_shard_with_the_right_checksum_is_an_error_and_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let index = write(folder.path(), &[5, 1, 9, 4, 7], 100);
    let shard = folder.path().join(&index.shards[0].file);
    let text = fs::read_to_string(folder.path().join(INDEX)).unwrap();
    let messages = refusals(&fs::read(&shard).unwrap(), 300, |bytes| {
        fs::write(&shard, &bytes).unwrap();
        let sha256 = sha256_bytes(&bytes);
        let text = text.replace(&index.shards[0].sha256, &sha256);
        fs::write(folder.path().join(INDEX), text).unwrap();
        TokenShards::open(folder.path()).map(drop)
    });
    assert!(
        messages
            .iter()
            .all(|message| message.contains("tokens-00000.parquet"))
    );
}

#[test]
fn an_index_without_shards_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let index = TokenIndex {
        samples: 0,
        shards: Vec::new(),
        ..write(folder.path(), &[5], 100)
    };
    fs::write(
        folder.path().join(INDEX),
        serde_json::to_vec(&index).unwrap(),
    )
    .unwrap();
    let error = TokenShards::open(folder.path()).unwrap_err().to_string();
    assert!(
        error.ends_with("shards: expected at least one, found 0"),
        "{error}"
    );
}

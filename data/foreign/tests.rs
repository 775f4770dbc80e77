use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use spectrain_checkpoints::{DType, NamedTensor, write_safetensors};
use tempfile::{TempDir, tempdir};

use super::*;

/// What opening, or reading every sample, says.
fn told(folder: &Path, rows: Option<&Path>) -> String {
    let read = || -> Result<()> {
        let found = open(folder, rows)?;
        for sample in 0..found.samples() {
            let length = found.text(sample)?.tokens.len();
            let states = found.states(sample)?;
            assert_eq!(
                states.states.shape,
                [length, found.slots(), found.d_model()]
            );
        }
        Ok(())
    };
    match read() {
        Ok(()) => "fine".into(),
        Err(error) => error.to_string(),
    }
}

fn tensors(tokens: usize) -> Vec<NamedTensor> {
    let values = (0..tokens * 6).map(|value| value as f32);
    vec![
        NamedTensor::from_f32("hidden_states", [tokens, 3, 2], values.collect()),
        NamedTensor::from_i64("token_ids", [tokens], (0..tokens as i64).collect()),
    ]
}

fn write(path: &Path, tensors: &[NamedTensor]) {
    write_safetensors(path, tensors, &BTreeMap::new()).unwrap();
}

/// Two samples and three rows.
fn dataset() -> TempDir {
    let folder = tempdir().unwrap();
    let states = folder.path().join("hidden_states");
    fs::create_dir(&states).unwrap();
    write(&states.join("hs_0.safetensors"), &tensors(3));
    write(&states.join("hs_2.safetensors"), &tensors(4));
    let mut rows = RowsWriter::create(folder.path()).unwrap();
    rows.push(&[0, 1, 2], &[0, 1, 1]).unwrap();
    rows.push(&[9], &[1]).unwrap();
    rows.push(&[0, 1, 2, 3], &[0, 0, 0, 1]).unwrap();
    rows.finish().unwrap();
    folder
}

#[test]
fn files_of_states_are_of_the_rows_that_their_numbers_say() {
    let folder = dataset();
    let found = open(folder.path(), None).unwrap();
    assert_eq!((found.samples(), found.without_states()), (2, 1));
    assert_eq!((found.slots(), found.d_model()), (3, 2));
    assert_eq!(found.layers(), None);
    let second = found.text(1).unwrap();
    assert_eq!(second.tokens, [0, 1, 2, 3]);
    assert_eq!(second.loss_mask, Some(vec![0, 0, 0, 1]));
    assert_eq!(found.states(1).unwrap().states.shape, [4, 3, 2]);
    fs::write(folder.path().join(LAYERS), r#"{"layer_ids": [0, 3, 6]}"#).unwrap();
    let found = open(folder.path(), None).unwrap();
    let said = SaidLayers {
        captured: vec![-1, 2],
        last: Some(5),
    };
    assert_eq!(found.layers(), Some(&said));
}

#[test]
fn rows_may_be_elsewhere_and_masks_in_the_files() {
    let folder = dataset();
    let states = folder.path().join("hidden_states");
    let found = open(&states, None).unwrap();
    assert_eq!(found.text(0).unwrap().loss_mask, None);
    let found = open(&states, Some(folder.path())).unwrap();
    assert_eq!(found.text(0).unwrap().loss_mask, Some(vec![0, 1, 1]));
    let mut with_mask = tensors(3);
    with_mask.push(NamedTensor::from_bool(
        "loss_mask",
        [3],
        vec![true, false, true],
    ));
    write(&states.join("hs_0.safetensors"), &with_mask);
    let found = open(&states, None).unwrap();
    assert_eq!(found.text(0).unwrap().loss_mask, Some(vec![1, 0, 1]));
}

#[test]
fn files_that_do_not_go_with_their_rows_are_refused() {
    let folder = dataset();
    let states = folder.path().join("hidden_states");
    let at = |name: &str| states.join(name);
    write(&at("hs_0.safetensors"), &tensors(2));
    let found = told(folder.path(), None);
    assert!(
        found.contains("the 3 tokens of `input_ids` in row 0"),
        "{found}"
    );
    write(&at("hs_0.safetensors"), &tensors(3));
    write(&at("hs_3.safetensors"), &tensors(3));
    assert!(told(folder.path(), None).contains("found `hs_3.safetensors`"));
    fs::remove_file(at("hs_3.safetensors")).unwrap();
    write(&at("other.safetensors"), &tensors(3));
    assert!(told(folder.path(), None).contains("`other.safetensors` among them"));
    fs::remove_file(at("other.safetensors")).unwrap();
    write(&at("hs_00.safetensors"), &tensors(3));
    assert!(told(folder.path(), None).contains("one for each number"));
}

#[test]
fn states_of_another_kind_are_refused() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("hs_0.safetensors");
    let refused = |tensors: &[NamedTensor]| {
        write(&path, tensors);
        told(folder.path(), None)
    };
    assert!(
        refused(&tensors(3)[..1]).contains("`token_ids`")
            || told(folder.path(), None).contains("token_ids: expected a tensor")
    );
    assert!(refused(&tensors(3)[1..]).contains("hidden_states: expected a tensor"));
    let mut found = tensors(3);
    found[0].shape = vec![3, 6];
    assert!(refused(&found).contains("[tokens, layers, width]"));
    let mut found = tensors(3);
    found[1] = NamedTensor::from_i64("token_ids", [2], vec![1, 2]);
    assert!(refused(&found).contains("[3], as many as there are states"));
    found[1] = NamedTensor::from_i64("token_ids", [3], vec![1, -2, 3]);
    assert!(refused(&found).contains("expected token ids"));
    let mut found = tensors(3);
    found[0].dtype = DType::F8E4M3;
    found[0].bytes.truncate(18);
    assert!(refused(&found).contains("F8_E4M3"));
    // Shapes that no file holds, in a header that says so.
    let header = json!({"hidden_states": {"dtype": "BF16", "shape": [1u64 << 40, 1 << 20, 2], "data_offsets": [0, 16]}}).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([0; 16]);
    fs::write(&path, bytes).unwrap();
    assert!(told(folder.path(), None).contains("could not read"));
    fs::write(&path, [255; 64]).unwrap();
    assert!(told(folder.path(), None).contains("could not read"));
}

#[cfg(unix)]
#[test]
fn links_out_of_the_folder_are_refused() {
    let (elsewhere, folder) = (dataset(), tempdir().unwrap());
    let states = elsewhere.path().join("hidden_states");
    let link = |from: &Path, name: &str| {
        std::os::unix::fs::symlink(from, folder.path().join(name)).unwrap();
    };
    link(&states.join("hs_0.safetensors"), "hs_0.safetensors");
    assert!(told(folder.path(), None).contains("that leads out of it"));
    fs::remove_file(folder.path().join("hs_0.safetensors")).unwrap();
    link(&states, "hidden_states");
    assert!(told(folder.path(), None).contains("that leads out of it"));
}

#[test]
fn rows_that_are_damaged_are_errors_wherever_the_damage_is() {
    let folder = dataset();
    let path = folder.path().join("data-00000-of-00001.arrow");
    let whole = fs::read(&path).unwrap();
    assert_eq!(told(folder.path(), None), "fine");
    for length in (0..whole.len()).step_by(7) {
        fs::write(&path, &whole[..length]).unwrap();
        assert_ne!(told(folder.path(), None), "fine", "{length} bytes");
    }
    // Whatever a byte says, nothing panics, and memory for what is claimed is not taken.
    for at in (0..whole.len()).step_by(3) {
        let mut changed = whole.clone();
        changed[at] ^= 0xff;
        fs::write(&path, changed).unwrap();
        drop(told(folder.path(), None));
    }
    fs::write(&path, &whole).unwrap();
    let state = folder.path().join("state.json");
    for (text, words) in [
        ("{}", "_data_files"),
        (
            r#"{"_data_files": [{"filename": "../x"}]}"#,
            "files in this folder",
        ),
        (
            r#"{"_data_files": [{"filename": "/etc/passwd"}]}"#,
            "files in this folder",
        ),
        (
            r#"{"_data_files": [{"filename": "none"}]}"#,
            "could not read",
        ),
        (
            r#"{"_data_files": [{"filename": "x"}], "_indices_files": [{"filename": "y"}]}"#,
            "flatten_indices",
        ),
    ] {
        fs::write(&state, text).unwrap();
        let found = told(folder.path(), None);
        assert!(found.contains(words), "{text}: {found}");
    }
}

/// A manifest, an index and a shard of two samples: of 3 tokens and of 2, with two layers of width 2.
fn cache(change: impl FnOnce(&mut Value, &mut Vec<[u64; 8]>, &mut Vec<u8>)) -> TempDir {
    let folder = tempdir().unwrap();
    let (mut shard, mut records) = (Vec::new(), Vec::new());
    for (sample, length) in [3u64, 2].into_iter().enumerate() {
        let mut offsets = Vec::new();
        let mut piece = |bytes: Vec<u8>| {
            offsets.push(shard.len() as u64);
            shard.extend(bytes);
        };
        piece((0..length as i32).flat_map(i32::to_le_bytes).collect());
        piece(vec![1; length as usize]);
        piece((0..length).map(|at| u8::from(at > 0)).collect());
        piece((0..8 * length).map(|at| at as u8).collect());
        piece(vec![9; 4 * length as usize]);
        let mut record = [sample as u64, 0, length, 0, 0, 0, 0, 0];
        record[3..].copy_from_slice(&offsets);
        records.push(record);
    }
    let mut manifest = json!({
        "version": 2, "num_samples": 2, "num_shards": 1, "target_layer_ids": [-1, 2], "hidden_dtype": "bfloat16",
        "token_dtype": "int32", "mask_dtype": "uint8", "index_record_size": 56, "hidden_size": 2,
        "shards": [{"shard_id": 0, "file_name": "shard-00000.bin", "nbytes": shard.len()}],
    });
    change(&mut manifest, &mut records, &mut shard);
    let mut index = Vec::new();
    for [sample, shard, length, offsets @ ..] in records {
        index.extend(sample.to_le_bytes());
        index.extend((shard as u32).to_le_bytes());
        index.extend((length as u32).to_le_bytes());
        index.extend(offsets.into_iter().flat_map(u64::to_le_bytes));
    }
    let at = |name: &str| folder.path().join(name);
    fs::write(at("manifest.json"), manifest.to_string()).unwrap();
    fs::write(at("samples.idx"), index).unwrap();
    fs::write(at("shard-00000.bin"), shard).unwrap();
    folder
}

#[test]
fn a_cache_of_deepspec_is_read_as_it_was_written() {
    let folder = cache(|_, _, _| {});
    let found = open(folder.path(), None).unwrap();
    assert_eq!((found.samples(), found.slots(), found.d_model()), (2, 3, 2));
    let said = SaidLayers {
        captured: vec![-1, 2],
        last: None,
    };
    assert_eq!(found.layers(), Some(&said));
    let text = found.text(0).unwrap();
    assert_eq!(
        (&text.tokens[..], text.loss_mask),
        (&[0, 1, 2][..], Some(vec![0, 1, 1]))
    );
    let states = found.states(0).unwrap().states;
    assert_eq!(states.shape, [3, 3, 2]);
    assert_eq!(states.bytes[..12], [0, 1, 2, 3, 4, 5, 6, 7, 9, 9, 9, 9]);
}

/// Changes the manifest, the records or the bytes of a cache.
type Change = fn(&mut Value, &mut Vec<[u64; 8]>, &mut Vec<u8>);

/// The cases of the test below: a change, and words of what is said of it.
fn impossible() -> [(Change, &'static str); 17] {
    [
        (
            |manifest, _, _| manifest["version"] = json!(1),
            "version: expected 2, found 1",
        ),
        (
            |manifest, _, _| manifest["hidden_dtype"] = json!("float16"),
            "hidden_dtype",
        ),
        (
            |manifest, _, _| manifest["num_samples"] = json!(3),
            "56 for each of 3 samples",
        ),
        (
            |manifest, _, _| manifest["num_samples"] = json!(u64::MAX),
            "56 for each of",
        ),
        (
            |manifest, _, _| manifest["hidden_size"] = json!(1u64 << 62),
            "layers of a width",
        ),
        (
            |manifest, _, _| manifest["shards"][0]["nbytes"] = json!(7),
            "bytes: expected 7",
        ),
        (
            |manifest, _, _| manifest["shards"][0]["file_name"] = json!("../x"),
            "files in this folder",
        ),
        (
            |manifest, _, _| manifest["shards"] = json!([]),
            "one that the manifest names",
        ),
        (
            |_, records, _| records.swap(0, 1),
            "sample: expected 0, found 1",
        ),
        (
            |_, records, _| records[1][1] = 4,
            "found number 4 for sample 1",
        ),
        (|_, records, _| records[1][2] = 0, "at least one"),
        (
            |_, records, _| records[1][2] = u64::from(u32::MAX),
            "sample 1: data: expected within",
        ),
        (
            |_, records, _| records[1][7] = u64::MAX - 3,
            "sample 1: first byte",
        ),
        (
            |_, records, _| records[1][6] = records[0][6],
            "another piece, of sample",
        ),
        (|_, _, shard| shard[0] = 200, "fine"),
        (|_, _, shard| shard[3] = 200, "expected token ids"),
        (|_, _, shard| shard[12] = 0, "attention_mask"),
    ]
}

#[test]
fn a_cache_that_says_what_cannot_be_is_refused() {
    for (number, (change, words)) in impossible().into_iter().enumerate() {
        let found = told(cache(change).path(), None);
        assert!(found.contains(words), "{number}, {words}: {found}");
    }
    let folder = cache(|_, _, _| {});
    let found = told(folder.path(), Some(folder.path()));
    assert!(found.contains("no rows beside"), "{found}");
}

#[test]
fn pickles_are_refused_with_the_commands_that_convert_them() {
    let folder = tempdir().unwrap();
    let found = told(folder.path(), None);
    assert!(
        found.contains("hs_*.safetensors") && found.contains("none of these"),
        "{found}"
    );
    let inner = folder.path().join("rows_0-1000");
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("data_0.ckpt"), "x").unwrap();
    for path in [folder.path(), &inner, &inner.join("data_0.ckpt")] {
        let found = told(path, None);
        assert!(found.contains("`data_0.ckpt`, a pickle"), "{found}");
        assert!(
            found.contains("`spectrain features converter > convert.py`"),
            "{found}"
        );
    }
}

use std::fs;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::tensors::write_safetensors;

fn tensor(name: &str) -> NamedTensor {
    NamedTensor::from_f32(name, [2, 3], vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
}

fn sharded(weight_map: Value) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join(CONFIG), "{}").unwrap();
    write_safetensors(
        &path.join("a.safetensors"),
        &[tensor("x")],
        &BTreeMap::new(),
    )
    .unwrap();
    write_safetensors(
        &path.join("b.safetensors"),
        &[tensor("y")],
        &BTreeMap::new(),
    )
    .unwrap();
    fs::write(
        path.join(INDEX),
        json!({ "weight_map": weight_map }).to_string(),
    )
    .unwrap();
    folder
}

/// A folder whose weights are these bytes.
fn hostile(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(CONFIG), "{}").unwrap();
    fs::write(folder.path().join(WEIGHTS), bytes).unwrap();
    let error = ModelFolder::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains(WEIGHTS), "{error}");
    error
}

fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        data,
    ]
    .concat()
}

#[test]
fn shards_without_their_index_and_pointers_in_the_place_of_weights_are_called_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join(CONFIG), "{}").unwrap();
    for shard in ["model-00001-of-00002", "model-00002-of-00002"] {
        fs::write(path.join(format!("{shard}.safetensors")), "").unwrap();
    }
    let error = ModelFolder::open(path).unwrap_err().to_string();
    assert!(
        error.contains("`model.safetensors.index.json`, which says") && !error.contains("rename"),
        "{error}"
    );
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n";
    let error = hostile(pointer.as_bytes());
    assert!(
        error.contains("pointer of Git LFS") && error.contains("`git lfs pull`"),
        "{error}"
    );
}

#[test]
fn a_written_folder_is_read_back() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("model");
    let config = json!({"model_type": "llama"});
    let half = tensor("h").cast(DType::F16).unwrap();
    write_folder(
        &dir,
        &config,
        &[tensor("x"), half.clone()],
        &[(GENERATION_CONFIG, b"{\"top_k\": 4}")],
    )
    .unwrap();
    let folder = ModelFolder::open(&dir).unwrap();
    assert_eq!(folder.config(), &config);
    assert_eq!(folder.generation_config().unwrap()["top_k"], 4);
    let names: Vec<_> = folder.tensors().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["h", "x"]);
    assert_eq!(folder.read("h").unwrap(), half);
    assert_eq!(
        folder.read("h").unwrap().to_f32().unwrap(),
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    );
    assert_eq!(
        folder.read_bytes("x", &[2, 3]).unwrap(),
        (DType::F32, tensor("x").bytes)
    );
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
}

#[test]
fn a_tensor_of_another_shape_or_type_is_refused_by_name_and_file() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("a");
    write_folder(
        &dir,
        &json!({}),
        &[tensor("x"), NamedTensor::from_i64("i", [1], vec![1])],
        &[],
    )
    .unwrap();
    let folder = ModelFolder::open(&dir).unwrap();
    let file = dir.join(WEIGHTS);
    let error = folder.read_bytes("x", &[3, 2]).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "tensor `x` in `{}`: expected [3, 2], found [2, 3]",
            file.display()
        )
    );
    let error = folder.read("i").unwrap().to_f32().unwrap_err().to_string();
    assert!(
        error.contains("`i`") && error.contains("found I64"),
        "{error}"
    );
    assert!(
        folder
            .read("z")
            .unwrap_err()
            .to_string()
            .contains("`z` is not in")
    );
}

#[test]
fn names_are_checked_both_ways() {
    let folder = sharded(json!({"x": "a.safetensors", "y": "b.safetensors"}));
    let folder = ModelFolder::open(folder.path()).unwrap();
    let names = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_string())
            .collect::<Vec<_>>()
    };
    folder
        .check_names(&names(&["x"]), &names(&["y", "absent"]))
        .unwrap();
    let error = folder
        .check_names(&names(&["x", "q", "r"]), &[])
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("missing tensors: `q`, `r`; unexpected tensors: `y`"),
        "{error}"
    );
}

#[test]
fn shards_are_found_through_the_index() {
    let folder = sharded(json!({"x": "a.safetensors", "y": "b.safetensors"}));
    let folder = ModelFolder::open(folder.path()).unwrap();
    assert_eq!(folder.read("y").unwrap(), tensor("y"));
    assert!(folder.info("x").unwrap().file.ends_with("a.safetensors"));
}

#[test]
fn an_index_that_leaves_the_folder_is_refused() {
    for file in [
        "../a.safetensors",
        "/etc/a.safetensors",
        "c/../a.safetensors",
        "a.bin",
    ] {
        let folder = sharded(json!({"x": file}));
        let error = ModelFolder::open(folder.path()).unwrap_err().to_string();
        let reason = format!("in the same folder, found `{file}`");
        assert!(error.contains(INDEX) && error.ends_with(&reason), "{error}");
    }
}

#[test]
fn the_command_for_a_pickle_converts_all_of_its_shards() {
    let told = |files: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(CONFIG), "{}").unwrap();
        for file in files {
            fs::write(folder.path().join(file), "").unwrap();
        }
        ModelFolder::open(folder.path()).unwrap_err().to_string()
    };
    let one = told(&["optimizer.pt", "pytorch_model.bin"]);
    let loads = "for k, v in torch.load('pytorch_model.bin', weights_only=True)";
    assert!(
        one.contains(loads) && one.matches("for ").count() == 1,
        "{one}"
    );
    let shards = [1, 2, 3].map(|n| format!("pytorch_model-{n:05}-of-00003.bin"));
    let all = told(&shards.each_ref().map(String::as_str));
    let loads = "for n in range(1, 4) for k, v in \
                 torch.load(f'pytorch_model-{n:05}-of-00003.bin', weights_only=True)";
    assert!(all.contains(loads), "{all}");
    // No number of a shard.
    let named = told(&["best-of-all.bin"]);
    assert!(named.contains("torch.load('best-of-all.bin'"), "{named}");
}

#[test]
fn an_index_that_disagrees_with_the_shards_is_refused() {
    for (map, named) in [
        (json!({"x": "gone.safetensors"}), "`gone.safetensors`"),
        (json!({"x": "a.safetensors", "z": "b.safetensors"}), "`z`"),
        (json!({"x": "b.safetensors", "y": "a.safetensors"}), "`x`"),
        (json!({"x": 3}), "`x`"),
        (json!([]), "`weight_map`"),
    ] {
        let folder = sharded(map);
        let error = ModelFolder::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(INDEX) && error.contains(named), "{error}");
    }
}

#[test]
fn a_tensor_in_two_shards_is_refused_with_both_files() {
    let folder = sharded(json!({"x": "a.safetensors", "y": "b.safetensors"}));
    write_safetensors(
        &folder.path().join("b.safetensors"),
        &[tensor("x"), tensor("y")],
        &BTreeMap::new(),
    )
    .unwrap();
    let error = ModelFolder::open(folder.path()).unwrap_err().to_string();
    assert!(
        ["`x`", "a.safetensors", "b.safetensors"]
            .iter()
            .all(|part| error.contains(part)),
        "{error}"
    );
}

#[test]
fn every_truncation_of_a_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    write_safetensors(&path, &[tensor("x")], &BTreeMap::new()).unwrap();
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        hostile(&whole[..length]);
    }
    hostile(&[&whole[..], b"more"].concat());
}

#[test]
fn hostile_headers_are_refused_without_a_panic() {
    assert!(hostile(&u64::MAX.to_le_bytes()).contains("at most"));
    assert!(hostile(&[&(1u64 << 24).to_le_bytes()[..], b"{}"].concat()).contains("found 2"));
    hostile(&with_header("[", b""));
    hostile(&with_header("\u{fffd}{}", b""));
    hostile(&with_header(&"[".repeat(10_000), b""));
    hostile(&with_header(
        r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#,
        b"1234",
    ));
    hostile(&with_header(
        r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
        b"12345678",
    ));
    hostile(&with_header(
        r#"{"x":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}"#,
        b"",
    ));
    hostile(&with_header(
        r#"{"x":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}"#,
        b"1",
    ));
    // Eight tensors whose sizes add up to nearly 2^64: a sum that wraps around would look like a short file.
    let size = (1u64 << 61) - 1;
    let entries: Vec<_> = (0..8)
        .map(|i| {
            format!(
                r#""t{i}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{},{}]}}"#,
                i * size,
                (i + 1) * size
            )
        })
        .collect();
    hostile(&with_header(&format!("{{{}}}", entries.join(",")), b""));
}

#[test]
fn a_folder_without_what_it_needs_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let open = || ModelFolder::open(folder.path()).unwrap_err().to_string();
    assert!(open().contains(CONFIG));
    fs::write(folder.path().join(CONFIG), "{").unwrap();
    assert!(open().contains("not valid JSON"));
    fs::write(folder.path().join(CONFIG), "{}").unwrap();
    assert!(open().contains(INDEX));
    let error = ModelFolder::open(folder.path().join("absent")).unwrap_err();
    assert!(error.to_string().contains("no such model folder"));
}

#[test]
fn the_digest_follows_weights_and_configuration() {
    let parent = tempfile::tempdir().unwrap();
    let digest = |name: &str, config: Value, tensors: &[NamedTensor]| {
        let dir = parent.path().join(name);
        write_folder(&dir, &config, tensors, &[("notes.txt", name.as_bytes())]).unwrap();
        ModelFolder::open(&dir).unwrap().sha256()
    };
    let one = digest("one", json!({"a": 1}), &[tensor("x")]);
    assert_eq!(one.len(), 64);
    assert_eq!(one, digest("two", json!({"a": 1}), &[tensor("x")]));
    assert_ne!(one, digest("three", json!({"a": 2}), &[tensor("x")]));
    assert_ne!(one, digest("four", json!({"a": 1}), &[tensor("y")]));
}

#[test]
fn a_failed_write_leaves_the_old_folder() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("model");
    write_folder(&dir, &json!({"version": 1}), &[tensor("x")], &[]).unwrap();
    for name in ["../escape", CONFIG, "a/b"] {
        assert!(
            write_folder(&dir, &json!({"version": 2}), &[tensor("x")], &[(name, b"")]).is_err()
        );
    }
    assert!(
        write_folder(
            &dir,
            &json!({"version": 2}),
            &[tensor("x"), tensor("x")],
            &[]
        )
        .is_err()
    );
    assert_eq!(ModelFolder::open(&dir).unwrap().config()["version"], 1);
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
}

#[test]
fn a_folder_that_is_no_model_is_not_replaced() {
    let parent = tempfile::tempdir().unwrap();
    fs::write(parent.path().join("thesis.txt"), "").unwrap();
    let error = write_folder(parent.path(), &json!({}), &[tensor("x")], &[]).unwrap_err();
    assert!(error.to_string().contains("not a model folder"), "{error}");
    assert!(parent.path().join("thesis.txt").exists());
}

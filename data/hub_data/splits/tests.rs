use serde_json::json;
use spectrain_checkpoints::hub::ListedFile;

use super::*;

fn listing(files: &[&str], card: Value) -> Listing {
    let file = |path: &&str| ListedFile {
        path: (*path).to_string(),
        bytes: Some(1),
    };
    Listing {
        commit: "0".repeat(40),
        files: files.iter().map(file).collect(),
        card,
        is_partial: false,
    }
}

fn names(splits: &[Split]) -> Vec<String> {
    splits.iter().map(name).collect()
}

fn chosen(splits: &[Split], address: &str) -> Result<Vec<String>, String> {
    let address = HubAddress::parse(address).unwrap().unwrap();
    Ok(choose(splits, &address)?.files.clone())
}

#[test]
fn the_card_says_which_files_are_of_a_split() {
    let files = [
        "README.md",
        "data/test-0.parquet",
        "data/train-0.parquet",
        "data/train-1.parquet",
        "other/deep/x.jsonl",
        "more.jsonl",
    ];
    let card = json!({"configs": [
        {"config_name": "default", "data_files": [
            {"split": "train", "path": "data/train-*"},
            {"split": "test", "path": ["data/test-*"]},
        ]},
        {"config_name": "folder", "data_dir": "other", "data_files": "deep/*.jsonl"},
        {"config_name": "inside", "data_files": ["other"]},
        {"config_name": "named", "data_dir": "./data/"},
        {"config_name": "all", "data_dir": "other"},
        {"config_name": "none", "data_files": [{"split": "train", "path": "absent/*"}]},
    ]});
    let splits = splits(&listing(&files, card));
    assert_eq!(
        names(&splits),
        [
            "default/train",
            "default/test",
            "folder/train",
            "inside/train",
            "named/test",
            "named/train",
            "all/train",
        ]
    );
    let of = |address: &str| chosen(&splits, address).unwrap();
    assert_eq!(of("hf://o/n:named/test"), ["data/test-0.parquet"]);
    assert_eq!(of("hf://o/n:all/train"), ["other/deep/x.jsonl"]);
    assert_eq!(
        chosen(&splits, "hf://o/n").unwrap(),
        ["data/train-0.parquet", "data/train-1.parquet"]
    );
    assert_eq!(
        chosen(&splits, "hf://o/n:test").unwrap(),
        ["data/test-0.parquet"]
    );
    assert_eq!(
        chosen(&splits, "hf://o/n:folder/train").unwrap(),
        ["other/deep/x.jsonl"]
    );
    assert_eq!(
        chosen(&splits, "hf://o/n:inside/train").unwrap(),
        ["other/deep/x.jsonl"]
    );
}

#[test]
fn without_a_card_names_say_it_and_without_names_all_is_to_train_on() {
    let of = |files: &[&str]| splits(&listing(files, Value::Null));
    let shards = of(&[
        "data/gen-00000-of-00001-ab.parquet",
        "data/train_sft-00000-of-00002.parquet",
        "data/train_sft-00001-of-00002.parquet",
    ]);
    assert_eq!(names(&shards), ["default/gen", "default/train_sft"]);
    assert_eq!(shards[1].files.len(), 2);
    let words = of(&["my-dev.jsonl", "my_train_0.jsonl", "dataset_infos.json"]);
    assert_eq!(names(&words), ["default/train", "default/validation"]);
    let folders = of(&["test/0.jsonl", "training/0.jsonl"]);
    assert_eq!(names(&folders), ["default/test", "default/train"]);
    let one = of(&["ShareGPT_V4.3.json", "README.md"]);
    assert_eq!(names(&one), ["default/train"]);
    assert_eq!(names(&of(&["a.csv", "load.py"])), Vec::<String>::new());
}

#[test]
fn the_converted_branch_has_configurations_and_splits_as_folders() {
    let splits = converted(&listing(
        &[
            "a/test/0000.parquet",
            "a/train/0000.parquet",
            "a/train/0001.parquet",
            "b/partial-train/0000.parquet",
            "x.parquet",
        ],
        Value::Null,
    ));
    assert_eq!(names(&splits), ["a/test", "a/train", "b/train"]);
    assert!(splits[2].is_cut && !splits[1].is_cut);
    assert_eq!(
        chosen(&splits, "hf://o/n:b/train").unwrap(),
        ["b/partial-train/0000.parquet"]
    );
}

#[test]
fn what_is_not_there_is_named_with_what_is() {
    let split = |config: &str, name: &str| Split {
        config: config.into(),
        name: name.into(),
        files: vec!["x".into()],
        is_cut: false,
    };
    let splits = [
        split("main", "train"),
        split("main", "test"),
        split("socratic", "test"),
    ];
    for (address, expected) in [
        ("hf://o/n", "expected a configuration, as in `:main/train`"),
        ("hf://o/n:other/train", "no configuration `other`"),
        (
            "hf://o/n:socratic/train",
            "no split `train` in the configuration `socratic`",
        ),
    ] {
        let error = chosen(&splits, address).unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert!(
            error.contains("`main/train`, `main/test`, `socratic/test`"),
            "{error}"
        );
    }
    let splits = [split("c", "a"), split("c", "b")];
    let error = chosen(&splits, "hf://o/n").unwrap_err();
    assert!(error.contains("expected a split, as in `:c/a`"), "{error}");
}

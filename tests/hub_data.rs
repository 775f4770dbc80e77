//! Datasets of a hub as training and evaluation data: by address and by preset.
use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, ListArray, RecordBatch, StringArray, StructArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use parquet::arrow::ArrowWriter;
use serde_json::{Value, json};
use spectrain_data::presets::{Conversion, PRESETS, Preset};

use crate::fake_hub::{FakeHub, Repository};
use crate::key_tables::has_text;
use crate::workspace::Workspace;

const DATA: &str = "data/README.md";
const START: &str = "<!-- presets -->\n";
const END: &str = "<!-- /presets -->";

/// A Parquet file of rows whose values are texts, or lists of objects of texts.
pub fn table(rows: &[Value]) -> Vec<u8> {
    let names: Vec<&String> = rows[0].as_object().unwrap().keys().collect();
    let column = |name: &&String| -> ArrayRef {
        let values = rows.iter().map(|row| &row[name.as_str()]);
        if rows[0][name.as_str()].is_array() {
            return Arc::new(messages(&values.collect::<Vec<_>>()));
        }
        Arc::new(StringArray::from_iter(values.map(Value::as_str)))
    };
    let columns = names.iter().map(|name| (name.as_str(), column(name)));
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

fn messages(lists: &[&Value]) -> ListArray {
    let all: Vec<&Value> = lists
        .iter()
        .flat_map(|list| list.as_array().unwrap())
        .collect();
    let keys: Vec<&String> = all[0].as_object().unwrap().keys().collect();
    let texts = |key: &&String| -> (Arc<Field>, ArrayRef) {
        let field = Field::new(key.as_str(), DataType::Utf8, true);
        let texts = all.iter().map(|message| message[key.as_str()].as_str());
        (Arc::new(field), Arc::new(StringArray::from_iter(texts)))
    };
    let structs = StructArray::from(keys.iter().map(texts).collect::<Vec<_>>());
    let item = Arc::new(Field::new("item", structs.data_type().clone(), true));
    let lengths = lists.iter().map(|list| list.as_array().unwrap().len());
    ListArray::new(
        item,
        OffsetBuffer::from_lengths(lengths),
        Arc::new(structs),
        None,
    )
}

/// A dataset of the workspace's conversations, with a split to evaluate with and files that nobody asks for.
pub fn chat(workspace: &Workspace) -> Repository {
    Repository::of(
        &[
            (
                "data/train-00000-of-00001.jsonl",
                workspace.bytes("train.jsonl"),
            ),
            (
                "data/test-00000-of-00001.jsonl",
                workspace.bytes("eval.jsonl"),
            ),
            ("data/raw-00000-of-00001.jsonl", b"not asked for".to_vec()),
            ("README.md", b"---\n".to_vec()),
        ],
        json!({"license": "mit"}),
    )
}

/// Fails unless the manifest of `prepare` says which datasets these are.
fn is_recorded(workspace: &Workspace, commit: &str) {
    let manifest = workspace.manifest("prepare");
    let [train, eval] = &manifest["summary"]["datasets"].as_array().unwrap()[..] else {
        panic!("{manifest:#}");
    };
    assert_eq!(train["commit"], commit);
    assert_eq!(
        (&train["licence"], &train["split"]),
        (&json!("mit"), &json!("train"))
    );
    assert_eq!(
        (&eval["key"], &eval["split"]),
        (&json!("data.eval"), &json!("test"))
    );
}

/// A recipe that trains on a dataset of the hub and judges with another split of it.
const OF_CHAT: [&str; 6] = [
    "recipe",
    "recipe.toml",
    "--set",
    "data.train=hf://org/chat",
    "--set",
    "data.eval=hf://org/chat:test",
];

#[test]
fn a_plan_says_what_would_be_downloaded_and_asks_for_lists_alone() {
    let workspace = Workspace::new();
    let repository = chat(&workspace);
    let commit = repository.commit();
    let hub = FakeHub::new().dataset("org/chat", "main", repository);
    let plan = hub
        .run(&workspace, &[&OF_CHAT[..], &["--plan"]].concat())
        .succeeded();
    let wanted =
        format!("`hf://org/chat` (default/train): 1 of 1 files, 0.0 MiB, at commit {commit}");
    assert!(
        plan.stdout.contains("to download:") && plan.stdout.contains(&wanted),
        "{plan:#?}"
    );
    assert!(
        plan.stdout.contains("`hf://org/chat:test` (default/test)"),
        "{plan:#?}"
    );
    let asked = hub.asked();
    assert!(
        asked
            .iter()
            .all(|line| line.contains("/api/datasets/org/chat/")),
        "{asked:?}"
    );
    assert!(!workspace.path("hub/hub").exists());
}

#[test]
fn a_recipe_trains_on_a_dataset_of_a_hub_as_on_its_files_and_records_the_commit() {
    let workspace = Workspace::new();
    workspace.run_recipe(&["name=local"]).succeeded();
    let repository = chat(&workspace);
    let commit = repository.commit();
    let hub = FakeHub::new().dataset("org/chat", "main", repository);
    let outcome = hub.run(&workspace, &OF_CHAT).succeeded();
    assert!(
        outcome
            .stderr
            .contains(&format!("is `default/train` at commit {commit}")),
        "{outcome:#?}"
    );
    let asked = hub.asked().join("\n");
    let resolve = format!("/datasets/org/chat/resolve/{commit}/data");
    assert!(
        asked.contains(&format!("GET {resolve}/train-00000-of-00001.jsonl")),
        "{asked}"
    );
    assert!(
        asked.contains(&format!("GET {resolve}/test-00000-of-00001.jsonl")),
        "{asked}"
    );
    assert!(
        !asked.contains("raw-") && !asked.contains("README"),
        "{asked}"
    );
    is_recorded(&workspace, &commit);

    // What comes out is what the files themselves give.
    for file in [
        "prepare/train/tokens.json",
        "prepare/counts.json",
        "export/drafter/model.safetensors",
    ] {
        let [ours, theirs] =
            ["run", "local"].map(|run| workspace.bytes(&format!("runs/{run}/{file}")));
        assert!(ours == theirs, "{file}");
    }

    // It is in the layout of the hub's own tools, and is asked for no more.
    let snapshot = format!("hub/hub/datasets--org--chat/snapshots/{commit}");
    let cached = workspace.bytes(&format!("{snapshot}/data/train-00000-of-00001.jsonl"));
    assert_eq!(cached, workspace.bytes("train.jsonl"));
    assert_eq!(
        workspace.text("hub/hub/datasets--org--chat/refs/main"),
        commit
    );
    let again = hub.run(&workspace, &OF_CHAT).succeeded();
    assert!(
        again.stderr.contains("prepare") && hub.asked().is_empty(),
        "{again:#?}"
    );
    let offline = [&OF_CHAT[..], &["--set", "name=offline"]].concat();
    workspace.run(&offline).succeeded();
}

#[test]
fn what_a_hub_does_not_have_is_named_with_what_it_has() {
    let workspace = Workspace::new();
    let script = Repository::of(
        &[("load.py", Vec::new()), ("rows.csv", Vec::new())],
        Value::Null,
    );
    let hub = FakeHub::new()
        .dataset("org/chat", "main", chat(&workspace))
        .dataset("org/script", "main", script.clone())
        .dataset("org/script", "v1", script);
    for (address, expected) in [
        (
            "hf://org/none",
            &["`hf://org/none`", "no such repository"][..],
        ),
        ("hf://org/chat@v9", &["`v9`", "no such revision"]),
        (
            "hf://org/chat:dev",
            &[
                "no split `dev`",
                "`default/raw`, `default/test`, `default/train`",
            ],
        ),
        (
            "hf://org/chat:other/train",
            &["no configuration `other`", "`default/test`"],
        ),
        (
            "hf://org/script",
            &[
                "`.parquet`",
                "found `.csv`, `.py`",
                "`refs/convert/parquet`",
            ],
        ),
        (
            "hf://org/script@v1",
            &["revision `v1`", "converts only the main branch"],
        ),
    ] {
        let set = format!("data.train={address}");
        let words = ["recipe", "recipe.toml", "--set", set.as_str()];
        hub.run(&workspace, &words)
            .failed(&[&["`data.train`"], expected].concat());
        let plan = hub.run(&workspace, &[&words[..], &["--plan"]].concat());
        plan.failed(&["the run would be refused"]);
    }
    let misuse = hub.run(
        &workspace,
        &["recipe", "recipe.toml", "--set", "data.train=hf://a/b/c"],
    );
    assert_eq!(misuse.code, Some(2), "{misuse:#?}");
    assert!(
        misuse.stderr.contains("`hf://org/name@revision`"),
        "{misuse:#?}"
    );
    workspace
        .run_recipe(&["data.train=hf://org/chat"])
        .failed(&["`hf://org/chat`", "`HF_HUB_OFFLINE` is set"]);
}

#[test]
fn what_the_hub_has_converted_is_read_where_the_repository_has_other_files() {
    let workspace = Workspace::new();
    let row = |text: &str| {
        json!({"messages": [
            {"role": "user", "content": format!("count to {text}")},
            {"role": "assistant", "content": "one two three"},
        ]})
    };
    let rows: Vec<Value> = (0..8).map(|number| row(&number.to_string())).collect();
    let converted = Repository::of(
        &[
            ("main/train/0000.parquet", table(&rows[..4])),
            ("main/train/0001.parquet", table(&rows[4..])),
            ("other/partial-train/0000.parquet", table(&rows[..2])),
        ],
        Value::Null,
    );
    let hub = FakeHub::new()
        .dataset(
            "org/csv",
            "main",
            Repository::of(&[("rows.csv", Vec::new())], Value::Null),
        )
        .dataset("org/csv", "refs/convert/parquet", converted);
    let prepare = |address: &str, out: &str| {
        let words = [
            "data", "prepare", "--target", "target", "--data", address, "--out", out,
        ];
        hub.run(&workspace, &words)
    };
    let outcome = prepare("hf://org/csv:main/train", "tokens").succeeded();
    assert!(
        outcome.stdout.contains("8 of 8 samples kept"),
        "{outcome:#?}"
    );
    assert!(
        hub.asked()
            .iter()
            .any(|line| line.contains("refs%2Fconvert%2Fparquet"))
    );
    prepare("hf://org/csv:main/train", "again").succeeded();
    assert_eq!(hub.asked(), Vec::<String>::new());
    prepare("hf://org/csv", "none")
        .failed(&["expected a configuration", "`main/train`, `other/train`"]);
}

/// A row with a question and an answer, in the columns of a preset.
pub fn row_of(preset: &Preset, number: usize) -> Value {
    let (question, answer) = (format!("count to {number}"), "one two three");
    match preset.conversion {
        Conversion::None => json!({"prompt_id": "x", "messages": [
            {"content": question, "role": "user"}, {"content": answer, "role": "assistant"}]}),
        Conversion::Speakers => json!({"id": "x", "conversations": [
            {"from": "human", "value": question}, {"from": "gpt", "value": answer}]}),
        Conversion::Pair { user, assistant } => {
            let mut row = json!({"more": "x"});
            for column in user
                .split(['{', '}'])
                .map(str::trim)
                .filter(|name| !name.is_empty())
            {
                row[column] = json!(if column == "input" && user.contains("instruction") {
                    ""
                } else {
                    &question
                });
            }
            row[assistant.trim_matches(['{', '}'])] = json!(answer);
            row
        }
    }
}

#[test]
fn every_preset_is_trained_on_from_its_place_on_the_hub() {
    let workspace = Workspace::new();
    for preset in PRESETS {
        let mut rows: Vec<Value> = (0..6).map(|number| row_of(&preset, number)).collect();
        if preset.conversion == Conversion::Speakers {
            rows[5]["conversations"][1]["from"] = json!("somebody");
        }
        let address = preset.address();
        let (config, split) = (address.config.as_deref(), address.split.as_deref());
        let (config, split) = (config.unwrap_or("default"), split.unwrap_or("train"));
        let card = json!({"configs": [{"config_name": config, "data_files": [{"split": split, "path": "rows/*"}]}]});
        let repository = Repository::of(&[("rows/0.parquet", table(&rows))], card);
        let commit = repository.commit();
        let hub = FakeHub::new().dataset(&address.id, "main", repository);
        let name = format!("name={}", preset.name);
        let set = format!("data.train={{ preset = \"{}\" }}", preset.name);
        let words = [
            "recipe",
            "recipe.toml",
            "--stage",
            "prepare",
            "--set",
            &name,
            "--set",
            &set,
        ];
        hub.run(&workspace, &words).succeeded();
        let manifest = workspace.json(&format!("runs/{}/prepare/manifest.json", preset.name));
        let summary = &manifest["summary"];
        let odd = usize::from(preset.conversion == Conversion::Speakers);
        assert_eq!(summary["train"]["kept"], 6 - odd, "{manifest:#}");
        assert_eq!(summary["datasets"][0]["commit"], commit.as_str());
        assert_eq!(
            summary["rows_of_no_use"]["count"].as_u64().unwrap_or(0),
            odd as u64
        );
    }
}

#[test]
fn a_preset_stands_in_the_place_of_training_data_or_among_it() {
    let workspace = Workspace::new();
    let recipe = workspace.text("recipe.toml");
    workspace.write(
        "recipe.toml",
        recipe.replace("train = \"train.jsonl\"", "preset = \"magicoder\""),
    );
    let preset = Preset::find("magicoder").unwrap();
    let rows: Vec<Value> = (0..6).map(|number| row_of(preset, number)).collect();
    let repository = Repository::of(
        &[("all.json", json!(rows).to_string().into_bytes())],
        Value::Null,
    );
    let hub = FakeHub::new().dataset(&preset.address().id, "main", repository);
    let only = ["recipe", "recipe.toml", "--stage", "prepare"];
    hub.run(&workspace, &only).succeeded();
    assert_eq!(workspace.manifest("prepare")["summary"]["train"]["kept"], 6);
    let mixed = "data.train=[\"train.jsonl\", { preset = \"magicoder\", weight = 2 }]";
    let both = hub.run(&workspace, &[&only[..], &["--set", mixed]].concat());
    assert!(
        both.code == Some(2) && both.stderr.contains("`data.preset`"),
        "{both:#?}"
    );
    workspace.write("recipe.toml", recipe);
    hub.run(&workspace, &[&only[..], &["--set", mixed]].concat())
        .succeeded();
    let summary = &workspace.manifest("prepare")["summary"]["train"];
    assert_eq!(
        (&summary["kept"], &summary["copies"]),
        (&json!(46), &json!(6))
    );
    let unknown = workspace.run_recipe(&["data.train={ preset = \"magicoda\" }"]);
    assert_eq!(unknown.code, Some(2), "{unknown:#?}");
    let expected = "expected one of the presets `ultrachat`";
    assert!(unknown.stderr.contains(expected), "{unknown:#?}");
    let listed = workspace.run_line("data presets").succeeded();
    assert!(
        PRESETS
            .iter()
            .all(|preset| listed.stdout.contains(preset.address)),
        "{listed:#?}"
    );
}

#[test]
fn the_table_of_presets_is_what_the_code_says() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(DATA);
    let page = std::fs::read_to_string(path).unwrap();
    let (before, rest) = page.split_once(START).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let mut table =
        "| preset | rows | conversations from | licence |\n|---|---|---|---|\n".to_owned();
    for Preset {
        name,
        about,
        address,
        conversion,
        licence,
    } in PRESETS
    {
        let place = address.trim_start_matches("hf://");
        let (id, _) = place.split_once(':').unwrap_or((place, ""));
        let link = format!("[`{place}`](https://huggingface.co/datasets/{id})");
        table += &format!("| `{name}` | {link}: {about} | {conversion} | {licence} |\n");
    }
    has_text(DATA, &format!("{before}{START}{table}{END}{after}"));
}

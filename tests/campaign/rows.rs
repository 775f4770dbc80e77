//! Datasets: JSON in lines and as a whole, compressed or not, and Parquet.
use std::io::Write as _;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    Array as _, ArrayRef, BooleanArray, Float64Array, Int32Array, LargeStringArray, ListArray,
    RecordBatch, StringArray, StructArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use flate2::write::GzEncoder;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use rand::{RngExt, rngs::StdRng};
use serde_json::Value;
use spectrain_data::lint::{Linter, lint};
use spectrain_data::mask::Masking;
use spectrain_data::prepare::{Overlong, Preparation, PrepareSettings, Turns};
use spectrain_data::prompts::{Fields, read_prompts};
use spectrain_data::rows::{Columns, read_columns, read_rows};
use spectrain_data::template::ChatTemplate;
use spectrain_data::tokenizer::Tokenizer;
use spectrain_data::unusable::Unusable;

use super::bytes;
use super::fuzz::{Expected, Files, Fuzz, any, file};
use super::json::{change_bytes, change_line};
use crate::golden::path;

const LINES: &str = r#"{"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "count to 3"}, {"role": "assistant", "content": "1 2 3"}], "category": "math", "id": 7}
{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello \ud83d\ude00"}], "language": "en", "system": "x"}
{"input_ids": [1, 2, 3, 4], "loss_mask": [0, 0, 1, 1]}
{"tokens": [5, 6, 7], "labels": [-100, 6, 7], "score": 0.5}
{"messages": [{"role": "user", "content": [{"type": "text", "text": "add"}]}, {"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]}, {"role": "tool", "content": "3"}], "tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}]}
{"prompt": "what is 2 + 2?", "turns": ["a", "b"]}
"#;

/// The lines that both readers take.
fn conversations() -> String {
    LINES
        .lines()
        .take(5)
        .map(|line| format!("{line}\n"))
        .collect()
}

/// The same as one list.
fn list() -> String {
    format!("[{}]", conversations().trim_end().replace('\n', ",\n"))
}

fn texts() -> Vec<Files> {
    let lines = conversations();
    let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(lines.as_bytes()).unwrap();
    let zstd = zstd::encode_all(lines.as_bytes(), 3).unwrap();
    vec![
        file("a.jsonl", lines.clone()),
        file("a.json", list()),
        file("a.json", lines),
        file("a.jsonl.gz", gzip.finish().unwrap()),
        file("a.jsonl.zst", zstd),
    ]
}

fn mutate_text(files: &mut Files, rng: &mut StdRng) {
    match any(files, rng) {
        (name, contents) if name.ends_with("jsonl") => change_line(contents, rng),
        (name, contents) if name.ends_with("json") => change_bytes(contents, rng),
        (_, contents) => bytes::change(contents, rng),
    }
}

/// Every row, whatever became of those before, and the prompts of them; the first error.
fn read(folder: &Path) -> Result<String, String> {
    let said = |error: spectrain_data::Error| error.to_string();
    let mut first = None;
    let mut count = 0;
    for columns in [Columns::Needed, Columns::All] {
        for row in read_columns(folder, columns).map_err(said)?.take(2000) {
            match row {
                Ok(located) => count += located.row.to_json().len(),
                Err(error) => first = first.or(Some(error)),
            }
        }
    }
    for prompt in read_prompts(&folder.to_path_buf().into(), Fields::default())
        .map_err(said)?
        .take(2000)
    {
        match prompt {
            Ok(asked) => count += asked.later.len(),
            Err(error) => first = first.or(Some(error)),
        }
    }
    first.map_or(Ok(count.to_string()), |error| Err(said(error)))
}

#[test]
fn rows_of_json_are_read_or_refused() {
    Fuzz {
        name: "jsonl",
        corpus: texts(),
        mutate: mutate_text,
        read,
        expected: Expected::default(),
    }
    .run();
}

/// Templates that mark what the assistant says, that do not, and that leave something out of earlier answers.
fn templates() -> Vec<ChatTemplate> {
    let golden: Value =
        serde_json::from_slice(&std::fs::read(path("chat_masks.json")).unwrap()).unwrap();
    let of = |name: &str| {
        let source = golden["templates"][name]["source"].as_str().unwrap();
        ChatTemplate::from_source(source, Some("<s>"), Some("</s>")).unwrap()
    };
    ["chatml", "chatml_plain", "thinking_plain"].map(of).into()
}

/// Samples made of every row, and what a look at the dataset says of it.
fn prepared(
    folder: &Path,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
) -> Result<String, String> {
    let said = |error: spectrain_data::Error| error.to_string();
    let settings = PrepareSettings {
        max_length: 64,
        overlong: Overlong::Truncate,
        masking: Masking::LastTurn,
        turns: Turns::Auto,
        min_trained_tokens: 1,
        unusable: Unusable::Refuse,
        vocab: tokenizer.vocab_size(),
    };
    let linter = Linter {
        template: Some(template),
        tokenizer,
        settings: &settings,
        stop_tokens: &[2],
        lists_rows: true,
        draft_vocabularies: &[16],
        shown: 1,
    };
    let train = read_rows(folder).map_err(said)?;
    let report = lint(train, read_rows(folder).map_err(said)?.take(1), &linter);
    let problems = report.map_err(said)?.problems().len();
    let mut tokens = 0;
    let rows = read_rows(folder).map_err(said)?;
    let preparation = Preparation {
        template: Some(template),
        tokenizer,
        settings: &settings,
    };
    let one = NonZero::<usize>::MIN;
    let made = preparation.prepare(rows, one, &mut |sample| {
        assert_eq!(sample.tokens.len(), sample.loss_mask.len());
        assert!(sample.tokens.len() <= settings.max_length);
        tokens += sample.trained_tokens();
        Ok(())
    });
    made.map_err(said)?;
    Ok(format!("{problems} {tokens}"))
}

#[test]
fn rows_become_samples_or_are_refused() {
    let tokenizer = Tokenizer::from_folder(&path("chat_tokenizer")).unwrap();
    let templates = templates();
    let plain = LINES.lines().take(4).map(|line| format!("{line}\n"));
    Fuzz {
        name: "samples",
        corpus: vec![file("a.jsonl", plain.collect::<String>())],
        mutate: mutate_text,
        read: |folder: &Path| {
            let bytes = std::fs::read(folder.join("a.jsonl")).unwrap().len();
            prepared(folder, &templates[bytes % templates.len()], &tokenizer)
        },
        expected: Expected {
            memory_per_byte: 256,
            ..Expected::default()
        },
    }
    .run();
}

/// Lists of messages.
fn messages() -> ListArray {
    let text = |name: &str, values: Vec<&str>| -> (Arc<Field>, ArrayRef) {
        let field = Field::new(name, DataType::Utf8, true);
        (Arc::new(field), Arc::new(StringArray::from(values)))
    };
    let structs = StructArray::from(vec![
        text("role", vec!["user", "assistant", "user", "assistant"]),
        text("content", vec!["a", "b", "count to 3", "1 2 3"]),
    ]);
    let item = Arc::new(Field::new("item", structs.data_type().clone(), true));
    ListArray::new(
        item,
        OffsetBuffer::from_lengths([2, 2]),
        Arc::new(structs),
        None,
    )
}

fn table(columns: Vec<(&str, ArrayRef)>, compression: Compression) -> Files {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    file("a.parquet", writer.into_inner().unwrap())
}

fn tables() -> Vec<Files> {
    let kinds = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::ZSTD(ZstdLevel::default()),
    ];
    let of = |compression| {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("messages", Arc::new(messages())),
            (
                "category",
                Arc::new(LargeStringArray::from(vec!["math", "prose"])),
            ),
            ("score", Arc::new(Float64Array::from(vec![Some(0.5), None]))),
            ("good", Arc::new(BooleanArray::from(vec![true, false]))),
            ("language", Arc::new(Int32Array::from(vec![1, 2]))),
        ];
        table(columns, compression)
    };
    let prompts: Vec<(&str, ArrayRef)> = vec![
        ("messages", Arc::new(messages())),
        ("id", Arc::new(StringArray::from(vec!["x", "y"]))),
    ];
    let prompts = table(prompts, Compression::SNAPPY);
    kinds.map(of).into_iter().chain([prompts]).collect()
}

fn mutate_table(files: &mut Files, rng: &mut StdRng) {
    let (_, contents) = any(files, rng);
    // The footer is what describes a table; a file's last eight bytes say how long it is.
    let end = contents.len().saturating_sub(8);
    if rng.random_bool(0.5) && end > 400 {
        let at = rng.random_range(end - 400..end);
        contents[at] = rng.random();
    } else {
        bytes::change(contents, rng);
    }
}

#[test]
fn tables_are_read_or_refused() {
    Fuzz {
        name: "parquet",
        corpus: tables(),
        mutate: mutate_table,
        read,
        expected: Expected::default(),
    }
    .run();
}

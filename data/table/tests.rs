//! What is read of tables, and what is said of those that are refused.

use std::sync::Arc;

use arrow::array::{
    Array as _, ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray,
    Int64Array, Int64Builder, ListArray, MapBuilder, StringArray, StringBuilder, StructArray,
    TimestampMillisecondArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Int8Type, Int32Type, Schema};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use serde_json::Value;

use super::*;
use crate::conversation::{CONVERSATION, Content, Conversation, LABELS, Message, Row, Sample};
use crate::forged::refusals;
use crate::prompts::{self, Ask, Labels, read_prompts};
use crate::rows::{LocatedRow, read_columns, read_rows, text_bytes};
use crate::tokens::TokenWriter;

/// A column of lists of so many of these items.
pub(crate) fn list(items: ArrayRef, lengths: &[usize]) -> ArrayRef {
    let field = Arc::new(Field::new("item", items.data_type().clone(), true));
    Arc::new(ListArray::new(
        field,
        OffsetBuffer::from_lengths(lengths.iter().copied()),
        items,
        None,
    ))
}

pub(crate) fn write_table(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    write_compressed(path, columns, Compression::UNCOMPRESSED);
}

fn write_compressed(path: &Path, columns: Vec<(&str, ArrayRef)>, codec: Compression) {
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, column)| Field::new(*name, column.data_type().clone(), true))
        .collect();
    let schema = Arc::new(Schema::new(fields));
    let columns = columns.into_iter().map(|(_, column)| column).collect();
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
    let properties = WriterProperties::builder().set_compression(codec).build();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, schema, Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[test]
fn a_table_is_read_however_its_columns_are_compressed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.parquet");
    let numbers = || Arc::new(Int64Array::from(vec![7; 300])) as ArrayRef;
    for codec in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::ZSTD(Default::default()),
        Compression::GZIP(Default::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
    ] {
        let columns = vec![
            ("input_ids", list(numbers(), &[300])),
            (
                "loss_mask",
                list(Arc::new(Int64Array::from(vec![1; 300])), &[300]),
            ),
        ];
        write_compressed(&file, columns, codec);
        let rows: Vec<LocatedRow> = read_rows(&file).unwrap().collect::<Result<_>>().unwrap();
        let sample = Sample {
            tokens: vec![7; 300],
            loss_mask: vec![true; 300],
        };
        assert_eq!(rows[0].row, Row::from(sample), "{codec}");
    }
}

#[test]
fn a_column_whose_compression_is_not_read_is_named_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    let tokens = list(Arc::new(Int64Array::from(vec![7; 3])), &[3]);
    write_table(&path, vec![("score", tokens.clone()), ("tokens", tokens)]);
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(&path).unwrap()).unwrap();
    // Nothing here writes such files.
    let group = &builder.metadata().row_groups()[0];
    let brotli = group.column(1).clone().into_builder();
    let brotli = brotli.set_compression(Compression::BROTLI(Default::default()));
    let columns = vec![group.column(0).clone(), brotli.build().unwrap()];
    let group = group.clone().into_builder().set_column_metadata(columns);
    let file = builder.metadata().file_metadata().clone();
    let metadata = ParquetMetaData::new(file, vec![group.build().unwrap()]);
    let found = "the column `tokens` compressed with Brotli";
    assert_eq!(other_codec(&metadata, None).as_deref(), Some(found));
    assert_eq!(other_codec(&metadata, Some(&[1])).as_deref(), Some(found));
    assert_eq!(other_codec(&metadata, Some(&[0])), None);
}

#[test]
fn a_table_of_messages_reads_like_lines() {
    let folder = tempfile::tempdir().unwrap();
    let text = |texts: &[Option<&str>]| Arc::new(StringArray::from(texts.to_vec())) as ArrayRef;
    let field = |name: &str| Arc::new(Field::new(name, DataType::Utf8, true));
    let messages = StructArray::new(
        vec![field("role"), field("content"), field("reasoning_content")].into(),
        vec![
            text(&[Some("user"), Some("assistant"), Some("user")]),
            text(&[Some("q"), Some("a"), Some("q2")]),
            text(&[None, Some("why"), None]),
        ],
        None,
    );
    let file = folder.path().join("rows.parquet");
    write_table(
        &file,
        vec![
            ("score", Arc::new(Int64Array::from(vec![1, 2]))),
            ("messages", list(Arc::new(messages), &[2, 1])),
        ],
    );
    // What the columns hold, and not much more.
    let bytes = text_bytes(std::slice::from_ref(&file)).unwrap();
    assert!((60..2000).contains(&bytes), "{bytes}");
    let rows: Vec<LocatedRow> = read_rows(&file).unwrap().collect::<Result<_>>().unwrap();
    let mut answer = Message::new("assistant", "a");
    answer
        .extra
        .insert("reasoning_content".into(), "why".into());
    assert_eq!(
        rows,
        [
            LocatedRow::new(
                Location::new(&file, 1),
                Conversation::new(vec![Message::new("user", "q"), answer])
            ),
            LocatedRow::new(
                Location::new(&file, 2),
                Conversation::new(vec![Message::new("user", "q2")])
            ),
        ]
    );
}

#[test]
fn a_column_of_messages_as_json_texts_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.parquet");
    let text = r#"[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]"#;
    let texts = StringArray::from(vec![text, "q"]);
    write_table(&file, vec![("messages", Arc::new(texts))]);
    let rows: Vec<_> = read_rows(&file).unwrap().collect();
    let messages = [Message::new("user", "q"), Message::new("assistant", "a")];
    let expected = Conversation::new(messages.to_vec());
    let read = &rows[0].as_ref().unwrap().row.content;
    assert_eq!(*read, Content::Conversation(expected));
    let told = rows[1].as_ref().unwrap_err().to_string();
    assert!(
        told.contains("row 2: expected a list of at least one message, or such a list as a text, found a text that is no JSON"),
        "{told}"
    );
}

#[test]
fn a_tool_has_no_keys_of_other_tools() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.parquet");
    let texts = |texts: &[Option<&str>]| Arc::new(StringArray::from(texts.to_vec())) as ArrayRef;
    let object = |fields: Vec<(&str, ArrayRef)>| {
        let named = |(name, column): (&str, ArrayRef)| {
            let field = Field::new(name, column.data_type().clone(), true);
            (Arc::new(field), column)
        };
        let fields: Vec<_> = fields.into_iter().map(named).collect();
        Arc::new(StructArray::from(fields)) as ArrayRef
    };
    let arguments = object(vec![
        ("city", texts(&[Some("Oslo"), None])),
        ("day", texts(&[None, Some("3")])),
    ]);
    let names = || texts(&[Some("weather"), Some("calendar")]);
    let function = object(vec![("name", names()), ("arguments", arguments)]);
    let calls = list(object(vec![("function", function)]), &[1, 1]);
    let messages = object(vec![
        ("role", texts(&[Some("user"), Some("assistant")])),
        ("content", texts(&[Some("q"), None])),
        ("tool_calls", calls),
    ]);
    let tools = object(vec![("name", names()), ("a", texts(&[None, Some("b")]))]);
    let columns = vec![
        ("tools", list(tools, &[2])),
        ("messages", list(messages, &[2])),
    ];
    write_table(&file, columns);
    let row = read_rows(&file).unwrap().next().unwrap().unwrap().row;
    let Content::Conversation(conversation) = row.content else {
        panic!("{row:?}");
    };
    let expected = serde_json::json!([{"name": "weather"}, {"name": "calendar", "a": "b"}]);
    assert_eq!(Value::from(conversation.tools), expected);
    let [.., said] = &conversation.messages[..] else {
        panic!("no message");
    };
    let expected =
        serde_json::json!([{"function": {"name": "calendar", "arguments": {"day": "3"}}}]);
    assert_eq!(
        (&said.extra["tool_calls"], said.content.as_str()),
        (&expected, "")
    );
}

#[test]
fn variables_of_a_row_are_read_without_those_of_other_rows() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.parquet");
    let thinking = BooleanArray::from(vec![Some(false), None]);
    let effort = StringArray::from(vec![None, Some("low")]);
    let variables = StructArray::from(vec![
        (
            Arc::new(Field::new("enable_thinking", DataType::Boolean, true)),
            Arc::new(thinking) as ArrayRef,
        ),
        (
            Arc::new(Field::new("effort", DataType::Utf8, true)),
            Arc::new(effort) as ArrayRef,
        ),
    ]);
    let said = |text: &str| Arc::new(StringArray::from(vec![text; 2])) as ArrayRef;
    let expected = [
        serde_json::json!({"enable_thinking": false}),
        serde_json::json!({"effort": "low"}),
    ];
    let of = |content: Content| match content {
        Content::Conversation(conversation) => Value::from(conversation.variables),
        Content::Tokens(sample) => panic!("{sample:?}"),
    };
    let messages = r#"[{"role": "user", "content": "q"}]"#;
    for (column, text, ask) in [
        ("messages", messages, Ask::Row),
        ("turns", "q", Ask::Row),
        ("question", "q", Ask::Turns(vec!["question".to_owned()])),
    ] {
        let variables = Arc::new(variables.clone()) as ArrayRef;
        write_table(&file, vec![(column, said(text)), (TEMPLATE_KEY, variables)]);
        let fields = prompts::Fields {
            ask,
            ..Default::default()
        };
        let asked = read_prompts(&file.clone().into(), fields).unwrap();
        let asked = asked.map(|asked| of(asked.unwrap().content));
        assert_eq!(asked.collect::<Vec<_>>(), expected, "{column}");
    }
}

#[test]
fn cells_that_are_only_copied_become_texts_where_json_has_no_form_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.parquet");
    let numbers = |of: i64| list(Arc::new(Int64Array::from(vec![of; 2])), &[2]);
    let kinds = DictionaryArray::<Int32Type>::from_iter(["chat"]);
    let moment = || TimestampMillisecondArray::from(vec![1_500]);
    let mut pairs = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    pairs.keys().append_value("k");
    pairs.values().append_value(3);
    pairs.append(true).unwrap();
    let price = Decimal128Array::from(vec![1250]).with_precision_and_scale(9, 2);
    write_table(
        &file,
        vec![
            ("input_ids", numbers(7)),
            ("loss_mask", numbers(1)),
            ("day", Arc::new(Date32Array::from(vec![1]))),
            ("at", Arc::new(moment().with_timezone("UTC"))),
            ("local", Arc::new(moment())),
            ("price", Arc::new(price.unwrap())),
            ("bytes", Arc::new(BinaryArray::from(vec![&b"\x01\xff"[..]]))),
            ("kind", Arc::new(kinds)),
            ("pairs", Arc::new(pairs.finish())),
        ],
    );
    let rows = read_columns(&file, Columns::All).unwrap();
    let rows: Vec<LocatedRow> = rows.collect::<Result<_>>().unwrap();
    let expected = serde_json::json!({
        "day": "1970-01-02",
        "at": "1970-01-01T00:00:01.500Z",
        "local": "1970-01-01T00:00:01.500",
        "price": "12.50",
        "bytes": "01ff",
        "kind": "chat",
        "pairs": "{k: 3}",
    });
    let extra = rows[0].row.extra.iter();
    let extra = extra.map(|(key, json)| (key.clone(), serde_json::from_str(json).unwrap()));
    assert_eq!(Value::Object(extra.collect()), expected);
    // What a row is read from is not guessed at.
    let moments = list(Arc::new(moment()), &[1]);
    write_table(
        &file,
        vec![("input_ids", moments), ("loss_mask", numbers(1))],
    );
    let read = read_columns(&file, Columns::All).unwrap().next().unwrap();
    let told = read.unwrap_err().to_string();
    assert!(told.contains("in column `input_ids`"), "{told}");
}

#[test]
fn columns_of_categories_are_read_as_what_they_stand_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.parquet");
    let numbers = |of: i64| list(Arc::new(Int64Array::from(vec![of; 3])), &[1, 1, 1]);
    let kinds: DictionaryArray<Int32Type> = ["chat", "code", "chat"].into_iter().collect();
    let known = [Some("en"), None, Some("de")].into_iter();
    let languages: DictionaryArray<Int8Type> = known.collect();
    write_table(
        &file,
        vec![
            ("input_ids", numbers(7)),
            ("loss_mask", numbers(1)),
            ("category", Arc::new(kinds)),
            ("language", Arc::new(languages)),
        ],
    );
    for columns in [Columns::Needed, Columns::All] {
        let labels = read_columns(&file, columns).unwrap();
        let labels = labels.map(|row| Labels::of_row(&row.unwrap().row));
        let labels = labels.map(|Labels { category, language }| (category, language));
        let expected = [("chat", Some("en")), ("code", None), ("chat", Some("de"))];
        let owned = |(category, language): (&str, Option<&str>)| {
            (Some(category.to_owned()), language.map(str::to_owned))
        };
        assert_eq!(labels.collect::<Vec<_>>(), expected.map(owned));
    }
    // Of messages, too.
    let roles: DictionaryArray<Int32Type> = ["user"].into_iter().collect();
    let messages = StructArray::new(
        vec![
            Arc::new(Field::new("role", roles.data_type().clone(), true)),
            Arc::new(Field::new("content", DataType::Utf8, true)),
        ]
        .into(),
        vec![Arc::new(roles), Arc::new(StringArray::from(vec!["q"]))],
        None,
    );
    write_table(&file, vec![("messages", list(Arc::new(messages), &[1]))]);
    let row = read_rows(&file).unwrap().next().unwrap().unwrap().row;
    let expected = Conversation::new(vec![Message::new("user", "q")]);
    assert_eq!(row.content, Content::Conversation(expected));
}

#[test]
fn a_table_of_tokens_reads_masks_and_labels() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.parquet");
    let numbers = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as ArrayRef;
    let masks = BooleanArray::from(vec![false, true]);
    let item = Arc::new(Field::new("item", DataType::Boolean, true));
    let masks = ListArray::new(
        item,
        OffsetBuffer::new(ScalarBuffer::from(vec![0, 2, 2])),
        Arc::new(masks),
        Some(NullBuffer::from(vec![true, false])),
    );
    write_table(
        &file,
        vec![
            ("input_ids", list(numbers(vec![3, 4, 5, 6]), &[2, 2])),
            ("labels", list(numbers(vec![-100, -100, 5, -100]), &[2, 2])),
            ("loss_mask", Arc::new(masks)),
        ],
    );
    let rows: Vec<Row> = read_rows(&file)
        .unwrap()
        .map(|row| row.unwrap().row)
        .collect();
    let sample = |tokens: [u32; 2], mask: [bool; 2]| {
        Row::from(Sample {
            tokens: tokens.to_vec(),
            loss_mask: mask.to_vec(),
        })
    };
    assert_eq!(
        rows,
        [sample([3, 4], [false, true]), sample([5, 6], [true, false])]
    );
}

#[test]
fn of_the_columns_beside_a_row_its_labels_and_its_conversation_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.parquet");
    let numbers = || list(Arc::new(Int64Array::from(vec![1; 2])), &[2]);
    let text = |text: &str| Arc::new(StringArray::from(vec![text])) as ArrayRef;
    write_table(
        &file,
        vec![
            ("input_ids", numbers()),
            ("loss_mask", numbers()),
            (CONVERSATION, text("00ff")),
            (LABELS[0], text("chat")),
            ("source", text("x")),
        ],
    );
    let row = read_rows(&file).unwrap().next().unwrap().unwrap().row;
    let expected = [(CONVERSATION, "\"00ff\""), (LABELS[0], "\"chat\"")];
    let extra = row.extra.iter();
    let extra = extra.map(|(key, value)| (key.as_str(), value.as_str()));
    assert_eq!(extra.collect::<Vec<_>>(), expected);
}

#[test]
fn a_table_without_a_known_column_lists_its_columns() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.parquet");
    write_table(
        &file,
        vec![("prompt", Arc::new(StringArray::from(vec!["x"])))],
    );
    let rows: Vec<_> = read_rows(&file).unwrap().collect();
    let message = rows[0].as_ref().unwrap_err().to_string();
    assert!(message.ends_with("found the columns `prompt`"), "{message}");
    assert_eq!(rows.len(), 1);
    std::fs::write(&file, "PAR1 cut off").unwrap();
    let message = read_rows(&file)
        .unwrap()
        .next()
        .unwrap()
        .unwrap_err()
        .to_string();
    assert!(message.contains("a readable Parquet file"), "{message}");
}

#[test]
fn a_forged_table_is_an_error_and_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.parquet");
    let mut writer = TokenWriter::create(folder.path(), 100).unwrap();
    for length in [5, 1, 9, 4, 7] {
        let sample = Sample {
            tokens: (0..length).collect(),
            loss_mask: vec![true; length as usize],
        };
        writer.push(&sample).unwrap();
    }
    let shards = writer.finish(serde_json::Map::new()).unwrap().shards;
    let whole = std::fs::read(folder.path().join(&shards[0].file)).unwrap();
    let messages = refusals(&whole, 300, |bytes| {
        std::fs::write(&file, bytes).unwrap();
        read_rows(&file)?.try_for_each(|row| row.map(drop))
    });
    let contained = |message: &String| message.contains("its library fails on");
    assert!(
        messages.iter().any(contained),
        "no case would have panicked"
    );
    assert!(
        messages
            .iter()
            .all(|message| message.contains("rows.parquet"))
    );
}

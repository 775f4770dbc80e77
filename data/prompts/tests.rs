use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use serde_json::{Value, json};

use super::sets::{KNOWN, find};
use super::*;

fn texts(texts: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(texts.to_vec()))
}

/// A column of lists of texts.
fn lists(lists: &[&[&str]]) -> ArrayRef {
    let field = Arc::new(Field::new("item", DataType::Utf8, true));
    let lengths = OffsetBuffer::from_lengths(lists.iter().map(|list| list.len()));
    Arc::new(ListArray::new(field, lengths, texts(&lists.concat()), None))
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn table(&self, columns: Vec<(&str, ArrayRef)>) -> PathBuf {
        let path = self.0.path().join("test.parquet");
        let batch = RecordBatch::try_from_iter_with_nullable(
            columns
                .into_iter()
                .map(|(name, column)| (name, column, true)),
        )
        .unwrap();
        let schema: Arc<Schema> = batch.schema();
        let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), schema, None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        path
    }

    fn lines(&self, rows: &[Value]) -> PathBuf {
        let path = self.0.path().join("question.jsonl");
        let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
        std::fs::write(&path, lines.join("\n")).unwrap();
        path
    }
}

/// What is asked, turn by turn, with category and language.
type Shown = (Vec<String>, Option<String>, Option<String>);

fn shown(asked: Asked) -> Shown {
    let Content::Conversation(conversation) = asked.content else {
        panic!("{:?}", asked.content);
    };
    let first = conversation.messages.into_iter();
    let first = first.map(|message| format!("{}: {}", message.role, message.content));
    (
        first.chain(asked.later).collect(),
        asked.labels.category,
        asked.labels.language,
    )
}

fn all(path: &Path, fields: Fields) -> Vec<Shown> {
    let rows = read_prompts(&path.to_owned().into(), fields).unwrap();
    rows.map(|row| shown(row.unwrap())).collect()
}

fn first(path: &Path, set: &str) -> Shown {
    all(path, find(set).unwrap().fields()).swap_remove(0)
}

fn refused(path: &Path, fields: Fields) -> String {
    let mut rows = read_prompts(&path.to_owned().into(), fields).unwrap();
    rows.next().unwrap().unwrap_err().to_string()
}

fn asked(turns: &[&str], category: Option<&str>) -> Shown {
    let turns = turns.iter().map(|turn| (*turn).to_owned()).collect();
    (turns, category.map(str::to_owned), None)
}

const STEPS: &str = "Please reason step by step, and put your final answer within \\boxed{}.";

#[test]
fn tables_of_known_sets_are_read_by_their_columns() {
    let folder = Folder::new();
    let path = folder.table(vec![
        ("question", texts(&["How many {apples}?"])),
        ("answer", texts(&["7"])),
    ]);
    let expected = format!("user: How many {{apples}}?\n{STEPS}");
    assert_eq!(first(&path, "gsm8k"), asked(&[&expected], None));

    let path = folder.table(vec![
        ("task_id", texts(&["HumanEval/0"])),
        ("prompt", texts(&["def f():\n"])),
        ("test", texts(&["assert f()"])),
    ]);
    let (turns, ..) = first(&path, "humaneval");
    assert!(
        turns[0].ends_with("```python\ndef f():\n\n```"),
        "{turns:?}"
    );

    let path = folder.table(vec![
        ("task_id", Arc::new(Int64Array::from(vec![2]))),
        ("prompt", texts(&["Write a function."])),
        ("test_list", lists(&[&["assert a", "assert b"]])),
    ]);
    assert_eq!(
        first(&path, "mbpp"),
        asked(&["user: Write a function."], None)
    );

    let path = folder.table(vec![
        ("instruction", texts(&["Sort.", "Say hello."])),
        ("input", texts(&["3 1 2", ""])),
        ("output", texts(&["1 2 3", "Hello."])),
    ]);
    let expected = [
        asked(&["user: Sort.\n\n3 1 2"], None),
        asked(&["user: Say hello."], None),
    ];
    assert_eq!(all(&path, find("alpaca").unwrap().fields()), expected);

    let path = folder.table(vec![
        ("article", texts(&["News."])),
        ("highlights", texts(&["None."])),
    ]);
    assert_eq!(
        first(&path, "cnn-dailymail"),
        asked(&["user: Summarize: News."], None)
    );
}

#[test]
fn conversations_of_known_sets_keep_all_turns_and_their_category() {
    let folder = Folder::new();
    let turns = ["Write a poem.", "Now without rhymes."];
    let row = json!({"question_id": 81, "category": "writing", "turns": turns, "reference": []});
    let expected = asked(
        &["user: Write a poem.", "Now without rhymes."],
        Some("writing"),
    );
    let path = folder.lines(std::slice::from_ref(&row));
    for set in ["mt-bench", "spec-bench"] {
        assert_eq!(first(&path, set), expected);
    }
    let copy = json!({"prompt": turns, "category": "writing", "prompt_id": 1});
    assert_eq!(first(&folder.lines(&[copy]), "mt-bench"), expected);
    let path = folder.table(vec![
        ("question_id", texts(&["a"])),
        ("category", texts(&["writing"])),
        ("turns", lists(&[&turns])),
        ("source", texts(&["b"])),
        ("difficulty", texts(&["easy"])),
    ]);
    assert_eq!(first(&path, "speed-bench"), expected);

    let problem = json!({"problem": "1 + 1", "subject": "Algebra", "level": 1, "solution": "2"});
    let expected = format!("user: 1 + 1\n{STEPS}");
    assert_eq!(
        first(&folder.lines(&[problem]), "math-500"),
        asked(&[&expected], Some("Algebra"))
    );
}

#[test]
fn rows_of_any_file_show_what_is_asked() {
    let folder = Folder::new();
    let path = folder.lines(&[
        json!({"turns": ["a", "b"], "category": "x", "language": "de"}),
        json!({"prompt": "c", "category": 3}),
        json!({"prompt": null, "messages": [{"role": "user", "content": "d"}]}),
    ]);
    let found = all(&path, Fields::default());
    let german = (
        vec!["user: a".into(), "b".into()],
        Some("x".into()),
        Some("de".into()),
    );
    assert_eq!(
        found,
        [
            german,
            asked(&["user: c"], Some("3")),
            asked(&["user: d"], None)
        ]
    );
    let fields = Fields {
        ask: Ask::Text("{q}: {tests}".into()),
        language: Some("lang".into()),
        ..Fields::default()
    };
    let path = folder.table(vec![
        ("q", texts(&["Frage"])),
        ("tests", lists(&[&["a", "b"]])),
        ("lang", texts(&["de"])),
    ]);
    let expected = (vec!["user: Frage: a\nb".into()], None, Some("de".into()));
    assert_eq!(all(&path, fields), [expected]);
}

#[test]
fn a_column_that_is_not_there_is_named_with_those_that_are() {
    let folder = Folder::new();
    let table = folder.table(vec![("frage", texts(&["a"])), ("text", texts(&["b"]))]);
    let gsm8k = || find("gsm8k").unwrap().fields();
    let error = refused(&table, gsm8k());
    let expected = "test.parquet`: expected a column `question`, found the columns `frage`, `text`";
    assert!(error.ends_with(expected), "{error}");
    let lines = folder.lines(&[json!({"frage": "a"})]);
    let error = refused(&lines, gsm8k());
    let expected = "question.jsonl` row 1: expected a column `question` (for prompts of your own, `template` can name another), found the keys `frage`";
    assert!(error.ends_with(expected), "{error}");
    let error = refused(&lines, find("mt-bench").unwrap().fields());
    assert!(error.contains("expected a column `category`"), "{error}");
    for path in [&table, &lines] {
        let error = refused(path, Fields::default());
        assert!(
            error.contains("`turns`") && error.contains("`frage`"),
            "{error}"
        );
    }
    let labelled = folder.lines(&[json!({"category": "a"})]);
    let error = refused(&labelled, find("mt-bench").unwrap().fields());
    assert!(error.contains("a column `turns` or `prompt`"), "{error}");
    let nothing = folder.0.path().join("none.jsonl");
    let error = read_prompts(&nothing.into(), gsm8k())
        .map(drop)
        .unwrap_err();
    assert!(error.to_string().contains("none.jsonl"), "{error}");
}

#[test]
fn what_asks_nothing_is_refused() {
    let folder = Folder::new();
    let row = |turns: Value| folder.lines(&[json!({"category": "qa", "turns": turns})]);
    let set = || find("speed-bench").unwrap().fields();
    let error = refused(&row(json!([])), set());
    assert!(
        error.ends_with("expected a question in every turn, found no turn"),
        "{error}"
    );
    let error = refused(&row(json!(["a", " "])), set());
    assert!(error.ends_with("found an empty text among 2"), "{error}");
    let error = refused(&row(json!([1])), set());
    assert!(error.contains("`turns` to be texts"), "{error}");
    let deferred = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH";
    let error = refused(&row(json!([deferred])), set());
    assert!(
        error.contains("prepare_data.py") && error.contains("speed-bench=PATH"),
        "{error}"
    );
}

#[test]
fn known_sets_have_names_of_their_own_and_say_what_they_are() {
    for (at, set) in KNOWN.iter().enumerate() {
        assert!(KNOWN[..at].iter().all(|other| other.name != set.name));
        assert!(
            !set.about.is_empty() && !set.licence.is_empty(),
            "{}",
            set.name
        );
        let fields = set.fields();
        let columns = match &fields.ask {
            Ask::Text(text) => text.contains('{'),
            Ask::Turns(columns) => !columns.is_empty(),
            Ask::Row => false,
        };
        assert!(columns, "{}", set.name);
        assert!(set.hub.is_some() || set.name == "spec-bench");
    }
}

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::{ArrayRef, StringArray, StructArray};
use arrow::datatypes::{DataType, Field};
use spectrain_checkpoints::HubOptions;

use super::*;
use crate::conversation::{Exchange, Message};
use crate::mask::Masking;
use crate::rows::LONGEST_ROW;
use crate::sources::Sources;
use crate::table::tests::{list, write_table};
use crate::unusable::Unusable;

/// The contents of messages.
type Said = Vec<String>;

/// Answers that count, and fail as planned: the failures of a turn come before its answer.
#[derive(Default)]
struct Scripted {
    /// By row and turn.
    failures: Mutex<HashMap<(u64, usize), Vec<Failure>>>,
    /// Answers given, by row and turn, with what stood before.
    given: Mutex<HashMap<(u64, usize), Vec<Said>>>,
    cut: Option<(u64, usize)>,
    /// Whether its answers have tokens: row and turn before one more.
    in_tokens: bool,
    calls: AtomicUsize,
    /// Turns whose answers are only context.
    context: Mutex<Vec<usize>>,
}

impl Scripted {
    fn failing(row: u64, turn: usize, failures: Vec<Failure>) -> Self {
        let scripted = Self::default();
        scripted
            .failures
            .lock()
            .unwrap()
            .insert((row, turn), failures);
        scripted
    }

    /// How often each turn was answered.
    fn times(&self) -> Vec<((u64, usize), usize)> {
        let given = self.given.lock().unwrap();
        let mut times: Vec<_> = given.iter().map(|(turn, all)| (*turn, all.len())).collect();
        times.sort_unstable();
        times
    }
}

impl Answers for Scripted {
    fn answer(&self, request: &Request) -> Result<Answer, Failure> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let turn = (request.row, request.turn);
        if !request.trained {
            self.context.lock().unwrap().push(request.turn);
        }
        let mut failures = self.failures.lock().unwrap();
        if let Some(failure) = failures.get_mut(&turn).and_then(Vec::pop) {
            return Err(failure);
        }
        drop(failures);
        // Those that come first are not the first to end.
        std::thread::sleep(Duration::from_micros(1500 * (7 - request.row % 7)));
        let messages = request.exchange.messages.iter();
        let texts = messages.map(|message| message.content.clone());
        let mut given = self.given.lock().unwrap();
        given.entry(turn).or_default().push(texts.collect());
        Ok(Answer {
            message: Message::new("assistant", format!("new {}.{}", request.row, request.turn)),
            truncated: self.cut == Some(turn),
            written: self.in_tokens.then(|| Written {
                prompt: vec![request.row as u32, request.turn as u32],
                answer: vec![9],
            }),
        })
    }
}

struct Folder(tempfile::TempDir);

const DATA: &str = r#"{"id": 1, "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "old"}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "old"}]}
{"conversations": [{"from": "human", "value": "c"}], "system": "t"}
{"messages": [{"role": "user", "content": "d"}, {"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}, {"role": "tool", "content": "1"}], "source": {"page": [1, 2]}}
{"messages": [{"role": "user", "content": "e", "name": "eve"}, {"role": "assistant", "content": "old"}]}
{"input_ids": [1, 2], "loss_mask": [0, 1], "id": "t"}
{"messages": [{"role": "system", "content": "s"}]}
{"messages": [{"role": "user", "content": "g"}, {"role": "assistant", "content": "old"}, {"role": "user", "content": "h"}]}
"#;

const WRITTEN: &str = r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"new 1.1"},{"role":"user","content":"b"},{"role":"assistant","content":"new 1.2"}],"id":1}
{"messages":[{"role":"system","content":"t"},{"role":"user","content":"c"},{"role":"assistant","content":"new 2.1"}]}
{"messages":[{"role":"user","content":"d"},{"role":"assistant","content":"","tool_calls":[{"name":"f"}]},{"role":"tool","content":"1"}],"source":{"page": [1, 2]}}
{"messages":[{"role":"user","content":"e","name":"eve"},{"role":"assistant","content":"new 4.1"}]}
{"input_ids":[1,2],"loss_mask":[0,1],"id":"t"}
{"messages":[{"role":"system","content":"s"}]}
{"messages":[{"role":"user","content":"g"},{"role":"assistant","content":"new 7.1"},{"role":"user","content":"h"},{"role":"assistant","content":"new 7.2"}]}
"#;

/// Every turn of [`DATA`] that is to be answered.
const TURNS: [(u64, usize); 6] = [(1, 1), (1, 2), (2, 1), (4, 1), (7, 1), (7, 2)];

fn never() -> bool {
    false
}

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        fs::write(folder.path("data.jsonl"), DATA).unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn open(&self, truncated: Truncated, existing: ExistingAnswers) -> Result<Job> {
        self.open_of(&self.path("data.jsonl").into(), truncated, existing)
    }

    fn open_of(
        &self,
        data: &Dataset,
        truncated: Truncated,
        existing: ExistingAnswers,
    ) -> Result<Job> {
        let settings = json!({"model": "m"});
        let wanted = RegenerateSettings {
            data,
            out: &self.path("out.jsonl"),
            settings: settings.as_object().unwrap().clone(),
            truncated,
            tools: ToolRows::Copy,
            unusable: Unusable::Refuse,
        };
        Job::open(&wanted, existing)
    }

    fn run_with(
        &self,
        answers: &Scripted,
        truncated: Truncated,
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<RegenerateReport>> {
        let work = work(interrupted);
        let mut seen = 0;
        let job = self.open(truncated, ExistingAnswers::Continue)?;
        let all = job.conversations();
        job.run(answers, &work, &mut |done, _| {
            assert!(done > seen && done <= all);
            seen = done;
        })
    }

    fn run(&self, answers: &Scripted) -> RegenerateReport {
        self.run_with(answers, Truncated::Keep, &never)
            .unwrap()
            .unwrap()
    }
}

fn work(interrupted: &(dyn Fn() -> bool + Sync)) -> Work<'_> {
    Work {
        concurrency: 3,
        retry: Retry {
            retries: 2,
            first: Duration::from_millis(1),
            longest: Duration::from_millis(2),
        },
        requests_per_second: None,
        interrupted,
    }
}

fn passing(reason: &str) -> Failure {
    Failure::Passing {
        reason: reason.into(),
        wait: None,
    }
}

#[test]
fn every_turn_is_answered_once_on_top_of_new_answers_and_rows_keep_their_order() {
    let (folder, answers) = (Folder::new(), Scripted::default());
    let report = folder.run(&answers);
    assert_eq!(folder.text("out.jsonl"), WRITTEN);
    assert_eq!(answers.times(), TURNS.map(|turn| (turn, 1)));
    assert_eq!(
        answers.given.lock().unwrap()[&(1, 2)],
        [["s", "a", "new 1.1", "b"]]
    );
    let listed = |row| {
        let mut listed = ListedRows::default();
        listed.add(&Location::new(folder.path("data.jsonl"), row));
        listed
    };
    let unchanged = UnchangedRows {
        tools: listed(3),
        no_user: listed(6),
        tokens: listed(5),
    };
    let expected = RegenerateReport {
        rows: 7,
        regenerated: 4,
        answers: 6,
        requests: 6,
        unchanged,
        ..RegenerateReport::default()
    };
    assert_eq!(report, expected);
    let written: RegenerateReport = serde_json::from_str(&folder.text("out.jsonl.report")).unwrap();
    assert_eq!(written, report);

    let again = Scripted::default();
    let report = folder.run(&again);
    assert_eq!((again.times().len(), report.from_journal), (0, 4));
    assert_eq!(folder.text("out.jsonl"), WRITTEN);
}

#[test]
fn rows_of_tokens_say_of_which_conversation_they_are() {
    let folder = Folder::new();
    folder.run(&Scripted {
        in_tokens: true,
        ..Scripted::default()
    });
    let text = folder.text("out.jsonl");
    let rows = text.lines().map(|line| Row::from_json(line).unwrap());
    let mut names: HashMap<u32, Vec<String>> = HashMap::new();
    for row in rows {
        let Content::Tokens(sample) = row.content else {
            continue;
        };
        let name = row.extra.into_iter().find(|(key, _)| key == CONVERSATION);
        let named = names.entry(sample.tokens[0]).or_default();
        // A row of tokens that is in the data is copied as it is.
        named.extend(name.map(|(_, name)| name));
    }
    let [first, last] = [1_u32, 7].map(|row| &names[&row]);
    assert_eq!((first.len(), last.len()), (2, 2), "{text}");
    assert!(first[0] == first[1] && last[0] == last[1], "{text}");
    assert_ne!(first[0], last[0]);
    let digest = hex(&Sha256::digest([1_u8, 0, 0, 0, 1, 0, 0, 0]));
    assert_eq!(first[0], format!("\"{digest}\""));
}

#[test]
fn answers_are_context_where_those_of_the_data_are_and_variables_stay_with_their_row() {
    let said = |(turn, weight): (&str, Value)| {
        let answer = json!({"role": "assistant", "content": "old", "weight": weight});
        [json!({"role": "user", "content": turn}), answer]
    };
    let turns = [("a", json!(0)), ("b", json!(1)), ("c", json!(null))];
    let messages = turns.map(said).concat();
    let variables = json!({"enable_thinking": false});
    let row = json!({"messages": messages, "chat_template_kwargs": variables, "id": 1});
    let regenerated = |in_tokens| {
        let folder = Folder::new();
        fs::write(folder.path("data.jsonl"), format!("{row}\n")).unwrap();
        let answers = Scripted {
            in_tokens,
            ..Scripted::default()
        };
        let report = folder.run(&answers);
        assert_eq!((report.answers, report.context), (3, 1), "{report}");
        assert_eq!(*answers.context.lock().unwrap(), [1]);
        let text = folder.text("out.jsonl");
        let rows = text.lines().map(|line| serde_json::from_str(line).unwrap());
        rows.collect::<Vec<Value>>()
    };
    let rows = regenerated(false);
    let mut expected = row.clone();
    for (place, turn) in [(1, 1), (3, 2), (5, 3)] {
        let answer = json!({"role": "assistant", "content": format!("new 1.{turn}")});
        expected["messages"][place] = answer;
    }
    expected["messages"][1]["weight"] = json!(0);
    assert_eq!(rows, [expected]);
    // Of rows of tokens each is one that is trained on.
    let rows = regenerated(true);
    let prompts: Vec<_> = rows.iter().map(|row| row["input_ids"][1].clone()).collect();
    assert_eq!(prompts, [2, 3]);
    assert_eq!(rows[0][CONVERSATION], rows[1][CONVERSATION]);
}

#[test]
fn a_row_that_is_too_long_with_what_is_only_copied_does_not_shift_the_others() {
    let folder = Folder::new();
    let file = folder.path("data.parquet");
    let texts = |texts: Vec<String>| Arc::new(StringArray::from(texts)) as ArrayRef;
    let field = |name: &str| Arc::new(Field::new(name, DataType::Utf8, true));
    let questions = ["a", "b", "c"].map(str::to_owned);
    let messages = StructArray::new(
        vec![field("role"), field("content")].into(),
        vec![texts(vec!["user".to_owned(); 3]), texts(questions.into())],
        None,
    );
    let pictures = ["x".repeat(LONGEST_ROW), String::new(), String::new()];
    write_table(
        &file,
        vec![
            ("picture", texts(pictures.into())),
            ("messages", list(Arc::new(messages), &[1; 3])),
        ],
    );
    let wanted = RegenerateSettings {
        data: &file.into(),
        out: &folder.path("out.jsonl"),
        settings: Map::new(),
        truncated: Truncated::Keep,
        tools: ToolRows::Copy,
        unusable: Unusable::Drop,
    };
    let answers = Scripted::default();
    let job = Job::open(&wanted, ExistingAnswers::Continue).unwrap();
    let report = job.run(&answers, &work(&never), &mut |_, _| {});
    let report = report.unwrap().unwrap();
    assert_eq!((report.rows, report.unusable.count), (2, 1), "{report}");
    let given = answers.given.lock().unwrap();
    assert_eq!(given[&(1, 1)], [["b"]]);
    assert_eq!(given[&(2, 1)], [["c"]]);
}

#[test]
fn rows_are_listed_as_their_file_has_them_whatever_is_left_out_before() {
    let folder = Folder::new();
    let file = folder.path("data.jsonl");
    fs::write(&file, format!("{{oops\n{DATA}")).unwrap();
    let wanted = RegenerateSettings {
        data: &file.clone().into(),
        out: &folder.path("out.jsonl"),
        settings: Map::new(),
        truncated: Truncated::Keep,
        tools: ToolRows::Copy,
        unusable: Unusable::Drop,
    };
    let reason = "no".to_owned();
    let mut answers = Scripted::failing(4, 1, vec![Failure::Lasting { reason }]);
    answers.cut = Some((7, 1));
    let job = Job::open(&wanted, ExistingAnswers::Continue).unwrap();
    let report = job.run(&answers, &work(&never), &mut |_, _| {});
    let report = report.unwrap().unwrap();
    let at = |row: usize| format!("`{}` row {row}", file.display());
    let UnchangedRows {
        tools,
        no_user,
        tokens,
    } = &report.unchanged;
    let listed = [tools, tokens, no_user, &report.cut_off].map(ListedRows::to_string);
    assert_eq!(listed, [4, 6, 7, 8].map(at));
    assert_eq!(report.failed[0].place, at(5));
}

#[test]
fn rows_are_answered_and_written_as_often_as_the_weight_of_their_source_says() {
    let folder = Folder::new();
    let row = |at: usize| {
        let messages = json!([{"role": "user", "content": format!("half {at}")}]);
        format!("{}\n", json!({"messages": messages, "at": at}))
    };
    fs::write(
        folder.path("half.jsonl"),
        (0..100).map(row).collect::<String>(),
    )
    .unwrap();
    let answered = |weights: [f64; 2]| {
        let names = ["data.jsonl", "half.jsonl"];
        let sources = names.map(|name| folder.path(name)).into_iter().zip(weights);
        let sources = sources.map(|(path, weight)| json!({"path": path, "weight": weight}));
        let sources: Sources = serde_json::from_value(sources.collect()).unwrap();
        let data = sources.fetch(&HubOptions::default()).unwrap();
        let answers = Scripted::default();
        let job = folder.open_of(&data, Truncated::Keep, ExistingAnswers::Continue);
        let report = job.unwrap().run(&answers, &work(&never), &mut |_, _| {});
        (report.unwrap().unwrap(), answers.times())
    };
    let (report, times) = answered([2.0, 0.5]);
    let taken = 100 - report.passed_over;
    assert!((30..70).contains(&taken), "{report}");
    assert_eq!(report.regenerated, 4 + taken);
    assert_eq!(times.len() as u64, TURNS.len() as u64 + taken);
    let text = folder.text("out.jsonl");
    let twice: String = WRITTEN
        .lines()
        .map(|line| format!("{line}\n").repeat(2))
        .collect();
    let half = text.strip_prefix(&twice).unwrap().lines();
    assert_eq!(half.clone().count() as u64, taken);
    assert_eq!(
        half.collect::<std::collections::HashSet<_>>().len() as u64,
        taken
    );
    // With another weight only those are answered that were not taken before.
    let (report, times) = answered([1e-9, 1.0]);
    assert_eq!((report.passed_over, report.from_journal), (7, taken));
    assert_eq!(times.len() as u64, 100 - taken);
    assert_eq!(folder.text("out.jsonl").lines().count(), 100);
}

#[test]
fn a_run_cut_off_anywhere_in_its_journal_asks_for_the_rest_and_no_more() {
    let folder = Folder::new();
    folder.run(&Scripted::default());
    let journal = fs::read(folder.path("out.jsonl.journal")).unwrap();
    let header = 1 + journal.iter().position(|&byte| byte == b'\n').unwrap();
    // Every byte is cut at in the journal's own test.
    let ends = (1..=journal.len()).filter(|&end| journal[end - 1] == b'\n');
    let cuts = ends.flat_map(|end| [end - 40, end - 1, end, end + 1]);
    for cut in cuts.chain([0]).filter(|&cut| cut <= journal.len()) {
        fs::write(folder.path("out.jsonl.journal"), &journal[..cut]).unwrap();
        fs::remove_file(folder.path("out.jsonl")).unwrap();
        let held: Vec<u64> = journal[header.min(cut)..cut]
            .split_inclusive(|&byte| byte == b'\n')
            .filter(|line| line.ends_with(b"\n"))
            .map(|line| serde_json::from_slice::<Entry>(line).unwrap().row)
            .collect();
        let answers = Scripted::default();
        let report = folder.run(&answers);
        assert_eq!(report.from_journal, held.len() as u64, "cut at {cut}");
        let rest: Vec<_> = TURNS
            .into_iter()
            .filter(|(row, _)| !held.contains(row))
            .map(|turn| (turn, 1))
            .collect();
        assert_eq!(answers.times(), rest, "cut at {cut}");
        assert_eq!(folder.text("out.jsonl"), WRITTEN, "cut at {cut}");
    }
}

#[test]
fn failures_that_may_pass_are_tried_again_and_others_are_not() {
    let folder = Folder::new();
    let answers = Scripted::failing(7, 2, vec![passing("one"), passing("two")]);
    let report = folder.run(&answers);
    assert_eq!(
        (report.requests, report.retried, report.failed.len()),
        (8, 2, 0)
    );
    assert_eq!(folder.text("out.jsonl"), WRITTEN);

    let folder = Folder::new();
    let reason = "no such thing".to_owned();
    let answers = Scripted::failing(
        1,
        2,
        vec![Failure::Lasting {
            reason: reason.clone(),
        }],
    );
    let report = folder.run(&answers);
    let failed = Failed {
        row: 1,
        place: format!("`{}` row 1", folder.path("data.jsonl").display()),
        turn: 2,
        tries: 1,
        reason,
    };
    assert_eq!(report.failed, [failed]);
    let others = WRITTEN.split_once('\n').unwrap().1;
    assert_eq!(folder.text("out.jsonl"), others, "the others are there");

    let answers = Scripted::default();
    let report = folder.run(&answers);
    assert_eq!(answers.times(), [((1, 1), 1), ((1, 2), 1)]);
    assert_eq!((report.from_journal, report.failed.len()), (3, 0));
    assert_eq!(folder.text("out.jsonl"), WRITTEN);
}

#[test]
fn a_failure_that_does_not_pass_names_its_turn_its_tries_and_the_last_reason() {
    let folder = Folder::new();
    let failures = vec![passing("last"), passing("middle"), passing("first")];
    let report = folder.run(&Scripted::failing(7, 1, failures));
    let failed = &report.failed[0];
    assert_eq!(
        (
            failed.row,
            failed.turn,
            failed.tries,
            failed.reason.as_str()
        ),
        (7, 1, 3, "last")
    );
    let shown = report.to_string();
    assert!(
        shown.ends_with("data.jsonl` row 7, turn 1, after 3 tries: last"),
        "{shown}"
    );
}

#[test]
fn an_interrupted_run_writes_no_output_and_the_next_one_goes_on() {
    let (folder, answers) = (Folder::new(), Scripted::default());
    let interrupted = || answers.calls.load(Ordering::Relaxed) >= 3;
    let report = folder
        .run_with(&answers, Truncated::Keep, &interrupted)
        .unwrap();
    assert_eq!(report, None);
    assert!(!folder.path("out.jsonl").exists());
    let first = answers.times();
    assert!((3..6).contains(&first.len()), "{first:?}");
    let rest = Scripted::default();
    let report = folder.run(&rest);
    assert_eq!(folder.text("out.jsonl"), WRITTEN);
    assert!(report.from_journal + rest.times().len() as u64 >= 4);
}

#[test]
fn data_of_which_nothing_would_be_trained_on_is_refused_before_it_is_answered() {
    let folder = Folder::new();
    let checked = |rows: &[&str], masking| {
        fs::write(folder.path("given.jsonl"), rows.join("\n")).unwrap();
        let data = Dataset::from(folder.path("given.jsonl"));
        check_trained(&data, data.rows().unwrap(), masking)
    };
    let context = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]}"#;
    let first = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "train": false}]}"#;
    let asked = r#"{"messages": [{"role": "user", "content": "a"}]}"#;
    let unasked = r#"{"messages": [{"role": "assistant", "content": "b", "training": false}]}"#;
    let (trained, untrained) = (
        r#"{"input_ids": [1, 2], "loss_mask": [0, 1]}"#,
        r#"{"input_ids": [1, 2], "loss_mask": [0, 0]}"#,
    );
    let refused = |rows: &[&str], masking, found: &str| {
        let error = checked(rows, masking).unwrap_err().to_string();
        let expected = format!(
            "given.jsonl`: expected an answer that is trained on, found {found} that are only context, "
        );
        assert!(error.contains(&expected), "{error}");
    };
    let assistant = Masking::Assistant;
    refused(&[context], assistant, "1 row with 1 answer");
    let rows = [context, untrained, unasked];
    refused(&rows, assistant, "3 rows with 2 answers");
    refused(
        &[context, first],
        Masking::LastTurn,
        "2 rows with 2 answers",
    );
    for (rows, masking) in [
        (&[context, first][..], assistant),
        (&[context, asked], Masking::LastTurn),
        (&[context, trained], assistant),
        (&[context], Masking::All),
        // Something else is wrong with these.
        (&[untrained], assistant),
        (&[context, "{}"], assistant),
    ] {
        assert!(checked(rows, masking).is_ok(), "{rows:?}");
    }
}

#[test]
fn an_answer_that_is_cut_off_is_kept_dropped_or_failed() {
    let run = |truncated| {
        let folder = Folder::new();
        let answers = Scripted {
            cut: Some((7, 1)),
            ..Scripted::default()
        };
        let report = folder
            .run_with(&answers, truncated, &never)
            .unwrap()
            .unwrap();
        let text = folder.text("out.jsonl");
        let marked = text.matches(r#""truncated":true"#).count();
        assert_eq!(marked as u64, report.cut_off.count());
        (text.lines().count(), answers.times().len(), report)
    };
    let (rows, answered, report) = run(Truncated::Keep);
    assert_eq!((rows, answered, report.truncated), (7, 6, 1));
    let is_last = |listed: &ListedRows| listed.to_string().ends_with("data.jsonl` row 7");
    assert!(is_last(&report.cut_off), "{report}");
    let (rows, answered, report) = run(Truncated::Drop);
    assert_eq!((rows, answered), (6, 5));
    assert!(is_last(&report.dropped), "{report}");
    let (rows, answered, report) = run(Truncated::Fail);
    assert_eq!((rows, answered, report.failed.len()), (6, 5, 1));
    assert!(report.failed[0].reason.contains("cut off"));
}

#[test]
fn another_dataset_or_setting_does_not_go_on_with_the_journal_unless_it_is_set_aside() {
    let folder = Folder::new();
    folder.run(&Scripted::default());
    let refused = |truncated, key: &str| {
        let error = folder
            .open(truncated, ExistingAnswers::Continue)
            .err()
            .unwrap();
        let named = matches!(&error, Error::OtherJournal { key: found, .. } if found == key);
        assert!(named, "{error}");
    };
    refused(Truncated::Drop, "truncated");
    fs::write(folder.path("data.jsonl"), DATA.replace("\"h\"", "\"i\"")).unwrap();
    refused(Truncated::Keep, "data");
    drop(
        folder
            .open(Truncated::Keep, ExistingAnswers::SetAside)
            .unwrap(),
    );
    for file in ["out.jsonl", "out.jsonl.journal", "out.jsonl.report"] {
        assert!(folder.path(&format!("{file}.old-1")).exists(), "{file}");
    }
    assert_eq!(folder.text("out.jsonl.old-1"), WRITTEN);
}

#[test]
fn a_file_that_this_command_has_not_written_is_not_overwritten() {
    let folder = Folder::new();
    fs::write(folder.path("out.jsonl"), "precious").unwrap();
    let error = folder
        .open(Truncated::Keep, ExistingAnswers::Continue)
        .err()
        .unwrap();
    assert!(matches!(error, Error::ForeignOutput { .. }), "{error}");
    assert!(!folder.path("out.jsonl.journal").exists());
}

#[test]
fn a_row_that_cannot_be_understood_stops_before_anything_is_asked() {
    let folder = Folder::new();
    fs::write(folder.path("data.jsonl"), format!("{DATA}{{oops\n")).unwrap();
    let error = folder
        .open(Truncated::Keep, ExistingAnswers::Continue)
        .err()
        .unwrap();
    assert!(error.to_string().contains("row 8"), "{error}");
}

#[test]
fn a_dataset_that_changes_under_way_is_noticed() {
    let folder = Folder::new();
    let job = folder
        .open(Truncated::Keep, ExistingAnswers::Continue)
        .unwrap();
    fs::write(
        folder.path("data.jsonl"),
        DATA.replace("\"b\"", "\"other\""),
    )
    .unwrap();
    let work = Work {
        concurrency: 1,
        retry: Retry {
            retries: 0,
            first: Duration::ZERO,
            longest: Duration::ZERO,
        },
        requests_per_second: None,
        interrupted: &never,
    };
    let error = job
        .run(&Scripted::default(), &work, &mut |_, _| {})
        .unwrap_err();
    assert!(matches!(error, Error::Altered { .. }), "{error}");
    assert!(!folder.path("out.jsonl").exists());
}

#[test]
fn a_turn_has_a_seed_of_its_own() {
    let of = |row, turn| {
        let request = Request {
            row,
            turn,
            exchange: Exchange {
                messages: &[],
                tools: &[],
                variables: None,
            },
            trained: true,
        };
        request.seed(3)
    };
    assert_eq!(of(1, 2), of(1, 2));
    assert_ne!(of(1, 2), of(2, 1));
    assert_ne!(of(1, 1), of(1, 2));
}

//! `spectrain data regenerate` against a server that fails, and with a target of its own.
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use serde_json::{Map, Value, json};
use spectrain::runtime::answerer::server::{Server, ServerSettings};
use spectrain_data::regenerate::{
    ExistingAnswers, Job, RegenerateReport, RegenerateSettings, Retry, ToolRows, Truncated, Work,
};
use spectrain_data::unusable::Unusable;

use crate::fault_server::{Fault, FaultServer, answer_to};
use crate::workspace::{Outcome, Workspace, signal, wait_for};

/// A conversation of so many turns of the user.
pub fn row(number: usize, turns: usize) -> Value {
    let mut messages = vec![json!({"role": "system", "content": "be brief"})];
    for turn in 1..=turns {
        messages.push(json!({"role": "user", "content": format!("{number}.{turn}")}));
        messages.push(json!({"role": "assistant", "content": "another model's answer"}));
    }
    json!({ "messages": messages })
}

/// The conversation as it should be answered.
pub fn answered(number: usize, turns: usize) -> Value {
    let mut row = row(number, turns);
    for message in 1..row["messages"].as_array().unwrap().len() {
        if message % 2 == 0 {
            let turn = row["messages"][message - 1]["content"].as_str().unwrap();
            row["messages"][message]["content"] = answer_to(turn).into();
        }
    }
    row
}

pub fn lines(rows: impl Iterator<Item = Value>) -> String {
    rows.map(|row| format!("{row}\n")).collect()
}

/// Each of these turns, answered once.
fn once(rows: impl Iterator<Item = usize>, turns: usize) -> BTreeMap<String, usize> {
    rows.flat_map(|row| (1..=turns).map(move |turn| (format!("{row}.{turn}"), 1)))
        .collect()
}

/// Longer than any answer takes.
const UNREACHED: Duration = Duration::from_secs(24 * 60 * 60);

/// Regenerates `data.jsonl` into `out.jsonl`.
fn run(
    workspace: &Workspace,
    server: &FaultServer,
    work: &Work,
    timeout: Duration,
) -> RegenerateReport {
    let server = Server::connect(ServerSettings {
        url: server.url(),
        named_by: ["--server", "--model"],
        model: Some("m".into()),
        key: None,
        body: Map::new(),
        seed: Some(3),
        timeout,
    })
    .unwrap();
    let wanted = RegenerateSettings {
        data: &workspace.path("data.jsonl").into(),
        out: &workspace.path("out.jsonl"),
        settings: Map::new(),
        truncated: Truncated::Keep,
        tools: ToolRows::Copy,
        unusable: Unusable::Refuse,
    };
    let job = Job::open(&wanted, ExistingAnswers::Continue).unwrap();
    job.run(&server, work, &mut |_, _| {}).unwrap().unwrap()
}

fn work(concurrency: usize) -> Work<'static> {
    Work {
        concurrency,
        retry: Retry {
            retries: 6,
            first: Duration::from_millis(2),
            longest: Duration::from_millis(10),
        },
        requests_per_second: None,
        interrupted: &|| false,
    }
}

#[test]
fn whatever_the_server_does_nothing_is_lost_and_nothing_is_there_twice() {
    let every = [
        Fault::Status(500),
        Fault::Busy(30),
        Fault::Hangup,
        Fault::Cut,
        Fault::CutChunk,
        Fault::Malformed,
    ];
    let others = [Fault::Status(503), Fault::NoChoices, Fault::WrongType];
    let plan: [(&str, &[Fault]); 5] = [
        ("1.1", &every),
        ("2.2", &every),
        ("2.3", &others),
        ("5.1", &others),
        (
            "14.2",
            &[Fault::Cut, Fault::Cut, Fault::Busy(60), Fault::Cut],
        ),
    ];
    let planned: usize = plan.iter().map(|(_, faults)| faults.len()).sum();
    let server = FaultServer::start(&plan);
    let workspace = Workspace::of("");
    workspace.write("data.jsonl", lines((1..=20).map(|number| row(number, 3))));
    let report = run(&workspace, &server, &work(8), UNREACHED);
    let expected = lines((1..=20).map(|number| answered(number, 3)));
    assert_eq!(workspace.text("out.jsonl"), expected);
    assert_eq!(server.answered(), once(1..=20, 3));
    server.assert_no_stale_history();
    assert!(report.failed.is_empty(), "{report}");
    assert_eq!(
        (report.requests, report.retried),
        (60 + planned as u64, planned as u64)
    );
    assert!(server.pauses("14.2")[2] >= Duration::from_millis(60));
    let seeds: std::collections::BTreeSet<u64> = server
        .bodies()
        .iter()
        .map(|body| body["seed"].as_u64().unwrap())
        .collect();
    assert_eq!(
        seeds.len(),
        60,
        "each turn has its own, the same at every try"
    );
}

#[test]
fn an_answer_that_never_comes_is_asked_for_again() {
    let plan: [(&str, &[Fault]); 2] = [
        ("2.1", &[Fault::Silence]),
        ("3.1", &[Fault::Silence, Fault::Malformed]),
    ];
    let server = FaultServer::start(&plan);
    let workspace = Workspace::of("");
    workspace.write("data.jsonl", lines((1..=3).map(|number| row(number, 1))));
    let mut work = work(3);
    // A machine that is slow enough may take other answers for silence, too, and ask for them again.
    work.retry.retries = u32::MAX;
    let report = run(&workspace, &server, &work, Duration::from_secs(1));
    let expected = lines((1..=3).map(|number| answered(number, 1)));
    assert_eq!(workspace.text("out.jsonl"), expected);
    assert!(report.failed.is_empty() && report.retried >= 3, "{report}");
}

#[test]
fn requests_stay_within_their_rate() {
    let server = FaultServer::start(&[("3.1", &[Fault::Status(500); 3])]);
    let workspace = Workspace::of("");
    workspace.write("data.jsonl", lines((1..=8).map(|number| row(number, 1))));
    let started = std::time::Instant::now();
    let work = Work {
        requests_per_second: Some(50.0),
        ..work(8)
    };
    let report = run(&workspace, &server, &work, UNREACHED);
    assert_eq!(report.requests, 11);
    // The first comes at once.
    assert!(started.elapsed() >= Duration::from_millis(200));
}

fn regenerate<'a>(server: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let words = [
        "data",
        "regenerate",
        "--data",
        "data.jsonl",
        "--out",
        "out.jsonl",
        "--server",
        server,
    ];
    [&words[..], more].concat()
}

const OPTIONS: &str = "--temperature 0.5 --max-tokens 64 --extra top_k=20 --api-key-env THE_KEY";

/// Fails unless every request had the keys of [`OPTIONS`], and the API key as its header alone.
fn asked_with_options(server: &FaultServer) {
    for body in server.bodies() {
        let expected = json!({
            "temperature": 0.5,
            "max_tokens": 64,
            "top_k": 20,
            "model": "served",
            "messages": body["messages"],
            "stream": false,
        });
        assert_eq!(body, expected);
    }
    assert!(server.keys().iter().all(|key| key == "Bearer secret"));
}

#[test]
fn a_row_that_cannot_be_used_is_refused_with_the_option_that_leaves_it_out() {
    let server = FaultServer::start(&[]);
    let url = format!("{}/v1/", server.url());
    let workspace = Workspace::of("");
    let text = lines((1..=2).map(|number| row(number, 1)));
    workspace.write("data.jsonl", format!("{{oops\n{text}"));
    workspace.run(&regenerate(&url, &[])).failed(&[
        "`data.jsonl` row 1 is not JSON",
        "; `--unusable drop` leaves such rows out, and `spectrain data lint` finds them all",
    ]);
    assert!(!workspace.path("out.jsonl.journal").exists());
}

#[test]
fn a_conversation_that_fails_is_named_and_the_same_command_tries_it_again() {
    let server = FaultServer::start(&[("2.2", &[Fault::Status(400)])]);
    let url = format!("{}/v1/", server.url());
    let workspace = Workspace::of("");
    workspace.write("data.jsonl", lines((1..=3).map(|number| row(number, 2))));
    let words = regenerate(&url, &OPTIONS.split(' ').collect::<Vec<_>>());
    let start = || {
        let mut command = workspace.command(&words);
        command.env("THE_KEY", "secret");
        Outcome::from(command.output().unwrap())
    };
    let outcome = start().failed(&["error: 1 of 3 conversations was not regenerated"]);
    let named = "`data.jsonl` row 2, turn 2, after 1 try: status 400: as planned\n";
    assert!(outcome.stdout.ends_with(named), "{outcome:#?}");
    let failed = &workspace.json("out.jsonl.report")["failed"][0];
    assert_eq!((&failed["row"], &failed["turn"]), (&json!(2), &json!(2)));
    let others = [1, 3].map(|row| answered(row, 2));
    assert_eq!(workspace.text("out.jsonl"), lines(others.into_iter()));
    asked_with_options(&server);

    let no_text = OsStr::from_bytes(b"secret\xff");
    let mut command = workspace.command(&words);
    let unread = Outcome::from(command.env("THE_KEY", no_text).output().unwrap());
    let unread = unread.failed(&["`--api-key-env`", "`THE_KEY`, found other bytes"]);
    assert!(!unread.stderr.contains("secret"), "{unread:#?}");

    start().succeeded();
    let all = (1..=3).map(|row| answered(row, 2));
    assert_eq!(workspace.text("out.jsonl"), lines(all));
    let mut expected = once(1..=3, 2);
    expected.insert("2.1".into(), 2);
    assert_eq!(
        server.answered(),
        expected,
        "only what failed was asked again"
    );
    for file in workspace.files("").into_values() {
        assert!(!String::from_utf8_lossy(&file).contains("secret"));
    }
    other_settings_need_a_fresh_start(&workspace, &url);
}

fn other_settings_need_a_fresh_start(workspace: &Workspace, url: &str) {
    let other = regenerate(url, &["--temperature", "0.6"]);
    let expected = [
        "out.jsonl.journal",
        "`temperature`: expected 0.6, found 0.5",
        "--fresh",
    ];
    workspace.run(&other).failed(&expected);
    let fresh = [&other[..], &["--fresh"]].concat();
    workspace.run(&fresh).succeeded();
    assert!(workspace.path("out.jsonl.old-1").exists());
}

#[test]
fn several_servers_share_what_is_asked_and_one_that_is_not_there_is_done_without() {
    // So many that a server that the machine keeps waiting has its share too.
    const ROWS: usize = 120;
    // One of them takes none of these, the other one none of those.
    let one = FaultServer::start(&[("3.1", &[Fault::Status(400); 9])]);
    let other = FaultServer::start(&[("4.1", &[Fault::Status(500); 9])]);
    let never = FaultServer::start_after(UNREACHED, &[]);
    let workspace = Workspace::of("");
    workspace.write("data.jsonl", lines((1..=ROWS).map(|number| row(number, 2))));
    let urls = [&never, &one, &other].map(FaultServer::url);
    let more = [
        "--server",
        &urls[1],
        "--server",
        &urls[2],
        "--concurrency",
        "2",
    ];
    let outcome = workspace.run(&regenerate(&urls[0], &more)).succeeded();
    let expected = lines((1..=ROWS).map(|number| answered(number, 2)));
    assert_eq!(workspace.text("out.jsonl"), expected);
    let answers = [&one, &other].map(FaultServer::answers);
    assert!(answers[0] > 9 && answers[1] > 9, "{answers:?}");
    assert_eq!(
        answers[0] + answers[1],
        2 * ROWS,
        "nothing was answered twice"
    );
    let said = format!(
        "no server answers at `{}`: waiting for one, for at most 900 s (`--wait`)",
        urls[0]
    );
    assert_eq!(outcome.stderr.matches(&said).count(), 1, "{outcome:#?}");
}

#[test]
fn a_server_that_is_not_there_yet_is_waited_for_but_not_for_ever() {
    let workspace = Workspace::of("");
    workspace.write("data.jsonl", lines((1..=3).map(|number| row(number, 1))));
    let server = FaultServer::start_after(Duration::from_millis(1500), &[]);
    let url = server.url();
    let waited = workspace.run(&regenerate(&url, &["--wait", "60"]));
    let said = format!("a server answers at `{url}`");
    assert!(waited.succeeded().stderr.contains(&said));
    let never = FaultServer::start_after(UNREACHED, &[]).url();
    let words = regenerate(&never, &["--wait", "1", "--fresh"]);
    let named = format!("error: no server answers at `{never}`: ");
    workspace
        .run(&words)
        .failed(&[&named, "; waited for 1 s (`--wait`)"]);
}

#[test]
fn a_server_that_comes_later_with_another_model_is_not_used() {
    let server = FaultServer::start(&[]);
    let other = FaultServer::start_after(Duration::from_millis(500), &[]);
    other.rename("another");
    server.hold_after(3);
    let workspace = Workspace::of("");
    workspace.write("data.jsonl", lines((1..=20).map(|number| row(number, 1))));
    let (url, late) = (server.url(), other.url());
    let words = regenerate(&url, &["--server", &late, "--concurrency", "2"]);
    let said = format!(
        "`{late}`: expected the model `served`, found 1 (`another`); this server is not used"
    );
    let outcome = std::thread::scope(|scope| {
        let run = scope.spawn(|| workspace.run(&words));
        std::thread::sleep(Duration::from_secs(3));
        server.release();
        run.join().unwrap()
    });
    let stderr = outcome.succeeded().stderr;
    assert_eq!(stderr.matches(&said).count(), 1, "{stderr}");
    assert_eq!((server.answers(), other.answers()), (20, 0));
}

#[test]
fn variables_of_the_template_are_sent_and_may_not_contradict_a_further_key() {
    let server = FaultServer::start(&[]);
    let url = server.url();
    let workspace = Workspace::of("");
    workspace.write("data.jsonl", lines((1..=2).map(|number| row(number, 1))));
    let given = ["--template-variable", "enable_thinking=false"];
    let effort = ["--extra", "chat_template_kwargs={\"effort\": \"low\"}"];
    let words = regenerate(&url, &[given, effort].concat());
    workspace.run(&words).succeeded();
    let expected = json!({"enable_thinking": false, "effort": "low"});
    assert_eq!(server.bodies().len(), 2);
    for body in server.bodies() {
        assert_eq!(body["chat_template_kwargs"], expected);
    }
    let other = [
        "--extra",
        "chat_template_kwargs={\"enable_thinking\": true}",
    ];
    let told = "`--extra chat_template_kwargs`: expected `enable_thinking` to be false, as in `--template-variable`, found true";
    workspace
        .run(&regenerate(&url, &[given, other].concat()))
        .misused(&[told]);
}

#[test]
fn variables_of_a_row_are_sent_in_the_places_of_those_of_all_rows_and_stay_with_it() {
    let server = FaultServer::start(&[]);
    let workspace = Workspace::of("");
    let own = |number: usize, mut row: Value| {
        if number > 1 {
            row["chat_template_kwargs"] = json!({"enable_thinking": number > 2});
        }
        row
    };
    let given = (1..=3).map(|number| own(number, row(number, 2)));
    workspace.write("data.jsonl", lines(given));
    let variables = ["enable_thinking=false", "effort=low"];
    let variables = variables.map(|variable| ["--template-variable", variable]);
    let (url, variables) = (server.url(), variables.concat());
    workspace.run(&regenerate(&url, &variables)).succeeded();
    assert_eq!(server.bodies().len(), 6);
    for body in server.bodies() {
        let asked = body["messages"][1]["content"].as_str().unwrap();
        let thinks = asked.starts_with('3');
        let expected = json!({"enable_thinking": thinks, "effort": "low"});
        assert_eq!(body["chat_template_kwargs"], expected, "{asked}");
    }
    let expected = (1..=3).map(|number| own(number, answered(number, 2)));
    assert_eq!(workspace.text("out.jsonl"), lines(expected));
}

#[test]
fn a_run_that_is_stopped_goes_on_without_asking_twice() {
    for (sent, lost) in [("-TERM", 0), ("-KILL", 16)] {
        let server = FaultServer::start(&[]);
        // It cannot end before it is stopped.
        server.hold_after(12);
        let workspace = Workspace::of("");
        let rows = 60;
        workspace.write("data.jsonl", lines((1..=rows).map(|number| row(number, 1))));
        let url = server.url();
        let words = regenerate(&url, &["--concurrency", "4"]);
        let mut child = workspace.start(&words);
        wait_for(&mut child, || server.answers() == 12);
        signal(&child, sent);
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut stderr = String::new();
        while sent == "-TERM" && !stderr.contains("stopping at the next safe point") {
            assert!(said.read_line(&mut stderr).unwrap() > 0, "{stderr}");
        }
        if sent == "-KILL" {
            child.wait().unwrap();
        }
        server.release();
        said.read_to_string(&mut stderr).unwrap();
        let code = child.wait().unwrap().code();
        if sent == "-TERM" {
            assert_eq!(code, Some(130), "{stderr}");
            let told = stderr.contains("error: interrupted; the same command goes on from here");
            assert!(told, "{stderr}");
        }
        assert!(!workspace.path("out.jsonl").exists());
        workspace.run(&words).succeeded();
        let expected = lines((1..=rows).map(|number| answered(number, 1)));
        assert_eq!(workspace.text("out.jsonl"), expected);
        let answers = server.answers();
        // What is under way when the program is killed, or answered but not yet in the journal, is asked again.
        assert!((rows..=rows + lost).contains(&answers), "{sent}: {answers}");
    }
}

#[test]
fn a_target_answers_as_it_does_in_generate_and_its_answers_can_be_prepared() {
    let workspace = Workspace::new();
    let base = "data regenerate --target target --data eval.jsonl --max-tokens 12";
    for held in ["int8", "auto"] {
        let greedy = format!("{base} --out {held}.jsonl --temperature 0 --target-dtype {held}");
        let outcome = workspace.run_line(greedy).succeeded();
        assert!(
            outcome.stdout.starts_with("4 of 4 conversations"),
            "{outcome:#?}"
        );
        for line in workspace.text(&format!("{held}.jsonl")).lines() {
            let row: Value = serde_json::from_str(line).unwrap();
            let [question, answer] =
                [0, 1].map(|at| row["messages"][at]["content"].as_str().unwrap());
            let generate = format!(
                "generate --target target --target-dtype {held} --max-new-tokens 12 --prompt"
            );
            let generate: Vec<&str> = generate.split(' ').chain([question]).collect();
            let generated = workspace.run(&generate).succeeded();
            assert_eq!(generated.stdout, format!("{answer}\n"));
        }
    }
    let prepare = "data prepare --target target --data auto.jsonl --out tokens";
    let prepared = workspace.run_line(prepare).succeeded();
    assert!(
        prepared.stdout.starts_with("4 of 4 samples kept"),
        "{prepared:#?}"
    );

    let sampled = |out: &str, seed: u64, concurrency: usize| {
        let words = format!("{base} --out {out} --seed {seed} --concurrency {concurrency}");
        workspace.run_line(words).succeeded();
        workspace.text(out)
    };
    // One conversation at a time, then so many that several decoders share them.
    let first = sampled("first.jsonl", 1, 1);
    assert_eq!(sampled("again.jsonl", 1, 64), first);
    assert_ne!(sampled("other.jsonl", 2, 64), first);
}

#[test]
fn who_answers_must_be_said_and_options_of_a_server_need_one() {
    let workspace = Workspace::of("");
    let base = [
        "data",
        "regenerate",
        "--data",
        "d.jsonl",
        "--out",
        "o.jsonl",
    ];
    let cases: [(&[&str], &str); 6] = [
        (&[], "<--server <URL>|--target <TARGET>|--capture <DIR>>"),
        (
            &["--server", "http://a", "--target", "t"],
            "cannot be used with",
        ),
        (&["--target", "t", "--model", "m"], "cannot be used with"),
        (
            &["--server", "a:1", "--model", "m"],
            "`--server`: expected `http://HOST:PORT`",
        ),
        (
            &["--server", "http://a", "--extra", "model=1"],
            "expected a key other than",
        ),
        (&["--server", "http://a", "--top-p", "0"], "`--top-p`"),
    ];
    for (words, expected) in cases {
        let outcome = workspace.run(&[&base[..], words].concat());
        assert_eq!(outcome.code, Some(2), "{outcome:#?}");
        assert!(
            outcome.stderr.contains(expected),
            "no `{expected}`: {outcome:#?}"
        );
    }
}

#[test]
fn a_limit_that_leaves_nothing_out_is_none() {
    let server = FaultServer::start(&[]);
    let workspace = Workspace::of("");
    workspace.write("data.jsonl", lines((1..=3).map(|number| row(number, 1))));
    let url = server.url();
    workspace.run(&regenerate(&url, &[])).succeeded();
    workspace
        .run(&regenerate(&url, &["--limit", "9"]))
        .succeeded();
    assert_eq!(server.answers(), 3, "all of them were answered before");
    workspace
        .run(&regenerate(&url, &["--limit", "2"]))
        .failed(&["`limit`"]);
}

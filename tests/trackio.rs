//! A run's figures on a trackio server: all of them, once.
use std::collections::BTreeMap;
use std::io::BufReader;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::http::{Request, listen, respond};
use crate::workspace::{Outcome, Workspace};

const TOKEN: &str = "token-of-the-tests";

#[derive(Default)]
struct State {
    /// By project and `log_id`: of those with the same the first is kept.
    entries: BTreeMap<(String, String), Value>,
    /// So many requests are done and their answers lost.
    lost: usize,
}

/// A trackio server as far as runs need one.
struct Server {
    address: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    fn new() -> Self {
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = state.clone();
        let address = listen(move |stream| serve(stream, &shared));
        Self {
            address: format!("http://{address}"),
            state,
        }
    }

    fn entries(&self) -> Vec<Value> {
        self.state
            .lock()
            .unwrap()
            .entries
            .values()
            .cloned()
            .collect()
    }

    fn sync(&self, workspace: &Workspace, token: &str) -> Outcome {
        let words = ["track", "sync", "run", "--trackio", &self.address];
        run_with(workspace, &words, token)
    }
}

fn run_with(workspace: &Workspace, words: &[&str], token: &str) -> Outcome {
    let mut command = workspace.command(words);
    let output = command.env("TRACKIO_WRITE_TOKEN", token).output();
    Outcome::from(output.unwrap())
}

fn serve(stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut out = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let request = Request::read(&mut reader)?;
        assert_eq!(request.target, "/api/bulk_log");
        if request.header("x-trackio-write-token") != Some(TOKEN) {
            let said = r#"{"error": "A write_token is required"}"#;
            respond(&mut out, "400 Bad Request", "", said)?;
            continue;
        }
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        assert!(body["hf_token"].is_null());
        let mut state = state.lock().unwrap();
        for entry in body["logs"].as_array().unwrap() {
            let text = |key: &str| entry[key].as_str().unwrap().to_owned();
            let key = (text("project"), text("log_id"));
            state.entries.entry(key).or_insert_with(|| entry.clone());
        }
        if state.lost > 0 {
            state.lost -= 1;
            return None;
        }
        drop(state);
        respond(&mut out, "200 OK", "", r#"{"data": null}"#)?;
    }
}

/// Fails unless the server has every line of the training, the report and the settings, once.
fn is_all(server: &Server, workspace: &Workspace) {
    let mut entries = server.entries();
    let runs: Vec<&Value> = entries.iter().map(|entry| &entry["run_id"]).collect();
    assert!(
        runs.iter().all(|run| *run == runs[0]),
        "of one run: {runs:?}"
    );
    assert!(
        entries
            .iter()
            .all(|entry| entry["run"] == "run" && entry["project"] == "spectrain")
    );
    let lines = workspace.text("runs/run/train/events/metrics.jsonl");
    assert!(lines.lines().count() > 3);
    for line in lines.lines() {
        let mut line: Value = serde_json::from_str(line).unwrap();
        let step = line["step"].take();
        let figures = line.as_object_mut().unwrap();
        figures.retain(|key, value| key != "time" && value.is_number());
        let before = entries.len();
        entries.retain(|entry| entry["step"] != step || entry["metrics"] != line);
        assert_eq!(entries.len() + 1, before, "{line}");
    }
    let place = |wanted: &dyn Fn(&Value) -> bool| entries.iter().position(wanted);
    let settings = place(&|entry| !entry["config"].is_null()).expect("the settings");
    assert_eq!(entries.remove(settings)["config"]["train.steps"], "6");
    let [report] = &entries[..] else {
        panic!("{entries:#?}");
    };
    let report = report["metrics"].as_object().unwrap();
    assert!(report.keys().any(|key| key.ends_with("/eval/tau")));
}

#[test]
fn a_run_is_tracked_whole_and_once_though_answers_are_lost() {
    let workspace = Workspace::finished();
    let server = Server::new();
    for _ in 0..3 {
        server.state.lock().unwrap().lost = 1;
        server
            .sync(&workspace, TOKEN)
            .failed(&["does not answer", &server.address]);
    }
    server.sync(&workspace, TOKEN).succeeded();
    is_all(&server, &workspace);
    let again = server.sync(&workspace, TOKEN).succeeded();
    assert!(again.stdout.contains(": 0 figures"), "{again:#?}");
    is_all(&server, &workspace);
}

#[test]
fn a_recipe_names_the_server_and_a_token_that_is_refused_stops_nothing() {
    let workspace = Workspace::new();
    let server = Server::new();
    let set = format!("track={{ trackio = \"{}\" }}", server.address);
    let outcome = workspace.run_recipe(&[&set]).succeeded();
    assert!(
        outcome.stderr.contains("A write_token is required"),
        "{outcome:#?}"
    );
    assert!(server.entries().is_empty());
    let words = ["track", "sync", "run"];
    let sent = run_with(&workspace, &words, TOKEN).succeeded();
    assert!(!format!("{sent:?}").contains(TOKEN));
    assert!(!workspace.text("runs/run/track.json").contains(TOKEN));
    is_all(&server, &workspace);
}

#[test]
fn two_servers_or_none_are_refused() {
    let workspace = Workspace::new();
    let both = r#"track={ mlflow = "http://a", trackio = "http://b" }"#;
    for (set, key) in [(both, "track.trackio"), ("track={}", "track.mlflow")] {
        let outcome = workspace.run_recipe(&[set]);
        assert_eq!(outcome.code, Some(2), "{outcome:#?}");
        assert!(outcome.stderr.contains(key), "{outcome:#?}");
    }
}

/// Where `SPECTRAIN_TRACKIO` is the address of a real server, with its `TRACKIO_WRITE_TOKEN`, it takes a run too.
#[test]
fn a_real_server_takes_a_run() {
    let Ok(address) = std::env::var("SPECTRAIN_TRACKIO") else {
        return;
    };
    let workspace = Workspace::finished();
    let words = ["track", "sync", "run", "--trackio", &address];
    let sent = workspace.run(&words).succeeded();
    assert!(sent.stdout.contains("the report's among them"), "{sent:#?}");
    let again = workspace.run(&words).succeeded();
    assert!(again.stdout.contains(": 0 figures"), "{again:#?}");
}

//! A run's figures on a tracking server: all of them, once, and no run that waits for it.
use std::collections::{BTreeMap, BTreeSet};
use std::io::BufReader;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::{Request, listen, respond};
use crate::workspace::Workspace;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Wrong {
    Nothing,
    /// Every request is refused.
    Refuses,
    /// Requests are taken and never answered.
    Silent,
    /// So many are done, and their answers lost.
    LosesAnswers(usize),
}

/// A run as the server has it.
#[derive(Default, Clone)]
struct Tracked {
    name: String,
    tags: BTreeMap<String, String>,
    params: BTreeMap<String, String>,
    /// Key, step, time and value: a figure that is the same in all is the same figure.
    metrics: BTreeSet<(String, u64, i64, String)>,
    finished: bool,
}

struct State {
    experiments: Vec<String>,
    runs: Vec<Tracked>,
    wrong: Wrong,
    asked: usize,
}

/// An MLflow server as far as runs need one.
struct Server {
    address: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    fn new(wrong: Wrong) -> Self {
        let state = Arc::new(Mutex::new(State {
            experiments: Vec::new(),
            runs: Vec::new(),
            wrong,
            asked: 0,
        }));
        let shared = state.clone();
        let address = listen(move |stream| serve(stream, &shared));
        Self {
            address: format!("http://{address}"),
            state,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn set(&self) -> String {
        format!("track={{ mlflow = \"{}\" }}", self.address)
    }
}

fn serve(stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut out = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let request = Request::read(&mut reader)?;
        let mut state = state.lock().unwrap();
        state.asked += 1;
        match state.wrong {
            Wrong::Refuses => {
                drop(state);
                respond(&mut out, "500 No", "", r#"{"message": "no"}"#)?;
                continue;
            }
            Wrong::Silent => {
                drop(state);
                std::thread::sleep(Duration::from_secs(600));
                return None;
            }
            _ => {}
        }
        let (status, answer) = state.answer(&request);
        if let Wrong::LosesAnswers(left @ 1..) = state.wrong {
            state.wrong = Wrong::LosesAnswers(left - 1);
            return None;
        }
        drop(state);
        respond(&mut out, status, "", &answer.to_string())?;
    }
}

impl Tracked {
    fn add(&mut self, body: &Value) {
        let params = body["params"].as_array().cloned().unwrap_or_default();
        let metrics = body["metrics"].as_array().cloned().unwrap_or_default();
        assert!(
            params.len() <= 100 && metrics.len() <= 1000,
            "MLflow's limits"
        );
        for param in params {
            let (key, value) = (
                param["key"].as_str().unwrap(),
                param["value"].as_str().unwrap(),
            );
            let before = self.params.insert(key.to_owned(), value.to_owned());
            assert!(
                before.is_none_or(|before| before == value),
                "a setting does not change"
            );
        }
        for metric in metrics {
            let key = metric["key"].as_str().unwrap().to_owned();
            let allowed = |letter: char| letter.is_alphanumeric() || "-_./ ".contains(letter);
            assert!(key.chars().all(allowed), "{key}");
            let value = metric["value"].to_string();
            self.metrics.insert((
                key,
                metric["step"].as_u64().unwrap(),
                metric["timestamp"].as_i64().unwrap(),
                value,
            ));
        }
    }
}

impl State {
    fn search(&self, wanted: &str) -> Value {
        let is_it = |run: &Tracked| {
            let mut tags = run.tags.iter();
            tags.any(|(key, value)| wanted == format!("tags.`{key}` = '{value}'"))
        };
        let found = self.runs.iter().position(is_it);
        let runs = found.iter();
        let runs: Vec<Value> = runs
            .map(|at| json!({"info": {"run_id": at.to_string()}}))
            .collect();
        json!({"runs": runs})
    }

    fn answer(&mut self, request: &Request) -> (&'static str, Value) {
        let body: Value = serde_json::from_slice(&request.body).unwrap_or(Value::Null);
        let (path, _) = request
            .target
            .split_once('?')
            .unwrap_or((&request.target, ""));
        let method = path.strip_prefix("/api/2.0/mlflow/").unwrap();
        let text = |key: &str| body[key].as_str().unwrap().to_owned();
        let done = |value: Value| ("200 OK", value);
        match method {
            "experiments/get-by-name" => match self.experiments.first() {
                Some(_) => done(json!({"experiment": {"experiment_id": "0"}})),
                None => (
                    "404 Not Found",
                    json!({"error_code": "RESOURCE_DOES_NOT_EXIST"}),
                ),
            },
            "experiments/create" => {
                self.experiments.push(text("name"));
                done(json!({"experiment_id": "0"}))
            }
            "runs/search" => done(self.search(&text("filter"))),
            "runs/create" => {
                let tags = body["tags"].as_array().unwrap().iter();
                let tag = |tag: &Value| {
                    (
                        tag["key"].as_str().unwrap().to_owned(),
                        tag["value"].as_str().unwrap().to_owned(),
                    )
                };
                self.runs.push(Tracked {
                    name: text("run_name"),
                    tags: tags.map(tag).collect(),
                    ..Tracked::default()
                });
                done(json!({"run": {"info": {"run_id": (self.runs.len() - 1).to_string()}}}))
            }
            "runs/log-batch" => {
                self.runs[text("run_id").parse::<usize>().unwrap()].add(&body);
                done(json!({}))
            }
            "runs/update" => {
                self.runs[text("run_id").parse::<usize>().unwrap()].finished =
                    text("status") == "FINISHED";
                done(json!({}))
            }
            other => panic!("the server of the tests does not know `{other}`"),
        }
    }
}

/// Fails unless the server has one run with every figure of the training, once.
fn is_all(server: &Server, workspace: &Workspace) {
    let state = server.state();
    let [run] = &state.runs[..] else {
        panic!("{} runs", state.runs.len());
    };
    has_all(run, workspace);
}

/// Fails unless a run has every figure of the training, once.
fn has_all(run: &Tracked, workspace: &Workspace) {
    let lines = workspace.text("runs/run/train/events/metrics.jsonl");
    let mut expected = 0;
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let figures = line.as_object().unwrap().iter();
        let figures = figures
            .filter(|(key, value)| !["step", "time"].contains(&key.as_str()) && value.is_number());
        for (key, value) in figures {
            let step = line["step"].as_u64().unwrap();
            let found = run
                .metrics
                .iter()
                .filter(|(name, at, ..)| name == key && *at == step);
            let found: Vec<_> = found.collect();
            assert_eq!(found.len(), 1, "{key} at {step}: {found:?}");
            assert_eq!(found[0].3.parse::<f64>().unwrap(), value.as_f64().unwrap());
            expected += 1;
        }
    }
    assert!(expected > 10);
    let of_report = run
        .metrics
        .iter()
        .filter(|(key, ..)| key.starts_with("evaluate/"));
    assert!(
        of_report
            .clone()
            .any(|(key, ..)| key.ends_with("/eval/tau")),
        "{:?}",
        run.metrics
    );
    assert_eq!(run.metrics.len(), expected + of_report.count());
    assert_eq!(run.params["train.steps"], "6");
    assert_eq!(run.name, "run");
    assert!(run.finished);
}

#[test]
fn a_run_is_tracked_whole_and_trains_as_it_does_alone() {
    let workspace = Workspace::new();
    let server = Server::new(Wrong::Nothing);
    workspace.run_recipe(&["name=alone"]).succeeded();
    workspace.run_recipe(&[&server.set()]).succeeded();
    is_all(&server, &workspace);
    let weights =
        |run: &str| workspace.bytes(&format!("runs/{run}/train/drafter/model.safetensors"));
    assert!(weights("run") == weights("alone"));
    let asked = server.state().asked;
    let again = workspace.run_line("track sync run").succeeded();
    assert!(again.stdout.contains(": 0 figures"), "{again:#?}");
    assert_eq!(
        server.state().asked,
        asked,
        "nothing is asked where nothing is new"
    );
}

#[test]
fn a_server_that_fails_costs_a_warning_and_gets_everything_later() {
    let workspace = Workspace::new();
    let server = Server::new(Wrong::Refuses);
    let outcome = workspace.run_recipe(&[&server.set()]).succeeded();
    let (_, advice) = outcome.stderr.split_once("and `spectrain ").unwrap();
    let (advice, _) = advice.split_once('`').unwrap();
    assert_eq!(advice, "track sync runs/run");
    workspace
        .run_line("track sync run")
        .failed(&["http 500: no"]);
    server.state().wrong = Wrong::Nothing;
    workspace.run_line(advice).succeeded();
    is_all(&server, &workspace);

    // Of a run without the table the command names the server.
    let other = Server::new(Wrong::Nothing);
    workspace
        .run(&["track", "sync", "run", "--mlflow", &other.address])
        .succeeded();
    is_all(&other, &workspace);
    let gone = "http://127.0.0.1:1";
    workspace
        .run(&["track", "sync", "run", "--mlflow", gone])
        .failed(&["does not answer"]);
}

#[test]
fn a_server_that_never_answers_holds_no_run_up_for_long() {
    let workspace = Workspace::new();
    let server = Server::new(Wrong::Silent);
    let started = Instant::now();
    let outcome = workspace.run_recipe(&[&server.set()]).succeeded();
    assert!(outcome.stderr.contains("track sync"), "{outcome:#?}");
    // The patience of the end, and a run on a machine with much else to do.
    assert!(started.elapsed() < Duration::from_secs(120));
}

#[test]
fn figures_whose_answer_was_lost_are_there_once() {
    let workspace = Workspace::finished();
    for lost in 1..6 {
        let server = Server::new(Wrong::LosesAnswers(1));
        let words = ["track", "sync", "run", "--mlflow", &server.address];
        // One request more is let through each time.
        for _ in 0..lost {
            drop(workspace.run(&words));
            server.state().wrong = Wrong::LosesAnswers(1);
        }
        server.state().wrong = Wrong::Nothing;
        workspace.run(&words).succeeded();
        is_all(&server, &workspace);
    }
}

#[test]
fn a_training_that_starts_over_is_another_run_with_settings_of_its_own() {
    let workspace = Workspace::new();
    let server = Server::new(Wrong::Nothing);
    let set = server.set();
    workspace.run_recipe(&[&set]).succeeded();
    is_all(&server, &workspace);
    let before = server.state().runs[0].clone();
    let again = [&set[..], "train.learning_rate=2e-3"];
    let outcome = workspace.run_recipe(&again).succeeded();
    assert!(
        outcome.stderr.contains("train: starts over"),
        "{outcome:#?}"
    );
    {
        let state = server.state();
        let [first, second] = &state.runs[..] else {
            panic!("{} runs", state.runs.len());
        };
        assert!(first.metrics == before.metrics && first.params == before.params);
        has_all(second, &workspace);
        let rates = [first, second].map(|run| run.params["train.learning_rate"].clone());
        assert_eq!(rates, ["0.001", "0.002"]);
    }

    // Without the file that says what was sent, the same run is found again.
    std::fs::remove_file(workspace.path("runs/run/track.json")).unwrap();
    workspace.run_line("track sync run").succeeded();
    assert_eq!(server.state().runs.len(), 2);
    has_all(&server.state().runs[1], &workspace);
    // A server keeps the settings of a run, so that with others it is another one.
    let longer = [&again[..], &["evaluate.prompts=1"]].concat();
    std::fs::remove_file(workspace.path("runs/run/track.json")).unwrap();
    workspace.run_recipe(&longer).succeeded();
    let state = server.state();
    assert_eq!(state.runs.len(), 3);
    has_all(&state.runs[2], &workspace);
}

/// Steps and times of the figures of a training that a server has.
fn logged(server: &Server) -> BTreeSet<(u64, i64)> {
    let state = server.state();
    let metrics = state.runs[0].metrics.iter();
    let of_training = metrics.filter(|(key, ..)| !key.starts_with("evaluate/"));
    of_training
        .map(|(_, step, time, _)| (*step, *time))
        .collect()
}

#[test]
fn a_training_that_goes_on_and_logs_at_other_steps_is_sent_from_the_last_step_on() {
    let workspace = Workspace::finished();
    let server = Server::new(Wrong::Nothing);
    let metrics = workspace.path("runs/run/train/events/metrics.jsonl");
    let whole = std::fs::read_to_string(&metrics).unwrap();
    let sync = || {
        let words = ["track", "sync", "run", "--mlflow", &server.address];
        workspace.run(&words).succeeded();
    };
    // The last step has a line of the training's and one of a validation's, which comes later.
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    let (last, first) = lines.split_last().unwrap();
    assert!(last.contains("\"step\":6,") && first.last().unwrap().contains("\"step\":6,"));
    std::fs::write(&metrics, first.concat()).unwrap();
    sync();
    std::fs::write(&metrics, &whole).unwrap();
    sync();
    is_all(&server, &workspace);

    // Killed after step 6 with a state saved at 2, it goes on and logs every step, later.
    let known = logged(&server);
    let kept = lines.iter().filter(|line| line.contains("\"step\":2,"));
    let mut resumed: String = kept.copied().collect();
    assert!(lines[0].contains("\"step\":2,"));
    let mut expected = known.clone();
    for step in 3..9 {
        for what in ["train", "validation"] {
            let line = json!({"step": step, "time": 1.8e9, (format!("{what}/loss")): 0.5});
            resumed += &format!("{line}\n");
        }
        if step > 6 {
            expected.insert((step, 1_800_000_000_000));
        }
    }
    let mut cut = resumed.clone();
    cut.truncate(resumed.find("\"step\":5,").unwrap());
    cut.truncate(cut.rfind('\n').unwrap() + 1);
    for (text, expected) in [(cut, &known), (resumed, &expected)] {
        std::fs::write(&metrics, text).unwrap();
        sync();
        assert_eq!(logged(&server), *expected);
    }
    assert_eq!(server.state().runs.len(), 1);
}

#[test]
fn a_training_killed_before_its_first_state_goes_on_in_the_same_run() {
    // One that an earlier version has begun, too.
    for is_of_before in [false, true] {
        let workspace = Workspace::finished();
        let server = Server::new(Wrong::Nothing);
        let sync = || {
            let words = ["track", "sync", "run", "--mlflow", &server.address];
            workspace.run(&words).succeeded();
        };
        let train = workspace.path("runs/run/train");
        if is_of_before {
            std::fs::remove_file(train.join("events/begun.json")).unwrap();
        }
        sync();
        let known = logged(&server);
        let lines = || std::fs::read_to_string(train.join("events/metrics.jsonl")).unwrap();
        let before = lines();
        workspace.unfinish("train");
        for entry in std::fs::read_dir(&train).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name().to_string_lossy().starts_with("step-") {
                std::fs::remove_dir_all(entry.path()).unwrap();
            }
        }
        workspace.run_recipe(&[]).succeeded();
        assert!(lines() != before, "it was trained from the first step on");
        sync();
        assert_eq!(server.state().runs.len(), 1);
        assert_eq!(logged(&server), known);
    }
}

#[test]
fn a_copy_of_a_run_is_another_one_and_a_run_that_has_moved_is_the_same() {
    let workspace = Workspace::finished();
    let server = Server::new(Wrong::Nothing);
    let sync = |run: &str| {
        let words = ["track", "sync", run, "--mlflow", &server.address];
        let synced = workspace.run(&words).succeeded();
        !synced.stdout.contains(": 0 figures")
    };
    assert!(sync("run"));
    let copy = workspace.path("runs/copy");
    for (name, bytes) in workspace.files("runs/run") {
        let path = copy.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    assert!(sync("copy"));
    assert!(!sync("copy") && !sync("run"));
    std::fs::rename(&copy, workspace.path("runs/moved")).unwrap();
    assert!(!sync("moved"));
    // Earlier versions did not say where the run was.
    let mut sent = workspace.json("runs/run/track.json");
    assert!(sent.as_object_mut().unwrap().remove("place").is_some());
    workspace.write("runs/run/track.json", sent.to_string());
    assert!(!sync("run"));
    let state = server.state();
    let names: Vec<&str> = state.runs.iter().map(|run| &*run.name).collect();
    assert_eq!(names, ["run", "copy"]);
    assert_eq!(state.runs[0].metrics.len(), state.runs[1].metrics.len());
}

#[test]
fn addresses_with_secrets_and_none_at_all_are_refused() {
    let workspace = Workspace::finished();
    for address in [
        "localhost:5000",
        "ftp://x",
        "http://me:secret@host",
        "http://host/?key=secret",
    ] {
        let outcome = workspace.run(&["track", "sync", "run", "--mlflow", address]);
        assert_eq!(outcome.code, Some(2), "{outcome:#?}");
        assert!(
            outcome.stderr.contains("`track.mlflow`") && !outcome.stderr.contains("secret"),
            "{outcome:#?}"
        );
    }
    let none = workspace.run_line("track sync run");
    assert!(
        none.code == Some(2) && none.stderr.contains("`--mlflow`"),
        "{none:#?}"
    );
}

/// Where `SPECTRAIN_MLFLOW` is the address of a real server, it takes a run too.
#[test]
fn a_real_server_takes_a_run() {
    let Ok(address) = std::env::var("SPECTRAIN_MLFLOW") else {
        return;
    };
    let workspace = Workspace::finished();
    let words = [
        "track",
        "sync",
        "run",
        "--mlflow",
        &address,
        "--experiment",
        "spectrain-tests",
    ];
    let sent = workspace.run(&words).succeeded();
    assert!(sent.stdout.contains("the report's among them"), "{sent:#?}");
    let again = workspace.run(&words).succeeded();
    assert!(again.stdout.contains(": 0 figures"), "{again:#?}");
}

//! A target that the program downloads from a hub: here a server on this machine that sends a target's folder.
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};

use spectrain_checkpoints::hash::sha256_bytes;

use crate::fake_hub::{self, TOKEN};
use crate::workspace::{Files, Outcome, VOCAB, Workspace, wait_for};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const WEIGHTS: &str = "model.safetensors";

/// What holds back an answer in its middle, until a test lets it go on.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn wait(&self) {
        let mut is_open = self.is_open.lock().unwrap();
        while !*is_open {
            is_open = self.opened.wait(is_open).unwrap();
        }
    }
}

/// What an answer with weights from their start holds.
#[derive(Clone, Copy, PartialEq)]
enum Weights {
    Whole,
    /// Half of them, and when the gate is open a byte more.
    Half,
}

/// The line of a request, and its headers by their names in lower case.
type Request = (String, BTreeMap<String, String>);

struct Hub {
    address: String,
    asked: Arc<Mutex<Vec<Request>>>,
    gate: Arc<Gate>,
}

impl Hub {
    /// With the files of a folder, of which it sends all that is asked for.
    fn with(files: Files) -> Self {
        Self::sending(files, Weights::Whole)
    }

    fn sending(files: Files, weights: Weights) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let hub = Self {
            address: format!("http://{}", listener.local_addr().unwrap()),
            asked: Arc::default(),
            gate: Arc::default(),
        };
        let (asked, gate, files) = (hub.asked.clone(), hub.gate.clone(), Arc::new(files));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (asked, gate, files) = (asked.clone(), gate.clone(), files.clone());
                std::thread::spawn(move || {
                    let request = read(&stream);
                    asked.lock().unwrap().push(request.clone());
                    // The client may hang up early: that is what is tested.
                    let _ = serve(stream, &request, &files, (weights, &gate));
                });
            }
        });
        hub
    }

    /// The first bytes that were asked for of the weights.
    fn firsts(&self) -> Vec<usize> {
        let asked = self.asked.lock().unwrap();
        let gets = asked
            .iter()
            .filter(|(line, _)| line.starts_with("GET ") && line.contains(&format!("/{WEIGHTS} ")));
        gets.map(|(_, headers)| first(headers)).collect()
    }
}

fn read(stream: &TcpStream) -> Request {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let line = lines.next().unwrap_or_default();
    let headers = lines.take_while(|line| !line.is_empty());
    let pairs = headers.filter_map(|line| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_lowercase(), value.to_owned()))
    });
    (line, pairs.collect())
}

fn first(headers: &BTreeMap<String, String>) -> usize {
    let range = headers.get("range").map(|range| {
        let range = range.strip_prefix("bytes=").unwrap();
        range.trim_end_matches('-').parse().unwrap()
    });
    range.unwrap_or(0)
}

fn serve(
    mut stream: TcpStream,
    (line, headers): &Request,
    files: &Files,
    (weights, gate): (Weights, &Gate),
) -> std::io::Result<()> {
    let name = line.split(' ').nth(1).unwrap_or_default();
    let name = Path::new(name).file_name().unwrap_or_default();
    let Some(bytes) = files.get(Path::new(name)) else {
        return stream.write_all(
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        );
    };
    let first = first(headers);
    let (last, total) = (bytes.len() - 1, bytes.len());
    let status = match first {
        0 => "200 OK".to_owned(),
        _ => format!("206 Partial Content\r\ncontent-range: bytes {first}-{last}/{total}"),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nx-repo-commit: {COMMIT}\r\netag: \"{}\"\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        sha256_bytes(bytes),
        total - first
    )?;
    if line.starts_with("HEAD ") {
        return Ok(());
    }
    if weights == Weights::Whole || name != WEIGHTS || first > 0 {
        return stream.write_all(&bytes[first..]);
    }
    stream.write_all(&bytes[..total / 2])?;
    gate.wait();
    // One byte more, so that the client looks up; the rest never comes.
    stream.write_all(&bytes[total / 2..=total / 2])?;
    stream.read_to_end(&mut Vec::new()).map(|_| ())
}

const GENERATE: [&str; 7] = [
    "generate",
    "--target",
    "org/name",
    "--prompt",
    "count to 3",
    "--max-new-tokens",
    "4",
];

/// The program in a workspace, with this hub and a token.
fn command(workspace: &Workspace, hub: &Hub) -> Command {
    asking(workspace, hub, &GENERATE)
}

fn asking(workspace: &Workspace, hub: &Hub, words: &[&str]) -> Command {
    fake_hub::asking(&hub.address, workspace, words)
}

/// What is here of the weights.
fn incomplete(workspace: &Workspace, files: &Files) -> PathBuf {
    let name = sha256_bytes(&files[Path::new(WEIGHTS)]);
    workspace.path(format!("hub/hub/models--org--name/blobs/{name}.incomplete"))
}

fn workspace() -> (Workspace, Files) {
    let workspace = Workspace::of("");
    workspace.write_target("target", VOCAB);
    let files = workspace.files("target");
    (workspace, files)
}

/// Whether any five letters of the token are in a text, as they are or as the hexadecimal digits of a dump.
fn tells(text: &str) -> bool {
    let packed = text.replace(' ', "").to_lowercase();
    TOKEN.as_bytes().windows(5).any(|piece| {
        let digits: String = piece.iter().map(|byte| format!("{byte:02x}")).collect();
        text.contains(std::str::from_utf8(piece).unwrap()) || packed.contains(&digits)
    })
}

#[test]
fn a_target_of_a_hub_answers_as_its_folder_does_and_no_log_has_the_token() {
    let (workspace, files) = workspace();
    let hub = Hub::with(files);
    let output = command(&workspace, &hub)
        .env("RUST_LOG", "trace")
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    let mut words = GENERATE;
    words[2] = "target";
    let expected = workspace.run(&words).succeeded();
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected.stdout);

    let asked = hub.asked.lock().unwrap();
    let bearer = format!("Bearer {TOKEN}");
    let sent = |headers: &BTreeMap<String, String>| headers.get("authorization") == Some(&bearer);
    assert!(!asked.is_empty() && asked.iter().all(|(_, headers)| sent(headers)));
    assert!(log.contains("HEAD"), "requests are logged: {log}");
    let lines: Vec<_> = log.lines().filter(|line| tells(line)).collect();
    assert!(
        lines.is_empty() && !tells(&String::from_utf8_lossy(&output.stdout)),
        "{lines:#?}"
    );
}

#[test]
fn a_drafter_of_a_hub_is_downloaded_at_its_revision_and_named_by_its_id() {
    let workspace = Workspace::finished();
    let hub = Hub::with(workspace.files("runs/run/export/drafter"));
    let run = |words: &[&str]| {
        let outcome = Outcome::from(asking(&workspace, &hub, words).output().unwrap());
        outcome.succeeded().stdout
    };
    let of_hub = run(&["check", "some/drafter@v1", "--target", "target"]);
    assert_eq!(of_hub, run(&["check", "run", "--target", "target"]));
    let asked = |part: &str| {
        let asked = hub.asked.lock().unwrap();
        asked.iter().any(|(line, _)| line.contains(part))
    };
    assert!(asked("/some/drafter/") && asked("/v1/"));
    assert!(!asked("/main/"));

    let words = ["evaluate", "--target", "target", "--prompts", "eval.jsonl"];
    let settings = ["--count", "1", "--max-new-tokens", "4", "--drafter"];
    let evaluated = run(&[&words[..], &settings, &["some/drafter@v1"]].concat());
    assert!(
        evaluated.contains("drafter some/drafter@v1 "),
        "{evaluated}"
    );
    run(&[
        "import",
        "some/drafter",
        "--target",
        "target",
        "--count",
        "2",
    ]);
    assert!(asked("/main/"));
    let manifest = workspace.json("runs/drafter/import/manifest.json");
    assert_eq!(manifest["summary"]["imported"]["from"], "some/drafter");
    let to = ["--to", "vllm", "--out", "exported"];
    run(&[&["export", "some/drafter"][..], &to].concat());
    assert!(workspace.path("exported/config.json").exists());
    let to = ["--to", "vllm", "--out", "imported"];
    run(&[&["export", "drafter"][..], &to].concat());
    let card = workspace.text("imported/README.md");
    for told in [
        "\nbase_model: \"some/drafter\"\n",
        "but converted from `some/drafter`.\n",
    ] {
        assert!(card.contains(told), "no `{told}`: {card}");
    }
}

#[test]
fn training_starts_from_a_drafter_of_a_hub_and_a_folder_of_that_name_comes_first() {
    let workspace = Workspace::finished();
    let drafter = workspace.files("runs/run/export/drafter");
    let hub = Hub::with(drafter.clone());
    let run = |name: &str, start: &str| {
        let (name, start) = (format!("name={name}"), format!("start={start}"));
        let words = ["recipe", "recipe.toml", "--set", &name, "--set", &start];
        let stages = ["--stage", "prepare", "--stage", "train"];
        let mut command = asking(&workspace, &hub, &[&words[..], &stages].concat());
        Outcome::from(command.output().unwrap()).succeeded();
    };
    let trained =
        |name: &str| workspace.bytes(&format!("runs/{name}/train/drafter/model.safetensors"));
    run("local", "runs/run/export/drafter");
    assert!(hub.asked.lock().unwrap().is_empty());
    run("remote", "some/drafter@v1");
    assert!(trained("remote") == trained("local"));
    assert!(!hub.asked.lock().unwrap().is_empty());
    let words = ["check", "hf://some/drafter@v1", "--target", "target"];
    Outcome::from(asking(&workspace, &hub, &words).output().unwrap()).succeeded();

    hub.asked.lock().unwrap().clear();
    std::fs::create_dir_all(workspace.path("other/drafter")).unwrap();
    for (name, bytes) in &drafter {
        std::fs::write(workspace.path("other/drafter").join(name), bytes).unwrap();
    }
    run("here", "other/drafter");
    assert!(trained("here") == trained("local"));
    assert!(hub.asked.lock().unwrap().is_empty());
    let unknown = [
        "recipe",
        "recipe.toml",
        "--set",
        "name=none",
        "--set",
        "start=no/drafter",
    ];
    workspace
        .run(&unknown)
        .failed(&["the start `no/drafter`", "`HF_HUB_OFFLINE`"]);
}

#[test]
fn a_download_that_is_interrupted_or_killed_goes_on_where_it_was() {
    for signal in ["-TERM", "-KILL"] {
        let (workspace, files) = workspace();
        let hub = Hub::sending(files.clone(), Weights::Half);
        let mut child = command(&workspace, &hub)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let here = incomplete(&workspace, &files);
        wait_for(&mut child, || {
            std::fs::metadata(&here).is_ok_and(|here| here.len() > 0)
        });
        let id = child.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().unwrap();
        assert!(sent.success());
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        if signal == "-TERM" {
            let mut line = String::new();
            while !line.contains("stopping") {
                assert!(stderr.read_line(&mut line).unwrap() > 0, "{line}");
            }
        }
        // It is told to stop, or gone.
        hub.gate.open();
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).unwrap();
        let ended = child.wait().unwrap();
        if signal == "-TERM" {
            assert_eq!(ended.code(), Some(1), "{rest}");
            assert!(rest.contains("interrupted while downloading"), "{rest}");
        }
        let kept = std::fs::metadata(&here).unwrap().len() as usize;
        assert!(kept > 0 && kept < files[Path::new(WEIGHTS)].len(), "{kept}");
        let output = command(&workspace, &hub).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{log}");
        assert_eq!(hub.firsts(), [0, kept]);
        assert!(!here.exists());
    }
}

#[test]
fn a_prompt_set_of_a_hub_is_a_dataset_and_is_downloaded_once() {
    let workspace = Workspace::finished();
    let problem = |number: usize| {
        let problem = format!("count to {number}");
        serde_json::json!({"problem": problem, "subject": "counting", "level": 1}).to_string()
    };
    let rows: Vec<String> = (1..4).map(problem).collect();
    let files = Files::from([(PathBuf::from("test.jsonl"), rows.join("\n").into_bytes())]);
    let hub = Hub::with(files);
    let words = [
        &["evaluate", "--target", "target", "--drafter", "run"][..],
        &[
            "--prompts",
            "math-500",
            "--temperature",
            "0",
            "--max-new-tokens",
            "4",
        ],
        &["--count", "2", "--out", "judged"],
    ]
    .concat();
    workspace.run(&words).failed(&[
        "the dataset `HuggingFaceH4/MATH-500`",
        "`math-500=PATH`",
        "`HF_HUB_OFFLINE`",
    ]);
    for _ in 0..2 {
        let output = asking(&workspace, &hub, &words).output().unwrap();
        Outcome::from(output).succeeded();
    }
    let asked = hub.asked.lock().unwrap();
    let gets = asked.iter().filter(|(line, _)| line.starts_with("GET "));
    let lines: Vec<&str> = gets.map(|(line, _)| line.as_str()).collect();
    let [line] = lines[..] else {
        panic!("{lines:?}");
    };
    assert!(
        line.starts_with("GET /datasets/HuggingFaceH4/MATH-500/resolve/"),
        "{line}"
    );
    let report = workspace.json("judged/report.json");
    let dataset = &report["settings"][0]["datasets"][0];
    assert_eq!(
        (&dataset["name"], &dataset["prompts"]),
        (&"math-500".into(), &2.into())
    );
    let category = &report["settings"][0]["groups"]["category"];
    assert_eq!(category[0]["name"], "counting");
}

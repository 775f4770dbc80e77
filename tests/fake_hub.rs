//! A hub on this machine as far as this program speaks with one: lists of files, and files.
use std::collections::BTreeMap;
use std::io::{BufReader, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use spectrain_checkpoints::hash::sha256_bytes;

use crate::http::{Request, listen};
use crate::workspace::{Outcome, Workspace};

/// What the program is told to be its token.
pub const TOKEN: &str = "hf_QzXwVyKjPqRtLmNbGdFs";

/// A repository at one revision.
#[derive(Debug, Clone, Default)]
pub struct Repository {
    /// By their paths.
    pub files: BTreeMap<String, Vec<u8>>,
    /// What stands at the top of its card.
    pub card: Value,
}

impl Repository {
    pub fn of(files: &[(&str, Vec<u8>)], card: Value) -> Self {
        let files = files.iter().cloned();
        Self {
            files: files
                .map(|(path, bytes)| (path.to_owned(), bytes))
                .collect(),
            card,
        }
    }

    /// The name of the commit with these files.
    pub fn commit(&self) -> String {
        let part = |(path, bytes): (&String, &Vec<u8>)| format!("{path} {}\n", sha256_bytes(bytes));
        let parts: String = self.files.iter().map(part).collect();
        sha256_bytes(parts.as_bytes())[..40].to_owned()
    }
}

#[derive(Default)]
struct State {
    /// By `datasets/org/name` or `models/org/name`, and revision.
    repositories: BTreeMap<(String, String), Repository>,
    /// Method and path of every request.
    asked: Vec<String>,
}

/// A hub with repositories.
pub struct FakeHub {
    pub address: String,
    state: Arc<Mutex<State>>,
}

impl FakeHub {
    pub fn new() -> Self {
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = state.clone();
        let address = listen(move |stream| serve(stream, &shared));
        Self {
            address: format!("http://{address}"),
            state,
        }
    }

    /// Has a dataset at a revision.
    pub fn dataset(self, id: &str, revision: &str, repository: Repository) -> Self {
        self.having(format!("datasets/{id}"), revision, repository)
    }

    /// Has a model at a revision, of which it sends no file.
    pub fn model(self, id: &str, revision: &str, repository: Repository) -> Self {
        self.having(format!("models/{id}"), revision, repository)
    }

    fn having(self, path: String, revision: &str, repository: Repository) -> Self {
        let key = (path, revision.to_owned());
        self.state
            .lock()
            .unwrap()
            .repositories
            .insert(key, repository);
        self
    }

    /// Method and path of every request so far, which are forgotten.
    pub fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().asked)
    }

    /// Runs the program in a workspace with this hub.
    pub fn run(&self, workspace: &Workspace, words: &[&str]) -> Outcome {
        Outcome::from(self.command(workspace, words).output().unwrap())
    }

    pub fn command(&self, workspace: &Workspace, words: &[&str]) -> Command {
        asking(&self.address, workspace, words)
    }
}

/// The program in a workspace, with the hub at an address and a token.
pub fn asking(address: &str, workspace: &Workspace, words: &[&str]) -> Command {
    let mut command = workspace.command(words);
    command
        .env("HF_HUB_OFFLINE", "0")
        .env("HF_ENDPOINT", address)
        .env("HF_TOKEN", TOKEN)
        .env_remove("HF_HUB_CACHE")
        .env_remove("HF_TOKEN_PATH");
    command
}

fn serve(stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut out = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let request = Request::read(&mut reader)?;
        let answer = {
            let mut state = state.lock().unwrap();
            state
                .asked
                .push(format!("{} {}", request.method, request.target));
            answer(&mut state, &request)
        };
        answer.send(&mut out, request.method == "HEAD")?;
    }
}

/// A status, headers and a body.
pub struct Answer {
    status: &'static str,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Answer {
    pub fn json(value: &Value) -> Self {
        Self {
            status: "200 OK",
            headers: Vec::new(),
            body: value.to_string().into_bytes(),
        }
    }

    pub fn status(status: &'static str) -> Self {
        Self {
            status,
            ..Self::json(&json!({}))
        }
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    fn missing(code: &str) -> Self {
        Self {
            status: "404 Not Found",
            headers: vec![("x-error-code".to_owned(), code.to_owned())],
            body: Vec::new(),
        }
    }

    pub fn send(&self, out: &mut TcpStream, head_alone: bool) -> Option<()> {
        let mut head = format!(
            "HTTP/1.1 {}\r\ncontent-length: {}\r\n",
            self.status,
            self.body.len()
        );
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        out.write_all(format!("{head}\r\n").as_bytes()).ok()?;
        if head_alone {
            Some(())
        } else {
            out.write_all(&self.body).ok()
        }
    }
}

fn answer(state: &mut State, request: &Request) -> Answer {
    let path = request.target.split('?').next().unwrap_or_default();
    let parts: Vec<String> = path
        .trim_start_matches('/')
        .split('/')
        .map(decoded)
        .collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match (request.method.as_str(), &parts[..]) {
        ("GET", ["api", kind, org, name, "revision", revision]) => {
            with(state, &format!("{kind}/{org}/{name}"), revision, list)
        }
        ("GET" | "HEAD", ["datasets", org, name, "resolve", revision, file @ ..]) => {
            let file = file.join("/");
            with(
                state,
                &format!("datasets/{org}/{name}"),
                revision,
                |repository| send_file(repository, &file, request),
            )
        }
        other => panic!("the hub of the tests does not know {other:?}"),
    }
}

/// Answers about a repository at a revision, which may be its commit.
fn with(
    state: &State,
    key: &str,
    revision: &str,
    answer: impl FnOnce(&Repository) -> Answer,
) -> Answer {
    let mut known = state
        .repositories
        .iter()
        .filter(|((id, _), _)| id == key)
        .peekable();
    if known.peek().is_none() {
        return Answer::missing("RepoNotFound");
    }
    let found =
        known.find(|((_, name), repository)| name == revision || repository.commit() == revision);
    match found {
        Some((_, repository)) => answer(repository),
        None => Answer::missing("RevisionNotFound"),
    }
}

fn list(repository: &Repository) -> Answer {
    let file = |(path, bytes): (&String, &Vec<u8>)| json!({"rfilename": path, "size": bytes.len()});
    let files: Vec<Value> = repository.files.iter().map(file).collect();
    Answer::json(&json!({
        "sha": repository.commit(), "siblings": files, "cardData": repository.card,
    }))
}

fn send_file(repository: &Repository, file: &str, request: &Request) -> Answer {
    let Some(bytes) = repository.files.get(file) else {
        return Answer::missing("EntryNotFound");
    };
    assert_eq!(request.header("range"), None, "no download was interrupted");
    Answer {
        status: "200 OK",
        headers: vec![
            ("x-repo-commit".to_owned(), repository.commit()),
            ("etag".to_owned(), format!("\"{}\"", sha256_bytes(bytes))),
        ],
        body: bytes.clone(),
    }
}

/// A part of a path without its escapes.
pub fn decoded(part: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = part.as_bytes();
    while let [first, after @ ..] = rest {
        let escaped = after.get(..2).filter(|_| *first == b'%');
        let escaped = escaped.and_then(|digits| std::str::from_utf8(digits).ok());
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}

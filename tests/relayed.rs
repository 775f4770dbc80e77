//! Hidden states from a server on another machine, through `spectrain relay`. The recipes here name no folder.
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStderr};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::{Request, listen, respond};
use crate::served_targets::{IDS, another_from, serve, with_a_norm};
use crate::state_server::{Serving, Wrong};
use crate::workspace::{Outcome, Workspace, signal, wait_for};

/// A relay, which ends with this.
pub struct Relay {
    process: Child,
    /// `ADDRESS:PORT`.
    address: String,
    told: BufReader<ChildStderr>,
}

impl Relay {
    /// Of the server at `url`, which writes into `states`.
    pub fn start(workspace: &Workspace, url: &str, more: &[&str]) -> Self {
        Self::at(workspace, url, "127.0.0.1:0", more)
    }

    fn at(workspace: &Workspace, url: &str, listen: &str, more: &[&str]) -> Self {
        let states = workspace.path("states");
        let words = [
            "relay",
            "--server",
            url,
            "--folder",
            states.to_str().unwrap(),
        ];
        let mut process = workspace.start(&[&words, &["--listen", listen][..], more].concat());
        let mut told = BufReader::new(process.stderr.take().unwrap());
        let mut first = String::new();
        told.read_line(&mut first).unwrap();
        let address = first
            .split("http://")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_else(|| panic!("{first}")).to_owned();
        Self {
            process,
            address,
            told,
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends it as a user does. Returns its status and what it said after its first line.
    fn ended(mut self) -> (Option<i32>, String) {
        signal(&self.process, "-TERM");
        let mut told = String::new();
        self.told.read_to_string(&mut told).unwrap();
        (self.process.wait().unwrap().code(), told)
    }

    /// What it answers: status and body.
    fn answer(&self, method: &str, path: &str, header: &str, body: &str) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n{header}Content-Length: {length}\r\n\r\n{body}"
        );
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        let mut whole = Vec::new();
        stream.read_to_end(&mut whole).unwrap();
        let end = whole
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .unwrap();
        let status = String::from_utf8_lossy(&whole[9..12]).parse().unwrap();
        (status, whole.split_off(end + 4))
    }

    /// Asks for the hidden states of a prompt. Returns the path at which they can be fetched.
    fn ask(&self) -> String {
        let body =
            json!({"model": "served", "prompt": [3, 4, 5, 6], "max_tokens": 1, "temperature": 0});
        let (status, body) = self.answer("POST", "/v1/completions", "", &body.to_string());
        assert_eq!(status, 200);
        let said: Value = serde_json::from_slice(&body).unwrap();
        said["kv_transfer_params"]["relayed"]
            .as_str()
            .unwrap()
            .to_owned()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn run(workspace: &Workspace, urls: &[String], more: &[&str]) -> Outcome {
    let servers = format!("target.server={}", json!(urls));
    workspace.run_recipe(&[&["features.mode=served", &servers], more].concat())
}

/// The digests of the shards of a run's features.
fn shards(workspace: &Workspace, run: &str) -> Vec<Value> {
    let index = workspace.json(&format!("runs/{run}/features/features.json"));
    let shards = index["shards"].as_array().unwrap().iter();
    shards.map(|shard| shard["sha256"].clone()).collect()
}

#[test]
fn what_comes_through_a_relay_is_what_the_folder_has() {
    let workspace = with_a_norm();
    let [first, second] = [(); 2].map(|()| serve(&workspace, Serving::of(&IDS)));
    let folder = format!("target.server_folder={}", json!(workspace.path("states")));
    run(&workspace, &[first.url()], &[&folder, "name=here"]).succeeded();
    let relays = [&first, &second].map(|server| Relay::start(&workspace, &server.url(), &[]));
    let urls = [relays[0].url(), relays[1].url()];
    run(&workspace, &urls, &["name=far"]).succeeded();
    assert_eq!(shards(&workspace, "here"), shards(&workspace, "far"));
    let again = run(&workspace, &urls, &["name=here"]).succeeded();
    let done = "features: done before";
    assert!(again.stderr.contains(done), "{again:#?}");
    let streamed = ["features.mode=streamed", "name=streamed"];
    run(&workspace, &urls, &streamed).succeeded();
    let drafter = |run: &str| workspace.contents(&format!("runs/{run}/train/drafter")).1;
    assert_eq!(drafter("here"), drafter("far"));
    assert_eq!(drafter("here"), drafter("streamed"));
    assert!(
        workspace.files("states").is_empty(),
        "what was fetched is deleted"
    );
    for relay in relays {
        let (status, told) = relay.ended();
        assert_eq!(status, Some(0), "{told}");
    }
}

#[test]
fn a_relay_that_ends_and_comes_back_loses_no_sample() {
    let workspace = with_a_norm();
    let slow = Serving {
        pause: Duration::from_millis(10),
        ..Serving::of(&IDS)
    };
    let server = serve(&workspace, slow);
    let few = ["features.samples_per_shard=4", "features.under_way=2"];
    let folder = format!("target.server_folder={}", json!(workspace.path("states")));
    run(
        &workspace,
        &[server.url()],
        &[&few[..], &[&folder, "name=here"]].concat(),
    )
    .succeeded();
    let relay = Relay::start(&workspace, &server.url(), &[]);
    let address = relay.address.clone();
    let servers = format!("target.server={}", json!([relay.url()]));
    let settings = [&few[..], &["features.mode=served", &servers, "name=far"]].concat();
    let settings = settings.iter().flat_map(|setting| ["--set", *setting]);
    let words: Vec<&str> = ["recipe", "recipe.toml"]
        .into_iter()
        .chain(settings)
        .collect();
    let mut trainer = workspace.start(&words);
    let is_shard = |name: &PathBuf| name.extension().is_some_and(|ending| ending == "arrow");
    let features = workspace.path("runs/far/features");
    wait_for(&mut trainer, || {
        features.exists() && workspace.files("runs/far/features").keys().any(is_shard)
    });
    drop(relay);
    std::thread::sleep(Duration::from_millis(300));
    let relay = Relay::at(&workspace, &server.url(), &address, &[]);
    let outcome = Outcome::from(trainer.wait_with_output().unwrap()).succeeded();
    assert!(outcome.stderr.contains("no server answers"), "{outcome:#?}");
    assert_eq!(shards(&workspace, "here"), shards(&workspace, "far"));
    drop(relay);
}

#[test]
fn a_server_that_fails_behind_a_relay_is_dealt_with_as_without_one() {
    let workspace = with_a_norm();
    let through = |serving: Serving| {
        let server = serve(&workspace, serving);
        let relay = Relay::start(&workspace, &server.url(), &[]);
        let outcome = run(&workspace, &[relay.url()], &["features.under_way=2"]);
        drop(std::fs::remove_dir_all(workspace.path("runs")));
        drop(std::fs::remove_dir_all(workspace.path("states")));
        outcome
    };
    let wrong = |wrong: Wrong| {
        through(Serving {
            wrong: Some(wrong),
            ..Serving::of(&IDS)
        })
    };
    wrong(Wrong::Unwritten).succeeded();
    through(Serving {
        hangs_up_at: Some(7),
        away_after: Some((9, Duration::from_secs(1))),
        ..Serving::of(&IDS)
    })
    .succeeded();
    wrong(Wrong::Elsewhere).failed(&["expected a file in", "`--folder`"]);
    wrong(Wrong::OneSlotLess).failed(&["expected the shape"]);
    wrong(Wrong::NoFile).failed(&["extract_hidden_states"]);
    through(another_from(12)).failed(&["not the server that was proven"]);
}

#[test]
fn a_server_without_a_relay_or_a_folder_is_told_of_both() {
    let workspace = with_a_norm();
    let server = serve(&workspace, Serving::of(&IDS));
    let told = run(&workspace, &[server.url()], &[]).failed(&["`target.server_folder` is missing"]);
    let states = workspace.path("states");
    let command = format!(
        "spectrain relay --server {} --folder {}",
        server.url(),
        states.display()
    );
    assert!(told.stderr.trim_end().ends_with(&command), "{told:#?}");
    run(&workspace, &[server.url()], &["target.local_folder=states"])
        .misused(&["`target.server_folder` is missing"]);
}

#[test]
fn states_are_fetched_once_by_who_asked_for_them_and_go_where_nobody_does() {
    let workspace = with_a_norm();
    let server = serve(&workspace, Serving::of(&IDS));
    let relay = Relay::start(&workspace, &server.url(), &["--timeout", "1"]);
    let fetch = |path: &str| relay.answer("GET", path, "", "");
    let path = relay.ask();
    let (status, body) = fetch(&path);
    let tensors = spectrain_checkpoints::folder::parse_safetensors(body, "a".as_ref()).unwrap();
    assert_eq!((status, &tensors[0].shape[..]), (200, &[4, 3, 32][..]));
    for unknown in [path.as_str(), "/states/0", "/states/..%2Fa"] {
        let (status, body) = fetch(unknown);
        assert_eq!(status, 503, "{unknown}");
        assert!(
            String::from_utf8(body)
                .unwrap()
                .contains("the relay knows nothing")
        );
    }
    assert_eq!(fetch("/metrics").0, 404);
    // What nobody fetches.
    let path = relay.ask();
    let since = Instant::now();
    while !workspace.files("states").is_empty() {
        assert!(since.elapsed() < Duration::from_secs(60), "{path}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fetch(&path).0, 503);
    // Nor does it stay when the relay ends.
    relay.ask();
    assert_eq!(relay.ended().0, Some(0));
    assert!(workspace.files("states").is_empty());
}

#[test]
fn the_key_and_the_status_of_a_server_are_passed_on() {
    let workspace = with_a_norm();
    let address = listen(|stream| {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        let (request, mut out) = (Request::read(&mut reader)?, stream);
        match request.header("authorization") {
            Some("Bearer sk-1") => respond(&mut out, "200 OK", "", "{\"data\": []}"),
            _ => respond(
                &mut out,
                "429 Slow",
                "Retry-After: 7\r\n",
                "{\"message\": \"no\"}",
            ),
        }
    });
    let relay = Relay::start(&workspace, &format!("http://{address}"), &[]);
    let models = |header: &str| relay.answer("GET", "/v1/models", header, "");
    let (status, body) = models("Authorization: Bearer sk-1\r\n");
    assert_eq!((status, &body[..]), (200, &b"{\"data\": []}"[..]));
    let (status, body) = models("");
    assert_eq!((status, &body[..]), (429, &b"{\"message\": \"no\"}"[..]));
    // Nobody there.
    let relay = Relay::start(&workspace, "http://127.0.0.1:9", &[]);
    assert_eq!(relay.answer("GET", "/v1/models", "", "").0, 502);
    let (_, told) = relay.ended();
    assert!(told.contains("trainers wait for it"), "{told}");
}

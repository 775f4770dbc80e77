//! Hubs to which a drafter is pushed: whatever they answer, the push ends with a commit that they name or with an error, and the token
//! goes to no other host.
use std::fs;
use std::io::{BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rand::rngs::StdRng;
use serde_json::{Value, json};
use spectrain_checkpoints::ModelFolder;
use spectrain_checkpoints::hub::{
    Push, Pushed, RepoType, Repository, Visibility, push, pushed_files,
};

use super::fuzz::{Expected, Files, Fuzz, any};
use super::hubs::{change_answer, options};
use crate::http::{Request, listen};
use crate::workspace::Workspace;

/// What a hub answers to each kind of request, as it goes over the wire.
type Answers = Arc<Mutex<Files>>;

/// The kinds of requests, by what their paths hold.
const KINDS: [(&str, &str); 9] = [
    ("/repos/create", "create"),
    ("/revision/", "list"),
    ("/preupload/", "modes"),
    ("/objects/batch", "batch"),
    ("/store/", "store"),
    ("/complete/", "complete"),
    ("/verify/", "verify"),
    ("/commit/", "commit"),
    ("/api/models/", "look"),
];

fn serve(stream: TcpStream, answers: &Answers, takes_token: bool) -> Option<()> {
    let mut out = stream.try_clone().ok()?;
    let request = Request::read(&mut BufReader::new(stream))?;
    let mut answers = answers.lock().unwrap();
    if !takes_token && request.header("authorization").is_some() {
        answers.insert(LEAK.to_owned(), request.target.clone().into_bytes());
    }
    let (_, kind) = KINDS
        .iter()
        .find(|(part, _)| request.target.contains(part))?;
    out.write_all(&answers[*kind]).ok()
}

/// Stands among the answers where the token came to a host that it is not for.
const LEAK: &str = "leak";

/// Addresses of a hub and of its store, which is another host.
fn servers(answers: &Answers) -> [String; 2] {
    [true, false].map(|takes_token| {
        let answers = answers.clone();
        let address = listen(move |stream| serve(stream, &answers, takes_token));
        format!("http://{address}")
    })
}

/// What a hub answers that has nothing yet: large files go to its store whole, or in parts of a size.
fn right(pushed: &[Pushed], [hub, store]: &[String; 2], part: Option<u64>) -> Files {
    let is_large = |file: &&Pushed| file.name.ends_with(".safetensors");
    let mode = |file: &Pushed| {
        let mode = if is_large(&file) { "lfs" } else { "regular" };
        json!({"path": file.name, "uploadMode": mode, "shouldIgnore": false})
    };
    let object = |file: &Pushed| {
        let id = &file.sha256;
        let upload = match part {
            None => json!({"href": format!("{store}/store/{id}")}),
            Some(part) => {
                let mut header = json!({"chunk_size": part.to_string()});
                for number in 1..=file.bytes.div_ceil(part) {
                    header[number.to_string()] = json!(format!("{store}/store/{id}/{number}"));
                }
                json!({"href": format!("{hub}/complete/{id}"), "header": header})
            }
        };
        let verify = json!({"href": format!("{hub}/verify/{id}")});
        json!({"oid": id, "size": file.bytes, "actions": {"upload": upload, "verify": verify}})
    };
    let modes: Vec<Value> = pushed.iter().map(mode).collect();
    let objects: Vec<Value> = pushed.iter().filter(is_large).map(object).collect();
    let bodies = [
        ("create", json!({})),
        ("look", json!({"private": true})),
        (
            "list",
            json!({"siblings": [{"rfilename": "pytorch_model.bin"}]}),
        ),
        ("modes", json!({"files": modes})),
        (
            "batch",
            json!({"transfer": "multipart", "objects": objects}),
        ),
        ("store", json!({})),
        ("complete", json!({})),
        ("verify", json!({})),
        (
            "commit",
            json!({"commitUrl": "https://hub/me/drafter/commit/1", "commitOid": "1"}),
        ),
    ];
    let answer = |(kind, body): (&str, Value)| {
        let body = body.to_string();
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 200 OK\r\netag: \"tag\"\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        (kind.to_owned(), answer.into_bytes())
    };
    bodies.into_iter().map(answer).collect()
}

fn mutate(files: &mut Files, rng: &mut StdRng) {
    change_answer(any(files, rng).1, rng);
}

#[test]
fn whatever_a_hub_answers_a_push_names_its_commit_or_ends_and_keeps_the_token() {
    let workspace = Workspace::finished();
    let folder = workspace.path("runs/run/export/drafter");
    let pushed = pushed_files(&ModelFolder::open(&folder).unwrap()).unwrap();
    let answers: Answers = Arc::default();
    let servers = servers(&answers);
    let repository = Repository::new(RepoType::Model, "me/drafter", None).unwrap();
    let read = |answered: &Path| {
        let kinds = KINDS.iter().map(|(_, kind)| (*kind).to_owned());
        *answers.lock().unwrap() = kinds
            .map(|kind| (kind.clone(), fs::read(answered.join(kind)).unwrap()))
            .collect();
        let wanted = Push {
            folder: &folder,
            repository: &repository,
            visibility: Visibility::Private,
            message: "A drafter",
        };
        let done = push(&wanted, &options(&workspace.path("cache"), &servers[0]));
        let leak = answers.lock().unwrap().get(LEAK).cloned();
        assert_eq!(leak, None, "the token came to the store");
        let done = done.map_err(|error| error.to_string())?;
        let commit = done.commit.unwrap_or_default();
        assert!(!commit.is_empty(), "a commit without a name");
        Ok(done.sent.to_string())
    };
    Fuzz {
        name: "pushes",
        corpus: vec![
            right(&pushed, &servers, None),
            right(&pushed, &servers, Some(20_000)),
        ],
        mutate,
        read,
        expected: Expected {
            names_files: false,
            memory: 64 << 20,
            ..Expected::default()
        },
    }
    .run();
}

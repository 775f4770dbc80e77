//! Hubs: lists of files and files, whatever is in them, and whatever is sent in their place.
use std::fs;
use std::io::{BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use spectrain_checkpoints::HubOptions;
use spectrain_checkpoints::hash::sha256_bytes;
use spectrain_checkpoints::hub::HubLimits;
use spectrain_data::hub_data::{self, HubAddress};

use super::bytes::change_text;
use super::fuzz::{Expected, Files, Fuzz, file};
use super::json;
use crate::http::Request;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const ROWS: &str = "{\"messages\": []}\n";
/// The list of files in a cache, as an earlier download leaves it.
const LIST: &str = "datasets--org--name/.spectrain/0123456789abcdef0123456789abcdef01234567.json";
const REVISION: &str = "datasets--org--name/refs/main";

/// Lists of datasets with every form of a card.
fn lists() -> Vec<Value> {
    let paths = |paths: &[&str]| -> Vec<Value> {
        let entry = |path: &&str| json!({"rfilename": path, "size": 17});
        paths.iter().map(entry).collect()
    };
    let list = |names: &[&str], card: Value| json!({"sha": COMMIT, "siblings": paths(names), "cardData": card});
    vec![
        list(
            &[
                "data/train-00000-of-00001.jsonl",
                "data/test-00000-of-00001.jsonl",
            ],
            json!({"license": "mit"}),
        ),
        list(&["a.jsonl", "README.md"], Value::Null),
        list(
            &["en/train.jsonl", "de/train.jsonl", "de/more/x.json"],
            json!({"configs": [
                {"config_name": "en", "data_files": "en/*.jsonl"},
                {"config_name": "de", "data_dir": "de", "data_files": [{"split": "train", "path": ["*.jsonl", "**/*.json"]}]},
            ]}),
        ),
    ]
}

fn cached() -> Vec<Files> {
    let of = |list: Value| {
        let mut files = file(LIST, list.to_string());
        files.extend(file(REVISION, COMMIT));
        for listed in list["siblings"].as_array().unwrap() {
            let path = listed["rfilename"].as_str().unwrap();
            let path = format!("datasets--org--name/snapshots/{COMMIT}/{path}");
            files.extend(file(&path, ROWS));
        }
        files
    };
    lists().into_iter().map(of).collect()
}

fn mutate_list(files: &mut Files, rng: &mut StdRng) {
    if rng.random_bool(0.05) {
        return change_text(files.get_mut(REVISION).unwrap(), rng);
    }
    let list = files.get_mut(LIST).unwrap();
    let Ok(mut parsed) = serde_json::from_slice::<Value>(list) else {
        return;
    };
    if rng.random_bool(0.3) {
        let odd = [
            "../../x",
            "/etc/passwd",
            "",
            ".",
            "a/./b.jsonl",
            "a//b",
            "[",
            "**/**/**/*",
            "{a,b}",
            "x\u{1b}[2J.jsonl",
        ];
        let odd = json!(odd.choose(rng).unwrap());
        let at = rng.random_range(0..parsed["siblings"].as_array().unwrap().len());
        parsed["siblings"][at]["rfilename"] = odd;
    }
    *list = parsed.to_string().into_bytes();
    json::change_bytes(list, rng);
}

pub(super) fn options(cache: &Path, endpoint: &str) -> HubOptions {
    HubOptions {
        endpoint: Some(endpoint.to_owned()),
        cache: Some(cache.to_owned()),
        token: Some("hf_none".to_owned()),
        limits: HubLimits {
            attempts: 1,
            pause: Duration::ZERO,
            longest_pause: Duration::ZERO,
            answer: Duration::from_secs(20),
            silence: Duration::from_secs(20),
            ..HubLimits::default()
        },
        stop: None,
    }
}

fn addresses() -> impl Iterator<Item = HubAddress> {
    let texts = [
        "hf://org/name",
        "hf://org/name:test",
        "hf://org/name:de/train",
    ];
    texts
        .into_iter()
        .map(|text| HubAddress::parse(text).unwrap().unwrap())
}

/// The rows that lie in the cache of each address; none leads out of it.
fn find(cache: &Path) -> Result<String, String> {
    let options = options(cache, "http://127.0.0.1:9");
    let mut count = 0;
    let whole = cache.canonicalize().unwrap();
    for address in addresses() {
        let Some(found) = hub_data::is_here(&address, &options) else {
            continue;
        };
        for path in &found.paths {
            assert!(path.canonicalize().unwrap().starts_with(&whole), "{path:?}");
            count += 1;
        }
    }
    if count == 0 {
        return Err(cache.display().to_string());
    }
    Ok(count.to_string())
}

#[test]
fn lists_of_files_that_are_here_are_read_or_passed_over() {
    Fuzz {
        name: "listings",
        corpus: cached(),
        mutate: mutate_list,
        read: find,
        expected: Expected::default(),
    }
    .run();
}

/// What a hub sends, by the kind of request.
#[derive(Default)]
struct Sends {
    list: Vec<u8>,
    file: Vec<u8>,
}

const LIST_SENT: &str = "list.http";
const FILE_SENT: &str = "file.http";

fn sent() -> Vec<Files> {
    let of = |list: Value| {
        let list = list.to_string();
        let length = list.len();
        let mut files = file(
            LIST_SENT,
            format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{list}"
            ),
        );
        let (tag, length) = (sha256_bytes(ROWS.as_bytes()), ROWS.len());
        let head = format!(
            "HTTP/1.1 200 OK\r\nconnection: close\r\nx-repo-commit: {COMMIT}\r\netag: \"{tag}\"\r\nx-linked-size: {length}\r\ncontent-length: {length}\r\n\r\n"
        );
        files.extend(file(FILE_SENT, format!("{head}{ROWS}")));
        files
    };
    lists().into_iter().map(of).collect()
}

fn mutate_sent(files: &mut Files, rng: &mut StdRng) {
    let name = if rng.random_bool(0.5) {
        LIST_SENT
    } else {
        FILE_SENT
    };
    change_answer(files.get_mut(name).unwrap(), rng);
}

/// Changes the head of an answer, or the JSON in it.
pub(super) fn change_answer(answer: &mut Vec<u8>, rng: &mut StdRng) {
    let text = String::from_utf8_lossy(answer).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let mut lines: Vec<Vec<u8>> = head
        .split("\r\n")
        .map(|line| line.as_bytes().to_vec())
        .collect();
    let mut body = body.as_bytes().to_vec();
    let at = rng.random_range(0..lines.len());
    let odd = [
        "transfer-encoding: chunked",
        "content-encoding: gzip",
        "content-length: 99999999999999999999",
        "content-length: 0",
        "location: http://127.0.0.1:1/x",
        "x-linked-etag: \"../../x\"",
        "etag: W/\"\"",
        "content-range: bytes 5-1/0",
        "x: y: z",
        ":",
        "retry-after: 99999999999",
        "connection: keep-alive",
        "x-error-code: RepoNotFound",
        "x-repo-commit: ../..",
    ];
    let status = [
        "HTTP/1.1 302 Found",
        "HTTP/1.1 404 Not Found",
        "HTTP/1.1 503 Busy",
        "HTTP/1.1 206 Partial Content",
        "HTTP/1.1 100 Continue",
        "HTTP/9 999 x",
        "",
    ];
    match rng.random_range(0..8) {
        0 => drop(lines.remove(at)),
        1 => lines[0] = status.choose(rng).unwrap().as_bytes().to_vec(),
        2 | 3 => lines.push(odd.choose(rng).unwrap().as_bytes().to_vec()),
        4 => change_text(&mut lines[at], rng),
        5 => json::change_bytes(&mut body, rng),
        _ => {
            json::change_bytes(&mut body, rng);
            let length = format!("content-length: {}", body.len());
            lines.retain(|line| !line.starts_with(b"content-length"));
            lines.push(length.into_bytes());
        }
    }
    *answer = [lines.join(&b"\r\n"[..]), body].join(&b"\r\n\r\n"[..]);
}

fn serve(stream: TcpStream, sends: &Mutex<Sends>) -> Option<()> {
    let mut out = stream.try_clone().ok()?;
    let request = Request::read(&mut BufReader::new(stream))?;
    let sends = sends.lock().unwrap();
    let answer = match request.target.starts_with("/api/") {
        true => &sends.list,
        false => &sends.file,
    };
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let whole = match end.filter(|_| request.method == "HEAD") {
        Some(end) => &answer[..end + 4],
        None => answer,
    };
    out.write_all(whole).ok()
}

#[test]
fn whatever_a_hub_sends_is_taken_or_refused() {
    let sends = Arc::new(Mutex::new(Sends::default()));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let shared = sends.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = serve(stream, &shared);
        }
    });
    let read = |folder: &Path| {
        *sends.lock().unwrap() = Sends {
            list: fs::read(folder.join(LIST_SENT)).unwrap(),
            file: fs::read(folder.join(FILE_SENT)).unwrap(),
        };
        let cache = folder.join("cache");
        let address = HubAddress::parse("hf://org/name").unwrap().unwrap();
        let found = hub_data::fetch(&address, &options(&cache, &endpoint));
        let found = found.map_err(|error| error.to_string())?;
        assert!(found.paths.iter().all(|path| path.is_file()));
        Ok(found.files.len().to_string())
    };
    Fuzz {
        name: "hubs",
        corpus: sent().into_iter().take(2).collect(),
        mutate: mutate_sent,
        read,
        expected: Expected {
            names_files: false,
            ..Expected::default()
        },
    }
    .run();
}

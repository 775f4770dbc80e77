use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::*;
use crate::tensors::{NamedTensor, write_safetensors};

const COMMIT: &str = "0123456789abcdef";

/// What a request asked for: its path, and its headers by lower-case name.
type Request = (String, HashMap<String, String>);

/// A hub on the loopback interface, with one model at one commit.
struct Hub {
    endpoint: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Hub {
    fn with_files(files: &[(&str, Vec<u8>)]) -> Hub {
        let files: HashMap<String, Vec<u8>> = files
            .iter()
            .map(|(name, bytes)| ((*name).to_string(), bytes.clone()))
            .collect();
        Hub::answering(move |path, range| {
            match path.rsplit('/').next().and_then(|name| files.get(name)) {
            Some(bytes) => file_response(bytes, range),
            None => b"HTTP/1.1 404 Not Found\r\nx-error-code: EntryNotFound\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec(),
        }
        })
    }

    fn answering(answer: impl Fn(&str, &str) -> Vec<u8> + Send + 'static) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = requests.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                serve(stream.unwrap(), &log, &answer);
            }
        });
        Hub { endpoint, requests }
    }

    fn options(&self, cache: &Path) -> HubOptions {
        HubOptions {
            endpoint: Some(self.endpoint.clone()),
            cache: Some(cache.join("hub")),
            ..HubOptions::default()
        }
    }

    fn paths(&self) -> Vec<String> {
        self.requests
            .lock()
            .unwrap()
            .iter()
            .map(|(path, _)| path.clone())
            .collect()
    }
}

fn serve(
    mut stream: TcpStream,
    log: &Mutex<Vec<Request>>,
    answer: &impl Fn(&str, &str) -> Vec<u8>,
) {
    let mut lines = BufReader::new(&stream)
        .lines()
        .map_while(std::io::Result::ok);
    let Some(start) = lines.next() else { return };
    let path = start.split(' ').nth(1).unwrap().to_string();
    let headers: HashMap<String, String> = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| {
            line.split_once(": ")
                .map(|(name, value)| (name.to_lowercase(), value.to_string()))
        })
        .collect();
    let range = headers["range"].strip_prefix("bytes=").unwrap().to_string();
    log.lock().unwrap().push((path.clone(), headers));
    // The client may hang up early; it is the client that is tested.
    let _ = stream.write_all(&answer(&path, &range));
}

/// The part of a file that a range `first-last` or `first-` asks for.
fn file_response(bytes: &[u8], range: &str) -> Vec<u8> {
    let (start, last) = range.split_once('-').unwrap();
    let start: usize = start.parse().unwrap();
    let end = last.parse().map_or(bytes.len(), |last: usize| last + 1);
    let part = &bytes[start..end];
    let digest = crate::hash::sha256_bytes(bytes);
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nx-repo-commit: {COMMIT}\r\netag: \"{digest}\"\r\n\
         content-range: bytes {start}-{}/{}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        end - 1,
        bytes.len(),
        part.len()
    );
    [head.as_bytes(), part].concat()
}

fn status(line: &'static str) -> Hub {
    Hub::answering(move |_, _| {
        format!("HTTP/1.1 {line}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").into_bytes()
    })
}

fn weights(name: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    let tensor = NamedTensor::from_f32(name, [1], vec![1.0]);
    write_safetensors(&path, &[tensor], &BTreeMap::new()).unwrap();
    fs::read(path).unwrap()
}

fn error(model: &str, options: &HubOptions) -> String {
    resolve(model, options).unwrap_err().to_string()
}

#[test]
fn an_existing_folder_is_taken_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    assert_eq!(
        resolve(path, &HubOptions::default()).unwrap(),
        folder.path()
    );
    assert_eq!(
        resolve(".", &HubOptions::default()).unwrap(),
        Path::new(".")
    );
}

#[test]
fn what_is_neither_folder_nor_id_is_refused_without_a_request() {
    let hub = Hub::with_files(&[]);
    let cache = tempfile::tempdir().unwrap();
    for model in [
        "./absent",
        "/absent/model",
        "absent",
        "a/b/c",
        "../a",
        "a/..",
        "a/b c",
        "a/b?c",
    ] {
        let text = error(model, &hub.options(cache.path()));
        assert!(text.contains(model) && text.contains("org/name"), "{text}");
    }
    assert!(
        error("./absent", &hub.options(cache.path()))
            .contains(env::current_dir().unwrap().to_str().unwrap())
    );
    let file = cache.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(error(file.to_str().unwrap(), &hub.options(cache.path())).contains("is a file"));
    assert!(hub.paths().is_empty());
}

#[test]
fn a_model_is_downloaded_at_its_revision_with_the_token_and_then_taken_from_the_cache() {
    let hub = Hub::with_files(&[
        ("config.json", b"{\"a\": 1}".to_vec()),
        ("tokenizer.json", b"{}".to_vec()),
        ("model.safetensors", weights("w")),
    ]);
    let cache = tempfile::tempdir().unwrap();
    let options = HubOptions {
        revision: Some("v2".to_string()),
        token: Some("secret".to_string()),
        ..hub.options(cache.path())
    };
    let folder = resolve("org/name", &options).unwrap();
    assert!(folder.ends_with(COMMIT));
    let opened = crate::ModelFolder::open(&folder).unwrap();
    assert_eq!(opened.config()["a"], 1);
    assert_eq!(opened.read_f32("w", &[1]).unwrap(), [1.0]);
    assert!(folder.join("tokenizer.json").exists() && !folder.join("chat_template.jinja").exists());

    let requests = hub.requests.lock().unwrap().clone();
    assert_eq!(requests[0].0, "/org/name/resolve/v2/config.json");
    assert!(
        requests
            .iter()
            .any(|(path, _)| *path == format!("/org/name/resolve/{COMMIT}/model.safetensors"))
    );
    assert!(
        requests
            .iter()
            .all(|(_, headers)| headers["authorization"] == "Bearer secret")
    );
    assert!(!format!("{options:?}").contains("secret"));

    assert_eq!(resolve("org/name", &options).unwrap(), folder);
    assert_eq!(
        hub.paths().len(),
        requests.len(),
        "a complete snapshot needs no request"
    );
}

#[test]
fn the_shards_of_an_index_are_downloaded() {
    let index = r#"{"weight_map": {"x": "m-1.safetensors", "y": "m-2.safetensors"}}"#;
    let hub = Hub::with_files(&[
        ("config.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index.into()),
        ("m-1.safetensors", weights("x")),
        ("m-2.safetensors", weights("y")),
    ]);
    let cache = tempfile::tempdir().unwrap();
    let folder = resolve("org/name", &hub.options(cache.path())).unwrap();
    assert_eq!(
        crate::ModelFolder::open(folder).unwrap().tensors().count(),
        2
    );
}

#[test]
fn a_shard_outside_the_folder_is_never_asked_for() {
    let index = r#"{"weight_map": {"x": "../../x.safetensors"}}"#;
    let hub = Hub::with_files(&[
        ("config.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index.into()),
    ]);
    let cache = tempfile::tempdir().unwrap();
    assert!(error("org/name", &hub.options(cache.path())).contains("../../x.safetensors"));
    assert!(
        hub.paths()
            .iter()
            .all(|path| !path.contains("x.safetensors"))
    );
}

#[test]
fn a_missing_shard_is_named() {
    let index = r#"{"weight_map": {"x": "m-1.safetensors"}}"#;
    let hub = Hub::with_files(&[
        ("config.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index.into()),
    ]);
    let cache = tempfile::tempdir().unwrap();
    assert!(error("org/name", &hub.options(cache.path())).contains("`m-1.safetensors`"));
}

#[test]
fn a_model_without_safetensors_says_what_was_looked_for() {
    let hub = Hub::with_files(&[("config.json", b"{}".to_vec())]);
    let cache = tempfile::tempdir().unwrap();
    let text = error("org/name", &hub.options(cache.path()));
    assert!(
        text.contains("model.safetensors.index.json") && text.contains("only safetensors"),
        "{text}"
    );
}

#[test]
fn an_unknown_model_is_named_with_hub_and_revision() {
    let hub = status("404 Not Found\r\nx-error-code: RepoNotFound");
    let cache = tempfile::tempdir().unwrap();
    let text = error("org/name", &hub.options(cache.path()));
    assert!(
        text.contains("no such model") && text.contains("`main`") && text.contains(&hub.endpoint),
        "{text}"
    );
}

#[test]
fn a_gated_model_asks_for_a_token() {
    let cache = tempfile::tempdir().unwrap();
    let text = error(
        "org/name",
        &status("401 Unauthorized").options(cache.path()),
    );
    assert!(
        text.contains("http 401, without a token") && text.contains("HF_TOKEN"),
        "{text}"
    );
    let hub = status("403 Forbidden");
    let options = HubOptions {
        token: Some("secret".into()),
        ..hub.options(cache.path())
    };
    let text = error("org/name", &options);
    assert!(
        text.contains("http 403, with a token") && !text.contains("secret"),
        "{text}"
    );
}

#[test]
fn a_failing_hub_is_reported_with_its_status() {
    let cache = tempfile::tempdir().unwrap();
    let text = error(
        "org/name",
        &status("500 Internal Server Error").options(cache.path()),
    );
    assert!(
        text.contains("500") && text.contains("`config.json`"),
        "{text}"
    );
}

#[test]
fn without_a_network_the_error_says_how_to_go_on() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let cache = tempfile::tempdir().unwrap();
    let options = HubOptions {
        endpoint: Some(endpoint.clone()),
        cache: Some(cache.path().join("hub")),
        ..HubOptions::default()
    };
    let text = error("org/name", &options);
    assert!(
        text.contains(&endpoint) && text.contains("`[target] model`"),
        "{text}"
    );
}

#[test]
fn without_a_network_a_complete_snapshot_without_a_tokenizer_is_used() {
    let hub = Hub::with_files(&[
        ("config.json", b"{}".to_vec()),
        ("model.safetensors", weights("w")),
    ]);
    let cache = tempfile::tempdir().unwrap();
    let folder = resolve("org/name", &hub.options(cache.path())).unwrap();
    let offline = HubOptions {
        endpoint: Some("http://127.0.0.1:1".to_string()),
        ..hub.options(cache.path())
    };
    assert_eq!(resolve("org/name", &offline).unwrap(), folder);
}

#[test]
fn a_download_that_breaks_off_is_taken_up_where_it_broke() {
    let bytes = weights("w");
    let hub = Hub::answering(move |path, range| {
        if path.ends_with("/config.json") {
            return file_response(b"{}", range);
        }
        if !path.ends_with("/model.safetensors") {
            return b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                .to_vec();
        }
        let mut response = file_response(&bytes, range);
        if range == "0-" {
            response.truncate(response.len() - 20);
        }
        response
    });
    let cache = tempfile::tempdir().unwrap();
    let folder = resolve("org/name", &hub.options(cache.path())).unwrap();
    assert_eq!(
        crate::ModelFolder::open(folder)
            .unwrap()
            .read_f32("w", &[1])
            .unwrap(),
        [1.0]
    );
    let resumed = hub.requests.lock().unwrap().iter().any(|(_, headers)| {
        headers
            .get("range")
            .is_some_and(|range| range.ends_with('-') && range != "bytes=0-")
    });
    assert!(resumed);
}

#[test]
fn a_revision_that_is_none_is_refused() {
    let cache = tempfile::tempdir().unwrap();
    for revision in ["", "../x", "a b", "a?b"] {
        let options = HubOptions {
            revision: Some(revision.to_string()),
            cache: Some(cache.path().into()),
            ..HubOptions::default()
        };
        assert!(error("org/name", &options).contains("revision"));
    }
}

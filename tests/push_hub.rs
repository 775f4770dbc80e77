//! A hub on this machine to which drafters are pushed: it checks digests, sizes and order, and fails where it is told to.
use std::collections::BTreeMap;
use std::io::BufReader;
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};
use spectrain_checkpoints::hash::sha256_bytes;

use crate::fake_hub::{Answer, TOKEN, asking, decoded};
use crate::http::Request;
use crate::workspace::Workspace;

/// Files of a branch by their paths.
pub type Branch = BTreeMap<String, Vec<u8>>;

/// What goes wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wrong {
    /// It is answered with this status.
    Status(&'static str),
    /// The connection ends before anything is done.
    HangsUp,
    /// The connection ends after it was done.
    HangsUpAfter,
}

/// A repository.
#[derive(Debug, Default, Clone)]
pub struct Model {
    pub private: bool,
    pub branches: BTreeMap<String, Branch>,
    /// Messages of the commits.
    pub commits: Vec<String>,
}

#[derive(Default)]
pub struct State {
    pub models: BTreeMap<String, Model>,
    /// Large files by their digests.
    pub store: BTreeMap<String, Vec<u8>>,
    parts: BTreeMap<(String, u64), Vec<u8>>,
    /// Bytes of a part, where files come in parts.
    pub part: Option<usize>,
    /// Method and beginning of the path of a request that goes wrong, how, and how many times.
    pub wrong: Option<(&'static str, Wrong, usize)>,
    /// Method and path of every request.
    pub asked: Vec<String>,
    /// Where the store is, which is another host.
    store_address: String,
}

pub struct PushHub {
    address: String,
    state: Arc<Mutex<State>>,
}

impl PushHub {
    pub fn new() -> Self {
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let address = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
        let (hub, store) = (listen(), listen());
        let state = Arc::new(Mutex::new(State {
            store_address: address(&store),
            ..State::default()
        }));
        let made = Self {
            address: address(&hub),
            state: state.clone(),
        };
        for (listener, is_store) in [(hub, false), (store, true)] {
            let (state, address) = (state.clone(), made.address.clone());
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let (state, address) = (state.clone(), address.clone());
                    std::thread::spawn(move || serve(stream, &state, &address, is_store));
                }
            });
        }
        made
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The files of a branch.
    pub fn branch(&self, id: &str, branch: &str) -> Branch {
        let state = self.state();
        let model = state.models.get(id);
        model
            .and_then(|model| model.branches.get(branch))
            .cloned()
            .unwrap_or_default()
    }

    /// Requests so far that begin like this.
    pub fn count(&self, start: &str) -> usize {
        let state = self.state();
        state
            .asked
            .iter()
            .filter(|line| line.starts_with(start))
            .count()
    }

    pub fn command(&self, workspace: &Workspace, words: &[&str]) -> Command {
        asking(&self.address, workspace, words)
    }
}

fn serve(stream: TcpStream, state: &Mutex<State>, address: &str, is_store: bool) -> Option<()> {
    let mut out = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let request = Request::read(&mut reader)?;
        let bearer = format!("Bearer {TOKEN}");
        let sent = request.header("authorization") == Some(bearer.as_str());
        assert_eq!(
            sent, !is_store,
            "the token goes to the hub and nowhere else"
        );
        assert!(
            request.header("transfer-encoding").is_none(),
            "lengths are stated"
        );
        let mut state = state.lock().unwrap();
        let line = format!("{} {}", request.method, request.target);
        state.asked.push(line.clone());
        let wrong = match &mut state.wrong {
            Some((start, wrong, times)) if line.starts_with(*start) && *times > 0 => {
                *times -= 1;
                Some(*wrong)
            }
            _ => None,
        };
        let answer = match wrong {
            Some(Wrong::HangsUp) => return None,
            Some(Wrong::Status(status)) => Answer::status(status),
            _ => state.answer(&request, address),
        };
        if wrong == Some(Wrong::HangsUpAfter) {
            return None;
        }
        drop(state);
        answer.send(&mut out, false)?;
    }
}

impl State {
    fn answer(&mut self, request: &Request, address: &str) -> Answer {
        let path = request.target.split('?').next().unwrap_or_default();
        let parts: Vec<String> = path
            .trim_start_matches('/')
            .split('/')
            .map(decoded)
            .collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let body: Value = serde_json::from_slice(&request.body).unwrap_or(Value::Null);
        match (request.method.as_str(), &parts[..]) {
            ("POST", ["api", "repos", "create"]) => self.create(&body),
            ("POST", ["api", "models", org, name, "branch", branch]) => {
                self.branch(&format!("{org}/{name}"), branch)
            }
            ("GET", ["api", "models", org, name]) => {
                match self.models.get(&format!("{org}/{name}")) {
                    Some(model) => Answer::json(&json!({"private": model.private})),
                    None => Answer::status("404 Not Found"),
                }
            }
            ("GET", ["api", "models", org, name, "revision", branch]) => {
                let model = &self.models[&format!("{org}/{name}")];
                let file = |path: &String| json!({"rfilename": path});
                let files: Vec<Value> = model.branches[*branch].keys().map(file).collect();
                Answer::json(&json!({"siblings": files}))
            }
            ("POST", ["api", "models", org, name, "preupload", branch]) => self.preupload(
                &self.models[&format!("{org}/{name}")].branches[*branch],
                &body,
            ),
            ("POST", [org, name, "info", "lfs", "objects", "batch"]) => {
                assert!(
                    self.models
                        .contains_key(&format!("{org}/{}", name.trim_end_matches(".git")))
                );
                self.batch(&body, address)
            }
            ("PUT", ["store", oid]) => {
                assert_eq!(sha256_bytes(&request.body), *oid, "sent as announced");
                self.store.insert((*oid).to_owned(), request.body.clone());
                Answer::json(&json!({}))
            }
            ("PUT", ["store", oid, part]) => {
                let part: u64 = part.parse().unwrap();
                assert!(request.body.len() <= self.part.unwrap());
                self.parts
                    .insert(((*oid).to_owned(), part), request.body.clone());
                Answer::json(&json!({})).with("etag", &format!("\"{part}-{oid}\""))
            }
            ("POST", ["complete", oid]) => self.complete(oid, &body),
            ("POST", ["verify", oid]) => {
                assert_eq!(body["oid"], *oid);
                assert_eq!(body["size"], self.store[*oid].len());
                Answer::json(&json!({}))
            }
            ("POST", ["api", "models", org, name, "commit", branch]) => {
                self.commit(&format!("{org}/{name}"), branch, &request.body)
            }
            other => panic!("the hub of the tests does not know {other:?}"),
        }
    }

    fn branch(&mut self, id: &str, branch: &str) -> Answer {
        let model = self.models.get_mut(id).unwrap();
        if model.branches.contains_key(branch) {
            return Answer::status("409 Conflict");
        }
        model.branches.insert(branch.to_owned(), Branch::new());
        Answer::json(&json!({}))
    }

    fn create(&mut self, body: &Value) -> Answer {
        let id = format!(
            "{}/{}",
            body["organization"].as_str().unwrap(),
            body["name"].as_str().unwrap()
        );
        if self.models.contains_key(&id) {
            return Answer::status("409 Conflict");
        }
        let private = body["visibility"] == "private";
        assert_eq!(body["private"], private);
        let model = Model {
            private,
            branches: [("main".to_owned(), Branch::new())].into(),
            commits: Vec::new(),
        };
        self.models.insert(id, model);
        Answer::json(&json!({}))
    }

    fn preupload(&self, branch: &Branch, body: &Value) -> Answer {
        let mode = |file: &Value| {
            let path = file["path"].as_str().unwrap();
            let is_large = path.ends_with(".safetensors");
            let there = branch.get(path).map(|bytes| {
                if is_large {
                    sha256_bytes(bytes)
                } else {
                    git_name(bytes)
                }
            });
            let mode = if is_large { "lfs" } else { "regular" };
            json!({"path": path, "uploadMode": mode, "shouldIgnore": false, "oid": there})
        };
        let files: Vec<Value> = body["files"].as_array().unwrap().iter().map(mode).collect();
        Answer::json(&json!({"files": files}))
    }

    fn batch(&self, body: &Value, address: &str) -> Answer {
        assert_eq!(
            (&body["operation"], &body["hash_algo"]),
            (&json!("upload"), &json!("sha256"))
        );
        let object = |object: &Value| {
            let (oid, size) = (
                object["oid"].as_str().unwrap(),
                object["size"].as_u64().unwrap(),
            );
            if self.store.contains_key(oid) {
                return json!({"oid": oid, "size": size});
            }
            let verify = json!({"href": format!("{address}/verify/{oid}")});
            let store = &self.store_address;
            let upload = match self.part {
                None => json!({"href": format!("{store}/store/{oid}")}),
                Some(part) => {
                    let mut header = json!({"chunk_size": part.to_string()});
                    for number in 1..=size.div_ceil(part as u64) {
                        header[format!("{number:05}")] =
                            json!(format!("{store}/store/{oid}/{number}"));
                    }
                    json!({"href": format!("{address}/complete/{oid}"), "header": header})
                }
            };
            json!({"oid": oid, "size": size, "actions": {"upload": upload, "verify": verify}})
        };
        let objects: Vec<Value> = body["objects"]
            .as_array()
            .unwrap()
            .iter()
            .map(object)
            .collect();
        Answer::json(&json!({"transfer": "multipart", "objects": objects}))
    }

    fn complete(&mut self, oid: &str, body: &Value) -> Answer {
        let mut bytes = Vec::new();
        for (number, part) in (1..).zip(body["parts"].as_array().unwrap()) {
            assert_eq!(part["partNumber"], number, "parts are in their order");
            assert_eq!(part["etag"], format!("\"{number}-{oid}\""));
            bytes.extend(self.parts.remove(&(oid.to_owned(), number)).unwrap());
        }
        assert_eq!(sha256_bytes(&bytes), oid, "the parts are the file");
        self.store.insert(oid.to_owned(), bytes);
        Answer::json(&json!({}))
    }

    fn commit(&mut self, id: &str, branch: &str, body: &[u8]) -> Answer {
        let text = String::from_utf8(body.to_vec()).unwrap();
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let [header, files @ ..] = &lines[..] else {
            panic!("an empty commit");
        };
        assert_eq!(header["key"], "header", "the header comes first");
        let model = self.models.get_mut(id).unwrap();
        model
            .commits
            .push(header["value"]["summary"].as_str().unwrap().to_owned());
        let branch = model.branches.get_mut(branch).unwrap();
        for line in files {
            let value = &line["value"];
            let bytes = match line["key"].as_str().unwrap() {
                "file" => from_base64(value["content"].as_str().unwrap()),
                "lfsFile" => {
                    let stored = &self.store[value["oid"].as_str().unwrap()];
                    assert_eq!(
                        value["size"],
                        stored.len(),
                        "a large file is there before its commit"
                    );
                    stored.clone()
                }
                other => panic!("a line of the kind {other}"),
            };
            branch.insert(value["path"].as_str().unwrap().to_owned(), bytes);
        }
        let number = model.commits.len();
        Answer::json(
            &json!({"commitUrl": format!("https://hub/{id}/commit/{number}"), "commitOid": "x"}),
        )
    }
}

/// The name that git gives contents, by git's own definition with SHA-1.
fn git_name(bytes: &[u8]) -> String {
    use sha1::Digest as _;
    let header = format!("blob {}\0", bytes.len());
    let digest = sha1::Sha1::digest([header.as_bytes(), bytes].concat());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_base64(text: &str) -> Vec<u8> {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |byte: u8| letters.iter().position(|letter| *letter == byte).unwrap() as u32;
    let mut bytes = Vec::new();
    for four in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits =
            four.iter().fold(0, |bits, byte| bits << 6 | value(*byte)) << (6 * (4 - four.len()));
        bytes.extend(&bits.to_be_bytes()[1..four.len()]);
    }
    bytes
}

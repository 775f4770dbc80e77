//! A server of the OpenAI protocol that fails as planned, and remembers what it was asked.
use std::collections::{BTreeMap, HashMap};
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::{Request, listen_after, respond};

/// How a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing comes back.
    Silence,
    /// A status, with a message.
    Status(u16),
    /// Status 429, with the milliseconds to wait.
    Busy(u64),
    /// The connection ends before anything comes back.
    Hangup,
    /// The connection ends in the middle of the body, whose length was told.
    Cut,
    /// The connection ends in the middle of a body in chunks.
    CutChunk,
    /// A body that is not JSON.
    Malformed,
    /// An answer without choices.
    NoChoices,
    /// An answer whose content is a number.
    WrongType,
}

#[derive(Default)]
struct Memory {
    /// What is still to go wrong, by the user's last words; the last comes first.
    faults: HashMap<String, Vec<Fault>>,
    /// How often each of the user's turns was answered.
    answered: BTreeMap<String, usize>,
    /// How many answers are given before no more are, where it is so.
    held_after: Option<usize>,
    /// Requests whose history is not what was answered before.
    stale: Vec<String>,
    /// When each turn was asked.
    asked: HashMap<String, Vec<Instant>>,
    bodies: Vec<Value>,
    keys: Vec<String>,
    /// The name of its model, where it is not `served`.
    model: Option<&'static str>,
}

#[derive(Default)]
struct Shared {
    memory: Mutex<Memory>,
    /// Told when answers are held no more.
    released: Condvar,
}

pub struct FaultServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl FaultServer {
    pub fn start(faults: &[(&str, &[Fault])]) -> Self {
        Self::start_after(Duration::ZERO, faults)
    }

    /// The same, where nobody is at the address for a while.
    pub fn start_after(pause: Duration, faults: &[(&str, &[Fault])]) -> Self {
        let shared: Arc<Shared> = Arc::default();
        let of_server = shared.clone();
        let server = Self {
            address: listen_after(pause, move |stream| serve(stream, &of_server)),
            shared,
        };
        for (turn, faults) in faults {
            let faults = faults.iter().rev().copied().collect();
            server.memory().faults.insert((*turn).into(), faults);
        }
        server
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.shared.memory.lock().unwrap()
    }

    /// Has a model of this name.
    pub fn rename(&self, model: &'static str) {
        self.memory().model = Some(model);
    }

    /// Gives so many answers and then, until [`release`](Self::release), none.
    pub fn hold_after(&self, answers: usize) {
        self.memory().held_after = Some(answers);
    }

    pub fn release(&self) {
        self.memory().held_after = None;
        self.shared.released.notify_all();
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How often each of the user's turns was answered.
    pub fn answered(&self) -> BTreeMap<String, usize> {
        self.memory().answered.clone()
    }

    pub fn answers(&self) -> usize {
        self.answered().values().sum()
    }

    /// The times between the requests of a turn.
    pub fn pauses(&self, turn: &str) -> Vec<Duration> {
        let memory = self.memory();
        memory.asked[turn]
            .windows(2)
            .map(|two| two[1] - two[0])
            .collect()
    }

    pub fn bodies(&self) -> Vec<Value> {
        self.memory().bodies.clone()
    }

    /// What stood for the API key in each request.
    pub fn keys(&self) -> Vec<String> {
        self.memory().keys.clone()
    }

    pub fn assert_no_stale_history(&self) {
        let memory = self.memory();
        assert!(memory.stale.is_empty(), "{:?}", memory.stale);
    }
}

/// What the server says to a turn.
pub fn answer_to(turn: &str) -> String {
    format!("new answer to {turn}")
}

/// Requests of one connection, until it ends or is to be cut.
fn serve(stream: TcpStream, shared: &Shared) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut out = stream;
    loop {
        let request = Request::read(&mut reader)?;
        if request.target == "/v1/models" {
            let model = shared.memory.lock().unwrap().model.unwrap_or("served");
            let models = json!({"data": [{"id": model}]});
            respond(&mut out, "200 OK", "", &models.to_string())?;
            continue;
        }
        let key = request
            .header("authorization")
            .unwrap_or_default()
            .to_owned();
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let messages = body["messages"].as_array().unwrap().clone();
        let turn = messages.last().unwrap()["content"].as_str().unwrap();
        match remember(shared, turn, key, body) {
            None => {
                wait_for_release(shared, turn, &messages);
                respond(&mut out, "200 OK", "", &whole(turn))?;
            }
            Some(Fault::Silence) => {
                // Until the client gives up.
                let _ = reader.read(&mut [0]);
                return None;
            }
            Some(fault) => fail(&mut out, fault, turn)?,
        }
    }
}

/// Remembers what was asked, and tells how it is to fail.
fn remember(shared: &Shared, turn: &str, key: String, body: Value) -> Option<Fault> {
    let mut memory = shared.memory.lock().unwrap();
    memory.bodies.push(body);
    memory.keys.push(key);
    let asked = memory.asked.entry(turn.to_owned()).or_default();
    asked.push(Instant::now());
    memory.faults.get_mut(turn).and_then(Vec::pop)
}

/// Counts an answer, once it may be given.
fn wait_for_release(shared: &Shared, turn: &str, messages: &[Value]) {
    let memory = shared.memory.lock().unwrap();
    let is_held = |memory: &mut Memory| {
        let answers: usize = memory.answered.values().sum();
        memory.held_after.is_some_and(|most| answers >= most)
    };
    let mut memory = shared.released.wait_while(memory, is_held).unwrap();
    if is_stale(messages) {
        memory.stale.push(json!(messages).to_string());
    }
    *memory.answered.entry(turn.to_owned()).or_default() += 1;
}

/// The body of a whole answer.
fn whole(turn: &str) -> String {
    let message = json!({"role": "assistant", "content": answer_to(turn)});
    json!({"choices": [{"message": message, "finish_reason": "stop"}]}).to_string()
}

/// Answers as planned; nothing where the connection is to end.
fn fail(out: &mut TcpStream, fault: Fault, turn: &str) -> Option<()> {
    let whole = whole(turn);
    let half = &whole[..whole.len() / 2];
    match fault {
        Fault::Status(status) => {
            let body = r#"{"error": {"message": "as planned"}}"#;
            respond(out, &format!("{status} Planned"), "", body)
        }
        Fault::Busy(milliseconds) => {
            let header = format!("Retry-After: {}\r\n", milliseconds as f64 / 1000.0);
            respond(out, "429 Too Many Requests", &header, "busy")
        }
        Fault::Silence | Fault::Hangup => None,
        Fault::Cut => {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", whole.len());
            write!(out, "{head}{half}").ok()?;
            None
        }
        Fault::CutChunk => {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            write!(out, "{head}{:x}\r\n{half}\r\n", half.len()).ok()?;
            None
        }
        Fault::Malformed => respond(out, "200 OK", "", half),
        Fault::NoChoices => respond(out, "200 OK", "", r#"{"choices": []}"#),
        Fault::WrongType => {
            let body = whole.replace(&json!(answer_to(turn)).to_string(), "3");
            respond(out, "200 OK", "", &body)
        }
    }
}

/// Whether an answer in it is not this server's own.
fn is_stale(messages: &[Value]) -> bool {
    messages.windows(2).any(|two| {
        let said = two[0]["content"].as_str().unwrap_or_default();
        two[1]["role"] == "assistant" && two[1]["content"] != answer_to(said)
    })
}

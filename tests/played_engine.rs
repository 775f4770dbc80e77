//! A server that plays vLLM or SGLang with a drafter, as far as its counters and its streams go, and fails as planned.
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};

use crate::http::{Request, respond};

/// Tokens that a draft has, at most.
pub const DRAFTED: usize = 3;

/// How the engine is played.
#[derive(Debug, Clone)]
pub struct Played {
    /// What it calls itself in the list of models.
    pub owned_by: &'static str,
    pub models: Vec<&'static str>,
    pub max_model_len: usize,
    pub drafts: bool,
    /// Tokens of a draft, at most [`DRAFTED`].
    pub drafted: usize,
    /// Of these are accepted, at most.
    pub accepted: usize,
    /// SGLang's `speculative_eagle_topk`, as its `/server_info` has it; without it there is no such page.
    pub eagle_topk: Option<usize>,
    /// SGLang's `speculative_use_rejection_sampling`, on the same page: whether it draws its drafts.
    pub draws: bool,
    /// Whether answers tell what was drafted for them.
    pub tells: bool,
    pub metrics: Metrics,
    /// Bytes that are sent at a time.
    pub piece: usize,
    /// What goes wrong with the answer of this number; trials and answers that warm up count, too.
    pub fault: Option<(usize, Fault)>,
    /// Whether others have as many tokens generated meanwhile, and drafts of which all is accepted.
    pub others: bool,
    /// Whether answers that may end at a stop token do so with their first one.
    pub ends_at_once: bool,
    /// The answer of this prompt differs from what it should be, from the third token.
    pub wrong: Option<Vec<u32>>,
    /// Whether answers come without the ids of their tokens.
    pub hides_ids: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metrics {
    Own,
    /// A page without the engine's own counters.
    Foreign,
    Missing,
}

/// How an answer fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection ends in the middle, and nothing is answered from then on.
    Dies,
    /// The connection ends in the middle.
    Cut,
    /// The stream ends as if that were all.
    EndsEarly,
    /// Nothing more comes.
    Silence,
    /// A status, with a message.
    Status(u16),
    /// An error in the stream.
    Complains,
    /// All counters begin anew.
    Restarts,
}

impl Played {
    pub fn vllm() -> Self {
        Self {
            owned_by: "vllm",
            models: vec!["served"],
            max_model_len: 4096,
            drafts: true,
            drafted: DRAFTED,
            accepted: DRAFTED,
            eagle_topk: None,
            draws: false,
            tells: true,
            metrics: Metrics::Own,
            piece: 1 << 20,
            fault: None,
            others: false,
            ends_at_once: false,
            wrong: None,
            hides_ids: false,
        }
    }

    /// The same engine without a drafter.
    pub fn baseline() -> Self {
        Self {
            drafts: false,
            ..Self::vllm()
        }
    }

    pub fn sglang() -> Self {
        Self {
            owned_by: "sglang",
            eagle_topk: Some(1),
            metrics: Metrics::Missing,
            ..Self::vllm()
        }
    }
}

#[derive(Debug, Default, Clone)]
struct Counts {
    requests: usize,
    generated: usize,
    drafts: usize,
    reaching: [usize; DRAFTED],
}

#[derive(Default)]
struct Memory {
    counts: Counts,
    answers: usize,
    is_dead: bool,
    under_way: usize,
    most_under_way: usize,
    bodies: Vec<Value>,
}

pub struct PlayedEngine {
    address: SocketAddr,
    memory: Arc<Mutex<Memory>>,
}

impl PlayedEngine {
    pub fn start(played: Played) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let memory: Arc<Mutex<Memory>> = Arc::default();
        let shared = memory.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (played, shared) = (played.clone(), shared.clone());
                std::thread::spawn(move || serve(stream, &played, &shared));
            }
        });
        Self { address, memory }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What was asked, in the order in which it came.
    pub fn bodies(&self) -> Vec<Value> {
        lock(&self.memory).bodies.clone()
    }

    pub fn most_under_way(&self) -> usize {
        lock(&self.memory).most_under_way
    }
}

fn lock(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory.lock().unwrap()
}

/// The answer to a prompt: the same whether it is drafted or not.
pub fn answer_to(body: &Value, ends_at_once: bool) -> Vec<u32> {
    let prompt: Vec<u32> = serde_json::from_value(body["prompt"].clone()).unwrap();
    let most = body["max_tokens"].as_u64().unwrap() as usize;
    let stop: Vec<u32> = serde_json::from_value(body["stop_token_ids"].clone()).unwrap_or_default();
    if let (true, Some(&stop)) = (ends_at_once, stop.first()) {
        return vec![stop];
    }
    let seed: u32 = prompt.iter().sum();
    let token = |number: usize| 100 + (seed + 7 * number as u32) % 50;
    (0..most).map(token).collect()
}

/// Tokens accepted in each pass of an answer, until it is at its end: by the prompt, from none to all.
pub fn accepted_of(body: &Value, tokens: usize) -> Vec<usize> {
    accepted_of_drafts(body, tokens, DRAFTED)
}

/// The same with drafts of so many tokens: of longer ones more would be accepted, or as many.
pub fn accepted_of_drafts(body: &Value, tokens: usize, drafted: usize) -> Vec<usize> {
    let prompt: Vec<u32> = serde_json::from_value(body["prompt"].clone()).unwrap();
    let seed = prompt.iter().sum::<u32>() as usize;
    let mut accepted = Vec::new();
    let mut emitted = 1;
    while emitted < tokens {
        let of_pass = drafted.min((seed + 5 * accepted.len()) % (DRAFTED + 1));
        accepted.push(of_pass);
        emitted += of_pass + 1;
    }
    accepted
}

/// Requests of one connection, until it ends or is to be cut.
fn serve(stream: TcpStream, played: &Played, memory: &Mutex<Memory>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut out = stream;
    // What is sent is seen when it is sent, as with real servers.
    out.set_nodelay(true).ok()?;
    loop {
        let request = Request::read(&mut reader)?;
        if lock(memory).is_dead {
            return None;
        }
        match request.target.as_str() {
            "/v1/models" => {
                let model = |id: &&str| json!({"id": id, "owned_by": played.owned_by, "max_model_len": played.max_model_len});
                let models: Vec<Value> = played.models.iter().map(model).collect();
                respond(
                    &mut out,
                    "200 OK",
                    "",
                    &json!({ "data": models }).to_string(),
                )?;
            }
            "/metrics" => {
                let page = page(played, &lock(memory).counts);
                let status = match played.metrics {
                    Metrics::Missing => "404 Not Found",
                    _ => "200 OK",
                };
                respond(&mut out, status, "", &page)?;
            }
            "/server_info" if played.eagle_topk.is_some() => {
                let info = json!({
                    "model_path": "served",
                    "speculative_eagle_topk": played.eagle_topk,
                    "speculative_use_rejection_sampling": played.draws,
                });
                respond(&mut out, "200 OK", "", &info.to_string())?;
            }
            "/v1/completions" => {
                let body: Value = serde_json::from_slice(&request.body).unwrap();
                {
                    let mut memory = lock(memory);
                    memory.under_way += 1;
                    memory.most_under_way = memory.most_under_way.max(memory.under_way);
                    memory.bodies.push(body.clone());
                }
                let done = complete(&mut out, &mut reader, played, memory, &body);
                lock(memory).under_way -= 1;
                done?;
            }
            _ => respond(&mut out, "404 Not Found", "", "{}")?,
        }
    }
}

fn page(played: &Played, counts: &Counts) -> String {
    let Counts {
        requests,
        generated,
        drafts,
        reaching,
    } = counts;
    let labels = "engine=\"0\",model_name=\"served\"";
    let mut page = String::from("# HELP up Up.\n# TYPE up gauge\nup 1.0\n");
    if played.metrics != Metrics::Own {
        return page;
    }
    if played.owned_by == "sglang" {
        let labels = "model_name=\"served\"";
        page += &format!(
            "sglang:generation_tokens_total{{{labels},is_streaming=\"true\"}} {generated}\n\
             sglang:num_requests_total{{{labels}}} {requests}\n"
        );
        if played.drafts {
            page += &format!("sglang:spec_verify_calls_total{{{labels}}} {drafts}\n");
        }
        return page;
    }
    page += &format!(
        "vllm:generation_tokens_total{{{labels}}} {generated}.0\n\
         vllm:request_success_total{{{labels},finished_reason=\"length\"}} {requests}.0\n\
         vllm:num_requests_running{{{labels}}} 0.0\n"
    );
    if played.drafts {
        let accepted: usize = reaching.iter().sum();
        page += &format!(
            "vllm:spec_decode_num_drafts_total{{{labels}}} {drafts}.0\n\
             vllm:spec_decode_num_draft_tokens_total{{{labels}}} {}.0\n\
             vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {accepted}.0\n",
            played.drafted * drafts
        );
        for (position, count) in reaching[..played.drafted].iter().enumerate() {
            let name = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
            page += &format!("{name}{{{labels},position=\"{position}\"}} {count}.0\n");
        }
    }
    page
}

/// The data of the events of an answer, in the form of the engine.
fn events(played: &Played, body: &Value, tokens: &[u32], accepted: &[usize]) -> Vec<String> {
    let prompt = body["prompt"].as_array().unwrap().len();
    let most = body["max_tokens"].as_u64().unwrap() as usize;
    let usage = |tokens: usize| json!({"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens});
    let mut events = Vec::new();
    let mut sent = 0;
    let passes = std::iter::once(0).chain(accepted.iter().copied());
    for of_pass in passes {
        let till = tokens.len().min(sent + of_pass + 1);
        let finish = (till == tokens.len()).then_some(match till == most {
            true => "length",
            false => "stop",
        });
        let ids = (!played.hides_ids).then_some(&tokens[sent..till]);
        let choice = json!({"index": 0, "text": "ä".repeat(till - sent), "token_ids": ids, "finish_reason": finish});
        events.push(json!({"id": "cmpl", "choices": [choice], "usage": usage(till)}).to_string());
        sent = till;
    }
    let histogram = histogram(played, accepted);
    let mut last = json!({"id": "cmpl", "choices": [], "usage": usage(tokens.len())});
    if played.drafts && played.tells && played.owned_by == "vllm" {
        last["metrics"] = json!({"speculative_decoding": {
            "acceptance_histogram": histogram, "num_draft_tokens": played.drafted * accepted.len(), "num_spec_steps": accepted.len(),
        }});
    }
    let asked = body["return_spec_tokens_details"] == true;
    if played.drafts && played.tells && played.owned_by == "sglang" && asked && !accepted.is_empty()
    {
        let details = json!({
            "spec_verify_ct": accepted.len(), "spec_num_correct_drafts": accepted.iter().sum::<usize>(),
            "spec_num_proposed_drafts": played.drafted * accepted.len(), "spec_correct_drafts_histogram": histogram,
        });
        let told = json!({"id": "cmpl", "choices": [], "usage": null, "sglext": {"spec_tokens_details": details}});
        events.push(told.to_string());
    }
    events.push(last.to_string());
    events.push("[DONE]".to_owned());
    events
}

/// Passes by how much was accepted: vLLM's has a place for every length of a draft, SGLang's ends at the longest that came.
fn histogram(played: &Played, accepted: &[usize]) -> Vec<usize> {
    let longest = match played.owned_by {
        "sglang" => accepted.iter().copied().max().unwrap_or(0),
        _ => played.drafted,
    };
    let mut histogram = vec![0; longest + 1];
    accepted.iter().for_each(|&count| histogram[count] += 1);
    histogram
}

/// Sends events in pieces of so many bytes.
fn stream(out: &mut TcpStream, events: &[String], piece: usize) -> Option<()> {
    for event in events {
        for piece in format!("data: {event}\n\n").as_bytes().chunks(piece) {
            write!(out, "{:x}\r\n", piece.len()).ok()?;
            out.write_all(piece).ok()?;
            out.write_all(b"\r\n").ok()?;
        }
        // Passes take some time.
        std::thread::sleep(Duration::from_millis(2));
    }
    Some(())
}

/// The number of the next answer. Of two answers at once each has its own.
fn next_number(memory: &Mutex<Memory>) -> usize {
    let mut memory = lock(memory);
    memory.answers += 1;
    memory.answers - 1
}

fn complete(
    out: &mut TcpStream,
    reader: &mut BufReader<TcpStream>,
    played: &Played,
    memory: &Mutex<Memory>,
    body: &Value,
) -> Option<()> {
    let mut tokens = answer_to(body, played.ends_at_once);
    if let Some(wrong) = &played.wrong
        && body["prompt"] == json!(wrong)
        && tokens.len() > 2
    {
        tokens[2] += 1;
    }
    let accepted = match played.drafts {
        true => accepted_of_drafts(body, tokens.len(), played.drafted.min(played.accepted)),
        false => vec![0; tokens.len().saturating_sub(1)],
    };
    let number = next_number(memory);
    let fault = played
        .fault
        .filter(|(at, _)| *at == number)
        .map(|(_, fault)| fault);
    if let Some(Fault::Status(status)) = fault {
        return respond(
            out,
            &format!("{status} Planned"),
            "",
            r#"{"error": {"message": "as planned"}}"#,
        );
    }
    let mut events = events(played, body, &tokens, &accepted);
    match fault {
        Some(Fault::Complains) => {
            events.truncate(2);
            events.push(json!({"error": {"message": "out of memory"}}).to_string());
        }
        Some(Fault::Dies | Fault::Cut | Fault::EndsEarly | Fault::Silence) => events.truncate(2),
        _ => {}
    }
    write!(
        out,
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    .ok()?;
    stream(out, &events, played.piece)?;
    match fault {
        Some(Fault::Dies) => {
            lock(memory).is_dead = true;
            return None;
        }
        Some(Fault::Cut) => return None,
        Some(Fault::Silence) => {
            // Until the client gives up.
            let _ = reader.read(&mut [0]);
            return None;
        }
        _ => {}
    }
    {
        let mut memory = lock(memory);
        if fault == Some(Fault::Restarts) {
            memory.counts = Counts::default();
        }
        count(&mut memory.counts, played, &accepted, tokens.len());
    }
    out.write_all(b"0\r\n\r\n").ok()
}

fn count(counts: &mut Counts, played: &Played, accepted: &[usize], tokens: usize) {
    counts.requests += 1;
    counts.generated += tokens;
    if played.drafts {
        counts.drafts += accepted.len();
        for (position, count) in counts.reaching.iter_mut().enumerate() {
            *count += accepted
                .iter()
                .filter(|&&accepted| accepted > position)
                .count();
        }
    }
    if played.others {
        counts.generated += tokens;
        counts.drafts += 1;
        counts.reaching.iter_mut().for_each(|count| *count += 1);
    }
}

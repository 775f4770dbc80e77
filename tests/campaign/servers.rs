//! Servers: answers that stream in, pages of metrics, and answers to be regenerated, whatever is in them; and reports, which come
//! from anywhere too.
use std::fs;
use std::io::{BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Map, Value, json};
use spectrain::runtime::answerer::server::{Server, ServerSettings};
use spectrain::runtime::server::client::reason;
use spectrain_data::Message;
use spectrain_data::conversation::Exchange;
use spectrain_data::regenerate::{Answers as _, Request as Turn};
use spectrain_eval::served::answer::Incoming;
use spectrain_eval::served::counters::Counters;
use spectrain_eval::served::events::Events;
use spectrain_eval::served::samples::Samples;
use spectrain_eval::{Report, compare, csv, page, picture, summary};

use super::bytes::change_text;
use super::fuzz::{Expected, Files, Fuzz, file};
use super::json;
use crate::http::Request;
use crate::workspace::Workspace;

/// What comes from elsewhere has no name of a file.
const UNNAMED: Expected = Expected {
    memory_per_byte: 64,
    memory: 8 << 20,
    seconds: 60,
    sealed: false,
    names_files: false,
};

const STREAM: &str = "stream";
const BEFORE: &str = "before";
const AFTER: &str = "after";

/// Answers as vLLM and SGLang stream them.
fn streams() -> Vec<Files> {
    let part = |ids: Value, so_far: u64, finish: Value| {
        json!({"id": "cmpl-1", "choices": [{"index": 0, "text": "x", "token_ids": ids, "finish_reason": finish}],
            "usage": {"prompt_tokens": 3, "completion_tokens": so_far, "total_tokens": 3 + so_far}})
    };
    let vllm = json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}, "metrics": {"speculative_decoding":
        {"acceptance_histogram": [1, 0, 1], "num_draft_tokens": 4}}});
    let sglang = json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}, "sglext": {"spec_tokens_details":
        {"spec_verify_ct": 2, "spec_num_correct_drafts": 2, "spec_num_proposed_drafts": 4, "spec_correct_drafts_histogram": [0, 2]}}});
    let of = |last: Value, ids: bool| {
        let ids = |tokens: Value| if ids { tokens } else { Value::Null };
        let parts = [
            part(ids(json!([7])), 1, Value::Null),
            part(ids(json!([8, 9])), 3, Value::Null),
            part(ids(json!([2])), 4, json!("stop")),
            last,
        ];
        let parts = parts.iter().map(|part| format!("data: {part}\n\n"));
        file(STREAM, parts.collect::<String>() + "data: [DONE]\n\n")
    };
    vec![of(vllm, true), of(sglang, false)]
}

fn change_stream(files: &mut Files, rng: &mut StdRng) {
    let stream = files.get_mut(STREAM).unwrap();
    let text = String::from_utf8(std::mem::take(stream)).unwrap();
    let mut parts: Vec<Vec<u8>> = text
        .split("\n\n")
        .map(|part| part.as_bytes().to_vec())
        .collect();
    let at = rng.random_range(0..parts.len());
    match rng.random_range(0..8) {
        0 => drop(parts.remove(at)),
        1 => parts.insert(at, parts[at].clone()),
        2 => change_text(&mut parts[at], rng),
        _ => {
            let mut data = parts[at]
                .strip_prefix(b"data: ")
                .unwrap_or_default()
                .to_vec();
            json::change_bytes(&mut data, rng);
            parts[at] = [b"data: ", &data[..]].concat();
        }
    }
    *stream = parts.join(&b"\n\n"[..]);
}

fn read_stream(folder: &Path) -> Result<String, String> {
    let bytes = fs::read(folder.join(STREAM)).unwrap();
    let (mut events, mut incoming) = (Events::default(), Incoming::default());
    for (number, piece) in bytes.chunks(100).enumerate() {
        for event in events.push(piece) {
            let taken = incoming.take(&event, number as f64);
            taken.map_err(|error| error.to_string())?;
        }
    }
    let answer = incoming
        .end(&[0; 3], 9.0)
        .map_err(|error| error.to_string())?;
    let gaps = answer.between_tokens().len() + answer.between_chunks().len();
    let drafts = answer.drafts.map(|drafts| {
        let _ = drafts.draft_tokens_per_pass();
        (drafts.tau(), drafts.survival(), drafts.conditional())
    });
    Ok(format!("{gaps} {drafts:?}"))
}

#[test]
fn answers_that_stream_in_are_taken_or_refused() {
    Fuzz {
        name: "streams",
        corpus: streams(),
        mutate: change_stream,
        read: read_stream,
        expected: UNNAMED,
    }
    .run();
}

/// Pages of metrics, before and after something was done.
fn metrics() -> Vec<Files> {
    let vllm = |count: u64| {
        format!(
            "# HELP vllm:x y\nvllm:generation_tokens_total{{engine=\"0\",model_name=\"m\"}} {count}.0\n\
            vllm:request_success_total{{finished_reason=\"stop\"}} {count}\nvllm:num_requests_running 1.0\n\
            vllm:spec_decode_num_drafts_total {count}\nvllm:spec_decode_num_draft_tokens_total {}\n\
            vllm:spec_decode_num_accepted_tokens_total {count}\n\
            vllm:spec_decode_num_accepted_tokens_per_pos_total{{position=\"0\"}} {count}\n\
            vllm:spec_decode_num_accepted_tokens_per_pos_total{{position=\"1\"}} 0\n",
            3 * count
        )
    };
    let sglang = |count: u64| {
        format!(
            "sglang:generation_tokens_total {count}.0\nsglang:num_requests_total {count}\nsglang:spec_verify_calls_total {count}e0\n"
        )
    };
    let of = |page: &dyn Fn(u64) -> String| {
        let mut files = file(BEFORE, page(5));
        files.extend(file(AFTER, page(9)));
        files
    };
    vec![of(&vllm), of(&sglang)]
}

fn change_metrics(files: &mut Files, rng: &mut StdRng) {
    let name = if rng.random_bool(0.5) { BEFORE } else { AFTER };
    for _ in 0..rng.random_range(1..3) {
        change_text(files.get_mut(name).unwrap(), rng);
    }
}

fn read_metrics(folder: &Path) -> Result<String, String> {
    let counters = |name: &str| -> Result<Counters, String> {
        let page = fs::read(folder.join(name)).unwrap();
        let samples =
            Samples::parse(&String::from_utf8_lossy(&page)).map_err(|error| error.to_string())?;
        let counters = Counters::of(&samples).map_err(|error| error.to_string())?;
        counters.ok_or_else(|| "no counters".into())
    };
    let counted = counters(AFTER)?.since(&counters(BEFORE)?);
    let counted = counted.map_err(|error| error.to_string())?;
    let drafts = counted.drafts.map(|drafts| {
        let _ = drafts.draft_tokens_per_pass();
        (drafts.tau(), drafts.survival(), drafts.conditional())
    });
    Ok(format!("{} {drafts:?}", counted.generated))
}

#[test]
fn pages_of_metrics_are_read_or_refused() {
    Fuzz {
        name: "metrics",
        corpus: metrics(),
        mutate: change_metrics,
        read: read_metrics,
        expected: UNNAMED,
    }
    .run();
}

#[test]
fn reports_are_shown_or_refused() {
    let workspace = Workspace::new();
    let tree = "evaluate.drafts=[{ shape = \"dynamic\", depth = 3, top_k = 2, nodes = 6 }]";
    workspace
        .run_recipe(&["evaluate.temperatures=[0.0, 1.0]", tree])
        .succeeded();
    let report = workspace.json("runs/run/evaluate/report.json");
    // Of two such the counts cannot be added up, nor is there a row for each length.
    let mut endless = report.clone();
    for count in ["greedy_outputs", "greedy_tokens", "greedy_mismatches"] {
        endless["lossless"][count] = u64::MAX.into();
    }
    let longest = &mut endless["settings_recommended"][0]["candidates"][1]["draft"]["length"];
    assert!(longest.is_u64());
    *longest = u64::MAX.into();
    let corpus = [report, endless].map(|report| file("report.json", report.to_string()));
    Fuzz {
        name: "reports",
        corpus: corpus.into(),
        mutate: |files, rng| json::change_bytes(files.get_mut("report.json").unwrap(), rng),
        read: |folder: &Path| {
            let text = fs::read(folder.join("report.json")).unwrap();
            let report = Report::from_json(&String::from_utf8_lossy(&text));
            let report = report.map_err(|error| error.to_string())?;
            let mut shown = report.to_markdown().len();
            let both = [("a".to_owned(), report.clone()), ("b".to_owned(), report)];
            shown += compare(&both).len() + csv(&both).len() + page(&both, &[]).len();
            Ok((shown + picture(&both).len() + summary(&both).len()).to_string())
        },
        expected: Expected {
            memory_per_byte: 400,
            ..UNNAMED
        },
    }
    .run();
}

const SENT: &str = "answer.http";

fn completions() -> Vec<Files> {
    let of = |message: Value, finish: &str| {
        let body = json!({"choices": [{"message": message, "finish_reason": finish}]}).to_string();
        let length = body.len();
        file(
            SENT,
            format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            ),
        )
    };
    vec![
        of(
            json!({"content": "four", "reasoning_content": "2 + 2"}),
            "stop",
        ),
        of(
            json!({"content": "four", "reasoning": null, "tool_calls": []}),
            "length",
        ),
        of(
            json!({"content": null, "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{\"of\": [2, 2]}"}}]}),
            "tool_calls",
        ),
    ]
}

fn change_completion(files: &mut Files, rng: &mut StdRng) {
    let answer = files.get_mut(SENT).unwrap();
    let text = String::from_utf8(answer.clone()).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let mut body = body.as_bytes().to_vec();
    let mut head = head.to_owned();
    json::change_bytes(&mut body, rng);
    let length = format!("content-length: {}", body.len());
    match rng.random_range(0..10) {
        0 => {
            let mut bytes = head.into_bytes();
            change_text(&mut bytes, rng);
            head = String::from_utf8_lossy(&bytes).into_owned();
        }
        1 => {
            let odd = [
                "HTTP/1.1 500 x",
                "HTTP/1.1 429 Busy\r\nretry-after: 1e99",
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked",
                "HTTP/1.1 301 x\r\nlocation: /",
            ];
            head = format!("{}\r\n{length}", odd.choose(rng).unwrap());
        }
        _ => head = format!("HTTP/1.1 200 OK\r\n{length}\r\nconnection: close"),
    }
    *answer = [head.as_bytes(), &body].join(&b"\r\n\r\n"[..]);
}

#[test]
fn answers_to_be_regenerated_are_taken_or_refused() {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let shared = sent.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut out = stream.try_clone().unwrap();
            if Request::read(&mut BufReader::new(stream)).is_some() {
                let _ = out.write_all(&shared.lock().unwrap());
            }
        }
    });
    let settings = ServerSettings {
        url,
        named_by: ["--server", "--model"],
        model: Some("m".into()),
        key: None,
        body: Map::new(),
        seed: Some(3),
        timeout: Duration::from_secs(20),
    };
    let messages = [Message::new("user", "2 + 2?")];
    let tools = [json!({"type": "function", "function": {"name": "add"}})];
    let read = |folder: &Path| {
        *sent.lock().unwrap() = fs::read(folder.join(SENT)).unwrap();
        // One for each answer: a connection that is kept open would have the rest of the last one.
        let server = Server::connect(settings.clone()).unwrap();
        let turn = Turn {
            row: 1,
            turn: 1,
            exchange: Exchange {
                messages: &messages,
                tools: &tools,
                variables: None,
            },
            trained: true,
        };
        let answer = server.answer(&turn).map_err(reason)?;
        assert_eq!(answer.message.role, "assistant");
        Ok(answer.message.content.len().to_string())
    };
    Fuzz {
        name: "completions",
        corpus: completions(),
        mutate: change_completion,
        read,
        expected: UNNAMED,
    }
    .run();
}

//! Answers of a server that speaks the OpenAI protocol.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::{Map, Value, json};
use spectrain_data::Message;
use spectrain_data::regenerate::{Answer, Answers, Failure, REASONING, Request};
use ureq::http::{StatusCode, Uri};
use ureq::{Agent, Body, http::Response};

use super::protocol::{Complaint, Completion, Models};
use crate::errors::Misuse;

/// Bytes of a response, at most: an answer with the probabilities of a hundred thousand tokens is shorter.
const LONGEST_BODY: u64 = 32 << 20;
/// Models that an error names.
const MOST_NAMES: usize = 20;
/// Characters of a server's message that a reason has.
const LONGEST_REASON: usize = 300;
/// The longest pause that a server may ask for.
const LONGEST_WAIT: f64 = 3600.0;

/// Where the server is and what it is asked.
#[derive(Clone)]
pub struct ServerSettings {
    /// Its address, with or without `/v1`.
    pub url: String,
    /// The model's name; without it, the only one that the server has.
    pub model: Option<String>,
    /// The API key.
    pub key: Option<String>,
    /// Further keys of the body, such as the temperature.
    pub body: Map<String, Value>,
    /// The seed from which every turn gets its own.
    pub seed: Option<u64>,
    /// The longest a request may take, its answer included.
    pub timeout: Duration,
}

/// A server with its model.
pub struct Server {
    agent: Agent,
    settings: ServerSettings,
    base: String,
    model: String,
}

impl Server {
    /// Checks the address and, if no model is named, asks the server which one it has.
    pub fn connect(settings: ServerSettings) -> Result<Self> {
        let base = settings.url.trim_end_matches('/');
        let base = format!("{}/v1", base.trim_end_matches("/v1"));
        let uri: Option<Uri> = base.parse().ok();
        let host = uri
            .filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")))
            .and_then(|uri| Some(uri.host()?.to_owned()));
        let Some(host) = host else {
            let found = &settings.url;
            let message = format!("`--server`: expected `http://HOST:PORT`, found `{found}`");
            return Err(Misuse(message).into());
        };
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_idle_connections_per_host(1024)
            .max_idle_connections(1024)
            .timeout_global(Some(settings.timeout));
        // A proxy has another idea of what is local.
        if matches!(host.as_str(), "localhost" | "127.0.0.1" | "[::1]") {
            config = config.proxy(None);
        }
        let mut server = Self {
            agent: config.build().into(),
            model: settings.model.clone().unwrap_or_default(),
            settings,
            base,
        };
        if server.settings.model.is_none() {
            let asked = server.only_model();
            server.model = asked.with_context(|| {
                format!(
                    "cannot ask `{}/models` for the model; `--model` names it",
                    server.base
                )
            })?;
        }
        Ok(server)
    }

    /// The model's name.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Further keys of every request's body.
    pub fn body(&self) -> &Map<String, Value> {
        &self.settings.body
    }

    fn only_model(&self) -> Result<String> {
        let mut request = self.agent.get(format!("{}/models", self.base));
        if let Some(key) = &self.settings.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let body = read(request.call()).map_err(|failure| match failure {
            Failure::Passing { reason, .. } | Failure::Lasting { reason } => anyhow!(reason),
        })?;
        let models: Models = serde_json::from_slice(&body)?;
        match &models.data[..] {
            [model] => Ok(model.id.clone()),
            several => {
                let names = several.iter().take(MOST_NAMES);
                let names: Vec<&str> = names.map(|model| model.id.as_str()).collect();
                let (count, names) = (several.len(), names.join("`, `"));
                bail!("expected one model, found {count} (`{names}`)")
            }
        }
    }
}

impl Answers for Server {
    fn answer(&self, request: &Request) -> Result<Answer, Failure> {
        let mut body = self.settings.body.clone();
        body.insert("model".into(), self.model.as_str().into());
        body.insert("messages".into(), json!(request.messages));
        body.insert("stream".into(), false.into());
        if let Some(seed) = self.settings.seed {
            // Engines read it as a signed number of 64 bits, or of 32.
            body.insert("seed".into(), (request.seed(seed) >> 33).into());
        }
        let mut post = self
            .agent
            .post(format!("{}/chat/completions", self.base))
            .header("Content-Type", "application/json");
        if let Some(key) = &self.settings.key {
            post = post.header("Authorization", format!("Bearer {key}"));
        }
        read_answer(&read(post.send(Value::Object(body).to_string()))?)
    }
}

fn passing(reason: impl Into<String>) -> Failure {
    Failure::Passing {
        reason: reason.into(),
        wait: None,
    }
}

/// The body of a response that tells of success.
fn read(response: Result<Response<Body>, ureq::Error>) -> Result<Vec<u8>, Failure> {
    // A name that is not found and a connection that is refused are those of a server that starts.
    let lost = |error: ureq::Error| passing(error.to_string());
    let mut response = response.map_err(lost)?;
    let status = response.status();
    let wait = response.headers().get("Retry-After");
    let wait = wait.and_then(|value| seconds(value.to_str().ok()?));
    let limited = response.body_mut().with_config().limit(LONGEST_BODY);
    let body = limited.read_to_vec();
    if status.is_success() {
        return body.map_err(lost);
    }
    let said = said(&body.unwrap_or_default());
    let reason = format!("status {}{said}", status.as_u16());
    let passes = status.is_server_error()
        || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
    if passes {
        Err(Failure::Passing { reason, wait })
    } else {
        Err(Failure::Lasting { reason })
    }
}

/// The seconds of a `Retry-After`; its other form, a date, is not read.
fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok()?;
    (seconds >= 0.0).then(|| Duration::from_secs_f64(seconds.min(LONGEST_WAIT)))
}

/// The message in the body of an error, as the end of a sentence.
fn said(body: &[u8]) -> String {
    let read: Complaint = serde_json::from_slice(body).unwrap_or_default();
    let places = [read.error.0, read.message.0, read.detail.0];
    // What is no message may be long, and is shown in part.
    let whole = || String::from_utf8_lossy(&body[..body.len().min(4 * LONGEST_REASON)]);
    let message = places.into_iter().flatten().next();
    let message = message.unwrap_or_else(|| whole().trim().to_owned());
    match message.as_str() {
        "" => String::new(),
        _ => format!(": {}", shortened(&message)),
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(LONGEST_REASON).collect()
}

/// The answer in the body of a response. What is not one may be so at another try.
fn read_answer(body: &[u8]) -> Result<Answer, Failure> {
    let read: Completion = serde_json::from_slice(body)
        .map_err(|error| passing(format!("the response is no answer: {error}")))?;
    let choice = read.choices.0;
    let Some((reply, finish)) =
        choice.and_then(|choice| Some((choice.message?, choice.finish_reason)))
    else {
        let said = said(body);
        return Err(passing(format!(
            "the response has no `choices[0].message`{said}"
        )));
    };
    let truncated = match finish.as_deref() {
        None | Some("stop") => false,
        Some("length") => true,
        Some(other) => {
            let found = shortened(other);
            return Err(passing(format!(
                "`finish_reason`: expected `stop` or `length`, found `{found}`"
            )));
        }
    };
    if reply.tool_calls.is_some_and(|calls| !calls.is_empty()) {
        return Err(passing("the answer calls tools"));
    }
    let reasoning = [reply.reasoning_content, reply.reasoning];
    let reasoning = reasoning
        .into_iter()
        .flatten()
        .find(|text| !text.is_empty());
    let content = match (reply.content, &reasoning) {
        (Some(content), _) => content,
        // All of it was reasoning.
        (None, Some(_)) => String::new(),
        (None, None) => return Err(passing("`content`: expected a text, found none")),
    };
    let mut message = Message::new("assistant", content);
    if let Some(reasoning) = reasoning {
        message.extra.insert(REASONING.into(), reasoning.into());
    }
    Ok(Answer { message, truncated })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(message: Value, finish: Value) -> Result<Answer, Failure> {
        let choice = json!({"index": 0, "message": message, "finish_reason": finish});
        read_answer(json!({ "choices": [choice] }).to_string().as_bytes())
    }

    #[test]
    fn an_answer_keeps_its_reasoning_under_one_name() {
        for key in ["reasoning_content", "reasoning"] {
            let message = json!({"role": "assistant", "content": "a", key: "r"});
            let answer = of(message, json!("stop")).unwrap();
            assert_eq!(answer.message.content, "a");
            assert_eq!(answer.message.extra["reasoning_content"], "r");
            assert!(!answer.truncated);
        }
        let cut = of(json!({"content": null, "reasoning": "r"}), json!("length")).unwrap();
        assert!(cut.truncated && cut.message.content.is_empty());
        let plain = of(
            json!({"content": "a", "reasoning_content": null}),
            Value::Null,
        )
        .unwrap();
        assert_eq!(plain.message, Message::new("assistant", "a"));
    }

    #[test]
    fn what_is_no_answer_is_tried_again() {
        let cases = [
            of(json!({"content": null}), json!("stop")),
            of(json!({"content": 3}), json!("stop")),
            of(
                json!({"content": "", "tool_calls": [{}]}),
                json!("tool_calls"),
            ),
            of(json!({"content": "a", "tool_calls": [{}]}), json!("stop")),
            of(json!({"content": "a"}), json!("abort")),
            of(json!("a"), json!("stop")),
            read_answer(b"{\"choices\": []}"),
            read_answer(b"[1]"),
            read_answer(b"{\"choices\": ["),
        ];
        for case in cases {
            assert!(matches!(case, Err(Failure::Passing { .. })), "{case:?}");
        }
    }

    #[test]
    fn of_a_response_only_the_answer_is_taken_in() {
        let beside = vec!["[[],{}]"; 200_000].join(",");
        let body = format!(
            r#"{{"usage":{{"a":[{beside}]}},"choices":[{{"logprobs":{{"content":[{beside}]}},"message":{{"content":"a","more":[{beside}]}},"finish_reason":"stop"}},{{"message":[{beside}]}}]}}"#
        );
        let answer = read_answer(body.as_bytes()).unwrap();
        assert_eq!(answer.message, Message::new("assistant", "a"));
        let reason = |body: String| match read_answer(body.as_bytes()) {
            Err(Failure::Passing { reason, .. }) => reason,
            other => panic!("{other:?}"),
        };
        let calls = r#"{"choices":[{"message":{"content":"a","tool_calls":["#;
        assert!(reason(format!("{calls}{beside}]}}}}]}}")).contains("tools"));
        assert!(reason(format!(r#"{{"detail":[{beside}]}}"#)).len() < 1000);
        assert!(reason(r#"{"error":{"type":"x","message":"no"}}"#.to_owned()).ends_with(": no"));
    }

    #[test]
    fn a_pause_that_is_asked_for_is_read_in_seconds() {
        assert_eq!(seconds("2"), Some(Duration::from_secs(2)));
        assert_eq!(seconds(" 0.25 "), Some(Duration::from_millis(250)));
        assert_eq!(seconds("1e99"), Some(Duration::from_secs(3600)));
        for other in ["-1", "nan", "Wed, 21 Oct 2026 07:28:00 GMT"] {
            assert_eq!(seconds(other), None, "{other}");
        }
    }

    #[test]
    fn an_errors_message_is_found_in_its_forms() {
        assert_eq!(said(br#"{"error": {"message": "too long"}}"#), ": too long");
        assert_eq!(said(br#"{"error": "no"}"#), ": no");
        assert_eq!(said(b"<html>"), ": <html>");
        assert_eq!(said(b""), "");
    }
}

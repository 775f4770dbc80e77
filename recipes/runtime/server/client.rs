//! The connection to a server that speaks the OpenAI protocol.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Error, Result, anyhow};
use serde_json::Value;
use spectrain_data::regenerate::Failure;
use ureq::http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use ureq::http::{Method, Request, StatusCode, Uri};
use ureq::typestate::WithBody;
use ureq::{Agent, Body, BodyReader, RequestBuilder, Timeout, http::Response};

use super::protocol::{Complaint, Model, Models};
use crate::errors::Misuse;
use crate::runtime::server::key::ApiKey;

/// Bytes of a response, at most: an answer with the probabilities of a hundred thousand tokens is shorter.
const LONGEST_BODY: u64 = 32 << 20;
/// Models that an error names.
const MOST_NAMES: usize = 20;
/// Characters of a server's message that a reason has.
const LONGEST_REASON: usize = 300;
/// The longest pause that a server may ask for.
const LONGEST_WAIT: f64 = 3600.0;
/// How long a machine may take to accept a connection; one that is gone does not even refuse it.
const CONNECT: Duration = Duration::from_secs(30);
/// What the bodies of requests are.
pub(crate) const JSON: &str = "application/json";
/// The option of commands that says how long a request may take.
const TIMEOUT_OPTION: &str = "--timeout";
/// Where a server says which models it has.
const MODELS: &str = "/v1/models";
/// How the system's words for a name that is not found begin; the error has no kind of its own.
const NO_SUCH_NAME: &str = "failed to lookup address information";

/// A server's address and how it is asked.
pub struct Client {
    agent: Agent,
    /// Without `/v1` and without a slash at its end.
    root: String,
    key: Option<ApiKey>,
    /// The key or the option that says how long a request may take.
    limit: &'static str,
    presence: Mutex<Presence>,
}

/// What a server answered, whatever it says.
pub(crate) struct Passed {
    pub(crate) status: StatusCode,
    pub(crate) retry_after: Option<HeaderValue>,
    pub(crate) body: Vec<u8>,
}

/// Why there is no answer.
pub(crate) struct Unanswered {
    /// Whether it did not come in time.
    pub(crate) is_late: bool,
    pub(crate) reason: String,
}

/// Whether a server is at an address.
#[derive(Default)]
struct Presence {
    /// Since when nobody is there, where nobody was the last time.
    refused: Option<Instant>,
    breaks: u64,
}

impl Client {
    /// For the address in `url`, with or without `/v1`, which the user gave by `option`. A request may take `timeout` at
    /// most, its answer included.
    ///
    /// # Errors
    /// The address is none, or holds a password.
    pub fn new(option: &str, url: &str, key: Option<ApiKey>, timeout: Duration) -> Result<Self> {
        let root = url.trim_end_matches('/');
        let root = root.trim_end_matches("/v1").trim_end_matches('/');
        // Before it is read as an address: with some passwords it is none, and would be repeated as such.
        if root.contains('@') {
            let message = format!(
                "`{option}`: expected `http://HOST:PORT` without user and password, which run folders and exported drafters would \
                 repeat; a key stands in a variable that `--api-key-env` or `target.api_key_env` names"
            );
            return Err(Misuse(message).into());
        }
        let uri: Option<Uri> = root.parse().ok();
        let host = uri
            .filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")))
            .and_then(|uri| Some(uri.host()?.to_owned()));
        let Some(host) = host else {
            let message = format!("`{option}`: expected `http://HOST:PORT`, found `{url}`");
            return Err(Misuse(message).into());
        };
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_idle_connections_per_host(1024)
            .max_idle_connections(1024)
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(timeout));
        // A proxy has another idea of what is local.
        if matches!(host.as_str(), "localhost" | "127.0.0.1" | "[::1]") {
            config = config.proxy(None);
        }
        Ok(Self {
            agent: config.build().into(),
            root: root.to_owned(),
            key,
            limit: limit_of(option),
            presence: Mutex::default(),
        })
    }

    /// The address, without `/v1`.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The body of the response to `GET PATH`, which has `most` bytes at most.
    ///
    /// # Errors
    /// There is none, or it is longer, or it tells of a failure.
    pub(crate) fn get_up_to(&self, path: &str, most: u64) -> Result<Vec<u8>, Failure> {
        let mut response = self.successful(self.noted(self.asked(path)))?;
        up_to(&mut response, most).map_err(|error| match error {
            ureq::Error::BodyExceedsLimit(_) => Failure::Lasting {
                reason: format!(
                    "`{}{path}`: expected at most {most} bytes, found more",
                    self.root
                ),
            },
            error => self.lost(&error),
        })
    }

    /// What the server answers to somebody else's request: to `POST PATH` with a body, else to `GET PATH`.
    ///
    /// # Errors
    /// There is no answer.
    pub(crate) fn pass(
        &self,
        path: &str,
        body: Option<&[u8]>,
        authorization: Option<&HeaderValue>,
    ) -> Result<Passed, Unanswered> {
        self.passed(path, body, authorization)
            .map_err(|error| Unanswered {
                is_late: matches!(error, ureq::Error::Timeout(_)) && !is_refused(&error),
                reason: words(&error, self.limit),
            })
    }

    fn passed(
        &self,
        path: &str,
        body: Option<&[u8]>,
        authorization: Option<&HeaderValue>,
    ) -> Result<Passed, ureq::Error> {
        let mut request = Request::builder().uri(format!("{}{path}", self.root));
        if let Some(key) = authorization {
            request = request.header(AUTHORIZATION, key);
        }
        let mut response = match body {
            Some(body) => {
                let request = request.method(Method::POST).header(CONTENT_TYPE, JSON);
                self.agent.run(request.body(body)?)?
            }
            None => self.agent.run(request.body(())?)?,
        };
        Ok(Passed {
            status: response.status(),
            retry_after: response.headers().get(RETRY_AFTER).cloned(),
            body: whole(&mut response)?,
        })
    }

    /// The body of the response to `GET PATH`.
    ///
    /// # Errors
    /// There is none, or it tells of a failure.
    pub fn get(&self, path: &str) -> Result<Vec<u8>, Failure> {
        self.read(self.noted(self.asked(path)))
    }

    fn asked(&self, path: &str) -> Result<Response<Body>, ureq::Error> {
        let mut request = self.agent.get(format!("{}{path}", self.root));
        if let Some(key) = &self.key {
            request = request.header("Authorization", key.bearer());
        }
        request.call()
    }

    /// Whether a server is at the address, whatever it says.
    ///
    /// # Errors
    /// Connections are refused, or there is no such machine; or who accepts them (a container's port, a tunnel, a gateway, a
    /// server that still loads) has no server to pass a request to.
    pub(crate) fn is_there(&self) -> Result<(), Silent> {
        let what = match self.asked(MODELS) {
            Err(error) if is_refused(&error) || is_cut_off(&error) => {
                Some(words(&error, self.limit))
            }
            Ok(response) if has_no_server(response.status()) => Some(reason(refused(response))),
            _ => None,
        };
        self.note(what.is_some());
        what.map_or(Ok(()), |what| Err(self.silent(what)))
    }

    /// For how long nobody has been there; nothing where somebody was the last time.
    pub(crate) fn refuses_for(&self) -> Option<Duration> {
        self.presence().refused.map(|since| since.elapsed())
    }

    /// How often nobody was there, or a request got no response: since the last time another server may be at the address.
    pub(crate) fn breaks(&self) -> u64 {
        self.presence().breaks
    }

    fn presence(&self) -> MutexGuard<'_, Presence> {
        self.presence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, is_away: bool) {
        let mut presence = self.presence();
        if !is_away {
            presence.refused = None;
        } else if presence.refused.is_none() {
            presence.refused = Some(Instant::now());
            presence.breaks += 1;
        }
    }

    /// The same response, once it is noted whether somebody was there. What may come of a server that is gone or of one that is
    /// busy is told apart by a second request.
    fn noted(
        &self,
        response: Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, ureq::Error> {
        let is_unclear = match &response {
            Ok(response) => has_no_server(response.status()),
            Err(error) => is_cut_off(error),
        };
        if is_unclear {
            self.presence().breaks += 1;
            // It notes what it finds.
            let _ = self.is_there();
        } else {
            self.note(response.as_ref().is_err_and(is_refused));
        }
        response
    }

    fn silent(&self, what: String) -> Silent {
        Silent {
            root: self.root.clone(),
            what,
        }
    }

    /// The body of the response to `POST PATH`.
    ///
    /// # Errors
    /// There is none, or it tells of a failure.
    pub fn post(&self, path: &str, body: &Value) -> Result<Vec<u8>, Failure> {
        self.read(self.noted(self.posted(path).send(body.to_string())))
    }

    /// The body of the response to `POST PATH`, to be read as it comes.
    ///
    /// # Errors
    /// There is none, or it tells of a failure.
    pub fn stream(&self, path: &str, body: &Value) -> Result<BodyReader<'static>, Failure> {
        let response = self.noted(self.posted(path).send(body.to_string()));
        Ok(self.successful(response)?.into_body().into_reader())
    }

    /// The body of a response that tells of success.
    fn read(&self, response: Result<Response<Body>, ureq::Error>) -> Result<Vec<u8>, Failure> {
        let mut response = self.successful(response)?;
        whole(&mut response).map_err(|error| self.lost(&error))
    }

    /// The response, where there is one and it tells of success.
    fn successful(
        &self,
        response: Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, Failure> {
        let response = response.map_err(|error| self.lost(&error))?;
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(refused(response))
        }
    }

    /// A name that is not found and a connection that is refused are those of a server that starts.
    fn lost(&self, error: &ureq::Error) -> Failure {
        passing(words(error, self.limit))
    }

    fn posted(&self, path: &str) -> RequestBuilder<WithBody> {
        let request = self.agent.post(format!("{}{path}", self.root));
        let request = request.header("Content-Type", JSON);
        match &self.key {
            Some(key) => request.header("Authorization", key.bearer()),
            None => request,
        }
    }

    /// The model of this name; without a name, the only one that the server has.
    ///
    /// # Errors
    /// No server answers ([`Silent`]), or it does not say what it has, does not have this one, or has several.
    pub(crate) fn model(&self, name: Option<&str>) -> Result<Model> {
        let response = self.noted(self.asked(MODELS));
        let response = response.map_err(|error| self.silent(words(&error, self.limit)))?;
        let body = self
            .read(Ok(response))
            .map_err(|failure| anyhow!(reason(failure)))?;
        let models: Models = serde_json::from_slice(&body)?;
        let count = models.data.len();
        let names = models.data.iter().take(MOST_NAMES);
        let names: Vec<&str> = names.map(|model| model.id.as_str()).collect();
        let names = names.join("`, `");
        match name {
            Some(name) => {
                let found = models.data.into_iter().find(|model| model.id == name);
                found.ok_or_else(|| {
                    OtherModels(format!(
                        "expected the model `{name}`, found {count} (`{names}`)"
                    ))
                    .into()
                })
            }
            None => match <[Model; 1]>::try_from(models.data) {
                Ok([model]) => Ok(model),
                Err(_) => Err(OtherModels(format!(
                    "expected one model, found {count} (`{names}`)"
                ))
                .into()),
            },
        }
    }
}

/// Nothing came from a server's address.
#[derive(Debug, thiserror::Error)]
#[error("no server answers at `{root}`: {what}")]
pub struct Silent {
    root: String,
    what: String,
}

/// A server has other models than the one that is asked for.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OtherModels(String);

/// The error of [`Client::model`] with what a user is to do about it; nothing of that helps where no server answers.
pub(crate) fn unless_silent(cause: Error, advice: impl FnOnce() -> String) -> Error {
    if cause.is::<Silent>() {
        return cause;
    }
    cause.context(advice())
}

/// What happened.
pub fn reason(failure: Failure) -> String {
    match failure {
        Failure::Passing { reason, .. } | Failure::Lasting { reason } => reason,
    }
}

/// A failure that may pass.
pub(crate) fn passing(reason: impl Into<String>) -> Failure {
    Failure::Passing {
        reason: reason.into(),
        wait: None,
    }
}

/// A failure that another try would meet as well.
pub(crate) fn lasting(error: &Error) -> Failure {
    Failure::Lasting {
        reason: format!("{error:#}"),
    }
}

/// Whether nobody is there, or not yet, so that no request has reached anybody.
fn is_refused(error: &ureq::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable};
    match error {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
        ureq::Error::Timeout(timeout) => matches!(timeout, Timeout::Connect | Timeout::Resolve),
        ureq::Error::Io(error) => {
            let kinds = [
                ConnectionRefused,
                HostUnreachable,
                NetworkDown,
                NetworkUnreachable,
            ];
            kinds.contains(&error.kind()) || error.to_string().starts_with(NO_SUCH_NAME)
        }
        _ => false,
    }
}

/// Whether the connection was accepted and then closed without a response, as by a port behind which nobody is yet.
fn is_cut_off(error: &ureq::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let kinds = [
        ConnectionReset,
        ConnectionAborted,
        BrokenPipe,
        UnexpectedEof,
    ];
    matches!(error, ureq::Error::Io(error) if kinds.contains(&error.kind()))
}

/// Whether the status is that of a gateway without a server behind it, or of a server that still loads its model.
fn has_no_server(status: StatusCode) -> bool {
    [
        StatusCode::BAD_GATEWAY,
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::GATEWAY_TIMEOUT,
    ]
    .contains(&status)
}

/// What says how long a request may take to a server whose address the user gave by this key or option.
fn limit_of(option: &str) -> &'static str {
    match option {
        "regenerate.server" => "regenerate.timeout",
        "target.server" => "features.timeout",
        _ => TIMEOUT_OPTION,
    }
}

/// Why the rest of a body does not come, from a server that an option names.
pub(crate) fn broken_off(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    inner.map_or_else(|| error.to_string(), |inner| words(inner, TIMEOUT_OPTION))
}

fn words(error: &ureq::Error, limit: &str) -> String {
    match error {
        ureq::Error::Timeout(Timeout::Connect) => {
            format!("no connection within {} s", CONNECT.as_secs())
        }
        ureq::Error::Timeout(_) => format!("not complete within the time of `{limit}`"),
        other => other.to_string(),
    }
}

fn whole(response: &mut Response<Body>) -> Result<Vec<u8>, ureq::Error> {
    up_to(response, LONGEST_BODY)
}

fn up_to(response: &mut Response<Body>, most: u64) -> Result<Vec<u8>, ureq::Error> {
    response.body_mut().with_config().limit(most).read_to_vec()
}

/// The failure that a response tells of.
fn refused(mut response: Response<Body>) -> Failure {
    let status = response.status();
    let wait = response.headers().get("Retry-After");
    let wait = wait.and_then(|value| seconds(value.to_str().ok()?));
    let said = said(&whole(&mut response).unwrap_or_default());
    let reason = format!("status {}{said}", status.as_u16());
    let passes = status.is_server_error()
        || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
    if passes {
        Failure::Passing { reason, wait }
    } else {
        Failure::Lasting { reason }
    }
}

/// The seconds of a `Retry-After`; its other form, a date, is not read.
fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok()?;
    (seconds >= 0.0).then(|| Duration::from_secs_f64(seconds.min(LONGEST_WAIT)))
}

/// The message in the body of an error, as the end of a sentence.
pub(crate) fn said(body: &[u8]) -> String {
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

/// As much of a server's text as a reason has.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(LONGEST_REASON).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_timeout_is_told_with_what_sets_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        for (option, limit) in [
            ("--server", "--timeout"),
            ("regenerate.server", "regenerate.timeout"),
            ("target.server", "features.timeout"),
        ] {
            let client = Client::new(option, &url, None, Duration::from_millis(50)).unwrap();
            let told = reason(client.get("/").unwrap_err());
            assert_eq!(told, format!("not complete within the time of `{limit}`"));
        }
    }

    #[test]
    fn an_errors_message_is_found_in_its_forms() {
        assert_eq!(said(br#"{"error": {"message": "too long"}}"#), ": too long");
        assert_eq!(said(br#"{"error": "no"}"#), ": no");
        assert_eq!(said(b"<html>"), ": <html>");
        assert_eq!(said(b""), "");
    }

    #[test]
    fn an_address_with_a_password_is_refused_and_not_repeated() {
        for password in ["secret", "secret/a", "secret#a", "secret?a"] {
            let url = format!("http://me:{password}@host:8000/v1");
            let client = Client::new("target.server", &url, None, Duration::from_secs(1));
            let told = client.err().unwrap().to_string();
            assert!(
                told.contains("`target.server`") && told.contains("api_key_env"),
                "{told}"
            );
            assert!(!told.contains("secret"), "{told}");
        }
    }

    #[test]
    fn an_address_is_taken_with_and_without_its_version() {
        for url in [
            "http://a:1",
            "http://a:1/",
            "http://a:1/v1",
            "http://a:1/v1/",
        ] {
            let client = Client::new("--server", url, None, Duration::from_secs(1)).unwrap();
            assert_eq!(client.root(), "http://a:1");
        }
        for url in ["a:1", "ftp://a", "http://", ""] {
            let error = Client::new("--server", url, None, Duration::from_secs(1)).err();
            let told = error.unwrap().to_string();
            assert!(
                told.starts_with("`--server`: expected `http://HOST:PORT`"),
                "{told}"
            );
        }
    }
}

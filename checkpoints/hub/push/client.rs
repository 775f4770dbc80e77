//! Requests that change something on the hub.

use std::io::Read;

use serde_json::Value;
use ureq::SendBody;
use ureq::http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE};
use ureq::http::{HeaderMap, Method, Request};
use url::Url;

use crate::hub::announced::shown;
use crate::hub::client::Client;
use crate::hub::failure::{Failure, Outcome, Patience};
use crate::hub::few_values::FewValues;

/// Bytes of the longest answer.
const LONGEST: u64 = 16 << 20;

pub(super) const JSON: &str = "application/json";
pub(super) const NDJSON: &str = "application/x-ndjson";
pub(super) const LFS: &str = "application/vnd.git-lfs+json";

/// What the hub answers.
pub(super) struct Answer {
    pub(super) headers: HeaderMap,
    /// The body, where it is JSON.
    pub(super) value: Value,
}

/// Sends requests, again where that may help.
pub(super) struct Sender<'a> {
    pub(super) client: &'a Client,
    pub(super) stop: Option<fn() -> bool>,
}

impl Sender<'_> {
    /// What the hub says about something.
    pub(super) fn get(&self, url: &Url) -> Outcome<Value> {
        let mut patience = Patience::new(self.client.limits(), self.stop);
        let text = self.client.text(url, LONGEST, &mut patience)?;
        serde_json::from_str(&text)
            .map(|FewValues(value)| value)
            .map_err(|error| Failure::Lasting(format!("the hub's answer is not JSON: {error}")))
    }

    /// Sends JSON that may be sent twice.
    pub(super) fn post(&self, url: &Url, value: &Value) -> Outcome<Answer> {
        self.post_as(url, JSON, value)
    }

    pub(super) fn post_as(&self, url: &Url, kind: &'static str, value: &Value) -> Outcome<Answer> {
        self.again(|| self.once(url, kind, value.to_string().as_bytes()))
    }

    /// Does something until it succeeds or would fail for good.
    pub(super) fn again<T>(&self, attempt: impl Fn() -> Outcome<T>) -> Outcome<T> {
        let mut patience = Patience::new(self.client.limits(), self.stop);
        loop {
            patience.check()?;
            match attempt() {
                Ok(done) => return Ok(done),
                Err(failure) => patience.after(failure)?,
            }
        }
    }

    /// Sends a text, once.
    pub(super) fn once(&self, url: &Url, kind: &'static str, body: &[u8]) -> Outcome<Answer> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(url.as_str())
            .header(CONTENT_TYPE, kind)
            .header(ACCEPT, if kind == LFS { LFS } else { JSON });
        self.run(url, request, &mut &*body, body.len() as u64)
    }

    /// Sends so many bytes to a store, once.
    pub(super) fn put(&self, url: &Url, body: &mut dyn Read, length: u64) -> Outcome<Answer> {
        let request = Request::builder().method(Method::PUT).uri(url.as_str());
        self.run(url, request, body, length)
    }

    fn run(
        &self,
        url: &Url,
        request: ureq::http::request::Builder,
        body: &mut dyn Read,
        length: u64,
    ) -> Outcome<Answer> {
        let request = request.header(CONTENT_LENGTH, length);
        let request = self.client.authorised(request, url);
        let request = request
            .body(SendBody::from_reader(body))
            .map_err(|error| shown(&error.to_string()))?;
        let response = self.client.exchange(request, url)?;
        let headers = response.headers().clone();
        let mut text = Vec::new();
        let read = response
            .into_body()
            .into_reader()
            .take(LONGEST)
            .read_to_end(&mut text);
        read.map_err(|error| Failure::Broken(shown(&error.to_string())))?;
        Ok(Answer {
            headers,
            value: serde_json::from_slice::<FewValues>(&text)
                .unwrap_or_default()
                .0,
        })
    }
}

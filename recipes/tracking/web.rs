//! A tracking server's interface over HTTP: JSON there and back.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use spectrain_checkpoints::printable;
use ureq::Agent;

/// The longest that a request takes.
const LIMIT: Duration = Duration::from_secs(10);

/// A server at an address.
pub(super) struct Web {
    agent: Agent,
    address: String,
    /// Headers of every request.
    headers: Vec<(&'static str, String)>,
}

impl Web {
    pub(super) fn new(address: &str, headers: Vec<(&'static str, String)>) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(LIMIT))
            .max_redirects(0)
            .build();
        Self {
            agent: config.into(),
            address: address.trim_end_matches('/').to_owned(),
            headers,
        }
    }

    /// What is at a path. A status that is not one of `good` is an error.
    pub(super) fn get(
        &self,
        path: &str,
        (key, value): (&str, &str),
        good: &[u16],
    ) -> Result<Value> {
        let mut request = self.agent.get(self.url(path)).query(key, value);
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let answer = request.call().with_context(|| self.unreachable())?;
        self.read(path, answer, good)
    }

    /// What a path answers to `wanted`.
    pub(super) fn post(&self, path: &str, wanted: &Value) -> Result<Value> {
        let mut request = self
            .agent
            .post(self.url(path))
            .content_type("application/json");
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let answer = request
            .send(wanted.to_string())
            .with_context(|| self.unreachable())?;
        self.read(path, answer, &[200])
    }

    fn read(
        &self,
        path: &str,
        mut answer: ureq::http::Response<ureq::Body>,
        good: &[u16],
    ) -> Result<Value> {
        let status = answer.status().as_u16();
        let body = answer
            .body_mut()
            .read_to_string()
            .with_context(|| self.unreachable())?;
        let body: Value = serde_json::from_str(&body).unwrap_or(Value::Null);
        if !good.contains(&status) {
            let said = ["message", "error"].map(|key| body[key].as_str().unwrap_or_default());
            let said: String = said.concat().chars().take(200).collect();
            bail!(
                "`{}`: `{path}`: http {status}: {}",
                self.address,
                printable(&said)
            );
        }
        Ok(body)
    }

    fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.address)
    }

    fn unreachable(&self) -> String {
        format!("the tracking server `{}` does not answer", self.address)
    }
}

//! The REST interface of an MLflow tracking server (<https://mlflow.org/docs/latest/rest-api.html>), as far as runs need it.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use spectrain_checkpoints::printable;
use ureq::Agent;

use super::figures::Figure;

/// The longest that a request takes.
const LIMIT: Duration = Duration::from_secs(10);
/// What the server takes in one request: metrics, and settings.
const METRICS: usize = 1000;
const SETTINGS: usize = 100;

/// A server.
pub(super) struct Mlflow {
    agent: Agent,
    address: String,
    authorization: Option<String>,
}

impl Mlflow {
    /// The server at an address, with the user or token of MLflow's own variables.
    pub(super) fn new(address: &str) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(LIMIT))
            .max_redirects(0)
            .build();
        Self {
            agent: config.into(),
            address: address.trim_end_matches('/').to_owned(),
            authorization: authorization(&|name| std::env::var(name).ok()),
        }
    }

    /// The id of an experiment, which is made where it is not there.
    pub(super) fn experiment(&self, name: &str) -> Result<String> {
        let found = self.get("experiments/get-by-name", ("experiment_name", name))?;
        if let Some(id) = found["experiment"]["experiment_id"].as_str() {
            return Ok(id.to_owned());
        }
        let made = self.post("experiments/create", &json!({"name": name}))?;
        text(&made["experiment_id"], "experiment_id")
    }

    /// The id of the run with a tag, which an earlier request may have made without its answer having come.
    pub(super) fn find(
        &self,
        experiment: &str,
        (key, value): (&str, &str),
    ) -> Result<Option<String>> {
        let filter = format!("tags.`{key}` = '{value}'");
        let wanted = json!({"experiment_ids": [experiment], "filter": filter, "max_results": 1});
        let found = self.post("runs/search", &wanted)?;
        let run = &found["runs"][0]["info"]["run_id"];
        Ok(run.as_str().map(str::to_owned))
    }

    /// Makes a run with this name and these tags.
    pub(super) fn create(
        &self,
        experiment: &str,
        name: &str,
        tags: &[(&str, String)],
    ) -> Result<String> {
        let tag = |(key, value): &(&str, String)| json!({"key": key, "value": value});
        let tags: Vec<Value> = tags.iter().map(tag).collect();
        let wanted = json!({"experiment_id": experiment, "run_name": name, "tags": tags});
        let made = self.post("runs/create", &wanted)?;
        text(&made["run"]["info"]["run_id"], "run_id")
    }

    /// Adds figures to a run. The server keeps one of those that are the same in all their parts.
    pub(super) fn figures(&self, run: &str, figures: &[Figure]) -> Result<()> {
        for part in figures.chunks(METRICS) {
            let metric = |figure: &Figure| json!({"key": figure.key, "value": figure.value, "step": figure.step, "timestamp": figure.time});
            let metrics: Vec<Value> = part.iter().map(metric).collect();
            self.post(
                "runs/log-batch",
                &json!({"run_id": run, "metrics": metrics}),
            )?;
        }
        Ok(())
    }

    /// Adds settings to a run, which stay as they are.
    pub(super) fn settings(&self, run: &str, settings: &[(String, String)]) -> Result<()> {
        for part in settings.chunks(SETTINGS) {
            let params: Vec<Value> = part
                .iter()
                .map(|(key, value)| json!({"key": key, "value": value}))
                .collect();
            self.post("runs/log-batch", &json!({"run_id": run, "params": params}))?;
        }
        Ok(())
    }

    /// Says that a run is finished.
    pub(super) fn finish(&self, run: &str) -> Result<()> {
        self.post("runs/update", &json!({"run_id": run, "status": "FINISHED"}))
            .map(drop)
    }

    fn url(&self, method: &str) -> String {
        format!("{}/api/2.0/mlflow/{method}", self.address)
    }

    fn get(&self, method: &str, (key, value): (&str, &str)) -> Result<Value> {
        let mut request = self.agent.get(self.url(method)).query(key, value);
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let answer = request.call().with_context(|| self.unreachable())?;
        // 404: there is none.
        self.read(method, answer, &[200, 404])
    }

    fn post(&self, method: &str, wanted: &Value) -> Result<Value> {
        let mut request = self
            .agent
            .post(self.url(method))
            .content_type("application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let answer = request
            .send(wanted.to_string())
            .with_context(|| self.unreachable())?;
        self.read(method, answer, &[200])
    }

    fn read(
        &self,
        method: &str,
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
            let said = body["message"].as_str().unwrap_or_default();
            let said: String = said.chars().take(200).collect();
            bail!(
                "`{}`: `{method}`: http {status}: {}",
                self.address,
                printable(&said)
            );
        }
        Ok(body)
    }

    fn unreachable(&self) -> String {
        format!("the tracking server `{}` does not answer", self.address)
    }
}

fn text(value: &Value, key: &str) -> Result<String> {
    let found = value.as_str().map(str::to_owned);
    found.with_context(|| format!("the tracking server answers without `{key}`"))
}

/// What MLflow's own variables say of who asks.
fn authorization(variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    use base64::Engine as _;
    let given = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let Some(token) = given("MLFLOW_TRACKING_TOKEN") {
        return Some(format!("Bearer {token}"));
    }
    let user = given("MLFLOW_TRACKING_USERNAME")?;
    let password = given("MLFLOW_TRACKING_PASSWORD").unwrap_or_default();
    let both = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
    Some(format!("Basic {both}"))
}

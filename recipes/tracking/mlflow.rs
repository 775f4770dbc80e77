//! The REST interface of an MLflow tracking server (<https://mlflow.org/docs/latest/rest-api.html>), as far as runs need it.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::figures::Figure;
use super::server::{NewRun, Server};
use super::web::Web;

/// The tag by which a run is found again.
const TAG: &str = "spectrain.run";
/// What the server takes in one request: metrics, and settings.
const METRICS: usize = 1000;
const SETTINGS: usize = 100;

/// A server.
pub(super) struct Mlflow {
    web: Web,
}

impl Mlflow {
    /// The server at an address, with the user or token of MLflow's own variables.
    pub(super) fn new(address: &str) -> Self {
        let authorization = authorization(&|name| std::env::var(name).ok());
        let header = authorization.map(|value| ("authorization", value));
        Self {
            web: Web::new(address, header.into_iter().collect()),
        }
    }

    /// The id of an experiment, which is made where it is not there.
    fn experiment(&self, name: &str) -> Result<String> {
        let found = self.get("experiments/get-by-name", ("experiment_name", name))?;
        if let Some(id) = found["experiment"]["experiment_id"].as_str() {
            return Ok(id.to_owned());
        }
        let made = self.post("experiments/create", &json!({"name": name}))?;
        text(&made["experiment_id"], "experiment_id")
    }

    /// The id of the run with a tag, which an earlier request may have made without its answer having come.
    fn find(&self, experiment: &str, (key, value): (&str, &str)) -> Result<Option<String>> {
        let filter = format!("tags.`{key}` = '{value}'");
        let wanted = json!({"experiment_ids": [experiment], "filter": filter, "max_results": 1});
        let found = self.post("runs/search", &wanted)?;
        let run = &found["runs"][0]["info"]["run_id"];
        Ok(run.as_str().map(str::to_owned))
    }

    /// Makes a run with this name and these tags.
    fn create(&self, experiment: &str, name: &str, tags: &[(&str, String)]) -> Result<String> {
        let tag = |(key, value): &(&str, String)| json!({"key": key, "value": value});
        let tags: Vec<Value> = tags.iter().map(tag).collect();
        let wanted = json!({"experiment_id": experiment, "run_name": name, "tags": tags});
        let made = self.post("runs/create", &wanted)?;
        text(&made["run"]["info"]["run_id"], "run_id")
    }

    fn get(&self, method: &str, query: (&str, &str)) -> Result<Value> {
        // 404: there is none.
        self.web.get(&path(method), query, &[200, 404])
    }

    fn post(&self, method: &str, wanted: &Value) -> Result<Value> {
        self.web.post(&path(method), wanted)
    }
}

impl Server for Mlflow {
    fn begin(&self, new: &NewRun) -> Result<String> {
        let experiment = self.experiment(new.experiment)?;
        if let Some(id) = self.find(&experiment, (TAG, new.tag))? {
            return Ok(id);
        }
        let tags = [
            (TAG, new.tag.to_owned()),
            ("spectrain.version", env!("CARGO_PKG_VERSION").to_owned()),
            ("spectrain.recipe", new.recipe.to_owned()),
        ];
        self.create(&experiment, new.name, &tags)
    }

    fn settings(&self, run: &str, settings: &[(String, String)]) -> Result<()> {
        for part in settings.chunks(SETTINGS) {
            let params: Vec<Value> = part
                .iter()
                .map(|(key, value)| json!({"key": key, "value": value}))
                .collect();
            self.post("runs/log-batch", &json!({"run_id": run, "params": params}))?;
        }
        Ok(())
    }

    /// The server keeps one of those that are the same in all their parts.
    fn figures(&self, run: &str, figures: &[Figure]) -> Result<()> {
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

    fn finish(&self, run: &str) -> Result<()> {
        self.post("runs/update", &json!({"run_id": run, "status": "FINISHED"}))
            .map(drop)
    }
}

fn path(method: &str) -> String {
    format!("api/2.0/mlflow/{method}")
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

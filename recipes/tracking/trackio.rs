//! The interface of a trackio server (<https://github.com/gradio-app/trackio>), as far as runs need it: entries of a project, each
//! with a run, a step and figures.

use anyhow::Result;
use serde_json::{Map, Value, json};
use spectrain_checkpoints::hash::sha256_bytes;

use super::figures::Figure;
use super::server::{NewRun, Server};
use super::web::Web;

/// Entries of one request.
const ENTRIES: usize = 500;

/// A server and the run on it.
pub(super) struct Trackio {
    web: Web,
    project: String,
    name: String,
}

impl Trackio {
    /// The server at an address, with the tokens of the environment, and what a run is called on it.
    pub(super) fn new(address: &str, project: &str, name: &str) -> Self {
        let given = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let token = given("TRACKIO_WRITE_TOKEN").map(|token| ("x-trackio-write-token", token));
        // Only a Space asks for it.
        let is_space = address.trim_end_matches('/').ends_with(".hf.space");
        let hub = given("HF_TOKEN").filter(|_| is_space);
        let hub = hub.map(|token| ("authorization", format!("Bearer {token}")));
        Self {
            web: Web::new(address, token.into_iter().chain(hub).collect()),
            project: project.to_owned(),
            name: name.to_owned(),
        }
    }

    /// An entry. The server keeps one of those whose `log_id` is the same.
    fn entry(&self, run: &str, what: &str, (step, metrics): (u64, Value)) -> Value {
        json!({
            "project": self.project,
            "run": self.name,
            "run_id": run,
            "metrics": metrics,
            "step": step,
            "log_id": &sha256_bytes(format!("{run}\n{what}\n{metrics}").as_bytes())[..32],
        })
    }

    fn send(&self, entries: &[Value]) -> Result<()> {
        let wanted = json!({"logs": entries, "hf_token": null});
        self.web.post("api/bulk_log", &wanted).map(drop)
    }
}

impl Server for Trackio {
    /// Nothing needs to be made: the first entry makes a run, with the id that it gives.
    fn begin(&self, new: &NewRun) -> Result<String> {
        Ok(new.tag.to_owned())
    }

    fn settings(&self, run: &str, settings: &[(String, String)]) -> Result<()> {
        let config: Map<String, Value> = settings
            .iter()
            .map(|(key, value)| (key.clone(), json!(value)))
            .collect();
        let mut entry = self.entry(run, "settings", (0, json!({})));
        entry["config"] = Value::Object(config);
        self.send(&[entry])
    }

    fn figures(&self, run: &str, figures: &[Figure]) -> Result<()> {
        let lines = figures.chunk_by(|one, other| (one.step, one.time) == (other.step, other.time));
        let entries = lines.map(|line| {
            let metrics: Map<String, Value> = line
                .iter()
                .map(|figure| (figure.key.clone(), json!(figure.value)))
                .collect();
            let what = format!("{} {}", line[0].step, line[0].time);
            self.entry(run, &what, (line[0].step, Value::Object(metrics)))
        });
        let entries: Vec<Value> = entries.collect();
        entries.chunks(ENTRIES).try_for_each(|part| self.send(part))
    }

    /// It has no word for it.
    fn finish(&self, _: &str) -> Result<()> {
        Ok(())
    }
}

//! The `[track]` table.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::recipe::problem::Problem;

/// The experiment where nothing is said.
pub const EXPERIMENT: &str = "spectrain";

/// A tracker that gets a run's figures beside the run's own files. It never stops or slows a run. One of `mlflow`, `trackio` and `wandb`
/// says which.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrackTable {
    /// Address of an MLflow tracking server, such as `http://localhost:5000`. User and password, or a token, are read from
    /// MLflow's own environment variables (`MLFLOW_TRACKING_USERNAME`, `MLFLOW_TRACKING_PASSWORD`, `MLFLOW_TRACKING_TOKEN`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mlflow: Option<String>,
    /// Address of a trackio server, such as `http://localhost:7860`, or of a Space that runs one. The token is read from the
    /// environment variable `TRACKIO_WRITE_TOKEN`, or from `HF_TOKEN` for a Space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trackio: Option<String>,
    /// Whether to write a Weights & Biases file at the end of the run, which `wandb sync RUN/wandb/offline-run-*` sends.
    /// spectrain itself sends nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wandb: bool,
    /// The experiment on an MLflow server, or the project on a trackio server or in Weights & Biases. It is created if it does
    /// not exist.
    #[serde(default = "experiment")]
    pub experiment: String,
}

/// A tracker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tracker<'a> {
    /// A server of MLflow, by its address.
    Mlflow(&'a str),
    /// A server of trackio, by its address.
    Trackio(&'a str),
    /// A file of Weights & Biases.
    Wandb,
}

fn experiment() -> String {
    EXPERIMENT.to_owned()
}

impl TrackTable {
    /// The tracker.
    ///
    /// # Errors
    /// None is named, or several are.
    pub fn tracker(&self) -> Result<Tracker<'_>, Problem> {
        let mlflow = self.mlflow.as_deref().map(without_slash);
        let trackio = self.trackio.as_deref().map(without_slash);
        let named = [
            mlflow.map(|address| ("mlflow", Tracker::Mlflow(address))),
            trackio.map(|address| ("trackio", Tracker::Trackio(address))),
            self.wandb.then_some(("wandb", Tracker::Wandb)),
        ];
        let mut named = named.into_iter().flatten();
        match (named.next(), named.next()) {
            (Some((_, tracker)), None) => Ok(tracker),
            (None, _) => Err(Problem::new(
                "mlflow",
                "expected this key, `trackio` or `wandb`, found none of them",
            )),
            (Some((first, _)), Some((second, _))) => Err(Problem::new(
                second,
                format!("expected one tracker, found this key and `{first}`"),
            )),
        }
    }

    /// Checks what the types cannot say.
    pub fn check(&self) -> Result<(), Problem> {
        let address = match self.tracker()? {
            Tracker::Mlflow(address) => Some(("mlflow", address)),
            Tracker::Trackio(address) => Some(("trackio", address)),
            Tracker::Wandb => None,
        };
        if let Some((key, address)) = address
            && !is_address(address)
        {
            // What it holds may be a password.
            let message = "expected the address of a server, such as `http://localhost:5000`, without user, password or query";
            return Err(Problem::new(key, message));
        }
        if self.experiment.trim().is_empty() {
            return Err(Problem::new("experiment", "expected a name, found none"));
        }
        Ok(())
    }
}

fn without_slash(address: &str) -> &str {
    address.trim_end_matches('/')
}

fn is_address(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, rest)| {
        ["http", "https"].contains(&scheme)
            && !rest.is_empty()
            && !rest.contains(['@', '?', '#', ' '])
    })
}

//! The `[track]` table.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::recipe::problem::Problem;

/// The experiment where nothing is said.
pub const EXPERIMENT: &str = "spectrain";

/// A tracking server that gets a run's figures beside the run's own files. It never stops or slows a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrackTable {
    /// Required. Address of an MLflow tracking server, such as `http://localhost:5000`. User and password, or a token, are those of
    /// MLflow's own variables (`MLFLOW_TRACKING_USERNAME`, `MLFLOW_TRACKING_PASSWORD`, `MLFLOW_TRACKING_TOKEN`).
    pub mlflow: String,
    /// The experiment of that server, which is made where it is not there.
    #[serde(default = "experiment")]
    pub experiment: String,
}

fn experiment() -> String {
    EXPERIMENT.to_owned()
}

impl TrackTable {
    /// Checks what the types cannot say.
    pub fn check(&self) -> Result<(), Problem> {
        let address = self.mlflow.split_once("://");
        let is_address = address.is_some_and(|(scheme, rest)| {
            ["http", "https"].contains(&scheme)
                && !rest.is_empty()
                && !rest.contains(['@', '?', '#', ' '])
        });
        if !is_address {
            // What it holds may be a password.
            let message = "expected the address of a server, such as `http://localhost:5000`, without user, password or query";
            return Err(Problem::new("mlflow", message));
        }
        if self.experiment.trim().is_empty() {
            return Err(Problem::new("experiment", "expected a name, found none"));
        }
        Ok(())
    }
}

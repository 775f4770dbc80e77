//! The `[track]` table.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::recipe::problem::Problem;

/// The experiment where nothing is said.
pub const EXPERIMENT: &str = "spectrain";

/// A tracking server that gets a run's figures beside the run's own files. It never stops or slows a run. One of `mlflow` and `trackio`
/// says where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrackTable {
    /// Address of an MLflow tracking server, such as `http://localhost:5000`. User and password, or a token, are those of
    /// MLflow's own variables (`MLFLOW_TRACKING_USERNAME`, `MLFLOW_TRACKING_PASSWORD`, `MLFLOW_TRACKING_TOKEN`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mlflow: Option<String>,
    /// Address of a trackio server, such as `http://localhost:7860`, or of a Space that runs one. Its token is that of
    /// `TRACKIO_WRITE_TOKEN`, for a Space that of `HF_TOKEN`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trackio: Option<String>,
    /// The experiment of an MLflow server, or the project of a trackio server. It is made where it is not there.
    #[serde(default = "experiment")]
    pub experiment: String,
}

/// Where a tracking server is, by its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerAddress<'a> {
    /// Of MLflow.
    Mlflow(&'a str),
    /// Of trackio.
    Trackio(&'a str),
}

fn experiment() -> String {
    EXPERIMENT.to_owned()
}

impl TrackTable {
    /// The server.
    ///
    /// # Errors
    /// None is named, or two are.
    pub fn server(&self) -> Result<ServerAddress<'_>, Problem> {
        match (&self.mlflow, &self.trackio) {
            (Some(address), None) => Ok(ServerAddress::Mlflow(address)),
            (None, Some(address)) => Ok(ServerAddress::Trackio(address)),
            (None, None) => Err(Problem::new(
                "mlflow",
                "expected this key or `trackio`, found neither",
            )),
            (Some(_), Some(_)) => Err(Problem::new(
                "trackio",
                "expected one server, found this key and `mlflow`",
            )),
        }
    }

    /// Checks what the types cannot say.
    pub fn check(&self) -> Result<(), Problem> {
        let (key, address) = match self.server()? {
            ServerAddress::Mlflow(address) => ("mlflow", address),
            ServerAddress::Trackio(address) => ("trackio", address),
        };
        let is_address = address.split_once("://").is_some_and(|(scheme, rest)| {
            ["http", "https"].contains(&scheme)
                && !rest.is_empty()
                && !rest.contains(['@', '?', '#', ' '])
        });
        if !is_address {
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

impl<'a> ServerAddress<'a> {
    /// The address, without a slash at its end.
    pub fn address(self) -> &'a str {
        let (Self::Mlflow(address) | Self::Trackio(address)) = self;
        address.trim_end_matches('/')
    }
}

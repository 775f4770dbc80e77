//! Arguments of `spectrain evaluate` that are about servers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use spectrain_eval::served::report::Role;

use super::served_model::ServedModel;
use crate::errors::Misuse;
use crate::runtime::server::client::Client;
use crate::runtime::server::key::ApiKey;

/// Which servers are measured, and with how many requests under way.
#[derive(Debug, clap::Args)]
pub struct ServedArguments {
    /// A vLLM or SGLang server with a drafter, such as `http://localhost:8000`: measures what it accepts and how fast it is, on
    /// the same prompts
    #[arg(long, value_name = "URL")]
    pub(super) server: Option<String>,
    /// A server of the same engine without a drafter, to measure the speed-up and check that decoding is lossless
    #[arg(long, value_name = "URL", requires = "server")]
    pub(super) baseline_server: Option<String>,
    /// Number of concurrent requests; may be repeated
    #[arg(long, value_name = "N", default_values_t = [1, 4, 16, 64], requires = "server", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) concurrency: Vec<u16>,
    /// The model's name on the server; without it, the only model that the server has
    #[arg(long, value_name = "NAME", requires = "server")]
    pub(super) model: Option<String>,
    /// The model's name on the baseline server; without it, the only model that this server has
    #[arg(long, value_name = "NAME", requires = "baseline_server")]
    pub(super) baseline_model: Option<String>,
    /// The environment variable that holds the servers' API key
    #[arg(long, value_name = "VAR", requires = "server")]
    pub(super) api_key_env: Option<String>,
    /// Seconds after which an incomplete answer counts as failed
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 600.0,
        requires = "server"
    )]
    pub(super) timeout: f64,
}

/// The servers to measure.
pub(super) struct Servers {
    /// The one with a drafter.
    pub(super) drafter: Arc<ServedModel>,
    /// The one without.
    pub(super) baseline: Option<Arc<ServedModel>>,
}

impl ServedArguments {
    /// Finds the servers and their models; none where none was asked for.
    pub(super) fn connect(&self) -> Result<Option<Servers>> {
        let Some(server) = &self.server else {
            return Ok(None);
        };
        if !(0.001..1e9).contains(&self.timeout) {
            return Err(Misuse("`--timeout`: expected seconds, at least 0.001".into()).into());
        }
        for (at, number) in self.concurrency.iter().enumerate() {
            if self.concurrency[..at].contains(number) {
                return Err(Misuse(format!("`--concurrency {number}` twice")).into());
            }
        }
        let drafter = self.client("--server", server)?;
        let baseline = self.baseline_server.as_ref();
        let baseline = baseline.map(|url| self.client("--baseline-server", url));
        let baseline = baseline.transpose()?;
        if baseline
            .as_ref()
            .is_some_and(|other| other.root() == drafter.root())
        {
            let message = "`--baseline-server`: expected a server without a drafter, found that of `--server`";
            return Err(Misuse(message.into()).into());
        }
        let model = self.model.as_deref();
        let drafter = ServedModel::find(Role::Drafter, drafter, model, "--model")?;
        let model = self.baseline_model.as_deref();
        let found = |client| ServedModel::find(Role::Baseline, client, model, "--baseline-model");
        let baseline = baseline.map(found).transpose()?;
        Ok(Some(Servers {
            drafter: Arc::new(drafter),
            baseline: baseline.map(Arc::new),
        }))
    }

    fn client(&self, option: &str, url: &str) -> Result<Client> {
        let key = self.api_key_env.as_deref();
        let key = key
            .map(|name| ApiKey::read("--api-key-env", name))
            .transpose()?;
        Client::new(option, url, key, Duration::from_secs_f64(self.timeout))
    }
}

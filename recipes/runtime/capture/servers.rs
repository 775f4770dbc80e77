//! The servers of a recipe's target, found, measured and proven before anything is taken from them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use spectrain_data::regenerate::Retry;
use spectrain_models::{Capture, TargetParts};

use crate::cli::progress::Output;
use crate::errors::Misuse;
use crate::recipe::tables::{FeaturesTable, TargetTable};
use crate::runtime::capture::file::SharedFolder;
use crate::runtime::capture::in_order::Pace;
use crate::runtime::capture::layers::check_layers;
use crate::runtime::capture::proof::{LastState, Proof, prove};
use crate::runtime::capture::server::{Asked, CaptureServer, CaptureSettings, Captured};
use crate::runtime::server::client::reason;

/// Samples by which a server is proven.
pub const PROVEN: usize = 4;
/// Tries of a request after the first.
const RETRIES: u32 = 8;

/// The servers of a target, proven.
#[derive(Clone)]
pub struct Servers {
    /// Each of them.
    pub servers: Vec<Arc<CaptureServer>>,
    /// What was found of each.
    pub proofs: Vec<Proof>,
    /// What the drafter reads of the target.
    pub layers: Capture,
    /// What it shares of it.
    pub target: TargetParts,
    /// How they are asked.
    pub pace: Pace,
}

impl Servers {
    /// Finds the servers that a recipe names.
    ///
    /// # Errors
    /// One is not there or has another model.
    pub fn connect(
        table: &TargetTable,
        features: &FeaturesTable,
        layers: Capture,
        target: TargetParts,
    ) -> Result<Self> {
        let Some(on_server) = table.server_folder.clone() else {
            return Err(Misuse("`target.server_folder` is missing: the folder into which the servers write hidden states".into()).into());
        };
        let key = table.api_key_env.as_ref().map(|name| {
            std::env::var(name)
                .with_context(|| format!("`target.api_key_env`: the environment has no `{name}`"))
        });
        let settings = CaptureSettings {
            model: table.server_model.clone(),
            key: key.transpose()?,
            folder: SharedFolder {
                here: table
                    .local_folder
                    .clone()
                    .unwrap_or_else(|| on_server.clone()),
                on_server,
            },
            layers: layers.layers.clone(),
            target_layers: target.spec.layers,
            d_model: target.spec.d_model,
            timeout: Duration::from_secs(features.timeout),
        };
        let connect = |url: &String| CaptureServer::connect(url, settings.clone()).map(Arc::new);
        let servers = table
            .server
            .iter()
            .map(connect)
            .collect::<Result<Vec<_>>>()?;
        if servers.is_empty() {
            return Err(Misuse(
                "`target.server` is missing: the servers that hand out the target's hidden states"
                    .into(),
            )
            .into());
        }
        Ok(Self {
            proofs: Vec::new(),
            pace: Pace {
                under_way: features.under_way,
                ahead: 4 * features.under_way * servers.len(),
                retry: Retry {
                    retries: RETRIES,
                    first: Duration::from_millis(250),
                    longest: Duration::from_secs(30),
                },
            },
            servers,
            layers,
            target,
        })
    }

    /// Fails where texts of these lengths, with what the server adds to them, are longer than a server takes. The user is told
    /// `what` they are, and what makes them shorter.
    pub fn check_lengths(&self, lengths: &[usize], (what, or): (&str, &str)) -> Result<()> {
        for server in &self.servers {
            let Some(longest) = server.longest else {
                continue;
            };
            let beyond = lengths.iter().copied().filter(|&length| length > longest);
            let beyond: Vec<usize> = beyond.collect();
            if let Some(most) = beyond.iter().max() {
                bail!(
                    "the server `{}` takes texts of {longest} tokens, its `max_model_len`; {} {what} are longer, up to {most} tokens: \
                     start it with `--max-model-len {most}`, or {or}",
                    server.url(),
                    beyond.len(),
                );
            }
        }
        Ok(())
    }

    /// Proves each server by the first of these texts.
    ///
    /// # Errors
    /// A server has another model or other states than it says, or gives the last state in another form than the others.
    pub fn prove(&mut self, texts: &[Vec<u32>], output: Output) -> Result<()> {
        for server in &self.servers {
            let asked = |tokens: &Vec<u32>| Asked {
                tokens: tokens.clone(),
                log_probabilities: true,
                ..Asked::default()
            };
            let found = texts.iter().take(PROVEN).map(|tokens| {
                let captured = server.capture(&asked(tokens));
                captured.map_err(|failure| {
                    anyhow!("the server `{}`: {}", server.url(), reason(failure))
                })
            });
            let found = found.collect::<Result<Vec<Captured>>>()?;
            let mut proof = prove(&found, &self.target)
                .with_context(|| format!("the server `{}`", server.url()))?;
            proof.layers = check_layers(&found, &self.layers, &self.target)
                .with_context(|| format!("the server `{}`", server.url()))?;
            output.say(format!(
                "features: `{}` hands out the target's states: {:.1} % of {} places agree, log-probabilities {:.4} nats apart",
                server.url(),
                100.0 * proof.agreement,
                proof.places,
                proof.mean_difference
            ));
            match &proof.layers[..] {
                [] => output.say("features: which layers they are of is not checked, as the first ones are not computed here"),
                fits => output.say(format!(
                    "features: {} of {} captured layers compared with those computed here, at most {:.4} of their size apart",
                    fits.len(),
                    self.layers.layers.len(),
                    fits.iter().map(|fit| fit.distance).fold(0.0, f64::max)
                )),
            }
            self.proofs.push(proof);
        }
        let first = self.last_state();
        let other = self
            .proofs
            .iter()
            .position(|proof| proof.last_state != first);
        if let Some(other) = other {
            bail!(
                "`{}` hands out the last state {first}, `{}` {}: expected servers of one version, as their samples are mixed",
                self.servers[0].url(),
                self.servers[other].url(),
                self.proofs[other].last_state
            );
        }
        Ok(())
    }

    /// What the last state of their files is.
    pub fn last_state(&self) -> LastState {
        self.proofs[0].last_state
    }
}

//! The servers of a recipe's target, found, measured and proven before anything is taken from them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rand::{SeedableRng, rngs::StdRng};
use spectrain_data::regenerate::Failure;
use spectrain_models::{Capture, TargetParts, TargetSpec};

use crate::errors::Misuse;
use crate::progress::Output;
use crate::recipe::tables::{FeaturesTable, TargetTable};
use crate::runtime::capture::file::SharedFolder;
use crate::runtime::capture::in_order::{Asking, Pace};
use crate::runtime::capture::layers::FirstLayers;
use crate::runtime::capture::proof::{LastState, Proof, prove};
use crate::runtime::capture::server::{
    Asked, CaptureServer, CaptureSettings, Captured, NAMED, ServedTarget,
};
use crate::runtime::capture::stored::{Bits, bits};
use crate::runtime::interruption::interrupted;
use crate::runtime::server::client::Client;
use crate::runtime::server::key::ApiKey;
use crate::runtime::sizes::class_of;

/// Samples by which a server is proven.
pub const PROVEN: usize = 4;
/// Tries of a request by which a server is proven.
const TRIES_OF_PROOF: u32 = 4;

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
    /// Finds the servers that a recipe names, once they are there. One of several that is not is left out, which the user is told.
    ///
    /// # Errors
    /// None is there, or one has another model.
    pub fn connect(
        table: &TargetTable,
        features: &FeaturesTable,
        layers: Capture,
        target: TargetParts,
        asking: Asking,
    ) -> Result<Self> {
        let settings = settings(table, features, &layers, &target.spec)?;
        let clients = table.server.iter().map(|url| settings.client(url));
        let clients = clients.collect::<Result<Vec<_>>>()?;
        let all: Vec<&Client> = clients.iter().collect();
        let found = asking.waiting.until_there(&all, all.len())?;
        let is_there = found.iter().any(|found| found.is_ok());
        let mut servers = Vec::new();
        for (url, found) in table.server.iter().zip(found) {
            match (found, CaptureServer::connect(url, settings.clone())) {
                (Err(silent), Err(_)) if is_there => asking
                    .waiting
                    .output
                    .warn(format!("{silent}; this server is not used")),
                (_, server) => servers.push(Arc::new(server?)),
            }
        }
        if servers.is_empty() {
            return Err(Misuse(
                "`target.server` is missing: the servers that hand out the target's hidden states"
                    .into(),
            )
            .into());
        }
        Ok(Self {
            proofs: Vec::new(),
            pace: Pace::of(features.under_way, servers.len(), asking),
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

    /// Proves each server by the first of these texts. One of several that does not answer is left out, which the user is told.
    ///
    /// # Errors
    /// A server has another model or other states than it says, or gives the last state in another form than the others; or none
    /// answers.
    pub fn prove(&mut self, texts: &[Vec<u32>], output: Output) -> Result<()> {
        self.warn_of_abandoned(output);
        let first_layers = FirstLayers::load(&self.layers, &self.target);
        let (mut answering, mut silent) = (Vec::new(), Vec::new());
        for server in std::mem::take(&mut self.servers) {
            let named = || format!("the server `{}`", server.url());
            let breaks = server.client().breaks();
            let found = match self.captured(&server, texts) {
                Ok(found) => found,
                Err((sample, Failure::Passing { reason, .. })) => {
                    silent.push(format!("{}, sample {sample}: {reason}", named()));
                    continue;
                }
                Err((sample, Failure::Lasting { reason })) => {
                    bail!("{}, sample {sample}: {reason}", named())
                }
            };
            let mut proof = prove(&found, &self.target).with_context(named)?;
            let last_state = proof.last_state;
            self.check_last_layer(last_state).with_context(named)?;
            if let Some(first) = &first_layers {
                proof.layers = first.compare(&found).with_context(named)?;
            }
            tell(&proof, server.url(), self.layers.layers.len(), output);
            server.remember(&found, breaks);
            self.proofs.push(proof);
            answering.push(server);
        }
        if answering.is_empty() {
            bail!("{}", silent.join("; "));
        }
        for reason in silent {
            output.warn(format!("{reason}; this server is not used"));
        }
        self.servers = answering;
        let first = self.last_state();
        let others = self.servers.iter().zip(&self.proofs);
        if let Some((other, proof)) = others.skip(1).find(|(_, proof)| proof.last_state != first) {
            bail!(
                "`{}` hands out the last state {first}, `{}` {}: expected servers of one version, because their samples are \
                 mixed",
                self.servers[0].url(),
                other.url(),
                proof.last_state
            );
        }
        Ok(())
    }

    /// Fails where the last layer's output is captured as it is before the final norm, and the server hands out what the norm has made
    /// of it.
    fn check_last_layer(&self, last_state: LastState) -> Result<()> {
        let last = self.layers.layers.last();
        if let Some(last) = last.filter(|&&last| last + 1 == self.target.spec.layers)
            && last_state == LastState::AfterNorm
        {
            bail!(
                "hands out the output of the last layer, {last}, {last_state} alone, and the drafter reads it {}: use a server that \
                 hands it out before the norm, or a drafter that does not read it so (`drafter.captured_layers`; of `recipe = \"mtp\"` \
                 `drafter.after_final_norm = true`)",
                LastState::BeforeNorm
            );
        }
        Ok(())
    }

    /// The features of what a server handed out.
    ///
    /// # Errors
    /// As of [`bits`].
    pub fn bits(&self, captured: &Captured) -> Result<Bits> {
        let layers = self.layers.layers.len();
        bits(captured, layers, self.last_state(), &self.target)
    }

    /// Tells of files that take up the folder and that nobody will read.
    fn warn_of_abandoned(&self, output: Output) {
        let Some(settings) = self.servers.first().map(|server| server.settings()) else {
            return;
        };
        let Some(folder) = &settings.folder else {
            return;
        };
        let abandoned = folder.abandoned(settings.timeout);
        if let Some(told) = abandoned.told(&folder.here, NAMED.timeout) {
            output.warn(told);
        }
    }

    /// What a server hands out for the first of these texts, with the served model's own log-probabilities.
    ///
    /// # Errors
    /// It does not hand out the states of a text, which is named by its number.
    fn captured(
        &self,
        server: &CaptureServer,
        texts: &[Vec<u32>],
    ) -> std::result::Result<Vec<Captured>, (usize, Failure)> {
        let mut rng = StdRng::seed_from_u64(0);
        let mut one = |tokens: &Vec<u32>| {
            let asked = Asked {
                tokens: tokens.clone(),
                log_probabilities: true,
                ..Asked::default()
            };
            let mut tries = 0;
            loop {
                tries += 1;
                match server.capture(&asked) {
                    Err(Failure::Passing { wait, .. })
                        if tries < TRIES_OF_PROOF && !interrupted() =>
                    {
                        std::thread::sleep(self.pace.retry.pause(tries, wait, &mut rng));
                    }
                    ended => return ended,
                }
            }
        };
        let named = |(sample, tokens)| one(tokens).map_err(|failure| (sample, failure));
        texts.iter().take(PROVEN).enumerate().map(named).collect()
    }

    /// What the last state of their files is.
    pub fn last_state(&self) -> LastState {
        self.proofs[0].last_state
    }
}

/// Fails where a table names a folder of this machine alone, and not what the servers call it.
pub fn check_folders(table: &TargetTable) -> Result<(), Misuse> {
    if table.server_folder.is_none() && table.local_folder.is_some() {
        return Err(Misuse("`target.server_folder` is missing: what the servers call `target.local_folder`, into which they write hidden states".into()));
    }
    Ok(())
}

/// How the servers that a recipe names are asked.
///
/// # Errors
/// The recipe names a folder of this machine alone, or a key that the environment lacks.
pub fn settings(
    table: &TargetTable,
    features: &FeaturesTable,
    layers: &Capture,
    target: &TargetSpec,
) -> Result<CaptureSettings> {
    check_folders(table)?;
    let folder = table.server_folder.clone().map(|on_server| SharedFolder {
        here: table
            .local_folder
            .clone()
            .unwrap_or_else(|| on_server.clone()),
        on_server,
    });
    let model = table.model.as_deref();
    let class = model.and_then(|model| class_of(model, table.revision.as_deref()));
    let key = table.api_key_env.as_deref();
    let key = key.map(|name| ApiKey::read("target.api_key_env", name));
    Ok(CaptureSettings {
        target: ServedTarget {
            model: table.model.clone(),
            revision: table.revision.clone(),
            class,
        },
        model: table.server_model.clone(),
        key: key.transpose()?,
        folder,
        layers: layers.layers.clone(),
        target_layers: target.layers,
        d_model: target.d_model,
        timeout: Duration::from_secs(features.timeout),
    })
}

/// Tells what was found of a server's states.
fn tell(proof: &Proof, url: &str, layers: usize, output: Output) {
    output.say(format!(
        "features: `{url}` hands out the target's states: {:.1} % of {} places agree, log-probabilities {:.4} nats apart",
        100.0 * proof.agreement,
        proof.places,
        proof.mean_difference
    ));
    match &proof.layers[..] {
        [] => output.say(
            "features: which layers the states come from is not checked, because the first layers are not computed here",
        ),
        fits => output.say(format!(
            "features: {} of {layers} captured layers compared with those computed here, at most {:.4} of their size apart",
            fits.len(),
            fits.iter().map(|fit| fit.distance).fold(0.0, f64::max)
        )),
    }
}

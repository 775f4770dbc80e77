//! Hidden states that servers of the target hand out, written to the disk: of the samples to train on, of held-out ones for the
//! loss of validations, and of the target's answers to held-out prompts, by which drafters are judged.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use spectrain_checkpoints::hash::sha256_bytes;
use spectrain_data::features::{FeatureHeader, StoredSample};
use spectrain_data::regenerate::Retry;
use spectrain_data::seed::mix;
use spectrain_data::tokens::TokenShards;
use spectrain_models::{Capture, Sampling, TargetParts, load_parts};

use crate::errors::Misuse;
use crate::runtime::capture::file::SharedFolder;
use crate::runtime::capture::in_order::{Pace, Share, capture};
use crate::runtime::capture::proof::{Proof, prove};
use crate::runtime::capture::server::{Answering, Asked, CaptureServer, CaptureSettings, Captured};
use crate::runtime::capture::stored::bits;
use crate::runtime::prompts::spread;
use crate::runtime::target;
use crate::stages::context::StageContext;
use crate::stages::features::header::header;
use crate::stages::prepare;

/// Samples by which a server is proven.
const PROVEN: usize = 4;
/// Tries of a request after the first.
const RETRIES: u32 = 8;

/// Where the features of held-out samples are in the stage's folder.
pub const HELD_OUT: &str = "held_out";

/// Where the features of answers that were written at a temperature are in the stage's folder.
pub fn answers_at(temperature: f64) -> String {
    format!("answers-{temperature}")
}

/// The servers of a target, proven.
struct Servers<'a> {
    context: &'a StageContext<'a>,
    servers: Vec<Arc<CaptureServer>>,
    proofs: Vec<Proof>,
    /// What the drafter reads of the target.
    layers: Capture,
    target: TargetParts,
    pace: Pace,
    shares: Vec<Share>,
}

/// Runs the stage.
pub(super) fn run(context: &StageContext) -> Result<Value> {
    let tokens = TokenShards::open(context.folder("prepare").join("train"))?;
    let held_out = TokenShards::open(context.folder("prepare").join("eval"))?;
    let folder = context.target_folder()?;
    let layers = context.recipe.method.capture(&target::spec(&folder)?)?;
    let target = load_parts(&folder, &context.device, context.dtype)?;
    let mut servers = Servers::connect(context, layers, target)?;
    servers.check_lengths([&tokens, &held_out])?;
    servers.prove(&tokens)?;
    let started = Instant::now();
    let stage = context.features_folder();
    let resumed = servers.write(&stage, "features", &tokens)?;
    servers.write(&stage.join(HELD_OUT), "held out", &held_out)?;
    let stop = target::stop_tokens_in(&folder)?;
    for sampling in context.recipe.evaluate.samplings() {
        servers.write_answers(&stage, &stop, sampling)?;
    }
    let seconds = started.elapsed().as_secs_f64();
    Ok(json!({
        "samples": tokens.len(),
        "resumed_at": resumed,
        "tokens_per_second": servers.shares.iter().map(|share| share.tokens).sum::<u64>() as f64 / seconds.max(1e-9),
        "servers": servers.told(),
    }))
}

impl<'a> Servers<'a> {
    fn connect(context: &'a StageContext, layers: Capture, target: TargetParts) -> Result<Self> {
        let table = &context.recipe.target;
        let Some(on_server) = table.server_folder.clone() else {
            return Err(Misuse("`target.server_folder` is missing: the folder into which the servers write hidden states".into()).into());
        };
        let features = &context.recipe.features;
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
            shares: vec![Share::default(); servers.len()],
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
            context,
            layers,
            target,
        })
    }

    /// Fails where samples are longer than a server takes, before anything is asked.
    fn check_lengths(&self, sets: [&TokenShards; 2]) -> Result<()> {
        for server in &self.servers {
            let Some(longest) = server.longest else {
                continue;
            };
            let lengths = sets.iter().flat_map(|set| set.lengths());
            let (mut beyond, mut most) = (0, 0);
            // The server generates one token more.
            for length in lengths.filter(|length| length + 1 > longest) {
                beyond += 1;
                most = most.max(length);
            }
            if beyond > 0 {
                bail!(
                    "the server `{}` takes texts of {longest} tokens, its `max_model_len`; {beyond} samples are longer, up to {most} tokens: \
                     start it with `--max-model-len {}`, or set `data.max_length`",
                    server.url(),
                    most + 1
                );
            }
        }
        Ok(())
    }

    /// Proves each server by some samples.
    fn prove(&mut self, tokens: &TokenShards) -> Result<()> {
        for server in &self.servers {
            let found: Vec<Captured> = (0..PROVEN.min(tokens.len()))
                .map(|sample| {
                    let asked = Asked {
                        tokens: tokens.get(sample).tokens.to_vec(),
                        log_probabilities: true,
                        ..Asked::default()
                    };
                    server.capture(&asked).map_err(|failure| {
                        let reason = crate::runtime::server::client::reason(failure);
                        anyhow::anyhow!("the server `{}`: {reason}", server.url())
                    })
                })
                .collect::<Result<_>>()?;
            let proof = prove(&found, &self.target)
                .with_context(|| format!("the server `{}`", server.url()))?;
            self.context.output.say(format!(
                "features: `{}` hands out the target's states: {:.1} % of {} places agree, log-probabilities {:.4} nats apart",
                server.url(),
                100.0 * proof.agreement,
                proof.places,
                proof.mean_difference
            ));
            self.proofs.push(proof);
        }
        Ok(())
    }

    /// Writes the features of all samples. Says where it went on.
    fn write(&mut self, folder: &Path, what: &str, tokens: &TokenShards) -> Result<usize> {
        let ask = |sample: usize| Asked {
            tokens: tokens.get(sample).tokens.to_vec(),
            ..Asked::default()
        };
        let mask = |sample: usize, _: &Captured| tokens.get(sample).loss_mask.to_vec();
        let header = self.header(tokens.fingerprint())?;
        self.fill(folder, header, (what, tokens.len()), &ask, &mask)
    }

    /// Writes the target's answers to held-out prompts and their features.
    fn write_answers(&mut self, stage: &Path, stop: &[u32], sampling: Sampling) -> Result<()> {
        let (context, recipe) = (self.context, self.context.recipe);
        let prompts = spread(
            prepare::prompts(context.run)?,
            recipe.evaluate.of_eval().max(recipe.train.decode_prompts),
        );
        if prompts.is_empty() {
            return Ok(());
        }
        let longest = recipe.evaluate.max_new_tokens;
        let of = json!([prompts, sampling, longest, stop, recipe.evaluate.seed]);
        let header = self.header(sha256_bytes(of.to_string().as_bytes()))?;
        let ask = |sample: usize| Asked {
            tokens: prompts[sample].clone(),
            answer: Some(Answering {
                max_new_tokens: longest,
                sampling,
                seed: mix(recipe.evaluate.seed, sample as u64),
                stop: stop.to_vec(),
            }),
            log_probabilities: false,
        };
        let mask = |sample: usize, captured: &Captured| {
            let mut mask = vec![0; prompts[sample].len()];
            mask.resize(captured.tokens.len(), 1);
            mask
        };
        let folder = stage.join(answers_at(sampling.temperature));
        let what = format!("answers at T={}", sampling.temperature);
        self.fill(&folder, header, (&what, prompts.len()), &ask, &mask)
            .map(drop)
    }

    /// What features of texts with this fingerprint are of.
    fn header(&self, tokens_fingerprint: String) -> Result<FeatureHeader> {
        let d_model = self.target.spec.d_model;
        header(self.context, &self.layers, tokens_fingerprint, d_model)
    }

    /// Writes what is asked for, from where an earlier run stopped.
    fn fill(
        &mut self,
        folder: &Path,
        header: FeatureHeader,
        (what, end): (&str, usize),
        ask: &(dyn Fn(usize) -> Asked + Sync),
        mask: &dyn Fn(usize, &Captured) -> Vec<u8>,
    ) -> Result<usize> {
        let share = self.context.array.share(end);
        if share.is_empty() {
            return Ok(end);
        }
        let end = share.end as usize;
        let mut writer = self.context.feature_writer(folder, header, share)?;
        let first = writer.next_sample() as usize;
        let mut progress = self.context.progress(what, end as u64);
        let last_state = self.proofs[0].last_state;
        let target = &self.target;
        let mut write = |sample: usize, captured: Captured| {
            let rows = captured.states.tokens.len();
            let mut found =
                bits(&captured, last_state, target).with_context(|| format!("sample {sample}"))?;
            let mask = mask(sample, &captured);
            // The last token of an answer has no state: nothing is drafted behind it.
            let [slots, d_model] = [1, 2].map(|axis| captured.states.states.shape[axis]);
            found
                .captured
                .resize(captured.tokens.len() * (slots - 1) * d_model, 0);
            found.last.resize(captured.tokens.len() * d_model, 0);
            debug_assert!(rows + 1 >= captured.tokens.len());
            writer.push(&StoredSample {
                tokens: &captured.tokens,
                loss_mask: &mask,
                captured: &found.captured,
                last: &found.last,
            })?;
            progress.set(1 + sample as u64, "samples");
            Ok(())
        };
        let shares = capture(&self.servers, first..end, &self.pace, ask, &mut write);
        let shares = match shares {
            Ok(shares) => shares,
            Err(error) => {
                writer.pause()?;
                return Err(error);
            }
        };
        let written = writer.finish()?;
        let files = written
            .into_iter()
            .map(|(file, sha256)| (folder.join(file), sha256));
        self.context
            .run
            .remember(files.collect::<Vec<(PathBuf, String)>>())?;
        progress.finish(format!("{end} samples"));
        for (sum, share) in self.shares.iter_mut().zip(shares) {
            sum.samples += share.samples;
            sum.tokens += share.tokens;
            sum.seconds += share.seconds;
            sum.failed += share.failed;
        }
        Ok(first)
    }

    /// What each server did.
    fn told(&self) -> Vec<Value> {
        let each = self.servers.iter().zip(&self.shares).zip(&self.proofs);
        each.map(|((server, share), proof)| {
            json!({
                "url": server.url(),
                "samples": share.samples,
                "tokens": share.tokens,
                "seconds_of_requests": share.seconds,
                "failed_requests": share.failed,
                "proof": proof,
            })
        })
        .collect()
    }
}

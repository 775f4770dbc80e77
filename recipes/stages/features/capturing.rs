//! What servers hand out, written into folders of stored features.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use spectrain_data::features::{FeatureHeader, FeatureWriter, SampleRange};
use spectrain_data::tokens::TokenShards;
use spectrain_models::load_parts;

use crate::progress::counted;
use crate::runtime::capture::in_order::{Share, capture};
use crate::runtime::capture::server::{Asked, Captured};
use crate::runtime::capture::servers::Servers;
use crate::runtime::capture::stored::Bits;
use crate::runtime::target;
use crate::stages::context::StageContext;
use crate::stages::features::header::header;
use crate::stages::features::known::Known;
use crate::stages::features::servers;

/// Asks servers and writes what they hand out.
pub struct Capturing<'a> {
    context: &'a StageContext<'a>,
    servers: Servers,
    shares: Vec<Share>,
    since: Instant,
}

/// Where features go, in the order of the samples.
struct Sink<'a> {
    writer: FeatureWriter,
    texts: &'a Texts<'a>,
    known: &'a Known,
}

impl Sink<'_> {
    /// Adds the next sample.
    fn push(&mut self, sample: usize, tokens: &[u32], found: &Bits) -> Result<()> {
        let mask = (self.texts.mask)(sample, tokens);
        Ok(self.writer.push(&found.sample(tokens, &mask))?)
    }

    /// Adds the samples before this one, all of which are known.
    fn known_until(&mut self, sample: usize) -> Result<()> {
        while (self.writer.next_sample() as usize) < sample {
            let next = self.writer.next_sample() as usize;
            let tokens = (self.texts.ask)(next).tokens;
            let found = self.known.of(&tokens);
            let found = found.with_context(|| format!("sample {next} has no features"))?;
            self.push(next, &tokens, &found)?;
        }
        Ok(())
    }
}

/// Puts a text into words.
type Ask<'a> = dyn Fn(usize) -> Asked + Sync + 'a;
/// Says which of a text's tokens are trained on.
type Mask<'a> = dyn Fn(usize, &[u32]) -> Vec<u8> + 'a;

/// Texts of which features are written.
pub struct Texts<'a> {
    /// What the user is told that they are.
    pub what: String,
    /// How many there are.
    pub count: usize,
    /// Fingerprint of all that decides what they are.
    pub fingerprint: String,
    /// Puts one into words.
    pub ask: Box<Ask<'a>>,
    /// Says which of all its tokens are trained on.
    pub mask: Box<Mask<'a>>,
    /// Whether they may be among those of `features.from`.
    pub may_be_known: bool,
}

impl<'a> Capturing<'a> {
    /// Finds and proves the servers of the recipe, by samples of the first of `sets`.
    pub fn open(context: &'a StageContext, sets: [&TokenShards; 2]) -> Result<Self> {
        let folder = context.target_folder()?;
        let layers = context.recipe.method.capture(&target::spec(&folder)?)?;
        let target = load_parts(&folder, &context.device, context.target_type.dtype)?;
        // Features are captured by one process alone, or by tasks of an array job that do not know of each other.
        let servers = servers::open(context, 1, layers, target, sets)?;
        Ok(Self {
            context,
            shares: vec![Share::default(); servers.servers.len()],
            servers,
            since: Instant::now(),
        })
    }

    /// Writes the features of texts, from where an earlier run stopped: those that are known already, and those that servers hand
    /// out. Says where it went on, and how many were known.
    pub fn write(&mut self, folder: &Path, texts: Texts) -> Result<[usize; 2]> {
        let context = self.context;
        let header = self.header(folder, texts.fingerprint.clone())?;
        let share = context.array.share(texts.count);
        let end = share.end as usize;
        if share.is_empty() {
            return Ok([end, 0]);
        }
        let known = self.known(&header, &texts, share)?;
        let writer = context.feature_writer(folder, header, share)?;
        let first = writer.next_sample() as usize;
        let to_write = writer.missing(share.end).into_iter().flatten();
        let to_write: Vec<usize> = to_write.map(|sample| sample as usize).collect();
        let is_asked = |sample: &usize| !known.has(&(texts.ask)(*sample).tokens);
        let missing: Vec<usize> = to_write.iter().copied().filter(is_asked).collect();
        let mut progress = context.progress(&texts.what, share.end);
        let mut sink = Sink {
            writer,
            texts: &texts,
            known: &known,
        };
        let servers = &self.servers;
        let mut take = |place: usize, captured: Captured| {
            let sample = missing[place];
            sink.known_until(sample)?;
            let found = servers.bits(&captured);
            let found = found.with_context(|| format!("sample {sample}"))?;
            sink.push(sample, &captured.tokens, &found)?;
            progress.set(1 + sample as u64, "samples");
            Ok(())
        };
        let ask = |place: usize| (texts.ask)(missing[place]);
        let places = 0..missing.len();
        let shares = capture(&servers.servers, places, &servers.pace, &ask, &mut take);
        let shares = shares.and_then(|shares| sink.known_until(end).map(|()| shares));
        let shares = match shares {
            Ok(shares) => shares,
            Err(error) => {
                // What came first is the cause, as of a disk that is full.
                if let Err(further) = context.pause_features(sink.writer, folder) {
                    context.output.warn(further);
                }
                return Err(error);
            }
        };
        context.finish_features(sink.writer, folder)?;
        progress.finish(counted(share.end - share.first, "sample"));
        for (sum, share) in self.shares.iter_mut().zip(shares) {
            sum.add(&share);
        }
        Ok([first, to_write.len() - missing.len()])
    }

    /// Features that are there already, of this share of the texts if they may be among them.
    fn known(&self, header: &FeatureHeader, texts: &Texts, share: SampleRange) -> Result<Known> {
        let folders = match texts.may_be_known {
            true => &self.context.recipe.features.from[..],
            false => &[],
        };
        let texts = (share.first..share.end).map(|sample| (texts.ask)(sample as usize).tokens);
        let known = Known::open(self.context, folders, header, texts);
        known.context("`features.from`")
    }

    /// What features of texts with this fingerprint are of in a folder.
    fn header(&self, folder: &Path, tokens_fingerprint: String) -> Result<FeatureHeader> {
        let d_model = self.servers.target.spec.d_model;
        header(
            self.context,
            folder,
            &self.servers.layers,
            tokens_fingerprint,
            d_model,
        )
    }

    /// Tokens of states that were handed out in a second.
    pub fn tokens_per_second(&self) -> f64 {
        let tokens: u64 = self.shares.iter().map(|share| share.tokens).sum();
        tokens as f64 / self.since.elapsed().as_secs_f64().max(1e-9)
    }

    /// What each server did.
    pub fn told(&self) -> Vec<Value> {
        let (servers, proofs) = (&self.servers.servers, &self.servers.proofs);
        let each = servers.iter().zip(&self.shares).zip(proofs);
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

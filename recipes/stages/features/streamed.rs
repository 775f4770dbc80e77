//! Features that servers hand out while the drafter trains, a bounded number of samples ahead of it. What is trained on is that of
//! [`served`](super::served) features, bit by bit; nothing of it is written to the disk.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use anyhow::{Context as _, bail};
use burn::prelude::Device;
use burn::tensor::DType;
use spectrain_data::packing::PackedBatch;
use spectrain_data::tokens::TokenShards;
use spectrain_train::{Batch, BatchSource, Error, Order, Result, Rows, Samples, with_stored};

use crate::progress::Output;
use crate::runtime::capture::in_order::capture;
use crate::runtime::capture::server::{Asked, Captured};
use crate::runtime::capture::servers::Servers;
use crate::runtime::capture::stored::Bits;
use crate::runtime::interruption::interrupted;

/// Features of servers, as they come.
pub struct StreamedFeatures {
    /// The samples.
    pub samples: Samples,
    /// Who hands out their features.
    pub servers: Servers,
    /// Type the drafter computes in.
    pub compute: DType,
    /// Where tensors go.
    pub device: Device,
    /// Where it is said what servers did.
    pub output: Output,
    /// Once it is known which samples are wanted.
    pub stream: Option<Stream>,
}

/// The features of one sample after the other.
pub struct Stream {
    coming: Option<Receiver<anyhow::Result<(usize, Bits)>>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Stream {
    /// Waits for the requests that are under way, so that no file of theirs is left behind.
    fn drop(&mut self) {
        drop(self.coming.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl BatchSource for StreamedFeatures {
    fn begin(&mut self, mut order: Order, batches: usize, is_over: Arc<AtomicBool>) -> Result<()> {
        let mut samples = Vec::new();
        for _ in 0..batches {
            samples.extend(order.advance()?.rows.into_iter().flatten());
        }
        let (sender, receiver) = sync_channel(1);
        let mut servers = self.servers.clone();
        servers.pace.is_over = is_over;
        let (tokens, output) = (self.samples.shards().clone(), self.output);
        let thread =
            std::thread::spawn(move || stream(&servers, &tokens, &samples, &sender, output));
        self.stream = Some(Stream {
            coming: Some(receiver),
            thread: Some(thread),
        });
        Ok(())
    }

    fn rows(&self, packed: PackedBatch) -> Rows {
        self.samples.rows(packed)
    }

    fn batch(&mut self, packed: PackedBatch) -> Result<Batch> {
        let d_model = self.servers.target.spec.d_model;
        let widths = [self.servers.layers.layers.len() * d_model, d_model];
        let rows = self.samples.rows(packed);
        let coming = self
            .stream
            .as_ref()
            .and_then(|stream| stream.coming.as_ref());
        with_stored(
            rows,
            widths,
            (&self.device, self.compute),
            &mut |sample, captured, last| {
                let found = coming.and_then(|coming| coming.recv().ok());
                let found = found.unwrap_or_else(|| bail!("no server was asked for them"));
                match found {
                    Ok((number, bits)) if number == sample => {
                        captured.extend_from_slice(&bits.captured);
                        last.extend_from_slice(&bits.last);
                        Ok(())
                    }
                    Ok((number, _)) => Err(Error::Features(format!(
                        "expected those of sample {sample} to come next, found those of sample {number}"
                    ))),
                    Err(_) if interrupted() => Err(Error::Interrupted),
                    Err(error) => Err(Error::Features(format!("{error:#}"))),
                }
            },
        )
    }
}

/// Sends the features of these samples, in this order, until nobody wants more.
fn stream(
    servers: &Servers,
    tokens: &Arc<TokenShards>,
    samples: &[usize],
    sender: &SyncSender<anyhow::Result<(usize, Bits)>>,
    output: Output,
) {
    let ask = |place: usize| Asked {
        tokens: tokens.get(samples[place]).tokens.to_vec(),
        ..Asked::default()
    };
    let mut is_wanted = true;
    let mut take = |place: usize, captured: Captured| {
        let sample = samples[place];
        let found = servers.bits(&captured);
        let found = found.with_context(|| format!("sample {sample}"))?;
        is_wanted = sender.send(Ok((sample, found))).is_ok();
        if !is_wanted {
            bail!("the training has ended");
        }
        Ok(())
    };
    let found = capture(
        &servers.servers,
        0..samples.len(),
        &servers.pace,
        &ask,
        &mut take,
    );
    match found {
        Ok(shares) => {
            for (server, share) in servers.servers.iter().zip(shares) {
                output.say(format!("features: `{}` handed out {share}", server.url()));
            }
        }
        Err(error) if is_wanted => drop(sender.send(Err(error))),
        Err(_) => {}
    }
}

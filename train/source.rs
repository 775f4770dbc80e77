//! Where batches come from: in an order that a seed decides, with features made live or read from storage.
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use burn::prelude::*;
use burn::tensor::DType;
use spectrain_checkpoints::Mismatch;
use spectrain_data::features::FeatureShards;
use spectrain_data::packing::{PackedBatch, Packing};
use spectrain_data::seed::mix;
use spectrain_data::tokens::TokenShards;
use spectrain_models::{Capture, Features, Transformer};

use crate::batch::{Batch, Rows, as_stored};
use crate::error::{Error, Result};
use crate::ranks::Share;

/// Sets the seeds of training steps apart from those of the epochs' orders.
const STEPS: u64 = 1 << 63;

/// Makes the batch of some packed samples.
pub trait BatchSource: Send {
    /// Tells, before the first batch, that the next `batches` of `order` will be asked for one after the other, but for those that
    /// nobody wants any more once `is_over`: then a batch that is waited for is given up.
    ///
    /// # Errors
    /// A sample is longer than a row.
    fn begin(&mut self, order: Order, batches: usize, is_over: Arc<AtomicBool>) -> Result<()> {
        let _ = (order, batches, is_over);
        Ok(())
    }

    /// Its tokens alone.
    fn rows(&self, packed: PackedBatch) -> Rows;

    /// The batch.
    ///
    /// # Errors
    /// Its features cannot be made or read.
    fn batch(&mut self, packed: PackedBatch) -> Result<Batch>;
}

/// Samples and how they are packed.
#[derive(Clone)]
pub struct Samples {
    shards: Arc<TokenShards>,
    lengths: Arc<Vec<usize>>,
    packing: Packing,
}

impl Samples {
    /// The samples of `shards`, packed in rows of `row_length`, `rows` of them in a batch.
    pub fn new(shards: Arc<TokenShards>, row_length: usize, rows: usize, seed: u64) -> Self {
        Self {
            lengths: Arc::new(shards.lengths()),
            shards,
            packing: Packing {
                row_length,
                rows,
                seed,
            },
        }
    }

    /// The batches of an epoch.
    ///
    /// # Errors
    /// A sample is longer than a row.
    pub fn epoch(&self, epoch: u64) -> Result<Vec<PackedBatch>> {
        Ok(self.packing.epoch(&self.lengths, epoch)?)
    }

    /// Positions of a row.
    pub fn row_length(&self) -> usize {
        self.packing.row_length
    }

    /// Seed of what is random in the training step on the batch number `position` of the run: not of how many were
    /// made before it in this process.
    pub fn step_seed(&self, position: usize) -> u64 {
        mix(mix(self.packing.seed, STEPS), position as u64)
    }

    /// The tokens of a packed batch.
    pub fn rows(&self, packed: PackedBatch) -> Rows {
        Rows::new(packed, &self.shards, &self.lengths, self.packing.row_length)
    }

    /// The samples themselves.
    pub fn shards(&self) -> &Arc<TokenShards> {
        &self.shards
    }
}

/// The batches of a run, one after the other through the epochs, from any position.
#[derive(Clone)]
pub struct Order {
    samples: Samples,
    epoch: u64,
    batches: std::vec::IntoIter<PackedBatch>,
    /// The number in the run of the batch that comes next.
    position: usize,
    share: Share,
}

impl Order {
    /// From the batch number `position` of the run, counted from 0.
    ///
    /// # Errors
    /// There is no batch at all, or a sample is longer than a row.
    pub fn from(samples: Samples, position: usize) -> Result<Self> {
        let (mut epoch, mut left) = (0, position);
        loop {
            let mut batches = samples.epoch(epoch)?;
            if batches.is_empty() {
                return Err(Error::NoSamples);
            }
            if left < batches.len() {
                batches.drain(..left);
                return Ok(Self {
                    samples,
                    epoch,
                    batches: batches.into_iter(),
                    position,
                    share: Share::WHOLE,
                });
            }
            left -= batches.len();
            epoch += 1;
        }
    }

    /// The same batches, but for those that other ranks train on.
    pub fn shared(self, share: Share) -> Self {
        Self { share, ..self }
    }

    /// The number in the run of the batch that was the last one.
    pub(crate) fn last_position(&self) -> usize {
        self.position - 1
    }

    /// The next batch; the epochs never end.
    ///
    /// # Errors
    /// A sample is longer than a row.
    pub fn advance(&mut self) -> Result<PackedBatch> {
        loop {
            if let Some(batch) = self.batches.next() {
                self.position += 1;
                if self.share.has(self.last_position()) {
                    return Ok(batch);
                }
                continue;
            }
            self.epoch += 1;
            self.batches = self.samples.epoch(self.epoch)?.into_iter();
        }
    }
}

/// Tokens alone, for what reads no features.
pub struct TokensOnly {
    /// The samples.
    pub samples: Samples,
    /// Where tensors go.
    pub device: Device,
}

impl BatchSource for TokensOnly {
    fn rows(&self, packed: PackedBatch) -> Rows {
        self.samples.rows(packed)
    }

    fn batch(&mut self, packed: PackedBatch) -> Result<Batch> {
        Ok(Batch::new(self.samples.rows(packed), &self.device))
    }
}

/// Features that the target makes while the drafter trains, rounded as storage would.
pub struct LiveFeatures {
    /// The samples.
    pub samples: Samples,
    /// The frozen target.
    pub target: Arc<Transformer>,
    /// What is kept of it.
    pub capture: Capture,
    /// Type the drafter computes in.
    pub compute: DType,
    /// Where the target is.
    pub device: Device,
}

impl BatchSource for LiveFeatures {
    fn rows(&self, packed: PackedBatch) -> Rows {
        self.samples.rows(packed)
    }

    fn batch(&mut self, packed: PackedBatch) -> Result<Batch> {
        Ok(self.judge(self.samples.rows(packed)))
    }
}

impl LiveFeatures {
    /// The batch of rows from anywhere.
    pub fn judge(&self, rows: Rows) -> Batch {
        let mut batch = Batch::new(rows, &self.device);
        let features = self
            .target
            .features(batch.tokens.clone(), &batch.layout, &self.capture);
        batch.features = Some(blank_padding(as_stored(features, self.compute), &batch));
        batch
    }
}

/// Features of padding are zero in storage; live ones are made so.
fn blank_padding(features: Features, batch: &Batch) -> Features {
    let padding = batch.layout.padding();
    let [rows, seq] = batch.tokens.dims();
    let blank = |x: Tensor<3>| {
        let width = x.dims()[2];
        if width == 0 {
            // Nothing was captured, and no tensor expands to nothing.
            return x;
        }
        let mask = padding
            .clone()
            .reshape([rows, seq, 1])
            .expand([rows, seq, width]);
        x.mask_fill(mask, 0.0)
    };
    Features {
        captured: blank(features.captured),
        last: blank(features.last),
    }
}

/// Features read from storage.
pub struct StoredFeatures {
    /// The samples, in the order in which they were stored.
    pub samples: Samples,
    /// Their features.
    pub shards: Arc<FeatureShards>,
    /// Type the drafter computes in.
    pub compute: DType,
    /// Where tensors go.
    pub device: Device,
}

impl BatchSource for StoredFeatures {
    fn rows(&self, packed: PackedBatch) -> Rows {
        self.samples.rows(packed)
    }

    fn batch(&mut self, packed: PackedBatch) -> Result<Batch> {
        let rows = self.samples.rows(packed);
        let widths = self.shards.header().widths();
        let place = (&self.device, self.compute);
        with_stored(rows, widths, place, &mut |sample, captured, last| {
            let stored = self.shards.get(sample);
            stored.captured.add_to(captured);
            stored.last.add_to(last);
            Ok(())
        })
    }
}

/// Fails unless a sample of so many tokens has so many values of features of these `widths`: of captured layers, and of last states.
fn require_features(
    sample: usize,
    tokens: usize,
    widths: [usize; 2],
    found: [usize; 2],
) -> Result<()> {
    let parts = ["captured features", "last hidden states"];
    for ((what, width), found) in parts.into_iter().zip(widths).zip(found) {
        let expected = tokens * width;
        if expected != found {
            let found = format!("{found} values");
            let expected = format!("{expected} values, {width} of each of {tokens} tokens");
            return Err(Error::Data(spectrain_data::Error::Sample {
                sample: sample as u64,
                what,
                mismatch: Mismatch::new(expected, found),
            }));
        }
    }
    Ok(())
}

/// Adds the features of a sample, as bits of bf16, to the captured layers and the last states: of each of its tokens, and of nothing else.
pub type AddFeatures<'a> = dyn FnMut(usize, &mut Vec<u16>, &mut Vec<u16>) -> Result<()> + 'a;

/// The batch of `rows` with the features that `add` gives of each sample, in their order. Captured layers and last states are of
/// these widths; padding has zeros.
///
/// # Errors
/// Those of `add`, or it gives features of more or fewer tokens than the sample has: all that follow in the row would be of other
/// tokens than theirs.
pub fn with_stored(
    rows: Rows,
    widths: [usize; 2],
    (device, compute): (&Device, DType),
    add: &mut AddFeatures,
) -> Result<Batch> {
    let [mut captured, mut last] = widths.map(|width| Vec::with_capacity(rows.len() * width));
    let length = rows.layout.row_length;
    let rows_of_documents = rows.layout.documents.chunks(length.max(1));
    for (row, (samples, documents)) in rows.packed.rows.iter().zip(rows_of_documents).enumerate() {
        for (document, &sample) in (1..).zip(samples) {
            let tokens = documents.iter().filter(|&&of| of == document).count();
            let before = [captured.len(), last.len()];
            add(sample, &mut captured, &mut last)?;
            let added = [captured.len(), last.len()];
            let added = [0, 1].map(|part| added[part].saturating_sub(before[part]));
            require_features(sample, tokens, widths, added)?;
        }
        let end = (row + 1) * length;
        captured.resize(end * widths[0], 0);
        last.resize(end * widths[1], 0);
    }
    let shape = [rows.layout.rows, rows.layout.row_length];
    let tensor = |bits: Vec<u16>, width: usize| {
        let bytes = bits.into_iter().flat_map(u16::to_ne_bytes).collect();
        let shape = [shape[0], shape[1], width];
        let data = TensorData::from_bytes_vec(bytes, shape.to_vec(), DType::BF16);
        Tensor::<3>::from_data(data, (device, DType::BF16)).cast(compute)
    };
    let features = Features {
        captured: tensor(captured, widths[0]),
        last: tensor(last, widths[1]),
    };
    let mut batch = Batch::new(rows, device);
    batch.features = Some(features);
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use spectrain_data::packing;
    use spectrain_models::device::test_device;
    use spectrain_models::weights::host_f32;

    use super::*;

    /// A row of six places with samples of two and of three tokens.
    fn rows() -> Rows {
        let packed = PackedBatch {
            rows: vec![vec![0, 1]],
        };
        Rows {
            layout: packing::layout(&packed, &[2, 3], 6),
            packed,
            tokens: vec![7; 6],
            loss_mask: vec![true; 6],
        }
    }

    /// The batch of features of two captured values and one of the last state for each token, of so many tokens of each sample. A value
    /// is the number of the sample, from 1.
    fn batch_of(tokens: [usize; 2]) -> Result<Batch> {
        let device = test_device();
        with_stored(
            rows(),
            [2, 1],
            (&device, DType::F32),
            &mut |sample, captured, last| {
                let value = [0x3f80, 0x4000][sample];
                captured.extend(vec![value; 2 * tokens[sample]]);
                last.extend(vec![value; tokens[sample]]);
                Ok(())
            },
        )
    }

    #[test]
    fn features_of_each_sample_stand_at_its_tokens() {
        let features = batch_of([2, 3]).unwrap().features.unwrap();
        let last = [1.0, 1.0, 2.0, 2.0, 2.0, 0.0];
        assert_eq!(host_f32(features.last), last);
        let captured: Vec<f32> = last.iter().flat_map(|&value| [value; 2]).collect();
        assert_eq!(host_f32(features.captured), captured);
    }

    #[test]
    fn a_sample_with_features_of_more_or_fewer_tokens_than_it_has_is_refused() {
        for (tokens, told) in [
            (
                [1, 3],
                "sample 0: captured features: expected 4 values, 2 of each of 2 tokens, found 2 values",
            ),
            // As many as the row has room for.
            (
                [3, 3],
                "sample 0: captured features: expected 4 values, 2 of each of 2 tokens, found 6 values",
            ),
            (
                [2, 2],
                "sample 1: captured features: expected 6 values, 2 of each of 3 tokens, found 4 values",
            ),
        ] {
            assert_eq!(batch_of(tokens).unwrap_err().to_string(), told);
        }
    }
}

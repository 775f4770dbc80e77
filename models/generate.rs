//! Many texts continued side by side, with one cache: how a drafter writes the texts that it is trained on.
use burn::prelude::*;
use burn::tensor::DType;
use rand::{SeedableRng, rngs::StdRng};

use crate::mask::Mask;
use crate::sampling::{Sampling, sample};
use crate::sight::Sight;
use crate::target::{Caches, Capture, Target as _};
use crate::transformer::Transformer;
use crate::weights::host_f32;

/// How texts are continued.
#[derive(Debug, Clone, Copy)]
pub struct Continuation<'a> {
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// The most tokens of each continuation, at least 1.
    pub limits: &'a [usize],
    /// Tokens that end a continuation; they belong to it.
    pub stop: &'a [u32],
    /// Decides the draws of each text, whatever stands beside it.
    pub seed: u64,
}

/// Continuations of `prompts`, none of which is empty, by a model outside of any graph.
pub fn continue_texts(
    model: &Transformer,
    prompts: &[Vec<u32>],
    how: &Continuation,
) -> Vec<Vec<u32>> {
    let Some(longest) = prompts.iter().map(Vec::len).max() else {
        return Vec::new();
    };
    let room = longest + how.limits.iter().max().copied().unwrap_or(0);
    let mut batch = Batch {
        model,
        // Prompts end in the same column, so that all go on in the next one.
        padding: prompts
            .iter()
            .map(|prompt| longest - prompt.len())
            .collect(),
        caches: Caches::new(model.config().spec.layers, room),
    };
    let mut draws: Vec<StdRng> = (0..prompts.len() as u64)
        .map(|index| StdRng::seed_from_u64(how.seed.wrapping_add(index)))
        .collect();
    let mut written = vec![Vec::new(); prompts.len()];
    let mut done = vec![false; prompts.len()];
    let mut columns: Vec<Vec<u32>> = prompts
        .iter()
        .zip(&batch.padding)
        .map(|(prompt, &padding)| [vec![0; padding], prompt.clone()].concat())
        .collect();
    loop {
        let logits = batch.step(&columns);
        let vocab = logits.len() / prompts.len();
        for (index, logits) in logits.chunks(vocab).enumerate() {
            if done[index] {
                continue;
            }
            let distribution = how.sampling.distribution(logits);
            let token = sample(&distribution.probabilities, &mut draws[index]);
            let text: &mut Vec<u32> = &mut written[index];
            text.push(token);
            done[index] = text.len() >= how.limits[index] || how.stop.contains(&token);
        }
        if done.iter().all(|&done| done) {
            return written;
        }
        // What has ended is continued with anything; nobody reads it.
        let last = |text: &Vec<u32>| vec![text.last().copied().unwrap_or(0)];
        columns = written.iter().map(last).collect();
    }
}

/// Texts side by side, each with padding before it.
struct Batch<'a> {
    model: &'a Transformer,
    padding: Vec<usize>,
    caches: Caches,
}

impl Batch<'_> {
    /// Logits after the last of `columns`, the same number of new tokens for each text. `[texts, vocab]` on the host.
    fn step(&mut self, columns: &[Vec<u32>]) -> Vec<f32> {
        let (texts, new, before) = (columns.len(), columns[0].len(), self.caches.len);
        let device = self.model.device();
        let ints = |values: Vec<i64>| {
            Tensor::<1, Int>::from_ints(values.as_slice(), &device).reshape([texts, new])
        };
        let tokens = ints(
            columns
                .iter()
                .flatten()
                .map(|&token| token as i64)
                .collect(),
        );
        let position = |padding: usize, column: usize| (before + column).saturating_sub(padding);
        let positions = self
            .padding
            .iter()
            .flat_map(|&padding| (0..new).map(move |column| position(padding, column) as i64));
        let positions = ints(positions.collect());
        let padding = &self.padding;
        let mask = |window| Some(padded_mask(padding, new, before, window, &device));
        let inputs = self.model.embed_known(tokens);
        let caches = Some(&mut self.caches);
        let states = self
            .model
            .states(inputs, positions, &mask, caches, &Capture::default());
        let last = states.last.narrow(1, new - 1, 1);
        host_f32(self.model.head().forward(last).cast(DType::F32))
    }
}

/// A column sees those before it from the end of the padding on, at most `window` back; padding sees itself.
fn padded_mask(
    padding: &[usize],
    new: usize,
    before: usize,
    window: Option<usize>,
    device: &Device,
) -> Mask {
    let total = before + new;
    let window = window.unwrap_or(usize::MAX);
    let sees = (0..padding.len() * new).map(|row| {
        let (start, column) = (padding[row / new], before + row % new);
        let first = start.max((column + 1).saturating_sub(window)).min(column);
        Some(first..column + 1)
    });
    Mask::new(Sight::new([new, total], sees), device)
}

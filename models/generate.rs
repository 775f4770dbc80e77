//! Many texts continued side by side, those of about one length with one cache: how a drafter writes the texts that it is
//! trained on.
use burn::prelude::*;
use burn::tensor::DType;
use rand::{SeedableRng, rngs::StdRng};

use crate::mask::Mask;
use crate::sampling::{Sampling, sample};
use crate::sight::{AtATime, Sight};
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
    /// The most positions that are in memory at a time, padding among them, and those that a cache on a GPU has
    /// [room for](AtATime::of_cache) at its end; a text that has more stands alone.
    pub positions: usize,
}

/// Continuations of `prompts`, none of which is empty, by a model outside of any graph.
pub fn continue_texts(
    model: &Transformer,
    prompts: &[Vec<u32>],
    how: &Continuation,
) -> Vec<Vec<u32>> {
    let mut written = vec![Vec::new(); prompts.len()];
    let some = AtATime::on(&model.device());
    for group in groups(prompts, how, |positions| some.of_cache(positions)) {
        let texts = continue_group(model, prompts, how, &group);
        for (text, tokens) in group.into_iter().zip(texts) {
            written[text] = tokens;
        }
    }
    written
}

/// The numbers of the texts that are continued side by side: the shortest prompts first, as many as may be in memory. `taken` says
/// how many positions of a cache those of a text are.
fn groups(
    prompts: &[Vec<u32>],
    how: &Continuation,
    taken: impl Fn(usize) -> usize,
) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..prompts.len()).collect();
    order.sort_by_key(|&text| prompts[text].len());
    let mut groups: Vec<Vec<usize>> = Vec::new();
    // Of the last group, the longest prompt and the largest limit.
    let mut longest = [0; 2];
    for text in order {
        let own = [prompts[text].len(), how.limits[text]];
        let both = [longest[0].max(own[0]), longest[1].max(own[1])];
        match groups.last_mut() {
            Some(group) if (group.len() + 1) * taken(both[0] + both[1]) <= how.positions => {
                group.push(text);
                longest = both;
            }
            _ => {
                groups.push(vec![text]);
                longest = own;
            }
        }
    }
    groups
}

/// Continuations of some of `prompts` side by side, in the order of their numbers in `group`.
fn continue_group(
    model: &Transformer,
    prompts: &[Vec<u32>],
    how: &Continuation,
    group: &[usize],
) -> Vec<Vec<u32>> {
    let prompts: Vec<&Vec<u32>> = group.iter().map(|&text| &prompts[text]).collect();
    let limits: Vec<usize> = group.iter().map(|&text| how.limits[text]).collect();
    let longest = prompts.iter().map(|prompt| prompt.len()).max();
    let longest = longest.unwrap_or_default();
    let room = longest + limits.iter().max().copied().unwrap_or_default();
    let mut batch = Batch {
        model,
        // Prompts end in the same column, so that all go on in the next one.
        padding: prompts
            .iter()
            .map(|prompt| longest - prompt.len())
            .collect(),
        caches: Caches::new(model.config().spec.layers, room),
    };
    let mut draws: Vec<StdRng> = group
        .iter()
        .map(|&text| StdRng::seed_from_u64(how.seed.wrapping_add(text as u64)))
        .collect();
    let mut written = vec![Vec::new(); prompts.len()];
    let mut done = vec![false; prompts.len()];
    let mut columns: Vec<Vec<u32>> = prompts
        .iter()
        .zip(&batch.padding)
        .map(|(&prompt, &padding)| [vec![0; padding], prompt.clone()].concat())
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
            done[index] = text.len() >= limits[index] || how.stop.contains(&token);
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
    Mask::new(Sight::of_cache([new, total], sees, device), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_about_one_length_stand_side_by_side_as_far_as_there_is_room() {
        let prompts = [7, 1, 3, 2, 7].map(|length| vec![0; length]);
        let of_rounded = |positions: usize, taken: fn(usize) -> usize| {
            let how = Continuation {
                sampling: Sampling::GREEDY,
                limits: &[1, 4, 1, 1, 2],
                stop: &[],
                seed: 0,
                positions,
            };
            groups(&prompts, &how, taken)
        };
        let of = |positions| of_rounded(positions, |positions| positions);
        assert_eq!(of(usize::MAX), [[1, 3, 2, 0, 4]]);
        // The first two take 2 · (2 + 4) positions, the next two 2 · (7 + 1).
        assert_eq!(of(18), [vec![1, 3], vec![2, 0], vec![4]]);
        assert_eq!(of(12), [vec![1, 3], vec![2], vec![0], vec![4]]);
        assert_eq!(of(0), [[1], [3], [2], [0], [4]]);
        // The first two would take 2 · 8 of a cache that is rounded up, the second and third take 2 · 4.
        let found = of_rounded(12, |positions| positions.next_multiple_of(4));
        assert_eq!(found, [vec![1], vec![3, 2], vec![0], vec![4]]);
    }
}

//! A text of the target's own, and what the target made of it.
use std::collections::HashMap;

use burn::prelude::*;
use spectrain_models::device::is_cpu;
use spectrain_models::{Caches, Capture, Features, LogitRows, Pass, Target, TargetParts, chain};

use crate::error::Result;
use crate::verify::rows::are_most_likely;

/// A prompt and the target's own answer, with what the target made of them.
#[derive(Debug, Clone)]
pub struct OwnText {
    /// All tokens.
    pub tokens: Vec<u32>,
    /// Where the answer's first token stands, which the prompt's pass gives; 1 or more.
    pub first: usize,
    /// Tokens that the text was allowed to grow to.
    pub limit: usize,
    /// Of all tokens but the last.
    pub features: Features,
    /// Row `i` judges the token at `first + 1 + i`, of which there are one fewer than tokens of the answer.
    pub judges: Judges,
}

/// Rows of logits that are in memory at a time.
const ROWS: usize = 256;

impl OwnText {
    /// Goes over the answer but for its first token, some tokens at a time, each with its row of logits.
    pub(crate) fn judged(
        &self,
        look: &mut dyn FnMut(&[u32], Tensor<2>) -> Result<()>,
    ) -> Result<()> {
        self.judges.over(&self.tokens[self.first + 1..], look)
    }

    /// Whether each token of the answer but its first is the target's likeliest.
    ///
    /// # Errors
    /// The target's logits are no numbers, or the device fails.
    pub fn likeliest(&self) -> Result<Vec<bool>> {
        let mut found = Vec::with_capacity(self.judges.len());
        self.judged(&mut |tokens, logits| {
            found.extend(are_most_likely(tokens, logits)?);
            Ok(())
        })?;
        Ok(found)
    }
}

/// What the target's logits are made of where they are wanted: those of a long answer are large, and fixed drafts need none.
#[derive(Debug, Clone)]
pub struct Judges {
    /// Last hidden states after the final norm, `[rows, d_model]`.
    states: Tensor<2>,
    target: TargetParts,
}

impl Judges {
    /// What the head of `target` makes of the last hidden states. `[rows, d_model]`
    pub fn of_states(states: Tensor<2>, target: TargetParts) -> Self {
        Self { states, target }
    }

    /// How many rows there are.
    pub(crate) fn len(&self) -> usize {
        self.states.dims()[0]
    }

    /// Goes over tokens, of which there is one for each row, some at a time, each with its row of logits.
    pub(crate) fn over(
        &self,
        tokens: &[u32],
        look: &mut dyn FnMut(&[u32], Tensor<2>) -> Result<()>,
    ) -> Result<()> {
        let rows: Vec<usize> = (0..self.len()).collect();
        for (rows, tokens) in rows.chunks(ROWS).zip(tokens.chunks(ROWS)) {
            look(tokens, self.logits(rows))?;
        }
        Ok(())
    }

    /// The logits of some rows, in that order; each is computed once, however often it is wanted. `[rows.len(), vocab]`, f32
    pub(crate) fn logits(&self, rows: &[usize]) -> Tensor<2> {
        let mut made = rows.to_vec();
        made.sort_unstable();
        made.dedup();
        // On the CPU a row alone would be summed in another order than beside others.
        if let [row] = made[..] {
            let beside = if row == 0 { 1 } else { row - 1 };
            made.extend((beside < self.len()).then_some(beside));
            made.sort_unstable();
        }
        let logits = self.target.logits(of_rows(&self.states, &made));
        if made == rows {
            return logits;
        }
        let place = |row: &usize| made.partition_point(|known| known < row);
        of_rows(&logits, &rows.iter().map(place).collect::<Vec<_>>())
    }
}

/// Some rows of a matrix, in that order. `[all, width]` to `[rows.len(), width]`
fn of_rows(matrix: &Tensor<2>, rows: &[usize]) -> Tensor<2> {
    let indices: Vec<i64> = rows.iter().map(|&row| row as i64).collect();
    let indices = Tensor::<1, Int>::from_ints(indices.as_slice(), &matrix.device());
    matrix.clone().select(0, indices)
}

impl OwnText {
    /// Runs the target over `prompt` and an `answer` to it. `None` where no decoding pass follows the prompt's. The answer
    /// ended at a stop token, or where it had `max_new_tokens`.
    pub fn read(
        target: &dyn Target,
        capture: &Capture,
        prompt: &[u32],
        answer: &[u32],
        max_new_tokens: usize,
    ) -> Option<Self> {
        if answer.len() < 2 {
            return None;
        }
        let spec = target.spec();
        let tokens = [prompt, answer].concat();
        let mut caches = Caches::new(spec.layers, tokens.len());
        let mut run = |tokens: &[u32]| {
            let pass = Pass {
                tokens,
                parents: &chain(tokens.len()),
                logits: LogitRows::Last,
            };
            target.decode(pass, &mut caches, capture).features
        };
        let known = run(prompt);
        let written = run(&answer[..answer.len() - 1]);
        let join = |a: Tensor<3>, b: Tensor<3>| Tensor::cat(vec![a, b], 1);
        let features = Features {
            captured: join(known.captured, written.captured),
            last: join(known.last, written.last),
        };
        let states = features.last.clone();
        let states = states.narrow(1, prompt.len(), answer.len() - 1);
        Some(Self {
            first: prompt.len(),
            limit: spec
                .max_positions
                .min(prompt.len().saturating_add(max_new_tokens)),
            tokens,
            features,
            judges: Judges::of_states(states.squeeze_dim(0), target.parts()),
        })
    }
}

/// Texts that the target has read, for other ways of drafting that it answers in the same words. On the CPU, where reading takes about
/// as long as all that is made of a text; elsewhere it takes little, and memory is scarce.
#[derive(Default)]
pub(crate) struct KnownTexts {
    /// The hidden states that were read.
    capture: Capture,
    /// By the prompt's length and all tokens.
    texts: HashMap<(usize, Vec<u32>), OwnText>,
    /// What their hidden states take.
    bytes: usize,
}

/// Memory that the hidden states of known texts take at most. Those of the last drafts are there until the next are done: while these
/// were answered in other words, it is twice as much.
const KNOWN_BYTES: usize = 128 << 20;

impl KnownTexts {
    /// As [`OwnText::read`], unless the text is among those `before`; it is among these from now on, while there is room. The most new
    /// tokens are the same for all.
    pub(crate) fn read(
        &mut self,
        before: &Self,
        (target, capture): (&dyn Target, &Capture),
        prompt: &[u32],
        answer: &[u32],
        max_new_tokens: usize,
    ) -> Option<OwnText> {
        let of = (prompt.len(), [prompt, answer].concat());
        let known = before
            .texts
            .get(&of)
            .filter(|_| before.capture == *capture)
            .cloned();
        let text =
            known.or_else(|| OwnText::read(target, capture, prompt, answer, max_new_tokens))?;
        let bytes = text.bytes();
        if is_cpu(&target.device()) && self.bytes + bytes <= KNOWN_BYTES {
            self.capture.clone_from(capture);
            self.bytes += bytes;
            self.texts.insert(of, text.clone());
        }
        Some(text)
    }
}

impl OwnText {
    /// Memory that its hidden states take.
    fn bytes(&self) -> usize {
        let of = |states: &Tensor<3>| states.shape().num_elements() * states.dtype().size();
        of(&self.features.captured) + of(&self.features.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toy::ToyTarget;
    use crate::verify::rows::host_rows;

    #[test]
    fn a_text_that_was_read_for_the_last_drafts_is_not_read_again() {
        let (target, capture) = (ToyTarget::default(), Capture::default());
        // Whether its logits are numbers says which target has read a text.
        let broken = ToyTarget::broken();
        let is_good = |text: Option<OwnText>| {
            let logits = host_rows(text.unwrap().judges.logits(&[0, 1])).unwrap();
            logits.iter().all(|logit| logit.is_finite())
        };
        let (prompt, answer) = ([1, 4, 2], [1, 2, 3, 0]);
        let (nothing, mut first) = (KnownTexts::default(), KnownTexts::default());
        assert!(is_good(first.read(
            &nothing,
            (&target, &capture),
            &prompt,
            &answer,
            4
        )));
        let mut second = KnownTexts::default();
        let again = second.read(&first, (&broken, &capture), &prompt, &answer, 4);
        assert_eq!(is_good(again), is_cpu(&target.device()));
        // Another answer, another prompt of the same tokens, and other hidden states are read.
        for (prompt, answer) in [(&prompt[..], &[1, 2, 3][..]), (&[1, 4, 2, 1], &[2, 3, 0])] {
            assert!(!is_good(second.read(
                &first,
                (&broken, &capture),
                prompt,
                answer,
                4
            )));
        }
        let other = Capture { layers: vec![0] };
        assert!(!is_good(second.read(
            &first,
            (&broken, &other),
            &prompt,
            &answer,
            4
        )));
    }
}

//! A text of the target's own, and what the target made of it.
use burn::prelude::*;
use spectrain_models::{Caches, Capture, Features, LogitRows, Pass, Target, TargetParts, chain};

use crate::error::Result;
use crate::verify::rows::most_likely;

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
        let rows: Vec<usize> = (0..self.judges.len()).collect();
        for rows in rows.chunks(ROWS) {
            let tokens: Vec<u32> = rows
                .iter()
                .map(|row| self.tokens[self.first + 1 + row])
                .collect();
            look(&tokens, self.judges.logits(rows))?;
        }
        Ok(())
    }

    /// Whether each token of the answer but its first is the target's likeliest.
    ///
    /// # Errors
    /// The target's logits are no numbers, or the device fails.
    pub fn likeliest(&self) -> Result<Vec<bool>> {
        let mut found = Vec::with_capacity(self.judges.len());
        self.judged(&mut |tokens, logits| {
            let best = most_likely(logits)?;
            found.extend(best.iter().zip(tokens).map(|(best, token)| best == token));
            Ok(())
        })?;
        Ok(found)
    }
}

/// The target's logits, or what its head makes them from where they are wanted: those of a long answer are large.
#[derive(Debug, Clone)]
pub struct Judges {
    /// The logits, `[rows, vocab]`; with a target, last hidden states after the final norm, `[rows, d_model]`.
    rows: Tensor<2>,
    target: Option<TargetParts>,
}

impl Judges {
    /// What the head of `target` makes of the last hidden states. `[rows, d_model]`
    pub fn of_states(states: Tensor<2>, target: &TargetParts) -> Self {
        Self {
            rows: states,
            target: Some(target.clone()),
        }
    }

    /// How many rows there are.
    pub(crate) fn len(&self) -> usize {
        self.rows.dims()[0]
    }

    /// The logits of some rows, in that order. `[rows.len(), vocab]`, f32
    pub(crate) fn logits(&self, rows: &[usize]) -> Tensor<2> {
        let indices: Vec<i64> = rows.iter().map(|&row| row as i64).collect();
        let indices = Tensor::<1, Int>::from_ints(indices.as_slice(), &self.rows.device());
        let found = self.rows.clone().select(0, indices);
        match &self.target {
            Some(target) => target.logits(found),
            None => found,
        }
    }
}

impl From<Tensor<2>> for Judges {
    /// Of logits, `[rows, vocab]`.
    fn from(logits: Tensor<2>) -> Self {
        Self {
            rows: logits,
            target: None,
        }
    }
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
        let mut run = |tokens: &[u32], logits| {
            let parents = &chain(tokens.len());
            let pass = Pass {
                tokens,
                parents,
                logits,
            };
            target.decode(pass, &mut caches, capture)
        };
        let known = run(prompt, LogitRows::Last).features;
        let written = run(&answer[..answer.len() - 1], LogitRows::All);
        let join = |a: Tensor<3>, b: Tensor<3>| Tensor::cat(vec![a, b], 1);
        Some(Self {
            first: prompt.len(),
            limit: spec.max_positions.min(prompt.len() + max_new_tokens),
            tokens,
            features: Features {
                captured: join(known.captured, written.features.captured),
                last: join(known.last, written.features.last),
            },
            judges: written.logits.into(),
        })
    }
}

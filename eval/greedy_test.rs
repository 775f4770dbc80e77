//! Whether greedy output is plain decoding's, token for token.
use std::fmt;

use burn::tensor::DType;
use serde::{Deserialize, Serialize};
use spectrain_models::{Caches, Capture, LogitRows, Pass, Target, chain};

use crate::error::Result;
use crate::verify::rows::host_rows;

/// Greedy outputs with and without speculation, compared up to where they first differ.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Comparison {
    /// Outputs compared.
    pub outputs: u64,
    /// Tokens compared; after the first difference the two continue different texts, so nothing more is.
    pub tokens: u64,
    /// Every output that differs somewhere.
    pub differences: Vec<Difference>,
}

/// Where two greedy outputs first differ.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The dataset.
    pub dataset: String,
    /// 0-based index of the prompt in it.
    pub prompt: usize,
    /// 0-based turn, of a conversation.
    #[serde(default, skip_serializing_if = "is_first")]
    pub turn: usize,
    /// 0-based index of the token in the output.
    pub token: usize,
    /// What plain decoding says there; absent behind its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plain: Option<u32>,
    /// What speculation says; absent behind its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculative: Option<u32>,
    /// How far apart the logits of the two tokens are, where there are two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<f64>,
    /// How far apart the target's arithmetic may move two logits there: several steps of its type at the largest logit.
    pub tolerance: f64,
}

fn is_first(turn: &usize) -> bool {
    *turn == 0
}

impl Difference {
    /// Whether the two tokens are so close that the target's own arithmetic decides between them.
    pub fn is_tie(&self) -> bool {
        self.margin
            .is_some_and(|margin| margin.abs() <= self.tolerance)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let token = |token: Option<u32>| token.map_or("the end".into(), |token| token.to_string());
        let turn = match self.turn {
            0 => String::new(),
            turn => format!(" turn {}", 1 + turn),
        };
        write!(
            f,
            "{}, prompt {}{turn}, token {}: {} in place of {}",
            self.dataset,
            self.prompt,
            self.token,
            token(self.speculative),
            token(self.plain)
        )?;
        match self.margin {
            Some(margin) => write!(f, ", whose logits are {margin:.3} apart"),
            None => Ok(()),
        }
    }
}

/// An output's place among all.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The dataset.
    pub dataset: &'a str,
    /// 0-based index of the prompt in it.
    pub prompt: usize,
    /// 0-based turn, of a conversation.
    pub turn: usize,
}

impl Comparison {
    /// Compares one more pair of outputs that continue `prompt`.
    ///
    /// # Errors
    /// The outputs differ, and the device fails when their logits are computed.
    pub fn add(
        &mut self,
        target: &dyn Target,
        place: Place,
        prompt: &[u32],
        [speculative, plain]: [&[u32]; 2],
    ) -> Result<()> {
        let pairs = speculative.iter().zip(plain);
        let equal = pairs.take_while(|(a, b)| a == b).count();
        self.outputs += 1;
        self.tokens += equal as u64;
        if speculative.len() == equal && plain.len() == equal {
            return Ok(());
        }
        self.tokens += 1;
        let differ = (plain.get(equal).copied(), speculative.get(equal).copied());
        let (margin, tolerance) = match differ {
            (Some(plain_token), Some(other)) => {
                let text = [prompt, &plain[..equal]].concat();
                let (margin, tolerance) = apart(target, &text, plain_token, other)?;
                (Some(margin), tolerance)
            }
            _ => (None, 0.0),
        };
        self.differences.push(Difference {
            dataset: place.dataset.into(),
            prompt: place.prompt,
            turn: place.turn,
            token: equal,
            plain: differ.0,
            speculative: differ.1,
            margin,
            tolerance,
        });
        Ok(())
    }
}

/// How much larger the logit of `first` than that of `second` is behind `text`, computed anew, and how far the target's
/// arithmetic may move them apart.
fn apart(target: &dyn Target, text: &[u32], first: u32, second: u32) -> Result<(f64, f64)> {
    let parents = chain(text.len());
    let pass = Pass {
        tokens: text,
        parents: &parents,
        logits: LogitRows::Last,
    };
    let mut caches = Caches::new(target.spec().layers, text.len());
    let output = target.decode(pass, &mut caches, &Capture::default());
    let logits = host_rows(output.logits)?;
    let largest = logits.iter().copied().map(f32::abs).fold(0.0, f32::max);
    let margin = f64::from(logits[first as usize]) - f64::from(logits[second as usize]);
    Ok((margin, f64::from(largest) * resolution(target.dtype())))
}

/// How far apart two computations of one logit may come out, as a share of the largest: 4 steps of a 16-bit type, in which
/// activations are rounded at every layer, or the 2⁶ steps that sums of some thousand products differ by in f32.
fn resolution(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 4.0 / 256.0,
        DType::F16 => 4.0 / 2048.0,
        _ => 64.0 / f64::from(1 << 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toy::{TARGET, ToyTarget, logits};

    const AT: Place = Place {
        turn: 0,
        dataset: "eval",
        prompt: 3,
    };

    fn compared(pairs: &[[&[u32]; 2]]) -> Comparison {
        let mut comparison = Comparison::default();
        for &pair in pairs {
            comparison
                .add(&ToyTarget::default(), AT, &[1, 2], pair)
                .unwrap();
        }
        comparison
    }

    #[test]
    fn a_difference_is_counted_once_and_nothing_after_it() {
        let found = compared(&[
            [&[1, 2, 3], &[1, 2, 3]],
            [&[1, 0, 0, 0], &[1, 2, 3, 4]],
            [&[1, 2], &[1, 2, 3]],
        ]);
        assert_eq!((found.outputs, found.tokens), (3, 3 + 2 + 3));
        let [changed, shorter] = &found.differences[..] else {
            panic!("{found:?}");
        };
        assert_eq!((changed.token, changed.plain), (1, Some(2)));
        assert_eq!(changed.speculative, Some(0));
        let expected = logits(&[1, 2, 1], TARGET);
        let margin = f64::from(expected[2]) - f64::from(expected[0]);
        assert!((changed.margin.unwrap() - margin).abs() < 1e-6);
        assert!(!changed.is_tie());
        assert_eq!((shorter.token, shorter.speculative), (2, None));
        assert!(shorter.margin.is_none() && !shorter.is_tie());
    }

    #[test]
    fn what_arithmetic_cannot_tell_apart_is_a_tie_in_16_bits_and_none_in_32() {
        let of = |dtype| Difference {
            turn: 0,
            dataset: "eval".into(),
            prompt: 0,
            token: 0,
            plain: Some(1),
            speculative: Some(2),
            margin: Some(0.1),
            tolerance: 20.0 * resolution(dtype),
        };
        assert!(of(DType::BF16).is_tie());
        assert!(!of(DType::F32).is_tie());
    }
}

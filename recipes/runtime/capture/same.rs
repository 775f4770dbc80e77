//! Whether a server still hands out the states by which it was proven. Behind the address of one that was restarted may be another
//! model, or the same one with other layers, whose states look alike.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use spectrain_checkpoints::NamedTensor;
use spectrain_data::regenerate::Failure;

use super::states::HiddenStates;

/// Tokens of the text that is asked for again, at most.
const TOKENS: usize = 256;
/// The largest relative distance of states that are the same: 16 bits leave far less where a text is computed in another batch.
const MOST_DISTANCE: f64 = 0.05;
/// A server that was silent for no longer was not restarted meanwhile: to load a model takes longer.
const STARTS_IN: Duration = Duration::from_secs(10);

/// What a server was proven by.
#[derive(Debug, Default)]
pub(super) struct Same(Mutex<Option<Proven>>);

#[derive(Debug)]
struct Proven {
    /// The first tokens of a text, with their states.
    text: HiddenStates,
    /// Breaks of the connection before it was found the same.
    breaks: u64,
    /// When it last answered.
    answered: Instant,
    /// What came of the last look.
    found: std::result::Result<(), String>,
}

impl Same {
    /// Remembers the longest of the texts by which a server was proven, since so many `breaks` of the connection.
    pub(super) fn begin<'a>(&self, texts: impl Iterator<Item = &'a HiddenStates>, breaks: u64) {
        let longest = texts.max_by_key(|text| text.tokens.len());
        let proven = longest.map(|text| Proven {
            text: first(text),
            breaks,
            answered: Instant::now(),
            found: Ok(()),
        });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = proven;
    }

    /// Whether there is another server in the place of the one that was proven.
    pub(super) fn is_lost(&self) -> bool {
        let proven = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        proven.as_ref().is_some_and(|proven| proven.found.is_err())
    }

    /// Fails where another server may be there since the last time, `breaks` being those of the connection by now, and `ask`
    /// finds that it is. One that was never proven is not looked at.
    ///
    /// # Errors
    /// It is another one, or does not answer.
    pub(super) fn check(
        &self,
        breaks: u64,
        ask: impl FnOnce(&[u32]) -> std::result::Result<HiddenStates, Failure>,
    ) -> std::result::Result<(), Failure> {
        let mut proven = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(proven) = proven.as_mut() else {
            return Ok(());
        };
        if breaks > proven.breaks || proven.answered.elapsed() > STARTS_IN {
            let found = match ask(&proven.text.tokens) {
                Ok(found) => compare(&proven.text.states, &found.states),
                Err(Failure::Lasting { reason }) => Err(anyhow::Error::msg(reason)),
                Err(passing) => return Err(passing),
            };
            proven.found = found.map_err(|why| {
                format!(
                    "it is not the server that was proven at the start: {why:#}; start it as it was, or begin anew with this one"
                )
            });
            proven.breaks = breaks;
        }
        proven.answered = Instant::now();
        let found = proven.found.clone();
        found.map_err(|reason| Failure::Lasting { reason })
    }
}

/// The first tokens of a text.
fn first(text: &HiddenStates) -> HiddenStates {
    let tokens = text.tokens.len().min(TOKENS);
    let of_token = text.states.bytes.len() / text.tokens.len().max(1);
    HiddenStates {
        tokens: text.tokens[..tokens].to_vec(),
        states: NamedTensor {
            name: text.states.name.clone(),
            dtype: text.states.dtype,
            shape: [&[tokens][..], &text.states.shape[1..]].concat(),
            bytes: text.states.bytes[..tokens * of_token].to_vec(),
        },
    }
}

/// Fails unless states `[tokens, slots, d_model]` are those that the same tokens had before, but for how they are rounded.
fn compare(before: &NamedTensor, now: &NamedTensor) -> Result<()> {
    if before.shape != now.shape {
        bail!(
            "hidden states: expected the shape {:?}, found {:?}",
            before.shape,
            now.shape
        );
    }
    let [slots, d_model] = [1, 2].map(|axis| before.shape[axis]);
    let (before, now) = (before.to_f32()?, now.to_f32()?);
    for slot in 0..slots {
        let states = before.chunks(d_model).zip(now.chunks(d_model));
        let of_slot = states.skip(slot).step_by(slots);
        // The first token's states may be a sink of attention.
        let mut distances: Vec<f64> = of_slot.skip(1).map(relative).collect();
        distances.sort_by(f64::total_cmp);
        let median = distances.get(distances.len() / 2).copied();
        let median = median.unwrap_or(f64::NAN);
        if median.is_nan() || median > MOST_DISTANCE {
            bail!(
                "hidden states of slot {slot}: expected those that the same text had then, found states that differ from \
                 them by {median:.2} of their size"
            );
        }
    }
    Ok(())
}

/// `|now - before| / |before|`.
fn relative((before, now): (&[f32], &[f32])) -> f64 {
    let square = |value: f32| f64::from(value) * f64::from(value);
    let distance: f64 = before
        .iter()
        .zip(now)
        .map(|(before, now)| square(now - before))
        .sum();
    let size: f64 = before.iter().map(|&value| square(value)).sum();
    (distance / size).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// States of so many tokens, two slots of two numbers each.
    fn text(tokens: usize, change: impl Fn(usize) -> f32) -> HiddenStates {
        let values = (0..4 * tokens).map(|at| (1.0 + (at % 7) as f32) * change(at));
        let shape = [tokens, 2, 2];
        HiddenStates {
            tokens: (0..tokens as u32).collect(),
            states: NamedTensor::from_f32("hidden_states", shape, values.collect()),
        }
    }

    #[test]
    fn the_longest_text_is_asked_for_again_where_a_server_may_be_another() {
        let same = Same::default();
        same.check(7, |_| panic!("it was never proven")).unwrap();
        same.begin([text(3, |_| 1.0), text(300, |_| 1.0)].iter(), 7);
        same.check(7, |_| panic!("nothing happened")).unwrap();
        let rounded = |tokens: &[u32]| {
            assert_eq!(tokens.len(), TOKENS);
            Ok(text(TOKENS, |at| 1.0 + 0.01 * (at % 3) as f32))
        };
        same.check(8, rounded).unwrap();
        // One that does not answer is asked at the next time.
        let silent = |_: &[u32]| {
            Err(Failure::Passing {
                reason: "no".into(),
                wait: None,
            })
        };
        let told = same.check(9, silent);
        assert!(
            matches!(told, Err(Failure::Passing { .. })) && !same.is_lost(),
            "{told:?}"
        );
        let other = |_: &[u32]| Ok(text(TOKENS, |at| if at % 4 < 2 { 1.0 } else { 1.1 }));
        for ask in [true, false] {
            let told = same.check(9, |tokens| {
                assert!(ask, "what was found is known");
                other(tokens)
            });
            let reason = match told {
                Err(Failure::Lasting { reason }) => reason,
                other => panic!("{other:?}"),
            };
            assert!(reason.contains("slot 1: expected those"), "{reason}");
        }
        assert!(same.is_lost());
        same.check(10, |_| Ok(text(TOKENS, |_| 1.0))).unwrap();
        assert!(!same.is_lost(), "it was started as it was");
    }

    #[test]
    fn states_that_are_no_numbers_or_of_another_shape_are_not_the_same() {
        let before = text(5, |_| 1.0).states;
        compare(&before, &before).unwrap();
        assert!(compare(&before, &text(5, |_| f32::NAN).states).is_err());
        assert!(compare(&before, &text(4, |_| 1.0).states).is_err());
    }
}

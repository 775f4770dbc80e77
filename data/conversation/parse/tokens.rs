//! The tokens of a row, and which of them are trained on.

use serde::de::{self, Deserialize, Deserializer, Visitor};
use spectrain_checkpoints::Mismatch;

use super::values::Fields;
use crate::conversation::Sample;
use crate::json::{items, keys, kind};
use crate::words::counted;

/// The label that keeps a position out of the loss in pre-tokenised datasets.
const IGNORED_LABEL: i64 = -100;

pub(super) fn sample(tokens: &str, fields: &Fields<'_>) -> Result<Sample, Mismatch> {
    let given = |key: &str| {
        fields
            .iter()
            .find(|(known, _)| known == key)
            .map(|(_, value)| *value)
    };
    let tokens = integers(tokens, "the token ids", |token| {
        u32::try_from(token)
            .map_err(|_| Mismatch::new("token ids from 0 to 4294967295", format!("`{token}`")))
    })?;
    let loss_mask = if let Some(mask) = given("loss_mask") {
        integers(mask, "`loss_mask`", |bit| match bit {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Mismatch::new(
                "`loss_mask` of 0 and 1",
                format!("`{other}`"),
            )),
        })?
    } else if let Some(labels) = given("labels") {
        let labels = integers(labels, "`labels`", Ok)?;
        check_labels(&tokens, &labels)?;
        labels.iter().map(|&label| label != IGNORED_LABEL).collect()
    } else {
        return Err(Mismatch::new(
            "`loss_mask` or `labels` beside the token ids",
            keys(fields),
        ));
    };
    if tokens.is_empty() || tokens.len() != loss_mask.len() {
        return Err(Mismatch::new(
            "at least one token and a mask of the same length",
            format!(
                "{} and a mask of {}",
                counted(tokens.len() as u64, "token"),
                loss_mask.len()
            ),
        ));
    }
    Ok(Sample { tokens, loss_mask })
}

/// Fails at the first label that would have the token at its place trained on as if it were another.
fn check_labels(tokens: &[u32], labels: &[i64]) -> Result<(), Mismatch> {
    let differs =
        |(&token, &label): (&u32, &i64)| label != IGNORED_LABEL && label != i64::from(token);
    let mut each = tokens.iter().zip(labels);
    let Some(at) = each
        .position(differs)
        .filter(|_| tokens.len() == labels.len())
    else {
        return Ok(());
    };
    let (place, token, label) = (at + 1, tokens[at], labels[at]);
    let shifted = tokens
        .get(at + 1)
        .is_some_and(|&next| label == i64::from(next));
    let next = if shifted { ", the token behind it" } else { "" };
    Err(Mismatch::new(
        format!(
            "label {place} of `labels` to be {IGNORED_LABEL} or the token at the same place, `{token}` (labels are not shifted)"
        ),
        format!("`{label}`{next}"),
    ))
}

fn integers<T>(
    list: &str,
    what: &str,
    read: impl Fn(i64) -> Result<T, Mismatch>,
) -> Result<Vec<T>, Mismatch> {
    let expected = || format!("{what} to be a list of integers");
    if !list.starts_with('[') {
        return Err(Mismatch::new(expected(), kind(list)));
    }
    let item = |item: &str| match serde_json::from_str::<Integer>(item) {
        Ok(Integer(number)) => read(number),
        Err(_) => Err(Mismatch::new(expected(), format!("{} in it", kind(item)))),
    };
    items(list).map(item).collect()
}

/// An integer, or a truth value as 0 or 1.
struct Integer(i64);

impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Integer;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an integer")
            }

            fn visit_bool<E: de::Error>(self, bit: bool) -> Result<Integer, E> {
                Ok(Integer(bit.into()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Integer, E> {
                Ok(Integer(number))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Integer, E> {
                i64::try_from(number).map(Integer).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Number)
    }
}

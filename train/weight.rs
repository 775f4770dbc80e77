//! Weights of losses, which may change over the steps of a training.
use std::fmt;
use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::batch::Step;
use crate::error::{Error, Result};

/// A factor on a loss: a number, or a table such as `{ start = 0.9, end = 0.1 }` for one that changes over the steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Weight {
    /// The same in every step.
    Fixed(f64),
    /// Another one from step to step.
    Changing(Course),
}

/// A weight that is `start` at first, changes linearly from one share of the steps to another, and is `end` from there on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Course {
    /// Required. The weight in the first step, and up to the step at `from`, without it where it jumps.
    pub start: f64,
    /// Required. The weight from the step at `until` on, and in validations.
    pub end: f64,
    /// The share of the training stage's steps after which the weight begins to change.
    #[serde(default)]
    pub from: f64,
    /// The share of the steps after which the weight stays at `end`; at least `from`, at which it jumps where both are the same, and at
    /// most 1.
    #[serde(default = "all")]
    pub until: f64,
}

/// The share that all steps are.
fn all() -> f64 {
    1.0
}

impl Weight {
    /// What it is at a step. Outside of a training it is that of the end: losses of validations would not compare else.
    pub fn at(self, step: Option<Step>) -> f64 {
        match (self, step) {
            (Self::Fixed(weight), _) => weight,
            (Self::Changing(course), None) => course.end,
            (Self::Changing(course), Some(step)) => course.at(step),
        }
    }

    /// What it is outside of a training.
    pub fn end(self) -> f64 {
        self.at(None)
    }

    /// The largest that it is at any step.
    pub fn largest(self) -> f64 {
        match self {
            Self::Fixed(weight) => weight,
            Self::Changing(course) => course.start.max(course.end),
        }
    }

    /// Whether all that it becomes lies in `range`.
    pub(crate) fn is_within(self, range: &RangeInclusive<f64>) -> bool {
        match self {
            Self::Fixed(weight) => range.contains(&weight),
            Self::Changing(course) => range.contains(&course.start) && range.contains(&course.end),
        }
    }

    /// Whether its shares of the steps are shares, one behind the other.
    pub(crate) fn is_in_order(self) -> bool {
        match self {
            Self::Fixed(_) => true,
            Self::Changing(Course { from, until, .. }) => {
                0.0 <= from && from <= until && until <= 1.0
            }
        }
    }

    /// Fails unless it is 0 or more.
    ///
    /// # Errors
    /// It is not, or its shares of the steps are not in order.
    pub(crate) fn check(self, key: &'static str) -> Result<()> {
        self.check_in(key, &(0.0..=f64::MAX), "0 or more")
    }

    /// Fails unless all that it becomes lies in `range`, which `expected` tells.
    ///
    /// # Errors
    /// It does not, or its shares of the steps are not in order.
    pub(crate) fn check_in(
        self,
        key: &'static str,
        range: &RangeInclusive<f64>,
        expected: &str,
    ) -> Result<()> {
        let expected = if !self.is_within(range) {
            expected
        } else if !self.is_in_order() {
            "`from` at most `until`, both from 0 to 1"
        } else {
            return Ok(());
        };
        Err(Error::objective(key, expected, self.to_string()))
    }
}

/// Where in a training weights are all 0. What is written of it goes behind "0".
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Vanishing {
    /// At every step.
    Always,
    /// After this share of the steps, and at none before.
    After(f64),
}

impl fmt::Display for Vanishing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Always => Ok(()),
            Self::After(share) if share <= 0.0 => f.write_str(" in the first step"),
            Self::After(share) if share <= BEHIND_FIRST => f.write_str(" after the first step"),
            Self::After(share) if share >= 1.0 => f.write_str(" at the end and in validations"),
            Self::After(share) => write!(f, " after the share {share} of the steps"),
        }
    }
}

/// A share of the steps that lies behind the first step of any training and before its second one.
const BEHIND_FIRST: f64 = f64::EPSILON;

/// Where weights, none of them below 0 and with shares in order, are all 0 after any share of the steps. Each changes linearly between
/// its corners, so they are there at one of these if they are anywhere. Steps are rounded down, so in a training of few steps they may
/// be so at one all the same.
pub(crate) fn vanish_together(weights: &[Weight]) -> Option<Vanishing> {
    let corners = weights.iter().flat_map(|weight| match weight {
        Weight::Fixed(_) => [0.0, 1.0],
        // One that jumps at once does so behind the first step.
        Weight::Changing(course) => [course.from, course.until.max(BEHIND_FIRST)],
    });
    let none_at = |share: &f64| {
        let at = |weight: &Weight| match weight {
            Weight::Fixed(weight) => *weight,
            Weight::Changing(course) => course.at_share(*share),
        };
        weights.iter().all(|weight| at(weight) == 0.0)
    };
    let mut shares: Vec<f64> = corners.chain([0.0, 1.0]).collect();
    shares.sort_unstable_by(f64::total_cmp);
    let first = shares.iter().copied().find(none_at)?;
    Some(match shares.iter().all(none_at) {
        true => Vanishing::Always,
        false => Vanishing::After(first),
    })
}

/// Those of some weights that change, by their names, with what they are at a step.
pub(crate) fn changing<'a>(
    weights: &'a [(&'static str, Weight)],
    step: Option<Step>,
) -> impl Iterator<Item = (&'static str, f64)> + 'a {
    let changes = |(_, weight): &&(&'static str, Weight)| matches!(weight, Weight::Changing(_));
    let found = weights.iter().filter(changes);
    found.map(move |(name, weight)| (*name, weight.at(step)))
}

impl Course {
    fn at(self, Step { number, of }: Step) -> f64 {
        let [from, until] = [self.from, self.until].map(|share| (of as f64 * share) as usize);
        if self.jumps() {
            // The first step has the `start` of every course.
            return self.between(f64::from(u8::from(number >= from.max(1))));
        }
        let steps = until.saturating_sub(from).max(1);
        self.between(number.saturating_sub(from) as f64 / steps as f64)
    }

    /// What it is after a share of the steps.
    fn at_share(self, share: f64) -> f64 {
        if self.jumps() {
            return self.between(f64::from(u8::from(share > 0.0 && share >= self.from)));
        }
        self.between((share - self.from) / (self.until - self.from))
    }

    /// Whether it changes from one step to the next.
    fn jumps(self) -> bool {
        self.from >= self.until
    }

    /// What it is where so much of the change is done.
    fn between(self, done: f64) -> f64 {
        let done = done.clamp(0.0, 1.0);
        // Both ends are met to the last bit.
        self.start * (1.0 - done) + self.end * done
    }
}

impl From<f64> for Weight {
    fn from(weight: f64) -> Self {
        Self::Fixed(weight)
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self::Fixed(0.0)
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(weight) => write!(f, "{weight}"),
            Self::Changing(Course {
                start,
                end,
                from,
                until,
            }) => write!(
                f,
                "{{ start = {start}, end = {end}, from = {from}, until = {until} }}"
            ),
        }
    }
}

impl<'de> Deserialize<'de> for Weight {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrTable)
    }
}

struct NumberOrTable;

impl<'de> Visitor<'de> for NumberOrTable {
    type Value = Weight;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a number, or a table such as `{ start = 0.9, end = 0.1 }`")
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> std::result::Result<Weight, E> {
        Ok(Weight::Fixed(number))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> std::result::Result<Weight, E> {
        Ok(Weight::Fixed(number as f64))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> std::result::Result<Weight, E> {
        Ok(Weight::Fixed(number as f64))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> std::result::Result<Weight, A::Error> {
        Course::deserialize(MapAccessDeserializer::new(map)).map(Weight::Changing)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn course(start: f64, end: f64, from: f64, until: f64) -> Weight {
        Weight::Changing(Course {
            start,
            end,
            from,
            until,
        })
    }

    /// What it is at these steps of so many.
    fn over<const N: usize>(weight: Weight, numbers: [usize; N], of: usize) -> [f64; N] {
        numbers.map(|number| weight.at(Some(Step { number, of })))
    }

    #[test]
    fn a_weight_changes_linearly_between_its_shares_of_the_steps() {
        let falling = course(0.8, 0.2, 0.25, 0.75);
        let found = over(falling, [0, 5, 10, 15, 19], 20);
        assert_eq!((found[0], found[1]), (0.8, 0.8));
        assert!((found[2] - 0.5).abs() < 1e-12, "{found:?}");
        assert_eq!((found[3], found[4]), (0.2, 0.2));
        // Shares come to whole steps, as those of a warm-up do; within one of them it changes at once.
        assert_eq!(
            over(course(0.0, 1.0, 0.5, 0.51), [4, 5, 6], 10),
            [0.0, 0.0, 1.0]
        );
        assert_eq!(over(course(1.0, 0.0, 0.0, 1.0), [0, 1], 1), [1.0, 0.0]);
        // Where there is nothing between the shares it jumps.
        let jump = course(0.0, 1.0, 0.5, 0.5);
        assert_eq!(over(jump, [4, 5, 9], 10), [0.0, 1.0, 1.0]);
        assert_eq!(jump.end(), 1.0);
        // The first step has its start all the same.
        assert_eq!(over(course(1.0, 0.0, 0.0, 0.0), [0, 1], 10), [1.0, 0.0]);
        // The last of four steps is one short of the end, as with a learning rate's schedule.
        assert_eq!(over(course(1.0, 0.0, 0.0, 1.0), [3, 4], 4), [0.25, 0.0]);
        assert_eq!(over(Weight::Fixed(0.3), [0, 7], 8), [0.3; 2]);
        assert_eq!([falling.end(), falling.largest()], [0.2, 0.8]);
        assert_eq!(Weight::Fixed(0.3).end(), 0.3);
    }

    #[test]
    fn a_weight_is_read_and_written_as_a_number_or_as_a_table() {
        let read = |value| serde_json::from_value::<Weight>(value);
        assert_eq!(read(json!(0.5)).unwrap(), Weight::Fixed(0.5));
        assert_eq!(read(json!(1)).unwrap(), Weight::Fixed(1.0));
        let short = read(json!({ "start": 0.9, "end": 0.1 })).unwrap();
        assert_eq!(short, course(0.9, 0.1, 0.0, 1.0));
        assert_eq!(
            serde_json::to_value(Weight::Fixed(1.0)).unwrap(),
            json!(1.0)
        );
        let whole = json!({ "start": 0.9, "end": 0.1, "from": 0.0, "until": 1.0 });
        assert_eq!(serde_json::to_value(short).unwrap(), whole);
        assert_eq!(read(whole).unwrap(), short);
        for (wrong, told) in [
            (json!("1"), "a number, or a table such as"),
            (json!({ "start": 0.9 }), "missing field `end`"),
            (
                json!({ "start": 1, "end": 0, "to": 1 }),
                "unknown field `to`",
            ),
        ] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn weights_that_make_no_sense_are_refused_with_what_was_found() {
        for (weight, expected) in [
            (Weight::Fixed(-1.0), "0 or more, found -1"),
            (Weight::Fixed(f64::NAN), "0 or more"),
            (course(1.0, f64::INFINITY, 0.0, 1.0), "0 or more"),
            (
                course(-0.5, 1.0, 0.0, 1.0),
                "0 or more, found { start = -0.5,",
            ),
            (course(1.0, 0.0, 0.6, 0.5), "`from` at most `until`"),
            (course(1.0, 0.0, -0.1, 0.5), "`from` at most `until`"),
            (course(1.0, 0.0, 0.5, 1.1), "`from` at most `until`"),
            (course(1.0, 0.0, f64::NAN, 1.0), "`from` at most `until`"),
        ] {
            let error = weight.check("label_weight").unwrap_err().to_string();
            assert!(
                error.contains("`[objective] label_weight`") && error.contains(expected),
                "{error}"
            );
        }
        course(0.0, 1.0, 0.0, 0.5).check("label_weight").unwrap();
        let share = course(0.0, 1.5, 0.0, 1.0).check_in("base_weight", &(0.0..=1.0), "a share");
        assert!(share.unwrap_err().to_string().contains("a share"));
    }

    #[test]
    fn weights_that_are_all_nothing_at_some_step_are_found() {
        let (none, some) = (Weight::Fixed(0.0), Weight::Fixed(0.5));
        let (rising, falling) = (course(0.0, 1.0, 0.25, 1.0), course(1.0, 0.0, 0.0, 0.5));
        let after = |share| Some(Vanishing::After(share));
        for (weights, expected) in [
            (vec![none, none], Some(Vanishing::Always)),
            (vec![none, some], None),
            // Before it rises, and after it has fallen.
            (vec![rising, none], after(0.0)),
            (vec![falling, none], after(0.5)),
            (vec![course(1.0, 0.0, 0.0, 1.0), none], after(1.0)),
            (vec![rising, falling], None),
            // Between the fall of one and the rise of the other.
            (vec![course(0.0, 1.0, 0.75, 1.0), falling], after(0.5)),
            // At one step alone.
            (vec![course(0.0, 1.0, 0.5, 1.0), falling], after(0.5)),
            (vec![course(0.0, 0.0, 0.0, 1.0), rising], after(0.0)),
            // From the second step on, for good or until the other one jumps.
            (vec![course(1.0, 0.0, 0.0, 0.0), some], None),
            (vec![course(1.0, 0.0, 0.0, 0.0), none], after(BEHIND_FIRST)),
            (
                vec![course(1.0, 0.0, 0.0, 0.0), course(0.0, 1.0, 0.5, 0.5)],
                after(BEHIND_FIRST),
            ),
            (vec![course(0.0, 1.0, 0.0, 0.0), none], after(0.0)),
            (
                vec![course(0.0, 0.0, 0.25, 0.5), none],
                Some(Vanishing::Always),
            ),
        ] {
            assert_eq!(vanish_together(&weights), expected, "{weights:?}");
        }
        let shares = [0.0, BEHIND_FIRST, 0.25, 1.0];
        let told = shares.map(|share| Vanishing::After(share).to_string());
        let expected = [
            " in the first step",
            " after the first step",
            " after the share 0.25 of the steps",
            " at the end and in validations",
        ];
        assert_eq!(told, expected);
        assert_eq!(Vanishing::Always.to_string(), "");
    }

    #[test]
    fn only_weights_that_change_are_told() {
        let weights = [
            ("labels", Weight::Fixed(1.0)),
            ("base", course(1.0, 0.0, 0.0, 1.0)),
        ];
        let step = Some(Step { number: 1, of: 4 });
        let told: Vec<_> = changing(&weights, step).collect();
        assert_eq!(told, [("base", 0.75)]);
    }
}

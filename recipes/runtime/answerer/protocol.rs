//! Answers of the OpenAI protocol, of which only what is needed is taken in: the rest costs no memory.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;

/// The response with an answer.
#[derive(Deserialize)]
pub(super) struct Completion {
    /// Of several choices the first.
    #[serde(default)]
    pub(super) choices: First<Choice>,
}

/// A possible answer.
#[derive(Deserialize)]
pub(super) struct Choice {
    pub(super) message: Option<Reply>,
    pub(super) finish_reason: Option<String>,
}

/// What the assistant says.
#[derive(Deserialize)]
pub(super) struct Reply {
    pub(super) content: Option<String>,
    pub(super) reasoning_content: Option<String>,
    pub(super) reasoning: Option<String>,
    pub(super) tool_calls: Option<Calls>,
}

/// The most calls of one answer; those of one with more are not taken in.
const MOST_CALLS: usize = 128;

/// Calls of tools, as they stand in the response.
pub(super) enum Calls {
    /// These.
    Few(Vec<Value>),
    /// More than any answer has.
    TooMany,
}

impl<'de> Deserialize<'de> for Calls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(AnyCalls)
    }
}

struct AnyCalls;

impl<'de> Visitor<'de> for AnyCalls {
    type Value = Calls;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of calls")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Calls, A::Error> {
        let mut calls = Vec::new();
        while calls.len() < MOST_CALLS {
            match items.next_element()? {
                Some(call) => calls.push(call),
                None => return Ok(Calls::Few(calls)),
            }
        }
        let mut more = false;
        while items.next_element::<IgnoredAny>()?.is_some() {
            more = true;
        }
        Ok(if more {
            Calls::TooMany
        } else {
            Calls::Few(calls)
        })
    }
}

/// The first item of a list, where there is one.
pub(super) struct First<T>(pub(super) Option<T>);

impl<T> Default for First<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for First<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(AnyFirst(std::marker::PhantomData))
    }
}

struct AnyFirst<T>(std::marker::PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for AnyFirst<T> {
    type Value = First<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<First<T>, A::Error> {
        let first = items.next_element()?;
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(First(first))
    }
}

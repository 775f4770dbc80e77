//! Answers of the OpenAI protocol, of which only what is needed is taken in: the rest costs no memory.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

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
    /// How many they are is all that counts.
    pub(super) tool_calls: Option<Vec<IgnoredAny>>,
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

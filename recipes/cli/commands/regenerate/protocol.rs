//! Responses of the OpenAI protocol, of which only what is needed is taken in: the rest costs no memory.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

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

/// The response with the models that there are.
#[derive(Deserialize)]
pub(super) struct Models {
    #[serde(default)]
    pub(super) data: Vec<Model>,
}

/// A model.
#[derive(Deserialize)]
pub(super) struct Model {
    pub(super) id: String,
}

/// The response that tells of a failure, in one of its forms.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Complaint {
    pub(super) error: Said,
    pub(super) message: Said,
    pub(super) detail: Said,
}

/// A text, or the one under `message` in an object; none in anything else.
#[derive(Default)]
pub(super) struct Said(pub(super) Option<String>);

impl<'de> Deserialize<'de> for Said {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnySaid)
    }
}

struct AnySaid;

impl<'de> Visitor<'de> for AnySaid {
    type Value = Said;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Said, E> {
        Ok(Said(Some(text.to_owned())))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Said, A::Error> {
        let mut said = Said(None);
        while let Some(key) = fields.next_key::<String>()? {
            if key == "message" {
                said = fields.next_value()?;
            } else {
                fields.next_value::<IgnoredAny>()?;
            }
        }
        Ok(said)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Said, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Said(None))
    }

    fn visit_unit<E: Error>(self) -> Result<Said, E> {
        Ok(Said(None))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Said, E> {
        Ok(Said(None))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Said, E> {
        Ok(Said(None))
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Said, E> {
        Ok(Said(None))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Said, E> {
        Ok(Said(None))
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

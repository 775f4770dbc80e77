//! Responses that every request may get, of which only what is needed is taken in: the rest costs no memory.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The response with the models that there are.
#[derive(Deserialize)]
pub(super) struct Models {
    #[serde(default)]
    pub(super) data: Vec<Model>,
}

/// A model.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Model {
    /// Its name.
    pub(crate) id: String,
    /// The engine, which names itself so.
    #[serde(default)]
    pub(crate) owned_by: Option<String>,
    /// Tokens of a prompt and its answer, at most, where the server tells.
    #[serde(default)]
    pub(crate) max_model_len: Option<usize>,
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

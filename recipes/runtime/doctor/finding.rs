//! What was found of one thing that the program stands on.

use serde::Serialize;

/// What was found of one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The thing.
    pub name: String,
    /// How it is.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What is to be done about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// How a thing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Good,
    /// It may get in the way of some things.
    Note,
    /// It gets in the way.
    Problem,
}

impl Finding {
    /// A thing that is as it should be.
    pub fn good(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            state: State::Good,
            found: found.into(),
            advice: None,
        }
    }

    /// The same thing with what may get in the way, and what is to be done about that.
    pub fn note(self, advice: impl Into<String>) -> Self {
        Self {
            state: State::Note,
            advice: Some(advice.into()),
            ..self
        }
    }

    /// The same thing with what gets in the way.
    pub fn problem(self, advice: impl Into<String>) -> Self {
        Self {
            state: State::Problem,
            ..self.note(advice)
        }
    }
}

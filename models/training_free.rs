//! Drafters that nobody trained: what they are worth is what a trained one has to be better than.
//!
//! Each is a [`Proposer`] whose drafts the same verifiers judge, so that nothing is lost with them either.
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::Mismatch;

use crate::draft_shape::StaticTree;
use crate::error::{Error, Result};
use crate::language_model::LanguageModel;
use crate::proposer::{Proposer, Session};
use crate::target::Target as _;
use crate::transformer::Transformer;

mod lookup;
mod recycling;

pub use lookup::PromptLookup;
pub use recycling::TokenRecycling;

/// A drafter without training, as recipes ask for it: its name, or of `early-layers` a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected `prompt-lookup`, `token-recycling`, or a table such as { name = \"early-layers\", layers = 4 }"
)]
pub enum TrainingFree {
    /// One of those that need nothing but their name.
    Named(Named),
    /// The target's first layers.
    EarlyLayers(EarlyLayers),
}

/// Drafters that need nothing but their name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Named {
    /// Drafts what followed the last tokens where they occurred before.
    PromptLookup,
    /// Drafts the most likely successors of each token, as the target last predicted them.
    TokenRecycling,
}

/// The target's first layers, its norm and its head, as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EarlyLayers {
    /// Required. `"early-layers"`.
    pub name: EarlyLayersName,
    /// Required. How many layers, from the first on; fewer than the target has.
    pub layers: usize,
}

/// The name of [`EarlyLayers`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EarlyLayersName {
    /// The only one.
    #[default]
    EarlyLayers,
}

impl TrainingFree {
    /// The first `layers` layers.
    pub fn early_layers(layers: usize) -> Self {
        Self::EarlyLayers(EarlyLayers {
            name: EarlyLayersName::EarlyLayers,
            layers,
        })
    }

    /// Whether its drafts can be drawn from a distribution above temperature 0; else they are certain tokens.
    pub fn draws(&self) -> bool {
        matches!(self, Self::EarlyLayers(_))
    }

    /// A tree that it is made for, where it is.
    pub fn tree(&self) -> Option<StaticTree> {
        matches!(self, Self::Named(Named::TokenRecycling)).then(TokenRecycling::tree)
    }

    /// Fails unless a target of so many `layers` has what it needs.
    ///
    /// # Errors
    /// The target has not so many layers.
    pub fn check(&self, layers: usize) -> Result<()> {
        match self {
            Self::EarlyLayers(early) if !(1..layers).contains(&early.layers) => {
                let expected = format!("1 to {} of the target's {layers} layers", layers - 1);
                Err(Error::TrainingFree(Mismatch::new(expected, early.layers)))
            }
            _ => Ok(()),
        }
    }

    /// It at work for `target`. It reads no captured layers.
    ///
    /// # Errors
    /// The target has not so many layers.
    pub fn proposer(&self, target: &Transformer) -> Result<Box<dyn Proposer>> {
        let vocab = target.spec().vocab;
        self.check(target.spec().layers)?;
        Ok(match self {
            Self::Named(Named::PromptLookup) => Box::new(PromptLookup::new(vocab)),
            Self::Named(Named::TokenRecycling) => Box::new(TokenRecycling::new(target.head())),
            Self::EarlyLayers(EarlyLayers { layers, .. }) => {
                let model = target.clone().first_layers(*layers);
                Box::new(Session::new(LanguageModel::of(model, &target.parts())?))
            }
        })
    }
}

impl FromStr for TrainingFree {
    type Err = String;

    /// Reads a name, or `early-layers:N`, which is how it is written.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let layers = |given: &str| Some(Self::early_layers(given.parse().ok()?));
        match text.split_once(':') {
            None if text == "prompt-lookup" => Some(Self::Named(Named::PromptLookup)),
            None if text == "token-recycling" => Some(Self::Named(Named::TokenRecycling)),
            Some(("early-layers", given)) => layers(given),
            _ => None,
        }
        .ok_or_else(|| {
            format!(
                "expected `prompt-lookup`, `token-recycling`, or `early-layers:N` for the first N layers, found `{text}`"
            )
        })
    }
}

impl fmt::Display for TrainingFree {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Named(Named::PromptLookup) => f.write_str("prompt-lookup"),
            Self::Named(Named::TokenRecycling) => f.write_str("token-recycling"),
            Self::EarlyLayers(EarlyLayers { layers, .. }) => write!(f, "early-layers:{layers}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafters_are_read_by_name_or_as_a_table() {
        let read = |text: &str| serde_json::from_str::<TrainingFree>(text);
        for (text, name) in [
            ("\"prompt-lookup\"", "prompt-lookup"),
            ("\"token-recycling\"", "token-recycling"),
            (r#"{"name":"early-layers","layers":4}"#, "early-layers:4"),
        ] {
            let drafter = read(text).unwrap();
            assert_eq!(drafter.to_string(), name);
            assert_eq!(name.parse(), Ok(drafter.clone()));
            assert_eq!(serde_json::to_string(&drafter).unwrap(), text);
        }
        for text in [
            "\"lookup\"",
            "\"early-layers\"",
            r#"{"name": "early-layers"}"#,
            r#"{"name": "early-layers", "layers": 4, "heads": 2}"#,
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("expected `prompt-lookup`"), "{error}");
        }
        for text in [
            "lookup",
            "early-layers",
            "early-layers:x",
            "prompt-lookup:3",
        ] {
            let error = text.parse::<TrainingFree>().unwrap_err();
            assert!(error.ends_with(&format!("found `{text}`")), "{error}");
        }
    }
}

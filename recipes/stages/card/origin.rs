//! The drafter whose weights another one began with, as a card names it.

use std::path::Path;

use serde_json::Value;
use spectrain_checkpoints::{ModelFolder, printable, seal};

use crate::runtime::start_at;

/// A key of what is known of a drafter of others: its id on the hub, where it was taken from there.
pub const HUB: &str = "hub";

/// A drafter that another one was trained on from, or converted from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Before {
    /// Its id on the hub.
    Hub(String),
    /// It is a folder of whoever wrote the card.
    Local,
}

impl Before {
    /// That of a drafter of which this is known; none of one that was trained from random weights on, and where nothing is said.
    pub(super) fn of(provenance: &Value) -> Option<Self> {
        let recipe = &provenance["recipe"];
        match recipe.is_object() {
            true => recipe["start"].as_str().map(Self::started),
            false => Self::converted(provenance),
        }
    }

    /// The one that a recipe names in `start`.
    fn started(start: &str) -> Self {
        let start = Path::new(start);
        // A folder that is not there any more may look like an id, but what was trained from was downloaded.
        let Some(folder) = start_at::here(start) else {
            return Self::Local;
        };
        if let Some(repository) = start_at::on_hub(start) {
            return Self::Hub(repository.id().to_owned());
        }
        let converted = || {
            let model = ModelFolder::open_some(&folder, &|_| false).ok()?;
            Self::converted(seal::provenance(model.config())?)
        };
        converted().unwrap_or(Self::Local)
    }

    /// The one that an import or an export was given.
    fn converted(provenance: &Value) -> Option<Self> {
        let imported = &provenance["imported"];
        let known = if imported.is_object() {
            imported
        } else {
            provenance
        };
        known["from"].as_str()?;
        let id = known[HUB].as_str();
        Some(id.map_or(Self::Local, |id| Self::Hub(id.to_owned())))
    }

    /// Its id on the hub.
    pub(super) fn id(&self) -> Option<&str> {
        match self {
            Self::Hub(id) => Some(id),
            Self::Local => None,
        }
    }

    /// What a text calls it.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Hub(id) => format!("`{}`", printable(id)),
            Self::Local => "a local drafter".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_drafter_of_the_hub_is_named_and_no_folder_is() {
        let told = |provenance: Value| Before::of(&provenance).map(|before| before.words());
        let hub = Some("`some/drafter`".to_owned());
        let local = Some("a local drafter".to_owned());
        let from_hub = json!({"from": "some/drafter@v1", "hub": "some/drafter"});
        assert_eq!(told(json!({"imported": from_hub})), hub);
        assert_eq!(told(from_hub), hub);
        assert_eq!(told(json!({"imported": {"from": "their/epoch_9"}})), local);
        assert_eq!(told(json!({"from": "their/epoch_9"})), local);
        assert_eq!(told(json!({"recipe": {"start": "/gone"}})), local);
        // It looks like an id, and nothing of it was ever downloaded.
        assert_eq!(told(json!({"recipe": {"start": "runs/gone"}})), local);
        for nothing in [json!({"recipe": {"seed": 0}}), json!({}), Value::Null] {
            assert_eq!(told(nothing), None);
        }
    }
}

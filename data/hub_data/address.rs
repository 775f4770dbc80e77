//! How a dataset of the hub is named.

use std::fmt;

use spectrain_checkpoints::hub::{RepoType, Repository};

/// What every address of a dataset begins with.
pub const PREFIX: &str = "hf://";

/// The form of an address, for errors.
const FORM: &str = "`hf://org/name`, `hf://org/name@revision` or either with `:config/split`";

/// A dataset of the hub, and which of its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubAddress {
    /// `org/name`; old datasets have a name alone.
    pub id: String,
    /// A branch, tag or commit; the hub's main branch where none is given.
    pub revision: Option<String>,
    /// The configuration, where one is given.
    pub config: Option<String>,
    /// The split, where one is given.
    pub split: Option<String>,
}

impl HubAddress {
    /// Reads an address; `None` for a text that does not begin as one.
    ///
    /// # Errors
    /// The id, the revision, the configuration or the split cannot be one: what was expected and found.
    pub fn parse(text: &str) -> Option<Result<Self, String>> {
        let rest = text.strip_prefix(PREFIX)?;
        Some(
            Self::read(rest).map_err(|problem| format!("expected {FORM}, found `{text}`{problem}")),
        )
    }

    fn read(rest: &str) -> Result<Self, String> {
        // As `huggingface_hub` spells it.
        let rest = rest.strip_prefix("datasets/").unwrap_or(rest);
        let (place, rows) = match rest.split_once(':') {
            Some((place, rows)) => (place, Some(rows)),
            None => (rest, None),
        };
        let (id, revision) = match place.split_once('@') {
            Some((id, revision)) => (id, Some(revision)),
            None => (place, None),
        };
        let is_word = |word: &str| !word.is_empty() && !word.contains(['/', ':']);
        let (config, split) = match rows.map(|rows| rows.split_once('/').ok_or(rows)) {
            None => (None, None),
            Some(Ok((config, split))) => (Some(config), Some(split)),
            Some(Err(split)) => (None, Some(split)),
        };
        if !config.into_iter().chain(split).all(is_word) {
            return Err(
                ": write a split as `:split`, or with its configuration as `:config/split`"
                    .to_string(),
            );
        }
        let own = |word: &str| word.to_string();
        let address = Self {
            id: own(id),
            revision: revision.map(own),
            config: config.map(own),
            split: split.map(own),
        };
        let checked = Repository::new(RepoType::Dataset, id, revision);
        checked.map_err(|error| format!(": {error}"))?;
        Ok(address)
    }

    /// `id@revision`, without the configuration and the split.
    pub fn repository(&self) -> String {
        match &self.revision {
            Some(revision) => format!("{}@{revision}", self.id),
            None => self.id.clone(),
        }
    }
}

impl fmt::Display for HubAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.repository())?;
        match (&self.config, &self.split) {
            (Some(config), Some(split)) => write!(f, ":{config}/{split}"),
            (None, Some(split)) => write!(f, ":{split}"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_as_they_are_given() {
        for text in [
            "hf://org/name",
            "hf://squad",
            "hf://org/name@refs/pr/1",
            "hf://org/name:test",
            "hf://org/name@v1.0:default/train_sft",
        ] {
            let address = HubAddress::parse(text).unwrap().unwrap();
            assert_eq!(address.to_string(), text);
        }
        let address = HubAddress::parse("hf://datasets/org/name@v1:c/s")
            .unwrap()
            .unwrap();
        assert_eq!(address.to_string(), "hf://org/name@v1:c/s");
        assert_eq!(HubAddress::parse("data/train.jsonl"), None);
    }

    #[test]
    fn what_is_no_address_is_refused_with_its_form() {
        for text in [
            "hf://",
            "hf://a/b/c",
            "hf://a/b:",
            "hf://a/b:c/",
            "hf://a/b:/s",
            "hf://a/b:c/s/t",
            "hf://a/b@",
            "hf://a/b@../x",
            "hf://../b",
            "hf://a b/c",
        ] {
            let error = HubAddress::parse(text).unwrap().unwrap_err();
            assert!(
                error.contains(text) && error.contains(":config/split"),
                "{error}"
            );
        }
    }
}

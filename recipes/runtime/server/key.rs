//! The API key of a server.

use std::env::{self, VarError};
use std::fmt;

use anyhow::{Result, bail};

/// The API key of a server. It is sent, and never printed.
#[derive(Clone)]
pub struct ApiKey(String);

impl ApiKey {
    /// From the environment variable that the user named by `option`.
    ///
    /// # Errors
    /// There is no such variable, or it is no text.
    pub(crate) fn read(option: &str, variable: &str) -> Result<Self> {
        match env::var(variable) {
            Ok(key) => Ok(Self(key)),
            Err(VarError::NotPresent) => {
                bail!("`{option}`: the environment has no variable `{variable}`")
            }
            // The error itself has the value.
            Err(VarError::NotUnicode(_)) => {
                bail!("`{option}`: expected text in the variable `{variable}`, found other bytes")
            }
        }
    }

    /// The value of the header `Authorization`.
    pub(super) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl From<&str> for ApiKey {
    fn from(key: &str) -> Self {
        Self(key.to_owned())
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_sent_and_not_printed() {
        let key = ApiKey::from("sk-QzXwVy");
        assert_eq!(key.bearer(), "Bearer sk-QzXwVy");
        for shown in [format!("{key:?}"), format!("{:#?}", Some(&key))] {
            assert!(shown.contains('…') && !shown.contains("Qz"), "{shown}");
        }
    }
}

//! Addresses of servers, as a key of a recipe names them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Addresses of servers: one, or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "Given", into = "Given")]
#[schemars(!from, !into, with = "Given")]
pub struct Addresses(Vec<String>);

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected `\"http://HOST:PORT\"` or a list of such addresses"
)]
enum Given {
    One(String),
    Several(Vec<String>),
}

impl Addresses {
    /// Each of them.
    pub fn each(&self) -> &[String] {
        &self.0
    }
}

impl From<&str> for Addresses {
    fn from(address: &str) -> Self {
        Self(vec![address.to_owned()])
    }
}

impl From<Given> for Addresses {
    fn from(given: Given) -> Self {
        match given {
            Given::One(address) => Self(vec![address]),
            Given::Several(addresses) => Self(addresses),
        }
    }
}

impl From<Addresses> for Given {
    fn from(Addresses(mut addresses): Addresses) -> Self {
        match addresses.len() {
            1 => Self::One(addresses.remove(0)),
            _ => Self::Several(addresses),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_address_stands_alone_and_several_in_a_list() {
        for (given, count) in [
            (json!("http://a"), 1),
            (json!(["http://a", "http://b"]), 2),
            (json!([]), 0),
        ] {
            let read: Addresses = serde_json::from_value(given.clone()).unwrap();
            assert_eq!(read.each().len(), count);
            assert_eq!(json!(read), given);
        }
        let error = serde_json::from_value::<Addresses>(json!(3)).unwrap_err();
        assert!(error.to_string().contains("or a list"), "{error}");
    }
}

//! What a training is made from, and in what two of them differ.

use std::collections::BTreeSet;

use serde_json::Value;
use spectrain_checkpoints::Mismatch;
use spectrain_checkpoints::hash::sha256_bytes;

/// The digest of what a training is made from.
pub(crate) fn digest_of(identity: &Value) -> String {
    sha256_bytes(identity.to_string().as_bytes())
}

/// The keys at which `found` is not what is `expected`, with dots between their parts.
pub(crate) fn differences(expected: &Value, found: &Value) -> Vec<(String, Mismatch)> {
    let mut all = Vec::new();
    add("", expected, found, &mut all);
    all
}

fn add(path: &str, expected: &Value, found: &Value, all: &mut Vec<(String, Mismatch)>) {
    if expected == found {
        return;
    }
    let (Value::Object(one), Value::Object(other)) = (expected, found) else {
        let key = match path {
            "" => "identity",
            path => path,
        };
        all.push((key.to_owned(), Mismatch::new(shown(expected), shown(found))));
        return;
    };
    let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    for key in keys {
        let inner = match path {
            "" => key.clone(),
            path => format!("{path}.{key}"),
        };
        let [one, other] = [one, other].map(|table| table.get(key).unwrap_or(&Value::Null));
        add(&inner, one, other, all);
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "nothing".into(),
        Value::String(text) => format!("`{text}`"),
        value => format!("`{value}`"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_differs_is_named_by_its_keys() {
        let expected = json!({"dtype": "BF16", "train": {"clip": 1, "beta1": 0.9}, "seed": 0});
        let found = json!({"dtype": "F32", "train": {"beta1": 0.9}, "seed": 0, "start": "ab"});
        let told: Vec<String> = differences(&expected, &found)
            .iter()
            .map(|(key, mismatch)| format!("{key}: {mismatch}"))
            .collect();
        assert_eq!(
            told,
            [
                "dtype: expected `BF16`, found `F32`",
                "start: expected nothing, found `ab`",
                "train.clip: expected `1`, found nothing",
            ]
        );
        assert!(differences(&found, &found).is_empty());
        assert_ne!(digest_of(&expected), digest_of(&found));
        assert_eq!(differences(&json!("a"), &json!("b"))[0].0, "identity");
    }
}

//! The defaults for sampling, `generation_config.json`: what is in it decides what a target says.

use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::json;
use crate::mismatch::Mismatch;

/// A key, what it must hold, and whether a value is that.
type Rule = (&'static str, &'static str, fn(&Value) -> bool);

const RULES: [Rule; 5] = [
    ("do_sample", "`true` or `false`", Value::is_boolean),
    // Logits are divided by it, in 32 bits.
    (
        "temperature",
        "0 or a number above it that 32 bits hold",
        |value| {
            let number = value.as_f64();
            number.is_some_and(|number| {
                number == 0.0 || (number > 0.0 && (number as f32).is_normal())
            })
        },
    ),
    ("top_p", "a number above 0 and at most 1", |value| {
        value
            .as_f64()
            .is_some_and(|number| number > 0.0 && number <= 1.0)
    }),
    ("top_k", "a whole number from 0", Value::is_u64),
    (
        "eos_token_id",
        "the id of a token, or a list of such",
        |value| {
            let is_id = |id: &Value| id.as_u64().is_some_and(|id| u32::try_from(id).is_ok());
            is_id(value) || value.as_array().is_some_and(|ids| ids.iter().all(is_id))
        },
    ),
];

/// Reads the file.
///
/// # Errors
/// It is no table, or a key that is read here holds what makes no sense.
pub(super) fn read(path: &Path) -> Result<Value> {
    let settings = json::read(path)?;
    let wrong = |key: &str, expected: &str, got: &Value| Error::Key {
        path: path.to_path_buf(),
        key: key.to_string(),
        mismatch: Mismatch::new(expected, format!("`{got}`")),
    };
    let Some(table) = settings.as_object() else {
        return Err(Error::Folder {
            path: path.to_path_buf(),
            reason: "expected a table".to_string(),
        });
    };
    for (key, expected, holds) in RULES {
        let value = table.get(key).filter(|value| !value.is_null());
        if let Some(value) = value.filter(|value| !holds(value)) {
            return Err(wrong(key, expected, value));
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read_of(settings: &Value) -> Result<Value> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("generation_config.json");
        std::fs::write(&path, settings.to_string()).unwrap();
        read(&path)
    }

    #[test]
    fn what_models_ship_is_read() {
        for settings in [
            json!({}),
            json!({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 2]}),
            json!({"do_sample": false, "temperature": 0, "top_k": 0, "top_p": 1, "eos_token_id": 2}),
            json!({"temperature": null, "top_k": null, "eos_token_id": null, "bos_token_id": 1}),
        ] {
            assert_eq!(read_of(&settings).unwrap(), settings);
        }
    }

    #[test]
    fn values_that_make_no_sense_are_refused_with_file_and_key() {
        for (key, value) in [
            ("do_sample", json!("yes")),
            ("temperature", json!(-0.1)),
            ("temperature", json!("0.5")),
            ("temperature", json!(1e-300)),
            ("temperature", json!(1e300)),
            ("top_p", json!(0)),
            ("top_p", json!(1.01)),
            ("top_p", json!(-1)),
            ("top_k", json!(-1)),
            ("top_k", json!(2.5)),
            ("eos_token_id", json!(-1)),
            ("eos_token_id", json!([1, "2"])),
            ("eos_token_id", json!(1u64 << 40)),
        ] {
            let error = read_of(&json!({ key: value })).unwrap_err().to_string();
            let place = format!("generation_config.json`: key `{key}`: expected ");
            assert!(error.contains(&place), "{error}");
            assert!(error.ends_with(&format!("found `{value}`")), "{error}");
        }
        assert!(read_of(&json!([])).is_err());
    }
}

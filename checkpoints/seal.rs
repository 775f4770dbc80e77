//! What a folder says of itself under one key of its configuration: where its drafter comes from, and digests of all its
//! tensors and of the configuration.
//!
//! A changed weight, a tensor in another's place, a neighbouring layer id: engines load all of these and draft badly, and no
//! check of shapes sees them. The digests do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::atomic::write_file;
use crate::error::{Error, Result};
use crate::folder::{CONFIG, ModelFolder};
use crate::hash;
use crate::json as files;
use crate::mismatch::Mismatch;
use crate::tensors::NamedTensor;

/// The key of `config.json`; engines pass over it.
pub const SEAL: &str = "spectrain";
const DIGESTS: &str = "sha256";
const PROVENANCE: &str = "provenance";
/// The part of the provenance that is known last.
const REPORT: &str = "report";
/// The card of a folder, for people.
pub const CARD: &str = "README.md";
/// What the seal says of the card: the digest of what was written. Whoever has the folder may change the card.
const CARD_DIGEST: &str = "card";
/// How the names of files end that engines look for weights in, or that tell them where to look.
const WEIGHTS_END: [&str; 5] = [
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".pt",
    ".pth",
];

/// The configuration with the seal of these tensors, and of the files beside them, in it.
pub fn sealed(
    mut config: Value,
    tensors: &[NamedTensor],
    beside: &[(&str, &[u8])],
    provenance: &Value,
) -> Value {
    config[SEAL] = json!({ "version": env!("CARGO_PKG_VERSION") });
    if !provenance.is_null() {
        config[SEAL][PROVENANCE] = provenance.clone();
    }
    let of_tensors = tensors
        .iter()
        .map(|tensor| (tensor.name.clone(), json!(of_tensor(tensor))));
    let of_tensors: Map<String, Value> = of_tensors.collect();
    let of_file =
        |(name, bytes): &(&str, &[u8])| ((*name).to_owned(), json!(hash::sha256_bytes(bytes)));
    let of_files: Map<String, Value> = beside.iter().map(of_file).collect();
    let of_config = of_config(&config);
    config[SEAL][DIGESTS] = json!({ "config": of_config, "tensors": of_tensors });
    if !of_files.is_empty() {
        config[SEAL][DIGESTS]["files"] = Value::Object(of_files);
    }
    config
}

/// Where a configuration says that its drafter comes from, if it does.
pub fn provenance(config: &Value) -> Option<&Value> {
    config.get(SEAL)?.get(PROVENANCE)
}

/// The configuration of a sealed folder and its file. Fails where it is not the one that was sealed.
fn open_sealed(dir: &Path) -> Result<(Value, PathBuf)> {
    let path = dir.join(CONFIG);
    let config = files::read(&path)?;
    let Some(seal) = config.get(SEAL).filter(|seal| seal.is_object()) else {
        return Err(Error::Key {
            path,
            key: SEAL.into(),
            mismatch: Mismatch::new("the seal of a folder that this program wrote", "nothing"),
        });
    };
    let stated = seal
        .get(DIGESTS)
        .and_then(|digests| digests.get("config"))
        .cloned();
    check_config(&path, &config, &stated.unwrap_or_default())?;
    Ok((config, path))
}

/// Records in a sealed folder what an evaluation found of its drafter, in the place of what was found before.
pub fn add_report(dir: &Path, report: &Value) -> Result<()> {
    let (mut config, path) = open_sealed(dir)?;
    if !config[SEAL][PROVENANCE].is_object() {
        config[SEAL][PROVENANCE] = json!({});
    }
    config[SEAL][PROVENANCE][REPORT] = report.clone();
    config[SEAL][DIGESTS]["config"] = json!(of_config(&config));
    write_file(&path, &files::to_bytes(&config))
}

/// Writes the card of a sealed folder, unless someone has changed the one that is there. Says whether it was written.
///
/// # Errors
/// The folder has no seal, or its configuration is not the one that was sealed.
pub fn write_card(dir: &Path, card: &str) -> Result<bool> {
    let (mut config, path) = open_sealed(dir)?;
    let place = dir.join(CARD);
    if place.exists() {
        let here = hash::sha256_file(&place)?;
        let is_ours =
            config[SEAL][CARD_DIGEST] == here || hash::sha256_bytes(card.as_bytes()) == here;
        if !is_ours {
            return Ok(false);
        }
    }
    write_file(&place, card.as_bytes())?;
    config[SEAL][CARD_DIGEST] = json!(hash::sha256_bytes(card.as_bytes()));
    config[SEAL][DIGESTS]["config"] = json!(of_config(&config));
    write_file(&path, &files::to_bytes(&config))?;
    Ok(true)
}

/// The digest of a configuration without what an evaluation found: the same before and after [`add_report`] and
/// [`write_card`].
pub fn sha256_of_config(config: &Value) -> String {
    let mut config = config.clone();
    if let Some(seal) = config.get_mut(SEAL).and_then(Value::as_object_mut) {
        seal.shift_remove(CARD_DIGEST);
    }
    let provenance = config
        .get_mut(SEAL)
        .and_then(|seal| seal.get_mut(PROVENANCE));
    let provenance = provenance.and_then(Value::as_object_mut);
    let is_empty = provenance.is_some_and(|provenance| {
        provenance.remove(REPORT);
        provenance.is_empty()
    });
    if is_empty && let Some(seal) = config[SEAL].as_object_mut() {
        seal.remove(PROVENANCE);
    }
    of_config(&config)
}

/// The digest of a sealed configuration and of the digests in it, the same before and after [`add_report`]. None without a
/// seal, or where the configuration is not the one that was sealed.
pub fn sha256_of_sealed(config: &Value) -> Option<String> {
    let mut digests = config.get(SEAL)?.get(DIGESTS)?.clone();
    let stated = digests.as_object_mut()?.shift_remove("config")?;
    let parts = format!("{} {}", sha256_of_config(config), ordered(&digests));
    (stated == of_config(config)).then(|| hash::sha256_bytes(parts.as_bytes()))
}

/// Fails if a folder was changed after this program wrote it. Says whether there was a seal to compare with.
pub fn check(folder: &ModelFolder) -> Result<bool> {
    let Some(seal) = folder.config().get(SEAL) else {
        return Ok(false);
    };
    let wrong = |key: &str, expected: String, got: &Value| Error::Key {
        path: folder.path().join(CONFIG),
        key: format!("{SEAL}.{DIGESTS}{key}"),
        mismatch: Mismatch::new(expected, format!("`{got}`")),
    };
    let of_tensors = &seal[DIGESTS]["tensors"];
    let digests: Option<BTreeMap<&String, &str>> = of_tensors.as_object().and_then(|digests| {
        let entries = digests.iter();
        entries
            .map(|(name, digest)| Some((name, digest.as_str()?)))
            .collect()
    });
    let Some(digests) = digests else {
        let expected = "a digest for each tensor".to_string();
        return Err(wrong(".tensors", expected, of_tensors));
    };
    check_config(
        &folder.path().join(CONFIG),
        folder.config(),
        &seal[DIGESTS]["config"],
    )?;
    check_files(folder, &seal[DIGESTS]["files"])?;
    let names: Vec<String> = digests.keys().map(|name| (*name).clone()).collect();
    folder.check_names(&names, &[])?;
    for (name, digest) in digests {
        let tensor = folder.read(name)?;
        if of_tensor(&tensor) != digest {
            return Err(Error::Values {
                name: name.clone(),
                path: folder.info(name)?.file.clone(),
                reason: "it was changed after it was written: its digest is not the one in `config.json`"
                    .to_string(),
            });
        }
    }
    Ok(true)
}

/// The names of the files beside the configuration that a seal vouches for: those with the tensors, and those stated.
pub(crate) fn files(folder: &ModelFolder) -> BTreeSet<String> {
    let name = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
    let tensors = folder.tensors().filter_map(|info| name(&info.file));
    let stated = folder.config()[SEAL][DIGESTS]["files"].as_object();
    let stated = stated.into_iter().flatten().map(|(name, _)| name.clone());
    tensors.chain(stated).collect()
}

/// Whether engines may load weights from a file of this name, or be led to them by it.
pub(crate) fn may_be_weights(name: &str) -> bool {
    WEIGHTS_END.iter().any(|end| name.ends_with(end))
}

/// Fails unless a configuration has the digest that its seal states.
fn check_config(path: &Path, config: &Value, stated: &Value) -> Result<()> {
    let found = of_config(config);
    if *stated == *found {
        return Ok(());
    }
    Err(Error::Key {
        path: path.to_owned(),
        key: format!("{SEAL}.{DIGESTS}.config"),
        mismatch: Mismatch::new(
            format!("`{found}`"),
            format!(
                "`{stated}`: the configuration was changed after it was written; if that was meant, for example because another \
                 program trained the drafter further, delete the key `{SEAL}`, and the folder is read like a published one"
            ),
        ),
    })
}

/// Fails where a file beside the weights was changed, or where there are weights besides: engines may load those.
fn check_files(folder: &ModelFolder, stated: &Value) -> Result<()> {
    let changed = |path: PathBuf, reason: &str| Error::Folder {
        path,
        reason: reason.to_owned(),
    };
    for (name, digest) in stated.as_object().into_iter().flatten() {
        let path = folder.path().join(name);
        if hash::sha256_file(&path)? != *digest {
            let reason =
                "it was changed after it was written: its digest is not the one in `config.json`";
            return Err(changed(path, reason));
        }
    }
    let known: BTreeSet<PathBuf> = folder.tensors().map(|info| info.file.clone()).collect();
    let entries = std::fs::read_dir(folder.path()).map_err(Error::io("read", folder.path()))?;
    for entry in entries {
        let path = entry.map_err(Error::io("read", folder.path()))?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if may_be_weights(&name) && !known.contains(&path) {
            let reason = "it was added after the folder was written, and engines may load it";
            return Err(changed(path, reason));
        }
    }
    Ok(())
}

fn of_tensor(tensor: &NamedTensor) -> String {
    let header = format!("{} {:?}", tensor.dtype, tensor.shape);
    let parts = [(header.as_str(), tensor.bytes.as_slice())];
    hash::sha256_parts(parts.into_iter())
}

/// Of everything but the digests, whatever the order of the keys.
fn of_config(config: &Value) -> String {
    let mut config = config.clone();
    if let Some(seal) = config.get_mut(SEAL).and_then(Value::as_object_mut) {
        seal.remove(DIGESTS);
    }
    hash::sha256_bytes(ordered(&config).to_string().as_bytes())
}

fn ordered(value: &Value) -> Value {
    match value {
        Value::Object(table) => {
            let sorted: BTreeMap<&String, &Value> = table.iter().collect();
            let entries = sorted.into_iter();
            Value::Object(
                entries
                    .map(|(key, value)| (key.clone(), ordered(value)))
                    .collect(),
            )
        }
        Value::Array(values) => values.iter().map(ordered).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::write_folder;

    fn tensors() -> Vec<NamedTensor> {
        vec![
            NamedTensor::from_f32("a", [2, 3], vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
            NamedTensor::from_f32("b", [2, 3], vec![0.0; 6]),
            NamedTensor::from_i64("d2t", [2], vec![0, 3]),
        ]
    }

    fn checked(config: &Value, tensors: &[NamedTensor]) -> Result<bool> {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("d");
        write_folder(&dir, config, tensors, &[]).unwrap();
        check(&ModelFolder::open(&dir).unwrap())
    }

    fn config() -> Value {
        sealed(
            json!({"ids": [1, 3], "theta": 1e6, "x": 0.1}),
            &tensors(),
            &[],
            &json!({"recipe": "eagle3"}),
        )
    }

    #[test]
    fn what_was_written_is_what_is_read() {
        assert!(checked(&config(), &tensors()).unwrap());
        assert_eq!(provenance(&config()).unwrap()["recipe"], "eagle3");
        assert!(!checked(&json!({"ids": [1, 3]}), &tensors()).unwrap());
        let mut turned = Map::new();
        let original = config();
        for (key, value) in original.as_object().unwrap().iter().rev() {
            turned.insert(key.clone(), value.clone());
        }
        assert!(checked(&Value::Object(turned), &tensors()).unwrap());
    }

    #[test]
    fn a_card_is_written_anew_until_someone_changes_it_and_leaves_the_drafter_the_same() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("d");
        write_folder(&dir, &config(), &tensors(), &[]).unwrap();
        for card in ["# one", "# two"] {
            assert!(write_card(&dir, card).unwrap());
            let folder = ModelFolder::open(&dir).unwrap();
            assert!(check(&folder).unwrap());
            assert_eq!(std::fs::read_to_string(dir.join(CARD)).unwrap(), card);
            assert_eq!(
                sha256_of_config(folder.config()),
                sha256_of_config(&config())
            );
            assert_eq!(
                sha256_of_sealed(folder.config()),
                sha256_of_sealed(&config())
            );
        }
        std::fs::write(dir.join(CARD), "# mine").unwrap();
        assert!(!write_card(&dir, "# three").unwrap());
        assert_eq!(std::fs::read_to_string(dir.join(CARD)).unwrap(), "# mine");
        assert!(check(&ModelFolder::open(&dir).unwrap()).unwrap());
        std::fs::remove_file(dir.join(CARD)).unwrap();
        assert!(write_card(&dir, "# three").unwrap());
    }

    #[test]
    fn a_report_is_added_under_the_seal_and_leaves_the_drafter_the_same() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("d");
        write_folder(&dir, &config(), &tensors(), &[]).unwrap();
        for tau in [2.5, 3.0] {
            add_report(&dir, &json!([{"tau": tau}])).unwrap();
            let folder = ModelFolder::open(&dir).unwrap();
            assert!(check(&folder).unwrap());
            let found = provenance(folder.config()).unwrap();
            assert_eq!(
                (&found["recipe"], &found["report"][0]["tau"]),
                (&json!("eagle3"), &json!(tau))
            );
            assert_eq!(
                sha256_of_config(folder.config()),
                sha256_of_config(&config())
            );
            assert_eq!(
                sha256_of_sealed(folder.config()),
                sha256_of_sealed(&config())
            );
        }
        assert!(sha256_of_sealed(&config()).is_some());
        let mut forged = config();
        forged[SEAL][DIGESTS]["tensors"]["a"] = json!("other");
        assert_ne!(sha256_of_sealed(&forged), sha256_of_sealed(&config()));
        let changed = root.path().join("changed");
        let mut other = config();
        other["ids"][1] = json!(4);
        assert_eq!(sha256_of_sealed(&other), None);
        write_folder(&changed, &other, &tensors(), &[]).unwrap();
        let error = add_report(&changed, &json!([])).unwrap_err().to_string();
        assert!(
            error.contains("was changed after it was written"),
            "{error}"
        );
        other[SEAL][DIGESTS] = json!(3);
        write_folder(&changed, &other, &tensors(), &[]).unwrap();
        assert!(add_report(&changed, &json!([])).is_err());
        assert_ne!(sha256_of_config(&other), sha256_of_config(&config()));
        let plain = root.path().join("plain");
        write_folder(&plain, &json!({"ids": [1]}), &tensors(), &[]).unwrap();
        let error = add_report(&plain, &json!([])).unwrap_err().to_string();
        assert!(error.contains("the seal of a folder"), "{error}");
    }

    #[test]
    fn files_beside_the_weights_are_under_the_seal() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("d");
        let beside: [(&str, &[u8]); 1] = [("tokenizer.json", b"{}")];
        let config = sealed(json!({}), &tensors(), &beside, &Value::Null);
        write_folder(&dir, &config, &tensors(), &beside).unwrap();
        let checked = || check(&ModelFolder::open(&dir).unwrap());
        assert!(checked().unwrap());
        add_report(&dir, &json!([])).unwrap();
        assert!(checked().unwrap());
        for (name, contents) in [
            ("model-2.safetensors", "x"),
            ("mask_embedding.pt", "x"),
            ("tokenizer.json", "[]"),
        ] {
            let before = std::fs::read(dir.join(name));
            std::fs::write(dir.join(name), contents).unwrap();
            let error = checked().unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
            match before {
                Ok(bytes) => std::fs::write(dir.join(name), bytes).unwrap(),
                Err(_) => std::fs::remove_file(dir.join(name)).unwrap(),
            }
        }
        std::fs::write(dir.join("README.md"), "of the user").unwrap();
        assert!(checked().unwrap());
    }

    #[test]
    fn every_change_is_refused_by_name() {
        let refused = |config: &Value, tensors: &[NamedTensor], part: &str| {
            let error = checked(config, tensors).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        };
        let change = |at: usize, change: &dyn Fn(&mut NamedTensor)| {
            let mut tensors = tensors();
            change(&mut tensors[at]);
            tensors
        };
        refused(&config(), &tensors()[1..], "missing tensors: `a`");
        refused(&config(), &change(0, &|a| a.bytes[5] ^= 1), "`a`");
        refused(&config(), &change(0, &|a| a.shape.reverse()), "`a`");
        let cast = |a: &mut NamedTensor| *a = a.clone().cast(crate::dtype::DType::BF16).unwrap();
        refused(&config(), &change(0, &cast), "`a`");
        let mut swapped = tensors();
        swapped[0].name = "b".into();
        swapped[1].name = "a".into();
        refused(&config(), &swapped, "`a`");
        let mut more = tensors();
        more.push(NamedTensor::from_i64("c", [1], vec![0]));
        refused(&config(), &more, "unexpected tensors: `c`");
        let mut other = config();
        other["ids"][1] = json!(4);
        refused(&other, &tensors(), "was changed after it was written");
        let mut other = config();
        other[SEAL][PROVENANCE]["recipe"] = json!("eagle1");
        refused(&other, &tensors(), "was changed after it was written");
        for digests in [json!(3), json!({}), json!({"tensors": {"a": 1}})] {
            let mut other = config();
            other[SEAL][DIGESTS] = digests;
            refused(&other, &tensors(), "a digest for each tensor");
        }
    }
}

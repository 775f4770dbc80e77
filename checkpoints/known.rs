//! Every dialect there is, and whose a folder is.

use std::collections::BTreeSet;
use std::path::Path;

use crate::deepseek_mtp::DEEPSEEK_MTP;
use crate::dflash::{self, DFLASH};
use crate::dialect::description::Dialect;
use crate::eagle1::EAGLE1;
use crate::eagle3::{self, EAGLE3};
use crate::error::{Error, Result};
use crate::folder::{CONFIG, INDEX, ModelFolder, WEIGHTS};
use crate::hydra::HYDRA;
use crate::language_model::{LANGUAGE_MODEL, PARD};
use crate::masked_language_model::DEER;
use crate::medusa::MEDUSA;
use crate::mismatch::Mismatch;
use crate::mtp::MTP;
use crate::peagle::{self, PEAGLE};
use crate::qwen_mtp::QWEN_MTP;
use crate::redrafter::REDRAFTER;
use crate::regular::is_there;
use crate::speculators::{self, MODEL_TYPE};

/// In this order, as a language model of one layer looks like an EAGLE-1 drafter of its authors, and an MTP layer stands in
/// the folder of a language model.
const DIALECTS: &[&Dialect] = &[
    &EAGLE3,
    &eagle3::SPECULATORS,
    &PEAGLE,
    &peagle::SPECULATORS,
    &EAGLE1,
    &MEDUSA,
    &HYDRA,
    &REDRAFTER,
    &DFLASH,
    &dflash::speculators::SPECULATORS,
    &dflash::transformers::TRANSFORMERS,
    &DEER,
    &MTP,
    &QWEN_MTP,
    &DEEPSEEK_MTP,
    &PARD,
    &LANGUAGE_MODEL,
];

/// Names of drafters that other libraries have and this program has not, as their classes or the keys of their layouts
/// have them, in lower case.
const OTHERS: [(&str, &str); 2] = [
    ("mtp", "MTP drafters of this layout"),
    ("mlpspeculator", "MLP speculator drafters"),
];

/// The tensors of a drafter that is a layer in its target's folder, where weights are in shards; `None` for any other folder. The
/// shards need not be there.
///
/// # Errors
/// The configuration or the index cannot be read.
pub fn layer_beside_target(folder: &Path) -> Result<Option<BTreeSet<String>>> {
    if is_there(&folder.join(WEIGHTS)) || !is_there(&folder.join(INDEX)) {
        return Ok(None);
    }
    let named = ModelFolder::open_names(folder)?;
    let mut dialects = DIALECTS.iter();
    let beside =
        dialects.find(|dialect| dialect.may_be_beside_target() && (dialect.recognises)(&named));
    let own = beside.map(|dialect| dialect.own_names(&named));
    Ok(own.transpose()?.map(|names| names.into_values().collect()))
}

/// Opens a drafter's folder. Of its target's, in which it is a layer, only the shards with that layer have to be there.
///
/// # Errors
/// The folder has no weights or no configuration, or they cannot be read.
pub fn open_folder(folder: impl AsRef<Path>) -> Result<ModelFolder> {
    match layer_beside_target(folder.as_ref())? {
        None => ModelFolder::open(folder),
        Some(own) => ModelFolder::open_some(folder, &|name| own.contains(name)),
    }
}

/// The dialect of a drafter's folder.
///
/// # Errors
/// The folder is of no drafter that this program has.
pub fn dialect_of(folder: &ModelFolder) -> Result<&'static Dialect> {
    refuse_others(folder)?;
    let mut dialects = DIALECTS.iter();
    let found = dialects.find(|dialect| (dialect.recognises)(folder));
    found
        .copied()
        .ok_or_else(|| unknown(folder, "architectures", ""))
}

/// Fails for a drafter of another kind by its name, and for a kind of the speculators library that is not known here.
fn refuse_others(folder: &ModelFolder) -> Result<()> {
    let config = folder.config();
    let names = config["architectures"].as_array().into_iter().flatten();
    let kind = speculators::kind(config).map(|kind| (MODEL_TYPE, kind));
    let projector = config["dflash_config"]["projector_type"].as_str();
    let named = names
        .filter_map(|name| Some(("architectures", name.as_str()?)))
        .chain(kind)
        .chain(projector.map(|name| ("dflash_config.projector_type", name)));
    for (key, name) in named {
        let lower = name.to_lowercase();
        let other = OTHERS.iter().find(|(sign, _)| lower.contains(sign));
        if let Some((_, kind)) = other {
            let remark = format!("; {kind} are not supported");
            return Err(unknown(folder, key, &remark));
        }
    }
    let known = || DIALECTS.iter().any(|dialect| (dialect.recognises)(folder));
    match kind {
        Some((key, _)) if !known() => Err(unknown(folder, key, "")),
        _ => Ok(()),
    }
}

fn unknown(folder: &ModelFolder, key: &str, remark: &str) -> Error {
    let mut families: Vec<&str> = DIALECTS.iter().map(|dialect| dialect.family).collect();
    families.dedup();
    let mut parts = key.split('.');
    let got = parts.try_fold(folder.config(), |value, part| value.get(part));
    let got = got.map_or("null".to_owned(), ToString::to_string);
    Error::Key {
        path: folder.path().join(CONFIG),
        key: key.to_string(),
        mismatch: Mismatch::new(
            format!("a drafter of {}", families.join(", ")),
            format!("`{got}`{remark}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::key::Key;

    /// Adds the sources of this crate, without spaces.
    fn add_sources(folder: &Path, found: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add_sources(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.extend(text.chars().filter(|letter| !letter.is_whitespace()));
            }
        }
    }

    #[test]
    fn settings_that_are_asked_for_by_name_are_those_that_folders_say() {
        let keys = DIALECTS.iter().flat_map(|dialect| dialect.all_keys());
        let mut known: BTreeSet<&str> = keys.flat_map(|keys| keys.keys).map(Key::here).collect();
        let of_tables = known.iter().filter_map(|name| name.split_once('.'));
        let tables: Vec<&str> = of_tables.map(|(table, _)| table).collect();
        known.extend(tables);
        // These are only written.
        known.extend(["dtype", "verifier"]);
        let (mut text, mut found) = (String::new(), 0);
        add_sources(Path::new(env!("CARGO_MANIFEST_DIR")), &mut text);
        for kind in ["flag", "size", "sizes", "word", "get"] {
            let asked = format!("settings.{kind}(\"");
            for rest in text.split(&asked).skip(1) {
                let name = rest.split('"').next().unwrap();
                assert!(known.contains(name), "`settings.{kind}`: `{name}`");
                found += 1;
            }
        }
        assert!(found >= 50, "{found}");
    }

    #[test]
    fn what_may_stand_in_its_targets_folder_can_be_put_there() {
        let mut found = 0;
        for dialect in DIALECTS
            .iter()
            .filter(|dialect| dialect.may_be_beside_target())
        {
            assert!(dialect.in_target.is_some(), "{}", dialect.name);
            found += 1;
        }
        assert!(found >= 3, "{found}");
    }
}

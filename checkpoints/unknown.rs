//! Folders of drafters that this program does not have.

use crate::dflash::family::KINDS;
use crate::folder::{CONFIG, ModelFolder};
use crate::speculators::{self, MODEL_TYPE};
use crate::{Error, Result};

/// Names of drafters that other libraries have and this program has not, as their classes or the keys of their layouts
/// have them, in lower case.
const OTHERS: [(&str, &str); 4] = [
    ("mtp", "MTP"),
    ("xpress", "XPress"),
    ("domino", "Domino"),
    ("mlpspeculator", "MLP speculator"),
];

/// Fails for a drafter of another kind by its name, and for a kind of the speculators library that is not one of `known`
/// here. `families` names those that there are.
///
/// # Errors
/// The folder is of such a drafter.
pub fn refuse_others(folder: &ModelFolder, families: &str) -> Result<()> {
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
            let remark = format!("; {kind} drafters are not supported");
            return Err(unknown(folder, key, families, &remark));
        }
    }
    let known = |kind: &str| {
        ["eagle3", "peagle"].contains(&kind) || KINDS.iter().any(|[known, _]| *known == kind)
    };
    match kind {
        Some((key, kind)) if !known(kind) => Err(unknown(folder, key, families, "")),
        _ => Ok(()),
    }
}

/// The error for a folder of no drafter that there is; `families` names those.
pub fn no_drafter(folder: &ModelFolder, families: &str) -> Error {
    unknown(folder, "architectures", families, "")
}

fn unknown(folder: &ModelFolder, key: &str, families: &str, remark: &str) -> Error {
    let mut parts = key.split('.');
    let got = parts.try_fold(folder.config(), |value, part| value.get(part));
    let got = got.map_or("null".to_owned(), ToString::to_string);
    Error::Key {
        path: folder.path().join(CONFIG),
        key: key.to_string(),
        expected: format!("a drafter of {families}"),
        got: format!("`{got}`{remark}"),
    }
}

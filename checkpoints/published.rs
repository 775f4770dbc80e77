//! Drafters that others have published, in whichever layout, as folders of this program's own.

use std::fmt;

use serde_json::Value;

use crate::folder::{CONFIG, ModelFolder};
use crate::speculators::{self, MODEL_TYPE};
use crate::{
    Error, Result, dflash, eagle1, eagle3, hydra, language_model, masked_language_model, medusa,
};

/// A kind of drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// EAGLE-1, EAGLE-2 and HASS.
    Eagle1,
    /// EAGLE-3.
    Eagle3,
    /// Medusa.
    Medusa,
    /// Hydra.
    Hydra,
    /// DFlash, DFlash 2 and DSpark.
    DFlash,
    /// A masked-diffusion language model.
    Deer,
    /// A language model that drafts in one pass.
    Pard,
    /// A language model.
    LanguageModel,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Eagle1 => "EAGLE-1",
            Self::Eagle3 => "EAGLE-3",
            Self::Medusa => "Medusa",
            Self::Hydra => "Hydra",
            Self::DFlash => "DFlash",
            Self::Deer => "DEER",
            Self::Pard => "PARD",
            Self::LanguageModel => "language model",
        })
    }
}

/// What a `config.json` looks like, and whose it is.
type Sign = (fn(&Value) -> bool, Family);

/// In this order, as a language model of one layer looks like an EAGLE-1 drafter of its authors.
const SIGNS: [Sign; 8] = [
    (|config| eagle3::names_eagle3(config) || config[MODEL_TYPE] == "eagle3", Family::Eagle3),
    (eagle1::recognises, Family::Eagle1),
    (medusa::recognises, Family::Medusa),
    (hydra::recognises, Family::Hydra),
    (dflash::recognises, Family::DFlash),
    (masked_language_model::recognises, Family::Deer),
    (
        |config| language_model::mask_token(config).is_some(),
        Family::Pard,
    ),
    (language_model::recognises, Family::LanguageModel),
];

/// Names of drafters that other libraries have and this program has not, as their classes or the keys of their layouts
/// have them, in lower case.
const OTHERS: [(&str, &str); 5] = [
    ("peagle", "P-EAGLE"),
    ("mtp", "MTP"),
    ("xpress", "XPress"),
    ("domino", "Domino"),
    ("mlpspeculator", "MLP speculator"),
];

impl Family {
    /// The family of a folder.
    pub fn of(folder: &ModelFolder) -> Result<Self> {
        let config = folder.config();
        refuse_others(folder)?;
        let mut found = SIGNS.iter().filter(|(sign, _)| sign(config));
        match found.next() {
            // The layer of a language model has a norm that an EAGLE-1 drafter lacks.
            Some((_, Self::Eagle1)) if is_language_model(folder) => Ok(Self::LanguageModel),
            Some((_, family)) => Ok(*family),
            None => Err(unknown(folder, "architectures", "")),
        }
    }
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
            return Err(unknown(
                folder,
                key,
                &format!("; {kind} drafters are not supported"),
            ));
        }
    }
    match kind {
        Some((key, kind))
            if kind != "eagle3"
                && !dflash::speculators::KINDS
                    .iter()
                    .any(|[known, _]| *known == kind) =>
        {
            Err(unknown(folder, key, ""))
        }
        _ => Ok(()),
    }
}

fn unknown(folder: &ModelFolder, key: &str, remark: &str) -> Error {
    let got = key
        .split('.')
        .fold(folder.config(), |value, part| &value[part]);
    Error::Key {
        path: folder.path().join(CONFIG),
        key: key.to_string(),
        expected: "a drafter of EAGLE-1, EAGLE-3, Medusa, Hydra, DFlash, DEER or PARD, or a language model"
            .to_string(),
        got: format!("`{got}`{remark}"),
    }
}

fn is_language_model(folder: &ModelFolder) -> bool {
    folder.info("model.norm.weight").is_ok() && folder.info("model.embed_tokens.weight").is_ok()
}

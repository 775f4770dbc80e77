//! Drafters that others have published, in whichever layout, as folders of this program's own.

use std::fmt;
use std::path::Path;

use serde_json::Value;

use crate::dflash::{self, DFlashLayout, TargetSizes};
use crate::eagle1::{self, Eagle1Layout};
use crate::eagle3::{self, Eagle3Layout, Reading};
use crate::folder::{CONFIG, ModelFolder};
use crate::hydra::{self, HydraLayout};
use crate::language_model::{self, LanguageModelFolder};
use crate::masked_language_model;
use crate::medusa::{self, MedusaLayout};
use crate::speculators::{self, MODEL_TYPE};
use crate::tensors::{DType, NamedTensor};
use crate::{Error, Result};

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
    (eagle3::recognises, Family::Eagle3),
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

/// A drafter in memory under this program's own names and layer ids.
#[derive(Debug)]
#[expect(missing_docs, reason = "the names say it all")]
pub enum Published {
    Eagle1(Eagle1Layout, Vec<NamedTensor>),
    Eagle3(Eagle3Layout, Vec<NamedTensor>),
    Medusa(MedusaLayout, Vec<NamedTensor>),
    Hydra(HydraLayout, Vec<NamedTensor>),
    DFlash(DFlashLayout, Vec<NamedTensor>),
    /// A language model, with its `config.json` as it is.
    LanguageModel(Value, Vec<NamedTensor>),
}

impl Published {
    /// Reads and checks the drafter in a folder. `reading` is for EAGLE-3 alone.
    pub fn read(dir: &Path, reading: &Reading) -> Result<Self> {
        let folder = ModelFolder::open(dir)?;
        Ok(match Family::of(&folder)? {
            Family::Eagle1 => pair(eagle1::read(dir)?, Self::Eagle1),
            Family::Eagle3 => pair(eagle3::read_as(dir, reading)?, Self::Eagle3),
            Family::Medusa => pair(medusa::read(dir)?, Self::Medusa),
            Family::Hydra => pair(hydra::read(dir)?, Self::Hydra),
            Family::DFlash => {
                let read = match (reading.target_layers, reading.target_vocab) {
                    (Some(layers), Some(vocab)) => {
                        dflash::read_for_target(dir, TargetSizes { layers, vocab })?
                    }
                    _ => dflash::read(dir)?,
                };
                pair(read, Self::DFlash)
            }
            Family::Deer | Family::Pard | Family::LanguageModel => {
                let tensors = folder.tensors().map(|info| folder.read(&info.name));
                Self::LanguageModel(folder.config().clone(), tensors.collect::<Result<_>>()?)
            }
        })
    }

    /// Writes it in this program's layout, whole or not at all. No value changes: weights of several types become the
    /// widest of them. `target` is the folder whose tokenizer a language model gets.
    pub fn write(self, dir: &Path, target: Option<&Path>, provenance: &Value) -> Result<()> {
        match self {
            Self::Eagle1(mut layout, mut tensors) => {
                if !layout.bias {
                    let hidden = layout.hidden_size;
                    let zeros = NamedTensor::from_f32(eagle1::BIAS, [hidden], vec![0.0; hidden]);
                    tensors.push(zeros);
                }
                let tensors = of_one_type(tensors, &mut layout.dtype)?;
                eagle1::write(dir, &layout, tensors, provenance)
            }
            Self::Eagle3(mut layout, mut tensors) => {
                complete_map(&layout, &mut tensors)?;
                let tensors = of_one_type(tensors, &mut layout.dtype)?;
                eagle3::write(dir, &layout, tensors, provenance)
            }
            Self::Medusa(mut layout, tensors) => {
                let tensors = of_one_type(tensors, &mut layout.dtype)?;
                medusa::write(dir, &layout, &tensors, provenance)
            }
            Self::Hydra(mut layout, tensors) => {
                let tensors = of_one_type(tensors, &mut layout.dtype)?;
                hydra::write(dir, &layout, &tensors, provenance)
            }
            Self::DFlash(mut layout, tensors) => {
                let tensors = of_one_type(tensors, &mut layout.dtype)?;
                dflash::write(dir, &layout, &tensors, provenance)
            }
            Self::LanguageModel(config, tensors) => {
                let mut dtype = DType::BF16;
                let tensors = of_one_type(tensors, &mut dtype)?;
                let folder = LanguageModelFolder {
                    config,
                    tensors,
                    dtype,
                    mask_token: None,
                    target,
                };
                folder.write(dir, provenance)
            }
        }
    }
}

fn pair<L>(
    (layout, tensors): (L, Vec<NamedTensor>),
    of: fn(L, Vec<NamedTensor>) -> Published,
) -> Published {
    of(layout, tensors)
}

/// Published folders may lack `t2d`, which `d2t` determines.
fn complete_map(layout: &Eagle3Layout, tensors: &mut Vec<NamedTensor>) -> Result<()> {
    let has = |name: &str| tensors.iter().find(|tensor| tensor.name == name);
    if let (Some(d2t), None) = (has("d2t"), has("t2d")) {
        let ids = eagle3::target_ids(d2t)?;
        let (_, t2d) = eagle3::vocabulary_tensors(&ids, layout.vocab_size);
        tensors.push(t2d);
    }
    Ok(())
}

/// Floats in one type that holds every value: their own where they have one in common, else 32 bits. Integers are of 64.
fn of_one_type(tensors: Vec<NamedTensor>, dtype: &mut DType) -> Result<Vec<NamedTensor>> {
    let floats = tensors.iter().filter(|tensor| tensor.dtype.is_float());
    // What a writer adds are zeros, which fit every type.
    let mut types: Vec<DType> = floats
        .filter(|tensor| tensor.bytes.iter().any(|&byte| byte != 0))
        .map(|tensor| tensor.dtype)
        .collect();
    types.dedup();
    *dtype = match types[..] {
        [one] => one,
        _ => DType::F32,
    };
    let same = |tensor: NamedTensor| match tensor.dtype {
        DType::I32 => {
            let values = tensor.to_i64()?;
            Ok(NamedTensor::from_i64(tensor.name, tensor.shape, values))
        }
        other if other.is_float() => tensor.cast(*dtype),
        _ => Ok(tensor),
    };
    tensors.into_iter().map(same).collect()
}

#[cfg(test)]
mod tests;

//! Which program runs a drafter with its parts.

use serde_json::Value;

use crate::dialect::settings::Settings;
use crate::speculators::MODEL_TYPE;

/// The program that a drafter's parts are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    DFlash,
    DFlash2,
    DSpark,
    Domino,
    XPress,
    LiLiCorr,
    /// Only this program.
    Own,
}

impl Family {
    /// Those that are told by their architecture.
    const NAMED: [Self; 6] = [
        Self::DFlash,
        Self::DFlash2,
        Self::DSpark,
        Self::XPress,
        Self::LiLiCorr,
        Self::Own,
    ];

    pub(super) fn architecture(self) -> &'static str {
        match self {
            // SGLang takes Domino for DFlash with a head.
            Self::DFlash | Self::Domino => "DFlashDraftModel",
            Self::DFlash2 => "DFlash2DraftModel",
            Self::DSpark => "Qwen3DSparkModel",
            Self::XPress => "Qwen3XPressModel",
            Self::LiLiCorr => "LiLiCorrDraftModel",
            Self::Own => "SpectrainBlockDrafter",
        }
    }

    /// What people call its drafters.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::DFlash => "DFlash",
            Self::DFlash2 => "DFlash 2",
            Self::DSpark => "DSpark",
            Self::Domino => "Domino",
            Self::XPress => "XPress",
            Self::LiLiCorr => "LiLiCorr",
            Self::Own => "block",
        }
    }

    /// The family that folders of this architecture are of.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "DSparkDraftModel" => return Some(Self::DSpark),
            DOMINO => return Some(Self::Domino),
            "DFlashQwen3XPressModel" => return Some(Self::XPress),
            _ => {}
        }
        let mut all = Self::NAMED.into_iter();
        all.find(|family| family.architecture() == name)
    }

    /// Names for an error message.
    pub(super) fn names() -> String {
        let names = Self::NAMED.map(|family| format!("`{}`", family.architecture()));
        names.join(", ")
    }

    /// That of a drafter.
    pub(super) fn of(settings: &Settings) -> Self {
        let has = |key: &str| settings.size(key) > 0;
        let (convolution, selector, markov) =
            (has("conv_taps"), has("selector_rank"), has("markov_rank"));
        let plain = !settings.flag("sample_from_anchor") && !settings.flag("confidence") && !markov;
        if settings.word("context") == "tokens" {
            Self::Own
        } else if has_lattice(settings) {
            // With convolutions or without.
            Self::LiLiCorr
        } else if plain && !convolution && !selector {
            Self::DFlash
        } else if plain && convolution && selector {
            Self::DFlash2
        } else if is_domino(settings) {
            let only = !convolution && !selector && !settings.flag("confidence");
            if only { Self::Domino } else { Self::Own }
        } else if is_xpress(settings) {
            if convolution { Self::Own } else { Self::XPress }
        } else if markov && !convolution && !selector {
            Self::DSpark
        } else {
            Self::Own
        }
    }
}

/// SpecForge's architecture of Domino.
pub(super) const DOMINO: &str = "DominoDraftModel";

/// Whether the bias by the tokens before is Domino's.
pub(super) fn is_domino(settings: &Settings) -> bool {
    settings.size("markov_rank") > 0 && settings.word("markov") == "domino"
}

/// Whether a drafter has a lattice of paths.
pub(super) fn has_lattice(settings: &Settings) -> bool {
    settings.get("lattice").is_some()
}

/// Whether it is XPress'.
pub(super) fn is_xpress(settings: &Settings) -> bool {
    settings.size("markov_rank") > 0 && settings.word("markov") == "xpress"
}

/// What the speculators library calls each kind, and the architecture of each.
pub(super) const KINDS: [[&str; 2]; 4] = [
    ["dflash", "DFlashSpeculator"],
    ["dflash2", "DFlash2DraftModel"],
    ["dspark", "DSparkSpeculator"],
    ["xpress", "XPressSpeculator"],
];
/// What transformers calls the type of the model.
pub(super) const TRANSFORMERS_TYPE: &str = "muse_glimmer_assistant";

/// Whether a `config.json` is of the layout of the speculators library.
pub(super) fn is_of_speculators(config: &Value) -> bool {
    KINDS.iter().any(|[kind, _]| config[MODEL_TYPE] == *kind)
}

/// Whether it is of the layout of transformers.
pub(super) fn is_of_transformers(config: &Value) -> bool {
    config["model_type"] == TRANSFORMERS_TYPE
}

/// Whether it is of the authors' layout.
pub(super) fn is_of_authors(config: &Value) -> bool {
    let names = config["architectures"].as_array();
    let mut names = names.into_iter().flatten().filter_map(Value::as_str);
    let other = is_of_speculators(config) || is_of_transformers(config);
    !other && names.any(|name| Family::named(name).is_some())
}

/// Whether it is of any of them.
pub(super) fn is_known(config: &Value) -> bool {
    is_of_speculators(config) || is_of_transformers(config) || is_of_authors(config)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn drafters_are_called_by_the_parts_that_they_have() {
        let name = |parts: &[(&str, Value)]| {
            let mut settings = Settings::default();
            for (key, value) in parts {
                settings.set(key, value.clone());
            }
            Family::of(&settings).name()
        };
        let markov = |kind: &str| [("markov_rank", json!(8)), ("markov", json!(kind))];
        assert_eq!(name(&[]), "DFlash");
        let selects = [("conv_taps", json!(2)), ("selector_rank", json!(4))];
        assert_eq!(name(&selects), "DFlash 2");
        assert_eq!(name(&markov("vanilla")), "DSpark");
        assert_eq!(name(&markov("domino")), "Domino");
        assert_eq!(name(&markov("xpress")), "XPress");
        let paths = ("lattice", json!({"top_k": 8}));
        assert_eq!(name(std::slice::from_ref(&paths)), "LiLiCorr");
        assert_eq!(name(&[paths, ("conv_taps", json!(2))]), "LiLiCorr");
    }
}

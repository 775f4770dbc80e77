//! The settings of the loss of a lattice of paths.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::weight::Weight;

/// The table `[objective.paths]`: the loss of a lattice (LiLiCorr), the defaults of which are those of the authors' variant `base`. A
/// slot counts in it where its token and all before it in the block are candidates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PathLossConfig {
    /// Factor on the cross-entropy of the text's token among the candidates of a slot, behind the one before. The authors' variant
    /// `margin` has 0.125 here and in `hinge_weight`.
    pub weight: Weight,
    /// Factor on what the logit of the text's token lacks of being `hinge` above that of the best other candidate.
    pub hinge_weight: Weight,
    /// That distance between logits.
    pub hinge: f64,
    /// Factor on how much less likely than the text's token, in logits, the target finds what the lattice would draft.
    pub penalty_weight: Weight,
}

impl Default for PathLossConfig {
    fn default() -> Self {
        Self {
            weight: Weight::Fixed(0.25),
            hinge_weight: Weight::Fixed(0.0),
            hinge: 2.0,
            penalty_weight: Weight::Fixed(0.25),
        }
    }
}

/// The names of its parts.
pub(super) const PATHS: &str = "paths";
pub(super) const HINGE: &str = "paths_hinge";
pub(super) const PENALTY: &str = "paths_penalty";

impl PathLossConfig {
    /// No loss.
    pub(super) const NONE: Self = Self {
        weight: Weight::Fixed(0.0),
        hinge_weight: Weight::Fixed(0.0),
        hinge: 2.0,
        penalty_weight: Weight::Fixed(0.0),
    };

    /// Its parts with their factors.
    pub(super) fn parts(&self) -> [(&'static str, Weight); 3] {
        [
            (PATHS, self.weight),
            (HINGE, self.hinge_weight),
            (PENALTY, self.penalty_weight),
        ]
    }

    pub(super) fn check(&self) -> Result<()> {
        self.weight.check("paths.weight")?;
        self.hinge_weight.check("paths.hinge_weight")?;
        self.penalty_weight.check("paths.penalty_weight")?;
        if self.hinge > 0.0 && self.hinge.is_finite() {
            return Ok(());
        }
        let expected = "a number above 0";
        Err(Error::objective(
            "paths.hinge",
            expected,
            self.hinge.to_string(),
        ))
    }
}

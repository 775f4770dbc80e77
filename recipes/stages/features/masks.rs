//! Which loss masks are stored beside imported features: they say what drafters are trained on, and what of a text is an answer.

use spectrain_data::mask::Masking;
use spectrain_data::tokens::SampleView;

use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::tables::FeatureMode;
use crate::stages::features::known::Known;

/// The loss masks that are stored beside features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Masks {
    /// Those of the stage `prepare`.
    Prepared,
    /// Those of the imported texts.
    Imported,
}

impl Masks {
    /// Those of answers. Answers are what is in the loss mask; where all of a text is trained on, that of the imported text tells
    /// them from what the target was asked.
    pub fn of_answers(recipe: &ResolvedRecipe) -> Self {
        match (recipe.features.mode, recipe.data.mask) {
            (FeatureMode::Imported, Masking::All) => Self::Imported,
            _ => Self::Prepared,
        }
    }

    /// That of a sample, of which the features are among these.
    pub(super) fn of<'a>(self, sample: SampleView<'a>, known: &'a Known) -> &'a [u8] {
        let imported = match self {
            Self::Prepared => None,
            Self::Imported => known.loss_mask(sample.tokens),
        };
        imported.unwrap_or(sample.loss_mask)
    }
}

//! Sizes of a recipe's target, where they need no download: of a folder, of what `[synthetic]` will make, or of a known model.

use spectrain_checkpoints::DType;
use spectrain_models::{RopeConfig, RopeScaling, TargetSpec};

use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::tables::MADE_POSITIONS;
use crate::runtime::sizes::{Sizes, sizes_of};

/// Sizes of a recipe's target, where they need no download.
pub(crate) fn of(recipe: &ResolvedRecipe) -> Option<Sizes> {
    let Some(model) = recipe.model() else {
        let made = recipe.synthetic.as_ref()?;
        let spec = TargetSpec {
            layers: made.layers,
            d_model: made.d_model,
            d_ff: made.d_ff,
            heads: made.heads,
            kv_heads: made.kv_heads,
            d_head: made.d_head,
            vocab: made.vocab,
            norm_epsilon: 1e-6,
            rope: RopeConfig {
                theta: 10_000.0,
                scaling: RopeScaling::Default,
            },
            max_positions: MADE_POSITIONS,
            routing: None,
        };
        return Some(Sizes {
            spec,
            tied_head: true,
            stored: DType::F32,
            source: "sizes from `[synthetic]`".into(),
        });
    };
    sizes_of(model, recipe.target.revision.as_deref())
}

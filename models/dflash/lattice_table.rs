//! The table of a recipe with the sizes of what scores paths through the likeliest tokens of a block.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bounds;
use crate::error::{Error, Result, above_zero};
use crate::target::TargetSpec;

/// The table `[drafter.lattice]`: sizes of what scores paths through the likeliest tokens of all slots of a block (LiLiCorr). The
/// defaults are the authors'.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LatticeTable {
    /// Likeliest tokens of each slot that paths go through. Engines take powers of two up to 16.
    pub top_k: usize,
    /// Width of its layers; 0 takes the target's.
    pub d_model: usize,
    /// Layers in which all these tokens of a block see each other.
    pub layers: usize,
    /// Heads of these layers; 0 takes as many, up to 8, as divide `d_model`.
    pub heads: usize,
    /// Width inside their feed-forward parts; 0 takes twice `d_model`.
    pub d_ff: usize,
    /// Width of the vectors by which a token fits behind another.
    pub rank: usize,
    /// What the cosine of two such vectors is multiplied with to be a logit.
    pub scale: f64,
    /// The least length that a vector is divided by.
    pub epsilon: f64,
}

impl Default for LatticeTable {
    fn default() -> Self {
        Self {
            top_k: 8,
            d_model: 1024,
            layers: 2,
            heads: 0,
            d_ff: 0,
            rank: 1024,
            scale: 8.0,
            epsilon: 1e-4,
        }
    }
}

impl LatticeTable {
    /// Fails on what makes no sense for any target.
    pub(super) fn check(&self) -> Result<()> {
        bounds::check([
            bounds::up_to("lattice.top_k", self.top_k, bounds::DRAFT),
            bounds::or_none("lattice.d_model", self.d_model, bounds::WIDTH),
            bounds::up_to("lattice.layers", self.layers, bounds::LAYERS),
            bounds::or_none("lattice.heads", self.heads, bounds::HEADS),
            bounds::or_none("lattice.d_ff", self.d_ff, bounds::FEED_FORWARD),
            bounds::up_to("lattice.rank", self.rank, bounds::WIDTH),
        ])?;
        above_zero("lattice.scale", self.scale)?;
        above_zero("lattice.epsilon", self.epsilon)
    }

    /// With all sizes, for a target of this width.
    pub fn filled(&self, d_target: usize) -> Self {
        let or = |given: usize, unsaid: usize| if given == 0 { unsaid } else { given };
        let d_model = or(self.d_model, d_target);
        Self {
            d_model,
            heads: or(self.heads, most_heads(d_model)),
            d_ff: or(self.d_ff, 2 * d_model),
            ..self.clone()
        }
    }

    /// The same.
    ///
    /// # Errors
    /// They do not go together, or not with this target.
    pub(super) fn resolve(&self, target: &TargetSpec) -> Result<Self> {
        let filled = self.filled(target.d_model);
        let d_model = filled.d_model;
        if !d_model.is_multiple_of(filled.heads) {
            let expected = format!("a divisor of `lattice.d_model`, which is {d_model}");
            return Err(Error::of_key("lattice.heads", expected, filled.heads));
        }
        if self.top_k > target.vocab {
            let expected = format!("at most the target's {} tokens", target.vocab);
            return Err(Error::of_key("lattice.top_k", expected, self.top_k));
        }
        Ok(filled)
    }
}

/// The most heads, up to the authors' 8, that share out a width.
fn most_heads(width: usize) -> usize {
    let mut heads = (1..=8).rev();
    heads
        .find(|&heads| width.is_multiple_of(heads))
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_by_its_key() {
        /// The key that is refused, and the change to the defaults that makes it so.
        type Wrong = (&'static str, fn(&mut LatticeTable));
        let wrong: [Wrong; 5] = [
            ("lattice.top_k", |of| of.top_k = 0),
            ("lattice.layers", |of| of.layers = 0),
            ("lattice.rank", |of| of.rank = 0),
            ("lattice.scale", |of| of.scale = 0.0),
            ("lattice.epsilon", |of| of.epsilon = f64::NAN),
        ];
        LatticeTable::default().check().unwrap();
        for (key, change) in wrong {
            let mut table = LatticeTable::default();
            change(&mut table);
            let error = table.check().unwrap_err().to_string();
            assert!(error.contains(key), "{key}: {error}");
        }
    }

    #[test]
    fn sizes_that_are_left_out_go_with_the_width() {
        let filled = |d_model: usize, d_target: usize| {
            let table = LatticeTable {
                d_model,
                ..LatticeTable::default()
            };
            let filled = table.filled(d_target);
            (filled.d_model, filled.heads, filled.d_ff)
        };
        assert_eq!(filled(1024, 4096), (1024, 8, 2048));
        assert_eq!(filled(0, 30), (30, 6, 60));
        assert_eq!(filled(1, 30), (1, 1, 2));
    }
}

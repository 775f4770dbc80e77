use serde::{Deserialize, Serialize};

use crate::{Error, Result, TargetSpec};

/// The `[drafter]` table of a DFlash recipe. Every key but `mask_token` may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DFlashConfig {
    /// Captured layers, ascending, as 0-based indices of the layers whose output is read. Left out or empty: five of them,
    /// evenly from the second layer to the third before the last.
    pub captured_layers: Vec<usize>,
    /// Decoder layers. 5.
    pub layers: usize,
    /// Tokens of a block, the last committed one counted. 16.
    pub block_size: usize,
    /// The id of a token that no text holds; it stands for tokens still to come.
    pub mask_token: Option<u32>,
    /// How many positions back a layer sees, the own one counted. Left out or 0: all.
    pub window: usize,
    /// Whether a place of a block sees only those before it in the block (JetSpec). `false`.
    pub causal: bool,
    /// Feed-forward width. Left out or 0: the target's.
    pub d_ff: usize,
    /// Query heads. Left out or 0: the target's.
    pub heads: usize,
    /// Key and value heads. Left out or 0: the target's.
    pub kv_heads: usize,
}

impl Default for DFlashConfig {
    fn default() -> Self {
        Self {
            captured_layers: Vec::new(),
            layers: 5,
            block_size: 16,
            mask_token: None,
            window: 0,
            causal: false,
            d_ff: 0,
            heads: 0,
            kv_heads: 0,
        }
    }
}

impl DFlashConfig {
    /// With the sizes that were left out taken from the target.
    pub(super) fn resolve(&self, target: &TargetSpec) -> Result<Self> {
        let [d_ff, heads, kv_heads] = target.layer_sizes(self.d_ff, self.heads, self.kv_heads)?;
        let problem = |key, expected: String, got: String| Error::Drafter { key, expected, got };
        if self.layers == 0 {
            return Err(problem("layers", "at least 1".into(), "0".into()));
        }
        if self.block_size < 2 {
            let got = self.block_size.to_string();
            return Err(problem("block_size", "at least 2".into(), got));
        }
        let captured_layers = match self.captured_layers.is_empty() {
            true => spread(target.layers),
            false => self.captured_layers.clone(),
        };
        let known = captured_layers.iter().all(|&layer| layer < target.layers);
        if !known || !captured_layers.is_sorted_by(|a, b| a < b) {
            let expected = format!("ascending layers below {}", target.layers);
            return Err(problem(
                "captured_layers",
                expected,
                format!("{captured_layers:?}"),
            ));
        }
        self.known_mask_token(target)?;
        Ok(Self {
            captured_layers,
            d_ff,
            heads,
            kv_heads,
            ..self.clone()
        })
    }

    pub(super) fn known_mask_token(&self, target: &TargetSpec) -> Result<u32> {
        let known = self
            .mask_token
            .filter(|&token| (token as usize) < target.vocab);
        known.ok_or_else(|| Error::Drafter {
            key: "mask_token",
            expected: format!(
                "the id, below {}, of a token that no text holds",
                target.vocab
            ),
            got: self
                .mask_token
                .map_or("none".into(), |token| token.to_string()),
        })
    }
}

/// Five layers, evenly from the second to the third before the last, as in the authors' code; all of a target that has no
/// more than those.
fn spread(layers: usize) -> Vec<usize> {
    const COUNT: usize = 5;
    if layers < COUNT + 3 {
        return (0..layers).collect();
    }
    let last = layers - 3;
    // Rounded half to even, as Python does; no half falls on an odd quotient for the models in use.
    let place = |index: usize| 1.0 + (index * (last - 1)) as f64 / (COUNT - 1) as f64;
    (0..COUNT)
        .map(|index| place(index).round_ties_even() as usize)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captured_layers_are_those_of_the_authors() {
        assert_eq!(spread(36), [1, 9, 17, 25, 33]);
        assert_eq!(spread(24), [1, 6, 11, 16, 21]);
        assert_eq!(spread(8), [1, 2, 3, 4, 5]);
        assert_eq!(spread(4), [0, 1, 2, 3]);
    }
}

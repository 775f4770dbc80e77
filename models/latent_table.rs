//! The table of a recipe with the sizes of latent attention.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bounds;
use crate::error::{Error, Result, above_zero};
use crate::latent::LatentConfig;
use crate::rope::RopeScaling;
use crate::target::TargetSpec;

/// The table `[drafter.latent]`: sizes of latent attention. The defaults are DeepSeek-V3's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LatentTable {
    /// Width of the state that queries come out of: `q_lora_rank` of the target; 0 if there is none.
    pub q_rank: usize,
    /// Width of the state that keys and values come out of: `kv_lora_rank` of the target.
    pub kv_rank: usize,
    /// Dimensions of a head's queries and keys that are not rotated: `qk_nope_head_dim` of the target.
    pub d_fixed: usize,
    /// Those that are: `qk_rope_head_dim` of the target. An even number.
    pub d_turned: usize,
    /// Width of a head's values: `v_head_dim` of the target; at most `d_fixed` + `d_turned`. 0 takes `d_fixed`.
    pub d_value: usize,
    /// What scores are multiplied with beside 1 / √(`d_fixed` + `d_turned`): with YaRN the square of
    /// 0.1 · `mscale_all_dim` · ln(`factor`) + 1.
    pub scale: f64,
}

impl Default for LatentTable {
    fn default() -> Self {
        Self {
            q_rank: 1536,
            kv_rank: 512,
            d_fixed: 128,
            d_turned: 64,
            d_value: 0,
            scale: 1.0,
        }
    }
}

impl LatentTable {
    /// Fails on what makes no sense for any target.
    pub(crate) fn check(&self) -> Result<()> {
        bounds::check([
            bounds::or_none("latent.q_rank", self.q_rank, bounds::WIDTH),
            bounds::up_to("latent.kv_rank", self.kv_rank, bounds::WIDTH),
            bounds::up_to("latent.d_fixed", self.d_fixed, bounds::WIDTH),
            bounds::up_to("latent.d_turned", self.d_turned, bounds::WIDTH),
            bounds::or_none("latent.d_value", self.d_value, bounds::WIDTH),
        ])?;
        if !self.d_turned.is_multiple_of(2) {
            return Err(Error::of_key(
                "latent.d_turned",
                "an even number",
                self.d_turned,
            ));
        }
        let most = self.d_fixed + self.d_turned;
        if self.d_value > most {
            let expected = format!("at most {most}, `d_fixed` and `d_turned` together");
            return Err(Error::of_key("latent.d_value", expected, self.d_value));
        }
        above_zero("latent.scale", self.scale)
    }

    /// Fails on positions that engines give no latent attention, and on a scale that no folder can say beside them.
    pub(crate) fn check_positions(&self, target: &TargetSpec) -> Result<()> {
        match &target.rope.scaling {
            RopeScaling::Yarn { factor, .. } if *factor > 1.0 => Ok(()),
            RopeScaling::Default if self.scale == 1.0 => Ok(()),
            RopeScaling::Default => Err(Error::of_key(
                "latent.scale",
                "1, as the target's positions are not scaled by YaRN",
                self.scale,
            )),
            _ => Err(Error::of_key(
                "latent",
                "nothing beside this target: engines give latent attention plain positions or those of YaRN, by a factor above 1",
                "rotary positions of the target that are scaled otherwise",
            )),
        }
    }

    /// With all sizes.
    pub(crate) fn filled(&self) -> Self {
        Self {
            d_value: match self.d_value {
                0 => self.d_fixed,
                given => given,
            },
            ..self.clone()
        }
    }

    /// The attention of a layer as wide as a target, with so many heads, that reads as much as it gives.
    pub fn attention(&self, target: &TargetSpec, heads: usize) -> LatentConfig {
        let latent = self.filled();
        LatentConfig {
            d_input: target.d_model,
            d_model: target.d_model,
            heads,
            q_rank: latent.q_rank,
            kv_rank: latent.kv_rank,
            d_fixed: latent.d_fixed,
            d_turned: latent.d_turned,
            d_value: latent.d_value,
            scale: latent.scale,
            norm: target.norm_epsilon.into(),
        }
    }
}

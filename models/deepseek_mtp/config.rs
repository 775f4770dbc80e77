use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::Mismatch;

use crate::bounds;
use crate::error::{Error, Result};
use crate::latent::LatentConfig;
use crate::mixture::{MixtureConfig, Scoring};
use crate::rope::RopeScaling;
use crate::target::TargetSpec;

/// The `[drafter]` table of a recipe for the layer of DeepSeek-V3 or GLM-4.5; engines give the layer the target's sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeepseekMtpConfig {
    /// Latent attention, as DeepSeek-V3 has it, in place of the grouped attention of GLM-4.5.
    pub latent: Option<LatentTable>,
    /// With grouped attention: share of a head's dimensions, counted from the first, that are rotated by position:
    /// `partial_rotary_factor` of the target.
    pub rotary_share: f64,
    /// With grouped attention: whether projections to queries, keys and values add a bias: `attention_bias` of the target.
    pub qkv_bias: bool,
    /// With grouped attention: whether queries and keys are normed: `use_qk_norm` of the target.
    pub qk_norm: bool,
    /// Experts in place of a dense feed-forward part. Engines load layers that have some.
    pub experts: Option<SigmoidExpertsTable>,
}

impl Default for DeepseekMtpConfig {
    fn default() -> Self {
        Self {
            latent: None,
            rotary_share: 0.5,
            qkv_bias: true,
            qk_norm: false,
            experts: None,
        }
    }
}

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

/// The table `[drafter.experts]`: experts that sigmoids choose. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SigmoidExpertsTable {
    /// How many experts there are: `n_routed_experts` of the target.
    pub count: usize,
    /// How many each token goes through: `num_experts_per_tok` of the target. 0 takes 8, or all if there are fewer.
    pub per_token: usize,
    /// Width inside an expert: `moe_intermediate_size` of the target. 0 shares the target's feed-forward width out among those
    /// that a token goes through.
    pub d_ff: usize,
    /// Experts that all tokens share: `n_shared_experts` of the target.
    pub shared: usize,
    /// Groups that experts are in: `n_group` of the target; divides `count`.
    pub groups: usize,
    /// How many groups a token's experts may be in: `topk_group` of the target. 0 takes all.
    pub groups_per_token: usize,
    /// What the weights of a token's experts sum to: `routed_scaling_factor` of the target.
    pub scale: f64,
}

impl Default for SigmoidExpertsTable {
    fn default() -> Self {
        Self {
            count: 64,
            per_token: 0,
            d_ff: 0,
            shared: 1,
            groups: 1,
            groups_per_token: 0,
            scale: 1.0,
        }
    }
}

fn refused(key: &'static str, expected: impl Into<String>, found: impl std::fmt::Display) -> Error {
    Error::Drafter {
        key,
        mismatch: Mismatch::new(expected.into(), found),
    }
}

fn above_zero(key: &'static str, value: f64) -> Result<()> {
    if value > 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(refused(key, "a number above 0", value))
}

impl LatentTable {
    fn check(&self) -> Result<()> {
        bounds::check([
            bounds::or_none("latent.q_rank", self.q_rank, bounds::WIDTH),
            bounds::up_to("latent.kv_rank", self.kv_rank, bounds::WIDTH),
            bounds::up_to("latent.d_fixed", self.d_fixed, bounds::WIDTH),
            bounds::up_to("latent.d_turned", self.d_turned, bounds::WIDTH),
            bounds::or_none("latent.d_value", self.d_value, bounds::WIDTH),
        ])?;
        if !self.d_turned.is_multiple_of(2) {
            return Err(refused("latent.d_turned", "an even number", self.d_turned));
        }
        let most = self.d_fixed + self.d_turned;
        if self.d_value > most {
            let expected = format!("at most {most}, `d_fixed` and `d_turned` together");
            return Err(refused("latent.d_value", expected, self.d_value));
        }
        above_zero("latent.scale", self.scale)
    }

    /// Fails on positions that engines give no latent attention, and on a scale that no folder can say beside them.
    fn check_positions(&self, target: &TargetSpec) -> Result<()> {
        match &target.rope.scaling {
            RopeScaling::Yarn { factor, .. } if *factor > 1.0 => Ok(()),
            RopeScaling::Default if self.scale == 1.0 => Ok(()),
            RopeScaling::Default => Err(refused(
                "latent.scale",
                "1, as the target's positions are not scaled by YaRN",
                self.scale,
            )),
            _ => Err(refused(
                "latent",
                "nothing beside this target: engines give latent attention plain positions or those of YaRN, by a factor above 1",
                "rotary positions of the target that are scaled otherwise",
            )),
        }
    }

    /// With all sizes.
    fn filled(&self) -> Self {
        Self {
            d_value: match self.d_value {
                0 => self.d_fixed,
                given => given,
            },
            ..self.clone()
        }
    }
}

impl SigmoidExpertsTable {
    fn check(&self) -> Result<()> {
        bounds::check([
            bounds::up_to("experts.count", self.count, bounds::EXPERTS),
            bounds::or_none("experts.per_token", self.per_token, self.count),
            bounds::or_none("experts.d_ff", self.d_ff, bounds::FEED_FORWARD),
            bounds::up_to("experts.shared", self.shared, bounds::EXPERTS),
            bounds::up_to("experts.groups", self.groups, self.count),
            bounds::or_none(
                "experts.groups_per_token",
                self.groups_per_token,
                self.groups,
            ),
        ])?;
        if !self.count.is_multiple_of(self.groups) {
            let expected = format!("a divisor of `count`, {}", self.count);
            return Err(refused("experts.groups", expected, self.groups));
        }
        let filled = self.filled(1);
        let within = filled.count / filled.groups * filled.groups_per_token;
        if filled.per_token > within {
            let groups = filled.groups_per_token;
            let expected = format!("at most {within}, the experts of {groups} groups");
            return Err(refused("experts.per_token", expected, filled.per_token));
        }
        above_zero("experts.scale", self.scale)
    }

    /// With all sizes, for a target of this feed-forward width.
    fn filled(&self, d_ff: usize) -> Self {
        let or = |given: usize, default: usize| if given == 0 { default } else { given };
        let groups_per_token = or(self.groups_per_token, self.groups);
        let within = self.count / self.groups.max(1) * groups_per_token;
        let per_token = or(self.per_token, within.clamp(1, 8));
        Self {
            per_token,
            d_ff: or(self.d_ff, d_ff.div_ceil(per_token)),
            groups_per_token,
            ..self.clone()
        }
    }

    fn sizes(&self) -> MixtureConfig {
        MixtureConfig {
            count: self.count,
            per_token: self.per_token,
            d_ff: self.d_ff,
            shared_d_ff: self.shared * self.d_ff,
            scoring: Scoring::Sigmoid {
                groups: self.groups,
                groups_per_token: self.groups_per_token,
                scale: self.scale,
            },
        }
    }
}

impl DeepseekMtpConfig {
    /// Dimensions of a head that turn.
    pub(super) fn turned(&self, target: &TargetSpec) -> Result<usize> {
        if let Some(latent) = &self.latent {
            latent.check_positions(target)?;
            return Ok(latent.d_turned);
        }
        let turned = (self.rotary_share * target.d_head as f64) as usize;
        if turned >= 2 && turned.is_multiple_of(2) {
            return Ok(turned);
        }
        let expected = format!(
            "a share that is an even number of the {} dimensions of a head",
            target.d_head
        );
        Err(refused("rotary_share", expected, self.rotary_share))
    }

    /// Fails on what makes no sense for any target.
    pub(super) fn check(&self) -> Result<()> {
        self.latent.as_ref().map_or(Ok(()), LatentTable::check)?;
        let experts = self.experts.as_ref();
        experts.map_or(Ok(()), SigmoidExpertsTable::check)?;
        let share = self.rotary_share;
        if share > 0.0 && share <= 1.0 {
            return Ok(());
        }
        Err(refused("rotary_share", "more than 0 and at most 1", share))
    }

    /// With all sizes, those of experts that were left out in proportion to the target's.
    pub(super) fn filled(&self, target: &TargetSpec) -> Self {
        let experts = self.experts.as_ref();
        Self {
            latent: self.latent.as_ref().map(LatentTable::filled),
            experts: experts.map(|experts| experts.filled(target.d_ff)),
            ..self.clone()
        }
    }

    /// The experts, if there are any.
    pub fn mixture(&self, target: &TargetSpec) -> Option<MixtureConfig> {
        let experts = self.experts.as_ref();
        experts.map(|experts| experts.filled(target.d_ff).sizes())
    }

    /// Latent attention in a target's sizes, if the layer has it.
    pub fn latent_attention(&self, target: &TargetSpec) -> Option<LatentConfig> {
        let latent = self.latent.as_ref()?.filled();
        Some(LatentConfig {
            d_model: target.d_model,
            heads: target.heads,
            q_rank: latent.q_rank,
            kv_rank: latent.kv_rank,
            d_fixed: latent.d_fixed,
            d_turned: latent.d_turned,
            d_value: latent.d_value,
            scale: latent.scale,
            norm: target.norm_epsilon.into(),
        })
    }
}

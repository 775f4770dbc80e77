use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bounds;
use crate::error::{Error, Result, above_zero};
use crate::latent::LatentConfig;
use crate::latent_table::LatentTable;
use crate::mixture::{MixtureConfig, Scoring};
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
            return Err(Error::of_key("experts.groups", expected, self.groups));
        }
        let filled = self.filled(1);
        let within = filled.count / filled.groups * filled.groups_per_token;
        if filled.per_token > within {
            let groups = filled.groups_per_token;
            let expected = format!("at most {within}, the experts of {groups} groups");
            return Err(Error::of_key(
                "experts.per_token",
                expected,
                filled.per_token,
            ));
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
        Err(Error::of_key("rotary_share", expected, self.rotary_share))
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
        Err(Error::of_key(
            "rotary_share",
            "more than 0 and at most 1",
            share,
        ))
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
        let latent = self.latent.as_ref()?;
        Some(latent.attention(target, target.heads))
    }
}

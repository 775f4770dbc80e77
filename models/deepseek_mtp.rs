//! The layer of multi-token prediction that checkpoints of DeepSeek-V3 and GLM-4.5 have behind their own layers: one of their
//! decoder layers over a token's embedding beside the target's last hidden state, whose output a norm of its own hands to the
//! target's head (DeepSeek-V3, <https://arxiv.org/abs/2412.19437>, section 2.2; GLM-4.5, <https://arxiv.org/abs/2508.06471>; both
//! as vLLM computes them).
use burn::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::Mismatch;
use spectrain_data::vocabulary::DraftVocabulary;

use crate::along::unrolled;
use crate::attention::{AttentionConfig, Projects};
use crate::bounds;
use crate::draft_state::DraftState;
use crate::drafter::Drafter;
use crate::error::{Error, Result};
use crate::frozen::Frozen;
use crate::known_text::{KnownText, TakeLogits};
use crate::latent::LatentConfig;
use crate::linear::{Bias, Linear};
use crate::mixture::{MixtureConfig, Scoring};
use crate::mtp_layer::{MtpAttention, MtpLayer, MtpLayerConfig};
use crate::norm::RmsNorm;
use crate::target::{Capture, Features, TargetParts, TargetSpec};
use crate::tree::Tree;
use crate::unrolls::Unrolls;
use crate::untrained::Untrained;
use crate::weights::{RandomWeights, Scope, Weights};

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
    fn turned(&self, target: &TargetSpec) -> Result<usize> {
        if let Some(latent) = &self.latent {
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
    fn check(&self) -> Result<()> {
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
    fn filled(&self, target: &TargetSpec) -> Self {
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

/// The drafter. Its fields carry the names of the checkpoint, which has those of `layer` beside them.
#[derive(Module, Debug)]
pub struct DeepseekMtp {
    enorm: RmsNorm,
    hnorm: RmsNorm,
    eh_proj: Linear,
    layer: MtpLayer,
    final_layernorm: RmsNorm,
    #[module(skip)]
    turned: usize,
    #[module(skip)]
    frozen: Frozen<DeepseekMtpConfig>,
}

/// A decoder layer of the target, in its sizes.
fn layer(config: &DeepseekMtpConfig, target: &TargetSpec) -> MtpLayerConfig {
    MtpLayerConfig {
        d_model: target.d_model,
        attention: match config.latent_attention(target) {
            Some(latent) => MtpAttention::Latent(latent),
            None => MtpAttention::Grouped(grouped(config, target)),
        },
        d_ff: target.d_ff,
        experts: config.mixture(target),
        norm: target.norm_epsilon.into(),
    }
}

/// GLM-4.5's attention in the target's sizes.
fn grouped(config: &DeepseekMtpConfig, target: &TargetSpec) -> AttentionConfig {
    AttentionConfig {
        d_input: target.d_model,
        d_model: target.d_model,
        heads: target.heads,
        kv_heads: target.kv_heads,
        d_head: target.d_head,
        qkv_bias: config.qkv_bias.into(),
        output_bias: Bias::Without,
        head_norm: config.qk_norm.then(|| target.norm_epsilon.into()),
        gated: false,
    }
}

impl Drafter for DeepseekMtp {
    type Config = DeepseekMtpConfig;
    type State = DraftState;

    fn check(config: &DeepseekMtpConfig) -> Result<()> {
        config.check()
    }

    /// # Panics
    /// The vocabulary is not the target's: the head is.
    fn new(
        config: &DeepseekMtpConfig,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        weights: &mut dyn Weights,
        device: &Device,
    ) -> Result<Self> {
        assert!(
            vocabulary.is_full(),
            "a drafter without a head proposes every token"
        );
        let spec = &target.spec;
        let turned = config.turned(spec)?;
        // Master weights are f32 whatever the target is.
        let mut root = Scope::root(weights, device, spectrain_checkpoints::DType::F32);
        let d = spec.d_model;
        let norm =
            |root: &mut Scope, name| RmsNorm::new(&mut root.child(name), d, spec.norm_epsilon);
        Ok(Self {
            enorm: norm(&mut root, "enorm")?,
            hnorm: norm(&mut root, "hnorm")?,
            eh_proj: Linear::new(&mut root.child("eh_proj"), 2 * d, d, Bias::Without)?,
            layer: MtpLayer::new(&mut root.child("layer"), layer(config, spec))?,
            final_layernorm: norm(&mut root, "final_layernorm")?,
            turned,
            frozen: Frozen::new(config.filled(spec), target, vocabulary),
        })
    }

    fn fresh(
        config: &DeepseekMtpConfig,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        seed: u64,
        device: &Device,
    ) -> Result<Self> {
        let mut weights = Untrained {
            random: RandomWeights::new(seed),
            heads: None,
            norm: true,
            target,
            vocabulary,
        };
        Self::new(config, target, vocabulary, &mut weights, device)
    }

    /// No layer: what it reads is the last hidden state after the target's final norm.
    fn capture(config: &DeepseekMtpConfig, target: &TargetSpec) -> Result<Capture> {
        config.turned(target)?;
        Ok(Capture::default())
    }

    fn start(&self, capacity: usize, _: u32) -> DraftState {
        DraftState::new(capacity)
    }

    fn observe(&self, state: &mut DraftState, tokens: &[u32], features: &Features) {
        self.take_in(state, tokens, features);
    }

    fn parameters_per_pass(&self) -> u64 {
        let all = (self.num_params() + self.frozen.shared_parameters(None)) as u64;
        let idle = |experts: MixtureConfig| experts.idle_parameters(self.target().spec.d_model);
        let experts = self.config().mixture(&self.target().spec);
        all - experts.map_or(0, idle)
    }

    fn frozen(&self) -> &Frozen<DeepseekMtpConfig> {
        &self.frozen
    }

    /// What FastMTP trains and drafts with.
    fn draft_length(&self) -> usize {
        3
    }

    fn root_logits(&self, state: &mut DraftState) -> Tensor<2> {
        self.read(state.root())
    }

    fn node_logits(&self, state: &mut DraftState, tree: &Tree, nodes: &[usize]) -> Tensor<2> {
        self.logits_behind(state, tree, nodes)
    }

    fn rewind(&self, state: &mut DraftState) {
        state.rewind();
    }

    fn along(&self, text: &KnownText, take: &mut TakeLogits) {
        unrolled(self, text, take);
    }
}

impl Unrolls for DeepseekMtp {
    fn begin(&self, features: &Features) -> Tensor<3> {
        features.last.clone()
    }

    /// Before the norm that the head reads it behind. The embedding stands before the hidden state.
    fn pass(
        &self,
        embedded: Tensor<3>,
        hidden: Tensor<3>,
        attend: impl FnOnce(&dyn Projects, Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let embedded = self.enorm.forward(embedded);
        let hidden = self.hnorm.forward(hidden);
        let x = Tensor::cat(vec![embedded, hidden], 2); // [batch, seq, 2 * d_model]
        self.layer.around(self.eh_proj.forward(x), attend)
    }

    /// As vLLM has it: of DeepSeek-V3 what the head reads too, of GLM-4.5 what the norm before the head reads.
    fn next(&self, output: Tensor<3>) -> Tensor<3> {
        match self.frozen.config.latent {
            Some(_) => self.normed(output),
            None => output,
        }
    }

    fn normed(&self, output: Tensor<3>) -> Tensor<3> {
        self.final_layernorm.forward(output)
    }

    /// The target's, frozen.
    fn head(&self) -> Tensor<2> {
        self.frozen.head(None, &self.eh_proj.weight.device())
    }

    fn turned(&self) -> usize {
        self.turned
    }

    /// As engines do.
    fn starts_blank(&self) -> bool {
        true
    }
}

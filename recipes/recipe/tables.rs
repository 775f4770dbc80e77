//! The tables of a recipe file that are the same for every drafter.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use spectrain_checkpoints::DType;
use spectrain_data::expand::Turns;
use spectrain_data::held_out::LARGEST_SHARE;
use spectrain_data::mask::Masking;
use spectrain_data::prepare::Overlong;
use spectrain_data::sources::Sources;
use spectrain_data::template::OWN_VARIABLES;
use spectrain_eval::{DraftChoice, VerifierChoice};
use spectrain_models::Sampling;
use spectrain_models::bounds::{self, Bounded};

/// The frozen model that a drafter is trained for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TargetTable {
    /// A folder in the Hugging Face layout, or a hub id. Required without `[synthetic]`, which makes the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Branch, tag or commit of a hub id. Without it: the hub's main branch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Type of the target's weights in memory.
    pub dtype: TargetType,
}

/// Type of the target's weights in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TargetType {
    /// `"f32"` on the CPU, `"bf16"` on a GPU.
    #[default]
    Auto,
    /// 32-bit floats.
    F32,
    /// 16-bit brain floats.
    Bf16,
}

/// Makes conversations and a small target that has learnt them. `target.model`, `data.train` and `data.eval` are then
/// outputs of this stage and must be absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SyntheticTable {
    /// Conversations to train on.
    pub conversations: usize,
    /// Conversations kept for the evaluation.
    pub held_out: usize,
    /// Tokens of the tokenizer and the target; at least 320.
    pub vocab: usize,
    /// Decoder layers of the target.
    pub layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Width inside the feed-forward part.
    pub d_ff: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads, a divisor of `heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub d_head: usize,
    /// Optimiser steps of the target.
    pub steps: usize,
    /// Tokens of one step; at least `max_length`.
    pub batch_tokens: usize,
    /// Tokens of the longest conversation kept. Left out: at most `batch_tokens`.
    pub max_length: usize,
    /// Peak learning rate of the target.
    pub learning_rate: f64,
    /// Steps over which the learning rate rises. Left out: at most a tenth of `steps`.
    pub warmup: usize,
}

impl Default for SyntheticTable {
    fn default() -> Self {
        Self {
            conversations: 8000,
            held_out: 200,
            vocab: 2048,
            layers: 6,
            d_model: 128,
            d_ff: 384,
            heads: 4,
            kv_heads: 2,
            d_head: 32,
            steps: 400,
            batch_tokens: 4096,
            max_length: 512,
            learning_rate: 2e-3,
            warmup: 40,
        }
    }
}

/// The largest weight of a source.
const MOST_COPIES: f64 = 1000.0;

/// Which conversations there are, and how they become tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DataTable {
    /// A file (`.jsonl`, `.json`, `.parquet`), a folder, a pattern such as `data/*.jsonl`, `{ path = "…", weight = 2
    /// }`, or a list of these. Required without `[synthetic]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<Sources>,
    /// As `train`, without weights: other conversations, to evaluate with. Left out: some of `train`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval: Option<Sources>,
    /// Without `eval`: share of the prompts of `train` kept for the evaluation, at most 0.2. Left out: 0.02.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out: Option<f64>,
    /// Tokens of the longest sample, and of a row that samples are packed into; at least 4.
    pub max_length: usize,
    /// What happens to longer samples.
    pub overlong: Overlong,
    /// Which tokens are trained on.
    pub mask: Masking,
    /// A file with a chat template (Jinja) in place of the target's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<PathBuf>,
    /// What the chat template reads beside the conversation, such as `{ enable_thinking = false }`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub template_variables: Map<String, Value>,
    /// Samples of a conversation with several answers. `"expand"` needs `mask = "assistant"`.
    pub turns: Turns,
    /// Samples with fewer tokens to train on are left out.
    pub min_trained_tokens: usize,
}

impl Default for DataTable {
    fn default() -> Self {
        Self {
            train: None,
            eval: None,
            held_out: None,
            max_length: 2048,
            overlong: Overlong::Drop,
            mask: Masking::Assistant,
            template: None,
            template_variables: Map::new(),
            turns: Turns::Auto,
            min_trained_tokens: 1,
        }
    }
}

/// When the target's hidden states are computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FeaturesTable {
    /// Where the hidden states come from. The target stays in memory in either mode: validation decodes with it.
    pub mode: FeatureMode,
    /// Samples of one file of stored features.
    pub samples_per_shard: usize,
}

impl Default for FeaturesTable {
    fn default() -> Self {
        Self {
            mode: FeatureMode::Live,
            samples_per_shard: 256,
        }
    }
}

/// When the target's hidden states are computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FeatureMode {
    /// In the training process, again in every epoch.
    #[default]
    Live,
    /// Once, in a stage of its own that writes them to the disk.
    Stored,
}

/// The drafter as serving engines load it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExportTable {
    /// Engines that the drafter is for: their launch commands are printed, and those that load a folder of their own
    /// get one.
    pub to: Vec<Engine>,
    /// Type of the exported weights.
    pub dtype: ExportType,
}

impl Default for ExportTable {
    fn default() -> Self {
        Self {
            to: vec![Engine::Sglang, Engine::Vllm],
            dtype: ExportType::Bf16,
        }
    }
}

/// A serving engine.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// SGLang.
    Sglang,
    /// vLLM.
    Vllm,
    /// Hugging Face Transformers, for language models and DFlash.
    Hf,
    /// vLLM by a folder of the speculators library, which names its target, for EAGLE-3 and DFlash.
    Speculators,
    /// llama.cpp, after its own conversion.
    #[serde(rename = "llama-cpp")]
    LlamaCpp,
    /// TensorRT-LLM, by a line of its settings.
    #[serde(rename = "tensorrt-llm")]
    TensorrtLlm,
}

impl Engine {
    /// What its makers call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sglang => "SGLang",
            Self::Vllm => "vLLM",
            Self::Hf => "Transformers",
            Self::Speculators => "vLLM by a folder of speculators",
            Self::LlamaCpp => "llama.cpp",
            Self::TensorrtLlm => "TensorRT-LLM",
        }
    }

    /// What recipes and the command line call it.
    pub fn key(self) -> &'static str {
        match self {
            Self::Sglang => "sglang",
            Self::Vllm => "vllm",
            Self::Hf => "hf",
            Self::Speculators => "speculators",
            Self::LlamaCpp => "llama-cpp",
            Self::TensorrtLlm => "tensorrt-llm",
        }
    }
}

/// Type of the exported weights.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum ExportType {
    /// 16-bit brain floats.
    #[default]
    Bf16,
    /// 16-bit floats.
    F16,
    /// 32-bit floats.
    F32,
}

impl ExportType {
    /// The type of tensors in files.
    pub fn dtype(self) -> DType {
        match self {
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
            Self::F32 => DType::F32,
        }
    }
}

/// How the drafter is judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluateTable {
    /// Further targets that judge the drafter, folders or hub ids with the same tokens.
    pub targets: Vec<String>,
    /// Prompts of `data.eval` to decode, spread evenly over it.
    pub prompts: usize,
    /// Each is a setting of the report; 0 takes the most likely token.
    pub temperatures: Vec<f64>,
    /// Above temperature 0, keeps this many of the most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Above temperature 0, keeps the fewest tokens that hold this much probability; 1 keeps all.
    pub top_p: f64,
    /// Tokens of the chains to draft; each length is a setting of the report. 0 is the drafter's own: one token of each
    /// head, all slots of a block, 8 of PARD, 16 of PARD-2, 5 of all others.
    pub draft_lengths: Vec<usize>,
    /// Drafts of other shapes, such as `{ shape = "dynamic", nodes = 60 }`; each is one more setting.
    pub drafts: Vec<DraftChoice>,
    /// Tokens to decode after each prompt, at most.
    pub max_new_tokens: usize,
    /// The test that decides over drafted tokens.
    pub verifier: VerifierName,
    /// Whether prompts are also decoded without a drafter, for the speed-up and the check that nothing is lost.
    pub baseline: bool,
    /// Seed of sampling and of the confidence intervals.
    pub seed: u64,
}

impl Default for EvaluateTable {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            prompts: 64,
            temperatures: vec![0.0, 1.0],
            top_k: 0,
            top_p: 1.0,
            draft_lengths: vec![0],
            drafts: Vec::new(),
            max_new_tokens: 128,
            verifier: VerifierName::Auto,
            baseline: true,
            seed: 0,
        }
    }
}

impl EvaluateTable {
    /// One for each temperature.
    pub fn samplings(&self) -> Vec<Sampling> {
        let of = |&temperature: &f64| match temperature == 0.0 {
            true => Sampling::GREEDY,
            false => Sampling {
                temperature,
                top_k: self.top_k,
                top_p: self.top_p,
            },
        };
        self.temperatures.iter().map(of).collect()
    }

    /// All drafts to evaluate, the chains first, each once. `own` is the drafter's own length of a chain.
    pub fn choices(&self, own: usize) -> Vec<DraftChoice> {
        let chain = |&length: &usize| DraftChoice::chain(chain_length(length, own));
        let chains = self.draft_lengths.iter().map(chain);
        let mut choices = Vec::new();
        for choice in chains.chain(self.drafts.iter().cloned()) {
            if !choices.contains(&choice) {
                choices.push(choice);
            }
        }
        choices
    }

    /// The length of the first chain. `own` is the drafter's own.
    pub fn draft_length(&self, own: usize) -> usize {
        chain_length(self.draft_lengths.first().copied().unwrap_or(0), own)
    }

    /// Checks what the types cannot say.
    pub fn check(&self) -> Result<(), Problem> {
        for (at, target) in self.targets.iter().enumerate() {
            let found = match target.as_str() {
                "" => "an empty name".to_owned(),
                _ if self.targets[..at].contains(target) => format!("`{target}` twice"),
                _ => continue,
            };
            let message = format!("expected other folders or hub ids, found {found}");
            return Err(Problem::new("targets", message));
        }
        within([
            bounds::up_to("prompts", self.prompts, bounds::SAMPLES),
            bounds::up_to("max_new_tokens", self.max_new_tokens, bounds::REPLY),
        ])?;
        some_of("temperatures", &self.temperatures)?;
        some_of("draft_lengths", &self.choices(1))?;
        for &length in &self.draft_lengths {
            within([bounds::or_none("draft_lengths", length, bounds::DRAFT)])?;
        }
        for draft in &self.drafts {
            if let Err(error) = draft.check() {
                return Err(Problem::new("drafts", error.to_string()));
            }
            let sampled = self
                .temperatures
                .iter()
                .any(|&temperature| temperature > 0.0);
            let tree = !draft.is_chain();
            if self.verifier == VerifierName::Block && tree && sampled {
                return Err(Problem::new(
                    "verifier",
                    "`block` judges chains only, found a tree in `drafts`; use `auto`",
                ));
            }
        }
        for &temperature in &self.temperatures {
            if !(0.0..=100.0).contains(&temperature) {
                return Err(Problem::new(
                    "temperatures",
                    format!("expected 0 to 100, found {temperature}"),
                ));
            }
            if temperature > 0.0 && self.verifier == VerifierName::Greedy {
                return Err(Problem::new(
                    "verifier",
                    format!(
                        "`greedy` is exact at temperature 0 only, found temperature {temperature}; use `auto`"
                    ),
                ));
            }
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(Problem::new(
                "top_p",
                format!("expected more than 0 and at most 1, found {}", self.top_p),
            ));
        }
        Ok(())
    }
}

/// Which test decides over drafted tokens.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum VerifierName {
    /// `"greedy"` at temperature 0, else `"rejection"`.
    #[default]
    Auto,
    /// A token must be the target's most likely one; for temperature 0 only.
    Greedy,
    /// Rejection sampling: the output follows the target's distribution.
    Rejection,
    /// `"greedy"` at temperature 0; above it a chain is judged as a whole: as exact, and on average it never accepts
    /// less.
    Block,
    /// `"greedy"` at temperature 0; above it Medusa's typical acceptance, which changes what the target says and is
    /// marked as lossy.
    TypicalLossy,
}

impl From<VerifierName> for VerifierChoice {
    fn from(name: VerifierName) -> Self {
        match name {
            VerifierName::Auto => Self::Exact,
            VerifierName::Greedy => Self::Greedy,
            VerifierName::Rejection => Self::Rejection,
            VerifierName::Block => Self::Block,
            VerifierName::TypicalLossy => Self::TypicalLossy,
        }
    }
}

/// What is wrong with the value of a key although it has the right type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("key `{key}`: {message}")]
pub struct Problem {
    /// The key, with its table once that is known.
    pub key: String,
    /// Expected and found.
    pub message: String,
}

impl Problem {
    /// A problem with `key`.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            message: message.into(),
        }
    }

    /// The same problem, seen from outside of `table`.
    pub fn within(self, table: &str) -> Self {
        Self {
            key: format!("{table}.{}", self.key),
            message: self.message,
        }
    }
}

/// Refuses the first of `numbers` that is out of its bounds.
pub(crate) fn within(numbers: impl IntoIterator<Item = Bounded>) -> Result<(), Problem> {
    bounds::check(numbers).map_err(|out| {
        Problem::new(
            out.key,
            format!("expected {}, found {}", out.expected, out.got),
        )
    })
}

/// `asked`, of which 0 stands for the drafter's own.
fn chain_length(asked: usize, own: usize) -> usize {
    if asked == 0 { own } else { asked }
}

/// Refuses an empty list.
pub(crate) fn some_of<T>(key: &str, values: &[T]) -> Result<(), Problem> {
    match values.is_empty() {
        true => Err(Problem::new(key, "expected at least one entry, found none")),
        false => Ok(()),
    }
}

impl SyntheticTable {
    /// Checks what the types cannot say.
    pub fn check(&self) -> Result<(), Problem> {
        within([
            bounds::up_to("conversations", self.conversations, bounds::SAMPLES),
            bounds::up_to("held_out", self.held_out, bounds::SAMPLES),
            Bounded {
                key: "vocab",
                value: self.vocab,
                // The 256 bytes and the marks of the chat template are tokens of their own.
                bounds: 320..=bounds::VOCABULARY,
            },
            bounds::up_to("layers", self.layers, bounds::LAYERS),
            bounds::up_to("d_model", self.d_model, bounds::WIDTH),
            bounds::up_to("d_ff", self.d_ff, bounds::FEED_FORWARD),
            bounds::up_to("heads", self.heads, bounds::HEADS),
            bounds::up_to("kv_heads", self.kv_heads, bounds::HEADS),
            bounds::up_to("d_head", self.d_head, bounds::WIDTH),
            bounds::up_to("steps", self.steps, bounds::STEPS),
            bounds::up_to("max_length", self.max_length, bounds::TEXT),
            bounds::up_to("batch_tokens", self.batch_tokens, bounds::TEXT),
        ])?;
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(Problem::new(
                "kv_heads",
                format!(
                    "expected a divisor of `heads` ({}), found {}",
                    self.heads, self.kv_heads
                ),
            ));
        }
        if !self.d_head.is_multiple_of(2) {
            return Err(Problem::new(
                "d_head",
                format!("expected an even number, found {}", self.d_head),
            ));
        }
        if self.batch_tokens < self.max_length {
            return Err(Problem::new(
                "batch_tokens",
                format!(
                    "expected at least `max_length` ({}), found {}",
                    self.max_length, self.batch_tokens
                ),
            ));
        }
        if self.warmup > self.steps {
            return Err(Problem::new(
                "warmup",
                format!(
                    "expected at most `steps` ({}), found {}",
                    self.steps, self.warmup
                ),
            ));
        }
        if !(self.learning_rate > 0.0 && self.learning_rate.is_finite()) {
            return Err(Problem::new(
                "learning_rate",
                format!("expected a positive number, found {}", self.learning_rate),
            ));
        }
        Ok(())
    }
}

/// Share of the prompts that are held out where nothing is said.
const HELD_OUT: f64 = 0.02;

impl DataTable {
    /// Share of the prompts that are held out, where there is no `eval`.
    pub fn held_out(&self) -> f64 {
        self.held_out.unwrap_or(HELD_OUT)
    }

    /// Checks what the types cannot say.
    pub fn check(&self) -> Result<(), Problem> {
        self.check_sources()?;
        let own = |name: &&String| OWN_VARIABLES.contains(&name.as_str());
        if let Some(name) = self.template_variables.keys().find(own) {
            let message = format!(
                "expected variables of the template alone, found `{name}`, which the program sets"
            );
            return Err(Problem::new("template_variables", message));
        }
        if self.turns == Turns::Expand && self.mask != Masking::Assistant {
            let message = "`expand` trains on each answer, for which `mask` has to be `assistant`";
            return Err(Problem::new("turns", message));
        }
        within([
            Bounded {
                key: "max_length",
                value: self.max_length,
                bounds: 4..=bounds::TEXT,
            },
            bounds::up_to("min_trained_tokens", self.min_trained_tokens, bounds::TEXT),
        ])
    }

    fn check_sources(&self) -> Result<(), Problem> {
        let given = [("train", &self.train), ("eval", &self.eval)];
        for (key, sources) in given {
            let each = sources.iter().flat_map(Sources::each);
            for source in each {
                let path = source.path.display();
                if !(source.weight > 0.0 && source.weight <= MOST_COPIES) {
                    let weight = source.weight;
                    let message = format!(
                        "expected a weight above 0, at most {MOST_COPIES}, found {weight} for `{path}`"
                    );
                    return Err(Problem::new(key, message));
                }
                if key == "eval" && source.weight != 1.0 {
                    let message = format!("expected paths without weights, found one for `{path}`");
                    return Err(Problem::new(key, message));
                }
            }
            if let Some(sources) = sources {
                some_of(key, sources.each())?;
            }
        }
        match self.held_out {
            Some(_) if self.eval.is_some() => Err(Problem::new(
                "held_out",
                "must be absent beside `eval`, which is the evaluation's data",
            )),
            Some(share) if !(share > 0.0 && share <= LARGEST_SHARE) => Err(Problem::new(
                "held_out",
                format!("expected a share above 0, at most {LARGEST_SHARE}, found {share}"),
            )),
            _ => Ok(()),
        }
    }
}

//! The `[evaluate]` table.

use serde::{Deserialize, Serialize};
use spectrain_eval::{DraftChoice, VerifierChoice};
use spectrain_models::Sampling;
use spectrain_models::bounds;

use crate::recipe::problem::{Problem, some_of, within};

/// The `[evaluate]` table: how the drafter is judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluateTable {
    /// Further targets to judge with, folders or hub ids: their tokens must be those of the recipe's own, whose prompts
    /// they continue, and the drafter must go with each. Default: none.
    pub targets: Vec<String>,
    /// Prompts of `[data] eval` to decode, spread evenly over it. Default: 64.
    pub prompts: usize,
    /// Temperatures; 0 takes the most likely token. Default: `[0.0, 1.0]`.
    pub temperatures: Vec<f64>,
    /// Above temperature 0, keeps the `top_k` most likely tokens; 0 keeps all. Default: 0.
    pub top_k: usize,
    /// Above temperature 0, keeps the fewest tokens that hold this much probability; 1 keeps all. Default: 1.
    pub top_p: f64,
    /// Lengths of chains to draft, in tokens; each is one setting of the report. 0 is the drafter's own: all heads, all of a
    /// block, or else what is usual. Default: `[0]`.
    pub draft_lengths: Vec<usize>,
    /// Drafts of other shapes, such as `{ shape = "dynamic", nodes = 60 }`; each is one more setting. Default: none.
    pub drafts: Vec<DraftChoice>,
    /// Tokens to decode after each prompt, at most. Default: 128.
    pub max_new_tokens: usize,
    /// `auto`: greedy at temperature 0, else rejection sampling; `greedy` (temperature 0 only), `rejection`; `block`, for
    /// chains; `typical-lossy`, which changes what the target says. Default: `auto`.
    pub verifier: VerifierName,
    /// Whether prompts are decoded without a drafter too, for the speed-up and the check that nothing is lost. Default: true.
    pub baseline: bool,
    /// Seed of sampling and of the confidence intervals. Default: 0.
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
        let of = |&temperature: &f64| {
            if temperature == 0.0 {
                Sampling::GREEDY
            } else {
                Sampling {
                    temperature,
                    top_k: self.top_k,
                    top_p: self.top_p,
                }
            }
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

/// `asked`, of which 0 stands for the drafter's own.
fn chain_length(asked: usize, own: usize) -> usize {
    if asked == 0 { own } else { asked }
}

/// Which test decides over drafted tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum VerifierName {
    /// `greedy` at temperature 0, else `rejection`.
    #[default]
    Auto,
    /// A token must be the target's most likely one.
    Greedy,
    /// Rejection sampling: the output follows the target's distribution.
    Rejection,
    /// `greedy` at temperature 0, else block verification, for chains only: as exact, and on average never accepts less.
    Block,
    /// `greedy` at temperature 0, else typical acceptance, which changes what the target says.
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

//! The `[evaluate]` table.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::Mismatch;
use spectrain_eval::{ChainTokens, DraftChoice, VerifierChoice};
use spectrain_models::bounds::{self, OutOfBounds};
use spectrain_models::{Children, Sampling, TrainingFree};

use crate::recipe::problem::{Problem, some_of, within};
use crate::recipe::tables::prompts::{PromptEntry, Prompts};

/// Prompts that are decoded where nothing is said.
const COUNT: usize = 64;

/// How the drafter is judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluateTable {
    /// Further targets to evaluate the drafter with, as folders or hub ids; they must have the same tokens.
    pub targets: Vec<String>,
    /// Prompts to decode: a number of prompts of `data.eval`, spread evenly over it, or a list of sets by name or path, such as
    /// `["gsm8k", "mt-bench=question.jsonl", "own.jsonl"]`.
    pub prompts: Prompts,
    /// Where `prompts` is a list: the most prompts to take from each set, spread evenly over it. Left out: 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
    /// Sampling temperatures, each of which is a setting of the report; 0 takes the most likely token.
    pub temperatures: Vec<f64>,
    /// Above temperature 0, keeps this many of the most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Above temperature 0, keeps the fewest tokens that hold this much probability; 1 keeps all.
    pub top_p: f64,
    /// Lengths in tokens of the chains to draft; each length is a setting of the report. 0 takes the drafter's own length: one
    /// token for each head, all slots of a block, 8 for PARD, 16 for PARD-2, 5 for all others. A drafter with heads or blocks
    /// drafts no longer ones; in their place the report has the longest that it drafts.
    pub draft_lengths: Vec<usize>,
    /// Drafts of other shapes, such as `{ shape = "dynamic", nodes = 60 }`; each is one more setting.
    pub drafts: Vec<DraftChoice>,
    /// Training-free drafters to evaluate as well, with chains of the same lengths, of the drafter's own length where
    /// `draft_lengths` is empty: `"prompt-lookup"`, `"token-recycling"`, or the target's first layers,
    /// `{ name = "early-layers", layers = 4 }`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub training_free: Vec<TrainingFree>,
    /// Sequences to decode at a time, with the drafter and without; of fewer prompts all of them. Outputs do not depend on it,
    /// speeds do.
    pub batch_size: usize,
    /// Tokens to decode after each prompt, at most.
    pub max_new_tokens: usize,
    /// The test that accepts or rejects drafted tokens.
    pub verifier: VerifierName,
    /// Whether prompts are also decoded without a drafter, to measure the speed-up and check that decoding is lossless.
    pub baseline: bool,
    /// Seed of sampling and of the confidence intervals.
    pub seed: u64,
}

impl Default for EvaluateTable {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            prompts: Prompts::Count(COUNT),
            count: None,
            temperatures: vec![0.0, 1.0],
            top_k: 0,
            top_p: 1.0,
            draft_lengths: vec![0],
            drafts: Vec::new(),
            training_free: Vec::new(),
            batch_size: 1,
            max_new_tokens: 128,
            verifier: VerifierName::Auto,
            baseline: true,
            seed: 0,
        }
    }
}

impl EvaluateTable {
    /// The sets that are named; none where prompts of `data.eval` are decoded.
    pub fn sets(&self) -> &[PromptEntry] {
        match &self.prompts {
            Prompts::Sets(sets) => sets,
            Prompts::Count(_) => &[],
        }
    }

    /// How many prompts of `data.eval` are decoded.
    pub fn of_eval(&self) -> usize {
        match &self.prompts {
            Prompts::Sets(_) => 0,
            Prompts::Count(count) => *count,
        }
    }

    /// How many prompts of each set are decoded, where sets are named.
    pub fn of_each_set(&self) -> usize {
        self.count.unwrap_or(COUNT)
    }

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
        let asked = chains.chain(self.drafts.iter().cloned());
        for choice in asked.map(|choice| self.judged(choice)) {
            if !choices.contains(&choice) {
                choices.push(choice);
            }
        }
        choices
    }

    /// The same chains for a drafter without training, of its likeliest tokens where it has no others. Drafts of other shapes
    /// are not for it: where nothing else is asked for, it has a chain of the length `own`. Token recycling has a tree of its
    /// own besides.
    pub fn choices_of(&self, drafter: &TrainingFree, own: usize) -> Vec<DraftChoice> {
        let tokens = if drafter.draws() {
            ChainTokens::Both
        } else {
            ChainTokens::Likeliest
        };
        let lengths: &[usize] = match &self.draft_lengths[..] {
            [] => &[0],
            lengths => lengths,
        };
        let mut choices: Vec<DraftChoice> = Vec::new();
        for &length in lengths {
            let length = chain_length(length, own);
            let choice = self.judged(DraftChoice::Chain { length, tokens });
            if !choices.contains(&choice) {
                choices.push(choice);
            }
        }
        choices.extend(drafter.tree().map(|tree| DraftChoice::Static {
            tree,
            children: Children::Top,
        }));
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
            let message = format!("expected different folders or hub ids, found {found}");
            return Err(Problem::new("targets", message));
        }
        within([
            bounds::up_to("count", self.of_each_set(), bounds::SAMPLES),
            bounds::up_to("batch_size", self.batch_size, bounds::BATCH),
            bounds::up_to("max_new_tokens", self.max_new_tokens, bounds::REPLY),
        ])?;
        self.check_prompts()?;
        some_of("temperatures", &self.temperatures)?;
        if let Some(twice) = repeated(&self.temperatures) {
            let message = format!("expected different temperatures, found {twice} twice");
            return Err(Problem::new("temperatures", message));
        }
        some_of("draft_lengths", &self.choices(1))?;
        for &length in &self.draft_lengths {
            within([bounds::or_none("draft_lengths", length, bounds::DRAFT)])?;
        }
        for draft in &self.drafts {
            if let Err(error) = draft.check() {
                return Err(Problem::new("drafts", error.to_string()));
            }
        }
        self.check_block()?;
        for &temperature in &self.temperatures {
            if !(0.0..=100.0).contains(&temperature) {
                return Err(Problem::new(
                    "temperatures",
                    Mismatch::new("0 to 100", temperature).to_string(),
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
        self.check_training_free()?;
        let sampling = Sampling {
            top_p: self.top_p,
            ..Sampling::GREEDY
        };
        let told = |out: OutOfBounds| Problem::new(out.key, out.mismatch.to_string());
        sampling.check().map_err(told)
    }
}

impl EvaluateTable {
    /// What is drafted where `choice` is asked for, so that the verifier can judge it.
    fn judged(&self, choice: DraftChoice) -> DraftChoice {
        match self.verifier {
            VerifierName::Block => choice.drawn(),
            _ => choice,
        }
    }

    /// Fails where block verification would get something else than chains of drawn tokens.
    fn check_block(&self) -> Result<(), Problem> {
        if self.verifier != VerifierName::Block || !self.samples() {
            return Ok(());
        }
        let likeliest = |draft: &DraftChoice| {
            matches!(
                draft,
                DraftChoice::Chain {
                    tokens: ChainTokens::Likeliest,
                    ..
                }
            )
        };
        let undrawn = self.training_free.iter().find(|free| !free.draws());
        let found = if self.drafts.iter().any(|draft| !draft.is_chain()) {
            "a tree in `drafts`".to_owned()
        } else if self.drafts.iter().any(likeliest) {
            "`tokens = \"likeliest\"` in `drafts`".to_owned()
        } else if let Some(free) = undrawn {
            format!("`{free}` in `training_free`, which draws none")
        } else {
            return Ok(());
        };
        Err(Problem::new(
            "verifier",
            format!(
                "above temperature 0 `block` judges only chains of drawn tokens, found {found}; use `auto`"
            ),
        ))
    }

    /// Whether a temperature is above 0.
    fn samples(&self) -> bool {
        self.temperatures
            .iter()
            .any(|&temperature| temperature > 0.0)
    }

    fn check_training_free(&self) -> Result<(), Problem> {
        for (at, drafter) in self.training_free.iter().enumerate() {
            if self.training_free[..at].contains(drafter) {
                let message = format!("expected each drafter once, found `{drafter}` twice");
                return Err(Problem::new("training_free", message));
            }
        }
        Ok(())
    }

    fn check_prompts(&self) -> Result<(), Problem> {
        match &self.prompts {
            Prompts::Count(_) if self.count.is_some() => Err(Problem::new(
                "count",
                "must be absent where `prompts` is a number: it limits each set where `prompts` is a list",
            )),
            Prompts::Count(count) => within([bounds::up_to("prompts", *count, bounds::SAMPLES)]),
            Prompts::Sets(sets) => {
                some_of("prompts", sets)?;
                if let Some(twice) = repeated(sets) {
                    let message = format!("expected each set once, found `{twice}` twice");
                    return Err(Problem::new("prompts", message));
                }
                for set in sets {
                    let chosen = set.choose();
                    chosen.map_err(|message| Problem::new("prompts", message))?;
                }
                Ok(())
            }
        }
    }
}

/// The first value that stands among those before it.
fn repeated<T: PartialEq>(values: &[T]) -> Option<&T> {
    let mut each = values.iter().enumerate();
    each.find_map(|(at, value)| values[..at].contains(value).then_some(value))
}

/// `asked`, of which 0 stands for the drafter's own.
fn chain_length(asked: usize, own: usize) -> usize {
    if asked == 0 { own } else { asked }
}

/// The test that decides over drafted tokens.
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
    /// `"greedy"` at temperature 0; above it a chain of drawn tokens is verified as a whole: this is as exact as `"rejection"` and
    /// on average never accepts fewer tokens.
    Block,
    /// `"greedy"` at temperature 0; above it Medusa's typical acceptance, which changes the distribution of the output and is
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_evaluated_twice_is_refused() {
        let refused = |table: EvaluateTable| table.check().unwrap_err();
        let twice = refused(EvaluateTable {
            temperatures: vec![1.0, 0.5, 1.0],
            ..EvaluateTable::default()
        });
        assert_eq!(
            (twice.key.as_str(), twice.message.as_str()),
            (
                "temperatures",
                "expected different temperatures, found 1 twice"
            )
        );
        // Both take the likeliest token.
        let zeros = EvaluateTable {
            temperatures: vec![0.0, -0.0],
            ..EvaluateTable::default()
        };
        assert_eq!(refused(zeros).key, "temperatures");
        let sets = ["a.jsonl", "gsm8k", "a.jsonl"].map(PromptEntry::from);
        let twice = refused(EvaluateTable {
            prompts: Prompts::Sets(sets.to_vec()),
            ..EvaluateTable::default()
        });
        assert_eq!(
            (twice.key.as_str(), twice.message.as_str()),
            ("prompts", "expected each set once, found `a.jsonl` twice")
        );
        EvaluateTable::default().check().unwrap();
    }

    fn free(name: &str) -> TrainingFree {
        name.parse().unwrap()
    }

    fn drafted(draft: &str) -> DraftChoice {
        draft.parse().unwrap()
    }

    #[test]
    fn block_verification_is_given_drawn_chains_alone() {
        let table = EvaluateTable {
            verifier: VerifierName::Block,
            draft_lengths: vec![0, 3],
            drafts: vec![drafted("chain:3"), drafted("confident:4")],
            training_free: vec![free("early-layers:1")],
            ..EvaluateTable::default()
        };
        table.check().unwrap();
        let drawn = [
            drafted("chain:5,tokens=drawn"),
            drafted("chain:3,tokens=drawn"),
        ];
        let confident = [drafted("confident:4")];
        assert_eq!(table.choices(5), [&drawn[..], &confident].concat());
        assert_eq!(table.choices_of(&table.training_free[0], 5), drawn);
        let any = EvaluateTable {
            verifier: VerifierName::Auto,
            ..table
        };
        assert_eq!(any.choices(5)[..2], ["chain:5", "chain:3"].map(drafted));
    }

    #[test]
    fn block_verification_refuses_what_is_not_drawn() {
        let of = |drafts: &[&str], training_free: &[&str], temperature: f64| EvaluateTable {
            verifier: VerifierName::Block,
            temperatures: vec![temperature],
            drafts: drafts.iter().map(|draft| drafted(draft)).collect(),
            training_free: training_free.iter().map(|name| free(name)).collect(),
            ..EvaluateTable::default()
        };
        for (drafts, training_free, found) in [
            (&["dynamic:9"][..], &[][..], "found a tree in `drafts`"),
            (
                &["chain:3,tokens=likeliest"],
                &[],
                "found `tokens = \"likeliest\"` in `drafts`",
            ),
            (&[], &["prompt-lookup"], "found `prompt-lookup` in"),
            (&[], &["token-recycling"], "found `token-recycling` in"),
        ] {
            let refused = of(drafts, training_free, 1.0).check().unwrap_err();
            assert_eq!(refused.key, "verifier");
            assert!(refused.message.contains(found), "{}", refused.message);
            // At temperature 0 the likeliest tokens are all that there is.
            of(drafts, training_free, 0.0).check().unwrap();
        }
    }

    #[test]
    fn training_free_drafters_have_chains_where_only_other_shapes_are_asked_for() {
        let table = EvaluateTable {
            draft_lengths: Vec::new(),
            drafts: vec![drafted("dynamic:9")],
            ..EvaluateTable::default()
        };
        let found = table.choices_of(&free("prompt-lookup"), 5);
        assert_eq!(found, [drafted("chain:5,tokens=likeliest")]);
        assert_eq!(table.choices(5), [drafted("dynamic:9")]);
    }
}

//! What servers are asked: reports of two servers are compared only where it was the same.
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::Mismatch;
use spectrain_checkpoints::hash::sha256_bytes;

use crate::error::{Error, Result};
use crate::prompts::PromptSet;
use crate::report::ends::EndsReport;

/// The prompts of a run, and where its answers end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedReport {
    /// Hash of the prompts of all datasets, in their order.
    pub prompts_sha256: String,
    /// Tokens of an answer, at most.
    pub max_new_tokens: usize,
    /// Tokens at which an answer ends; left out where it ends at its length alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<u32>,
}

impl AskedReport {
    /// The prompts of these datasets, with answers of at most so many tokens that end at one of `stop`.
    pub fn new(sets: &[PromptSet], max_new_tokens: usize, stop: Vec<u32>) -> Self {
        let each: Vec<String> = sets.iter().map(PromptSet::sha256).collect();
        Self {
            prompts_sha256: sha256_bytes(each.join("\n").as_bytes()),
            max_new_tokens,
            stop,
        }
    }

    /// Fails where `other` was asked something else.
    pub(crate) fn check_same(&self, other: &Self) -> Result<()> {
        if self.prompts_sha256 != other.prompts_sha256 {
            let expected = "the prompts that the baseline's server was asked: the same `--prompts` in the same order, `--count`, \
                            `--max-length` and `--template-variable`";
            return Err(Error::OtherPrompts {
                mismatch: Mismatch::new(expected, "other prompts"),
            });
        }
        self.ends().check_same(&other.ends())
    }

    /// Where answers end.
    fn ends(&self) -> EndsReport {
        EndsReport {
            max_new_tokens: self.max_new_tokens,
            stop: self.stop.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(token: u32) -> AskedReport {
        let set = PromptSet {
            name: "eval".into(),
            prompts: vec![vec![1, token].into()],
        };
        AskedReport::new(&[set], 8, vec![5])
    }

    #[test]
    fn other_prompts_lengths_and_ends_are_refused() {
        let one = asked(2);
        one.check_same(&asked(2)).unwrap();
        let refused = |other: &AskedReport| one.check_same(other).unwrap_err().to_string();
        assert!(refused(&asked(3)).ends_with("found other prompts"));
        let longer = AskedReport {
            max_new_tokens: 16,
            ..asked(2)
        };
        assert_eq!(
            refused(&longer),
            "`baseline`: expected answers of at most 8 tokens (`--max-new-tokens 8`), found answers of at most 16 tokens"
        );
        let endless = AskedReport {
            stop: Vec::new(),
            ..asked(2)
        };
        assert_eq!(
            refused(&endless),
            "`baseline`: expected answers that end at the tokens [5], found answers that end at their length alone \
             (`--ignore-stop`)"
        );
    }
}

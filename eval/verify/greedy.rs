use burn::prelude::*;
use rand::rngs::StdRng;
use spectrain_checkpoints::Mismatch;
use spectrain_models::{Draft, Sampling};

use super::rows::most_likely;
use super::verifier::{Verdict, Verifier, check_tree};
use crate::error::{Error, Result};

/// Accepts a node when it is the target's most likely token. Temperature 0 only.
#[derive(Debug, Clone, Copy)]
pub struct Greedy;

impl Verifier for Greedy {
    fn name(&self) -> &'static str {
        "greedy"
    }

    fn is_lossy(&self) -> bool {
        false
    }

    fn decides_in_order(&self) -> bool {
        true
    }

    fn verify(
        &self,
        draft: &Draft,
        target: Tensor<2>,
        sampling: &Sampling,
        _: &mut StdRng,
    ) -> Result<Verdict> {
        check_tree(self.name(), draft, &target)?;
        if !sampling.is_greedy() {
            return Err(Error::Setting {
                key: "verifier",
                mismatch: Mismatch::new(
                    "`exact` or `rejection` above temperature 0",
                    format!("`greedy` at temperature {}", sampling.temperature),
                ),
            });
        }
        let best = most_likely(target)?;
        let mut accepted = Vec::new();
        let mut bonus = best[0];
        while let Some(child) = draft
            .children(accepted.last().copied())
            .find(|&node| draft.tokens[node] == bonus)
        {
            accepted.push(child);
            bonus = best[1 + child];
        }
        Ok(Verdict { accepted, bonus })
    }
}

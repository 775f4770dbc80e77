use burn::prelude::*;
use rand::rngs::StdRng;
use spectrain_checkpoints::Mismatch;
use spectrain_models::{Draft, Sampling};

use crate::error::{Error, Result};

/// What verification decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Accepted nodes, from the root down.
    pub accepted: Vec<usize>,
    /// The target's own token after them.
    pub bonus: u32,
}

/// Decides which nodes of a draft are accepted.
pub trait Verifier {
    /// Its name in recipes and reports.
    fn name(&self) -> &'static str;

    /// Whether the output may stray from the target's distribution.
    fn is_lossy(&self) -> bool;

    /// Whether what it decides of a node hangs on nothing behind that node.
    fn decides_in_order(&self) -> bool;

    /// Walks `draft` from the root down. `target` holds logits, `sampling` makes distributions of them.
    ///
    /// # Shapes
    /// - target: `[1 + nodes, vocab]`; row 0 judges the children of the last committed token, row `1 + i` those of node `i`
    ///
    /// # Errors
    /// The draft is no tree, or of a kind this verifier cannot judge exactly; the device failed.
    fn verify(
        &self,
        draft: &Draft,
        target: Tensor<2>,
        sampling: &Sampling,
        rng: &mut StdRng,
    ) -> Result<Verdict>;
}

/// Fails on a draft that is no tree, and on rows of logits that are not its own.
pub(super) fn check_tree(verifier: &'static str, draft: &Draft, target: &Tensor<2>) -> Result<()> {
    let [rows, vocab] = target.dims();
    let refuse = |expected: String, got: String| {
        Err(Error::Draft {
            verifier,
            mismatch: Mismatch::new(expected, got),
        })
    };
    if draft.parents.len() != draft.len() {
        let got = format!(
            "{} tokens with {} parents",
            draft.len(),
            draft.parents.len()
        );
        return refuse("one parent for each token".into(), got);
    }
    if rows != 1 + draft.len() {
        let got = format!("{rows} rows of logits for {} tokens", draft.len());
        return refuse("one row more than tokens".into(), got);
    }
    for (node, (&token, &parent)) in draft.tokens.iter().zip(&draft.parents).enumerate() {
        if let Some(parent) = parent.filter(|&parent| parent >= node) {
            let got = format!("node {node} with parent {parent}");
            return refuse("parents before their children".into(), got);
        }
        if token as usize >= vocab {
            return refuse(
                format!("tokens below {vocab}"),
                format!("{token} at node {node}"),
            );
        }
    }
    Ok(())
}

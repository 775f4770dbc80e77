//! Which nodes of a draft the target accepts, and its own token after them.
use serde::{Deserialize, Serialize};
use spectrain_models::Sampling;

mod block;
mod chance;
mod distributions;
mod greedy;
mod rejection;
pub(crate) mod rows;
mod typical;
mod verifier;

pub use block::Block;
pub use greedy::Greedy;
pub use rejection::Rejection;
pub use typical::TypicalLossy;
pub use verifier::{Verdict, Verifier};

#[cfg(test)]
mod exact;
#[cfg(test)]
mod tests;

/// Which verifier decides, as recipes name it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerifierChoice {
    /// `greedy` at temperature 0, `rejection` above.
    #[default]
    Exact,
    /// [`Greedy`] at every temperature.
    Greedy,
    /// [`Rejection`] at every temperature.
    Rejection,
    /// [`Greedy`] at temperature 0, [`Block`] above.
    Block,
    /// [`Greedy`] at temperature 0, [`TypicalLossy`] above.
    TypicalLossy,
}

impl VerifierChoice {
    /// The verifier for `sampling`.
    pub fn at(self, sampling: &Sampling) -> &'static dyn Verifier {
        match self {
            Self::Greedy => &Greedy,
            Self::Rejection => &Rejection,
            _ if sampling.is_greedy() => &Greedy,
            Self::Exact => &Rejection,
            Self::Block => &Block,
            Self::TypicalLossy => &TypicalLossy,
        }
    }
}

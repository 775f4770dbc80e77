//! What to deploy: the speed-up that each draft would have, from what passes cost and how many tokens they give.
//!
//! A pass of a batch drafts for every sequence and judges all drafts; without a drafter it reads one token of each. With τ the
//! tokens that a sequence gets from a pass, the speed-up is `τ · t₀ / t`, where `t₀` are the seconds of a pass without drafts
//! and `t` those of the drafts, the pass that judges them and everything else. Both are measured, on the texts that were
//! decoded, for some lengths of a draft; between these the cost of a chain is taken to lie on a line.
//!
//! τ of a draft that was decoded is what its outputs say. Of shorter chains it is what the drafter makes of the outputs of the longest,
//! without decoding (`estimate.rs`); where that cannot be said it is a lower estimate, by the first steps of the longest.
mod candidates;
pub(crate) mod measure;
mod price;
pub(crate) mod report;
pub(crate) mod servers;

//! How much training computes.

use spectrain_models::TargetSpec;
use spectrain_train::Workload;

use crate::families::footprint::{Activations, Footprint, Packed};
use crate::runtime::sizes::body_parameters;

/// What a training step computes with.
pub(super) struct Computed<'a> {
    /// The target.
    pub(super) target: &'a TargetSpec,
    /// The drafter.
    pub(super) footprint: Footprint,
    /// What a step runs.
    pub(super) activations: Activations,
    /// How.
    pub(super) work: Workload,
    /// A batch.
    pub(super) batch: Packed,
    /// Whether the target runs in every step.
    pub(super) live: bool,
}

impl Computed<'_> {
    /// FLOPs of a step for each position: a forward pass costs 2 for each parameter, a backward pass 4.
    pub(super) fn per_token(&self) -> f64 {
        let (spec, footprint, work) = (self.target, &self.footprint, &self.work);
        // Scores and weighted values over half a row of keys, on average.
        let attention = 2.0 * self.batch.length as f64 * (spec.heads * spec.d_head) as f64;
        // Those of the drafter, which may have other heads, more keys, or no attention at all.
        let own_attention = 2.0 * self.activations.all_scores * self.activations.d_head as f64;
        let target = if self.live {
            2.0 * body_parameters(spec) as f64 + spec.layers as f64 * attention
        } else {
            0.0
        };
        // The target's distribution at every position: once for a drafter whose steps share its head, and once for each of
        // several heads.
        let read = match self.activations.read {
            0 => spec.d_model as u64,
            width => width,
        };
        let heads = footprint.head / (footprint.draft_vocab * read).max(1);
        let teacher = 2.0 * (spec.vocab * spec.d_model) as f64 * heads.max(1) as f64;
        // A drafter may have several heads.
        let own = footprint.draft_vocab * read;
        let head = footprint.head.max(own) as f64;
        // A frozen head still passes gradients on.
        let head = if footprint.head > 0 {
            6.0 * head
        } else {
            4.0 * head
        };
        let body = (footprint.parameters - footprint.head - footprint.idle) as f64;
        // Frozen weights take no gradient of their own.
        let frozen = footprint.frozen as f64 * 4.0 / 6.0;
        // Passes that are computed again in the backward pass cost a second forward pass.
        let passes = if work.held < work.passes { 8.0 } else { 6.0 };
        // The backward pass computes scores once more.
        let scores = own_attention / 2.0;
        let rows = self.activations.rows / self.batch.positions().max(1) as f64;
        let judgings = 1.0 + self.activations.again;
        let layers = passes * (body + frozen + own_attention / 2.0) + scores;
        let further = passes * self.activations.further / self.batch.positions().max(1) as f64;
        target + judgings * teacher + rows * (layers + judgings * head) + further
    }
}

#[cfg(test)]
mod tests {
    use spectrain_models::{RopeConfig, RopeScaling};
    use spectrain_train::Judges;

    use super::*;

    fn spec() -> TargetSpec {
        TargetSpec {
            layers: 2,
            d_model: 16,
            d_ff: 32,
            heads: 4,
            kv_heads: 2,
            d_head: 8,
            vocab: 100,
            norm_epsilon: 1e-6,
            rope: RopeConfig {
                theta: 10_000.0,
                scaling: RopeScaling::Default,
            },
            max_positions: 64,
            routing: None,
        }
    }

    /// FLOPs of a position of rows of 10.
    fn of(activations: Activations) -> f64 {
        let batch = Packed {
            rows: 1,
            length: 10,
        };
        let footprint = Footprint {
            parameters: 1000,
            head: 0,
            matrices: 0,
            frozen: 0,
            idle: 0,
            draft_vocab: 100,
            captured: 1,
        };
        let computed = Computed {
            target: &spec(),
            footprint,
            activations,
            work: Workload::texts(Judges::Target { panels: 1 }),
            batch,
            live: false,
        };
        computed.per_token()
    }

    /// The same where queries have so many scores, of heads that are 6 wide.
    fn with_scores(all_scores: f64) -> f64 {
        of(Activations {
            all_scores,
            d_head: 6,
            rows: 10.0,
            ..Activations::default()
        })
    }

    #[test]
    fn each_further_judging_takes_the_head_and_the_targets_distribution_once_more() {
        let with = |again: f64| {
            of(Activations {
                rows: 10.0,
                again,
                ..Activations::default()
            })
        };
        // The target's own head forward for the distribution; forward and back to what is read of it for the drafter.
        let judging = (2.0 + 4.0) * (100.0 * 16.0);
        let found = with(2.0) - with(0.0);
        assert!((found - 2.0 * judging).abs() < 1e-6, "{found}");
    }

    #[test]
    fn a_drafter_attends_with_its_own_heads() {
        // Of 6 heads and 10 keys, half of which are seen: scores and weighted values cost 2 FLOPs each for each of the 6 numbers
        // of a head, forward once, backward twice, and the scores alone once more.
        let forward = 2.0 * 2.0 * 6.0 * 60.0 / 2.0;
        let found = with_scores(60.0) - with_scores(0.0);
        assert!((found - 3.5 * forward).abs() < 1e-6, "{found}");
    }
}

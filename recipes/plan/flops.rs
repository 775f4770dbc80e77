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
        let d_attention = (spec.heads * spec.d_head) as f64;
        // Scores and weighted values over half a row of keys, on average.
        let attention = 2.0 * self.batch.length as f64 * d_attention;
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
        let scores = attention / 2.0;
        let rows = self.activations.rows / self.batch.positions().max(1) as f64;
        target + teacher + rows * (passes * (body + frozen + attention / 2.0) + scores + head)
    }
}

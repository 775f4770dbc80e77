//! How much memory training takes at its peak.
//!
//! Counted are what stays (the target, the drafter with gradients and what the optimiser keeps of them, the batches made ahead),
//! and what comes on top in turn: a training step, a validation, and the copy of weights and moments that a saved state is
//! written from. Where rows are full and every position is trained on, it is right within a fifth on the CPU; prompts and padding make
//! it less. What is drawn for each step counts as much as some step of a training comes to. Not counted is what the judging of rows makes
//! of a head in f32 where bf16 is computed with.

use spectrain_models::products::{Precision, rounds_products};
use spectrain_models::{AtATime, Routing, TargetSpec};
use spectrain_train::{
    CHUNK_ELEMENTS, CHUNK_ELEMENTS_CPU, Judges, Kind, TrainConfig, Workload, casts_once,
};

use crate::families::footprint::{Activations, Footprint, Packed};

/// Bytes of weights in training, gradients and moments.
const F32: u64 = 4;
/// The same of logits that the CPU rounds.
const BF16: u64 = 2;
/// Batches that are there at a time: one in training, one waiting, one in the making.
const BATCHES: u64 = 3;

/// What is trained, on what.
pub(super) struct Trained<'a> {
    /// The target.
    pub(super) target: &'a TargetSpec,
    /// The drafter.
    pub(super) footprint: Footprint,
    /// How it is trained.
    pub(super) training: &'a TrainConfig,
    /// What a step keeps.
    pub(super) activations: Activations,
    /// What a step does.
    pub(super) work: Workload,
    /// A batch.
    pub(super) batch: Packed,
    /// Bytes of a value that is computed with.
    pub(super) value: u64,
    /// How the CPU takes products.
    pub(super) precision: Precision,
    /// Whether the target computes the features of the next batch meanwhile.
    pub(super) live: bool,
    /// Whether it is on a GPU.
    pub(super) gpu: bool,
    /// How many processes train together.
    pub(super) ranks: u64,
}

/// Bytes, by what they are for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// Weights with what a pass casts of them, gradients and moments.
    pub(super) drafter: u64,
    /// Of these, what a pass casts.
    pub(super) casts: u64,
    /// Of these, weights that are not trained.
    pub(super) frozen: u64,
    /// Batches with their features, and the making of them.
    pub(super) batches: u64,
    /// What the backward pass needs.
    pub(super) activations: u64,
    /// Logits and what is made of them.
    pub(super) loss: u64,
    /// The copy that a saved state is written from.
    pub(super) saving: u64,
    /// Drafter, batches, and the largest of what comes and goes.
    pub(super) peak: u64,
}

impl Memory {
    pub(super) fn of(trained: &Trained) -> Self {
        let Footprint {
            parameters, frozen, ..
        } = trained.footprint;
        let moments = trained.moments();
        let frozen = trained.frozen_value() * frozen;
        let stays = F32 * (parameters + moments) + frozen;
        let gradients = F32 * parameters;
        let casts = trained.casts();
        let held = BATCHES * trained.features();
        let making = trained.target_pass();
        let (activations, loss) = (trained.kept(), trained.loss());
        let meanwhile = if trained.live { making } else { 0 };
        // Rows are judged before the backward pass through the layers makes their gradients; the head's is made there.
        let before = match trained.training.gradient_accumulation > 1 {
            true => gradients,
            false => F32 * trained.footprint.head,
        };
        let judging = loss.saturating_add(before);
        let returning = trained.scores().saturating_add(gradients);
        let step = [casts, activations, judging.max(returning), meanwhile];
        let step = step.into_iter().fold(0, u64::saturating_add);
        let validation = making.max(casts.saturating_add(loss));
        // What stays, once more.
        let saving = stays;
        Self {
            drafter: stays + casts + gradients,
            casts,
            frozen,
            batches: held + meanwhile,
            activations,
            loss,
            saving,
            peak: (stays + held).saturating_add(step.max(validation).max(saving)),
        }
    }
}

impl Trained<'_> {
    /// Values that the optimiser keeps here: the mean of the weights that all ranks have, and its share of the rest, which goes by whole
    /// parameters, of which the head is the largest.
    fn moments(&self) -> u64 {
        let footprint = &self.footprint;
        let optimizer = self.training.optimizer();
        let all = footprint.kept_by(&optimizer);
        let mean = match optimizer.average > 0.0 {
            true => footprint.parameters,
            false => 0,
        };
        let head = optimizer.kept(Kind::Table) * footprint.head;
        let share = (all - mean).div_ceil(self.ranks);
        all.min(mean + share.max(head))
    }

    /// Bytes of a frozen weight: a GPU holds one in the type that it computes in, as long as the file does.
    fn frozen_value(&self) -> u64 {
        if self.gpu { self.value } else { F32 }
    }

    /// Bytes of the copies that a pass on a GPU takes of trained weights in the type that it computes in, where it takes any.
    fn casts(&self) -> u64 {
        let Footprint {
            parameters,
            head,
            frozen,
            ..
        } = self.footprint;
        match self.gpu && self.value < F32 && casts_once(parameters, frozen) {
            true => self.value * (parameters - head),
            false => 0,
        }
    }

    /// Bytes of a batch: the captured layers, the last hidden state, and tokens, documents and positions.
    fn features(&self) -> u64 {
        let values = (self.footprint.captured + 1) * self.target.d_model as u64;
        self.batch.positions() * (values * self.value + 3 * 8)
    }

    /// Bytes of what the backward pass through a layer has on top: the weights of a block of queries, their gradients, and those of
    /// its scores, and in f32 the gradients of all keys and values that those rows have; what the layer kept of its feed-forward part is
    /// given back by then.
    fn scores(&self) -> u64 {
        let activations = &self.activations;
        let [rows, queries] = self.at_a_time().map(|count| count as f64);
        let scores = activations.scores * activations.queries.min(queries) * rows;
        let values = 3.0 * scores + activations.keys_values * rows;
        (F32 as f64 * values - self.value as f64 * activations.given_back) as u64
    }

    /// Rows of a batch whose queries are taken together, and queries of each.
    fn at_a_time(&self) -> [u64; 2] {
        let some = if self.gpu { AtATime::GPU } else { AtATime::CPU };
        let rows = self.batch.rows.min(some.sequences as u64);
        [rows, some.queries as u64]
    }

    /// Bytes of what the target makes on its way over a batch.
    fn target_pass(&self) -> u64 {
        let spec = self.target;
        let (heads, length) = (spec.heads as u64, self.batch.length);
        let queries = heads * spec.d_head as u64;
        let attention = 2 * queries;
        // What goes through experts stands there once for each of a token's, sorted, computed and put back.
        let routed = |routing: &Routing| 3 * (routing.experts.per_token * spec.d_model) as u64;
        let routed = spec.routing.as_ref().map_or(0, routed);
        let feed_forward = routed.max(2 * spec.d_ff as u64);
        let stream = (1 + self.footprint.captured) * spec.d_model as u64;
        let [rows, queries] = self.at_a_time();
        let scores = rows * heads * length.min(queries) * length;
        let values = self.batch.positions() * (attention.max(feed_forward) + stream);
        // Scores are in f32, the weights made of them beside them.
        self.value * values + (F32 + self.value) * scores
    }

    /// Bytes that a step keeps for its backward pass.
    fn kept(&self) -> u64 {
        // What is more than a number of bytes can say is as good as the largest one.
        (self.value as f64 * (self.activations.kept + self.activations.carried)) as u64
    }

    /// Bytes of the largest chunk of logits with what is made of it, beside the hidden states that all are made from and the gradients found
    /// so far; or, once there are no logits, of those hidden states and what puts the gradients in their places, if that is more.
    fn loss(&self) -> u64 {
        let (vocab, d_model) = (
            self.footprint.draft_vocab.max(1),
            self.target.d_model as u64,
        );
        let rows = (self.activations.judged as u64).max(1);
        let most = if self.gpu {
            CHUNK_ELEMENTS
        } else {
            CHUNK_ELEMENTS_CPU
        };
        let at_a_time = (most as u64 / vocab).max(16);
        let rounds = self.rounds_logits(at_a_time);
        let chunk = rows.min(if rounds { 2 * at_a_time } else { at_a_time });
        // Rows judged by the same position stand together.
        let positions = self.batch.positions() * chunk / rows;
        let logit = if rounds { BF16 } else { F32 };
        let judging = self.judging(chunk, positions.min(chunk), logit);
        let selecting = self.selecting(self.batch.positions().min(rows).min(at_a_time / 2));
        let of_logits = judging.max(selecting) * vocab;
        let read = match self.activations.read {
            0 => d_model,
            width => width,
        };
        let of_states = self.value * rows * read;
        // On the CPU those of the chunk stand there by themselves for the products with its gradient.
        let of_chunk = if self.gpu { 0 } else { F32 * chunk * read };
        (of_logits + of_chunk + 2 * of_states).max(4 * of_states)
    }

    /// Whether the CPU holds chunks of logits, of so many rows in f32, in bf16.
    fn rounds_logits(&self, rows: u64) -> bool {
        let _precision = self.precision.scope();
        let sizes = [rows, self.target.d_model as u64, self.footprint.draft_vocab];
        !self.gpu && rounds_products(sizes.map(|size| size as usize))
    }

    /// Bytes for a token of the vocabulary while a chunk of so many rows, at so many positions, is judged, with a logit of the CPU's in so
    /// many bytes.
    fn judging(&self, rows: u64, positions: u64, logit: u64) -> u64 {
        let made = self.made();
        // The logits, which become their gradient. On a GPU they stay in the type that they are made in, unless a bias is added to them; then
        // the gradient is there once more for the products with it, narrower.
        match self.work.judges {
            Judges::Text if self.gpu => made.max(2 * self.value) * rows,
            Judges::Text => logit * rows,
            Judges::Target { .. } if self.gpu => self.value * rows + made * positions,
            Judges::Target { panels } => logit * rows + panels * F32 * positions,
        }
    }

    /// The same while a selector's choices are measured by the target's distributions of so many positions, once the drafter's logits
    /// are gone: what these are made from stands beside them.
    fn selecting(&self, positions: u64) -> u64 {
        match self.work.judges {
            Judges::Target { .. } if self.activations.selects => {
                (self.made() + 2 * F32) * positions
            }
            _ => 0,
        }
    }

    /// Bytes of a logit as a product gives it, with the same in f32 beside it.
    fn made(&self) -> u64 {
        if self.value < F32 {
            self.value + F32
        } else {
            F32
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::sizes::sizes_of;

    /// A training on the CPU in f32 that keeps nothing.
    fn trained<'a>(
        target: &'a TargetSpec,
        training: &'a TrainConfig,
        batch: Packed,
    ) -> Trained<'a> {
        let footprint = Footprint {
            parameters: 0,
            head: 0,
            matrices: 0,
            frozen: 0,
            idle: 0,
            draft_vocab: 1,
            captured: 0,
        };
        Trained {
            target,
            footprint,
            training,
            activations: Activations::default(),
            work: Workload::texts(Judges::Text),
            batch,
            value: F32,
            precision: Precision::F32,
            live: false,
            gpu: false,
            ranks: 1,
        }
    }

    #[test]
    fn gradients_of_keys_and_values_count_for_the_rows_that_are_taken_together() {
        let spec = sizes_of("Qwen/Qwen3-0.6B", None).unwrap().spec;
        let config = TrainConfig::default();
        let batch = Packed {
            rows: 3,
            length: 64,
        };
        for (gpu, rows) in [(false, 1), (true, 3)] {
            let activations = Activations {
                scores: 10.0,
                queries: 64.0,
                keys_values: 1000.0,
                given_back: 7.0,
                ..Activations::default()
            };
            let of_step = Trained {
                activations,
                value: 2,
                gpu,
                ..trained(&spec, &config, batch)
            };
            let expected = 4 * rows * (3 * 10 * 64 + 1000) - 2 * 7;
            assert_eq!(of_step.scores(), expected);
        }
    }

    #[test]
    fn a_gpu_casts_weights_but_for_the_head_once_in_a_pass() {
        let spec = sizes_of("Qwen/Qwen3-0.6B", None).unwrap().spec;
        let config = TrainConfig::default();
        let batch = Packed {
            rows: 1,
            length: 64,
        };
        let plain = trained(&spec, &config, batch);
        let footprint = Footprint {
            parameters: 1000,
            head: 300,
            ..plain.footprint
        };
        let peak = |value, gpu, frozen| {
            let of = Trained {
                footprint: Footprint {
                    frozen,
                    ..footprint
                },
                value,
                gpu,
                ..trained(&spec, &config, batch)
            };
            (of.casts(), Memory::of(&of).drafter)
        };
        let (none, stays) = peak(F32, true, 50);
        assert_eq!((none, peak(2, false, 50)), (0, (0, stays)));
        // Those that are frozen are held in two bytes there.
        assert_eq!(peak(2, true, 50), (1400, stays - 100 + 1400));
        // As those that low-rank matrices are trained beside.
        assert_eq!(peak(2, true, 1001).0, 0);
    }

    #[test]
    fn scores_of_the_target_take_four_bytes_and_their_weights_those_of_the_type() {
        let spec = sizes_of("Qwen/Qwen3-0.6B", None).unwrap().spec;
        let config = TrainConfig::default();
        // No row is longer than the queries that are taken at a time.
        let pass = |value, length| {
            let of_target = Trained {
                value,
                gpu: true,
                ..trained(&spec, &config, Packed { rows: 1, length })
            };
            of_target.target_pass()
        };
        for (value, of_score) in [(2, 6), (4, 8)] {
            // All else grows with the length alone.
            let squares = pass(value, 200) - 2 * pass(value, 100);
            assert_eq!(squares, of_score * spec.heads as u64 * 2 * 100 * 100);
        }
    }
}

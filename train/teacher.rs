//! The target's side of the vocabulary loss: its distributions, made from hidden states where they are wanted.
use burn::prelude::*;
use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, IndexingUpdateOp};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::reductions::{likeliest, log_partition};
use spectrain_models::{SoftCap, TargetParts, product, weights::host_f32};

use crate::arithmetic::teacher_panel::TeacherPanel;
use crate::device::chunk_rows;
use crate::divergence::TeacherRows;
use crate::divergence::kernel::Kernel;
use crate::row::{JudgedRow, distinct};

/// The target's distribution at each position of a batch, kept as hidden states.
pub struct Teacher {
    /// `[positions, d_model]`, after the target's final norm.
    last: Tensor<2>,
    /// `[d_model, vocab]`
    head: Tensor<2>,
    soft_cap: SoftCap,
    temperature: f64,
    /// `[d_model, draft_vocab]`, and the target's id of each column, where the vocabularies differ.
    draft: Option<(Tensor<2>, DraftVocabulary)>,
    /// Where the vocabularies differ: log of the partition function over the target's vocabulary, `[positions, 1]`.
    log_partition: Option<Tensor<2>>,
    /// Where the vocabularies differ: whether the most likely token of a position cannot be proposed.
    out_of_vocab: Vec<bool>,
}

impl Teacher {
    /// The target's distributions at `last`, judged over `vocabulary`.
    ///
    /// # Shapes
    /// - last: `[batch, seq, d_model]`, not in a graph
    pub fn new(last: Tensor<3>, target: &TargetParts, vocabulary: &DraftVocabulary) -> Self {
        let [batch, seq, d_model] = last.dims();
        Self {
            last: last.reshape([batch * seq, d_model]),
            head: target.lm_head.weight.val(),
            soft_cap: target.soft_cap,
            temperature: 1.0,
            draft: (!vocabulary.is_full())
                .then(|| (target.head_rows(vocabulary), vocabulary.clone())),
            log_partition: None,
            out_of_vocab: Vec::new(),
        }
    }

    /// The distributions at this temperature, by which logits are divided once they are bounded.
    pub(crate) fn at(self, temperature: f64) -> Self {
        Self {
            temperature,
            ..self
        }
    }

    /// The distributions of a made-up head at made-up states, judged over `vocabulary`.
    ///
    /// # Shapes
    /// - last: `[positions, d_model]`
    /// - head: `[d_model, vocab]`
    #[cfg(test)]
    pub(crate) fn made_up(last: Tensor<2>, head: Tensor<2>, vocabulary: &DraftVocabulary) -> Self {
        let ids: Vec<usize> = (0..vocabulary.len())
            .map(|id| vocabulary.to_target(id as u32) as usize)
            .collect();
        let columns = head.clone().select(1, indices(&ids, &head.device()));
        Self {
            last,
            head,
            soft_cap: SoftCap::default(),
            temperature: 1.0,
            draft: (!vocabulary.is_full()).then(|| (columns, vocabulary.clone())),
            log_partition: None,
            out_of_vocab: Vec::new(),
        }
    }

    /// Whether a drafter can propose the target's most likely token at a position. True for all where the vocabularies
    /// are the same, and before [`Self::find_proposable`].
    pub fn can_be_met(&self, position: usize) -> bool {
        !self.out_of_vocab.get(position).is_some_and(|&out| out)
    }

    /// Finds out at which of `positions`, in any order, the target's most likely token can be proposed at all. Remembers the partition function on the
    /// way, so it must run before the loss when the vocabularies differ.
    pub fn find_proposable(&mut self, positions: impl Iterator<Item = usize>) {
        let Some((_, vocabulary)) = &self.draft else {
            return;
        };
        let mut positions: Vec<usize> = positions.collect();
        positions.sort_unstable();
        positions.dedup();
        if positions.is_empty() {
            return;
        }
        let vocab = self.head.dims()[1];
        let device = self.last.device();
        let all = self.last.dims()[0];
        let mut best = Vec::with_capacity(positions.len());
        let mut partitions = Vec::new();
        for chunk in positions.chunks(chunk_rows(vocab, &device)) {
            let logits = self.logits_as_made(&self.head, chunk);
            partitions.push(log_partition(logits.clone()));
            best.push(likeliest(logits));
        }
        let zeros = Tensor::<2>::zeros([all, 1], (&device, DType::F32));
        self.log_partition = Some(zeros.select_assign(
            0,
            indices(&positions, &device),
            Tensor::cat(partitions, 0),
            IndexingUpdateOp::Add,
        ));
        let best = Tensor::cat(best, 0).into_data();
        self.out_of_vocab = vec![false; all];
        for (&position, token) in positions.iter().zip(best.iter::<i64>()) {
            self.out_of_vocab[position] = vocabulary.to_draft(token as u32).is_none();
        }
    }

    /// Log-probability over the target's whole vocabulary of one of `tokens` at each of `positions`, on the host.
    pub(crate) fn log_probabilities(&self, positions: &[usize], tokens: &[u32]) -> Vec<f32> {
        let device = self.last.device();
        let chunk = chunk_rows(self.head.dims()[1], &device);
        let mut found = Vec::with_capacity(positions.len());
        for (positions, tokens) in positions.chunks(chunk).zip(tokens.chunks(chunk)) {
            let logits = self.logits(&self.head, positions);
            let tokens: Vec<usize> = tokens.iter().map(|&token| token as usize).collect();
            let tokens: Tensor<2, Int> = indices(&tokens, &device).unsqueeze_dim(1);
            let of_token = logits.clone().gather(1, tokens) - log_partition(logits.clone());
            found.extend(host_f32(of_token));
        }
        found
    }

    /// Log-probabilities over the drafter's vocabulary at `positions`.
    pub(crate) fn rows(&self, positions: &[usize]) -> TeacherRows {
        let Some((head, _)) = &self.draft else {
            return TeacherRows {
                log_p: log_softmax(self.logits(&self.head, positions), 1),
                covered: None,
            };
        };
        let logits = self.logits(head, positions);
        let partition = log_partition(logits.clone());
        let covered = self.log_partition.clone().map(|all| {
            let all = all.select(0, indices(positions, &self.last.device()));
            (partition.clone() - all).exp()
        });
        TeacherRows {
            log_p: logits - partition,
            covered,
        }
    }

    /// Log-probabilities over the drafter's vocabulary at the position of each of `rows`.
    pub(crate) fn rows_of(&self, rows: &[JudgedRow]) -> TeacherRows {
        let (distinct, of) = distinct(rows);
        let judged = self.rows(&distinct);
        if distinct.len() == rows.len() {
            return judged;
        }
        let of = indices(&of, &judged.log_p.device());
        TeacherRows {
            log_p: judged.log_p.select(0, of.clone()),
            covered: judged.covered.map(|covered| covered.select(0, of)),
        }
    }

    /// Logits of the drafter's tokens at `positions`, `[positions, vocab]`, f32; and, where these are not all of the target's tokens,
    /// `log Σ exp` of all, `[positions, 1]`.
    #[cfg(feature = "cube")]
    pub(crate) fn logits_at(&self, positions: &[usize]) -> (Tensor<2>, Option<Tensor<2>>) {
        let head = self.draft.as_ref().map_or(&self.head, |(head, _)| head);
        let all = self.log_partition.as_ref().map(|all| {
            let here = indices(positions, &self.last.device());
            all.clone().select(0, here)
        });
        (self.logits(head, positions), all)
    }

    /// What `kernel` needs of the distributions over the drafter's vocabulary at `positions`, on the host.
    pub(crate) fn panel(&self, positions: &[usize], kernel: Kernel) -> TeacherPanel {
        let Some((head, _)) = &self.draft else {
            let logits = self.logits(&self.head, positions);
            return TeacherPanel::new(host_f32(logits), self.head.dims()[1], kernel);
        };
        let logits = self.logits(head, positions);
        let partition = log_partition(logits.clone());
        let mut panel = TeacherPanel::new(host_f32(logits), head.dims()[1], kernel);
        if let Some(all) = &self.log_partition {
            let all = all
                .clone()
                .select(0, indices(positions, &self.last.device()));
            panel.cover(&host_f32((partition - all).exp()));
        }
        panel
    }

    fn logits(&self, head: &Tensor<2>, positions: &[usize]) -> Tensor<2> {
        self.logits_as_made(head, positions).cast(DType::F32)
    }

    /// The same in the type that the head multiplies in, where nothing is done to them behind it.
    fn logits_as_made(&self, head: &Tensor<2>, positions: &[usize]) -> Tensor<2> {
        let here = indices(positions, &self.last.device());
        let hidden = self.last.clone().select(0, here);
        let head = head.clone().cast(hidden.dtype());
        let logits = product(hidden, head);
        if self.soft_cap.0.is_none() && self.temperature == 1.0 {
            return logits;
        }
        self.soft_cap.of(logits.cast(DType::F32)) / self.temperature
    }
}

/// Row numbers as a tensor.
pub(crate) fn indices(places: &[usize], device: &Device) -> Tensor<1, Int> {
    let places: Vec<i64> = places.iter().map(|&place| place as i64).collect();
    Tensor::from_ints(places.as_slice(), device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use spectrain_models::device::test_device;

    #[test]
    fn bounded_logits_make_the_distribution_and_keep_the_best() {
        let device = test_device();
        let states = Tensor::<2>::from_data([[1.0, -2.0], [0.5, 3.0]], &device);
        let head = Tensor::<2>::from_data([[3.0, -1.0, 0.5], [0.25, 2.0, -4.0]], &device);
        let mut teacher = Teacher::made_up(states.clone(), head.clone(), &DraftVocabulary::full(3));
        teacher.soft_cap = SoftCap(Some(2.0));
        let plain = host_f32(states.matmul(head));
        for temperature in [1.0, 0.5, 3.0] {
            teacher = teacher.at(temperature);
            let found = host_f32(teacher.rows(&[0, 1]).log_p);
            for (found, plain) in found.chunks(3).zip(plain.chunks(3)) {
                let bounded = |logit: &f32| 2.0 * (f64::from(*logit) / 2.0).tanh() / temperature;
                let bounded = plain.iter().map(bounded);
                let partition = bounded.clone().map(f64::exp).sum::<f64>().ln();
                for (found, logit) in found.iter().zip(bounded) {
                    assert!(
                        (f64::from(*found) - (logit - partition)).abs() < 1e-5,
                        "{temperature}: {found} {logit}"
                    );
                }
            }
        }
    }
}

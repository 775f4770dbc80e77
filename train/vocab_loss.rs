//! The vocabulary loss: the drafter's head, the target's head and a divergence between them, in chunks of positions, so
//! that no `[batch, seq, vocab]` tensor exists.
//!
//! It runs outside the graph. While a chunk's logits are alive, it forms the gradient with respect to the hidden states
//! and the head; what it gives to the graph is the surrogate `Σ hidden · g_hidden + Σ head · g_head` with constant `g`,
//! whose backward pass delivers exactly those gradients.
use burn::prelude::*;
use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, IndexingUpdateOp};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::{
    TargetParts,
    eagle3::head_rows,
    weights::{host_f32, lift},
};

use crate::Divergence;
use crate::divergence::{Judged, TeacherRows, overlap};

/// Logits alive at a time on the CPU, where they should stay near the caches.
const CHUNK_ELEMENTS_CPU: usize = 1 << 22;
/// And on other devices, where a kernel wants more work.
const CHUNK_ELEMENTS: usize = 1 << 26;

/// One position to be judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// Which of the hidden states: the draft step, or the head.
    pub step: usize,
    /// Row of that step's hidden states.
    pub position: usize,
    /// Row of the target's last hidden states, or of the labels, that judges it.
    pub teacher: usize,
    /// Factor on its loss.
    pub weight: f32,
}

/// What judges.
pub enum Judge<'a> {
    /// The target's distribution.
    Target {
        /// Where it comes from.
        teacher: &'a Teacher,
        /// The distance to it.
        divergence: Divergence,
    },
    /// Cross-entropy with these tokens of the head's vocabulary, indexed by [`Row::teacher`].
    Labels(&'a [u32]),
}

/// The target's distribution at each position of a batch, kept as hidden states.
pub struct Teacher {
    /// `[positions, d_model]`, after the target's final norm.
    last: Tensor<2>,
    /// `[d_model, vocab]`
    head: Tensor<2>,
    /// `[d_model, draft_vocab]`, and the target's id of each column, where the vocabularies differ.
    draft: Option<(Tensor<2>, DraftVocabulary)>,
    /// Where the vocabularies differ: log of the partition function over the target's vocabulary, `[positions, 1]`.
    log_partition: Option<Tensor<2>>,
}

/// Whether accuracy and acceptance rate are wanted beside the loss; they cost two more passes over the logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statistics {
    /// Only the loss.
    Loss,
    /// All.
    All,
}

/// A loss whose gradients are known.
pub struct VocabLoss {
    /// `[1]`: its backward pass delivers the gradients; its value means nothing.
    pub surrogate: Tensor<1>,
    /// The rows, in the order of `values`.
    pub rows: Vec<Row>,
    /// `[rows, 1]`: distance at each row, without its weight.
    pub values: Tensor<2>,
    /// `[rows, 2]`: acceptance rate, and 1 where the drafter's most likely token is the target's; when wanted.
    pub statistics: Option<Tensor<2>>,
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
            draft: (!vocabulary.is_full())
                .then(|| (head_rows(target, vocabulary), vocabulary.clone())),
            log_partition: None,
        }
    }

    /// Whether the target's most likely token at each of `positions` can be proposed at all. Remembers the partition
    /// function on the way, so it must run before the loss when the vocabularies differ.
    pub fn proposable(&mut self, positions: &[usize]) -> Vec<bool> {
        let Some((_, vocabulary)) = &self.draft else {
            return vec![true; positions.len()];
        };
        let vocab = self.head.dims()[1];
        let device = self.last.device();
        let all = self.last.dims()[0];
        let mut best = Vec::with_capacity(positions.len());
        let mut partitions = Vec::new();
        for chunk in positions.chunks(chunk_rows(vocab, &device)) {
            let logits = self.logits(&self.head, chunk);
            let largest = logits.clone().max_dim(1);
            let sum = (logits.clone() - largest.clone()).exp().sum_dim(1);
            partitions.push(sum.log() + largest);
            best.push(logits.argmax(1));
        }
        if positions.is_empty() {
            return Vec::new();
        }
        let zeros = Tensor::<2>::zeros([all, 1], (&device, DType::F32));
        self.log_partition = Some(zeros.select_assign(
            0,
            indices(positions, &device),
            Tensor::cat(partitions, 0),
            IndexingUpdateOp::Add,
        ));
        let best = Tensor::cat(best, 0).into_data();
        best.iter::<i64>()
            .map(|token| vocabulary.to_draft(token as u32).is_some())
            .collect()
    }

    /// Log-probabilities over the drafter's vocabulary at `positions`.
    fn rows(&self, positions: &[usize]) -> TeacherRows {
        let Some((head, _)) = &self.draft else {
            return TeacherRows {
                log_p: log_softmax(self.logits(&self.head, positions), 1),
                covered: None,
            };
        };
        let logits = self.logits(head, positions);
        let largest = logits.clone().max_dim(1);
        let partition = (logits.clone() - largest.clone()).exp().sum_dim(1).log() + largest;
        let covered = self.log_partition.clone().map(|all| {
            let all = all.select(0, indices(positions, &self.last.device()));
            (partition.clone() - all).exp()
        });
        TeacherRows {
            log_p: logits - partition,
            covered,
        }
    }

    fn logits(&self, head: &Tensor<2>, positions: &[usize]) -> Tensor<2> {
        let hidden = self
            .last
            .clone()
            .select(0, indices(positions, &self.last.device()));
        let head = head.clone().cast(hidden.dtype());
        hidden.matmul(head).cast(DType::F32)
    }
}

/// The loss `Σ weight · divergence` over `rows`, and its gradients.
///
/// # Shapes
/// - hidden: one `[positions, d_model]` per step, after the drafter's final norm
/// - head: `[d_model, vocab]`; it receives a gradient when it is tracked
pub fn vocab_loss(
    hidden: &[Tensor<2>],
    head: Tensor<2>,
    mut rows: Vec<Row>,
    judge: Judge,
    statistics: Statistics,
) -> VocabLoss {
    // Rows judged by the same position stand together, so that each chunk computes the target's side once.
    rows.sort_by_key(|row| (row.teacher, row.step));
    let [positions, d_model] = hidden[0].dims();
    let plain_head = head.clone().without_autodiff();
    let states: Vec<_> = hidden
        .iter()
        .map(|h| h.clone().without_autodiff())
        .collect();
    let states = Tensor::cat(states, 0); // [steps * positions, d_model]
    let device = states.device();
    let place = |row: &Row| row.step * positions + row.position;

    let vocab = plain_head.dims()[1];
    let mut chunks = Chunks {
        head: plain_head.cast(states.dtype()),
        head_gradient: head
            .is_tracked()
            .then(|| Tensor::zeros([d_model, vocab], (&device, DType::F32))),
        tracked: hidden.iter().any(|h| h.is_tracked()),
        judge,
        statistics,
    };
    let (mut gradients, mut values, mut measured) = (Vec::new(), Vec::new(), Vec::new());
    for chunk in rows.chunks(chunk_rows(vocab, &device)) {
        let places: Vec<usize> = chunk.iter().map(place).collect();
        let done = chunks.run(states.clone().select(0, indices(&places, &device)), chunk);
        gradients.extend(done.gradient);
        values.push(done.values);
        measured.extend(done.statistics);
    }

    let mut surrogate = Tensor::<1>::zeros([1], (&hidden[0].device(), DType::F32));
    if !gradients.is_empty() {
        let places: Vec<usize> = rows.iter().map(place).collect();
        let gradient = states.zeros_like().select_assign(
            0,
            indices(&places, &device),
            Tensor::cat(gradients, 0),
            IndexingUpdateOp::Add,
        );
        for (step, hidden) in hidden.iter().enumerate() {
            let gradient = gradient.clone().narrow(0, step * positions, positions);
            surrogate = surrogate + dot(hidden.clone(), gradient);
        }
    }
    if let Some(gradient) = chunks.head_gradient {
        surrogate = surrogate + dot(head, gradient);
    }
    VocabLoss {
        surrogate,
        rows,
        values: joined(values, 1, &device),
        statistics: (statistics == Statistics::All).then(|| joined(measured, 2, &device)),
    }
}

/// `Σ x · gradient`, whose gradient in `x` is `gradient`. `[1]`, f32.
fn dot(x: Tensor<2>, gradient: Tensor<2>) -> Tensor<1> {
    let gradient = lift(gradient.cast(x.dtype()), &x.device());
    (x * gradient).cast(DType::F32).sum()
}

fn joined(parts: Vec<Tensor<2>>, width: usize, device: &Device) -> Tensor<2> {
    match parts.is_empty() {
        true => Tensor::zeros([0, width], (device, DType::F32)),
        false => Tensor::cat(parts, 0),
    }
}

fn chunk_rows(vocab: usize, device: &Device) -> usize {
    let elements = match is_cpu(device) {
        true => CHUNK_ELEMENTS_CPU,
        false => CHUNK_ELEMENTS,
    };
    (elements / vocab).max(16)
}

/// Whether tensors on `device` live in the memory of the host.
pub(crate) fn is_cpu(device: &Device) -> bool {
    device.clone().without_autodiff() == Device::flex()
}

fn indices(places: &[usize], device: &Device) -> Tensor<1, Int> {
    let places: Vec<i64> = places.iter().map(|&place| place as i64).collect();
    Tensor::from_ints(places.as_slice(), device)
}

/// What all chunks share, and the gradient of the head that they add to.
struct Chunks<'a> {
    head: Tensor<2>,
    head_gradient: Option<Tensor<2>>,
    tracked: bool,
    judge: Judge<'a>,
    statistics: Statistics,
}

struct Chunk {
    gradient: Option<Tensor<2>>,
    values: Tensor<2>,
    statistics: Option<Tensor<2>>,
}

impl Chunks<'_> {
    fn run(&mut self, hidden: Tensor<2>, rows: &[Row]) -> Chunk {
        let device = hidden.device();
        let dtype = hidden.dtype();
        let logits = hidden.clone().matmul(self.head.clone()).cast(DType::F32); // [rows, vocab]
        let (judged, statistics) = match &self.judge {
            Judge::Target {
                teacher,
                divergence,
            } => {
                let teacher = teacher_of(teacher, rows);
                let measured = match self.statistics {
                    Statistics::Loss => None,
                    Statistics::All => Some(measure(&logits, &teacher)),
                };
                (divergence.judge(logits, &teacher), measured)
            }
            Judge::Labels(labels) => {
                let labels: Vec<usize> = rows.iter().map(|r| labels[r.teacher] as usize).collect();
                label_loss(logits, indices(&labels, &device), self.statistics)
            }
        };
        let weights: Vec<f32> = rows.iter().map(|row| row.weight).collect();
        let weights =
            Tensor::<1>::from_floats(weights.as_slice(), &device).reshape([rows.len(), 1]);
        let Judged { value, gradient } = judged;
        let gradient = (self.tracked || self.head_gradient.is_some())
            .then(|| (gradient * weights).cast(dtype));
        if let (Some(sum), Some(gradient)) = (self.head_gradient.take(), &gradient) {
            let more = hidden.transpose().matmul(gradient.clone()).cast(DType::F32);
            self.head_gradient = Some(sum + more);
        }
        let gradient = gradient.filter(|_| self.tracked);
        Chunk {
            gradient: gradient.map(|gradient| gradient.matmul(self.head.clone().transpose())),
            values: value,
            statistics,
        }
    }
}

/// The target's side of each of `rows`.
fn teacher_of(teacher: &Teacher, rows: &[Row]) -> TeacherRows {
    let mut distinct: Vec<usize> = rows.iter().map(|row| row.teacher).collect();
    distinct.dedup();
    let judged = teacher.rows(&distinct);
    if distinct.len() == rows.len() {
        return judged;
    }
    let mut at = 0;
    let of: Vec<usize> = rows
        .iter()
        .map(|row| {
            at += usize::from(distinct[at] != row.teacher);
            at
        })
        .collect();
    let of = indices(&of, &judged.log_p.device());
    TeacherRows {
        log_p: judged.log_p.select(0, of.clone()),
        covered: judged.covered.map(|covered| covered.select(0, of)),
    }
}

/// Acceptance rate and agreement of the most likely tokens, `[rows, 2]`.
fn measure(logits: &Tensor<2>, teacher: &TeacherRows) -> Tensor<2> {
    let q = burn::tensor::activation::softmax(logits.clone(), 1);
    let same = logits
        .clone()
        .argmax(1)
        .equal(teacher.log_p.clone().argmax(1));
    Tensor::cat(
        vec![overlap(teacher.full(), q), same.float().cast(DType::F32)],
        1,
    )
}

fn label_loss(
    logits: Tensor<2>,
    labels: Tensor<1, Int>,
    statistics: Statistics,
) -> (Judged, Option<Tensor<2>>) {
    let labels: Tensor<2, Int> = labels.unsqueeze_dim(1); // [rows, 1]
    let log_q = log_softmax(logits, 1);
    let of_label = log_q.clone().gather(1, labels.clone());
    let measured = (statistics == Statistics::All).then(|| {
        let same = log_q.clone().argmax(1).equal(labels.clone());
        Tensor::cat(
            vec![of_label.clone().exp(), same.float().cast(DType::F32)],
            1,
        )
    });
    let minus_one = -Tensor::ones(labels.dims(), (&log_q.device(), DType::F32));
    let gradient = log_q
        .exp()
        .scatter(1, labels, minus_one, IndexingUpdateOp::Add);
    let judged = Judged {
        value: -of_label,
        gradient,
    };
    (judged, measured)
}

impl VocabLoss {
    /// `Σ weight · distance`, on the host.
    pub fn value(&self) -> f64 {
        let values = host_f32(self.values.clone());
        let weighted = self.rows.iter().zip(values);
        weighted
            .map(|(row, value)| row.weight as f64 * value as f64)
            .sum()
    }
}

//! The vocabulary loss: the drafter's head, the target's head and a divergence between them, in chunks of positions, so
//! that no `[batch, seq, vocab]` tensor exists.
//!
//! It runs outside the graph. While a chunk's logits are alive, it forms the gradient with respect to the hidden states
//! and the head. What it gives to the graph is the surrogate `Σ hidden · g_hidden` with constant `g_hidden`, whose
//! backward pass delivers exactly those gradients; the head is a leaf of the graph, so its gradient goes straight to the
//! optimiser. That of a bias is small and takes the way of the hidden states.
use burn::module::ParamId;
use burn::prelude::*;
use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, IndexingUpdateOp};
use spectrain_models::weights::{host_f32, lift, on_host};

use crate::divergence::{Distance, Divergence, TeacherRows, overlap};
use crate::kernels::{self, TargetRow, TeacherPanel};
use crate::row::JudgedRow;
use crate::teacher::{Teacher, chunk_rows, indices, is_cpu};
use crate::weighing::Weighing;

/// Positions whose distributions are made at a time on the CPU: the product behind them is too small alone.
const PANEL_ROWS: usize = 96;

/// What judges.
pub enum Judge<'a> {
    /// The target's distribution.
    Target {
        /// Where it comes from.
        teacher: &'a Teacher,
        /// The distance to it.
        divergence: Divergence,
    },
    /// Cross-entropy with these tokens of the head's vocabulary, indexed by [`JudgedRow::teacher`].
    Labels(&'a [u32]),
}

/// Whether accuracy and acceptance rate are wanted beside the loss; they cost two more passes over the logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statistics {
    /// Only the loss.
    Loss,
    /// All.
    All,
}

/// The head that is applied to hidden states.
pub struct LossHead {
    /// `[d_model, vocab]`
    pub weight: Tensor<2>,
    /// `[vocab]`. It is small, so its gradient goes through the graph that it is in.
    pub bias: Option<Tensor<1>>,
    /// The parameter that receives the weight's gradient.
    pub trained: Option<HeadParameter>,
}

/// The parameter behind a trained head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadParameter {
    /// It is the weight.
    Weight(ParamId),
    /// It is the weight transposed: an embedding that the head is tied to.
    Embedding(ParamId),
    /// It is the rows of the weight from this one on; those before are frozen.
    LowerRows(ParamId, usize),
}

impl HeadParameter {
    /// The first row of the weight that is trained.
    fn first_row(self) -> usize {
        match self {
            Self::LowerRows(_, first) => first,
            Self::Weight(_) | Self::Embedding(_) => 0,
        }
    }

    /// The parameter, and the gradient of the weight in the layout that it has there.
    fn in_its_layout(self, gradient: Tensor<2>) -> (ParamId, Tensor<2>) {
        match self {
            Self::Weight(id) | Self::LowerRows(id, _) => (id, gradient),
            Self::Embedding(id) => (id, gradient.transpose()),
        }
    }
}

/// A loss whose gradients are known.
pub struct VocabLoss {
    /// `[1]`: its backward pass delivers the gradients of all parameters below the head, and of its bias; its value means
    /// nothing.
    pub surrogate: Tensor<1>,
    /// One `[positions, d_model]` per step, in no graph: the gradient of the hidden states; empty where none was wanted.
    pub hidden_gradients: Vec<Tensor<2>>,
    /// `[1, vocab]`, in no graph: the gradient of the head's bias; absent where none was wanted.
    pub bias_gradient: Option<Tensor<2>>,
    /// The gradient of the head's parameter, in that parameter's layout.
    pub head_gradient: Option<(ParamId, Tensor<2>)>,
    /// The rows, in the order of `values`, with their weights.
    pub rows: Vec<JudgedRow>,
    /// What the weights were divided by, where they were found beside the loss; else the number of rows.
    pub divisor: f64,
    /// `[rows, 1]`: distance at each row, without its weight.
    pub values: Tensor<2>,
    /// `[rows, 2]`: acceptance rate, and 1 where the drafter's most likely token is the target's; when wanted.
    pub statistics: Option<Tensor<2>>,
}

/// Which gradients of the vocabulary loss are formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// None.
    Loss,
    /// The head's, and that of the hidden states.
    Gradients,
    /// The head's alone.
    HeadGradient,
}

/// The loss `Σ weight · divergence` over `rows`, with the gradients that the graph of `hidden` has a use for.
///
/// # Shapes
/// - hidden: one `[positions, d_model]` per step, after the drafter's final norm
pub fn vocab_loss(
    hidden: &[Tensor<2>],
    head: LossHead,
    rows: Vec<JudgedRow>,
    judge: Judge,
    statistics: Statistics,
) -> VocabLoss {
    judged_loss(hidden, head, JudgedRows::new(rows, judge, statistics))
}

/// The rows of a vocabulary loss and what judges them.
pub(crate) struct JudgedRows<'a> {
    pub(crate) rows: Vec<JudgedRow>,
    pub(crate) judge: Judge<'a>,
    pub(crate) statistics: Statistics,
    /// Sets the weights of the rows, where they are not known before.
    pub(crate) weighing: Option<Weighing<'a>>,
}

impl<'a> JudgedRows<'a> {
    /// Rows with known weights.
    pub(crate) fn new(rows: Vec<JudgedRow>, judge: Judge<'a>, statistics: Statistics) -> Self {
        Self {
            rows,
            judge,
            statistics,
            weighing: None,
        }
    }
}

/// [`vocab_loss`] of rows whose weights may be found beside it.
pub(crate) fn judged_loss(hidden: &[Tensor<2>], head: LossHead, judged: JudgedRows) -> VocabLoss {
    let wanted = if !hidden[0].is_autodiff() {
        Wanted::Loss
    } else if hidden.iter().any(|h| h.is_tracked()) {
        Wanted::Gradients
    } else {
        Wanted::HeadGradient
    };
    let plain = hidden.iter().map(|h| h.clone().without_autodiff());
    let bias = head.bias.clone();
    let mut loss = vocab_gradients(plain.collect(), head, judged, wanted);
    let gradients = std::mem::take(&mut loss.hidden_gradients);
    loss.surrogate = joined_surrogate(hidden, gradients);
    if let (Some(bias), Some(gradient)) = (bias, loss.bias_gradient.take()) {
        loss.surrogate = loss.surrogate + dot(bias.unsqueeze::<2>(), gradient);
    }
    loss
}

/// The loss of [`vocab_loss`] and the gradients that are wanted, of hidden states in no graph.
///
/// # Shapes
/// - hidden: as for [`vocab_loss`]
pub(crate) fn vocab_gradients(
    hidden: Vec<Tensor<2>>,
    head: LossHead,
    judged: JudgedRows,
    wanted: Wanted,
) -> VocabLoss {
    let JudgedRows {
        mut rows,
        judge,
        statistics,
        weighing,
    } = judged;
    if weighing.is_none() {
        // Rows judged by the same position stand together, so that each chunk computes the target's side once.
        rows.sort_by_key(|row| (row.teacher, row.step));
    }
    let [positions, d_model] = hidden[0].dims();
    let has_gradients = wanted != Wanted::Loss && !rows.is_empty();
    let steps = hidden.len();
    let states = Tensor::cat(hidden, 0); // [steps * positions, d_model]
    let device = states.device();

    let [_, vocab] = head.weight.dims();
    let first_row = head.trained.map_or(0, HeadParameter::first_row);
    let trained_shape = [d_model - first_row, vocab];
    let mut chunks = Chunks {
        head_gradient: if has_gradients && head.trained.is_some() {
            HeadGradient::new(trained_shape, &states)
        } else {
            HeadGradient::None
        },
        first_row,
        head: head.weight.without_autodiff().cast(states.dtype()),
        bias_gradient: (has_gradients && head.bias.is_some())
            .then(|| Tensor::zeros([1, vocab], (&device, DType::F32))),
        bias: head.bias.map(|bias| bias.without_autodiff()),
        tracked: wanted == Wanted::Gradients,
        judge,
        // A weighing reads them.
        statistics: weighing.map_or(statistics, |_| Statistics::All),
        positions: positions_of(&rows),
        panel: None,
    };
    let place = |row: &JudgedRow| row.step * positions + row.position;
    let places: Vec<usize> = rows.iter().map(place).collect();
    let found = chunks.run_all(&states, &mut rows, &places, weighing.as_ref());
    let (divisor, share) = divided(&mut rows, weighing.as_ref());
    let hidden_gradients = if found.gradients.is_empty() {
        Vec::new()
    } else {
        let gradients = scaled(Tensor::cat(found.gradients, 0), share);
        spread(gradients, indices(&places, &device), steps, positions)
    };
    VocabLoss {
        surrogate: Tensor::zeros([1], (&device, DType::F32)),
        hidden_gradients,
        bias_gradient: chunks.bias_gradient.map(|gradient| scaled(gradient, share)),
        head_gradient: chunks
            .head_gradient
            .into_tensor(trained_shape, &device)
            .map(|gradient| scaled(gradient, share))
            .zip(head.trained)
            .map(|(gradient, parameter)| parameter.in_its_layout(gradient)),
        divisor,
        rows,
        values: joined(found.values, 1, &device),
        statistics: (!found.statistics.is_empty() || statistics == Statistics::All)
            .then(|| joined(found.statistics, 2, &device)),
    }
}

/// What the weighted sum over `rows` was divided by, and the factor that their weights and gradients have of it, which is
/// taken into the weights.
fn divided(rows: &mut [JudgedRow], weighing: Option<&Weighing>) -> (f64, f64) {
    let Some(weighing) = weighing else {
        return (rows.len() as f64, 1.0);
    };
    let divisor = weighing.divisor.of(rows);
    let share = weighing.factor / divisor;
    rows.iter_mut().for_each(|row| row.weight *= share as f32);
    (divisor, share)
}

/// `x · factor`, with nothing done where that is 1.
fn scaled(x: Tensor<2>, factor: f64) -> Tensor<2> {
    if factor == 1.0 { x } else { x * factor }
}

/// `Σ hidden · g`, where `g` is zero but for the rows at `places` of all steps together.
pub(crate) fn surrogate(
    hidden: &[Tensor<2>],
    gradients: Tensor<2>,
    places: Tensor<1, Int>,
) -> Tensor<1> {
    let gradients = spread(gradients, places, hidden.len(), hidden[0].dims()[0]);
    joined_surrogate(hidden, gradients)
}

/// `Σ hidden · gradient` over the steps; 0 without gradients.
fn joined_surrogate(hidden: &[Tensor<2>], gradients: Vec<Tensor<2>>) -> Tensor<1> {
    let terms = hidden.iter().zip(gradients).map(|(h, g)| dot(h.clone(), g));
    match terms.reduce(Tensor::add) {
        Some(sum) => sum,
        None => Tensor::zeros([1], (&hidden[0].device(), DType::F32)),
    }
}

/// One `[positions, d_model]` for each step, zero but for the rows at `places` of all steps together.
fn spread(
    gradients: Tensor<2>,
    places: Tensor<1, Int>,
    steps: usize,
    positions: usize,
) -> Vec<Tensor<2>> {
    let [_, d_model] = gradients.dims();
    let options = (&gradients.device(), gradients.dtype());
    let all = Tensor::<2>::zeros([steps * positions, d_model], options);
    let all = all.select_assign(0, places, gradients, IndexingUpdateOp::Add);
    let of_step = |step| all.clone().narrow(0, step * positions, positions);
    (0..steps).map(of_step).collect()
}

/// `Σ x · gradient`, whose gradient in `x` is `gradient`. `[1]`, f32.
pub(crate) fn dot<const D: usize>(x: Tensor<D>, gradient: Tensor<D>) -> Tensor<1> {
    let gradient = lift(gradient.cast(x.dtype()), &x.device());
    (x * gradient).cast(DType::F32).sum()
}

fn joined(parts: Vec<Tensor<2>>, width: usize, device: &Device) -> Tensor<2> {
    if parts.is_empty() {
        Tensor::zeros([0, width], (device, DType::F32))
    } else {
        Tensor::cat(parts, 0)
    }
}

/// What all chunks share, and the gradient of the head that they add to.
struct Chunks<'a> {
    head: Tensor<2>,
    bias: Option<Tensor<1>>,
    head_gradient: HeadGradient,
    /// The first row of the head that has a gradient.
    first_row: usize,
    /// `[1, vocab]`
    bias_gradient: Option<Tensor<2>>,
    tracked: bool,
    judge: Judge<'a>,
    statistics: Statistics,
    /// Every position of the teacher that judges a row, ascending.
    positions: Vec<usize>,
    /// The panel at hand, and the place of its first row among `positions`.
    panel: Option<(usize, TeacherPanel)>,
}

/// The target's distributions at the positions that judge `rows`, made for more of `positions` than these at a time, and
/// the place of its first one among them.
fn panel<'a>(
    cached: &'a mut Option<(usize, TeacherPanel)>,
    teacher: &Teacher,
    positions: &[usize],
    rows: &[JudgedRow],
) -> (&'a TeacherPanel, usize) {
    let place = |position: usize| positions.partition_point(|&p| p < position);
    let judging = || rows.iter().map(|row| row.teacher);
    let (first, last) = (judging().min().map(place), judging().max().map(place));
    let (first, last) = (first.unwrap_or(0), last.unwrap_or(0));
    let holds =
        |(start, panel): &(usize, TeacherPanel)| *start <= first && last < start + panel.best.len();
    if !cached.as_ref().is_some_and(holds) {
        // The old one goes before the new one comes.
        *cached = None;
        let end = (first + PANEL_ROWS).max(last + 1).min(positions.len());
        *cached = Some((first, teacher.panel(&positions[first..end])));
    }
    match cached {
        Some((start, panel)) => (panel, *start),
        None => unreachable!("it was just made"),
    }
}

/// The sum of what the chunks add to the gradient of the head's trained rows, `[d_model, vocab]` where all are.
enum HeadGradient {
    /// The head is not trained.
    None,
    /// On the CPU in f32, where it is added to in place.
    Host(Vec<f32>),
    /// Elsewhere, f32.
    Device(Box<Tensor<2>>),
}

impl HeadGradient {
    fn new(shape: [usize; 2], like: &Tensor<2>) -> Self {
        let device = like.device();
        if is_cpu(&device) && like.dtype() == DType::F32 {
            Self::Host(vec![0.0; shape[0] * shape[1]])
        } else {
            Self::Device(Box::new(Tensor::zeros(shape, (&device, DType::F32))))
        }
    }

    fn into_tensor(self, shape: [usize; 2], device: &Device) -> Option<Tensor<2>> {
        match self {
            Self::None => None,
            Self::Host(sum) => Some(Tensor::from_data(TensorData::new(sum, shape), device)),
            Self::Device(sum) => Some(*sum),
        }
    }
}

struct Chunk {
    gradient: Option<Tensor<2>>,
    values: Tensor<2>,
    statistics: Option<Tensor<2>>,
}

/// What all chunks come to, one part for each.
#[derive(Default)]
struct Parts {
    gradients: Vec<Tensor<2>>,
    values: Vec<Tensor<2>>,
    statistics: Vec<Tensor<2>>,
}

impl Chunks<'_> {
    /// All of `rows`, whose hidden states are at `places` in `states`.
    fn run_all(
        &mut self,
        states: &Tensor<2>,
        rows: &mut [JudgedRow],
        places: &[usize],
        weighing: Option<&Weighing>,
    ) -> Parts {
        let device = states.device();
        let most = chunk_rows(self.head.dims()[1], &device);
        let mut parts = Parts::default();
        let mut start = 0;
        while start < rows.len() {
            let left = &mut rows[start..];
            let count = match weighing {
                None => most.min(left.len()),
                Some(weighing) => weighing.chunk(left, most),
            };
            let places = indices(&places[start..start + count], &device);
            let hidden = states.clone().select(0, places);
            let done = self.run(hidden, &mut left[..count], weighing);
            parts.gradients.extend(done.gradient);
            parts.values.push(done.values);
            parts.statistics.extend(done.statistics);
            start += count;
        }
        parts
    }

    fn run(
        &mut self,
        hidden: Tensor<2>,
        rows: &mut [JudgedRow],
        weighing: Option<&Weighing>,
    ) -> Chunk {
        if weighing.is_some() {
            rows.iter_mut().for_each(|row| row.weight = 1.0);
        }
        let (judged, statistics) = self.judged(&hidden, rows);
        let weights = weighing.zip(statistics.clone()).map(|(weighing, found)| {
            (weighing.weigh)(rows, host_f32(found).as_chunks::<2>().0);
            let weights: Vec<f32> = rows.iter().map(|row| row.weight).collect();
            let weights = Tensor::<1>::from_floats(weights.as_slice(), &hidden.device());
            weights.unsqueeze_dim::<2>(1)
        });
        Chunk {
            gradient: self.pass_back(hidden, judged.gradient, weights),
            values: judged.value,
            statistics,
        }
    }

    /// What the rows' logits are judged to be.
    fn judged(&mut self, hidden: &Tensor<2>, rows: &[JudgedRow]) -> (Distance, Option<Tensor<2>>) {
        let mut logits = hidden.clone().matmul(self.head.clone()).cast(DType::F32); // [rows, vocab]
        if let Some(bias) = &self.bias {
            logits = logits + bias.clone().cast(DType::F32).unsqueeze();
        }
        if is_cpu(&logits.device()) && self.has_kernel() {
            self.judge_by_kernel(logits, rows)
        } else {
            self.judge(logits, rows)
        }
    }

    /// Adds to the gradients of head and bias, and gives that of the hidden states, where it is wanted. Weights are taken in
    /// on the other side of the products with the vocabulary, where a row is small.
    ///
    /// # Shapes
    /// - weights: `[rows, 1]`, f32
    fn pass_back(
        &mut self,
        hidden: Tensor<2>,
        gradient: Tensor<2>,
        weights: Option<Tensor<2>>,
    ) -> Option<Tensor<2>> {
        let dtype = hidden.dtype();
        if let Some(sum) = &mut self.bias_gradient {
            let more = match &weights {
                None => gradient.clone().sum_dim(0),
                Some(weights) => weights.clone().transpose().matmul(gradient.clone()),
            };
            sum.inplace(|sum| sum + more);
        }
        let gradient = gradient.cast(dtype);
        let Some(weights) = weights.map(|weights| weights.cast(dtype)) else {
            let gradient = self.add_to_head(hidden, gradient);
            return self.to_hidden(gradient);
        };
        let gradient = self.add_to_head(hidden * weights.clone(), gradient);
        self.to_hidden(gradient).map(|gradient| gradient * weights)
    }

    fn to_hidden(&self, gradient: Tensor<2>) -> Option<Tensor<2>> {
        // The smaller product is the one whose result is transposed.
        let product = || self.head.clone().matmul(gradient.transpose()).transpose();
        self.tracked.then(product)
    }

    /// Adds `hiddenᵀ · gradient` to the head's gradient, and returns `gradient`.
    fn add_to_head(&mut self, hidden: Tensor<2>, gradient: Tensor<2>) -> Tensor<2> {
        let [_, d_model] = hidden.dims();
        let hidden = hidden.narrow(1, self.first_row, d_model - self.first_row);
        match &mut self.head_gradient {
            HeadGradient::None => gradient,
            HeadGradient::Host(sum) => {
                let shape = gradient.dims();
                let hidden = host_f32(hidden);
                let add =
                    |gradient: &mut [f32]| kernels::add_product(sum, &hidden, gradient, shape);
                on_host(gradient, add).0
            }
            HeadGradient::Device(sum) => {
                let more = hidden.transpose().matmul(gradient.clone()).cast(DType::F32);
                sum.inplace(|sum| sum + more);
                gradient
            }
        }
    }

    /// Whether [`kernels`] has the divergence.
    fn has_kernel(&self) -> bool {
        match self.judge {
            Judge::Labels(_) => true,
            Judge::Target { divergence, .. } => divergence.has_kernel(),
        }
    }

    /// Values, weighted gradients and statistics, on the host.
    fn judge_by_kernel(
        &mut self,
        logits: Tensor<2>,
        rows: &[JudgedRow],
    ) -> (Distance, Option<Tensor<2>>) {
        let device = logits.device();
        let [count, vocab] = logits.dims();
        let (gradient, judged) = match &self.judge {
            Judge::Labels(labels) => {
                let rows = rows.iter().map(|r| (labels[r.teacher] as usize, r.weight));
                let rows: Vec<_> = rows.collect();
                on_host(logits, |logits| kernels::judge_labels(logits, vocab, &rows))
            }
            Judge::Target {
                teacher,
                divergence,
            } => {
                let (panel, first) = panel(&mut self.panel, teacher, &self.positions, rows);
                let at =
                    |row: &JudgedRow| self.positions[first..].partition_point(|&p| p < row.teacher);
                let places = rows.iter().map(|row| TargetRow {
                    row: at(row),
                    weight: row.weight,
                });
                let places: Vec<_> = places.collect();
                let (gradient, mut judged) = on_host(logits, |logits| {
                    kernels::judge_target(logits, vocab, &places, panel)
                });
                for (judged, row) in judged.iter_mut().zip(rows) {
                    judged.correct &= teacher.can_be_met(row.teacher);
                }
                if *divergence == Divergence::SoftCe {
                    let rows = judged.iter_mut().zip(places);
                    rows.for_each(|(judged, at)| judged.value -= panel.negative_entropy[at.row]);
                }
                (gradient, judged)
            }
        };
        let column = |values: Vec<f32>, width| {
            Tensor::from_data(TensorData::new(values, [count, width]), &device)
        };
        let measured = (self.statistics == Statistics::All).then(|| {
            let pairs = judged
                .iter()
                .flat_map(|row| [row.alpha, f32::from(u8::from(row.correct))]);
            column(pairs.collect(), 2)
        });
        let value = column(judged.iter().map(|row| row.value).collect(), 1);
        (Distance { value, gradient }, measured)
    }

    /// Values, weighted gradients and statistics, by tensor operations on any device.
    fn judge(&self, logits: Tensor<2>, rows: &[JudgedRow]) -> (Distance, Option<Tensor<2>>) {
        let device = logits.device();
        let (mut judged, statistics) = match &self.judge {
            Judge::Target {
                teacher,
                divergence,
            } => {
                let possible: Vec<f32> = rows
                    .iter()
                    .map(|row| f32::from(u8::from(teacher.can_be_met(row.teacher))))
                    .collect();
                let possible = Tensor::<1>::from_floats(possible.as_slice(), &device);
                let teacher = teacher_of(teacher, rows);
                let measured = match self.statistics {
                    Statistics::Loss => None,
                    Statistics::All => Some(measure(&logits, &teacher, possible.unsqueeze_dim(1))),
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
        judged.gradient = judged.gradient * weights;
        (judged, statistics)
    }
}

/// Every position of the teacher that judges some rows, ascending.
fn positions_of(rows: &[JudgedRow]) -> Vec<usize> {
    let mut positions: Vec<usize> = rows.iter().map(|row| row.teacher).collect();
    positions.sort_unstable();
    positions.dedup();
    positions
}

/// The teacher's positions of some rows without repetition, and for each row its place among them. Rows of the same
/// position stand together.
fn distinct(rows: &[JudgedRow]) -> (Vec<usize>, Vec<usize>) {
    let mut distinct: Vec<usize> = Vec::new();
    let of = rows.iter().map(|row| {
        if distinct.last() != Some(&row.teacher) {
            distinct.push(row.teacher);
        }
        distinct.len() - 1
    });
    let of = of.collect();
    (distinct, of)
}

/// The target's side of each of `rows`.
fn teacher_of(teacher: &Teacher, rows: &[JudgedRow]) -> TeacherRows {
    let (distinct, of) = distinct(rows);
    let judged = teacher.rows(&distinct);
    if distinct.len() == rows.len() {
        return judged;
    }
    let of = indices(&of, &judged.log_p.device());
    TeacherRows {
        log_p: judged.log_p.select(0, of.clone()),
        covered: judged.covered.map(|covered| covered.select(0, of)),
    }
}

/// Acceptance rate and agreement of the most likely tokens, `[rows, 2]`. `possible` is `[rows, 1]`: 0 where the drafter
/// cannot agree, whatever it says.
fn measure(logits: &Tensor<2>, teacher: &TeacherRows, possible: Tensor<2>) -> Tensor<2> {
    let q = burn::tensor::activation::softmax(logits.clone(), 1);
    let same = logits
        .clone()
        .argmax(1)
        .equal(teacher.log_p.clone().argmax(1));
    Tensor::cat(
        vec![
            overlap(teacher.full(), q),
            same.float().cast(DType::F32) * possible,
        ],
        1,
    )
}

fn label_loss(
    logits: Tensor<2>,
    labels: Tensor<1, Int>,
    statistics: Statistics,
) -> (Distance, Option<Tensor<2>>) {
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
    let judged = Distance {
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

//! The vocabulary loss: the drafter's head, the target's head and a divergence between them, in chunks of positions, so
//! that no `[batch, seq, vocab]` tensor exists.
//!
//! It runs outside the graph. While a chunk's logits are alive, it forms the gradient with respect to the hidden states
//! and the head. What it gives to the graph is a scalar in place of the loss, whose backward pass delivers exactly those
//! gradients ([`delivered`](crate::delivered)); the head is a leaf of the graph, so its gradient goes straight to the
//! optimiser. That of a bias is small and takes the way of the hidden states.
use burn::module::ParamId;
use burn::prelude::*;
use burn::tensor::{DType, IndexingUpdateOp};
use spectrain_models::weights::host_f32;
use spectrain_models::{Picks, product};

use crate::arithmetic::arithmetic;
use crate::arithmetic::operations::{JudgedChunk, ProductSum, RowJudge};
use crate::delivered::delivering;
use crate::device::chunk_rows;
use crate::judge::{Judge, Statistics};
use crate::row::{JudgedRow, Places, times};
use crate::teacher::indices;
use crate::weighing::{Divisor, Scope, Weighing};

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
    /// What the weighted sum over the rows is multiplied by. The gradients have it.
    pub factor: f64,
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
    /// What the weighted sum over the rows is multiplied by.
    pub(crate) factor: f64,
    /// The positions that the steps behind the first have hidden states of; all of them without.
    pub(crate) picks: Option<&'a Picks>,
}

impl<'a> JudgedRows<'a> {
    /// Rows with known weights.
    pub(crate) fn new(rows: Vec<JudgedRow>, judge: Judge<'a>, statistics: Statistics) -> Self {
        Self {
            rows,
            judge,
            statistics,
            weighing: None,
            factor: 1.0,
            picks: None,
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
        loss.surrogate = loss.surrogate + delivering(bias.unsqueeze::<2>(), gradient);
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
        factor,
        picks,
    } = judged;
    let scope = weighing.map_or(Scope::All, |weighing| weighing.scope);
    if matches!(scope, Scope::All) {
        // Rows judged by the same position stand together, so that each chunk computes the target's side once.
        rows.sort_by_key(|row| (row.teacher, row.step));
    }
    let [_, d_model] = hidden[0].dims();
    let has_gradients = wanted != Wanted::Loss && !rows.is_empty();
    let all = Places::new(&hidden, picks);
    let states = Tensor::cat(hidden, 0); // [positions of all steps, d_model]
    let device = states.device();

    let [_, vocab] = head.weight.dims();
    let first_row = head.trained.map_or(0, HeadParameter::first_row);
    let trained_shape = [d_model - first_row, vocab];
    // A weighing reads them.
    let measured = weighing.map_or(statistics, |_| Statistics::All);
    let own = arithmetic(&device);
    let mut chunks = Chunks {
        head_gradient: (has_gradients && head.trained.is_some())
            .then(|| own.product_sum(trained_shape, states.dtype(), &device)),
        first_row,
        head: head.weight.without_autodiff().cast(states.dtype()),
        bias_gradient: (has_gradients && head.bias.is_some())
            .then(|| Tensor::zeros([1, vocab], (&device, DType::F32))),
        bias: head.bias.map(|bias| bias.without_autodiff()),
        tracked: wanted == Wanted::Gradients,
        judge: own.row_judge(judge, positions_of(&rows), measured),
    };
    let places: Vec<usize> = rows.iter().map(|row| all.of(row)).collect();
    let found = chunks.run_weighed(&states, &mut rows, &places, weighing.as_ref(), factor);
    let (divisor, share) = divided(&mut rows, weighing.as_ref(), factor);
    let hidden_gradients = if found.gradients.is_empty() {
        Vec::new()
    } else {
        let gradients = found.gradients.into_iter();
        let gradients = gradients.map(|gradient| scaled(gradient, share));
        spread(gradients.collect(), &places, &all)
    };
    VocabLoss {
        surrogate: Tensor::zeros([1], (&device, DType::F32)),
        hidden_gradients,
        bias_gradient: chunks.bias_gradient.map(|gradient| scaled(gradient, share)),
        head_gradient: chunks
            .head_gradient
            .map(|sum| scaled(sum.into_tensor(), share))
            .zip(head.trained)
            .map(|(gradient, parameter)| parameter.in_its_layout(gradient)),
        divisor,
        rows,
        factor,
        values: joined(found.values, 1, &device),
        statistics: (!found.statistics.is_empty() || statistics == Statistics::All)
            .then(|| joined(found.statistics, 2, &device)),
    }
}

/// What the weighted sum over `rows` was divided by, which is taken into their weights, and what gradients have yet to be
/// multiplied by.
fn divided(rows: &mut [JudgedRow], weighing: Option<&Weighing>, factor: f64) -> (f64, f64) {
    let Some(weighing) = weighing else {
        return (rows.len() as f64, 1.0);
    };
    let divisor = weighing.divisor.of(rows);
    let share = Divisor::share(divisor, 1.0) as f32;
    rows.iter_mut().for_each(|row| row.weight *= share);
    (divisor, Divisor::share(divisor, factor))
}

/// `x · factor`, with nothing done where that is 1.
fn scaled(x: Tensor<2>, factor: f64) -> Tensor<2> {
    if factor == 1.0 { x } else { x * factor }
}

/// A scalar whose gradient in `hidden` is zero but for the rows at some of `all` its places: `gradients`.
pub(crate) fn surrogate(
    hidden: &[Tensor<2>],
    gradients: Tensor<2>,
    places: &[usize],
    all: &Places,
) -> Tensor<1> {
    joined_surrogate(hidden, spread(vec![gradients], places, all))
}

/// A scalar whose gradients in the states of all steps are these; in no graph without any.
fn joined_surrogate(hidden: &[Tensor<2>], gradients: Vec<Tensor<2>>) -> Tensor<1> {
    let terms = hidden
        .iter()
        .zip(gradients)
        .map(|(h, g)| delivering(h.clone(), g));
    match terms.reduce(Tensor::add) {
        Some(sum) => sum,
        None => Tensor::zeros([1], (&hidden[0].device(), DType::F32)),
    }
}

/// One `[positions, d_model]` for each step, zero but for the rows at some of `all` places, which come in parts.
fn spread(mut parts: Vec<Tensor<2>>, places: &[usize], all: &Places) -> Vec<Tensor<2>> {
    let (rows, [_, d_model]) = (places.len(), parts[0].dims());
    let device = parts[0].device();
    let options = (&device, parts[0].dtype());
    let mut from = vec![rows; all.count()];
    for (row, &place) in places.iter().enumerate() {
        from[place] = row;
    }
    let spread = if from.iter().filter(|&&row| row < rows).count() == rows {
        // Each place takes its row, all of them at once; a GPU would add rows to their places one after the other.
        parts.push(Tensor::zeros([1, d_model], options));
        Tensor::cat(parts, 0).select(0, indices(&from, &device))
    } else {
        let none = Tensor::<2>::zeros([all.count(), d_model], options);
        none.select_assign(
            0,
            indices(places, &device),
            Tensor::cat(parts, 0),
            IndexingUpdateOp::Add,
        )
    };
    all.by_step(spread)
}

/// Parts `width` wide as one, if there are none as one without rows.
pub(crate) fn joined(parts: Vec<Tensor<2>>, width: usize, device: &Device) -> Tensor<2> {
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
    head_gradient: Option<Box<dyn ProductSum>>,
    /// The first row of the head that has a gradient.
    first_row: usize,
    /// `[1, vocab]`
    bias_gradient: Option<Tensor<2>>,
    tracked: bool,
    judge: Box<dyn RowJudge + 'a>,
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
        let scope = weighing.map_or(Scope::All, |weighing| weighing.scope);
        let mut parts = Parts::default();
        self.each_chunk(scope, states, rows, places, |chunks, hidden, rows| {
            let done = chunks.run(hidden, rows, weighing);
            parts.gradients.extend(done.gradient);
            parts.values.push(done.values);
            parts.statistics.extend(done.statistics);
        });
        parts
    }

    /// All of `rows`, with weights that `weighing` sets before or beside; else their gradients have the factor.
    fn run_weighed(
        &mut self,
        states: &Tensor<2>,
        rows: &mut [JudgedRow],
        places: &[usize],
        weighing: Option<&Weighing>,
        factor: f64,
    ) -> Parts {
        match weighing {
            None => self.run_all(states, &mut times(rows, factor as f32), places, None),
            Some(all) if matches!(all.scope, Scope::All) => {
                self.weigh_all(states, rows, places, all);
                self.run_all(states, rows, places, None)
            }
            beside => self.run_all(states, rows, places, beside),
        }
    }

    /// Weighs all of `rows` together.
    fn weigh_all(
        &mut self,
        states: &Tensor<2>,
        rows: &mut [JudgedRow],
        places: &[usize],
        weighing: &Weighing,
    ) {
        let mut found = Vec::with_capacity(rows.len());
        self.each_chunk(Scope::All, states, rows, places, |chunks, hidden, rows| {
            let statistics = chunks.judged(&hidden, rows).statistics;
            found.extend(statistics.map(host_f32).into_iter().flatten());
        });
        (weighing.weigh)(rows, found.as_chunks::<2>().0);
    }

    /// Goes over `rows` in chunks that `scope` allows, with the hidden states of each.
    fn each_chunk(
        &mut self,
        scope: Scope,
        states: &Tensor<2>,
        rows: &mut [JudgedRow],
        places: &[usize],
        mut run: impl FnMut(&mut Self, Tensor<2>, &mut [JudgedRow]),
    ) {
        let device = states.device();
        let most = match self.takes_narrow() {
            true => arithmetic(&device).chunk_rows(self.head.dims(), &device),
            false => chunk_rows(self.head.dims()[1], &device),
        };
        let mut start = 0;
        while start < rows.len() {
            let left = &mut rows[start..];
            let count = scope.chunk(left, most);
            let places = indices(&places[start..start + count], &device);
            run(self, states.clone().select(0, places), &mut left[..count]);
            start += count;
        }
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
        let JudgedChunk {
            distance: judged,
            statistics,
        } = self.judged(&hidden, rows);
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
    fn judged(&mut self, hidden: &Tensor<2>, rows: &[JudgedRow]) -> JudgedChunk {
        let (hidden, head) = (hidden.clone(), self.head.clone());
        if self.takes_narrow() {
            let own = arithmetic(&hidden.device());
            return self.judge.judge(own.logits(hidden, head), rows);
        }
        let mut logits = product(hidden, head).cast(DType::F32); // [rows, vocab]
        if let Some(bias) = &self.bias {
            logits = logits + bias.clone().cast(DType::F32).unsqueeze();
        }
        self.judge.judge(logits, rows)
    }

    /// Whether logits may be in a narrower type than f32.
    fn takes_narrow(&self) -> bool {
        self.bias.is_none() && self.judge.takes_narrow()
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
                Some(weights) => product(weights.clone().transpose(), gradient.clone()),
            };
            sum.inplace(|sum| sum + more);
        }
        // No wider than the hidden states; it may be narrower.
        let gradient = match dtype {
            DType::F32 => gradient,
            narrow => gradient.cast(narrow),
        };
        let Some(weights) = weights.map(|weights| weights.cast(dtype)) else {
            let gradient = self.add_to_head(hidden, gradient);
            return self.to_hidden(gradient);
        };
        let gradient = self.add_to_head(hidden * weights.clone(), gradient);
        self.to_hidden(gradient).map(|gradient| gradient * weights)
    }

    fn to_hidden(&self, gradient: Tensor<2>) -> Option<Tensor<2>> {
        let own = arithmetic(&gradient.device());
        self.tracked
            .then(|| own.to_hidden(gradient, self.head.clone()))
    }

    /// Adds `hiddenᵀ · gradient` to the head's gradient, and returns `gradient`.
    fn add_to_head(&mut self, hidden: Tensor<2>, gradient: Tensor<2>) -> Tensor<2> {
        let [_, d_model] = hidden.dims();
        let hidden = hidden.narrow(1, self.first_row, d_model - self.first_row);
        match &mut self.head_gradient {
            None => gradient,
            Some(sum) => sum.add(hidden, gradient),
        }
    }
}

/// Every position of the teacher that judges some rows, ascending.
fn positions_of(rows: &[JudgedRow]) -> Vec<usize> {
    let mut positions: Vec<usize> = rows.iter().map(|row| row.teacher).collect();
    positions.sort_unstable();
    positions.dedup();
    positions
}

impl VocabLoss {
    /// What is minimised, `factor · Σ weight · distance`, on the host.
    pub fn value(&self) -> f64 {
        let values = host_f32(self.values.clone());
        let weighted = self.rows.iter().zip(values);
        let sum: f64 = weighted
            .map(|(row, value)| row.weight as f64 * value as f64)
            .sum();
        self.factor * sum
    }
}

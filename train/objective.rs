use std::collections::BTreeMap;

use burn::module::{Module, ParamId};
use burn::prelude::*;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::batch::{Batch, Rows};
use crate::error::Result;
use crate::judge::Statistics;
use crate::optimizer::Gradients;
use crate::row::JudgedRow;
use crate::teacher::indices;
use crate::vocab_loss::VocabLoss;
use crate::workload::Workload;
use spectrain_models::weights::host_f32;

/// What a model of type `M` is trained to minimise.
pub trait Objective<M: Module>: Sized {
    /// The recipe's `[objective]` table.
    type Config: DeserializeOwned + Serialize + Clone + Default + Send + Sync;

    /// The stages of a training with it, in order; each starts from the weights that the one before it has left.
    const STAGES: &'static [&'static str] = &["train"];

    /// Creates the objective, of several stages that of the last.
    ///
    /// # Errors
    /// A setting makes no sense.
    fn new(config: &Self::Config) -> Result<Self>;

    /// Creates the objective of one of [`Self::STAGES`].
    ///
    /// # Errors
    /// A setting makes no sense.
    fn of_stage(config: &Self::Config, _stage: &str) -> Result<Self> {
        Self::new(config)
    }

    /// The settings that one of [`Self::STAGES`] reads, those that it does not read at their defaults.
    fn settings_of(config: &Self::Config, _stage: &str) -> Self::Config {
        config.clone()
    }

    /// Fills in what was left out of the settings and depends on others in them, where `given` says of a key whether it was set.
    fn fill(_config: &mut Self::Config, _given: &dyn Fn(&str) -> bool) {}

    /// The settings with what is read in the place of keys that were left out, where no other rule than this one says it.
    fn explicit(config: &Self::Config) -> Self::Config {
        config.clone()
    }

    /// The keys of the settings that nothing reads because of another one, each with what is so with that.
    fn unread(_config: &Self::Config) -> Vec<(&'static str, &'static str)> {
        Vec::new()
    }

    /// What one of [`Self::STAGES`] makes of a batch.
    fn workload(config: &Self::Config, stage: &str) -> Workload;

    /// Whether a drafter in training with it drafts as it will, so that the best weights are those that draft best; else
    /// they are those of the least loss.
    fn drafts(&self) -> bool {
        true
    }

    /// The loss of `model` on `batch`, which is in the same graph as the model's parameters, if any.
    fn loss(&self, model: &M, batch: &Batch, statistics: Statistics) -> Loss;

    /// Share of the batches that the model writes itself before they are judged.
    fn on_policy_fraction(&self) -> f64 {
        0.0
    }

    /// What `model`, outside of any graph, writes in place of replies in `rows`; a text ends at one of the tokens `stop`. None
    /// where there is no reply to write.
    fn rewrite(&self, _model: &M, _rows: &Rows, _stop: &[u32], _seed: u64) -> Option<Rows> {
        None
    }
}

/// A loss and what it is made of. Nothing is read from the device before it is asked for.
pub struct Loss {
    /// See [`VocabLoss::surrogate`].
    pub surrogate: Tensor<1>,
    /// Gradients that were formed already, beside those the surrogate delivers.
    pub gradients: Gradients,
    /// See [`VocabLoss::head_gradient`], one for each trained head.
    pub head_gradients: Vec<(ParamId, Tensor<2>)>,
    /// Every position judged, with its step.
    pub rows: Vec<JudgedRow>,
    /// Step and position of what a decoder would draft in vain, and the loss leaves out: the target's most likely token
    /// cannot be proposed.
    pub missed: Vec<(usize, usize)>,
    /// What the weighted sum over the rows is multiplied by; the gradients have it.
    pub(crate) factor: f64,
    /// Weights that change over the steps, by the names of what they weigh, with what they are at this one.
    pub(crate) changing: Vec<(&'static str, f64)>,
    /// What the weighted sum over the rows is called among the parts of the loss.
    name: Option<&'static str>,
    /// What the total counts beside the rows.
    terms: Vec<Term>,
    /// How much the loss, which is a mean, counts beside those of other batches: what its sum was divided by. For one with a
    /// mean for each draft step these are the positions of all steps.
    pub counted: f64,
    /// Whether the rows of a position are the steps of a draft, one after the other.
    drafts: bool,
    /// `[rows, 1]`: distance at each.
    values: Tensor<2>,
    /// `[rows, 2]`: see [`VocabLoss::statistics`].
    statistics: Option<Tensor<2>>,
    /// Of each row whether its right token is among what a selector chooses from; empty without one.
    recalled: Vec<bool>,
}

/// What a loss counts beside its rows.
struct Term {
    name: &'static str,
    /// `[1]`, without the factor.
    value: Tensor<1>,
    factor: f64,
}

/// A loss on the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LossReport {
    /// What is minimised.
    pub total: f64,
    /// Of that, what counts beside the rows.
    pub terms: f64,
    /// The parts of the loss by their names, each without the weight that it has in the total; a sum of divergences is one part, with
    /// the factors that it has at the step.
    pub parts: BTreeMap<String, f64>,
    /// Weights that change over the steps, by the names of what they weigh.
    pub changing: BTreeMap<String, f64>,
    /// See [`Loss::counted`].
    pub counted: f64,
    /// One for each draft step.
    pub steps: Vec<StepReport>,
    /// Whether acceptance rates and agreement were measured.
    pub measured: bool,
    /// 1 + Σ over steps of the share of positions where this step and all before it guess the target's most likely
    /// token: the mean acceptance length of a greedy chain on the text as it is. 1 where there are no chains.
    pub simulated_tau: f64,
    /// Positions behind [`Self::simulated_tau`]: none without statistics, or where what is guessed is no draft.
    pub chains: usize,
}

/// Sums over the judged positions of a draft step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Positions.
    pub count: usize,
    /// Distances, without weights.
    pub loss: f64,
    /// Acceptance rates.
    pub alpha: f64,
    /// Positions where the most likely tokens agree.
    pub correct: f64,
    /// Positions where those of all steps before it agree: the ones a greedy decoder would get to.
    pub reached: usize,
    /// And those of this step too.
    pub kept: usize,
    /// Positions whose right token is among what a selector chooses from, where there is one.
    #[serde(default)]
    pub recalled: Option<usize>,
}

impl StepReport {
    /// Adds the sums of another batch.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.loss += other.loss;
        self.alpha += other.alpha;
        self.correct += other.correct;
        if let Some(recalled) = other.recalled {
            *self.recalled.get_or_insert(0) += recalled;
        }
        self.reached += other.reached;
        self.kept += other.kept;
    }

    /// The mean acceptance rate.
    pub fn mean_alpha(&self) -> f64 {
        self.share(self.alpha)
    }

    /// The share of positions where the most likely tokens agree.
    pub fn agreement(&self) -> f64 {
        self.share(self.correct)
    }

    /// The share of positions whose right token is among what a selector chooses from, where there is one.
    pub fn recall(&self) -> Option<f64> {
        self.recalled.map(|recalled| self.share(recalled as f64))
    }

    fn share(&self, part: f64) -> f64 {
        part / self.count.max(1) as f64
    }
}

impl From<VocabLoss> for Loss {
    fn from(loss: VocabLoss) -> Self {
        Self {
            surrogate: loss.surrogate,
            gradients: Gradients::default(),
            head_gradients: loss.head_gradient.into_iter().collect(),
            counted: loss.divisor,
            rows: loss.rows,
            missed: Vec::new(),
            factor: loss.factor,
            changing: Vec::new(),
            name: None,
            terms: Vec::new(),
            drafts: true,
            values: loss.values,
            statistics: loss.statistics,
            recalled: Vec::new(),
        }
    }
}

impl FromIterator<VocabLoss> for Loss {
    /// The sum of losses over different rows, at least one, all with the same factor.
    fn from_iter<I: IntoIterator<Item = VocabLoss>>(parts: I) -> Self {
        let parts = parts.into_iter().map(Self::from);
        let joined = parts.reduce(|mut sum, part| {
            sum.surrogate = sum.surrogate + part.surrogate;
            sum.head_gradients.extend(part.head_gradients);
            sum.counted += part.counted;
            sum.rows.extend(part.rows);
            sum.values = Tensor::cat(vec![sum.values, part.values], 0);
            let both = sum.statistics.zip(part.statistics);
            sum.statistics = both.map(|(all, more)| Tensor::cat(vec![all, more], 0));
            sum
        });
        match joined {
            Some(joined) => joined,
            None => panic!("a loss is made of at least one part"),
        }
    }
}

impl Loss {
    /// The same loss, whose rows are this part of it.
    pub(crate) fn named(self, name: &'static str) -> Self {
        Self {
            name: Some(name),
            ..self
        }
    }

    /// Adds a loss over rows that are reported already: it counts in the total and nowhere else.
    pub(crate) fn add_term(&mut self, name: &'static str, part: VocabLoss) {
        self.head_gradients.extend(part.head_gradient);
        if part.rows.is_empty() {
            self.surrogate = self.surrogate.clone() + part.surrogate;
            return;
        }
        let value = weighted_sum(&part.rows, part.values);
        self.add_scalar(name, part.surrogate, value, part.factor);
    }

    /// Adds a whole loss over rows that are reported already, in whose rows' weights this `weight` is.
    pub(crate) fn add_whole(&mut self, name: &'static str, part: Self, weight: f64) {
        let total = part.total();
        self.head_gradients.extend(part.head_gradients);
        match total {
            Some(total) => self.add_scalar(name, part.surrogate, total / weight, weight),
            None => self.surrogate = self.surrogate.clone() + part.surrogate,
        }
    }

    /// Adds a loss that is a scalar: it counts in the total and nowhere else. `surrogate` delivers its gradients, with its
    /// `factor`, and `value` is what it is without. `[1]` each.
    pub(crate) fn add_scalar(
        &mut self,
        name: &'static str,
        surrogate: Tensor<1>,
        value: Tensor<1>,
        factor: f64,
    ) {
        self.surrogate = self.surrogate.clone() + surrogate;
        self.terms.push(Term {
            name,
            value,
            factor,
        });
    }

    /// Makes it this share of itself. Its parts stay what they are.
    pub(crate) fn scale(&mut self, share: f64) {
        self.surrogate = self.surrogate.clone() * share;
        for (_, gradient) in &mut self.head_gradients {
            *gradient = gradient.clone() * share;
        }
        self.factor *= share;
        self.terms.iter_mut().for_each(|term| term.factor *= share);
    }

    /// What is minimised, `[1]`; nothing without rows.
    fn total(&self) -> Option<Tensor<1>> {
        if self.rows.is_empty() {
            return None;
        }
        let own = weighted_sum(&self.rows, self.values.clone()) * self.factor;
        let add = |sum: Tensor<1>, term: &Term| sum + term.value.clone() * term.factor;
        Some(self.terms.iter().fold(own, add))
    }

    /// Tells rows of one set of hidden states by the draft step and the position of the chain they belong to, where
    /// `place` knows them.
    pub(crate) fn tell_chains(&mut self, place: impl Fn(usize) -> Option<(usize, usize)>) {
        let tell = |step: &mut usize, position: &mut usize| {
            if let Some(found) = place(*position) {
                (*step, *position) = found;
            }
        };
        for row in &mut self.rows {
            tell(&mut row.step, &mut row.position);
        }
        for (step, position) in &mut self.missed {
            tell(step, position);
        }
    }

    /// Says that no row is a step of a draft, as where what is guessed stands in the midst of what is seen.
    pub(crate) fn tell_no_chains(&mut self) {
        self.drafts = false;
    }

    /// Acceptance rate and agreement at each of [`rows`](Self::rows), `[rows, 2]`, where they were wanted.
    pub(crate) fn statistics(&self) -> Option<Tensor<2>> {
        self.statistics.clone()
    }

    /// Takes acceptance rates and agreement from a loss over the same rows, as a decoder would draft them, in place of its own.
    pub(crate) fn measure_as(&mut self, drafted: &Self) {
        if self.rows.is_empty() {
            return;
        }
        let places = drafted.rows.iter().enumerate();
        let places: BTreeMap<_, _> = places
            .map(|(index, row)| ((row.step, row.position), index))
            .collect();
        let order = self.rows.iter();
        let order: Option<Vec<usize>> = order
            .map(|row| places.get(&(row.step, row.position)).copied())
            .collect();
        let measured = drafted.statistics.clone().zip(order);
        self.statistics = measured.map(|(found, order)| {
            let order = indices(&order, &found.device());
            found.select(0, order)
        });
    }

    /// Takes acceptance rates and agreement at each of [`rows`](Self::rows), `[rows, 2]`, in place of its own, and whether each
    /// row has its right token among what a selector chooses from.
    pub(crate) fn measure_by(&mut self, found: Option<Tensor<2>>, recalled: Vec<bool>) {
        self.statistics = found;
        self.recalled = recalled;
    }

    /// Distance at each of [`rows`](Self::rows), without its weight, on the host.
    pub fn distances(&self) -> Vec<f32> {
        host_f32(self.values.clone())
    }

    /// Reads the loss from the device.
    pub fn report(&self) -> LossReport {
        let depth = self.rows.iter().map(|row| row.step + 1).max().unwrap_or(0);
        let mut report = LossReport {
            total: 0.0,
            terms: 0.0,
            parts: BTreeMap::new(),
            changing: self.changing.iter().map(owned).collect(),
            counted: self.counted,
            steps: vec![StepReport::default(); depth],
            measured: self.statistics.is_some(),
            simulated_tau: 1.0,
            chains: 0,
        };
        for term in &self.terms {
            let value = host_f32(term.value.clone())[0] as f64;
            report.terms += term.factor * value;
            *report.parts.entry(term.name.to_owned()).or_default() += value;
        }
        report.total = report.terms;
        if self.rows.is_empty() {
            return report;
        }
        let values = host_f32(self.values.clone());
        let mut sum = 0.0;
        for (row, &value) in self.rows.iter().zip(&values) {
            sum += row.weight as f64 * value as f64;
            report.steps[row.step].count += 1;
            report.steps[row.step].loss += value as f64;
        }
        report.total += self.factor * sum;
        if let Some(name) = self.name {
            report.parts.insert(name.to_owned(), sum);
        }
        for (row, recalled) in self.rows.iter().zip(&self.recalled) {
            let sum = &mut report.steps[row.step].recalled;
            *sum.get_or_insert(0) += usize::from(*recalled);
        }
        if let Some(statistics) = self.statistics.clone().map(host_f32) {
            let pairs = self.rows.iter().zip(statistics.as_chunks::<2>().0);
            for (row, [alpha, correct]) in pairs {
                report.steps[row.step].alpha += *alpha as f64;
                report.steps[row.step].correct += *correct as f64;
            }
            if self.drafts {
                self.follow_chains(&statistics, &mut report);
            }
        }
        report
    }

    /// Walks each position's steps in order, as a greedy decoder would: the chain ends at the first miss, or where the
    /// text does.
    fn follow_chains(&self, statistics: &[f32], report: &mut LossReport) {
        let judged = self.rows.iter().zip(statistics.as_chunks::<2>().0);
        let judged = judged.map(|(row, [_, correct])| (row.position, row.step, *correct > 0.5));
        let missed = self
            .missed
            .iter()
            .map(|&(step, position)| (position, step, false));
        let deep = |&(_, step, _): &(usize, usize, bool)| step < report.steps.len();
        let mut drafts: Vec<_> = judged.chain(missed).filter(deep).collect();
        drafts.sort_unstable();
        let (mut position, mut next) = (usize::MAX, 0);
        for (at, step, correct) in drafts {
            if at != position {
                (position, next) = (at, 0);
            }
            if step != next {
                continue;
            }
            report.steps[step].reached += 1;
            if correct {
                report.steps[step].kept += 1;
                next += 1;
            }
        }
        report.chains = report.steps[0].reached;
        let kept: usize = report.steps.iter().map(|step| step.kept).sum();
        report.simulated_tau = 1.0 + kept as f64 / report.chains.max(1) as f64;
    }
}

fn owned((name, value): &(&'static str, f64)) -> (String, f64) {
    ((*name).to_owned(), *value)
}

/// `Σ weight · value` over rows, `[1]`; `values` are `[rows, 1]`.
fn weighted_sum(rows: &[JudgedRow], values: Tensor<2>) -> Tensor<1> {
    let weights: Vec<f32> = rows.iter().map(|row| row.weight).collect();
    let weights = Tensor::<1>::from_floats(weights.as_slice(), &values.device());
    (values.squeeze_dim(1) * weights).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use spectrain_models::device::test_device;

    /// A loss of one row with this weight and this distance.
    fn of_one_row(weight: f32, distance: f32, factor: f64) -> Loss {
        let device = test_device();
        Loss::from(VocabLoss {
            surrogate: Tensor::ones([1], &device),
            hidden_gradients: Vec::new(),
            bias_gradient: None,
            head_gradient: None,
            rows: vec![JudgedRow {
                step: 0,
                position: 0,
                teacher: 0,
                weight,
            }],
            factor,
            divisor: 1.0,
            values: Tensor::from_floats([[distance]], &device),
            statistics: None,
        })
    }

    #[test]
    fn parts_are_told_without_their_weights_and_count_with_them() {
        let device = test_device();
        let mut loss = of_one_row(0.5, 4.0, 0.25).named("teacher");
        // Twice a part of 3 that weighs nothing at this step.
        let value = || Tensor::<1>::from_floats([3.0], &device);
        loss.add_scalar("selector", value() * 0.0, value(), 0.0);
        loss.add_scalar("selector", value() * 0.0, value(), 0.0);
        loss.changing = vec![("selector", 0.0)];
        loss.scale(0.5);
        // Rows whose weights have half of another loss, which is 6 by itself.
        let mut whole = of_one_row(0.5, 8.0, 0.25);
        whole.add_scalar("labels", value(), value(), 2.0 / 3.0);
        loss.add_whole("base", whole, 0.5);
        let report = loss.report();
        let parts = [("base", 6.0), ("selector", 6.0), ("teacher", 2.0)];
        let expected = parts.map(|(name, value)| (name.to_owned(), value));
        for ((name, value), (told, expected)) in report.parts.iter().zip(&expected) {
            assert_eq!(name, told);
            assert!((value - expected).abs() < 1e-5, "{name}: {value}");
        }
        assert_eq!(report.parts.len(), 3);
        assert_eq!(report.changing["selector"], 0.0);
        // An eighth of 2, and half of 6.
        assert!((report.total - 3.25).abs() < 1e-5, "{}", report.total);
        assert!((report.terms - 3.0).abs() < 1e-5, "{}", report.terms);
    }

    #[test]
    fn chains_end_at_their_first_miss_and_unproposable_tokens_are_misses() {
        let device = test_device();
        // Position 0 keeps step 0 and misses step 1; position 1 could not propose at step 0; position 2 keeps step 0 and
        // the text ends.
        let judged = [(0, 0, 1.0), (0, 1, 0.0), (1, 1, 1.0), (2, 0, 1.0)];
        let row = |&(position, step, _): &(usize, usize, f32)| JudgedRow {
            step,
            position,
            teacher: 0,
            weight: 1.0,
        };
        let statistics: Vec<f32> = judged
            .iter()
            .flat_map(|&(_, _, correct)| [0.5, correct])
            .collect();
        let mut loss = Loss {
            surrogate: Tensor::zeros([1], &device),
            gradients: Gradients::default(),
            head_gradients: Vec::new(),
            rows: judged.iter().map(row).collect(),
            missed: vec![(0, 1)],
            factor: 1.0,
            changing: Vec::new(),
            name: None,
            terms: vec![Term {
                name: "more",
                value: Tensor::from_floats([0.25], &device),
                factor: 2.0,
            }],
            counted: 4.0,
            drafts: true,
            values: Tensor::ones([4, 1], &device),
            statistics: Some(
                Tensor::<1>::from_floats(statistics.as_slice(), &device).reshape([4, 2]),
            ),
            recalled: vec![true, false, true, false],
        };
        let report = loss.report();
        assert_eq!((report.total, report.terms), (4.5, 0.5));
        assert_eq!((report.steps[0].reached, report.steps[0].kept), (3, 2));
        assert_eq!((report.steps[1].reached, report.steps[1].kept), (1, 0));
        assert!((report.simulated_tau - (1.0 + 2.0 / 3.0)).abs() < 1e-12);
        let recalled: Vec<_> = report.steps.iter().map(|step| step.recalled).collect();
        assert_eq!(recalled, [Some(1), Some(1)]);
        // What is no draft is measured all the same.
        loss.tell_no_chains();
        let report = loss.report();
        assert_eq!((report.chains, report.simulated_tau), (0, 1.0));
        assert_eq!((report.steps[0].reached, report.steps[0].kept), (0, 0));
        assert_eq!((report.measured, report.steps[0].correct), (true, 2.0));
    }
}

use std::collections::BTreeMap;

use burn::module::Module;
use burn::prelude::*;
use burn::tensor::DType;
use spectrain_checkpoints::NamedTensor;
use spectrain_models::cast_once::CastOnce;
use spectrain_models::units::Units;
use spectrain_models::weights::{export, held_in, host_f32, import};
use spectrain_models::{Drafter, Proposer, Session};

use crate::average::Average;
use crate::batch::{Batch, Rows};
use crate::error::{Error, Result};
use crate::judge::Statistics;
use crate::objective::{Loss, LossReport, Objective};
use crate::optimizer::{Gradients, Optimizer, OptimizerConfig, parameter_of};
use crate::parameters::walk;
use crate::ranks::Ranks;
use crate::shard::{Shard, with_values};

/// A model in training, without its type. What the loop holds.
pub trait Train {
    /// Takes the gradients of one more batch of a training step into their mean over batches, each of which counts as much as its
    /// loss is a mean over ([`Loss::counted`]).
    ///
    /// # Panics
    /// The batch is [in no training step](Batch::in_training): its loss would be that of a validation.
    fn accumulate(&mut self, batch: &Batch, statistics: Statistics) -> Loss {
        assert!(
            batch.seed.is_some() && batch.step.is_some(),
            "accumulating gradients: expected a batch in a training step (`Batch::in_training`), found seed {:?} and step {:?}",
            batch.seed,
            batch.step
        );
        self.accumulate_as_measured(batch, statistics)
    }

    /// [`Self::accumulate`] of the loss that [`Self::measure`] gives of a batch, whether or not that is in a training step: for
    /// gradients that are compared with others, as of another device.
    fn accumulate_as_measured(&mut self, batch: &Batch, statistics: Statistics) -> Loss;

    /// Makes this one of so many ranks: it moves some of the parameters, and keeps the optimiser's state of these alone. To be called
    /// before the first update with ranks, and before what they have saved is restored.
    fn share(&mut self, rank: usize, ranks: usize);

    /// Moves the weights along that mean, clipped to the global norm `clip` unless that is 0. Returns the
    /// norm before clipping, `[1]`; `None` where no position counted. With ranks the mean is that over the batches of all, and
    /// all of them call this.
    ///
    /// # Errors
    /// A rank has ended, or the model was not [shared](Self::share) with these ranks.
    fn update_together(
        &mut self,
        learning_rate: f64,
        clip: f64,
        ranks: Option<&mut dyn Ranks>,
    ) -> Result<Option<Tensor<1>>>;

    /// [`Self::update_together`] without others.
    fn update(&mut self, learning_rate: f64, clip: f64) -> Option<Tensor<1>> {
        self.update_together(learning_rate, clip, None)
            .unwrap_or_else(|error| unreachable!("there is no rank to end: {error}"))
    }

    /// See [`Objective::on_policy_fraction`].
    fn on_policy_fraction(&self) -> f64;

    /// See [`Objective::rewrite`].
    fn rewrite(&self, rows: &Rows, stop: &[u32], seed: u64) -> Option<Rows>;

    /// The loss on a batch with all statistics, without gradients.
    fn measure(&self, batch: &Batch) -> LossReport;

    /// Every parameter of what comes of the training so far under its name, f32.
    fn weights(&self) -> Vec<NamedTensor>;

    /// Updates so far, and the state of the optimiser, as far as this rank has it; on rank 0 with the weights themselves where
    /// [`Self::weights`] are their mean.
    fn optimizer(&self) -> (u64, Vec<NamedTensor>);

    /// Takes up weights and optimiser state that [`Self::weights`] and [`Self::optimizer`] gave, the latter of all ranks. `source`
    /// is named in errors.
    ///
    /// # Errors
    /// A tensor is missing, left over, or of another shape.
    fn restore(
        &mut self,
        weights: Vec<NamedTensor>,
        optimizer: (u64, Vec<NamedTensor>),
        source: &str,
    ) -> Result<()>;

    /// Whether every parameter is finite.
    fn is_finite(&self) -> bool;

    /// The model at its present weights, held in `dtype`, as a proposer, if it is a drafter.
    fn proposer(&self, dtype: DType) -> Option<Box<dyn Proposer>>;
}

/// A model with its objective and optimiser.
pub struct Trainee<M: Module, O> {
    /// Taken out during an update only: see [`Train::update`].
    model: Option<M>,
    objective: O,
    optimizer: Optimizer,
    /// The mean of the weights, where it is what comes of the training.
    average: Option<Average>,
    gradients: Gradients,
    /// Which parameters it moves, where there are several ranks.
    shard: Option<Shard>,
    /// What `gradients` are the mean over.
    counted: f64,
    /// Whether a pass casts each weight once: see [`casts_once`].
    is_cast_once: bool,
    propose: fn(M, DType) -> Option<Box<dyn Proposer>>,
}

impl<M: Module, O: Objective<M>> Trainee<M, O> {
    /// Puts `model`, whose parameters are on an autodiff device, in training.
    ///
    /// # Panics
    /// They are not: no gradient would come of any batch.
    pub fn new(model: M, objective: O, optimizer: OptimizerConfig) -> Self {
        let devices = model.devices();
        assert!(
            !devices.is_empty() && devices.iter().all(Device::is_autodiff),
            "a model in training: expected parameters on a device with autodiff (`Device::autodiff`), found {devices:?}"
        );
        Self {
            is_cast_once: is_cast_once(&model),
            model: Some(model),
            objective,
            average: (optimizer.average > 0.0).then(|| Average::new(optimizer.average)),
            optimizer: Optimizer::new(optimizer),
            gradients: Gradients::default(),
            shard: None,
            counted: 0.0,
            propose: |_, _| None,
        }
    }

    /// The model that comes of the training so far, out of the graph: at its present weights, or at their mean.
    pub fn model(&self) -> M {
        let model = self.held().valid();
        match &self.average {
            Some(average) => average.of(model),
            None => model,
        }
    }

    /// The mean of the gradients so far.
    pub fn gradients(&self) -> &Gradients {
        &self.gradients
    }

    fn held(&self) -> &M {
        match &self.model {
            Some(model) => model,
            None => unreachable!("an update puts the model back"),
        }
    }

    fn device(&self) -> Device {
        self.held().devices().remove(0)
    }
}

impl<D: Drafter + 'static, O: Objective<D>> Trainee<D, O>
where
    D::State: 'static,
{
    /// Puts a drafter in training.
    ///
    /// # Panics
    /// Its parameters are on a device without autodiff, or [units](Drafter::units) are of a matrix that the drafter does not train, or
    /// that has another number of inputs.
    pub fn drafter(model: D, objective: O, optimizer: OptimizerConfig) -> Self {
        let units = D::units(model.config(), model.target());
        let mut trainee = Self::new(model, objective, optimizer);
        check_units(trainee.held(), &units);
        let device = trainee.device().without_autodiff();
        trainee.optimizer = trainee.optimizer.with_units(units, &device);
        trainee.propose = |drafter, dtype| Some(Box::new(Session::new(held_in(drafter, dtype))));
        trainee
    }
}

/// Whether passes over a batch hold copies of so many weights in the type that they compute in: unless most of them are frozen, as those
/// that low-rank matrices are trained beside. These are multiplied with only twice, and copies of a whole language model take gigabytes.
pub fn casts_once(trained: u64, frozen: u64) -> bool {
    trained >= frozen
}

/// The same of a model's weights.
fn is_cast_once(model: &impl Module) -> bool {
    let mut trained = 0;
    walk(model, |_, values| trained += values.shape().num_elements());
    casts_once(trained as u64, (model.num_params() - trained) as u64)
}

/// That a model is to be updated with ranks of which none has a part of it.
fn unshared(ranks: &dyn Ranks) -> Error {
    let (rank, count) = (ranks.rank(), ranks.count());
    let what = format!(
        "updates a model together with others and has no part of it: `Train::share({rank}, {count})` comes first"
    );
    Error::rank(rank, &what)
}

/// Units of what is no matrix of the drafter would be of no effect.
fn check_units<D: Drafter>(model: &D, units: &[Units]) {
    let mut elements = BTreeMap::new();
    if !units.is_empty() {
        walk(model, |name, values| {
            elements.insert(name, values.shape().num_elements());
        });
    }
    for (name, units) in units {
        let found = elements.get(name).copied().unwrap_or_default();
        assert!(
            found > 0 && found % units.len() == 0,
            "units of `{name}`: expected a trained matrix of {} inputs, found {found} elements",
            units.len()
        );
    }
}

impl<M: Module, O: Objective<M>> Train for Trainee<M, O> {
    fn accumulate_as_measured(&mut self, batch: &Batch, statistics: Statistics) -> Loss {
        let _casts = self.is_cast_once.then(CastOnce::begin);
        let batch = batch.lift(&self.device());
        let mut loss = self.objective.loss(self.held(), &batch, statistics);
        // A batch in which no position counts touches no parameter.
        let graph = loss.surrogate.is_tracked();
        let graph = graph.then(|| loss.surrogate.backward());
        // The graph holds the activations.
        loss.surrogate = loss.surrogate.without_autodiff();
        let heads = std::mem::take(&mut loss.head_gradients);
        let mut gradients = std::mem::take(&mut loss.gradients);
        gradients.add(self.held(), graph, heads);
        if loss.counted > 0.0 {
            self.counted += loss.counted;
            self.gradients
                .average_in(gradients, loss.counted / self.counted);
        }
        loss
    }

    fn share(&mut self, rank: usize, ranks: usize) {
        self.shard = Some(Shard::of(self.held(), rank, ranks));
    }

    fn update_together(
        &mut self,
        learning_rate: f64,
        clip: f64,
        ranks: Option<&mut dyn Ranks>,
    ) -> Result<Option<Tensor<1>>> {
        let mut together = match (&self.shard, ranks) {
            (_, None) => None,
            (Some(shard), Some(ranks)) if shard.is_of(ranks) => Some((shard, ranks)),
            (_, Some(ranks)) => return Err(unshared(ranks)),
        };
        let device = self.device().without_autodiff();
        let mut gradients = std::mem::take(&mut self.gradients);
        let counted = std::mem::take(&mut self.counted);
        let norm = match &mut together {
            None => gradients.norm(),
            Some((shard, ranks)) => {
                gradients = shard.mean(*ranks, gradients, counted, &device)?;
                shard.norm(*ranks, &mut gradients, &device)?
            }
        };
        let Some(norm) = norm else {
            return Ok(None);
        };
        if clip > 0.0 {
            gradients.clip(norm.clone(), clip);
        }
        // Moved out and back, so that nobody else holds the weights and they are updated in place.
        if let Some(model) = self.model.take() {
            self.model = Some(self.optimizer.update(model, gradients, learning_rate));
        }
        if let Some((shard, ranks)) = &mut together {
            let others = shard.moved_by_others(*ranks, self.held(), &device)?;
            self.model = self.model.take().map(|model| with_values(model, others));
        }
        if let Some(average) = &mut self.average
            && let Some(model) = &self.model
        {
            average.take(model, self.optimizer.updates());
        }
        Ok(Some(norm))
    }

    fn on_policy_fraction(&self) -> f64 {
        self.objective.on_policy_fraction()
    }

    fn rewrite(&self, rows: &Rows, stop: &[u32], seed: u64) -> Option<Rows> {
        self.objective.rewrite(&self.model(), rows, stop, seed)
    }

    fn measure(&self, batch: &Batch) -> LossReport {
        let _casts = self.is_cast_once.then(CastOnce::begin);
        self.objective
            .loss(&self.model(), batch, Statistics::All)
            .report()
    }

    fn weights(&self) -> Vec<NamedTensor> {
        export(&self.model())
    }

    fn optimizer(&self) -> (u64, Vec<NamedTensor>) {
        let (updates, mut tensors) = self.optimizer.state();
        if self.average.is_some() && self.shard.as_ref().is_none_or(Shard::leads) {
            tensors.extend(Average::own(self.held()));
        }
        (updates, tensors)
    }

    fn restore(
        &mut self,
        weights: Vec<NamedTensor>,
        (updates, mut optimizer): (u64, Vec<NamedTensor>),
        source: &str,
    ) -> Result<()> {
        let mut model = import(self.held().clone(), weights, source)?;
        let device = self.device().without_autodiff();
        if let Some(average) = &mut self.average {
            model = average.restore(model, &mut optimizer, &device)?;
            if updates == 0 {
                // There is no mean before the first step.
                average.clear();
            }
        }
        self.model = Some(model);
        if let Some(shard) = &self.shard {
            optimizer.retain(|state| shard.moves(parameter_of(&state.name)));
        }
        self.optimizer.restore(updates, optimizer, &device)
    }

    fn is_finite(&self) -> bool {
        struct Sum(Option<Tensor<1>>);
        impl burn::module::ModuleVisitor for Sum {
            fn visit_float<const D: usize>(&mut self, param: &burn::module::Param<Tensor<D>>) {
                let sum = param.val().without_autodiff().cast(DType::F32).sum();
                self.0 = Some(match self.0.take() {
                    Some(before) => before + sum,
                    None => sum,
                });
            }
        }
        let mut sum = Sum(None);
        self.held().visit(&mut sum);
        sum.0.is_none_or(|sum| host_f32(sum)[0].is_finite())
    }

    fn proposer(&self, dtype: DType) -> Option<Box<dyn Proposer>> {
        (self.propose)(self.model(), dtype)
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use spectrain_models::device::test_device;

    use super::*;

    #[test]
    fn no_copies_are_held_of_a_model_most_of_which_is_frozen() {
        let layer = |d_out| LinearConfig::new(8, d_out).init(&test_device().autodiff());
        let both = |frozen: usize, trained: usize| -> Vec<Linear> {
            vec![layer(frozen).no_grad(), layer(trained)]
        };
        assert!(!is_cast_once(&both(64, 4)));
        assert!(is_cast_once(&both(4, 64)));
    }
}

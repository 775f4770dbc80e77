//! An exponential mean of the weights over the steps (Polyak averaging with a decay, as in
//! <https://arxiv.org/abs/2411.18704>): what is validated, saved and exported in place of the weights themselves.
use std::collections::BTreeMap;

use burn::module::Module;
use burn::prelude::*;
use spectrain_checkpoints::{Mismatch, NamedTensor};
use spectrain_models::weights::{host_f32, tensor_from};

use crate::error::{Error, Result};
use crate::parameters::{replaced, walk};

/// What a checkpoint calls the weights themselves, beside their mean.
const OWN: &str = "own";

/// The mean of each parameter under its name, flat, f32.
#[derive(Debug)]
pub(crate) struct Average {
    decay: f64,
    means: BTreeMap<String, Tensor<1>>,
}

impl Average {
    /// Of nothing yet.
    pub(crate) fn new(decay: f64) -> Self {
        Self {
            decay,
            means: BTreeMap::new(),
        }
    }

    /// Takes in the weights behind step number `step`, from 1 on. The first steps are not to be remembered for long, so the decay is
    /// `(1 + step) / (10 + step)` until it is as large as wanted.
    pub(crate) fn take<M: Module>(&mut self, module: &M, step: u64) {
        let step = step as f64;
        let decay = self.decay.min((1.0 + step) / (10.0 + step));
        walk(module, |name, own| {
            let mean = match self.means.remove(&name) {
                Some(mean) => mean.clone() + (own - mean) * (1.0 - decay),
                None => own,
            };
            self.means.insert(name, mean);
        });
    }

    /// Forgets what was taken in.
    pub(crate) fn clear(&mut self) {
        self.means.clear();
    }

    /// `module`, in no graph, with the means for its weights.
    pub(crate) fn of<M: Module>(&self, module: M) -> M {
        replaced(module, |name, own| match self.means.get(name) {
            Some(mean) => mean.clone(),
            None => own,
        })
    }

    /// The weights themselves, for a checkpoint that has the means in their place.
    pub(crate) fn own<M: Module>(module: &M) -> Vec<NamedTensor> {
        let mut tensors = Vec::new();
        walk(module, |name, own| {
            let values = host_f32(own);
            tensors.push(NamedTensor::from_f32(
                format!("{name}.{OWN}"),
                [values.len()],
                values,
            ));
        });
        tensors
    }

    /// Takes up what a checkpoint has: the means are those of `module`, which it returns with the weights themselves; these are taken
    /// out of `tensors`.
    ///
    /// # Errors
    /// Those of a parameter are missing or too many.
    pub(crate) fn restore<M: Module>(
        &mut self,
        module: M,
        tensors: &mut Vec<NamedTensor>,
        device: &Device,
    ) -> Result<M> {
        self.means.clear();
        walk(&module, |name, mean| {
            self.means.insert(name, mean);
        });
        let is_own = |tensor: &mut NamedTensor| {
            tensor
                .name
                .rsplit_once('.')
                .is_some_and(|(_, part)| part == OWN)
        };
        let mut found: BTreeMap<String, NamedTensor> = tensors
            .extract_if(.., is_own)
            .map(|tensor| (tensor.name.clone(), tensor))
            .collect();
        let mut missing = None;
        let module = replaced(module, |name, mean| {
            if !self.means.contains_key(name) {
                return mean;
            }
            let name = format!("{name}.{OWN}");
            let length = mean.dims()[0];
            match found.remove(&name) {
                Some(own) if own.shape == [length] => tensor_from(own, device),
                other => {
                    let got = other.map_or("none".into(), |own| format!("{:?}", own.shape));
                    let expected = format!("`{name}` of shape [{length}]");
                    missing.get_or_insert(Mismatch::new(expected, got));
                    mean
                }
            }
        });
        let mismatch = match (missing, found.pop_first()) {
            (Some(mismatch), _) => mismatch,
            (None, Some((name, _))) => Mismatch::new("weights of the model's parameters", name),
            (None, None) => return Ok(module),
        };
        Err(Error::State {
            path: "optimizer".into(),
            mismatch,
        })
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use spectrain_models::device::test_device;

    use super::*;

    fn values(linear: &Linear) -> Vec<f32> {
        host_f32(linear.weight.val())
    }

    fn times(linear: &Linear, factor: f64) -> Linear {
        replaced(linear.clone(), |_, x| x * factor)
    }

    #[test]
    fn the_mean_forgets_by_its_decay_and_its_first_steps_sooner() {
        let first = LinearConfig::new(2, 3).init(&test_device().autodiff());
        let mut average = Average::new(0.5);
        average.take(&first, 1);
        assert_eq!(values(&average.of(first.clone())), values(&first));
        // Behind step 2 the decay is 3 / 12, behind step 20 the wanted one.
        average.take(&times(&first, 5.0), 2);
        let close = |found: Vec<f32>, factor: f32| {
            for (found, of_first) in found.iter().zip(values(&first)) {
                assert!(
                    (found - of_first * factor).abs() < 1e-6,
                    "{found} {of_first}"
                );
            }
        };
        close(values(&average.of(first.clone())), 4.0);
        average.take(&times(&first, 2.0), 20);
        close(values(&average.of(first.clone())), 3.0);
    }

    #[test]
    fn a_checkpoint_has_both_and_says_what_it_lacks() {
        let device = test_device();
        let own = LinearConfig::new(2, 3).init(&device.clone().autodiff());
        let mut average = Average::new(0.9);
        average.take(&times(&own, 3.0), 1);
        let saved = average.of(own.valid());
        let mut tensors = Average::own(&own);
        tensors.push(NamedTensor::from_f32("weight.first", [1], vec![0.0]));
        let mut restored = Average::new(0.9);
        let lifted = times(&own, 3.0);
        let found = restored
            .restore(lifted.clone(), &mut tensors.clone(), &device)
            .unwrap();
        assert_eq!(values(&found), values(&own));
        assert!(found.weight.val().is_require_grad());
        assert_eq!(values(&restored.of(found.valid())), values(&saved));
        tensors.retain(|tensor| tensor.name != "bias.own");
        let error = restored.restore(lifted, &mut tensors, &device).unwrap_err();
        assert!(error.to_string().contains("bias.own"), "{error}");
    }
}

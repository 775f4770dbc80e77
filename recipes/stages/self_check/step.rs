//! A step of a drafter on a device, beside the CPU.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use burn::tensor::DType as BurnDType;
use spectrain_checkpoints::DType;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::{Capture, Features, Target as _, TargetParts, Transformer};
use spectrain_train::{Batch, Objective, Statistics, Train as _, TrainConfig, Trainee};

use crate::families::shipped::Shipped;
use crate::runtime::device::graph_device;
use crate::stages::self_check::compare::{Tolerance, Wrong, cosine, norm};

/// Gradients below this share of the largest one's norm are rounding.
const SMALL: f64 = 1e-4;

/// What a step is.
pub(super) struct Step {
    loss: f64,
    /// By the name of the parameter.
    gradients: BTreeMap<String, Vec<f32>>,
}

impl Step {
    /// Of an untrained drafter on the device of `parts`, which computes in `compute`.
    pub(super) fn of<D: Shipped, O: Objective<D>>(
        (drafter, objective): (&D::Config, O),
        (parts, vocabulary): (&TargetParts, &DraftVocabulary),
        config: &TrainConfig,
        (batch, compute): (&Batch, DType),
    ) -> Result<Self>
    where
        D::State: 'static,
    {
        let device = parts.embed_tokens.weight.device();
        let compute = match compute {
            DType::BF16 => BurnDType::BF16,
            _ => BurnDType::F32,
        };
        let mut here = Batch::new(batch.rows.clone(), &device);
        here.features = batch.features.as_ref().map(|features| Features {
            captured: features.captured.clone().to_device(&device).cast(compute),
            last: features.last.clone().to_device(&device).cast(compute),
        });
        let fresh = D::fresh(
            drafter,
            parts,
            vocabulary,
            0,
            &graph_device(&device, config),
        )?;
        let mut trainee = Trainee::drafter(fresh, objective, config.optimizer());
        let loss = trainee
            .accumulate_as_measured(&here, Statistics::All)
            .report()
            .total;
        Ok(Self {
            loss,
            gradients: trainee.gradients().to_host(),
        })
    }

    /// How well it is what is `expected`, in words; or in what it is not.
    pub(super) fn agrees(&self, expected: &Self, tolerance: Tolerance) -> Result<String> {
        let (found, own) = (self.loss, expected.loss);
        // Written so that NaN fails.
        let agrees = (found - own).abs() <= tolerance.loss * own.abs().max(1e-3);
        if !agrees {
            let what = format!(
                "the loss of a step: expected {own}, which the CPU computes, found {found}"
            );
            return Err(Wrong(what).into());
        }
        let norms = expected.gradients.values().map(|values| norm(values));
        let largest = norms.fold(0.0, f64::max);
        if largest == 0.0 {
            bail!("the step has no gradient, so it shows nothing");
        }
        let mut least: f64 = 1.0;
        for (name, values) in &expected.gradients {
            // Rounding sends a row to another expert where two are almost as good, and few rows go to each.
            if name.contains(".experts.") {
                continue;
            }
            let Some(found) = self.gradients.get(name) else {
                return Err(Wrong(format!("the device gives no gradient of `{name}`")).into());
            };
            if norm(values) < SMALL * largest {
                continue;
            }
            let cosine = cosine(found, values);
            let agrees = cosine >= tolerance.cosine;
            if !agrees {
                let what = format!(
                    "the gradient of `{name}` has a cosine of only {cosine:.4} with the CPU's"
                );
                return Err(Wrong(what).into());
            }
            least = least.min(cosine);
        }
        Ok(format!(
            "loss {found:.5} and {own:.5}, cosines of {} gradients at least {least:.4}",
            expected.gradients.len()
        ))
    }
}

/// Does a step over a whole batch of texts on the device: its loss must be a number. What is tuned for such shapes is tuned here,
/// by one thread.
pub(super) fn check_real_step<D: Shipped, O: Objective<D>>(
    step: (&D::Config, O),
    (target, capture, vocabulary): (&Transformer, &Capture, &DraftVocabulary),
    config: &TrainConfig,
    mut batch: Batch,
) -> Result<()>
where
    D::State: 'static,
{
    let features = target.features(batch.tokens.clone(), &batch.layout, capture);
    let dtype = match target.dtype() {
        BurnDType::BF16 => DType::BF16,
        _ => DType::F32,
    };
    batch.features = Some(features);
    let found = Step::of::<D, O>(step, (&target.parts(), vocabulary), config, (&batch, dtype))?;
    match found.loss {
        loss if loss.is_finite() => Ok(()),
        loss => Err(Wrong(format!("the loss of a step over a whole batch is {loss}")).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_differs_is_told_with_the_parameter() {
        let step = |loss: f64, gradient: [f32; 2]| Step {
            loss,
            gradients: BTreeMap::from([
                ("fc.weight".to_owned(), gradient.to_vec()),
                ("tiny".to_owned(), vec![1e-9]),
            ]),
        };
        let (expected, tolerance) = (step(7.0, [1.0, 2.0]), Tolerance::of(DType::F32));
        assert!(expected.agrees(&expected, tolerance).is_ok());
        for (found, word) in [
            (step(7.5, [1.0, 2.0]), "the loss"),
            (step(f64::NAN, [1.0, 2.0]), "the loss"),
            (step(7.0, [1.0, -2.0]), "`fc.weight`"),
            (step(7.0, [1.0, f32::NAN]), "`fc.weight`"),
        ] {
            let told = found.agrees(&expected, tolerance).unwrap_err().to_string();
            assert!(told.contains(word), "{told}");
        }
        let nothing = step(7.0, [0.0, 0.0]);
        let nothing = Step {
            gradients: nothing
                .gradients
                .into_keys()
                .map(|name| (name, vec![0.0]))
                .collect(),
            ..nothing
        };
        assert!(nothing.agrees(&nothing, tolerance).is_err());
    }
}

//! Before training on a GPU: one step of the drafter and one decode there must give what the CPU gives.
//!
//! Wrong kernels have been seen to return plausible numbers; a run on them would waste days.

use anyhow::{Result, bail};
use burn::prelude::Device;
use burn::tensor::DType as BurnDType;
use rand::{Rng, SeedableRng, rngs::StdRng};
use spectrain_checkpoints::{DType, ModelFolder};
use spectrain_data::packing::{PackedBatch, layout};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::weights::host_f32;
use spectrain_models::{Caches, Capture, LogitRows, Pass, Target, Transformer, chain, load_target};
use spectrain_train::{Batch, Objective, Rows, Statistics, Train, Trainee};

use crate::families::shipped::Shipped;
use crate::runtime::device::graph_device;
use crate::stages::context::StageContext;

/// Tokens of the text that is compared.
const LENGTH: usize = 64;
/// Largest relative difference in f32.
const TOLERANCE_F32: f64 = 2e-3;
/// Largest relative difference in bf16, whose numbers carry three digits.
const TOLERANCE_BF16: f64 = 6e-2;

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probe {
    /// Loss of one step.
    pub loss: f64,
    /// Norm of its gradient.
    pub gradient_norm: f64,
    /// Root mean square of the target's logits after a decode over a cache.
    pub logits: f64,
}

/// Compares the device with the CPU, and fails where they differ.
pub fn run<D: Shipped, O: Objective<D>>(
    context: &StageContext,
    target: &Transformer,
    capture: &Capture,
    drafter: &D::Config,
    objective: &dyn Fn() -> Result<O>,
) -> Result<()>
where
    D::State: 'static,
{
    let model = ModelFolder::open(context.target_folder()?)?;
    let on_cpu = load_target(&model, &Device::flex(), DType::F32)?;
    let cpu = probe::<D, O>(context, &on_cpu, capture, drafter, objective)?;
    drop(on_cpu);
    let there = probe::<D, O>(context, target, capture, drafter, objective)?;
    let tolerance = match context.dtype {
        DType::F32 => TOLERANCE_F32,
        _ => TOLERANCE_BF16,
    };
    compare(&context.device_name, cpu, there, tolerance)?;
    context.output.say(format!(
        "self-check: {} agrees with the CPU: loss {:.5} and {:.5}, gradient norm {:.5} and {:.5}",
        context.device_name, there.loss, cpu.loss, there.gradient_norm, cpu.gradient_norm
    ));
    Ok(())
}

fn compare(name: &str, cpu: Probe, there: Probe, tolerance: f64) -> Result<()> {
    if cpu.gradient_norm == 0.0 {
        bail!("self-check: the step has no gradient, so it shows nothing");
    }
    let figures = [
        ("the loss of a step", cpu.loss, there.loss),
        (
            "the norm of its gradient",
            cpu.gradient_norm,
            there.gradient_norm,
        ),
        ("the target's logits", cpu.logits, there.logits),
    ];
    for (what, expected, got) in figures {
        // Written so that NaN fails.
        let agrees = (got - expected).abs() <= tolerance * expected.abs().max(1e-3);
        if !agrees {
            bail!(
                "self-check: {what}: the CPU gives {expected}, {name} gives {got}; it computes wrongly and cannot be trained on"
            );
        }
    }
    Ok(())
}

fn probe<D: Shipped, O: Objective<D>>(
    context: &StageContext,
    target: &Transformer,
    capture: &Capture,
    drafter: &D::Config,
    objective: &dyn Fn() -> Result<O>,
) -> Result<Probe>
where
    D::State: 'static,
{
    let device = target.device();
    let vocab = target.spec().vocab;
    let mut rng = StdRng::seed_from_u64(context.recipe.seed);
    let tokens: Vec<u32> = (0..LENGTH)
        .map(|_| rng.random_range(0..vocab as u32))
        .collect();
    let rows = text_rows(tokens.clone());
    let mut batch = Batch::new(rows, &device);
    let features = target.features(batch.tokens.clone(), &batch.layout, capture);
    batch.features = Some(features);

    let config = &context.recipe.train;
    // With every token proposable, every position counts on every device.
    let vocabulary = DraftVocabulary::full(vocab);
    let graph = graph_device(&device, config);
    let fresh = D::fresh(drafter, &target.parts(), &vocabulary, 0, &graph)?;
    let mut trainee = Trainee::drafter(fresh, objective()?, config.optimizer());
    let loss = trainee.accumulate(&batch, Statistics::All).report().total;
    let norm = trainee.update(config.learning_rate, 0.0);

    let mut caches = Caches::new(target.spec().layers, LENGTH);
    let mut last = Vec::new();
    for part in [&tokens[..LENGTH / 2], &tokens[LENGTH / 2..]] {
        let pass = Pass {
            tokens: part,
            parents: &chain(part.len()),
            logits: LogitRows::Last,
        };
        last = host_f32(
            target
                .decode(pass, &mut caches, capture)
                .logits
                .cast(BurnDType::F32),
        );
    }
    let squares: f64 = last.iter().map(|&logit| (logit as f64).powi(2)).sum();
    Ok(Probe {
        loss,
        gradient_norm: norm.map_or(0.0, |norm| host_f32(norm)[0] as f64),
        logits: (squares / last.len() as f64).sqrt(),
    })
}

/// One row that is one document, all of it in the loss mask.
fn text_rows(tokens: Vec<u32>) -> Rows {
    let packed = PackedBatch {
        rows: vec![vec![0]],
    };
    Rows {
        layout: layout(&packed, &[tokens.len()], tokens.len()),
        loss_mask: vec![true; tokens.len()],
        packed,
        tokens,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: Probe = Probe {
        loss: 7.0,
        gradient_norm: 2.0,
        logits: 1.0,
    };

    #[test]
    fn a_device_that_differs_or_gives_nan_is_refused() {
        assert!(compare("cuda:0", CPU, CPU, 1e-3).is_ok());
        let wrong = Probe {
            gradient_norm: 2.5,
            ..CPU
        };
        assert!(compare("cuda:0", CPU, wrong, 1e-3).is_err());
        let nan = Probe {
            loss: f64::NAN,
            ..CPU
        };
        assert!(compare("cuda:0", CPU, nan, 1e-3).is_err());
    }
}

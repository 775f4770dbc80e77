//! Training steps on random data.
use anyhow::Result;
use burn::prelude::*;
use burn::tensor::{DType as BurnDType, Distribution};
use spectrain_checkpoints::DType;
use spectrain_models::dflash::{DFlash, DFlashConfig};
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_models::medusa::{Medusa, MedusaConfig};
use spectrain_models::pard::{Pard, PardConfig};
use spectrain_models::{Drafter, Features, FreshConfig, TargetParts, TargetSpec};
use spectrain_train::{
    BlockLoss, BlockLossConfig, HeadsLoss, HeadsLossConfig, MaskAlign, Objective, OutOfVocab,
    PardLoss, PardLossConfig, Reduction, SlotWeights, Statistics, Step, Train, TrainConfig,
    Trainee, TrainingTimeTest, TrainingTimeTestConfig,
};

use super::sizes::{Setup, Sizes, Work, batch, target};

/// Draft steps that EAGLE-3 is unrolled over.
const UNROLLED: usize = 7;
/// Layers of the target that a drafter reads.
const CAPTURED: [usize; 3] = [1, 3, 5];
/// What stands for tokens to come.
const MASK: u32 = 0;

pub(super) fn eagle3(setup: &Setup, sizes: &Sizes) -> Result<Work> {
    let objective = TrainingTimeTestConfig {
        draft_steps: UNROLLED,
        divergence: setup.divergence.clone(),
        recompute: setup.recompute,
        mask_align: MaskAlign::Feature,
        reduction: Reduction::All,
        // Of random numbers the likeliest token is seldom among those of a draft vocabulary; of a target's it nearly always is.
        out_of_vocab: OutOfVocab::Keep,
        ..Default::default()
    };
    step::<Eagle3, TrainingTimeTest>(setup, sizes, &Eagle3Config::default(), &objective)
}

pub(super) fn medusa(setup: &Setup, sizes: &Sizes) -> Result<Work> {
    let (drafter, objective) = (MedusaConfig::default(), HeadsLossConfig::default());
    step::<Medusa, HeadsLoss>(setup, sizes, &drafter, &objective)
}

pub(super) fn dflash(setup: &Setup, sizes: &Sizes) -> Result<Work> {
    let drafter = DFlashConfig {
        layers: 2,
        block_size: 8,
        mask_token: Some(MASK),
        captured_layers: CAPTURED.to_vec(),
        ..Default::default()
    };
    let objective = BlockLossConfig {
        anchors: 32,
        slot_weights: SlotWeights::Exponential,
        ..Default::default()
    };
    step::<DFlash, BlockLoss>(setup, sizes, &drafter, &objective)
}

pub(super) fn pard(setup: &Setup, sizes: &Sizes) -> Result<Work> {
    let drafter = PardConfig {
        mask_token: Some(MASK),
        fresh: Some(FreshConfig::default()),
        ..Default::default()
    };
    step::<Pard, PardLoss>(setup, sizes, &drafter, &PardLossConfig::default())
}

/// A step on one batch: gradients, clipping, AdamW.
fn step<D, O>(
    setup: &Setup,
    sizes: &Sizes,
    drafter: &D::Config,
    objective: &O::Config,
) -> Result<Work>
where
    D: Drafter + 'static,
    D::State: 'static,
    O: Objective<D> + 'static,
{
    let parts = parts(sizes, &setup.device)?;
    let drafter = D::fresh(drafter, &parts, &sizes.vocabulary()?, 3, &setup.graph)?;
    let settings = TrainConfig::default();
    let mut trainee = Trainee::drafter(drafter, O::new(objective)?, settings.optimizer());
    let mut batch = batch(sizes, &setup.device);
    batch.features = Some(features(sizes, &setup.device));
    // The steps of a training in which no weight changes are alike, but for what is drawn.
    let first = Step { number: 0, of: 1 };
    let mut seed = 0;
    Ok(Box::new(move || {
        // What is drawn is drawn anew for each step.
        seed += 1;
        let drawn = batch.clone().in_training(seed, first);
        let loss = trainee.accumulate(&drawn, Statistics::Loss);
        trainee.update(settings.learning_rate, settings.max_grad_norm);
        let loss = loss.report().total;
        anyhow::ensure!(loss.is_finite(), "the loss is {loss}");
        Ok(())
    }))
}

/// The target's frozen pieces: its layers take no part in a step.
fn parts(sizes: &Sizes, device: &Device) -> Result<TargetParts> {
    let small = TargetSpec {
        layers: 0,
        ..sizes.spec.clone()
    };
    let mut parts = target(&small, sizes.held.dtype.into(), device)?.parts();
    parts.spec = sizes.spec.clone();
    Ok(parts)
}

/// Random hidden states of three layers and of the last.
fn features(sizes: &Sizes, device: &Device) -> Features {
    let compute = match sizes.held.dtype {
        DType::BF16 => BurnDType::BF16,
        _ => BurnDType::F32,
    };
    let random = |width: usize| {
        let shape = [sizes.rows, sizes.length, width];
        Tensor::<3>::random(shape, Distribution::Normal(0.0, 1.0), (device, compute))
    };
    Features {
        captured: random(CAPTURED.len() * sizes.spec.d_model),
        last: random(sizes.spec.d_model),
    }
}

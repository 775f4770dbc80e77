//! A drafter that has overfitted the target's own text must draft nearly all of it: an off-by-one between training and
//! decoding leaves the output right and shows only here.
use rand::{SeedableRng, rngs::StdRng};
use spectrain_data::Sample;
use spectrain_eval::{DecodeSettings, Decoder, Greedy};
use spectrain_models::device::test_device;
use spectrain_models::dflash::{DFlash, DFlashConfig, LatticeTable};
use spectrain_models::eagle1::{Eagle1, Eagle1Config};
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_models::language_model::{LanguageModel, LanguageModelConfig};
use spectrain_models::pard::{Pard, PardConfig};
use spectrain_models::{DraftShape, Drafter, FreshConfig, Sampling, Session, Target as _};
use spectrain_train::{
    BatchSource, BlockLoss, BlockLossConfig, Distill, DistillConfig, FeatureRegression,
    FeatureRegressionConfig, Objective, PardLoss, PardLossConfig, Statistics, Train, TrainConfig,
    Trainee, TrainingTimeTest, TrainingTimeTestConfig,
};

use crate::tiny;

const LENGTH: usize = 3;
const NEW_TOKENS: usize = 48;

fn overfitted_drafts_almost_everything<D, O>(config: &D::Config, objective: &O::Config)
where
    D: Drafter + 'static,
    O: Objective<D>,
{
    let device = test_device();
    let target = tiny::target(&device);
    let capture = D::capture(config, target.spec()).unwrap();
    let decoder = Decoder::new(&target, &capture);
    let settings = DecodeSettings {
        max_new_tokens: NEW_TOKENS,
        draft: DraftShape::Chain { length: LENGTH },
        sampling: Sampling::GREEDY,
        stop: Vec::new(),
        shadow: None,
    };
    let prompt = [1, 2, 3, 4];
    let mut rng = StdRng::seed_from_u64(0);
    let plain = decoder.plain(&prompt, &settings, &mut rng).unwrap();
    let tokens: Vec<u32> = prompt.iter().chain(&plain.tokens).copied().collect();
    let sample = Sample {
        loss_mask: (0..tokens.len())
            .map(|position| position >= prompt.len())
            .collect(),
        tokens,
    };

    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &[sample], 1);
    let mut source = tiny::live(samples.clone(), &target, capture.clone());
    let batch = source.batch(samples.epoch(0).unwrap().remove(0)).unwrap();
    let drafter: D = tiny::fresh(config, &target, &device.clone().autodiff());
    let objective = O::new(objective).unwrap();
    let mut trainee = Trainee::drafter(drafter, objective, TrainConfig::default().optimizer());
    let first = trainee.measure(&batch);
    for _ in 0..150 {
        trainee.accumulate_as_measured(&batch, Statistics::Loss);
        trainee.update(5e-3, 1.0);
    }
    let last = trainee.measure(&batch);
    assert!(
        last.total < 0.3 * first.total,
        "loss {} -> {}",
        first.total,
        last.total
    );

    let mut session = Session::new(trainee.model());
    let drafted = decoder
        .generate(&mut session, &Greedy, &prompt, &settings, &mut rng)
        .unwrap();
    assert_eq!(
        drafted.tokens, plain.tokens,
        "speculation must not change greedy output"
    );
    let emitted: usize = drafted.passes.iter().map(|pass| pass.emitted).sum();
    let tau = emitted as f64 / drafted.passes.len() as f64;
    assert!(
        tau > 0.9 * (LENGTH + 1) as f64,
        "τ {tau} of at most {}",
        LENGTH + 1
    );
}

#[test]
fn an_overfitted_eagle3_drafts_almost_everything() {
    let objective = TrainingTimeTestConfig {
        draft_steps: LENGTH,
        ..Default::default()
    };
    let config = Eagle3Config::default();
    overfitted_drafts_almost_everything::<Eagle3, TrainingTimeTest>(&config, &objective);
}

#[test]
fn an_overfitted_eagle1_drafts_almost_everything() {
    let (config, objective) = (Eagle1Config::default(), FeatureRegressionConfig::default());
    overfitted_drafts_almost_everything::<Eagle1, FeatureRegression>(&config, &objective);
}

#[test]
fn an_overfitted_hass_drafts_almost_everything() {
    let objective = FeatureRegressionConfig {
        passes: LENGTH,
        // Its value has the entropy of the target in it, which no training takes away.
        top_k_weight: 0.1.into(),
        ..Default::default()
    };
    let config = Eagle1Config::default();
    overfitted_drafts_almost_everything::<Eagle1, FeatureRegression>(&config, &objective);
}

#[test]
fn an_overfitted_language_model_drafts_almost_everything() {
    let config = LanguageModelConfig {
        fresh: Some(FreshConfig::default()),
        ..Default::default()
    };
    let objective = DistillConfig::default();
    overfitted_drafts_almost_everything::<LanguageModel, Distill>(&config, &objective);
}

#[test]
fn an_overfitted_dflash_drafts_almost_everything() {
    let config = DFlashConfig {
        layers: 2,
        block_size: LENGTH + 1,
        mask_token: Some(47),
        ..Default::default()
    };
    let objective = BlockLossConfig::default();
    overfitted_drafts_almost_everything::<DFlash, BlockLoss>(&config, &objective);
}

#[test]
fn an_overfitted_dflash_2_drafts_almost_everything() {
    let config = DFlashConfig {
        layers: 2,
        block_size: LENGTH + 1,
        mask_token: Some(47),
        conv_taps: 2,
        conv_group: 4,
        selector_rank: 8,
        ..Default::default()
    };
    let objective = BlockLossConfig::default();
    overfitted_drafts_almost_everything::<DFlash, BlockLoss>(&config, &objective);
}

#[test]
fn an_overfitted_lilicorr_drafts_almost_everything() {
    let config = DFlashConfig {
        layers: 2,
        block_size: LENGTH + 1,
        mask_token: Some(47),
        lattice: Some(LatticeTable {
            d_model: 16,
            rank: 16,
            ..LatticeTable::default()
        }),
        ..Default::default()
    };
    let objective = BlockLossConfig::default();
    overfitted_drafts_almost_everything::<DFlash, BlockLoss>(&config, &objective);
}

#[test]
fn an_overfitted_dspark_drafts_almost_everything() {
    let config = DFlashConfig {
        layers: 2,
        block_size: LENGTH,
        mask_token: Some(47),
        sample_from_anchor: true,
        markov_rank: 8,
        confidence: true,
        ..Default::default()
    };
    let objective = BlockLossConfig::default();
    overfitted_drafts_almost_everything::<DFlash, BlockLoss>(&config, &objective);
}

#[test]
fn an_overfitted_pard_drafts_almost_everything() {
    for target_features in [false, true] {
        let config = PardConfig {
            fresh: Some(FreshConfig::default()),
            mask_token: Some(47),
            target_features,
            ..Default::default()
        };
        let objective = PardLossConfig {
            draft_tokens: LENGTH,
            keep: 1.0,
            confidence_weights: target_features,
            ..Default::default()
        };
        overfitted_drafts_almost_everything::<Pard, PardLoss>(&config, &objective);
    }
}

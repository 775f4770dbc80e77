//! The crates as a library: how a program of its own trains a drafter and decodes with it, and what it can get wrong, which is refused.
use burn::prelude::*;
use rand::{SeedableRng as _, rngs::StdRng};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_eval::{Acceptance, Counts, DecodeSettings, Decoder, Greedy};
use spectrain_models::deepseek_mtp::{DeepseekMtp, DeepseekMtpConfig, SigmoidExpertsTable};
use spectrain_models::device::test_device;
use spectrain_models::dflash::{DFlash, DFlashConfig};
use spectrain_models::eagle1::{Eagle1, Eagle1Config};
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_models::hydra::{Hydra, HydraConfig};
use spectrain_models::language_model::{LanguageModel, LanguageModelConfig};
use spectrain_models::masked_language_model::{MaskedLanguageModel, MaskedLanguageModelConfig};
use spectrain_models::medusa::{Medusa, MedusaConfig};
use spectrain_models::pard::{Pard, PardConfig};
use spectrain_models::peagle::{PEagle, PEagleConfig};
use spectrain_models::qwen_mtp::{QwenMtp, QwenMtpConfig};
use spectrain_models::redrafter::{Redrafter, RedrafterConfig};
use spectrain_models::{
    DraftShape, Drafter, EarlyLayersName, ExpertsTable, FreshConfig, Lora, NormConfig, Sampling,
    Session, Target as _, TrainingFree,
};
use spectrain_train::{
    Batch, BatchSource as _, Divergence, Factors, Objective, Order, Ranks, Result, Statistics,
    Step, Train as _, TrainConfig, Trainee, TrainingTimeTest, TrainingTimeTestConfig, Weight,
};

use crate::tiny;

/// Optimiser steps.
const STEPS: usize = 60;

#[test]
fn a_program_of_its_own_trains_a_drafter_and_decodes_with_it() {
    // The target. `spectrain_models::load_target` reads one from a folder.
    let device = test_device();
    let target = tiny::target(&device);

    // A drafter for it, on a device with autodiff, and the hidden states that it reads.
    let config = Eagle3Config::default();
    let capture = Eagle3::capture(&config, target.spec()).unwrap();
    let vocabulary = DraftVocabulary::full(target.spec().vocab);
    let graph = device.autodiff();
    let drafter = Eagle3::fresh(&config, &target.parts(), &vocabulary, 11, &graph).unwrap();

    // Texts, packed in rows, and what the target makes of them.
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &tiny::random_samples(4), 2);
    let mut source = tiny::live(samples.clone(), &target, capture.clone());

    // The steps of its training. `spectrain_train::fit` takes them with a log, validations and saved states.
    let mut trainee = in_training(drafter);
    let held = source.batch(samples.epoch(0).unwrap().remove(0)).unwrap();
    let before = trainee.measure(&held).total;
    let mut order = Order::from(samples.clone(), 0).unwrap();
    for number in 0..STEPS {
        let step = Step { number, of: STEPS };
        let batch = source.batch(order.advance().unwrap()).unwrap();
        let batch = batch.in_training(samples.step_seed(number), step);
        trainee.accumulate(&batch, Statistics::Loss);
        trainee.update(5e-3, 1.0);
    }
    let after = trainee.measure(&held).total;
    assert!(after < before, "loss {before} -> {after}");

    // Decoding with it: the target's own words, in fewer passes the better it drafts.
    let settings = DecodeSettings {
        max_new_tokens: 40,
        draft: DraftShape::Chain { length: 3 },
        sampling: Sampling::GREEDY,
        stop: Vec::new(),
        shadow: None,
    };
    let decoder = Decoder::new(&target, &capture);
    let (prompt, mut rng) = ([1, 2, 3, 4], StdRng::seed_from_u64(0));
    let mut session = Session::new(trainee.model());
    let drafted = decoder.generate(&mut session, &Greedy, &prompt, &settings, &mut rng);
    let drafted = drafted.unwrap();
    let plain = decoder.plain(&prompt, &settings, &mut rng).unwrap();
    assert_eq!(drafted.tokens, plain.tokens);
    let tau = Acceptance::of(&drafted.passes).tau().unwrap();
    assert!((1.0..=4.0).contains(&tau), "{tau}");
}

fn in_training(drafter: Eagle3) -> Trainee<Eagle3, TrainingTimeTest> {
    let config = TrainingTimeTestConfig::default();
    let objective = <TrainingTimeTest as Objective<Eagle3>>::new(&config).unwrap();
    Trainee::drafter(drafter, objective, TrainConfig::default().optimizer())
}

/// An untrained drafter in training on this device, and a batch for it.
fn begun(device: &Device) -> (Trainee<Eagle3, TrainingTimeTest>, Batch) {
    let target = tiny::target(&test_device());
    let config = Eagle3Config::default();
    let capture = tiny::eagle3_capture(&config, &target);
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &tiny::random_samples(3), 2);
    let batch = tiny::batch(&mut tiny::live(samples, &target, capture));
    (in_training(tiny::fresh(&config, &target, device)), batch)
}

#[test]
#[should_panic(expected = "expected a batch in a training step")]
fn no_step_is_taken_on_a_batch_of_a_validation() {
    let (mut trainee, batch) = begun(&test_device().autodiff());
    trainee.accumulate(&batch, Statistics::Loss);
}

#[test]
#[should_panic(expected = "expected parameters on a device with autodiff")]
fn no_model_is_trained_on_a_device_without_autodiff() {
    begun(&test_device());
}

/// The first of two ranks, which hears nothing of the other.
struct First;

impl Ranks for First {
    fn rank(&self) -> usize {
        0
    }

    fn count(&self) -> usize {
        2
    }

    fn send(&mut self, _: usize, _: &[u8]) -> Result<()> {
        unreachable!("nothing is sent")
    }

    fn receive(&mut self, _: usize) -> Result<Vec<u8>> {
        unreachable!("nothing is received")
    }

    fn exchange(&mut self, _: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        unreachable!("nothing is exchanged")
    }

    fn check(&mut self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_model_is_updated_with_those_ranks_alone_that_it_was_shared_with() {
    let (mut trainee, batch) = begun(&test_device().autodiff());
    let batch = batch.in_training(1, Step { number: 0, of: 1 });
    trainee.accumulate(&batch, Statistics::Loss);
    let refused = |trainee: &mut Trainee<_, _>| {
        let found = trainee.update_together(1e-3, 0.0, Some(&mut First));
        found.unwrap_err().to_string()
    };
    let told = "rank 0 updates a model together with others and has no part of it: `Train::share(0, 2)` comes first";
    assert_eq!(refused(&mut trainee), told);
    trainee.share(0, 3);
    assert_eq!(refused(&mut trainee), told);
    // The gradients are still there.
    assert!(trainee.update(1e-3, 0.0).is_some());
}

/// Fails unless settings are refused, with this key, before a parameter is made.
fn is_refused<D: Drafter>(config: &D::Config, key: &str) {
    let (device, family) = (test_device(), std::any::type_name::<D>());
    let target = tiny::target(&device);
    let vocabulary = DraftVocabulary::full(tiny::VOCAB);
    match D::fresh(config, &target.parts(), &vocabulary, 1, &device) {
        Err(error) => {
            let told = error.to_string();
            assert!(told.contains(&format!("`[drafter] {key}`")), "{told}");
        }
        Ok(_) => panic!("{family}: {key} is not refused"),
    }
}

#[test]
fn every_family_refuses_settings_that_make_no_sense() {
    // More than any model has.
    let many = 1 << 14;
    let fresh = Some(FreshConfig {
        layers: 0,
        ..Default::default()
    });
    is_refused::<Eagle1>(
        &Eagle1Config {
            heads: many,
            ..Default::default()
        },
        "heads",
    );
    is_refused::<Eagle3>(
        &Eagle3Config {
            layers: 0,
            ..Default::default()
        },
        "layers",
    );
    is_refused::<PEagle>(
        &PEagleConfig {
            layers: many,
            ..Default::default()
        },
        "layers",
    );
    is_refused::<LanguageModel>(
        &LanguageModelConfig {
            fresh: fresh.clone(),
            ..Default::default()
        },
        "fresh.layers",
    );
    is_refused::<Pard>(
        &PardConfig {
            fresh: fresh.clone(),
            mask_token: Some(40),
            ..Default::default()
        },
        "fresh.layers",
    );
    is_refused::<MaskedLanguageModel>(
        &MaskedLanguageModelConfig {
            fresh,
            mask_token: Some(40),
            separator_token: Some(41),
            ..Default::default()
        },
        "fresh.layers",
    );
    refuse_blocks_and_heads(many);
}

fn refuse_blocks_and_heads(many: usize) {
    is_refused::<DFlash>(
        &DFlashConfig {
            block_size: 1,
            mask_token: Some(40),
            ..Default::default()
        },
        "block_size",
    );
    is_refused::<Medusa>(
        &MedusaConfig {
            medusa_heads: 0,
            ..Default::default()
        },
        "medusa_heads",
    );
    is_refused::<Hydra>(
        &HydraConfig {
            hydra_heads: 0,
            ..Default::default()
        },
        "hydra_heads",
    );
    is_refused::<Redrafter>(
        &RedrafterConfig {
            head_layers: 0,
            ..Default::default()
        },
        "head_layers",
    );
    is_refused::<QwenMtp>(
        &QwenMtpConfig {
            experts: Some(ExpertsTable {
                count: many,
                ..Default::default()
            }),
            ..Default::default()
        },
        "experts.count",
    );
    is_refused::<DeepseekMtp>(
        &DeepseekMtpConfig {
            experts: Some(SigmoidExpertsTable {
                count: many,
                ..Default::default()
            }),
            ..Default::default()
        },
        "experts.count",
    );
}

#[test]
fn what_public_fields_hold_can_be_named() {
    let norm: NormConfig = 1e-6.into();
    assert!(!norm.less_one);
    let early = TrainingFree::early_layers(2);
    let TrainingFree::EarlyLayers(found) = early else {
        panic!("{early:?}");
    };
    assert_eq!(found.name, EarlyLayersName::EarlyLayers);
    let lora: Option<Lora> = tiny::target(&test_device()).parts().lm_head.lora;
    assert!(lora.is_none());
    let sum = Divergence::Sum(Box::new(Factors {
        kl: Weight::Fixed(0.5),
        ..Default::default()
    }));
    assert!(matches!(sum, Divergence::Sum(_)));
    let counts = Counts {
        tokens: 6.0,
        passes: 2.0,
    };
    assert_eq!(counts.tau(), Some(3.0));
}

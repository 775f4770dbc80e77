//! A drafter learns the same whatever its target's embeddings are measured in: see `models/units.rs`.
use std::collections::BTreeMap;

use burn::module::{Module as _, Param};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::device::test_device;
use spectrain_models::eagle1::{Eagle1, Eagle1Config};
use spectrain_models::hydra::{Hydra, HydraConfig};
use spectrain_models::listing::parameters;
use spectrain_models::redrafter::{Redrafter, RedrafterConfig};
use spectrain_models::units::Units;
use spectrain_models::{Drafter, Target as _, TargetParts};
use spectrain_train::{
    FeatureRegression, FeatureRegressionConfig, HeadsLoss, HeadsLossConfig, Noise, Objective,
    OptimizerName, Statistics, Train as _, TrainConfig, Trainee, TrainingTimeTest,
    TrainingTimeTestConfig,
};

use crate::tiny;

/// A power of two, which changes no digit.
const FACTOR: f32 = 64.0;

/// The parts of a target whose embeddings are that much smaller, which its drafters read and it does not.
fn with_small_embeddings(mut parts: TargetParts) -> TargetParts {
    let weight = parts.embed_tokens.weight.val() / FACTOR;
    parts.embed_tokens.weight = Param::from_tensor(weight).no_grad();
    parts
}

fn learns_the_same<D, O>(config: &D::Config, objective: &O::Config, optimizer: OptimizerName)
where
    D: Drafter + 'static,
    O: Objective<D>,
{
    let device = test_device();
    let target = tiny::target(&device);
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &tiny::random_samples(6), 2);
    let capture = D::capture(config, target.spec()).unwrap();
    let batch = tiny::batch(&mut tiny::live(samples, &target, capture));
    let train = |parts: &TargetParts| {
        let vocabulary = DraftVocabulary::full(tiny::VOCAB);
        let graph = device.clone().autodiff();
        let drafter = D::fresh(config, parts, &vocabulary, 11, &graph).unwrap();
        let settings = TrainConfig {
            optimizer,
            ..Default::default()
        };
        let objective = O::new(objective).unwrap();
        let mut trainee = Trainee::drafter(drafter, objective, settings.optimizer());
        let mut losses = Vec::new();
        for _ in 0..12 {
            losses.push(trainee.measure(&batch).total);
            trainee.accumulate_as_measured(&batch, Statistics::Loss);
            trainee.update(3e-3, 0.0);
        }
        (losses, trainee.weights())
    };
    let (large, weights) = train(&target.parts());
    let (small, small_weights) = train(&with_small_embeddings(target.parts()));
    for (large, small) in large.iter().zip(&small) {
        let apart = (large - small).abs();
        assert!(apart < 1e-3 * large.abs(), "{large} {small}");
    }
    assert!(large[11] < 0.95 * large[0], "{large:?}");

    // What is read in a smaller unit is multiplied with as much more.
    let units = |parts: &TargetParts| -> BTreeMap<String, Vec<f32>> {
        D::units(config, parts).into_iter().collect()
    };
    let [of_large, of_small] = [target.parts(), with_small_embeddings(target.parts())];
    let (of_large, of_small) = (units(&of_large), units(&of_small));
    for (one, other) in weights.iter().zip(&small_weights) {
        let (values, others) = (one.to_f32().unwrap(), other.to_f32().unwrap());
        for (at, (value, other)) in values.iter().zip(&others).enumerate() {
            let factor = of_large.get(&one.name).map_or(1.0, |large| {
                let column = at % large.len();
                large[column] / of_small[&one.name][column]
            });
            let apart = (value - other / factor).abs();
            assert!(apart < 5e-3, "{}: {value} {other} {factor}", one.name);
        }
    }
    let factors = of_large.iter().flat_map(|(name, large)| {
        let pairs = large.iter().zip(&of_small[name]);
        pairs.map(|(large, small)| large / small)
    });
    assert!(factors.into_iter().any(|factor| factor == FACTOR));
}

/// Names are those of the drafter's matrices, with as many units as these have inputs.
fn are_of_its_matrices<D: Drafter>(config: &D::Config) {
    let target = tiny::target(&test_device());
    let listed: BTreeMap<_, _> = parameters::<D>(config, target.spec(), tiny::VOCAB)
        .unwrap()
        .into_iter()
        .collect();
    let units: Vec<Units> = D::units(config, &target.parts());
    assert!(!units.is_empty());
    for (name, units) in units {
        assert_eq!(listed[&name][1], units.len(), "{name}");
        assert!(units.iter().all(|&unit| unit > 0.0 && unit.is_finite()));
    }
}

const OPTIMIZERS: [OptimizerName; 2] = [OptimizerName::AdamW, OptimizerName::Muon];

#[test]
fn eagle1_learns_the_same_from_small_embeddings() {
    let config = Eagle1Config::default();
    let unrolled = TrainingTimeTestConfig {
        draft_steps: 3,
        ..Default::default()
    };
    let regression = FeatureRegressionConfig {
        noise: Noise {
            std: 0.0,
            ..Default::default()
        },
        ..Default::default()
    };
    for optimizer in OPTIMIZERS {
        learns_the_same::<Eagle1, TrainingTimeTest>(&config, &unrolled, optimizer);
        learns_the_same::<Eagle1, FeatureRegression>(&config, &regression, optimizer);
    }
}

#[test]
fn hydra_learns_the_same_from_small_embeddings() {
    for prefix_layer in [false, true] {
        let config = HydraConfig {
            hydra_heads: 2,
            head_layers: 2,
            prefix_layer,
            ..Default::default()
        };
        for optimizer in OPTIMIZERS {
            let objective = HeadsLossConfig::default();
            learns_the_same::<Hydra, HeadsLoss>(&config, &objective, optimizer);
        }
        are_of_its_matrices::<Hydra>(&config);
    }
    are_of_its_matrices::<Eagle1>(&Eagle1Config::default());
}

#[test]
fn redrafter_learns_the_same_from_small_embeddings() {
    for recurrent in [true, false] {
        let config = RedrafterConfig {
            draft_tokens: 2,
            recurrent,
            ..Default::default()
        };
        are_of_its_matrices::<Redrafter>(&config);
        // What is summed up also stands beside the hidden state where the output layer reads it.
        for optimizer in OPTIMIZERS.into_iter().filter(|_| recurrent) {
            let objective = HeadsLossConfig::default();
            learns_the_same::<Redrafter, HeadsLoss>(&config, &objective, optimizer);
        }
    }
}

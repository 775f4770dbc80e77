//! A drafter of every recipe that has overfitted the target's own text drafts nearly all of it: an off-by-one between training
//! and decoding leaves the output right and shows only here. And half a training and its other half are a whole one. Of the samples of
//! every recipe: which keys they set, and what a pass reads.
use burn::tensor::DType;
use rand::{SeedableRng, rngs::StdRng};
use serde_json::Value;
use spectrain::families::registry::{RECIPES, Recipe};
use spectrain_data::Sample;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_eval::{DecodeSettings, Decoder, Greedy};
use spectrain_models::device::test_device;
use spectrain_models::{DraftShape, Sampling, Target as _, Transformer};
use spectrain_train::{Batch, BatchSource as _, Statistics, Train};

use crate::numbers::drafter_keys;
use crate::samples::{Trial, samples, trials};
use crate::tiny;

const LENGTH: usize = 3;

fn settings(length: usize) -> DecodeSettings {
    DecodeSettings {
        max_new_tokens: 48,
        draft: DraftShape::Chain { length },
        sampling: Sampling::GREEDY,
        stop: Vec::new(),
        shadow: None,
    }
}

/// What the target writes behind a prompt, as one batch.
fn own_text(target: &Transformer, trial: &Trial) -> (Vec<u32>, Batch) {
    let capture = trial.method().capture(target.spec()).unwrap();
    let decoder = Decoder::new(target, &capture);
    let prompt = [1, 2, 3, 4];
    let mut rng = StdRng::seed_from_u64(0);
    let plain = decoder.plain(&prompt, &settings(LENGTH), &mut rng).unwrap();
    let tokens: Vec<u32> = prompt.iter().chain(&plain.tokens).copied().collect();
    let sample = Sample {
        loss_mask: (0..tokens.len()).map(|at| at >= prompt.len()).collect(),
        tokens,
    };
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &[sample], 1);
    let mut source = tiny::live(samples.clone(), target, capture);
    let batch = source.batch(samples.epoch(0).unwrap().remove(0));
    (plain.tokens, batch.unwrap())
}

fn train(trainee: &mut dyn Train, batch: &Batch, updates: usize) {
    for _ in 0..updates {
        trainee.accumulate_as_measured(batch, Statistics::Loss);
        trainee.update(5e-3, 1.0);
    }
}

#[test]
fn an_overfitted_drafter_of_every_recipe_drafts_almost_everything() {
    let device = test_device();
    let target = tiny::target(&device);
    for trial in trials() {
        let (text, batch) = own_text(&target, &trial);
        let mut trainee = trial.trainee(&target, &device.clone().autodiff());
        train(trainee.as_mut(), &batch, 250);
        let capture = trial.method().capture(target.spec()).unwrap();
        let mut session = trainee.proposer(DType::F32).unwrap();
        let length = session.draft_length().min(LENGTH);
        let mut rng = StdRng::seed_from_u64(0);
        let drafted = Decoder::new(&target, &capture)
            .generate(
                session.as_mut(),
                &Greedy,
                &[1, 2, 3, 4],
                &settings(length),
                &mut rng,
            )
            .unwrap();
        assert_eq!(
            drafted.tokens, text,
            "{}: greedy output is the target's",
            trial.name
        );
        let emitted: usize = drafted.passes.iter().map(|pass| pass.emitted).sum();
        let tau = emitted as f64 / drafted.passes.len() as f64;
        let most = (length + 1) as f64;
        assert!(
            tau > 0.75 * most,
            "{}: τ {tau} of at most {most}",
            trial.name
        );
    }
}

/// A chain that is not followed counts as one that ends, and τ in validations would be below what is drafted.
#[test]
fn a_validation_of_every_recipe_follows_chains_as_far_as_the_text_goes() {
    let device = test_device();
    let target = tiny::target(&device);
    for trial in trials() {
        let (text, batch) = own_text(&target, &trial);
        let trainee = trial.trainee(&target, &device.clone().autodiff());
        let steps = trainee.measure(&batch).steps;
        let judged: Vec<usize> = steps.iter().map(|step| step.count).collect();
        let name = trial.name;
        assert!(judged[0] > 0, "{name}: {judged:?}");
        // Of those that begin near its end the text does not know all steps.
        let least = 1.0 - 1.5 * judged.len() as f64 / text.len() as f64;
        let enough = |&count: &usize| count as f64 >= least * judged[0] as f64;
        assert!(judged.iter().all(enough), "{name}: {judged:?}, {least:.2}");
    }
}

/// A chain that no decoder drafts would make τ in validations more than can be drafted.
#[test]
fn a_validation_of_every_recipe_follows_chains_no_further_than_drafts_go() {
    let device = test_device();
    let target = tiny::target(&device);
    for trial in trials() {
        let (_, batch) = own_text(&target, &trial);
        let trainee = trial.trainee(&target, &device.clone().autodiff());
        let report = trainee.measure(&batch);
        let proposer = trainee.proposer(DType::F32).unwrap();
        let longest = proposer.max_depth().unwrap_or(usize::MAX);
        let name = trial.name;
        assert!(report.steps.len() <= longest, "{name}: {report:?}");
        assert!(report.simulated_tau <= 1.0 + longest as f64, "{name}");
    }
}

#[test]
fn half_a_training_and_its_other_half_equal_a_whole_one_bitwise_for_every_recipe() {
    let device = test_device();
    let target = tiny::target(&device);
    for trial in trials() {
        let (_, batch) = own_text(&target, &trial);
        let autodiff = device.clone().autodiff();
        let mut whole = trial.trainee(&target, &autodiff);
        train(whole.as_mut(), &batch, 6);
        let mut first = trial.trainee(&target, &autodiff);
        train(first.as_mut(), &batch, 3);
        let mut second = trial.trainee(&target, &autodiff);
        second
            .restore(first.weights(), first.optimizer(), trial.name)
            .unwrap();
        train(second.as_mut(), &batch, 3);
        let [whole, second] = [whole, second].map(|trained| trained.weights());
        let pairs = whole.iter().zip(&second);
        let differing: Vec<&str> = pairs
            .filter(|(one, other)| one != other)
            .map(|(one, _)| one.name.as_str())
            .collect();
        assert!(differing.is_empty(), "{}: {differing:?}", trial.name);
        assert_eq!(whole.len(), second.len());
    }
}

/// Recipes with keys of `[drafter]` that no sample of theirs sets.
const UNSAMPLED: &[(&str, &[&str])] = &[
    ("pard", &["model", "revision", "keep_layers", "lora"]),
    (
        "deer",
        &["model", "revision", "keep_layers", "lora", "block_size"],
    ),
    ("distillspec", &["model", "revision", "keep_layers"]),
];

/// Keys of `[drafter]` that no sample of a recipe sets to anything but their default.
fn unsampled(recipe: &Recipe) -> Vec<String> {
    let own = samples().filter(|sample| sample.recipe.name == recipe.name);
    let tables: Vec<Value> = own
        .map(|sample| sample.resolved().json["drafter"].clone())
        .collect();
    let (keys, _) = drafter_keys(recipe);
    let is_set = |key: &str, default: &Value| {
        let mut values = tables.iter().map(|table| &table[key]);
        values.any(|value| !value.is_null() && value != default)
    };
    let unset = keys
        .iter()
        .filter(|(key, schema)| !is_set(key, &schema["default"]));
    unset.map(|(key, _)| key.clone()).collect()
}

/// Layouts, digests of exports and damaged folders are those of samples, and say nothing of a key that is in none.
#[test]
fn a_sample_of_every_recipe_sets_each_key_of_its_drafter() {
    for recipe in RECIPES {
        let known = UNSAMPLED.iter().find(|(name, _)| *name == recipe.name);
        let known = known.map_or(&[] as &[&str], |(_, keys)| *keys);
        assert_eq!(unsampled(recipe), known, "{}", recipe.name);
    }
}

/// Where the head is the target's, too: a drafter does not read less for having no head of its own.
#[test]
fn a_pass_of_every_sample_reads_more_the_more_tokens_it_can_propose() {
    const MORE: usize = 8;
    let device = test_device();
    let targets = [0, MORE].map(|more| {
        let mut config = tiny::config();
        config.spec.vocab += more;
        tiny::of(config, &device).parts()
    });
    let mut tried = 0;
    for sample in samples() {
        let method = sample.resolved().method;
        let footprint = method.footprint(&targets[0].spec).unwrap();
        if footprint.draft_vocab < tiny::VOCAB as u64 {
            continue;
        }
        tried += 1;
        let [less, more] = targets.each_ref().map(|target| {
            let vocabulary = DraftVocabulary::full(target.spec.vocab);
            let fresh = method.fresh(target, &vocabulary, &device);
            let fresh = fresh.unwrap_or_else(|error| panic!("{}: {error:#}", sample.name()));
            fresh.session().parameters_per_pass()
        });
        let rows = (MORE * targets[0].spec.d_model) as u64;
        let name = sample.name();
        assert!(more >= less + rows, "{name}: {less} and {more}");
    }
    assert!(tried > RECIPES.len());
}

//! A masked-diffusion drafter: it drafts what it computes in training, masks leak nothing, decoding stays lossless, and what
//! it has learnt it drafts.
use burn::prelude::*;
use rand::{SeedableRng, rngs::StdRng};
use spectrain_data::Sample;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_eval::{DecodeSettings, Decoder, Greedy};
use spectrain_models::device::test_device;
use spectrain_models::masked_language_model::{
    Context, MaskedLanguageModel, MaskedLanguageModelConfig,
};
use spectrain_models::weights::{export, host_f32};
use spectrain_models::{
    Capture, DraftShape, Drafter as _, Features, FreshConfig, Proposer as _, Sampling, Session,
    Transformer, forced,
};
use spectrain_train::{
    Batch, BatchSource as _, DeerLoss, DeerLossConfig, DeerStage, Objective as _, Statistics, Step,
    Train as _, TrainConfig, Trainee,
};

use crate::golden::assert_close;
use crate::samples::{Folder, sorted};
use crate::tiny;

const MASK: u32 = 47;
const SEPARATOR: u32 = 46;
const CONTEXTS: [Context; 2] = [Context::Bidirectional, Context::Causal];

fn config(context: Context) -> MaskedLanguageModelConfig {
    MaskedLanguageModelConfig {
        fresh: Some(FreshConfig::default()),
        mask_token: Some(MASK),
        separator_token: Some(SEPARATOR),
        context,
        ..Default::default()
    }
}

fn objective(stage: DeerStage, span: usize) -> DeerLoss {
    objective_of_cuts(stage, span, 1)
}

fn objective_of_cuts(stage: DeerStage, span: usize, cuts: usize) -> DeerLoss {
    let config = DeerLossConfig {
        span,
        cuts,
        ..Default::default()
    };
    DeerLoss::at(&config, stage).unwrap()
}

fn batch(target: &Transformer, seed: u64) -> Batch {
    let folder = tempfile::tempdir().unwrap();
    let mut texts = tiny::random_samples(4);
    for text in &mut texts {
        // No text holds the two tokens.
        text.tokens.iter_mut().for_each(|token| *token %= SEPARATOR);
    }
    let samples = tiny::samples(folder.path(), &texts, 2);
    Batch {
        seed: Some(seed),
        ..tiny::batch(&mut tiny::live(samples, target, Capture::default()))
    }
}

/// The places in the batch of the document that holds a place, up to that place.
fn before(batch: &Batch, place: usize) -> Vec<usize> {
    let start = place - batch.rows.layout.positions[place] as usize;
    (start..place).collect()
}

fn tokens(batch: &Batch, places: &[usize]) -> Vec<u32> {
    places.iter().map(|&at| batch.rows.tokens[at]).collect()
}

/// The masks of each block, as their places in the list of masks.
fn of_blocks(masks: &[(usize, usize)]) -> Vec<Vec<usize>> {
    let indices: Vec<usize> = (0..masks.len()).collect();
    let same = |&a: &usize, &b: &usize| masks[a].0 == masks[b].0;
    indices.chunk_by(same).map(<[usize]>::to_vec).collect()
}

fn no_features(count: usize) -> Features {
    let device = test_device();
    Features {
        captured: Tensor::zeros([1, count, 0], &device),
        last: Tensor::zeros([1, count, 32], &device),
    }
}

/// The logits of a stage's masks are those of the slots that a decoder drafts from, in training and in validations, which have
/// as many masks as the longest draft whatever the span is.
fn masks_equal_slots(context: Context, cuts: usize) {
    let device = test_device();
    let target = tiny::target(&device);
    let config = MaskedLanguageModelConfig {
        block_size: 4,
        ..config(context)
    };
    let drafter: MaskedLanguageModel = tiny::fresh(&config, &target, &device);
    let mut compared = 0;
    for seed in (1..6).map(Some).chain([None]) {
        let batch = Batch {
            seed,
            ..batch(&target, 1)
        };
        let objective = objective_of_cuts(DeerStage::Refine, 6, cuts);
        let (found, hidden) = objective.masks(&drafter, &batch);
        let logits = host_f32(drafter.model().head().forward(hidden));
        let places = objective.places(&drafter, &batch);
        let all: Vec<u32> = places
            .tokens
            .into_data()
            .iter::<i64>()
            .map(|t| t as u32)
            .collect();
        let masks = of_blocks(&found);
        // A text of the batch has as many masks as stand behind its separator, though some may be behind its end.
        let counts: Vec<usize> = (0..all.len())
            .filter(|&at| all[at] == SEPARATOR && all.get(at + 1) == Some(&MASK))
            .map(|at| all[at + 1..].iter().take_while(|&&t| t == MASK).count())
            .collect();
        assert_eq!(counts.len(), masks.len());
        let of_a_draft = |&count: &usize| count == config.block_size;
        assert!(
            seed.is_some() || counts.iter().all(of_a_draft),
            "{counts:?}"
        );
        for (run, count) in masks.into_iter().zip(counts) {
            let text = tokens(&batch, &before(&batch, found[run[0]].0));
            let mut state = drafter.start(4, text[0]);
            // In two parts, as in decoding, the first of which is drafted from too.
            drafter.observe(&mut state, &text[1..2], &no_features(1));
            drafter.root_logits(&mut state);
            drafter.observe(&mut state, &text[2..], &no_features(text.len() - 2));
            let slots = forced(&drafter, &mut state, &vec![3; count - 1]);
            assert_eq!(slots.len(), count);
            for (slot, &index) in run.iter().enumerate() {
                let what = format!("{context:?}, seed {seed:?}, slot {slot} of {count}");
                let expected = &logits[index * tiny::VOCAB..(index + 1) * tiny::VOCAB];
                assert_close(&what, &slots[slot], expected, 1e-5);
                compared += 1;
            }
        }
    }
    assert!(compared > 30, "{compared}");
}

#[test]
fn the_masks_of_a_bidirectional_text_equal_its_draft_slots() {
    masks_equal_slots(Context::Bidirectional, 1);
    masks_equal_slots(Context::Bidirectional, 2);
}

#[test]
fn the_masks_of_a_causal_text_equal_its_draft_slots_from_a_cache() {
    masks_equal_slots(Context::Causal, 1);
    masks_equal_slots(Context::Causal, 3);
}

#[test]
fn what_stands_behind_the_masks_or_in_another_text_changes_nothing() {
    let device = test_device();
    let target = tiny::target(&device);
    for context in CONTEXTS {
        let drafter: MaskedLanguageModel = tiny::fresh(&config(context), &target, &device);
        let batch = batch(&target, 3);
        let objective = objective_of_cuts(DeerStage::Refine, 5, 2);
        let masks = |batch: &Batch| {
            let (blocks, hidden) = objective.masks(&drafter, batch);
            (blocks, host_f32(hidden))
        };
        let (blocks, expected) = masks(&batch);
        let width = expected.len() / blocks.len();
        let document = |at: usize| (at / 64, batch.rows.layout.documents[at]);
        for place in 0..batch.rows.len() {
            let mut changed = batch.clone();
            changed.rows.tokens[place] = (batch.rows.tokens[place] + 1) % SEPARATOR;
            let (_, found) = masks(&changed);
            for (index, &(cut, mask)) in blocks.iter().enumerate() {
                let visible = document(place) == document(cut) && place < cut;
                let of = index * width..(index + 1) * width;
                let differs = found[of.clone()] != expected[of];
                let what = format!("{context:?}: place {place}, the mask of {mask} behind {cut}");
                assert_eq!(differs, visible, "{what}");
            }
        }
    }
}

#[test]
fn a_causal_text_does_not_see_its_block_and_a_bidirectional_one_does() {
    let device = test_device();
    let target = tiny::target(&device);
    for context in CONTEXTS {
        let drafter: MaskedLanguageModel = tiny::fresh(&config(context), &target, &device);
        let batch = batch(&target, 3);
        let places = objective(DeerStage::Refine, 5).places(&drafter, &batch);
        let hidden = |places: &_| {
            let hidden = drafter.hidden(places, burn::tensor::DType::F32);
            host_f32(hidden)
                .chunks(32)
                .map(<[f32]>::to_vec)
                .collect::<Vec<_>>()
        };
        let expected = hidden(&places);
        let tokens: Vec<i64> = places.tokens.clone().into_data().iter::<i64>().collect();
        let other: Vec<i64> = tokens
            .iter()
            .map(|&token| if token >= SEPARATOR as i64 { 5 } else { token })
            .collect();
        let mut changed = places.clone();
        let shape = places.tokens.dims();
        changed.tokens = Tensor::<1, Int>::from_ints(other.as_slice(), &device).reshape(shape);
        let documents = &places.layout.rows().documents;
        let found = hidden(&changed);
        let prefix =
            (0..tokens.len()).filter(|&at| documents[at] != 0 && tokens[at] < SEPARATOR as i64);
        for at in prefix {
            let same = found[at] == expected[at];
            assert_eq!(same, context == Context::Causal, "{context:?}: place {at}");
        }
    }
}

#[test]
fn a_slot_depends_on_no_drafted_token_and_all_are_made_in_one_pass() {
    let device = test_device();
    let target = tiny::target(&device);
    for context in CONTEXTS {
        let config = MaskedLanguageModelConfig {
            block_size: 4,
            ..config(context)
        };
        let drafter: MaskedLanguageModel = tiny::fresh(&config, &target, &device);
        let slots = |drafted: &[u32]| {
            let mut state = drafter.start(2, 1);
            drafter.observe(&mut state, &[2, 3, 4], &no_features(3));
            forced(&drafter, &mut state, drafted)
        };
        assert_eq!(slots(&[1, 2, 3]), slots(&[30, 20, 10]));
        assert_ne!(slots(&[1, 2, 3])[0], slots(&[1, 2, 3])[1]);
        let session = Session::new(drafter);
        assert_eq!(
            [0, 1, 4, 9].map(|depth| session.passes(depth)),
            [0, 1, 1, 1]
        );
    }
}

#[test]
fn settings_that_make_no_sense_are_refused_by_name() {
    let refuse = |change: &dyn Fn(&mut DeerLossConfig), key: &str| {
        let mut config = DeerLossConfig::default();
        change(&mut config);
        let error = DeerLoss::new(&config).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    };
    refuse(&|config| config.alpha = 0.99, "alpha");
    refuse(&|config| config.alpha = f64::NAN, "alpha");
    refuse(&|config| config.span = 0, "span");
    refuse(&|config| config.cuts = 0, "cuts");
    refuse(&|config| config.least_masked = 0.0, "least_masked");
    let target = tiny::target(&test_device());
    let refuse = |change: &dyn Fn(&mut MaskedLanguageModelConfig), key: &str| {
        let mut config = config(Context::Causal);
        change(&mut config);
        let parts = target.parts();
        let full = spectrain_data::vocabulary::DraftVocabulary::full(tiny::VOCAB);
        let drafter = MaskedLanguageModel::fresh(&config, &parts, &full, 1, &test_device());
        let error = drafter.map(drop).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    };
    refuse(&|config| config.mask_token = None, "mask_token");
    refuse(&|config| config.separator_token = None, "separator_token");
    refuse(
        &|config| config.separator_token = Some(MASK),
        "separator_token",
    );
    refuse(
        &|config| config.separator_token = Some(48),
        "separator_token",
    );
    refuse(&|config| config.block_size = 0, "block_size");
}

const LENGTH: usize = 3;

/// Trains a drafter on what the target writes, through all stages, and decodes with it.
fn learns(context: Context) {
    let device = test_device();
    let target = tiny::target(&device);
    let capture = Capture::default();
    let decoder = Decoder::new(&target, &capture);
    let settings = DecodeSettings {
        max_new_tokens: 32,
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
            .map(|place| place >= prompt.len())
            .collect(),
        tokens,
    };
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &vec![sample; 4], 4);
    let mut source = tiny::live(samples.clone(), &target, capture.clone());
    let batch = source.batch(samples.epoch(0).unwrap().remove(0)).unwrap();
    let mut drafter: MaskedLanguageModel =
        tiny::fresh(&config(context), &target, &device.clone().autodiff());
    for (stage, steps) in [
        (DeerStage::Adapt, 40),
        (DeerStage::Align, 60),
        (DeerStage::Refine, 400),
    ] {
        let objective = objective(stage, LENGTH);
        let mut trainee = Trainee::drafter(drafter, objective, TrainConfig::default().optimizer());
        for step in 0..steps {
            let at = Step {
                number: step,
                of: steps,
            };
            let batch = batch.clone().in_training(step as u64, at);
            trainee.accumulate(&batch, Statistics::Loss);
            trainee.update(5e-3, 1.0);
        }
        let weights = trainee.weights();
        let graph = tiny::fresh(&config(context), &target, &device.clone().autodiff());
        drafter = spectrain_models::weights::import(graph, weights, "the stage before").unwrap();
    }
    let mut session = Session::new(burn::module::Module::valid(&drafter));
    let drafted = decoder
        .generate(&mut session, &Greedy, &prompt, &settings, &mut rng)
        .unwrap();
    assert_eq!(drafted.tokens, plain.tokens);
    let emitted: usize = drafted.passes.iter().map(|pass| pass.emitted).sum();
    let tau = emitted as f64 / drafted.passes.len() as f64;
    assert!(tau > 0.85 * (LENGTH + 1) as f64, "{context:?}: τ {tau}");
}

#[test]
fn a_bidirectional_drafter_that_has_learnt_a_text_drafts_almost_all_of_it() {
    learns(Context::Bidirectional);
}

#[test]
fn a_causal_drafter_that_has_learnt_a_text_drafts_almost_all_of_it() {
    learns(Context::Causal);
}

#[test]
fn a_drafter_is_trained_further_from_its_folder() {
    let device = test_device();
    let target = tiny::target(&device);
    let folder = Folder::of("deer", 0);
    let config = MaskedLanguageModelConfig {
        fresh: None,
        model: folder.path().display().to_string(),
        ..config(Context::Causal)
    };
    let vocabulary = DraftVocabulary::full(tiny::VOCAB);
    let start = MaskedLanguageModel::fresh(&config, &target.parts(), &vocabulary, 5, &device);
    let written = folder.open().unwrap().tensors();
    assert_eq!(sorted(export(&start.unwrap())), sorted(written));
}

#[test]
fn chains_and_trees_of_slots_change_no_token_of_the_target() {
    let device = test_device();
    let target = tiny::target(&device);
    let capture = Capture::default();
    let decoder = Decoder::new(&target, &capture);
    let tree = DraftShape::Dynamic {
        depth: 4,
        top_k: 4,
        nodes: 20,
    };
    for context in CONTEXTS {
        for draft in [DraftShape::Chain { length: 6 }, tree.clone()] {
            let drafter = tiny::fresh::<MaskedLanguageModel>(&config(context), &target, &device);
            let mut session = Session::new(drafter);
            let settings = DecodeSettings {
                max_new_tokens: 40,
                draft,
                sampling: Sampling::GREEDY,
                stop: Vec::new(),
                shadow: None,
            };
            let mut rng = StdRng::seed_from_u64(2);
            for prompt in [vec![1], vec![7, 8, 9], vec![5; 9]] {
                let plain = decoder.plain(&prompt, &settings, &mut rng).unwrap();
                let drafted = decoder.generate(&mut session, &Greedy, &prompt, &settings, &mut rng);
                assert_eq!(drafted.unwrap().tokens, plain.tokens, "{context:?}");
            }
        }
    }
}

#[test]
fn only_masks_behind_which_nothing_is_known_are_followed_as_chains() {
    let device = test_device();
    let target = tiny::target(&device);
    let drafter: MaskedLanguageModel =
        tiny::fresh(&config(Context::Bidirectional), &target, &device);
    for stage in [DeerStage::Adapt, DeerStage::Align, DeerStage::Refine] {
        let (mut judged, mut chains) = (0, 0);
        for seed in 1..6 {
            let batch = batch(&target, seed);
            let loss = objective(stage, 4).loss(&drafter, &batch, Statistics::All);
            let report = loss.report();
            assert!(report.measured);
            judged += report.steps.iter().map(|step| step.count).sum::<usize>();
            chains += report.chains;
        }
        assert!(judged > 0, "{stage:?}");
        assert_eq!(chains > 0, stage == DeerStage::Refine, "{stage:?}");
    }
}

/// Replies of a single token, of which a step often draws no mask.
#[test]
fn steps_in_which_nothing_was_masked_by_chance_do_not_end_a_training() {
    let device = test_device();
    let target = tiny::target(&device);
    let reply = Sample {
        tokens: vec![1, 2, 3],
        loss_mask: vec![false, false, true],
    };
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &[reply], 1);
    let drafter = tiny::fresh(
        &config(Context::Causal),
        &target,
        &device.clone().autodiff(),
    );
    let settings = TrainConfig {
        steps: 12,
        batch_tokens: 64,
        warmup_steps: 0,
        log_every: 1,
        ..TrainConfig::default()
    };
    let adapt = objective(DeerStage::Adapt, 1);
    let mut source = tiny::live(samples.clone(), &target, Capture::default());
    let empty = (0..12).filter(|&position| {
        let seed = Some(samples.step_seed(position));
        let batch = Batch {
            seed,
            ..tiny::batch(&mut source)
        };
        let in_graph = batch.lift(&device.clone().autodiff());
        adapt
            .loss(&drafter, &in_graph, Statistics::Loss)
            .rows
            .is_empty()
    });
    let empty = empty.count();
    assert!((1..12).contains(&empty), "{empty} of 12 steps draw no mask");
    let mut trainee = Trainee::drafter(drafter, adapt, settings.optimizer());
    let summary = tiny::trained(
        &mut trainee,
        &settings,
        samples,
        (&target, Capture::default()),
    )
    .unwrap();
    assert!(summary.steps == 12 && summary.loss > 0.0, "{summary:?}");
}

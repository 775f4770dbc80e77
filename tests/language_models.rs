//! Drafters that are language models: what they compute in training they compute when drafting, several at a time or one,
//! with low-rank matrices and without.
use std::path::Path;

use burn::module::{Module as _, ModuleVisitor, Param};
use burn::prelude::*;
use burn::tensor::DType;
use serde_json::json;
use spectrain_checkpoints::language_model::{TARGET_PROJ, named};
use spectrain_checkpoints::{NamedTensor, write_folder};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::device::test_device;
use spectrain_models::generate::{Continuation, continue_texts};
use spectrain_models::language_model::{LanguageModel, LanguageModelConfig};
use spectrain_models::pard::{Pard, PardConfig};
use spectrain_models::weights::{export, held_in, host_f32};
use spectrain_models::{
    Caches, Capture, Drafter, Features, FreshConfig, LogitRows, LoraConfig, Pass, Proposer,
    Sampling, Scope, Session, Target as _, Transformer, Tree, argmax, chain, forced,
};
use spectrain_train::{
    Batch, Distill, DistillConfig, Objective as _, OnPolicyConfig, PardLoss, PardLossConfig, Rows,
    Statistics, Train as _, TrainConfig, Trainee,
};

use crate::golden::assert_close;
use crate::tiny;
use crate::workspace::{RECIPE, Workspace};

const BLOCKS: usize = 4;
const MASK: u32 = 47;

fn language_model() -> LanguageModelConfig {
    LanguageModelConfig {
        fresh: Some(FreshConfig::default()),
        ..Default::default()
    }
}

fn pard(target_features: bool) -> PardConfig {
    PardConfig {
        fresh: Some(FreshConfig::default()),
        mask_token: Some(MASK),
        target_features,
        ..Default::default()
    }
}

/// A batch of random texts with the features that a drafter reads.
fn batch(target: &Transformer, capture: Capture) -> Batch {
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &tiny::random_samples(3), 2);
    tiny::batch(&mut tiny::live(samples, target, capture))
}

/// Each document's first position in the batch, and its tokens.
fn documents(batch: &Batch) -> Vec<(usize, Vec<u32>)> {
    let layout = &batch.rows.layout;
    let starts =
        (0..batch.rows.len()).filter(|&at| layout.documents[at] != 0 && layout.positions[at] == 0);
    let of = |start: usize| {
        let length = (0..)
            .take_while(|&by| by == 0 || batch.rows.reaches(start, by))
            .count();
        (start, batch.rows.tokens[start..start + length].to_vec())
    };
    starts.map(of).collect()
}

/// The features of the first `count` positions of a document.
fn features(batch: &Batch, start: usize, count: usize) -> Features {
    let all = batch.features.as_ref().unwrap();
    let [_, length, _] = all.last.dims();
    let of = |x: &Tensor<3>| {
        x.clone()
            .narrow(0, start / length, 1)
            .narrow(1, start % length, count)
    };
    Features {
        captured: of(&all.captured),
        last: of(&all.last),
    }
}

#[test]
fn a_language_models_training_logits_equal_its_decoding_logits() {
    let device = test_device();
    let target = tiny::target(&device);
    let drafter: LanguageModel = tiny::fresh(&language_model(), &target, &device);
    training_equals_decoding(&target, &drafter);
}

#[test]
fn so_do_those_of_one_with_experts() {
    let device = test_device();
    let target = tiny::target(&device);
    let drafter = LanguageModel::of(tiny::mixture(&device), &target.parts()).unwrap();
    training_equals_decoding(&target, &drafter);
}

#[test]
fn a_language_model_reads_on_after_tokens_that_it_does_not_know() {
    let device = test_device();
    let target = tiny::target(&device);
    let mut config = tiny::config();
    config.spec.vocab = tiny::VOCAB - 8;
    let mut random = spectrain_models::RandomWeights::new(9);
    let mut scope = Scope::root(&mut random, &device, spectrain_checkpoints::DType::F32);
    let model = Transformer::new(&mut scope, config).unwrap();
    let drafter = LanguageModel::of(model, &target.parts()).unwrap();
    training_equals_decoding(&target, &drafter);
}

fn training_equals_decoding(target: &Transformer, drafter: &LanguageModel) {
    let batch = batch(target, Capture::default());
    let hidden = drafter.hidden(
        batch.tokens.clone(),
        &batch.layout,
        burn::tensor::DType::F32,
    );
    let logits = host_f32(drafter.model().head().forward(hidden));
    let vocab = drafter.vocabulary().len();
    assert_eq!(
        batch.rows.tokens.iter().any(|&t| t as usize >= vocab),
        vocab < tiny::VOCAB
    );
    let mut compared = 0;
    for (start, tokens) in documents(&batch) {
        for end in [1, 5, 9] {
            let mut state = drafter.start(64, tokens[0]);
            drafter.observe(&mut state, &tokens[1..=end], &features(&batch, start, end));
            let following = &tokens[end + 1..end + 3];
            for (step, found) in forced(drafter, &mut state, following).iter().enumerate() {
                let at = (start + end + step) * vocab;
                let what = format!("document at {start}, prefix {end}, step {step}");
                assert_close(&what, found, &logits[at..at + vocab], 1e-5);
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 3 * 3 * 3);
}

#[test]
fn a_language_model_gives_a_node_of_a_tree_the_logits_of_its_path() {
    let device = test_device();
    let target = tiny::target(&device);
    let drafter: LanguageModel = tiny::fresh(&language_model(), &target, &device);
    let batch = batch(&target, Capture::default());
    let (start, tokens) = documents(&batch).remove(0);
    let mut state = drafter.start(4, tokens[0]);
    drafter.observe(&mut state, &tokens[1..7], &features(&batch, start, 6));
    let tree = Tree {
        tokens: vec![5, 6, 7, 8],
        parents: vec![None, None, Some(1), Some(0)],
    };
    for _ in 0..2 {
        drafter.root_logits(&mut state);
        drafter.node_logits(&mut state, &tree, &[0, 1]);
        let found = host_f32(drafter.node_logits(&mut state, &tree, &[2, 3]));
        drafter.rewind(&mut state);
        let paths: [&[u32]; 2] = [&[6, 7], &[5, 8]];
        for (path, found) in paths.into_iter().zip(found.chunks(tiny::VOCAB)) {
            let along = forced(&drafter, &mut state, path);
            assert_close(&format!("{path:?}"), found, &along[2], 1e-5);
        }
    }
}

/// The logits of every row that training keeps are those of the slots that a decoder drafts from.
fn rows_equal_slots(target_features: bool) {
    let device = test_device();
    let target = tiny::target(&device);
    let config = pard(target_features);
    let drafter: Pard = tiny::fresh(&config, &target, &device);
    let batch = batch(&target, Pard::capture(&config, target.spec()).unwrap());
    let objective = PardLoss::new(&PardLossConfig {
        draft_tokens: BLOCKS,
        ..Default::default()
    })
    .unwrap();
    let mut compared = [0; BLOCKS];
    for seed in [1, 2] {
        let batch = Batch {
            seed: Some(seed),
            ..batch.clone()
        };
        let subset = objective.subset(&batch);
        let hidden = objective.hidden(&drafter, &batch, &subset);
        let logits = host_f32(drafter.model().head().forward(hidden));
        for (start, tokens) in documents(&batch) {
            for end in [2, 6, 9] {
                let mut state = drafter.start(64, tokens[0]);
                // In two parts, as in decoding, the first of which is drafted from too.
                drafter.observe(&mut state, &tokens[1..=1], &features(&batch, start, 1));
                drafter.root_logits(&mut state);
                let later = features(&batch, start, end).select(&(1..end).collect::<Vec<_>>());
                drafter.observe(&mut state, &tokens[2..=end], &later);
                let slots = forced(&drafter, &mut state, &[3; BLOCKS - 1]);
                for (row, place) in subset.places().iter().enumerate() {
                    let Some((block, at)) = *place else { continue };
                    if at != start + end + block {
                        continue;
                    }
                    let what =
                        format!("seed {seed}, document at {start}, prefix {end}, block {block}");
                    let expected = &logits[row * tiny::VOCAB..(row + 1) * tiny::VOCAB];
                    assert_close(&what, &slots[block], expected, 1e-5);
                    compared[block] += 1;
                }
            }
        }
    }
    assert!(compared.iter().all(|&count| count >= 3), "{compared:?}");
}

#[test]
fn pards_training_rows_equal_its_draft_slots() {
    rows_equal_slots(false);
}

#[test]
fn pard_2s_training_rows_equal_its_draft_slots() {
    rows_equal_slots(true);
}

#[test]
fn dropping_rows_changes_no_logit_of_those_that_stay() {
    let device = test_device();
    let target = tiny::target(&device);
    let drafter: Pard = tiny::fresh(&pard(false), &target, &device);
    let batch = Batch {
        seed: Some(5),
        ..batch(&target, Capture::default())
    };
    let rows = |keep| {
        let objective = PardLoss::new(&PardLossConfig {
            draft_tokens: BLOCKS,
            keep,
            keep_least: keep,
            ..Default::default()
        });
        let objective = objective.unwrap();
        let subset = objective.subset(&batch);
        let hidden = host_f32(objective.hidden(&drafter, &batch, &subset));
        let width = hidden.len() / subset.places().len();
        let places = subset
            .places()
            .to_vec()
            .into_iter()
            .zip(hidden.chunks(width).map(<[f32]>::to_vec));
        places
            .filter_map(|(place, row)| Some((place?, row)))
            .collect::<std::collections::BTreeMap<_, _>>()
    };
    let (all, some) = (rows(1.0), rows(0.4));
    assert!(some.len() < all.len());
    for (place, row) in &some {
        assert_close(&format!("{place:?}"), row, &all[place], 1e-5);
    }
}

#[test]
fn a_pard_drafts_further_than_it_was_asked_at_first() {
    let device = test_device();
    let target = tiny::target(&device);
    let drafter: Pard = tiny::fresh(&pard(true), &target, &device);
    let batch = batch(&target, Pard::capture(&pard(true), target.spec()).unwrap());
    let (start, tokens) = documents(&batch).remove(0);
    let slots = |planned| {
        let mut state = drafter.start(8, tokens[0]);
        drafter.observe(&mut state, &tokens[1..5], &features(&batch, start, 4));
        drafter.plan(&mut state, planned);
        forced(&drafter, &mut state, &[1, 2, 3, 4, 5, 6])
    };
    for (slot, (one_by_one, at_once)) in slots(1).iter().zip(slots(7)).enumerate() {
        assert_close(&format!("slot {slot}"), one_by_one, &at_once, 1e-5);
    }
}

#[test]
fn a_pard_drafts_in_one_pass_and_another_language_model_in_as_many_as_it_has_tokens() {
    let device = test_device();
    let target = tiny::target(&device);
    let at_once = Session::new(tiny::fresh::<Pard>(&pard(false), &target, &device));
    let one_by_one = Session::new(tiny::fresh::<LanguageModel>(
        &language_model(),
        &target,
        &device,
    ));
    let passes = |drafter: &dyn Proposer| [0, 1, 7].map(|depth| drafter.passes(depth));
    assert_eq!(passes(&at_once), [0, 1, 1]);
    assert_eq!(passes(&one_by_one), [0, 1, 7]);
    assert_eq!(
        at_once.parameters_per_pass(),
        one_by_one.parameters_per_pass()
    );
}

#[test]
fn texts_continued_side_by_side_are_those_continued_alone() {
    let device = test_device();
    let mut config = tiny::config();
    // A window shorter than the texts must count from each text's own start.
    config.windows[1] = Some(4);
    config.windows[4] = Some(4);
    let mut random = spectrain_models::RandomWeights::new(9);
    let mut scope = Scope::root(&mut random, &device, spectrain_checkpoints::DType::F32);
    let model = Transformer::new(&mut scope, config).unwrap();
    let prompts = vec![vec![1, 2, 3, 4, 5, 6, 7], vec![8], vec![9, 10, 11]];
    let how = |prompts: &[Vec<u32>], stop: &[u32]| {
        let limits = vec![12; prompts.len()];
        continue_texts(
            &model,
            prompts,
            &Continuation {
                sampling: Sampling::GREEDY,
                limits: &limits,
                stop,
                seed: 3,
                positions: usize::MAX,
            },
        )
    };
    let together = how(&prompts, &[]);
    for (prompt, together) in prompts.iter().zip(&together) {
        assert_eq!(&how(std::slice::from_ref(prompt), &[])[0], together);
        // And those of the decoder, token by token.
        let mut caches = Caches::new(6, 32);
        let mut read = prompt.clone();
        let mut written = Vec::new();
        while written.len() < 12 {
            let pass = Pass {
                tokens: &read,
                parents: &chain(read.len()),
                logits: LogitRows::Last,
            };
            let output = model.decode(pass, &mut caches, &Capture::default());
            let token = argmax(&host_f32(output.logits)) as u32;
            written.push(token);
            read = vec![token];
        }
        assert_eq!(&written, together);
    }
    let stop = together[0][4];
    let stopped = how(&prompts, &[stop]);
    let end = together[0].iter().position(|&token| token == stop).unwrap();
    assert_eq!(stopped[0], together[0][..=end]);
}

#[test]
fn texts_are_continued_alike_in_however_many_groups() {
    let model = tiny::target(&test_device());
    let prompts = [
        vec![1, 2, 3, 4, 5, 6, 7],
        vec![8],
        vec![9, 10, 11],
        vec![12; 7],
    ];
    let in_groups = |positions: usize| {
        let how = Continuation {
            sampling: Sampling::at(0.7),
            limits: &[5, 12, 3, 8],
            stop: &[],
            seed: 3,
            positions,
        };
        continue_texts(&model, &prompts, &how)
    };
    let together = in_groups(usize::MAX);
    let lengths: Vec<usize> = together.iter().map(Vec::len).collect();
    assert_eq!(lengths, [5, 12, 3, 8]);
    for positions in [0, 30, 60] {
        assert_eq!(in_groups(positions), together, "{positions}");
    }
}

#[test]
fn low_rank_matrices_change_nothing_at_first_learn_alone_and_merge() {
    let device = test_device();
    let target = tiny::target(&device);
    let plain: LanguageModel = tiny::fresh(&language_model(), &target, &device);
    let config = LanguageModelConfig {
        lora: Some(LoraConfig {
            rank: 3,
            alpha: 6.0,
        }),
        ..language_model()
    };
    let autodiff = device.clone().autodiff();
    let adapted: LanguageModel = tiny::fresh(&config, &target, &autodiff);
    let batch = batch(&target, Capture::default());
    let f32 = burn::tensor::DType::F32;
    let hidden =
        |model: &LanguageModel| host_f32(model.hidden(batch.tokens.clone(), &batch.layout, f32));
    assert_eq!(hidden(&adapted.valid()), hidden(&plain));

    let objective = Distill::new(&DistillConfig::default()).unwrap();
    let before = export(&adapted.valid());
    let mut trainee = Trainee::drafter(adapted, objective, TrainConfig::default().optimizer());
    for _ in 0..2 {
        trainee.accumulate_as_measured(&batch, Statistics::Loss);
        let names: Vec<String> = trainee.gradients().to_host().into_keys().collect();
        assert!(
            !names.is_empty() && names.iter().all(|name| name.contains("lora")),
            "{names:?}"
        );
        trainee.update(1e-2, 0.0);
    }
    let trained = trainee.model();
    for (before, after) in before.iter().zip(export(&trained)) {
        let moved = before.bytes != after.bytes;
        assert_eq!(moved, before.name.contains("lora"), "{}", before.name);
    }
    let merged = LanguageModel::of(trained.merged().unwrap(), &target.parts()).unwrap();
    assert!(
        export(&merged)
            .iter()
            .all(|tensor| !tensor.name.contains("lora"))
    );
    assert_ne!(hidden(&trained), hidden(&plain));
    assert_close("merged", &hidden(&merged), &hidden(&trained), 1e-5);
}

/// The types of a model's parameters, matrices apart from vectors.
#[derive(Default)]
struct Types {
    matrices: Vec<DType>,
    vectors: Vec<DType>,
}

impl ModuleVisitor for Types {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let types = if D > 1 {
            &mut self.matrices
        } else {
            &mut self.vectors
        };
        types.push(param.val().dtype());
    }
}

impl Types {
    fn of(model: &LanguageModel) -> Self {
        let mut types = Self::default();
        model.visit(&mut types);
        types
    }

    fn matrices_in(&self, dtype: DType) -> usize {
        self.matrices.iter().filter(|&&held| held == dtype).count()
    }
}

/// `model`, written to a folder, with low-rank matrices beside it, as a drafter for `target`.
fn adapted(model: &Transformer, target: &Transformer) -> LanguageModel {
    let folder = tempfile::tempdir().unwrap();
    let config = LanguageModelConfig {
        model: write_model(folder.path(), model, &[]),
        lora: Some(LoraConfig::default()),
        ..Default::default()
    };
    tiny::fresh(&config, target, &test_device().autodiff())
}

/// What the head reads, computed in a type.
fn hidden(model: &LanguageModel, batch: &Batch, dtype: DType) -> Vec<f32> {
    host_f32(model.hidden(batch.tokens.clone(), &batch.layout, dtype))
}

#[test]
fn frozen_matrices_are_held_as_the_target_computes_where_no_number_changes() {
    let wide = tiny::target(&test_device());
    let target = held_in(wide.clone(), DType::BF16);
    // As most models are published.
    let drafter = adapted(&target, &target);
    let held = Types::of(&drafter);
    // Two low-rank ones beside each of seven linear layers.
    let thin = 2 * 7 * target.spec().layers;
    assert_eq!(held.matrices_in(DType::F32), thin);
    assert_eq!(held.matrices_in(DType::BF16), held.matrices.len() - thin);
    assert!(held.vectors.iter().all(|&dtype| dtype == DType::F32));
    // With more digits than bf16 has.
    let digits = Types::of(&adapted(&wide, &target));
    assert_eq!(digits.matrices_in(DType::F32), digits.matrices.len());
    let in_f32 = adapted(&target, &wide);
    let all = Types::of(&in_f32);
    assert_eq!(all.matrices_in(DType::F32), all.matrices.len());
    let batch = batch(&target, Capture::default());
    let [one, other] = [&drafter, &in_f32].map(|model| hidden(model, &batch, DType::BF16));
    assert_eq!(one, other);
}

#[test]
fn beside_such_matrices_a_training_merges_writes_and_goes_on() {
    let target = held_in(tiny::target(&test_device()), DType::BF16);
    let batch = batch(&target, Capture::default());
    let config = TrainConfig::default().optimizer();
    let objective = Distill::new(&DistillConfig::default()).unwrap();
    let training = || Trainee::drafter(adapted(&target, &target), objective.clone(), config);
    let mut trainee = training();
    let before = hidden(&trainee.model(), &batch, DType::F32);
    trainee.accumulate_as_measured(&batch, Statistics::Loss);
    trainee.update(1e-2, 0.0);
    assert!(trainee.is_finite());
    let trained = trainee.model();
    let found = hidden(&trained, &batch, DType::F32);
    assert_ne!(found, before);
    let merged = LanguageModel::of(trained.merged().unwrap(), &target.parts()).unwrap();
    assert_close("merged", &hidden(&merged, &batch, DType::F32), &found, 1e-5);

    // It writes as it will draft.
    let rewritten = |drafter: &LanguageModel| objective.rewrite(drafter, &batch.rows, &[], 5);
    let written = rewritten(&held_in(merged, DType::BF16)).unwrap().tokens;
    assert_eq!(rewritten(&trained).unwrap().tokens, written);

    let mut resumed = training();
    let (weights, optimizer) = (trainee.weights(), trainee.optimizer());
    resumed
        .restore(weights, optimizer, "a saved state")
        .unwrap();
    let (types, again) = (Types::of(&trained), Types::of(&resumed.model()));
    assert_eq!(again.matrices, types.matrices);
    assert_eq!(hidden(&resumed.model(), &batch, DType::F32), found);
}

#[test]
fn a_language_model_that_reads_the_text_itself_has_no_simulated_chains() {
    let device = test_device();
    let target = tiny::target(&device);
    let drafter: LanguageModel = tiny::fresh(&language_model(), &target, &device.autodiff());
    let objective = Distill::new(&DistillConfig::default()).unwrap();
    let trainee = Trainee::drafter(drafter, objective, TrainConfig::default().optimizer());
    let report = trainee.measure(&batch(&target, Capture::default()));
    let [step] = &report.steps[..] else {
        panic!("{report:?}");
    };
    assert!(
        report.measured && step.count > 0 && step.alpha > 0.0,
        "{report:?}"
    );
    assert_eq!((report.chains, step.reached), (0, 0));
}

#[test]
fn a_drafter_rewrites_replies_and_leaves_prompts_alone() {
    let device = test_device();
    let target = tiny::target(&device);
    let drafter: LanguageModel = tiny::fresh(&language_model(), &target, &device);
    let objective = Distill::new(&DistillConfig {
        on_policy: OnPolicyConfig {
            fraction: 1.0,
            temperature: 0.7,
            max_new_tokens: 6,
        },
        ..Default::default()
    })
    .unwrap();
    let batch = batch(&target, Capture::default());
    let rewrite = |rows: &Rows, seed: u64| objective.rewrite(&drafter, rows, &[], seed);
    let rows = rewrite(&batch.rows, 5).unwrap();
    assert_eq!(rows.real_tokens(), 3 * (4 + 6));
    assert_eq!(
        rows.loss_mask.iter().filter(|&&counts| counts).count(),
        3 * 6
    );
    let again = Batch::new(rows.clone(), &device);
    for ((_, before), (start, after)) in documents(&batch).iter().zip(documents(&again)) {
        assert_eq!(before[..4], after[..4]);
        assert_ne!(before[4..10], after[4..10]);
        assert!(!rows.loss_mask[start + 3] && rows.loss_mask[start + 4]);
    }
    let other_seed = rewrite(&batch.rows, 6).unwrap();
    assert_ne!(other_seed.tokens, rows.tokens);
    assert_eq!(rewrite(&batch.rows, 5).unwrap().tokens, rows.tokens);
    // Where every token is trained on, nothing tells replies from prompts.
    let mut unmasked = batch.rows.clone();
    unmasked.loss_mask.fill(true);
    assert!(rewrite(&unmasked, 5).is_none());
}

#[test]
fn batches_without_a_reply_that_the_drafter_could_write_are_told_once() {
    let workspace = Workspace::new();
    let row = |token: u32| {
        let row = json!({"input_ids": [token, 5, 6, 7, 8, 9], "loss_mask": [1, 1, 1, 1, 1, 1]});
        format!("{row}\n")
    };
    workspace.write("train.jsonl", (0..40).map(row).collect::<String>());
    let recipe = RECIPE
        .replace("\"eagle3\"", "\"distillspec\"")
        .replace("draft_vocab = 256", "keep_layers = [0, 3]")
        .replace("draft_steps = 2", "on_policy = { fraction = 1.0 }");
    workspace.write("recipe.toml", recipe);
    let words = "recipe recipe.toml --stage prepare --stage train";
    let told = workspace.run_line(words).succeeded().stderr;
    assert_eq!(told.matches("no reply has a prompt").count(), 1, "{told}");
}

#[test]
fn a_pard_2_drafts_without_features_for_a_target_of_another_width() {
    let device = test_device();
    let target = tiny::target(&device);
    let drafter: Pard = tiny::fresh(&pard(true), &target, &device);
    assert!(drafter.reads_features());
    let mut parts = target.parts();
    parts.spec.d_model /= 2;
    let (model, projection) = (drafter.model().clone(), drafter.target_proj().cloned());
    let other = Pard::of(model, projection, &parts, MASK).unwrap();
    assert!(!other.reads_features());
    assert_eq!(other.capture_of_target(), Capture::default());
    let batch = batch(&target, Pard::capture(&pard(true), target.spec()).unwrap());
    let (start, tokens) = documents(&batch).remove(0);
    let drafts = |drafter: &Pard| {
        let mut state = drafter.start(8, tokens[0]);
        drafter.observe(&mut state, &tokens[1..5], &features(&batch, start, 4));
        forced(drafter, &mut state, &[1, 2])
    };
    let without = Pard::of(drafter.model().clone(), None, &target.parts(), MASK).unwrap();
    let without = drafts(&without);
    assert_eq!(drafts(&other), without);
    assert_ne!(drafts(&drafter), without);
}

/// Writes a model as a folder that drafters start from, with tensors beside it.
fn write_model(folder: &Path, model: &Transformer, beside: &[NamedTensor]) -> String {
    let tensors = [named(export(model)), beside.to_vec()].concat();
    let config = model.config().to_json().unwrap();
    write_folder(folder, &config, &tensors, &[]).unwrap();
    folder.display().to_string()
}

#[test]
fn a_pard_2_goes_on_with_the_projection_in_its_folder() {
    let device = test_device();
    let target = tiny::target(&device);
    let vocabulary = DraftVocabulary::full(target.spec().vocab);
    let trained: Pard = tiny::fresh(&pard(true), &target, &device);
    let shape = export(trained.target_proj().unwrap())[0].shape.clone();
    let folder = tempfile::tempdir().unwrap();
    let start = |name: &str, beside: &[NamedTensor]| {
        let config = PardConfig {
            fresh: None,
            model: write_model(&folder.path().join(name), trained.model(), beside),
            ..pard(true)
        };
        Pard::fresh(&config, &target.parts(), &vocabulary, 5, &device)
    };
    let projection = |drafter: &Pard| export(drafter.target_proj().unwrap())[0].to_f32().unwrap();
    let values = vec![0.25; shape.iter().product()];
    let stored = NamedTensor::from_f32(TARGET_PROJ, shape, values.clone());
    assert_eq!(projection(&start("whole", &[stored]).unwrap()), values);
    let drawn = projection(&start("without", &[]).unwrap());
    assert!(drawn.iter().any(|value| *value != drawn[0]));
    let other = NamedTensor::from_f32(TARGET_PROJ, [2, 3], vec![0.0; 6]);
    let error = start("other", &[other]).unwrap_err().to_string();
    assert!(
        error.contains(TARGET_PROJ) && error.contains("[2, 3]"),
        "{error}"
    );
}

#[test]
fn a_model_to_start_from_is_read_whole_or_refused() {
    let device = test_device();
    let target = tiny::target(&device);
    let vocabulary = DraftVocabulary::full(target.spec().vocab);
    let folder = tempfile::tempdir().unwrap();
    let start = |name: &str, keep_layers: Vec<usize>, change: &dyn Fn(&mut Vec<NamedTensor>)| {
        let path = folder.path().join(name);
        let mut tensors = named(export(&target));
        change(&mut tensors);
        write_folder(&path, &target.config().to_json().unwrap(), &tensors, &[]).unwrap();
        let config = LanguageModelConfig {
            model: path.display().to_string(),
            keep_layers,
            ..Default::default()
        };
        let drafter = LanguageModel::fresh(&config, &target.parts(), &vocabulary, 5, &device);
        drafter.map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(start("whole", Vec::new(), &|_| ()), Ok(()));
    const BIAS: &str = "model.layers.1.self_attn.q_proj.bias";
    let with_bias = |tensors: &mut Vec<NamedTensor>| {
        tensors.push(NamedTensor::from_f32(BIAS, [2], vec![1.0; 2]));
    };
    let error = start("bias", Vec::new(), &with_bias).unwrap_err();
    assert!(error.contains(BIAS), "{error}");
    assert_eq!(start("left", vec![0, 2], &with_bias), Ok(()));
    let error = start("kept", vec![1], &with_bias).unwrap_err();
    assert!(error.contains(BIAS), "{error}");
    let error = start("zeros", Vec::new(), &|tensors| {
        let of_layer = |tensor: &&mut NamedTensor| tensor.name.starts_with("model.layers.1.");
        for tensor in tensors.iter_mut().filter(of_layer) {
            tensor.bytes.fill(0);
        }
    });
    let error = error.unwrap_err();
    assert!(error.contains("model.layers.1"), "{error}");
}

//! A block-diffusion drafter fills in training the blocks that it fills in decoding, and nothing leaks between blocks.
use burn::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use spectrain_checkpoints::{DType, NamedTensor};
use spectrain_data::Sample;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_eval::{
    Acceptance, DecodeSettings, Decoder, Estimable, OwnText, VerifierChoice, estimate,
};
use spectrain_models::device::test_device;
use spectrain_models::dflash::{Context, DFlash, DFlashConfig, MarkovKind, candidates};
use spectrain_models::weights::{export, host_f32, import};
use spectrain_models::{
    DraftShape, Drafter, Features, RandomWeights, Sampling, Scope, Session, Stop, StopBy,
    Target as _, Transformer, argmax, forced,
};
use spectrain_train::{
    Anchors, Batch, BlockLoss, BlockLossConfig, Objective as _, SlotWeights, Statistics, Step,
    Train as _, TrainConfig, Trainee,
};

use crate::allocation::{alone, largest_during};
use crate::estimates::drafts_along_as_at_each_place;
use crate::golden::assert_close;
use crate::lilicorr::lilicorr;
use crate::tiny;
use crate::xpress::xpress;

pub const BLOCK: usize = 5;

pub fn config() -> DFlashConfig {
    DFlashConfig {
        layers: 2,
        block_size: BLOCK,
        mask_token: Some(47),
        ..Default::default()
    }
}

/// With a number in place of minus infinity, which must be in the same places.
fn finite(logits: &[f32]) -> Vec<f32> {
    logits.iter().map(|logit| logit.max(-1e6)).collect()
}

fn dflash_2() -> DFlashConfig {
    DFlashConfig {
        conv_taps: 2,
        conv_group: 4,
        selector_rank: 3,
        selector_top_k: 7,
        ..config()
    }
}

fn dspark(markov: MarkovKind) -> DFlashConfig {
    DFlashConfig {
        markov_rank: 3,
        markov,
        confidence: true,
        sample_from_anchor: true,
        ..config()
    }
}

/// The same drafter with noise in place of the parameters that change nothing at first.
pub fn shaken(drafter: DFlash) -> DFlash {
    let mut rng = StdRng::seed_from_u64(17);
    let parts = [
        "_conv.",
        "candidate_selector.",
        "markov_head.",
        "confidence_head.",
        "lattice.",
    ];
    let shake = |mut tensor: NamedTensor| {
        if parts.iter().any(|part| tensor.name.contains(part)) {
            let count = tensor.shape.iter().product::<usize>();
            let noise = (0..count).map(|_| rng.random_range(-0.7..0.7)).collect();
            tensor = NamedTensor::from_f32(tensor.name, tensor.shape, noise);
        }
        tensor
    };
    let tensors = export(&drafter).into_iter().map(shake).collect();
    import(drafter, tensors, "noise").unwrap()
}

/// A drafter, a batch of random texts in two rows, and the anchors of its blocks.
pub struct Case {
    pub drafter: DFlash,
    pub batch: Batch,
    pub objective: BlockLoss,
    pub anchors: Vec<Option<(usize, usize)>>,
}

impl Case {
    pub fn new(config: &DFlashConfig) -> Self {
        let device = test_device();
        let target = tiny::target(&device);
        let capture = DFlash::capture(config, target.spec()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let samples = tiny::samples(folder.path(), &tiny::random_samples(3), 2);
        let batch = tiny::batch(&mut tiny::live(samples, &target, capture));
        let objective = BlockLoss::new(&BlockLossConfig {
            anchors: 12,
            ..Default::default()
        });
        let objective = objective.unwrap();
        Self {
            anchors: objective.anchors(&batch.rows, BLOCK, 3),
            drafter: shaken(tiny::fresh(config, &target, &device)),
            batch,
            objective,
        }
    }

    /// Logits of each slot of each block behind these tokens, one less than slots: the anchor comes before the first.
    fn slots_behind(&self, path: &[u32]) -> Vec<Vec<f32>> {
        let slots = self.drafter.config().slots();
        let block = self
            .objective
            .hidden(&self.drafter, &self.batch, &self.anchors);
        let filled = self.drafter.slots(block);
        let hidden = filled.hidden.clone();
        let device = hidden.device();
        let before = self.anchors.iter().flat_map(|anchor| {
            let anchor = anchor.map_or(0, |(anchor, _)| self.batch.rows.tokens[anchor]);
            std::iter::once(anchor).chain(path.iter().copied())
        });
        let before: Vec<i64> = before.map(i64::from).collect();
        let before = Tensor::<1, Int>::from_ints(before.as_slice(), &device);
        let table = before.clone().reshape([self.anchors.len(), slots]);
        let read: Tensor<2> = self.drafter.widened(&filled, table).flatten(0, 1);
        let logits = host_f32(read.matmul(self.drafter.head()));
        let mut logits: Vec<Vec<f32>> = logits.chunks(tiny::VOCAB).map(<[f32]>::to_vec).collect();
        if let Some(selector) = self.drafter.selector() {
            // The scores of all tokens, of which the likeliest are kept.
            let rows = logits.len();
            let all = Tensor::<1, Int>::arange(0..tiny::VOCAB as i64, &device);
            let all = all.reshape([1, tiny::VOCAB]).expand([rows, tiny::VOCAB]);
            let scores = host_f32(selector.scores(hidden.clone().flatten(0, 1), before, all));
            for (row, scores) in logits.iter_mut().zip(scores.chunks(tiny::VOCAB)) {
                let mut order: Vec<usize> = (0..tiny::VOCAB).collect();
                order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
                for &token in &order[..selector.top_k()] {
                    row[token] += scores[token];
                }
                for &token in &order[selector.top_k()..] {
                    row[token] = f32::NEG_INFINITY;
                }
            }
        }
        if self.drafter.lattice().is_some() {
            logits = self.along_paths(hidden, path);
        }
        logits
    }

    /// What a lattice makes of slots behind these tokens: the logits of their candidates, behind the one before where that is one.
    fn along_paths(&self, hidden: Tensor<3>, path: &[u32]) -> Vec<Vec<f32>> {
        let (slots, device) = (self.drafter.config().slots(), hidden.device());
        let top_k = self.drafter.lattice().unwrap().top_k();
        let flat: Tensor<2> = hidden.clone().flatten(0, 1);
        let (ids, log_p) = candidates(flat.matmul(self.drafter.target_head()), top_k);
        let before = |anchor: &Option<(usize, usize)>| anchor.map_or(0, |(at, _)| at as i64 - 1);
        let before: Vec<i64> = self.anchors.iter().map(before).collect();
        assert!(before.iter().all(|&at| at >= 0), "{before:?}");
        let features = self.batch.features.as_ref().unwrap();
        let context = self.drafter.context(features, self.batch.tokens.clone());
        let context: Tensor<2> = context.flatten(0, 1);
        let before = Tensor::<1, Int>::from_ints(before.as_slice(), &device);
        let before = context.select(0, before);
        let known = vec![true; self.anchors.len()];
        let chosen = (ids.clone(), log_p);
        let scores = (self.drafter).path_scores(chosen, hidden, (before, &known));
        let rows = host_f32(scores.scores.clone());
        let ids: Vec<i64> = ids.into_data().iter::<i64>().collect();
        let ids: Vec<&[i64]> = ids.chunks(top_k).collect();
        let of_slot = |at: usize| {
            let slot = at % slots;
            let last = slot.checked_sub(1).map(|last| i64::from(path[last]));
            let place = last.and_then(|token| ids[at - 1].iter().position(|&id| id == token));
            let row = scores.row(at / slots, slot, place);
            let mut logits = vec![f32::NEG_INFINITY; tiny::VOCAB];
            for (&id, &score) in ids[at].iter().zip(&rows[row * top_k..]) {
                logits[id as usize] = score;
            }
            logits
        };
        (0..ids.len()).map(of_slot).collect()
    }

    /// Logits of each slot of a block as a decoder drafts it, behind these tokens.
    pub fn drafted(&self, (anchor, start): (usize, usize), path: &[u32]) -> Vec<Vec<f32>> {
        let (rows, features) = (&self.batch.rows, self.batch.features.as_ref().unwrap());
        let length = rows.layout.row_length;
        let of = |x: &Tensor<3>| {
            let row = x.clone().narrow(0, start / length, 1);
            row.narrow(1, start % length, anchor - start)
        };
        let known = Features {
            captured: of(&features.captured),
            last: of(&features.last),
        };
        let mut state = self.drafter.start(64, rows.tokens[start]);
        // In two parts, as in decoding, the first of which is drafted from too.
        let (first, rest): (Vec<_>, Vec<_>) = (0..anchor - start).partition(|&at| at < 2);
        let part = |at: &[usize]| {
            at.iter()
                .map(|at| rows.tokens[start + at + 1])
                .collect::<Vec<_>>()
        };
        self.drafter
            .observe(&mut state, &part(&first), &known.select(&first));
        self.drafter.root_logits(&mut state);
        if !rest.is_empty() {
            self.drafter
                .observe(&mut state, &part(&rest), &known.select(&rest));
        }
        forced(&self.drafter, &mut state, path)
    }

    /// What is reported of the slots of these blocks, as a decoder drafts behind the text's tokens: sums for each slot. `teacher` has the
    /// target's logits of a position, where it judges.
    pub fn kept(
        &self,
        anchors: &[Option<(usize, usize)>],
        teacher: Option<&dyn Fn(usize) -> Vec<f32>>,
    ) -> Vec<Kept> {
        let rows = &self.batch.rows;
        let slots = self.drafter.config().slots();
        let mut found = vec![Kept::default(); slots];
        for &(anchor, start) in anchors.iter().flatten() {
            let token = |at: usize| rows.tokens.get(at).copied().unwrap_or(0);
            let path: Vec<u32> = (anchor + 1..anchor + slots).map(token).collect();
            let drafted = self.drafted((anchor, start), &path);
            let counted = |slot: &usize| rows.drafts(anchor, slot + 1);
            for slot in (0..slots).filter(counted) {
                let (q, label) = (softmax(&drafted[slot]), token(anchor + 1 + slot) as usize);
                let (alpha, right) = match teacher.map(|teacher| teacher(anchor + slot)) {
                    None => (q[label], label),
                    Some(logits) => {
                        let kept = softmax(&logits);
                        let kept = kept.iter().zip(&q).map(|(p, q)| p.min(*q));
                        (kept.sum(), argmax(&logits))
                    }
                };
                found[slot].count += 1;
                found[slot].alpha += alpha;
                found[slot].correct += usize::from(argmax(&drafted[slot]) == right);
                found[slot].recalled += usize::from(drafted[slot][label].is_finite());
            }
        }
        found
    }

    /// Logits of each place of each block.
    fn logits(&self, batch: &Batch) -> Vec<Vec<f32>> {
        let hidden = self.objective.hidden(&self.drafter, batch, &self.anchors);
        let hidden: Tensor<2> = hidden.flatten(0, 1);
        let logits = host_f32(hidden.matmul(self.drafter.head()));
        logits.chunks(tiny::VOCAB).map(<[f32]>::to_vec).collect()
    }
}

/// What is known of a slot over some blocks.
#[derive(Debug, Clone, Default)]
pub struct Kept {
    pub count: usize,
    pub alpha: f64,
    pub correct: usize,
    pub recalled: usize,
}

fn softmax(logits: &[f32]) -> Vec<f64> {
    let largest = f64::from(logits[argmax(logits)]);
    let shifted = logits
        .iter()
        .map(|&logit| (f64::from(logit) - largest).exp());
    let sum: f64 = shifted.clone().sum();
    shifted.map(|weight| weight / sum).collect()
}

pub fn blocks_equal_drafts(config: &DFlashConfig) {
    let case = Case::new(config);
    let slots = case.drafter.config().slots();
    let path: Vec<u32> = (0..slots as u32 - 1).map(|at| 3 + 2 * at).collect();
    let logits = case.slots_behind(&path);
    let mut compared = 0;
    for (block, anchor) in case.anchors.iter().enumerate() {
        let Some((anchor, start)) = *anchor else {
            continue;
        };
        let drafted = case.drafted((anchor, start), &path);
        for (slot, found) in drafted.iter().enumerate() {
            let what = format!("block behind {anchor}, slot {slot}");
            let expected = &logits[block * slots + slot];
            // Training and decoding take sums in different orders.
            assert_close(&what, &finite(found), &finite(expected), 2e-5);
            compared += 1;
        }
    }
    assert!(compared >= 60, "{compared}");
}

/// In training and in validations, what is reported of how far drafts are kept is what a decoder's drafts come to.
pub fn is_measured_as_decoded(config: &DFlashConfig) {
    let case = Case::new(config);
    for seed in [None, Some(3)] {
        let batch = Batch {
            seed,
            ..case.batch.clone()
        };
        let loss = (case.objective).loss(&case.drafter, &batch, Statistics::All);
        let anchors = (case.objective).anchors(&batch.rows, BLOCK, seed.unwrap_or(0));
        let (steps, expected) = (loss.report().steps, case.kept(&anchors, None));
        assert_eq!(steps.len(), expected.len());
        for (found, expected) in steps.iter().zip(&expected) {
            assert_eq!(found.count, expected.count);
            assert_eq!(found.correct as usize, expected.correct);
            let apart = (found.alpha - expected.alpha).abs();
            assert!(apart < 1e-3, "{config:?} {seed:?}: {found:?} {expected:?}");
        }
    }
}

#[test]
fn training_blocks_equal_drafts() {
    blocks_equal_drafts(&config());
}

#[test]
fn training_blocks_of_heads_of_another_width_than_the_targets_equal_drafts() {
    for d_head in [6, 12] {
        blocks_equal_drafts(&DFlashConfig { d_head, ..config() });
    }
}

#[test]
fn training_blocks_with_windows_and_causal_places_equal_drafts() {
    blocks_equal_drafts(&DFlashConfig {
        window: 6,
        ..config()
    });
    blocks_equal_drafts(&DFlashConfig {
        causal: true,
        window: 9,
        ..config()
    });
    for (full_layers, full_layers_see_block) in [(vec![1], true), (vec![0], false)] {
        blocks_equal_drafts(&DFlashConfig {
            causal: true,
            window: 6,
            full_layers,
            full_layers_see_block,
            ..config()
        });
    }
}

#[test]
fn training_blocks_of_dflash_2_equal_drafts() {
    blocks_equal_drafts(&dflash_2());
}

#[test]
fn training_blocks_of_dspark_equal_drafts() {
    for markov in [MarkovKind::Vanilla, MarkovKind::Gated, MarkovKind::Rnn] {
        blocks_equal_drafts(&dspark(markov));
    }
}

fn domino(markov_from: usize, sample_from_anchor: bool) -> DFlashConfig {
    DFlashConfig {
        markov_rank: 3,
        markov: MarkovKind::Domino,
        markov_state: 7,
        markov_from,
        sample_from_anchor,
        ..config()
    }
}

#[test]
fn training_blocks_of_domino_equal_drafts() {
    blocks_equal_drafts(&domino(1, true));
    blocks_equal_drafts(&domino(0, false));
}

#[test]
fn the_first_slots_of_domino_draft_as_without_its_head() {
    let drafted = |config: &DFlashConfig| Case::new(config).slots_behind(&[3, 5, 7]);
    let whole = drafted(&domino(2, false));
    let plain = drafted(&config());
    for (slot, (whole, plain)) in whole.iter().zip(&plain).enumerate() {
        let apart = whole.iter().zip(plain).map(|(a, b)| (a - b).abs());
        let same = apart.fold(0.0, f32::max) < 1e-5;
        assert_eq!(slot % (BLOCK - 1) < 2, same, "{slot}");
    }
}

#[test]
fn training_blocks_over_tokens_equal_drafts() {
    blocks_equal_drafts(&DFlashConfig {
        context: Context::Tokens,
        ..config()
    });
}

#[test]
fn a_fresh_dflash_2_is_dflash_among_its_candidates() {
    let device = test_device();
    let target = tiny::target(&device);
    let text = &tiny::random_samples(1)[0].tokens;
    let drafted = |config: &DFlashConfig| {
        let drafter: DFlash = tiny::fresh(config, &target, &device);
        let capture = DFlash::capture(config, target.spec()).unwrap();
        let length = text.len() - 1;
        let features = Features {
            captured: Tensor::ones(
                [1, length, capture.layers.len() * target.spec().d_model],
                &device,
            ),
            last: Tensor::ones([1, length, target.spec().d_model], &device),
        };
        let mut state = drafter.start(64, text[0]);
        drafter.observe(&mut state, &text[1..], &features);
        forced(&drafter, &mut state, &[3, 5, 7])
    };
    let (plain, selected) = (drafted(&config()), drafted(&dflash_2()));
    for (plain, selected) in plain.iter().zip(&selected) {
        let kept = selected.iter().filter(|logit| logit.is_finite()).count();
        assert_eq!(kept, 7);
        for (plain, selected) in plain.iter().zip(selected) {
            assert!(!selected.is_finite() || plain == selected);
        }
    }
}

/// Greedy outputs with drafts of this shape are the target's own, and some drafts are kept.
fn decodes_greedily(config: &DFlashConfig, draft: DraftShape) {
    let device = test_device();
    let target = tiny::target(&device);
    let capture = DFlash::capture(config, target.spec()).unwrap();
    let decoder = Decoder::new(&target, &capture);
    let settings = DecodeSettings {
        max_new_tokens: 60,
        draft,
        sampling: Sampling::GREEDY,
        stop: Vec::new(),
        shadow: None,
    };
    let drafter: DFlash = shaken(tiny::fresh(config, &target, &device));
    let mut session = Session::new(drafter);
    let verifier = VerifierChoice::Exact.at(&settings.sampling);
    let mut rng = StdRng::seed_from_u64(1);
    let mut drafted = 0;
    for sample in tiny::random_samples(6) {
        let prompt = &sample.tokens[..4];
        let output = decoder.generate(&mut session, verifier, prompt, &settings, &mut rng);
        let output = output.unwrap();
        let plain = decoder.plain(prompt, &settings, &mut rng).unwrap();
        assert_eq!(output.tokens, plain.tokens);
        drafted += output.passes.iter().map(|pass| pass.drafted).sum::<usize>();
    }
    assert!(drafted > 100, "{drafted}");
}

#[test]
fn greedy_decoding_with_every_kind_and_shape_gives_the_targets_own_tokens() {
    let chain = DraftShape::Chain { length: 5 };
    let best = DraftShape::BestFirst {
        depth: 4,
        nodes: 12,
    };
    let confident = DraftShape::Confident {
        length: 5,
        stop: Stop {
            by: StopBy::Head,
            threshold: 0.2,
        },
    };
    let all = [
        config(),
        dflash_2(),
        dspark(MarkovKind::Rnn),
        domino(1, true),
        xpress(2),
        lilicorr(),
    ];
    for config in all {
        decodes_greedily(&config, chain.clone());
        decodes_greedily(&config, best.clone());
    }
    decodes_greedily(&dspark(MarkovKind::Vanilla), confident);
}

#[test]
fn a_selector_chooses_along_a_text_as_at_each_place_and_in_many_slots_at_once() {
    let device = test_device();
    let target = tiny::target(&device);
    for sample_from_anchor in [false, true] {
        let config = DFlashConfig {
            sample_from_anchor,
            ..dflash_2()
        };
        let capture = DFlash::capture(&config, target.spec()).unwrap();
        let drafter: DFlash = shaken(tiny::fresh(&config, &target, &device));
        let mut session = Session::new(drafter);
        let given = drafts_along_as_at_each_place("DFlash 2", (&target, &capture), &mut session);
        assert!(given < 20, "{given} times, of some 600 places");
    }
}

#[test]
fn a_block_takes_one_pass_and_a_draft_without_room_none() {
    let device = test_device();
    let drafter: DFlash = tiny::fresh(&config(), &tiny::target(&device), &device);
    assert_eq!([0, 1, 4].map(|depth| drafter.passes(depth)), [0, 1, 1]);
}

#[test]
fn chains_that_end_by_the_head_are_estimated_as_they_are_decoded() {
    let device = test_device();
    let target = tiny::target(&device);
    let mut ended = 0;
    for kind in [MarkovKind::Vanilla, MarkovKind::Rnn] {
        let config = dspark(kind);
        let capture = DFlash::capture(&config, target.spec()).unwrap();
        let decoder = Decoder::new(&target, &capture);
        let drafter: DFlash = shaken(tiny::fresh(&config, &target, &device));
        let mut session = Session::new(drafter);
        for threshold in [0.05, 0.1, 0.2, 0.3] {
            let stop = Stop {
                by: StopBy::Head,
                threshold,
            };
            let settings = DecodeSettings {
                max_new_tokens: 60,
                draft: DraftShape::Confident { length: 5, stop },
                sampling: Sampling::GREEDY,
                stop: Vec::new(),
                shadow: None,
            };
            let verifier = VerifierChoice::Exact.at(&settings.sampling);
            let mut rng = StdRng::seed_from_u64(1);
            for sample in tiny::random_samples(3) {
                let prompt = &sample.tokens[..4];
                let output = decoder.generate(&mut session, verifier, prompt, &settings, &mut rng);
                let output = output.unwrap();
                let text = OwnText::read(&target, &capture, prompt, &output.tokens, 60).unwrap();
                let draft = Estimable::of(&settings.draft, &settings.sampling, verifier).unwrap();
                let found = estimate(&session, &text, &draft).unwrap();
                let decoded = Acceptance::of(&output.passes);
                assert!(found.is_as_decoded(&decoded), "{kind:?} {threshold}");
                let lengths = output.passes.iter().map(|pass| pass.drafted);
                ended += lengths.filter(|drafted| (1..5).contains(drafted)).count();
            }
        }
    }
    assert!(ended > 50, "{ended}");
}

/// What differs between the logits of two batches: for each block whether any place does.
fn changed(case: &Case, batch: &Batch) -> Vec<bool> {
    let (before, after) = (case.logits(&case.batch), case.logits(batch));
    let pairs = before.chunks(BLOCK).zip(after.chunks(BLOCK));
    pairs.map(|(before, after)| before != after).collect()
}

#[test]
fn the_anchors_feature_and_all_behind_it_change_nothing() {
    let case = Case::new(&config());
    let features = case.batch.features.as_ref().unwrap();
    let [batch, length, width] = features.captured.dims();
    let mut leaked = 0;
    for at in (0..batch * length).step_by(3) {
        let mut bump = vec![0.0f32; batch * length * width];
        bump[at * width..(at + 1) * width].fill(1.0);
        let bump = Tensor::from_data(
            TensorData::new(bump, [batch, length, width]),
            &test_device(),
        );
        let mut other = case.batch.clone();
        other.features = Some(Features {
            captured: features.captured.clone() + bump,
            last: features.last.clone(),
        });
        let found = changed(&case, &other);
        for (anchor, found) in case.anchors.iter().zip(found) {
            let sees = anchor.is_some_and(|(anchor, start)| (start..anchor).contains(&at));
            assert_eq!(found, sees, "feature {at}, anchor {anchor:?}");
            leaked += usize::from(sees);
        }
    }
    assert!(leaked > 20, "{leaked}");
}

#[test]
fn a_block_reads_no_token_but_its_anchor_and_nothing_of_other_blocks() {
    let case = Case::new(&config());
    for at in (0..case.batch.rows.len()).step_by(2) {
        let mut other = case.batch.clone();
        other.rows.tokens[at] = (other.rows.tokens[at] + 1) % tiny::VOCAB as u32;
        for (anchor, found) in case.anchors.iter().zip(changed(&case, &other)) {
            let own = anchor.is_some_and(|(anchor, _)| anchor == at);
            assert_eq!(found, own, "token {at}, anchor {anchor:?}");
        }
    }
}

#[test]
fn anchors_stand_in_replies_and_chunks_one_behind_the_other() {
    let case = Case::new(&config());
    let rows = &case.batch.rows;
    assert!(case.anchors.iter().flatten().count() > 12);
    for &(anchor, start) in case.anchors.iter().flatten() {
        assert!(rows.loss_mask[anchor] && rows.loss_mask[anchor + 1] && rows.reaches(anchor, 1));
        assert_eq!(rows.layout.positions[start], 0);
    }
    let other = case.objective.anchors(rows, BLOCK, 4);
    assert_ne!(other, case.anchors);
    let chunks = BlockLoss::new(&BlockLossConfig {
        placement: Anchors::Chunks,
        ..Default::default()
    });
    let chunks = chunks.unwrap().anchors(rows, BLOCK, 3);
    let placed: Vec<_> = chunks.iter().flatten().collect();
    for pair in placed.windows(2) {
        let ((before, start), (after, next)) = (pair[0], pair[1]);
        assert!(start != next || after - before == BLOCK, "{before} {after}");
    }
    assert!(placed.iter().filter(|(at, start)| at - start == 4).count() == 3);
}

/// However many slots there are, their logits exist a chunk at a time, those for the selector's candidates too.
#[test]
fn no_allocation_grows_with_slots_times_vocabulary() {
    alone(|| {
        let device = test_device();
        let mut config = tiny::config();
        config.spec.vocab = 40_000;
        let mut random = RandomWeights::new(7);
        let scope = &mut Scope::root(&mut random, &device, DType::F32);
        let target = Transformer::new(scope, config).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let samples = tiny::samples(folder.path(), &tiny::random_samples(24), 12);
        let plain = DFlashConfig {
            layers: 1,
            block_size: 8,
            ..self::config()
        };
        let selecting = DFlashConfig {
            selector_rank: 4,
            selector_top_k: 8,
            ..plain.clone()
        };
        let biased = DFlashConfig {
            markov_rank: 4,
            confidence: true,
            ..plain
        };
        for config in [selecting, biased] {
            let capture = DFlash::capture(&config, target.spec()).unwrap();
            let batch = tiny::batch(&mut tiny::live(samples.clone(), &target, capture));
            let autodiff = device.clone().autodiff();
            let vocabulary = DraftVocabulary::full(40_000);
            let drafter =
                DFlash::fresh(&config, &target.parts(), &vocabulary, 3, &autodiff).unwrap();
            let objective = BlockLoss::new(&BlockLossConfig {
                teacher_weight: 1.0.into(),
                ..Default::default()
            });
            let mut trainee = Trainee::drafter(
                drafter,
                objective.unwrap(),
                TrainConfig::default().optimizer(),
            );
            let mut slots = 0;
            let largest = largest_during(|| {
                let loss = trainee.accumulate_as_measured(&batch, Statistics::All);
                slots = loss.rows.len();
            });
            let all = slots * 40_000 * 4;
            assert!(slots > 1000, "{slots}");
            assert!(largest < all / 3, "{largest} bytes of {all}");
        }
    });
}

/// Tokens of a text from one on, all different.
const FROM: u32 = 6;
/// The place of the only anchor in it, behind which two tokens are trained on.
const ANCHOR: usize = 4;
/// A token that stands nowhere in the text.
const OTHER: usize = 30;

/// A drafter of two slots, the first of which predicts the token behind the anchor and the second the one behind that. Its logits go
/// by the token before alone: each slot has this loss, and gives another token this probability.
fn drafter_with([first, second]: [(f64, f64); 2], target: &Transformer) -> DFlash {
    let config = DFlashConfig {
        layers: 1,
        block_size: 3,
        markov_rank: 2,
        ..config()
    };
    let fresh: DFlash = tiny::fresh(&config, target, &test_device().autodiff());
    let right = |slot: usize| FROM as usize + ANCHOR + 1 + slot;
    let change = |tensor: NamedTensor| {
        let mut values = vec![0.0; tensor.shape.iter().product()];
        match tensor.name.as_str() {
            // What the layers make is left out.
            "norm.weight" => {}
            // A code for the anchor, and one for the token behind it.
            "markov_head.markov_w1.weight" => {
                values[2 * (right(0) - 1)] = 1.0;
                values[2 * right(0) + 1] = 1.0;
            }
            "markov_head.markov_w2.weight" => {
                for (slot, (loss, other)) in [first, second].into_iter().enumerate() {
                    let rest = (1.0 - f64::exp(-loss) - other) / (tiny::VOCAB - 2) as f64;
                    values[2 * right(slot) + slot] = (f64::exp(-loss) / rest).ln() as f32;
                    values[2 * OTHER + slot] = (other / rest).ln() as f32;
                }
            }
            _ => return tensor,
        }
        NamedTensor::from_f32(tensor.name, tensor.shape, values)
    };
    let tensors = export(&fresh).into_iter().map(change).collect();
    import(fresh, tensors, "made up").unwrap()
}

/// The loss on the two slots of a validation and of a training step.
fn losses_of(slots: [(f64, f64); 2], slot_weights: SlotWeights) -> [f64; 2] {
    let target = tiny::target(&test_device());
    let drafter = drafter_with(slots, &target);
    let sample = Sample {
        tokens: (FROM..FROM + 12).collect(),
        loss_mask: (0..12)
            .map(|at| (ANCHOR..ANCHOR + 3).contains(&at))
            .collect(),
    };
    let capture = DFlash::capture(drafter.config(), target.spec()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &[sample], 1);
    let batch = tiny::batch(&mut tiny::live(samples, &target, capture));
    let objective = BlockLoss::new(&BlockLossConfig {
        placement: Anchors::Chunks,
        slot_weights,
        ..Default::default()
    });
    let mut trainee = Trainee::drafter(
        drafter,
        objective.unwrap(),
        TrainConfig::default().optimizer(),
    );
    let measured = trainee.measure(&batch);
    assert_eq!(measured.steps.len(), 2);
    let batch = batch.in_training(1, Step { number: 0, of: 1 });
    let trained = trainee.accumulate(&batch, Statistics::All).report();
    [measured.total, trained.total]
}

#[test]
fn a_drafter_that_is_better_in_every_slot_has_the_smaller_loss_in_validations() {
    // The first slot is wrong before and right after.
    let before = [(0.8, 0.5), (3.0, 0.5)];
    let after = [(0.6, 0.4), (2.5, 0.5)];
    let close = |found: f64, expected: f64| {
        assert!((found - expected).abs() < 1e-3, "{found} {expected}");
    };
    // The second slot counts e^(-1/4) of the first.
    let second = f64::exp(-0.25);
    let by_decay =
        |[(first, _), (then, _)]: [(f64, f64); 2]| (first + second * then) / (1.0 + second);
    for slot_weights in [
        SlotWeights::Exponential,
        SlotWeights::DPace,
        SlotWeights::Auf,
    ] {
        for slots in [before, after] {
            let [measured, _] = losses_of(slots, slot_weights);
            close(measured, by_decay(slots));
        }
    }
    assert!(by_decay(after) < by_decay(before));
    // In training the second slot counts nothing behind a wrong one, and as much as the first behind a right one.
    close(losses_of(before, SlotWeights::Auf)[1], 0.8);
    close(losses_of(after, SlotWeights::Auf)[1], 1.55);
}

/// In training, too, what is measured is what is drafted: not what the slots come to without the selector, nor what it makes of a
/// right token that was added to its candidates.
#[test]
fn how_far_a_selectors_drafts_are_kept_is_measured_as_they_are_decoded() {
    let case = Case::new(&dflash_2());
    let target = tiny::target(&test_device());
    let last = &case.batch.features.as_ref().unwrap().last;
    let last: Tensor<2> = last.clone().flatten(0, 1);
    let judge = |position: usize| {
        let state = last.clone().narrow(0, position, 1).unsqueeze::<3>();
        host_f32(target.parts().lm_head.forward(state))
    };
    for by_target in [false, true] {
        let objective = BlockLoss::new(&BlockLossConfig {
            anchors: 12,
            teacher_weight: f64::from(u8::from(by_target)).into(),
            ..Default::default()
        });
        let objective = objective.unwrap();
        for seed in [None, Some(3)] {
            let batch = Batch {
                seed,
                ..case.batch.clone()
            };
            let loss = objective.loss(&case.drafter, &batch, Statistics::All);
            let steps = loss.report().steps;
            let anchors = objective.anchors(&batch.rows, BLOCK, seed.unwrap_or(0));
            let teacher: Option<&dyn Fn(usize) -> Vec<f32>> =
                if by_target { Some(&judge) } else { None };
            let expected = case.kept(&anchors, teacher);
            assert_eq!(steps.len(), expected.len());
            let missed: usize = expected.iter().map(|slot| slot.count - slot.recalled).sum();
            assert!(missed > 10, "{expected:?}");
            for (found, expected) in steps.iter().zip(&expected) {
                assert_eq!(found.count, expected.count);
                assert_eq!(found.correct as usize, expected.correct);
                assert_eq!(found.recalled, Some(expected.recalled));
                let apart = (found.alpha - expected.alpha).abs();
                assert!(apart < 1e-3, "{found:?} {expected:?}");
            }
        }
    }
}

#[test]
fn validations_of_a_selector_judge_slots_whose_token_is_no_candidate() {
    let case = Case::new(&dflash_2());
    let loss = |inject, seed| {
        let objective = BlockLoss::new(&BlockLossConfig {
            anchors: 12,
            inject,
            ..Default::default()
        });
        let batch = Batch {
            seed,
            ..case.batch.clone()
        };
        let loss = objective
            .unwrap()
            .loss(&case.drafter, &batch, Statistics::All);
        loss.report().total
    };
    assert_eq!(loss(false, None), loss(true, None));
    assert_ne!(loss(false, Some(3)), loss(true, Some(3)));
}

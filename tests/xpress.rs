//! XPress trains on the drafts that its decoder makes, settled or not.
use std::ops::ControlFlow;

use burn::prelude::*;
use spectrain_models::device::test_device;
use spectrain_models::dflash::{DFlashConfig, MarkovKind, Slots};
use spectrain_models::weights::host_f32;
use spectrain_models::{Drafter, Features, KnownText, argmax, forced};
use spectrain_train::{BlockLoss, BlockLossConfig, BlockMasking, Objective as _, Statistics};

use crate::dflash::{BLOCK, Case, blocks_equal_drafts, config, is_measured_as_decoded};
use crate::golden::assert_close;
use crate::tiny;

pub fn xpress(passes: usize) -> DFlashConfig {
    DFlashConfig {
        markov_rank: 3,
        markov: MarkovKind::Xpress,
        markov_passes: Some(passes),
        ..config()
    }
}

#[test]
fn training_blocks_of_xpress_equal_drafts() {
    blocks_equal_drafts(&xpress(BLOCK - 1));
    blocks_equal_drafts(&DFlashConfig {
        causal: true,
        markov_d_ff: Some(5),
        ..xpress(BLOCK)
    });
}

/// The likeliest token of each slot of each block.
fn likeliest(read: Tensor<3>, head: Tensor<2>) -> Vec<Vec<u32>> {
    let [_, slots, _] = read.dims();
    let rows: Tensor<2> = read.flatten(0, 1);
    let rows = host_f32(rows.matmul(head));
    let best: Vec<u32> = (rows.chunks(tiny::VOCAB))
        .map(|row| argmax(row) as u32)
        .collect();
    best.chunks(slots).map(<[u32]>::to_vec).collect()
}

/// The draft behind each anchor, made as vLLM makes it: guessed by the target's head alone, then in passes over all blocks.
fn drafts_by_hand(case: &Case) -> Vec<Vec<u32>> {
    let block = (case.objective).hidden(&case.drafter, &case.batch, &case.anchors);
    let filled = case.drafter.slots(block);
    let mut drafts = likeliest(filled.hidden.clone(), case.drafter.target_head());
    for _ in 0..case.drafter.config().refining_passes() {
        drafts = likeliest(read_behind(case, &filled, &drafts), case.drafter.head());
    }
    drafts
}

/// What the head reads of the slots of each block behind an anchor and the tokens of a draft.
fn read_behind(case: &Case, filled: &Slots, drafts: &[Vec<u32>]) -> Tensor<3> {
    let before = |(anchor, draft): (&Option<(usize, usize)>, &Vec<u32>)| {
        let anchor = anchor.map_or(0, |(anchor, _)| case.batch.rows.tokens[anchor]);
        let (_, others) = draft.split_last().unwrap();
        [&[anchor][..], others].concat()
    };
    let before = case.anchors.iter().zip(drafts).flat_map(before);
    let before: Vec<i64> = before.map(i64::from).collect();
    let before = Tensor::<1, Int>::from_ints(before.as_slice(), &test_device());
    let before = before.reshape([case.anchors.len(), case.drafter.config().slots()]);
    case.drafter.widened(filled, before)
}

/// What the drafter makes in one go of the text up to an anchor with a draft behind it: the logits of each slot behind the anchor.
fn along_draft(case: &Case, (anchor, start): (usize, usize), draft: &[u32]) -> Vec<Vec<f32>> {
    let (rows, features) = (&case.batch.rows, case.batch.features.as_ref().unwrap());
    let (length, first) = (rows.layout.row_length, anchor - start);
    let of = |x: &Tensor<3>| {
        let [_, _, width] = x.dims();
        let row = x.clone().narrow(0, start / length, 1);
        // The anchor's features and those behind it are of no slot behind it.
        let others = Tensor::zeros([1, draft.len(), width], &x.device());
        Tensor::cat(vec![row.narrow(1, start % length, first), others], 1)
    };
    let features = Features {
        captured: of(&features.captured),
        last: of(&features.last),
    };
    let tokens = [&rows.tokens[start..=anchor], draft].concat();
    let text = KnownText {
        tokens: &tokens,
        features: &features,
        first,
        depth: draft.len(),
        limit: tokens.len() + draft.len(),
    };
    let mut found = vec![Vec::new(); draft.len()];
    case.drafter.along(&text, &mut |steps, logits| {
        let logits = host_f32(logits);
        for (step, row) in steps.iter().zip(logits.chunks(tiny::VOCAB)) {
            if step.place == first {
                found[step.step] = row.to_vec();
            }
        }
        ControlFlow::Continue(())
    });
    found
}

/// Behind its own draft a slot reads what the last pass has read, and not what that has made of it.
#[test]
fn behind_a_draft_that_is_not_settled_xpress_makes_of_a_text_what_it_drafts() {
    let mut unsettled = 0;
    for passes in [1, 2] {
        let case = Case::new(&xpress(passes));
        let drafts = drafts_by_hand(&case);
        let block = (case.objective).hidden(&case.drafter, &case.batch, &case.anchors);
        let read = read_behind(&case, &case.drafter.slots(block), &drafts);
        let read: Tensor<2> = read.flatten(0, 1);
        let settled = host_f32(read.matmul(case.drafter.head()));
        let settled: Vec<&[f32]> = settled.chunks(tiny::VOCAB).collect();
        for (block, anchor) in case.anchors.iter().enumerate() {
            let (Some(anchor), draft) = (*anchor, &drafts[block]) else {
                continue;
            };
            let found = along_draft(&case, anchor, draft);
            let drafted = case.drafted(anchor, &draft[..BLOCK - 2]);
            assert_eq!(found.len(), drafted.len());
            for (slot, (found, expected)) in found.iter().zip(&drafted).enumerate() {
                let what = format!("{passes} passes behind {anchor:?}, slot {slot}");
                assert_close(&what, found, expected, 2e-4);
                let settled = settled[block * (BLOCK - 1) + slot];
                let apart = found.iter().zip(settled).map(|(a, b)| (a - b).abs());
                unsettled += usize::from(apart.fold(0.0, f32::max) > 1e-2);
            }
        }
    }
    assert!(unsettled > 0);
}

/// Passes that settle all tokens draft what validations judge; others, and whatever is trained on, are measured apart.
#[test]
fn how_far_drafts_of_xpress_are_kept_is_measured_as_they_are_decoded() {
    for passes in [1, BLOCK] {
        is_measured_as_decoded(&xpress(passes));
    }
}

#[test]
fn a_validation_of_what_is_trained_on_shown_tokens_counts_no_drafts_and_measures_them() {
    let case = Case::new(&xpress(2));
    let parts = |masking: BlockMasking| {
        let objective = BlockLoss::new(&BlockLossConfig {
            anchors: 12,
            masking,
            ..Default::default()
        });
        let loss = (objective.unwrap()).loss(&case.drafter, &case.batch, Statistics::All);
        let report = loss.report();
        assert!(report.measured);
        (report.parts.into_keys().collect::<Vec<_>>(), report.terms)
    };
    assert_eq!(
        parts(BlockMasking::All).0,
        ["consistency", "guesses", "labels"]
    );
    assert_eq!(parts(BlockMasking::Some), (vec!["labels".to_owned()], 0.0));
}

#[test]
fn a_greedy_draft_of_xpress_is_what_its_passes_leave_even_if_it_is_not_settled() {
    let settled = drafts_by_hand(&Case::new(&xpress(BLOCK)));
    let mut unsettled = 0;
    for passes in [1, 2, BLOCK] {
        let case = Case::new(&xpress(passes));
        let (rows, features) = (&case.batch.rows, case.batch.features.as_ref().unwrap());
        let length = rows.layout.row_length;
        let by_hand = drafts_by_hand(&case);
        for (block, anchor) in case.anchors.iter().enumerate() {
            let Some((anchor, start)) = *anchor else {
                continue;
            };
            let of = |x: &Tensor<3>| {
                let row = x.clone().narrow(0, start / length, 1);
                row.narrow(1, start % length, anchor - start)
            };
            let known = Features {
                captured: of(&features.captured),
                last: of(&features.last),
            };
            let mut state = case.drafter.start(64, rows.tokens[start]);
            (case.drafter).observe(&mut state, &rows.tokens[start + 1..=anchor], &known);
            let expected = &by_hand[block];
            let logits = forced(&case.drafter, &mut state, &expected[..BLOCK - 2]);
            let drafted: Vec<u32> = logits.iter().map(|row| argmax(row) as u32).collect();
            assert_eq!(&drafted, expected, "{passes} passes behind {anchor}");
            unsettled += usize::from(settled[block] != drafted);
        }
    }
    assert!(unsettled > 0);
}

//! A block-diffusion drafter fills in training the blocks that it fills in decoding, and nothing leaks between blocks.
use burn::prelude::*;
use spectrain_models::dflash::{DFlash, DFlashConfig};
use spectrain_models::weights::host_f32;
use spectrain_models::{Drafter, Features, Target as _, forced};
use spectrain_train::{Batch, BlockLoss, BlockLossConfig, Objective as _};

use crate::golden::assert_close;
use crate::tiny;

const BLOCK: usize = 5;

fn config() -> DFlashConfig {
    DFlashConfig {
        layers: 2,
        block_size: BLOCK,
        mask_token: Some(47),
        ..Default::default()
    }
}

/// A drafter, a batch of random texts in two rows, and the anchors of its blocks.
struct Case {
    drafter: DFlash,
    batch: Batch,
    objective: BlockLoss,
    anchors: Vec<Option<(usize, usize)>>,
}

impl Case {
    fn new(config: &DFlashConfig) -> Self {
        let device = Device::flex();
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
            drafter: tiny::fresh(config, &target, &device),
            batch,
            objective,
        }
    }

    /// Logits of each place of each block.
    fn logits(&self, batch: &Batch) -> Vec<Vec<f32>> {
        let hidden = self.objective.hidden(&self.drafter, batch, &self.anchors);
        let hidden: Tensor<2> = hidden.flatten(0, 1);
        let logits = host_f32(hidden.matmul(self.drafter.head()));
        logits.chunks(tiny::VOCAB).map(<[f32]>::to_vec).collect()
    }
}

fn blocks_equal_drafts(config: &DFlashConfig) {
    let case = Case::new(config);
    let (rows, features) = (&case.batch.rows, case.batch.features.as_ref().unwrap());
    let length = rows.layout.row_length;
    let logits = case.logits(&case.batch);
    let mut compared = 0;
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
        // In two parts, as in decoding, the first of which is drafted from too.
        let (first, rest): (Vec<_>, Vec<_>) = (0..anchor - start).partition(|&at| at < 2);
        let part = |at: &[usize]| {
            at.iter()
                .map(|at| rows.tokens[start + at + 1])
                .collect::<Vec<_>>()
        };
        case.drafter
            .observe(&mut state, &part(&first), &known.select(&first));
        case.drafter.root_logits(&mut state);
        if !rest.is_empty() {
            case.drafter
                .observe(&mut state, &part(&rest), &known.select(&rest));
        }
        let slots = forced(&case.drafter, &mut state, &[1; BLOCK - 2]);
        for (slot, found) in slots.iter().enumerate() {
            let what = format!("block behind {anchor}, slot {slot}");
            assert_close(&what, found, &logits[block * BLOCK + slot + 1], 1e-5);
            compared += 1;
        }
    }
    assert!(compared >= 60, "{compared}");
}

#[test]
fn training_blocks_equal_drafts() {
    blocks_equal_drafts(&config());
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
            &Device::flex(),
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
        placement: spectrain_train::Anchors::Chunks,
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

//! A lattice of paths decides in training on what it decides on in decoding.
use spectrain_models::device::test_device;
use spectrain_models::dflash::{DFlash, DFlashConfig, LatticeTable};
use spectrain_models::{Drafter, Session, Target as _};
use spectrain_train::{
    Batch, BlockLoss, BlockLossConfig, BlockMasking, LatticeLossConfig, Objective as _, Statistics,
};

use crate::dflash::{BLOCK, Case, blocks_equal_drafts, config, shaken};
use crate::estimates::drafts_along_as_at_each_place;
use crate::tiny;

pub fn lilicorr() -> DFlashConfig {
    DFlashConfig {
        lattice: Some(LatticeTable {
            top_k: 12,
            d_model: 6,
            layers: 2,
            heads: 2,
            d_ff: 10,
            rank: 5,
            ..LatticeTable::default()
        }),
        ..config()
    }
}

/// As wide as the target, in blocks with convolutions.
fn convolved() -> DFlashConfig {
    let mut config = DFlashConfig {
        conv_taps: 2,
        conv_group: 4,
        ..lilicorr()
    };
    config.lattice.as_mut().unwrap().d_model = 0;
    config
}

#[test]
fn training_blocks_of_lilicorr_equal_drafts() {
    blocks_equal_drafts(&lilicorr());
    blocks_equal_drafts(&convolved());
}

#[test]
fn how_far_drafts_of_lilicorr_are_kept_is_measured_as_they_are_decoded() {
    for config in [lilicorr(), convolved()] {
        let case = Case::new(&config);
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
                assert!(apart < 1e-3, "{seed:?}: {found:?} {expected:?}");
            }
        }
    }
}

#[test]
fn lilicorr_chooses_along_a_text_as_at_each_place_and_in_many_slots_at_once() {
    let device = test_device();
    let target = tiny::target(&device);
    for config in [lilicorr(), convolved()] {
        let capture = DFlash::capture(&config, target.spec()).unwrap();
        let drafter: DFlash = shaken(tiny::fresh(&config, &target, &device));
        let mut session = Session::new(drafter);
        let given = drafts_along_as_at_each_place("LiLiCorr", (&target, &capture), &mut session);
        assert!(given < 20, "{given} times, of some 600 places");
    }
}

/// The parts of the loss, and what they come to.
fn parts(case: &Case, seed: Option<u64>, config: BlockLossConfig) -> (Vec<String>, f64) {
    let objective = BlockLoss::new(&BlockLossConfig {
        anchors: 12,
        ..config
    });
    let batch = Batch {
        seed,
        ..case.batch.clone()
    };
    let loss = (objective.unwrap()).loss(&case.drafter, &batch, Statistics::All);
    let report = loss.report();
    assert!(report.measured);
    (report.parts.into_keys().collect(), report.terms)
}

#[test]
fn a_lattice_has_the_parts_of_the_loss_that_are_asked_for_and_none_where_tokens_are_shown() {
    let case = Case::new(&lilicorr());
    let usual = || BlockLossConfig::default();
    let lattice = |change: fn(&mut LatticeLossConfig)| {
        let mut lattice = LatticeLossConfig::default();
        change(&mut lattice);
        BlockLossConfig {
            lattice: Some(lattice),
            ..usual()
        }
    };
    let shown = || BlockLossConfig {
        masking: BlockMasking::Some,
        ..usual()
    };
    for seed in [None, Some(3)] {
        let of = |config| parts(&case, seed, config).0;
        assert_eq!(of(usual()), ["labels", "lattice", "lattice_penalty"]);
        let hinge = lattice(|of| of.hinge_weight = 0.125.into());
        assert_eq!(
            of(hinge),
            ["labels", "lattice", "lattice_hinge", "lattice_penalty"]
        );
        let alone = lattice(|of| of.penalty_weight = 0.0.into());
        assert_eq!(of(alone), ["labels", "lattice"]);
        assert_eq!(
            parts(&case, seed, shown()),
            (vec!["labels".to_owned()], 0.0)
        );
    }
}

/// Whatever paths are not scored is as if no token were a candidate: the loss on slots is the same with a lattice and without.
#[test]
fn a_lattice_leaves_the_loss_on_slots_alone() {
    let labels = |config: &DFlashConfig| {
        let case = Case::new(config);
        let loss = (case.objective).loss(&case.drafter, &case.batch, Statistics::All);
        loss.report().parts["labels"]
    };
    let (with, without) = (labels(&lilicorr()), labels(&config()));
    assert!((with - without).abs() < 1e-5, "{with} {without}");
}

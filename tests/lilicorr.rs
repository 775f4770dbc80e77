//! A lattice of paths decides in training on what it decides on in decoding.
use spectrain_models::device::test_device;
use spectrain_models::dflash::{DFlash, DFlashConfig, LatticeTable};
use spectrain_models::{Drafter, Session, Target as _};
use spectrain_train::{
    Batch, BlockLoss, BlockLossConfig, BlockMasking, Objective as _, PathLossConfig, Statistics,
};

use crate::dflash::{Case, blocks_equal_drafts, config, is_measured_as_decoded, shaken};
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
        is_measured_as_decoded(&config);
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
    let paths = |change: fn(&mut PathLossConfig)| {
        let mut paths = PathLossConfig::default();
        change(&mut paths);
        BlockLossConfig {
            paths: Some(paths),
            ..usual()
        }
    };
    let shown = || BlockLossConfig {
        masking: BlockMasking::Some,
        ..usual()
    };
    for seed in [None, Some(3)] {
        let of = |config| parts(&case, seed, config).0;
        assert_eq!(of(usual()), ["labels", "paths", "paths_penalty"]);
        let hinge = paths(|of| of.hinge_weight = 0.125.into());
        assert_eq!(
            of(hinge),
            ["labels", "paths", "paths_hinge", "paths_penalty"]
        );
        let alone = paths(|of| of.penalty_weight = 0.0.into());
        assert_eq!(of(alone), ["labels", "paths"]);
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

use burn::prelude::*;
use burn::tensor::Distribution;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::device::{is_cpu, test_device};
use spectrain_models::weights::host_f32;

use super::*;
use crate::device::chunk_rows;
use crate::divergence::Divergence;
use crate::judge::{Judge, Statistics};
use crate::teacher::Teacher;
use crate::vocab_loss::{JudgedRows, LossHead, VocabLoss, Wanted, vocab_gradients};
use crate::weighing::{Divisor, Scope, Weighing};

/// A few hundred places, drafts of three and of other numbers of steps.
fn made_up() -> Vec<Vec<f64>> {
    let rate = |place: usize, step: usize| {
        let x = (place * 37 + step * 101 + 11) % 97;
        match x {
            0..8 => 0.0,
            89.. => 1.0,
            _ => x as f64 / 97.0,
        }
    };
    let steps = |place: usize| if place % 7 == 3 { place % 5 } else { 3 };
    (0..310)
        .map(|place| (0..steps(place)).map(|step| rate(place, step)).collect())
        .collect()
}

/// The passes from a place on, by trying each outcome of each pass.
fn tried(kept: &[Vec<f64>], place: usize) -> f64 {
    if place >= kept.len() {
        return 0.0;
    }
    let mut alive = 1.0;
    let mut passes = 1.0;
    for (step, kept_here) in kept[place].iter().enumerate() {
        passes += alive * (1.0 - kept_here) * tried(kept, place + 1 + step);
        alive *= kept_here;
    }
    passes + alive * tried(kept, place + 1 + kept[place].len())
}

#[test]
fn as_many_passes_are_expected_as_trying_all_outcomes_gives() {
    let kept = &made_up()[..14];
    for count in 0..kept.len() {
        let found = expected_passes(&kept[..count]).passes;
        assert!((found - tried(&kept[..count], 0)).abs() < 1e-12, "{count}");
    }
}

#[test]
fn perfect_drafts_take_a_pass_for_each_draft_and_its_bonus_token_and_useless_ones_one_a_token() {
    let places = 303;
    let passes = |alpha| expected_passes(&vec![vec![alpha; 4]; places]).passes;
    assert_eq!(passes(1.0), 61.0);
    assert_eq!(passes(0.0), 303.0);
}

#[test]
fn what_a_step_saves_is_the_slope_of_the_passes() {
    let kept = made_up();
    let found = expected_passes(&kept);
    let mut steep = 0;
    for (place, steps) in kept.iter().enumerate() {
        for (step, &alpha) in steps.iter().enumerate() {
            if alpha == 0.0 {
                assert_eq!(found.saved[place][step], 0.0);
                continue;
            }
            let small = 1e-6;
            let moved = |by: f64| {
                let mut kept = kept.clone();
                kept[place][step] *= by.exp();
                expected_passes(&kept).passes
            };
            let slope = (moved(-small) - moved(small)) / (2.0 * small);
            assert!(
                (slope - found.saved[place][step]).abs() < 1e-6,
                "{place} {step}"
            );
            steep += usize::from(slope.abs() > 0.01);
        }
    }
    assert!(steep > 300, "{steep} steps matter");
}

#[test]
fn rows_of_a_text_are_weighed_together_and_what_was_missed_keeps_nothing() {
    let row = |(position, step)| JudgedRow {
        step,
        position,
        teacher: position + 1 + step,
        weight: 1.0,
    };
    // Two texts; of the first the second place cannot be met at its first step. In any order.
    let mut rows = [(8, 0), (2, 0), (2, 1), (3, 1), (4, 0), (9, 0), (8, 1)].map(row);
    let alpha = [1.0, 0.5, 0.5, 0.9, 0.25, 0.75, 0.5].map(|alpha| [alpha, 1.0]);
    by_passes(&mut rows, &alpha, &[(0, 3)], 0.0);
    let first = expected_passes(&[vec![0.5, 0.5], vec![0.0, 0.9], vec![0.25, 0.0]]);
    let second = expected_passes(&[vec![1.0, 0.5], vec![0.75, 0.0]]);
    assert_eq!(first.passes, 2.25);
    for (row, saved) in rows.iter().zip([
        second.saved[0][0],
        first.saved[0][0],
        first.saved[0][1],
        0.0,
        first.saved[2][0],
        second.saved[1][0],
        second.saved[0][1],
    ]) {
        assert_eq!(row.weight, saved as f32, "{row:?}");
    }
    assert!(rows[0].weight > 0.0 && rows[1].weight > 0.0);
    // Sure of all, only what was missed is rejected.
    by_passes(&mut rows, &alpha, &[(0, 3)], 1.0);
    assert_eq!(rows[3].weight, 0.0);
}

/// Two texts in a row of 330 positions, and their draft steps.
const POSITIONS: usize = 330;
const STEPS: usize = 3;
const D_MODEL: usize = 8;

struct Drafts {
    head: Tensor<2>,
    teacher: Teacher,
    hidden: Vec<Tensor<2>>,
}

impl Drafts {
    /// Hidden states near what the target has, so that a part of the drafts is kept.
    fn new(vocab: usize) -> Self {
        let device = test_device();
        let random = |shape, deviation| {
            Tensor::<2>::random(shape, Distribution::Normal(0.0, deviation), &device)
        };
        let head = random([D_MODEL, vocab], 1.0);
        let states = random([POSITIONS + STEPS, D_MODEL], 1.0);
        let near =
            |step| states.clone().narrow(0, step, POSITIONS) + random([POSITIONS, D_MODEL], 0.3);
        Self {
            hidden: (0..STEPS).map(near).collect(),
            teacher: Teacher::made_up(states.clone(), head.clone(), &DraftVocabulary::full(vocab)),
            head,
        }
    }

    fn rows() -> Vec<JudgedRow> {
        let places =
            (0..POSITIONS).flat_map(|position| (0..STEPS).map(move |step| (position, step)));
        let ends = |position: usize| if position < 120 { 120 } else { POSITIONS };
        places
            .filter(|&(position, step)| position + step < ends(position) && position != 120)
            .map(|(position, step)| JudgedRow {
                step,
                position,
                teacher: position + step,
                weight: 0.0,
            })
            .collect()
    }

    /// The weighed loss at these hidden states.
    fn judged(&self, hidden: Vec<Tensor<2>>, divergence: Divergence) -> VocabLoss {
        self.judged_at(Self::rows(), hidden, divergence)
    }

    /// The same of these rows.
    fn judged_at(
        &self,
        rows: Vec<JudgedRow>,
        hidden: Vec<Tensor<2>>,
        divergence: Divergence,
    ) -> VocabLoss {
        let judge = Judge::Target {
            teacher: &self.teacher,
            divergence: &divergence,
        };
        let judged = JudgedRows {
            weighing: Some(Weighing {
                scope: Scope::All,
                weigh: &|rows, found| by_passes(rows, found, &[], 0.0),
                divisor: Divisor::Weights,
            }),
            ..JudgedRows::new(rows, judge, Statistics::All)
        };
        let head = LossHead {
            weight: self.head.clone(),
            bias: None,
            trained: None,
        };
        vocab_gradients(hidden, head, judged, Wanted::Gradients)
    }
}

/// What each row was found to be.
fn found(loss: &VocabLoss) -> Vec<[f32; 2]> {
    let statistics = host_f32(loss.statistics.clone().unwrap());
    statistics.as_chunks::<2>().0.to_vec()
}

/// The passes over both texts.
fn passes(loss: &VocabLoss) -> f64 {
    let mut kept = vec![vec![0.0; STEPS]; POSITIONS];
    for (row, [alpha, _]) in loss.rows.iter().zip(found(loss)) {
        kept[row.position][row.step] = f64::from(alpha);
    }
    let texts = [&kept[..120], &kept[121..]];
    texts.map(|kept| expected_passes(kept).passes).iter().sum()
}

#[test]
fn a_text_in_which_no_pass_can_be_saved_has_no_loss_and_moves_nothing() {
    let drafts = Drafts::new(301);
    let only = JudgedRow {
        step: 0,
        position: 7,
        teacher: 7,
        weight: 0.0,
    };
    let loss = drafts.judged_at(vec![only], drafts.hidden.clone(), Divergence::Nla);
    assert_eq!((loss.divisor, loss.rows[0].weight), (0.0, 0.0));
    for gradients in loss.hidden_gradients {
        let gradients = host_f32(gradients);
        assert!(gradients.iter().all(|&gradient| gradient == 0.0));
    }
}

#[test]
fn the_gradient_of_weighed_log_rates_is_that_of_the_passes() {
    let drafts = Drafts::new(301);
    let judged = |hidden| drafts.judged(hidden, Divergence::Nla);
    let loss = judged(drafts.hidden.clone());
    assert!((100.0..280.0).contains(&passes(&loss)), "{}", passes(&loss));
    let gradients = &loss.hidden_gradients;
    let squares = |x: &Tensor<2>| {
        let squares = host_f32(x.clone())
            .into_iter()
            .map(|x| f64::from(x).powi(2));
        squares.sum::<f64>()
    };
    let length = gradients.iter().map(squares).sum::<f64>().sqrt();
    // Along the gradient.
    let small = 0.02;
    let moved = |by: f64| {
        let moved = drafts.hidden.iter().zip(gradients);
        let moved =
            moved.map(|(hidden, gradient)| hidden.clone() + gradient.clone() * (by / length));
        passes(&judged(moved.collect()))
    };
    let slope = (moved(small) - moved(-small)) / (2.0 * small);
    let expected = length * loss.divisor;
    assert!(
        expected > 1.0 && (slope - expected).abs() < 0.01 * expected,
        "{slope} and {expected}"
    );
}

#[test]
fn rows_of_several_chunks_are_weighed_together() {
    let vocab = 80_021;
    let drafts = Drafts::new(vocab);
    assert!(chunk_rows(vocab, &test_device()) < Drafts::rows().len() || !is_cpu(&test_device()));
    let loss = drafts.judged(drafts.hidden.clone(), Divergence::Kl);
    let mut rows = loss.rows.clone();
    by_passes(&mut rows, &found(&loss), &[], 0.0);
    let sum: f32 = rows.iter().map(|row| row.weight).sum();
    assert!(sum > 10.0);
    for (row, judged) in rows.iter().zip(&loss.rows) {
        let expected = row.weight / sum;
        assert!(
            (judged.weight - expected).abs() < 1e-6,
            "{row:?} {judged:?}"
        );
    }
}

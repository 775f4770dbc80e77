use burn::prelude::*;
use burn::tensor::Distribution;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::device::test_device;
use spectrain_models::weights::host_f32;

use super::*;
use crate::divergence::Divergence;
use crate::judge::{Judge, Statistics};
use crate::teacher::Teacher;
use crate::vocab_loss::{JudgedRows, LossHead, Wanted, vocab_gradients};
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

/// Two texts in a row of 330 positions, of draft steps that the head is given: more rows than a chunk holds.
const POSITIONS: usize = 330;
const STEPS: usize = 3;
const D_MODEL: usize = 8;
const VOCAB: usize = 9_001;

struct Drafts {
    head: Tensor<2>,
    teacher: Teacher,
}

impl Drafts {
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

    /// The hidden states' gradients of the weighed loss, the divisor and the passes that are expected.
    fn judged(&self, hidden: Vec<Tensor<2>>) -> (Vec<Tensor<2>>, f64, f64) {
        let passes = std::cell::Cell::new(0.0);
        let weigh = |rows: &mut [JudgedRow], found: &[[f32; 2]]| {
            by_passes(rows, found, &[], 0.0);
            let mut kept = vec![vec![0.0; STEPS]; POSITIONS];
            for (row, [alpha, _]) in rows.iter().zip(found) {
                kept[row.position][row.step] = f64::from(*alpha);
            }
            let texts = [&kept[..120], &kept[121..]];
            passes.set(texts.map(|kept| expected_passes(kept).passes).iter().sum());
        };
        let judge = Judge::Target {
            teacher: &self.teacher,
            divergence: Divergence::Nla,
        };
        let judged = JudgedRows {
            weighing: Some(Weighing {
                scope: Scope::All,
                weigh: &weigh,
                divisor: Divisor::Weights,
                factor: 1.0,
            }),
            ..JudgedRows::new(Self::rows(), judge, Statistics::Loss)
        };
        let head = LossHead {
            weight: self.head.clone(),
            bias: None,
            trained: None,
        };
        let loss = vocab_gradients(hidden, head, judged, Wanted::Gradients);
        (loss.hidden_gradients, loss.divisor, passes.get())
    }
}

#[test]
fn the_gradient_of_weighed_log_rates_is_that_of_the_passes() {
    let device = test_device();
    let random = |shape, deviation| {
        Tensor::<2>::random(shape, Distribution::Normal(0.0, deviation), &device)
    };
    let head = random([D_MODEL, VOCAB], 1.0);
    let states = random([POSITIONS + STEPS, D_MODEL], 1.0);
    let vocabulary = DraftVocabulary::full(VOCAB);
    let drafts = Drafts {
        teacher: Teacher::made_up(states.clone(), head.clone(), &vocabulary),
        head,
    };
    // Near what the target has, so that a part of the drafts is kept.
    let near = |step| states.clone().narrow(0, step, POSITIONS) + random([POSITIONS, D_MODEL], 0.3);
    let hidden: Vec<Tensor<2>> = (0..STEPS).map(near).collect();
    let (gradients, divisor, passes) = drafts.judged(hidden.clone());
    assert!(passes > 100.0 && passes < 280.0, "{passes}");
    // Along the gradient.
    let small = 0.02;
    let length = gradients.iter().map(squares).sum::<f64>().sqrt();
    let moved = |by: f64| {
        let moved = hidden.iter().zip(&gradients);
        let moved =
            moved.map(|(hidden, gradient)| hidden.clone() + gradient.clone() * (by / length));
        drafts.judged(moved.collect()).2
    };
    let slope = (moved(small) - moved(-small)) / (2.0 * small);
    let found = length * divisor;
    assert!(
        found > 1.0 && (slope - found).abs() < 0.01 * found,
        "{slope} and {found}"
    );
}

fn squares(x: &Tensor<2>) -> f64 {
    let squares = host_f32(x.clone())
        .into_iter()
        .map(|x| f64::from(x).powi(2));
    squares.sum()
}

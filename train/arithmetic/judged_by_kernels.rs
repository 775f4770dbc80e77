//! Rows that are judged on the CPU, in as few passes over the vocabulary as it takes.
use burn::prelude::*;

use crate::arithmetic::blended::judge_blend;
use crate::arithmetic::kernels::{self, TargetRow};
use crate::arithmetic::logits::{Logits, RowJudged};
use crate::arithmetic::operations::{JudgedChunk, RowJudge};
use crate::arithmetic::teacher_panel::TeacherPanel;
use crate::divergence::kernel::Kernel;
use crate::divergence::{Distance, Divergence};
use crate::judge::{Judge, Statistics};
use crate::row::JudgedRow;
use crate::teacher::Teacher;

/// Positions whose distributions are made at a time: the product behind them is too small alone.
const PANEL_ROWS: usize = 96;

/// Judges by [`kernels`].
pub(super) struct JudgedByKernels<'a> {
    judge: Judge<'a>,
    statistics: Statistics,
    /// Every position of the teacher that judges a row, ascending.
    positions: Vec<usize>,
    /// The panel at hand, and the place of its first row among `positions`.
    panel: Option<(usize, TeacherPanel)>,
}

impl<'a> JudgedByKernels<'a> {
    pub(super) fn new(judge: Judge<'a>, positions: Vec<usize>, statistics: Statistics) -> Self {
        Self {
            judge,
            statistics,
            positions,
            panel: None,
        }
    }

    fn by_target(
        &mut self,
        logits: Tensor<2>,
        rows: &[JudgedRow],
        teacher: &Teacher,
        divergence: &Divergence,
    ) -> (Tensor<2>, Vec<RowJudged>) {
        let kernel = divergence.kernel();
        let made = |positions: &[usize]| teacher.panel(positions, kernel);
        let (panel, first) = panel(&mut self.panel, &made, &self.positions, rows);
        let at = |row: &JudgedRow| self.positions[first..].partition_point(|&p| p < row.teacher);
        let places = rows.iter().map(|row| TargetRow {
            row: at(row),
            weight: row.weight,
        });
        let places: Vec<_> = places.collect();
        let (gradient, mut judged) = Logits::judged_in(logits, |logits| match kernel {
            Kernel::Towards {
                takes_entropy_off, ..
            } => kernels::judge_target(logits, &places, panel, takes_entropy_off),
            Kernel::Blend(blend) => judge_blend(logits, &places, panel, &blend),
        });
        for (judged, row) in judged.iter_mut().zip(rows) {
            judged.correct &= teacher.can_be_met(row.teacher);
        }
        (gradient, judged)
    }
}

impl RowJudge for JudgedByKernels<'_> {
    fn takes_narrow(&self) -> bool {
        true
    }

    fn judge(&mut self, logits: Tensor<2>, rows: &[JudgedRow]) -> JudgedChunk {
        let device = logits.device();
        let [count, vocab] = logits.dims();
        let (gradient, judged) = match self.judge {
            Judge::Labels(labels) => {
                let rows = rows.iter().map(|r| (labels[r.teacher] as usize, r.weight));
                let rows: Vec<_> = rows.collect();
                Logits::judged_in(logits, |logits| kernels::judge_labels(logits, vocab, &rows))
            }
            Judge::Target {
                teacher,
                divergence,
            } => self.by_target(logits, rows, teacher, divergence),
        };
        let column = |values: Vec<f32>, width| {
            Tensor::from_data(TensorData::new(values, [count, width]), &device)
        };
        let statistics = (self.statistics == Statistics::All).then(|| {
            let pairs = judged
                .iter()
                .flat_map(|row| [row.alpha, f32::from(u8::from(row.correct))]);
            column(pairs.collect(), 2)
        });
        let value = column(judged.iter().map(|row| row.value).collect(), 1);
        JudgedChunk {
            distance: Distance { value, gradient },
            statistics,
        }
    }
}

/// The target's distributions, as they are `made`, at the positions that judge `rows`: for more of `positions` than these at a time, and
/// the place of its first one among them.
fn panel<'a>(
    cached: &'a mut Option<(usize, TeacherPanel)>,
    made: &dyn Fn(&[usize]) -> TeacherPanel,
    positions: &[usize],
    rows: &[JudgedRow],
) -> (&'a TeacherPanel, usize) {
    let place = |position: usize| positions.partition_point(|&p| p < position);
    let judging = || rows.iter().map(|row| row.teacher);
    let (first, last) = (judging().min().map(place), judging().max().map(place));
    let (first, last) = (first.unwrap_or(0), last.unwrap_or(0));
    let holds =
        |(start, panel): &(usize, TeacherPanel)| *start <= first && last < start + panel.len();
    if !cached.as_ref().is_some_and(holds) {
        // The old one goes before the new one comes.
        *cached = None;
        let end = (first + PANEL_ROWS).max(last + 1).min(positions.len());
        *cached = Some((first, made(&positions[first..end])));
    }
    match cached {
        Some((start, panel)) => (panel, *start),
        None => unreachable!("it was just made"),
    }
}

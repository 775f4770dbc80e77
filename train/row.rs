use burn::prelude::*;
use spectrain_models::Picks;

/// One position to be judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JudgedRow {
    /// Which of the hidden states: the draft step, or the head.
    pub step: usize,
    /// Row of that step's hidden states; where steps leave positions out, the position of the batch.
    pub position: usize,
    /// Row of the target's last hidden states, or of the labels, that judges it.
    pub teacher: usize,
    /// Factor on its loss.
    pub weight: f32,
}

/// Where hidden states stand, those of all steps one behind the other.
pub(crate) struct Places<'a> {
    /// Where each step's begin, and where the last one's end.
    starts: Vec<usize>,
    /// The positions that the steps behind the first have hidden states of; all of them without.
    picks: Option<&'a Picks>,
}

impl<'a> Places<'a> {
    /// Those of `hidden`, one `[positions, d_model]` per step: of all positions at step 0, and of those that are picked at later ones.
    pub(crate) fn new(hidden: &[Tensor<2>], picks: Option<&'a Picks>) -> Self {
        let mut starts = vec![0];
        for of_step in hidden {
            starts.push(starts[starts.len() - 1] + of_step.dims()[0]);
        }
        Self { starts, picks }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    /// That of a row.
    pub(crate) fn of(&self, row: &JudgedRow) -> usize {
        let position = match self.picks {
            Some(picks) if row.step > 0 => picks.number(row.position),
            _ => row.position,
        };
        self.starts[row.step] + position
    }

    /// Parts of a tensor with as many rows, one for each step.
    pub(crate) fn by_step(&self, all: Tensor<2>) -> Vec<Tensor<2>> {
        let ranges = self.starts.array_windows();
        let of_step = |&[start, end]: &[usize; 2]| all.clone().narrow(0, start, end - start);
        ranges.map(of_step).collect()
    }
}

/// Rows with their weights times `factor`.
pub(crate) fn times(rows: &[JudgedRow], factor: f32) -> Vec<JudgedRow> {
    let weighed = rows.iter().map(|row| JudgedRow {
        weight: row.weight * factor,
        ..*row
    });
    weighed.collect()
}

/// The teacher's positions of some rows without repetition, and for each row its place among them. Rows of the same
/// position stand together.
pub(crate) fn distinct(rows: &[JudgedRow]) -> (Vec<usize>, Vec<usize>) {
    let mut distinct: Vec<usize> = Vec::new();
    let of = rows.iter().map(|row| {
        if distinct.last() != Some(&row.teacher) {
            distinct.push(row.teacher);
        }
        distinct.len() - 1
    });
    let of = of.collect();
    (distinct, of)
}

//! Weights of judged positions that depend on what the drafter makes of them.
//!
//! Those of small groups are set while the logits of a chunk are alive, so that the vocabulary is computed once. What the
//! weighted sum is divided by is known only behind the last chunk; gradients are linear in it, so they are scaled then. Where
//! whole texts are weighed together, their logits do not fit side by side: rows are judged once to be weighed, and once more for
//! their gradients.
use crate::row::JudgedRow;

/// Sets the weights of whole groups of rows from acceptance rate and agreement at each.
pub(crate) type Weigh<'a> = dyn Fn(&mut [JudgedRow], &[[f32; 2]]) + 'a;

/// How rows are weighed.
#[derive(Clone, Copy)]
pub(crate) struct Weighing<'a> {
    /// Which rows are weighed together.
    pub(crate) scope: Scope<'a>,
    /// Sets the weights of all that are weighed together.
    pub(crate) weigh: &'a Weigh<'a>,
    /// What the weighted sum over all rows is divided by.
    pub(crate) divisor: Divisor,
}

/// Which rows are weighed together.
#[derive(Clone, Copy)]
pub(crate) enum Scope<'a> {
    /// Those for which this is equal, few; they stand side by side.
    Group(&'a dyn Fn(&JudgedRow) -> usize),
    /// All of them, in any order.
    All,
}

/// What a weighted sum over rows is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Divisor {
    /// The sum of the weights.
    Weights,
    /// The number of rows.
    Rows,
}

impl Scope<'_> {
    /// How many of `rows`, from the first on, make the next chunk: at most `most` rows, but whole groups and at least one.
    pub(crate) fn chunk(self, rows: &[JudgedRow], most: usize) -> usize {
        let Self::Group(group) = self else {
            return most.min(rows.len());
        };
        let mut end = 0;
        for group in rows.chunk_by(|a, b| group(a) == group(b)) {
            if end > 0 && end + group.len() > most {
                break;
            }
            end += group.len();
        }
        end
    }
}

impl Divisor {
    /// What the weighted sum over `rows` is divided by; 0 where none of them weighs anything.
    pub(crate) fn of(self, rows: &[JudgedRow]) -> f64 {
        match self {
            Self::Weights => rows.iter().map(|row| row.weight as f64).sum(),
            Self::Rows => rows.len() as f64,
        }
    }

    /// The share of the weighted sum that each unit of weight has: nothing where nothing weighs anything.
    pub(crate) fn share(divisor: f64, factor: f64) -> f64 {
        if divisor > 0.0 { factor / divisor } else { 0.0 }
    }
}

/// `w_j = Σ_{m >= j} Π_{i <= m} kept_i`: how much is expected to be kept from each place on, where `kept` says how likely each is kept
/// once all before it are.
pub(crate) fn reach(kept: &[f32]) -> Vec<f32> {
    let product = |reach: &mut f32, kept: &f32| {
        *reach *= kept;
        Some(*reach)
    };
    let reached: Vec<f32> = kept.iter().scan(1.0, product).collect();
    (0..kept.len())
        .map(|at| reached[at..].iter().sum())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_holds_whole_groups_and_at_least_one() {
        let row = |position| JudgedRow {
            step: 0,
            position,
            teacher: 0,
            weight: 1.0,
        };
        let rows: Vec<JudgedRow> = [0, 1, 2, 3, 4, 6, 7].map(row).to_vec();
        let groups = Scope::Group(&|row| row.position / 3);
        assert_eq!(groups.chunk(&rows, 5), 5);
        assert_eq!(groups.chunk(&rows, 4), 3);
        assert_eq!(groups.chunk(&rows, 1), 3);
        assert_eq!(groups.chunk(&rows[3..], 100), 4);
        assert_eq!(Scope::All.chunk(&rows, 4), 4);
        assert_eq!(Scope::All.chunk(&rows, 100), 7);
    }
}

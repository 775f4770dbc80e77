//! Weights of judged positions that depend on what the drafter makes of them.
//!
//! They are set while the logits of a chunk are alive, so that the vocabulary is computed once. What the weighted sum is
//! divided by is known only behind the last chunk; gradients are linear in it, so they are scaled then.
use crate::row::JudgedRow;

/// Sets the weights of whole groups of rows from acceptance rate and agreement at each.
pub(crate) type Weigh<'a> = dyn Fn(&mut [JudgedRow], &[[f32; 2]]) + 'a;

/// How rows are weighed.
#[derive(Clone, Copy)]
pub(crate) struct Weighing<'a> {
    /// Which rows are weighed together: those of one group stand side by side.
    pub(crate) group: &'a dyn Fn(&JudgedRow) -> usize,
    /// Sets the weights of whole groups.
    pub(crate) weigh: &'a Weigh<'a>,
    /// What the weighted sum over all rows is divided by.
    pub(crate) divisor: Divisor,
    /// Factor on it behind that division.
    pub(crate) factor: f64,
}

/// What a weighted sum over rows is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Divisor {
    /// The sum of the weights.
    Weights,
    /// The number of rows.
    Rows,
}

impl Weighing<'_> {
    /// How many of `rows`, from the first on, make the next chunk: whole groups, at most `most` rows where more than one group
    /// fits.
    pub(crate) fn chunk(&self, rows: &[JudgedRow], most: usize) -> usize {
        let mut end = 0;
        for group in rows.chunk_by(|a, b| (self.group)(a) == (self.group)(b)) {
            if end > 0 && end + group.len() > most {
                break;
            }
            end += group.len();
        }
        end
    }
}

impl Divisor {
    /// What the weighted sum over `rows` is divided by.
    pub(crate) fn of(self, rows: &[JudgedRow]) -> f64 {
        let divisor = match self {
            Self::Weights => rows.iter().map(|row| row.weight as f64).sum(),
            Self::Rows => rows.len() as f64,
        };
        divisor.max(f64::MIN_POSITIVE)
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
        let weighing = Weighing {
            group: &|row| row.position / 3,
            weigh: &|_, _| {},
            divisor: Divisor::Rows,
            factor: 1.0,
        };
        assert_eq!(weighing.chunk(&rows, 5), 5);
        assert_eq!(weighing.chunk(&rows, 4), 3);
        assert_eq!(weighing.chunk(&rows, 1), 3);
        assert_eq!(weighing.chunk(&rows[3..], 100), 4);
    }
}

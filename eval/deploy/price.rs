//! What passes of a batch cost.
use crate::speculate::Seconds;
use crate::speculate::rehearsal::Rehearsed;

/// Seconds of passes of so many sequences together, round by round.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Prices {
    pub(crate) batch_size: usize,
    pub(crate) timed: Rehearsed,
}

/// Which of the ways that were timed a draft costs as much as.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Costs {
    /// This one.
    Way(usize),
    /// A chain of so many tokens, between the lengths that were timed, each with its way, in ascending order.
    Chain {
        length: usize,
        timed: Vec<(usize, usize)>,
    },
}

impl Costs {
    /// Whether this very draft was timed.
    pub(crate) fn is_timed(&self) -> bool {
        match self {
            Self::Way(_) => true,
            Self::Chain { length, timed } => timed.iter().any(|(of, _)| of == length),
        }
    }

    /// What it costs where the ways cost `of`; beyond the lengths that were timed as much as the nearest.
    fn of(&self, of: &dyn Fn(usize) -> f64) -> f64 {
        match self {
            Self::Way(way) => of(*way),
            Self::Chain { length, timed } => {
                let behind = timed.partition_point(|(timed, _)| timed < length);
                match (behind.checked_sub(1).map(|at| timed[at]), timed.get(behind)) {
                    (Some((low, before)), Some(&(high, after))) => {
                        let share = (length - low) as f64 / (high - low) as f64;
                        of(before) + share * (of(after) - of(before))
                    }
                    (Some((_, way)), None) | (None, Some(&(_, way))) => of(way),
                    (None, None) => f64::NAN,
                }
            }
        }
    }
}

impl Prices {
    /// Rounds that were timed.
    pub(crate) fn rounds(&self) -> usize {
        self.timed.plain.len()
    }

    /// Seconds of a pass without drafts in some of the rounds, which may come twice.
    pub(crate) fn plain(&self, rounds: &[usize]) -> f64 {
        typical(rounds.iter().map(|&round| self.timed.plain[round]))
    }

    /// Seconds of a pass with these drafts in some of the rounds.
    pub(crate) fn drafted(&self, costs: &Costs, rounds: &[usize]) -> f64 {
        self.part(costs, rounds, Seconds::total)
    }

    /// A part of these seconds.
    pub(crate) fn part(&self, costs: &Costs, rounds: &[usize], part: fn(&Seconds) -> f64) -> f64 {
        costs.of(&|way| {
            let timed = &self.timed.ways[way];
            typical(rounds.iter().map(|&round| part(&timed[round])))
        })
    }
}

/// The mean of the middle half: a few passes in which the machine did something else do not move it, and it is a mean where
/// drafts differ in length.
pub(crate) fn typical(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let cut = values.len() / 4;
    let kept = &values[cut..values.len() - cut];
    kept.iter().sum::<f64>() / kept.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_half_is_what_is_typical() {
        assert_eq!(typical([3.0].into_iter()), 3.0);
        assert_eq!(typical([1.0, 2.0, 6.0].into_iter()), 3.0);
        assert_eq!(typical([100.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
        assert!(typical(std::iter::empty()).is_nan());
    }

    #[test]
    fn between_two_lengths_the_cost_lies_on_a_line_and_beyond_them_it_is_the_nearest() {
        let seconds = |verify| Seconds {
            draft: 1.0,
            verify,
            other: 0.0,
        };
        let prices = Prices {
            batch_size: 4,
            timed: Rehearsed {
                plain: vec![2.0],
                ways: vec![vec![seconds(3.0)], vec![seconds(9.0)]],
            },
        };
        let chain = |length| Costs::Chain {
            length,
            timed: vec![(2, 0), (5, 1)],
        };
        let found = [1, 2, 3, 5, 7].map(|length| prices.drafted(&chain(length), &[0]));
        assert_eq!(found, [4.0, 4.0, 6.0, 10.0, 10.0]);
        assert_eq!(prices.part(&chain(3), &[0], |of| of.draft), 1.0);
        assert_eq!([2, 3].map(|length| chain(length).is_timed()), [true, false]);
        assert_eq!(prices.drafted(&Costs::Way(1), &[0, 0]), 10.0);
    }
}

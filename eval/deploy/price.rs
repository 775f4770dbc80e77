//! What passes of a batch cost.
use crate::speculate::Seconds;
use crate::speculate::rehearsal::{Rehearsed, Timed};

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

    /// What it costs where `of` says that of a way, whose drafts are so many times as long; beyond the lengths that were timed as much
    /// as the nearest.
    fn of(&self, of: &dyn Fn(usize, f64) -> f64) -> f64 {
        match self {
            Self::Way(way) => of(*way, 1.0),
            Self::Chain { length, timed } => {
                let of = |(timed, way): (usize, usize)| of(way, timed as f64 / *length as f64);
                let behind = timed.partition_point(|(timed, _)| timed < length);
                match (behind.checked_sub(1).map(|at| timed[at]), timed.get(behind)) {
                    (Some(before), Some(&after)) => {
                        let share = (length - before.0) as f64 / (after.0 - before.0) as f64;
                        of(before) + share * (of(after) - of(before))
                    }
                    (Some(nearest), None) | (None, Some(&nearest)) => of(nearest),
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

    /// Seconds of a pass with these drafts in some of the rounds, where so many tokens are drafted for a sequence on average.
    pub(crate) fn drafted(&self, costs: &Costs, tokens: f64, rounds: &[usize]) -> f64 {
        self.part(costs, tokens, rounds, Seconds::total)
    }

    /// A part of these seconds.
    pub(crate) fn part(
        &self,
        costs: &Costs,
        tokens: f64,
        rounds: &[usize],
        part: fn(&Seconds) -> f64,
    ) -> f64 {
        costs.of(&|way, times| {
            let of_round = |&round: &usize| {
                let Timed { seconds, drafted } = &self.timed.ways[way][round];
                [*drafted as f64, part(seconds)]
            };
            let passes: Vec<[f64; 2]> = rounds.iter().map(of_round).collect();
            typical_with(&passes, tokens * times * self.batch_size as f64)
        })
    }
}

/// What passes, of each the tokens drafted and the seconds, typically take where so many tokens are drafted. What is drafted may differ
/// from pass to pass and, at the places that were timed, from what it is elsewhere; the seconds are taken to grow with it on a line, and
/// to be no fewer than those of the fastest pass.
fn typical_with(passes: &[[f64; 2]], drafted: f64) -> f64 {
    let slope = slope(passes);
    let moved = passes
        .iter()
        .map(|[of, seconds]| seconds + slope * (drafted - of));
    let fastest = passes
        .iter()
        .map(|[_, seconds]| *seconds)
        .fold(f64::NAN, f64::min);
    typical(moved).max(fastest)
}

/// Seconds that a further token takes: the lower median over all pairs of passes that drafted different numbers of them (Theil,
/// <https://en.wikipedia.org/wiki/Theil–Sen_estimator>), so that no pass in which the machine did something else tells; 0 where all have
/// as many tokens, and where more of them took less time.
fn slope(passes: &[[f64; 2]]) -> f64 {
    // So it is with most drafts, and pairs are many.
    if passes.windows(2).all(|pair| pair[0][0] == pair[1][0]) {
        return 0.0;
    }
    let pairs = passes
        .iter()
        .flat_map(|few| passes.iter().map(move |many| (few, many)));
    let further = pairs.filter(|([few, _], [many, _])| few < many);
    let slopes = further.map(|([few, short], [many, long])| (long - short) / (many - few));
    let mut slopes: Vec<f64> = slopes.collect();
    if slopes.is_empty() {
        return 0.0;
    }
    let middle = (slopes.len() - 1) / 2;
    let (_, &mut median, _) = slopes.select_nth_unstable_by(middle, f64::total_cmp);
    median.max(0.0)
}

/// The mean of the middle half: a few passes in which the machine did something else do not move it.
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
        let timed = |verify| Timed {
            seconds: Seconds {
                draft: 1.0,
                verify,
                other: 0.0,
            },
            drafted: 8,
        };
        let prices = Prices {
            batch_size: 4,
            timed: Rehearsed {
                plain: vec![2.0],
                ways: vec![vec![timed(3.0)], vec![timed(9.0)]],
            },
        };
        let chain = |length| Costs::Chain {
            length,
            timed: vec![(2, 0), (5, 1)],
        };
        let found = [1, 2, 3, 5, 7].map(|length| prices.drafted(&chain(length), 2.0, &[0]));
        assert_eq!(found, [4.0, 4.0, 6.0, 10.0, 10.0]);
        assert_eq!(prices.part(&chain(3), 2.0, &[0], |of| of.draft), 1.0);
        assert_eq!([2, 3].map(|length| chain(length).is_timed()), [true, false]);
        assert_eq!(prices.drafted(&Costs::Way(1), 2.0, &[0, 0]), 10.0);
    }

    #[test]
    fn passes_that_draft_nothing_cost_what_their_share_of_the_outputs_costs() {
        // Where nothing is drafted a pass takes 1 s, with four tokens 3 s; one of each kind took much longer.
        let timed = |drafted: usize, verify: f64| Timed {
            seconds: Seconds {
                verify,
                ..Seconds::default()
            },
            drafted,
        };
        let nothing = [vec![timed(0, 1.0); 7], vec![timed(0, 9.0)]].concat();
        let chains = [vec![timed(4, 3.0); 23], vec![timed(4, 20.0)]].concat();
        let prices = Prices {
            batch_size: 1,
            timed: Rehearsed {
                plain: vec![1.0; 32],
                ways: vec![[chains, nothing].concat()],
            },
        };
        let rounds = Vec::from_iter(0..32);
        // Of the outputs' passes all, half and none draft.
        for (tokens, seconds) in [(4.0, 3.0), (2.0, 2.0), (0.0, 1.0)] {
            let found = prices.drafted(&Costs::Way(0), tokens, &rounds);
            assert!((found - seconds).abs() < 1e-9, "{tokens}: {found}");
        }
        // A chain of eight drafts twice as many where it drafts.
        let twice = Costs::Chain {
            length: 8,
            timed: vec![(4, 0)],
        };
        assert!((prices.drafted(&twice, 4.0, &rounds) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_single_pass_that_drafted_less_says_little_of_what_a_token_costs() {
        // One pass drafted three tokens instead of four, and one of the others took ten times as long.
        let mut passes = vec![[4.0, 1.0]; 6];
        passes.extend([[4.0, 10.0], [3.0, 0.9]]);
        for first in 0..passes.len() {
            passes.rotate_left(first);
            assert!((slope(&passes) - 0.1).abs() < 1e-9, "{passes:?}");
            let found = [5.0, 4.0, 0.0].map(|drafted| typical_with(&passes, drafted));
            for (found, expected) in found.iter().zip([1.1, 1.0, 0.9]) {
                assert!((found - expected).abs() < 1e-9, "{found} {expected}");
            }
        }
        // Where those that drafted more all took as long, no tokens take no less than the fastest pass.
        let busy = [[4.0, 10.0], [4.0, 10.0], [3.0, 0.9]];
        assert_eq!(typical_with(&busy, 0.0), 0.9);
        assert_eq!(slope(&[[4.0, 1.0], [3.0, 2.0]]), 0.0);
        assert_eq!(slope(&[[4.0, 1.0], [4.0, 2.0]]), 0.0);
    }
}

//! τ over conversations and seeds together, and how it differs between two variations.
//!
//! All seeds of a sweep have decoded the same conversations, so a resample draws conversations once, for all trainings, and for each
//! variation the seeds that have decoded them. Seeds of two variations are drawn apart, also those of one number: what they share, if
//! anything, makes a difference surer than is said here.
//!
//! Of `S` seeds `S − 1` are drawn, with replacement: drawn `S` times their mean would spread by the factor `√((S − 1) / S)` too
//! little, with `S − 1` draws the variance is `s² / S`, that of the mean (Rao and Wu,
//! <https://doi.org/10.1080/01621459.1988.10478591>, with one stratum and `n − 1` draws). A single seed is always drawn: its intervals
//! are over conversations alone.
//!
//! Even so an interval over two or three seeds is too narrow, as they hardly tell how far apart others would be: of a difference of
//! two times two seeds, Student's law has two degrees of freedom and asks for 4.3 standard errors in place of 2. Where a variation has
//! fewer than [`FEW_SEEDS`], it is better or worse only if its seeds also all lie on that side of all seeds of the other. Where seeds
//! are all that differs, that happens in one of three cases with two seeds each, in one of ten with three and in one of 35 with four:
//! it does not replace the interval.
use rand::{RngExt, rngs::StdRng};

use crate::bootstrap::bootstrap_drawing;
use crate::counts::Counts;
use crate::paired::difference::PairedVerdict;
use crate::sweep::table::SweepDifference;

/// Seed of the intervals.
const SEED: u64 = 0;
/// Seeds of which fewer say too little of how far apart others would be.
pub(super) const FEW_SEEDS: usize = 5;

/// What each seed of a variation has counted in each conversation, the conversations in one order.
#[derive(Debug, Clone)]
pub(super) struct SeedCounts(pub(super) Vec<Vec<Counts>>);

impl SeedCounts {
    /// Conversations that every seed decoded.
    pub(super) fn conversations(&self) -> usize {
        self.0.iter().map(Vec::len).min().unwrap_or_default()
    }

    /// τ of each seed.
    pub(super) fn each(&self) -> Vec<Option<f64>> {
        let tau = |counts: &Vec<Counts>| counts.iter().copied().sum::<Counts>().tau();
        self.0.iter().map(tau).collect()
    }

    /// τ of all seeds pooled.
    pub(super) fn tau(&self) -> Option<f64> {
        self.0.iter().flatten().copied().sum::<Counts>().tau()
    }

    /// Its 95 % interval.
    pub(super) fn interval(&self) -> Option<[f64; 2]> {
        let conversations: Vec<usize> = (0..self.conversations()).collect();
        bootstrap_drawing(&conversations, (SEED, 1), |drawn, rng| {
            self.over(&self.drawn(rng), drawn)
        })
    }

    /// How its τ differs from that of the `first` variation, as one of so many differences. `None` where either has no passes.
    pub(super) fn against(&self, first: &Self, among: usize) -> Option<SweepDifference> {
        let difference = self.tau()? - first.tau()?;
        let both = self.conversations().min(first.conversations());
        let conversations: Vec<usize> = (0..both).collect();
        let interval = |among| {
            bootstrap_drawing(&conversations, (SEED, among), |drawn, rng| {
                let own = self.over(&self.drawn(rng), drawn)?;
                Some(own - first.over(&first.drawn(rng), drawn)?)
            })
        };
        let ci95 = interval(1);
        let joint95 = match among {
            0 | 1 => ci95,
            _ => interval(among),
        };
        Some(SweepDifference {
            difference,
            ci95,
            joint95,
            verdict: self.verdict(first, PairedVerdict::to_choose_by(joint95, both)),
        })
    }

    /// What is left of a verdict by the interval, where seeds are few.
    fn verdict(&self, first: &Self, by_interval: PairedVerdict) -> PairedVerdict {
        let is_of_seeds = match by_interval {
            PairedVerdict::Better => self.lies_above(first),
            PairedVerdict::Worse => first.lies_above(self),
            PairedVerdict::NotToldApart | PairedVerdict::TooFew => true,
        };
        match is_of_seeds {
            true => by_interval,
            false => PairedVerdict::NotToldApart,
        }
    }

    /// Whether every seed has a larger τ than every seed of the other; always of many seeds, whose interval says enough.
    fn lies_above(&self, other: &Self) -> bool {
        if self.0.len().min(other.0.len()) >= FEW_SEEDS {
            return true;
        }
        let [own, others] = [self, other].map(|of| of.each().into_iter().flatten());
        own.fold(f64::INFINITY, f64::min) > others.fold(f64::NEG_INFINITY, f64::max)
    }

    /// The places of seeds that are drawn anew: one fewer than there are, but for a single one.
    fn drawn(&self, rng: &mut StdRng) -> Vec<usize> {
        match self.0.len() {
            0 | 1 => (0..self.0.len()).collect(),
            all => (1..all).map(|_| rng.random_range(0..all)).collect(),
        }
    }

    /// τ of these seeds over these conversations, pooled.
    fn over(&self, seeds: &[usize], conversations: &[&usize]) -> Option<f64> {
        let all = seeds.iter().flat_map(|&seed| {
            let counts = &self.0[seed];
            conversations.iter().map(move |&&at| counts[at])
        });
        all.sum::<Counts>().tau()
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use crate::paired::difference::PairedReport;
    use crate::paired::tests::of;

    /// Seeds of which each takes so many passes in every one of `conversations`.
    fn seeds(passes: &[u64], conversations: usize) -> SeedCounts {
        SeedCounts(
            passes
                .iter()
                .map(|&passes| vec![of(passes); conversations])
                .collect(),
        )
    }

    /// One seed whose conversations differ much among themselves.
    fn mixed(more: u64) -> Vec<Counts> {
        (0..40).map(|at| of(30 + at % 37 + more)).collect()
    }

    #[test]
    fn of_one_seed_each_a_difference_is_that_of_two_reports() {
        let (first, other) = (mixed(1), mixed(0));
        let pairs: Vec<[Counts; 2]> = first.iter().zip(&other).map(|(&a, &b)| [a, b]).collect();
        for among in [1, 7] {
            let expected = PairedReport::of("a".into(), &pairs, among).unwrap();
            let [first, other] = [&first, &other].map(|counts| SeedCounts(vec![counts.clone()]));
            let found = other.against(&first, among).unwrap();
            assert!((found.difference - expected.difference).abs() < 1e-12);
            assert_eq!((found.ci95, found.joint95), (expected.ci95, expected.joint));
            assert_eq!(found.verdict, expected.choice());
            assert_eq!(other.interval(), expected.tau_ci95);
        }
    }

    #[test]
    fn an_interval_covers_the_spread_of_seeds() {
        // Conversations are all alike, so all that varies is which seeds are drawn.
        let found = seeds(&[40, 60], 24).interval().unwrap();
        assert_eq!(found, [2.0, 3.0]);
        assert_eq!(seeds(&[40], 24).interval().unwrap(), [3.0, 3.0]);
        // Better than each seed of the first but for one.
        let first = seeds(&[60, 40], 24);
        let found = seeds(&[44, 44], 24).against(&first, 1).unwrap();
        assert!(found.difference > 0.0);
        assert_eq!(found.verdict, PairedVerdict::NotToldApart, "{found:?}");
        let [low, high] = found.ci95.unwrap();
        assert!(low < 0.0 && high > 0.0, "{found:?}");
        // Better than all.
        let found = seeds(&[30, 32], 24).against(&first, 1).unwrap();
        assert_eq!(found.verdict, PairedVerdict::Better, "{found:?}");
        let back = first.against(&seeds(&[30, 32], 24), 1).unwrap();
        assert_eq!(back.verdict, PairedVerdict::Worse, "{back:?}");
    }

    #[test]
    fn the_spread_of_drawn_seeds_is_that_of_their_mean() {
        let all = seeds(&[1, 2, 3], 1);
        let mut rng = StdRng::seed_from_u64(0);
        let (mut sum, mut squares) = (0.0, 0.0);
        let draws = 40_000;
        for _ in 0..draws {
            let drawn = all.drawn(&mut rng);
            let mean = drawn.iter().sum::<usize>() as f64 / drawn.len() as f64;
            sum += mean;
            squares += mean * mean;
        }
        let mean = sum / f64::from(draws);
        let variance = squares / f64::from(draws) - mean * mean;
        // Of 0, 1 and 2 the sample variance is 1, that of the mean of three a third.
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        assert!((variance - 1.0 / 3.0).abs() < 0.01, "{variance}");
    }

    #[test]
    fn few_seeds_must_all_lie_on_one_side() {
        let few = |passes: &[u64]| seeds(passes, 24);
        assert!(few(&[40, 41, 42]).lies_above(&few(&[43, 44])));
        assert!(!few(&[40, 41, 44]).lies_above(&few(&[43, 45])));
        // A single seed has no spread to draw, so that of the other must not reach it.
        assert!(!few(&[43]).lies_above(&few(&[60, 60, 60, 60, 42])));
        // Of many the interval says it.
        let many = [&[40; 9][..], &[44]].concat();
        assert!(few(&many).lies_above(&few(&[43, 60, 60, 60, 60])));
        let better = few(&[40, 40, 44]);
        let verdict = better.verdict(&few(&[43, 45, 45]), PairedVerdict::Better);
        assert_eq!(verdict, PairedVerdict::NotToldApart);
    }
}

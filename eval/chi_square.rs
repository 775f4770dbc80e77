//! Pearson's chi-square test, and how small a difference it finds.
use serde::{Deserialize, Serialize};
use statrs::function::gamma::gamma_ur;

/// A chi-square test.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ChiSquare {
    /// Its statistic.
    pub statistic: f64,
    /// Degrees of freedom; 0 where nothing was tested.
    pub dof: u64,
    /// Probability of a statistic at least this large if nothing is wrong.
    pub p_value: f64,
}

/// Below this p-value a difference counts as found.
pub(crate) const LEVEL: f64 = 0.01;
/// How often a detectable difference is found.
const POWER: f64 = 0.9;

impl ChiSquare {
    fn new(statistic: f64, dof: u64) -> Self {
        Self {
            statistic,
            dof,
            p_value: tail(statistic, dof as f64),
        }
    }

    /// Whether counts are those of cells that are equally likely.
    pub(crate) fn of_even(counts: &[u64]) -> Self {
        let total: u64 = counts.iter().sum();
        if total == 0 {
            return Self::new(0.0, 0);
        }
        let expected = total as f64 / counts.len() as f64;
        let statistic = counts
            .iter()
            .map(|&count| (count as f64 - expected).powi(2) / expected)
            .sum();
        Self::new(statistic, counts.len() as u64 - 1)
    }

    /// Independent tests as one: statistics and degrees of freedom add up.
    pub fn pooled(tests: impl IntoIterator<Item = Self>) -> Self {
        let sum = |a: Self, b: Self| Self::new(a.statistic + b.statistic, a.dof + b.dof);
        tests.into_iter().fold(Self::new(0.0, 0), sum)
    }
}

/// `P(χ² ≥ statistic)` with `dof` degrees of freedom; 1 without any.
fn tail(statistic: f64, dof: f64) -> f64 {
    if statistic <= 0.0 || dof <= 0.0 {
        return 1.0;
    }
    gamma_ur(dof / 2.0, statistic / 2.0)
}

/// The probability that has to move into one of `cells` equally likely cells, out of the others evenly, so that a test with
/// `dof` degrees of freedom over `samples` finds it at the level of 0.01 in nine cases of ten. `None` without samples.
///
/// A cell that gains `δ` makes the statistic's distribution a non-central one with `λ = n δ² c² / (c - 1)`.
pub(crate) fn detectable_shift(samples: u64, dof: u64, cells: usize) -> Option<f64> {
    if samples == 0 || dof == 0 {
        return None;
    }
    let dof = dof as f64;
    let critical = smallest(|statistic| tail(statistic, dof) <= LEVEL);
    let lambda = smallest(|lambda| noncentral_tail(critical, dof, lambda) >= POWER);
    let cells = cells as f64;
    Some((lambda * (cells - 1.0) / samples as f64).sqrt() / cells)
}

/// The smallest number from which on `holds`, which stays so, to a millionth of it.
fn smallest(holds: impl Fn(f64) -> bool) -> f64 {
    let mut high = 1.0;
    while !holds(high) {
        high *= 2.0;
    }
    let mut low = 0.0;
    while high - low > 1e-6 * high {
        let middle = f64::midpoint(low, high);
        if holds(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

/// `P(χ'² ≥ statistic)` of the non-central distribution: a mixture of central ones by a Poisson distribution of mean `λ / 2`
/// (<https://dlmf.nist.gov/8.19> has the gamma functions, Patnaik 1949 the mixture).
fn noncentral_tail(statistic: f64, dof: f64, lambda: f64) -> f64 {
    let mean = lambda / 2.0;
    let mut weight = (-mean).exp();
    let (mut left, mut sum, mut step) = (1.0, 0.0, 0.0);
    // What is left out is at most `left`.
    while left > 1e-9 && step < 10_000.0 {
        sum += weight * tail(statistic, dof + 2.0 * step);
        left -= weight;
        step += 1.0;
        weight *= mean / step;
    }
    sum
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn tail_probabilities_match_the_tables() {
        // Critical values at 5 %: 3.841 for 1 degree of freedom, 18.307 for 10, 124.342 for 100.
        for (dof, critical) in [(1.0, 3.841459), (10.0, 18.307038), (100.0, 124.342113)] {
            assert!((tail(critical, dof) - 0.05).abs() < 1e-6);
        }
        // Of the non-central distribution with 4 degrees of freedom and λ = 1, by the series of its lower tail: P(χ'² ≥ 5) = 0.409555.
        assert!((noncentral_tail(5.0, 4.0, 1.0) - 0.409_555).abs() < 1e-6);
        assert!((noncentral_tail(5.0, 4.0, 0.0) - tail(5.0, 4.0)).abs() < 1e-12);
    }

    #[test]
    fn even_counts_have_the_hand_computed_statistic() {
        // Expected 25 each: 4 · 5² / 25.
        let test = ChiSquare::of_even(&[30, 20, 30, 20]);
        assert!((test.statistic - 4.0).abs() < 1e-12);
        assert_eq!(test.dof, 3);
        assert_eq!(ChiSquare::of_even(&[0, 0]).dof, 0);
        let pooled = ChiSquare::pooled([test, test]);
        assert_eq!((pooled.statistic, pooled.dof), (8.0, 6));
    }

    #[test]
    fn the_detectable_shift_is_found_nine_times_in_ten() {
        const CELLS: usize = 20;
        let samples = 2000;
        let shift = detectable_shift(samples, CELLS as u64 - 1, CELLS).unwrap();
        assert!((0.02..0.04).contains(&shift), "{shift}");
        let mut rng = StdRng::seed_from_u64(1);
        let mut found = |shift: f64| {
            (0..400)
                .filter(|_| {
                    let mut counts = [0u64; CELLS];
                    for _ in 0..samples {
                        let even = rng.random_range(0..CELLS);
                        // What moves into the first cell comes from the others evenly.
                        let moved = rng.random_bool(shift * CELLS as f64 / (CELLS as f64 - 1.0));
                        counts[if moved { 0 } else { even }] += 1;
                    }
                    ChiSquare::of_even(&counts).p_value < LEVEL
                })
                .count()
        };
        let hits = found(shift);
        assert!((330..=390).contains(&hits), "{hits} of 400");
        let false_alarms = found(0.0);
        assert!(false_alarms < 15, "{false_alarms} of 400");
    }
}

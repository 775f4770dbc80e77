//! Confidence intervals by resampling prompts (Efron, <https://doi.org/10.1214/aos/1176344552>).
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Resamples of one interval.
pub(crate) const RESAMPLES: usize = 1000;
/// Resamples, at most, of an interval with thinner tails.
const MOST_RESAMPLES: usize = 20_000;

/// The 95 % percentile interval of `statistic` when `items` are drawn anew with replacement. The same seed gives the same
/// interval. `None` of fewer than two items, as one alone does not say how others are, and when no resample has the statistic.
pub fn bootstrap<T>(
    items: &[T],
    seed: u64,
    statistic: impl Fn(&[&T]) -> Option<f64>,
) -> Option<[f64; 2]> {
    bootstrap_among(items, (seed, 1), statistic)
}

/// The same, wide enough that `among` such intervals all hold at once with 95 %, by Bonferroni's inequality.
pub(crate) fn bootstrap_among<T>(
    items: &[T],
    (seed, among): (u64, usize),
    statistic: impl Fn(&[&T]) -> Option<f64>,
) -> Option<[f64; 2]> {
    if items.len() < 2 {
        return None;
    }
    let among = among.max(1);
    let mut rng = StdRng::seed_from_u64(seed);
    let values = (0..RESAMPLES.saturating_mul(among).min(MOST_RESAMPLES))
        .filter_map(|_| {
            let draw = |_| &items[rng.random_range(0..items.len())];
            let drawn: Vec<&T> = (0..items.len()).map(draw).collect();
            statistic(&drawn)
        })
        .collect();
    between(values, 0.025 / among as f64)
}

/// What 95 of 100 values lie between. `None` of no values.
pub(crate) fn middle(values: Vec<f64>) -> Option<[f64; 2]> {
    between(values, 0.025)
}

/// What all values but a share at each end lie between.
fn between(mut values: Vec<f64>, tail: f64) -> Option<[f64; 2]> {
    values.sort_by(f64::total_cmp);
    let ends = [tail, 1.0 - tail].map(|rank| percentile(&values, rank));
    Some([ends[0]?, ends[1]?])
}

/// Between the two nearest of the ascending `values`.
fn percentile(values: &[f64], rank: f64) -> Option<f64> {
    let at = rank * (values.len().checked_sub(1)?) as f64;
    let (low, high) = (values[at.floor() as usize], values[at.ceil() as usize]);
    Some(low + (high - low) * at.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(items: &[&f64]) -> Option<f64> {
        Some(items.iter().copied().sum::<f64>() / items.len() as f64)
    }

    #[test]
    fn the_same_seed_gives_the_same_interval_and_another_seed_another() {
        let items: Vec<f64> = (0..40).map(|i| (i * i % 17) as f64).collect();
        let interval = bootstrap(&items, 7, mean);
        assert_eq!(interval, bootstrap(&items, 7, mean));
        assert_ne!(interval, bootstrap(&items, 8, mean));
    }

    #[test]
    fn the_interval_of_a_mean_is_about_two_standard_errors_each_way() {
        let items: Vec<f64> = (0..100).map(f64::from).collect();
        let [low, high] = bootstrap(&items, 0, mean).unwrap();
        let half = 1.96 * 28.866 / 10.0; // standard deviation of 0..100 over the root of the count
        assert!((low - (49.5 - half)).abs() < 0.7, "{low}");
        assert!((high - (49.5 + half)).abs() < 0.7, "{high}");
    }

    #[test]
    fn an_interval_among_ten_is_one_of_ten_times_thinner_tails() {
        let items: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(
            bootstrap_among(&items, (0, 1), mean),
            bootstrap(&items, 0, mean)
        );
        let [low, high] = bootstrap_among(&items, (0, 10), mean).unwrap();
        let half = 2.807 * 28.866 / 10.0; // the normal quantile of 0.9975
        assert!((low - (49.5 - half)).abs() < 0.7, "{low}");
        assert!((high - (49.5 + half)).abs() < 0.7, "{high}");
    }

    #[test]
    fn equal_items_give_an_interval_without_width_and_fewer_than_two_none() {
        assert_eq!(bootstrap(&[2.0; 5], 0, mean), Some([2.0, 2.0]));
        assert_eq!(bootstrap(&[], 0, mean), None);
        assert_eq!(bootstrap(&[1.0], 0, mean), None);
        assert_eq!(bootstrap_among(&[1.0], (0, 10), mean), None);
        assert_eq!(bootstrap(&[1.0, 2.0], 0, |_| None), None);
    }
}

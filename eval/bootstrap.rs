//! Confidence intervals by resampling prompts (Efron, <https://doi.org/10.1214/aos/1176344552>).
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Resamples of one interval.
pub(crate) const RESAMPLES: usize = 1000;

/// The 95 % percentile interval of `statistic` when `items` are drawn anew with replacement. The same seed gives the same
/// interval. `None` when no resample has the statistic.
pub fn bootstrap<T>(
    items: &[T],
    seed: u64,
    statistic: impl Fn(&[&T]) -> Option<f64>,
) -> Option<[f64; 2]> {
    if items.is_empty() {
        return None;
    }
    let mut rng = StdRng::seed_from_u64(seed);
    let values = (0..RESAMPLES)
        .filter_map(|_| {
            let draw = |_| &items[rng.random_range(0..items.len())];
            let drawn: Vec<&T> = (0..items.len()).map(draw).collect();
            statistic(&drawn)
        })
        .collect();
    middle(values)
}

/// What 95 of 100 values lie between. `None` of no values.
pub(crate) fn middle(mut values: Vec<f64>) -> Option<[f64; 2]> {
    values.sort_by(f64::total_cmp);
    Some([percentile(&values, 0.025)?, percentile(&values, 0.975)?])
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
    fn equal_items_give_an_interval_without_width_and_no_items_none() {
        assert_eq!(bootstrap(&[2.0; 5], 0, mean), Some([2.0, 2.0]));
        assert_eq!(bootstrap(&[], 0, mean), None);
        assert_eq!(bootstrap(&[1.0], 0, |_| None), None);
    }
}

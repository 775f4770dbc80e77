//! Confidence intervals by resampling prompts (Efron, <https://doi.org/10.1214/aos/1176344552>), with expanded percentiles
//! (Hesterberg, <https://arxiv.org/abs/1411.5279>): those of few items alone are too narrow.
use rand::{RngExt, SeedableRng, rngs::StdRng};
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// Resamples of one interval with tails of 2.5 %.
pub(crate) const RESAMPLES: usize = 1000;
/// Resamples, at most, of an interval with thinner tails.
const MOST_RESAMPLES: usize = 20_000;
/// The tail at each end of a 95 % interval.
const TAIL: f64 = 0.025;
/// Items of which more need no wider interval.
const MANY: usize = 1000;
/// Standard errors beyond which the normal law has nothing, and how often the way to them is halved.
const FAR: f64 = 100.0;
const HALVINGS: usize = 64;

/// The 95 % interval of `statistic` when `items` are drawn anew with replacement. The same seed gives the same interval.
/// `None` of fewer than two items, as one alone does not say how others are, and when no resample has the statistic.
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
    bootstrap_drawing(items, (seed, among), |drawn, _| statistic(drawn))
}

/// The same where `statistic` draws something anew itself, which all items of a resample share, such as the seeds of trainings that
/// have all decoded the same prompts.
pub(crate) fn bootstrap_drawing<T>(
    items: &[T],
    (seed, among): (u64, usize),
    statistic: impl Fn(&[&T], &mut StdRng) -> Option<f64>,
) -> Option<[f64; 2]> {
    if items.len() < 2 {
        return None;
    }
    let tail = expanded(TAIL / among.max(1) as f64, items.len());
    let resamples = resamples(tail, items.len());
    let mut rng = StdRng::seed_from_u64(seed);
    let values = (0..resamples)
        .filter_map(|_| {
            let draw = |_| &items[rng.random_range(0..items.len())];
            let drawn: Vec<&T> = (0..items.len()).map(draw).collect();
            statistic(&drawn, &mut rng)
        })
        .collect();
    between(values, tail)
}

/// How often so many items are drawn anew, so that as many values lie beyond each end whatever the tail, which may be 0: no more often
/// than there are ways to draw them.
fn resamples(tail: f64, items: usize) -> usize {
    let ways = (items as f64).powf(items as f64);
    let wanted = (RESAMPLES as f64 * (TAIL / tail)).min(MOST_RESAMPLES as f64);
    wanted.min(ways).max(RESAMPLES as f64) as usize
}

/// The 95 % interval that `values` give, each of a resample of so many items. `None` of no values.
pub(crate) fn middle(values: Vec<f64>, items: usize) -> Option<[f64; 2]> {
    between(values, expanded(TAIL, items))
}

/// The share of resampled values to leave out at each end, so that the statistic itself lies beyond with a probability of `tail`:
/// `Φ(−√(n / (n − 1)) · t)` of `n` items, with `t` that which Student's law with `n − 1` degrees of freedom exceeds with `tail`.
/// Values that are drawn anew spread by the factor `√((n − 1) / n)` too little, and know nothing of how unsure their spread is.
fn expanded(tail: f64, items: usize) -> f64 {
    let n = items as f64;
    let law = StudentsT::new(0.0, 1.0, n - 1.0).ok();
    let Some(law) = law.filter(|_| items <= MANY) else {
        return tail;
    };
    let (mut low, mut high) = (0.0, FAR);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if law.sf(middle) > tail {
            low = middle;
        } else {
            high = middle;
        }
    }
    Normal::standard().sf((n / (n - 1.0)).sqrt() * high)
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
    use std::cell::Cell;

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
        let half = 1.99 * 28.866 / 10.0; // standard deviation of 0..100 over the root of the count
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
        let half = 2.89 * 28.866 / 10.0; // the quantile 0.9975 of Student's t, times √(100 / 99)
        assert!((low - (49.5 - half)).abs() < 0.7, "{low}");
        assert!((high - (49.5 + half)).abs() < 0.7, "{high}");
    }

    #[test]
    fn of_few_items_the_tails_are_those_of_students_t() {
        // `pnorm(-sqrt(n / (n - 1)) * qt(0.975, n - 1))` in R.
        for (items, tail) in [(5, 9.541e-4), (10, 8.5506e-3), (100, 2.30644e-2)] {
            let found = expanded(0.025, items);
            assert!((found / tail - 1.0).abs() < 1e-4, "{items}: {found}");
        }
        assert!(expanded(0.025, 2) < 1e-60);
        assert_eq!(expanded(0.025, MANY + 1), 0.025);
        // Two ends of 2.5 % alone are at most 2.8 apart.
        let [low, high] = bootstrap(&[0.0, 1.0, 2.0, 3.0, 4.0], 0, mean).unwrap();
        assert!(high - low > 2.9, "{low} {high}");
    }

    #[test]
    fn thinner_tails_take_more_resamples() {
        let drawn = |items: usize, among: usize| {
            let items: Vec<f64> = (0..items).map(|item| item as f64).collect();
            let times = Cell::new(0);
            let counted = |_: &[&f64]| {
                times.set(times.get() + 1);
                Some(0.0)
            };
            bootstrap_among(&items, (0, among), counted);
            times.get()
        };
        // A tail of 8.5506e-3, see above.
        assert!((2923..=2924).contains(&drawn(10, 1)));
        assert_eq!(drawn(6, 1000), MOST_RESAMPLES);
        // Of two items there are four ways to draw two.
        assert_eq!([drawn(2, 1), drawn(2, 1000)], [RESAMPLES; 2]);
        assert_eq!(drawn(MANY + 1, 1), RESAMPLES);
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

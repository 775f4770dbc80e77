//! Statistics of times, over prompts.
use serde::{Deserialize, Serialize};

use crate::bootstrap::bootstrap;

/// Times in seconds, pooled over prompts. The intervals are of prompts drawn anew, each with all its times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The mean.
    pub mean: f64,
    /// Its 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_ci95: Option<[f64; 2]>,
    /// Half of the times are at most this long.
    pub median: f64,
    /// Its 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_ci95: Option<[f64; 2]>,
    /// 99 of 100 times are at most this long.
    pub p99: f64,
    /// Its 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ci95: Option<[f64; 2]>,
}

impl Latency {
    /// The times of each prompt; `None` where there are none. A single prompt has no interval.
    pub fn of(prompts: &[Vec<f64>], seed: u64) -> Option<Self> {
        let prompts: Vec<&Vec<f64>> = prompts.iter().filter(|times| !times.is_empty()).collect();
        let interval = |statistic: fn(&mut [f64]) -> f64| {
            let drawn = |drawn: &[&&Vec<f64>]| Some(statistic(&mut pooled(drawn.iter().copied())));
            (prompts.len() > 1)
                .then(|| bootstrap(&prompts, seed, drawn))
                .flatten()
        };
        let mut all = pooled(prompts.iter());
        if all.is_empty() {
            return None;
        }
        Some(Self {
            mean: mean(&mut all),
            mean_ci95: interval(mean),
            median: median(&mut all),
            median_ci95: interval(median),
            p99: p99(&mut all),
            p99_ci95: interval(p99),
        })
    }
}

fn pooled<'a>(prompts: impl Iterator<Item = &'a &'a Vec<f64>>) -> Vec<f64> {
    prompts.flat_map(|times| times.iter().copied()).collect()
}

fn mean(times: &mut [f64]) -> f64 {
    times.iter().sum::<f64>() / times.len() as f64
}

fn median(times: &mut [f64]) -> f64 {
    quantile(times, 0.5)
}

fn p99(times: &mut [f64]) -> f64 {
    quantile(times, 0.99)
}

/// Between the two nearest of the times, which come out of order. There is at least one.
fn quantile(times: &mut [f64], rank: f64) -> f64 {
    let at = rank * (times.len() - 1) as f64;
    let (_, &mut low, above) = times.select_nth_unstable_by(at.floor() as usize, f64::total_cmp);
    let next = above.iter().copied().min_by(f64::total_cmp).unwrap_or(low);
    low + (next - low) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_those_of_all_times_together() {
        // 1 to 100 in three prompts of different lengths, and one without times.
        let times = |from: u32, to: u32| (from..=to).rev().map(f64::from).collect::<Vec<_>>();
        let prompts = [times(1, 3), times(4, 50), Vec::new(), times(51, 100)];
        let found = Latency::of(&prompts, 1).unwrap();
        assert_eq!((found.mean, found.median), (50.5, 50.5));
        assert!((found.p99 - 99.01).abs() < 1e-9, "{found:?}");
        let [low, high] = found.mean_ci95.unwrap();
        assert!((2.0..50.5).contains(&low) && high > 50.5 && high <= 75.5);
        assert_eq!(found, Latency::of(&prompts, 1).unwrap());
    }

    #[test]
    fn one_prompt_has_no_interval_and_no_times_have_no_statistics() {
        let one = Latency::of(&[vec![2.0, 4.0], Vec::new()], 0).unwrap();
        assert_eq!((one.mean, one.median, one.mean_ci95), (3.0, 3.0, None));
        assert!((one.p99 - 3.98).abs() < 1e-12);
        assert_eq!(Latency::of(&[Vec::new()], 0), None);
        assert_eq!(Latency::of(&[vec![5.0]], 0).unwrap().p99, 5.0);
    }

    #[test]
    fn an_interval_is_as_wide_as_prompts_differ_and_not_as_times_do() {
        let alike = vec![vec![1.0, 9.0]; 20];
        assert_eq!(Latency::of(&alike, 0).unwrap().mean_ci95, Some([5.0, 5.0]));
        let apart: Vec<Vec<f64>> = (0..20)
            .map(|n| vec![if n % 2 == 0 { 1.0 } else { 9.0 }; 2])
            .collect();
        let [low, high] = Latency::of(&apart, 0).unwrap().mean_ci95.unwrap();
        assert!(high - low > 2.0, "{low} {high}");
    }
}

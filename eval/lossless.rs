//! Whether speculation leaves the target's output as it is.
use std::collections::BTreeMap;

use rand::{SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};
use spectrain_models::{DraftShape, Proposer, Sampling};

use crate::{DecodeSettings, Decoder, Generation, Result, VerifierChoice};

/// Greedy outputs with and without speculation, compared up to where they first differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Outputs that differ somewhere.
    pub mismatches: u64,
    /// Tokens compared; after the first difference the two continue different texts, so nothing more is.
    pub tokens: u64,
}

impl Comparison {
    /// Compares one more pair of outputs.
    pub fn add(&mut self, speculative: &[u32], plain: &[u32]) {
        let equal = speculative
            .iter()
            .zip(plain)
            .take_while(|(a, b)| a == b)
            .count();
        let differ = speculative.len() != equal || plain.len() != equal;
        self.tokens += (equal + usize::from(differ)) as u64;
        self.mismatches += u64::from(differ);
    }
}

/// A chi-square test.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ChiSquare {
    /// Its statistic.
    pub statistic: f64,
    /// Degrees of freedom; 0 when only one outcome was seen.
    pub dof: u64,
    /// Probability of a statistic at least this large if both samples follow the same law.
    pub p_value: f64,
}

impl ChiSquare {
    fn new(statistic: f64, dof: u64) -> Self {
        let p_value = match dof {
            0 => 1.0,
            _ => upper_gamma(dof as f64 / 2.0, statistic / 2.0),
        };
        Self {
            statistic,
            dof,
            p_value,
        }
    }

    /// Independent tests as one: statistics and degrees of freedom add up. `None` of none.
    pub fn pooled(tests: impl IntoIterator<Item = Self>) -> Option<Self> {
        let sum = |a: Self, b: Self| Self::new(a.statistic + b.statistic, a.dof + b.dof);
        tests.into_iter().reduce(sum)
    }
}

/// How sampled output is tested.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingTest {
    /// Outputs drawn for each prompt, with and without speculation.
    pub draws: usize,
    /// Tokens of an output that are counted together, after the first, which never depends on a draft.
    pub gram: usize,
    /// What is drafted.
    pub draft: DraftShape,
    /// The distributions sampled from.
    pub sampling: Sampling,
    /// What decides.
    pub verifier: VerifierChoice,
    /// Seed of all draws.
    pub seed: u64,
}

/// Compares how often speculation and plain sampling continue each prompt by the same tokens.
///
/// # Errors
/// As for [`Decoder::generate`].
pub fn sampling_test(
    decoder: &Decoder,
    proposer: &mut dyn Proposer,
    prompts: &[Vec<u32>],
    test: &SamplingTest,
) -> Result<ChiSquare> {
    let counted = 1..1 + test.gram;
    let gram = |generation: Generation| -> Vec<u32> {
        let tokens = &generation.tokens;
        tokens[counted.start.min(tokens.len())..counted.end.min(tokens.len())].to_vec()
    };
    // Long enough that the first draft is as long as asked for.
    let speculative = DecodeSettings {
        max_new_tokens: 2 + test.draft.length().max(test.gram),
        draft: test.draft.clone(),
        sampling: test.sampling,
        stop: Vec::new(),
    };
    let plain = DecodeSettings {
        max_new_tokens: 1 + test.gram,
        ..speculative.clone()
    };
    let verifier = test.verifier.at(&test.sampling);
    let mut rng = StdRng::seed_from_u64(test.seed);
    let mut tables = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let mut counts: BTreeMap<Vec<u32>, [u64; 2]> = BTreeMap::new();
        for _ in 0..test.draws {
            let drawn = decoder.generate(proposer, verifier, prompt, &speculative, &mut rng)?;
            counts.entry(gram(drawn)).or_default()[0] += 1;
            let drawn = decoder.plain(prompt, &plain, &mut rng)?;
            counts.entry(gram(drawn)).or_default()[1] += 1;
        }
        tables.push(counts.into_values().collect::<Vec<_>>());
    }
    Ok(chi_square(&tables))
}

/// Whether the two samples of each table follow the same law: `[first, second]` counts of every outcome. Outcomes too rare
/// to be expected five times in either sample are counted together.
pub fn chi_square(tables: &[Vec<[u64; 2]>]) -> ChiSquare {
    let (mut statistic, mut dof) = (0.0, 0);
    for table in tables {
        let sizes = [0, 1].map(|side| table.iter().map(|row| row[side] as f64).sum::<f64>());
        if sizes.contains(&0.0) {
            continue;
        }
        let rows = merge_rare(table, sizes);
        for row in &rows {
            let seen = (row[0] + row[1]) as f64;
            for side in [0, 1] {
                let expected = seen * sizes[side] / (sizes[0] + sizes[1]);
                statistic += (row[side] as f64 - expected).powi(2) / expected;
            }
        }
        dof += rows.len() as u64 - 1;
    }
    ChiSquare::new(statistic, dof)
}

fn merge_rare(table: &[[u64; 2]], sizes: [f64; 2]) -> Vec<[u64; 2]> {
    let share = sizes[0].min(sizes[1]) / (sizes[0] + sizes[1]);
    let frequent = |row: &[u64; 2]| (row[0] + row[1]) as f64 * share >= 5.0;
    let (mut rows, rare): (Vec<_>, Vec<_>) = table.iter().copied().partition(frequent);
    let rest = rare
        .iter()
        .fold([0, 0], |sum, row| [sum[0] + row[0], sum[1] + row[1]]);
    rows.sort_by_key(|row| std::cmp::Reverse(row[0] + row[1]));
    match rows.last_mut() {
        Some(last) if !frequent(&rest) => *last = [last[0] + rest[0], last[1] + rest[1]],
        _ => rows.push(rest),
    }
    rows
}

/// `Γ(a, x) / Γ(a)`, the regularised upper incomplete gamma function (<https://dlmf.nist.gov/8.2>), for `a > 0`, `x ≥ 0`.
fn upper_gamma(a: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 1.0;
    }
    let scale = (a * x.ln() - x - ln_gamma(a)).exp();
    if x < a + 1.0 {
        // The lower function as a power series, <https://dlmf.nist.gov/8.7.E1>; past the mode the fraction is quicker.
        let mut term = 1.0 / a;
        let mut sum = term;
        let mut n = a;
        while term > sum * f64::EPSILON {
            n += 1.0;
            term *= x / n;
            sum += term;
        }
        return (1.0 - scale * sum).max(0.0);
    }
    scale * upper_fraction(a, x)
}

/// `1 / (x+1-a - 1(1-a) / (x+3-a - 2(2-a) / (x+5-a - …)))`, <https://dlmf.nist.gov/8.9.E2> contracted to its even part,
/// evaluated from a depth at which more makes no difference.
fn upper_fraction(a: f64, x: f64) -> f64 {
    let from = |depth: usize| {
        (1..=depth).rev().fold(0.0, |tail, n| {
            let n = n as f64;
            n * (n - a) / (x + 2.0 * n + 1.0 - a - tail)
        })
    };
    let mut depth = 16;
    let mut value = 1.0 / (x + 1.0 - a - from(depth));
    while depth < 1 << 16 {
        depth *= 2;
        let deeper = 1.0 / (x + 1.0 - a - from(depth));
        let settled = (deeper - value).abs() <= 1e-14 * deeper.abs();
        value = deeper;
        if settled {
            break;
        }
    }
    value
}

/// Stirling's series (<https://dlmf.nist.gov/5.11.E1>) after shifting the argument to where it is exact to rounding.
fn ln_gamma(x: f64) -> f64 {
    let mut shift = 0.0;
    let mut x = x;
    while x < 12.0 {
        shift += x.ln();
        x += 1.0;
    }
    let inverse = 1.0 / x;
    let square = inverse * inverse;
    let series = inverse
        * (1.0 / 12.0
            - square
                * (1.0 / 360.0
                    - square * (1.0 / 1260.0 - square * (1.0 / 1680.0 - square / 1188.0))));
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - shift
}

#[cfg(test)]
mod tests {
    use rand::Rng;
    use spectrain_models::{Capture, Children, StaticTree};

    use super::*;
    use crate::toy::{Style, ToyDrafter, ToyTarget};

    #[test]
    fn the_upper_gamma_function_has_known_values() {
        // Q(1, x) = exp(-x); Q(2, x) = (1 + x) exp(-x); Q(3, x) = (1 + x + x²/2) exp(-x)
        for x in [0.1f64, 0.9, 1.5, 3.0, 20.0] {
            let decay = (-x).exp();
            assert!((upper_gamma(1.0, x) - decay).abs() < 1e-13);
            assert!((upper_gamma(2.0, x) - (1.0 + x) * decay).abs() < 1e-13);
            assert!((upper_gamma(3.0, x) - (1.0 + x + x * x / 2.0) * decay).abs() < 1e-13);
        }
        assert!((ln_gamma(0.5) - std::f64::consts::PI.sqrt().ln()).abs() < 1e-13);
        assert!((ln_gamma(11.0) - 3_628_800f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn chi_square_tail_probabilities_match_the_tables() {
        // Critical values at 5 %: 3.841 for 1 degree of freedom, 18.307 for 10, 124.342 for 100.
        for (dof, critical) in [(1.0, 3.841459), (10.0, 18.307038), (100.0, 124.342113)] {
            assert!((upper_gamma(dof / 2.0, critical / 2.0) - 0.05).abs() < 1e-6);
        }
    }

    #[test]
    fn a_two_by_two_table_has_the_hand_computed_statistic() {
        // Expected [25, 25] in both rows: four times 5² / 25.
        let test = chi_square(&[vec![[30, 20], [20, 30]]]);
        assert!((test.statistic - 4.0).abs() < 1e-12);
        assert_eq!(test.dof, 1);
        assert!((test.p_value - 0.045500).abs() < 1e-6, "{test:?}");
    }

    #[test]
    fn rare_outcomes_are_counted_together() {
        let test = chi_square(&[vec![[50, 50], [4, 1], [1, 2], [2, 2]]]);
        assert_eq!(test.dof, 1);
        let one_outcome = chi_square(&[vec![[50, 50]]]);
        assert_eq!((one_outcome.dof, one_outcome.p_value), (0, 1.0));
    }

    #[test]
    fn p_values_of_equal_laws_are_spread_evenly() {
        let mut rng = StdRng::seed_from_u64(3);
        let mut below = 0;
        for _ in 0..400 {
            let mut table = vec![[0, 0]; 6];
            for side in [0, 1] {
                for _ in 0..300 {
                    table[rng.random_range(0..6)][side] += 1;
                }
            }
            below += usize::from(chi_square(&[table]).p_value < 0.2);
        }
        assert!((50..110).contains(&below), "{below} of 400 below 0.2");
    }

    #[test]
    fn a_difference_is_counted_once_and_nothing_after_it() {
        let mut comparison = Comparison::default();
        comparison.add(&[1, 2, 3], &[1, 2, 3]);
        comparison.add(&[1, 9, 9, 9], &[1, 2, 3, 4]);
        comparison.add(&[1, 2], &[1, 2, 3]);
        assert_eq!((comparison.mismatches, comparison.tokens), (2, 3 + 2 + 3));
    }

    fn test(style: Style, draws: usize) -> ChiSquare {
        let draft = DraftShape::Chain { length: 3 };
        tested(style, draft, draws, VerifierChoice::Exact)
    }

    fn tested(
        style: Style,
        draft: DraftShape,
        draws: usize,
        verifier: VerifierChoice,
    ) -> ChiSquare {
        let target = ToyTarget::default();
        let capture = Capture::default();
        let decoder = Decoder::new(&target, &capture);
        let settings = SamplingTest {
            draws,
            gram: 2,
            draft,
            sampling: Sampling::at(1.0),
            verifier,
            seed: 5,
        };
        let mut drafter = ToyDrafter::new(style);
        sampling_test(&decoder, &mut drafter, &[vec![1, 2]], &settings).unwrap()
    }

    #[test]
    fn sampled_speculation_follows_the_law_of_plain_sampling() {
        let sampled = test(Style::Own, 20_000);
        assert!(sampled.dof > 10 && sampled.p_value > 0.01, "{sampled:?}");
    }

    #[test]
    fn drawn_trees_and_block_verification_follow_the_law_of_plain_sampling() {
        for children in [Children::WithoutReplacement, Children::WithReplacement] {
            let tree = DraftShape::Static {
                tree: StaticTree::named("eagle-25").unwrap(),
                children,
            };
            let found = tested(Style::Own, tree, 4_000, VerifierChoice::Exact);
            assert!(found.dof > 10 && found.p_value > 0.01, "{found:?}");
        }
        let chain = DraftShape::Chain { length: 4 };
        let found = tested(Style::Own, chain.clone(), 4_000, VerifierChoice::Block);
        assert!(found.dof > 10 && found.p_value > 0.01, "{found:?}");
        let lossy = tested(Style::Own, chain, 4_000, VerifierChoice::TypicalLossy);
        assert!(lossy.p_value < 1e-6, "{lossy:?}");
    }

    #[test]
    fn deterministic_drafts_leave_the_law_as_it_is() {
        let certain = test(Style::Tree, 4_000);
        assert!(certain.dof > 10 && certain.p_value > 0.01, "{certain:?}");
    }

    #[test]
    fn a_drafter_that_misstates_its_distribution_is_found_out() {
        let lossy = test(Style::Misstated, 4_000);
        assert!(lossy.p_value < 1e-6, "{lossy:?}");
    }
}

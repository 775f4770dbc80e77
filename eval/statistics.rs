//! What the passes of the decoder say of a drafter.
use serde::{Deserialize, Serialize};

use crate::counts::Counts;
use crate::speculate::PassRecord;

/// Counts over decoding passes, from which the acceptance statistics follow. Of passes that were not decoded but are expected,
/// they are no whole numbers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Acceptance {
    /// Decoding passes of the target.
    pub passes: f64,
    /// Tokens they emitted, bonus tokens included.
    pub emitted: f64,
    /// Tokens drafted, judged or not.
    pub drafted: f64,
    /// `tested[k]`: passes in which draft step `k` (from 0) was judged.
    pub tested: Vec<f64>,
    /// `histogram[n]`: passes in which `n` drafted tokens were accepted, up to the longest draft.
    pub histogram: Vec<f64>,
}

impl Acceptance {
    /// The counts of some passes.
    pub fn of(passes: &[PassRecord]) -> Self {
        let mut counts = Self::default();
        passes.iter().for_each(|pass| counts.add(pass));
        counts
    }

    /// Counts one more pass.
    pub fn add(&mut self, pass: &PassRecord) {
        self.add_share(pass, 1.0);
    }

    /// Counts a pass that happens with a probability of `share`.
    pub fn add_share(&mut self, pass: &PassRecord, share: f64) {
        self.passes += share;
        self.emitted += share * pass.emitted as f64;
        self.drafted += share * pass.drafted as f64;
        grow(&mut self.tested, pass.tested);
        self.tested[..pass.tested]
            .iter_mut()
            .for_each(|count| *count += share);
        grow(&mut self.histogram, 1 + pass.depth.max(pass.accepted));
        self.histogram[pass.accepted] += share;
    }

    /// Adds the counts of other passes.
    pub fn merge(&mut self, other: &Self) {
        self.passes += other.passes;
        self.emitted += other.emitted;
        self.drafted += other.drafted;
        for (held, more) in [
            (&mut self.tested, &other.tested),
            (&mut self.histogram, &other.histogram),
        ] {
            grow(held, more.len());
            held.iter_mut()
                .zip(more)
                .for_each(|(held, more)| *held += more);
        }
    }

    /// The counts of several, pooled.
    pub fn pooled<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut pooled = Self::default();
        parts.into_iter().for_each(|part| pooled.merge(part));
        pooled
    }

    /// Tokens emitted, and passes.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            tokens: self.emitted,
            passes: self.passes,
        }
    }

    /// τ: tokens emitted per pass. `None` without passes.
    pub fn tau(&self) -> Option<f64> {
        ratio(self.emitted, self.passes)
    }

    /// α: of the draft steps judged, the fraction accepted. `None` when nothing was judged.
    pub fn alpha(&self) -> Option<f64> {
        let accepted = (1..self.histogram.len()).map(|k| self.reaching(k)).sum();
        ratio(accepted, self.tested.iter().sum())
    }

    /// `α_1, α_2, …`: of the passes in which step `k` was judged, those that accepted it; up to the last step judged.
    pub fn conditional(&self) -> Vec<f64> {
        let step = |(k, &tested): (usize, &f64)| ratio(self.reaching(1 + k), tested);
        self.tested.iter().enumerate().map_while(step).collect()
    }

    /// `s_1, s_2, …`: of all passes, those that accepted at least `k` tokens. `τ = 1 + Σ s_k`. Cut off behind `s_k`, the sum is less
    /// than τ of chains of `k` steps: longer ones cross text that is easy to draft in fewer passes, so that more of theirs are at hard
    /// places.
    pub fn survival(&self) -> Vec<f64> {
        let step = |k| ratio(self.reaching(k), self.passes);
        (1..self.histogram.len()).map_while(step).collect()
    }

    /// Tokens drafted for each pass.
    pub fn draft_tokens_per_pass(&self) -> Option<f64> {
        ratio(self.drafted, self.passes)
    }

    /// Whether the same tokens were judged and kept, whatever was drafted behind them.
    pub fn keeps_as(&self, other: &Self) -> bool {
        let kept = |counts: &Self| {
            let last = counts.histogram.iter().rposition(|&count| count > 0.0);
            counts.histogram[..last.map_or(0, |last| last + 1)].to_vec()
        };
        let counted = |counts: &Self| [counts.passes, counts.emitted];
        counted(self) == counted(other) && self.tested == other.tested && kept(self) == kept(other)
    }

    /// Passes that accepted at least `count` tokens.
    fn reaching(&self, count: usize) -> f64 {
        self.histogram.iter().skip(count).sum()
    }
}

fn grow(counts: &mut Vec<f64>, len: usize) {
    if counts.len() < len {
        counts.resize(len, 0.0);
    }
}

fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    /// A pass of a chain of `depth` of which `accepted` were accepted.
    fn chain_pass(depth: usize, accepted: usize) -> PassRecord {
        PassRecord {
            drafted: depth,
            depth,
            tested: depth.min(accepted + 1),
            accepted,
            emitted: accepted + 1,
            ..PassRecord::default()
        }
    }

    #[test]
    fn hand_counted_passes_give_hand_counted_statistics() {
        // The last draft is shorter: it says nothing of the third step.
        let passes = [(3, 3), (3, 1), (3, 0), (2, 2)].map(|(depth, n)| chain_pass(depth, n));
        let counts = Acceptance::of(&passes);
        assert_eq!(counts.tested, [4.0, 3.0, 1.0]);
        assert_eq!(counts.histogram, [1.0; 4]);
        assert_eq!(counts.tau(), Some(10.0 / 4.0));
        assert_eq!(counts.alpha(), Some(6.0 / 8.0));
        assert_eq!(counts.conditional(), [3.0 / 4.0, 2.0 / 3.0, 1.0]);
        assert_eq!(counts.survival(), [3.0 / 4.0, 2.0 / 4.0, 1.0 / 4.0]);
        assert_eq!(counts.draft_tokens_per_pass(), Some(11.0 / 4.0));
    }

    #[test]
    fn tau_is_one_plus_the_sum_of_survival() {
        let mut rng = StdRng::seed_from_u64(1);
        let passes: Vec<PassRecord> = (0..500)
            .map(|_| {
                let depth = rng.random_range(0..=6);
                chain_pass(depth, rng.random_range(0..=depth))
            })
            .collect();
        let counts = Acceptance::of(&passes);
        let tau = 1.0 + counts.survival().iter().sum::<f64>();
        assert!((counts.tau().unwrap() - tau).abs() < 1e-12);
    }

    #[test]
    fn survival_is_the_product_of_the_conditional_rates_when_all_drafts_are_equally_long() {
        let passes: Vec<PassRecord> = (0..100).map(|i| chain_pass(4, (i * i) % 5)).collect();
        let counts = Acceptance::of(&passes);
        let mut product = 1.0;
        for (conditional, survival) in counts.conditional().into_iter().zip(counts.survival()) {
            product *= conditional;
            assert!((product - survival).abs() < 1e-12);
        }
    }

    #[test]
    fn a_step_that_is_never_judged_has_survival_zero_and_no_conditional_rate() {
        let counts = Acceptance::of(&[chain_pass(3, 0)]);
        assert_eq!(counts.survival(), [0.0; 3]);
        assert_eq!(counts.conditional(), [0.0]);
        assert_eq!(counts.histogram, [1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn without_passes_or_drafts_there_is_no_rate() {
        let none = Acceptance::default();
        assert_eq!((none.tau(), none.alpha()), (None, None));
        let undrafted = Acceptance::of(&[chain_pass(0, 0)]);
        assert_eq!((undrafted.tau(), undrafted.alpha()), (Some(1.0), None));
    }

    #[test]
    fn pooled_tau_weighs_passes_equally() {
        let short = Acceptance::of(&[chain_pass(3, 3)]);
        let long = Acceptance::of(&[chain_pass(3, 0); 3]);
        let pooled = Acceptance::pooled([&short, &long]);
        assert_eq!(pooled.tau(), Some(7.0 / 4.0));
    }

    #[test]
    fn tau_of_independent_chances_is_that_of_the_formula() {
        let mut rng = StdRng::seed_from_u64(2);
        let passes: Vec<PassRecord> = (0..40_000)
            .map(|_| chain_pass(4, (0..4).take_while(|_| rng.random_bool(0.7)).count()))
            .collect();
        let simulated = Acceptance::of(&passes).tau().unwrap();
        // `(1 - α^(γ+1)) / (1 - α)` (Leviathan et al., <https://arxiv.org/abs/2211.17192>, equation 1).
        let expected = (1.0 - 0.7f64.powi(5)) / 0.3;
        assert!(
            (simulated - expected).abs() < 0.03,
            "{simulated} {expected}"
        );
    }
}

//! The speed-up that the textbook formula gives a drafter.
//!
//! `τ / (D c + 1)`, with `D` passes of the drafter, one after the other, for each pass of the target, and `c` what one of
//! them costs of a pass of the target (Leviathan et al., <https://arxiv.org/abs/2211.17192>, for `D = γ`). A pass that
//! judges a draft is taken to cost what one of a single token does, and everything else nothing.

/// What is summed up over decoding passes to compute it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Cost {
    /// Decoding passes of the target.
    pub(crate) passes: u64,
    /// Tokens they emitted.
    pub(crate) emitted: u64,
    /// Passes of the drafter, one after the other.
    pub(crate) draft_passes: u64,
    /// Seconds of the drafter.
    pub(crate) draft_seconds: f64,
    /// Decoding passes without a drafter.
    pub(crate) plain_passes: u64,
    /// Their seconds.
    pub(crate) plain_seconds: f64,
}

impl Cost {
    /// With `c` from the clock. `None` without passes of each kind.
    pub(crate) fn by_time(&self) -> Option<f64> {
        self.speedup(self.share_by_time()?)
    }

    /// `c` from the clock. `None` without passes of each kind.
    pub(crate) fn share_by_time(&self) -> Option<f64> {
        let measured = self.draft_passes > 0 && self.plain_passes > 0 && self.plain_seconds > 0.0;
        let draft = self.draft_seconds / self.draft_passes as f64;
        let plain = self.plain_seconds / self.plain_passes as f64;
        measured.then(|| draft / plain)
    }

    /// With `c` the drafter's share of the target's parameters: what decoding that waits for nothing but the memory could
    /// gain (the memory-bound speed-up of <https://arxiv.org/abs/2403.00858>). `None` without passes.
    pub(crate) fn by_parameters(&self, share: f64) -> Option<f64> {
        self.speedup(share)
    }

    fn speedup(&self, cost: f64) -> Option<f64> {
        let per_pass = |count: u64| count as f64 / self.passes as f64;
        let (tau, sequential) = (per_pass(self.emitted), per_pass(self.draft_passes));
        (self.passes > 0).then(|| tau / (sequential * cost + 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: Cost = Cost {
        passes: 10,
        emitted: 25,
        draft_passes: 20,
        draft_seconds: 2.0,
        plain_passes: 50,
        plain_seconds: 10.0,
    };

    #[test]
    fn the_formula_gives_what_is_computed_by_hand() {
        // τ = 2.5, D = 2, c = 0.1 s / 0.2 s.
        assert_eq!(COST.by_time(), Some(2.5 / (2.0 * 0.5 + 1.0)));
        assert_eq!(COST.by_parameters(0.125), Some(2.5 / (2.0 * 0.125 + 1.0)));
    }

    #[test]
    fn nothing_comes_of_nothing() {
        assert_eq!(Cost::default().by_time(), None);
        assert_eq!(Cost::default().by_parameters(0.1), None);
        let undrafted = Cost {
            draft_passes: 0,
            ..COST
        };
        assert_eq!(undrafted.by_time(), None);
    }
}

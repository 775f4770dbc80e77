//! A difference in τ by pairs: its interval, its sign test and what it says.
use std::fmt;

use serde::Serialize;
use statrs::distribution::{Binomial, DiscreteCDF};

use crate::bootstrap::{bootstrap, bootstrap_among};
use crate::counts::Counts;
use crate::interval::{with_digits, with_signs};

/// Seed of the intervals.
const SEED: u64 = 0;
/// Conversations of which fewer are too few to choose among several by: resampled intervals are a little too narrow then.
pub(crate) const FEWEST: usize = 20;

/// τ of a report against that of another, in one way of decoding that both have, or with the chain that each has.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PairedReport {
    /// The way of decoding; with both drafts where they differ.
    pub setting: String,
    /// The dataset, where this is one of several that both have or that one of them has; else all prompts of both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// Whether it is of chains of different lengths, of which the longer one can reach a larger τ; left out if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub other_lengths: bool,
    /// Conversations that both decoded.
    pub conversations: usize,
    /// Pooled τ of the report that is compared with.
    pub baseline_tau: f64,
    /// Its 95 % interval, by drawing conversations anew; none of one conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline_ci95: Option<[f64; 2]>,
    /// Pooled τ of the other.
    pub tau: f64,
    /// Its 95 % interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tau_ci95: Option<[f64; 2]>,
    /// How much larger it is.
    pub difference: f64,
    /// 95 % interval of the difference, by drawing conversations anew, both τ from the same ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95: Option<[f64; 2]>,
    /// Differences that are looked at together, this one among them.
    pub among: usize,
    /// An interval so wide that those of all these differences hold at once with 95 %; [`Self::ci95`] of one alone.
    #[serde(rename = "joint_ci95", skip_serializing_if = "Option::is_none")]
    pub joint: Option<[f64; 2]>,
    /// Conversations in which it is larger.
    pub better: usize,
    /// Conversations in which it is smaller.
    pub worse: usize,
    /// How likely so uneven a count is where each is as likely as the other: the sign test, two-sided.
    pub sign_test: f64,
}

/// What a difference says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PairedVerdict {
    /// The interval lies above 0.
    Better,
    /// The interval lies below 0.
    Worse,
    /// The interval holds 0.
    NotToldApart,
    /// There are too few conversations to say anything of, or to choose by.
    TooFew,
}

impl PairedVerdict {
    /// What the interval of a difference says; of none nothing.
    fn of(interval: Option<[f64; 2]>) -> Self {
        match interval {
            None => Self::TooFew,
            Some([low, _]) if low > 0.0 => Self::Better,
            Some([_, high]) if high < 0.0 => Self::Worse,
            Some(_) => Self::NotToldApart,
        }
    }

    /// What it says by so many conversations where one of several is chosen by it: of fewer than `FEWEST` nothing.
    pub(crate) fn to_choose_by(interval: Option<[f64; 2]>, conversations: usize) -> Self {
        Self::of(interval.filter(|_| conversations >= FEWEST))
    }
}

impl PairedReport {
    /// Conversations of which fewer say nothing: even where all go one way the sign test has a p-value above 5 %.
    pub const LEAST: usize = 6;

    /// What the difference says among those that are looked at together. Of one alone it takes [`Self::LEAST`] conversations; one
    /// of several may be chosen by it, so there it is [`Self::choice`].
    pub fn verdict(&self) -> PairedVerdict {
        match self.among {
            0 | 1 => self.alone(),
            _ => self.choice(),
        }
    }

    /// The same where one is chosen by it: of fewer than `FEWEST` conversations nothing is said.
    pub fn choice(&self) -> PairedVerdict {
        PairedVerdict::to_choose_by(self.joint, self.conversations)
    }

    /// What the difference says by itself, whatever is looked at beside it; of fewer than [`Self::LEAST`] conversations nothing.
    pub fn alone(&self) -> PairedVerdict {
        PairedVerdict::of(self.ci95.filter(|_| self.conversations >= Self::LEAST))
    }

    /// Whether τ surely fell, and by more than `-least`: its own interval lies below 0 and the difference below `least`, whatever is
    /// looked at beside it. Chains of different lengths do not tell, nor do too few conversations.
    pub fn falls_below(&self, least: f64) -> bool {
        !self.other_lengths && self.alone() == PairedVerdict::Worse && self.difference < least
    }

    /// The way of decoding, with the dataset where this is one of several.
    pub fn heading(&self) -> String {
        match &self.dataset {
            Some(dataset) => format!("{} on `{dataset}`", self.setting),
            None => self.setting.clone(),
        }
    }

    /// The p-value of the sign test, however small.
    pub(crate) fn p_value(&self) -> String {
        shown(self.sign_test)
    }

    /// Of pairs of tokens and passes, the compared report's first, as one among so many differences. `None` where either has no
    /// passes.
    pub(crate) fn of(setting: String, pairs: &[[Counts; 2]], among: usize) -> Option<Self> {
        let tau = |drawn: &[&[Counts; 2]], report: usize| {
            drawn.iter().map(|pair| pair[report]).sum::<Counts>().tau()
        };
        let difference = |drawn: &[&[Counts; 2]]| Some(tau(drawn, 1)? - tau(drawn, 0)?);
        let all: Vec<_> = pairs.iter().collect();
        let better = pairs.iter().filter(|[a, b]| b.exceeds(*a)).count();
        let worse = pairs.iter().filter(|[a, b]| a.exceeds(*b)).count();
        let ci95 = bootstrap(pairs, SEED, difference);
        let joint = match among {
            0 | 1 => ci95,
            _ => bootstrap_among(pairs, (SEED, among), difference),
        };
        Some(Self {
            setting,
            dataset: None,
            other_lengths: false,
            conversations: pairs.len(),
            baseline_tau: tau(&all, 0)?,
            baseline_ci95: bootstrap(pairs, SEED, |drawn| tau(drawn, 0)),
            tau: tau(&all, 1)?,
            tau_ci95: bootstrap(pairs, SEED, |drawn| tau(drawn, 1)),
            difference: difference(&all)?,
            ci95,
            among,
            joint,
            better,
            worse,
            sign_test: sign_test(better, worse),
        })
    }
}

impl fmt::Display for PairedReport {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let verdict = self.verdict();
        let allows = match self.among {
            among if among > 1 && verdict != PairedVerdict::TooFew => {
                format!(" among {among} comparisons")
            }
            _ => String::new(),
        };
        write!(
            f,
            "{}: τ {} against {}, {}, {}{allows}; larger in {}, smaller in {} of {} conversations \
             (sign test: p = {})",
            self.heading(),
            with_digits(Some(self.tau), self.tau_ci95, 3),
            with_digits(Some(self.baseline_tau), self.baseline_ci95, 3),
            with_signs(self.difference, self.ci95, 3),
            verdict,
            self.better,
            self.worse,
            self.conversations,
            shown(self.sign_test)
        )
    }
}

impl fmt::Display for PairedVerdict {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NotToldApart => "not told apart",
            Self::TooFew => "too few prompts",
        })
    }
}

/// A probability, however small.
fn shown(p: f64) -> String {
    if p < 0.001 {
        format!("{p:.0e}")
    } else {
        format!("{p:.3}")
    }
}

/// The two-sided p-value of so many successes and failures at equal odds; ties count for nothing.
fn sign_test(better: usize, worse: usize) -> f64 {
    let (all, fewer) = (better + worse, better.min(worse));
    match Binomial::new(0.5, all as u64) {
        Ok(law) if all > 0 => (2.0 * law.cdf(fewer as u64)).min(1.0),
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sign_test_is_that_of_the_binomial_law() {
        assert!((sign_test(9, 1) - 22.0 / 1024.0).abs() < 1e-12);
        assert_eq!(sign_test(3, 3), 1.0);
        assert_eq!(sign_test(0, 0), 1.0);
    }

    #[test]
    fn of_so_few_conversations_that_the_sign_test_says_nothing_there_is_no_verdict() {
        let all_worse = |conversations: usize| {
            let pair = [[60.0, 20.0], [60.0, 30.0]].map(Counts::from);
            PairedReport::of("a".into(), &vec![pair; conversations], 1).unwrap()
        };
        let (few, enough) = (
            all_worse(PairedReport::LEAST - 1),
            all_worse(PairedReport::LEAST),
        );
        assert!(few.sign_test > 0.05 && enough.sign_test < 0.05);
        assert_eq!(few.verdict(), PairedVerdict::TooFew);
        assert_eq!(enough.verdict(), PairedVerdict::Worse);
        assert!(!few.falls_below(-0.05) && enough.falls_below(-0.05));
    }

    #[test]
    fn one_of_several_is_judged_as_one_that_may_be_chosen_and_a_bound_judges_each_by_itself() {
        let all_worse = |conversations: usize, among: usize| {
            let pair = [[60.0, 20.0], [60.0, 30.0]].map(Counts::from);
            PairedReport::of("a".into(), &vec![pair; conversations], among).unwrap()
        };
        let (few, enough) = (all_worse(FEWEST - 1, 2), all_worse(FEWEST, 2));
        assert_eq!(few.verdict(), PairedVerdict::TooFew);
        assert_eq!(enough.verdict(), PairedVerdict::Worse);
        for found in [&few, &enough] {
            assert_eq!(found.verdict(), found.choice());
            assert_eq!(found.alone(), PairedVerdict::Worse);
            assert!(found.falls_below(-0.05));
        }
        let told = enough.to_string();
        assert!(
            told.contains(", worse among 2 comparisons; larger in 0"),
            "{told}"
        );
        let alone = all_worse(FEWEST, 1).to_string();
        assert!(alone.contains(", worse; larger in 0"), "{alone}");
    }
}

//! Drafts of an engine, and what its target accepted of them.
use serde::{Deserialize, Serialize};

/// Counts over the passes of the target that judged a draft, as an engine makes them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftCounts {
    /// Drafts judged, one for each pass and sequence.
    pub drafts: u64,
    /// Tokens drafted, where the engine tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drafted: Option<u64>,
    /// Drafted tokens that were accepted.
    pub accepted: u64,
    /// From the first position: drafts of which the token there was accepted. Empty where the engine does not tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reaching: Vec<u64>,
}

impl DraftCounts {
    /// Of drafts of which `histogram[n]` had `n` tokens accepted.
    pub fn of_histogram(histogram: &[u64], drafted: Option<u64>) -> Self {
        let drafts = histogram.iter().sum();
        let mut left: u64 = drafts;
        let of_position = |count: &u64| {
            left -= count;
            left
        };
        let most = histogram.len().saturating_sub(1);
        let reaching: Vec<u64> = histogram[..most].iter().map(of_position).collect();
        Self {
            drafts,
            drafted,
            accepted: reaching.iter().sum(),
            reaching,
        }
    }

    /// The same of chains, which all have as many positions as tokens were drafted for each: SGLang's counts end at the longest
    /// acceptance, and the positions behind it are added, of which none was accepted.
    pub fn of_chains(mut self) -> Self {
        let tells = self.reaching.iter().sum::<u64>() == self.accepted;
        let length = self.drafted.and_then(|all| all.checked_div(self.drafts));
        if let Some(length) = length.filter(|_| tells) {
            let positions = self.reaching.len().max(length as usize);
            self.reaching.resize(positions, 0);
        }
        self
    }

    /// All of them together. Of what some do not tell, nothing is said.
    pub fn pooled<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut pooled = Self {
            drafted: Some(0),
            ..Self::default()
        };
        let mut all_tell = true;
        for part in parts {
            pooled.drafts += part.drafts;
            pooled.accepted += part.accepted;
            let drafted = pooled.drafted.zip(part.drafted);
            pooled.drafted = drafted.map(|(held, more)| held + more);
            all_tell &= part.reaching.iter().sum::<u64>() == part.accepted;
            let positions = pooled.reaching.len().max(part.reaching.len());
            pooled.reaching.resize(positions, 0);
            let pairs = pooled.reaching.iter_mut().zip(&part.reaching);
            pairs.for_each(|(held, more)| *held += more);
        }
        if !all_tell {
            pooled.reaching.clear();
        }
        pooled
    }

    /// τ: accepted tokens for each draft, and the target's own. `None` without drafts.
    pub fn tau(&self) -> Option<f64> {
        (self.drafts > 0).then(|| 1.0 + self.accepted as f64 / self.drafts as f64)
    }

    /// `s_1, s_2, …`: of all drafts, those of which at least so many tokens were accepted.
    pub fn survival(&self) -> Vec<f64> {
        let share = |&count: &u64| count as f64 / self.drafts as f64;
        match self.drafts {
            0 => Vec::new(),
            _ => self.reaching.iter().map(share).collect(),
        }
    }

    /// `α_1, α_2, …`: of the drafts of which all tokens before were accepted, those of which this one was, up to the last
    /// position that any got to. Engines draft as many tokens each time, so that every position was judged.
    pub fn conditional(&self) -> Vec<f64> {
        let before = std::iter::once(&self.drafts).chain(&self.reaching);
        let pairs = before.zip(&self.reaching);
        pairs
            .take_while(|(before, _)| **before > 0)
            .map(|(&before, &count)| count as f64 / before as f64)
            .collect()
    }

    /// Tokens drafted for each pass.
    pub fn draft_tokens_per_pass(&self) -> Option<f64> {
        let drafted = self.drafted.filter(|_| self.drafts > 0)?;
        Some(drafted as f64 / self.drafts as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_gives_the_rates_that_are_counted_by_hand() {
        let counts = DraftCounts::of_histogram(&[4, 3, 0, 1, 0], Some(32));
        assert_eq!((counts.drafts, counts.accepted), (8, 6));
        assert_eq!(counts.reaching, [4, 1, 1, 0]);
        assert_eq!(counts.tau(), Some(1.75));
        assert_eq!(counts.survival(), [0.5, 0.125, 0.125, 0.0]);
        assert_eq!(counts.conditional(), [0.5, 0.25, 1.0, 0.0]);
        assert_eq!(counts.draft_tokens_per_pass(), Some(4.0));
        let tau = 1.0 + counts.survival().iter().sum::<f64>();
        assert_eq!(counts.tau(), Some(tau));
    }

    #[test]
    fn chains_have_positions_behind_the_longest_acceptance() {
        let told = DraftCounts::of_histogram(&[4, 2, 2], Some(32)).of_chains();
        assert_eq!(told.reaching, [4, 2, 0, 0]);
        assert_eq!(told.survival(), [0.5, 0.25, 0.0, 0.0]);
        assert_eq!(told.conditional(), [0.5, 0.5, 0.0]);
        let none = DraftCounts::of_histogram(&[2], Some(6)).of_chains();
        assert_eq!(none.reaching, [0; 3]);
        let silent = DraftCounts {
            reaching: Vec::new(),
            ..told
        };
        assert!(silent.of_chains().reaching.is_empty());
        let unknown = DraftCounts::of_histogram(&[4, 2, 2], None);
        assert_eq!(unknown.clone().of_chains(), unknown);
        assert_eq!(DraftCounts::default().of_chains(), DraftCounts::default());
    }

    #[test]
    fn pooled_counts_say_only_what_all_parts_tell() {
        let whole = DraftCounts::of_histogram(&[1, 1, 1], Some(6));
        let short = DraftCounts::of_histogram(&[2], Some(4));
        let both = DraftCounts::pooled([&whole, &short]);
        assert_eq!(both.reaching, [2, 1]);
        assert_eq!((both.drafts, both.drafted, both.accepted), (5, Some(10), 3));
        let silent = DraftCounts {
            drafts: 2,
            drafted: None,
            accepted: 1,
            reaching: Vec::new(),
        };
        let both = DraftCounts::pooled([&whole, &silent]);
        assert!(both.reaching.is_empty() && both.drafted.is_none());
        assert_eq!(both.tau(), Some(1.0 + 4.0 / 5.0));
    }

    #[test]
    fn without_drafts_there_is_no_rate() {
        for none in [DraftCounts::default(), DraftCounts::of_histogram(&[], None)] {
            assert_eq!(none.tau(), None);
            assert!(none.survival().is_empty() && none.conditional().is_empty());
        }
        assert_eq!(DraftCounts::pooled([]).tau(), None);
    }
}

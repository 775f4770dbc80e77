//! What a run of requests says of a server.
use serde::{Deserialize, Serialize};

use super::acceptance::DraftCounts;
use super::answer::Answer;
use super::counters::Counted;
use super::latency::Latency;
use crate::bootstrap::bootstrap;
use crate::counts::Counts;

/// What a server answered to the turns of a conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServedTalk {
    /// Turn by turn.
    pub answers: Vec<Answer>,
    /// What the server's counters of drafts grew by meanwhile, where nothing else was under way.
    pub counted: Option<DraftCounts>,
}

/// Every conversation once, with some number of requests under way.
#[derive(Debug, Clone, PartialEq)]
pub struct ServedRun {
    /// The conversations, in the order of the prompts.
    pub talks: Vec<ServedTalk>,
    /// Seconds from the first request to the end of the last answer.
    pub seconds: f64,
    /// What the server's counters grew by, where it has any.
    pub counted: Option<Counted>,
    /// Whether the drafts of the answers are told with them, and not read from the counters in between.
    pub told: bool,
}

/// Whose counts τ and the acceptance of positions are made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CountedBy {
    /// The server tells with each answer what was drafted for it.
    Answer,
    /// The server's counters, read before and after each conversation; one request was under way at a time.
    CountersAroundEach,
    /// The server's counters, read before and after the run. They say nothing of single prompts, so there is no interval.
    CountersAroundAll,
}

/// The figures of a run. Intervals are of 95 %, by drawing conversations anew.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServedFigures {
    /// Tokens received, by the server's own count; the first of each output, which the prompt's pass gives, included.
    pub tokens: u64,
    /// Seconds from the first request to the end of the last answer.
    pub seconds: f64,
    /// Requests under way, on average over these seconds.
    pub under_way: f64,
    /// Where the next figures are from; left out where the server counts no drafts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_by: Option<CountedBy>,
    /// Mean acceptance length, `1 + accepted / drafts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tau: Option<f64>,
    /// Its interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tau_ci95: Option<[f64; 2]>,
    /// `s_k` from `k = 1`: drafts of which at least `k` tokens were accepted; `τ = 1 + Σ s_k`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub survival: Vec<f64>,
    /// `α_k` from `k = 1`: of the drafts whose first `k - 1` tokens were accepted, those of which the next one was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditional: Vec<f64>,
    /// Tokens drafted for each pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_tokens_per_pass: Option<f64>,
    /// The counts themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drafts: Option<DraftCounts>,
    /// Tokens and passes of each conversation, in the order of the prompts, to be compared with those of another drafter: accepted
    /// tokens with the target's own, and drafts. Empty where the server's counts do not tell one conversation from another, or
    /// from the requests of other clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<Counts>,
    /// Tokens per second of the whole server.
    pub tokens_per_second: f64,
    /// Its interval, with as many requests under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second_ci95: Option<[f64; 2]>,
    /// Seconds from a request to its first token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token: Option<Latency>,
    /// Seconds for each token behind the first; tokens that come together share the time since those before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between_tokens: Option<Latency>,
    /// Seconds between the parts that come together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between_chunks: Option<Latency>,
    /// Tokens per second over those of the baseline server with as many requests under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speedup: Option<f64>,
    /// Its interval; each conversation is drawn for both servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speedup_ci95: Option<[f64; 2]>,
}

impl ServedFigures {
    /// Tokens of a draft, where the server tells.
    pub(crate) fn draft_length(&self) -> Option<f64> {
        let positions = Some(self.survival.len() as f64).filter(|&length| length > 0.0);
        self.draft_tokens_per_pass.or(positions)
    }

    /// Tokens of the server's drafts, which are chains. `None` where it does not tell what was accepted at each position, or drafts
    /// more tokens for a pass than it tells positions of: these are trees, or nothing says that they are not.
    pub fn chain_length(&self) -> Option<usize> {
        let positions = self.survival.len();
        let has_all = |drafted: f64| drafted <= positions as f64;
        let is_chain = positions > 0 && self.draft_tokens_per_pass.is_none_or(has_all);
        is_chain.then_some(positions)
    }
}

impl ServedTalk {
    /// Tokens received.
    fn tokens(&self) -> u64 {
        self.answers.iter().map(|answer| answer.tokens).sum()
    }

    /// Seconds in which its requests were under way.
    fn seconds(&self) -> f64 {
        self.answers.iter().map(|answer| answer.seconds).sum()
    }

    /// What was drafted for its answers, where that is known of all. For one that ended with its first token nothing was.
    fn drafts(&self) -> Option<DraftCounts> {
        if let Some(counted) = &self.counted {
            return Some(counted.clone());
        }
        let long = self
            .answers
            .iter()
            .filter(|answer| answer.tokens > 1 || answer.drafts.is_some());
        let told: Option<Vec<&DraftCounts>> = long.map(|answer| answer.drafts.as_ref()).collect();
        told.map(DraftCounts::pooled)
    }

    /// Whether anything is known of drafts.
    fn tells(&self) -> bool {
        self.counted.is_some() || self.answers.iter().any(|answer| answer.drafts.is_some())
    }
}

impl ServedRun {
    /// All answers, turn by turn.
    pub fn answers(&self) -> impl Iterator<Item = &Answer> {
        self.talks.iter().flat_map(|talk| &talk.answers)
    }

    /// Tokens received.
    pub fn tokens(&self) -> u64 {
        self.talks.iter().map(ServedTalk::tokens).sum()
    }

    /// The drafts of each conversation, where they are known of all.
    pub fn drafts(&self) -> Option<Vec<DraftCounts>> {
        let drafts: Vec<DraftCounts> = (self.talks.iter())
            .map(ServedTalk::drafts)
            .collect::<Option<_>>()?;
        let any = self.talks.iter().any(ServedTalk::tells);
        any.then_some(drafts)
    }

    /// The figures, beside those of a run of the same prompts at the baseline server.
    pub fn figures(&self, baseline: Option<&Self>, seed: u64) -> ServedFigures {
        let (counted_by, drafts, tau_ci95) = self.acceptance(seed);
        let talks: Vec<&ServedTalk> = self.talks.iter().collect();
        let times = |of: fn(&Answer) -> Vec<f64>| {
            let of_talk = |talk: &ServedTalk| talk.answers.iter().flat_map(of).collect();
            let times: Vec<Vec<f64>> = self.talks.iter().map(of_talk).collect();
            Latency::of(&times, seed)
        };
        let under_way = self.under_way();
        let speedup = baseline.map(|baseline| {
            let ratio = self.tokens_per_second() / baseline.tokens_per_second();
            let pairs: Vec<_> = self.talks.iter().zip(&baseline.talks).collect();
            let interval = interval(&pairs, seed, |drawn| {
                let (ours, theirs): (Vec<&ServedTalk>, Vec<&ServedTalk>) =
                    drawn.iter().copied().copied().unzip();
                Some(rate(&ours)? * under_way / (rate(&theirs)? * baseline.under_way()))
            });
            (ratio, interval)
        });
        let speedup = speedup.filter(|(ratio, _)| ratio.is_finite());
        let counts = drafts.as_ref();
        ServedFigures {
            tokens: self.tokens(),
            seconds: self.seconds,
            under_way,
            counted_by,
            tau: counts.and_then(DraftCounts::tau),
            tau_ci95,
            survival: counts.map(DraftCounts::survival).unwrap_or_default(),
            conditional: counts.map(DraftCounts::conditional).unwrap_or_default(),
            draft_tokens_per_pass: counts.and_then(DraftCounts::draft_tokens_per_pass),
            counts: self.counts(),
            tokens_per_second: self.tokens_per_second(),
            tokens_per_second_ci95: interval(&talks, seed, |drawn| {
                let drawn: Vec<&ServedTalk> = drawn.iter().copied().copied().collect();
                Some(rate(&drawn)? * under_way)
            }),
            first_token: times(|answer| answer.first_token().into_iter().collect()),
            between_tokens: times(Answer::between_tokens),
            between_chunks: times(Answer::between_chunks),
            speedup: speedup.map(|(ratio, _)| ratio),
            speedup_ci95: speedup.and_then(|(_, interval)| interval),
            drafts,
        }
    }

    /// Where the counts of drafts are from, the counts, and the interval of their τ.
    fn acceptance(&self, seed: u64) -> (Option<CountedBy>, Option<DraftCounts>, Option<[f64; 2]>) {
        if let Some(of_each) = self.drafts() {
            let by = match self.told {
                true => CountedBy::Answer,
                false => CountedBy::CountersAroundEach,
            };
            let of_each: Vec<&DraftCounts> = of_each.iter().collect();
            let tau_ci95 = interval(&of_each, seed, |drawn| {
                DraftCounts::pooled(drawn.iter().copied().copied()).tau()
            });
            let pooled = DraftCounts::pooled(of_each.iter().copied());
            return (Some(by), Some(pooled), tau_ci95);
        }
        let of_run = self
            .counted
            .as_ref()
            .and_then(|counted| counted.drafts.clone());
        (
            of_run.as_ref().map(|_| CountedBy::CountersAroundAll),
            of_run,
            None,
        )
    }

    /// Tokens and passes of each conversation, where they are known, and of these prompts alone.
    fn counts(&self) -> Vec<Counts> {
        let counted = self.counted.as_ref();
        let of_others = counted.is_some_and(|counted| counted.generated > self.tokens());
        let known = self.drafts().filter(|_| self.told || !of_others);
        known.into_iter().flatten().map(Counts::from).collect()
    }

    /// Requests under way on average: the time of all of them over the time of the run.
    fn under_way(&self) -> f64 {
        self.talks.iter().map(ServedTalk::seconds).sum::<f64>() / self.seconds
    }

    fn tokens_per_second(&self) -> f64 {
        self.tokens() as f64 / self.seconds
    }
}

/// An interval over conversations, of which one alone has none.
fn interval<T>(
    talks: &[T],
    seed: u64,
    statistic: impl Fn(&[&T]) -> Option<f64>,
) -> Option<[f64; 2]> {
    (talks.len() > 1)
        .then(|| bootstrap(talks, seed, statistic))
        .flatten()
}

/// Tokens for each second that a request was under way.
fn rate(talks: &[&ServedTalk]) -> Option<f64> {
    let tokens: u64 = talks.iter().map(|talk| talk.tokens()).sum();
    let seconds: f64 = talks.iter().map(|talk| talk.seconds()).sum();
    (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::served::answer::Chunk;

    /// An answer whose tokens come one by one, `gap` seconds after each other.
    fn answer(tokens: u64, gap: f64, histogram: Option<&[u64]>) -> Answer {
        let at = |token| Chunk {
            at: 0.5 + gap * token as f64,
            tokens: 1,
        };
        Answer {
            tokens,
            chunks: (0..tokens).map(at).collect(),
            seconds: 0.5 + gap * tokens as f64,
            drafts: histogram.map(|counts| DraftCounts::of_histogram(counts, None)),
            ..Answer::default()
        }
    }

    fn alone(answer: Answer) -> ServedTalk {
        ServedTalk {
            answers: vec![answer],
            counted: None,
        }
    }

    fn run(answers: Vec<Answer>, under_way: f64) -> ServedRun {
        ServedRun {
            seconds: answers.iter().map(|answer| answer.seconds).sum::<f64>() / under_way,
            talks: answers.into_iter().map(alone).collect(),
            counted: None,
            told: true,
        }
    }

    #[test]
    fn figures_are_those_counted_by_hand() {
        let answers = vec![
            answer(11, 0.1, Some(&[2, 4])),
            answer(21, 0.1, Some(&[4, 8])),
            answer(1, 0.1, None),
        ];
        let found = run(answers, 2.0).figures(None, 3);
        assert_eq!(
            (found.tokens, found.counted_by),
            (33, Some(CountedBy::Answer))
        );
        assert!((found.seconds - 4.8 / 2.0).abs() < 1e-12);
        assert!((found.under_way - 2.0).abs() < 1e-12);
        assert!((found.tokens_per_second - 33.0 / 2.4).abs() < 1e-9);
        assert_eq!(found.tau, Some(1.0 + 12.0 / 18.0));
        let [low, high] = found.tau_ci95.unwrap();
        assert!((low - high).abs() < 1e-12, "both prompts have the same τ");
        assert_eq!(found.survival, [12.0 / 18.0]);
        let counts = [[10.0, 6.0], [20.0, 12.0], [0.0, 0.0]].map(Counts::from);
        assert_eq!(found.counts, counts);
        assert!((found.first_token.unwrap().mean - 0.5).abs() < 1e-12);
        let between = found.between_tokens.unwrap();
        assert!((between.p99 - 0.1).abs() < 1e-9 && (between.mean - 0.1).abs() < 1e-9);
        assert!(found.speedup.is_none());
        let [low, high] = found.tokens_per_second_ci95.unwrap();
        assert!(low < found.tokens_per_second && found.tokens_per_second < high);
    }

    #[test]
    fn a_chain_is_as_long_as_its_positions_unless_more_was_drafted() {
        let of = |positions: usize, drafted: Option<f64>| {
            let figures = ServedFigures {
                survival: vec![0.5; positions],
                draft_tokens_per_pass: drafted,
                ..ServedFigures::default()
            };
            figures.chain_length()
        };
        assert_eq!(of(3, Some(3.0)), Some(3));
        // Drafts of prompt lookup, of which some are shorter; and counts that say nothing of drafted tokens.
        assert_eq!(of(3, Some(2.5)), Some(3));
        assert_eq!(of(3, None), Some(3));
        assert_eq!(of(5, Some(63.0)), None);
        assert_eq!(of(0, None), None);
    }

    #[test]
    fn what_is_drawn_anew_are_conversations() {
        let turn = |histogram: &[u64]| answer(11, 0.1, Some(histogram));
        let turns = || vec![turn(&[2, 4]), turn(&[4, 2])];
        let talk = |answers, counted| ServedTalk { answers, counted };
        let mut both = ServedRun {
            talks: vec![talk(turns(), None), talk(turns(), None)],
            ..run(Vec::new(), 1.0)
        };
        both.seconds = 6.0;
        let found = both.figures(None, 3);
        // Two conversations of the same turns have no spread, though the turns have.
        assert_eq!((found.tau, found.tau_ci95), (Some(1.5), Some([1.5, 1.5])));
        assert_eq!(found.tokens, 44);
        let counted = DraftCounts::of_histogram(&[0, 12], None);
        both.talks[0].counted = Some(counted);
        assert_eq!(both.figures(None, 3).tau, Some(1.75));
        both.talks[1].answers[1].drafts = None;
        assert!(both.drafts().is_none());
    }

    #[test]
    fn the_speedup_is_that_of_the_servers_and_prompts_are_paired() {
        // Prompts differ much in length, and the drafter makes each of them twice as fast.
        let times = |gap: f64| {
            let answers = (1..=12).map(|n| Answer {
                seconds: gap * (20 * n) as f64,
                ..answer(20 * n, gap, None)
            });
            run(answers.collect(), 4.0)
        };
        let found = times(0.1).figures(Some(&times(0.2)), 0);
        assert!((found.speedup.unwrap() - 2.0).abs() < 1e-9);
        let [low, high] = found.speedup_ci95.unwrap();
        assert!(
            (low - 2.0).abs() < 1e-9 && (high - 2.0).abs() < 1e-9,
            "{low} {high}"
        );
    }

    #[test]
    fn counters_of_a_run_give_no_interval_and_those_of_each_request_do() {
        let counted = Counted {
            generated: 40,
            requests: 2,
            drafts: Some(DraftCounts::of_histogram(&[5, 5, 10], Some(40))),
        };
        let of_run = ServedRun {
            counted: Some(counted),
            ..run(vec![answer(20, 0.1, None), answer(20, 0.1, None)], 1.0)
        };
        let found = of_run.figures(None, 0);
        assert_eq!(found.counted_by, Some(CountedBy::CountersAroundAll));
        assert_eq!((found.tau, found.tau_ci95), (Some(2.25), None));
        assert_eq!(found.draft_tokens_per_pass, Some(2.0));
        assert!(found.counts.is_empty());
        let each = ServedRun {
            told: false,
            ..run(
                vec![
                    answer(20, 0.1, Some(&[1, 9])),
                    answer(20, 0.1, Some(&[9, 1])),
                ],
                1.0,
            )
        };
        let found = each.figures(None, 0);
        assert_eq!(found.counted_by, Some(CountedBy::CountersAroundEach));
        assert_eq!((found.tau, found.tau_ci95), (Some(1.5), Some([1.1, 1.9])));
        assert_eq!(found.counts, [[19.0, 10.0], [11.0, 10.0]].map(Counts::from));
    }

    #[test]
    fn counts_that_may_be_those_of_other_clients_are_of_no_conversation() {
        let beside_others = |told: bool| ServedRun {
            counted: Some(Counted {
                generated: 60,
                requests: 3,
                drafts: None,
            }),
            told,
            ..run(vec![answer(20, 0.1, Some(&[1, 9])); 2], 1.0)
        };
        assert!(beside_others(false).figures(None, 0).counts.is_empty());
        assert_eq!(beside_others(true).figures(None, 0).counts.len(), 2);
    }

    #[test]
    fn a_server_without_drafts_or_without_tokens_has_no_rates_of_them() {
        let plain = run(vec![answer(5, 0.1, None), answer(7, 0.1, None)], 1.0);
        let found = plain.figures(None, 0);
        assert!(found.tau.is_none() && found.counted_by.is_none() && found.survival.is_empty());
        let silent = run(vec![answer(0, 0.1, None), answer(0, 0.1, None)], 1.0);
        let found = silent.figures(Some(&plain), 0);
        assert_eq!((found.tokens, found.speedup), (0, Some(0.0)));
        assert!(found.first_token.is_none() && found.speedup_ci95.is_none());
        assert!(plain.figures(Some(&silent), 0).speedup.is_none());
    }
}

//! Drafts that could be deployed, and the speed-up that each would have.
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::price::{Costs, Prices};
use crate::bootstrap::RESAMPLES;
use crate::draft::DraftReport;
use crate::statistics::Acceptance;

/// A draft that could be deployed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) draft: DraftReport,
    /// The outputs that say what is accepted of it.
    pub(crate) outputs: usize,
    /// How many of the first steps of their drafts it has, where nothing else is known of it: its τ is then a lower estimate (see
    /// [`Acceptance::survival`]). All where nothing is said.
    pub(crate) steps: Option<usize>,
    pub(crate) costs: Costs,
}

impl Candidate {
    /// Tokens that are drafted for a pass, by the counts of its outputs: of first steps alone their share.
    fn drafted(&self, counts: &Acceptance) -> Option<f64> {
        let drafted = counts.draft_tokens_per_pass()?;
        let longest = counts.histogram.len().saturating_sub(1).max(1);
        let share = self.steps.map(|steps| steps as f64 / longest as f64);
        Some(drafted * share.unwrap_or(1.0))
    }

    /// Tokens that a pass gives, by the counts of its outputs.
    fn tau(&self, counts: &Acceptance) -> Option<f64> {
        match self.steps {
            None => counts.tau(),
            Some(steps) => {
                counts.tau()?;
                Some(1.0 + counts.survival().iter().take(steps).sum::<f64>())
            }
        }
    }
}

/// τ of each candidate, and the tokens that it drafts for a pass: as counted, and with the conversations drawn anew.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Taus {
    pub(crate) counted: Vec<f64>,
    pub(crate) drafted: Vec<f64>,
    /// How many conversations there are.
    pub(crate) conversations: usize,
    /// Both lists for each time that they were drawn.
    drawn: Vec<[Vec<f64>; 2]>,
}

/// `outputs` has the counts of each conversation, the same ones in every list. `None` where nothing was decoded.
pub(crate) fn taus(
    candidates: &[Candidate],
    outputs: &[Vec<Acceptance>],
    seed: u64,
) -> Option<Taus> {
    let conversations = outputs.first()?.len();
    let with = |of: &[usize]| -> Option<[Vec<f64>; 2]> {
        let pooled: Vec<Acceptance> = (outputs.iter())
            .map(|all| Acceptance::pooled(of.iter().map(|&conversation| &all[conversation])))
            .collect();
        let each = candidates.iter().map(|candidate| {
            let counts = &pooled[candidate.outputs];
            Some((candidate.tau(counts)?, candidate.drafted(counts)?))
        });
        let (taus, drafted) = each.collect::<Option<Vec<_>>>()?.into_iter().unzip();
        Some([taus, drafted])
    };
    let [counted, drafted] = with(&Vec::from_iter(0..conversations))?;
    let mut rng = StdRng::seed_from_u64(seed);
    let draw = |_| {
        let draw = |_| rng.random_range(0..conversations);
        let drawn: Vec<usize> = (0..conversations).map(draw).collect();
        with(&drawn)
    };
    // One conversation alone does not say how others are.
    let times = if conversations > 1 { RESAMPLES } else { 0 };
    let drawn = (0..times).filter_map(draw).collect();
    Some(Taus {
        counted,
        drafted,
        conversations,
        drawn,
    })
}

/// The speed-up of each candidate: as measured, and with conversations and timed rounds drawn anew.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Speedups {
    pub(crate) measured: Vec<f64>,
    /// One list for each time that they were drawn.
    pub(crate) drawn: Vec<Vec<f64>>,
}

impl Speedups {
    /// One candidate each time that it was drawn.
    pub(crate) fn of(&self, candidate: usize) -> Vec<f64> {
        self.drawn.iter().map(|drawn| drawn[candidate]).collect()
    }

    /// The same over another candidate.
    pub(crate) fn over(&self, candidate: usize, other: usize) -> Vec<f64> {
        let drawn = self.drawn.iter();
        drawn.map(|drawn| drawn[candidate] / drawn[other]).collect()
    }
}

/// `τ · t₀ / t` of each candidate.
pub(crate) fn speedups(
    candidates: &[Candidate],
    taus: &Taus,
    prices: &Prices,
    seed: u64,
) -> Speedups {
    let with = |[taus, drafted]: [&[f64]; 2], rounds: &[usize]| -> Vec<f64> {
        let plain = prices.plain(rounds);
        let each = candidates.iter().zip(taus.iter().zip(drafted));
        each.map(|(candidate, (tau, &drafted))| {
            tau * plain / prices.drafted(&candidate.costs, drafted, rounds)
        })
        .collect()
    };
    let rounds = prices.rounds();
    let mut rng = StdRng::seed_from_u64(seed);
    let drawn = taus.drawn.iter().map(|[taus, tokens]| {
        let drawn: Vec<usize> = (0..rounds).map(|_| rng.random_range(0..rounds)).collect();
        with([taus, tokens], &drawn)
    });
    let drawn = drawn.collect();
    Speedups {
        measured: with([&taus.counted, &taus.drafted], &Vec::from_iter(0..rounds)),
        drawn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speculate::rehearsal::{Rehearsed, Timed};
    use crate::speculate::{PassRecord, Seconds};

    fn pass(accepted: usize) -> PassRecord {
        PassRecord {
            drafted: 4,
            depth: 4,
            tested: 4.min(accepted + 1),
            accepted,
            emitted: accepted + 1,
            ..PassRecord::default()
        }
    }

    fn chain(length: usize, timed: &[(usize, usize)]) -> Candidate {
        Candidate {
            draft: DraftReport::Chain {
                length,
                tokens: None,
            },
            outputs: 0,
            steps: Some(length),
            costs: Costs::Chain {
                length,
                timed: timed.to_vec(),
            },
        }
    }

    /// Of four passes 3, 2 and 1 accept at least 1, 2 and 3 tokens; none all four.
    fn outputs() -> Vec<Vec<Acceptance>> {
        let passes = [[pass(3), pass(0)], [pass(2), pass(1)]];
        vec![passes.iter().map(|passes| Acceptance::of(passes)).collect()]
    }

    #[test]
    fn the_speed_up_of_every_length_is_what_is_computed_by_hand() {
        let timed = |draft, verify, other| Timed {
            seconds: Seconds {
                draft,
                verify,
                other,
            },
            drafted: 4,
        };
        // A pass without drafts takes 2 s; drafts take 0.5 s a token, judging n tokens 2 + n / 4, all else a quarter.
        let prices = Prices {
            batch_size: 1,
            timed: Rehearsed {
                plain: vec![2.0; 3],
                ways: vec![
                    vec![timed(0.5, 2.25, 0.25); 3],
                    vec![timed(2.0, 3.0, 0.25); 3],
                ],
            },
        };
        let timed = [(1, 0), (4, 1)];
        let candidates = [1, 2, 3, 4].map(|length| chain(length, &timed));
        let taus = taus(&candidates, &outputs(), 1).unwrap();
        assert_eq!(taus.counted, [1.75, 2.25, 2.5, 2.5]);
        let found = speedups(&candidates, &taus, &prices, 2);
        let by_hand = [
            1.75 * 2.0 / 3.0,
            2.25 * 2.0 / 3.75,
            2.5 * 2.0 / 4.5,
            2.5 * 2.0 / 5.25,
        ];
        for (found, expected) in found.measured.iter().zip(by_hand) {
            assert!((found - expected).abs() < 1e-12, "{found} {expected}");
        }
        // The two conversations drawn anew have τ of 1.5, 1.75 or 2 with one token; the costs are certain.
        let mut drawn = found.of(0);
        drawn.sort_by(f64::total_cmp);
        drawn.dedup();
        assert_eq!(drawn, [1.5, 1.75, 2.0].map(|tau| tau * 2.0 / 3.0));
        assert!(found.over(0, 0).iter().all(|&ratio| ratio == 1.0));
    }

    #[test]
    fn known_costs_are_found_again_in_noisy_timings() {
        let mut rng = StdRng::seed_from_u64(3);
        // A tenth up or down, and one pass in ten takes three times as long, as on a busy machine.
        let mut noisy = |seconds: f64| {
            let busy = if rng.random_bool(0.1) { 3.0 } else { 1.0 };
            seconds * busy * rng.random_range(0.9..1.1)
        };
        let all = |verify: f64, noisy: &mut dyn FnMut(f64) -> f64| -> Vec<Timed> {
            let one = |_| Timed {
                seconds: Seconds {
                    verify: noisy(verify),
                    ..Seconds::default()
                },
                drafted: 4,
            };
            (0..40).map(one).collect()
        };
        let prices = Prices {
            batch_size: 1,
            timed: Rehearsed {
                plain: (0..40).map(|_| noisy(1.0)).collect(),
                ways: vec![all(1.5, &mut noisy), all(3.0, &mut noisy)],
            },
        };
        let timed = [(1, 0), (4, 1)];
        let candidates = [1, 2, 4].map(|length| chain(length, &timed));
        let taus = taus(&candidates, &outputs(), 1).unwrap();
        let found = speedups(&candidates, &taus, &prices, 2);
        for (candidate, cost) in [1.5, 2.0, 3.0].into_iter().enumerate() {
            let expected = taus.counted[candidate] / cost;
            let speedup = found.measured[candidate];
            assert!(
                (speedup / expected - 1.0).abs() < 0.05,
                "{speedup} {expected}"
            );
            let drawn = found.of(candidate);
            let spread = |at: f64| drawn.iter().filter(|&&drawn| drawn < at).count();
            assert!(
                (50..950).contains(&spread(expected)),
                "{}",
                spread(expected)
            );
        }
    }

    #[test]
    fn one_conversation_alone_is_not_drawn_anew() {
        let one = vec![vec![Acceptance::of(&[pass(3), pass(0)])]];
        let found = taus(&[chain(4, &[(4, 0)])], &one, 1).unwrap();
        assert_eq!(found.counted, [2.5]);
        assert!(found.drawn.is_empty());
    }

    #[test]
    fn without_passes_there_is_nothing_to_predict() {
        let none = vec![vec![Acceptance::default(); 2]];
        assert_eq!(taus(&[chain(1, &[(1, 0)])], &none, 1), None);
        assert_eq!(taus(&[], &[], 1), None);
    }
}

//! What to deploy by the sweep of a server with a drafter and of one without.
//!
//! While so many requests are under way, each gets τ tokens from a pass, so a pass takes `τ · under way / tokens per second`;
//! without a drafter τ is 1. That is known for one length of a draft, k. A pass with a shorter one, j, is taken to cost the pass
//! without drafts and, of what the drafts add to it, j / k; all of it where the drafter makes all steps in one pass. Where nothing is
//! known of the drafter, no shorter one is predicted. τ of a shorter one is a lower estimate, the sum of what passes with the longest kept
//! of its first steps: a server's texts are not drafted for anew.
use super::report::{BestDraft, CandidateReport, CostSource, Over, Recommendation};
use crate::draft::DraftReport;
use crate::served::figures::ServedFigures;
use crate::served::report::{Role, ServedReport};

/// How the cost of a draft goes with its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftCost {
    /// Each step takes a pass of the drafter.
    ByStep,
    /// All steps are made in one.
    AtOnce,
    /// Nothing is known of the drafter, so the cost is known only of the length that the server drafts.
    Unknown,
}

/// One entry for each number of requests that both servers were measured with, for chains up to the server's own length; none
/// where that is not known.
pub fn of_servers(served: &[ServedReport], cost: DraftCost) -> Vec<Recommendation> {
    let drafters = served.iter().filter(|one| one.role == Role::Drafter);
    let each = drafters.filter_map(|one| {
        let same = |other: &&ServedReport| {
            other.role == Role::Baseline
                && other.concurrency == one.concurrency
                && (other.temperature, other.top_k, other.top_p)
                    == (one.temperature, one.top_k, one.top_p)
        };
        let baseline = served.iter().find(same)?.figures.as_ref()?;
        recommendation(one, one.figures.as_ref()?, baseline, cost)
    });
    each.collect()
}

fn recommendation(
    served: &ServedReport,
    drafted: &ServedFigures,
    plain: &ServedFigures,
    cost: DraftCost,
) -> Option<Recommendation> {
    let tau = drafted.tau?;
    let longest = drafted.chain_length()?;
    let shortest = match cost {
        DraftCost::ByStep | DraftCost::AtOnce => 1,
        DraftCost::Unknown => longest,
    };
    let pass = |tau: f64, of: &ServedFigures| {
        let seconds = tau * of.under_way / of.tokens_per_second;
        Some(seconds).filter(|seconds| seconds.is_finite() && *seconds > 0.0)
    };
    let (plain_seconds, drafted_seconds) = (pass(1.0, plain)?, pass(tau, drafted)?);
    // So many sequences share a pass without drafts, as in the run with them.
    let plain_seconds = plain_seconds * drafted.under_way / plain.under_way;
    let candidates: Vec<CandidateReport> = (shortest..=longest)
        .map(|length| {
            let share = match cost {
                DraftCost::ByStep => length as f64 / longest as f64,
                DraftCost::AtOnce | DraftCost::Unknown => 1.0,
            };
            let seconds = plain_seconds + share * (drafted_seconds - plain_seconds);
            let tau = 1.0 + drafted.survival[..length].iter().sum::<f64>();
            let own = length == longest;
            CandidateReport {
                draft: chain(length),
                tau,
                seconds,
                draft_seconds: None,
                timed: own,
                speedup: tau * plain_seconds / seconds,
                speedup_ci95: drafted.speedup_ci95.filter(|_| own),
            }
        })
        .collect();
    let best = best(&candidates);
    Some(Recommendation {
        target: None,
        temperature: served.temperature,
        top_k: served.top_k,
        top_p: served.top_p,
        batch_size: served.concurrency,
        costs: CostSource::Server,
        rounds: None,
        plain_seconds,
        candidates,
        best,
    })
}

/// The fastest, where it is faster than no drafter.
fn best(candidates: &[CandidateReport]) -> Option<BestDraft> {
    let mut order: Vec<&CandidateReport> = candidates.iter().collect();
    order.sort_by(|one, other| other.speedup.total_cmp(&one.speedup));
    let best = *order.first().filter(|best| best.speedup > 1.0)?;
    let over = |other: &CandidateReport| Over {
        draft: other.draft.clone(),
        ratio: best.speedup / other.speedup,
        ratio_ci95: None,
    };
    let asked = candidates.last().filter(|asked| asked.draft != best.draft);
    Some(BestDraft {
        draft: best.draft.clone(),
        speedup: best.speedup,
        speedup_ci95: best.speedup_ci95,
        over_second: order.get(1).map(|second| over(second)),
        over_default: asked.map(over),
        commands: Vec::new(),
    })
}

fn chain(length: usize) -> DraftReport {
    DraftReport::Chain {
        length,
        tokens: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::served::acceptance::DraftCounts;
    use crate::served::report::tests::run as served;

    fn figures(under_way: f64, tokens_per_second: f64, survival: &[f64]) -> ServedFigures {
        let tau = (!survival.is_empty()).then(|| 1.0 + survival.iter().sum::<f64>());
        ServedFigures {
            tokens: 100,
            seconds: 1.0,
            under_way,
            counted_by: None,
            tau,
            tau_ci95: None,
            survival: survival.to_vec(),
            conditional: Vec::new(),
            draft_tokens_per_pass: None,
            drafts: None,
            counts: Vec::new(),
            tokens_per_second,
            tokens_per_second_ci95: None,
            first_token: None,
            between_tokens: None,
            between_chunks: None,
            speedup: None,
            speedup_ci95: Some([1.1, 1.2]),
        }
    }

    #[test]
    fn a_servers_passes_are_what_is_computed_by_hand() {
        let sweep = [
            // Two requests get 10 tokens a second: a pass takes 0.2 s; with drafts 2 · 2 / 16 = 0.25 s.
            served(Role::Drafter, 2, figures(2.0, 16.0, &[0.75, 0.25])),
            served(Role::Baseline, 2, figures(2.0, 10.0, &[])),
            // Nothing is known without drafts.
            served(Role::Drafter, 8, figures(8.0, 16.0, &[0.5])),
        ];
        let found = of_servers(&sweep, DraftCost::ByStep);
        assert_eq!(found.len(), 1);
        let one = &found[0];
        assert_eq!((one.batch_size, one.costs), (2, CostSource::Server));
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}");
        near(one.plain_seconds, 0.2);
        near(one.candidates[0].seconds, 0.225);
        near(one.candidates[0].speedup, 1.75 * 0.2 / 0.225);
        // At the server's own length it is the ratio of their tokens per second.
        near(one.candidates[1].speedup, 1.6);
        assert_eq!(one.candidates[1].speedup_ci95, Some([1.1, 1.2]));
        let best = one.best.as_ref().unwrap();
        assert_eq!(best.draft, chain(2));
        let at_once = &of_servers(&sweep, DraftCost::AtOnce)[0];
        near(at_once.candidates[0].speedup, 1.75 * 0.2 / 0.25);
        // Without a known drafter nothing is said of other lengths.
        let unknown = &of_servers(&sweep, DraftCost::Unknown)[0];
        assert_eq!(unknown.candidates, one.candidates[1..]);
        assert_eq!(unknown.best.as_ref().unwrap().draft, chain(2));
    }

    /// A server that drafts four tokens for each of eight passes, of which at most two were accepted, and one without a drafter.
    fn sweep_of(counts: &DraftCounts) -> [ServedReport; 2] {
        let drafted = ServedFigures {
            draft_tokens_per_pass: counts.draft_tokens_per_pass(),
            ..figures(2.0, 14.0, &counts.survival())
        };
        [
            served(Role::Drafter, 2, drafted),
            served(Role::Baseline, 2, figures(2.0, 10.0, &[])),
        ]
    }

    #[test]
    fn steps_that_were_never_accepted_cost_what_others_do() {
        let counts = DraftCounts::of_histogram(&[4, 2, 2], Some(32)).of_chains();
        let one = &of_servers(&sweep_of(&counts), DraftCost::ByStep)[0];
        let drafts = one.candidates.iter().map(|one| one.draft.clone());
        assert_eq!(Vec::from_iter(drafts), [1, 2, 3, 4].map(chain));
        // A pass takes 0.2 s; with drafts 2 · 1.75 / 14 = 0.25 s, of which two of four steps are half of what they add.
        let [two, four] = [1, 3].map(|at| &one.candidates[at]);
        assert!((two.seconds - 0.225).abs() < 1e-9 && !two.timed);
        assert!((four.seconds - 0.25).abs() < 1e-9 && four.timed);
        assert!((four.speedup - 1.4).abs() < 1e-9 && four.tau == 1.75);
        assert_eq!(one.best.as_ref().unwrap().draft, chain(2));
    }

    #[test]
    fn nothing_is_predicted_of_drafts_that_may_be_trees() {
        let counts = DraftCounts::of_histogram(&[4, 2, 2], Some(32));
        for cost in [DraftCost::ByStep, DraftCost::AtOnce, DraftCost::Unknown] {
            assert!(of_servers(&sweep_of(&counts), cost).is_empty());
        }
    }

    #[test]
    fn a_server_that_is_slower_with_drafts_is_to_draft_nothing() {
        let sweep = [
            served(Role::Drafter, 4, figures(4.0, 5.0, &[0.5])),
            served(Role::Baseline, 4, figures(4.0, 10.0, &[])),
        ];
        assert_eq!(of_servers(&sweep, DraftCost::ByStep)[0].best, None);
    }
}

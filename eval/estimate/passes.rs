//! The passes that a decoder takes over a text, or is expected to take.
use spectrain_models::{KnownText, StaticTree, Stop};

use super::seen::{Seen, Table};
use crate::reliability::Reliability;
use crate::speculate::PassRecord;
use crate::statistics::Acceptance;

/// What decoding a text takes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Estimate {
    /// The counts, or where drafts are drawn the expected counts.
    pub acceptance: Acceptance,
    /// Passes of the drafter, one after the other.
    pub draft_passes: f64,
    /// Over all steps judged, the sum of the probability that the step is kept whatever its token, `Σ min(p, q)`; where drafts
    /// are drawn.
    pub overlap: Option<f64>,
    /// Where drafts are drawn, about the largest variance that the passes can have: the sum of `k · (1 − k)` over the steps judged,
    /// with `k` how likely a step is kept, as whether it is makes a difference of about a pass at most.
    pub variance: f64,
    /// The passes, where drafts are not drawn. Where chains end early, what was drafted in vain is as the drafter would have
    /// drafted along the text; what was judged and kept is the decoder's.
    pub passes: Vec<PassRecord>,
    /// Whether chains end early, so that what was drafted in vain is not known.
    pub ends_early: bool,
    /// Where confidence was asked for: of the steps judged, the drafter's probability of its likeliest token, and whether that
    /// was the text's.
    pub likeliest: Reliability,
    /// The same of what the drafter's head guessed, and whether the step was kept; where drafts are drawn how likely it was.
    pub head: Reliability,
}

impl Estimate {
    /// Whether a decoder that counted `decoded` took the passes that are estimated, as far as these are known.
    pub fn is_as_decoded(&self, decoded: &Acceptance) -> bool {
        if self.ends_early {
            self.acceptance.keeps_as(decoded)
        } else {
            self.acceptance == *decoded
        }
    }
}

/// A text, and what a drafter makes of it.
pub(super) struct Walk<'a> {
    pub(super) text: &'a KnownText<'a>,
    pub(super) seen: &'a Table,
    /// Where chains end early.
    pub(super) stop: Option<Stop>,
    /// Whether confidence was asked for.
    pub(super) confidence: bool,
    /// Passes of the drafter that a draft of some steps takes.
    pub(super) passes: &'a dyn Fn(usize) -> usize,
}

/// A draft behind a place.
struct Drafted<'a> {
    /// Its steps whose token is known.
    seen: &'a [Seen],
    /// Its steps.
    steps: usize,
    /// Tokens still to come.
    left: usize,
    draft_passes: usize,
}

impl Walk<'_> {
    fn at(&self, place: usize) -> Drafted<'_> {
        let most = self.text.steps(place);
        let seen = &self.seen[place - self.text.first][..];
        let ends = |stop: Stop| seen.iter().position(|step| stop.ends(step.score));
        let end = self.stop.and_then(ends);
        let steps = end.unwrap_or(most);
        // The step before which it ends was asked for, too.
        let asked = end.map_or(most, |end| end + 1);
        Drafted {
            seen: &seen[..seen.len().min(steps)],
            steps,
            left: self.text.tokens.len() - 1 - place,
            draft_passes: (self.passes)(asked),
        }
    }

    fn nothing(&self) -> Estimate {
        Estimate {
            ends_early: self.stop.is_some(),
            ..Estimate::default()
        }
    }
}

impl Drafted<'_> {
    /// The pass that accepts `accepted` steps, of which the last has candidates behind it or not. Where the text ends
    /// with them, the last one takes the place of the bonus token.
    fn pass(&self, accepted: usize, goes_on: bool) -> PassRecord {
        let emitted = (accepted + 1).min(self.left);
        PassRecord {
            draft_passes: self.draft_passes,
            tested: if emitted <= accepted {
                emitted - 1
            } else {
                accepted + usize::from(goes_on)
            },
            accepted: emitted - 1,
            emitted,
            ..PassRecord::default()
        }
    }
}

impl Walk<'_> {
    /// With drafts of the likeliest tokens in the shape of `tree`: the passes themselves.
    pub(super) fn fixed(&self, tree: &StaticTree) -> Estimate {
        let mut found = self.nothing();
        let mut place = self.text.first;
        while place + 1 < self.text.tokens.len() {
            let drafted = self.at(place);
            let (mut node, mut accepted) = (None, 0);
            while let Some(seen) = drafted.seen.get(accepted) {
                let children = tree.children(node);
                match seen.rank.filter(|&rank| rank < children.len()) {
                    Some(rank) => node = Some(children.start + rank),
                    None => break,
                }
                accepted += 1;
            }
            // None where nothing is drafted behind this place.
            let candidates = drafted.seen.first().map_or(0, |seen| seen.candidates);
            let goes_on =
                candidates > 0 && drafted.steps > accepted && !tree.children(node).is_empty();
            let nodes = (tree.paths().iter()).filter(|path| {
                path.len() <= drafted.steps && path.iter().all(|&rank| rank < candidates)
            });
            let pass = PassRecord {
                drafted: nodes.clone().count(),
                depth: nodes.map(Vec::len).max().unwrap_or(0),
                ..drafted.pass(accepted, goes_on)
            };
            if self.confidence {
                let judged = pass.tested.min(drafted.left - 1);
                for (step, seen) in drafted.seen.iter().enumerate().take(judged) {
                    let kept = f64::from(u8::from(step < pass.accepted));
                    found.add_judged(seen, 1.0, kept);
                }
            }
            place += pass.emitted;
            found.acceptance.add(&pass);
            found.draft_passes += pass.draft_passes as f64;
            found.passes.push(pass);
        }
        found
    }

    /// With chains drawn from the drafter's distribution: the passes that are expected.
    pub(super) fn drawn(&self) -> Estimate {
        let (first, end) = (self.text.first, self.text.tokens.len() - 1);
        let mut found = self.nothing();
        let (mut overlap, mut variance) = (0.0, 0.0);
        // How likely a pass starts behind each place.
        let mut reached = vec![0.0; end + 1 - first];
        reached[0] = 1.0;
        for place in first..end {
            let mut alive = reached[place - first];
            let drafted = self.at(place);
            let mut add = |found: &mut Estimate, accepted: usize, share: f64| {
                let pass = PassRecord {
                    drafted: drafted.steps,
                    depth: drafted.steps,
                    ..drafted.pass(accepted, accepted < drafted.steps)
                };
                found.acceptance.add_share(&pass, share);
                found.draft_passes += share * pass.draft_passes as f64;
                reached[place + pass.emitted - first] += share;
            };
            for (step, seen) in drafted.seen.iter().enumerate() {
                add(&mut found, step, alive * (1.0 - seen.kept));
                // The text's last token, if kept, counts as the bonus token and not as a step that was judged.
                let is_last = step + 1 == drafted.left;
                let judged = if is_last { 1.0 - seen.kept } else { 1.0 };
                overlap += alive * judged * seen.overlap;
                if self.confidence && !is_last {
                    found.add_judged(seen, alive, alive * seen.kept);
                }
                variance += alive * seen.kept * (1.0 - seen.kept);
                alive *= seen.kept;
            }
            add(&mut found, drafted.seen.len(), alive);
        }
        found.overlap = Some(overlap);
        found.variance = variance;
        found
    }
}

impl Estimate {
    /// Counts the drafter's confidence in a step that is judged with a probability of `judged`, and judged and kept with one
    /// of `kept`.
    ///
    /// A likeliest token is kept as often as the target says it, so a drafter that knows itself gives it that probability. A
    /// drawn one is kept with `min(1, p / q)`, always if the drafter is as good as the target, so its own probability is no
    /// forecast. There, too, the likeliest token is compared, with the text: the same question at the steps that are judged.
    ///
    /// The text's last token is left out: kept, it counts as the bonus token and as no step, so that it would only count where it
    /// was rejected.
    fn add_judged(&mut self, seen: &Seen, judged: f64, kept: f64) {
        let is_likeliest = f64::from(u8::from(seen.rank == Some(0)));
        self.likeliest
            .add(seen.confidence, judged, judged * is_likeliest);
        if let Some(guess) = seen.guess {
            self.head.add(guess, judged, kept);
        }
    }
}

//! The passes that a decoder takes over a text, or is expected to take.
use spectrain_models::{KnownText, StaticTree};

use super::seen::{Seen, Table};
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
    /// The passes, where drafts are not drawn.
    pub passes: Vec<PassRecord>,
}

/// A text, and what a drafter makes of it.
pub(super) struct Walk<'a> {
    pub(super) text: &'a KnownText<'a>,
    pub(super) seen: &'a Table,
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
        let steps = self.text.steps(place);
        Drafted {
            seen: &self.seen[place - self.text.first],
            steps,
            left: self.text.tokens.len() - 1 - place,
            draft_passes: (self.passes)(steps),
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

/// With drafts of the likeliest tokens in the shape of `tree`: the passes themselves.
pub(super) fn fixed(walk: &Walk, tree: &StaticTree) -> Estimate {
    let mut found = Estimate::default();
    let mut place = walk.text.first;
    while place + 1 < walk.text.tokens.len() {
        let drafted = walk.at(place);
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
        let goes_on = candidates > 0 && drafted.steps > accepted && !tree.children(node).is_empty();
        let nodes = (tree.paths().iter()).filter(|path| {
            path.len() <= drafted.steps && path.iter().all(|&rank| rank < candidates)
        });
        let pass = PassRecord {
            drafted: nodes.clone().count(),
            depth: nodes.map(Vec::len).max().unwrap_or(0),
            ..drafted.pass(accepted, goes_on)
        };
        place += pass.emitted;
        found.acceptance.add(&pass);
        found.draft_passes += pass.draft_passes as f64;
        found.passes.push(pass);
    }
    found
}

/// With chains drawn from the drafter's distribution: the passes that are expected.
pub(super) fn drawn(walk: &Walk) -> Estimate {
    let (first, end) = (walk.text.first, walk.text.tokens.len() - 1);
    let mut found = Estimate::default();
    let mut overlap = 0.0;
    // How likely a pass starts behind each place.
    let mut reached = vec![0.0; end + 1 - first];
    reached[0] = 1.0;
    for place in first..end {
        let reach = reached[place - first];
        let drafted = walk.at(place);
        let mut alive = reach;
        let mut add = |accepted: usize, share: f64| {
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
            add(step, alive * (1.0 - seen.kept));
            // The text's last token, if kept, counts as the bonus token and not as a step that was judged.
            let is_last = step + 1 == drafted.left;
            let judged = if is_last { 1.0 - seen.kept } else { 1.0 };
            overlap += alive * judged * seen.overlap;
            alive *= seen.kept;
        }
        add(drafted.seen.len(), alive);
    }
    found.overlap = Some(overlap);
    found
}

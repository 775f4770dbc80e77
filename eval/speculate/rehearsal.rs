//! What a pass costs: sequences are decoded in several ways by turns, a pass in each, and every pass is timed. All ways go on with
//! the same sequences: those of a way of its own for passes without drafts would take as much memory again.
use std::cell::Cell;
use std::time::Instant;

use rand::{SeedableRng, rngs::StdRng};
use spectrain_data::seed::mix;
use spectrain_models::{AtATime, Capture, Proposer};

use super::generation::{DecodeSettings, Seconds};
use super::lane::{Generator, Lane};
use super::{Decoder, Failed, Way};
use crate::error::Result;
use crate::verify::Verifier;

/// Tokens that a sequence grows by before it is begun anew, so that all passes are of about one context.
const GROWTH: usize = 64;

/// What is to be timed.
pub(crate) struct Rehearsal<'r> {
    /// What the sequences begin with: for each that is decoded at a time the texts, at least one, that it goes through by turns.
    pub(crate) texts: Vec<Vec<Vec<u32>>>,
    /// The ways to draft. Outputs have no end but that of their growth.
    pub(crate) ways: &'r [DecodeSettings],
    pub(crate) verifier: &'r dyn Verifier,
    /// Timed rounds: at least, and at most. One that is not timed comes before them.
    pub(crate) rounds: [usize; 2],
    /// Seconds after which no further round is begun.
    pub(crate) seconds: f64,
}

/// A pass with drafts, of all sequences together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Timed {
    pub(crate) seconds: Seconds,
    /// Tokens that were drafted for all of them.
    pub(crate) drafted: usize,
}

/// Passes, each of all sequences together.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Rehearsed {
    /// Seconds of those without drafts, one for each round.
    pub(crate) plain: Vec<f64>,
    /// One list for each way, of one entry for each round.
    pub(crate) ways: Vec<Vec<Timed>>,
}

impl Rehearsal<'_> {
    /// Tokens of the longest draft.
    fn longest(&self) -> usize {
        let lengths = self.ways.iter().map(|way| way.draft.length());
        lengths.max().unwrap_or(0)
    }

    /// Tokens by which a sequence may grow.
    fn grown(&self) -> usize {
        GROWTH + self.longest() + 2
    }

    /// Positions that the caches of all sequences have room for, at most, where so many keys of a cache are taken.
    pub(crate) fn positions(&self, taken: AtATime) -> usize {
        let nodes = self.ways.iter().map(|way| way.draft.nodes()).max();
        let behind = self.grown() + nodes.unwrap_or(0);
        let longest = |texts: &Vec<Vec<u32>>| texts.iter().map(Vec::len).max().unwrap_or(0);
        let texts = self.texts.iter();
        texts
            .map(|texts| taken.of_cache(longest(texts) + behind))
            .sum()
    }

    /// Times all ways; nothing where the context has no room for it. There is a proposer for each text.
    pub(crate) fn run<'p>(
        &self,
        decoder: &Decoder,
        proposers: &mut [Box<dyn Proposer + 'p>],
    ) -> Result<Option<Rehearsed>> {
        let grown = self.grown();
        let positions = decoder.target.spec().max_positions;
        let Some(room) = positions.checked_sub(grown + 1).filter(|&room| room > 0) else {
            return Ok(None);
        };
        let ways: Vec<DecodeSettings> = (self.ways.iter())
            .map(|way| DecodeSettings {
                max_new_tokens: grown,
                stop: Vec::new(),
                shadow: None,
                ..way.clone()
            })
            .collect();
        let Some(widest) = ways.iter().max_by_key(|way| way.draft.nodes()) else {
            return Ok(None);
        };
        let capture = Capture::default();
        let plain = Way::plain(&capture, widest);
        let drafting = |settings| Way::drafting(decoder.capture, self.verifier, settings);
        let drafters = proposers.iter_mut().map(|proposer| {
            let proposer: &mut dyn Proposer = proposer.as_mut();
            Some(proposer)
        });
        let sequences = Sequences {
            decoder,
            way: drafting(widest),
            texts: &self.texts,
            begun: Cell::new(0),
            room,
            needed: self.longest() + 2,
        };
        let mut lanes = sequences.begin(drafters.collect())?;
        let mut found = Rehearsed {
            plain: Vec::new(),
            ways: vec![Vec::new(); ways.len()],
        };
        let clock = Instant::now();
        for round in 0..=self.rounds[1] {
            if round > self.rounds[0] && clock.elapsed().as_secs_f64() > self.seconds {
                break;
            }
            let is_timed = round > 0;
            let seconds = sequences.step_plainly(&plain, &mut lanes)?;
            found.plain.extend(is_timed.then_some(seconds.total()));
            for (way, all) in ways.iter().zip(&mut found.ways) {
                let timed = sequences.step(&drafting(way), &mut lanes)?;
                all.extend(is_timed.then_some(timed));
            }
        }
        Ok(Some(found))
    }
}

/// Sequences that are begun anew, with their next texts, when they have grown: places of one text alone may all be easy to draft, or
/// none.
struct Sequences<'s> {
    decoder: &'s Decoder<'s>,
    /// What they are begun with.
    way: Way<'s>,
    texts: &'s [Vec<Vec<u32>>],
    /// How often they were begun.
    begun: Cell<usize>,
    /// Tokens of a text that are taken at most, the last ones.
    room: usize,
    /// Tokens that the next pass must have room for.
    needed: usize,
}

impl Sequences<'_> {
    fn begin<'l>(&self, proposers: Vec<Option<&'l mut dyn Proposer>>) -> Result<Vec<Lane<'l>>> {
        let turn = self.begun.replace(self.begun.get() + 1);
        let each = self.texts.iter().zip(proposers).enumerate();
        let begin = |(ticket, (texts, proposer)): (usize, (&Vec<Vec<u32>>, Option<_>))| {
            let text = &texts[turn % texts.len()];
            let prompt = &text[text.len().saturating_sub(self.room)..];
            let rng = StdRng::seed_from_u64(mix(turn as u64, ticket as u64));
            let asked = (ticket, prompt);
            self.decoder
                .begin(&self.way, proposer, asked, Generator::Own(Box::new(rng)))
        };
        each.map(begin).collect()
    }

    fn step(&self, way: &Way, lanes: &mut Vec<Lane>) -> Result<Timed> {
        if lanes.iter().any(|lane| lane.sequence.room() < self.needed) {
            let proposers = lanes.drain(..).map(|lane| lane.finish().1);
            let proposers = proposers.collect();
            *lanes = self.begin(proposers)?;
        }
        let seconds = self.decoder.step(way, lanes);
        Ok(Timed {
            seconds: seconds.map_err(|Failed { error, .. }| error)?,
            drafted: lanes.iter().map(Lane::last_drafted).sum(),
        })
    }

    /// The same without drafts. What it commits is dropped again, as the proposers do not see it.
    fn step_plainly(&self, way: &Way, lanes: &mut Vec<Lane>) -> Result<Seconds> {
        let proposers = lanes.iter_mut().map(|lane| lane.proposer.take());
        let proposers: Vec<_> = proposers.collect();
        let lengths: Vec<usize> = lanes.iter().map(|lane| lane.sequence.text.len()).collect();
        let seconds = self.decoder.step(way, lanes);
        for ((lane, proposer), length) in lanes.iter_mut().zip(proposers).zip(lengths) {
            lane.proposer = proposer;
            lane.sequence.truncate(length);
        }
        seconds.map_err(|Failed { error, .. }| error)
    }
}

#[cfg(test)]
mod tests {
    use spectrain_models::{DraftShape, Sampling};

    use super::*;
    use crate::toy::{Style, ToyDrafter, ToyTarget};
    use crate::verify::VerifierChoice;

    #[test]
    fn caches_have_room_for_the_longest_text_of_each_sequence_its_growth_and_a_draft() {
        let settings = DecodeSettings {
            max_new_tokens: 1,
            draft: DraftShape::Chain { length: 3 },
            sampling: Sampling::GREEDY,
            stop: Vec::new(),
            shadow: None,
        };
        let rehearsal = Rehearsal {
            texts: vec![vec![vec![1; 300], vec![1; 40]], vec![vec![1; 20]]],
            ways: &[settings],
            verifier: VerifierChoice::Exact.at(&Sampling::GREEDY),
            rounds: [1, 1],
            seconds: 0.0,
        };
        let behind = GROWTH + 3 + 2 + 3;
        assert_eq!(rehearsal.positions(AtATime::CPU), 320 + 2 * behind);
        // Each cache ends at a multiple of 256.
        assert_eq!(rehearsal.positions(AtATime::GPU), 512 + 256);
    }

    #[test]
    fn a_pass_without_drafts_leaves_the_sequences_as_they_were() {
        let (target, capture) = (ToyTarget::default(), Capture::default());
        let decoder = Decoder::new(&target, &capture);
        let settings = DecodeSettings {
            max_new_tokens: 40,
            draft: DraftShape::Chain { length: 3 },
            sampling: Sampling::GREEDY,
            stop: Vec::new(),
            shadow: None,
        };
        let verifier = VerifierChoice::Exact.at(&settings.sampling);
        let sequences = Sequences {
            decoder: &decoder,
            way: Way::drafting(&capture, verifier, &settings),
            texts: &[vec![vec![1, 4, 2], vec![0]], vec![vec![3]]],
            begun: Cell::new(0),
            room: 100,
            needed: 5,
        };
        let mut drafters = [(); 2].map(|()| ToyDrafter::new(Style::Own));
        let proposers = drafters.iter_mut().map(|drafter| {
            let drafter: &mut dyn Proposer = drafter;
            Some(drafter)
        });
        let mut lanes = sequences.begin(proposers.collect()).unwrap();
        let of_lane = |lane: &Lane| {
            let sequence = &lane.sequence;
            let is_drafted = lane.proposer.is_some();
            (sequence.text.clone(), sequence.caches.len, is_drafted)
        };
        let plain = Way::plain(&capture, &settings);
        for _ in 0..3 {
            let before: Vec<_> = lanes.iter().map(of_lane).collect();
            sequences.step_plainly(&plain, &mut lanes).unwrap();
            let after: Vec<_> = lanes.iter().map(of_lane).collect();
            assert_eq!(after, before);
            // The drafter would notice a token that it was not shown, and the target one that has stayed in its caches.
            let timed = sequences.step(&sequences.way, &mut lanes).unwrap();
            assert!(lanes[0].sequence.text.len() > before[0].0.len());
            assert_eq!(timed.drafted, 2 * 3);
        }
        // Each goes through its texts by turns.
        let mut begun = |proposers: Vec<Option<_>>| {
            lanes = sequences.begin(proposers).unwrap();
            [0, 1].map(|at| lanes[at].sequence.text.clone())
        };
        let [one, other] = begun(vec![None, None]);
        assert_eq!((one[0], other[0]), (0, 3));
        let [one, other] = begun(vec![None, None]);
        assert_eq!((&one[..3], other[0]), (&[1, 4, 2][..], 3));
    }
}

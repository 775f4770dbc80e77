//! What a pass costs: sequences are decoded in several ways by turns, a pass in each, and every pass is timed.
use std::time::Instant;

use rand::{SeedableRng, rngs::StdRng};
use spectrain_models::{Capture, Proposer};

use super::generation::{DecodeSettings, Seconds};
use super::lane::Lane;
use super::queue::Queued;
use super::{Decoder, Failed, Way};
use crate::error::Result;
use crate::verify::Verifier;

/// Tokens that a sequence grows by before it is begun anew, so that all passes are of about one context.
const GROWTH: usize = 64;

/// What is to be timed.
pub(crate) struct Rehearsal<'r> {
    /// What the sequences begin with, one for each that is decoded at a time.
    pub(crate) texts: Vec<Vec<u32>>,
    /// The ways to draft. Outputs have no end but that of their growth.
    pub(crate) ways: &'r [DecodeSettings],
    pub(crate) verifier: &'r dyn Verifier,
    /// Timed rounds: at least, and at most. One that is not timed comes before them.
    pub(crate) rounds: [usize; 2],
    /// Seconds after which no further round is begun.
    pub(crate) seconds: f64,
}

/// Seconds of passes, each of all sequences together.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Rehearsed {
    /// Without drafts, one for each round.
    pub(crate) plain: Vec<f64>,
    /// One list for each way, of one entry for each round.
    pub(crate) ways: Vec<Vec<Seconds>>,
}

impl Rehearsal<'_> {
    /// Times all ways; nothing where the context has no room for it. There is a proposer for each text.
    pub(crate) fn run<'p>(
        &self,
        decoder: &Decoder,
        proposers: &mut [Box<dyn Proposer + 'p>],
    ) -> Result<Option<Rehearsed>> {
        let longest = self.ways.iter().map(|way| way.draft.length()).max();
        let longest = longest.unwrap_or(0);
        let grown = GROWTH + longest + 2;
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
        let mut drafted = Side::new(decoder, drafting(widest), &self.texts, room, longest + 2);
        let mut drafted_lanes = drafted.begin(drafters.collect())?;
        let mut undrafted = Side::new(decoder, plain, &self.texts, room, 1);
        let mut plain_lanes = undrafted.begin(self.texts.iter().map(|_| None).collect())?;
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
            let seconds = undrafted.step(&plain, &mut plain_lanes)?;
            found.plain.extend(is_timed.then_some(seconds.total()));
            for (way, all) in ways.iter().zip(&mut found.ways) {
                let seconds = drafted.step(&drafting(way), &mut drafted_lanes)?;
                all.extend(is_timed.then_some(seconds));
            }
        }
        Ok(Some(found))
    }
}

/// Sequences that are begun anew when they have grown.
struct Side<'s> {
    decoder: &'s Decoder<'s>,
    /// What they are begun with.
    way: Way<'s>,
    texts: &'s [Vec<u32>],
    /// Tokens of a text that are taken at most, the last ones.
    room: usize,
    /// Tokens that the next pass must have room for.
    needed: usize,
}

impl<'s> Side<'s> {
    fn new(
        decoder: &'s Decoder<'s>,
        way: Way<'s>,
        texts: &'s [Vec<u32>],
        room: usize,
        needed: usize,
    ) -> Self {
        Self {
            decoder,
            way,
            texts,
            room,
            needed,
        }
    }

    fn begin<'l>(&mut self, proposers: Vec<Option<&'l mut dyn Proposer>>) -> Result<Vec<Lane<'l>>> {
        let each = self.texts.iter().zip(proposers).enumerate();
        let begin = |(ticket, (text, proposer)): (usize, (&Vec<u32>, Option<_>))| {
            let queued = Queued {
                ticket,
                prompt: text[text.len().saturating_sub(self.room)..].to_vec(),
                rng: StdRng::seed_from_u64(ticket as u64),
            };
            self.decoder.begin(&self.way, proposer, queued)
        };
        each.map(begin).collect()
    }

    fn step(&mut self, way: &Way, lanes: &mut Vec<Lane>) -> Result<Seconds> {
        if lanes.iter().any(|lane| lane.sequence.room() < self.needed) {
            let proposers = lanes.drain(..).map(|lane| lane.finish().1);
            let proposers = proposers.collect();
            *lanes = self.begin(proposers)?;
        }
        let seconds = self.decoder.step(way, lanes);
        seconds.map_err(|Failed { error, .. }| error)
    }
}

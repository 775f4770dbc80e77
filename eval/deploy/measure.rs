//! Passes are timed at several batch sizes, on the texts that were decoded.
use std::time::Instant;

use spectrain_models::{AtATime, Children, DraftShape, KvCache, Proposer, Sampling, StaticTree};

use super::candidates::{Candidate, speedups, taus};
use super::price::{Costs, Prices};
use super::report::{BATCHES, CostSource, Found, Recommendation};
use crate::draft::{ChainTokens, DraftReport};
use crate::error::Result;
use crate::evaluate::settings::{EvaluateSettings, Warm};
use crate::prompts::{Answer, conversations};
use crate::speculate::rehearsal::Rehearsal;
use crate::speculate::{DecodeSettings, Decoder};
use crate::statistics::Acceptance;

/// Timed rounds: at least, and at most.
const ROUNDS: [usize; 2] = [8, 48];
/// Seconds of all batch sizes at one temperature: a share of what decoding without a drafter took, within bounds.
const SHARE: f64 = 0.5;
const SECONDS: [f64; 2] = [0.1, 16.0];
/// How many times what decoding held of the target, its weights and caches, may be held while passes are timed; and bytes of
/// caches that are never too many.
const MOST_HELD: f64 = 1.25;
const FEW_BYTES: f64 = (1u64 << 30) as f64;
/// Tokens by which a text is shorter than where its output is half decoded, as it grows while passes are timed.
const BEFORE: usize = 32;
/// Texts that a sequence goes through by turns, at most.
const NEAR: usize = 8;

/// What was decoded at one temperature.
pub(crate) struct Judged<'a> {
    /// What was drafted.
    pub(crate) drafts: Vec<(DraftReport, DraftShape)>,
    /// The outputs of each, one list for each set of prompts.
    pub(crate) outputs: &'a [Vec<Vec<Answer>>],
    /// What shorter chains than each would take over its outputs: for each length from 1 on the counts of each conversation.
    pub(crate) shorter: &'a [Vec<Vec<Acceptance>>],
    /// Those without a drafter.
    pub(crate) plain: &'a [Vec<Answer>],
}

/// What was found.
#[derive(Default)]
pub(crate) struct Deployment {
    /// One for each batch size that was timed.
    pub(crate) recommended: Vec<Recommendation>,
    /// The speed-up of each draft, and its interval, at the batch size that was decoded with.
    pub(crate) predicted: Vec<Option<(f64, Option<[f64; 2]>)>>,
}

/// What is timed, and what its costs tell the speed of.
struct Plan {
    candidates: Vec<Candidate>,
    /// The candidate of each draft that was decoded.
    decoded: Vec<usize>,
    shapes: Vec<DraftShape>,
}

impl Judged<'_> {
    /// Times passes and predicts speeds.
    pub(crate) fn measure<'p>(
        &self,
        decoder: &Decoder,
        sessions: &dyn Fn() -> Box<dyn Proposer + 'p>,
        settings: &EvaluateSettings,
        sampling: &Sampling,
    ) -> Result<Deployment> {
        let mut plan = plan(&self.drafts);
        let mut counts = self.counts();
        plan.take_foreseen(self.shorter, &mut counts);
        let Some(taus) = taus(&plan.candidates, &counts, settings.seed) else {
            return Ok(Deployment::default());
        };
        let verifier = settings.verifier.at(sampling);
        let mut found = Deployment::default();
        let own_length = sessions().draft_length();
        let shapes = plan.shapes.iter();
        let ways: Vec<DecodeSettings> = shapes
            .map(|shape| settings.decode(sampling, shape, Warm::Already))
            .collect();
        let mut budget = Budget::new(self.plain);
        let memory = Memory::of(decoder, self.plain, settings);
        let batches = batches(settings.batch_size);
        for (at, &batch_size) in batches.iter().enumerate() {
            let decoded = batch_size == settings.batch_size;
            let rehearsal = Rehearsal {
                texts: self.texts(batch_size),
                ways: &ways,
                verifier,
                rounds: ROUNDS,
                seconds: budget.share(batches.len() - at),
            };
            let positions = rehearsal.positions(AtATime::on(&decoder.target.device()));
            let fits = budget.allows(batch_size) && memory.allows(positions);
            if !decoded && !fits {
                continue;
            }
            let mut proposers: Vec<_> = (0..batch_size).map(|_| sessions()).collect();
            let clock = Instant::now();
            let Some(timed) = rehearsal.run(decoder, &mut proposers)? else {
                continue;
            };
            let prices = Prices { batch_size, timed };
            budget.spent(clock.elapsed().as_secs_f64(), &prices);
            let speedups = speedups(&plan.candidates, &taus, &prices, settings.seed);
            let of = Found {
                candidates: &plan.candidates,
                taus: &taus,
                prices: &prices,
                speedups: &speedups,
                own_length,
            };
            if decoded {
                let each = plan.decoded.iter().map(|&at| of.report(at));
                let each = each.map(|found| Some((found.speedup, found.speedup_ci95)));
                found.predicted = each.collect();
            }
            // What a lossy verifier gives is not what others would have to be compared with.
            if !verifier.is_lossy() {
                found.recommended.push(recommendation(&of, sampling));
            }
        }
        Ok(found)
    }

    /// The counts of each conversation, one list for each draft.
    fn counts(&self) -> Vec<Vec<Acceptance>> {
        let of_turns = |turns: &[Answer]| {
            let mut counts = Acceptance::default();
            let passes = turns.iter().flat_map(|turn| &turn.generation.passes);
            passes.for_each(|pass| counts.add(pass));
            counts
        };
        let of_draft = |sets: &Vec<Vec<Answer>>| {
            let answers = sets.iter().flat_map(|answers| conversations(answers));
            answers.map(of_turns).collect()
        };
        self.outputs.iter().map(of_draft).collect()
    }

    /// Texts of which about half of the output is decoded: for each of so many sequences, which are spread over all by length, some
    /// of about one length, the one at its place first.
    fn texts(&self, count: usize) -> Vec<Vec<Vec<u32>>> {
        let half = |answer: &Answer| {
            let tokens = &answer.generation.tokens;
            let half = (tokens.len() / 2).saturating_sub(BEFORE);
            [&answer.prompt[..], &tokens[..half]].concat()
        };
        let mut texts: Vec<Vec<u32>> = self.plain.iter().flatten().map(half).collect();
        texts.sort_by_key(Vec::len);
        let near = NEAR.min(texts.len());
        let of_sequence = |number: usize| {
            let at = (2 * number + 1) * texts.len() / (2 * count);
            let first = at.saturating_sub(near / 2).min(texts.len() - near);
            let by_turns = (0..near).map(|turn| first + (at - first + turn) % near);
            by_turns.map(|at| texts[at].clone()).collect()
        };
        (0..count).map(of_sequence).collect()
    }
}

fn recommendation(of: &Found, sampling: &Sampling) -> Recommendation {
    let rounds = Vec::from_iter(0..of.prices.rounds());
    Recommendation {
        target: None,
        temperature: sampling.temperature,
        top_k: (sampling.top_k > 0).then_some(sampling.top_k),
        top_p: (sampling.top_p < 1.0).then_some(sampling.top_p),
        batch_size: of.prices.batch_size,
        costs: CostSource::Decoder,
        rounds: Some(rounds.len()),
        plain_seconds: of.prices.plain(&rounds),
        candidates: (0..of.candidates.len()).map(|at| of.report(at)).collect(),
        best: of.best(),
    }
}

/// All batch sizes, each once, in ascending order.
fn batches(decoded: usize) -> Vec<usize> {
    let mut batches = Vec::from_iter(BATCHES.into_iter().chain([decoded]));
    batches.sort_unstable();
    batches.dedup();
    batches
}

/// Every draft that was decoded, and of chains each shorter one; the lengths that are timed are few.
fn plan(drafts: &[(DraftReport, DraftShape)]) -> Plan {
    let mut plan = Plan {
        candidates: Vec::new(),
        decoded: vec![0; drafts.len()],
        shapes: Vec::new(),
    };
    let mut ways_to_choose: Vec<Option<ChainTokens>> = Vec::new();
    for (at, (draft, shape)) in drafts.iter().enumerate() {
        match draft {
            DraftReport::Chain { tokens, .. } if ways_to_choose.contains(tokens) => {}
            DraftReport::Chain { tokens, .. } => {
                ways_to_choose.push(*tokens);
                plan.add_chains(drafts, *tokens);
            }
            _ => {
                plan.decoded[at] = plan.candidates.len();
                plan.candidates.push(Candidate {
                    draft: draft.clone(),
                    outputs: at,
                    steps: None,
                    costs: Costs::Way(plan.shapes.len()),
                });
                plan.shapes.push(shape.clone());
            }
        }
    }
    plan
}

impl Plan {
    /// Takes what chains that were not decoded would take over the outputs of the longest, where that is known, and puts it behind what
    /// was decoded.
    fn take_foreseen(
        &mut self,
        shorter: &[Vec<Vec<Acceptance>>],
        counts: &mut Vec<Vec<Acceptance>>,
    ) {
        for candidate in &mut self.candidates {
            let known = candidate.steps.and_then(|steps| {
                let of_longest = shorter.get(candidate.outputs)?;
                of_longest.get(steps.checked_sub(1)?)
            });
            if let Some(known) = known {
                (candidate.outputs, candidate.steps) = (counts.len(), None);
                counts.push(known.clone());
            }
        }
    }

    /// Chains whose tokens are chosen in one way, of any length up to the longest that was decoded.
    fn add_chains(&mut self, drafts: &[(DraftReport, DraftShape)], chosen: Option<ChainTokens>) {
        let of_draft = |(at, (draft, _)): (usize, &(DraftReport, DraftShape))| match draft {
            DraftReport::Chain { length, tokens } if *tokens == chosen => Some((*length, at)),
            _ => None,
        };
        let mut decoded: Vec<(usize, usize)> =
            drafts.iter().enumerate().filter_map(of_draft).collect();
        decoded.sort_unstable();
        let Some(&(longest, of_longest)) = decoded.last() else {
            return;
        };
        let doubled = std::iter::successors(Some(1), |length| Some(2 * length));
        let mut lengths: Vec<usize> = doubled.take_while(|&length| length < longest).collect();
        lengths.extend(decoded.iter().map(|(length, _)| length));
        lengths.sort_unstable();
        lengths.dedup();
        let mut timed = Vec::new();
        for length in lengths {
            timed.push((length, self.shapes.len()));
            self.shapes.push(chain(length, chosen));
        }
        for length in 1..=longest {
            // What was decoded speaks for itself.
            let own = decoded.iter().find(|(decoded, _)| *decoded == length);
            for (_, at) in decoded.iter().filter(|(decoded, _)| *decoded == length) {
                self.decoded[*at] = self.candidates.len();
            }
            self.candidates.push(Candidate {
                draft: DraftReport::Chain {
                    length,
                    tokens: chosen,
                },
                outputs: own.map_or(of_longest, |(_, at)| *at),
                steps: own.is_none().then_some(length),
                costs: Costs::Chain {
                    length,
                    timed: timed.clone(),
                },
            });
        }
    }
}

fn chain(length: usize, tokens: Option<ChainTokens>) -> DraftShape {
    match tokens {
        Some(ChainTokens::Likeliest) => DraftShape::Static {
            tree: StaticTree::chain(length),
            children: Children::Top,
        },
        _ => DraftShape::Chain { length },
    }
}

/// Bytes that the target takes.
struct Memory {
    weights: f64,
    /// Of the caches while prompts were decoded.
    caches: f64,
    /// Of a position in the caches.
    position: f64,
}

impl Memory {
    /// What decoding without a drafter held, with those texts at a time whose caches have the most room.
    fn of(decoder: &Decoder, plain: &[Vec<Answer>], settings: &EvaluateSettings) -> Self {
        let (target, spec) = (decoder.target, decoder.target.spec());
        let element = target.dtype().size() as f64;
        let some = AtATime::on(&target.device());
        let room = |answer: &Answer| {
            let prompt = answer.prompt.len();
            let most = (spec.max_positions).min(prompt.saturating_add(settings.max_new_tokens));
            let begun = KvCache::room(most, 0, prompt);
            let written = prompt + answer.generation.tokens.len();
            some.of_cache(KvCache::room(most, begun, written))
        };
        let mut rooms: Vec<usize> = plain.iter().flatten().map(room).collect();
        rooms.sort_unstable();
        let positions: usize = rooms.iter().rev().take(settings.batch_size).sum();
        // Keys and values.
        let position = 2.0 * element * (spec.layers * spec.kv_heads * spec.d_head) as f64;
        Self {
            weights: element * target.parameters() as f64,
            caches: position * positions as f64,
            position,
        }
    }

    /// Whether there may be caches of so many positions: nobody knows what there is beside what decoding took.
    fn allows(&self, positions: usize) -> bool {
        let caches = self.position * positions as f64;
        let most = MOST_HELD * (self.weights + self.caches) - self.weights;
        caches <= most.max(FEW_BYTES)
    }
}

/// Seconds for the passes of one temperature.
struct Budget {
    left: f64,
    /// A batch size that was timed, and seconds of a round of it.
    known: Option<(usize, f64)>,
}

impl Budget {
    fn new(plain: &[Vec<Answer>]) -> Self {
        let answers = plain.iter().flatten();
        let took: f64 = (answers)
            .map(|answer| answer.generation.seconds().total())
            .sum();
        Self {
            left: (SHARE * took).clamp(SECONDS[0], SECONDS[1]),
            known: None,
        }
    }

    /// Whether there is time for passes of so many sequences, which take at most so many times as long as those of fewer.
    fn allows(&self, batch_size: usize) -> bool {
        let Some((known, round)) = self.known else {
            return true;
        };
        let round = round * batch_size as f64 / known as f64;
        round * (1 + ROUNDS[0]) as f64 <= self.left
    }

    /// Seconds for the first of so many batch sizes, each of which has twice those of the one before.
    fn share(&self, sizes: usize) -> f64 {
        self.left / (2.0f64.powi(sizes as i32) - 1.0)
    }

    fn spent(&mut self, seconds: f64, prices: &Prices) {
        self.left = (self.left - seconds).max(0.0);
        let round = seconds / (1 + prices.rounds()) as f64;
        self.known = Some((prices.batch_size, round));
    }
}

#[cfg(test)]
mod tests {
    use spectrain_models::{Capture, Target as _};

    use super::*;
    use crate::evaluate::settings::CalibrationPrompts;
    use crate::speculate::Generation;
    use crate::toy::{TARGET_HELD, ToyTarget};
    use crate::verify::VerifierChoice;

    fn drafts(lengths: &[usize], tokens: Option<ChainTokens>) -> Vec<(DraftReport, DraftShape)> {
        let draft = |&length: &usize| {
            let draft = DraftReport::Chain { length, tokens };
            (draft, chain(length, tokens))
        };
        lengths.iter().map(draft).collect()
    }

    #[test]
    fn every_chain_up_to_the_longest_is_a_candidate_and_few_are_timed() {
        let mut all = drafts(&[9, 3], None);
        let tree = DraftShape::Dynamic {
            depth: 4,
            top_k: 2,
            nodes: 8,
        };
        all.insert(1, (DraftReport::of(&tree), tree.clone()));
        let plan = plan(&all);
        assert_eq!(plan.decoded, [8, 9, 2]);
        let timed = [1, 2, 3, 4, 8, 9].map(|length| DraftShape::Chain { length });
        assert_eq!(plan.shapes, [&timed[..], &[tree]].concat());
        let of = |at: usize| (plan.candidates[at].outputs, plan.candidates[at].steps);
        // The third step of the longer chain's outputs, and the outputs of the chain of three.
        assert_eq!(
            [of(1), of(2), of(3)],
            [(0, Some(2)), (2, None), (0, Some(4))]
        );
        assert_eq!((of(8), of(9)), ((0, None), (1, None)));
        let is_timed = plan.candidates.iter().map(|of| of.costs.is_timed());
        assert_eq!(is_timed.filter(|&is_timed| is_timed).count(), 7);
    }

    #[test]
    fn what_is_known_of_chains_that_were_not_decoded_takes_the_place_of_first_steps() {
        let mut plan = plan(&drafts(&[4, 2], None));
        let of_passes = |passes: f64| {
            vec![Acceptance {
                passes,
                ..Acceptance::default()
            }]
        };
        let mut counts = vec![of_passes(4.0), of_passes(2.0)];
        // Nothing is known of the third step.
        let shorter = [vec![of_passes(1.0), of_passes(9.0)], Vec::new()];
        plan.take_foreseen(&shorter, &mut counts);
        let found = plan.candidates.iter().map(|of| (of.outputs, of.steps));
        assert_eq!(
            found.collect::<Vec<_>>(),
            [(2, None), (1, None), (0, Some(3)), (0, None)]
        );
        assert_eq!(counts[2], of_passes(1.0));
        assert_eq!(counts.len(), 3);
    }

    #[test]
    fn tokens_chosen_in_two_ways_are_two_families_of_chains() {
        let both = [ChainTokens::Drawn, ChainTokens::Likeliest];
        let all = both.map(|tokens| drafts(&[2], Some(tokens))).concat();
        let plan = plan(&all);
        assert_eq!(plan.decoded, [1, 3]);
        assert_eq!(plan.shapes.len(), 4);
        assert!(matches!(plan.shapes[3], DraftShape::Static { .. }));
    }

    #[test]
    fn batch_sizes_that_would_take_much_more_memory_than_decoding_are_left_out() {
        let memory = Memory {
            weights: 16.0 * FEW_BYTES,
            caches: 4.0 * FEW_BYTES,
            position: FEW_BYTES / 1024.0,
        };
        // A quarter of 20 beside the 4 that decoding had.
        assert!(memory.allows(9 * 1024) && !memory.allows(9 * 1024 + 1));
        let small = Memory {
            weights: 100.0,
            caches: 10.0,
            ..memory
        };
        assert!(small.allows(1024) && !small.allows(1025));
    }

    #[test]
    fn what_decoding_held_is_that_of_the_texts_whose_caches_had_grown_most() {
        let (target, capture) = (ToyTarget::with_positions(3000), Capture::default());
        let answer = |length: usize, written: usize| Answer {
            conversation: 0,
            turn: 0,
            prompt: vec![1; length],
            generation: Generation {
                tokens: vec![1; written],
                ..Generation::default()
            },
        };
        let settings = EvaluateSettings {
            samplings: Vec::new(),
            drafts: Vec::new(),
            calibration: CalibrationPrompts::default(),
            batch_size: 2,
            max_new_tokens: 2000,
            stop: Vec::new(),
            thinking: None,
            classes: None,
            verifier: VerifierChoice::Exact,
            baseline: true,
            seed: 0,
        };
        let caches = |plain: &[Vec<Answer>], rooms: [usize; 2]| {
            let found = Memory::of(&Decoder::new(&target, &capture), plain, &settings);
            let rooms = rooms.map(|room| AtATime::on(&target.device()).of_cache(room));
            let held = rooms.iter().sum::<usize>() as f64;
            // Keys and values of four bytes each.
            assert_eq!((found.position, found.caches), (8.0, 8.0 * held));
            found
        };
        // Whatever they may grow to, caches begin with room for 512 positions behind the prompt.
        caches(&[vec![answer(5, 1), answer(10, 500)]], [517, 522]);
        // One has doubled; the context ends after 3000 tokens.
        let plain = [vec![answer(5, 1), answer(10, 900)], vec![answer(2900, 7)]];
        let found = caches(&plain, [1044, 3000]);
        // All weights, also those that a pass of one token does not read.
        assert_eq!(found.weights, 4.0 * TARGET_HELD as f64);
    }

    #[test]
    fn batch_sizes_that_would_take_too_long_are_left_out() {
        let mut budget = Budget {
            left: 1.0,
            known: None,
        };
        assert!(budget.allows(1));
        budget.known = Some((1, 0.02));
        // Nine rounds of at most 0.08 seconds, and of at most 0.32.
        assert!(budget.allows(4) && !budget.allows(16));
        assert_eq!((budget.share(1), budget.share(2)), (1.0, 1.0 / 3.0));
        assert_eq!(batches(4), [1, 4, 16]);
        assert_eq!(batches(3), [1, 3, 4, 16]);
    }
}

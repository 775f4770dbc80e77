//! How a block-diffusion drafter drafts: one pass makes the hidden states of all slots and what the target's head makes of
//! them. What heads of its own add to the logits of a slot follows when the tokens before it are known.
use std::ops::{ControlFlow, Range};

use burn::prelude::*;
use burn::tensor::DType;
use burn::tensor::activation::sigmoid;
use spectrain_data::vocabulary::DraftVocabulary;

use super::DFlash;
use super::config::DFlashConfig;
use super::paths::{PathSlot, Paths};
use super::refining::Refined;
use super::selector::Candidates;
use super::slots::Slots;
use crate::along::{in_chunks, part, rows_at_a_time};
use crate::attention::Attends as _;
use crate::blocks::{BlockLayout, BlockPlaces};
use crate::cache::KvCache;
use crate::decoder::Stream;
use crate::drafter::Drafter;
use crate::error::Result;
use crate::few_rows::product;
use crate::frozen::Frozen;
use crate::known_text::{DraftStep, KnownText, TakeGuesses, TakeLogits};
use crate::language_model::{logits, slot_logits};
use crate::mask::{Masks, token_ids};
use crate::target::{Capture, Features, TargetParts, TargetSpec};
use crate::tree::Tree;
use crate::untrained::Untrained;
use crate::weights::{RandomWeights, Weights, host_f32};

/// The settings of a sequence's decoding.
#[derive(Debug, Clone)]
pub struct DFlashState {
    /// Keys and values of the context, for each layer.
    caches: Vec<KvCache>,
    /// The last committed token, whose place is after the context.
    anchor: u32,
    /// What the head reads for each token of the draft, of one block.
    slots: Option<Slots>,
    /// The draft of XPress, where its passes do not settle all tokens.
    refined: Option<Refined>,
    /// What the target's head makes of the slots of a draft, all at once, `[slots, vocab]`.
    logits: Option<Tensor<2>>,
    /// What a selector chooses from in each slot.
    candidates: Option<Candidates>,
    /// The context's last row, `[1, 1, d_model]`, where a lattice reads it.
    before: Option<Tensor<3>>,
    /// The paths through the lattice of the block.
    paths: Option<Paths>,
    /// Length of the longest path to come.
    planned: usize,
}

impl DFlashState {
    /// Drops what was made of the block; the context stays.
    fn forget(&mut self) {
        self.slots = None;
        self.refined = None;
        self.logits = None;
        self.candidates = None;
        self.paths = None;
    }
}

impl Drafter for DFlash {
    type Config = DFlashConfig;
    type State = DFlashState;

    fn check(config: &Self::Config) -> Result<()> {
        config.check()
    }

    fn new(
        config: &Self::Config,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        weights: &mut dyn Weights,
        device: &Device,
    ) -> Result<Self> {
        Self::build(config, target, vocabulary, weights, device)
    }

    fn fresh(
        config: &Self::Config,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        seed: u64,
        device: &Device,
    ) -> Result<Self> {
        let mut weights = Untrained {
            random: RandomWeights::new(seed),
            heads: None,
            norm: true,
            target,
            vocabulary,
        };
        Self::new(config, target, vocabulary, &mut weights, device)
    }

    fn capture(config: &Self::Config, target: &TargetSpec) -> Result<Capture> {
        Ok(Capture {
            layers: config.resolve(target)?.captured_layers,
        })
    }

    fn start(&self, capacity: usize, first: u32) -> DFlashState {
        DFlashState {
            caches: self.layers.iter().map(|_| KvCache::new(capacity)).collect(),
            anchor: first,
            slots: None,
            refined: None,
            logits: None,
            candidates: None,
            before: None,
            paths: None,
            planned: 1,
        }
    }

    fn observe(&self, state: &mut DFlashState, tokens: &[u32], features: &Features) {
        let device = self.fc.weight.device();
        let mut places = vec![state.anchor];
        places.extend_from_slice(&tokens[..tokens.len() - 1]);
        let context = self.context(features, token_ids(&places, &device));
        let cached = state.caches.first().map_or(0, KvCache::len);
        let rotation = self.rotation(cached, tokens.len(), &context.device());
        for (layer, cache) in self.layers.iter().zip(&mut state.caches) {
            let (key, value) = layer
                .attention()
                .keys_and_values(context.clone(), &rotation);
            cache.append(key, value);
        }
        if let Some(&last) = tokens.last() {
            state.anchor = last;
        }
        if self.lattice.is_some() {
            state.before = Some(context.narrow(1, tokens.len() - 1, 1));
        }
        state.forget();
    }

    fn frozen(&self) -> &Frozen<DFlashConfig> {
        &self.frozen
    }

    fn plan(&self, state: &mut DFlashState, depth: usize) {
        let planned = depth.clamp(1, self.frozen.config.slots());
        if planned != state.planned {
            // What a slot holds depends on the size of the block.
            state.planned = planned;
            state.forget();
        }
    }

    fn root_logits(&self, state: &mut DFlashState) -> Tensor<2> {
        let behind = self.behind(state, &Tree::default(), &[]);
        self.slot_logits(state, behind)
    }

    fn node_logits(&self, state: &mut DFlashState, tree: &Tree, nodes: &[usize]) -> Tensor<2> {
        let behind = self.behind(state, tree, nodes);
        self.slot_logits(state, behind)
    }

    fn confidence(
        &self,
        state: &mut DFlashState,
        tree: &Tree,
        nodes: &[usize],
    ) -> Option<Vec<f32>> {
        self.confidence_head.as_ref()?;
        let behind = self.behind(state, tree, nodes);
        let [_, depth] = behind.previous.dims();
        let hidden = behind.slots.hidden.narrow(1, depth - 1, 1);
        let logits = self.confidence_logits(hidden, behind.previous.narrow(1, depth - 1, 1))?;
        Some(host_f32(sigmoid(logits)))
    }

    fn has_confidence(&self) -> bool {
        self.confidence_head.is_some()
    }

    fn rewind(&self, _: &mut DFlashState) {}

    fn along(&self, text: &KnownText, take: &mut TakeLogits) {
        let device = self.fc.weight.device();
        let context = self.context(&text.features(0, text.rows()), text.row(&device));
        let slots = text.depth.min(self.frozen.config.slots());
        for places in text.groups() {
            let (whole, previous) = self.slots_behind(text, &places, &context, slots);
            if let Some(paths) = self.paths_behind(&whole, &context, &places) {
                let steps = known_slots(text, &places, slots);
                if self
                    .along_paths(&paths, &steps, (&previous, slots), take)
                    .is_break()
                {
                    return;
                }
                continue;
            }
            let head = self.head();
            let [_, width] = head.dims();
            let behind = whole.first(slots);
            let read = self.as_drafted(&behind, &previous, rows_at_a_time(width));
            let read: Tensor<2> = read.flatten(0, 1);
            let before: Tensor<2, Int> = token_ids(&previous, &device).transpose();
            let (steps, rows) = on_device(known_slots(text, &places, slots), &device);
            let (read, before) = (read.select(0, rows.clone()), before.select(0, rows));
            let taken = in_chunks(&steps, width, take, &|of| {
                let read = part(&read, of.clone());
                let logits = product(read.clone(), head.clone()).cast(DType::F32);
                let Some(selector) = &self.candidate_selector else {
                    return logits;
                };
                let before = before.clone().narrow(0, of.start, of.len());
                selector.logits(&selector.candidates(logits), read, before.squeeze_dim(1))
            });
            if taken.is_break() {
                return;
            }
        }
    }

    fn guesses_along(&self, text: &KnownText, take: &mut TakeGuesses) {
        if self.confidence_head.is_none() {
            return;
        }
        let device = self.fc.weight.device();
        let context = self.context(&text.features(0, text.rows()), text.row(&device));
        let slots = text.depth.min(self.frozen.config.slots());
        for places in text.groups() {
            let (whole, previous) = self.slots_behind(text, &places, &context, slots);
            let previous = token_ids(&previous, &device).reshape([places.len(), slots]);
            let Some(logits) = self.confidence_logits(whole.first(slots).hidden, previous) else {
                return;
            };
            let (steps, rows) = on_device(known_slots(text, &places, slots), &device);
            let guesses: Tensor<1> = sigmoid(logits).flatten(0, 1);
            take(&steps, host_f32(guesses.select(0, rows)));
        }
    }

    fn passes(&self, depth: usize) -> usize {
        depth.min(1)
    }

    fn depends_on_depth_alone(&self) -> bool {
        self.markov_head.is_none() && self.candidate_selector.is_none() && self.lattice.is_none()
    }

    fn parameters_per_pass(&self) -> u64 {
        (self.num_params() + self.frozen.shared_parameters(None)) as u64
    }

    fn max_depth(&self) -> Option<usize> {
        Some(self.frozen.config.slots())
    }
}

/// The steps behind `places` whose tokens are known, and the row of each among `slots` slots for each place.
fn known_slots(text: &KnownText, places: &[usize], slots: usize) -> Vec<(DraftStep, usize)> {
    let steps = places.iter().enumerate().flat_map(|(block, &place)| {
        let known = text.known(place).min(slots);
        (0..known).map(move |step| (DraftStep { place, step }, block * slots + step))
    });
    steps.collect()
}

/// The steps, and their rows on a device.
fn on_device(steps: Vec<(DraftStep, usize)>, device: &Device) -> (Vec<DraftStep>, Tensor<1, Int>) {
    let (steps, rows): (Vec<_>, Vec<i64>) = steps
        .into_iter()
        .map(|(step, row)| (step, row as i64))
        .unzip();
    (steps, Tensor::from_ints(rows.as_slice(), device))
}

/// What decides on the logits behind some nodes of one depth: the slots up to theirs, and the tokens before each.
struct Behind {
    /// Of each node.
    slots: Slots,
    /// `[nodes, slots]`: the anchor and the tokens of the path.
    previous: Tensor<2, Int>,
    /// The last of them, of each node.
    last: Vec<u32>,
}

impl DFlash {
    /// The slots that are filled of blocks behind `places` of a text, and the token before each of the first `slots`, which is the
    /// text's.
    ///
    /// # Shapes
    /// - context: `[1, seq, d_model]`
    /// - output: `[places, filled]` and `[places, slots]`
    fn slots_behind(
        &self,
        text: &KnownText,
        places: &[usize],
        context: &Tensor<3>,
        slots: usize,
    ) -> (Slots, Vec<u32>) {
        let (device, config) = (context.device(), &self.frozen.config);
        let first = config.first_slot();
        let size = first + self.filled(slots);
        let mut tokens = vec![self.mask_token; places.len() * size];
        let mut previous = vec![0; places.len() * slots];
        for (block, &place) in places.iter().enumerate() {
            tokens[block * size] = text.tokens[place];
            let known = &text.tokens[place..(place + slots).min(text.tokens.len())];
            previous[block * slots..][..known.len()].copy_from_slice(known);
        }
        let positions: Vec<u32> = (0..text.rows() as u32).collect();
        let anchors: Vec<_> = places.iter().map(|&place| Some((place, 0))).collect();
        // What a slot holds depends on the size of the block.
        let lengths: Vec<_> = (places.iter())
            .map(|&place| first + self.filled(text.steps(place).min(slots)))
            .collect();
        let layout = BlockPlaces {
            positions: &positions,
            anchors: &anchors,
            row_length: positions.len(),
            block_size: size,
            lengths: Some(&lengths),
            sights: &config.sights(),
        };
        let layout = BlockLayout::new(&layout, &device);
        let tokens = token_ids(&tokens, &device).reshape([places.len(), size]);
        let hidden = self.hidden(context.clone(), tokens, &layout);
        (self.slots(hidden), previous)
    }

    /// Gives `take` what paths make of steps, whose rows are among those of `previous`: the tokens before them, so many of each block.
    fn along_paths(
        &self,
        paths: &Paths,
        steps: &[(DraftStep, usize)],
        (previous, slots): (&[u32], usize),
        take: &mut TakeLogits,
    ) -> ControlFlow<()> {
        let vocab = self.frozen.target.spec.vocab;
        let wanted = |&(step, row): &(DraftStep, usize)| PathSlot {
            block: row / slots,
            slot: step.step,
            before: previous[row],
        };
        let wanted: Vec<PathSlot> = steps.iter().map(wanted).collect();
        let steps: Vec<DraftStep> = steps.iter().map(|(step, _)| *step).collect();
        let logits = |of: Range<usize>| paths.logits(&wanted[of], vocab);
        in_chunks(&steps, vocab, take, &logits)
    }

    /// How many slots are filled for a draft of so many tokens: XPress' head and a lattice read whole blocks.
    fn filled(&self, slots: usize) -> usize {
        if self.frozen.config.reads_whole_blocks() {
            self.frozen.config.slots()
        } else {
            slots
        }
    }

    /// What decides on the logits behind `nodes`, or behind the anchor if there are none.
    fn behind(&self, state: &mut DFlashState, tree: &Tree, nodes: &[usize]) -> Behind {
        let device = self.fc.weight.device();
        let paths = tree.paths_behind(state.anchor, nodes);
        let (count, depth) = (paths.len(), paths[0].len());
        let known = |slots: &Slots| slots.hidden.dims()[1];
        if state.slots.as_ref().map_or(0, known) < depth {
            let longest = state.planned.max(depth);
            let slots = self.fill(state, self.filled(longest));
            state.forget();
            if self.is_unsettled(longest) {
                let anchor = token_ids(&[state.anchor], &device);
                state.refined = Some(self.refined(&slots, anchor, known(&slots)));
            }
            if let Some(selector) = &self.candidate_selector {
                let logits = logits(&self.frozen.target.lm_head, slots.hidden.clone());
                state.candidates = Some(selector.candidates(logits));
            }
            state.paths = self.paths_of_block(&slots, state.before.clone());
            state.slots = Some(slots);
        }
        let Some(slots) = &state.slots else {
            unreachable!("they were just made");
        };
        let previous: Vec<u32> = match &state.refined {
            None => paths.concat(),
            Some(refined) => (paths.iter())
                .flat_map(|path| refined.before(path))
                .collect(),
        };
        Behind {
            slots: slots.first(depth).repeated(count),
            previous: token_ids(&previous, &device).reshape([count, depth]),
            last: paths.iter().map(|path| path[depth - 1]).collect(),
        }
    }

    /// The logits of the last of these slots, `[nodes, vocab]`. A token that the selector does not choose from, or through which no
    /// path goes, is at minus infinity.
    fn slot_logits(&self, state: &mut DFlashState, behind: Behind) -> Tensor<2> {
        let [count, depth, d_model] = behind.slots.hidden.dims();
        if let Some(paths) = &state.paths {
            let wanted = behind.last.iter().map(|&before| PathSlot {
                block: 0,
                slot: depth - 1,
                before,
            });
            let wanted: Vec<PathSlot> = wanted.collect();
            return paths.logits(&wanted, self.frozen.target.spec.vocab);
        }
        if let (Some(selector), Some(candidates)) = (&self.candidate_selector, &state.candidates) {
            let hidden = behind.slots.hidden.narrow(1, depth - 1, 1);
            let previous = behind.previous.narrow(1, depth - 1, 1);
            let (hidden, previous) = (hidden.reshape([count, d_model]), previous.squeeze_dim(1));
            return selector.logits(&candidates.of_slot(depth - 1, count), hidden, previous);
        }
        // The slot is the same behind all nodes of a depth.
        let shared = slot_logits(&self.guessed(state, depth), depth - 1, count);
        match &self.markov_head {
            None => shared,
            Some(markov) => {
                let states = self.markov_states(markov, &behind.slots, behind.previous);
                let states = states.narrow(1, depth - 1, 1);
                shared + markov.bias(states.squeeze_dim(1))
            }
        }
    }

    /// What the target's head makes of the slots that were filled, `depth` at least and no more than a draft has: `[slots, vocab]`.
    fn guessed(&self, state: &mut DFlashState, depth: usize) -> Tensor<2> {
        match (state.logits.take(), &state.slots) {
            (Some(known), _) if known.dims()[0] >= depth => state.logits.insert(known).clone(),
            (_, Some(slots)) => {
                // XPress' head has whole blocks filled.
                let count = state.planned.max(depth).min(slots.hidden.dims()[1]);
                let made = logits(&self.frozen.target.lm_head, slots.first(count).hidden);
                state.logits.insert(made).clone()
            }
            (_, None) => unreachable!("they were filled before"),
        }
    }

    /// The first `slots` slots.
    fn fill(&self, state: &mut DFlashState, slots: usize) -> Slots {
        let device = self.fc.weight.device();
        let first = self.frozen.config.first_slot();
        let mut tokens = vec![state.anchor];
        tokens.resize(first + slots, self.mask_token);
        let cached = state.caches.first().map_or(0, KvCache::len);
        let rotation = self.rotation(cached, tokens.len(), &device);
        let config = &self.frozen.config;
        let size = tokens.len();
        let masks = Masks::new(&config.sights(), |sight| {
            let mask = BlockLayout::decoding(cached, size, sight, &device);
            // Attention with sinks takes a mask where nothing is hidden, too.
            Some(mask).filter(|mask| config.sinks || !mask.sight().hides_nothing())
        });
        let embedded = self
            .frozen
            .target
            .embed(token_ids(&tokens, &device), &device);
        let mut stream = Stream::from(embedded);
        let layers = self.layers.iter().zip(&mut state.caches).enumerate();
        for (index, (layer, cache)) in layers {
            let mask = masks.of(index).as_ref();
            stream = layer.carry(stream, |attention, x| {
                let out = attention.forward(x, &rotation, mask, Some(cache));
                // The context stays, the block is filled anew next time.
                cache.truncate(cached);
                out
            });
        }
        let (_, last) = stream.normed(&self.norm);
        self.slots(last)
    }

    fn rotation(&self, start: usize, count: usize, device: &Device) -> crate::rope::Rotation {
        let positions = Tensor::<1, Int>::arange(start as i64..(start + count) as i64, device);
        self.frozen
            .target
            .spec
            .rotary(device)
            .at(positions.reshape([1, count]))
    }
}

//! What a drafter would propose behind every place of a text whose tokens are known, of all places at once, so that what a
//! decoder accepts can be computed without decoding. Each way is for drafters of one kind.
use std::ops::{ControlFlow, Range};

use burn::prelude::*;
use burn::tensor::DType;

use crate::draft_heads::DraftHeads;
use crate::known_text::{DraftStep, KnownText, TakeLogits};
use crate::linear::Linear;
use crate::mask::{Layout, token_ids};
use crate::of_tokens::OfTokens;
use crate::steps::Steps;
use crate::unrolled::UnrolledCache;
use crate::unrolls::Unrolls;

/// Logits that are in memory at a time.
const CHUNK: usize = 1 << 23;

/// See [`Drafter::along`](crate::drafter::Drafter::along): step by step, each for all places at once.
pub(crate) fn unrolled<D: Unrolls>(drafter: &D, text: &KnownText, take: &mut TakeLogits) {
    let features = text.features(0, text.rows());
    let device = features.last.device();
    let layout = text.layout(&device);
    // Index `t` has seen the token at `t + 1`.
    let later = text.places(1);
    let wanted: Vec<bool> = (0..text.rows()).map(|t| later.contains(&(t + 1))).collect();
    let inputs = Steps::new(drafter, text.row(&device), layout).wanted(&wanted);
    let mut cache = UnrolledCache::new(drafter.layers());
    let mut hidden = drafter.begin(&features);
    let tokens = OfTokens::embedded(inputs.embedded(hidden.dtype()));
    for step in 0..text.depth {
        let places = text.places(step);
        if places.is_empty() {
            break;
        }
        let (tokens, rotation) = inputs.inputs(step, &tokens);
        let output = drafter.output(tokens, hidden, &rotation, &inputs.mask(step), &mut cache);
        let first = match step {
            0 => places.start - 1,
            _ => inputs.picks().number(places.start - 1),
        };
        let rows: Tensor<2> = output.clone().squeeze_dim(0);
        let rows = rows.narrow(0, first, places.len());
        let width = drafter.vocabulary().len();
        let taken = hand_over(rows, (places, step), width, take, |rows| {
            drafter.read(rows.unsqueeze())
        });
        if taken.is_break() {
            return;
        }
        hidden = drafter.next(inputs.onward(step, output));
    }
}

/// See [`Drafter::along`](crate::drafter::Drafter::along), for a drafter with a head for each step.
pub(crate) fn heads<D: DraftHeads>(drafter: &D, text: &KnownText, take: &mut TakeLogits) {
    let last = text.features(0, text.rows()).last;
    let device = last.device();
    let following: Vec<_> = (1..=text.depth)
        .map(|by| text.following(by, &device))
        .collect();
    let hidden = drafter.hidden(&following, &text.layout(&device), last);
    let width = drafter.vocabulary().len();
    for (step, rows) in hidden.into_iter().enumerate() {
        let places = text.places(step);
        if places.is_empty() {
            break;
        }
        let rows = rows.narrow(0, places.start - 1, places.len());
        let head = drafter.output(step);
        let taken = hand_over(rows, (places, step), width, take, |rows| head.logits(rows));
        if taken.is_break() {
            return;
        }
    }
}

/// See [`Drafter::along`](crate::drafter::Drafter::along), for a drafter whose steps depend on the tokens before and on nothing else: what its head reads
/// behind every token.
///
/// # Shapes
/// - output of `hidden`: `[1, rows, d_model]`, from `[1, rows]`
pub(crate) fn by_text(
    text: &KnownText,
    head: &Linear,
    take: &mut TakeLogits,
    hidden: impl FnOnce(Tensor<2, Int>, &Layout) -> Tensor<3>,
) {
    let device = head.weight.device();
    let hidden: Tensor<2> = hidden(text.row(&device), &text.layout(&device)).squeeze_dim(0);
    let width = head.weight.dims()[1];
    for step in 0..text.depth {
        let places = text.places(step);
        if places.is_empty() {
            break;
        }
        let rows = hidden.clone().narrow(0, places.start + step, places.len());
        let taken = hand_over(rows, (places, step), width, take, |rows| {
            let logits: Tensor<3> = head.forward(rows.unsqueeze());
            logits.cast(DType::F32).squeeze_dim(0)
        });
        if taken.is_break() {
            return;
        }
    }
}

/// The tokens of a text up to a group of places and, behind each of these, masks: a tree of which the text is the trunk. The tokens
/// up to the group before it are cached by then.
pub(crate) struct Branches {
    /// Tokens before the first node.
    pub(crate) cached: usize,
    /// Nodes that are tokens, which come first; caches keep these alone.
    pub(crate) trunk: usize,
    /// The parent of each node.
    pub(crate) parents: Vec<Option<usize>>,
    /// The token of each node; `None` for a mask.
    pub(crate) tokens: Vec<Option<u32>>,
    /// Where the last token stands that each node has seen.
    pub(crate) seen: Vec<usize>,
    /// The steps whose tokens are known, and the node behind which each is drafted.
    steps: Vec<(DraftStep, usize)>,
}

impl Branches {
    /// The trunk begins with the token at `from`, behind `cached` others.
    fn new(text: &KnownText, (from, cached): (usize, usize), places: &[usize]) -> Self {
        let last = places.iter().max().map_or(from, |&place| place + 1);
        let trunk = text.tokens[from..last].iter().copied();
        let mut branches = Self {
            cached,
            trunk: last - from,
            parents: (from..last).map(|at| at.checked_sub(from + 1)).collect(),
            tokens: trunk.map(Some).collect(),
            seen: (from..last).collect(),
            steps: Vec::new(),
        };
        for &place in places {
            let mut node = place - from;
            for step in 0..text.known(place) {
                if step > 0 {
                    branches.parents.push(Some(node));
                    branches.tokens.push(None);
                    branches.seen.push(place);
                    node = branches.parents.len() - 1;
                }
                branches.steps.push((DraftStep { place, step }, node));
            }
        }
        branches
    }

    /// The ids of all nodes, `[1, nodes]`.
    pub(crate) fn ids(&self, mask_token: u32, device: &Device) -> Tensor<2, Int> {
        let ids = self.tokens.iter().map(|token| token.unwrap_or(mask_token));
        token_ids(&ids.collect::<Vec<u32>>(), device)
    }
}

/// See [`Drafter::along`](crate::drafter::Drafter::along), for a drafter whose later steps are masks that see the text before them and the masks of their own
/// draft: what its head, of `width` tokens, reads at the nodes, `[1, nodes, d_model]`, of which the first is the token at `from`.
pub(crate) fn masked(
    text: &KnownText,
    (from, width): (usize, usize),
    take: &mut TakeLogits,
    mut nodes: impl FnMut(&Branches) -> Tensor<3>,
    logits: impl Fn(Tensor<2>) -> Tensor<2>,
) {
    let mut cached = 0;
    for places in text.groups() {
        let branches = Branches::new(text, (from + cached, cached), &places);
        cached += branches.trunk;
        let hidden: Tensor<2> = nodes(&branches).squeeze_dim(0);
        let read: Vec<i64> = (branches.steps.iter())
            .map(|&(_, node)| node as i64)
            .collect();
        let read = Tensor::<1, Int>::from_ints(read.as_slice(), &hidden.device());
        let steps: Vec<DraftStep> = branches.steps.iter().map(|&(step, _)| step).collect();
        let rows = hidden.select(0, read);
        let taken = in_chunks(&steps, width, take, &|of| logits(part(&rows, of)));
        if taken.is_break() {
            return;
        }
    }
}

/// Gives `take` the logits of a step behind `places`, of which each has a row, some at a time. Returns whether others are wanted.
fn hand_over(
    rows: Tensor<2>,
    (places, step): (Range<usize>, usize),
    width: usize,
    take: &mut TakeLogits,
    logits: impl Fn(Tensor<2>) -> Tensor<2>,
) -> ControlFlow<()> {
    let steps: Vec<_> = places.map(|place| DraftStep { place, step }).collect();
    in_chunks(&steps, width, take, &|of| logits(part(&rows, of)))
}

/// Gives `take` the logits, each `width` wide, of steps, some at a time: those of so many of them side by side. None are made once it
/// wants no others, which is returned.
pub(crate) fn in_chunks(
    steps: &[DraftStep],
    width: usize,
    take: &mut TakeLogits,
    logits: &dyn Fn(Range<usize>) -> Tensor<2>,
) -> ControlFlow<()> {
    let chunk = rows_at_a_time(width);
    for (number, steps) in steps.chunks(chunk).enumerate() {
        let start = number * chunk;
        take(steps, logits(start..start + steps.len()))?;
    }
    ControlFlow::Continue(())
}

/// Some of the rows of a tensor, side by side.
pub(crate) fn part(rows: &Tensor<2>, of: Range<usize>) -> Tensor<2> {
    rows.clone().narrow(0, of.start, of.len())
}

/// Rows of logits, each `width` wide, that are in memory at a time.
pub(crate) fn rows_at_a_time(width: usize) -> usize {
    (CHUNK / width.max(1)).max(1)
}

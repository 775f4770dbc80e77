//! What a drafter that is unrolled on its own hidden states reads beside them.
use burn::prelude::*;
use burn::tensor::DType;

use crate::mask::{Layout, Mask};
use crate::of_tokens::OfTokens;
use crate::picks::Picks;
use crate::rope::{Rope, Rotation};
use crate::target::TargetParts;
use crate::unrolls::{Unrolls, blank_at_start};

/// What a drafter unrolled over packed rows reads at each step beside hidden states: at step `j`, index `t` reads the
/// token `x_{t+1+j}`. The keys of step 0 are seen from other indices, those of later steps from their own alone: so later steps need
/// not run where nothing is [wanted](Self::wanted) of them.
pub struct Steps<'a> {
    target: &'a TargetParts,
    tokens: Tensor<2, Int>,
    layout: Layout,
    /// Of step 0.
    mask: Mask,
    /// Everywhere, where step 0 runs.
    all: Picks,
    /// Where the later steps run.
    picks: Picks,
    /// Of the later steps, where there is no window.
    later_mask: Mask,
    /// How many positions back a query sees, the own one counted.
    window: Option<usize>,
    /// Whether the first position of a text reads zeros.
    starts_blank: bool,
    /// Dimensions of a head that turn.
    turned: usize,
}

impl<'a> Steps<'a> {
    /// What `drafter` reads of rows of tokens.
    ///
    /// # Shapes
    /// - tokens: `[batch, seq]`
    pub fn new(drafter: &'a impl Unrolls, tokens: Tensor<2, Int>, layout: Layout) -> Self {
        let window = drafter.sees_back();
        let mask = layout.mask(window);
        let all = Picks::all(tokens.dims(), &tokens.device());
        Self {
            target: drafter.target(),
            tokens,
            later_mask: mask.clone(),
            mask,
            picks: all.clone(),
            all,
            layout,
            window,
            starts_blank: drafter.starts_blank(),
            turned: drafter.turned(),
        }
    }

    /// The same where of steps behind step 0 only some places of the batch are wanted, `[batch * seq]` flags. The others may be left
    /// out from step 1 on, of the hidden states that it reads and of all that comes of them.
    pub fn wanted(self, wanted: &[bool]) -> Self {
        let [_, seq] = self.tokens.dims();
        let picks = Picks::of(wanted, seq, &self.device());
        Self {
            later_mask: picks.mask(&self.mask),
            picks,
            ..self
        }
    }

    /// Where the steps behind step 0 run.
    pub fn picks(&self) -> &Picks {
        &self.picks
    }

    /// What the step behind `step` reads of hidden states that this one has. `[batch, seq, d_model]`
    pub fn onward(&self, step: usize, hidden: Tensor<3>) -> Tensor<3> {
        match step {
            0 => self.picks.states(hidden),
            _ => hidden,
        }
    }

    /// The same outside of any graph.
    pub fn without_autodiff(&self) -> Self {
        let layout = self.layout.moved(Tensor::without_autodiff);
        let device = layout.positions.device();
        Self {
            target: self.target,
            tokens: self.tokens.clone().without_autodiff(),
            mask: self.mask.on(&device),
            all: self.all.without_autodiff(),
            picks: self.picks.without_autodiff(),
            later_mask: self.later_mask.on(&device),
            layout,
            ..*self
        }
    }

    /// Where the batch is, and in which graph.
    pub fn device(&self) -> Device {
        self.tokens.device()
    }

    /// The keys of step 0 that step `step` sees.
    pub fn mask(&self, step: usize) -> Mask {
        match self.window {
            _ if step == 0 => self.mask.clone(),
            None => self.later_mask.clone(),
            // At index `t` of step `j` stands position `t + j`.
            Some(window) => {
                let mask = self.layout.mask(Some(window.saturating_sub(step)));
                self.picks.mask(&mask)
            }
        }
    }

    /// The embeddings of all tokens. `[batch, seq, d_model]`
    pub fn embedded(&self, dtype: DType) -> Tensor<3> {
        let embedded = self.target.embed(self.tokens.clone(), &self.device());
        embedded.cast(dtype)
    }

    /// What a step reads of tokens, of which `all` is what the drafter makes of those of the batch, and where they stand.
    pub fn inputs(&self, step: usize, all: &OfTokens) -> (OfTokens, Rotation) {
        let picks = if step == 0 { &self.all } else { &self.picks };
        let positions = picks.ids(self.layout.positions.clone());
        let is_blank = self.starts_blank && step == 0;
        let blank = |read: Tensor<3>| match is_blank {
            true => blank_at_start(read, positions.clone()),
            false => read,
        };
        let read = picks.states_behind(&all.states, 1 + step);
        let tokens = OfTokens {
            states: read.into_iter().map(blank).collect(),
            weights: all.weights.clone(),
        };
        let rope = Rope::new(&self.target.spec.rope, self.turned, &self.device());
        (tokens, rope.at(positions + step as i64))
    }
}

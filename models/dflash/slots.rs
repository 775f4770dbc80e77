//! The slots of blocks, before it is known what stands in them.
use burn::prelude::*;

/// The slots of some blocks.
#[derive(Debug, Clone)]
pub struct Slots {
    /// What the target's head reads. `[blocks, slots, d_model]`
    pub hidden: Tensor<3>,
    /// What XPress' head reads of all places of the blocks, their anchors' first, where there is one. `[blocks, 1 + slots, 2 * rank]`
    pub(super) places: Option<Tensor<3>>,
    /// The token before each anchor, which XPress' head reads too. `[blocks, 1]`. Without it the anchor stands in for it, as it does
    /// in vLLM, which keeps no earlier token.
    pub earlier: Option<Tensor<2, Int>>,
}

impl Slots {
    /// What the target's head reads of them and, beside it, what the bias is made of, `[blocks, slots, rank]`.
    pub(super) fn beside(&self, states: Tensor<3>) -> Tensor<3> {
        Tensor::cat(vec![self.hidden.clone(), states], 2)
    }

    /// The first `count` slots of each block.
    pub(super) fn first(&self, count: usize) -> Self {
        Self {
            hidden: self.hidden.clone().narrow(1, 0, count),
            places: (self.places.clone()).map(|places| places.narrow(1, 0, 1 + count)),
            earlier: self.earlier.clone(),
        }
    }

    /// `count` blocks, from the one at `start` on.
    pub(super) fn of_blocks(&self, start: usize, count: usize) -> Self {
        let cut = |x: &Tensor<3>| x.clone().narrow(0, start, count);
        Self {
            hidden: cut(&self.hidden),
            places: self.places.as_ref().map(cut),
            earlier: (self.earlier.clone()).map(|earlier| earlier.narrow(0, start, count)),
        }
    }

    /// One block so many times, with its anchor in place of the token before it.
    pub(super) fn repeated(&self, times: usize) -> Self {
        let repeat = |x: &Tensor<3>| {
            let [_, places, width] = x.dims();
            x.clone().expand([times, places, width])
        };
        Self {
            hidden: repeat(&self.hidden),
            places: self.places.as_ref().map(repeat),
            earlier: None,
        }
    }

    /// The same outside of any graph.
    pub fn without_graph(self) -> Self {
        Self {
            hidden: self.hidden.without_autodiff(),
            places: self.places.map(Tensor::without_autodiff),
            earlier: self.earlier.map(Tensor::without_autodiff),
        }
    }
}

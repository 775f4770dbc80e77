use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use spectrain_checkpoints::Mismatch;

use super::lattice_table::LatticeTable;
use crate::blocks::BlockSight;
use crate::bounds::{self, Bounded};
use crate::error::{Error, Result};
use crate::target::TargetSpec;

/// What the layers read of what was before a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Context {
    /// The target's hidden states.
    #[default]
    Features,
    /// Only the embeddings of the tokens, to measure what the hidden states contribute. No engine loads such a drafter.
    Tokens,
}

/// What a slot's logits take from the token before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MarkovKind {
    /// The token before the slot.
    #[default]
    Vanilla,
    /// The token before the slot, and the slot's hidden state.
    Gated,
    /// All tokens of the block before the slot.
    Rnn,
    /// All tokens of the block before the slot, by the target's embeddings of them, and the slot's hidden state (Domino).
    Domino,
    /// All tokens of the block before the slot, the hidden states of their slots and of the slot, and the mean of those of the
    /// block (XPress). The draft is guessed at once, and refined in `markov_passes`.
    Xpress,
}

/// The `[drafter]` table of a DFlash recipe. Every key but `mask_token` may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DFlashConfig {
    /// What the layers read of the text before a block.
    pub context: Context,
    /// The layers whose output the drafter reads, 0-based and ascending. Empty takes the authors' five, evenly spaced from
    /// layer 1 to layers − 3.
    pub captured_layers: Vec<usize>,
    /// Decoder layers of the drafter.
    pub layers: usize,
    /// Tokens in a block, including the last committed one. A decoder may use shorter blocks, but not longer ones.
    pub block_size: usize,
    /// Required. The id of a token that occurs in no text; it stands for tokens still to come. The authors use 151669 for
    /// Qwen3.
    pub mask_token: Option<u32>,
    /// How many positions back a layer sees, including its own; 0 sees all.
    pub window: usize,
    /// Layers of the drafter that see all positions although `window` is set, 0-based and ascending. z-lab's drafters for
    /// Qwen3.6 have one, the last.
    pub full_layers: Vec<usize>,
    /// Whether a position of a block sees only the positions before it in the block (JetSpec).
    pub causal: bool,
    /// Whether `causal` leaves out `full_layers`, in which a position then sees its whole block. Engines and trainers take
    /// drafters to be like that, `causal` and this, if some layers have a window and their folder says no more.
    pub full_layers_see_block: bool,
    /// Whether each head has a score of its own that takes weight from what it sees and gives nothing, so that a head may
    /// read little where there is little to read (attention sinks). Of the engines, only vLLM was seen to load it; SGLang 0.5.23
    /// has the same key.
    pub sinks: bool,
    /// Width inside the feed-forward part; 0 takes the target's.
    pub d_ff: usize,
    /// Query heads; 0 takes as many, up to the target's, as divide the width.
    pub heads: usize,
    /// Key and value heads; 0 takes as many of the target's as divide `heads`.
    pub kv_heads: usize,
    /// Width of a head, an even number; left out, or 0, it is the target's. Engines' kernels take multiples of 8 from 32 to 256.
    #[serde(skip_serializing_if = "bounds::is_left_out")]
    pub d_head: usize,
    /// Whether the anchor's own position also predicts a token, so that a draft has as many tokens as a block (DSpark).
    pub sample_from_anchor: bool,
    /// Positions that the convolutions around the attention and feed-forward parts read; DFlash 2 uses 2, 0 leaves the
    /// convolutions out.
    pub conv_taps: usize,
    /// Channels in a group; a position changes the kernel of a convolution in the same way for all channels of a group.
    pub conv_group: usize,
    /// Width of the selector's codes; DFlash 2 uses 256, 0 leaves the selector out.
    pub selector_rank: usize,
    /// Candidates from which the selector chooses in each slot.
    pub selector_top_k: usize,
    /// Width of the codes of the bias that depends on the tokens before (see `markov`); DSpark, Domino and XPress use 256, 0
    /// leaves the bias out.
    pub markov_rank: usize,
    /// What that bias reads. llama.cpp loads only `"vanilla"`, vLLM that and `"xpress"`, SGLang all but `"xpress"`.
    pub markov: MarkovKind,
    /// With `"domino"`, and only there: width of the recurrent unit over the embeddings of the tokens.
    pub markov_state: usize,
    /// With `"domino"`, and only there: slots before the first that has a bias. SGLang loads only 1.
    pub markov_from: usize,
    /// With `"xpress"`, and only there: width inside the feed-forward part behind the codes; twice `markov_rank` where it is left
    /// out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub markov_d_ff: Option<usize>,
    /// With `"xpress"`, and only there: passes in which a draft is refined, 6 where it is left out. Each reads the tokens that the
    /// one before has made, so the first tokens of a draft, as many as passes, are those that it would have one after the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub markov_passes: Option<usize>,
    /// Whether a head guesses how likely the target is to keep a slot's token (DSpark). Drafts of the shape `"confident"` use
    /// this guess to stop early.
    pub confidence: bool,
    /// Paths through the likeliest tokens of all slots, scored at once, of which the best is drafted (LiLiCorr). With convolutions or
    /// without; there is none beside a selector, a bias, a guess how likely a draft is kept, or `sample_from_anchor`.
    pub lattice: Option<LatticeTable>,
}

impl Default for DFlashConfig {
    fn default() -> Self {
        Self {
            context: Context::default(),
            captured_layers: Vec::new(),
            layers: 5,
            block_size: 16,
            mask_token: None,
            window: 0,
            full_layers: Vec::new(),
            causal: false,
            full_layers_see_block: false,
            sinks: false,
            d_ff: 0,
            heads: 0,
            kv_heads: 0,
            d_head: 0,
            sample_from_anchor: false,
            conv_taps: 0,
            conv_group: 16,
            selector_rank: 0,
            selector_top_k: 16,
            markov_rank: 0,
            markov: MarkovKind::default(),
            markov_state: 1024,
            markov_from: 1,
            markov_d_ff: None,
            markov_passes: None,
            confidence: false,
            lattice: None,
        }
    }
}

/// [`DFlashConfig::markov_passes`] where nothing is said, as in the speculators library.
const PASSES: usize = 6;

impl DFlashConfig {
    /// Fails on numbers that make no sense for any target.
    pub(super) fn check(&self) -> Result<()> {
        bounds::check([
            bounds::up_to("layers", self.layers, bounds::LAYERS),
            Bounded {
                key: "block_size",
                value: self.block_size,
                bounds: 2..=bounds::DRAFT,
            },
            bounds::or_none("window", self.window, bounds::TEXT),
            bounds::or_none("d_ff", self.d_ff, bounds::FEED_FORWARD),
            bounds::or_none("heads", self.heads, bounds::HEADS),
            bounds::or_none("kv_heads", self.kv_heads, bounds::HEADS),
            bounds::or_none("conv_taps", self.conv_taps, bounds::DRAFT),
            bounds::or_none("conv_group", self.conv_group, bounds::WIDTH),
            bounds::or_none("selector_rank", self.selector_rank, bounds::RANK),
            bounds::or_none("selector_top_k", self.selector_top_k, bounds::RANK),
            bounds::or_none("markov_rank", self.markov_rank, bounds::RANK),
            bounds::up_to("markov_state", self.markov_state, bounds::WIDTH),
            bounds::or_none("markov_from", self.markov_from, bounds::DRAFT),
        ])?;
        bounds::check_heads("d_head", self.d_head)?;
        let d_ff = self.markov_d_ff;
        let d_ff = d_ff.map(|d_ff| bounds::up_to("markov_d_ff", d_ff, bounds::FEED_FORWARD));
        let passes = self.markov_passes;
        let passes = passes.map(|passes| bounds::up_to("markov_passes", passes, bounds::DRAFT));
        bounds::check(d_ff.into_iter().chain(passes))?;
        self.check_full_layers()?;
        self.check_of_kinds()?;
        self.check_refined()?;
        self.lattice
            .as_ref()
            .map_or(Ok(()), |lattice| self.check_beside(lattice))
    }

    /// Fails on a lattice that makes no sense, and on what it is not known with.
    fn check_beside(&self, lattice: &LatticeTable) -> Result<()> {
        lattice.check()?;
        let others = [
            ("selector_rank", self.selector_rank > 0),
            ("markov_rank", self.markov_rank > 0),
            ("confidence", self.confidence),
            ("sample_from_anchor", self.sample_from_anchor),
        ];
        match others.into_iter().find(|(_, is_on)| *is_on) {
            None => Ok(()),
            Some((key, _)) => {
                let expected = "nothing beside `lattice`, which is not known with it";
                Err(Error::of_key(key, expected, "one"))
            }
        }
    }

    /// Checks what is set of the bias of XPress and no other bias reads. What only that of Domino reads has a default and may be in runs
    /// of before, so it is taken beside any.
    fn check_of_kinds(&self) -> Result<()> {
        for (key, size) in [
            ("markov_d_ff", self.markov_d_ff),
            ("markov_passes", self.markov_passes),
        ] {
            if let Some(size) = size.filter(|_| self.markov != MarkovKind::Xpress) {
                let expected = "no such key where `markov` is not `\"xpress\"`";
                return Err(Error::Drafter {
                    key,
                    mismatch: Mismatch::new(expected, size),
                });
            }
        }
        Ok(())
    }

    /// Checks what the bias of XPress is not known with.
    fn check_refined(&self) -> Result<()> {
        let others = [
            ("sample_from_anchor", self.sample_from_anchor),
            ("confidence", self.confidence),
        ];
        let refines = self.markov == MarkovKind::Xpress;
        match others.into_iter().find(|(_, is_on)| refines && *is_on) {
            None => Ok(()),
            Some((key, _)) => Err(Error::Drafter {
                key,
                mismatch: Mismatch::new("false where `markov` is `\"xpress\"`", true),
            }),
        }
    }

    /// Checks which layers have no window.
    fn check_full_layers(&self) -> Result<()> {
        let problem = |key, expected: String, got: String| {
            Err(Error::Drafter {
                key,
                mismatch: Mismatch::new(expected, got),
            })
        };
        let full = &self.full_layers;
        let got = || format!("{full:?}");
        if !full.is_empty() && self.window == 0 {
            let expected = "none where `window` is 0, as all layers see everything".into();
            return problem("full_layers", expected, got());
        }
        let known = full.iter().all(|&layer| layer < self.layers);
        if !known || !full.is_sorted_by(|a, b| a < b) {
            let expected = format!("ascending layers below {}", self.layers);
            return problem("full_layers", expected, got());
        }
        if !full.is_empty() && full.len() == self.layers {
            let expected = "not all layers, for which `window` is 0".into();
            return problem("full_layers", expected, got());
        }
        if self.full_layers_see_block && (!self.causal || full.is_empty()) {
            let expected = "false without `causal` or without `full_layers`".into();
            return problem("full_layers_see_block", expected, "true".into());
        }
        Ok(())
    }

    /// What the places of a block see in each layer.
    pub fn sights(&self) -> Vec<BlockSight> {
        let of_layer = |layer| {
            let full = self.full_layers.contains(&layer);
            BlockSight {
                causal: self.causal && !(full && self.full_layers_see_block),
                window: (self.window > 0 && !full).then_some(self.window),
            }
        };
        (0..self.layers).map(of_layer).collect()
    }

    /// With the sizes that were left out taken from the target.
    pub(super) fn resolve(&self, target: &TargetSpec) -> Result<Self> {
        let [d_ff, heads, kv_heads] = target.layer_sizes(self.d_ff, self.heads, self.kv_heads)?;
        let problem = |key, expected: String, got: String| Error::Drafter {
            key,
            mismatch: Mismatch::new(expected, got),
        };
        self.check()?;
        self.check_parts(target)?;
        let captured_layers = match (self.context, self.captured_layers.is_empty()) {
            (Context::Tokens, true) => Vec::new(),
            (Context::Tokens, false) => {
                let expected = "none where `context` is `\"tokens\"`".into();
                let got = format!("{:?}", self.captured_layers);
                return Err(problem("captured_layers", expected, got));
            }
            (Context::Features, true) => spread(target.layers),
            (Context::Features, false) => self.captured_layers.clone(),
        };
        let known = captured_layers.iter().all(|&layer| layer < target.layers);
        if !known || !captured_layers.is_sorted_by(|a, b| a < b) {
            let expected = format!("ascending layers below {}", target.layers);
            return Err(problem(
                "captured_layers",
                expected,
                format!("{captured_layers:?}"),
            ));
        }
        self.known_mask_token(target)?;
        Ok(Self {
            captured_layers,
            d_ff,
            heads,
            kv_heads,
            markov_d_ff: self.refines().then(|| self.refiner_width()),
            markov_passes: self.refines().then(|| self.refining_passes()),
            lattice: (self.lattice.as_ref())
                .map(|lattice| lattice.resolve(target))
                .transpose()?,
            ..self.clone()
        })
    }

    /// Checks the parts of DFlash 2, DSpark, Domino and XPress.
    fn check_parts(&self, target: &TargetSpec) -> Result<()> {
        let problem = |key, expected: String, got: String| {
            Err(Error::Drafter {
                key,
                mismatch: Mismatch::new(expected, got),
            })
        };
        if self.conv_taps > self.block_size {
            let expected = format!("at most the {} tokens of a block", self.block_size);
            return problem("conv_taps", expected, self.conv_taps.to_string());
        }
        let convolved = self.conv_taps > 0;
        if convolved && (self.conv_group == 0 || !target.d_model.is_multiple_of(self.conv_group)) {
            let expected = format!("a divisor of the target's width {}", target.d_model);
            return problem("conv_group", expected, self.conv_group.to_string());
        }
        let selects = self.selector_rank > 0;
        if selects && !(1..=target.vocab).contains(&self.selector_top_k) {
            let expected = format!("1 to {}, the number of the target's tokens", target.vocab);
            return problem("selector_top_k", expected, self.selector_top_k.to_string());
        }
        if self.selector_rank > 0 && self.markov_rank > 0 {
            let expected = "0 where there is a selector".into();
            return problem("markov_rank", expected, self.markov_rank.to_string());
        }
        if self.markov != MarkovKind::Vanilla && self.markov_rank == 0 {
            let expected = "`\"vanilla\"` where `markov_rank` is 0".into();
            let got = serde_json::json!(self.markov).to_string();
            return problem("markov", expected, format!("`{got}`"));
        }
        if self.markov == MarkovKind::Domino && self.markov_from >= self.slots() {
            let expected = format!("less than the {} slots of a block", self.slots());
            return problem("markov_from", expected, self.markov_from.to_string());
        }
        Ok(())
    }

    /// Whether a draft is guessed at once and then refined in passes.
    pub fn refines(&self) -> bool {
        self.markov_rank > 0 && self.markov == MarkovKind::Xpress
    }

    /// Whether what drafts reads whole blocks, however many of their slots are asked for.
    pub fn reads_whole_blocks(&self) -> bool {
        self.refines() || self.lattice.is_some()
    }

    /// Passes in which a draft is refined, where drafts are.
    pub fn refining_passes(&self) -> usize {
        self.markov_passes.unwrap_or(PASSES)
    }

    /// Width inside the feed-forward part of what refines drafts, where there is one.
    pub fn refiner_width(&self) -> usize {
        self.markov_d_ff.unwrap_or(2 * self.markov_rank)
    }

    /// Tokens of a draft, at most.
    pub fn slots(&self) -> usize {
        self.block_size - self.first_slot()
    }

    /// The place in a block of the one that predicts the token behind the anchor.
    pub fn first_slot(&self) -> usize {
        usize::from(!self.sample_from_anchor)
    }

    /// Width of the codes of tokens that a guess reads.
    pub(super) fn code_width(&self) -> usize {
        match self.markov {
            MarkovKind::Domino => 0,
            _ => self.markov_rank,
        }
    }

    /// Width of what the context is made of; sizes are resolved.
    pub(super) fn context_width(&self, target: &TargetSpec) -> usize {
        match self.context {
            Context::Features => self.captured_layers.len() * target.d_model,
            Context::Tokens => target.d_model,
        }
    }

    pub(super) fn known_mask_token(&self, target: &TargetSpec) -> Result<u32> {
        let known = self
            .mask_token
            .filter(|&token| (token as usize) < target.vocab);
        known.ok_or_else(|| Error::Drafter {
            key: "mask_token",
            mismatch: Mismatch::new(
                format!(
                    "the id of a token that no text holds, below {}",
                    target.vocab
                ),
                self.mask_token
                    .map_or("none".into(), |token| token.to_string()),
            ),
        })
    }
}

/// Five layers, evenly from the second to the third before the last, as in the authors' code; all of a target that has no
/// more than those.
fn spread(layers: usize) -> Vec<usize> {
    const COUNT: usize = 5;
    if layers < COUNT + 3 {
        return (0..layers).collect();
    }
    let last = layers - 3;
    // Rounded half to even, as Python does; no half falls on an odd quotient for the models in use.
    let place = |index: usize| 1.0 + (index * (last - 1)) as f64 / (COUNT - 1) as f64;
    (0..COUNT)
        .map(|index| place(index).round_ties_even() as usize)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_without_a_window_see_their_whole_block_where_they_are_to() {
        let config = DFlashConfig {
            layers: 3,
            window: 8,
            full_layers: vec![2],
            causal: true,
            full_layers_see_block: true,
            ..Default::default()
        };
        config.check().unwrap();
        let sight = |causal, window| BlockSight { causal, window };
        assert_eq!(
            config.sights(),
            [
                sight(true, Some(8)),
                sight(true, Some(8)),
                sight(false, None)
            ]
        );
        let all_causal = DFlashConfig {
            full_layers_see_block: false,
            ..config
        };
        assert_eq!(all_causal.sights()[2], sight(true, None));
    }

    #[test]
    fn full_layers_that_make_no_sense_are_refused() {
        let refused = |window, full_layers: &[usize], causal, full_layers_see_block| {
            let config = DFlashConfig {
                layers: 3,
                window,
                full_layers: full_layers.to_vec(),
                causal,
                full_layers_see_block,
                ..Default::default()
            };
            config.check().unwrap_err().to_string()
        };
        for (error, part) in [
            (refused(0, &[2], false, false), "`window` is 0"),
            (refused(8, &[3], false, false), "ascending layers below 3"),
            (
                refused(8, &[2, 1], false, false),
                "ascending layers below 3",
            ),
            (refused(8, &[0, 1, 2], false, false), "not all layers"),
            (refused(8, &[2], false, true), "without `causal`"),
            (refused(8, &[], true, true), "without `full_layers`"),
        ] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn what_the_bias_of_xpress_is_not_known_with_is_refused_by_its_key() {
        let xpress = DFlashConfig {
            markov_rank: 4,
            markov: MarkovKind::Xpress,
            ..Default::default()
        };
        xpress.check().unwrap();
        let from_anchor = DFlashConfig {
            sample_from_anchor: true,
            ..xpress.clone()
        };
        let sure = DFlashConfig {
            confidence: true,
            ..xpress.clone()
        };
        let without_passes = DFlashConfig {
            markov_passes: Some(0),
            ..xpress.clone()
        };
        let without_width = DFlashConfig {
            markov_d_ff: Some(0),
            ..xpress
        };
        // What only XPress has.
        let other = DFlashConfig {
            markov_rank: 4,
            ..Default::default()
        };
        let passes = DFlashConfig {
            markov_passes: Some(6),
            ..other.clone()
        };
        let width = DFlashConfig {
            markov_d_ff: Some(8),
            ..other
        };
        for (key, config) in [
            ("sample_from_anchor", from_anchor),
            ("confidence", sure),
            ("markov_passes", without_passes),
            ("markov_d_ff", without_width),
            ("markov_passes", passes),
            ("markov_d_ff", width),
        ] {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(&format!("{key}`")), "{error}");
        }
    }

    /// What identifies a run that has begun is made of the keys: it may not get one more.
    #[test]
    fn only_xpress_has_its_keys() {
        let keys = |config: &DFlashConfig| {
            let written = serde_json::to_value(config).unwrap();
            ["markov_d_ff", "markov_passes"].map(|key| written.get(key).cloned())
        };
        let domino = DFlashConfig {
            markov_rank: 4,
            markov: MarkovKind::Domino,
            ..Default::default()
        };
        for config in [DFlashConfig::default(), domino] {
            assert_eq!(keys(&config), [None, None]);
        }
        let refined = DFlashConfig {
            markov_rank: 4,
            markov: MarkovKind::Xpress,
            markov_passes: Some(2),
            ..Default::default()
        };
        assert_eq!(keys(&refined), [None, Some(serde_json::json!(2))]);
    }

    #[test]
    fn beside_a_lattice_nothing_else_decides_on_drafts() {
        let with = |change: fn(&mut DFlashConfig)| {
            let mut config = DFlashConfig {
                lattice: Some(LatticeTable::default()),
                conv_taps: 2,
                ..Default::default()
            };
            change(&mut config);
            config.check()
        };
        with(|_| ()).unwrap();
        /// The key that is refused, and the change that makes it so.
        type Wrong = (&'static str, fn(&mut DFlashConfig));
        let wrong: [Wrong; 5] = [
            ("selector_rank", |of| of.selector_rank = 4),
            ("markov_rank", |of| of.markov_rank = 4),
            ("confidence", |of| of.confidence = true),
            ("sample_from_anchor", |of| of.sample_from_anchor = true),
            ("lattice.top_k", |of| of.lattice.as_mut().unwrap().top_k = 0),
        ];
        for (key, change) in wrong {
            let error = with(change).unwrap_err().to_string();
            assert!(error.contains(&format!("{key}`")), "{error}");
        }
    }

    #[test]
    fn captured_layers_are_those_of_the_authors() {
        assert_eq!(spread(36), [1, 9, 17, 25, 33]);
        assert_eq!(spread(24), [1, 6, 11, 16, 21]);
        assert_eq!(spread(8), [1, 2, 3, 4, 5]);
        assert_eq!(spread(4), [0, 1, 2, 3]);
    }
}

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_models::bounds;

use super::cover::BlockMasking;
use super::paths_config::PathLossConfig;
use crate::batch::Step;
use crate::divergence::Divergence;
use crate::error::{Error, Result};
use crate::weight::{Course, Weight, changing};

/// The `[objective]` table of a DFlash recipe. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BlockLossConfig {
    /// The most blocks in a row of `data.max_length` tokens.
    pub anchors: usize,
    /// Where the blocks are placed.
    pub placement: Anchors,
    /// Which tokens of a block are masked. `recipe = "dflash-deer"` has no such key, as its stages decide on it.
    pub masking: BlockMasking,
    /// Factor on the cross-entropy with the text.
    pub label_weight: Weight,
    /// Factor on the divergence from the target's distribution; with `divergence = "ce"` the label is the target's most
    /// likely token.
    pub teacher_weight: Weight,
    /// The divergence from the target's distribution.
    pub divergence: Divergence,
    /// How much each slot *k*, counted from 0, counts in the loss. Validations weigh slots by `"exponential"` in place of
    /// `"d_pace"` and `"auf"`, with which a better drafter may have a larger loss. `recipe = "dflash-deer"` has no such key, as its
    /// stages decide on it, and neither `decay_slots` nor `certainty`.
    pub slot_weights: SlotWeights,
    /// Slots over which exponential weights fall to 1/e; 0 takes the authors' values: 4 for up to 8 slots, 5 for up to 12, 7
    /// beyond.
    pub decay_slots: f64,
    /// With `"rising"` weights: ratio of a slot's weight to that of the slot after it; 1.05 diverged for the authors of DEER.
    pub growth: f64,
    /// With `"d_pace"` weights: each probability `q` is replaced by `(1 - certainty) q + certainty`.
    pub certainty: f64,
    /// Whether the sum of the losses is divided by the number of slots that count, as in speculators, and not by the sum of
    /// their weights.
    pub divide_by_count: bool,
    /// Factor on the cross-entropy of the path selector, if the drafter has one.
    pub selector_weight: Weight,
    /// Whether the text's token replaces the least likely candidate in slots where it is not a candidate (speculators,
    /// TorchSpec); otherwise the selector learns nothing from such slots (SpecForge, NeMo, ModelOpt). Validations always do so.
    pub inject: bool,
    /// Factor on the cross-entropy of the confidence head, if the drafter has one.
    pub confidence_weight: Weight,
    /// Share of the loss that judges the slots without what the tokens before them add, if the drafter has such a bias
    /// (`markov_rank`). A number is the share in the first step, which falls linearly to 0, so that layers learn before the bias
    /// does; Domino uses 1. A table says itself how the share changes.
    pub base_weight: Weight,
    /// The part of the training's steps in which a number `base_weight` falls to 0; a table has its own `until` instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_until: Option<f64>,
    /// With `markov = "xpress"`, and nowhere else: factor on the mean loss of the slots behind tokens that the drafter has drafted
    /// itself, in place of the text's; 0.3 where it is left out. There is none with `masking = "some"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consistency_weight: Option<Weight>,
    /// How many such losses there are, 3 where it is left out: the first is behind what is guessed at once, each further one behind
    /// what another pass makes of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consistency_passes: Option<usize>,
    /// With `markov = "xpress"`, and nowhere else: factor on the loss of what is guessed at once, without the bias, so that guesses
    /// stay good while the layers learn to serve the passes; 0.6 where it is left out. There is none with `masking = "some"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guess_weight: Option<Weight>,
    /// With a table `lattice` of the drafter, and nowhere else: the loss of its lattice, which is as by default where this is left out.
    /// There is none with `masking = "some"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths: Option<PathLossConfig>,
}

/// Where blocks stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Anchors {
    /// At random positions in replies, drawn anew for each step.
    Random,
    /// One after the other, from the start of each reply.
    Chunks,
}

/// How much each slot counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SlotWeights {
    /// `exp(-k / decay_slots)` (DFlash).
    Exponential,
    /// All slots count the same.
    Uniform,
    /// `growth` to the power of the number of slots after it (DEER).
    Rising,
    /// By how many tokens from this slot on a decoder is expected to accept, given the drafter's own probabilities (D-PACE,
    /// <https://arxiv.org/abs/2605.18810>).
    DPace,
    /// All slots count the same up to and including the first one where the drafter is wrong, and none after it (AUF,
    /// <https://arxiv.org/abs/2607.01893>).
    Auf,
}

impl Default for BlockLossConfig {
    fn default() -> Self {
        Self {
            anchors: 512,
            placement: Anchors::Random,
            masking: BlockMasking::All,
            label_weight: Weight::Fixed(1.0),
            teacher_weight: Weight::Fixed(0.0),
            divergence: Divergence::Kl,
            slot_weights: SlotWeights::DPace,
            decay_slots: 0.0,
            growth: 1.01,
            certainty: 0.5,
            divide_by_count: false,
            selector_weight: Weight::Fixed(1.0),
            inject: true,
            confidence_weight: Weight::Fixed(1.0),
            base_weight: Weight::Fixed(0.0),
            base_until: Some(BASE_UNTIL),
            consistency_weight: None,
            consistency_passes: None,
            guess_weight: None,
            paths: None,
        }
    }
}

/// [`BlockLossConfig::base_until`] where nothing else is said.
const BASE_UNTIL: f64 = 0.5;

/// The key of [`BlockLossConfig::base_until`].
const UNTIL: &str = "base_until";

/// The keys of the losses of what is drafted.
const OF_DRAFTS: [&str; 4] = [
    "consistency_weight",
    "consistency_passes",
    "guess_weight",
    "paths",
];

/// The names of the parts of the loss beside that on tokens.
pub(super) const BASE: &str = "base";
pub(super) const SELECTOR: &str = "selector";
pub(super) const CONFIDENCE: &str = "confidence";
pub(super) const CONSISTENCY: &str = "consistency";
pub(super) const GUESSES: &str = "guesses";

/// Leaves `until` to a table that has its own, unless it was given beside it.
pub(super) fn fill_base(weight: Weight, until: &mut Option<f64>, given: &dyn Fn(&str) -> bool) {
    if matches!(weight, Weight::Changing(_)) && !given(UNTIL) {
        *until = None;
    }
}

impl BlockLossConfig {
    /// The share of the loss without what the tokens before add (Domino's curriculum, <https://arxiv.org/abs/2605.29707>).
    pub(super) fn base(&self) -> Weight {
        match self.base_weight {
            Weight::Fixed(start) if start != 0.0 => Weight::Changing(Course {
                start,
                end: 0.0,
                from: 0.0,
                until: self.base_until.unwrap_or(BASE_UNTIL),
            }),
            weight => weight,
        }
    }

    /// The same with what is read in the place of keys that were left out.
    pub(super) fn explicit(&self) -> Self {
        Self {
            consistency_weight: Some(self.consistency()),
            consistency_passes: Some(self.rounds()),
            guess_weight: Some(self.guesses()),
            paths: Some(self.paths()),
            ..self.clone()
        }
    }

    /// The keys that nothing reads with this `masking`, each with why.
    pub(super) fn unread(&self) -> Vec<(&'static str, &'static str)> {
        const WHY: &str = "with `objective.masking = \"some\"` no draft is judged";
        match self.judges_drafts() {
            true => Vec::new(),
            false => OF_DRAFTS.map(|key| (key, WHY)).to_vec(),
        }
    }

    /// Factor on the mean loss behind the drafter's own tokens, where it refines its drafts; with [`Self::rounds`] and
    /// [`Self::guesses`] as in the speculators library where nothing is said.
    pub(super) fn consistency(&self) -> Weight {
        self.of_drafts(self.consistency_weight, 0.3)
    }

    /// How many such losses there are.
    pub(super) fn rounds(&self) -> usize {
        self.consistency_passes.unwrap_or(3)
    }

    /// Factor on the loss of what it guesses at once.
    pub(super) fn guesses(&self) -> Weight {
        self.of_drafts(self.guess_weight, 0.6)
    }

    /// The loss of a lattice.
    pub(super) fn paths(&self) -> PathLossConfig {
        match self.judges_drafts() {
            true => self.paths.clone().unwrap_or_default(),
            false => PathLossConfig::NONE,
        }
    }

    /// A factor on a loss of what is drafted.
    fn of_drafts(&self, given: Option<Weight>, unsaid: f64) -> Weight {
        match self.judges_drafts() {
            true => given.unwrap_or(Weight::Fixed(unsaid)),
            false => Weight::Fixed(0.0),
        }
    }

    /// Whether what is drafted has a loss. Blocks with tokens of the text in them are no drafts: with these nothing of it is
    /// learned, and so validations, whose blocks are drafts, do not count it either.
    fn judges_drafts(&self) -> bool {
        match self.masking {
            BlockMasking::Some => false,
            BlockMasking::All | BlockMasking::Last => true,
        }
    }

    /// The weights that change beside those of the loss on tokens, by the parts that they are of, with what they are at a step.
    /// `has` says whether there is such a part.
    pub(super) fn changing(
        &self,
        step: Option<Step>,
        has: impl Fn(&str) -> bool,
    ) -> Vec<(&'static str, f64)> {
        let weights = [
            (BASE, self.base()),
            (SELECTOR, self.selector_weight),
            (CONFIDENCE, self.confidence_weight),
            (CONSISTENCY, self.consistency()),
            (GUESSES, self.guesses()),
        ];
        let weights = [&weights[..], &self.paths().parts()[..]].concat();
        let weights = changing(&weights, step);
        weights.filter(|(name, _)| has(name)).collect()
    }

    /// Checks what the loss on tokens does not.
    pub(super) fn check(&self) -> Result<()> {
        let setting = |key, expected, got| Err(Error::objective(key, expected, got));
        let unsaid = Weight::Fixed(0.0);
        Error::check_objective([
            bounds::up_to("anchors", self.anchors, bounds::TEXT),
            bounds::up_to("consistency_passes", self.rounds(), bounds::DRAFT),
        ])?;
        if !(self.growth >= 1.0 && self.growth.is_finite()) {
            return setting("growth", "1 or more", self.growth.to_string());
        }
        for (key, weight) in [
            ("decay_slots", self.decay_slots.into()),
            ("selector_weight", self.selector_weight),
            ("confidence_weight", self.confidence_weight),
            (
                "consistency_weight",
                self.consistency_weight.unwrap_or(unsaid),
            ),
            ("guess_weight", self.guess_weight.unwrap_or(unsaid)),
        ] {
            weight.check(key)?;
        }
        self.paths.as_ref().map_or(Ok(()), PathLossConfig::check)?;
        let shares = [
            ("certainty", self.certainty.into()),
            ("base_weight", self.base_weight),
        ];
        let until = self.base_until.map(|until| (UNTIL, until.into()));
        for (key, share) in shares.into_iter().chain(until) {
            Weight::check_in(share, key, &(0.0..=1.0), "a number from 0 to 1")?;
        }
        match (self.base_weight, self.base_until) {
            (Weight::Changing(_), Some(until)) => {
                let expected =
                    "no such key beside a table `base_weight`, which has its own `until`";
                setting(UNTIL, expected, until.to_string())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_diffusion::BlockLoss;
    use crate::objective::Objective as _;

    fn falling() -> Weight {
        Weight::Changing(Course {
            start: 0.8,
            end: 0.2,
            from: 0.0,
            until: 0.5,
        })
    }

    #[test]
    fn a_share_that_is_a_number_falls_to_nothing_in_the_given_part_of_the_training() {
        let config = BlockLossConfig {
            base_weight: 0.8.into(),
            base_until: Some(0.5),
            ..Default::default()
        };
        let at = |config: &BlockLossConfig, number| config.base().at(Some(Step { number, of: 21 }));
        let found = [0, 5, 10, 20].map(|number| at(&config, number));
        assert_eq!(found, [0.8, 0.4, 0.0, 0.0]);
        assert_eq!(config.base().end(), 0.0);
        assert_eq!(config.changing(None, |_| true), [(BASE, 0.0)]);
        // A drafter without a bias has no such part.
        assert!(config.changing(None, |name| name != BASE).is_empty());
        let at_once = BlockLossConfig {
            base_until: Some(0.0),
            ..config
        };
        assert_eq!([at(&at_once, 0), at(&at_once, 1)], [0.8, 0.0]);
        let none = BlockLossConfig::default();
        assert_eq!(none.base(), Weight::Fixed(0.0));
        assert!(none.changing(None, |_| true).is_empty());
    }

    #[test]
    fn a_share_that_is_a_table_says_itself_how_it_changes() {
        let with = |given: bool| {
            let mut config = BlockLossConfig {
                base_weight: falling(),
                ..Default::default()
            };
            BlockLoss::fill(&mut config, &|key| given && key == "base_until");
            config
        };
        let alone = with(false);
        BlockLoss::new(&alone).unwrap();
        assert_eq!(alone.base(), falling());
        let written = serde_json::to_value(&alone).unwrap();
        assert!(written.get("base_until").is_none(), "{written}");
        assert!(BlockLoss::new(&with(true)).is_err());
        // Of a number the key is written as ever.
        let mut number = BlockLossConfig::default();
        BlockLoss::fill(&mut number, &|_| false);
        let written = serde_json::to_value(&number).unwrap();
        assert_eq!(
            (&written["base_weight"], &written["base_until"]),
            (&0.0.into(), &0.5.into())
        );
    }

    /// What identifies a run that has begun is made of the keys: it may not get one more.
    #[test]
    fn the_keys_of_drafts_are_written_where_they_are_given() {
        let default = serde_json::to_value(BlockLossConfig::default()).unwrap();
        let given = BlockLossConfig {
            consistency_weight: Some(0.3.into()),
            consistency_passes: Some(3),
            guess_weight: Some(0.6.into()),
            paths: Some(PathLossConfig::default()),
            ..Default::default()
        };
        let given = serde_json::to_value(given).unwrap();
        for key in OF_DRAFTS {
            assert!(default.get(key).is_none(), "{default}");
            assert!(given.get(key).is_some(), "{given}");
        }
    }

    #[test]
    fn nothing_of_drafts_counts_where_tokens_of_blocks_are_shown() {
        let given = BlockLossConfig {
            consistency_weight: Some(0.2.into()),
            ..Default::default()
        };
        let weights = |config: &BlockLossConfig| [config.consistency(), config.guesses()];
        assert_eq!(weights(&given), [Weight::Fixed(0.2), Weight::Fixed(0.6)]);
        assert_eq!(given.paths(), PathLossConfig::default());
        assert_eq!(BlockLoss::workload(&given, "train").guessed, 1);
        assert!(BlockLoss::unread(&given).is_empty());
        let shown = BlockLossConfig {
            masking: BlockMasking::Some,
            ..given
        };
        assert_eq!(weights(&shown), [Weight::Fixed(0.0); 2]);
        assert_eq!(shown.paths(), PathLossConfig::NONE);
        let work = BlockLoss::workload(&shown, "train");
        assert_eq!((work.again, work.guessed), (0, 0));
        let unread = BlockLoss::unread(&shown).into_iter();
        let unread: Vec<&str> = unread.map(|(key, _)| key).collect();
        assert_eq!(unread, OF_DRAFTS);
        // What makes no sense is refused all the same.
        let wrong = BlockLossConfig {
            guess_weight: Some((-1.0).into()),
            ..shown
        };
        let error = BlockLoss::new(&wrong).unwrap_err().to_string();
        assert!(error.contains("guess_weight"), "{error}");
    }

    /// The key that is refused, and the change to the defaults that makes it so.
    type Wrong = (&'static str, fn(&mut BlockLossConfig));

    #[test]
    fn settings_that_make_no_sense_are_refused_by_name() {
        let wrong: [Wrong; 12] = [
            ("anchors", |of| of.anchors = 0),
            ("decay_slots", |of| of.decay_slots = -1.0),
            ("certainty", |of| of.certainty = 1.5),
            ("label_weight", |of| of.label_weight = (-1.0).into()),
            ("base_weight", |of| of.base_weight = 1.5.into()),
            ("base_until", |of| of.base_until = Some(-0.1)),
            // A table has its own.
            ("base_until", |of| of.base_weight = falling()),
            ("consistency_weight", |of| {
                of.consistency_weight = Some((-0.1).into());
            }),
            ("consistency_passes", |of| of.consistency_passes = Some(0)),
            ("guess_weight", |of| of.guess_weight = Some(f64::NAN.into())),
            ("paths.weight", |of| {
                of.paths.get_or_insert_default().weight = (-1.0).into();
            }),
            ("paths.hinge", |of| {
                of.paths.get_or_insert_default().hinge = 0.0;
            }),
        ];
        for (key, change) in wrong {
            let mut config = BlockLossConfig::default();
            change(&mut config);
            let error = BlockLoss::new(&config).unwrap_err().to_string();
            assert!(error.contains(key), "{key}: {error}");
        }
    }
}

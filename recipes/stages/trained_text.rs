//! Whether the text that is trained on is the target's own, as all texts are that a drafter reads when it drafts.

use std::mem::{replace, take};

use anyhow::Result;
use burn::prelude::*;
use spectrain_checkpoints::Mismatch;
use spectrain_data::packing::PackedBatch;
use spectrain_eval::{ENOUGH, Judges, OwnCheck, evenly};
use spectrain_models::TargetParts;
use spectrain_train::{BatchSource, Samples, TextFound};

use crate::progress::{Output, counted};
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::tables::FeatureMode;
use crate::runtime::interruption::{check_interrupted, interrupted};
use crate::runtime::texts::is_whole;

/// Batches that the tokens are of, where each has enough of them: one text says little of the others.
const SPREAD: usize = 4;
/// Batches that are looked through for them, at most.
const MOST_BATCHES: usize = 16;

/// Positions of a batch, each with the token behind it.
type Places = Vec<(i64, u32)>;

/// The text that a run trains on, and what the target makes of it.
pub(super) struct TrainedText<'a> {
    recipe: &'a ResolvedRecipe,
    stage: &'a str,
    output: Output,
    samples: Samples,
    source: Box<dyn BatchSource>,
    target: &'a TargetParts,
    is_looked_at: bool,
    found: Option<TextFound>,
}

impl<'a> TrainedText<'a> {
    /// That of a stage: `samples`, whose features `source` has, for the head of `target`.
    pub(super) fn new(
        (recipe, stage, output): (&'a ResolvedRecipe, &'a str, Output),
        (samples, source): (Samples, Box<dyn BatchSource>),
        target: &'a TargetParts,
    ) -> Self {
        Self {
            recipe,
            stage,
            output,
            samples,
            source,
            target,
            is_looked_at: false,
            found: None,
        }
    }

    /// How far it is the target's own, which the user is told the first time; nothing where that cannot be known. Training does
    /// without it, so what goes wrong is told, too.
    pub(super) fn found(&mut self) -> Option<TextFound> {
        if !replace(&mut self.is_looked_at, true) {
            self.found = match self.look() {
                Ok(check) => self.tell(&check),
                // Whoever asks to stop is answered by the training.
                Err(_) if interrupted() => None,
                Err(error) => {
                    self.output.warn(format!(
                        "{}: cannot tell whether the target wrote the text that is trained on: {error:#}",
                        self.stage
                    ));
                    None
                }
            };
        }
        self.found
    }

    /// Looks at as many tokens as a verdict takes, from batches of the training.
    fn look(&mut self) -> Result<OwnCheck> {
        let asked = self.recipe.regenerate.as_ref();
        let asked = asked.and_then(|regenerate| regenerate.temperature);
        let mut check = OwnCheck::new(asked.unwrap_or(1.0).max(1.0));
        for (packed, places) in looked_at(&self.samples)? {
            check_interrupted()?;
            let (positions, tokens): (Vec<i64>, Vec<u32>) = places.into_iter().unzip();
            check.add(&tokens, &self.judges(packed, &positions)?)?;
        }
        Ok(check)
    }

    /// What the target says behind these positions of a batch.
    fn judges(&mut self, packed: PackedBatch, positions: &[i64]) -> Result<Judges> {
        let last = self.source.batch(packed)?.features().last.clone();
        let [rows, seq, d_model] = last.dims();
        let positions = Tensor::<1, Int>::from_ints(positions, &last.device());
        let states = last.reshape([rows * seq, d_model]).select(0, positions);
        // The drafter may compute in another type than the head is in.
        let states = states.cast(self.target.lm_head.weight.val().dtype());
        Ok(Judges::of_states(states, self.target.clone()))
    }

    fn tell(&self, check: &OwnCheck) -> Option<TextFound> {
        let figures = check.figures()?;
        let (output, stage) = (self.output, self.stage);
        let mode = self.recipe.features.mode;
        let which = match mode {
            FeatureMode::Streamed => "held-out tokens",
            _ => "tokens that are trained on",
        };
        // A target that the run has made has learnt the text that it made, and there is no other.
        let is_learnt = self.recipe.synthetic.is_some();
        let problem = check.problem().filter(|_| !is_learnt);
        let verdict = match is_learnt {
            true => "the target has learnt this text".to_owned(),
            false => verdict(check.missing(), problem.as_ref()),
        };
        output.say(format!(
            "{stage}: what the target says of {} {which}: {figures}: {verdict}",
            figures.tokens
        ));
        if let Some(problem) = problem {
            let advice = match (mode, &self.recipe.regenerate) {
                (FeatureMode::Imported, _) => {
                    "capture texts that the target wrote, and import those"
                }
                (_, None) => "with `[regenerate]` the target answers `data.train` anew",
                (_, Some(_)) => {
                    "another model than the target has answered for `[regenerate]`, or the same one behind another chat template"
                }
            };
            output.warn(format!(
                "{stage}: the text that is trained on: {problem}; a drafter that learns on this text reads other texts when it drafts, \
                 as those are the target's own: {advice}"
            ));
        }
        Some(TextFound {
            tokens: figures.tokens,
            likeliest: figures.likeliest,
            excess_surprise: figures.excess_surprise,
        })
    }
}

/// What figures mean that lack so many tokens for a verdict, or else by which the target surely did not write the text.
fn verdict(missing: usize, problem: Option<&Mismatch>) -> String {
    match (missing, problem) {
        (0, None) => "the text looks like the target's own".to_owned(),
        (0, Some(_)) => "the text is not the target's own".to_owned(),
        (missing, _) => {
            let missing = counted(missing as u64, "token");
            format!("{missing} too few to tell whether the text is the target's own")
        }
    }
}

/// The batches that are looked at, each with places in it: as many as a verdict takes. Where the first [`MOST_BATCHES`] have too few
/// places for one, [`SPREAD`] batches say what can be said without it.
fn looked_at(samples: &Samples) -> Result<Vec<(PackedBatch, Places)>> {
    let first = samples.epoch(0)?.into_iter().take(MOST_BATCHES);
    let mut found = Vec::new();
    for packed in first {
        let places = places(samples, &packed);
        if !places.is_empty() {
            found.push((packed, places));
        }
    }
    let mut missing = ENOUGH as usize;
    let of_each = missing.div_ceil(found.len().clamp(1, SPREAD));
    for (_, places) in &mut found {
        *places = evenly(take(places), of_each.min(missing));
        missing -= places.len();
    }
    if missing > 0 {
        found.truncate(SPREAD);
    }
    found.retain(|(_, places)| !places.is_empty());
    Ok(found)
}

/// Positions of a batch, row by row, each with the token behind it, where both are trained on: as in an evaluation by texts, the first
/// token of an answer is left out, and so are texts of which every token is trained on, in which nothing tells the target's from
/// what it was asked.
fn places(samples: &Samples, packed: &PackedBatch) -> Places {
    let mut places = Places::new();
    for (row, of_row) in packed.rows.iter().enumerate() {
        let mut start = row * samples.row_length();
        for &sample in of_row {
            let text = samples.shards().get(sample);
            if !is_whole(text.loss_mask) {
                let pairs = text.loss_mask.windows(2).enumerate();
                let trained = pairs.filter(|(_, pair)| pair[0] != 0 && pair[1] != 0);
                places.extend(trained.map(|(at, _)| ((start + at) as i64, text.tokens[at + 1])));
            }
            start += text.tokens.len();
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use spectrain_data::Sample;
    use spectrain_data::tokens::{TokenShards, TokenWriter};

    use super::*;

    /// Texts whose tokens count up from the first one, in batches of so many rows of this length.
    fn samples(texts: &[(u32, &str)], (row_length, rows): (usize, usize)) -> Samples {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = TokenWriter::create(folder.path(), 100_000).unwrap();
        for (first, mask) in texts {
            let loss_mask: Vec<bool> = mask.chars().map(|bit| bit == '1').collect();
            let tokens = (*first..).take(mask.len()).collect();
            writer.push(&Sample { tokens, loss_mask }).unwrap();
        }
        writer.finish(serde_json::Map::new()).unwrap();
        let shards = Arc::new(TokenShards::open(folder.path()).unwrap());
        Samples::new(shards, row_length, rows, 0)
    }

    #[test]
    fn figures_are_followed_by_what_they_mean() {
        let problem = Mismatch::new("own texts", "others");
        for (missing, problem, told) in [
            (0, None, "the text looks like the target's own"),
            (0, Some(&problem), "the text is not the target's own"),
            (
                1,
                None,
                "1 token too few to tell whether the text is the target's own",
            ),
            (
                7,
                None,
                "7 tokens too few to tell whether the text is the target's own",
            ),
        ] {
            assert_eq!(verdict(missing, problem), told);
        }
    }

    #[test]
    fn no_more_batches_are_read_than_a_verdict_takes_and_few_where_there_is_none() {
        let looked_at = |trained: usize, texts: usize| -> Vec<usize> {
            let mask = "00".to_owned() + &"1".repeat(trained + 1);
            let samples = samples(&vec![(0, &*mask); texts], (mask.len(), 1));
            let found = looked_at(&samples).unwrap();
            found.into_iter().map(|(_, places)| places.len()).collect()
        };
        assert_eq!(looked_at(700, 20), [500; 4]);
        assert_eq!(looked_at(300, 20), [300, 300, 300, 300, 300, 300, 200]);
        // Sixteen of these are too few.
        assert_eq!(looked_at(100, 20), [100; 4]);
        assert_eq!(looked_at(700, 2), [700; 2]);
        assert_eq!(looked_at(1200, 2), [1000; 2]);
        assert_eq!(looked_at(0, 3), [0; 0]);
    }

    #[test]
    fn tokens_behind_the_first_of_each_answer_are_looked_at_where_a_text_has_a_prompt() {
        let texts = [(10, "0011101"), (20, "1111"), (30, "0011"), (40, "000")];
        let samples = samples(&texts, (16, 2));
        let packed = PackedBatch {
            rows: vec![vec![1, 0], vec![3, 2]],
        };
        // Of the first row behind four tokens, of the second behind three.
        let expected = [(4 + 2, 13), (4 + 3, 14), (16 + 3 + 2, 33)];
        assert_eq!(places(&samples, &packed), expected);
    }
}

//! How much there is to train on.

use std::path::Path;

use serde::de::IgnoredAny;
use serde_json::{Value, json};
use spectrain_data::conversation::{Content, Row};
use spectrain_data::dataset::{Dataset, Located};
use spectrain_data::held_out;
use spectrain_data::hub_data::Downloads;
use spectrain_data::rows::{LocatedRow, text_bytes};
use spectrain_data::sources::Sources;
use spectrain_data::tokens::TokenIndex;

use super::stages::Planned;
use super::words::bytes;
use crate::plan::preflight::Asked;
use crate::recipe::resolved::ResolvedRecipe;
use crate::runs::stage_names;
use crate::runtime::prompt_sets;
use crate::runtime::target::hub_options;
use crate::stages::order;

/// Most passes over the data that are recommended; libraries that train such drafters make as many unless told otherwise.
pub(crate) const MOST_PASSES: u64 = 20;
/// Bytes of text for a token, where only the size of a file is known.
const BYTES_PER_TOKEN: u64 = 4;
/// Rows by which the size of all is estimated where only some are read.
const SAMPLED_ROWS: usize = 200;

/// What a run trains on.
pub(super) struct TrainingData<'a> {
    recipe: &'a ResolvedRecipe,
    /// As `prepare` has counted it, where that stays done.
    counted: Option<TokenIndex>,
    /// How many prompts to evaluate with `prepare` has written, where that stays done.
    prompts: Option<usize>,
}

impl<'a> TrainingData<'a> {
    /// That of a run of whose stages `stages` says what becomes.
    pub(super) fn of(asked: &Asked<'a>, stages: &[Planned]) -> Self {
        let mut stages = stages.iter();
        let is_prepared = stages.any(|stage| stage.name == stage_names::PREPARE && stage.done);
        Self::with(asked, is_prepared)
    }

    /// The same by what the run has noted, where nothing is hashed.
    pub(super) fn noted(asked: &Asked<'a>) -> Self {
        let mut stages = order::of(asked.recipe).into_iter();
        let is_noted = stages
            .any(|stage| stage.name == stage_names::PREPARE && asked.is_noted_as_done(&stage));
        Self::with(asked, is_noted)
    }

    fn with(asked: &Asked<'a>, is_prepared: bool) -> Self {
        let run = asked.runs.join(&asked.recipe.name);
        Self {
            recipe: asked.recipe,
            counted: is_prepared.then(|| counted(&run)).flatten(),
            prompts: is_prepared.then(|| prompts(&run)).flatten(),
        }
    }

    /// How many prompts of the recipe's own data there are to evaluate with, as far as they are wanted: counted, or by the rows of
    /// the files; as many as are wanted where the files do not say it.
    pub(super) fn prompts(&self, wanted: usize) -> usize {
        let known = self.prompts.or_else(|| self.rows_of_eval(wanted));
        known.map_or(wanted, |known| known.min(wanted))
    }

    /// How many held-out prompts there are, where that is known; of more than `few` only that there are more. Repeats count.
    pub(super) fn held_out(&self, few: usize) -> Option<usize> {
        self.prompts
            .or_else(|| self.rows_of_eval(few.saturating_add(1)))
    }

    /// Whether that is no estimate.
    pub(super) fn is_exact(&self) -> bool {
        self.prompts.is_some() || self.recipe.data.eval.is_some()
    }

    /// Rows of `data.eval`, no more than are `wanted`, or those that would be held out of `data.train`; none where they are not here.
    fn rows_of_eval(&self, wanted: usize) -> Option<usize> {
        let data = &self.recipe.data;
        let Some(eval) = &data.eval else {
            let taken = rows_of_train(self.recipe)?.taken.round();
            return Some(held_out::count(taken as usize, data.held_out()));
        };
        let eval = eval.here(&hub_options()).ok()?;
        Some(eval.rows().ok()?.flatten().take(wanted).count())
    }

    /// Whether its tokens are counted.
    pub(super) fn is_counted(&self) -> bool {
        self.counted.is_some()
    }

    /// Its tokens: counted, or from the size of its text, where the files say it.
    pub(super) fn tokens(&self) -> Option<u64> {
        if let Some(index) = &self.counted {
            return Some(index.tokens);
        }
        let data = &self.recipe.data;
        tokens_in(&data.train_sources()?, data.max_samples)
    }

    /// Tokens of a sample, on average: counted, or from the first rows; half of the longest where there are none yet.
    pub(super) fn tokens_of_sample(&self) -> f64 {
        if let Some(counted) = self.counted_sample() {
            return counted;
        }
        let data = &self.recipe.data;
        let longest = data.max_length as f64;
        let train = data.train_sources();
        let train = train.and_then(|sources| sources.here(&hub_options()).ok());
        let bytes = train.and_then(|train| bytes_of_row(&train));
        bytes.map_or(longest / 2.0, |bytes| {
            longest.min(bytes / BYTES_PER_TOKEN as f64)
        })
    }

    /// Tokens of a sample, on average, where they are counted.
    pub(super) fn counted_sample(&self) -> Option<f64> {
        let index = self.counted.as_ref()?;
        Some(index.tokens as f64 / index.samples.max(1) as f64)
    }
}

/// What the stage `prepare` of a run has counted.
fn counted(run: &Path) -> Option<TokenIndex> {
    let index = std::fs::read_to_string(run.join("prepare/train/tokens.json")).ok()?;
    serde_json::from_str(&index).ok()
}

/// How many prompts to evaluate with the stage `prepare` of a run has written.
fn prompts(run: &Path) -> Option<usize> {
    let written = std::fs::read_to_string(run.join("prepare/prompts.json")).ok()?;
    let prompts: Vec<IgnoredAny> = serde_json::from_str(&written).ok()?;
    Some(prompts.len())
}

/// The rows of `data.train`.
struct TrainRows {
    /// The first of them, as far as they can be read.
    first: Vec<LocatedRow>,
    /// Whether these are all.
    is_all: bool,
    /// How many of those that `data.max_samples` has read are not passed over by weights: the others are neither trained on nor
    /// answered.
    taken: f64,
}

/// The rows of `data.train`, counted by its first ones; none where they are not here, or the files do not say how much text they have.
fn rows_of_train(recipe: &ResolvedRecipe) -> Option<TrainRows> {
    let data = recipe.data.train_sources()?.here(&hub_options()).ok()?;
    let first: Vec<_> = data.rows().ok()?.take(SAMPLED_ROWS).collect();
    let is_all = first.len() < SAMPLED_ROWS;
    let first: Vec<LocatedRow> = first.into_iter().flatten().collect();
    let (rows, passed_on) = match is_all {
        true => {
            let taken = first.iter().filter(|row| row.copies > 0).count();
            (first.len() as f64, taken as f64)
        }
        false => {
            let text = text_of(&data, |_| 1.0)?;
            let share = text_of(&data, |weight| weight.min(1.0))? / text.max(1.0);
            let rows = text / bytes_of_row(&data)?;
            (rows, rows * share)
        }
    };
    let most = recipe.data.max_samples.map_or(rows, |most| most as f64);
    let read = (most / rows.max(1.0)).min(1.0);
    Some(TrainRows {
        first,
        is_all,
        taken: passed_on * read,
    })
}

/// What of the data would be downloaded: as lines of a plan, and as JSON. What cannot be had is refused elsewhere.
pub(super) fn downloads(recipe: &ResolvedRecipe) -> (Vec<String>, Value) {
    let sources = [recipe.data.train_sources(), recipe.data.eval.clone()];
    let options = hub_options();
    let prompts = prompt_sets::of_hub(recipe.evaluate.sets());
    let each = sources.into_iter().flatten().chain(prompts);
    let each = each.flat_map(|sources| sources.downloads(&options).unwrap_or_default());
    let wanted: Vec<Downloads> = each.filter(|wanted| wanted.missing > 0).collect();
    let line = |wanted: &Downloads| {
        let size = wanted.bytes.map_or("of unknown size".to_owned(), bytes);
        let Downloads {
            address,
            rows,
            commit,
            files,
            missing,
            ..
        } = wanted;
        format!("`{address}` ({rows}): {missing} of {files} files, {size}, at commit {commit}")
    };
    (wanted.iter().map(line).collect(), json!(wanted))
}

/// Answers that `[regenerate]` has to write.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AnswersToWrite {
    /// How many.
    pub(super) count: f64,
    /// Tokens of those that the data has in their places, on average; none where it has none.
    pub(super) tokens: Option<f64>,
}

/// Answers that are to be written, counted in the first rows; nothing where the files do not say how much text they have.
pub(super) fn answers_to_write(recipe: &ResolvedRecipe) -> Option<AnswersToWrite> {
    if let Some(made) = &recipe.synthetic {
        return Some(AnswersToWrite {
            count: made.conversations as f64,
            tokens: None,
        });
    }
    let rows = rows_of_train(recipe)?;
    let first = rows.first.iter();
    let sampled = first.filter(|row| !rows.is_all || row.copies > 0);
    let sampled: Sampled = sampled.map(|row| &row.row).collect();
    let of_bytes = sampled.bytes_of_answers as f64 / BYTES_PER_TOKEN as f64;
    Some(AnswersToWrite {
        count: rows.taken * sampled.asked as f64 / sampled.rows.max(1) as f64,
        tokens: (sampled.answers > 0).then(|| of_bytes / sampled.answers as f64),
    })
}

/// What some rows ask for, and the answers that they have.
#[derive(Default)]
struct Sampled {
    rows: usize,
    /// Answers that they ask for.
    asked: usize,
    /// Answers that they have.
    answers: usize,
    bytes_of_answers: usize,
}

impl<'a> FromIterator<&'a Row> for Sampled {
    fn from_iter<I: IntoIterator<Item = &'a Row>>(rows: I) -> Self {
        let mut sampled = Self::default();
        rows.into_iter().for_each(|row| sampled.add(row));
        sampled
    }
}

impl Sampled {
    fn add(&mut self, row: &Row) {
        self.rows += 1;
        let Content::Conversation(conversation) = &row.content else {
            return;
        };
        let given = conversation.messages.iter();
        let given = given.filter(|message| message.role == "assistant");
        let before = self.answers;
        for message in given {
            self.answers += 1;
            self.bytes_of_answers += message.content.len();
        }
        // A row that ends with a question is answered too.
        self.asked += (self.answers - before).max(1);
    }
}

/// Tokens of sources by the size of their text, each times its weight, of which at most so many samples are read; nothing where they are
/// not here, or do not say it.
pub(crate) fn tokens_in(sources: &Sources, max_samples: Option<usize>) -> Option<u64> {
    let data = sources.here(&hub_options()).ok()?;
    let mut bytes = text_of(&data, |weight| weight)?;
    if let Some(most) = max_samples {
        let read = most as f64 * bytes_of_row(&data)?;
        bytes *= (read / text_of(&data, |_| 1.0)?.max(1.0)).min(1.0);
    }
    Some(bytes as u64 / BYTES_PER_TOKEN)
}

/// Bytes of the text of all sources, each times what `factor` makes of its weight; nothing where files do not say how many they have.
fn text_of(data: &Dataset, factor: impl Fn(f64) -> f64) -> Option<f64> {
    let of = |source: &Located| {
        let bytes = text_bytes(&source.files().ok()?)?;
        Some(bytes as f64 * factor(source.weight))
    };
    data.each().iter().map(of).sum()
}

/// Bytes of a row, on average of the first ones that can be read.
fn bytes_of_row(data: &Dataset) -> Option<f64> {
    let rows = data.rows().ok()?.take(SAMPLED_ROWS).flatten();
    let lengths = rows.map(|row| row.row.to_json().len() as f64);
    let lengths: Vec<f64> = lengths.collect();
    (!lengths.is_empty()).then(|| lengths.iter().sum::<f64>() / lengths.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::read;
    use crate::runs::run_folder::Existing;

    /// A recipe for so many rows, of which a source of this weight is trained on.
    fn recipe(root: &Path, rows: usize, weight: f64) -> ResolvedRecipe {
        let file = root.join("train.jsonl");
        let turns = [("user", "count"), ("assistant", "one two three four")];
        let turns = turns.map(|(role, content)| json!({"role": role, "content": content}));
        let row = json!({ "messages": turns }).to_string();
        std::fs::write(&file, format!("{row}\n").repeat(rows)).unwrap();
        let text = "recipe = \"eagle3\"\nname = \"a\"\ntarget.model = \"t\"\n[data]\ntrain = \"t\"\neval = \"e\"\n[regenerate]\n";
        let source = format!("data.train=[{{ path = {file:?}, weight = {weight:?} }}]");
        read(text, &[source]).unwrap()
    }

    fn asked<'a>(recipe: &'a ResolvedRecipe, runs: &'a Path) -> Asked<'a> {
        Asked {
            recipe,
            runs,
            existing: Existing::Continue,
            device: "cpu",
            ranks: 1,
            only: &[],
            parts: None,
        }
    }

    fn answers(root: &Path, rows: usize, weight: f64) -> f64 {
        let answers = answers_to_write(&recipe(root, rows, weight)).unwrap();
        // Those of the data are as long whatever the weight is.
        assert_eq!(answers.tokens, Some(4.5), "{rows} {weight}");
        answers.count
    }

    #[test]
    fn rows_that_weights_pass_over_are_not_answered_and_copies_are_answered_once() {
        let root = tempfile::tempdir().unwrap();
        // All rows are looked at.
        assert_eq!(answers(root.path(), 100, 1.0), 100.0);
        assert_eq!(answers(root.path(), 100, 3.0), 100.0);
        let half = answers(root.path(), 100, 0.5);
        let given = recipe(root.path(), 100, 0.5).data.train.unwrap();
        let data = given.here(&hub_options()).unwrap();
        let taken = data.rows().unwrap().flatten().filter(|row| row.copies > 0);
        assert_eq!(half, taken.count() as f64);
        // Of more rows the size of the text tells how many there are.
        let all = answers(root.path(), 4000, 1.0);
        assert!((3000.0..6000.0).contains(&all), "{all}");
        assert_eq!(answers(root.path(), 4000, 3.0), all);
        let some = answers(root.path(), 4000, 0.01);
        assert!((some / all - 0.01).abs() < 1e-9, "{some} {all}");
    }

    #[test]
    fn no_more_prompts_are_counted_than_there_are() {
        let root = tempfile::tempdir().unwrap();
        let mut recipe = recipe(root.path(), 400, 1.0);
        let prompts = |recipe: &ResolvedRecipe, wanted: usize| {
            TrainingData::of(&asked(recipe, root.path()), &[]).prompts(wanted)
        };
        let held_out = |recipe: &ResolvedRecipe, few: usize| {
            let asked = asked(recipe, root.path());
            let data = TrainingData::of(&asked, &[]);
            (data.held_out(few), data.is_exact())
        };
        // Nothing is known of files that are not here.
        assert_eq!(prompts(&recipe, 1000), 1000);
        assert_eq!(held_out(&recipe, 1000).0, None);
        let eval = root.path().join("eval.jsonl");
        let row = std::fs::read_to_string(root.path().join("train.jsonl")).unwrap();
        let row = row.lines().next().unwrap();
        std::fs::write(&eval, format!("{row}\n").repeat(40)).unwrap();
        recipe.data.eval = Some(serde_json::from_value(json!(eval)).unwrap());
        let found = [10, 64, 1000].map(|wanted| prompts(&recipe, wanted));
        assert_eq!(found, [10, 40, 40]);
        let found = [10, 40, 1000].map(|few| held_out(&recipe, few).0.unwrap());
        assert_eq!(found, [11, 40, 40]);
        // A fifth of the data is held out at most.
        recipe.data.eval = None;
        recipe.data.max_samples = Some(100);
        assert_eq!(prompts(&recipe, 64), 20);
        assert_eq!(held_out(&recipe, 64), (Some(20), false));
    }

    #[test]
    fn rows_are_read_before_weights_pass_some_of_them_over() {
        let root = tempfile::tempdir().unwrap();
        let mut recipe = recipe(root.path(), 1000, 0.5);
        recipe.data.max_samples = Some(600);
        let taken = rows_of_train(&recipe).unwrap().taken;
        assert!((taken - 300.0).abs() < 1e-6, "{taken}");
        let answers = answers_to_write(&recipe).unwrap().count;
        assert!((answers - 300.0).abs() < 1e-6, "{answers}");
    }

    #[test]
    fn samples_are_as_long_whatever_their_weight_is_and_tokens_are_not_as_many() {
        let root = tempfile::tempdir().unwrap();
        let known = |rows: usize, weight: f64, most: Option<usize>| {
            let mut recipe = recipe(root.path(), rows, weight);
            recipe.data.max_samples = most;
            let asked = asked(&recipe, root.path());
            let data = TrainingData::of(&asked, &[]);
            (data.tokens_of_sample(), data.tokens().unwrap() as f64)
        };
        let (length, tokens) = known(400, 1.0, None);
        for (weight, most, expected) in [
            (0.01, None, 0.01 * tokens),
            (2.0, None, 2.0 * tokens),
            (2.0, Some(100), 0.5 * tokens),
            (0.5, Some(1000), 0.5 * tokens),
        ] {
            let found = known(400, weight, most);
            assert_eq!(found.0, length, "{weight}");
            // A file has the ends of its lines besides.
            let ratio = found.1 / expected;
            assert!((0.95..1.05).contains(&ratio), "{weight} {most:?}: {ratio}");
        }
    }
}

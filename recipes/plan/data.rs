//! How much there is to train on.

use std::path::Path;

use serde_json::{Value, json};
use spectrain_data::conversation::Content;
use spectrain_data::dataset::Dataset;
use spectrain_data::hub_data::Downloads;
use spectrain_data::rows::{LocatedRow, text_bytes};
use spectrain_data::tokens::TokenIndex;

use super::words::bytes;
use crate::recipe::resolved::ResolvedRecipe;
use crate::runs::run_folder::{Status, manifest_in};
use crate::runtime::prompt_sets;
use crate::runtime::target::hub_options;

/// Most passes over the data that are recommended; libraries that train such drafters make as many unless told otherwise.
pub(crate) const MOST_PASSES: u64 = 20;
/// Bytes of text for a token, where only the size of a file is known.
pub(crate) const BYTES_PER_TOKEN: u64 = 4;
/// Rows by which the size of all is estimated where only some are read.
const SAMPLED_ROWS: usize = 200;

/// The training data as `prepare` counted it.
pub(super) fn prepared(run: &Path) -> Option<TokenIndex> {
    let manifest = manifest_in(run, "prepare").ok()??;
    if manifest.status != Status::Done {
        return None;
    }
    let index = std::fs::read_to_string(run.join("prepare/train/tokens.json")).ok()?;
    serde_json::from_str(&index).ok()
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

/// Tokens of the training data: counted by `prepare`, or from the size of its text, where the files say it.
pub(super) fn data_tokens(recipe: &ResolvedRecipe, run: &Path) -> Option<u64> {
    if let Some(index) = prepared(run) {
        return Some(index.tokens);
    }
    let train = recipe.data.train_sources()?.here(&hub_options()).ok()?;
    let mut bytes = 0.0;
    for source in train.each() {
        bytes += text_bytes(&source.files().ok()?)? as f64 * source.weight;
    }
    if let Some(most) = recipe.data.max_samples {
        bytes = bytes.min(most as f64 * bytes_of_row(&train)?);
    }
    Some(bytes as u64 / BYTES_PER_TOKEN)
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
    let data = recipe.data.train_sources()?.here(&hub_options()).ok()?;
    let sample = data.rows().ok()?.take(SAMPLED_ROWS).flatten();
    let sample: Vec<LocatedRow> = sample.collect();
    let [mut answers, mut asked, mut bytes, mut bytes_of_answers] = [0_usize; 4];
    for LocatedRow { row, .. } in &sample {
        bytes += row.to_json().len();
        let Content::Conversation(conversation) = &row.content else {
            continue;
        };
        let given = conversation.messages.iter();
        let given = given.filter(|message| message.role == "assistant");
        let before = answers;
        for message in given {
            answers += 1;
            bytes_of_answers += message.content.len();
        }
        // A row that ends with a question is answered too.
        asked += (answers - before).max(1);
    }
    let mut rows = sample.len() as f64;
    if sample.len() == SAMPLED_ROWS {
        let mut all = 0_u64;
        for source in data.each() {
            all += text_bytes(&source.files().ok()?)?;
        }
        rows *= all as f64 / bytes.max(1) as f64;
    }
    let most = recipe.data.max_samples.map_or(rows, |most| most as f64);
    let of_bytes = bytes_of_answers as f64 / BYTES_PER_TOKEN as f64;
    Some(AnswersToWrite {
        count: rows.min(most) * asked as f64 / sample.len().max(1) as f64,
        tokens: (answers > 0).then(|| of_bytes / answers as f64),
    })
}

/// Tokens of a sample, on average: counted by `prepare`, or from the first rows; half of the longest where there are none yet.
pub(super) fn tokens_of_sample(recipe: &ResolvedRecipe, run: &Path) -> f64 {
    if let Some(index) = prepared(run) {
        return index.tokens as f64 / index.samples.max(1) as f64;
    }
    let longest = recipe.data.max_length as f64;
    let train = recipe.data.train_sources();
    let train = train.and_then(|sources| sources.here(&hub_options()).ok());
    let bytes = train.and_then(|train| bytes_of_row(&train));
    bytes.map_or(longest / 2.0, |bytes| {
        longest.min(bytes / BYTES_PER_TOKEN as f64)
    })
}

/// Bytes of a row with its copies, on average of the first ones that can be read.
fn bytes_of_row(data: &Dataset) -> Option<f64> {
    let rows = data.rows().ok()?.take(SAMPLED_ROWS).flatten();
    let lengths = rows.map(|row| (row.row.to_json().len() * row.copies) as f64);
    let lengths: Vec<f64> = lengths.collect();
    (!lengths.is_empty()).then(|| lengths.iter().sum::<f64>() / lengths.len() as f64)
}

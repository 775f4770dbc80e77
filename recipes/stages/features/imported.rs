//! Features that others captured and `spectrain features import` has proven, of the samples that a run trains on and is judged by.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use spectrain_data::features::{FeatureShards, StoredSample};
use spectrain_data::tokens::TokenShards;
use spectrain_models::Capture;

use crate::errors::Misuse;
use crate::runtime::interruption::check_interrupted;
use crate::runtime::target;
use crate::stages::context::StageContext;
use crate::stages::features::header::header;
use crate::stages::features::served::{HELD_OUT, answers_at};

/// Imported features, found by their tokens.
struct Imported<'a> {
    context: &'a StageContext<'a>,
    shards: FeatureShards,
    capture: Capture,
    /// Where the layers that the drafter reads stand among the imported ones.
    columns: Vec<usize>,
    /// The sample that begins with some tokens: all of it, or as many as a sample of this run may have.
    by_tokens: HashMap<Vec<u32>, usize>,
}

/// Runs the stage.
pub(super) fn run(context: &StageContext) -> Result<Value> {
    let stage = context.features_folder();
    let prepared = context.folder("prepare");
    let imported = Imported::open(context)?;
    let train = TokenShards::open(prepared.join("train"))?;
    imported.write(&stage, ("features", "data.train"), &train)?;
    let held_out = TokenShards::open(prepared.join("eval"))?;
    imported.write(&stage.join(HELD_OUT), ("held out", "data.eval"), &held_out)?;
    for sampling in context.recipe.evaluate.samplings() {
        let folder = stage.join(answers_at(sampling.temperature));
        let what = format!("answers at T={}", sampling.temperature);
        imported.write(&folder, (&what, "data.eval"), &held_out)?;
    }
    Ok(json!({"samples": train.len(), "held_out": held_out.len()}))
}

impl<'a> Imported<'a> {
    fn open(context: &'a StageContext) -> Result<Self> {
        let Some(folder) = &context.recipe.features.imported else {
            let message =
                "`features.imported` is missing: the folder that `spectrain features import` wrote";
            return Err(Misuse(message.into()).into());
        };
        let named = folder.display();
        let shards = FeatureShards::open(folder)?;
        let capture = context
            .recipe
            .method
            .capture(&target::spec(&context.target_folder()?)?)?;
        let sha256 = context.target_sha256()?;
        let found = shards.header();
        if found.target_sha256 != sha256 {
            bail!(
                "`{named}`: `target_sha256`: expected {sha256}, found {}",
                found.target_sha256
            );
        }
        let column = |layer: &usize| {
            found
                .captured_layers
                .iter()
                .position(|found| found == layer)
        };
        let columns: Option<Vec<usize>> = capture.layers.iter().map(column).collect();
        let Some(columns) = columns else {
            bail!(
                "`{named}`: `captured_layers`: expected the layers {:?}, which the drafter reads, found {:?}",
                capture.layers,
                found.captured_layers
            );
        };
        let longest = context.recipe.data.max_length;
        let numbered = (0..shards.len()).rev();
        let by_tokens = numbered.map(|sample| {
            let tokens = shards.get(sample).tokens;
            (tokens[..tokens.len().min(longest)].to_vec(), sample)
        });
        Ok(Self {
            by_tokens: by_tokens.collect(),
            context,
            shards,
            capture,
            columns,
        })
    }

    /// Writes the features of `tokens`, from where an earlier run stopped.
    fn write(&self, folder: &Path, (what, key): (&str, &str), tokens: &TokenShards) -> Result<()> {
        let context = self.context;
        let d_model = self.shards.header().d_model;
        let header = header(context, &self.capture, tokens.fingerprint(), d_model)?;
        let share = context.array.share(tokens.len());
        if share.is_empty() {
            return Ok(());
        }
        let mut writer = context.feature_writer(folder, header, share)?;
        let mut progress = context.progress(what, share.end);
        for number in writer.next_sample() as usize..share.end as usize {
            if let Err(interrupted) = check_interrupted() {
                writer.pause()?;
                return Err(interrupted);
            }
            let sample = tokens.get(number);
            let Some(&found) = self.by_tokens.get(sample.tokens) else {
                bail!(
                    "sample {number} of `{key}`: expected one of the imported texts, found other tokens: `tokens.jsonl` beside the imported \
                     features has theirs"
                );
            };
            let stored = self.shards.get(found);
            writer.push(&StoredSample {
                tokens: sample.tokens,
                loss_mask: sample.loss_mask,
                captured: &self.picked(stored.captured, sample.tokens.len()),
                last: &stored.last[..sample.tokens.len() * d_model],
            })?;
            progress.set(1 + number as u64, "samples");
        }
        let written = writer.finish()?;
        let files = written
            .into_iter()
            .map(|(file, sha256)| (folder.join(file), sha256));
        context.run.remember(files)?;
        progress.finish(format!("{} samples", share.end - share.first));
        Ok(())
    }

    /// The layers that the drafter reads, of the first tokens.
    fn picked(&self, captured: &[u16], tokens: usize) -> Vec<u16> {
        let header = self.shards.header();
        let (layers, d_model) = (header.captured_layers.len(), header.d_model);
        let rows = captured.chunks((layers * d_model).max(1)).take(tokens);
        let columns = |row: &'_ [u16]| -> Vec<u16> {
            let parts = self.columns.iter();
            parts
                .flat_map(|column| row[column * d_model..(column + 1) * d_model].to_vec())
                .collect()
        };
        rows.flat_map(columns).collect()
    }
}

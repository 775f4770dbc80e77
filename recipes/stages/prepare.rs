//! Conversations to tokens, loss masks, token counts and evaluation prompts.

use std::fmt::Display;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spectrain_checkpoints::atomic::write_file;
use spectrain_data::conversation::Sample;
use spectrain_data::dataset::Dataset;
use spectrain_data::held_out::HeldOut;
use spectrain_data::hub_data::FetchedData;
use spectrain_data::prepare::{Category, PrepareReport};
use spectrain_data::prompts::Labels;
use spectrain_data::rows::LocatedRow;
use spectrain_data::template::ChatTemplate;
use spectrain_data::vocabulary::TokenCounts;
use spectrain_eval::Prompt;

use crate::progress::counted;
use crate::runs::prepared::DATE;
use crate::runs::run_folder::RunFolder;
use crate::runs::stage_names;
use crate::runtime::interruption::{check_interrupted, interrupted};
use crate::runtime::prompts::{too_long, without_prompt};
use crate::runtime::text::{LINTED_ROWS, Prompts, RowsOf, Text};
use crate::runtime::weights::check_weights;
use crate::stages::context::StageContext;

/// What is wrong with the data, as JSON.
const LINT: &str = "lint.json";

/// What users know the data by that is trained on.
pub(crate) const TRAIN_DATA: &str = "`data.train`";
/// What they know the data by that is evaluated with, where the recipe names some.
pub(crate) const EVAL_DATA: &str = "`data.eval`";
/// What they know the data by that is evaluated with, where the recipe names none.
pub(crate) const HELD_OUT_DATA: &str = "the held-out rows of `data.train`";

/// Runs the stage.
pub fn run(context: &StageContext) -> Result<Value> {
    let folder = context.folder(stage_names::PREPARE);
    let data = &context.recipe.data;
    let target = context.target_folder()?;
    // One that was downloaded just now was not looked at before.
    check_weights(&target, context.recipe.features.mode)?;
    let text = context.text()?;
    let sets = Sets::of(context, &text)?;
    sets.announce(context);
    let mut counts = TokenCounts::new(text.settings.vocab);
    let train = write_tokens(
        &text,
        context,
        (sets.train()?, &sets.train.to_string()),
        ("train", TRAIN_DATA),
        &mut |sample| counts.add(sample),
    )?;
    let unusable = sets.train.unusable();
    let of_eval = sets
        .eval
        .as_ref()
        .map(Dataset::to_string)
        .unwrap_or_default();
    let eval_data = sets.eval_data();
    let eval = write_tokens(
        &text,
        context,
        (sets.eval()?, &of_eval),
        ("eval", eval_data),
        &mut |_| Ok(()),
    )?;

    write(&folder.join("counts.json"), &json!(counts.counts()))?;

    let prompts = text.prompts(sets.eval()?);
    let prompts = prompts.map_err(|error| not_asked(error, eval_data))?;
    let stored: Vec<StoredPrompt> = prompts.prompts.iter().map(StoredPrompt::of).collect();
    write(&folder.join("prompts.json"), &json!(stored))?;

    let written = [(TRAIN_DATA, &train), (eval_data, &eval)];
    let problems = check_data(&text, context, &sets, written)?;
    for problem in &problems {
        context.output.warn(problem);
    }
    let mut summary = json!({
        "train": train,
        "eval": eval,
        "prompts": prompts.prompts.len(),
        "warnings": problems,
    });
    let template = text.template.as_ref();
    if template.is_some_and(ChatTemplate::reads_date) {
        summary[DATE] = json!(context.day()?);
    }
    sets.record(context, &mut summary, unusable);
    if let Some(held_out) = &sets.held_out {
        let (prompts, rows) = (held_out.prompts(), held_out.rows());
        context.output.say(told_of_held_out(prompts, rows));
        summary["held_out"] = json!({"share": data.held_out(), "prompts": prompts, "rows": rows});
    }
    record_left_out(context, &mut summary, &prompts);
    Ok(summary)
}

/// Says how many prompts are left out and how many rows have none, and adds both to the manifest.
fn record_left_out(context: &StageContext, summary: &mut Value, prompts: &Prompts) {
    let (long, untold) = (prompts.too_long, prompts.all_trained);
    let left_out = [
        (
            "prompts_too_long",
            long,
            too_long("prompts", "`data.max_length`", long),
        ),
        (
            "rows_without_prompt",
            untold,
            without_prompt("rows", untold),
        ),
    ];
    for (key, count, told) in left_out {
        if let Some(told) = told {
            context.output.warn(told);
            summary[key] = json!(count);
        }
    }
}

/// Says of which data an error of its prompts is, and where others can be named than those that are held out.
pub(crate) fn not_asked(error: anyhow::Error, data: &'static str) -> anyhow::Error {
    match data {
        HELD_OUT_DATA => error.context(format!("{data} (`data.eval` can name others)")),
        data => error.context(data),
    }
}

/// What is said of so many prompts and rows that are held out.
fn told_of_held_out(prompts: usize, rows: usize) -> String {
    let why = match rows > prompts {
        true => ": rows with the same prompt stay together",
        false => "",
    };
    format!(
        "prepare: held out of `data.train` for the evaluation: {} in {}{why}",
        counted(prompts as u64, "prompt"),
        counted(rows as u64, "row")
    )
}

/// What is trained on and what is evaluated with.
struct Sets {
    train: Dataset,
    /// What `train` was before the target answered it anew, if it did.
    given: Option<Dataset>,
    eval: Option<Dataset>,
    /// Which rows of `train` are evaluated with, where there is no `eval`.
    held_out: Option<HeldOut>,
}

impl Sets {
    fn of(context: &StageContext, text: &Text) -> Result<Self> {
        let (train, eval) = (context.train_data()?, context.eval_data()?);
        let share = context.recipe.data.held_out();
        let held_out = match &eval {
            Some(_) => None,
            None => {
                let rows = train.rows()?.take_while(|_| !interrupted());
                let held_out = held_out(text, rows, share);
                check_interrupted()?;
                Some(held_out?)
            }
        };
        let given = context.recipe.regenerate.as_ref();
        let given = given.map(|_| context.given_data()).transpose()?;
        Ok(Self {
            train,
            given,
            eval,
            held_out,
        })
    }

    /// What of these is of the hub.
    fn of_hub(&self) -> impl Iterator<Item = (&'static str, &FetchedData)> {
        let given = self.given.as_ref().unwrap_or(&self.train);
        let train = given.of_hub().map(|data| ("train", data));
        let eval = self.eval.iter().flat_map(Dataset::of_hub);
        train.chain(eval.map(|data| ("eval", data)))
    }

    /// What to say of files that stand beside theirs and are not read.
    fn not_read(&self) -> impl Iterator<Item = String> {
        let given = self.given.as_ref().unwrap_or(&self.train);
        let sets = [(TRAIN_DATA, Some(given)), (EVAL_DATA, self.eval.as_ref())];
        let sets = sets
            .into_iter()
            .filter_map(|(data, set)| Some((data, set?)));
        sets.flat_map(|(data, set)| {
            let remarks = set.not_read().into_iter();
            remarks.map(move |remark| format!("{data}: {remark}"))
        })
    }

    /// Says which datasets of the hub these are.
    fn announce(&self, context: &StageContext) {
        for (key, data) in self.of_hub() {
            context.output.say(format!("prepare: `data.{key}`: {data}"));
            if let Some(remark) = &data.remark {
                context.output.warn(format!("`data.{key}`: {remark}"));
            }
        }
    }

    /// Adds to the manifest which commits of the hub's datasets these are, how many rows were of no use, and what of the training
    /// data is not read.
    fn record(&self, context: &StageContext, summary: &mut Value, unusable: Category) {
        let of_hub: Vec<Value> = self
            .of_hub()
            .map(|(key, data)| {
                let mut data = json!(data);
                data["key"] = json!(format!("data.{key}"));
                data
            })
            .collect();
        if !of_hub.is_empty() {
            summary["datasets"] = json!(of_hub);
        }
        if !unusable.is_none() {
            context
                .output
                .say(format!("prepare: {}", unusable.left_out()));
            summary["rows_of_no_use"] = json!(unusable);
        }
        if let Some(left_out) = self.train.left_out() {
            let message = format!("prepare: `data.max_samples`: {left_out}");
            context.output.say(message);
            summary["left_out"] = json!(left_out);
        }
    }

    /// What users know the rows by that are evaluated with.
    fn eval_data(&self) -> &'static str {
        match self.held_out {
            Some(_) => HELD_OUT_DATA,
            None => EVAL_DATA,
        }
    }

    fn train(&self) -> Result<RowsOf<'_>> {
        let rows = self.train.rows()?;
        Ok(match &self.held_out {
            Some(held_out) => Box::new(held_out.left(rows)),
            None => Box::new(rows),
        })
    }

    fn eval(&self) -> Result<RowsOf<'_>> {
        Ok(match (&self.eval, &self.held_out) {
            (Some(eval), _) => Box::new(eval.rows()?),
            (None, Some(held_out)) => Box::new(held_out.held(self.train.rows()?)),
            (None, None) => Box::new(std::iter::empty()),
        })
    }
}

/// Holds out a share of the prompts to evaluate with. `data.eval` is to blame only where `data.train` can be read.
pub(crate) fn held_out(
    text: &Text,
    rows: impl IntoIterator<Item = spectrain_data::Result<LocatedRow>>,
    share: f64,
) -> Result<HeldOut> {
    let with = (text.template.as_ref(), text.settings.unusable);
    HeldOut::of(rows, share, with).map_err(|error| {
        let is_too_little = matches!(error, spectrain_data::Error::NothingToHoldOut { .. });
        let error = anyhow::Error::from(error);
        if is_too_little {
            error.context("`data.eval` is not set")
        } else {
            not_prepared(error, TRAIN_DATA, "")
        }
    })
}

/// The setting that leaves rows out that cannot be used.
pub(super) const DROP: &str = "data.unusable = \"drop\"";

/// An error of a row with what is said behind it, where `setting` leaves such rows out.
pub(crate) fn of_row(error: impl Display, setting: &str) -> String {
    format!("{error}; `{setting}` leaves such rows out, and `spectrain data lint` finds them all")
}

/// Says of which `data` an error is, which come from `sources`, where these are known.
pub(crate) fn not_prepared(error: anyhow::Error, data: &str, sources: &str) -> anyhow::Error {
    let message = match error.downcast_ref::<spectrain_data::Error>() {
        // Of one row or file the error says where it is, but not of all.
        Some(spectrain_data::Error::NothingKept { .. }) if !sources.is_empty() => {
            format!("cannot prepare {data}, {sources}")
        }
        Some(found) if found.is_of_row() => {
            format!("cannot prepare {data}: {}", of_row(found, DROP))
        }
        _ => format!("cannot prepare {data}"),
    };
    error.context(message)
}

/// How often each token of the target occurs in what is trained on.
pub fn counts(run: &RunFolder) -> Result<Vec<u64>> {
    read(&run.stage(stage_names::PREPARE).join("counts.json"))
}

/// The evaluation prompts.
pub fn labelled_prompts(run: &RunFolder) -> Result<Vec<Prompt>> {
    let stored: Vec<StoredPrompt> = read(&run.stage(stage_names::PREPARE).join("prompts.json"))?;
    Ok(stored.into_iter().map(Prompt::from).collect())
}

/// The evaluation prompts as tokens.
pub fn prompts(run: &RunFolder) -> Result<Vec<Vec<u32>>> {
    let prompts = labelled_prompts(run)?.into_iter();
    Ok(prompts.map(|prompt| prompt.tokens).collect())
}

/// A prompt in `prompts.json`: its tokens, or what it has beside them.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StoredPrompt {
    Tokens(Vec<u32>),
    Labelled {
        tokens: Vec<u32>,
        #[serde(flatten)]
        labels: Labels,
    },
}

impl StoredPrompt {
    fn of(prompt: &Prompt) -> Self {
        let labels = Labels {
            category: prompt.category.clone(),
            language: prompt.language.clone(),
        };
        let tokens = prompt.tokens.clone();
        if labels.is_empty() {
            Self::Tokens(tokens)
        } else {
            Self::Labelled { tokens, labels }
        }
    }
}

impl From<StoredPrompt> for Prompt {
    fn from(stored: StoredPrompt) -> Self {
        match stored {
            StoredPrompt::Tokens(tokens) => tokens.into(),
            StoredPrompt::Labelled { tokens, labels } => Self {
                category: labels.category,
                language: labels.language,
                ..tokens.into()
            },
        }
    }
}

/// Writes the tokens of a set of rows into the folder of its name, and calls `look` with each sample; `data` is what users know the
/// rows by.
fn write_tokens(
    text: &Text,
    context: &StageContext,
    (rows, sources): (RowsOf<'_>, &str),
    (name, data): (&str, &str),
    look: &mut dyn FnMut(&Sample) -> spectrain_data::Result<()>,
) -> Result<PrepareReport> {
    let mut progress = context.progress(&format!("prepare {name}"), 0);
    let mut samples = 0;
    let folder = context.folder(stage_names::PREPARE).join(name);
    let report = text.write(rows, &folder, &mut |sample| {
        samples += 1;
        progress.set(samples, "samples");
        look(sample)
    });
    let report = report.map_err(|error| not_prepared(error, data, sources))?;
    progress.finish(report.totals());
    Ok(report)
}

/// Writes what there is to say about the data, and returns the problems: each once, those that were counted when the sets were
/// written by what was counted then.
fn check_data(
    text: &Text,
    context: &StageContext,
    sets: &Sets,
    written: [(&str, &PrepareReport); 2],
) -> Result<Vec<String>> {
    let folder = context.folder(stage_names::PREPARE);
    let target = context.target_folder()?;
    let report = text.lint(&target, [sets.train()?, sets.eval()?])?;
    write(
        &folder.join(LINT),
        &json!({"rows_at_most": LINTED_ROWS, "report": report}),
    )?;
    write_file(&folder.join("lint.txt"), report.to_string().as_bytes())?;
    let remarks = written.into_iter().flat_map(|(name, report)| {
        let remarks = report.remarks().into_iter();
        remarks.map(move |remark| format!("{name}: {remark}"))
    });
    let problems = report.beside_preparation().problems();
    let problems = problems.into_iter().chain(text.endless(&target));
    Ok(sets.not_read().chain(remarks).chain(problems).collect())
}

fn write(path: &Path, value: &Value) -> Result<()> {
    Ok(write_file(path, value.to_string().as_bytes())?)
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read `{}`; run the stage `prepare`", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("cannot read `{}`", path.display()))
}

#[cfg(test)]
mod tests;

//! Conversations to tokens, loss masks, token counts and evaluation prompts.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};
use spectrain_checkpoints::atomic::write_file;
use spectrain_data::conversation::Content;
use spectrain_data::held_out::HeldOut;
use spectrain_data::lint::{Linter, lint};
use spectrain_data::mask;
use spectrain_data::prepare::{Duplicates, PrepareReport, PrepareSettings, prepare};
use spectrain_data::rows::{LocatedRow, read_rows};
use spectrain_data::sources::Sources;
use spectrain_data::template::ChatTemplate;
use spectrain_data::tokenizer::Tokenizer;
use spectrain_data::tokens::{TokenShards, TokenWriter};
use spectrain_data::vocabulary::count_tokens;

use super::{StageContext, check_interrupted, interrupted};
use crate::recipe::tables::DataTable;
use crate::runs::run_folder::RunFolder;
use crate::runtime::target::{self, TEMPLATE_VARIABLES};

/// Tokens of one shard.
const TOKENS_PER_SHARD: usize = 4_000_000;
/// Rows of each set that are linted: tokenising everything twice would double the time of this stage.
const LINTED_ROWS: usize = 20_000;
/// Sizes of draft vocabulary whose coverage is reported.
const DRAFT_VOCABULARIES: [usize; 5] = [1024, 8192, 16_384, 32_000, 64_000];

/// Runs the stage.
pub fn run(context: &StageContext) -> Result<Value> {
    let folder = context.folder("prepare");
    let data = &context.recipe.data;
    let text = Text::of(&context.target_folder()?, data)?;
    let sets = Sets::of(context, &text)?;
    let train = text.write_tokens(context, sets.train()?, "train")?;
    let eval = text.write_tokens(context, sets.eval()?, "eval")?;

    let shards = TokenShards::open(folder.join("train"))?;
    let counts = count_tokens(shards.iter(), text.settings.vocab)?;
    write(&folder.join("counts.json"), &json!(counts))?;

    let prompts = text.prompts(sets.eval()?).context("`data.eval`")?;
    write(&folder.join("prompts.json"), &json!(prompts.tokens))?;

    let problems = text.lint(&folder, &sets)?;
    for problem in &problems {
        context.output.warn(problem);
    }
    let mut summary = json!({
        "train": train,
        "eval": eval,
        "prompts": prompts.tokens.len(),
        "warnings": problems,
    });
    if let Some(held_out) = &sets.held_out {
        let (prompts, rows) = (held_out.prompts(), held_out.rows());
        context.output.say(format!(
            "prepare: {prompts} prompts ({rows} rows) are held out of `data.train` for the evaluation"
        ));
        summary["held_out"] = json!({"share": data.held_out(), "prompts": prompts, "rows": rows});
    }
    if prompts.too_long > 0 {
        let what = match prompts.too_long {
            1 => "1 prompt is".to_owned(),
            several => format!("{several} prompts are"),
        };
        context
            .output
            .warn(format!("{what} longer than `data.max_length` and left out"));
        summary["prompts_too_long"] = json!(prompts.too_long);
    }
    Ok(summary)
}

/// Rows, whatever they come from.
type RowsOf<'a> = Box<dyn Iterator<Item = spectrain_data::Result<LocatedRow>> + 'a>;

/// What is trained on and what is evaluated with.
struct Sets {
    train: Sources,
    eval: Option<Sources>,
    /// Which rows of `train` are evaluated with, where there is no `eval`.
    held_out: Option<HeldOut>,
}

impl Sets {
    fn of(context: &StageContext, text: &Text) -> Result<Self> {
        let (train, eval) = (context.train_data()?, context.eval_data());
        let share = context.recipe.data.held_out();
        let held_out = match &eval {
            Some(_) => None,
            None => {
                let rows = train.rows()?.take_while(|_| !interrupted());
                let held_out = HeldOut::of(rows, share, text.template.as_ref());
                check_interrupted()?;
                Some(held_out.context("`data.eval` is left out")?)
            }
        };
        Ok(Self {
            train,
            eval,
            held_out,
        })
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

/// How often each token of the target occurs in what is trained on.
pub fn counts(run: &RunFolder) -> Result<Vec<u64>> {
    read(&run.stage("prepare").join("counts.json"))
}

/// The evaluation prompts as tokens.
pub fn prompts(run: &RunFolder) -> Result<Vec<Vec<u32>>> {
    read(&run.stage("prepare").join("prompts.json"))
}

/// What turns conversations into tokens.
pub struct Text {
    /// The target's.
    pub tokenizer: Tokenizer,
    /// The recipe's, else the target's, if it has one.
    pub template: Option<ChatTemplate>,
    /// What a sample must be.
    pub settings: PrepareSettings,
}

/// Evaluation prompts.
pub struct Prompts {
    /// Their tokens.
    pub tokens: Vec<Vec<u32>>,
    /// How many were left out.
    pub too_long: usize,
}

impl Text {
    /// Reads tokenizer and template of the target in `folder`.
    pub fn of(folder: &Path, data: &DataTable) -> Result<Self> {
        let (tokenizer, template) =
            target::text(folder, data.template.as_deref(), &data.template_variables)?;
        let settings = PrepareSettings {
            max_length: data.max_length,
            overlong: data.overlong,
            masking: data.mask,
            turns: data.turns,
            min_trained_tokens: data.min_trained_tokens,
            duplicates: Duplicates::Keep,
            vocab: target::spec(folder)?.vocab,
        };
        Ok(Self {
            tokenizer,
            template,
            settings,
        })
    }

    fn write_tokens(
        &self,
        context: &StageContext,
        rows: RowsOf<'_>,
        name: &str,
    ) -> Result<PrepareReport> {
        let mut progress = context.progress(&format!("prepare {name}"), 0);
        let mut samples = 0;
        let folder = context.folder("prepare").join(name);
        let report = self.write(rows, &folder, &mut || {
            samples += 1;
            progress.set(samples, "samples");
        });
        // Of one row or file the error says where it is, but not of all.
        let all = matches!(
            report.as_ref().map_err(|error| error.downcast_ref()),
            Err(Some(spectrain_data::Error::NothingKept { .. }))
        );
        let sources = match name {
            _ if !all => None,
            "train" => context.train_data().ok(),
            _ => context.eval_data(),
        };
        let report = report.with_context(|| match sources {
            Some(sources) => format!("cannot prepare `data.{name}`, {sources}"),
            None => format!("cannot prepare `data.{name}`"),
        })?;
        progress.finish(&report);
        Ok(report)
    }

    /// Writes the token shards of the rows of a file, folder or pattern to `folder`.
    pub fn write_file(&self, data: &Path, folder: &Path) -> Result<PrepareReport> {
        self.write(Box::new(read_rows(data)?), folder, &mut || {})
            .with_context(|| format!("cannot prepare `{}`", data.display()))
    }

    /// Writes the token shards of rows to `folder`; `sample` is called for each sample in them.
    fn write(
        &self,
        rows: RowsOf<'_>,
        folder: &Path,
        sample: &mut dyn FnMut(),
    ) -> Result<PrepareReport> {
        let mut writer = TokenWriter::create(folder, TOKENS_PER_SHARD)?;
        let report = prepare(
            rows.take_while(|_| !interrupted()),
            self.template.as_ref(),
            &self.tokenizer,
            &self.settings,
            &mut |kept| {
                writer.push(&kept)?;
                sample();
                Ok(())
            },
        );
        check_interrupted()?;
        let report = report?;
        let mut extra = Map::new();
        extra.insert("tokenizer".into(), json!(self.tokenizer.fingerprint()));
        extra.insert("settings".into(), json!(self.settings));
        let variables = self.template.as_ref().map(ChatTemplate::variables);
        extra.insert(TEMPLATE_VARIABLES.into(), json!(variables));
        writer.finish(extra)?;
        Ok(report)
    }

    /// The prompts of a file, folder or pattern.
    pub fn prompts_of(&self, data: &Path) -> Result<Prompts> {
        self.prompts(Box::new(read_rows(data)?))
            .with_context(|| format!("`{}`", data.display()))
    }

    /// The prompts of rows: each conversation up to its last answer.
    fn prompts(&self, rows: RowsOf<'_>) -> Result<Prompts> {
        let mut prompts = Prompts {
            tokens: Vec::new(),
            too_long: 0,
        };
        for row in rows {
            check_interrupted()?;
            let LocatedRow { location, row, .. } = row?;
            let tokens = match (&row.content, &self.template) {
                (Content::Tokens(sample), _) => sample.prompt().to_vec(),
                (Content::Conversation(conversation), Some(template)) => {
                    mask::prompt(conversation, template, &self.tokenizer)
                        .with_context(|| location.to_string())?
                }
                (Content::Conversation(_), None) => bail!(
                    "{location}: a conversation needs a chat template, and the target has none"
                ),
            };
            if let Some(token) = tokens
                .iter()
                .find(|&&token| token as usize >= self.settings.vocab)
            {
                let vocab = self.settings.vocab;
                bail!("{location}: token {token} is outside the target's vocabulary of {vocab}");
            }
            match tokens.len() {
                0 => {}
                length if length > self.settings.max_length => prompts.too_long += 1,
                _ => prompts.tokens.push(tokens),
            }
        }
        match prompts.tokens.is_empty() {
            true => bail!(
                "it holds no prompt of at most {} tokens",
                self.settings.max_length
            ),
            false => Ok(prompts),
        }
    }

    fn lint(&self, folder: &Path, sets: &Sets) -> Result<Vec<String>> {
        let vocab = self.settings.vocab;
        let sizes: Vec<usize> = DRAFT_VOCABULARIES
            .into_iter()
            .filter(|&size| size < vocab)
            .collect();
        let linter = Linter {
            template: self.template.as_ref(),
            tokenizer: &self.tokenizer,
            settings: &self.settings,
            draft_vocabularies: &sizes,
            shown: 2,
        };
        let train = sets
            .train()?
            .take(LINTED_ROWS)
            .take_while(|_| !interrupted());
        let eval = sets
            .eval()?
            .take(LINTED_ROWS)
            .take_while(|_| !interrupted());
        let report = lint(train, eval, &linter);
        check_interrupted()?;
        let report = report?;
        write(
            &folder.join("lint.json"),
            &json!({"rows_at_most": LINTED_ROWS, "report": report}),
        )?;
        write_file(&folder.join("lint.txt"), report.to_string().as_bytes())?;
        Ok(report.problems())
    }
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

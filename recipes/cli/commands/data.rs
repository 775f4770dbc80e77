//! `spectrain data`: a dataset by itself.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use serde_json::json;
use spectrain_checkpoints::atomic::write_file;
use spectrain_checkpoints::columns::listed;
use spectrain_data::dataset::Dataset;
use spectrain_data::lint::{DRAFT_VOCABULARIES, LintReport, Linter, lint};
use spectrain_data::mask::Masking;
use spectrain_data::prepare::{Overlong, Turns};
use spectrain_data::presets::{PRESETS, Preset};
use spectrain_data::prompts::sets::{HubFile, KNOWN};
use spectrain_data::rows::is_same;
use spectrain_data::sources::Sources;
use spectrain_data::tokens::TokenWriter;
use spectrain_data::unusable::Unusable;

use crate::cli::arguments::{
    DataArgument, LimitArgument, TemplateArgument, UnusableArgument, advised_of_rows,
    check_written, dataset, sources_parser, together, word,
};
use crate::cli::commands::regenerate;
use crate::cli::commands::regenerate::arguments::RegenerateArguments;
use crate::errors::Misuse;
use crate::progress::{Output, counted, print, print_json, tell};
use crate::recipe::tables::DataTable;
use crate::runtime::interruption::{check_interrupted, interrupted};
use crate::runtime::target;
use crate::runtime::text::{Text, longer_texts};
use crate::runtime::writable::writable_file;

/// Commands of `spectrain data`.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Write the tokens and loss masks of conversations
    Prepare {
        /// Where the conversations are
        #[command(flatten)]
        data: DataArgument,
        /// The folder to write
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// How many rows are read
        #[command(flatten)]
        limit: LimitArgument,
        /// What happens to rows that cannot be used
        #[command(flatten)]
        unusable: UnusableArgument,
        /// How conversations become tokens
        #[command(flatten)]
        text: TextArguments,
    },
    /// List the prompt sets that `evaluate` knows by name
    Prompts,
    /// List the datasets that `data.preset` knows by name
    Presets,
    /// Have a target answer the turns of conversations anew
    Regenerate(RegenerateArguments),
    /// Report what is in a dataset and what is wrong with it; exit with status 1 if something is
    Lint(LintArguments),
}

/// What is linted, and how.
#[derive(Debug, clap::Args)]
pub struct LintArguments {
    /// Conversations to train on: a file, a folder, a pattern or a dataset on the hub (`hf://org/name`); or a table or a list as in
    /// `data.train` of a recipe, such as `{ path = "b.jsonl", weight = 2 }`; may be repeated
    #[arg(long, value_name = "PATH", required_unless_present = "preset", value_parser = sources_parser())]
    train: Vec<Sources>,
    /// In place of `--train`: the name of a dataset that `spectrain data presets` lists
    #[arg(long, value_name = "NAME", conflicts_with = "train")]
    preset: Option<String>,
    /// Conversations to evaluate with, given in the same way; may be repeated
    #[arg(long, value_name = "PATH", value_parser = sources_parser())]
    eval: Vec<Sources>,
    /// Samples to show; the tokens that are trained on are between ⟦ and ⟧
    #[arg(long, value_name = "N", default_value_t = 2)]
    show: usize,
    /// A size of draft vocabulary whose coverage to report; may be repeated. Without it, those of 1024, 8192, 16384, 32000 and
    /// 64000 that are smaller than the target's vocabulary
    #[arg(long = "draft-vocab", value_name = "TOKENS")]
    draft_vocabularies: Vec<usize>,
    /// A `.jsonl` file that lists every row with a problem: its set, the problem, its file and row, and why it cannot be used
    #[arg(long, value_name = "FILE")]
    rows: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// How conversations become tokens
    #[command(flatten)]
    text: TextArguments,
}

/// How conversations become tokens.
#[derive(Debug, clap::Args)]
pub struct TextArguments {
    /// The target, a hub id or a folder: its tokenizer and chat template are used
    #[arg(long)]
    target: String,
    /// A chat template in place of the target's own
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// Longest sample, in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 2048)]
    max_length: usize,
    /// What happens to longer samples: `drop` or `truncate`
    #[arg(long, default_value = "drop", value_parser = overlong)]
    overlong: Overlong,
    /// The tokens trained on: `assistant`, `last_turn` or `all`
    #[arg(long, default_value = "assistant", value_parser = masking)]
    mask: Masking,
    /// Whether a conversation is one sample or one for each answer: `auto`, `joined` or `expand`
    #[arg(long, default_value = "auto", value_parser = word::<Turns>)]
    turns: Turns,
    /// Samples with fewer tokens to train on than this are left out
    #[arg(long, value_name = "TOKENS", default_value_t = 1)]
    min_trained_tokens: usize,
    #[command(flatten)]
    variables: TemplateArgument,
}

fn overlong(name: &str) -> Result<Overlong, String> {
    word(name)
}

fn masking(name: &str) -> Result<Masking, String> {
    word(name)
}

impl TextArguments {
    fn open(&self, unusable: Unusable) -> Result<Text> {
        let data = DataTable {
            max_length: self.max_length,
            overlong: self.overlong,
            mask: self.mask,
            template: self.template.clone(),
            template_variables: self.variables.given(),
            turns: self.turns,
            min_trained_tokens: self.min_trained_tokens,
            unusable,
            ..DataTable::default()
        };
        data.check().map_err(|problem| problem.of_option())?;
        Text::of(&self.target_folder()?, &data)
    }

    fn target_folder(&self) -> Result<PathBuf> {
        target::resolve(&self.target, None)
    }

    /// Warns of what holds of the target and these arguments, whatever the rows are.
    fn warn(&self, text: &Text) -> Result<()> {
        let folder = self.target_folder()?;
        let positions = target::spec(&folder)?.max_positions;
        let longer = longer_texts("--max-length", self.max_length, positions);
        for warning in longer.into_iter().chain(text.endless(&folder)) {
            Output::detect().warn(warning);
        }
        Ok(())
    }
}

/// Each known set of prompts with what it is, its file on the hub, and its licence.
fn known_prompts() -> String {
    listed(KNOWN.iter().flat_map(|set| {
        let from = match set.hub {
            Some(HubFile { repository, file }) => format!("{repository}, {file}"),
            None => format!("{}=PATH", set.name),
        };
        let from = format!("{from}; licence: {}", set.licence);
        [(set.name, set.about.to_owned()), ("", from)]
    }))
}

/// Each preset with what it is, where it is, and its licence.
fn presets() -> String {
    listed(PRESETS.iter().flat_map(|preset| {
        let Preset {
            name,
            about,
            address,
            conversion,
            licence,
        } = preset;
        let from = format!("{address}; {conversion}; licence: {licence}");
        [(*name, (*about).to_owned()), ("", from)]
    }))
}

/// Runs the command.
pub fn run(command: &DataCommand) -> Result<()> {
    match command {
        DataCommand::Prepare {
            data,
            out,
            limit,
            unusable,
            text,
        } => {
            let dataset = dataset(&data.sources()?, Output::detect())?.at_most(limit.rows());
            prepare((&dataset, out.as_path()), text, unusable.unusable)?;
        }
        DataCommand::Prompts => print(known_prompts())?,
        DataCommand::Presets => print(presets())?,
        DataCommand::Regenerate(arguments) => regenerate::run(arguments)?,
        DataCommand::Lint(arguments) => arguments.run()?,
    }
    Ok(())
}

/// Writes the tokens of a dataset into a folder.
fn prepare(
    (dataset, out): (&Dataset, &Path),
    arguments: &TextArguments,
    unusable: Unusable,
) -> Result<()> {
    check_written("--out", out, "--data", is_replaced(dataset, out))?;
    let text = arguments.open(unusable)?;
    arguments.warn(&text)?;
    let written = text.write(Box::new(dataset.rows()?), out, &mut |_| Ok(()));
    let written = written.map_err(advised_of_rows);
    let written = written.with_context(|| format!("cannot prepare {dataset}"))?;
    let unusable = dataset.unusable();
    if !unusable.is_none() {
        tell(unusable.left_out());
    }
    if let Some(left_out) = dataset.left_out() {
        tell(format!("`--limit`: {left_out}"));
    }
    // It reads the rows once more, and counts anew those that are of no use.
    let rows = Box::new(dataset.rows()?);
    let found = text.lint(
        &arguments.target_folder()?,
        [rows, Box::new(std::iter::empty())],
    )?;
    for problem in found.beside_preparation().problems() {
        Output::detect().warn(problem);
    }
    print(format!("{written}\n"))
}

/// Whether tokens in a folder would take the place of files of a dataset, or be read with them the next time.
fn is_replaced(dataset: &Dataset, folder: &Path) -> bool {
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names = names.map(|entry| entry.file_name());
    dataset.reads(&folder.join(TokenWriter::shard(0)))
        || names.any(|name| TokenWriter::replaces(&name) && dataset.reads(&folder.join(&name)))
}

/// Writes the rows that something is wrong with, one a line.
fn write_rows(path: &Path, report: &LintReport) -> Result<()> {
    let mut text = String::new();
    for row in report.rows() {
        text += &serde_json::to_string(&row)?;
        text.push('\n');
    }
    Ok(write_file(path, text.as_bytes())?)
}

impl LintArguments {
    fn run(&self) -> Result<()> {
        let train = together(&self.train, self.preset.as_deref())?;
        let eval = match &self.eval[..] {
            [] => None,
            given => Some(together(given, None)?),
        };
        let text = self.text.open(Unusable::Refuse)?;
        let linter = Linter {
            template: text.template.as_ref(),
            tokenizer: &text.tokenizer,
            settings: &text.settings,
            stop_tokens: &text.stop_tokens(&self.text.target_folder()?),
            draft_vocabularies: self.sizes(text.settings.vocab)?,
            shown: self.show,
            lists_rows: self.rows.is_some(),
        };
        let eval = eval.map(|eval| dataset(&eval, Output::detect()));
        let eval = eval.transpose()?;
        let train = dataset(&train, Output::detect())?;
        self.check_written(&train, eval.as_ref())?;
        self.text.warn(&text)?;
        let eval = eval.map(|eval| eval.rows()).transpose()?;
        let report = lint(
            train.rows()?.take_while(|_| !interrupted()),
            eval.into_iter().flatten().take_while(|_| !interrupted()),
            &linter,
        );
        check_interrupted()?;
        let report = report?;
        let unusable = train.unusable();
        if !unusable.is_none() {
            tell(unusable.left_out());
        }
        if let Some(path) = &self.rows {
            write_rows(path, &report)?;
        }
        let problems = report.problems();
        if self.json {
            print_json(&json!({"report": report, "problems": problems}))?;
        } else {
            print(format!("{report}\n"))?;
        }
        if !problems.is_empty() {
            let problems = counted(problems.len() as u64, "problem");
            bail!("{problems} in the data, which the report names");
        }
        Ok(())
    }

    /// Fails where the list of rows would take the place of something that is read.
    fn check_written(&self, train: &Dataset, eval: Option<&Dataset>) -> Result<()> {
        let Some(rows) = self.rows.as_deref() else {
            return Ok(());
        };
        let template = self.text.template.as_deref();
        for (read, is_read) in [
            ("--train", train.reads(rows)),
            ("--eval", eval.is_some_and(|eval| eval.reads(rows))),
            (
                "--template",
                template.is_some_and(|file| is_same(file, rows)),
            ),
        ] {
            check_written("--rows", rows, read, is_read)?;
        }
        writable_file(rows)
    }

    /// The sizes of draft vocabulary that are asked for, of a target with so many tokens.
    fn sizes(&self, vocab: usize) -> Result<&[usize], Misuse> {
        let asked = &self.draft_vocabularies[..];
        if let Some(size) = asked.iter().find(|&&size| size >= vocab) {
            return Err(Misuse(format!(
                "`--draft-vocab`: expected less than the target's vocabulary of {vocab} tokens, found {size}"
            )));
        }
        Ok(if asked.is_empty() {
            &DRAFT_VOCABULARIES
        } else {
            asked
        })
    }
}

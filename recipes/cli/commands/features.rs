//! `spectrain features`: stored features that come from others, or go to them.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use spectrain_checkpoints::launch::quote;
use spectrain_data::features::StoredType;
use spectrain_data::foreign::PICKLE_CONVERTER;

use crate::cli::arguments::{DeviceArgument, TemplateArgument};
use crate::progress::{Output, counted, print};
use crate::recipe::tables::TargetType;
use crate::runs::run_folder::RunFolder;
use crate::runs::stage_names;
use crate::runtime::capture::proof::LastState;
use crate::runtime::imported::convert::{IMPORT, Import, ImportReport, TOKENS, import};
use crate::runtime::imported::export::{Export, Exported, export};
use crate::runtime::imported::masks::Unmasked;
use crate::runtime::{device, target};

/// Commands of `spectrain features`.
#[derive(Debug, Subcommand)]
pub enum FeaturesCommand {
    /// Verify features from vLLM's connector, speculators or DeepSpec, and write them as stored features
    Import(Box<FeaturesImport>),
    /// Write stored features in the format that speculators reads
    Export(FeaturesExport),
    /// Print a Python program that converts the pickles of SpecForge and ModelOpt into what `import` reads:
    /// `python convert.py FROM TO`
    Converter,
}

/// Arguments of `spectrain features import`.
#[derive(Debug, Args)]
pub struct FeaturesImport {
    /// The folder: `hs_*.safetensors`, alone or beside a dataset's rows, or DeepSpec's `manifest.json` and `samples.idx`
    #[arg(value_name = "DIR")]
    from: PathBuf,
    /// The target, a hub id or a folder; only its embedding, norm and head are read
    #[arg(long)]
    target: String,
    /// The folder to write
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The dataset with `input_ids` and `loss_mask`, where it is in another folder
    #[arg(long, value_name = "DIR")]
    rows: Option<PathBuf>,
    /// The layer ids that the server was started with, such as `2,18,33,36`; the last one twice where the drafter reads that layer, too
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    layer_ids: Option<Vec<u32>>,
    /// Which tokens are trained on in texts without a loss mask
    #[arg(long, value_name = "PART")]
    mask: Option<Mask>,
    /// Compare the captured layers with what the target computes; this loads the whole target
    #[arg(long)]
    check_layers: bool,
    /// Samples in each file
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    samples_per_shard: u64,
    /// What the hidden states are written in
    #[arg(long, value_enum, default_value_t = Stored::Bf16)]
    dtype: Stored,
    #[command(flatten)]
    template: TemplateArgument,
    #[command(flatten)]
    device: DeviceArgument,
}

/// What texts without a loss mask are trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mask {
    /// Every token
    All,
    /// The assistant's turns, as the chat template opens them
    Assistant,
}

/// What hidden states are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Stored {
    /// As they are
    Bf16,
    /// In half of the bytes
    Int8,
}

impl From<Stored> for StoredType {
    fn from(stored: Stored) -> Self {
        match stored {
            Stored::Bf16 => Self::Bf16,
            Stored::Int8 => Self::Int8,
        }
    }
}

/// Arguments of `spectrain features export`.
#[derive(Debug, Args)]
pub struct FeaturesExport {
    /// A run with stored features, or their folder
    #[arg(value_name = "RUN|DIR")]
    from: String,
    /// The target, a hub id or a folder; only its embedding, norm and head are read
    #[arg(long)]
    target: String,
    /// The folder to write
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The folder of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
    #[command(flatten)]
    device: DeviceArgument,
}

/// Runs the command.
pub fn run(command: &FeaturesCommand) -> Result<()> {
    match command {
        FeaturesCommand::Import(arguments) => arguments.run(),
        FeaturesCommand::Export(arguments) => arguments.run(),
        FeaturesCommand::Converter => print(PICKLE_CONVERTER),
    }
}

impl FeaturesImport {
    fn run(&self) -> Result<()> {
        let name = &self.device.device;
        let target = target::resolve(&self.target, None)?;
        let report = import(&Import {
            from: &self.from,
            rows: self.rows.as_deref(),
            out: &self.out,
            target: &target,
            model: &self.target,
            layer_ids: self.layer_ids.as_deref(),
            unmasked: self.unmasked(&target)?,
            check_layers: self.check_layers,
            samples_per_shard: self.samples_per_shard,
            stored: self.dtype.into(),
            device: device::device(name)?,
            dtype: device::target_type(TargetType::Auto, name).dtype,
            output: Output::detect(),
        })?;
        print(imported(&report, &self.out))
    }

    fn unmasked(&self, target: &Path) -> Result<Option<Unmasked>> {
        let mask = match self.mask {
            None => return Ok(None),
            Some(Mask::All) => Unmasked::All,
            Some(Mask::Assistant) => {
                let (tokenizer, template) = target::text(target, None, &self.template.given())?;
                let Some(template) = template else {
                    bail!("`--mask assistant`: the target has no chat template");
                };
                let closing = target::stop_tokens_in(target)?;
                Unmasked::assistant(&template, &tokenizer, closing)?
            }
        };
        Ok(Some(mask))
    }
}

/// What was imported, and how to go on.
fn imported(report: &ImportReport, out: &Path) -> String {
    let proof = &report.proof;
    let last_state = match proof.last_state {
        LastState::BeforeNorm => "before the final norm, which was applied",
        LastState::AfterNorm => "after the final norm",
    };
    let mut text = format!(
        "{}: {}, {} tokens, {} of them trained on\n",
        report.layout,
        counted(report.samples as u64, "sample"),
        report.tokens,
        report.trained_tokens
    );
    if let Some(best) = proof.readings.first() {
        text.push_str(&format!(
            "last state: {last_state}; it gives the texts' next tokens a loss of {:.2} nats, other tokens {:.2}; {:.0} % of \
             the next tokens are the likeliest, at {} places\n",
            best.surprise,
            best.surprise_by_chance,
            100.0 * best.likeliest,
            proof.places
        ));
        if best.is_blunt() {
            text.push_str(
                "warning: the texts fit the target's logits best at half their size or less. Either they were written at a high \
                 temperature, or by another model, or the target's configuration lacks a factor of its logits\n",
            );
        } else if !best.tells_size() {
            text.push_str(
                "not checked: whether the target's configuration lacks a factor of its logits; texts that were sampled at temperature 1 \
                 would tell, and those that say the likeliest tokens alone do not\n",
            );
        }
    }
    text.push_str(&format!("captured layers: {:?}, ", report.captured_layers));
    text.push_str(match report.layers {
        Some(_) => "equal to what the target computes\n",
        None => "as given, not checked; `--check-layers` compares them with the target's own\n",
    });
    if report.without_mask > 0 {
        let count = report.without_mask;
        text.push_str(&format!(
            "without a loss mask: {}\n",
            counted(count as u64, "sample")
        ));
    }
    if report.without_states > 0 {
        let count = report.without_states;
        text.push_str(&format!("rows without states, left out: {count}\n"));
    }
    if !report.embedding_slots.is_empty() {
        let slots = &report.embedding_slots;
        text.push_str(&format!("slots with the embedding, left out: {slots:?}\n"));
    }
    let (out, quoted) = (out.display(), quote(&out.to_string_lossy()));
    text.push_str(&format!(
        "written to {out}: `evaluate --features {quoted}`; `{out}/{TOKENS}` has the texts, `{out}/{IMPORT}` all that was found\n"
    ));
    text
}

/// The folder of stored features that a user names: itself, or that of a run.
pub(super) fn stored_in(named: &Path, runs: &Path) -> PathBuf {
    let mut run = [runs.join(named), named.to_owned()].into_iter();
    match run.find(|run| RunFolder::is_run(run)) {
        Some(run) => run.join(stage_names::FEATURES),
        None => named.to_owned(),
    }
}

impl FeaturesExport {
    fn run(&self) -> Result<()> {
        let from = stored_in(Path::new(&self.from), &self.runs);
        if !from.join("features.json").exists() {
            bail!(
                "`{}`: expected a run with stored features, or their folder, found no `features.json`",
                from.display()
            );
        }
        let Exported {
            samples,
            cut,
            layer_ids,
        } = export(&Export {
            from: &from,
            out: &self.out,
            target: &target::resolve(&self.target, None)?,
            device: device::device(&self.device.device)?,
            output: Output::detect(),
        })?;
        let captured = layer_ids.split_last().map_or(&[][..], |(_, ids)| ids);
        let ids: Vec<String> = captured.iter().map(usize::to_string).collect();
        let out = self.out.display();
        let mut text = format!(
            "{}, ids of layers {layer_ids:?}\n",
            counted(samples as u64, "sample")
        );
        if cut > 0 {
            text.push_str(&format!("last tokens without a state, left out: {cut}\n"));
        }
        text.push_str(&format!(
            "written to {out}; speculators trains with `--data-path {} --on-missing raise --target-layer-ids {}`\n",
            quote(&self.out.to_string_lossy()),
            ids.join(" ")
        ));
        print(text)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::runs::run_folder::{Existing, RunName};

    #[test]
    fn features_are_named_by_their_folder_or_by_their_run() {
        let root = tempfile::tempdir().unwrap();
        let name = RunName {
            root: root.path(),
            name: "a",
            recipe: "eagle3",
        };
        RunFolder::open(name, "", Existing::Continue).unwrap();
        let run = root.path().join("a");
        for named in [Path::new("a"), &run] {
            assert_eq!(stored_in(named, root.path()), run.join("features"));
        }
        let own = root.path().join("own");
        fs::create_dir(&own).unwrap();
        assert_eq!(stored_in(&own, root.path()), own);
    }
}

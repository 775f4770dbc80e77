//! `spectrain import`: a published drafter as a run of this program.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use spectrain_checkpoints::dialect::Meaning;
use spectrain_checkpoints::known::dialect_of;
use spectrain_checkpoints::launch::quote;
use spectrain_checkpoints::{DType, ModelFolder, seal};
use spectrain_models::load_target;

use crate::cli::arguments::{TargetDevice, TemplateArgument, prompts};
use crate::cli::commands::prompts::prompts_of;
use crate::errors::Misuse;
use crate::families::described::reading_for;
use crate::families::registry::{open_as, open_drafter};
use crate::families::trained::Trained;
use crate::progress::{counted, print, tell};
use crate::recipe::read::IMPORTED_RECIPE;
use crate::recipe::tables::PromptEntry;
use crate::runs::places::{EXPORTED, IMPORTED};
use crate::runs::run_folder::{Existing, RunFolder, RunName, Start, Status, check_name};
use crate::runs::stage_names;
use crate::runtime::decoded::{Decoded, accepted, first_near_best};
use crate::runtime::pair::Pair;
use crate::runtime::target;
use crate::runtime::target::TEMPLATE_VARIABLES;
use crate::stages::card::origin::HUB;
use crate::stages::drafter_at::DrafterAt;

/// A mean acceptance length below which a drafter is for something else.
const USELESS: f64 = 1.05;

/// Arguments of `spectrain import`.
#[derive(Debug, clap::Args)]
pub struct ImportArguments {
    /// The published drafter: its folder, or a hub id, `owner/name` or `owner/name@revision`; a run stands for the drafter that
    /// it has exported
    #[arg(value_name = "DRAFTER")]
    drafter: String,
    /// The target it was trained for: a hub id or a folder
    #[arg(long)]
    target: String,
    /// The run's name [default: the folder's, with the one above for a folder such as `epoch_9`, or the one in the hub id]
    #[arg(long, value_name = "RUN")]
    name: Option<String>,
    /// Captured layers, whatever the folder says: 0-based indices of the layers whose output is read
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    layers: Option<Vec<usize>>,
    /// Prompts to measure with, as for `spectrain evaluate`; without them the target makes up texts
    #[arg(long, value_name = "PROMPTS", value_parser = prompts)]
    prompts: Option<PromptEntry>,
    /// How many prompts to measure with
    #[arg(long, default_value_t = 32)]
    count: usize,
    /// The folder of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
    #[command(flatten)]
    template: TemplateArgument,
    #[command(flatten)]
    device: TargetDevice,
}

/// What is being measured, in the folder of the stage.
const CANDIDATE: &str = "candidate";

/// One way to understand the folder, and what drafting that way is worth.
struct Measured {
    meaning: Meaning,
    drafter: Box<dyn Trained>,
    decoded: Decoded,
}

/// Runs the command. Where it fails it leaves behind what was there before, and no more.
pub fn run(arguments: &ImportArguments) -> Result<()> {
    if arguments.count == 0 {
        return Err(Misuse("`--count`: expected at least 1, found 0".into()).into());
    }
    let at = DrafterAt::find(&arguments.drafter, &arguments.runs)?;
    if let DrafterAt::Folder(folder) = &at {
        ModelFolder::open(folder)?;
    }
    let name = run_name(arguments, &at)?;
    let wanted = Wanted::of(arguments, &at)?;
    let run = open_run(arguments, &name)?;
    import(arguments, &wanted, &run).inspect_err(|_| {
        // The first error is the one to report.
        let _ = if run.is_new() {
            run.discard()
        } else {
            run.clear(stage_names::IMPORT)
        };
    })
}

/// What is imported, as far as it can be told without a run.
struct Wanted {
    /// The drafter's folder.
    folder: PathBuf,
    /// What it is called.
    from: String,
    /// Its id on the hub, where it is from there.
    hub: Option<String>,
    family: &'static str,
    /// The type that it is written in: no value changes.
    dtype: DType,
    /// The target's folder.
    target: PathBuf,
    /// The ways to understand the drafter's folder.
    meanings: Vec<Meaning>,
    /// Where the folder says that it comes from.
    original: Option<Value>,
}

impl Wanted {
    fn of(arguments: &ImportArguments, at: &DrafterAt) -> Result<Self> {
        let folder = &at.folder()?;
        let opened = ModelFolder::open(folder)?;
        seal::check(&opened)?;
        let dialect = dialect_of(&opened)?;
        if arguments.layers.is_some() && !dialect.takes_layers() {
            let message = format!(
                "`--layers` is for drafters whose folders leave open which layers they read, and a {} drafter's do not",
                dialect.family
            );
            return Err(Misuse(message).into());
        }
        let target = target::resolve(&arguments.target, None)?;
        if let Some(named) = target::other_target(&opened, &target)? {
            bail!(
                "{}; a recipe with `start` trains it for another target",
                named.is_not(folder, &arguments.target)
            );
        }
        Ok(Self {
            meanings: {
                let reading = reading_for(&target::spec(&target)?);
                dialect.meanings(&opened, &reading, arguments.layers.as_deref())?
            },
            from: at.name(folder),
            hub: match at {
                DrafterAt::Hub { id, .. } => Some(id.clone()),
                _ => None,
            },
            folder: folder.clone(),
            family: dialect.family,
            dtype: widest(&opened),
            target,
            original: seal::provenance(opened.config()).cloned(),
        })
    }
}

/// The type that holds every weight of a folder: their own where they have one in common, else 32 bits.
fn widest(folder: &ModelFolder) -> DType {
    let mut types: Vec<DType> = folder.tensors().map(|tensor| tensor.dtype).collect();
    types.retain(|dtype| dtype.is_float());
    types.dedup();
    match types[..] {
        [one] => one,
        _ => DType::F32,
    }
}

fn import(arguments: &ImportArguments, wanted: &Wanted, run: &RunFolder) -> Result<()> {
    let started = Instant::now();
    let (folder, from) = (&wanted.folder, &wanted.from);
    let start = Start {
        settings: json!({"from": from, "target": arguments.target}),
        ..Start::default()
    };
    let manifest = run.start(stage_names::IMPORT, start)?;
    let (family, target) = (wanted.family, &wanted.target);
    let measured =
        measure(arguments, run, wanted).with_context(|| format!("cannot import `{from}`"))?;
    let (taken, others) = chosen(arguments, &measured)?;
    let target_sha256 = target::sha256(target)?;
    let ways: Vec<Value> = measured.iter().map(Measured::to_json).collect();
    let provenance = json!({
        "spectrain": env!("CARGO_PKG_VERSION"),
        "imported": {"from": from, (HUB): wanted.hub, "sha256": target::sha256_of_drafter(folder)?, "family": family, "read": taken.meaning.text, "ways": ways},
        "target": {"model": arguments.target, "sha256": target_sha256},
        "original": wanted.original,
        (TEMPLATE_VARIABLES): arguments.template.with_those_of(folder)?,
    });
    let drafter = run.path().join(IMPORTED);
    taken.drafter.write(&drafter, wanted.dtype, &provenance)?;
    let mut text = format!("{} drafter, {}\n", taken.drafter.called()?, taken.summary());
    for other in others {
        text.push_str(&format!("not taken: {}\n", other.summary()));
        if taken.decoded.may_be_chance(&other.decoded) {
            let so = match arguments.prompts {
                None => ", and the likelier way is taken",
                Some(_) => "",
            };
            tracing::warn!(
                "the difference may be chance{so}: {}",
                taken.to_decide(other)
            );
        }
    }
    if taken.decoded.tau() < USELESS {
        tracing::warn!(
            "the target accepts almost nothing of what the drafter drafts: check that the drafter is for this target and \
             reads these layers"
        );
    }
    run.finish(manifest, started.elapsed().as_secs_f64(), provenance)?;
    print(format!("{text}imported to {}\n", drafter.display()))?;
    tell(next(run, &arguments.target));
    Ok(())
}

/// What can be done with an imported drafter. A folder here may have the run's name, so the run is named by its path.
fn next(run: &RunFolder, target: &str) -> String {
    let run = quote(&run.path().to_string_lossy());
    let target = quote(target);
    format!(
        "next:\n  spectrain evaluate --target {target} --drafter {run} --prompts FILE\n  spectrain init --start {run} --data FILE    # trains it further"
    )
}

impl Measured {
    /// What decides between the two.
    fn to_decide(&self, other: &Self) -> String {
        let layers = |way: &Self| way.meaning.reading.captured_layers.clone();
        let given = match layers(self) == layers(other) {
            true => "",
            false => ", or give the layers with `--layers`",
        };
        format!("measure with `--prompts` of the kind that the drafter is for{given}")
    }

    fn summary(&self) -> String {
        format!(
            "{}: τ {:.3}, {} accepted in {}",
            self.meaning.text,
            self.decoded.tau(),
            counted(self.decoded.total() as u64, "token"),
            counted(self.decoded.accepted.len() as u64, "pass")
        )
    }

    fn to_json(&self) -> Value {
        json!({
            "read": self.meaning.text,
            "captured_layers": self.meaning.reading.captured_layers,
            "tau": self.decoded.tau(),
            "accepted": self.decoded.total(),
            "passes": self.decoded.accepted.len(),
        })
    }
}

fn run_name(arguments: &ImportArguments, at: &DrafterAt) -> Result<String> {
    if let Some(name) = &arguments.name {
        check_name(name).context("`--name`")?;
        return Ok(name.clone());
    }
    let name = match at {
        DrafterAt::Run(run) => {
            let message = format!(
                "`{}` is a run already: give the new one a name with `--name`",
                run.display()
            );
            return Err(Misuse(message).into());
        }
        DrafterAt::Hub { id, .. } => id.rsplit('/').next().unwrap_or_default().to_owned(),
        DrafterAt::Folder(folder) => {
            let path = fs::canonicalize(folder)
                .with_context(|| format!("cannot open `{}`", folder.display()))?;
            name_of(&path)
        }
    };
    let give = "the folder's name cannot be the name of a run: give one with `--name`";
    check_name(&name).context(give)?;
    Ok(name)
}

/// What trainers call the folders of their states, before a number.
const STATES: [&str; 6] = ["epoch", "step", "global_step", "iter", "checkpoint", "ckpt"];

/// The name of a folder; that of a state of a training, such as `epoch_9`, behind the one of the folder that it is in, and that of a
/// run's drafter, such as `RUN/export/drafter`, behind the run's.
fn name_of(folder: &Path) -> String {
    let name = |folder: &Path| {
        let name = folder.file_name()?;
        Some(name.to_string_lossy().into_owned())
    };
    let own = name(folder).unwrap_or_default();
    let word = own.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_state = word != own && STATES.contains(&word.trim_end_matches(['_', '-']));
    let parent = folder.parent();
    let of_run = |at: &str| {
        let (above, drafter) = at.rsplit_once('/')?;
        let parent = parent.filter(|parent| parent.ends_with(above) && own.starts_with(drafter));
        parent?.parent()
    };
    let run = [EXPORTED, IMPORTED].into_iter().find_map(of_run);
    match run.or(parent.filter(|_| is_state)).and_then(name) {
        Some(above) => format!("{above}-{own}"),
        None => own,
    }
}

fn open_run(arguments: &ImportArguments, name: &str) -> Result<RunFolder> {
    let toml = format!(
        "# made by `spectrain import`\nrecipe = \"{IMPORTED_RECIPE}\"\nname = \"{name}\"\n\n[target]\nmodel = {}\n",
        json!(arguments.target)
    );
    let run = RunName {
        root: &arguments.runs,
        name,
        recipe: IMPORTED_RECIPE,
    };
    let run = RunFolder::open(run, &toml, Existing::Continue)?;
    let manifest = run.manifest(stage_names::IMPORT)?;
    if manifest.is_some_and(|manifest| manifest.status == Status::Done) {
        bail!(
            "`{}` holds an imported drafter already; choose another `--name`",
            run.path().display()
        );
    }
    run.clear(stage_names::IMPORT)?;
    Ok(run)
}

/// What drafting is worth in each way of understanding the folder.
fn measure(arguments: &ImportArguments, run: &RunFolder, wanted: &Wanted) -> Result<Vec<Measured>> {
    let target = &wanted.target;
    let candidate = run.path().join(stage_names::IMPORT).join(CANDIDATE);
    let (device, held) = arguments.device.open()?;
    let model = ModelFolder::open(target)?;
    let loaded = load_target(&model, &device, held)?;
    let mut pair: Option<Pair> = None;
    let mut prompts = given_prompts(arguments, wanted)?;
    let mut measured = Vec::new();
    for meaning in wanted.meanings.iter().cloned() {
        let parts = loaded.parts();
        let drafter = open_as(&wanted.folder, Some(&meaning.reading), &parts, &device)?;
        drafter.write(&candidate, wanted.dtype, &Value::Null)?;
        let written = open_drafter(&candidate, &parts, &device)?;
        let pair = match &mut pair {
            Some(pair) => {
                pair.take(written.as_ref())?;
                pair
            }
            None => {
                let stop = target::stop_tokens(&model)?;
                pair.insert(Pair::of(loaded.clone(), stop, written.as_ref())?)
            }
        };
        if prompts.is_empty() {
            prompts = pair.generated_prompts(arguments.count)?;
        }
        let decoded = accepted(pair, &prompts)?;
        measured.push(Measured {
            meaning,
            drafter,
            decoded,
        });
    }
    fs::remove_dir_all(&candidate)
        .with_context(|| format!("cannot remove `{}`", candidate.display()))?;
    Ok(measured)
}

/// Those of `--prompts`; none without it.
fn given_prompts(arguments: &ImportArguments, wanted: &Wanted) -> Result<Vec<Vec<u32>>> {
    match &arguments.prompts {
        None => Ok(Vec::new()),
        Some(entry) => {
            let of = (wanted.folder.as_path(), wanted.target.as_path());
            prompts_of(entry, of, &arguments.template, arguments.count)
        }
    }
}

/// The way in which most is accepted, and the others. A drafter shows little on texts that the target made up, so of them the likeliest
/// way is taken where chance explains that another one does better.
fn chosen<'a>(
    arguments: &ImportArguments,
    measured: &'a [Measured],
) -> Result<(&'a Measured, Vec<&'a Measured>)> {
    let tau = |way: &&Measured| way.decoded.tau();
    let best = match arguments.prompts {
        Some(_) => measured.iter().max_by(|a, b| tau(a).total_cmp(&tau(b))),
        None => {
            let ways: Vec<&Decoded> = measured.iter().map(|way| &way.decoded).collect();
            first_near_best(&ways).map(|place| &measured[place])
        }
    };
    let best = best.context("the folder has no meaning")?;
    let others: Vec<&Measured> = measured
        .iter()
        .filter(|way| !std::ptr::eq(*way, best))
        .collect();
    let equal = others.iter().find(|other| tau(other) == tau(&best));
    if let Some(other) = equal.filter(|_| arguments.prompts.is_some()) {
        bail!(
            "the folder can be read in two ways that do equally well: {}; {}; {}",
            best.summary(),
            other.summary(),
            best.to_decide(other)
        );
    }
    Ok((best, others))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_a_training_is_named_with_the_folder_that_it_is_in() {
        for (folder, name) in [
            ("/a/output/epoch_9", "output-epoch_9"),
            ("/a/output/checkpoint-500", "output-checkpoint-500"),
            ("/epoch_9", "epoch_9"),
            ("/a/epoch", "epoch"),
            ("/a/eagle3", "eagle3"),
            ("/runs/xp/export/drafter", "xp-drafter"),
            (
                "/runs/xp/export/drafter-speculators",
                "xp-drafter-speculators",
            ),
            ("/runs/xp/import/drafter", "xp-drafter"),
            ("/export/drafter", "drafter"),
            ("/a/export/eagle3", "eagle3"),
        ] {
            assert_eq!(name_of(Path::new(folder)), name);
        }
    }
}

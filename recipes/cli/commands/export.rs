//! `spectrain export`: the drafter of a run, or of a folder, for one engine, or in the checkpoint of its target.

mod into_target;
mod origin;
mod out;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use spectrain_checkpoints::ModelFolder;
use spectrain_checkpoints::known::dialect_of;
use spectrain_eval::Report;

use crate::errors::Misuse;
use crate::families::described::reading_for;
use crate::progress::{Output, print};
use crate::recipe::read::read;
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::tables::{Engine, ExportType};
use crate::runs::places::{IMPORTED, MADE_TARGET, trained};
use crate::runs::run_folder::RunFolder;
use crate::runs::stage_names;
use crate::runtime::target;
use crate::stages::card::origin::HUB;
use crate::stages::drafter_at::{DrafterAt, is_done};
use crate::stages::export::{Conversion, provenance_of};
use crate::stages::exported::seen_from;
use crate::stages::features::places::first_answers;
use crate::stages::outdated::{outdated, outdated_export};
use crate::stages::report;

use into_target::Asked;
use origin::exported_from;

/// Arguments of `spectrain export`.
#[derive(Debug, clap::Args)]
pub struct ExportArguments {
    /// The drafter: a run or its folder, a drafter's folder, or a hub id, `owner/name` or `owner/name@revision`
    #[arg(value_name = "DRAFTER")]
    drafter: String,
    /// The serving engine
    #[arg(long, value_enum, required_unless_present = "into")]
    to: Vec<Engine>,
    /// The target, a hub id or a folder, of which to write the whole checkpoint with the drafter in it, a layer of multi-token
    /// prediction, in the place of its own
    #[arg(long, value_name = "TARGET", conflicts_with_all = ["to", "target", "dtype"])]
    into: Option<String>,
    /// With `--into`: copy the target's shards, which are linked otherwise
    #[arg(long, conflicts_with = "to")]
    copy: bool,
    /// The folder to write
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The target, for a drafter's folder that does not name the target that it is for; of a run, or of a folder that names one, it
    /// must have the same weights, unless the drafter reads text alone
    #[arg(long)]
    target: Option<String>,
    /// Type of the weights
    #[arg(long, value_enum, default_value_t = ExportType::Bf16)]
    dtype: ExportType,
    /// The folder of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
}

/// A drafter and the target it is for.
struct Exported {
    folder: PathBuf,
    target: String,
    target_folder: PathBuf,
    /// See [`Conversion::answers`].
    answers: Option<PathBuf>,
    provenance: Value,
    report: Option<Report>,
}

/// The target that the drafter of a run is exported for.
struct ForTarget {
    named: String,
    folder: PathBuf,
    /// Whether it is another one than the run's.
    is_other: bool,
    /// See [`Conversion::answers`].
    answers: Option<PathBuf>,
}

/// Runs the command.
pub fn run(arguments: &ExportArguments) -> Result<()> {
    let engine = match (&arguments.to[..], &arguments.into) {
        (_, Some(target)) => {
            return into_target::run(&Asked {
                drafter: &arguments.drafter,
                target,
                out: &arguments.out,
                runs: &arguments.runs,
                copies: arguments.copy,
            });
        }
        ([engine], None) => *engine,
        ([], None) => return Err(Misuse("name an engine with `--to`".to_owned()).into()),
        (several, None) => return Err(for_several(several).into()),
    };
    let source = match DrafterAt::find(&arguments.drafter, &arguments.runs)? {
        DrafterAt::Run(run) => Exported::of_run(&run, arguments)?,
        other => {
            let folder = other.folder()?;
            let hub = match &other {
                DrafterAt::Hub { id, .. } => Some(id.as_str()),
                _ => None,
            };
            Exported::of_folder(&folder, (&other.name(&folder), hub), arguments)?
        }
    };
    out::check(&arguments.out, &[&source.folder])?;
    let conversion = Conversion {
        trained: &source.folder,
        target: source.target_folder,
        answers: source.answers,
        engine,
        folder: &arguments.out,
        dtype: arguments.dtype.dtype(),
        named: &source.target,
        provenance: &source.provenance,
        report: source.report.as_ref(),
    };
    let lines = conversion.run()?;
    let out = &arguments.out;
    print(format!("# {}{}\n", out.display(), seen_from(out)))?;
    for line in lines {
        print(format!("{line}\n"))?;
    }
    Ok(())
}

/// That a folder is for one engine.
fn for_several(engines: &[Engine]) -> Misuse {
    let names: Vec<&str> = engines.iter().map(|engine| engine.key()).collect();
    Misuse(format!(
        "`--to`: expected one engine, found `{}`: export for each into a folder of its own; `export.to` in a recipe takes several",
        names.join("`, `")
    ))
}

impl Exported {
    /// Of the folder `folder`, which the user calls `name`, with its id on the hub where it is from there.
    fn of_folder(
        folder: &Path,
        (name, hub): (&str, Option<&str>),
        arguments: &ExportArguments,
    ) -> Result<Self> {
        let provenance = provenance_of(folder)?;
        let named = provenance.as_ref().map(|found| &found["target"]["model"]);
        let named = named.and_then(Value::as_str).map(str::to_owned);
        let Some(target) = arguments.target.clone().or(named) else {
            let message =
                format!("`{name}` does not say which target it is for: name it with `--target`");
            return Err(Misuse(message).into());
        };
        let target_folder = target::resolve(&target, None)?;
        check_clear(folder, &target_folder)?;
        if let Some(named) = target::other_target(&ModelFolder::open(folder)?, &target_folder)? {
            bail!(named.is_not(folder, &target));
        }
        Ok(Self {
            folder: folder.to_owned(),
            provenance: provenance.unwrap_or_else(|| {
                json!({
                    "spectrain": env!("CARGO_PKG_VERSION"),
                    "from": name,
                    (HUB): hub,
                    "target": {"model": target},
                })
            }),
            target,
            target_folder,
            answers: None,
            report: None,
        })
    }

    fn of_run(run: &Path, arguments: &ExportArguments) -> Result<Self> {
        if is_done(run, stage_names::IMPORT)? {
            let folder = run.join(IMPORTED);
            let name = folder.display().to_string();
            return Self::of_folder(&folder, (&name, None), arguments);
        }
        let path = run.join("recipe.toml");
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        let recipe =
            read(&text, &[]).with_context(|| format!("cannot read `{}`", path.display()))?;
        let stage = recipe.last_trained();
        if !is_done(run, stage)? {
            match outdated_export(run)? {
                Some(told) => bail!(
                    "the run `{}` is not trained anew yet: {told}",
                    run.display()
                ),
                None => bail!(
                    "the run `{}` is not trained yet: run its recipe first",
                    run.display()
                ),
            }
        }
        let folder = run.join(trained(stage));
        if let Some(told) = outdated(run, stage, &folder)? {
            Output::detect().warn(told);
        }
        let target = ForTarget::find(run, &recipe, &folder, arguments.target.as_deref())?;
        let provenance = match exported_from(run, &folder)? {
            Some(provenance) => provenance,
            None => provenance_of(&folder)?.unwrap_or_else(|| json!({})),
        };
        Ok(Self {
            folder,
            target: target.named,
            target_folder: target.folder,
            answers: target.answers,
            // What the run found is about its own target.
            report: if target.is_other {
                None
            } else {
                report_of(run, &provenance)?
            },
            provenance,
        })
    }
}

impl ForTarget {
    /// That of a run whose drafter is in `drafter`, or the one that was `given`. Where the run has answers of its target in the place
    /// of it, so has the export, and no more of the target is downloaded than the drafter shares.
    fn find(
        run: &Path,
        recipe: &ResolvedRecipe,
        drafter: &Path,
        given: Option<&str>,
    ) -> Result<Self> {
        let computes = recipe.features.mode.computes_target();
        let resolve = match computes {
            true => target::resolve,
            false => target::resolve_parts,
        };
        let mut folder = match (given, recipe.model()) {
            (Some(given), _) => resolve(given, None)?,
            (None, Some(model)) => resolve(model, recipe.target.revision.as_deref())?,
            (None, None) => run.join(MADE_TARGET),
        };
        let named = match given.or(recipe.model()) {
            Some(named) => named.to_owned(),
            None => folder.display().to_string(),
        };
        let is_other = match given {
            Some(given) => is_for_another(drafter, given, &folder)?,
            None => false,
        };
        let has_answers = !computes && !is_other;
        if is_other && !computes {
            // The answers are those of the run's own target.
            folder = target::resolve(&named, None)?;
        }
        Ok(Self {
            named,
            folder,
            is_other,
            answers: has_answers.then(|| first_answers(run, &recipe.evaluate)),
        })
    }
}

/// Whether the target that is called `named`, in `target`, is another one than that of a run, whose drafter in `folder` reads text
/// alone.
///
/// # Errors
/// It is another one, and the drafter reads what its own target computes.
fn is_for_another(folder: &Path, named: &str, target: &Path) -> Result<bool> {
    let model = ModelFolder::open(folder)?;
    if let Some(own) = target::other_target(&model, target)? {
        bail!(own.is_not(folder, named));
    }
    match target::trained_for(&model) {
        Some(own) => Ok(!target::is_of(target, &own.sha256)?),
        None => Ok(false),
    }
}

/// The report of a run, where what the folder says of its origin has figures of it.
fn report_of(run: &Path, provenance: &Value) -> Result<Option<Report>> {
    if provenance["report"].is_null() {
        return Ok(None);
    }
    Ok(report::read(&RunFolder::unlocked(run.to_owned())).ok())
}

/// Fails where a published folder can be meant in several ways, and only decoding tells which.
fn check_clear(folder: &Path, target: &Path) -> Result<()> {
    let (model, reading) = (
        ModelFolder::open(folder)?,
        reading_for(&target::spec(target)?),
    );
    let meanings = dialect_of(&model)?.meanings(&model, &reading, None)?;
    match &meanings[..] {
        [first, second, ..] => bail!(
            "`{}` can be read in more ways than one ({}; {}): `spectrain import` measures which one is meant",
            folder.display(),
            first.text,
            second.text
        ),
        _ => Ok(()),
    }
}

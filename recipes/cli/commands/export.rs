//! `spectrain export`: the drafter of a run, or of a folder, for one engine.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use spectrain_checkpoints::ModelFolder;
use spectrain_checkpoints::known::dialect_of;
use spectrain_eval::Report;

use crate::cli::progress::print;
use crate::errors::Misuse;
use crate::families::described::reading_for;
use crate::recipe::read::read;
use crate::recipe::tables::{Engine, ExportType};
use crate::runs::drafter_at::{DrafterAt, is_done};
use crate::runs::hashes::HashMemory;
use crate::runs::places::{EXPORTED, IMPORTED, trained};
use crate::runs::run_folder::RunFolder;
use crate::runtime::target;
use crate::stages::export::{Conversion, provenance_of};
use crate::stages::exported::seen_from;
use crate::stages::report;

/// Arguments of `spectrain export`.
#[derive(Debug, clap::Args)]
pub struct ExportArguments {
    /// The drafter: a run or its folder, a drafter's folder, or a hub id, `owner/name` or `owner/name@revision`
    #[arg(value_name = "DRAFTER")]
    drafter: String,
    /// The serving engine
    #[arg(long, value_enum)]
    to: Engine,
    /// The folder to write
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The target, for a drafter's folder that does not name the target that it is for
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
    provenance: Value,
    report: Option<Report>,
}

/// Runs the command.
pub fn run(arguments: &ExportArguments) -> Result<()> {
    let source = match DrafterAt::find(&arguments.drafter, &arguments.runs)? {
        DrafterAt::Run(run) => Exported::of_run(&run, arguments)?,
        other => {
            let folder = other.folder()?;
            Exported::of_folder(&folder, &other.name(&folder), arguments)?
        }
    };
    if arguments.out.exists() {
        bail!(
            "`{}` exists already; choose another `--out`",
            arguments.out.display()
        );
    }
    if is_inside(&arguments.out, &source.folder)? {
        bail!(
            "`{}` is inside the folder to export; choose another `--out`",
            arguments.out.display()
        );
    }
    let conversion = Conversion {
        trained: &source.folder,
        target: source.target_folder,
        engine: arguments.to,
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

impl Exported {
    /// Of the folder `folder`, which the user calls `name`.
    fn of_folder(folder: &Path, name: &str, arguments: &ExportArguments) -> Result<Self> {
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
                    "target": {"model": target},
                })
            }),
            target,
            target_folder,
            report: None,
        })
    }

    fn of_run(run: &Path, arguments: &ExportArguments) -> Result<Self> {
        if is_done(run, "import")? {
            let folder = run.join(IMPORTED);
            return Self::of_folder(&folder, &folder.display().to_string(), arguments);
        }
        let path = run.join("recipe.toml");
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        let recipe =
            read(&text, &[]).with_context(|| format!("cannot read `{}`", path.display()))?;
        if !is_done(run, recipe.last_trained())? {
            bail!(
                "the run `{}` is not trained yet: run its recipe first",
                run.display()
            );
        }
        let target_folder = match recipe.model() {
            Some(model) => target::resolve(model, recipe.target.revision.as_deref())?,
            None => run.join("synthetic").join("target"),
        };
        let folder = run.join(trained(recipe.last_trained()));
        let provenance = match exported_from(run, &folder)? {
            Some(provenance) => provenance,
            None => provenance_of(&folder)?.unwrap_or_else(|| json!({})),
        };
        Ok(Self {
            target: match recipe.model() {
                Some(model) => model.to_owned(),
                None => target_folder.display().to_string(),
            },
            folder,
            target_folder,
            report: report_of(run, &provenance)?,
            provenance,
        })
    }
}

fn is_inside(out: &Path, folder: &Path) -> Result<bool> {
    let folder = folder
        .canonicalize()
        .with_context(|| format!("cannot open `{}`", folder.display()))?;
    let nearest = out.ancestors().find_map(|path| {
        if path.as_os_str().is_empty() {
            Path::new(".").canonicalize().ok()
        } else {
            path.canonicalize().ok()
        }
    });
    Ok(nearest.is_some_and(|nearest| nearest.starts_with(folder)))
}

/// The report of a run, where what the folder says of its origin has figures of it.
fn report_of(run: &Path, provenance: &Value) -> Result<Option<Report>> {
    if provenance["report"].is_null() {
        return Ok(None);
    }
    Ok(report::read(&RunFolder::unlocked(run.to_owned())).ok())
}

/// What the stage `export` recorded, with what `evaluate` found, if it was of these weights and not of others before them.
fn exported_from(run: &Path, weights: &Path) -> Result<Option<Value>> {
    let exported = run.join(EXPORTED);
    if !exported.exists() {
        return Ok(None);
    }
    let trained = HashMemory::default().of(weights)?;
    Ok(provenance_of(&exported)?.filter(|found| found["trained"] == trained))
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

//! `spectrain report`: several runs side by side.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use spectrain_eval::{Report, compare};

/// Arguments of `spectrain report`.
#[derive(Debug, Args)]
pub struct ReportArguments {
    /// `report.json` files, or the folders of runs that hold one
    #[arg(required = true, value_name = "REPORT")]
    reports: Vec<PathBuf>,
    /// Write the table here instead of printing it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Runs the command.
pub fn run(arguments: &ReportArguments) -> Result<()> {
    let reports = arguments.reports.iter().map(|path| read(path));
    let table = compare(&reports.collect::<Result<Vec<_>>>()?);
    match &arguments.out {
        Some(file) => std::fs::write(file, table)
            .with_context(|| format!("cannot write `{}`", file.display())),
        None => {
            print!("{table}");
            Ok(())
        }
    }
}

/// A report under the name of its run, or of its file where it stands alone.
fn read(path: &Path) -> Result<(String, Report)> {
    let file = match path.is_dir() {
        true => ["evaluate/report.json", "report.json"]
            .map(|inside| path.join(inside))
            .into_iter()
            .find(|file| file.exists())
            .unwrap_or_else(|| path.join("evaluate/report.json")),
        false => path.to_path_buf(),
    };
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("cannot read the report `{}`", file.display()))?;
    let report = Report::from_json(&text)
        .with_context(|| format!("`{}` is not a report", file.display()))?;
    let of_run = report.recipe["name"].as_str();
    let name = of_run.map_or_else(|| path.display().to_string(), str::to_owned);
    Ok((name, report))
}

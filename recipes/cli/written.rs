//! Files that commands write beside what they print.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use spectrain_checkpoints::atomic::write_file;
use spectrain_eval::Sweep;

use crate::progress::tell;

/// Ends of the names of the files that hold the tables of a recipe's last sweep, in the folder of its runs.
const SWEEP: [&str; 2] = [".sweep.csv", ".sweep.json"];

/// Writes a file, and says so.
pub(crate) fn write(file: &Path, text: &str) -> Result<()> {
    let before = match file.exists() {
        true => " in place of the older one",
        false => "",
    };
    write_file(file, text.as_bytes())?;
    tell(format!("wrote `{}`{before}", file.display()));
    Ok(())
}

/// Writes the tables of a sweep of the recipe of this name beside its runs, as rows and as JSON.
pub(crate) fn write_sweep(sweep: &Sweep, runs: &Path, name: &str) -> Result<()> {
    let texts = [sweep.to_csv(), sweep_json(sweep, &[])?];
    for (end, text) in SWEEP.iter().zip(texts) {
        write(&runs.join(format!("{name}{end}")), &text)?;
    }
    Ok(())
}

/// Whether a file is named as the tables of a sweep are: a shell that is asked for all runs names it too.
pub(crate) fn is_of_sweep(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    SWEEP.iter().any(|end| name.ends_with(end))
}

/// A sweep as JSON, with what was noticed.
pub(crate) fn sweep_json(sweep: &Sweep, remarks: &[String]) -> Result<String> {
    let mut all = serde_json::to_value(sweep)?;
    all["remarks"] = json!(remarks);
    Ok(serde_json::to_string_pretty::<Value>(&all)? + "\n")
}

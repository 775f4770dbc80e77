//! The curves that the training stages of a run have logged.

use std::path::Path;

use anyhow::{Context as _, Result};
use spectrain_eval::Curves;

use crate::runs::files::entries;
use crate::runs::run_folder::aside::is_aside;

/// Where a training stage logs its figures.
const METRICS: &str = "events/metrics.jsonl";

/// The curves of every training stage of a run, in the order in which they were begun; none of a run that logged none.
pub fn curves_of(run: &Path) -> Result<Vec<Curves>> {
    let mut found = Vec::new();
    for stage in entries(run)?.into_iter().filter(|name| !is_aside(name)) {
        found.extend(curves_in(run, &stage)?);
    }
    found.sort_by(|one, other| one.begun.total_cmp(&other.begun));
    Ok(found)
}

/// Those of one stage; nothing where it logged none.
///
/// # Errors
/// The log cannot be read.
pub fn curves_in(run: &Path, stage: &str) -> Result<Option<Curves>> {
    let path = run.join(stage).join(METRICS);
    if !path.is_file() {
        return Ok(None);
    }
    let read = || -> Result<Curves> {
        let text = std::fs::read_to_string(&path)?;
        Ok(Curves::read(stage, &text)?)
    };
    let curves = read().with_context(|| format!("`{}`", path.display()))?;
    Ok(Some(curves))
}

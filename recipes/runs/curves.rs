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
        let path = run.join(&stage).join(METRICS);
        if !path.is_file() {
            continue;
        }
        let read = || -> Result<(f64, Curves)> {
            let text = std::fs::read_to_string(&path)?;
            let curves = Curves::read(&stage, &text)?;
            Ok((curves.begun, curves))
        };
        found.push(read().with_context(|| format!("`{}`", path.display()))?);
    }
    found.sort_by(|one, other| one.0.total_cmp(&other.0));
    Ok(found.into_iter().map(|(_, curves)| curves).collect())
}

//! How long the drafter of a run was trained.

use std::path::Path;

use anyhow::Result;

use crate::runs::run_folder::manifest_in;

/// Seconds that these stages of the run in `run` have trained, over all processes that have worked on them.
pub fn training_seconds<'a>(run: &Path, stages: impl IntoIterator<Item = &'a str>) -> Result<f64> {
    let mut sum = 0.0;
    for stage in stages {
        let manifest = manifest_in(run, stage)?;
        let seconds = manifest.and_then(|of| of.summary["fit"]["seconds"].as_f64());
        sum += seconds.unwrap_or_default();
    }
    Ok(sum)
}

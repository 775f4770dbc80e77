//! The error with which a run stopped, kept in its folder for those who look at the run later: one that was killed leaves none.

use std::fs;
use std::path::Path;

use anyhow::Error;
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::atomic::write_file;

use crate::errors::with_causes;

/// The file in the folder of a run.
const FAILURE: &str = "failure.json";

#[derive(Serialize, Deserialize)]
struct Failure {
    error: String,
}

/// Keeps the error with which a run stops. Where it cannot be written, as on a full disk, the error itself says more.
pub(super) fn keep(run: &Path, error: &Error) {
    let error = with_causes(error);
    let text = serde_json::to_string(&Failure { error });
    drop(text.map(|text| write_file(&run.join(FAILURE), text.as_bytes())));
}

/// Forgets the error with which an earlier process stopped, as the run goes on.
pub(super) fn forget(run: &Path) {
    // Most runs have none.
    drop(fs::remove_file(run.join(FAILURE)));
}

/// The error with which a run stopped, where it stopped with one.
pub fn of_run(run: &Path) -> Option<String> {
    let text = fs::read_to_string(run.join(FAILURE)).ok()?;
    let failure: Failure = serde_json::from_str(&text).ok()?;
    Some(failure.error)
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn an_error_is_there_until_the_run_goes_on() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(of_run(run.path()), None);
        keep(run.path(), &anyhow!("gone").context("stage `train`"));
        assert_eq!(of_run(run.path()).as_deref(), Some("stage `train`: gone"));
        forget(run.path());
        assert_eq!(of_run(run.path()), None);
        // A run whose folder is gone has nowhere to keep it.
        keep(&run.path().join("absent"), &anyhow!("gone"));
    }
}

//! What a tracking server takes.

use anyhow::Result;

use super::figures::Figure;

/// A run that a server may not know yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewRun<'a> {
    /// The experiment or project that it belongs to.
    pub(super) experiment: &'a str,
    /// What its folder is called.
    pub(super) name: &'a str,
    /// A name that no other run has.
    pub(super) tag: &'a str,
    /// The family of its recipe.
    pub(super) recipe: &'a str,
}

/// A tracking server. Whatever is sent twice, since an answer was lost, it has once.
pub(super) trait Server {
    /// The id of a run, which an earlier request may have made without its answer having come.
    fn begin(&self, new: &NewRun) -> Result<String>;

    /// Adds settings to a run, which stay as they are.
    fn settings(&self, run: &str, settings: &[(String, String)]) -> Result<()>;

    /// Adds figures to a run.
    fn figures(&self, run: &str, figures: &[Figure]) -> Result<()>;

    /// Says that a run is finished.
    fn finish(&self, run: &str) -> Result<()>;
}

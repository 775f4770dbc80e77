//! What training starts from: a folder, or a drafter of the hub.

use std::path::{Path, PathBuf};

use anyhow::Result;
use spectrain_checkpoints::hub::{RepoType, Repository};
use spectrain_checkpoints::known::layer_beside_target;

use crate::runs::places::{EXPORTED, IMPORTED};
use crate::runtime::sizes::folder_of;
use crate::runtime::target;

/// The repository that is meant; none where a folder is. A folder that is here comes first.
pub fn on_hub(start: &Path) -> Option<Repository> {
    let given = start.to_str().filter(|_| !start.exists())?;
    Repository::read(RepoType::Model, given).ok()
}

/// A folder, or where it is that of a run, that of its drafter, which it has imported or exported.
fn drafter_in(start: &Path) -> PathBuf {
    let mut inside = [IMPORTED, EXPORTED].into_iter();
    let found = inside.find(|inside| start.join(inside).is_dir());
    found.map_or_else(|| start.to_owned(), |inside| start.join(inside))
}

/// The folder of what training starts from; downloads what is missing, of a target in shards only those with its layer of
/// multi-token prediction.
pub fn folder(start: &Path) -> Result<PathBuf> {
    match on_hub(start) {
        Some(repository) => {
            let (id, revision) = (repository.id(), Some(repository.revision()));
            // Whether it is a layer in a target's folder is known by the names of its tensors.
            let named = target::resolve_some("start", id, revision, &|_| false)?;
            match layer_beside_target(&named)? {
                None => target::resolve_as("start", id, revision),
                Some(own) => {
                    target::resolve_some("start", id, revision, &|name| own.contains(name))
                }
            }
        }
        None => Ok(drafter_in(start)),
    }
}

/// The same where nothing has to be downloaded. Whether a folder is there is not looked at.
pub fn here(start: &Path) -> Option<PathBuf> {
    match on_hub(start) {
        Some(repository) => folder_of(repository.id(), Some(repository.revision())),
        None => Some(drafter_in(start)),
    }
}

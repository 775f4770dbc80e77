//! Writes a drafter's folder in a dialect.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;
use spectrain_checkpoints::beside::TARGET_SCALES_LOGITS;
use spectrain_checkpoints::dialect::{Dialect, Settings, SharedHead, Written};
use spectrain_models::weights::export;

use super::settings::{set_target, settings};
use crate::families::drafter_folder::{architectures, target_head};
use crate::families::family::{Family, Writing};

/// Whether the target's head, which a drafter shares, is written into its folder; the settings then say so.
pub(super) fn writes_head(settings: &mut Settings, dialect: &Dialect) -> bool {
    let is_written = settings.shares_head()
        && match dialect.shared_head {
            SharedHead::Never => false,
            SharedHead::OfDraftVocabulary => {
                settings.has_draft_vocab() || settings.flag(TARGET_SCALES_LOGITS)
            }
            SharedHead::AsOwn | SharedHead::Beside => true,
        };
    if is_written && dialect.shared_head != SharedHead::Beside {
        settings.set("head", "own");
    }
    is_written
}

/// Writes a drafter's folder in a dialect, whole or not at all.
pub(crate) fn write<D: Family>(drafter: &D, dialect: &Dialect, writing: &Writing) -> Result<()> {
    let mut settings = settings(drafter)?;
    set_target(&mut settings, drafter.target())?;
    let vocabulary = drafter.vocabulary();
    let mut tensors = export(drafter);
    if writes_head(&mut settings, dialect) {
        tensors.push(target_head(drafter.target(), vocabulary));
    }
    let verifier = json!({
        "name": whole_name(writing.target)?,
        "architectures": architectures(drafter.target())?,
        "draft_tokens": drafter.max_depth().unwrap_or(writing.draft_length),
    });
    settings.set("verifier", verifier);
    let ids = vocabulary.target_ids().into_iter();
    let drafter = Written {
        settings,
        tensors,
        target_ids: (!vocabulary.is_full()).then(|| ids.map(|id| id as usize).collect()),
        dtype: writing.dtype,
        provenance: writing.provenance,
    };
    Ok(dialect.write(writing.folder, drafter)?)
}

/// A target as every process finds it, whatever folder that one is started in: one in a folder here by its absolute path.
fn whole_name(target: &str) -> Result<String> {
    if !Path::new(target).is_dir() {
        return Ok(target.to_owned());
    }
    let path = std::path::absolute(target);
    let path = path.with_context(|| format!("cannot find the folder `{target}`"))?;
    Ok(path.display().to_string())
}

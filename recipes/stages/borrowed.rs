//! What a run need not make again, since another run has made it from the same.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context as _, Result};
use spectrain_checkpoints::atomic::partial_path;

use crate::runs::files::remove_whole;
use crate::runs::run_folder::StageState;
use crate::stages::context::StageContext;
use crate::stages::order;
use crate::stages::stage::Stage;

/// Takes over what the run in `other` has done before its training and this run has not begun, as far as it is what this recipe
/// wants: its files are linked, or copied where they cannot be.
pub fn borrow(context: &StageContext, other: &Path) -> Result<()> {
    let trains = |stage: &Stage| context.recipe.method.stages().contains(&stage.name);
    for stage in order::of(context.recipe) {
        if trains(&stage) {
            break;
        }
        if context.run.manifest(stage.name)?.is_some() {
            continue;
        }
        let StageState::Done(_) = context.state_in(other, &stage)? else {
            break;
        };
        let (from, to) = (other.join(stage.name), context.folder(stage.name));
        let partial = partial_path(&to);
        if partial.exists() {
            remove_whole(&partial)?;
        }
        link_all(&from, &partial)
            .and_then(|()| fs::rename(&partial, &to))
            .with_context(|| format!("cannot link `{}` as `{}`", from.display(), to.display()))?;
        (context.output).say(format!(
            "{}: the same as in `{}`, so taken from there",
            stage.name,
            other.display()
        ));
    }
    Ok(())
}

fn link_all(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (file, link) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            link_all(&file, &link)?;
        } else if fs::hard_link(&file, &link).is_err() {
            fs::copy(&file, &link)?;
        }
    }
    Ok(())
}

//! The folder that the command writes.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// Fails where something has its name already, or where it would be inside one of the folders that are read.
pub(super) fn check(out: &Path, read: &[&Path]) -> Result<()> {
    if out.exists() {
        bail!("`{}` exists already; choose another `--out`", out.display());
    }
    for folder in read {
        if is_inside(out, folder)? {
            bail!(
                "`{}` is inside the folder `{}`, which is read; choose another `--out`",
                out.display(),
                folder.display()
            );
        }
    }
    Ok(())
}

fn is_inside(out: &Path, folder: &Path) -> Result<bool> {
    let folder = folder
        .canonicalize()
        .with_context(|| format!("cannot open `{}`", folder.display()))?;
    let nearest = out.ancestors().find_map(|path| {
        if path.as_os_str().is_empty() {
            Path::new(".").canonicalize().ok()
        } else {
            path.canonicalize().ok()
        }
    });
    Ok(nearest.is_some_and(|nearest| nearest.starts_with(folder)))
}

//! Features that make room for others.

use std::fs;
use std::path::{Path, PathBuf};

use super::index::{INDEX, is_ours};
use crate::durable::old_name;
use crate::error::{Error, Result};

/// Moves the features in a folder into a new one beside it, `FOLDER.old-N`. Other files stay where they are; where there are no
/// features, nothing happens.
///
/// # Errors
/// A file cannot be moved.
pub fn set_aside(folder: &Path) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    // A slash at the end would put the new folder into the old one.
    let folder: PathBuf = folder.components().collect();
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).map_err(|source| Error::read(&folder, source))? {
        let entry = entry.map_err(|source| Error::read(&folder, source))?;
        names.extend(entry.file_name().into_string().ok());
    }
    // Shards whose index is lost are features as well.
    names.retain(|name| is_ours(name));
    if names.is_empty() {
        return Ok(());
    }
    // With their index, what a killed move has left is still known for what it is.
    names.sort_by_key(|name| name == INDEX);
    let aside = old_name(&folder);
    fs::create_dir(&aside).map_err(|source| Error::write(&aside, source))?;
    for name in names {
        let to = aside.join(&name);
        fs::rename(folder.join(name), &to).map_err(|source| Error::write(&to, source))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::{FeatureHeader, FeatureShards, FeatureWriter, StoredSample, StoredType};

    fn writer(folder: &Path) -> FeatureWriter {
        let header = FeatureHeader {
            target_sha256: "t".into(),
            captured_layers: vec![1],
            d_model: 1,
            tokens_fingerprint: "f".into(),
            dtype: StoredType::Bf16,
        };
        FeatureWriter::open(folder, header, 2).unwrap()
    }

    #[test]
    fn features_are_moved_and_nothing_else_is() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a");
        set_aside(&folder).unwrap();
        assert!(!folder.exists());
        for run in 1..=2 {
            let mut writer = writer(&folder);
            assert_eq!(writer.next_sample(), 0);
            for token in 0..3 {
                let sample = StoredSample {
                    tokens: &[token, run],
                    loss_mask: &[0, 1],
                    captured: [1, 2][..].into(),
                    last: [3, 4][..].into(),
                };
                writer.push(&sample).unwrap();
            }
            writer.finish().unwrap();
            fs::write(folder.join("other"), "x").unwrap();
            if run == 2 {
                fs::remove_file(folder.join(INDEX)).unwrap();
            }
            // However the folder is called.
            set_aside(&folder.join("")).unwrap();
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
            let aside = root.path().join(format!("a.old-{run}"));
            if run == 1 {
                assert_eq!(FeatureShards::open(aside).unwrap().len(), 3);
            } else {
                assert_eq!(fs::read_dir(aside).unwrap().count(), 2);
            }
        }
    }
}

//! Features that are there already: captured with the answers, or imported.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use spectrain_data::features::{FeatureHeader, FeatureShards, Recorded, StoredSample};

use crate::runtime::capture::stored::{Bits, digest};
use crate::runtime::columns::{columns, pick};
use crate::runtime::target;
use crate::stages::context::StageContext;

/// Features that are there already, found by their tokens.
pub(super) struct Known {
    folders: Vec<Folder>,
    /// Folder and number of the sample with tokens of this digest.
    places: HashMap<String, (usize, usize)>,
}

struct Folder {
    shards: FeatureShards,
    /// Where the wanted layers stand among the stored ones.
    columns: Vec<usize>,
}

impl Known {
    /// Those in `folders`, for features as `wanted` says of the run's target. Samples longer than those of the run are found by their
    /// first tokens: what a state is depends on what stands before it. Only `texts` are looked for: other files than theirs are not
    /// read.
    ///
    /// # Errors
    /// Features are of another target, lack a layer, or are not as they were written.
    pub(super) fn open(
        context: &StageContext,
        folders: &[PathBuf],
        wanted: &FeatureHeader,
        texts: impl Iterator<Item = impl AsRef<[u32]>>,
    ) -> Result<Self> {
        let (target, longest) = (context.target_folder()?, context.recipe.data.max_length);
        let mut known = Self {
            folders: Vec::new(),
            places: HashMap::new(),
        };
        for (number, path) in folders.iter().enumerate() {
            let folder = Folder::open(path, wanted, &target)?;
            for sample in 0..folder.shards.len() {
                let tokens = folder.shards.get(sample).tokens;
                let first = &tokens[..tokens.len().min(longest)];
                known
                    .places
                    .entry(digest(first))
                    .or_insert((number, sample));
            }
            known.folders.push(folder);
        }
        context.prove(&known.files_of(texts))?;
        Ok(known)
    }

    /// The files that hold the features of those of these texts that are there.
    fn files_of(&self, texts: impl Iterator<Item = impl AsRef<[u32]>>) -> Vec<Recorded> {
        let mut samples = vec![Vec::new(); self.folders.len()];
        if samples.is_empty() {
            return Vec::new();
        }
        for text in texts {
            if let Some(&(folder, sample)) = self.place(text.as_ref()) {
                samples[folder].push(sample);
            }
        }
        let each = self.folders.iter().zip(samples);
        each.flat_map(|(folder, samples)| folder.shards.files_of(samples))
            .collect()
    }

    /// The features of these tokens, if they are there.
    pub(super) fn of(&self, tokens: &[u32]) -> Option<Bits> {
        let (folder, stored) = self.stored(tokens)?;
        Some(folder.bits(&stored, tokens.len()))
    }

    /// The loss mask that these tokens have beside their features, if they are there.
    pub(super) fn loss_mask(&self, tokens: &[u32]) -> Option<&[u8]> {
        let (_, stored) = self.stored(tokens)?;
        Some(&stored.loss_mask[..tokens.len()])
    }

    /// The sample that begins with these tokens.
    fn stored(&self, tokens: &[u32]) -> Option<(&Folder, StoredSample<'_>)> {
        let &(folder, sample) = self.place(tokens)?;
        let folder = &self.folders[folder];
        let stored = folder.shards.get(sample);
        let is_it = stored.tokens.starts_with(tokens);
        is_it.then_some((folder, stored))
    }

    /// Whether they are.
    pub(super) fn has(&self, tokens: &[u32]) -> bool {
        self.place(tokens).is_some()
    }

    fn place(&self, tokens: &[u32]) -> Option<&(usize, usize)> {
        // Where nothing is known, nothing is hashed.
        let found = (!self.places.is_empty()).then(|| self.places.get(&digest(tokens)));
        found.flatten()
    }
}

impl Folder {
    fn open(path: &Path, wanted: &FeatureHeader, target: &Path) -> Result<Self> {
        // Proven once it is known which of them are read.
        let shards = FeatureShards::open_with(path, |_| anyhow::Ok(()))?;
        let header = shards.header();
        // Of a large target a hash takes long, and the wanted one is known.
        let is_same = header.target_sha256 == wanted.target_sha256;
        if !is_same && !target::is_of(target, &header.target_sha256)? {
            bail!(
                "`{}`: `target_sha256`: expected that of `{}`, found {}",
                path.display(),
                target.display(),
                header.target_sha256
            );
        }
        if header.d_model != wanted.d_model {
            bail!(
                "`{}`: `d_model`: expected {}, found {}",
                path.display(),
                wanted.d_model,
                header.d_model
            );
        }
        let Some(columns) = columns(&wanted.captured_layers, &header.captured_layers) else {
            bail!(
                "`{}`: `captured_layers`: expected the layers {:?}, which the drafter reads, found {:?}",
                path.display(),
                wanted.captured_layers,
                header.captured_layers
            );
        };
        Ok(Self { shards, columns })
    }

    fn bits(&self, stored: &StoredSample, tokens: usize) -> Bits {
        let header = self.shards.header();
        let (d_model, layers) = (header.d_model, header.captured_layers.len());
        let (captured, last) = (stored.captured.bits(), stored.last.bits());
        let rows = &captured[..tokens * layers * d_model];
        Bits {
            captured: pick(rows, layers, &self.columns, d_model),
            last: last[..tokens * d_model].to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use spectrain_data::features::{FeatureWriter, StoredType};

    use super::*;
    use crate::recipe;
    use crate::stages::tests::{fixture, recipe_text, with_recipe};

    #[test]
    fn only_files_in_which_a_text_is_looked_for_are_read() {
        let root = fixture();
        let folder = root.path().join("own");
        let wanted = FeatureHeader {
            target_sha256: "t".into(),
            captured_layers: vec![1],
            d_model: 1,
            tokens_fingerprint: "f".into(),
            dtype: StoredType::Bf16,
        };
        let mut writer = FeatureWriter::open(&folder, wanted.clone(), 2).unwrap();
        for token in 0..6 {
            let sample = StoredSample {
                tokens: &[token, 9],
                loss_mask: &[0, 1],
                captured: [1, 2][..].into(),
                last: [3, 4][..].into(),
            };
            writer.push(&sample).unwrap();
        }
        let written = writer.finish().unwrap();
        let index = folder.join("features.json");
        let text = fs::read_to_string(&index).unwrap();
        fs::write(&index, text.replace(&written[1].sha256, "other")).unwrap();
        let recipe = recipe::read(&recipe_text(root.path()), &[]).unwrap();
        with_recipe(root.path(), &recipe, |context| {
            let open = |texts: &[[u32; 2]]| {
                let folders = std::slice::from_ref(&folder);
                Known::open(context, folders, &wanted, texts.iter())
            };
            let known = open(&[[0, 9], [5, 9], [7, 9]]).unwrap();
            assert!(known.has(&[0, 9]) && !known.has(&[7, 9]));
            let refused = open(&[[0, 9], [2, 9]]).err().unwrap().to_string();
            assert!(refused.contains("features-00001.arrow"), "{refused}");
            assert!(refused.contains("sha256: expected other"), "{refused}");
        });
    }
}

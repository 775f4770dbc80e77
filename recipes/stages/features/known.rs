//! Features that are there already: captured with the answers, or imported.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use spectrain_data::features::{FeatureHeader, FeatureShards, StoredSample};

use crate::runtime::capture::stored::{Bits, digest};
use crate::runtime::columns::{columns, pick};
use crate::runtime::target;

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
    /// Those in `folders`, for features as `wanted` says of the target in `target`. Samples longer than `longest` are found by their
    /// first tokens: what a state is depends on what stands before it.
    ///
    /// # Errors
    /// Features are of another target, or lack a layer.
    pub(super) fn open(
        folders: &[PathBuf],
        wanted: &FeatureHeader,
        target: &Path,
        longest: usize,
    ) -> Result<Self> {
        let mut known = Self {
            folders: Vec::new(),
            places: HashMap::new(),
        };
        for (number, path) in folders.iter().enumerate() {
            let folder = Folder::open(path, wanted, target)?;
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
        Ok(known)
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
        let shards = FeatureShards::open(path)?;
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
        let rows = &stored.captured[..tokens * layers * d_model];
        let captured = pick(rows, layers, &self.columns, d_model);
        Bits {
            captured,
            last: stored.last[..tokens * d_model].to_vec(),
        }
    }
}

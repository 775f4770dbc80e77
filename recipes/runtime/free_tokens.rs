//! Tokens of a target that no text holds, for drafters that want one to stand for what is still to come.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use spectrain_checkpoints::HubOptions;
use spectrain_checkpoints::hub::{Files, RepoType, Repository, download};
use spectrain_checkpoints::printable;
use spectrain_data::tokenizer::Tokenizer;

use crate::runtime::interruption::interrupted;

/// The files of a hub's model that tokens are known by.
const FILES: [&str; 2] = ["config.json", "tokenizer.json"];
/// What the names of tokens hold that are kept for whoever wants one.
const KEPT: &str = "reserved";
/// Bytes that no text in UTF-8 has, as tokenizers over bytes and those that fall back on bytes name them.
const NO_TEXT: [&str; 4] = ["ÿ", "þ", "<0xFF>", "<0xFE>"];

/// A token that no text holds.
pub struct FreeToken {
    /// Its id.
    pub id: u32,
    /// What it is, in words that follow "is".
    pub about: String,
}

/// The tokens that no text holds, of a target with so many `rows` in its embedding: rows that the tokenizer has no token
/// for, then tokens that are kept for such use, the last ones first, then those of bytes that no text has.
///
/// # Errors
/// The tokenizer is not there, or cannot be read.
pub fn free_tokens(target: &str, rows: usize) -> Result<Vec<FreeToken>> {
    let tokenizer = Tokenizer::from_folder(&folder_with_tokens(target)?)?;
    let ids = 0..rows as u32;
    let without = ids.clone().filter(|&id| tokenizer.token(id).is_none());
    let without = without.map(|id| FreeToken {
        id,
        about: "a row of the embedding for which the tokenizer has no token".to_owned(),
    });
    let kept = ids.rev().filter_map(|id| {
        let name = tokenizer.token(id).filter(|name| name.contains(KEPT))?;
        Some(FreeToken {
            id,
            about: format!("`{}`, which is kept for such use", printable(&name)),
        })
    });
    let bytes = NO_TEXT.into_iter().filter_map(|name| {
        Some(FreeToken {
            id: tokenizer.token_id(name)?,
            about: format!("`{name}`, a byte that no text has"),
        })
    });
    Ok(without.chain(kept).chain(bytes).collect())
}

/// A folder with the target's tokenizer: its own, or one of the hub's cache, for which no weights are downloaded.
fn folder_with_tokens(target: &str) -> Result<PathBuf> {
    let folder = Path::new(target);
    if folder.is_dir() {
        return Ok(folder.to_owned());
    }
    let options = HubOptions {
        stop: Some(interrupted),
        ..HubOptions::default()
    };
    let repository = Repository::new(RepoType::Model, target, None)?;
    download(&repository, Files::Named(&FILES), &options)
        .with_context(|| format!("cannot look at the tokens of `{target}`"))
}

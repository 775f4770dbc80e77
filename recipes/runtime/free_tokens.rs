//! Tokens of a target that no text holds, for drafters that want one to stand for what is still to come.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use spectrain_checkpoints::HubOptions;
use spectrain_checkpoints::hub::{Files, RepoType, Repository, download};
use spectrain_data::tokenizer::Tokenizer;

use crate::runtime::interruption::interrupted;

/// The files of a hub's model that tokens are known by.
const FILES: [&str; 2] = ["config.json", "tokenizer.json"];
/// What the names of tokens hold that are kept for whoever wants one.
const KEPT: &str = "reserved";
/// Bytes that no text in UTF-8 has, as tokenizers over bytes and those that fall back on bytes name them.
const NO_TEXT: [&str; 4] = ["ÿ", "þ", "<0xFF>", "<0xFE>"];

/// The ids of tokens that no text holds, of a target with so many `rows` in its embedding: rows that the tokenizer has no token
/// for, then tokens that are kept for such use, the last ones first, then those of bytes that no text has.
///
/// # Errors
/// The tokenizer is not there, or cannot be read.
pub fn free_tokens(target: &str, rows: usize) -> Result<Vec<u32>> {
    let tokenizer = Tokenizer::from_folder(&folder_with_tokens(target)?)?;
    let ids = 0..rows as u32;
    let mut free: Vec<u32> = ids
        .clone()
        .filter(|&id| tokenizer.token(id).is_none())
        .collect();
    let is_kept = |id: &u32| tokenizer.token(*id).is_some_and(|name| name.contains(KEPT));
    free.extend(ids.rev().filter(is_kept));
    free.extend(NO_TEXT.iter().filter_map(|name| tokenizer.token_id(name)));
    Ok(free)
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

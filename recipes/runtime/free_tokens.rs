//! Tokens of a target that no text holds, for drafters that want one to stand for what is still to come.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use spectrain_checkpoints::HubOptions;
use spectrain_checkpoints::hub::{Files, RepoType, Repository, download};
use spectrain_checkpoints::printable;
use spectrain_data::tokenizer::{Special, Tokenizer};

use crate::runtime::interruption::interrupted;

/// The files of a hub's model that tokens are known by.
const FILES: [&str; 2] = ["config.json", "tokenizer.json"];
/// What the names of tokens hold, between brackets, that are kept for whoever wants one: `<|reserved_special_token_0|>` of Llama 3,
/// `<unused0>` of Gemma, `[control_8]` of Mistral.
const KEPT: [&str; 3] = ["reserved", "unused", "control_"];
/// The brackets.
const BRACKETS: [[char; 2]; 2] = [['<', '>'], ['[', ']']];
/// Bytes that no text in UTF-8 has, as tokenizers name them that fall back on bytes, and those over bytes. To the former the last
/// two are letters.
const NO_TEXT: [&str; 4] = ["<0xFF>", "<0xFE>", "ÿ", "þ"];

/// A token that no text holds.
pub struct FreeToken {
    /// Its id.
    pub id: u32,
    /// What it is, in words that follow "is".
    pub about: String,
}

/// The tokens that no text holds, of a target at `revision` with so many `rows` in its embedding: rows that the tokenizer has no
/// token for, then tokens that are kept for such use, the last ones first, then those of bytes that no text has.
///
/// # Errors
/// The tokenizer is not there, or cannot be read.
pub fn free_tokens(target: &str, revision: Option<&str>, rows: usize) -> Result<Vec<FreeToken>> {
    let tokenizer = Tokenizer::from_folder(&folder_with_tokens(target, revision)?)?;
    let ids = 0..rows as u32;
    let without = ids.clone().filter(|&id| tokenizer.token(id).is_none());
    let without = without.map(|id| FreeToken {
        id,
        about: "a row of the embedding for which the tokenizer has no token".to_owned(),
    });
    let kept = ids.rev().filter_map(|id| {
        let name = tokenizer.token(id).filter(|name| is_kept(name))?;
        Some(FreeToken {
            id,
            about: format!("`{}`, which is kept for such use", printable(&name)),
        })
    });
    let bytes = NO_TEXT.into_iter().filter_map(|name| {
        let id = tokenizer.token_id(name)?;
        is_no_text(&tokenizer, id).then(|| FreeToken {
            id,
            about: format!("`{name}`, a byte that no text has"),
        })
    });
    Ok(without.chain(kept).chain(bytes).collect())
}

/// Whether a token of this name is kept for whoever wants one. As a word, what the names of these hold is one of many texts.
fn is_kept(name: &str) -> bool {
    let in_brackets = |[first, last]: [char; 2]| name.starts_with(first) && name.ends_with(last);
    BRACKETS.into_iter().any(in_brackets) && KEPT.iter().any(|kept| name.contains(kept))
}

/// Whether a token stands for a byte that is no text by itself.
fn is_no_text(tokenizer: &Tokenizer, id: u32) -> bool {
    let text = tokenizer.decode(&[id], Special::Keep);
    text.is_ok_and(|text| text.contains(char::REPLACEMENT_CHARACTER))
}

/// A folder with the target's tokenizer: its own, or one of the hub's cache, for which no weights are downloaded.
fn folder_with_tokens(target: &str, revision: Option<&str>) -> Result<PathBuf> {
    let folder = Path::new(target);
    if folder.is_dir() {
        return Ok(folder.to_owned());
    }
    let options = HubOptions {
        stop: Some(interrupted),
        ..HubOptions::default()
    };
    let repository = Repository::new(RepoType::Model, target, revision)?;
    download(&repository, Files::Named(&FILES), &options)
        .with_context(|| format!("cannot look at the tokens of `{target}`"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use spectrain_data::tokenizer::train_byte_level_bpe;

    use super::*;

    /// The free tokens of a target whose tokenizer falls back on bytes and has these tokens, in their order.
    fn free(tokens: &[&str]) -> Vec<u32> {
        let vocab = tokens.iter().zip(0..);
        let vocab: serde_json::Map<_, _> = vocab
            .map(|(token, id)| ((*token).to_owned(), json!(id)))
            .collect();
        let tokenizer = json!({
            "version": "1.0",
            "added_tokens": [],
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
            "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "vocab": vocab, "merges": []},
        });
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokenizer.json");
        std::fs::write(file, tokenizer.to_string()).unwrap();
        ids(folder.path(), tokens.len())
    }

    fn ids(folder: &Path, rows: usize) -> Vec<u32> {
        let found = free_tokens(folder.to_str().unwrap(), None, rows).unwrap();
        found.into_iter().map(|token| token.id).collect()
    }

    #[test]
    fn letters_are_bytes_only_to_tokenizers_over_bytes() {
        let tokens = ["<unk>", "<0xFE>", "<0xFF>", "a", "ÿ", "þ"];
        assert_eq!(free(&tokens), [2, 1]);
        assert_eq!(free(&["<unk>", "a", "ÿ", "þ"]), [0; 0]);
        let folder = tempfile::tempdir().unwrap();
        let texts = std::iter::once("one two".to_owned());
        let tokenizer = train_byte_level_bpe(texts, 300, &["<|im_end|>"]).unwrap();
        tokenizer.save(folder.path()).unwrap();
        let expected = ["ÿ", "þ"].map(|name| tokenizer.token_id(name).unwrap());
        assert_eq!(ids(folder.path(), tokenizer.vocab_size()), expected);
    }

    #[test]
    fn tokens_that_are_kept_are_known_from_words() {
        let tokens = [
            "<unk>",
            "reserved",
            "▁unused",
            "<unused0>",
            "[control_8]",
            "<|reserved_special_token_0|>",
            "<|im_end|>",
            "[",
            "control_",
        ];
        assert_eq!(free(&tokens), [5, 4, 3]);
    }
}

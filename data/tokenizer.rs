//! The target's tokenizer, and training a small one where there is no target yet.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokenizers::AddedToken;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::PostProcessorWrapper;

use spectrain_checkpoints::Mismatch;
use spectrain_checkpoints::folder::{TOKENIZER, TOKENIZER_CONFIG as CONFIG};

use crate::contained::contained;
use crate::error::{Error, Result};

/// What is said of it where there is none.
const WANTED: &str = "the tokenizer of the model, which a target needs (it is beside the weights on the hub; \
     `AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)` of transformers writes it)";

/// Whether special tokens such as `<|im_end|>` are written out when decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// Written as their text.
    Keep,
    /// Left out.
    Skip,
}

/// What a token adds to a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Continuation {
    /// A text. Where the token is a part of a character, the text holds U+FFFD.
    Text(String),
    /// The mark of a special token.
    Special,
}

/// Token ids and the bytes of the text that each stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoding {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Byte range of each token in the text; a character split over several tokens is in the range of each.
    pub offsets: Vec<Range<usize>>,
}

/// Text to token ids and back, exactly as the target's folder says.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    special: Vec<String>,
    bos: Option<String>,
    eos: Option<String>,
    fingerprint: String,
}

impl Tokenizer {
    /// Reads `tokenizer.json`, and `tokenizer_config.json` where there is one, from a model folder.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let path = folder.join(TOKENIZER);
        let bytes = std::fs::read(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::File {
                path: path.clone(),
                mismatch: Mismatch::new(WANTED, "no such file"),
            },
            _ => Error::io(&path)(error),
        })?;
        let config = read_config(folder)?;
        let read = contained(|| {
            let mut inner = tokenizers::Tokenizer::from_bytes(&bytes)?;
            // Length limits belong to preparation, which counts what it cuts.
            inner.with_truncation(None)?;
            inner.with_padding(None);
            Ok((special_texts(&inner), inner))
        });
        let read = read.unwrap_or_else(|panicked| Err(panicked.into()));
        let (special, inner) = read.map_err(|error: tokenizers::Error| Error::File {
            path,
            mismatch: Mismatch::new("a tokenizer of the `tokenizers` library", error),
        })?;
        Ok(Self {
            special,
            inner,
            bos: special_token(&config, "bos_token"),
            eos: special_token(&config, "eos_token"),
            fingerprint: sha256(&bytes),
        })
    }

    /// Tokenises a text; special tokens written in it are recognised, none are added.
    pub fn encode(&self, text: &str) -> Result<Encoding> {
        let encoding = contained(|| self.inner.encode(text, false))
            .unwrap_or_else(|panicked| Err(panicked.into()))
            .map_err(failed)?;
        Ok(Encoding {
            ids: encoding.get_ids().to_vec(),
            offsets: encoding
                .get_offsets()
                .iter()
                .map(|&(start, end)| start..end)
                .collect(),
        })
    }

    /// The text of token ids; ids outside the vocabulary stand for nothing.
    pub fn decode(&self, ids: &[u32], special: Special) -> Result<String> {
        contained(|| self.inner.decode(ids, special == Special::Skip))
            .unwrap_or_else(|panicked| Err(panicked.into()))
            .map_err(failed)
    }

    /// Number of tokens, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The id of a token by its text, special or not.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The text of a token by its id.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// What each token adds to a text that goes on with it, by its id.
    pub fn continuations(&self) -> Vec<Continuation> {
        // Behind nothing some decoders leave a token's first space out.
        let before = self.inner.encode("a", false).ok();
        let before: Vec<u32> = before.map_or(Vec::new(), |before| before.get_ids().to_vec());
        let text = |ids: &[u32]| self.decode(ids, Special::Keep).unwrap_or_default();
        let known = text(&before);
        let of = |id: u32| {
            let Some(token) = self.token(id) else {
                return Continuation::Text(String::new());
            };
            if self.special.contains(&token) {
                return Continuation::Special;
            }
            let behind = text(&[&before[..], &[id]].concat());
            let added = behind.strip_prefix(&known).map(str::to_owned);
            Continuation::Text(added.unwrap_or_else(|| text(&[id])))
        };
        (0..self.vocab_size() as u32).map(of).collect()
    }

    /// The texts of the special tokens, by which chat templates mark turns.
    pub(crate) fn special_texts(&self) -> &[String] {
        &self.special
    }

    /// The token that starts a text, where the target has one.
    pub fn bos_token(&self) -> Option<&str> {
        self.bos.as_deref()
    }

    /// The token that ends a text, where the target has one.
    pub fn eos_token(&self) -> Option<&str> {
        self.eos.as_deref()
    }

    /// Names the tokens that start and end a text.
    #[must_use]
    pub fn with_special_tokens(mut self, bos: Option<&str>, eos: Option<&str>) -> Self {
        self.bos = bos.map(str::to_owned);
        self.eos = eos.map(str::to_owned);
        self
    }

    /// Hexadecimal SHA-256 of `tokenizer.json`: tokens made with one tokenizer are no use to another.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Writes `tokenizer.json` and `tokenizer_config.json`, as `transformers` reads them.
    pub fn save(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": false,
        });
        for (key, token) in [
            ("bos_token", &self.bos),
            ("eos_token", &self.eos),
            ("pad_token", &self.eos),
        ] {
            if let Some(token) = token {
                config[key] = json!(token);
            }
        }
        for (name, text) in [
            (TOKENIZER, self.inner.to_string(true).map_err(failed)?),
            (CONFIG, format!("{config:#}\n")),
        ] {
            let path = folder.join(name);
            std::fs::write(&path, text).map_err(Error::io(&path))?;
        }
        Ok(())
    }
}

/// Trains a byte-level BPE tokenizer of at most `vocab` tokens, the 256 bytes and `special` included.
///
/// The same texts give the same tokenizer. Special tokens take the first ids, in order.
pub fn train_byte_level_bpe(
    texts: impl Iterator<Item = String> + Send,
    vocab: usize,
    special: &[&str],
) -> Result<Tokenizer> {
    let smallest = ByteLevel::alphabet().len() + special.len();
    if vocab < smallest {
        return Err(Error::Tokenizer {
            message: format!(
                "expected a vocabulary of at least {smallest} (256 bytes and special tokens), found {vocab}"
            ),
        });
    }
    let special: Vec<AddedToken> = special
        .iter()
        .map(|token| AddedToken::from(*token, true))
        .collect();
    let trainer = BpeTrainer::builder()
        .vocab_size(vocab)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect::<HashSet<char>>())
        .special_tokens(special.clone())
        .build();
    let bytes = ByteLevel::new(false, false, true);
    let mut inner = tokenizers::Tokenizer::new(BPE::default());
    inner
        .with_pre_tokenizer(Some(PreTokenizerWrapper::ByteLevel(bytes)))
        .with_post_processor(Some(PostProcessorWrapper::ByteLevel(bytes)))
        .with_decoder(Some(DecoderWrapper::ByteLevel(bytes)));
    inner
        .train(&mut TrainerWrapper::BpeTrainer(trainer), texts)
        .map_err(failed)?;
    inner.add_special_tokens(special).map_err(failed)?;
    let fingerprint = sha256(inner.to_string(true).map_err(failed)?.as_bytes());
    Ok(Tokenizer {
        special: special_texts(&inner),
        inner,
        bos: None,
        eos: None,
        fingerprint,
    })
}

fn special_texts(tokenizer: &tokenizers::Tokenizer) -> Vec<String> {
    let added = tokenizer.get_added_tokens_decoder();
    added
        .into_values()
        .filter(|token| token.special)
        .map(|token| token.content)
        .collect()
}

/// `tokenizer_config.json` of a folder; `null` where there is none.
pub(crate) fn read_config(folder: &Path) -> Result<Value> {
    let path = folder.join(CONFIG);
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| Error::File {
            path,
            mismatch: Mismatch::new("a JSON object", error),
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Value::Null),
        Err(error) => Err(Error::io(&path)(error)),
    }
}

/// A special token of `tokenizer_config.json`, written as a text or as an object with `content`.
pub(crate) fn special_token(config: &Value, key: &str) -> Option<String> {
    let token = &config[key];
    token
        .as_str()
        .or_else(|| token["content"].as_str())
        .map(str::to_owned)
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[expect(clippy::needless_pass_by_value, reason = "passed to `map_err`")]
fn failed(error: tokenizers::Error) -> Error {
    Error::Tokenizer {
        message: error.to_string(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const SPECIAL: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"];

    /// A tokenizer with the marks of ChatML, trained on a few lines.
    pub(crate) fn small() -> Tokenizer {
        let texts = (0..40).map(|n| {
            format!("the cat number {n} sat on the mat and the dog ran away\nuser assistant")
        });
        let trained = train_byte_level_bpe(texts, 320, &SPECIAL).unwrap();
        trained.with_special_tokens(None, Some("<|im_end|>"))
    }

    #[test]
    fn every_text_comes_back_from_its_tokens() {
        let tokenizer = small();
        for text in [
            "the cat sat",
            "  two spaces\n\n",
            "naïve 東京 🦀",
            "",
            "<|im_start|>user\nhi<|im_end|>",
        ] {
            let encoding = tokenizer.encode(text).unwrap();
            assert_eq!(
                tokenizer.decode(&encoding.ids, Special::Keep).unwrap(),
                text
            );
        }
        let marked = tokenizer.encode("<|im_start|>cat<|im_end|>").unwrap();
        assert_eq!(tokenizer.decode(&marked.ids, Special::Skip).unwrap(), "cat");
        assert_eq!(marked.ids[0], tokenizer.token_id("<|im_start|>").unwrap());
    }

    #[test]
    fn a_token_goes_on_with_its_space_and_parts_of_characters_show() {
        let tokenizer = small();
        let found = tokenizer.continuations();
        assert_eq!(found.len(), tokenizer.vocab_size());
        assert_eq!(found[0], Continuation::Special);
        let of = |text: &str| {
            let ids = tokenizer.encode(text).unwrap().ids;
            found[ids[ids.len() - 1] as usize].clone()
        };
        assert_eq!(of("a the"), Continuation::Text(" the".into()));
        assert_eq!(of("\n"), Continuation::Text("\n".into()));
        assert_eq!(of("é"), Continuation::Text("\u{fffd}".into()));
    }

    #[test]
    fn offsets_are_bytes_of_the_text() {
        let text = "é the<|im_end|>🦀";
        let encoding = small().encode(text).unwrap();
        let mark = encoding
            .offsets
            .iter()
            .position(|range| &text[range.clone()] == "<|im_end|>");
        assert_eq!(encoding.ids[mark.unwrap()], 1);
        assert_eq!(encoding.offsets.last().unwrap().end, text.len());
        for range in &encoding.offsets {
            assert!(
                text.is_char_boundary(range.start) && text.is_char_boundary(range.end),
                "{range:?}"
            );
        }
    }

    #[test]
    fn training_twice_writes_the_same_tokenizer_and_it_reads_back() {
        let (first, second) = (small(), small());
        assert_eq!(first.fingerprint(), second.fingerprint());
        assert_eq!(first.vocab_size(), 320);
        let folder = tempfile::tempdir().unwrap();
        first.save(folder.path()).unwrap();
        let read = Tokenizer::from_folder(folder.path()).unwrap();
        assert_eq!(read.fingerprint(), first.fingerprint());
        assert_eq!(read.eos_token(), Some("<|im_end|>"));
        assert_eq!(read.bos_token(), None);
        let text = "the cat<|im_end|>\n";
        assert_eq!(read.encode(text).unwrap(), first.encode(text).unwrap());
    }

    #[test]
    fn special_tokens_are_read_in_both_forms() {
        let folder = tempfile::tempdir().unwrap();
        small().save(folder.path()).unwrap();
        let config = r#"{"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>"}"#;
        std::fs::write(folder.path().join(CONFIG), config).unwrap();
        let read = Tokenizer::from_folder(folder.path()).unwrap();
        assert_eq!(
            (read.bos_token(), read.eos_token()),
            (Some("<s>"), Some("</s>"))
        );
    }

    #[test]
    fn a_missing_or_broken_tokenizer_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let message = Tokenizer::from_folder(folder.path())
            .unwrap_err()
            .to_string();
        for part in ["tokenizer.json", "a target needs", "found no such file"] {
            assert!(message.contains(part), "{message}");
        }
        std::fs::write(folder.path().join(TOKENIZER), "{}").unwrap();
        let message = Tokenizer::from_folder(folder.path())
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("tokenizer.json") && message.contains("expected a tokenizer"),
            "{message}"
        );
        assert!(train_byte_level_bpe(std::iter::empty(), 10, &[]).is_err());
    }

    /// A tokenizer of the `tokenizers` library with one value changed, by its path.
    fn changed(path: &str, value: Value) -> Result<Encoding> {
        let folder = tempfile::tempdir().unwrap();
        small().save(folder.path()).unwrap();
        let file = folder.path().join(TOKENIZER);
        let mut tokenizer: Value =
            serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        *tokenizer.pointer_mut(path).unwrap() = value;
        std::fs::write(&file, tokenizer.to_string()).unwrap();
        let tokenizer = Tokenizer::from_folder(folder.path())?;
        tokenizer.encode("the cat, the dog")
    }

    #[test]
    fn a_tokenizer_that_its_library_panics_on_is_an_error() {
        let charsmap = json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"});
        let template = |single: Value| {
            json!({"type": "TemplateProcessing", "single": single, "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
                   "special_tokens": {}})
        };
        let twice = json!([{"Sequence": {"id": "B", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
        let strips = json!({"type": "Replace", "pattern": {"String": "<|im_end|>"}, "content": ""});
        let cases = [
            (
                "/model/continuing_subword_prefix",
                json!("longer than most tokens"),
            ),
            ("/normalizer", charsmap),
            (
                "/pre_tokenizer",
                json!({"type": "FixedLength", "length": 0}),
            ),
            ("/post_processor", template(twice)),
            ("/normalizer", strips),
        ];
        for (path, value) in cases {
            let shown = value.to_string();
            // Some are only odd; what counts is that none of them panics.
            match changed(path, value) {
                Err(error) => assert!(error.to_string().contains("okenizer"), "{shown}: {error}"),
                Ok(encoding) => assert!(!encoding.ids.is_empty(), "{shown}"),
            }
        }
        let failed = |path: &str, value: Value| changed(path, value).unwrap_err().to_string();
        let message = failed(
            "/model/continuing_subword_prefix",
            json!("longer than most tokens"),
        );
        assert!(
            message.contains("tokenizer.json") && message.contains("its library fails on"),
            "{message}"
        );
        let message = failed(
            "/pre_tokenizer",
            json!({"type": "FixedLength", "length": 0}),
        );
        assert!(
            message.starts_with("tokenizer: something that its library fails on: chunk size"),
            "{message}"
        );
    }
}

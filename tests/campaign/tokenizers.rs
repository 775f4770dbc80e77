//! Tokenizers: one that is read turns any text into tokens and tokens into a text, or says why not.
use std::fs;
use std::path::Path;

use rand::{RngExt, rngs::StdRng};
use serde_json::{Value, json};
use spectrain_data::tokenizer::{Special, Tokenizer};

use super::fuzz::{Expected, Files, Fuzz, file};
use super::json::{change, change_bytes};
use crate::golden::path;

const NAME: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";

/// Words of every kind of characters.
const TEXT: &str = "Count to 3: one, two, three…\n\t<|im_start|>naïve \u{1f600}\u{200d}日本語 e\u{301} \0 aaaaaaaaaaaaaaaaaaaaaaaa";

/// A tokenizer of each model of the library, with parts that do the most before and behind it.
fn corpus() -> Vec<Files> {
    let golden = |name| fs::read(path("chat_tokenizer").join(name)).unwrap();
    let mut byte_level = file(NAME, golden(NAME));
    byte_level.extend(file(CONFIG, golden(CONFIG)));
    let words = json!({"type": "WordLevel", "vocab": {"[UNK]": 0, "count": 1, "to": 2, "3": 3}, "unk_token": "[UNK]"});
    let pieces = json!({"type": "WordPiece", "vocab": {"[UNK]": 0, "count": 1, "##a": 2, "a": 3}, "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100});
    let unigram = json!({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["\u{2581}", -2.0], ["a", -3.0], ["co", -2.5], ["unt", -4.0]], "byte_fallback": false});
    let normalizer = json!({"type": "Sequence", "normalizers": [
        {"type": "NFKC"}, {"type": "Lowercase"}, {"type": "Replace", "pattern": {"Regex": "(a|b)+"}, "content": "a"},
        {"type": "Strip", "strip_left": true, "strip_right": true}, {"type": "Prepend", "prepend": "\u{2581}"},
        {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
    ]});
    let split = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}| ?\\p{L}+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": false},
        {"type": "Digits", "individual_digits": true}, {"type": "Punctuation", "behavior": "Isolated"},
        {"type": "UnicodeScripts"}, {"type": "FixedLength", "length": 5},
    ]});
    let metaspace = json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true});
    let decoder = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]});
    let post = json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[UNK]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"[UNK]": {"id": "[UNK]", "ids": [0], "tokens": ["[UNK]"]}}});
    let of = |model: &Value, before: &Value, split: &Value, decoder: Value| {
        let added = json!([{"id": 0, "content": "[UNK]", "single_word": false, "lstrip": true, "rstrip": false, "normalized": false, "special": true}]);
        let whole = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": before,
            "pre_tokenizer": split, "post_processor": post, "decoder": decoder, "model": model});
        file(NAME, whole.to_string())
    };
    vec![
        byte_level,
        of(&words, &normalizer, &split, Value::Null),
        of(
            &pieces,
            &Value::Null,
            &json!({"type": "BertPreTokenizer"}),
            json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        ),
        of(&unigram, &normalizer, &metaspace, decoder),
    ]
}

fn mutate(files: &mut Files, rng: &mut StdRng) {
    if files.contains_key(CONFIG) && rng.random_bool(0.1) {
        return change_bytes(files.get_mut(CONFIG).unwrap(), rng);
    }
    let bytes = files.get_mut(NAME).unwrap();
    let Ok(mut whole) = serde_json::from_slice::<Value>(bytes) else {
        return change_bytes(bytes, rng);
    };
    // The vocabulary is most of the text: each part of a tokenizer has its share of the changes.
    let parts = [
        "normalizer",
        "pre_tokenizer",
        "post_processor",
        "decoder",
        "added_tokens",
        "model",
    ];
    match parts.get(rng.random_range(0..parts.len() + 2)) {
        Some(part) if !whole[*part].is_null() => change(&mut whole[*part], rng),
        _ => return change_bytes(bytes, rng),
    }
    *bytes = whole.to_string().into_bytes();
}

fn read(folder: &Path) -> Result<String, String> {
    let tokenizer = Tokenizer::from_folder(folder).map_err(|error| error.to_string())?;
    let ids = match tokenizer.encode(TEXT) {
        Ok(encoding) => {
            assert_eq!(encoding.ids.len(), encoding.offsets.len());
            encoding.ids
        }
        Err(error) => return Ok(error.to_string()),
    };
    let vocab = tokenizer.vocab_size();
    for special in [Special::Keep, Special::Skip] {
        let _ = tokenizer.decode(&ids, special);
    }
    let _ = tokenizer.decode(&[0, 1, u32::MAX], Special::Keep);
    assert_eq!(tokenizer.continuations().len(), vocab);
    Ok(vocab.to_string())
}

#[test]
fn tokenizers_are_read_or_refused() {
    Fuzz {
        name: "tokenizers",
        corpus: corpus(),
        mutate,
        read,
        expected: Expected {
            memory: 64 << 20,
            ..Expected::default()
        },
    }
    .run();
}

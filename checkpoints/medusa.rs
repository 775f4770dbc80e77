//! Medusa heads as vLLM loads them, up to 0.32.0 (<https://arxiv.org/abs/2401.10774>).
//!
//! vLLM neither misses absent tensors nor says that it drops biases where the configuration has no `medusa_fc_bias`, so
//! everything is checked here when a folder is written and when one is read.

use std::path::Path;

use serde_json::{Value, json};

use crate::config::Config;
use crate::dialect::description::{Check, Dialect, Neutral, Quirks, SharedHead, top};
use crate::dialect::key::{Key, Otherwise};
use crate::dialect::llama::DTYPE;
use crate::dialect::settings::{BLOCK_BIAS, Settings};
use crate::dialect::vocabulary::TokenMap;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::folder::CONFIG;
use crate::launch::{self, Launch};
use crate::once::warn_once;
use crate::tensors::NamedTensor;

/// vLLM's layout; the authors' own folders and ModelOpt's are read too.
pub const MEDUSA: Dialect = Dialect {
    keys: &[top(&[
        Key::told("architectures", |_, _| Some(json!([ARCHITECTURE]))),
        Key::told("model_type", |_, _| Some(json!("medusa"))),
        WIDTH,
        VOCAB,
        DRAFT_VOCAB,
        Key::code(
            "num_heads",
            "medusa_heads",
            |config, _, _| Ok(json!(heads(config)?)),
            |settings, here| settings.get(here).cloned(),
        ),
        Key::code(
            "num_hidden_layers",
            "head_layers",
            |config, _, _| {
                let key = spelling(config.folder().config()).layers;
                Ok(json!(config.count(key, Some(1))?))
            },
            |settings, here| settings.get(here).cloned(),
        ),
        Key::code("medusa_fc_bias", BLOCK_BIAS, has_bias, |_, _| {
            Some(json!(true))
        }),
        SHARED,
        Key::told("logit_scale", |_, _| Some(json!(1.0))),
        DTYPE,
    ])],
    neutral: &[&[("logit_scale", Neutral::Number(1.0))]],
    token_map: TokenMap::Ids,
    // vLLM does not share the target's head, so it is written out once for all heads.
    shared_head: SharedHead::Beside,
    launch: launch_lines,
    quirks: Quirks {
        canonical: |folder, stored| Some(canonical(folder.config(), stored)),
        check_folder: check_counts,
        check_settings: |settings| check_heads(settings, "medusa_heads"),
        reduce: complete_biases,
        optional: |settings| {
            let shape = vec![settings.size("draft_vocab"), settings.size("d_model")];
            let head = ("lm_head.weight".into(), shape, DType::F32);
            if settings.shares_head() {
                vec![head]
            } else {
                Vec::new()
            }
        },
        ..Quirks::NONE
    },
    ..Dialect::named("Medusa", |folder| recognises(folder.config()))
};

const ARCHITECTURE: &str = "MedusaModel";

/// The authors' configuration has no sizes; the tensors do.
const WIDTH: Key = Key::code(
    "hidden_size",
    "d_model",
    |config, key, _| {
        Ok(json!(
            config.size(key, output_shape(config).map(|[_, width]| width))?
        ))
    },
    |settings, here| settings.get(here).cloned(),
);
const VOCAB: Key = Key::code(
    "vocab_size",
    "vocab",
    |config, key, _| {
        Ok(json!(
            config.size(key, output_shape(config).map(|[rows, _]| rows))?
        ))
    },
    |settings, here| settings.get(here).cloned(),
);
/// Tokens that are drafted; `draft_vocab_size` would make engines take a folder for EAGLE-3.
pub(crate) const DRAFT_VOCAB: Key = Key::code(
    "truncated_vocab_size",
    "draft_vocab",
    |config, key, _| {
        let of_head = output_shape(config).map(|[rows, _]| rows);
        let vocab = config.size("vocab_size", of_head)?;
        let size = config.size(key, Some(vocab))?;
        if size > vocab {
            return Err(config.wrong(key, format!("at most `{vocab}`")));
        }
        Ok(json!(size))
    },
    |settings, here| settings.get(here).cloned(),
);
/// Whether all heads use one output layer, the target's.
pub(crate) const SHARED: Key = Key::code(
    "original_lm_head",
    "head",
    |config, key, _| {
        let shared = config.flag(key, false)?;
        Ok(json!(if shared { "shared" } else { "own" }))
    },
    |settings, _| Some(json!(settings.shares_head())),
);

/// Rows and width of an output layer.
fn output_shape(config: &Config) -> Option<[usize; 2]> {
    let names = ["lm_head.weight", "lm_heads.0.weight"];
    let head = names.iter().find_map(|name| config.tensor(name))?;
    head.shape.as_slice().try_into().ok()
}

/// How many heads a folder has. The authors' program takes 5 whatever the key says, as published folders hold more than that says.
fn heads(config: &Config) -> Result<usize> {
    let key = spelling(config.folder().config()).heads;
    let told = config.count(key, None)?;
    if key != AUTHORS.heads || config.get(VLLM.heads).is_some() {
        return Ok(told);
    }
    let block = |head: &usize| format!("blocks.{head}.layers.0.weight");
    let there = (0..).take_while(|head| config.tensor(&block(head)).is_some());
    let there = there.count();
    if there <= told {
        return Ok(told);
    }
    warn_once(&format!(
        "`{}`: `{key}` is {told}, and the folder holds {there} heads; all of them are taken",
        config.folder().path().join(CONFIG).display()
    ));
    Ok(there)
}

/// Fails for a drafter without heads.
pub(crate) fn check_heads(settings: &Settings, key: &'static str) -> Check {
    match settings.size(key) {
        0 => Err((key, "at least 1".to_owned(), "0".to_owned())),
        _ => Ok(()),
    }
}

/// How a program's configurations name the numbers of heads and of their blocks.
struct Spelling {
    heads: &'static str,
    layers: &'static str,
}

const VLLM: Spelling = Spelling {
    heads: "num_heads",
    layers: "num_hidden_layers",
};
const AUTHORS: Spelling = Spelling {
    heads: "medusa_num_heads",
    layers: "medusa_num_layers",
};
const MODELOPT: Spelling = Spelling {
    heads: "medusa.num_medusa_heads",
    layers: "medusa.num_medusa_layers",
};

/// The spelling that a configuration uses.
fn spelling(config: &Value) -> Spelling {
    let uses = |spelling: &Spelling| lookup(config, spelling.heads).is_some();
    let others = [AUTHORS, MODELOPT];
    others.into_iter().find(uses).unwrap_or(VLLM)
}

fn lookup<'a>(config: &'a Value, key: &str) -> Option<&'a Value> {
    let mut parts = key.split('.');
    let found = parts.try_fold(config, |value, part| value.get(part));
    found.filter(|value| !value.is_null())
}

/// Whether a `config.json` is of Medusa heads, ours or published ones.
fn recognises(config: &Value) -> bool {
    let names = config["architectures"].as_array();
    let named = names.is_some_and(|names| names.iter().any(|name| name == ARCHITECTURE));
    let others = [AUTHORS.heads, MODELOPT.heads];
    let published = others.iter().any(|key| lookup(config, key).is_some());
    named || config["model_type"] == "medusa" || published
}

/// Fails where two programs' keys for one number are there and differ.
fn check_counts(config: &Config) -> Result<()> {
    if !recognises(config.folder().config()) {
        return Err(config.wrong("architectures", format!("`{ARCHITECTURE}`")));
    }
    let all = [AUTHORS, MODELOPT, VLLM];
    let used = all.iter().filter(|keys| config.get(keys.heads).is_some());
    let used: Vec<&Spelling> = used.collect();
    if used.is_empty() {
        return Ok(());
    }
    config.one_key(&used.iter().map(|keys| keys.heads).collect::<Vec<_>>())?;
    // In a folder without vLLM's number of heads its other key is the target's.
    config.one_key(&used.iter().map(|keys| keys.layers).collect::<Vec<_>>())?;
    Ok(())
}

/// What vLLM takes a missing key for would drop the biases of folders that are not of its spelling.
fn has_bias(config: &Config, key: &'static str, _: Otherwise) -> Result<Value> {
    let of_others = spelling(config.folder().config()).heads != VLLM.heads;
    let there = config.tensor("blocks.0.layers.0.bias").is_some();
    Ok(json!(config.flag(key, of_others && there)?))
}

/// Blocks here add a bias: where a folder has none, zeros.
fn complete_biases(file: &Path, settings: &Settings, tensors: &mut Vec<NamedTensor>) -> Result<()> {
    if settings.flag(BLOCK_BIAS) {
        return Ok(());
    }
    let width = settings.size("d_model");
    for head in 0..settings.size("medusa_heads") {
        for layer in 0..settings.size("head_layers") {
            let name = format!("blocks.{head}.layers.{layer}.bias");
            if tensors.iter().any(|tensor| tensor.name == name) {
                return Err(Error::Names {
                    path: file.to_path_buf(),
                    missing: Vec::new(),
                    unexpected: vec![name],
                });
            }
            tensors.push(NamedTensor::from_f32(name, [width], vec![0.0; width]));
        }
    }
    Ok(())
}

/// `0.0.linear.weight` is a block and `0.1.weight` the output layer, where heads have one block.
fn canonical(config: &Value, name: &str) -> String {
    let layers = lookup(config, spelling(config).layers).and_then(Value::as_u64);
    let layers = layers.map_or(1, |layers| layers as usize);
    let name = name.strip_prefix("medusa_heads.").unwrap_or(name);
    let name = name.strip_prefix("medusa_head.").unwrap_or(name);
    let parts: Vec<&str> = name.split('.').collect();
    let number = |part: &str| part.parse::<usize>().ok();
    match parts[..] {
        [head, layer, "linear", kind] if number(head).is_some() && number(layer).is_some() => {
            format!("blocks.{head}.layers.{layer}.{kind}")
        }
        [head, layer, "weight"] if number(head).is_some() && number(layer) == Some(layers) => {
            format!("lm_heads.{head}.weight")
        }
        _ => name.to_string(),
    }
}

/// A command for vLLM, behind a line that says which versions it is for.
fn launch_lines(settings: &Settings, dir: &Path, target: &str, draft_tokens: usize) -> Vec<Launch> {
    let draft_tokens = draft_tokens.min(settings.size("medusa_heads"));
    // It takes heads of their own to be as long as the target's.
    if settings.has_draft_vocab() && !settings.shares_head() {
        return vec![Launch::remark(
            "vLLM loads Medusa with a part of the target's tokens only where its heads share the target's; this program decodes with it: \
             `spectrain generate`, `spectrain evaluate`",
        )];
    }
    vec![
        Launch::remark(
            "vLLM up to 0.32.0, which drafts a chain; 0.33 and other engines do not load Medusa",
        ),
        launch::vllm(dir, "medusa", target, draft_tokens).likeliest_alone(),
    ]
}

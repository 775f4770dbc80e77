//! Chat templates: whatever they do, a rendering ends, within its memory, and no mask is longer than its tokens.
use std::fs;
use std::path::Path;

use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use spectrain_data::mask::{Masking, tokenize};
use spectrain_data::template::{ChatTemplate, GenerationPrompt};
use spectrain_data::tokenizer::Tokenizer;
use spectrain_data::{Content, Conversation, Row};

use super::bytes::{change_text, odd};
use super::fuzz::{Expected, Files, Fuzz, file};
use super::json;
use crate::golden::path;

const TEMPLATE: &str = "chat_template.jinja";
const ROW: &str = "row.json";
const CONFIG: &str = "tokenizer_config.json";

/// Pieces of templates that loop, grow, nest, or call what libraries have.
const PIECES: [&str; 48] = [
    "{% for i in range(100000) %}",
    "{% for i in range(99999999999) %}",
    "{% for m in messages %}",
    "{% for k, v in messages[0].items() %}",
    "{% endfor %}",
    "{% if messages[0].content %}",
    "{% elif loop.index0 > 2 %}",
    "{% else %}",
    "{% endif %}",
    "{% set ns = namespace(x='ab') %}",
    "{% set ns.x = ns.x ~ ns.x %}",
    "{% set ns.x = ns.x * 7 %}",
    "{% set x %}",
    "{% endset %}",
    "{% macro m(a, b=3) %}{{ m(a) }}{% endmacro %}",
    "{{ m(1) }}",
    "{% call(u) m(1) %}{{ u }}{% endcall %}",
    "{% generation %}",
    "{% endgeneration %}",
    "{% raw %}",
    "{% endraw %}",
    "{% filter upper %}",
    "{% endfilter %}",
    "{% break %}",
    "{% continue %}",
    "{% include 'chat' %}",
    "{{ messages | tojson(indent=4) }}",
    "{{ messages[0].content | indent(100000) }}",
    "{{ messages[-1]['content'][::-1] }}",
    "{{ messages[1:][0].role.split('s') | join('/') }}",
    "{{ 'x'.replace('', 'abc') * 1000 }}",
    "{{ '%1000000d' % 3 }}",
    "{{ '{0:>99999}'.format(messages) }}",
    "{{ range(3) | batch(2) | list }}",
    "{{ messages | map(attribute='content') | list | sort | unique }}",
    "{{ messages | groupby('role') }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "{{ (1/0) }}",
    "{{ 2 ** 9999 }}",
    "{{ -7 // 0 % 0 }}",
    "{{ raise_exception(messages) }}",
    "{{ strftime_now('%Y %j %Q %') }}",
    "{{ loop.cycle('a', 'b') }}{{ loop.previtem }}",
    "{{ self.x() }}{{ super() }}",
    "{{ dict(a=1)|dictsort|tojson }}",
    "{{ messages|string|length|string|list|random }}",
    "{# ",
    "{{ bos_token + eos_token }}",
];

/// The templates and conversations whose renderings and masks `transformers` has made.
fn corpus() -> Vec<Files> {
    let golden: Value =
        serde_json::from_slice(&fs::read(path("chat_masks.json")).unwrap()).unwrap();
    let rows = golden["rows"].as_array().unwrap();
    let of_row = |row: &Value| {
        let template = &golden["templates"][row["template"].as_str().unwrap()]["source"];
        let mut files = file(TEMPLATE, template.as_str().unwrap());
        let of = json!({"messages": row["messages"], "tools": row["tools"]});
        files.extend(file(ROW, of.to_string()));
        let config =
            json!({"bos_token": row["bos_token"], "eos_token": {"content": row["eos_token"]}});
        files.extend(file(CONFIG, config.to_string()));
        files
    };
    rows.iter().map(of_row).collect()
}

fn mutate(files: &mut Files, rng: &mut StdRng) {
    match rng.random_range(0..10) {
        0..2 => json::change_bytes(files.get_mut(ROW).unwrap(), rng),
        2 => json::change_bytes(files.get_mut(CONFIG).unwrap(), rng),
        _ => change_template(files.get_mut(TEMPLATE).unwrap(), rng),
    }
}

fn change_template(bytes: &mut Vec<u8>, rng: &mut StdRng) {
    let Ok(text) = String::from_utf8(bytes.clone()) else {
        return change_text(bytes, rng);
    };
    // Parts between tags, and the tags, so that what is put between them is read as it stands.
    let mut parts: Vec<String> = text.split_inclusive("}").map(str::to_owned).collect();
    for _ in 0..rng.random_range(1..5) {
        let at = rng.random_range(0..=parts.len());
        match rng.random_range(0..8) {
            0..5 => parts.insert(at, (*PIECES.choose(rng).unwrap()).to_owned()),
            5 if at < parts.len() => drop(parts.remove(at)),
            6 if at < parts.len() => parts.insert(at, parts[at].clone()),
            _ => parts.insert(at, format!("{{{{ {} }}}}", odd(rng))),
        }
    }
    *bytes = parts.concat().into_bytes();
    if rng.random_bool(0.2) {
        change_text(bytes, rng);
    }
}

fn conversation(folder: &Path) -> Result<Conversation, String> {
    let text = fs::read(folder.join(ROW)).unwrap();
    let row = Row::from_json(&String::from_utf8_lossy(&text)).map_err(|error| error.to_string())?;
    match row.content {
        Content::Conversation(conversation) => Ok(conversation),
        Content::Tokens(_) => Err("tokens".into()),
    }
}

fn render(folder: &Path, tokenizer: &Tokenizer) -> Result<String, String> {
    let said = |error: spectrain_data::Error| error.to_string();
    let template = ChatTemplate::from_folder(folder).map_err(said)?;
    let conversation = conversation(folder)?;
    let rendered = template
        .render_marked(&conversation, GenerationPrompt::With)
        .map_err(said)?;
    for span in rendered.spans.into_iter().flatten() {
        assert!(
            rendered.text.get(span).is_some(),
            "a span inside of a character"
        );
    }
    // Words take a tokenizer long that is given millions of them.
    if rendered.text.len() < 10_000 {
        for masking in [Masking::Assistant, Masking::LastTurn] {
            let sample = tokenize(&conversation, &template, tokenizer, masking).map_err(said)?;
            assert_eq!(sample.tokens.len(), sample.loss_mask.len());
        }
    }
    Ok(rendered.text.len().to_string())
}

/// Two renderings of at most 512 MiB each, and 256 MiB of text, are what the limits of templates allow.
#[test]
fn templates_are_rendered_or_refused() {
    let tokenizer = Tokenizer::from_folder(&path("chat_tokenizer")).unwrap();
    Fuzz {
        name: "templates",
        corpus: corpus(),
        mutate,
        read: |folder: &Path| render(folder, &tokenizer),
        expected: Expected {
            memory: 1 << 30,
            seconds: 300,
            names_files: false,
            ..Expected::default()
        },
    }
    .run();
}

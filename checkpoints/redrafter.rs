//! ReDrafter's head in its authors' layout, which TensorRT-LLM converts (<https://arxiv.org/abs/2403.09919>).

use std::path::Path;

use serde_json::{Value, json};

use crate::beside::TARGET_CLASS;
use crate::config::Config;
use crate::dialect::description::{Dialect, Quirks, top};
use crate::dialect::key::{Key, Otherwise};
use crate::dialect::llama::{DTYPE, VOCAB, WIDTH};
use crate::dialect::settings::Settings;
use crate::error::Result;
use crate::folder::ModelFolder;
use crate::launch::{Launch, tensorrt_redrafter};

/// The authors' layout.
pub const REDRAFTER: Dialect = Dialect {
    keys: &[top(&[
        Key::told("architectures", |_, _| Some(json!(["Drafter"]))),
        Key::told("model_type", |_, _| Some(json!(MODEL_TYPE))),
        WIDTH,
        VOCAB,
        Key::told(READ, |settings, _| {
            Some(json!(2 * settings.size("d_model")))
        }),
        Key::count(LAYERS, "head_layers"),
        Key::flag("rnn", "recurrent", false),
        // The authors' folders say nothing of it; TensorRT-LLM calls it so.
        Key::count("redrafter_draft_len_per_beam", "draft_tokens").or(Otherwise::Size(5)),
        DTYPE,
    ])],
    launch: launch_lines,
    quirks: Quirks {
        canonical,
        stored,
        check_folder,
        ..Quirks::NONE
    },
    ..Dialect::named("ReDrafter", |folder| {
        folder.config()["model_type"] == MODEL_TYPE
    })
};

const MODEL_TYPE: &str = "recurrent_drafting_drafter";
/// Blocks before the output layer, with which they stand in one list.
const LAYERS: &str = "num_draft_layers";
/// Width of what they read.
const READ: &str = "exit_dim";

/// Classes of targets that TensorRT-LLM's example knows, and where its source converts them.
const TARGETS: [[&str; 2]; 2] = [["LlamaForCausalLM", "llama"], ["Qwen2ForCausalLM", "qwen"]];

/// One command, where the target can be converted.
fn launch_lines(settings: &Settings, dir: &Path, target: &str, draft_tokens: usize) -> Vec<Launch> {
    let draft_tokens = draft_tokens.min(settings.size("draft_tokens"));
    let class = settings.get(TARGET_CLASS).and_then(Value::as_str);
    let known = TARGETS.iter().find(|[known, _]| class == Some(*known));
    vec![match known {
        Some([_, kind]) => tensorrt_redrafter(dir, kind, target, draft_tokens),
        None => Launch::remark(
            "TensorRT-LLM converts ReDrafter's heads for targets of Llama and Qwen2 alone; this program decodes with them: \
             `spectrain generate`, `spectrain evaluate`",
        ),
    }]
}

/// Fails for a head that reads a projection of the hidden state and the cell's state.
fn check_folder(config: &Config) -> Result<()> {
    let width = 2 * config.size("hidden_size", None)?;
    if config.size(READ, Some(width))? != width {
        let expected = format!(
            "`{width}`, twice `hidden_size`, as nothing is projected before the blocks here"
        );
        return Err(config.wrong(READ, expected));
    }
    Ok(())
}

/// Names of tensors in folders of several versions: of the list of blocks and output layer, which may lead nowhere.
fn canonical(folder: &ModelFolder, name: &str) -> Option<String> {
    let layers = folder.config()[LAYERS].as_u64()?.to_string();
    let lists = ["lm_head.", "lm_heads.", "0."];
    let rest = lists.iter().find_map(|list| name.strip_prefix(list))?;
    let (place, kind) = rest.split_once('.')?;
    match kind.strip_prefix("linear.") {
        Some(kind) => Some(format!("blocks.{place}.{kind}")),
        None if place == layers => Some(format!("lm_heads.0.{kind}")),
        None => None,
    }
}

fn stored(settings: &Settings, name: &str) -> Option<String> {
    if let Some(kind) = name.strip_prefix("lm_heads.0.") {
        return Some(format!("lm_head.{}.{kind}", settings.size("head_layers")));
    }
    let (place, kind) = name.strip_prefix("blocks.")?.split_once('.')?;
    Some(format!("lm_head.{place}.linear.{kind}"))
}

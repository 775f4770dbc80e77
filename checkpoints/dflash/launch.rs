//! The commands that serve a target with a block drafter.

use std::path::Path;

use crate::beside::TARGET_SCALES_LOGITS;
use crate::dflash::family::Family;
use crate::dialect::settings::Settings;
use crate::launch::{self, Launch};

const NO_ENGINE: &str = "no serving engine loads block drafters with these parts; this program decodes with them: \
    `spectrain generate`, `spectrain evaluate`";

const IN_BF16: &str = "SGLang takes Domino in bf16 alone: the target, and the drafter by `--dtype bf16` or `dtype = \"bf16\"`";

const SCALED: &str = "the target multiplies its head's logits by a factor of its configuration, which engines leave out where they add \
    this drafter's bias to them; this program decodes with it: `spectrain generate`, `spectrain evaluate`";

/// One command for each engine. `draft_tokens` is the length of the draft, at most that of a trained block.
pub(super) fn launch_lines(
    settings: &Settings,
    dir: &Path,
    target: &str,
    draft_tokens: usize,
) -> Vec<Launch> {
    let whole = settings.size("block_size") - usize::from(!settings.flag("sample_from_anchor"));
    let family = Family::of(settings);
    // The order of the head's logits alone is right with any factor.
    if settings.flag(TARGET_SCALES_LOGITS) && !matches!(family, Family::DFlash) {
        return vec![Launch::remark(SCALED)];
    }
    let draft_tokens = match family {
        Family::DFlash => draft_tokens.min(whole),
        // SGLang counts one less than the places of a block, whichever of them predicts first.
        Family::Domino => settings.size("block_size") - 1,
        // What they have beside layers takes the block to be as long as the draft.
        _ => whole,
    };
    let llama_cpp = |kind| launch::llama_cpp(dir, kind, target, draft_tokens, true);
    match family {
        Family::DFlash | Family::DFlash2 if settings.flag("sinks") => {
            vec![launch::vllm(dir, "dflash", target, draft_tokens)]
        }
        Family::DFlash | Family::DFlash2 => of_layers(settings, dir, target, draft_tokens),
        Family::DSpark => {
            let vllm = launch::vllm(dir, "dspark", target, draft_tokens);
            let sglang = launch::sglang_dspark(dir, target, draft_tokens);
            match (settings.word("markov") == "vanilla", settings.flag("sinks")) {
                (true, false) if settings.flag("causal") => vec![vllm, sglang],
                (true, false) => vec![vllm, sglang, llama_cpp("draft-dspark")],
                (true, true) => vec![vllm],
                (false, false) => vec![sglang],
                (false, true) => vec![Launch::remark(NO_ENGINE)],
            }
        }
        Family::Domino if settings.size("markov_from") == 1 && !settings.flag("sinks") => {
            let sglang = launch::sglang_block(dir, "DFLASH", target, draft_tokens);
            vec![Launch::remark(IN_BF16), sglang]
        }
        Family::Domino | Family::Own => vec![Launch::remark(NO_ENGINE)],
    }
}

/// Those for a drafter that is its layers, or DFlash 2.
fn of_layers(settings: &Settings, dir: &Path, target: &str, draft_tokens: usize) -> Vec<Launch> {
    let family = Family::of(settings);
    let is_mixed = !settings.sizes("full_layers").is_empty();
    let sglang = launch::sglang_block(dir, "DFLASH", target, draft_tokens);
    let mut lines = vec![
        launch::vllm(dir, "dflash", target, draft_tokens),
        match family {
            Family::DFlash2 => sglang.choosing(launch::Choosing::Drawn),
            _ => sglang,
        },
    ];
    // llama.cpp keeps a slot's candidates and the scores of all their pairs in a row as wide as the model.
    let candidates = match family {
        Family::DFlash2 => settings.size("selector_top_k"),
        _ => 0,
    };
    // In most of its versions a place sees its whole block, whatever the folder says.
    if !settings.flag("causal") && candidates + candidates * candidates <= settings.size("d_model")
    {
        lines.push(launch::llama_cpp(
            dir,
            "draft-dflash",
            target,
            draft_tokens,
            true,
        ));
    }
    // Nobody knows whether TensorRT-LLM reads the types of layers.
    if family == Family::DFlash && !is_mixed {
        let captured = settings.sizes("captured_layers");
        let captured = format!(", target_layer_ids: {captured:?}");
        lines.push(launch::tensorrt(dir, "DFlash", draft_tokens, &captured));
    }
    lines
}

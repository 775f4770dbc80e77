//! The commands that serve a target with this drafter.

use std::path::Path;

use crate::dialect::settings::Settings;
use crate::launch::{self, Launch};

/// One command for each engine that can run the layout: vLLM and llama.cpp; SGLang and TensorRT-LLM unless
/// `norm_before_residual` rules them out. Layers that slide are vLLM's alone, as the others see all positions, and so is a norm
/// of all captured layers. llama.cpp's converter knows nothing of EAGLE-3.1's norms.
///
/// `draft_tokens` is the length of the drafted chain.
pub fn launch_lines(
    settings: &Settings,
    dir: &Path,
    target: &str,
    draft_tokens: usize,
) -> Vec<Launch> {
    let mut lines = vec![launch::vllm(dir, "eagle3", target, draft_tokens)];
    if settings.size("window") > 0 || settings.flag("norm_before_fc") {
        return lines;
    }
    if !settings.flag("norm_before_residual") {
        let captured = format!(
            ", eagle3_layers_to_capture: {:?}",
            settings.sizes("captured_layers")
        );
        let sglang = launch::sglang(dir, "EAGLE3", target, draft_tokens);
        // SGLang draws from the whole vocabulary or not at all.
        lines.push(if settings.has_draft_vocab() {
            sglang.likeliest_alone()
        } else {
            sglang
        });
        lines.push(launch::tensorrt(dir, "Eagle3", draft_tokens, &captured));
    }
    if !settings.flag("fc_norm") && !settings.flag("norm_output") {
        let kind = "draft-eagle3";
        lines.push(launch::llama_cpp(dir, kind, target, draft_tokens, true));
    }
    lines
}

//! The commands that serve a target with this drafter.

use std::path::Path;

use crate::dialect::llama;
use crate::dialect::settings::Settings;
use crate::latent::is_latent;
use crate::launch::{self, Launch};

/// One command for each engine that runs the layout as it was trained. Norms of queries and keys are vLLM's alone. SGLang has no
/// `norm_before_residual`, and takes a window by a flag in place of the folder's key. TensorRT-LLM and llama.cpp have one layer, see all
/// positions and leave a norm of all captured layers out; llama.cpp's converter knows nothing of EAGLE-3.1's norms. Latent attention is
/// vLLM's and SGLang's, the latter's in one layer.
///
/// `draft_tokens` is the length of the drafted chain.
pub fn launch_lines(
    settings: &Settings,
    dir: &Path,
    target: &str,
    draft_tokens: usize,
) -> Vec<Launch> {
    let mut lines = vec![launch::vllm(dir, "eagle3", target, draft_tokens)];
    let (window, norm_before_fc) = (settings.size("window"), settings.flag("norm_before_fc"));
    if settings.flag("head_norm") {
        return lines;
    }
    let (is_latent, layers) = (is_latent(settings), settings.size("layers"));
    if let Some(remark) = llama::unread_heads(settings).filter(|_| !is_latent) {
        return vec![remark];
    }
    // SGLang's window counts the positions before a token's own, of which it wants at least one.
    if !settings.flag("norm_before_residual") && window != 1 && (!is_latent || layers < 2) {
        let mut sglang = launch::sglang(dir, "EAGLE3", target, draft_tokens);
        if window > 1 {
            let before = window - 1;
            sglang.text += &format!(" --speculative-draft-window-size {before}");
        }
        // SGLang draws from the whole vocabulary or not at all.
        lines.push(if settings.has_draft_vocab() {
            sglang.likeliest_alone()
        } else {
            sglang
        });
    }
    if is_latent || window > 0 || norm_before_fc || layers > 1 {
        return lines;
    }
    if !settings.flag("norm_before_residual") {
        let layers = settings.sizes("captured_layers");
        let captured = format!(", eagle3_layers_to_capture: {layers:?}");
        lines.push(launch::tensorrt(dir, "Eagle3", draft_tokens, &captured));
    }
    if !settings.flag("fc_norm") && !settings.flag("norm_output") {
        let kind = "draft-eagle3";
        lines.push(launch::llama_cpp(dir, kind, target, draft_tokens, true));
    }
    lines
}

//! The commands that serve a target with this drafter.

use std::path::Path;

use super::Eagle3Layout;
use crate::launch;

/// One command for each engine that can run the layout: vLLM, and SGLang unless `norm_before_residual` rules it out.
///
/// `draft_tokens` is the length of the drafted chain.
pub fn launch_lines(
    dir: &Path,
    layout: &Eagle3Layout,
    target: &str,
    draft_tokens: usize,
) -> Vec<String> {
    let vllm = launch::vllm(dir, "eagle3", target, draft_tokens);
    if layout.norm_before_residual {
        return vec![vllm];
    }
    vec![vllm, launch::sglang(dir, "EAGLE3", target, draft_tokens)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eagle3::tests::layout;

    #[test]
    fn both_engines_are_given_the_same_chain() {
        let lines = launch_lines(Path::new("runs/a b"), &layout(), "org/name", 3);
        assert_eq!(
            lines[0],
            r#"vllm serve org/name --speculative-config '{"method":"eagle3","model":"runs/a b","num_speculative_tokens":3}'"#
        );
        assert_eq!(
            lines[1],
            "python -m sglang.launch_server --model-path org/name --speculative-algorithm EAGLE3 \
             --speculative-draft-model-path 'runs/a b' --speculative-num-steps 3 --speculative-eagle-topk 1 \
             --speculative-num-draft-tokens 4"
        );
    }

    #[test]
    fn an_engine_that_would_draft_from_the_wrong_residual_is_not_offered() {
        let mut layout = layout();
        layout.norm_before_residual = true;
        let lines = launch_lines(Path::new("d"), &layout, "t", 3);
        assert!(lines.len() == 1 && lines[0].starts_with("vllm"));
    }
}

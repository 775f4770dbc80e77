//! The commands that serve a target with this drafter.

use std::path::Path;

use super::Eagle3Layout;
use crate::launch::{self, Launch};

/// One command for each engine that can run the layout: vLLM; llama.cpp where there is one layer; SGLang and TensorRT-LLM
/// unless `norm_before_residual` rules them out. Layers that slide are vLLM's alone: the others see all positions.
///
/// `draft_tokens` is the length of the drafted chain.
pub fn launch_lines(
    dir: &Path,
    layout: &Eagle3Layout,
    target: &str,
    draft_tokens: usize,
) -> Vec<Launch> {
    let mut lines = vec![launch::vllm(dir, "eagle3", target, draft_tokens)];
    if layout.window > 0 {
        return lines;
    }
    if !layout.norm_before_residual {
        let captured = format!(", eagle3_layers_to_capture: {:?}", layout.captured_layers);
        let sglang = launch::sglang(dir, "EAGLE3", target, draft_tokens);
        // SGLang draws from the whole vocabulary or not at all.
        lines.push(match layout.draft_vocab_size < layout.vocab_size {
            true => sglang.likeliest_alone(),
            false => sglang,
        });
        lines.push(launch::tensorrt(dir, "Eagle3", draft_tokens, &captured));
    }
    if layout.layers == 1 {
        let kind = "draft-eagle3";
        lines.push(launch::llama_cpp(dir, kind, target, draft_tokens, true));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eagle3::tests::layout;
    use crate::launch::Server;

    #[test]
    fn both_engines_are_given_the_same_chain() {
        let lines = launch_lines(Path::new("runs/a b"), &layout(), "org/name", 3);
        assert_eq!(
            lines[0].text,
            r#"vllm serve org/name --speculative-config '{"method":"eagle3","model":"runs/a b","num_speculative_tokens":3}'"#
        );
        assert_eq!(
            lines[1].text,
            "python -m sglang.launch_server --model-path org/name --speculative-algorithm EAGLE3 \
             --speculative-draft-model-path 'runs/a b' --speculative-num-steps 3 --speculative-eagle-topk 1 \
             --speculative-num-draft-tokens 4"
        );
    }

    #[test]
    fn other_engines_are_told_the_layers_or_read_the_target() {
        let lines = launch_lines(Path::new("d"), &layout(), "org/name", 3);
        assert_eq!(
            lines[2].text,
            r#"speculative_config: {decoding_type: Eagle3, max_draft_len: 3, speculative_model: "d", eagle3_layers_to_capture: [1, 3, 6]}"#
        );
        assert_eq!(
            lines[3].text,
            "python convert_hf_to_gguf.py d --target-model-dir org/name --outfile d.gguf && llama-server -m org/name.gguf \
             -md d.gguf --spec-type draft-eagle3 --spec-draft-n-max 3"
        );
    }

    #[test]
    fn an_engine_that_would_draft_from_the_wrong_residual_is_not_offered() {
        let mut layout = layout();
        layout.norm_before_residual = true;
        let lines = launch_lines(Path::new("d"), &layout, "t", 3);
        let offered = |server| lines.iter().any(|line| line.server == Some(server));
        assert!(offered(Server::Vllm("eagle3")));
        assert!(!offered(Server::Sglang) && !offered(Server::TensorrtLlm));
    }

    #[test]
    fn sglang_draws_only_for_a_drafter_that_knows_all_of_the_targets_tokens() {
        let mut layout = layout();
        let choosing = |layout: &Eagle3Layout| {
            let lines = launch_lines(Path::new("d"), layout, "t", 3);
            let of = |server| lines.iter().find(|line| line.server == Some(server));
            [Server::Vllm("eagle3"), Server::Sglang].map(|server| of(server)?.choosing)
        };
        layout.draft_vocab_size = layout.vocab_size;
        let [vllm, sglang] = choosing(&layout).map(|found| found.unwrap().to_string());
        assert!(
            vllm.contains(r#""draft_sample_method": "probabilistic""#),
            "{vllm}"
        );
        assert!(
            sglang.contains("`--speculative-use-rejection-sampling`"),
            "{sglang}"
        );
        layout.draft_vocab_size -= 1;
        let [vllm_of_fewer, sglang] = choosing(&layout).map(|found| found.unwrap().to_string());
        assert_eq!(vllm_of_fewer, vllm);
        assert_eq!(sglang, launch::Choosing::Likeliest.to_string());
    }

    #[test]
    fn only_the_engine_that_knows_windows_is_offered_a_sliding_layer() {
        let mut layout = layout();
        layout.window = 16;
        let lines = launch_lines(Path::new("d"), &layout, "t", 3);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].server, Some(Server::Vllm("eagle3")));
    }
}

//! The commands that serve a target with this drafter.

use std::path::Path;

use serde_json::json;

use super::Eagle3Layout;

/// One command for each engine that can run the layout: vLLM, and SGLang unless `norm_before_residual` rules it out.
///
/// `draft_tokens` is the length of the drafted chain.
pub fn launch_lines(
    dir: &Path,
    layout: &Eagle3Layout,
    target: &str,
    draft_tokens: usize,
) -> Vec<String> {
    let drafter = dir.display().to_string();
    let speculative =
        json!({"method": "eagle3", "model": drafter, "num_speculative_tokens": draft_tokens});
    let quoted_target = quote(target);
    let vllm = format!(
        "vllm serve {quoted_target} --speculative-config {}",
        quote(&speculative.to_string())
    );
    if layout.norm_before_residual {
        return vec![vllm];
    }
    // SGLang counts the root of the tree among the draft tokens.
    let sglang = format!(
        "python -m sglang.launch_server --model-path {quoted_target} --speculative-algorithm EAGLE3 \
         --speculative-draft-model-path {} --speculative-num-steps {draft_tokens} --speculative-eagle-topk 1 \
         --speculative-num-draft-tokens {}",
        quote(&drafter),
        draft_tokens + 1
    );
    vec![vllm, sglang]
}

/// A word for a POSIX shell.
fn quote(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=@%+,".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
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

    #[test]
    fn quotes_are_escaped() {
        assert_eq!(quote("it's"), r"'it'\''s'");
    }
}

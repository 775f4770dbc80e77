//! Commands that serve a target with a drafter, for a POSIX shell.

use std::path::Path;

use serde_json::{Value, json};

/// vLLM's, with its name of the method.
pub(crate) fn vllm(dir: &Path, method: &str, target: &str, draft_tokens: usize) -> String {
    let drafter = dir.display().to_string();
    let speculative =
        json!({"method": method, "model": drafter, "num_speculative_tokens": draft_tokens});
    vllm_command(target, &speculative)
}

/// vLLM's for a language model that drafts in one pass.
pub(crate) fn vllm_parallel(dir: &Path, target: &str, draft_tokens: usize) -> String {
    let drafter = dir.display().to_string();
    let speculative = json!({
        "method": "draft_model",
        "model": drafter,
        "num_speculative_tokens": draft_tokens,
        "parallel_drafting": true,
    });
    vllm_command(target, &speculative)
}

/// Two of llama.cpp, which converts a folder first; `with_target` where that reads the target's too.
pub(crate) fn llama_cpp(
    dir: &Path,
    kind: &str,
    target: &str,
    draft_tokens: usize,
    with_target: bool,
) -> String {
    let drafter = dir.display().to_string();
    let of_target = match with_target {
        true => format!(" --target-model-dir {}", quote(target)),
        false => String::new(),
    };
    let converted = |model: &str| quote(&format!("{}.gguf", model.trim_end_matches('/')));
    format!(
        "python convert_hf_to_gguf.py {}{of_target} --outfile {} && llama-server -m {} -md {} --spec-type {kind} \
         --spec-draft-n-max {draft_tokens}",
        quote(&drafter),
        converted(&drafter),
        converted(target),
        converted(&drafter),
    )
}

/// A line of TensorRT-LLM's settings; `more` are further keys.
pub(crate) fn tensorrt(dir: &Path, kind: &str, draft_tokens: usize, more: &str) -> String {
    let drafter = json!(dir.display().to_string());
    format!(
        "speculative_config: {{decoding_type: {kind}, max_draft_len: {draft_tokens}, speculative_model: {drafter}{more}}}"
    )
}

/// vLLM's for a folder of the speculators library, which names its target.
pub(crate) fn vllm_of_speculators(dir: &Path) -> String {
    format!("vllm serve {}", quote(&dir.display().to_string()))
}

fn vllm_command(target: &str, speculative: &Value) -> String {
    format!(
        "vllm serve {} --speculative-config {}",
        quote(target),
        quote(&speculative.to_string())
    )
}

/// SGLang's, with its name of the algorithm. It counts the root of the tree among the draft tokens.
pub(crate) fn sglang(dir: &Path, algorithm: &str, target: &str, draft_tokens: usize) -> String {
    format!(
        "python -m sglang.launch_server --model-path {} --speculative-algorithm {algorithm} \
         --speculative-draft-model-path {} --speculative-num-steps {draft_tokens} --speculative-eagle-topk 1 \
         --speculative-num-draft-tokens {}",
        quote(target),
        quote(&dir.display().to_string()),
        draft_tokens + 1
    )
}

/// SGLang's for a drafter that fills a block, in which it counts the last committed token.
pub(crate) fn sglang_block(
    dir: &Path,
    algorithm: &str,
    target: &str,
    draft_tokens: usize,
) -> String {
    format!(
        "python -m sglang.launch_server --model-path {} --speculative-algorithm {algorithm} \
         --speculative-draft-model-path {} --speculative-num-draft-tokens {}",
        quote(target),
        quote(&dir.display().to_string()),
        draft_tokens + 1
    )
}

/// One of `transformers`, whose assisted generation takes any language model as a drafter.
pub(crate) fn transformers(dir: &Path, target: &str) -> String {
    let (drafter, target) = (json!(dir.display().to_string()), json!(target));
    let program = format!(
        "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; t = T.from_pretrained({target}); \
         m = M.from_pretrained({target}); print(t.decode(m.generate(**t('Hello', return_tensors='pt'), \
         assistant_model=M.from_pretrained({drafter}))[0]))"
    );
    format!("python -c {}", quote(&program))
}

/// The same for a DFlash drafter.
pub(crate) fn transformers_dflash(dir: &Path, target: &str) -> String {
    let (drafter, target) = (json!(dir.display().to_string()), json!(target));
    let program = format!(
        "from transformers import AutoModel as A, AutoModelForCausalLM as M, AutoTokenizer as T; t = T.from_pretrained({target}); \
         m = M.from_pretrained({target}); print(t.decode(m.generate(**t('Hello', return_tensors='pt'), \
         assistant_model=A.from_pretrained({drafter}), speculation_type='dflash')[0]))"
    );
    format!("python -c {}", quote(&program))
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

    #[test]
    fn quotes_are_escaped() {
        assert_eq!(quote("it's"), r"'it'\''s'");
    }
}

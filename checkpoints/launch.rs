//! Commands that serve a target with a drafter, for a POSIX shell.

use std::fmt;
use std::path::Path;

use serde_json::{Value, json};

use crate::hub::{RepoType, Repository};

/// What serves a drafter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// vLLM, with its name of the method.
    Vllm(&'static str),
    /// vLLM, which finds the target and the method in a folder of the speculators library.
    Speculators,
    /// SGLang, with its name of the algorithm.
    Sglang(&'static str),
    /// Hugging Face `transformers`.
    Transformers,
    /// TensorRT-LLM: a line of its settings.
    TensorrtLlm,
    /// llama.cpp, after its own conversion.
    LlamaCpp,
}

/// How a server chooses the drafted tokens of a chain above temperature 0. Reports call the ways `drawn` and `likeliest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choosing {
    /// The likeliest ones, always.
    Likeliest,
    /// The likeliest ones; drawn ones with this.
    LikeliestUnless(&'static str),
    /// Drawn ones, always.
    Drawn,
    /// Drawn ones; the likeliest ones with this.
    DrawnUnless(&'static str),
}

impl fmt::Display for Choosing {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Likeliest => write!(f, "the likeliest tokens (`likeliest` in reports)"),
            Self::LikeliestUnless(flag) => {
                write!(
                    f,
                    "{}, and drawn ones (`drawn`) with {flag}",
                    Self::Likeliest
                )
            }
            Self::Drawn => write!(f, "drawn tokens (`drawn` in reports)"),
            Self::DrawnUnless(flag) => {
                write!(
                    f,
                    "{}, and the likeliest (`likeliest`) with {flag}",
                    Self::Drawn
                )
            }
        }
    }
}

/// What makes vLLM draw.
const VLLM_DRAWS: Choosing = Choosing::LikeliestUnless(
    "`\"draft_sample_method\": \"probabilistic\"` in `--speculative-config`",
);
/// What makes SGLang draw, where the drafter knows all of the target's tokens.
const SGLANG_DRAWS: Choosing = Choosing::LikeliestUnless("`--speculative-use-rejection-sampling`");
/// What keeps SGLang from drawing with DSpark.
const SGLANG_DSPARK: Choosing =
    Choosing::DrawnUnless("`SGLANG_DSPARK_USE_GREEDY_DRAFT=1` in its environment");

/// A command for a server, or a remark for everybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Whose command it is; nobody's where it is a remark.
    pub server: Option<Server>,
    /// The line.
    pub text: String,
    /// What it drafts above temperature 0, of servers for which that was looked up.
    pub choosing: Option<Choosing>,
}

impl Launch {
    /// A remark, which a shell passes over.
    pub fn remark(text: &str) -> Self {
        Self {
            server: None,
            text: format!("# {text}"),
            choosing: None,
        }
    }

    fn by(server: Server, text: String) -> Self {
        Self {
            server: Some(server),
            text,
            choosing: None,
        }
    }

    /// The same of a server that drafts these tokens above temperature 0.
    pub(crate) fn choosing(self, choosing: Choosing) -> Self {
        Self {
            choosing: Some(choosing),
            ..self
        }
    }

    /// The same of a server that cannot be told to draw the tokens of this drafter.
    pub fn likeliest_alone(self) -> Self {
        match self.choosing {
            Some(_) => self.choosing(Choosing::Likeliest),
            None => self,
        }
    }
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// vLLM's, with its name of the method.
pub(crate) fn vllm(dir: &Path, method: &'static str, target: &str, draft_tokens: usize) -> Launch {
    let drafter = place(dir);
    let speculative =
        json!({"method": method, "model": drafter, "num_speculative_tokens": draft_tokens});
    vllm_command(method, target, &speculative)
}

/// The same for a target whose configuration is changed for it.
pub(crate) fn vllm_overriding(
    dir: &Path,
    method: &'static str,
    (target, overrides): (&str, &Value),
    draft_tokens: usize,
) -> Launch {
    let launch = vllm(dir, method, target, draft_tokens);
    let text = format!(
        "{} --hf-overrides {}",
        launch.text,
        quote(&overrides.to_string())
    );
    Launch { text, ..launch }
}

/// The same for a drafter that drafts in one pass.
pub(crate) fn vllm_parallel(
    dir: &Path,
    method: &'static str,
    target: &str,
    draft_tokens: usize,
) -> Launch {
    let drafter = place(dir);
    let speculative = json!({
        "method": method,
        "model": drafter,
        "num_speculative_tokens": draft_tokens,
        "parallel_drafting": true,
    });
    vllm_command(method, target, &speculative)
}

/// The same for a target that drafts by its own layer of multi-token prediction.
pub(crate) fn vllm_by_own_layer(target: &Path, draft_tokens: usize) -> Launch {
    let method = "mtp";
    let speculative = json!({"method": method, "num_speculative_tokens": draft_tokens});
    vllm_command(method, &place(target), &speculative)
}

/// Those of llama.cpp, in the folder of its source: both models become GGUF files, a target of the hub behind its download, and
/// are served. `with_target` where the drafter's conversion reads the target's folder too.
pub(crate) fn llama_cpp(
    dir: &Path,
    kind: &str,
    target: &str,
    draft_tokens: usize,
    with_target: bool,
) -> Launch {
    let (drafter, folder) = (place(dir), named(target));
    let of_target = if with_target {
        format!(" --target-model-dir {}", quote(&folder))
    } else {
        String::new()
    };
    let download = match is_on_hub(target) {
        true => format!("hf download {target} --local-dir {target} && "),
        false => String::new(),
    };
    let file = |model: &str| quote(&format!("{}.gguf", model.trim_end_matches('/')));
    let convert = |model: &str, more: &str| {
        let (folder, file) = (quote(model), file(model));
        format!("python convert_hf_to_gguf.py {folder}{more} --outfile {file}")
    };
    let text = format!(
        "{download}{} && {} && llama-server -m {} -md {} --spec-type {kind} --spec-draft-n-max {draft_tokens}",
        convert(&folder, ""),
        convert(&drafter, &of_target),
        file(&folder),
        file(&drafter),
    );
    Launch::by(Server::LlamaCpp, text)
}

/// Whether a model is `owner/name` of the hub and no folder here.
pub fn is_on_hub(model: &str) -> bool {
    let is_id = Repository::new(RepoType::Model, model, None).is_ok();
    is_id && !Path::new(model).exists()
}

/// A line of TensorRT-LLM's settings; `more` are further keys.
pub(crate) fn tensorrt(dir: &Path, kind: &str, draft_tokens: usize, more: &str) -> Launch {
    let drafter = json!(place(dir));
    let text = format!(
        "speculative_config: {{decoding_type: {kind}, max_draft_len: {draft_tokens}, speculative_model: {drafter}{more}}}"
    );
    Launch::by(Server::TensorrtLlm, text)
}

/// Those of TensorRT-LLM for ReDrafter, in the folder `examples` of its source: a target of this `kind` is converted, then the
/// drafter with it, and both become an engine that drafts a chain.
pub(crate) fn tensorrt_redrafter(
    dir: &Path,
    kind: &str,
    target: &str,
    draft_tokens: usize,
) -> Launch {
    let (target, drafter) = (quote(&named(target)), quote(&place(dir)));
    let text = format!(
        "python models/core/{kind}/convert_checkpoint.py --model_dir {target} --output_dir target --dtype bfloat16 && \
         python redrafter/convert_checkpoint.py --base_model_checkpoint_dir target --drafter_model_dir {drafter} \
         --output_dir both --dtype bfloat16 --redrafter_num_beams 1 --redrafter_draft_len_per_beam {draft_tokens} && \
         trtllm-build --checkpoint_dir both --output_dir engine --gemm_plugin bfloat16 \
         --speculative_decoding_mode explicit_draft_tokens && \
         python run.py --engine_dir engine --tokenizer_dir {target} --max_output_len 256"
    );
    Launch::by(Server::TensorrtLlm, text)
}

/// vLLM's for a folder of the speculators library, which names its target. From 0.33 on vLLM takes only a target of the hub from
/// there: another one is named in the command, as it is in `naming`, the command for a folder that names none.
pub(crate) fn vllm_of_speculators(dir: &Path, target: &str, naming: Launch) -> Launch {
    if !is_on_hub(target) {
        let server = Some(Server::Speculators);
        return Launch { server, ..naming };
    }
    let text = format!("vllm serve {}", quote(&place(dir)));
    Launch::by(Server::Speculators, text).choosing(Choosing::Likeliest)
}

fn vllm_command(method: &'static str, target: &str, speculative: &Value) -> Launch {
    let text = format!(
        "vllm serve {} --speculative-config {}",
        quote(&named(target)),
        quote(&speculative.to_string())
    );
    Launch::by(Server::Vllm(method), text).choosing(VLLM_DRAWS)
}

/// SGLang's, with its name of the algorithm; it can draw only for EAGLE. It counts the root of the tree among the draft tokens.
pub(crate) fn sglang(
    dir: &Path,
    algorithm: &'static str,
    target: &str,
    draft_tokens: usize,
) -> Launch {
    let text = format!(
        "python -m sglang.launch_server --model-path {} --speculative-algorithm {algorithm} \
         --speculative-draft-model-path {} --speculative-num-steps {draft_tokens} --speculative-eagle-topk 1 \
         --speculative-num-draft-tokens {}",
        quote(&named(target)),
        quote(&place(dir)),
        draft_tokens + 1
    );
    let choosing = match algorithm {
        "EAGLE" | "EAGLE3" => SGLANG_DRAWS,
        _ => Choosing::Likeliest,
    };
    Launch::by(Server::Sglang(algorithm), text).choosing(choosing)
}

/// SGLang's for a target that drafts by its own layer of multi-token prediction.
pub(crate) fn sglang_by_own_layer(target: &Path, draft_tokens: usize) -> Launch {
    let algorithm = "NEXTN";
    let text = format!(
        "python -m sglang.launch_server --model-path {} --speculative-algorithm {algorithm} --speculative-num-steps {draft_tokens} \
         --speculative-eagle-topk 1 --speculative-num-draft-tokens {}",
        quote(&place(target)),
        draft_tokens + 1
    );
    Launch::by(Server::Sglang(algorithm), text).choosing(SGLANG_DRAWS)
}

/// SGLang's for a drafter that fills a block, in which it counts the last committed token.
pub(crate) fn sglang_block(
    dir: &Path,
    algorithm: &'static str,
    target: &str,
    draft_tokens: usize,
) -> Launch {
    let text = format!(
        "python -m sglang.launch_server --model-path {} --speculative-algorithm {algorithm} \
         --speculative-draft-model-path {} --speculative-num-draft-tokens {}",
        quote(&named(target)),
        quote(&place(dir)),
        draft_tokens + 1
    );
    Launch::by(Server::Sglang(algorithm), text).choosing(Choosing::Likeliest)
}

/// SGLang's for DSpark, whose block it takes to be the draft alone.
pub(crate) fn sglang_dspark(dir: &Path, target: &str, draft_tokens: usize) -> Launch {
    let algorithm = "DSPARK";
    let text = format!(
        "python -m sglang.launch_server --model-path {} --speculative-algorithm {algorithm} \
         --speculative-draft-model-path {} --speculative-dspark-block-size {draft_tokens}",
        quote(&named(target)),
        quote(&place(dir)),
    );
    Launch::by(Server::Sglang(algorithm), text).choosing(SGLANG_DSPARK)
}

/// One of `transformers`, whose assisted generation takes any language model as a drafter.
pub(crate) fn transformers(dir: &Path, target: &str) -> Launch {
    let (drafter, target) = (json!(place(dir)), json!(named(target)));
    let program = format!(
        "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; t = T.from_pretrained({target}); \
         m = M.from_pretrained({target}); print(t.decode(m.generate(**t('Hello', return_tensors='pt'), \
         assistant_model=M.from_pretrained({drafter}))[0]))"
    );
    let text = format!("python -c {}", quote(&program));
    Launch::by(Server::Transformers, text)
}

/// The same for a DFlash drafter.
pub fn transformers_dflash(dir: &Path, target: &str) -> Launch {
    let (drafter, target) = (json!(place(dir)), json!(named(target)));
    let program = format!(
        "from transformers import AutoModel as A, AutoModelForCausalLM as M, AutoTokenizer as T; t = T.from_pretrained({target}); \
         m = M.from_pretrained({target}); print(t.decode(m.generate(**t('Hello', return_tensors='pt'), \
         assistant_model=A.from_pretrained({drafter}), speculation_type='dflash')[0]))"
    );
    let text = format!("python -c {}", quote(&program));
    Launch::by(Server::Transformers, text)
}

/// A folder as programs take it, which would read a name that begins with `-` as an option.
fn place(dir: &Path) -> String {
    named(&dir.display().to_string())
}

/// The same for a hub id or a folder.
fn named(model: &str) -> String {
    if model.starts_with('-') {
        format!("./{model}")
    } else {
        model.to_string()
    }
}

/// A word for a POSIX shell.
pub fn quote(word: &str) -> String {
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

    #[test]
    fn llama_cpp_gets_files_of_both_models_and_the_folder_of_one_on_the_hub() {
        let found = |target: &str, with_target| {
            llama_cpp(Path::new("d/"), "draft-simple", target, 3, with_target).text
        };
        assert_eq!(
            found("org/name", true),
            "hf download org/name --local-dir org/name && python convert_hf_to_gguf.py org/name --outfile org/name.gguf && \
             python convert_hf_to_gguf.py d/ --target-model-dir org/name --outfile d.gguf && \
             llama-server -m org/name.gguf -md d.gguf --spec-type draft-simple --spec-draft-n-max 3"
        );
        for folder in ["src", "./a b", "/models/t"] {
            let text = found(folder, false);
            assert!(text.starts_with("python convert_hf_to_gguf.py "), "{text}");
            assert!(!text.contains("--target-model-dir"), "{text}");
        }
        // Tests run in the crate's folder: this is one, called like an id.
        assert!(!found("hub/push", false).contains("hf download"));
    }

    #[test]
    fn a_folder_is_never_taken_for_an_option() {
        let (dir, target) = (Path::new("-out"), "-t");
        let lines = [
            vllm(dir, "eagle3", target, 3),
            vllm_parallel(dir, "draft_model", target, 3),
            vllm_of_speculators(dir, "org/t", vllm(dir, "eagle3", target, 3)),
            vllm_of_speculators(dir, target, vllm(dir, "eagle3", target, 3)),
            vllm_by_own_layer(dir, 3),
            sglang(dir, "EAGLE3", target, 3),
            sglang_by_own_layer(dir, 3),
            sglang_block(dir, "DFLASH", target, 3),
            sglang_dspark(dir, target, 3),
            llama_cpp(dir, "draft-simple", target, 3, true),
            tensorrt(dir, "Eagle3", 3, ""),
            tensorrt_redrafter(dir, "llama", target, 3),
            transformers(dir, target),
            transformers_dflash(dir, target),
        ];
        for line in lines {
            let text = line.text;
            assert!(text.contains("./-out"), "{text}");
            assert!(
                !text.contains(" -out") && !text.contains("\"-out"),
                "{text}"
            );
            assert!(!text.contains(" -t ") && !text.contains("\"-t"), "{text}");
        }
    }
}

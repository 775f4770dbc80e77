//! What a configuration means that leaves keys out: for a width of heads and a number of key and value heads that is another one
//! for each type of model.

use serde_json::Value;

/// What engines take for the base of rotary frequencies where a configuration says nothing.
pub const DEFAULT_THETA: f64 = 10_000.0;
/// The same for what keeps norms from dividing by zero.
pub const DEFAULT_EPSILON: f64 = 1e-6;
/// The same for the longest sequence.
pub const DEFAULT_POSITIONS: usize = 2048;

/// The key of the width of a head.
pub const HEAD_DIM: &str = "head_dim";
/// The key of the number of key and value heads.
pub const KV_HEADS: &str = "num_key_value_heads";

/// Types of models, as `model_type` names them, whose classes in transformers 5.24 have numbers of their own: the width of a head, and
/// the key and value heads. 0 where these follow from the width of the model and from its query heads, as those of types that are not
/// listed are taken to. Those with latent attention are not listed: a drafter has no use for the widths of their heads.
const SIZES: &[(&str, usize, usize)] = &[
    ("afmoe", 128, 0),
    ("bamba", 0, 8),
    ("beam", 128, 8),
    ("bitnet", 0, 5),
    ("cohere2_moe", 128, 0),
    ("cwm", 128, 8),
    ("diffusion_gemma_text", 256, 4),
    ("dots1", 0, 32),
    ("ernie4_5", 128, 2),
    ("ernie4_5_moe", 0, 4),
    ("ernie4_5_vl_moe_text", 0, 4),
    ("exaone", 0, 8),
    ("exaone4", 0, 32),
    ("exaone_moe", 0, 32),
    ("falcon_h1", 0, 8),
    ("flint", 128, 4),
    ("gemma", 256, 16),
    ("gemma2", 256, 4),
    ("gemma3_text", 256, 4),
    ("gemma3n_text", 256, 2),
    ("gemma4_text", 256, 4),
    ("gemma4_unified_text", 256, 4),
    ("glm", 128, 2),
    ("glm4", 128, 2),
    ("glm4_moe", 0, 8),
    ("glm4v_moe_text", 0, 8),
    ("glm4v_text", 0, 2),
    ("glm_image_text", 0, 2),
    ("glm_ocr_text", 0, 8),
    ("gpt_oss", 64, 8),
    ("granite_docling_text", 0, 4),
    ("granite_swa", 0, 4),
    ("helium", 128, 20),
    ("hy_v3", 128, 8),
    ("inkling2_text", 128, 8),
    ("inkling_text", 128, 8),
    ("internlm3", 128, 2),
    ("iquestcoder", 128, 8),
    ("jamba", 0, 8),
    // `attribute_map` calls its `kv_channels` so.
    ("jetmoe", 128, 16),
    ("kolibri1", 128, 4),
    ("laguna", 128, 8),
    ("lara_mini", 128, 4),
    ("lfm2", 0, 8),
    ("lfm2_moe", 0, 8),
    ("lfm3", 128, 4),
    ("llama4_text", 128, 8),
    ("mellum", 128, 4),
    // Published ones have a class of their own, which is Qwen2's.
    ("mimo", 0, 32),
    ("mimo_v2_flash", 192, 4),
    ("minimax", 0, 8),
    ("minimax_m2", 128, 8),
    ("minimax_m3_vl_text", 128, 4),
    ("ministral", 0, 8),
    ("ministral3", 128, 8),
    ("mistral", 0, 8),
    ("mixtral", 0, 8),
    ("mllama_text_model", 0, 8),
    ("molmo2_text", 128, 8),
    ("muse_glimmer_assistant", 128, 8),
    ("muse_glimmer_text", 128, 2),
    ("muse_spark_text", 64, 16),
    ("nemotron_h", 128, 8),
    ("paddleocr_vl_text", 128, 2),
    ("phi4_multimodal", 0, 8),
    ("phimoe", 0, 8),
    ("qwen2", 0, 32),
    ("qwen2_5_omni_text", 0, 4),
    ("qwen2_5_vl_text", 0, 8),
    ("qwen2_moe", 0, 16),
    ("qwen2_vl_text", 0, 8),
    ("qwen3", 128, 32),
    ("qwen3_5_moe_text", 256, 2),
    ("qwen3_5_text", 256, 4),
    ("qwen3_moe", 0, 4),
    ("qwen3_next", 256, 2),
    ("qwen3_omni_moe_text", 0, 4),
    ("qwen3_vl_moe_text", 0, 16),
    ("qwen3_vl_text", 128, 32),
    ("qwen4_exp_text", 256, 2),
    ("sarvam_moe", 64, 4),
    ("seed_oss", 128, 8),
    ("smollm3", 0, 4),
    ("solar_open", 128, 8),
    ("step3p5", 128, 8),
    ("vaultgemma", 256, 4),
    ("zaya", 128, 2),
];

/// The width of a head of a model whose `config.json` says nothing of it, where its type has one.
pub fn head_dim(config: &Value) -> Option<usize> {
    of_type(config, HEAD_DIM, |(_, head_dim, _)| head_dim)
}

/// The key and value heads of such a model, where its type has a number of them.
pub fn kv_heads(config: &Value) -> Option<usize> {
    of_type(config, KV_HEADS, |(.., kv_heads)| kv_heads)
}

/// What the type of a model has in place of `key`. One that is null is not left out: it asks for what follows from other sizes.
fn of_type(config: &Value, key: &str, which: fn((&str, usize, usize)) -> usize) -> Option<usize> {
    if config.get(key).is_some() {
        return None;
    }
    let kind = config.get("model_type")?.as_str()?;
    let found = SIZES.iter().find(|(known, ..)| *known == kind);
    found.map(|&sizes| which(sizes)).filter(|size| *size > 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_have_their_own_sizes_where_keys_are_left_out() {
        for (kind, width, of_keys) in [
            ("llama", None, None),
            ("mistral", None, Some(8)),
            ("qwen2", None, Some(32)),
            ("qwen3", Some(128), Some(32)),
            ("qwen3_moe", None, Some(4)),
            ("qwen3_next", Some(256), Some(2)),
            ("cohere2_moe", Some(128), None),
            ("falcon_h1", None, Some(8)),
            ("jetmoe", Some(128), Some(16)),
            ("phimoe", None, Some(8)),
            ("zaya", Some(128), Some(2)),
            ("unknown", None, None),
        ] {
            let config = json!({"model_type": kind});
            let found = (head_dim(&config), kv_heads(&config));
            assert_eq!(found, (width, of_keys), "{kind}");
        }
        for value in [json!(null), json!(64)] {
            let config = json!({"model_type": "qwen3", HEAD_DIM: value, KV_HEADS: value});
            assert_eq!((head_dim(&config), kv_heads(&config)), (None, None));
        }
        assert_eq!(head_dim(&json!([])), None);
    }

    #[test]
    fn every_type_is_listed_once() {
        let kinds: Vec<&str> = SIZES.iter().map(|(kind, ..)| *kind).collect();
        assert!(kinds.is_sorted_by(|one, two| one < two), "{kinds:?}");
    }
}

//! Engines that cannot run a drafter beside a target of some class, although they load its folder: what the code of vLLM 0.33 and
//! SGLang 0.5.23 has for targets of each class. Engines that were not seen to run a drafter whose heads have another width than the
//! target's are left out too.

use serde_json::Value;

use crate::dialect::settings::Settings;
use crate::launch::{Launch, Server};

/// The setting that holds the name of the target's class.
pub const TARGET_CLASS: &str = "target_class";
/// The setting that says whether the target's weights are quantised.
pub const TARGET_QUANTISED: &str = "target_quantised";
/// The setting that says whether the target's logits are more than its head's: times a factor of its configuration.
pub const TARGET_SCALES_LOGITS: &str = "target_scales_logits";
/// The setting that holds the width of the target's heads.
pub const TARGET_HEADS: &str = "target_d_head";
/// The setting that says whether the target's attention is latent, where that is known.
pub const TARGET_LATENT: &str = "target_is_latent";

/// Classes of language models that vLLM computes itself and whose outputs of layers it hands to no drafter: it says "Model does not
/// support EAGLE3 interface". Those it leaves to transformers have them.
const VLLM_WITHOUT: &[&str] = &[
    "BailingMoeForCausalLM",
    "BailingMoeV2ForCausalLM",
    "BailingMoeV2_5ForCausalLM",
    "BailingMoeV3ForCausalLM",
    "CohereForCausalLM",
    "Cohere2ForCausalLM",
    "DbrxForCausalLM",
    "DeciLMForCausalLM",
    "Ernie4_5_MoeForCausalLM",
    "Exaone4ForCausalLM",
    "ExaoneForCausalLM",
    "ExaoneMoEForCausalLM",
    "ExaoneMoeForCausalLM",
    "FalconForCausalLM",
    "FalconH1ForCausalLM",
    "GLM4VForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "Gemma3nForCausalLM",
    "Gemma3nForConditionalGeneration",
    "GemmaForCausalLM",
    "Glm4ForCausalLM",
    "Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "Glm4vForConditionalGeneration",
    "Glm4vMoeForConditionalGeneration",
    "GraniteMoeHybridForCausalLM",
    "HYV3ForCausalLM",
    "HyperCLOVAXForCausalLM",
    "InternLM2ForCausalLM",
    "InternVLForConditionalGeneration",
    "JambaForCausalLM",
    "Lfm2ForCausalLM",
    "Lfm2MoeForCausalLM",
    "Lfm2VlForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "LongcatFlashForCausalLM",
    "MixtralForCausalLM",
    "NemotronForCausalLM",
    "OlmoHybridForCausalLM",
    "OlmoeForCausalLM",
    "OrionForCausalLM",
    "PanguEmbeddedForCausalLM",
    "PhiMoEForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen2VLForConditionalGeneration",
    "Rnj1ForCausalLM",
    "SarvamMoEForCausalLM",
    "SolarForCausalLM",
    "StableLmForCausalLM",
    "Step3TextForCausalLM",
    "Step3p5ForCausalLM",
    "Zamba2ForCausalLM",
];
/// Those of them whose outputs of layers it hands out where it runs the code of transformers in place of its own: that code has the
/// class, computes attention in every layer, and is of text alone. Those with a LayerNorm before the head are left out, as no drafter is
/// trained for them.
const VLLM_BY_TRANSFORMERS: &[&str] = &[
    "Ernie4_5_MoeForCausalLM",
    "Exaone4ForCausalLM",
    "ExaoneMoeForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "GemmaForCausalLM",
    "Glm4ForCausalLM",
    "Glm4MoeForCausalLM",
    "HYV3ForCausalLM",
    "HyperCLOVAXForCausalLM",
    "MixtralForCausalLM",
    "OlmoeForCausalLM",
    "Qwen2MoeForCausalLM",
];

/// Classes whose outputs of layers SGLang hands to EAGLE-3 and to drafters of blocks.
const SGLANG: &[&str] = &[
    "DeepseekV2ForCausalLM",
    "DeepseekV32ForCausalLM",
    "DeepseekV3ForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "Glm5NextForConditionalGeneration",
    "GlmMoeDsaForCausalLM",
    "GptOssForCausalLM",
    "IQuestCoderForCausalLM",
    "InternLM3ForCausalLM",
    "InternS1ProForConditionalGeneration",
    "InternS2MobiusForConditionalGeneration",
    "InternS2PreviewForConditionalGeneration",
    "KimiK25ForConditionalGeneration",
    "Llama4ForCausalLM",
    "LlamaForCausalLM",
    "MellumForCausalLM",
    "MiniMaxM3SparseForConditionalGeneration",
    "Ministral3ForCausalLM",
    "MistralForCausalLM",
    "MistralLarge3ForCausalLM",
    "Phi3ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen4ExpForConditionalGeneration",
    "TeleFLMForCausalLM",
];
/// Those whose outputs it hands to EAGLE-3 alone. It would scale the embeddings that blocks of Gemma 4 are filled with.
const SGLANG_EAGLE3: &[&str] = &[
    "ApertusForCausalLM",
    "BailingMoEForCausalLM",
    "BailingMoeForCausalLM",
    "BailingMoeV2ForCausalLM",
    "ExaoneMoEForCausalLM",
    "ExaoneMoeForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "Glm4MoeForCausalLM",
    "Llama4ForConditionalGeneration",
    "LongcatFlashForCausalLM",
    "MiniMaxM2ForCausalLM",
    "MiniMaxM3SparseForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen2_5_VLForConditionalGeneration",
    "SarvamMoEForCausalLM",
];
/// Those whose outputs it hands to drafters of blocks alone.
const SGLANG_BLOCKS: &[&str] = &[
    "BeamForCausalLM",
    "InklingForConditionalGeneration",
    "KimiK3ForConditionalGeneration",
    "KimiK3LinearForCausalLM",
    "LagunaForCausalLM",
    "Lfm2ForCausalLM",
    "Lfm2MoeForCausalLM",
    "Lfm2VlForConditionalGeneration",
    "MiMoV2FlashForCausalLM",
    "MiMoV2ForCausalLM",
    "MuseGlimmerForCausalLM",
    "MuseGlimmerForConditionalGeneration",
    "MuseSparkForConditionalGeneration",
    "NanbeigeForCausalLM",
    "NemotronHForCausalLM",
    "NemotronHPuzzleForCausalLM",
    "NemotronH_Nano_Omni_Reasoning_V3",
    "NemotronH_Nano_VL_V2",
    "NemotronH_Omni_Reasoning_V3",
];
/// What vLLM calls the method of EAGLE-3.
const EAGLE3_OF_VLLM: &str = "eagle3";
/// What SGLang calls the algorithm of EAGLE-3.
const EAGLE3: &str = "EAGLE3";
/// A class of which vLLM hands over no outputs of layers, and its last state before the final norm.
const MIMO: &str = "MiMoForCausalLM";
/// Classes of which SGLang counts layers from 1 only if the first one is 1.
const DEEPSEEK: &str = "Deepseek";

/// Whether vLLM hands out the outputs of a target's layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VllmLayers {
    /// It does, as far as is known.
    HandedOut,
    /// Its own code of the target's class does not, and that of transformers, which it can run as well, does.
    ByTransformers,
    /// Neither does, or no drafter is trained for such targets.
    Withheld,
}

/// Whether vLLM hands out the outputs of the layers of targets of a class, which is named as `architectures` of a configuration
/// names it.
pub fn vllm_layers(class: &str) -> VllmLayers {
    if VLLM_BY_TRANSFORMERS.contains(&class) {
        VllmLayers::ByTransformers
    } else if class == MIMO || VLLM_WITHOUT.contains(&class) {
        VllmLayers::Withheld
    } else {
        VllmLayers::HandedOut
    }
}

/// The same commands, but a remark in place of each for an engine that fails beside the target, or drafts from other states. Which
/// states it hands over follows from the method or algorithm that the command names, whatever the drafter is called here.
pub(crate) fn kept(settings: &Settings, lines: Vec<Launch>) -> Vec<Launch> {
    let class = settings.get(TARGET_CLASS).and_then(Value::as_str);
    let why = |line: &Launch| match line.server? {
        Server::Vllm(method) => vllm_fails(method, class, settings),
        // Whatever vLLM calls them, all drafters of the library read outputs of layers.
        Server::Speculators => vllm_fails(EAGLE3_OF_VLLM, class, settings),
        Server::Sglang(algorithm) => sglang_fails(algorithm, class, settings),
        Server::TensorrtLlm => other_heads("TensorRT-LLM", settings),
        Server::LlamaCpp => other_heads("llama.cpp", settings),
        Server::Transformers => None,
    };
    let told = |line| why(&line).map_or(line, |why| Launch::remark(&why));
    lines.into_iter().map(told).collect()
}

/// Why a drafter whose heads have another width than the target's is not offered to an engine that was not seen to run one.
fn other_heads(engine: &str, settings: &Settings) -> Option<String> {
    let (own, of_target) = (settings.size("d_head"), settings.size(TARGET_HEADS));
    let differ = own > 0 && of_target > 0 && own != of_target;
    differ.then(|| {
        format!(
            "{engine} is not known to run a drafter whose heads are {own} wide beside a target whose heads are {of_target} wide"
        )
    })
}

fn vllm_fails(method: &str, class: Option<&str>, settings: &Settings) -> Option<String> {
    match method {
        "mtp" if settings.flag(TARGET_QUANTISED) => Some(
            "vLLM would take this layer for quantised, as its target is; this program decodes with it: `spectrain generate`, \
             `spectrain evaluate`"
                .to_owned(),
        ),
        // Language models draft from tokens alone.
        "mtp" | "draft_model" => None,
        // Its caches of both would be of other sizes: it says "No common block size".
        EAGLE3_OF_VLLM if other_attention(settings) => Some(
            "vLLM refuses a drafter with latent attention (`latent`) beside a target that has none"
                .to_owned(),
        ),
        _ if class == Some(MIMO) => Some(format!(
            "vLLM hands drafters no hidden states of `{MIMO}` as they were trained on"
        )),
        // These read the last hidden state alone, which it hands over of every other class.
        "eagle" | "medusa" => None,
        // EAGLE-3 and drafters of blocks read outputs of layers, and so may a method that nobody looked up.
        _ => {
            let class = class.filter(|class| VLLM_WITHOUT.contains(class))?;
            Some(format!(
                "vLLM hands drafters no outputs of layers of targets of the class `{class}`"
            ))
        }
    }
}

/// Whether a drafter has latent attention, and its target is known to have none.
fn other_attention(settings: &Settings) -> bool {
    let of_target = settings.get(TARGET_LATENT).and_then(Value::as_bool);
    settings.get("latent").is_some() && of_target == Some(false)
}

fn sglang_fails(algorithm: &str, class: Option<&str>, settings: &Settings) -> Option<String> {
    let own = match algorithm {
        EAGLE3 => SGLANG_EAGLE3,
        "DFLASH" | "DSPARK" => SGLANG_BLOCKS,
        // These draft from tokens, or from the last hidden state alone.
        "EAGLE" | "NEXTN" | "STANDALONE" => return None,
        // Of an algorithm that nobody looked up, the classes that all have.
        _ => &[],
    };
    let layers = settings.sizes("captured_layers");
    if let Some(class) = class.filter(|class| !SGLANG.contains(class) && !own.contains(class)) {
        return Some(format!(
            "SGLang has no drafters of this kind beside targets of the class `{class}`"
        ));
    }
    let last = settings.size("target_layers").checked_sub(1);
    if last.is_some_and(|last| layers.contains(&last)) {
        return Some("SGLang cannot hand over the output of the target's last layer".to_owned());
    }
    if algorithm == EAGLE3 && layers.len() == 1 {
        return Some("SGLang leaves out what fuses layers where there is one alone".to_owned());
    }
    let is_deepseek = class.is_some_and(|class| class.starts_with(DEEPSEEK));
    if is_deepseek && layers.first().is_some_and(|&first| first != 1) {
        return Some(
            "SGLang hands over other layers of this target unless the first of them is 1"
                .to_owned(),
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::launch;

    /// What is left of a server's command beside a target.
    fn beside(line: Launch, settings: Value) -> Launch {
        let settings = Settings::of(settings.as_object().unwrap().clone());
        kept(&settings, vec![line]).remove(0)
    }

    fn eagle3() -> Launch {
        launch::sglang(Path::new("d"), EAGLE3, "t", 3)
    }

    #[test]
    fn commands_of_engines_that_run_the_drafter_stay() {
        for settings in [
            json!({"captured_layers": [1, 3, 4], "target_layers": 8, TARGET_CLASS: "Qwen3ForCausalLM"}),
            json!({"captured_layers": [1, 3, 4], "target_layers": 8}),
            json!({"captured_layers": [1, 3, 4], TARGET_CLASS: "DeepseekV3ForCausalLM"}),
        ] {
            assert_eq!(beside(eagle3(), settings), eagle3());
        }
        let block = launch::sglang_block(Path::new("d"), "DFLASH", "t", 3);
        for class in ["LlamaForCausalLM", "GlmMoeDsaForCausalLM"] {
            let settings = json!({TARGET_CLASS: class});
            assert_eq!(beside(eagle3(), settings.clone()), eagle3());
            assert_eq!(beside(block.clone(), settings), block);
        }
        let qwen2 = json!({TARGET_CLASS: "Qwen2ForCausalLM"});
        assert_eq!(beside(eagle3(), qwen2.clone()), eagle3());
        let of_last_state = launch::sglang(Path::new("d"), "EAGLE", "t", 3);
        assert_eq!(beside(of_last_state.clone(), qwen2), of_last_state);
        let mimo = json!({TARGET_CLASS: MIMO});
        let language_model = launch::vllm(Path::new("d"), "draft_model", "t", 3);
        let kept = beside(language_model.clone(), mimo);
        assert_eq!(kept, language_model);
        // These read the last hidden state alone, which vLLM always has, or tokens alone.
        let glm = json!({TARGET_CLASS: "Glm4MoeForCausalLM"});
        for method in ["eagle", "medusa", "mtp", "draft_model"] {
            let line = launch::vllm(Path::new("d"), method, "t", 3);
            assert_eq!(beside(line.clone(), glm.clone()), line);
        }
        // Of a drafter without latent attention, or a target that has it or is not known.
        for known in [
            json!({TARGET_LATENT: false}),
            json!({"latent": {}, TARGET_LATENT: true}),
            json!({"latent": {}}),
        ] {
            let line = launch::vllm(Path::new("d"), EAGLE3_OF_VLLM, "t", 3);
            assert_eq!(beside(line.clone(), known), line);
        }
        // A method that nobody looked up is taken for one that reads outputs of layers.
        let qwen3 = json!({TARGET_CLASS: "Qwen3ForCausalLM"});
        for method in [EAGLE3_OF_VLLM, "dflash", "dspark", "new"] {
            let line = launch::vllm(Path::new("d"), method, "t", 3);
            assert_eq!(beside(line.clone(), qwen3.clone()), line);
        }
    }

    #[test]
    fn heads_of_another_width_are_offered_to_the_engines_that_were_seen_to_run_them() {
        let dir = Path::new("d");
        let of_layer = [
            launch::tensorrt(dir, "Eagle3", 3, ""),
            launch::llama_cpp(dir, "draft-eagle3", "t", 3, true),
        ];
        for line in of_layer {
            let settings = |own: usize| json!({"d_head": own, TARGET_HEADS: 128});
            assert_eq!(beside(line.clone(), settings(128)), line);
            // Of a target that is not known, or of a drafter that has no such heads, nothing is said.
            for known in [json!({"d_head": 64}), json!({TARGET_HEADS: 128})] {
                assert_eq!(beside(line.clone(), known), line);
            }
            let told = beside(line, settings(64));
            let sizes = "heads are 64 wide beside a target whose heads are 128 wide";
            assert_eq!(told.server, None);
            assert!(told.text.ends_with(sizes), "{}", told.text);
        }
        let other = json!({"captured_layers": [1, 3, 4], "target_layers": 8, "d_head": 64, TARGET_HEADS: 128});
        let vllm = launch::vllm(dir, EAGLE3_OF_VLLM, "t", 3);
        for line in [eagle3(), vllm] {
            assert_eq!(beside(line.clone(), other.clone()), line);
        }
    }

    #[test]
    fn layers_that_vllm_itself_withholds_may_be_handed_out_by_transformers() {
        for class in VLLM_BY_TRANSFORMERS {
            assert!(VLLM_WITHOUT.contains(class), "{class}");
        }
        for (class, found) in [
            ("Qwen3ForCausalLM", VllmLayers::HandedOut),
            ("UnknownForCausalLM", VllmLayers::HandedOut),
            ("Glm4MoeForCausalLM", VllmLayers::ByTransformers),
            ("HYV3ForCausalLM", VllmLayers::ByTransformers),
            // Layers without attention, images, and a class that transformers has no code of.
            ("JambaForCausalLM", VllmLayers::Withheld),
            ("Gemma3ForConditionalGeneration", VllmLayers::Withheld),
            ("BailingMoeForCausalLM", VllmLayers::Withheld),
            ("Zamba2ForCausalLM", VllmLayers::Withheld),
            // A LayerNorm before the head.
            ("Cohere2ForCausalLM", VllmLayers::Withheld),
            ("NemotronForCausalLM", VllmLayers::Withheld),
            (MIMO, VllmLayers::Withheld),
        ] {
            assert_eq!(vllm_layers(class), found, "{class}");
        }
    }

    #[test]
    fn those_of_others_are_told_of() {
        let vllm = |method| launch::vllm(Path::new("d"), method, "t", 3);
        let block = launch::sglang_block(Path::new("d"), "DFLASH", "t", 3);
        let dspark = launch::sglang_dspark(Path::new("d"), "t", 3);
        let unknown = launch::sglang(Path::new("d"), "NEW", "t", 3);
        let (qwen2, glm) = ("Qwen2ForCausalLM", "Glm4MoeForCausalLM");
        for (line, settings, told) in [
            (vllm("eagle3"), json!({TARGET_CLASS: MIMO}), MIMO),
            (vllm("eagle3"), json!({TARGET_CLASS: glm}), glm),
            (vllm("eagle"), json!({TARGET_CLASS: MIMO}), MIMO),
            (vllm("medusa"), json!({TARGET_CLASS: MIMO}), MIMO),
            (vllm("dflash"), json!({TARGET_CLASS: glm}), glm),
            (vllm("dspark"), json!({TARGET_CLASS: glm}), glm),
            (vllm("new"), json!({TARGET_CLASS: glm}), glm),
            (
                launch::vllm_of_speculators(Path::new("d"), "org/t", vllm("eagle3")),
                json!({TARGET_CLASS: glm}),
                glm,
            ),
            (vllm("mtp"), json!({TARGET_QUANTISED: true}), "quantised"),
            (
                vllm("eagle3"),
                json!({"latent": {}, TARGET_LATENT: false}),
                "latent attention",
            ),
            (block.clone(), json!({TARGET_CLASS: qwen2}), qwen2),
            (dspark, json!({TARGET_CLASS: qwen2}), qwen2),
            (unknown, json!({TARGET_CLASS: qwen2}), qwen2),
            (
                block,
                json!({"captured_layers": [1, 7], "target_layers": 8}),
                "last layer",
            ),
            (
                eagle3(),
                json!({"captured_layers": [4], "target_layers": 8}),
                "one alone",
            ),
            (
                eagle3(),
                json!({"captured_layers": [2, 3], TARGET_CLASS: "DeepseekV3ForCausalLM"}),
                "unless the first of them is 1",
            ),
        ] {
            let remark = beside(line, settings);
            assert_eq!(remark.server, None, "{told}");
            assert!(remark.text.contains(told), "{}", remark.text);
        }
    }
}

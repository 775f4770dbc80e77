//! Targets of which vLLM's own code hands out no outputs of layers, by their class.

use spectrain_checkpoints::beside::{VllmLayers, vllm_layers};

/// The option with which vLLM runs the code of transformers in place of its own.
const TRANSFORMERS: &str = "--model-impl transformers";

/// The option without which vLLM hands out no outputs of layers of targets of a class, where there is one.
pub fn option(class: &str) -> Option<&'static str> {
    (vllm_layers(class) == VllmLayers::ByTransformers).then_some(TRANSFORMERS)
}

/// What is to be known before a server of a target of this class is started, where its outputs of layers need an option, or are not
/// to be had.
pub fn remark(class: &str) -> Option<String> {
    match vllm_layers(class) {
        VllmLayers::HandedOut => None,
        VllmLayers::ByTransformers => Some(format!(
            "vLLM's own code of `{class}` hands out no outputs of layers, and that of transformers, which `{TRANSFORMERS}` has it run, \
             does"
        )),
        VllmLayers::Withheld => Some(format!(
            "vLLM 0.33 hands out no outputs of layers of `{class}`: unless your version does, capture them with another program and \
             import them (`features.mode = \"imported\"`)"
        )),
    }
}

/// Where the hidden states of a target of this class come from, if its layers are none that are computed here.
pub fn states_elsewhere(class: Option<&str>) -> String {
    let served = "with `features.mode = \"served\"` a server of it hands out its hidden states";
    let remark = class.and_then(remark);
    match (remark, class.and_then(option)) {
        (None, _) => served.to_owned(),
        (Some(remark), Some(_)) => format!("{served}: {remark}"),
        (Some(remark), None) => remark,
    }
}

//! What the layouts of the speculators library have in common, whatever the drafter: its own keys, and the target that it names.

use serde_json::{Value, json};

use crate::dialect::settings::Settings;

/// The key that marks folders of this layout.
pub(crate) const MODEL_TYPE: &str = "speculators_model_type";
/// The table of what the layer is.
pub(crate) const LAYER_CONFIG: &str = "transformer_layer_config";
/// The version of the library whose keys are written.
pub(crate) const VERSION: &str = "0.9.0";

/// What the library calls the kind of a folder's drafter; nothing for folders of other layouts. Its class, which
/// `architectures` names, is another one in each version.
pub(crate) fn kind(config: &Value) -> Option<&str> {
    config[MODEL_TYPE].as_str()
}

/// The target that a folder's `config.json` names, as its trainer had it: a hub id or a folder; nothing for other layouts.
pub fn verifier(config: &Value) -> Option<&str> {
    config["speculators_config"]["verifier"]["name_or_path"].as_str()
}

/// The target that the settings name under `verifier`, as the library's `speculators_config`.
pub(crate) fn speculators_config(settings: &Settings, algorithm: &str) -> Value {
    let named = &settings.table()["verifier"];
    json!({
        "algorithm": algorithm,
        "default_proposal_method": "greedy",
        "proposal_methods": [{
            "proposal_type": "greedy",
            "speculative_tokens": named["draft_tokens"],
            "verifier_accept_k": 1,
            "accept_tolerance": 0.0,
        }],
        "verifier": {"name_or_path": named["name"], "architectures": named["architectures"]},
    })
}

//! Which file of a model's folder has its chat template.

use std::path::Path;

use serde_json::Value;

use super::parts::{CHAT_TEMPLATE, PROCESSOR_TEMPLATE, TOKENIZER_CONFIG};

/// The key of the chat template in files that have others, too.
pub const CHAT_TEMPLATE_KEY: &str = "chat_template";

/// The name of the file that is to have the default chat template, in a folder with this `tokenizer_config.json`: a file of its own,
/// else that configuration, else the file of the processor, which may not be there.
pub fn template_file(folder: &Path, config: &Value) -> &'static str {
    if folder.join(CHAT_TEMPLATE).exists() {
        CHAT_TEMPLATE
    } else if config[CHAT_TEMPLATE_KEY].is_null() {
        PROCESSOR_TEMPLATE
    } else {
        TOKENIZER_CONFIG
    }
}

//! Keys that the configurations of drafters with decoder layers have in common, as those of Llama call them.

use serde_json::json;

use crate::config::{DEFAULT_EPSILON, DEFAULT_POSITIONS};
use crate::dialect::description::Neutral;
use crate::dialect::key::{Key, Otherwise};

/// Sizes of its layers.
pub(crate) const SIZES: &[Key] = &[
    Key::size("hidden_size", "d_model"),
    Key::size("intermediate_size", "d_ff"),
    HEADS[0],
    HEADS[1],
    Key::code(
        "head_dim",
        "d_head",
        |config, _, _| {
            let (heads, _) = config.heads()?;
            Ok(json!(config.head_dim(config.size("hidden_size", None)?, heads)?))
        },
        |settings, here| settings.get(here).cloned(),
    ),
];

const HEADS: [Key; 2] = [
    Key::code(
        "num_attention_heads",
        "heads",
        |config, _, _| Ok(json!(config.heads()?.0)),
        |settings, here| settings.get(here).cloned(),
    ),
    Key::code(
        "num_key_value_heads",
        "kv_heads",
        |config, _, _| Ok(json!(config.heads()?.1)),
        |settings, here| settings.get(here).cloned(),
    ),
];

/// The size of the vocabulary.
pub(crate) const VOCAB: Key = Key::size("vocab_size", "vocab");

/// Norms and the longest sequence, which is the target's, so that engines do not cap it.
pub(crate) const NORMS: &[Key] = &[
    Key::told("hidden_act", |_, _| Some(json!("silu"))),
    Key::epsilon("rms_norm_eps", "norm_epsilon", DEFAULT_EPSILON),
    Key::size("max_position_embeddings", "max_positions").or(Otherwise::Size(DEFAULT_POSITIONS)),
];

/// Switches that are off.
pub(crate) const UNBIASED: &[Key] = &[
    Key::told("tie_word_embeddings", |_, _| Some(json!(false))),
    Key::told("attention_bias", |_, _| Some(json!(false))),
    Key::told("mlp_bias", |_, _| Some(json!(false))),
];

/// The type of the weights, which the weights say themselves.
pub(crate) const DTYPE: Key = Key::told("torch_dtype", |settings, _| settings.get("dtype").cloned());

/// Rotary positions, in the spellings of old and new engines.
pub(crate) const ROPE: &[Key] = &[
    Key::code(
        "rope_theta",
        "rope",
        |config, _, _| {
            let rope = config.rope()?;
            Ok(json!({"theta": rope.rope_theta, "scaling": rope.scaling}))
        },
        |settings, _| settings.rope().map(|rope| json!(rope.rope_theta)),
    ),
    Key::told("rope_parameters", |settings, _| settings.rope().map(|rope| rope.parameters())),
    Key::told("rope_scaling", |settings, _| settings.rope()?.scaling),
];

/// What a decoder layer of Llama's kind does not do.
pub(crate) const NEUTRAL: &[(&str, Neutral)] = &[
    ("hidden_act", Neutral::Word("silu")),
    ("logit_scale", Neutral::Number(1.0)),
    ("attention_bias", Neutral::Flag(false)),
    ("mlp_bias", Neutral::Flag(false)),
];

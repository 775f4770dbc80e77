//! Keys that the configurations of drafters with decoder layers have in common, as those of Llama call them.

use serde_json::json;

use crate::absent::{DEFAULT_EPSILON, DEFAULT_POSITIONS};
use crate::dialect::description::Neutral;
use crate::dialect::key::{Key, Otherwise};
use crate::dialect::settings::Settings;
use crate::launch::Launch;

/// Width of the residual stream.
pub(crate) const WIDTH: Key = Key::size("hidden_size", "d_model");
/// Width inside the MLP.
pub(crate) const D_FF: Key = Key::size("intermediate_size", "d_ff");
/// Query heads.
pub(crate) const HEADS: Key = Key::size("num_attention_heads", "heads")
    .with_read(|config, _, _| Ok(json!(config.heads()?.0)));
/// Key and value heads.
pub(crate) const KV_HEADS: Key = Key::size("num_key_value_heads", "kv_heads")
    .with_read(|config, _, _| Ok(json!(config.heads()?.1)));
/// Width of a head.
pub(crate) const D_HEAD: Key = Key::size("head_dim", "d_head").with_read(|config, _, _| {
    let (heads, _) = config.heads()?;
    Ok(json!(
        config.head_dim(config.size("hidden_size", None)?, heads)?
    ))
});
/// Sizes of its layers.
pub(crate) const SIZES: &[Key] = &[WIDTH, D_FF, HEADS, KV_HEADS, D_HEAD];

/// The size of the vocabulary.
pub(crate) const VOCAB: Key = Key::size("vocab_size", "vocab");

/// What stands between the two matrices of an MLP.
pub(crate) const ACTIVATION: Key = Key::told("hidden_act", |_, _| Some(json!("silu")));
/// The epsilon of every norm.
pub(crate) const EPSILON: Key = Key::epsilon("rms_norm_eps", "norm_epsilon", DEFAULT_EPSILON);
/// The longest sequence: the target's, so that engines do not cap it.
pub(crate) const POSITIONS: Key =
    Key::size("max_position_embeddings", "max_positions").or(Otherwise::Size(DEFAULT_POSITIONS));
/// These three.
pub(crate) const NORMS: &[Key] = &[ACTIVATION, EPSILON, POSITIONS];

/// The head is not the embedding.
pub(crate) const TIED: Key = Key::told("tie_word_embeddings", |_, _| Some(json!(false)));
/// Projections have no bias.
pub(crate) const ATTENTION_BIAS: Key = Key::told("attention_bias", |_, _| Some(json!(false)));
/// Nor has the MLP.
pub(crate) const MLP_BIAS: Key = Key::told("mlp_bias", |_, _| Some(json!(false)));
/// These three.
pub(crate) const UNBIASED: &[Key] = &[TIED, ATTENTION_BIAS, MLP_BIAS];

/// The type of the weights, which the weights say themselves.
pub(crate) const DTYPE: Key =
    Key::told("torch_dtype", |settings, _| settings.get("dtype").cloned());

/// The base of rotary positions, with what is known of their scaling.
pub(crate) const ROPE_THETA: Key = Key::code(
    "rope_theta",
    "rope",
    |config, _, _| Ok(config.rope()?.setting()),
    |settings, _| settings.rope().map(|rope| json!(rope.rope_theta)),
);
/// Both as new engines read them.
pub(crate) const ROPE_PARAMETERS: Key = Key::told("rope_parameters", |settings, _| {
    settings.rope().map(|rope| rope.parameters())
});
/// The scaling as old ones do.
pub(crate) const ROPE_SCALING: Key =
    Key::told("rope_scaling", |settings, _| settings.rope()?.scaling);
/// These three.
pub(crate) const ROPE: &[Key] = &[ROPE_THETA, ROPE_PARAMETERS, ROPE_SCALING];

/// A remark in place of commands where query heads do not divide the width: transformers 5, by which engines read a Llama's
/// configuration, then refuses it, even where the width of a head is given.
pub(crate) fn unread_heads(settings: &Settings) -> Option<Launch> {
    let (width, heads) = (settings.size("d_model"), settings.size("heads"));
    if heads == 0 || width.is_multiple_of(heads) {
        return None;
    }
    Some(Launch::remark(&format!(
        "no engine reads a Llama's layer of {heads} query heads, as they do not divide its width, {width}"
    )))
}

/// What a decoder layer of Llama's kind does not do.
pub(crate) const NEUTRAL: &[(&str, Neutral)] = &[
    ("hidden_act", Neutral::Word("silu")),
    ("logit_scale", Neutral::Number(1.0)),
    ("attention_bias", Neutral::Flag(false)),
    ("mlp_bias", Neutral::Flag(false)),
];

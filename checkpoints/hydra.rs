//! Hydra heads (<https://arxiv.org/abs/2402.05109>). No serving engine loads them, so the layout is this program's own:
//! the names of Medusa's tensors where the two agree, and sizes in `config.json`.

use serde_json::json;

use crate::dialect::description::{Dialect, Quirks, top, when};
use crate::dialect::key::Key;
use crate::dialect::llama::{
    D_FF, D_HEAD, DTYPE, EPSILON, HEADS, KV_HEADS, POSITIONS, ROPE, VOCAB, WIDTH,
};
use crate::dialect::vocabulary::TokenMap;
use crate::launch::Launch;
use crate::medusa::{DRAFT_VOCAB, SHARED, check_heads};

/// This program's layout.
pub const HYDRA: Dialect = Dialect {
    architectures: &[ARCHITECTURE],
    keys: &[
        top(&[
            Key::told("architectures", |_, _| Some(json!([ARCHITECTURE]))),
            Key::told("model_type", |_, _| Some(json!("hydra"))),
            WIDTH,
            VOCAB,
            DRAFT_VOCAB,
            Key::count("hydra_num_heads", "hydra_heads"),
            Key::count("hydra_head_layers", "head_layers"),
            Key::flag("hydra_prefix_layer", "prefix_layer", false),
            SHARED,
            DTYPE,
        ]),
        // The decoder layer before the heads (Hydra++).
        when(
            "prefix_layer",
            &[D_FF, HEADS, KV_HEADS, D_HEAD, EPSILON, POSITIONS],
        ),
        when("prefix_layer", ROPE),
    ],
    token_map: TokenMap::Ids,
    launch: |_, _, _, _| {
        vec![Launch::remark(
            "no serving engine loads Hydra heads; this program decodes with them: `spectrain generate`, `spectrain evaluate`",
        )]
    },
    quirks: Quirks {
        check_settings: |settings| check_heads(settings, "hydra_heads"),
        ..Quirks::NONE
    },
    ..Dialect::named("Hydra", |folder| {
        let names = folder.config()["architectures"].as_array();
        names.is_some_and(|names| names.iter().any(|name| name == ARCHITECTURE))
    })
};

const ARCHITECTURE: &str = "HydraModel";

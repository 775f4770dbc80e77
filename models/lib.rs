//! Targets and drafters as Burn modules.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![warn(clippy::too_many_lines)]
mod attend;
mod attention;
pub mod blocks;
pub mod bounds;
mod cache;
mod config;
mod decoder;
pub mod dflash;
mod draft;
pub mod draft_heads;
mod draft_shape;
mod draft_state;
mod draft_tree;
mod drafter;
pub mod eagle1;
pub mod eagle3;
mod error;
pub mod generate;
pub mod hydra;
pub mod language_model;
mod linear;
mod lora;
pub mod mask;
pub mod masked_language_model;
pub mod medusa;
mod norm;
pub mod pard;
mod proposer;
mod rope;
mod sampling;
mod start;
mod tangent;
mod target;
mod transformer;
mod tree;
pub mod unrolled;
mod untrained;
pub mod weights;

pub use attend::{Projected, attend, scores, weigh};
pub use attention::{Attention, AttentionConfig};
pub use cache::KvCache;
pub use config::{ignored_tensors, load_target};
pub use decoder::{DecoderLayer, DecoderLayerConfig, Mlp};
pub use draft::{Draft, DraftRequest, Proposal};
pub use draft_shape::{Children, DraftShape, StaticTree};
pub use draft_state::{DraftPass, DraftState};
pub use draft_tree::{DraftSource, build, forced};
pub use drafter::{Drafter, USUAL_DRAFT};
pub use error::{Error, Result};
pub use linear::{Bias, Linear};
pub use lora::LoraConfig;
pub use mask::{Layout, Mask};
pub use norm::RmsNorm;
pub use proposer::{Proposer, Session};
pub use rope::{Rope, RopeConfig, RopeScaling, Rotation};
pub use sampling::{Distribution, Sampling, argmax, sample};
pub use start::FreshConfig;
pub use tangent::exp;
pub use target::{
    Caches, Capture, Features, LogitRows, Pass, Target, TargetOutput, TargetParts, TargetSpec,
};
pub use transformer::{Transformer, TransformerConfig, embedding};
pub use tree::{Tree, chain, depths};
pub use weights::{FolderWeights, Init, RandomWeights, Scope, TensorWeights, Weights};

//! Targets and drafters as Burn modules.
#![cfg_attr(test, allow(clippy::unwrap_used))]
mod attention;
pub mod blocks;
pub mod bounds;
mod cache;
mod config;
mod convolution;
mod decoder;
pub mod dflash;
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
pub mod listing;
mod lora;
pub mod mask;
pub mod masked_language_model;
pub mod medusa;
mod norm;
pub mod pard;
mod rope;
mod sampling;
mod start;
mod tangent;
mod target;
mod transformer;
pub mod unrolled;
mod untrained;
pub mod weights;

pub use attention::{Attention, AttentionConfig, Projected, attend, scores, weigh};
pub use cache::KvCache;
pub use config::{ignored_tensors, load_target};
pub use convolution::LocalConvolution;
pub use decoder::{DecoderLayer, DecoderLayerConfig, Mlp};
pub use draft_shape::{Children, DraftShape, StaticTree};
pub use draft_state::{DraftPass, DraftState};
pub use draft_tree::{Source, build, forced};
pub use drafter::{
    Capture, Draft, DraftRequest, Drafter, Proposal, Proposer, Session, Tree, USUAL_DRAFT,
};
pub use error::{Error, Result};
pub use linear::{Bias, Linear};
pub use lora::LoraConfig;
pub use mask::{Layout, Mask};
pub use norm::RmsNorm;
pub use rope::{Rope, RopeConfig, RopeScaling, Rotation};
pub use sampling::{Distribution, Sampling, argmax, sample};
pub use start::FreshConfig;
pub use tangent::exp;
pub use target::{
    Caches, Features, LogitRows, Pass, Target, TargetOutput, TargetParts, TargetSpec, chain, depths,
};
pub use transformer::{Transformer, TransformerConfig, embedding};
pub use weights::{FolderWeights, Init, RandomWeights, Scope, TensorWeights, Weights};

//! Objectives, divergences, optimiser and the loop that trains a drafter.
#![cfg_attr(test, allow(clippy::unwrap_used))]
mod batch;
mod block_diffusion;
pub mod cod;
mod deer;
mod distill;
mod divergence;
mod draft_heads;
mod effect;
mod error;
mod events;
mod feature_regression;
mod fit;
mod hydra;
mod kernels;
mod log;
mod medusa;
mod next_token;
mod noise;
mod objective;
mod on_policy;
mod optimizer;
mod pard;
mod recomputed;
mod schedule;
mod settings;
mod source;
mod steps;
mod teacher;
mod token_loss;
mod trainee;
mod training_time_test;
mod vocab_loss;
mod watch;
mod weighing;
mod workload;

pub use batch::{Batch, Rows};
pub use block_diffusion::{
    Anchors, BlockLoss, BlockLossConfig, Masking, SlotWeights, StagedBlockLoss,
};
pub use deer::{DeerLoss, DeerLossConfig, DeerStage};
pub use distill::{Average, Distill, DistillConfig};
pub use divergence::{Divergence, Judged, TeacherRows};
pub use effect::Effect;
pub use error::{Error, Result};
pub use feature_regression::{FeatureRegression, FeatureRegressionConfig};
pub use fit::{Fit, FitSummary, Gain, OnPolicy, Validate, Validation, fit};
pub use hydra::{HydraLoss, HydraLossConfig};
pub use medusa::{MedusaLoss, MedusaLossConfig};
pub use next_token::{NextToken, NextTokenConfig};
pub use noise::{Noise, NoiseKind};
pub use objective::{Loss, LossReport, Objective, StepReport};
pub use on_policy::OnPolicyConfig;
pub use optimizer::{AdamW, AdamWConfig, Gradients};
pub use pard::{PardLoss, PardLossConfig};
pub use schedule::{Decay, Schedule};
pub use settings::{OF_EPOCHS, TrainConfig};
pub use source::{BatchSource, LiveFeatures, Order, Samples, StoredFeatures, TokensOnly};
pub use teacher::{CHUNK_ELEMENTS, CHUNK_ELEMENTS_CPU, Teacher};
pub use trainee::{Train, Trainee};
pub use training_time_test::{
    MaskAlign, OutOfVocab, Reduction, TrainingTimeTest, TrainingTimeTestConfig,
};
pub use vocab_loss::{Head, HeadParameter, Judge, Row, Statistics, VocabLoss, vocab_loss};
pub use workload::{Judges, WorkRows, Workload};

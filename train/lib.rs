//! Objectives, divergences, optimiser and the loop that trains a drafter.
#![cfg_attr(test, allow(clippy::unwrap_used))]
mod arithmetic;
mod average;
mod batch;
mod block_diffusion;
pub mod cod;
mod deer;
mod defaults;
mod delivered;
mod device;
mod distill;
mod divergence;
mod draft_heads;
mod effect;
mod error;
mod events;
mod feature_regression;
mod fit;
mod identity;
mod judge;
mod log;
mod metrics_file;
mod muon;
mod next_token;
mod noise;
mod objective;
mod on_policy;
mod optimizer;
mod parameters;
mod pard;
mod passes;
mod peagle;
mod ranks;
mod recomputed;
mod row;
mod schedule;
mod seen;
mod settings;
mod shard;
mod source;
mod tcp_ranks;
mod teacher;
mod token_loss;
mod trainee;
mod training_time_test;
mod validation;
mod vocab_loss;
mod watch;
mod weighing;
mod weight;
mod workload;

pub use batch::{Batch, Rows, Step};
pub use block_diffusion::staged::{StagedBlockLoss, StagedBlockLossConfig};
pub use block_diffusion::{
    Anchors, BlockLoss, BlockLossConfig, BlockMasking, PathLossConfig, SlotWeights,
};
pub use deer::{DeerLoss, DeerLossConfig, DeerStage};
pub use defaults::Defaults;
pub use device::{CHUNK_ELEMENTS, CHUNK_ELEMENTS_CPU};
pub use distill::{Average, Distill, DistillConfig};
pub use divergence::{Distance, Divergence, Factors, TeacherRows};
pub use draft_heads::{HeadsLoss, HeadsLossConfig};
pub use effect::Effect;
pub use error::{Error, Result};
pub use feature_regression::{FeatureRegression, FeatureRegressionConfig};
pub use fit::{Fit, FitSummary, OnPolicy, Validate, fit, saved_weights};
pub use judge::{Judge, Statistics};
pub use next_token::{NextToken, NextTokenConfig};
pub use noise::{Noise, NoiseKind};
pub use objective::{Loss, LossReport, Objective, StepReport};
pub use on_policy::OnPolicyConfig;
pub use optimizer::{Gradients, Kind, Mover, Optimizer, OptimizerConfig};
pub use pard::{PardLoss, PardLossConfig};
pub use peagle::{PEagleLoss, PEagleLossConfig};
pub use ranks::{ByRank, Ranks, Share, Together};
pub use row::JudgedRow;
pub use schedule::{Decay, DecayShape, Schedule};
pub use settings::{OF_EPOCHS, OF_WSD, OptimizerName, TrainConfig};
pub use source::{
    AddFeatures, BatchSource, LiveFeatures, Order, Samples, StoredFeatures, TokensOnly, with_stored,
};
pub use tcp_ranks::{Invitation, TcpRanks};
pub use teacher::Teacher;
pub use trainee::{Train, Trainee, casts_once};
pub use training_time_test::{
    MaskAlign, OutOfVocab, Reduction, StepWeights, TrainingTimeTest, TrainingTimeTestConfig,
};
pub use validation::{Gain, TextFound, Validation};
pub use vocab_loss::{HeadParameter, LossHead, VocabLoss, vocab_loss};
pub use watch::DeviceMemory;
pub use weight::{Course, Weight};
pub use workload::{Judges, WorkRows, Workload};

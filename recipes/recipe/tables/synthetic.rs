//! The `[synthetic]` table.

use serde::{Deserialize, Serialize};
use spectrain_models::bounds::{self, Bounded};

use crate::recipe::problem::{Problem, within};

/// The `[synthetic]` table: makes conversations and a small target that has learnt them, so that a recipe runs with
/// nothing at hand. `target.model`, `data.train` and `data.eval` are then this stage's outputs and must be absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyntheticTable {
    /// Conversations to train on. Default: 8000.
    pub conversations: usize,
    /// Conversations kept for the evaluation. Default: 200.
    pub held_out: usize,
    /// Tokens of the tokenizer and the target. Default: 2048.
    pub vocab: usize,
    /// Decoder layers. Default: 6.
    pub layers: usize,
    /// Residual width. Default: 128.
    pub d_model: usize,
    /// Feed-forward width. Default: 384.
    pub d_ff: usize,
    /// Query heads. Default: 4.
    pub heads: usize,
    /// Key and value heads. Default: 2, or 1 where that does not divide `heads`.
    pub kv_heads: usize,
    /// Width of a head. Default: 32.
    pub d_head: usize,
    /// Optimiser steps of the target. Default: 400.
    pub steps: usize,
    /// Tokens of one step. Default: 4096, and at least `max_length`.
    pub batch_tokens: usize,
    /// Longest conversation, in tokens; longer ones are left out. Default: 512, and at most `batch_tokens`.
    pub max_length: usize,
    /// Peak learning rate of the target. Default: 0.002.
    pub learning_rate: f64,
    /// Steps over which the learning rate rises. Default: 40, and at most a tenth of `steps`.
    pub warmup_steps: usize,
}

impl Default for SyntheticTable {
    fn default() -> Self {
        Self {
            conversations: 8000,
            held_out: 200,
            vocab: 2048,
            layers: 6,
            d_model: 128,
            d_ff: 384,
            heads: 4,
            kv_heads: 2,
            d_head: 32,
            steps: 400,
            batch_tokens: 4096,
            max_length: 512,
            learning_rate: 2e-3,
            warmup_steps: 40,
        }
    }
}

impl SyntheticTable {
    /// Checks what the types cannot say.
    pub fn check(&self) -> Result<(), Problem> {
        within([
            bounds::up_to("conversations", self.conversations, bounds::SAMPLES),
            bounds::up_to("held_out", self.held_out, bounds::SAMPLES),
            Bounded {
                key: "vocab",
                value: self.vocab,
                // The 256 bytes and the marks of the chat template are tokens of their own.
                bounds: 320..=bounds::VOCABULARY,
            },
            bounds::up_to("layers", self.layers, bounds::LAYERS),
            bounds::up_to("d_model", self.d_model, bounds::WIDTH),
            bounds::up_to("d_ff", self.d_ff, bounds::FEED_FORWARD),
            bounds::up_to("heads", self.heads, bounds::HEADS),
            bounds::up_to("kv_heads", self.kv_heads, bounds::HEADS),
            bounds::up_to("d_head", self.d_head, bounds::WIDTH),
            bounds::up_to("steps", self.steps, bounds::STEPS),
            bounds::up_to("max_length", self.max_length, bounds::TEXT),
            bounds::up_to("batch_tokens", self.batch_tokens, bounds::TEXT),
        ])?;
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(Problem::new(
                "kv_heads",
                format!(
                    "expected a divisor of `heads` ({}), found {}",
                    self.heads, self.kv_heads
                ),
            ));
        }
        if !self.d_head.is_multiple_of(2) {
            return Err(Problem::new(
                "d_head",
                format!("expected an even number, found {}", self.d_head),
            ));
        }
        if self.batch_tokens < self.max_length {
            return Err(Problem::new(
                "batch_tokens",
                format!(
                    "expected at least `max_length` ({}), found {}",
                    self.max_length, self.batch_tokens
                ),
            ));
        }
        if self.warmup_steps > self.steps {
            return Err(Problem::new(
                "warmup_steps",
                format!(
                    "expected at most `steps` ({}), found {}",
                    self.steps, self.warmup_steps
                ),
            ));
        }
        if !(self.learning_rate > 0.0 && self.learning_rate.is_finite()) {
            return Err(Problem::new(
                "learning_rate",
                format!("expected a positive number, found {}", self.learning_rate),
            ));
        }
        Ok(())
    }
}

//! The `[synthetic]` table.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_models::bounds::{self, Bounded};

use crate::recipe::problem::{Problem, within};

/// Tokens of the longest context of the target that is made.
pub const MADE_POSITIONS: usize = 2048;

/// Makes conversations and a small target that has learnt them. `target.model`, `data.train` and `data.eval` are then
/// outputs of this stage and must be absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SyntheticTable {
    /// Conversations to train on.
    pub conversations: usize,
    /// Conversations kept for the evaluation.
    pub held_out: usize,
    /// Vocabulary size of the tokenizer and the target; at least 320.
    pub vocab: usize,
    /// Decoder layers of the target.
    pub layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Width inside the feed-forward part.
    pub d_ff: usize,
    /// Query heads. Left out: 4, or as many as `kv_heads` if that does not divide 4.
    pub heads: usize,
    /// Key and value heads, a divisor of `heads`. Left out: 2, or 1 if 2 does not divide `heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub d_head: usize,
    /// Optimiser steps in the training of the target.
    pub steps: usize,
    /// Tokens in one step; at least `max_length`. Left out: 4096, or `max_length` if that is more.
    pub batch_tokens: usize,
    /// Tokens of the longest conversation that is kept. Left out: 512, but at most `batch_tokens`.
    pub max_length: usize,
    /// Peak learning rate of the target.
    pub learning_rate: f64,
    /// Steps over which the learning rate rises. Left out: 40, but at most a tenth of `steps`.
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
        bounds::check_heads("d_head", self.d_head)?;
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

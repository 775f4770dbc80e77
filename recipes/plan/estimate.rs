//! What a run takes.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use serde_json::Value;
use spectrain_data::features::disk_bytes;
use spectrain_models::TargetSpec;

use super::data::data_tokens;
use super::speed::speed;
use super::words::{bytes, count, duration};
use crate::device;
use crate::recipe::ResolvedRecipe;
use crate::registry::Footprint;
use crate::tables::FeatureMode;
use crate::target_sizes::{Sizes, body_parameters, target_parameters};

/// What a run takes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Estimate {
    footprint: Footprint,
    target_parameters: u64,
    pub(super) target_bytes: u64,
    drafter_bytes: u64,
    activation_bytes: u64,
    feature_bytes: Option<u64>,
    data_tokens: Option<u64>,
    /// Known once the data is, where training is counted in epochs.
    train_tokens: Option<u64>,
    unroll: u64,
    /// Unrolled steps whose activations are held at the same time.
    alive: u64,
    pub(super) flops_per_token: f64,
    /// FLOP/s, and how that is known.
    speed: (f64, String),
}

impl Estimate {
    pub(super) fn of(
        recipe: &ResolvedRecipe,
        sizes: &Sizes,
        run: &Path,
        device: &str,
    ) -> Result<Self> {
        let spec = &sizes.spec;
        let footprint = recipe.method.footprint(spec)?;
        // An objective that does not unroll has no such key.
        let objective = &recipe.json["objective"];
        let unroll = ["steps", "passes"]
            .iter()
            .find_map(|key| objective[key].as_u64());
        let unroll = unroll.unwrap_or_else(|| blocks(objective)).max(1);
        // Activations of one step are alive at a time when the backward pass computes them again.
        let recompute = objective["recompute"] == true;
        let alive = if recompute { 1 } else { unroll };
        let trainings: Vec<_> = recipe
            .training_stages()
            .into_iter()
            .map(|stage| recipe.training(stage))
            .collect();
        let largest = trainings.iter().map(|training| training.batch_tokens).max();
        let batch_tokens = largest.unwrap_or_default() as u64;
        let row = (recipe.data.max_length as u64).min(batch_tokens.max(1));
        let gpu = device::is_gpu(device);
        let float = if gpu { 2 } else { 4 };
        let target_parameters = target_parameters(spec, sizes.tied_head);
        let dtype = device::target_dtype(recipe.target.dtype, device);
        let data_tokens = data_tokens(recipe, run);
        let live = recipe.features.mode == FeatureMode::Live;
        Ok(Self {
            target_parameters,
            // Whole in either mode: validation decodes with it.
            target_bytes: dtype.size() as u64 * target_parameters,
            // Weights, gradients and the two moments of AdamW.
            drafter_bytes: footprint.parameters * 4 * 4,
            // Scores are kept in f32, before and after the softmax.
            activation_bytes: alive
                * batch_tokens
                * (footprint.activations * float + 2 * 4 * footprint.heads * row),
            feature_bytes: data_tokens
                .filter(|_| !live)
                .map(|tokens| disk_bytes(tokens, footprint.captured, spec.d_model as u64)),
            data_tokens,
            train_tokens: trainings
                .iter()
                .map(|each| match each.epochs {
                    Some(epochs) => Some((data_tokens? as f64 * epochs) as u64),
                    None => Some((each.batch_tokens * each.steps * each.accumulate) as u64),
                })
                .sum(),
            unroll,
            alive,
            flops_per_token: flops_per_token(spec, &footprint, unroll, recompute, row, live),
            speed: speed(device),
            footprint,
        })
    }

    pub(super) fn text(&self, recipe: &ResolvedRecipe, sizes: &Sizes, device: &str) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| _ = writeln!(text, "  {name:22} {value}");
        line(
            "target",
            format!(
                "{} parameters; {}",
                count(self.target_parameters),
                sizes.source
            ),
        );
        line(
            "drafter",
            format!(
                "{} trained parameters, {} draft tokens",
                count(self.footprint.parameters),
                self.footprint.draft_vocab
            ),
        );
        line("memory, target", bytes(self.target_bytes));
        line(
            "memory, drafter",
            format!(
                "{} (weights, gradients, AdamW, f32)",
                bytes(self.drafter_bytes)
            ),
        );
        line(
            "memory, activations",
            format!(
                "{} ({} steps unrolled, {} held at a time)",
                bytes(self.activation_bytes),
                self.unroll,
                self.alive
            ),
        );
        let total = self.target_bytes + self.drafter_bytes + self.activation_bytes;
        line("memory, together", bytes(total));
        if recipe.features.mode == FeatureMode::Stored {
            let disk = self
                .feature_bytes
                .map_or_else(|| "known once `data.train` is there".into(), bytes);
            line("disk, features", disk);
        }
        let data = match self.data_tokens {
            Some(tokens) => format!("{} tokens", count(tokens)),
            None => "known once `data.train` is there".into(),
        };
        line("training data", data);
        let unknown = || "known once `data.train` is there".to_owned();
        let training = self.train_tokens.map(|trained| match self.data_tokens {
            Some(tokens) if tokens > 0 => {
                let times = trained as f64 / tokens as f64;
                format!("{} tokens, {times:.1} times the data", count(trained))
            }
            _ => format!("{} tokens", count(trained)),
        });
        line("training", training.unwrap_or_else(unknown));
        let (speed, source) = &self.speed;
        line(
            "speed",
            format!(
                "{:.2} GFLOP per token, {} GFLOP/s on {device} ({source})",
                self.flops_per_token / 1e9,
                count((speed / 1e9) as u64)
            ),
        );
        let time = self
            .train_tokens
            .map(|tokens| duration(tokens as f64 * self.flops_per_token / speed));
        line("training time", time.unwrap_or_else(unknown));
        text
    }
}

/// How many times the text the rows of masks and text are together, of an objective that has such rows; 1 of others.
fn blocks(objective: &Value) -> u64 {
    let number = |key: &str| objective[key].as_f64();
    let (Some(blocks), Some(keep), Some(least)) =
        (number("draft_tokens"), number("keep"), number("keep_least"))
    else {
        return 1;
    };
    let share = |block: i32| keep.powi(block).max(least);
    let rows: f64 = (1..blocks as i32).map(share).sum();
    (1.0 + rows).round() as u64
}

/// FLOPs of training on one token: a forward pass costs 2 for each parameter, a backward pass 4.
fn flops_per_token(
    spec: &TargetSpec,
    footprint: &Footprint,
    unroll: u64,
    recompute: bool,
    row: u64,
    live: bool,
) -> f64 {
    let d_attention = (spec.heads * spec.d_head) as f64;
    // Scores and weighted values over half a row of keys, on average.
    let attention = 2.0 * row as f64 * d_attention;
    let target = match live {
        true => 2.0 * body_parameters(spec) as f64 + spec.layers as f64 * attention,
        false => 0.0,
    };
    // The target's distribution at every position: once for an unrolled drafter, whose steps share its head, and once for
    // each of several heads.
    let heads = footprint.head / (footprint.draft_vocab * spec.d_model as u64).max(1);
    let teacher = 2.0 * (spec.vocab * spec.d_model) as f64 * heads.max(1) as f64;
    // A drafter may have several heads.
    let head = footprint
        .head
        .max(footprint.draft_vocab * spec.d_model as u64) as f64;
    let body = (footprint.parameters - footprint.head) as f64;
    // A frozen head still passes gradients on.
    let head_flops = if footprint.head > 0 {
        6.0 * head
    } else {
        4.0 * head
    };
    // Steps that are computed again in the backward pass cost a second forward pass.
    let passes = if recompute { 8.0 } else { 6.0 };
    target + teacher + unroll as f64 * (passes * (body + attention / 2.0) + head_flops)
}

//! `--plan`: what a recipe would do and what it would take, from sizes alone.
//!
//! Estimates are products of sizes and say what they assume; they are meant to be right within a factor of two.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use burn::prelude::{Device, Tensor};
use burn::tensor::Distribution;
use serde_json::Value;
use spectrain_checkpoints::{HubOptions, hub};
use spectrain_data::features::disk_bytes;
use spectrain_data::rows;
use spectrain_data::sources::Source;
use spectrain_data::tokens::TokenIndex;
use spectrain_models::{RopeConfig, RopeScaling, TargetSpec, TransformerConfig};

use crate::device;
use crate::recipe::ResolvedRecipe;
use crate::registry::Footprint;
use crate::run_folder::{Inputs, StageState, Status, Wanted, manifest_in, stage_state};
use crate::stages::{self, settings};
use crate::tables::FeatureMode;
use crate::{known_targets, target};

/// Useful FLOP/s of a GPU: 40 % of the dense bf16 peak of an H100 or H200 (989 TFLOP/s).
const GPU_FLOPS: f64 = 400e12;
/// Share of a bare matrix product's speed that a whole training step reaches on the CPU.
const CPU_EFFICIENCY: f64 = 0.5;
/// Bytes of text for a token, where only the size of a file is known.
const BYTES_PER_TOKEN: u64 = 4;

/// The text of `--plan`.
pub fn plan(recipe: &ResolvedRecipe, runs: &Path, device: &str) -> Result<String> {
    let run = runs.join(&recipe.name);
    let mut text = format!("{}\n", recipe.toml.trim_end());
    _ = writeln!(text, "\nrun: {}\nstages:", run.display());
    for (name, state) in stages(recipe, &run)? {
        _ = writeln!(text, "  {name:9} {state}");
    }
    text.push_str("\nestimates:\n");
    let Some(found) = sizes(recipe) else {
        let model = recipe.model().unwrap_or_default();
        _ = writeln!(
            text,
            "  none: the sizes of `{model}` are known once it is on this machine"
        );
        return Ok(text);
    };
    let estimate = Estimate::of(recipe, &found, &run, device)?;
    text.push_str(&estimate.text(recipe, &found, device));
    Ok(text)
}

/// Whether each stage of a recipe is done. A stage after one that has to run has to run too, as its input changes.
fn stages(recipe: &ResolvedRecipe, run: &Path) -> Result<Vec<(&'static str, String)>> {
    let mut states = Vec::new();
    let mut after = None;
    for stage in stages::of(recipe) {
        let manifest = manifest_in(run, stage.name)?;
        // Inputs may be many gigabytes, so they are taken to be what they were.
        let inputs = manifest
            .as_ref()
            .map_or_else(Inputs::new, |manifest| manifest.inputs.clone());
        let wanted = Wanted {
            settings: &settings(recipe, &stage)?,
            inputs: &inputs,
            effect: stages::effect,
        };
        let state = stage_state(run, stage.name, wanted)?;
        let text = match (&state, after) {
            (StageState::Done(_), None) => {
                let seconds = manifest
                    .and_then(|manifest| manifest.seconds)
                    .unwrap_or(0.0);
                format!("done in {}, if its inputs are the same", duration(seconds))
            }
            (StageState::Done(_), Some(name)) => {
                format!("runs again if `{name}` gives something else")
            }
            (StageState::Missing, _) => "runs".into(),
            (StageState::Interrupted, _) if stage.resumes => {
                "goes on where it was interrupted".into()
            }
            (StageState::Interrupted, _) => "starts over after an interruption".into(),
            (StageState::Longer { steps, what }, _) => {
                format!("goes on from step {steps}: {}", what.join(", "))
            }
            (StageState::Damaged(_), _) => "runs again".into(),
            (StageState::Changed(what), _) => format!("starts over: {}", what.join(", ")),
        };
        if after.is_none() && !matches!(state, StageState::Done(_)) {
            after = Some(stage.name);
        }
        states.push((stage.name, text));
    }
    Ok(states)
}

/// Sizes of the target, and where they come from.
struct Sizes {
    spec: TargetSpec,
    tied_head: bool,
    source: String,
}

fn sizes(recipe: &ResolvedRecipe) -> Option<Sizes> {
    let Some(model) = recipe.model() else {
        let made = recipe.synthetic.as_ref()?;
        let spec = TargetSpec {
            layers: made.layers,
            d_model: made.d_model,
            d_ff: made.d_ff,
            heads: made.heads,
            kv_heads: made.kv_heads,
            d_head: made.d_head,
            vocab: made.vocab,
            norm_epsilon: 1e-6,
            rope: RopeConfig {
                theta: 10_000.0,
                scaling: RopeScaling::Default,
            },
            max_positions: made.max_length,
        };
        return Some(Sizes {
            spec,
            tied_head: true,
            source: "sizes from `[synthetic]`".into(),
        });
    };
    sizes_of(model, recipe.target.revision.as_deref())
}

/// Sizes of a model that need no download, and whether its head is its embedding.
pub(crate) fn known_sizes(model: &str, revision: Option<&str>) -> Option<(TargetSpec, bool)> {
    let found = sizes_of(model, revision)?;
    Some((found.spec, found.tied_head))
}

fn sizes_of(model: &str, revision: Option<&str>) -> Option<Sizes> {
    let folder = match Path::new(model).is_dir() {
        true => Some(PathBuf::from(model)),
        false => hub::cached(model, revision, &HubOptions::default()),
    };
    if let Some(path) = folder.map(|folder| folder.join("config.json"))
        && let Ok(config) = target::read_json(&path)
        && let Ok(config) = TransformerConfig::read(&config, &path)
    {
        return Some(Sizes {
            source: format!("sizes from `{}`", path.display()),
            tied_head: config.tied_head,
            spec: config.spec,
        });
    }
    let (spec, tied_head) = known_targets::find(model)?;
    Some(Sizes {
        spec,
        tied_head,
        source: format!(
            "sizes of `{model}` from this program's list, as it is not on this machine yet"
        ),
    })
}

/// Parameters of a target, its embedding included.
pub(crate) fn target_parameters(spec: &TargetSpec, tied_head: bool) -> u64 {
    let embedding = (spec.vocab * spec.d_model) as u64;
    let heads = if tied_head { embedding } else { 2 * embedding };
    body_parameters(spec) + heads
}

/// Parameters of a target's decoder layers: the ones every token goes through.
fn body_parameters(spec: &TargetSpec) -> u64 {
    let attention = 2 * spec.d_model * (spec.heads + spec.kv_heads) * spec.d_head;
    let mlp = 3 * spec.d_model * spec.d_ff;
    (spec.layers * (attention + mlp + 2 * spec.d_model)) as u64
}

/// What a run takes.
#[derive(Debug, Clone, PartialEq)]
struct Estimate {
    footprint: Footprint,
    target_parameters: u64,
    target_bytes: u64,
    drafter_bytes: u64,
    activation_bytes: u64,
    feature_bytes: Option<u64>,
    data_tokens: Option<u64>,
    /// Known once the data is, where training is counted in epochs.
    train_tokens: Option<u64>,
    unroll: u64,
    /// Unrolled steps whose activations are held at the same time.
    alive: u64,
    flops_per_token: f64,
    /// FLOP/s, and how that is known.
    speed: (f64, String),
}

impl Estimate {
    fn of(recipe: &ResolvedRecipe, sizes: &Sizes, run: &Path, device: &str) -> Result<Self> {
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
            speed: match gpu {
                true => (
                    GPU_FLOPS,
                    "assumed: 40 % of the dense bf16 peak of an H100 or H200".into(),
                ),
                false => cpu_speed(),
            },
            footprint,
        })
    }

    fn text(&self, recipe: &ResolvedRecipe, sizes: &Sizes, device: &str) -> String {
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

/// Tokens of the training data: counted by `prepare`, or from the size of the file.
fn data_tokens(recipe: &ResolvedRecipe, run: &Path) -> Option<u64> {
    let done = manifest_in(run, "prepare")
        .ok()?
        .is_some_and(|manifest| manifest.status == Status::Done);
    let index = std::fs::read_to_string(run.join("prepare/train/tokens.json")).ok();
    let index = index.and_then(|text| serde_json::from_str::<TokenIndex>(&text).ok());
    if let (true, Some(index)) = (done, index) {
        return Some(index.tokens);
    }
    let mut bytes = 0.0;
    for Source { path, weight } in recipe.data.train.as_ref()?.each() {
        let files = rows::files(path).ok()?;
        let lengths = files
            .iter()
            .map(|file| Some(std::fs::metadata(file).ok()?.len()));
        bytes += lengths.sum::<Option<u64>>()? as f64 * weight;
    }
    Some(bytes as u64 / BYTES_PER_TOKEN)
}

/// The CPU's speed, from a short matrix product.
fn cpu_speed() -> (f64, String) {
    const SIZE: usize = 512;
    let device = Device::flex();
    let matrix = || Tensor::<2>::random([SIZE, SIZE], Distribution::Uniform(-1.0, 1.0), &device);
    let (left, right) = (matrix(), matrix());
    let product = || _ = left.clone().matmul(right.clone()).into_data();
    product();
    let started = Instant::now();
    let mut rounds = 0;
    while rounds < 3 || started.elapsed().as_millis() < 100 {
        product();
        rounds += 1;
    }
    let flops = 2.0 * (SIZE as f64).powi(3) * f64::from(rounds) / started.elapsed().as_secs_f64();
    let percent = 100.0 * CPU_EFFICIENCY;
    (
        flops * CPU_EFFICIENCY,
        format!("{percent:.0} % of a measured {SIZE}³ matrix product"),
    )
}

fn count(number: u64) -> String {
    let number = number as f64;
    match number {
        n if n >= 1e9 => format!("{:.2} G", n / 1e9),
        n if n >= 1e6 => format!("{:.2} M", n / 1e6),
        n if n >= 1e4 => format!("{:.1} k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

fn bytes(number: u64) -> String {
    let number = number as f64;
    match number / 1024.0 / 1024.0 {
        mebibytes if mebibytes >= 1024.0 => format!("{:.1} GiB", mebibytes / 1024.0),
        mebibytes => format!("{mebibytes:.1} MiB"),
    }
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s >= 5400.0 => format!("{:.1} h", s / 3600.0),
        s if s >= 90.0 => format!("{:.1} min", s / 60.0),
        s => format!("{s:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::read;

    fn qwen3() -> ResolvedRecipe {
        let text = r#"
            recipe = "eagle3"
            name = "qwen3"
            [target]
            model = "Qwen/Qwen3-8B"
            [data]
            train = "absent.jsonl"
            eval = "absent.jsonl"
            [drafter]
            draft_vocab = 32000
        "#;
        read(text, &[]).unwrap()
    }

    #[test]
    fn a_hub_target_is_planned_without_network_or_download() {
        let root = tempfile::tempdir().unwrap();
        let text = plan(&qwen3(), root.path(), "cuda:0").unwrap();
        assert!(
            text.contains("8.19 G parameters") && text.contains("this program's list"),
            "{text}"
        );
        assert!(text.contains("train     runs"), "{text}");
        assert!(!root.path().join("qwen3").exists(), "a plan leaves nothing");
    }

    #[test]
    fn an_unknown_target_says_why_there_are_no_estimates() {
        let root = tempfile::tempdir().unwrap();
        let mut recipe = qwen3();
        recipe.target.model = Some("nobody/nothing".into());
        let text = plan(&recipe, root.path(), "cuda:0").unwrap();
        assert!(text.contains("`nobody/nothing` are known once"), "{text}");
    }

    #[test]
    fn the_eagle3_drafter_of_an_8b_target_has_the_published_size() {
        let recipe = qwen3();
        let sizes = sizes(&recipe).unwrap();
        let footprint = recipe.method.footprint(&sizes.spec).unwrap();
        // fc 3·4096², attention 2·4096·(32+16)·128 + 4096², MLP 3·4096·12288, head 32000·4096.
        assert_eq!(footprint.parameters, 399_523_840);
    }

    #[test]
    fn stored_features_take_the_target_out_of_the_training_step() {
        let recipe = qwen3();
        let sizes = sizes(&recipe).unwrap();
        let root = tempfile::tempdir().unwrap();
        let live = Estimate::of(&recipe, &sizes, root.path(), "cuda:0").unwrap();
        let mut recipe = recipe;
        recipe.features.mode = FeatureMode::Stored;
        let stored = Estimate::of(&recipe, &sizes, root.path(), "cuda:0").unwrap();
        assert_eq!(stored.target_bytes, live.target_bytes);
        assert!(stored.flops_per_token < live.flops_per_token);
    }
}

//! What a run takes.

use anyhow::Result;
use serde_json::{Map, Value, json};
use spectrain_checkpoints::columns::beside;
use spectrain_data::features::disk_bytes;
use spectrain_data::tokens::BYTES_PER_TOKEN;
use spectrain_models::products::Precision;
use spectrain_models::{FrozenType, TargetSpec};
use spectrain_train::{Judges, TrainConfig, Workload};

use super::data::{MOST_PASSES, TrainingData};
use super::flops::Computed;
use super::memory::{Memory, Trained};
use super::speed::speed;
use super::stages::Planned;
use super::steps::Steps;
use super::words::{bytes, count, duration, flops, times};
use crate::families::footprint::{Attended, Footprint, LayerSizes, Packed, Sees, decoder};
use crate::plan::preflight::Asked;
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::tables::{ExportType, FeatureMode, SyntheticTable};
use crate::runs::stage_names;
use crate::runtime::device;
use crate::runtime::sizes::{
    Sizes, folder_of, idle_parameters, part_parameters, target_parameters,
};
use crate::runtime::target::check_computed;

/// How many times the passes that are recommended by the sizes of files may be made of the tokens that are counted then.
const COUNTED: f64 = 1.5;

/// What a run takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    pub(super) footprint: Footprint,
    /// Of the target, as far as it is in memory.
    pub(super) target_parameters: u64,
    /// Of all of it, where a part of it is read and the sizes of the rest are known.
    whole_target: Option<u64>,
    /// Those that a token goes through: fewer than all where there are experts.
    pub(super) active_parameters: u64,
    /// Bytes of the target in memory: whole, unless servers have it, as validation decodes with it.
    pub target_bytes: u64,
    pub(super) memory: Memory,
    /// How many processes train together, of which each takes that memory.
    processes: usize,
    /// Bytes of the most memory that a process has at a time in each stage that trains.
    pub peaks: Vec<(&'static str, u64)>,
    unroll: (usize, usize),
    pub(super) feature_bytes: Option<u64>,
    /// Bytes on the disk that saved states, the drafter and its exported folders take.
    checkpoint_bytes: u64,
    pub(super) data_tokens: Option<u64>,
    /// Whether these were counted; else the sizes of files tell them.
    pub(super) is_counted: bool,
    /// Of each stage that trains, with its FLOP for each token.
    pub(super) steps: Vec<(Steps, f64)>,
    /// Known once the data is, where training is counted in epochs.
    pub(super) train_tokens: Option<u64>,
    pub(super) flops_per_token: f64,
    /// The name of the device of each process, and how it holds the target.
    device: String,
    held: FrozenType,
}

impl Estimate {
    /// The estimate for a target of these sizes and this training data.
    pub(super) fn of(asked: &Asked, sizes: &Sizes, data: &TrainingData) -> Result<Self> {
        let (recipe, device, spec) = (asked.recipe, asked.device, &sizes.spec);
        let footprint = recipe.footprint(spec)?;
        let mode = recipe.features.mode;
        let [target_parameters, active_parameters] = in_memory(sizes, mode);
        let held = device::target_type(recipe.target.dtype, device);
        let target_bytes = in_bytes(sizes, mode, held, device);
        let mut peaks = Vec::from_iter(synthetic_peak(recipe, spec, target_parameters));
        let data_tokens = data.tokens();
        let (mut memory, mut unroll) = (Memory::default(), (1, 1));
        let (mut flop, mut weighed, mut tokens) = (0.0, 0_u64, Some(0_u64));
        let mut steps = Vec::new();
        for stage in recipe.training_stages().iter().copied() {
            let (found, per_token) = of_stage(asked, (spec, footprint), stage)?;
            peaks.push((stage, target_bytes.saturating_add(found.peak)));
            if found.peak > memory.peak {
                let work = recipe.method.workload(stage);
                (memory, unroll) = (found, (work.passes, work.held));
            }
            let counted = Steps::of(stage, recipe.training(stage), data_tokens);
            let trained = counted.trained_tokens;
            steps.push((counted, per_token));
            // A stage counts by its tokens, where they are known.
            let weight = trained.unwrap_or(1).max(1);
            flop += per_token * weight as f64;
            weighed = weighed.saturating_add(weight);
            tokens = together(tokens, trained);
        }
        let of_features = |tokens| {
            let d_model = spec.d_model as u64;
            disk_bytes(tokens, footprint.captured, d_model, recipe.features.dtype)
        };
        Ok(Self {
            footprint,
            active_parameters,
            target_parameters,
            whole_target: whole_target(recipe, sizes),
            target_bytes,
            memory,
            steps,
            processes: asked.ranks,
            peaks,
            unroll,
            feature_bytes: data_tokens.filter(|_| mode.is_stored()).map(of_features),
            checkpoint_bytes: checkpoints(recipe, &footprint),
            data_tokens,
            is_counted: data.is_counted(),
            train_tokens: tokens,
            flops_per_token: flop / weighed.max(1) as f64,
            device: device.to_owned(),
            held,
        })
    }

    pub(super) fn text(&self, recipe: &ResolvedRecipe, sizes: &Sizes) -> String {
        let mut text = String::new();
        for (name, value) in self
            .sizes(sizes)
            .into_iter()
            .chain(self.memory())
            .chain(self.texts())
            .chain(self.disk(recipe))
            .chain(self.time())
        {
            text += &beside(&format!("  {name}"), 25, &value);
        }
        text
    }

    /// Bytes of the most memory that a machine takes which has all of the processes and computes itself.
    pub(super) fn all_processes(&self) -> Option<u64> {
        let texts = self.texts_bytes().unwrap_or(0);
        let each = self.peak()?.saturating_add(texts);
        Some(each.saturating_mul(self.processes as u64))
    }

    /// Those that the texts take of one which has all of the processes.
    pub(super) fn all_texts(&self) -> Option<u64> {
        Some(self.texts_bytes()?.saturating_mul(self.processes as u64))
    }

    /// Bytes of the machine's own memory in which a process has the texts to train on, where it is known how many they are.
    fn texts_bytes(&self) -> Option<u64> {
        let tokens = self.data_tokens?;
        Some(tokens.saturating_mul(BYTES_PER_TOKEN))
    }

    /// Bytes of the most memory that a process has at a time in any stage that trains.
    pub(super) fn peak(&self) -> Option<u64> {
        self.peaks.iter().map(|(_, bytes)| *bytes).max()
    }

    /// The same in this stage.
    pub(super) fn peak_of(&self, stage: &str) -> Option<u64> {
        let mut peaks = self.peaks.iter();
        let own = peaks.find(|(name, _)| *name == stage);
        own.map(|(_, bytes)| *bytes)
    }

    /// FLOP/s, and how that is known. A CPU is measured by the first who asks, so that only those do who tell times.
    pub(super) fn speed(&self) -> (f64, String) {
        speed(&self.device, self.processes, self.held)
    }

    /// How long the training takes, once it is known on how many tokens.
    pub(super) fn training_seconds(&self) -> Option<f64> {
        let (speed, _) = self.speed();
        self.train_tokens
            .map(|tokens| tokens as f64 * self.flops_per_token / speed)
    }

    /// Bytes that features take on the disk, as far as they are known.
    pub(super) fn features_on_disk(&self) -> u64 {
        self.feature_bytes.unwrap_or(0)
    }

    /// Bytes on the disk that are not those of features, which runs of the same may share.
    pub(super) fn own_disk_bytes(&self) -> u64 {
        self.checkpoint_bytes
    }

    /// Bytes that the run takes on the disk, as far as they are known.
    pub(super) fn disk_bytes(&self) -> u64 {
        self.checkpoint_bytes
            .saturating_add(self.features_on_disk())
    }

    /// What [`text`](Self::text) says, as numbers.
    pub(super) fn json(&self, sizes: &Sizes) -> Value {
        let (memory, (speed, source)) = (&self.memory, self.speed());
        let steps: Map<String, Value> = self.steps.iter().map(|(of, _)| of.json()).collect();
        let peaks = self.peaks.iter();
        let peaks: Map<String, Value> = peaks
            .map(|(stage, bytes)| ((*stage).to_owned(), json!(bytes)))
            .collect();
        json!({
            "target": {
                "parameters": self.target_parameters,
                "of_parameters": self.whole_target,
                "parameters_per_token": self.active_parameters,
                "source": sizes.source,
            },
            "drafter": {
                "trained_parameters": self.footprint.parameters,
                "frozen_parameters": self.footprint.frozen,
                "draft_vocab": self.footprint.draft_vocab,
            },
            "memory_bytes": {
                "target": self.target_bytes,
                "drafter": memory.drafter,
                "activations": memory.activations,
                "loss": memory.loss,
                "batches": memory.batches,
                "saving": memory.saving,
                "texts": self.texts_bytes(),
                "peak_of_stage": peaks,
            },
            "processes": self.processes,
            "disk_bytes": {"checkpoints": self.checkpoint_bytes, "features": self.feature_bytes},
            "data_tokens": self.data_tokens,
            "trained_tokens": self.train_tokens,
            "training_steps": steps,
            "flop_per_token": self.flops_per_token,
            "speed": {"flop_per_second": speed, "device": self.device, "source": source},
            "training_seconds": self.training_seconds(),
        })
    }

    fn sizes(&self, sizes: &Sizes) -> [(&'static str, String); 2] {
        let parameters = count(self.target_parameters);
        let (name, parameters) = match self.whole_target {
            Some(all) => (
                "read of the target",
                format!("{parameters} of {}", count(all)),
            ),
            None => ("target", parameters),
        };
        let active = match self.active_parameters {
            all if all == self.target_parameters => String::new(),
            some => format!(", {} for each token", count(some)),
        };
        let frozen = match self.footprint.frozen {
            0 => String::new(),
            frozen => format!(" beside {} frozen ones", count(frozen)),
        };
        let trained = count(self.footprint.parameters);
        let tokens = self.footprint.draft_vocab;
        [
            (
                name,
                format!("{parameters} parameters{active}; {}", sizes.source),
            ),
            (
                "drafter",
                format!("{trained} trained parameters{frozen}, draft vocabulary of {tokens}"),
            ),
        ]
    }

    fn memory(&self) -> [(&'static str, String); 7] {
        let (memory, (passes, held)) = (&self.memory, self.unroll);
        let largest = self.peaks.iter().max_by_key(|(_, bytes)| *bytes);
        let (stage, peak) = largest.copied().unwrap_or_default();
        let of_each = match self.processes {
            1 => String::new(),
            many => format!(", of each of {many} processes"),
        };
        let unrolled = if passes > 1 {
            format!(" ({passes} draft steps unrolled, {held} held at a time)")
        } else {
            String::new()
        };
        let cast = if memory.casts > 0 {
            ", and weights in bf16"
        } else {
            ""
        };
        let frozen = match memory.frozen {
            0 => String::new(),
            held if held < 4 * self.footprint.frozen => {
                format!("; {} of it frozen weights, bf16", bytes(held))
            }
            held => format!("; {} of it frozen weights", bytes(held)),
        };
        [
            ("memory, target", bytes(self.target_bytes)),
            (
                "memory, drafter",
                format!(
                    "{} (weights, gradients and their moments, f32{cast}{frozen})",
                    bytes(memory.drafter)
                ),
            ),
            (
                "memory, activations",
                format!("{}{unrolled}", bytes(memory.activations)),
            ),
            ("memory, loss", bytes(memory.loss)),
            ("memory, batches", bytes(memory.batches)),
            (
                "memory, saving",
                format!("{} (not while a step runs)", bytes(memory.saving)),
            ),
            (
                "memory, together",
                format!(
                    "{} at the peak, in the stage `{stage}`{of_each}",
                    bytes(peak)
                ),
            ),
        ]
    }

    /// What the texts take of memory that is the machine's own, whatever computes.
    fn texts(&self) -> Option<(&'static str, String)> {
        let of_each = match self.processes {
            1 => String::new(),
            many => format!(", in each of {many} processes"),
        };
        let told = format!(
            "{} of the machine's own{of_each}",
            bytes(self.texts_bytes()?)
        );
        Some(("memory, texts", told))
    }

    fn disk(&self, recipe: &ResolvedRecipe) -> Vec<(&'static str, String)> {
        let later = || "known once `data.train` is there".into();
        let mut lines = vec![("disk, checkpoints", bytes(self.checkpoint_bytes))];
        if recipe.features.mode.is_stored() {
            lines.push((
                "disk, features",
                self.feature_bytes.map_or_else(later, bytes),
            ));
        }
        let data = self.data_tokens;
        let tokens = data.map_or_else(later, |tokens| format!("{} tokens", count(tokens)));
        lines.push(("training data", tokens));
        lines
    }

    /// That training passes over the data more often than anybody does on purpose.
    pub(super) fn many_passes(&self, recipe: &ResolvedRecipe) -> Option<String> {
        let data = self.data_tokens.filter(|tokens| *tokens > 0)?;
        let passes = self.train_tokens? as f64 / data as f64;
        let answers = match recipe.regenerate {
            None => "",
            Some(_) => "; answers that are still to come make the data longer",
        };
        let told = || {
            format!(
                "training passes {} times over the data, and more than {MOST_PASSES} seldom help: set fewer `train.steps`, or \
                 `train.epochs`{answers}",
                times(passes)
            )
        };
        let is_more = match self.is_counted {
            // Steps are chosen by the sizes of files, in which are more bytes than those of the texts: counted, the tokens are fewer.
            true => passes > COUNTED * MOST_PASSES as f64,
            // Steps are whole, so that as many as are recommended may be a part of a pass more.
            false => passes as u64 > MOST_PASSES,
        };
        is_more.then(told)
    }

    /// That `patience` cannot end trainings that begin anew.
    pub(super) fn in_vain(&self, recipe: &ResolvedRecipe, stages: &[Planned]) -> Vec<String> {
        let mut found = Vec::new();
        for (counted, _) in &self.steps {
            let mut own = stages.iter().filter(|stage| stage.name == counted.stage);
            if own.any(Planned::begins_anew) {
                let (stage, training) = (counted.stage, recipe.training(counted.stage));
                let begins_trained = recipe.begins_trained(stage);
                found.extend(
                    training.patience_in_vain(&format!("the stage `{stage}`"), begins_trained),
                );
            }
        }
        found
    }

    fn time(&self) -> [(&'static str, String); 3] {
        let later = || "known once `data.train` is there".to_owned();
        let training = self.train_tokens.map(|trained| {
            let steps = self.steps.iter().filter_map(|(of, _)| of.words());
            let steps: Vec<String> = steps.collect();
            let tokens = format!("{}, {} tokens", steps.join(", "), count(trained));
            match self.data_tokens {
                Some(data) if data > 0 => {
                    let times = times(trained as f64 / data as f64);
                    format!("{tokens}, {times} times the data")
                }
                _ => tokens,
            }
        });
        let (speed, source) = self.speed();
        let per_token = self.flops_per_token / 1e9;
        let on = match self.processes {
            many if many > 1 && device::is_gpu(&self.device) => format!("{many} devices"),
            _ => self.device.clone(),
        };
        let time = self.training_seconds().map(duration);
        let time = time.map(|time| format!("{time} for its steps alone"));
        [
            ("training", training.unwrap_or_else(later)),
            (
                "speed",
                format!(
                    "{per_token:.2} GFLOP per token, {} on {on} ({source})",
                    flops(speed)
                ),
            ),
            ("training time", time.unwrap_or_else(later)),
        ]
    }
}

/// Memory that a training stage takes, and its FLOP for each token.
fn of_stage(
    asked: &Asked,
    (target, footprint): (&TargetSpec, Footprint),
    stage: &str,
) -> Result<(Memory, f64)> {
    let (recipe, device) = (asked.recipe, asked.device);
    let training = recipe.training(stage);
    let (batch, work) = (packed(recipe, training), recipe.method.workload(stage));
    let activations = recipe.method.activations(target, stage, batch)?;
    let held = device::target_type(recipe.target.dtype, device);
    let live = recipe.features.mode == FeatureMode::Live;
    let memory = Memory::of(&Trained {
        target,
        footprint,
        training,
        activations,
        work,
        batch,
        value: held.dtype.size() as u64,
        precision: held.precision,
        live,
        gpu: device::is_gpu(device),
        ranks: asked.ranks as u64,
    });
    let computed = Computed {
        target,
        footprint,
        activations,
        work,
        batch,
        live,
    };
    Ok((memory, computed.per_token()))
}

/// Tokens of two stages, where those of both are known.
fn together(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    Some(one?.saturating_add(other?))
}

/// Parameters of the target that are in memory, and those of them that a token goes through.
fn in_memory(sizes: &Sizes, mode: FeatureMode) -> [u64; 2] {
    if !mode.computes_target() {
        return [part_parameters(&sizes.spec, sizes.tied_head); 2];
    }
    let all = target_parameters(&sizes.spec, sizes.tied_head);
    [all, all - idle_parameters(&sizes.spec)]
}

/// Parameters of the whole target, of which a part is read; where its layers are none that this program knows, their sizes are not
/// known either.
fn whole_target(recipe: &ResolvedRecipe, sizes: &Sizes) -> Option<u64> {
    if recipe.features.mode.computes_target() {
        return None;
    }
    let folder = folder_of(recipe.model()?, recipe.target.revision.as_deref());
    let is_known = folder.is_none_or(|folder| check_computed(&folder).is_ok());
    is_known.then(|| target_parameters(&sizes.spec, sizes.tied_head))
}

/// Bytes of the target in memory.
fn in_bytes(sizes: &Sizes, mode: FeatureMode, held: FrozenType, device: &str) -> u64 {
    match mode.computes_target() {
        true => sizes.target_bytes(held, device),
        false => held.dtype.size() as u64 * part_parameters(&sizes.spec, sizes.tied_head),
    }
}

fn packed(recipe: &ResolvedRecipe, training: &TrainConfig) -> Packed {
    let length = recipe.data.max_length as u64;
    Packed {
        rows: training.batch_tokens as u64 / length.max(1),
        length,
    }
}

/// Bytes on the disk that each training stage leaves: saved states with what the optimiser keeps, the best one kept beside the
/// last ones, and the drafter; and the exported folder.
fn checkpoints(recipe: &ResolvedRecipe, footprint: &Footprint) -> u64 {
    let all = footprint.parameters + footprint.frozen;
    let of_stage = |stage: &&str| {
        let training = recipe.training(stage);
        let saves = training.steps.div_ceil(training.save_every);
        // The best of them, which may be older, and one that is being written.
        let states = training.keep.min(saves).saturating_add(2) as u64;
        let moments = footprint.kept_by(&training.optimizer());
        states.saturating_mul(4 * (all + moments)) + 4 * all
    };
    let trained: u64 = recipe.training_stages().iter().map(of_stage).sum();
    let exported = match recipe.export.dtype {
        ExportType::F32 => 4 * all,
        ExportType::Bf16 | ExportType::F16 => 2 * all,
    };
    trained + exported
}

/// Where the recipe makes its target: the stage and the memory that this takes.
fn synthetic_peak(
    recipe: &ResolvedRecipe,
    spec: &TargetSpec,
    parameters: u64,
) -> Option<(&'static str, u64)> {
    let table = recipe.synthetic.as_ref()?;
    let SyntheticTable {
        batch_tokens,
        max_length,
        ..
    } = *table;
    let length = max_length as u64;
    let batch = Packed {
        rows: batch_tokens as u64 / length.max(1),
        length,
    };
    let work = Workload::texts(Judges::Text);
    let layer = LayerSizes::of(spec, [0; 3]).ok()?;
    let attended = Attended::of(&work, batch, Sees::Back);
    let footprint = Footprint {
        parameters,
        head: 0,
        matrices: 0,
        frozen: 0,
        idle: 0,
        draft_vocab: spec.vocab as u64,
        captured: 0,
    };
    let memory = Memory::of(&Trained {
        target: spec,
        footprint,
        training: &TrainConfig::default(),
        activations: decoder(&layer, spec.layers as u64, &work, attended),
        work,
        batch,
        value: 4,
        precision: Precision::F32,
        live: false,
        gpu: false,
        ranks: 1,
    });
    Some((stage_names::SYNTHETIC, memory.peak))
}

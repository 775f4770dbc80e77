//! `spectrain bench`: tokens per second and peak memory of feature capture, a training step and decoding.
//!
//! Each case runs in a process of its own, so that its peak memory is its own. `tests/bench/` has the same training steps in PyTorch.

use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use spectrain_checkpoints::Mismatch;
use spectrain_train::Divergence;

use crate::errors::{Misuse, with_causes};
use crate::progress::print;
use crate::recipe::read::overridden;
use crate::recipe::tables::TargetType;
use crate::runtime::bench::{Setup, Size, Task};
use crate::runtime::device::{self, memory_of};
use crate::runtime::interruption::check_interrupted;

/// Arguments of `spectrain bench`.
#[derive(Debug, clap::Args)]
pub struct BenchArguments {
    /// Only this size.
    #[arg(long)]
    size: Option<Size>,
    /// Only this task. Training steps of families other than EAGLE-3 run only when asked for.
    #[arg(long)]
    task: Option<Task>,
    /// Timed repetitions, after one that is not timed.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Keep the activations of all unrolled steps for the backward pass.
    #[arg(long)]
    keep_activations: bool,
    /// Compute cheap activations of the training step again in the backward pass instead of keeping them.
    #[arg(long)]
    gradient_checkpointing: bool,
    /// Hold the matrices of the target's layers in eight bits; on the CPU.
    #[arg(long)]
    int8: bool,
    /// Compute in bf16, as `target.dtype = "bf16"` of a recipe.
    #[arg(long, conflicts_with = "int8")]
    bf16: bool,
    /// Batches with three texts in each row, which begin at no round places, instead of one.
    #[arg(long)]
    packed: bool,
    /// Share of each text, its beginning, that is a prompt and not trained on; from 0 to below 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = prompts)]
    prompts: f64,
    /// What EAGLE-3's training step minimises, as `objective.divergence` of a recipe; without it `kl`.
    #[arg(long, value_parser = divergence)]
    divergence: Option<Divergence>,
    /// `cpu` or `cuda:N`.
    #[arg(long, default_value = "cpu", value_parser = device::check_name)]
    device: String,
    /// Print only the line of one case.
    #[arg(long, hide = true, requires_all = ["size", "task"])]
    case: bool,
}

/// Runs the command.
pub fn run(arguments: &BenchArguments) -> Result<()> {
    if arguments.int8 {
        device::check_target_type(TargetType::Int8, &arguments.device, "`--int8`")
            .map_err(Misuse)?;
    }
    if let (true, Some(size), Some(task)) = (arguments.case, arguments.size, arguments.task) {
        return case(size, task, arguments);
    }
    arguments.check_effects()?;
    let memory = if arguments.is_on_cpu() {
        "peak MiB above start"
    } else {
        "MiB of the device"
    };
    print(format!(
        "task         size     tokens/s   ms each   {memory}\n"
    ))?;
    let tasks = Task::value_variants().iter();
    let is_wanted = |task: Task| match arguments.task {
        Some(only) => only == task,
        None => task.is_usual(),
    };
    for task in tasks.filter(|&&task| is_wanted(task)) {
        let sizes = Size::value_variants().iter();
        // The largest runs where it is asked for.
        let wanted = |size: Size| match arguments.size {
            Some(only) => only == size,
            None => size != Size::Qwen3Of8B,
        };
        for size in sizes.filter(|&&size| wanted(size)) {
            arguments.start(&name(task), &name(size))?;
        }
    }
    Ok(())
}

/// Whether an option changes a task.
type Changes = fn(Task) -> bool;

impl BenchArguments {
    fn is_on_cpu(&self) -> bool {
        self.device == "cpu"
    }

    /// Fails on an option that changes nothing about the task that is asked for.
    fn check_effects(&self) -> Result<(), Misuse> {
        let Some(asked) = self.task else {
            return Ok(());
        };
        let is_eagle3: Changes = |task| task == Task::Train;
        let options: [(&str, bool, Changes); 7] = [
            ("--divergence", self.divergence.is_some(), is_eagle3),
            ("--keep-activations", self.keep_activations, is_eagle3),
            (
                "--gradient-checkpointing",
                self.gradient_checkpointing,
                Task::trains,
            ),
            ("--int8", self.int8, |task| !task.trains()),
            ("--bf16", self.bf16, Task::has_batch),
            ("--packed", self.packed, Task::has_batch),
            ("--prompts", self.prompts > 0.0, Task::trains),
        ];
        let mut options = options.into_iter();
        let idle = options.find(|(_, is_given, changes)| *is_given && !changes(asked));
        let Some((option, _, changes)) = idle else {
            return Ok(());
        };
        let tasks = Task::value_variants().iter();
        let tasks = tasks.filter(|&&task| changes(task));
        let tasks: Vec<String> = tasks.map(|task| format!("`{}`", name(task))).collect();
        Err(Misuse(format!(
            "`{option}`: expected a `--task` that it changes, of {}, or none; found `{}`",
            tasks.join(", "),
            name(&asked)
        )))
    }

    /// Runs a case in a process of its own.
    fn start(&self, task: &str, size: &str) -> Result<()> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let (repeat, prompts) = (self.repeat.to_string(), self.prompts.to_string());
        let divergence = self.divergence.as_ref().map(given).transpose()?;
        let divergence = divergence.iter();
        let status = std::process::Command::new(&program)
            .args(["bench", "--case", "--size", size, "--task", task])
            .args(["--repeat", &repeat, "--device", &self.device])
            .args(["--prompts", &prompts])
            .args(
                self.gradient_checkpointing
                    .then_some("--gradient-checkpointing"),
            )
            .args(self.keep_activations.then_some("--keep-activations"))
            .args(self.int8.then_some("--int8"))
            .args(self.bf16.then_some("--bf16"))
            .args(self.packed.then_some("--packed"))
            .args(divergence.flat_map(|of| ["--divergence", of.as_str()]))
            .status()
            .context("cannot start a case")?;
        check_interrupted()?;
        if !status.success() {
            bail!("the case {task} {size} failed: {status}");
        }
        Ok(())
    }
}

/// A divergence as [`divergence`] reads it.
fn given(divergence: &Divergence) -> Result<String> {
    Ok(toml::Value::try_from(divergence)?.to_string())
}

/// A divergence that can be minimised, given as `--set objective.divergence` of a recipe takes it.
fn divergence(given: &str) -> Result<Divergence, String> {
    let mut table =
        overridden(&[format!("divergence={given}")]).map_err(|error| with_causes(&error))?;
    let value = table
        .remove("divergence")
        .ok_or("expected a divergence, found none")?;
    let told = |error: toml::de::Error| error.message().to_owned();
    let read: Divergence = value.try_into().map_err(told)?;
    match read.problem() {
        Some((expected, found)) => Err(Mismatch::new(expected, found).to_string()),
        None => Ok(read),
    }
}

/// A share that leaves something.
fn prompts(given: &str) -> Result<f64, String> {
    let share: Option<f64> = given.parse().ok();
    let share = share.filter(|share| (0.0..1.0).contains(share));
    share.ok_or_else(|| "expected a number from 0 to below 1".into())
}

fn name(value: &impl ValueEnum) -> String {
    value
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Measures a case in this process.
fn case(size: Size, task: Task, arguments: &BenchArguments) -> Result<()> {
    let device = device::device(&arguments.device)?;
    let graph = device.clone().autodiff();
    let of = |wanted| device::target_type(wanted, &arguments.device);
    let held = arguments.bf16.then(|| of(TargetType::Bf16));
    let precision = held.filter(|_| task.has_batch()).map(|held| held.precision);
    let _precision = precision.unwrap_or_default().scope();
    let setup = Setup {
        size,
        graph: if arguments.gradient_checkpointing {
            graph.gradient_checkpointing()
        } else {
            graph
        },
        device,
        recompute: !arguments.keep_activations,
        held,
        int8: arguments.int8,
        divergence: arguments.divergence.clone().unwrap_or(Divergence::Kl),
        packed: arguments.packed,
        prompts: arguments.prompts,
    };
    let start = memory("VmRSS");
    let mut work = setup.work(task)?;
    work()?;
    let started = Instant::now();
    for _ in 0..arguments.repeat {
        check_interrupted()?;
        work()?;
    }
    let seconds = started.elapsed().as_secs_f64() / f64::from(arguments.repeat);
    let bytes = match arguments.is_on_cpu() {
        true => memory("VmHWM")
            .zip(start)
            .map(|(peak, start)| peak.saturating_sub(start)),
        false => memory_of(&setup.device).map(|memory| memory.reserved),
    };
    let mib = bytes.map_or("?".to_owned(), |bytes| (bytes >> 20).to_string());
    print(format!(
        "{:<12} {:<8} {:>8.0} {:>9.1}   {mib:>8}\n",
        name(&task),
        name(&size),
        task.tokens(size) as f64 / seconds,
        seconds * 1e3
    ))
}

/// A line of this process's memory account, in bytes; Linux only.
fn memory(line: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let found = status.lines().find(|text| text.starts_with(line))?;
    let kib: u64 = found.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_reads_the_divergence_that_it_is_given() {
        for text in [
            "kl",
            " kl ",
            "\"kl\"",
            "tv_plus_plus",
            "{ jsd = 0.3 }",
            "{ top_k = 10 }",
            "lk_hybrid",
            "{ lk_hybrid = 1.0 }",
            "{ sum = { kl = 0.9, tv = 0.1 } }",
            "{ sum = { kl = 0.9, tv = { start = 0.0, end = 0.1, from = 0.0, until = 0.5 } } }",
        ] {
            let read = divergence(text).unwrap();
            assert_eq!(divergence(&given(&read).unwrap()), Ok(read), "{text}");
        }
        let refused = divergence("{ jsd = 3.0 }").unwrap_err();
        assert_eq!(refused, "expected a jsd between 0 and 1, found 3");
    }
}

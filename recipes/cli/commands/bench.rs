//! `spectrain bench`: tokens per second and peak memory of feature capture, a training step and decoding.
//!
//! Each case runs in a process of its own, so that its peak memory is its own. `tests/bench/` has the same training steps in PyTorch.

use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::cli::progress::print;
use crate::errors::Misuse;
use crate::recipe::tables::TargetType;
use crate::runtime::bench::{Setup, Size, Task};
use crate::runtime::device;
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
    print("task         size     tokens/s   ms each   peak MiB above start\n")?;
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

impl BenchArguments {
    /// Runs a case in a process of its own.
    fn start(&self, task: &str, size: &str) -> Result<()> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let repeat = self.repeat.to_string();
        let status = std::process::Command::new(&program)
            .args(["bench", "--case", "--size", size, "--task", task])
            .args(["--repeat", &repeat, "--device", &self.device])
            .args(
                self.gradient_checkpointing
                    .then_some("--gradient-checkpointing"),
            )
            .args(self.keep_activations.then_some("--keep-activations"))
            .args(self.int8.then_some("--int8"))
            .status()
            .context("cannot start a case")?;
        check_interrupted()?;
        if !status.success() {
            bail!("the case {task} {size} failed: {status}");
        }
        Ok(())
    }
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
    let setup = Setup {
        size,
        graph: if arguments.gradient_checkpointing {
            graph.gradient_checkpointing()
        } else {
            graph
        },
        device,
        recompute: !arguments.keep_activations,
        int8: arguments.int8,
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
    let peak = memory("VmHWM")
        .zip(start)
        .map(|(peak, start)| peak.saturating_sub(start) >> 10);
    let peak = peak.map_or("?".to_owned(), |mib| mib.to_string());
    print(format!(
        "{:<12} {:<8} {:>8.0} {:>9.1}   {peak:>8}\n",
        name(&task),
        name(&size),
        task.tokens(size) as f64 / seconds,
        seconds * 1e3
    ))
}

/// A line of this process's memory account, in KiB; Linux only.
fn memory(line: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let found = status.lines().find(|text| text.starts_with(line))?;
    found.split_whitespace().nth(1)?.parse().ok()
}

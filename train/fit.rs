//! The loop: resume → batch → gradients → step → log → validate → save.
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use burn::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::json;
use spectrain_checkpoints::Mismatch;
use spectrain_checkpoints::state;
use spectrain_data::packing::PackedBatch;
use spectrain_models::weights::host_f32;

use crate::batch::{Batch, Rows};
use crate::error::{Error, Result};
use crate::judge::Statistics;
use crate::log::{Interval, Log};
use crate::objective::Loss;
use crate::on_policy::is_chosen;
use crate::settings::TrainConfig;
use crate::source::{BatchSource, Order, Samples};
use crate::trainee::Train;
use crate::validation::{Validation, is_better};
use crate::watch::Watch;

/// What a run of the loop is given.
pub struct Fit<'a> {
    /// The `[train]` table.
    pub config: &'a TrainConfig,
    /// What is trained on, in which order.
    pub samples: Samples,
    /// Makes its batches, one ahead of the training step.
    pub source: Box<dyn BatchSource>,
    /// Folder of the run state and of the logs.
    pub folder: PathBuf,
    /// What must be the same for a state to be taken up: a digest of settings and data.
    pub identity: String,
    /// Whether the run shall end after this step.
    pub interrupted: &'a dyn Fn() -> bool,
    /// What batches need that the model writes itself, where it writes any.
    pub on_policy: Option<OnPolicy<'a>>,
    /// Validates, and compares with the best so far.
    pub validate: &'a mut Validate<'a>,
    /// Bytes in use on the device, where it tells.
    pub memory: &'a dyn Fn() -> Option<u64>,
}

/// Validates a model at a step; given the best validation so far, says by how much the model drafts better than that.
pub type Validate<'a> =
    dyn FnMut(&dyn Train, usize, Option<&Validation>) -> Result<Validation> + 'a;

/// What batches need that the model writes itself.
pub struct OnPolicy<'a> {
    /// Tokens that end a text.
    pub stop: &'a [u32],
    /// Has the target judge what was written.
    pub judge: &'a dyn Fn(Rows) -> Batch,
}

/// What is made ahead of the training step.
enum Ahead {
    /// A batch.
    Ready(Box<Batch>),
    /// The rows of one that the model has to write first, and its seed.
    ToWrite(Rows, u64),
}

impl Ahead {
    /// What can be made of `packed` ahead, where the model writes this `fraction` of batches itself.
    fn made(
        source: &mut dyn BatchSource,
        packed: PackedBatch,
        seed: u64,
        fraction: f64,
    ) -> Result<Self> {
        if is_chosen(fraction, seed) {
            return Ok(Self::ToWrite(source.rows(packed), seed));
        }
        let batch = source.batch(packed)?;
        Ok(Self::Ready(Box::new(Batch {
            seed: Some(seed),
            ..batch
        })))
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FitSummary {
    /// Optimizer steps done.
    pub steps: usize,
    /// Tokens trained on, padding left out.
    pub tokens: u64,
    /// Seconds in the loop, over all its sessions.
    pub seconds: f64,
    /// Loss at the last log interval.
    pub loss: f64,
    /// The validation of the weights to take, and its step: the first, and every later one that is surely better by true τ
    /// (by loss for what does not draft).
    pub best: Option<(usize, Validation)>,
    /// Whether it ended before its last step.
    pub interrupted: bool,
}

/// What a checkpoint says beside weights and moments.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Progress {
    identity: String,
    step: usize,
    updates: u64,
    tokens: u64,
    seconds: f64,
    loss: f64,
    watch: Watch,
    /// The steps since the last log line.
    interval: Interval,
    best: Option<(usize, Validation)>,
    /// Whether its validation is due but was interrupted.
    unvalidated: bool,
}

/// Trains until the last step, an interruption or an error. A run state in the folder is taken up.
///
/// # Errors
/// The loss diverges, a batch cannot be made, or something cannot be written.
pub fn fit(trainee: &mut dyn Train, fit: Fit) -> Result<FitSummary> {
    fit.config.check(fit.samples.row_length())?;
    let mut progress = resume(trainee, &fit)?;
    let first = progress.step * fit.config.gradient_accumulation;
    let wanted = fit.config.steps * fit.config.gradient_accumulation - first;
    let order = Order::from(fit.samples.clone(), first)?;
    let Fit {
        config,
        samples,
        mut source,
        folder,
        interrupted,
        on_policy,
        validate,
        memory,
        ..
    } = fit;
    let fraction = match &on_policy {
        Some(_) => trainee.on_policy_fraction(),
        None => 0.0,
    };
    source.begin(order.clone(), wanted)?;
    let (sender, batches) = sync_channel(1);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut order = order;
            for position in first..first + wanted {
                let seed = samples.step_seed(position);
                let packed = order.advance();
                let ahead =
                    packed.and_then(|packed| Ahead::made(&mut *source, packed, seed, fraction));
                // The loop has ended and dropped its side.
                if sender.send(ahead).is_err() {
                    return;
                }
            }
        });
        let log = Log::new(config.steps, progress.step, &folder);
        let mut run = Run {
            config,
            folder,
            on_policy,
            validate,
            memory,
            log,
            pending: Vec::new(),
        };
        let outcome = run.steps(trainee, batches, &mut progress, interrupted);
        run.log.finish();
        outcome
    })?;
    Ok(FitSummary {
        interrupted: progress.step < config.steps || progress.unvalidated,
        steps: progress.step,
        tokens: progress.tokens,
        seconds: progress.seconds,
        loss: progress.loss,
        // The counts are for comparisons, of which no more come.
        best: progress.best.map(|(step, best)| {
            let decoded = Vec::new();
            (step, Validation { decoded, ..best })
        }),
    })
}

fn resume(trainee: &mut dyn Train, fit: &Fit) -> Result<Progress> {
    let fresh = Progress {
        identity: fit.identity.clone(),
        step: 0,
        updates: 0,
        tokens: 0,
        seconds: 0.0,
        loss: f64::NAN,
        watch: Watch::default(),
        interval: Interval::default(),
        best: None,
        unvalidated: false,
    };
    state::begin(&fit.folder)?;
    let saved = state::list(&fit.folder)?;
    let Some((saved, earlier)) = saved.split_last() else {
        return Ok(fresh);
    };
    let mut found = state::load(&saved.path).map_err(|source| Error::Damaged {
        path: saved.path.clone(),
        source,
        before: earlier.last().map_or("the start".into(), |earlier| {
            format!("step {}", earlier.step)
        }),
    })?;
    let foreign = |expected: &str, got: String| Error::State {
        path: saved.path.clone(),
        mismatch: Mismatch::new(expected, got),
    };
    let progress: Progress = serde_json::from_value(found.state)
        .map_err(|error| foreign("the state of a run", error.to_string()))?;
    if progress.identity != fit.identity {
        let expected = format!("settings and data with digest {}", fit.identity);
        return Err(foreign(&expected, progress.identity));
    }
    if progress.step as u64 != found.step || progress.step > fit.config.steps {
        let expected = format!("step {}, of at most {}", found.step, fit.config.steps);
        return Err(foreign(&expected, format!("step {}", progress.step)));
    }
    let mut group = |name| found.tensors.remove(name).unwrap_or_default();
    let (weights, optimizer) = (group("weights"), group("optimizer"));
    let source = saved.path.display().to_string();
    trainee.restore(weights, (progress.updates, optimizer), &source)?;
    prune(&fit.folder, fit.config, &progress)?;
    tracing::info!("resumed at step {} from `{source}`", progress.step);
    Ok(progress)
}

struct Run<'a> {
    config: &'a TrainConfig,
    folder: PathBuf,
    on_policy: Option<OnPolicy<'a>>,
    validate: &'a mut Validate<'a>,
    memory: &'a dyn Fn() -> Option<u64>,
    log: Log,
    /// Steps since the last log line, whose losses were not read yet.
    pending: Vec<Pending>,
}

struct Pending {
    step: usize,
    samples: Vec<usize>,
    losses: Vec<Loss>,
    norm: Option<Tensor<1>>,
}

impl Run<'_> {
    fn steps(
        &mut self,
        trainee: &mut dyn Train,
        batches: Receiver<Result<Ahead>>,
        progress: &mut Progress,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<()> {
        let schedule = self.config.schedule();
        let mut started = Instant::now();
        let mut tokens = 0u64;
        if progress.unvalidated {
            match self.validate(trainee, progress)? {
                Verdict::Best => self.save(trainee, progress)?,
                Verdict::NotBest => {}
                Verdict::Interrupted => return Ok(()),
            }
        }
        while progress.step < self.config.steps {
            let last = progress.step + 1 == self.config.steps;
            let due = |every: usize| (progress.step + 1).is_multiple_of(every) || last;
            let (log, validate, save) = (
                due(self.config.log_every),
                due(self.config.validate_every),
                due(self.config.save_every),
            );
            let learning_rate = schedule.at(progress.step);
            let statistics = if log {
                Statistics::All
            } else {
                Statistics::Loss
            };
            match self.step(trainee, &batches, progress.step, learning_rate, statistics) {
                Ok(trained) => tokens += trained,
                // Whoever waits for a batch is stopped there.
                Err(Error::Interrupted) => {
                    self.settle(trainee, progress, (tokens, started))?;
                    return match progress.step {
                        0 => Ok(()),
                        _ => self.save(trainee, progress),
                    };
                }
                Err(error) => return Err(error),
            }
            progress.step += 1;

            let mut stop = interrupted();
            if log || validate || save || stop {
                let memory = self.settle(trainee, progress, (tokens, started))?;
                if log {
                    let interval = std::mem::take(&mut progress.interval);
                    self.log
                        .interval(progress.step, &interval, learning_rate, memory);
                }
                (started, tokens) = (Instant::now(), 0);
            }
            let mut verdict = Verdict::NotBest;
            if validate {
                verdict = self.validate(trainee, progress)?;
                stop |= verdict == Verdict::Interrupted;
            }
            if save || stop || verdict == Verdict::Best {
                self.save(trainee, progress)?;
            }
            if stop {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Enters the `tokens` trained on since then, and reads what the device has computed of them; returns the bytes in use there.
    fn settle(
        &mut self,
        trainee: &dyn Train,
        progress: &mut Progress,
        (tokens, since): (u64, Instant),
    ) -> Result<Option<u64>> {
        let seconds = since.elapsed().as_secs_f64();
        progress.interval.add_work(tokens, seconds);
        progress.tokens += tokens;
        progress.seconds += seconds;
        if self.pending.is_empty() {
            return Ok(None);
        }
        self.read(trainee, progress)
    }

    /// One optimizer step; returns the tokens it trained on.
    fn step(
        &mut self,
        trainee: &mut dyn Train,
        batches: &Receiver<Result<Ahead>>,
        step: usize,
        learning_rate: f64,
        statistics: Statistics,
    ) -> Result<u64> {
        let mut pending = Pending {
            step,
            samples: Vec::new(),
            losses: Vec::new(),
            norm: None,
        };
        let mut tokens = 0;
        for _ in 0..self.config.gradient_accumulation {
            let ahead = batches
                .recv()
                .map_err(|_| Error::Features("the thread that makes them ended".into()))??;
            let batch = match (ahead, &self.on_policy) {
                (Ahead::Ready(batch), _) => *batch,
                (Ahead::ToWrite(rows, seed), Some(on_policy)) => Batch {
                    seed: Some(seed),
                    ..(on_policy.judge)(trainee.rewrite(&rows, on_policy.stop, seed))
                },
                (Ahead::ToWrite(..), None) => unreachable!("no batch was chosen"),
            };
            tokens += batch.rows.real_tokens() as u64;
            pending.samples.extend(batch.rows.samples());
            pending.losses.push(trainee.accumulate(&batch, statistics));
        }
        pending.norm = trainee.update(learning_rate, self.config.max_grad_norm);
        self.pending.push(pending);
        self.log.tick(step + 1);
        Ok(tokens)
    }

    /// Validates; where that is interrupted, whoever takes the state up does it.
    fn validate(&mut self, trainee: &dyn Train, progress: &mut Progress) -> Result<Verdict> {
        let best = progress.best.as_ref();
        let found = (self.validate)(trainee, progress.step, best.map(|(_, best)| best));
        progress.unvalidated = matches!(found, Err(Error::Interrupted));
        if progress.unvalidated {
            return Ok(Verdict::Interrupted);
        }
        let found = found?;
        self.log.validation(progress.step, &found, best);
        if is_better(&found, best.map(|(_, best)| best)) {
            progress.best = Some((progress.step, found));
            return Ok(Verdict::Best);
        }
        Ok(Verdict::NotBest)
    }

    /// Reads what the device has computed since the last time and checks it; returns the bytes in use there.
    fn read(&mut self, trainee: &dyn Train, progress: &mut Progress) -> Result<Option<u64>> {
        let (steps, mut counts, mut seen) = (self.pending.len(), false, 0);
        for Pending {
            step,
            samples,
            losses,
            norm,
        } in self.pending.drain(..)
        {
            let positions: usize = losses.iter().map(|loss| loss.rows.len()).sum();
            seen += samples.len();
            counts |= losses.iter().any(|loss| loss.counted > 0.0);
            if positions == 0 {
                // By chance, as where masks are drawn and none was.
                continue;
            }
            let reports: Vec<_> = losses.iter().map(Loss::report).collect();
            let counted: f64 = reports.iter().map(|r| r.counted).sum();
            let loss = reports.iter().map(|r| r.total * r.counted).sum::<f64>() / counted;
            let norm = norm.map_or(0.0, |norm| host_f32(norm)[0] as f64);
            let explosion = self.config.explosion;
            if let Some(what) = progress.watch.see(loss, norm, explosion) {
                return Err(Error::Diverged {
                    step: step + 1,
                    what,
                    samples,
                });
            }
            progress.interval.add(loss, norm, reports);
        }
        if !counts {
            return Err(Error::NothingCounted {
                step: progress.step,
                steps,
                samples: seen,
            });
        }
        if !trainee.is_finite() {
            return Err(Error::Diverged {
                step: progress.step,
                what: "a parameter is not finite".into(),
                samples: Vec::new(),
            });
        }
        let memory = (self.memory)();
        progress.watch.memory(memory, progress.step)?;
        if let Some(loss) = progress.interval.loss() {
            progress.loss = loss;
        }
        Ok(memory)
    }

    fn save(&self, trainee: &dyn Train, progress: &mut Progress) -> Result<()> {
        let weights = trainee.weights();
        let (updates, optimizer) = trainee.optimizer();
        progress.updates = updates;
        let step = progress.step as u64;
        state::save_state(
            &self.folder,
            step,
            &json!(progress),
            &[("weights", &weights), ("optimizer", &optimizer)],
        )?;
        prune(&self.folder, self.config, progress)
    }
}

/// What a validation says of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// They are the best so far.
    Best,
    /// They are not.
    NotBest,
    /// Nothing yet.
    Interrupted,
}

/// Removes the states that are not to be kept.
fn prune(folder: &Path, config: &TrainConfig, progress: &Progress) -> Result<()> {
    let best: Vec<u64> = progress.best.iter().map(|(step, _)| *step as u64).collect();
    state::prune(folder, config.keep, &best)?;
    Ok(())
}

//! The loop: resume → batch → gradients → step → log → validate → save.
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use serde_json::{Value, json};
use spectrain_checkpoints::Mismatch;
use spectrain_checkpoints::hash::sha256_bytes;
use spectrain_checkpoints::{NamedTensor, state};
use spectrain_models::out_of_memory::{OutOfMemory, within_memory};
use spectrain_models::products::Precision;

use crate::batch::{Batch, Rows, Step};
use crate::defaults::Defaults;
use crate::error::{Error, Result};
use crate::fit::ahead::{Ahead, Over, send};
use crate::fit::best::{WEIGHTS, are_lost};
use crate::fit::progress::{Idle, Progress};
use crate::judge::Statistics;
use crate::log::Log;
use crate::ranks::{Ranks, Together};
use crate::seen::{Pending, Seen, together};
use crate::settings::TrainConfig;
use crate::shard::collected;
use crate::source::{BatchSource, Order, Samples};
use crate::trainee::Train;
use crate::validation::{Validation, is_better};
use crate::watch::DeviceMemory;

pub use crate::fit::best::saved_weights;
pub use crate::fit::progress::FitSummary;

mod ahead;
mod best;
mod progress;

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
    /// What must be the same for a state to be taken up: settings, and digests of data.
    pub identity: Value,
    /// The defaults of the tables in it: a state of a version without some key is taken up where that has its default.
    pub defaults: Defaults,
    /// Whether the run shall end after this step.
    pub interrupted: &'a dyn Fn() -> bool,
    /// What batches need that the model writes itself, where it writes any.
    pub on_policy: Option<OnPolicy<'a>>,
    /// Whether what it starts with has been trained for this already, so that its weights are validated before the first step, and
    /// taken where no later ones are better.
    pub begins_trained: bool,
    /// Validates, and compares with the best so far.
    pub validate: &'a mut Validate<'a>,
    /// Memory of the device, where it tells.
    pub memory: &'a dyn Fn() -> Option<DeviceMemory>,
    /// The others that train the same model, where there are any.
    pub ranks: Option<&'a mut dyn Ranks>,
}

/// Validates a model at a step; given the best validation so far, says by how much the model drafts better than that. All ranks
/// call it, each with the same weights, and get the same of it: see [`Together::gather_pieces`].
pub type Validate<'a> =
    dyn FnMut(&dyn Train, usize, Option<&Validation>, &mut Together) -> Result<Validation> + 'a;

/// What batches need that the model writes itself.
pub struct OnPolicy<'a> {
    /// Tokens that end a text.
    pub stop: &'a [u32],
    /// Has the target judge what was written.
    pub judge: &'a dyn Fn(Rows) -> Batch,
}

/// So many of them are no chance.
const MOST_IDLE: usize = 10;

/// Batches whose losses wait to be read: each holds up to some megabytes, of the host and of the device.
const MOST_PENDING: usize = 128;

/// Trains until the last step, an interruption or an error. A run state in the folder is taken up. Where there are several ranks,
/// all of them call this with the same settings, samples and folder, of which rank 0 alone writes anything.
///
/// # Errors
/// The loss diverges, a batch cannot be made, something cannot be written, a device has no memory left, or another rank has ended.
pub fn fit(trainee: &mut dyn Train, mut fit: Fit) -> Result<FitSummary> {
    fit.config.check(fit.samples.row_length())?;
    let mut together = Together(fit.ranks.take());
    let share = together.share(fit.config.gradient_accumulation)?;
    if let Some(ranks) = &together.0 {
        trainee.share(ranks.rank(), ranks.count());
    }
    let mut progress = resume_together(trainee, &fit, &mut together)?;
    let first = progress.step * fit.config.gradient_accumulation;
    let wanted = (progress.end(fit.config) - progress.step) * share.len();
    let order = Order::from(fit.samples.clone(), first)?.shared(share);
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
    let is_over = Arc::new(AtomicBool::new(false));
    source.begin(order.clone(), wanted, is_over.clone())?;
    let (sender, batches) = sync_channel(1);
    std::thread::scope(|scope| {
        let over = Over(is_over);
        let precision = Precision::of_this_thread();
        scope.spawn(move || {
            let _precision = precision.scope();
            let mut order = order;
            let next = || Ahead::next(&mut order, &samples, &mut *source, config, fraction);
            send(wanted, next, &sender);
        });
        let log = together
            .leads()
            .then(|| log_behind(&progress, config, &folder));
        let mut run = Run {
            config,
            batches_of_step: share.len(),
            together,
            folder,
            on_policy,
            validate,
            memory,
            log,
            pending: Vec::new(),
            told_unwritten: false,
        };
        let steps = || run.steps(trainee, batches, &mut progress, interrupted);
        let outcome = within_memory(steps);
        drop(over);
        run.log.iter_mut().for_each(Log::finish);
        // What fails behind the last step, as a validation, is told as of that step.
        let step = progress.step.min(config.steps.saturating_sub(1));
        outcome.unwrap_or_else(|OutOfMemory| Err(Error::out_of_memory(step)))
    })?;
    Ok(progress.summary(config))
}

/// The log of a training that has come this far.
fn log_behind(progress: &Progress, config: &TrainConfig, folder: &Path) -> Log {
    if config.warm_up() > config.steps {
        tracing::warn!(
            "the warm-up of {} steps is longer than the training of {}, so the learning rate ends below its peak",
            config.warm_up(),
            config.steps
        );
    }
    let begins_trained = progress.unvalidated || progress.best.is_some();
    if progress.step == 0
        && let Some(told) = config.patience_in_vain("this training", begins_trained)
    {
        tracing::warn!("{told}");
    }
    let mut log = Log::new(config.steps, progress.step, folder);
    if progress.unvalidated {
        log.forget_validation(progress.step);
    }
    // One that is taken up may have been ended before.
    if let Some(told) = progress.early_end(config) {
        log.say(told);
    }
    log
}

/// [`resume`] on all ranks, rank 0 first: it makes the folder what the others find. A training whose best weights are lost goes on
/// without them.
fn resume_together(
    trainee: &mut dyn Train,
    fit: &Fit,
    together: &mut Together,
) -> Result<Progress> {
    let leads = together.leads();
    let found = match leads {
        true => Some(resume(trainee, fit, leads)?),
        false => None,
    };
    // Rank 0 alone looks for them, so that all ranks validate, or none.
    let lost = found
        .as_ref()
        .map(|progress| are_lost(progress, &fit.folder));
    let lost = lost.transpose()?.unwrap_or_default();
    let first = found.as_ref().map(|progress| progress.step);
    let (step, lost) = together.of_first((first, lost))?;
    let mut progress = match found {
        Some(progress) => progress,
        None => resume(trainee, fit, leads)?,
    };
    if step != Some(progress.step) {
        return Err(Error::rank(
            0,
            &format!(
                "goes on from step {}, but the last state here is that of step {}: all ranks must have the same run folder",
                step.unwrap_or_default(),
                progress.step
            ),
        ));
    }
    if together.0.is_some() {
        together.require_same("weights", digest(&trainee.weights()))?;
    }
    if lost {
        progress.forget_best();
    }
    Ok(progress)
}

fn digest(weights: &[NamedTensor]) -> String {
    let hashes = weights.iter().map(|tensor| {
        let hash = sha256_bytes(&tensor.bytes);
        format!("{} {hash}\n", tensor.name)
    });
    sha256_bytes(hashes.collect::<String>().as_bytes())
}

/// Takes up the last run state in the folder; `leads` says whether what is not to be kept is removed.
fn resume(trainee: &mut dyn Train, fit: &Fit, leads: bool) -> Result<Progress> {
    let fresh = Progress::fresh(&fit.identity, fit.config.steps, fit.begins_trained);
    if leads {
        state::begin(&fit.folder)?;
    }
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
    let mut progress: Progress = serde_json::from_value(found.state)
        .map_err(|error| foreign("the state of a run", error.to_string()))?;
    if progress.identity != fresh.identity {
        if progress.made_from.is_null() {
            return Err(foreign(
                "a state that notes the settings and data that it was trained with",
                "one of an earlier version, which did not note them".into(),
            ));
        }
        let keys = progress.adopt(fresh, &fit.defaults);
        if !keys.is_empty() {
            let path = saved.path.clone();
            return Err(Error::OtherTraining { path, keys });
        }
    }
    if progress.step as u64 != found.step || progress.step > fit.config.steps {
        let expected = format!("step {}, of at most {}", found.step, fit.config.steps);
        return Err(foreign(&expected, format!("step {}", progress.step)));
    }
    progress.go_on(fit.config);
    let mut group = |name| found.tensors.remove(name).unwrap_or_default();
    let (weights, optimizer) = (group(WEIGHTS), group("optimizer"));
    let source = saved.path.display().to_string();
    trainee.restore(weights, (progress.updates, optimizer), &source)?;
    if !leads {
        return Ok(progress);
    }
    prune(&fit.folder, fit.config, &progress)?;
    tracing::info!("resumed at step {} from `{source}`", progress.step);
    Ok(progress)
}

struct Run<'a> {
    config: &'a TrainConfig,
    folder: PathBuf,
    on_policy: Option<OnPolicy<'a>>,
    validate: &'a mut Validate<'a>,
    memory: &'a dyn Fn() -> Option<DeviceMemory>,
    /// Batches of a step that are trained on here.
    batches_of_step: usize,
    together: Together<'a>,
    /// Rank 0's.
    log: Option<Log>,
    /// Steps since the last log line, whose losses were not read yet.
    pending: Vec<Pending>,
    /// Whether it was told that there was nothing for the drafter to write.
    told_unwritten: bool,
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
        if progress.unvalidated && !self.validate_first(trainee, progress)? {
            return Ok(());
        }
        let mut started = Instant::now();
        while progress.step < progress.end(self.config) {
            let due = Due::behind(progress.step, self.config);
            let learning_rate = schedule.at(progress.step);
            let statistics = if due.line {
                Statistics::All
            } else {
                Statistics::Loss
            };
            let step = self.step(trainee, &batches, progress.step, learning_rate, statistics);
            if let Err(error) = step {
                return self.ended(trainee, progress, started, error);
            }
            progress.step += 1;

            let stop = match self.together.any(interrupted()) {
                Ok(stop) => stop,
                Err(error) => return self.ended(trainee, progress, started, error),
            };
            if due.line || due.validation || due.state || stop || self.holds_many() {
                let memory = self.settle(trainee, progress, started)?;
                if due.line {
                    self.tell(progress, learning_rate, memory);
                }
                started = Instant::now();
            }
            if self.validate_and_save(trainee, progress, due, stop)? {
                return Ok(());
            }
            // Only steps count for the speed.
            if due.validation || due.state {
                started = Instant::now();
            }
        }
        Ok(())
    }

    /// Validates and saves what is due behind a step, and what is to be kept of it in any case; says whether training stops here.
    fn validate_and_save(
        &mut self,
        trainee: &dyn Train,
        progress: &mut Progress,
        due: Due,
        mut stop: bool,
    ) -> Result<bool> {
        let mut verdict = Verdict::NotBest;
        if due.validation {
            if due.state {
                self.save_unvalidated(trainee, progress)?;
            }
            verdict = match self.validate(trainee, progress) {
                Ok(verdict) => verdict,
                Err(error) => {
                    self.ended(trainee, progress, Instant::now(), error)?;
                    return Ok(true);
                }
            };
            stop |= verdict == Verdict::Interrupted;
        }
        let ends = progress.step == progress.end(self.config);
        if due.validation && due.state {
            self.save_again(progress)?;
        } else if due.state || stop || ends || verdict == Verdict::Best {
            self.save(trainee, progress)?;
        }
        Ok(stop)
    }

    /// Logs the steps since the last log line.
    fn tell(&mut self, progress: &mut Progress, rate: f64, memory: Option<DeviceMemory>) {
        let interval = std::mem::take(&mut progress.interval);
        if let Some(log) = &mut self.log {
            log.interval(progress.step, &interval, rate, memory);
        }
    }

    /// Whether the losses that were not read yet take memory that should be given back, whatever `log_every` says. All ranks find the
    /// same.
    fn holds_many(&self) -> bool {
        self.pending.len() * self.config.gradient_accumulation >= MOST_PENDING
    }

    /// Enters what was trained on since then, and reads what the device has computed of it; returns the memory of that.
    fn settle(
        &mut self,
        trainee: &dyn Train,
        progress: &mut Progress,
        since: Instant,
    ) -> Result<Option<DeviceMemory>> {
        let seconds = since.elapsed().as_secs_f64();
        progress.interval.add_work(seconds);
        progress.seconds += seconds;
        if self.pending.is_empty() {
            return Ok(None);
        }
        self.read(trainee, progress)
    }

    /// Ends where no step follows, with what is worth to be kept.
    fn ended(
        &mut self,
        trainee: &dyn Train,
        progress: &mut Progress,
        since: Instant,
        error: Error,
    ) -> Result<()> {
        match error {
            // Whoever waits for a batch is stopped there.
            Error::Interrupted => self.kept(trainee, progress, since),
            // As servers that are gone for too long: the steps before are as good as any. With several ranks nothing is saved: the
            // others only learn that this one has ended, and hold parts of the optimiser's state.
            Error::Features(_) if self.together.0.is_none() => {
                self.kept(trainee, progress, since)?;
                if progress.step > 0 {
                    tracing::warn!(
                        "saved step {}; the same command goes on from there",
                        progress.step
                    );
                }
                Err(error)
            }
            Error::Rank { .. } if self.together.leads() => {
                // With that rank went its part of the optimiser's state.
                match state::list(&self.folder)?.last() {
                    Some(saved) => tracing::warn!(
                        "the last saved state, that of step {}, is kept; the same command goes on from there",
                        saved.step
                    ),
                    None => tracing::warn!(
                        "no state was saved yet (`train.save_every`), so the same command starts this training anew"
                    ),
                }
                Err(error)
            }
            _ => Err(error),
        }
    }

    /// Saves the steps that are done.
    fn kept(&mut self, trainee: &dyn Train, progress: &mut Progress, since: Instant) -> Result<()> {
        self.settle(trainee, progress, since)?;
        match progress.step {
            0 => Ok(()),
            _ => self.save(trainee, progress),
        }
    }

    /// One optimizer step.
    fn step(
        &mut self,
        trainee: &mut dyn Train,
        batches: &Receiver<Result<Ahead>>,
        step: usize,
        learning_rate: f64,
        statistics: Statistics,
    ) -> Result<()> {
        let formed = match self.accumulate(trainee, batches, step, statistics) {
            Err(Error::Interrupted) => None,
            formed => Some(formed?),
        };
        // One rank that stops here stops all, before they wait for its gradients.
        let stops = self.together.any(formed.is_none())?;
        let Some(mut pending) = formed.filter(|_| !stops) else {
            return Err(Error::Interrupted);
        };
        let clip = self.config.max_grad_norm;
        pending.norm = trainee.update_together(learning_rate, clip, self.together.ranks())?;
        self.pending.push(pending);
        if let Some(log) = &self.log {
            log.tick(step + 1);
        }
        Ok(())
    }

    /// The gradients of a step, as far as its batches are trained on here.
    fn accumulate(
        &mut self,
        trainee: &mut dyn Train,
        batches: &Receiver<Result<Ahead>>,
        step: usize,
        statistics: Statistics,
    ) -> Result<Pending> {
        let mut pending = Pending {
            step,
            tokens: 0,
            samples: Vec::new(),
            losses: Vec::new(),
            norm: None,
        };
        for _ in 0..self.batches_of_step {
            let ahead = batches
                .recv()
                .map_err(|_| Error::Features("the thread that makes them ended".into()))??;
            let (batch, seed) = match (ahead, &self.on_policy) {
                (Ahead::Ready(batch, seed), _) => (*batch, seed),
                (Ahead::ToWrite(rows, seed), Some(on_policy)) => {
                    let written = trainee.rewrite(&rows, on_policy.stop, seed);
                    if written.is_none() && !std::mem::replace(&mut self.told_unwritten, true) {
                        tracing::warn!(
                            "`objective.on_policy.fraction`: the drafter was to write the replies of a batch, in which no reply has a prompt \
                             by its loss mask; such batches are trained on as they are"
                        );
                    }
                    ((on_policy.judge)(written.unwrap_or(rows)), seed)
                }
                (Ahead::ToWrite(..), None) => unreachable!("no batch was chosen"),
            };
            let of = self.config.steps;
            let batch = batch.in_training(seed, Step { number: step, of });
            pending.tokens += batch.rows.real_tokens() as u64;
            pending.samples.extend(batch.rows.samples());
            pending.losses.push(trainee.accumulate(&batch, statistics));
        }
        Ok(pending)
    }

    /// Validates what training goes on from, or begins with, and saves what it finds; says whether it was not interrupted.
    fn validate_first(&mut self, trainee: &dyn Train, progress: &mut Progress) -> Result<bool> {
        if self.validate(trainee, progress)? == Verdict::Interrupted {
            return Ok(false);
        }
        match progress.step {
            0 => self.save(trainee, progress)?,
            // What was trained was taken up from its state.
            _ => self.save_again(progress)?,
        }
        Ok(true)
    }

    /// All ranks validate together; where that is interrupted, or one of them ends, whoever takes the state up does it.
    fn validate(&mut self, trainee: &dyn Train, progress: &mut Progress) -> Result<Verdict> {
        progress.unvalidated = true;
        let best = progress.best.as_ref();
        let before = best.map(|(_, best)| best);
        let found = (self.validate)(trainee, progress.step, before, &mut self.together);
        let found = match found {
            Err(Error::Interrupted) => None,
            found => Some(found?),
        };
        let stops = self.together.any(found.is_none())?;
        let Some(mut found) = found.filter(|_| !stops) else {
            return Ok(Verdict::Interrupted);
        };
        progress.unvalidated = false;
        progress.validated = progress.step;
        let is_better = is_better(&found, before);
        progress.without_better = match is_better {
            true => 0,
            false => progress.without_better + 1,
        };
        if let Some(log) = &mut self.log {
            let waited = self.config.patience.map(|_| progress.without_better);
            log.validation(progress.step, (&found, waited), best);
        }
        progress.text = found.text.take().or(progress.text);
        if is_better {
            progress.best = Some((progress.step, found));
            return Ok(Verdict::Best);
        }
        self.tell_end(progress);
        Ok(Verdict::NotBest)
    }

    /// Says so where validations have ended the training before its last step.
    fn tell_end(&self, progress: &Progress) {
        if let (Some(log), Some(told)) = (&self.log, progress.early_end(self.config)) {
            log.say(told);
        }
    }

    /// Reads what the device has computed since the last time and checks it; returns the memory of that.
    fn read(
        &mut self,
        trainee: &dyn Train,
        progress: &mut Progress,
    ) -> Result<Option<DeviceMemory>> {
        let here: Vec<Seen> = self.pending.drain(..).map(Pending::read).collect();
        let all = self.together.gather(here)?;
        for seen in together(all) {
            match seen.counts {
                true => progress.idle = Idle::default(),
                false => {
                    progress.idle.steps += 1;
                    progress.idle.samples += seen.samples.len();
                }
            }
            progress.tokens += seen.tokens;
            progress.interval.add_tokens(seen.tokens);
            // By chance, as where masks are drawn and none was.
            if seen.counted() <= 0.0 {
                continue;
            }
            let loss = seen.loss();
            let judged = (loss, seen.distance());
            let explosion = self.config.explosion;
            if let Some(what) = progress.watch.see(judged, seen.norm, explosion) {
                return Err(Error::Diverged {
                    step: seen.step + 1,
                    what,
                    samples: seen.samples,
                });
            }
            progress.interval.add(loss, seen.norm, seen.reports);
        }
        let Idle { steps, samples } = progress.idle;
        if steps >= MOST_IDLE.min(self.config.steps) {
            return Err(Error::NothingCounted {
                step: progress.step,
                steps,
                samples,
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

    /// Saves before a validation, so that one that fails takes no step with it.
    fn save_unvalidated(&mut self, trainee: &dyn Train, progress: &mut Progress) -> Result<()> {
        progress.unvalidated = true;
        self.save(trainee, progress)
    }

    /// Saves what a validation has found of the state that was saved before it: no tensor is another.
    fn save_again(&self, progress: &Progress) -> Result<()> {
        if !self.together.leads() {
            return Ok(());
        }
        state::save_again(&self.folder, progress.step as u64, &json!(progress))?;
        prune(&self.folder, self.config, progress)
    }

    /// Rank 0 saves, with what the others have of the optimiser's state; so all call this.
    fn save(&mut self, trainee: &dyn Train, progress: &mut Progress) -> Result<()> {
        let (updates, own) = trainee.optimizer();
        let Some(optimizer) = collected(&mut self.together, own)? else {
            return Ok(());
        };
        let weights = trainee.weights();
        progress.updates = updates;
        let step = progress.step as u64;
        state::save_state(
            &self.folder,
            step,
            &json!(progress),
            &[(WEIGHTS, &weights), ("optimizer", &optimizer)],
        )?;
        prune(&self.folder, self.config, progress)
    }
}

/// What is due behind a step.
#[derive(Debug, Clone, Copy)]
struct Due {
    /// A log line.
    line: bool,
    validation: bool,
    /// A saved state.
    state: bool,
}

impl Due {
    /// Behind the step of this number, from 0: everything behind the last.
    fn behind(step: usize, config: &TrainConfig) -> Self {
        let is_last = step + 1 == config.steps;
        let due = |every: usize| is_last || (step + 1).is_multiple_of(every);
        Self {
            line: due(config.log_every),
            validation: due(config.validate_every),
            state: due(config.save_every),
        }
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

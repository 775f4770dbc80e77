//! A drafter and its objective without their types.

use std::any::Any;
use std::path::Path;

use anyhow::{Context as _, Result};
use burn::prelude::Device;
use serde_json::{Value, json};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_eval::Reach;
use spectrain_models::{Capture, Drafter, Start, TargetParts, TargetSpec};
use spectrain_train::{Objective, Train, TrainConfig, Trainee, Workload};

use crate::families::described;
use crate::families::footprint::{Activations, Footprint, Packed};
use crate::families::shipped::Shipped;
use crate::families::target_traits::TargetTraits;
use crate::families::trained::{Loaded, Trained};
use crate::recipe::settings::Settings;
use crate::recipe::tables::Engine;

/// A recipe's drafter and objective with their tables, without their types.
pub trait Method: Any + Send + Sync {
    /// The hidden states the drafter reads.
    fn capture(&self, target: &TargetSpec) -> Result<Capture>;
    /// Sizes of the drafter.
    fn footprint(&self, target: &TargetSpec) -> Result<Footprint>;
    /// See [`Shipped::reach`].
    fn reach(&self, target: &TargetSpec) -> Result<Reach>;
    /// See [`Objective::workload`].
    fn workload(&self, stage: &str) -> Workload;
    /// What a step of a stage of the training keeps.
    fn activations(&self, target: &TargetSpec, stage: &str, batch: Packed) -> Result<Activations>;
    /// What messages call the drafter.
    fn family(&self) -> &'static str;
    /// See [`Shipped::model_at_start`].
    fn model_at_start(&self) -> Option<Start<'_>>;
    /// Hub id or folder of that model, and the revision of a hub id.
    fn model(&self) -> Option<(&str, Option<&str>)> {
        let start = self.model_at_start()?;
        Some((start.model, start.revision))
    }
    /// See [`Shipped::unheld`].
    fn unheld(&self) -> Vec<(&'static str, u32)>;
    /// Those of [`Shipped::unread`] and of [`Objective::unread`] that are set to anything but their defaults, each with why.
    fn unread(&self) -> Vec<(&'static str, &'static str)>;
    /// See [`Shipped::idle_keys`].
    fn idle_keys(&self) -> Vec<(&'static str, &'static str)>;
    /// The keys that were left out of `[drafter]` and `[objective]` and are read nevertheless, by their tables, with what is read.
    fn left_out(&self) -> Vec<(&'static str, String, Value)>;
    /// See [`Shipped::unserved`].
    fn unserved(&self, target: &TargetTraits) -> Result<Option<String>>;
    /// See [`Shipped::check_export`].
    fn check_export(
        &self,
        to: &[Engine],
        spec: &TargetSpec,
        target: &TargetTraits,
    ) -> Result<[Vec<Engine>; 2]>;
    /// What is remarked on the engines `to` before they are told to serve the drafter beside a target of these sizes and traits.
    fn remarked(
        &self,
        to: &[Engine],
        spec: &TargetSpec,
        target: &TargetTraits,
    ) -> Result<Vec<String>>;
    /// See [`Shipped::against`]; of a drafter for a target of these sizes and traits.
    fn against(
        &self,
        engine: Engine,
        spec: &TargetSpec,
        target: &TargetTraits,
    ) -> Result<Vec<(String, Value)>>;
    /// See [`Shipped::check_start`].
    fn check_start(&self, folder: &Path, target: &TargetSpec) -> Result<()>;
    /// An untrained drafter with random parameters.
    fn fresh(
        &self,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        device: &Device,
    ) -> Result<Box<dyn Trained>>;
    /// The same in training, with the objective of the last stage and the usual optimiser.
    fn trainee(
        &self,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        device: &Device,
    ) -> Result<Box<dyn Train>>;
    /// See [`Objective::STAGES`].
    fn stages(&self) -> &'static [&'static str];
    /// See [`Objective::settings_of`].
    fn objective_of(&self, stage: &str) -> Result<Value>;
    /// See [`Objective::drafts`].
    fn drafts(&self, stage: &str) -> Result<bool>;
    /// See [`Objective::on_policy_fraction`].
    fn on_policy_fraction(&self, stage: &str) -> Result<f64>;
}

/// The keys that a table, as it is `given`, leaves out, with what is read in their place by the `explicit` one.
pub(crate) fn left_out(given: &Value, explicit: &Value) -> Vec<(String, Value)> {
    let all = explicit.as_object().into_iter().flatten();
    let left = all.filter(|(key, value)| !value.is_null() && given[key.as_str()].is_null());
    left.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// A drafter and an objective with their tables.
pub(crate) struct Typed<D: Drafter, O: Objective<D>> {
    pub(crate) drafter: D::Config,
    pub(crate) objective: O::Config,
}

impl<D: Shipped, O: Objective<D>> Typed<D, O> {
    /// The keys of `[objective]` that nothing reads, whether they are set or not, each with why: what the drafter lacks, or else what
    /// another key rules out.
    fn all_unread(&self) -> Vec<(&'static str, &'static str)> {
        let mut unread = D::unread(&self.drafter);
        for (key, why) in O::unread(&self.objective) {
            if unread.iter().all(|(known, _)| *known != key) {
                unread.push((key, why));
            }
        }
        unread
    }
}

impl<D, O> Method for Typed<D, O>
where
    D: Shipped,
    O: Objective<D> + 'static,
    D::Config: Settings,
    O::Config: Settings,
{
    fn capture(&self, target: &TargetSpec) -> Result<Capture> {
        Ok(D::capture(&self.drafter, target)?)
    }

    fn footprint(&self, target: &TargetSpec) -> Result<Footprint> {
        D::footprint(&self.drafter, target)
    }

    fn reach(&self, target: &TargetSpec) -> Result<Reach> {
        D::reach(&self.drafter, target)
    }

    fn workload(&self, stage: &str) -> Workload {
        O::workload(&self.objective, stage)
    }

    fn activations(&self, target: &TargetSpec, stage: &str, batch: Packed) -> Result<Activations> {
        D::activations(&self.drafter, target, &self.workload(stage), batch)
    }

    fn family(&self) -> &'static str {
        D::DIALECTS[0].0.family
    }

    fn model_at_start(&self) -> Option<Start<'_>> {
        D::model_at_start(&self.drafter)
    }

    fn unheld(&self) -> Vec<(&'static str, u32)> {
        D::unheld(&self.drafter)
    }

    fn unread(&self) -> Vec<(&'static str, &'static str)> {
        let (set, usual) = (json!(self.objective), json!(O::Config::default()));
        let mut unread = self.all_unread();
        unread.retain(|(key, _)| {
            set.get(key)
                .is_some_and(|value| usual.get(key) != Some(value))
        });
        unread
    }

    fn idle_keys(&self) -> Vec<(&'static str, &'static str)> {
        D::idle_keys(&self.drafter)
    }

    fn left_out(&self) -> Vec<(&'static str, String, Value)> {
        let unread = self.all_unread();
        let is_read = |key: &String| unread.iter().all(|(unread, _)| unread != key);
        let drafter = json!(D::explicit(&self.drafter));
        let drafter = left_out(&json!(self.drafter), &drafter).into_iter();
        let objective = json!(O::explicit(&self.objective));
        let objective = left_out(&json!(self.objective), &objective).into_iter();
        let objective = objective.filter(|(key, _)| is_read(key));
        let of = |table| move |(key, value): (String, Value)| (table, key, value);
        let all = drafter.map(of("drafter"));
        all.chain(objective.map(of("objective"))).collect()
    }

    fn unserved(&self, target: &TargetTraits) -> Result<Option<String>> {
        D::unserved(&self.drafter, target)
    }

    fn check_export(
        &self,
        to: &[Engine],
        spec: &TargetSpec,
        target: &TargetTraits,
    ) -> Result<[Vec<Engine>; 2]> {
        D::check_export(&self.drafter, to, spec, target)
    }

    fn remarked(
        &self,
        to: &[Engine],
        spec: &TargetSpec,
        target: &TargetTraits,
    ) -> Result<Vec<String>> {
        described::remarked::<D>(&self.drafter, to, spec, target)
    }

    fn against(
        &self,
        engine: Engine,
        spec: &TargetSpec,
        target: &TargetTraits,
    ) -> Result<Vec<(String, Value)>> {
        described::against_at_start::<D>(&self.drafter, engine, spec, target)
    }

    fn check_start(&self, folder: &Path, target: &TargetSpec) -> Result<()> {
        D::check_start(&self.drafter, folder, target)
    }

    fn fresh(
        &self,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        device: &Device,
    ) -> Result<Box<dyn Trained>> {
        let fresh = D::fresh(&self.drafter, target, vocabulary, 11, device)?;
        Ok(Box::new(Loaded(fresh)))
    }

    fn trainee(
        &self,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        device: &Device,
    ) -> Result<Box<dyn Train>> {
        let fresh = D::fresh(&self.drafter, target, vocabulary, 11, device)?;
        let objective = O::new(&self.objective)?;
        let optimizer = TrainConfig::default().optimizer();
        Ok(Box::new(Trainee::drafter(fresh, objective, optimizer)))
    }

    fn stages(&self) -> &'static [&'static str] {
        O::STAGES
    }

    fn objective_of(&self, stage: &str) -> Result<Value> {
        let settings = O::settings_of(&self.objective, stage);
        serde_json::to_value(settings).context("cannot write the settings of the objective")
    }

    fn drafts(&self, stage: &str) -> Result<bool> {
        Ok(O::of_stage(&self.objective, stage)?.drafts())
    }

    fn on_policy_fraction(&self, stage: &str) -> Result<f64> {
        Ok(O::of_stage(&self.objective, stage)?.on_policy_fraction())
    }
}

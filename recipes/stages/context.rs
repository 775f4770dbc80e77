//! What a stage runs with.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use burn::prelude::Device;
use spectrain_checkpoints::hash;
use spectrain_data::Error;
use spectrain_data::dataset::{Dataset, Located, Place};
use spectrain_data::day::Day;
use spectrain_data::features::{FeatureHeader, FeatureWriter, Recorded, SampleRange};
use spectrain_data::sources::Sources;
use spectrain_data::tokens::TokenShards;

use spectrain_models::FrozenType;

use crate::progress::{Output, Progress};
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::tables::DataTable;
use crate::runs::places::{MADE_TARGET, REGENERATED};
use crate::runs::prepared::printed_day;
use crate::runs::run_folder::RunFolder;
use crate::runs::stage_names;
use crate::runtime::model_files::{part_files, weight_files};
use crate::runtime::ranks::Group;
use crate::runtime::target;
use crate::runtime::text::Text;
use crate::stages::array::ArrayJob;

/// What a stage runs with.
pub struct StageContext<'a> {
    /// The recipe.
    pub recipe: &'a ResolvedRecipe,
    /// The run.
    pub run: &'a RunFolder,
    /// The device.
    pub device: Device,
    /// The device's name, for reports.
    pub device_name: String,
    /// Type of the target's weights.
    pub target_type: FrozenType,
    /// Where progress goes.
    pub output: Output,
    /// What of the stage `features` is captured here.
    pub array: ArrayJob,
    /// The ranks that train together, where there are several.
    pub group: Option<&'a Group>,
}

impl StageContext<'_> {
    /// The folder of a stage.
    pub fn folder(&self, stage: &str) -> PathBuf {
        self.run.stage(stage)
    }

    /// Makes room for a model at this path within the run, where something stands that is none, such as a folder from which a file
    /// was deleted.
    pub(super) fn make_room(&self, path: &str) -> Result<()> {
        if let Some(aside) = self.run.free_for_model(path)? {
            let aside = aside.display();
            self.output.warn(format!(
                "`{path}` was no whole model; it is kept as `{aside}`"
            ));
        }
        Ok(())
    }

    /// Whether what is trained is written here: by rank 0, where there are several.
    pub(super) fn leads(&self) -> bool {
        self.group.is_none_or(Group::leads)
    }

    /// Where the stage `features` writes: its folder, or that of the part that it captures.
    pub fn features_folder(&self) -> PathBuf {
        match &self.array.part {
            Some(part) => part.folder.clone(),
            None => self.folder(stage_names::FEATURES),
        }
    }

    /// The samples of a prepared set, with the tokens of those of which features are captured here, and of one at least, by which
    /// servers are proven.
    pub(super) fn samples_to_capture(&self, set: &str) -> Result<TokenShards> {
        let wanted = |all: usize| {
            let share = self.array.share(all);
            let [first, end] = [share.first, share.end].map(|sample| sample as usize);
            first..end.max(first + 1)
        };
        let folder = self.folder(stage_names::PREPARE).join(set);
        Ok(TokenShards::open_some(folder, wanted)?)
    }

    /// The texts of a set of which features are captured here.
    pub fn texts<'t>(&self, tokens: &'t TokenShards) -> impl Iterator<Item = &'t [u32]> + use<'t> {
        let share = self.array.share(tokens.len());
        (share.first..share.end).map(move |sample| tokens.get(sample as usize).tokens)
    }

    /// Starts or goes on with features in a folder, of these samples. Warns of what is amiss there.
    pub fn feature_writer(
        &self,
        folder: &Path,
        header: FeatureHeader,
        share: SampleRange,
    ) -> Result<FeatureWriter> {
        let per_shard = self.recipe.features.samples_per_shard as u64;
        let part = self.array.part.as_ref().map(|_| share);
        let proof = |files: &[Recorded]| self.prove(files);
        let writer = FeatureWriter::open_with(folder, header, per_shard, part, proof);
        let writer = writer.map_err(|error: anyhow::Error| match error.downcast_ref() {
            Some(Error::Altered { .. } | Error::FeatureHeader { .. }) => {
                anyhow!("{error}; remove this file, and the same command makes it again")
            }
            _ => error,
        })?;
        for amiss in writer.amiss() {
            self.output.warn(amiss);
        }
        Ok(writer)
    }

    /// Closes a folder of features that is whole, and remembers the hashes of its files.
    pub fn finish_features(&self, writer: FeatureWriter, folder: &Path) -> Result<()> {
        self.run.remember_written(folder, &writer.finish()?)
    }

    /// The same of one that is to be gone on with.
    pub fn pause_features(&self, writer: FeatureWriter, folder: &Path) -> Result<()> {
        self.run.remember_written(folder, &writer.pause()?)
    }

    /// Fails unless files of features are as they are on record. Rank 0 sees to it for all, which have the same folder.
    pub fn prove(&self, files: &[Recorded]) -> Result<()> {
        match self.leads() {
            true => self.run.prove(files),
            false => Ok(()),
        }
    }

    /// The target's folder: made by `synthetic`, given, or downloaded now.
    pub fn target_folder(&self) -> Result<PathBuf> {
        let given = self.recipe.target_folder()?;
        Ok(given.unwrap_or_else(|| self.run.path().join(MADE_TARGET)))
    }

    /// What turns conversations into tokens, the same on whichever [day](Self::day) it is asked for.
    pub fn text(&self) -> Result<Text> {
        let data = DataTable {
            date: Some(self.day()?),
            ..self.recipe.data.clone()
        };
        Text::of(&self.target_folder()?, &data)
    }

    /// The day that chat templates take for today, wherever the run renders: that of the recipe, or else the one on which the run began
    /// to render. It is today where it has not.
    pub fn day(&self) -> Result<Day> {
        Ok(self.settled_day()?.unwrap_or_else(Day::today))
    }

    /// The same day, where it is settled: by the recipe, by the texts that are prepared, by the run, or by when a stage that renders
    /// began, in this order.
    fn settled_day(&self) -> Result<Option<Day>> {
        let given = self.recipe.data.date;
        // Those of another run may be taken over, with its day in them.
        let printed = given.map_or_else(|| printed_day(self.run), |day| Ok(Some(day)))?;
        if let Some(day) = printed.or_else(|| self.run.day()) {
            return Ok(Some(day));
        }
        let answers = self.recipe.regenerate.as_ref();
        let answers = answers.map(|_| stage_names::REGENERATE);
        for stage in answers.into_iter().chain([stage_names::PREPARE]) {
            if let Some(manifest) = self.run.manifest(stage)? {
                return Ok(Day::of_seconds(manifest.started));
            }
        }
        Ok(None)
    }

    /// Notes the day in the run, where it is settled: what is made anew has the same one.
    pub(super) fn note_day(&self) -> Result<()> {
        match self.settled_day()? {
            Some(day) => self.run.note_day(day),
            None => Ok(()),
        }
    }

    /// What reports call the target.
    pub fn target_name(&self) -> Result<String> {
        match self.recipe.model() {
            None => Ok(self.target_folder()?.display().to_string()),
            Some(model) => Ok(model.to_owned()),
        }
    }

    /// Names and folders of the targets in `evaluate.targets`; downloads what is missing.
    pub fn further_targets(&self) -> Result<Vec<(String, PathBuf)>> {
        let resolved = |model: &String| Ok((model.clone(), target::resolve(model, None)?));
        self.recipe.evaluate.targets.iter().map(resolved).collect()
    }

    /// The conversations to train on: those of `data.train`, or the same as the target answers them. Downloads what is missing.
    pub fn train_data(&self) -> Result<Dataset> {
        match self.recipe.regenerate {
            Some(_) => Ok(Sources::from(self.regenerated()).fetch(&target::hub_options())?),
            None => self.given_data(),
        }
    }

    /// Where the stage `regenerate` leaves conversations.
    pub fn regenerated(&self) -> PathBuf {
        self.run.path().join(REGENERATED)
    }

    /// The conversations of `data.train`, as many as are wanted; downloads what is missing.
    pub fn given_data(&self) -> Result<Dataset> {
        let given = self.recipe.data.train_sources();
        let sources = given.or_else(|| self.made("train.jsonl"));
        let sources = sources.context("`data.train` is missing")?;
        let fetched = sources
            .fetch(&target::hub_options())
            .context("`data.train`")?;
        Ok(fetched.at_most(self.recipe.data.max_samples))
    }

    /// The conversations to evaluate with; none where some of those to train on are held out. Downloads what is missing.
    pub fn eval_data(&self) -> Result<Option<Dataset>> {
        let given = self.recipe.data.eval.clone();
        let sources = given.or_else(|| self.made("eval.jsonl"));
        let fetched = sources.map(|sources| sources.fetch(&target::hub_options()));
        fetched.transpose().context("`data.eval`")
    }

    /// What the held-out prompts are called: by the name of their file or dataset, where there is one alone. Downloads what is missing.
    pub fn eval_name(&self) -> Result<String> {
        let data = self.eval_data()?;
        let named = |data: &Dataset| data.only().and_then(Located::short_name);
        Ok(match &data {
            None => "held out".into(),
            Some(data) => named(data).unwrap_or_else(|| "eval".into()),
        })
    }

    /// Tokens of the target's answers to held-out prompts, at most, where that is known.
    pub(super) fn longest_answer(&self) -> Option<usize> {
        let mode = self.recipe.features.mode;
        mode.longest_answer(self.recipe.evaluate.max_new_tokens)
    }

    /// Conversations that `synthetic` makes, in a recipe that has it.
    fn made(&self, file: &str) -> Option<Sources> {
        let made = self.recipe.synthetic.as_ref();
        made.map(|_| self.folder(stage_names::SYNTHETIC).join(file).into())
    }

    /// SHA-256 of the files of a dataset, with the weights of its paths where they have some.
    pub(super) fn sha256_of_data(&self, dataset: &Dataset) -> Result<String> {
        if let [
            Located {
                place: Place::Path(path),
                weight: 1.0,
                ..
            },
        ] = dataset.each()
            && path.exists()
        {
            return self.run.sha256(path);
        }
        let mut parts = String::new();
        for source in dataset.each() {
            let hash = self.run.sha256_of(&source.files()?)?;
            parts.push_str(&format!("{hash} {}{}\n", source.weight, source.reading()));
        }
        Ok(hash::sha256_bytes(parts.as_bytes()))
    }

    /// Starts to show progress; see [`Output::start`].
    pub fn progress(&self, what: &str, total: u64) -> Progress {
        self.output.start(what, total)
    }

    /// SHA-256 of the target's configuration and weights, as far as they are read.
    pub fn target_sha256(&self) -> Result<String> {
        if !self.recipe.features.mode.computes_target() {
            return self.run.sha256_of(&part_files(&self.target_folder()?)?);
        }
        self.sha256_of_model(&self.target_folder()?)
    }

    /// SHA-256 of the configuration and weights in a folder.
    pub fn sha256_of_model(&self, folder: &Path) -> Result<String> {
        self.run.sha256_of(&weight_files(folder)?)
    }
}

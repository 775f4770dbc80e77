//! What a stage is made from: the part of the recipe that it reads, and the hashes of everything else.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use spectrain_checkpoints::hash;
use spectrain_data::dataset::Located;

use crate::families::model_at_start::WHAT;
use crate::recipe::tables::Engine;
use crate::runs::places::{EXPORTED, trained};
use crate::runs::run_folder::{
    CAPTURED_LAYERS, COMPUTED_IN, FOLDER_OF_FEATURES, Inputs, OWN_SAMPLING, PRINTED_DAY,
    REGENERATED_DATA, STOP_TOKENS, StageState, Status, TARGET, TARGET_NAME, TOKENIZER, Wanted,
    stage_state,
};
use crate::runs::stage_names::{EVALUATE, EXPORT, REGENERATE};
use crate::runtime::answerer::decoder::sampling;
use crate::runtime::interruption::check_interrupted;
use crate::runtime::model_files::{generation_config, text_files};
use crate::runtime::prompt_sets;
use crate::runtime::start_at;
use crate::runtime::target;
use crate::stages::context::StageContext;
use crate::stages::features::masks::Masks;
use crate::stages::features::places::{FEATURES, HELD_OUT, answers_at};
use crate::stages::length;
use crate::stages::settings::{effect, settings};
use crate::stages::stage::{Input, Stage, Temperatures};

/// The input that is the language model which training starts from.
const MODEL: &str = "`drafter.model`";

/// The input that is there where answers are told by [other masks](Masks::Imported) than in earlier versions.
const ANSWER_MASKS: &str = "the loss mask of imported texts";

impl StageContext<'_> {
    /// SHA-256 of everything that a stage reads beside the recipe.
    pub(super) fn inputs(&self, stage: &Stage) -> Result<Inputs> {
        let mut inputs = Inputs::new();
        for input in stage.inputs {
            inputs.extend(self.found(stage, input)?);
        }
        Ok(inputs)
    }

    /// The names and hashes of an input of a stage: several, one, or none where the recipe has no such thing.
    fn found(&self, stage: &Stage, input: &Input) -> Result<Inputs> {
        let (name, hash) = match input {
            Input::Target => (TARGET.into(), self.target_sha256()?),
            Input::TargetName if self.recipe.export.to.contains(&Engine::Speculators) => {
                let name = hash::sha256_bytes(self.target_name()?.as_bytes());
                (TARGET_NAME.into(), name)
            }
            Input::TargetName => return Ok(Inputs::new()),
            Input::Tokenizer => (TOKENIZER.into(), self.tokenizer_sha256()?),
            Input::TrainData if self.recipe.regenerate.is_some() => {
                let hash = self.sha256_of_data(&self.train_data()?)?;
                (REGENERATED_DATA.into(), hash)
            }
            Input::GivenData | Input::TrainData => {
                let hash = self.sha256_of_data(&self.given_data()?)?;
                ("`data.train`".into(), hash)
            }
            Input::EvalData => match self.eval_data()? {
                Some(eval) => ("`data.eval`".into(), self.sha256_of_data(&eval)?),
                None => return Ok(Inputs::new()),
            },
            Input::Template => match &self.recipe.data.template {
                Some(path) => ("`data.template`".into(), self.run.sha256(path)?),
                None => return Ok(Inputs::new()),
            },
            Input::Start => match &self.recipe.start {
                Some(start) => ("`start`".into(), self.start_sha256(start)?),
                None => return Ok(Inputs::new()),
            },
            Input::Model => match self.model_sha256_for(stage)? {
                Some(hash) => (MODEL.into(), hash),
                None => return Ok(Inputs::new()),
            },
            Input::Output(path) => self.output(path)?,
            Input::Before => match self.recipe.trained_before(stage.name) {
                Some(before) => self.output(&trained(before))?,
                None => return Ok(Inputs::new()),
            },
            Input::Exported => {
                let folder = self.run.path().join(EXPORTED);
                let hash = self.run.sha256_of_drafter(&folder)?;
                (format!("`{EXPORTED}`"), hash)
            }
            Input::Trained => self.output(&trained(self.recipe.last_trained()))?,
            Input::CapturedLayers => (CAPTURED_LAYERS.into(), self.captured_layers()?),
            Input::StopTokens => {
                let hash = stop_tokens(&self.target_folder()?)?;
                (STOP_TOKENS.into(), hash)
            }
            Input::OwnDecoding => return self.own_decoding(),
            Input::FurtherTargets => return self.of_further_targets(),
            Input::PromptSets => return self.prompt_sets(),
            Input::KnownFeatures => return self.known_features(),
            Input::AnswerMasks => match Masks::of_answers(self.recipe) {
                // Which they are, the imported features say.
                Masks::Imported => (ANSWER_MASKS.into(), hash::sha256_bytes(b"imported")),
                Masks::Prepared => return Ok(Inputs::new()),
            },
            Input::Features => return self.stored_features(),
            Input::Answers(temperatures) => return self.stored_answers(*temperatures),
        };
        Ok(Inputs::from([(name, hash)]))
    }

    /// The name and the hash of what a stage left at `path` in the run.
    fn output(&self, path: &str) -> Result<(String, String)> {
        let hash = self.run.sha256(&self.run.path().join(path))?;
        Ok((format!("`{path}`"), hash))
    }

    /// SHA-256 of the targets in `evaluate.targets`, and of the tokens at which each stops.
    fn of_further_targets(&self) -> Result<Inputs> {
        let mut inputs = Inputs::new();
        for (model, folder) in self.further_targets()? {
            let hash = self.sha256_of_model(&folder)?;
            inputs.insert(format!("the target `{model}`"), hash);
            inputs.insert(format!("{STOP_TOKENS} of `{model}`"), stop_tokens(&folder)?);
        }
        Ok(inputs)
    }

    fn captured_layers(&self) -> Result<String> {
        let spec = target::spec(&self.target_folder()?)?;
        let layers = self.recipe.method.capture(&spec)?.layers;
        Ok(hash::sha256_bytes(json!(layers).to_string().as_bytes()))
    }

    /// SHA-256 of the tokens at which the target stops, of how it samples, with what `[regenerate]` says of that, and of the day that it
    /// is told; nothing where servers answer, which are sent none of these.
    fn own_decoding(&self) -> Result<Inputs> {
        let table = self.recipe.regenerate.as_ref();
        let Some(table) = table.filter(|table| table.server.is_none()) else {
            return Ok(Inputs::new());
        };
        let folder = self.target_folder()?;
        let own = generation_config(&folder)?;
        let sampling = json!(sampling(own.as_ref(), [table.temperature, table.top_p]));
        let sampling = hash::sha256_bytes(sampling.to_string().as_bytes());
        let mut inputs = Inputs::from([
            (STOP_TOKENS.into(), stop_tokens(&folder)?),
            (OWN_SAMPLING.into(), sampling),
        ]);
        inputs.extend(self.day_as_input()?);
        Ok(inputs)
    }

    /// SHA-256 of the day that the chat template takes for today, whatever settles it; nothing where the template prints none.
    fn day_as_input(&self) -> Result<Inputs> {
        let data = &self.recipe.data;
        let (given, variables) = (data.template.as_deref(), &data.template_variables);
        let (_, template) = target::text(&self.target_folder()?, given, variables)?;
        if !template.is_some_and(|template| template.reads_date()) {
            return Ok(Inputs::new());
        }
        let hash = hash::sha256_bytes(self.day()?.to_string().as_bytes());
        Ok(Inputs::from([(PRINTED_DAY.into(), hash)]))
    }

    /// SHA-256 of the language model of `drafter.model`, where training starts from its weights; downloads what is missing.
    pub(super) fn model_sha256(&self) -> Result<Option<String>> {
        let model = self.recipe.method.model();
        let Some((model, revision)) = model.filter(|_| self.recipe.start.is_none()) else {
            return Ok(None);
        };
        let folder = target::resolve_as(WHAT, model, revision).context(MODEL)?;
        self.run.sha256_of_language_model(&folder).map(Some)
    }

    /// The same as an input of a stage, which does not need it any more once it is finished: where it cannot be had, that is what
    /// the stage has recorded.
    fn model_sha256_for(&self, stage: &Stage) -> Result<Option<String>> {
        let error = match self.model_sha256() {
            Err(error) => error,
            found => return found,
        };
        let manifest = self.run.manifest(stage.name)?;
        let Some(done) = manifest.filter(|manifest| manifest.status == Status::Done) else {
            return Err(error);
        };
        self.output.warn(format!(
            "{}: whether {MODEL} has changed is not known: {error:#}",
            stage.name
        ));
        Ok(done.inputs.get(MODEL).cloned())
    }

    /// What says which features a training reads that were made elsewhere; nothing where the target here makes them all.
    pub(super) fn stored_features(&self) -> Result<Inputs> {
        let features = &self.recipe.features;
        let (mode, is_here) = (features.mode, features.mode.computes_target());
        if is_here && features.from.is_empty() {
            return Ok(Inputs::new());
        }
        let trained_on = format!("features/{FEATURES}");
        let held_out = format!("features/{HELD_OUT}/{FEATURES}");
        let trained_on = mode.is_stored().then_some(trained_on);
        let read = trained_on.into_iter().chain((!is_here).then_some(held_out));
        read.map(|path| self.output(&path)).collect()
    }

    /// The same for answers at these temperatures, as far as there are any.
    pub(super) fn stored_answers(&self, temperatures: Temperatures) -> Result<Inputs> {
        let mode = self.recipe.features.mode;
        if mode.computes_target() {
            return Ok(Inputs::new());
        }
        let evaluated = &self.recipe.evaluate.temperatures;
        let read: &[f64] = match temperatures {
            // Servers answer anew where the evaluation asks for something else. Imported texts change only where they are corrected.
            Temperatures::Validated if !mode.answers_are_data() => &[],
            Temperatures::Validated => &[0.0],
            Temperatures::First => &evaluated[..evaluated.len().min(1)],
            Temperatures::All => &evaluated[..],
        };
        let names = read.iter().filter_map(|&temperature| {
            let folder = answers_at(self, temperature);
            let name = folder.file_name()?.to_string_lossy().into_owned();
            let is_there = folder.join(FEATURES).exists();
            is_there.then(|| format!("answers/{name}/{FEATURES}"))
        });
        names.map(|name| self.output(&name)).collect()
    }

    fn tokenizer_sha256(&self) -> Result<String> {
        self.run.sha256_of(&text_files(&self.target_folder()?)?)
    }

    /// SHA-256 of the drafter that training starts from; downloads what is missing.
    fn start_sha256(&self, start: &Path) -> Result<String> {
        self.run.sha256_of_drafter(&start_at::folder(start)?)
    }

    /// SHA-256 of what says which features are in the folders that the recipe names.
    fn known_features(&self) -> Result<Inputs> {
        let features = &self.recipe.features;
        let folders = features.from.iter().chain(&features.imported);
        let each = folders.map(|folder| {
            let hash = self.run.sha256(&folder.join(FEATURES))?;
            Ok((format!("{FOLDER_OF_FEATURES}{}`", folder.display()), hash))
        });
        each.collect()
    }

    /// SHA-256 of the prompt sets that the recipe names, and of what makes them tokens; nothing where it names none.
    fn prompt_sets(&self) -> Result<Inputs> {
        let mut inputs = Inputs::new();
        let sets = self.recipe.evaluate.sets();
        if sets.is_empty() {
            return Ok(inputs);
        }
        let datasets = prompt_sets::datasets(sets).context("`evaluate.prompts`")?;
        for (name, dataset) in datasets {
            let mut hash = self.run.sha256_of(&dataset.files()?)?;
            let reading: String = dataset.each().iter().map(Located::reading).collect();
            if !reading.is_empty() {
                hash = hash::sha256_bytes(format!("{hash} {reading}").as_bytes());
            }
            inputs.insert(format!("the prompts `{name}`"), hash);
        }
        let data = &self.recipe.data;
        let text = text_files(&self.target_folder()?)?;
        inputs.insert(TOKENIZER.into(), self.run.sha256_of(&text)?);
        if let Some(path) = &data.template {
            inputs.insert("`data.template`".into(), self.run.sha256(path)?);
        }
        let variables = json!(data.template_variables).to_string();
        let hash = hash::sha256_bytes(variables.as_bytes());
        inputs.insert("`data.template_variables`".into(), hash);
        inputs.extend(self.day_as_input()?);
        Ok(inputs)
    }

    /// Whether a stage has to run. Fails if an input is not there.
    pub fn state(&self, stage: &Stage) -> Result<StageState> {
        self.compared(stage, |wanted| self.run.stage_state(stage.name, wanted))
    }

    /// The names in the run under which a stage was set aside, each with its state as if it were in its place. What cannot be read
    /// of one is told, and hinders nobody: the stage does without it.
    ///
    /// # Errors
    /// An input of the stage is not there, or the user asked to stop.
    pub(super) fn asides(&self, stage: &Stage) -> Result<Vec<(String, StageState)>> {
        let names = self.run.asides(stage.name)?;
        if names.is_empty() {
            return Ok(Vec::new());
        }
        self.compared(stage, |wanted| {
            let mut found = Vec::new();
            for name in names {
                match self.run.stage_state(&name, wanted) {
                    Ok(state) => found.push((name, state)),
                    Err(error) => {
                        check_interrupted()?;
                        let aside = self.folder(&name);
                        self.output.warn(format!(
                            "{}: `{}` is left where it is: {error:#}",
                            stage.name,
                            aside.display()
                        ));
                    }
                }
            }
            Ok(found)
        })
    }

    /// The first of the runs in `others` that has done a stage as this one wants it. That what it left is unchanged is taken for
    /// granted, and what is wrong with a run is for that run to say. Fails if an input is not there.
    pub(super) fn done_in<'o>(
        &self,
        others: &'o [PathBuf],
        stage: &Stage,
    ) -> Result<Option<&'o Path>> {
        self.compared(stage, |wanted| {
            let mut others = others.iter().map(PathBuf::as_path);
            Ok(others.find(|other| {
                let state = stage_state(other, stage.name, wanted);
                matches!(state, Ok(StageState::Done(_)))
            }))
        })
    }

    fn compared<T>(&self, stage: &Stage, compare: impl FnOnce(Wanted) -> Result<T>) -> Result<T> {
        compare(Wanted {
            settings: &self.settings(stage)?,
            inputs: &self.inputs(stage)?,
            defaults: &(self.recipe.defaults)(),
            effect,
            ends: &|| length::end(self, stage.name),
        })
    }

    /// The part of the recipe that a stage reads, with the type of the target on this device.
    pub(super) fn settings(&self, stage: &Stage) -> Result<Value> {
        let mut settings = settings(self.recipe, stage)?;
        if stage.reads.contains(&"target.dtype") {
            settings["target"][COMPUTED_IN] = self.type_in(stage.name).into();
        }
        Ok(settings)
    }

    /// What the type is called in which a stage computes.
    pub(super) fn type_in(&self, stage: &str) -> String {
        let name = match stage {
            REGENERATE | EXPORT | EVALUATE => self.target_type.name(),
            _ => self.target_type.name_over_texts(),
        };
        name.to_lowercase()
    }
}

/// SHA-256 of the tokens at which the target in a folder stops.
fn stop_tokens(folder: &Path) -> Result<String> {
    let stop = target::stop_tokens_by_text(folder)?;
    Ok(hash::sha256_bytes(json!(stop).to_string().as_bytes()))
}

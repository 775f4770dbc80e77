//! The trained drafter as serving engines load it, checked after it was written.

mod ground;
mod verify;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use burn::prelude::Device;
use serde_json::{Value, json};
use spectrain_checkpoints::atomic::{replace_dir, start_dir};
use spectrain_checkpoints::{DType, ModelFolder, seal};
use spectrain_data::features::Recorded;
use spectrain_eval::{Reach, Report, evenly};
use spectrain_models::{Target as _, TargetParts, load_parts};

use crate::families::commands::{self, commands};
use crate::families::family::Writing;
use crate::families::registry::open_drafter;
use crate::families::trained::Trained;
use crate::recipe::tables::{Engine, EvaluateTable};
use crate::runs::hashes::prove_files;
use crate::runs::places::{EXPORTED, trained};
use crate::runs::stage_names;
use crate::runtime::pair::Pair;
use crate::runtime::prompts::has_room;
use crate::runtime::texts::StoredTexts;
use crate::stages::card::{self, ENDED, Facts};
use crate::stages::context::StageContext;
use crate::stages::exported::{NAMED, Written, named};
use crate::stages::features::places::first_answers;
use crate::stages::prepare;
use crate::stages::report::record_again;
use crate::stages::train::{EXPORTED_STEP, ended};

use ground::{Ground, OnPrompts, OnTexts};
use verify::{compare, verify};

/// Prompts that are decoded with the trained and with the exported drafter, and tokens of each.
const COMPARED_PROMPTS: usize = 8;
/// Prompts of a conversion, which has no device of its own and may have a large target.
const CONVERTED_PROMPTS: usize = 2;
/// What a conversion calls its folder, within the unfinished one, until it is checked.
const UNCHECKED: &str = "drafter";

/// Runs the stage.
pub fn run(context: &StageContext) -> Result<Value> {
    let export = &context.recipe.export;
    let trained_folder = trained(context.recipe.last_trained());
    let trained_folder = context.run.path().join(trained_folder);
    let (mut ground, trained) = ground(context, &trained_folder)?;
    let provenance = provenance(context, &trained_folder)?;
    let before = ground.accepted(trained.as_ref())?;
    let length = draft_length(context, trained.as_ref());
    let asked = context.recipe.evaluate.draft_length(0);
    let name = context.target_name()?;
    let mut exported: Vec<(String, f64, Vec<String>, Facts)> = Vec::new();
    for (folder, engines) in folders(&export.to, trained.as_ref()) {
        let path = context.run.path().join(&folder);
        let writing = Writing {
            folder: &path,
            dtype: export.dtype.dtype(),
            target: &name,
            draft_length: length,
            provenance: &provenance,
        };
        trained.write_for(engines[0], &writing)?;
        let read_back = open_drafter(&path, &ground.parts(), &context.device)?;
        let both = (trained.as_ref(), read_back.as_ref());
        verify(ground.as_mut(), both, &writing)?;
        let after = ground.accepted(read_back.as_ref())?;
        compare(&before, &after, writing.dtype)?;
        let lines = commands(read_back.as_ref(), &engines, &writing)?;
        let facts = Facts::of(read_back.as_ref(), &engines, &writing)?;
        context.output.say(format!("export: {}", path.display()));
        exported.push((folder, after.tau(), lines, facts));
    }
    let written = exported.iter();
    let written: Vec<Written> = written
        .map(|(folder, _, _, facts)| Written::new(folder.clone(), facts.clone()))
        .collect();
    record_again(context, &written)?;
    let (first, further) = exported.split_first().context("nothing was exported")?;
    let mut summary = json!({
        "folder": first.0,
        "to": export.to,
        "dtype": export.dtype,
        "tau_trained": before.tau(),
        "tau_exported": first.1,
        "launch": first.2,
        NAMED: named(&context.run.path().join(&first.0), &name, asked),
        "card": first.3,
    });
    if !further.is_empty() {
        summary["further"] = further
            .iter()
            .map(|(folder, tau, lines, facts)| {
                let named = named(&context.run.path().join(folder), &name, asked);
                json!({
                    "folder": folder, "tau_exported": tau, "launch": lines, NAMED: named, "card": facts,
                })
            })
            .collect();
    }
    Ok(summary)
}

/// Tokens of a draft of servers: those of the first chain that is evaluated.
pub(super) fn draft_length(context: &StageContext, drafter: &dyn Trained) -> usize {
    let session = drafter.session();
    let asked = context.recipe.evaluate.draft_length(session.draft_length());
    Reach::of(session.as_ref()).chain(asked)
}

/// The trained drafter, and what it is compared on with what was written of it.
fn ground(context: &StageContext, trained: &Path) -> Result<(Box<dyn Ground>, Box<dyn Trained>)> {
    let (target, device) = (context.target_folder()?, &context.device);
    if context.recipe.features.mode.computes_target() {
        let (pair, trained) =
            Pair::open_with_drafter(&target, trained, device, context.target_type)?;
        let places = pair.target.spec().max_positions;
        let mut prompts = prepare::prompts(context.run)?;
        prompts.retain(|prompt| has_room(prompt, places));
        let prompts = evenly(prompts, COMPARED_PROMPTS);
        return Ok((Box::new(OnPrompts { pair, prompts }), trained));
    }
    let target = load_parts(&target, device, context.target_type.dtype)?;
    let trained = open_drafter(trained, &target, device)?;
    let answers = first_answers(context.run.path(), &context.recipe.evaluate);
    let proof = |files: &[Recorded]| context.prove(files);
    let of = (&*answers, COMPARED_PROMPTS);
    let ground = on_texts(target, trained.as_ref(), of, proof)?;
    Ok((Box::new(ground), trained))
}

/// So many of the answers in a folder, of a target that is not here itself.
fn on_texts(
    target: TargetParts,
    drafter: &dyn Trained,
    (answers, most): (&Path, usize),
    proof: impl FnOnce(&[Recorded]) -> Result<()>,
) -> Result<OnTexts> {
    let stored = StoredTexts::open(answers, &drafter.capture()?, &target, proof)?;
    let texts = (0..stored.len()).flat_map(|prompt| stored.answers(prompt, None));
    let texts = texts.take(most).collect();
    Ok(OnTexts { target, texts })
}

/// Where the drafter in `trained` comes from.
fn provenance(context: &StageContext, trained: &Path) -> Result<Value> {
    let tokens = context
        .folder(stage_names::PREPARE)
        .join("train/tokens.json");
    let mut provenance = json!({
        "spectrain": env!("CARGO_PKG_VERSION"),
        "recipe": context.recipe.json,
        "objective": context.recipe.json["objective"],
        "target": {"model": context.target_name()?, "sha256": context.target_sha256()?},
        "data": {"sha256": context.run.sha256(&tokens)?},
        "training": training(context)?,
        "trained": context.run.sha256(trained)?,
    });
    if let Some(manifest) = context.run.manifest(stage_names::PREPARE)? {
        for (key, value) in card::of_data(&manifest.summary) {
            if !value.is_null() {
                provenance[key] = value;
            }
        }
    }
    Ok(provenance)
}

/// What the last training stage says of the weights it kept, and which stages ended before their last step.
fn training(context: &StageContext) -> Result<Value> {
    let Some(manifest) = context.run.manifest(context.recipe.last_trained())? else {
        return Ok(Value::Null);
    };
    let summary = &manifest.summary;
    let mut training = json!({"step": summary[EXPORTED_STEP], "best": summary["fit"]["best"]});
    for stage in context.recipe.training_stages() {
        let manifest = context.run.manifest(stage)?;
        if let Some(end) = manifest.and_then(|manifest| ended(&manifest.summary["fit"])) {
            training[ENDED][stage] = end.into();
        }
    }
    if !manifest.history.is_empty() {
        training["history"] = json!(manifest.history);
    }
    Ok(training)
}

/// The folders to write, within the run, and whom each is for. The first is the one that is evaluated.
pub(super) fn folders(to: &[Engine], drafter: &dyn Trained) -> Vec<(String, Vec<Engine>)> {
    let (others, usual): (Vec<Engine>, Vec<Engine>) =
        to.iter().partition(|engine| is_apart(**engine, drafter));
    // It is there whatever is asked for: other stages and commands read it.
    let usual = if usual.is_empty() {
        vec![Engine::Vllm]
    } else {
        usual
    };
    let mut folders = vec![(EXPORTED.to_owned(), usual)];
    for engine in others {
        folders.push((folder_of(engine), vec![engine]));
    }
    folders
}

/// The folder, within the run, of an engine that gets one of its own.
fn folder_of(engine: Engine) -> String {
    format!("{EXPORTED}-{}", engine.key())
}

/// Whether an engine gets a folder of its own; one that there is no layout for is refused when that is written.
fn is_apart(engine: Engine, drafter: &dyn Trained) -> bool {
    engine == Engine::Speculators || drafter.has_layout_for(engine)
}

/// The drafter in `trained`, for an engine.
pub struct Conversion<'a> {
    /// The folder it is in.
    pub trained: &'a Path,
    /// The target's folder.
    pub target: PathBuf,
    /// The target's answers, where it is not here itself: what its drafter is compared on, of which its folder holds the shared parts.
    pub answers: Option<PathBuf>,
    /// The engine.
    pub engine: Engine,
    /// The folder to write.
    pub folder: &'a Path,
    /// Type of the weights.
    pub dtype: DType,
    /// Hub id or folder of the target, which some layouts name.
    pub named: &'a str,
    /// Where the drafter comes from.
    pub provenance: &'a Value,
    /// What an evaluation found of it.
    pub report: Option<&'a Report>,
}

impl Conversion<'_> {
    /// Writes the folder, checks that what is read back is what was there, and returns the commands that serve it. The folder is there
    /// whole and checked, or not at all, whenever the process may be killed.
    ///
    /// # Errors
    /// It cannot be written, or is not what was there.
    pub fn run(&self) -> Result<Vec<String>> {
        let device = Device::flex();
        let (mut ground, trained) = self.ground(&device)?;
        let writing = &Writing {
            folder: self.folder,
            dtype: self.dtype,
            target: self.named,
            draft_length: self.draft_length(trained.session().draft_length()),
            provenance: self.provenance,
        };
        if !is_apart(self.engine, trained.as_ref()) {
            commands::check(trained.as_ref(), self.engine, writing)?;
        }
        // Until it is checked it stands in a folder that nobody takes for a drafter, as it is sealed and looks like one that was.
        let partial = start_dir(self.folder)?;
        let unchecked = Writing {
            folder: &partial.join(UNCHECKED),
            ..*writing
        };
        let finished = self.finish(ground.as_mut(), trained.as_ref(), [&unchecked, writing]);
        // The first error is the one to report; what stays is removed by the next export to this folder.
        let _ = std::fs::remove_dir_all(&*partial);
        finished
    }

    /// Writes an `unchecked` folder, checks it, adds its card, and gives it its name.
    fn finish(
        &self,
        ground: &mut dyn Ground,
        trained: &dyn Trained,
        [unchecked, writing]: [&Writing; 2],
    ) -> Result<Vec<String>> {
        trained.write_for(self.engine, unchecked)?;
        let parts = ground.parts();
        let device = parts.embed_tokens.weight.val().device();
        let read_back = open_drafter(unchecked.folder, &parts, &device)?;
        verify(ground, (trained, read_back.as_ref()), unchecked)?;
        let facts = Facts::of(read_back.as_ref(), &[self.engine], writing)?;
        card::write(unchecked.folder, &facts, self.report)?;
        let lines = commands(read_back.as_ref(), &[self.engine], writing)?;
        replace_dir(unchecked.folder, writing.folder)?;
        Ok(lines)
    }

    /// The trained drafter, and what it is compared on with what is written of it.
    fn ground(&self, device: &Device) -> Result<(Box<dyn Ground>, Box<dyn Trained>)> {
        if let Some(answers) = &self.answers {
            let target = load_parts(&self.target, device, DType::F32)?;
            let trained = open_drafter(self.trained, &target, device)?;
            let of = (&**answers, CONVERTED_PROMPTS);
            let ground = on_texts(target, trained.as_ref(), of, prove_files)?;
            return Ok((Box::new(ground), trained));
        }
        let (pair, trained) =
            Pair::open_with_drafter(&self.target, self.trained, device, DType::F32)?;
        let prompts = pair.generated_prompts(CONVERTED_PROMPTS)?;
        Ok((Box::new(OnPrompts { pair, prompts }), trained))
    }
}

impl Conversion<'_> {
    /// The length of the recipe's first chain, where the drafter is of a recipe; `own` is the drafter's.
    fn draft_length(&self, own: usize) -> usize {
        let evaluate = self.provenance["recipe"]["evaluate"].clone();
        let evaluate = serde_json::from_value::<EvaluateTable>(evaluate);
        evaluate.map_or(own, |evaluate| evaluate.draft_length(own))
    }
}

/// Where the drafter in a folder comes from, as the folder itself says.
pub fn provenance_of(folder: &Path) -> Result<Option<Value>> {
    let model = ModelFolder::open(folder)?;
    Ok(seal::provenance(model.config()).cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_with_a_folder_of_their_own_share_none() {
        for (engine, end) in [
            (Engine::Hf, "hf"),
            (Engine::Speculators, "speculators"),
            (Engine::Sglang, "sglang"),
        ] {
            assert_eq!(folder_of(engine), format!("export/drafter-{end}"));
        }
    }
}

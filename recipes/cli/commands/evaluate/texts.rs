//! A drafter judged by stored features of texts that the target wrote, without the target.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use spectrain_checkpoints::ModelFolder;
use spectrain_data::tokenizer::Tokenizer;
use spectrain_eval::{
    DrafterReport, ENOUGH, LEAST_LIKELIEST, Report, TargetReport, TextSettings, TextsReport, evenly,
};

use super::EvaluateArguments;
use crate::errors::Misuse;
use crate::progress::Output;
use crate::recipe::tables::{EvaluateTable, FeatureMode};
use crate::runs::hashes::prove_files;
use crate::runs::run_folder::manifest_in;
use crate::runs::stage_names;
use crate::runtime::device::device_report;
use crate::runtime::prompts::repeated;
use crate::runtime::target;
use crate::runtime::text_trial::{Parts, judge};
use crate::runtime::texts::StoredTexts;
use crate::runtime::trial::thinking;
use crate::stages::drafter_at::DrafterAt;

const ONE_TARGET: &str =
    "`--features` needs exactly one `--target`: the one that the features are of";
const NO_LAYERS: &str = "`--target-dtype int8`: expected another type: `int8` is for the target's layers, which `--features` does \
                         not load";
const ONE_TEMPERATURE: &str =
    "expected one `--temperature`: the stored texts were written at one temperature";

impl EvaluateArguments {
    /// Judges the drafter by the features in a folder, and writes and prints the report.
    pub(super) fn judge_texts(&self, folder: &Path, mut table: EvaluateTable) -> Result<()> {
        let [model] = &self.targets[..] else {
            return Err(Misuse(ONE_TARGET.into()).into());
        };
        let output = Output::detect();
        let (device, held) = self.device.open()?;
        if held.int8 {
            return Err(Misuse(NO_LAYERS.into()).into());
        }
        let dtype = held.dtype;
        let at = DrafterAt::find(self.drafter.as_deref().unwrap_or_default(), &self.runs)?;
        let (target, drafter) = (target::resolve_parts(model, None)?, at.folder()?);
        let parts = Parts::open(&target, &drafter, &device, dtype)?;
        let capture = parts.drafter.capture()?;
        let texts = StoredTexts::open(folder, &capture, &parts.target, prove_files)?;
        let target_sha256 = texts.header().target_sha256.clone();
        if !self.other_target {
            check_target(&drafter, &target_sha256, &target)?;
        }
        let name = name_of(folder);
        let texts = distinct(texts, &name, output);
        let all = texts.len();
        let chosen = evenly((0..all).collect(), self.count.unwrap_or(all));
        if self.temperatures.is_empty() {
            table.temperatures = vec![written_at(&texts, &chosen)?];
        }
        let [sampling] = table.samplings()[..] else {
            return Err(Misuse(ONE_TEMPERATURE.into()).into());
        };
        let session = parts.drafter.session();
        let settings = TextSettings {
            sampling,
            drafts: table.choices(session.draft_length()),
            verifier: table.verifier.into(),
            ends: None,
            thinking: thinking(&Tokenizer::from_folder(&target)?),
            seed: table.seed,
        };
        let chosen = (&chosen[..], longest(folder, self.max_new_tokens)?);
        let named = (&*name, output);
        let judged = judge(&texts, chosen, session.as_ref(), &settings, named);
        let (found, own) = judged.with_context(|| format!("`{}`", folder.display()))?;
        let target = TargetReport {
            model: model.clone(),
            revision: None,
            sha256: target_sha256.clone(),
            dtype: dtype.name().to_lowercase(),
        };
        let drafter = DrafterReport {
            path: at.name(&drafter),
            sha256: target::sha256_of_drafter(&drafter)?,
            ..parts.drafter_report()
        };
        let mut report = Report::new(target, drafter, found);
        report.texts = vec![TextsReport {
            source: folder.display().to_string(),
            ..own
        }];
        report.recipe = json!({ "evaluate": table });
        report.device = device_report(self.device.name());
        self.hand_out(&report)
    }
}

/// The texts without those that repeat others to their ends; the user is told.
fn distinct<'a>(texts: StoredTexts<'a>, name: &str, output: Output) -> StoredTexts<'a> {
    let (texts, repeats) = texts.without_repeats(FeatureMode::Imported);
    if let Some(told) = repeated(name, repeats) {
        output.warn(format!("evaluate: {told}"));
    }
    texts
}

/// What the report calls the texts: the stage of a run, or the folder.
fn name_of(folder: &Path) -> String {
    let name = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
    let run = folder.parent().and_then(name);
    match (name(folder), run) {
        (Some(stage), Some(run)) if stage == stage_names::FEATURES => run,
        (Some(name), _) => name,
        _ => stage_names::FEATURES.into(),
    }
}

/// Tokens of an answer, at most: as many as are asked for, or those in a folder of the stage `answers` of a run; of other folders
/// nobody says it.
fn longest(folder: &Path, asked: Option<usize>) -> Result<Option<usize>> {
    if asked.is_some() {
        return Ok(asked);
    }
    let folder = folder.canonicalize()?;
    let stage = folder
        .parent()
        .filter(|stage| stage.ends_with(stage_names::ANSWERS));
    let Some(run) = stage.and_then(Path::parent) else {
        return Ok(None);
    };
    let Some(manifest) = manifest_in(run, stage_names::ANSWERS)? else {
        return Ok(None);
    };
    let settings = manifest.settings;
    // A stage of an earlier version may not say it.
    let mode = serde_json::from_value::<FeatureMode>(settings["features"]["mode"].clone()).ok();
    let known = mode.zip(settings["evaluate"]["max_new_tokens"].as_u64());
    Ok(known.and_then(|(mode, longest)| mode.longest_answer(longest as usize)))
}

/// Fails where a drafter that reads a target's hidden states says that it was trained for another one than the features, which
/// are of the target of this hash. Both may say it of all of the target in `folder`, or of its parts.
fn check_target(drafter: &Path, sha256: &str, folder: &Path) -> Result<()> {
    let model = ModelFolder::open(drafter)?;
    let is_same = |named: &str| -> Result<bool> {
        Ok(named == sha256 || target::is_of(folder, named)? && target::is_of(folder, sha256)?)
    };
    match target::trained_for(&model) {
        Some(named) if !target::drafts_by_text(&model) && !is_same(&named.sha256)? => bail!(
            "the drafter `{}` was trained for `{}`, and the features are those of other weights; `--other-target` judges it \
             all the same",
            drafter.display(),
            named.model
        ),
        _ => Ok(()),
    }
}

/// Whether the texts were written at temperature 0, else they are taken to be drawn at 1, which is tested later.
fn written_at(texts: &StoredTexts, chosen: &[usize]) -> Result<f64> {
    let (mut tokens, mut likeliest) = (0, 0);
    for &conversation in chosen {
        for text in texts.answers(conversation, None) {
            let found = text.likeliest()?;
            likeliest += found.iter().filter(|same| **same).count();
            tokens += found.len();
        }
        if tokens as u64 >= ENOUGH {
            break;
        }
    }
    let is_greedy = likeliest as f64 >= LEAST_LIKELIEST * tokens as f64;
    Ok(if is_greedy { 0.0 } else { 1.0 })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn answers_of_a_run_are_as_long_as_its_recipe_lets_them_be() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("run/answers/T=0");
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(longest(&folder, None).unwrap(), None);
        for (mode, expected) in [("served", Some(48)), ("imported", None)] {
            let manifest = json!({
                "stage": "answers", "status": "done", "inputs": {}, "spectrain": "1", "seed": 0, "started": 0,
                "settings": {"features": {"mode": mode}, "evaluate": {"max_new_tokens": 48}},
            });
            let path = root.path().join("run/answers/manifest.json");
            fs::write(path, manifest.to_string()).unwrap();
            assert_eq!(longest(&folder, None).unwrap(), expected, "{mode}");
            assert_eq!(longest(&folder, Some(7)).unwrap(), Some(7));
            assert_eq!(longest(root.path(), None).unwrap(), None);
        }
    }
}

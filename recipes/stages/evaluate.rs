//! The drafter that engines load, judged by the program's own speculative decoder.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use burn::prelude::Device;
use serde_json::{Map, Value, json};
use spectrain_checkpoints::atomic::write_file;
use spectrain_checkpoints::{DType, ModelFolder};
use spectrain_eval::{
    CalibrationPrompts, ChiSquare, Decoder, DraftChoice, DrafterReport, EvaluateSettings,
    LosslessReport, MeasuredOn, PromptSet, Report, SamplingTest, TargetReport, evaluate,
    sampling_test,
};
use spectrain_models::{
    Capture, DraftShape, Proposer, Sampling, Target as _, Transformer, load_target,
};

use super::{EXPORTED, StageContext, prepare};
use crate::progress::Output;
use crate::registry::{Trained, open_drafter};
use crate::run_folder::RunFolder;
use crate::tables::EvaluateTable;
use crate::target;

/// Prompts and draws of the test that sampled output follows the target's distribution.
const TESTED_PROMPTS: usize = 2;
const TESTED_DRAWS: usize = 200;

/// Runs the stage.
pub fn run(context: &StageContext) -> Result<Value> {
    let settings = &context.recipe.evaluate;
    let drafter = context.run.path().join(EXPORTED);
    let judge = Judge::open(
        &context.target_folder()?,
        &drafter,
        &context.device,
        context.dtype,
    )?;
    let data = context.eval_data();
    let name = data
        .file_stem()
        .map_or_else(|| "eval".into(), |stem| stem.to_string_lossy().into_owned());
    let (prompts, others) = split(prepare::prompts(context.run)?, settings.prompts);
    let sets = [PromptSet { name, prompts }];
    let calibration = calibration(others, &sets, settings);
    let mut report = judge.report(&sets, &calibration, settings, context.output)?;
    report.recipe = context.recipe.json.clone();
    report.target = TargetReport {
        model: context.target_name()?,
        revision: context.recipe.target.revision.clone(),
        sha256: context.target_sha256()?,
        dtype: context.dtype.name().to_lowercase(),
    };
    report.drafter.path = drafter.display().to_string();
    report.drafter.sha256 = context.run.sha256(&drafter)?;
    report.device = device_report(&context.device_name);
    report.seeds.insert("recipe".into(), context.recipe.seed);
    write(&report, &context.folder("evaluate"))?;
    Ok(json!({
        "settings": report.settings.iter().map(|setting| json!({
            "temperature": setting.temperature,
            "verifier": setting.verifier,
            "lossy": setting.lossy,
            "draft": setting.draft,
            "tau": setting.overall.tau,
            "alpha": setting.overall.alpha,
        })).collect::<Vec<_>>(),
        "lossless": report.lossless,
    }))
}

/// The report of a finished run as a table.
pub fn table(run: &RunFolder) -> Result<String> {
    let path = run.stage("evaluate").join("report.md");
    std::fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))
}

/// Writes `report.json` and `report.md`.
pub fn write(report: &Report, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create `{}`", folder.display()))?;
    write_file(&folder.join("report.json"), report.to_json()?.as_bytes())?;
    write_file(&folder.join("report.md"), report.to_markdown().as_bytes())?;
    Ok(())
}

/// At most `count` prompts, spread evenly.
pub fn spread(prompts: Vec<Vec<u32>>, count: usize) -> Vec<Vec<u32>> {
    let total = prompts.len();
    let count = count.min(total);
    let mut taken = (0..count).map(|i| i * total / count).peekable();
    let keep = |(index, prompt)| (taken.next_if_eq(&index).is_some()).then_some(prompt);
    prompts.into_iter().enumerate().filter_map(keep).collect()
}

/// At most `count` prompts to evaluate, spread evenly, and the others.
pub fn split(prompts: Vec<Vec<u32>>, count: usize) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    let judged = spread(prompts.clone(), count);
    let is_other = |prompt: &Vec<u32>| !judged.contains(prompt);
    let others = prompts.into_iter().filter(is_other).collect();
    (judged, others)
}

/// As many prompts as `table` calibrates trees on, of `others` or, without any, of those evaluated.
pub fn calibration(
    others: Vec<Vec<u32>>,
    sets: &[PromptSet],
    table: &EvaluateTable,
) -> CalibrationPrompts {
    let wanted = table.drafts.iter().filter_map(|draft| match draft {
        DraftChoice::Calibrated(calibration) => Some(calibration.prompts),
        _ => None,
    });
    let (from, measured_on) = match others.is_empty() {
        false => (others, MeasuredOn::Others),
        true => {
            let evaluated = sets.iter().flat_map(|set| set.prompts.iter().cloned());
            (evaluated.collect(), MeasuredOn::Evaluated)
        }
    };
    CalibrationPrompts {
        prompts: spread(from, wanted.max().unwrap_or(0)),
        measured_on,
    }
}

/// What a report says of the device.
pub fn device_report(name: &str) -> Map<String, Value> {
    let mut device = Map::new();
    device.insert("name".into(), json!(name));
    device.insert(
        "system".into(),
        json!(format!(
            "{} {}",
            std::env::consts::OS,
            std::env::consts::ARCH
        )),
    );
    device.insert(
        "threads".into(),
        json!(std::thread::available_parallelism().map_or(1, usize::from)),
    );
    device
}

/// A target and a drafter, ready to decode.
pub struct Judge {
    /// The target.
    pub target: Transformer,
    /// The drafter.
    pub drafter: Box<dyn Trained>,
    /// What the drafter reads.
    pub capture: Capture,
    /// Tokens at which the target stops.
    pub stop: Vec<u32>,
}

impl Judge {
    /// Loads both.
    pub fn open(target: &Path, drafter: &Path, device: &Device, dtype: DType) -> Result<Self> {
        let model = ModelFolder::open(target)?;
        let stop = target::stop_tokens(&model)?;
        let target = load_target(&model, device, dtype)?;
        let drafter = open_drafter(drafter, &target.parts(), device)?;
        Ok(Self {
            capture: drafter.capture()?,
            target,
            drafter,
            stop,
        })
    }

    /// The decoder.
    pub fn decoder(&self) -> Decoder<'_> {
        Decoder {
            target: &self.target,
            capture: &self.capture,
        }
    }

    /// Decodes every prompt in every setting. Names and hashes of the models are still to be filled in.
    pub fn report(
        &self,
        sets: &[PromptSet],
        calibration: &CalibrationPrompts,
        table: &EvaluateTable,
        output: Output,
    ) -> Result<Report> {
        let settings = EvaluateSettings {
            samplings: table.samplings(),
            drafts: table.choices(),
            calibration: calibration.clone(),
            max_new_tokens: table.max_new_tokens,
            stop: self.stop.clone(),
            verifier: table.verifier.into(),
            baseline: table.baseline,
            seed: table.seed,
        };
        let outputs = sets.iter().map(|set| set.prompts.len()).sum::<usize>()
            * settings.samplings.len()
            * (settings.drafts.len() + usize::from(settings.baseline));
        let mut progress = output.start("evaluate", outputs as u64);
        let mut session = self.drafter.session();
        let evaluation = evaluate(
            &self.decoder(),
            session.as_mut(),
            sets,
            &settings,
            &mut |step| {
                progress.set(step.done as u64, step.dataset);
            },
        )?;
        let drawn = evaluation.settings.iter().zip(&evaluation.shapes);
        let sampled: Vec<_> = drawn
            .filter(|(setting, _)| settings.baseline && setting.temperature > 0.0 && !setting.lossy)
            .map(|(setting, shape)| (setting.sampling(), shape.clone()))
            .collect();
        let mut tests = Vec::with_capacity(sampled.len());
        for (at, (sampling, shape)) in sampled.into_iter().enumerate() {
            // Other draws for each setting, so that the tests are independent and add up.
            let seed = settings.seed.wrapping_add(at as u64);
            let test = self.test_sampling(session.as_mut(), sets, &settings, sampling, shape, seed);
            tests.extend(test?);
        }
        let drafter = DrafterReport {
            kind: self.drafter.kind().into(),
            parameters: self.drafter.parameters(),
            ..DrafterReport::default()
        };
        let mut report = Report::new(TargetReport::default(), drafter, evaluation.settings);
        report.lossless = LosslessReport {
            sampling: ChiSquare::pooled(tests),
            ..evaluation.greedy.into()
        };
        report.seeds = BTreeMap::from([("sampling".to_owned(), table.seed)]);
        progress.finish(format!("{outputs} outputs"));
        Ok(report)
    }

    /// Compares sampled output with plain sampling, on the shortest prompts.
    fn test_sampling(
        &self,
        proposer: &mut dyn Proposer,
        sets: &[PromptSet],
        settings: &EvaluateSettings,
        sampling: Sampling,
        draft: DraftShape,
        seed: u64,
    ) -> Result<Option<ChiSquare>> {
        let mut prompts: Vec<Vec<u32>> = sets
            .iter()
            .flat_map(|set| set.prompts.iter().cloned())
            .collect();
        prompts.sort_by_key(Vec::len);
        let longest = self
            .target
            .spec()
            .max_positions
            .saturating_sub(2 + draft.length());
        prompts.retain(|prompt| prompt.len() < longest);
        prompts.truncate(TESTED_PROMPTS);
        if prompts.is_empty() {
            return Ok(None);
        }
        let test = SamplingTest {
            draws: TESTED_DRAWS,
            gram: 1,
            draft,
            sampling,
            verifier: settings.verifier,
            seed,
        };
        Ok(Some(sampling_test(
            &self.decoder(),
            proposer,
            &prompts,
            &test,
        )?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_calibrated_on_prompts_that_do_not_count() {
        let prompts: Vec<Vec<u32>> = (0..10).map(|i| vec![i]).collect();
        let calibrated = r#"{ "shape": "calibrated", "nodes": 5, "prompts": 2 }"#;
        let mut table = EvaluateTable {
            prompts: 5,
            drafts: vec![serde_json::from_str(calibrated).unwrap()],
            ..EvaluateTable::default()
        };
        let calibrated_on = |table: &EvaluateTable| {
            let (prompts, others) = split(prompts.clone(), table.prompts);
            let name = "a".to_owned();
            calibration(others, &[PromptSet { name, prompts }], table)
        };
        let found = calibrated_on(&table);
        assert_eq!(found.prompts, [[1], [5]]);
        assert_eq!(found.measured_on, MeasuredOn::Others);
        table.prompts = 10;
        let found = calibrated_on(&table);
        assert_eq!(found.prompts, [[0], [5]]);
        assert_eq!(found.measured_on, MeasuredOn::Evaluated);
    }

    #[test]
    fn prompts_are_taken_evenly_and_never_twice() {
        let prompts: Vec<Vec<u32>> = (0..10).map(|i| vec![i]).collect();
        assert_eq!(spread(prompts.clone(), 3), [[0], [3], [6]]);
        assert_eq!(spread(prompts.clone(), 10), prompts);
        assert_eq!(spread(prompts.clone(), 64), prompts);
    }
}

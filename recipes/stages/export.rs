//! The trained drafter as serving engines load it, checked after it was written.

use std::path::Path;

use anyhow::{Result, bail};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use spectrain_checkpoints::{DType, ModelFolder};
use spectrain_eval::{DecodeSettings, Greedy};
use spectrain_models::{DraftShape, Sampling, load_target};

use super::evaluate::spread;
use super::{EXPORTED, StageContext, prepare, trained};
use crate::judge::Judge;
use crate::registry::Trained;
use crate::tables::{Engine, ExportTable};

/// Prompts that are decoded with the trained and with the exported drafter, and tokens of each.
const COMPARED_PROMPTS: usize = 8;
const COMPARED_TOKENS: usize = 64;
/// Length of the draft in that comparison.
const COMPARED_DRAFT: usize = 5;
/// Share of the trained drafter's accepted tokens that the exported one must keep when its weights were rounded.
const KEPT_WHEN_ROUNDED: f64 = 0.8;

/// Runs the stage.
pub fn run(context: &StageContext) -> Result<Value> {
    let export = &context.recipe.export;
    let trained_folder = trained(context.recipe.last_trained());
    let trained_folder = context.run.path().join(trained_folder);
    let exported_folder = context.run.path().join(EXPORTED);
    let mut judge = Judge::open(
        &context.target_folder()?,
        &trained_folder,
        &context.device,
        context.dtype,
    )?;
    let provenance = json!({
        "spectrain": env!("CARGO_PKG_VERSION"),
        "recipe": context.recipe.json,
        "target": {"model": context.target_name()?, "sha256": context.target_sha256()?},
        "trained": context.run.sha256(&trained_folder)?,
    });
    write(
        judge.drafter.as_ref(),
        export,
        &trained_folder,
        &exported_folder,
        &provenance,
    )?;

    let prompts = spread(prepare::prompts(context.run)?, COMPARED_PROMPTS);
    let trained = accepted(&judge, &prompts)?;
    let target = judge.target.parts();
    judge.drafter = context
        .recipe
        .method
        .open(&exported_folder, &target, &context.device)?;
    let exported = accepted(&judge, &prompts)?;
    compare(&trained, &exported, export.dtype.dtype())?;

    let length = context
        .recipe
        .evaluate
        .draft_lengths
        .first()
        .copied()
        .unwrap_or(COMPARED_DRAFT);
    let lines = judge
        .drafter
        .launch_lines(&exported_folder, &context.target_name()?, length)?;
    let lines = engine_lines(lines, &export.to);
    context
        .output
        .say(format!("export: {}", exported_folder.display()));
    for line in &lines {
        context.output.say(format!("  {line}"));
    }
    Ok(json!({
        "folder": EXPORTED,
        "to": export.to,
        "dtype": export.dtype,
        "tau_trained": trained.tau(),
        "tau_exported": exported.tau(),
        "launch": lines,
    }))
}

/// Writes a drafter's folder for engines and checks that what is read back is what was trained.
pub fn write(
    drafter: &dyn Trained,
    export: &ExportTable,
    trained: &Path,
    folder: &Path,
    provenance: &Value,
) -> Result<()> {
    drafter.write(folder, export.dtype.dtype(), provenance)?;
    check_tensors(trained, folder, export.dtype.dtype())
}

/// Writes the drafter in `trained` for engines to `folder`, for the target in `target`.
pub fn convert(
    trained: &Path,
    target: &Path,
    export: &ExportTable,
    folder: &Path,
) -> Result<Vec<String>> {
    let device = burn::prelude::Device::flex();
    // Only the target's sizes and frozen pieces are needed, but they come with the rest.
    let model = load_target(&ModelFolder::open(target)?, &device, DType::F32)?;
    let drafter = crate::registry::open_drafter(trained, &model.parts(), &device)?;
    let provenance = json!({"spectrain": env!("CARGO_PKG_VERSION"), "target": target});
    write(drafter.as_ref(), export, trained, folder, &provenance)?;
    let lines = drafter.launch_lines(folder, &target.display().to_string(), COMPARED_DRAFT)?;
    Ok(engine_lines(lines, &export.to))
}

fn engine_lines(lines: Vec<String>, to: &[Engine]) -> Vec<String> {
    // Remarks are for everybody.
    let of = |line: &str| match line {
        line if line.contains("sglang") => Engine::Sglang,
        line if line.contains("transformers") => Engine::Hf,
        _ => Engine::Vllm,
    };
    let wanted = |line: &String| line.starts_with('#') || to.contains(&of(line));
    lines.into_iter().filter(wanted).collect()
}

/// Every tensor of `exported` is the one of `trained`, rounded to `dtype`, bit for bit.
fn check_tensors(trained: &Path, exported: &Path, dtype: DType) -> Result<()> {
    let (before, after) = (ModelFolder::open(trained)?, ModelFolder::open(exported)?);
    let names = |folder: &ModelFolder| {
        folder
            .tensors()
            .map(|tensor| tensor.name.clone())
            .collect::<Vec<_>>()
    };
    if names(&before) != names(&after) {
        bail!(
            "`{}`: expected the tensors {:?}, got {:?}",
            exported.display(),
            names(&before),
            names(&after)
        );
    }
    for name in names(&before) {
        let mut expected = before.read(&name)?;
        if expected.dtype.is_float() {
            expected = expected.cast(dtype)?;
        }
        if after.read(&name)? != expected {
            bail!(
                "tensor `{name}` in `{}` is not the one that was trained",
                exported.display()
            );
        }
    }
    Ok(())
}

/// What greedy decoding made of some prompts.
#[derive(Debug, Clone, PartialEq)]
struct Decoded {
    /// Tokens drafted and accepted, pass by pass.
    accepted: Vec<usize>,
}

impl Decoded {
    fn total(&self) -> usize {
        self.accepted.iter().sum()
    }

    fn tau(&self) -> f64 {
        1.0 + self.total() as f64 / self.accepted.len().max(1) as f64
    }
}

fn accepted(judge: &Judge, prompts: &[Vec<u32>]) -> Result<Decoded> {
    let mut session = judge.drafter.session();
    let settings = DecodeSettings {
        max_new_tokens: COMPARED_TOKENS,
        draft: DraftShape::Chain {
            length: COMPARED_DRAFT,
        },
        sampling: Sampling::GREEDY,
        stop: judge.stop.clone(),
    };
    let mut accepted = Vec::new();
    for prompt in prompts {
        let mut rng = StdRng::seed_from_u64(0);
        let output =
            judge
                .decoder()
                .generate(session.as_mut(), &Greedy, prompt, &settings, &mut rng)?;
        accepted.extend(output.passes.iter().map(|pass| pass.accepted));
    }
    Ok(Decoded { accepted })
}

/// In f32 the two drafters are the same; rounded weights may change a few drafts, but not most of them.
fn compare(trained: &Decoded, exported: &Decoded, dtype: DType) -> Result<()> {
    let same = match dtype {
        DType::F32 => trained == exported,
        _ => exported.total() as f64 >= KEPT_WHEN_ROUNDED * trained.total() as f64,
    };
    match same {
        true => Ok(()),
        false => bail!(
            "the exported drafter drafts worse than the trained one: τ {:.3}, expected {:.3}; try `--set export.dtype=f32`",
            exported.tau(),
            trained.tau()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spectrain_checkpoints::{NamedTensor, write_folder};

    fn folder(root: &Path, name: &str, values: &[f32], dtype: DType) -> std::path::PathBuf {
        let path = root.join(name);
        let weight = NamedTensor::from_f32("fc.weight", vec![values.len()], values.to_vec())
            .cast(dtype)
            .unwrap();
        let map = NamedTensor::from_i64("d2t", vec![2], vec![0, 3]);
        write_folder(&path, &json!({}), &[weight, map], &[]).unwrap();
        path
    }

    #[test]
    fn a_tensor_that_differs_in_one_bit_is_found() {
        let root = tempfile::tempdir().unwrap();
        let trained = folder(root.path(), "a", &[0.1, 0.2], DType::F32);
        let rounded = folder(root.path(), "b", &[0.1, 0.2], DType::BF16);
        check_tensors(&trained, &rounded, DType::BF16).unwrap();
        let other = folder(root.path(), "c", &[0.1, 0.201], DType::BF16);
        let error = check_tensors(&trained, &other, DType::BF16)
            .unwrap_err()
            .to_string();
        assert!(error.contains("`fc.weight`"), "{error}");
    }

    #[test]
    fn an_exported_drafter_that_accepts_less_is_refused() {
        let of = |accepted: &[usize]| Decoded {
            accepted: accepted.to_vec(),
        };
        let trained = of(&[3, 2, 5, 0]);
        compare(&trained, &trained, DType::F32).unwrap();
        compare(&trained, &of(&[3, 2, 4, 0]), DType::F32).unwrap_err();
        compare(&trained, &of(&[3, 2, 4, 0]), DType::BF16).unwrap();
        let error = compare(&trained, &of(&[1, 2, 0, 1]), DType::BF16)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("2.000") && error.contains("3.500"),
            "{error}"
        );
    }
}

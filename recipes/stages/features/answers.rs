//! The target's answers to held-out prompts with their features, of servers: what drafters are judged by where the target itself is
//! not here.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use spectrain_checkpoints::hash::sha256_bytes;
use spectrain_data::seed::mix;
use spectrain_data::tokens::TokenShards;
use spectrain_models::Sampling;

use crate::recipe::tables::FeatureMode;
use crate::runs::stage_names;
use crate::runtime::capture::server::{Answering, Asked};
use crate::runtime::model_files::read_json;
use crate::runtime::prompts::repeated;
use crate::runtime::target;
use crate::stages::context::StageContext;
use crate::stages::features::capturing::{Capturing, Texts};
use crate::stages::features::imported;
use crate::stages::features::places::{FEATURES, answers_at};
use crate::stages::features::servers::held_out_prompts;

/// Runs the stage.
pub fn run(context: &StageContext) -> Result<Value> {
    if context.recipe.features.mode == FeatureMode::Imported {
        return imported::answers(context);
    }
    let prepared = context.folder(stage_names::PREPARE);
    let sets = ["train", "eval"].map(|set| TokenShards::open(prepared.join(set)));
    let [tokens, held_out] = sets;
    let (prompts, repeats) = held_out_prompts(context)?;
    if let Some(told) = repeated(&context.eval_name()?, repeats) {
        context.output.warn(format!("answers: {told}"));
    }
    let stop = target::stop_tokens_in(&context.target_folder()?)?;
    let mut capturing = Capturing::open(context, [&tokens?, &held_out?])?;
    let samplings = context.recipe.evaluate.samplings();
    if !prompts.is_empty() {
        for &sampling in &samplings {
            let texts = answers(context, &prompts, &stop, sampling);
            let folder = answers_at(context, sampling.temperature);
            make_room(context, &folder, &texts.fingerprint)?;
            capturing.write(&folder, texts)?;
        }
    }
    Ok(json!({
        "prompts": prompts.len(),
        "tokens_per_second": capturing.tokens_per_second(),
        "servers": capturing.told(),
    }))
}

/// Sets aside what was begun in `folder` with other prompts: earlier versions asked those that repeat others, too.
fn make_room(context: &StageContext, folder: &Path, fingerprint: &str) -> Result<()> {
    let begun = folder.join(FEATURES);
    // Tasks of an array job would move what others write.
    if !begun.exists() || context.array.part.is_some() {
        return Ok(());
    }
    // Where it cannot be read, the shards say of what they are to whoever writes them.
    let index = read_json(&begun).unwrap_or_default();
    let found = index["header"]["tokens_fingerprint"].as_str();
    if found.is_none_or(|found| found == fingerprint) {
        return Ok(());
    }
    let aside = context
        .run
        .set_aside(folder.strip_prefix(context.run.path())?)?;
    context.output.warn(format!(
        "answers: `{}` was begun with other prompts, as an earlier version would ask them; the servers are asked anew, and what was \
         there is kept as `{}`",
        folder.display(),
        aside.display()
    ));
    Ok(())
}

/// The answers to `prompts` under this sampling.
fn answers<'a>(
    context: &StageContext,
    prompts: &'a [Vec<u32>],
    stop: &'a [u32],
    sampling: Sampling,
) -> Texts<'a> {
    let table = &context.recipe.evaluate;
    let (max_new_tokens, seed) = (table.max_new_tokens, table.seed);
    let of = json!([prompts, sampling, max_new_tokens, stop, seed]);
    let ask = move |sample: usize| Asked {
        tokens: prompts[sample].clone(),
        answer: Some(Answering {
            max_new_tokens,
            sampling,
            seed: mix(seed, sample as u64),
            stop: stop.to_vec(),
        }),
        log_probabilities: false,
    };
    let mask = move |sample: usize, tokens: &[u32]| {
        let mut mask = vec![0; prompts[sample].len()];
        mask.resize(tokens.len(), 1);
        mask
    };
    Texts {
        what: format!("answers at T={}", sampling.temperature),
        count: prompts.len(),
        fingerprint: sha256_bytes(of.to_string().as_bytes()),
        ask: Box::new(ask),
        mask: Box::new(mask),
        may_be_known: false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::recipe;
    use crate::stages::tests::{fixture, recipe_text, with_recipe};

    #[test]
    fn what_was_begun_with_other_prompts_makes_room_and_is_kept() {
        let root = fixture();
        let recipe = recipe::read(&recipe_text(root.path()), &[]).unwrap();
        with_recipe(root.path(), &recipe, |context| {
            let folder = answers_at(context, 0.0);
            make_room(context, &folder, "new").unwrap();
            fs::create_dir_all(&folder).unwrap();
            let header = json!({"header": {"tokens_fingerprint": "old"}});
            fs::write(folder.join(FEATURES), header.to_string()).unwrap();
            make_room(context, &folder, "old").unwrap();
            assert!(folder.exists());
            fs::write(folder.join(FEATURES), "{").unwrap();
            make_room(context, &folder, "new").unwrap();
            assert!(folder.exists());
            fs::write(folder.join(FEATURES), header.to_string()).unwrap();
            make_room(context, &folder, "new").unwrap();
            assert!(!folder.exists());
            let aside = folder.with_file_name("T=0.old-1");
            assert!(aside.join(FEATURES).exists());
        });
    }
}

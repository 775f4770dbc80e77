//! What the folders of all drafters have in common.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use burn::tensor::DType as BurnType;
use spectrain_checkpoints::NamedTensor;
use spectrain_checkpoints::Rope;
use spectrain_checkpoints::folder::CONFIG;
use spectrain_checkpoints::names::EMBEDDING;
use spectrain_checkpoints::once::warn_once;
use spectrain_checkpoints::printable;
use spectrain_data::tokens::TokenShards;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::weights::host_f32;
use spectrain_models::{RopeConfig, RopeScaling, TargetParts};

use crate::runtime::target::{architectures_in, other_token};

/// How often texts, prompts included, hold tokens that none may hold, each of which a key of `[drafter]` names.
pub(crate) struct Unheld {
    tokens: Vec<(&'static str, u32)>,
    found: Vec<usize>,
}

impl Unheld {
    /// In no text yet.
    pub(crate) fn new(tokens: Vec<(&'static str, u32)>) -> Self {
        Self {
            found: vec![0; tokens.len()],
            tokens,
        }
    }

    /// Counts those of a text.
    pub(crate) fn count(&mut self, text: &[u32]) {
        for ((_, wanted), found) in self.tokens.iter().zip(&mut self.found) {
            *found += text.iter().filter(|&token| token == wanted).count();
        }
    }

    /// Fails where a text held one.
    pub(crate) fn check(&self) -> Result<()> {
        let mut all = self.tokens.iter().zip(&self.found);
        match all.find(|(_, found)| **found > 0) {
            None => Ok(()),
            Some(((key, token), found)) => bail!(
                "`[drafter] {key}`: expected a token that no text holds, found {token}, which the texts hold {found} times"
            ),
        }
    }
}

/// Those of some keys of `[drafter]` that have a token.
pub(crate) fn tokens_of<const N: usize>(
    keys: [(&'static str, Option<u32>); N],
) -> Vec<(&'static str, u32)> {
    let named = keys.map(|(key, token)| Some((key, token?)));
    named.into_iter().flatten().collect()
}

/// Fails where texts, prompts included, hold one of these tokens. Without any, nothing is read.
pub(crate) fn check_unheld(tokens: Vec<(&'static str, u32)>, texts: &TokenShards) -> Result<()> {
    if tokens.is_empty() {
        return Ok(());
    }
    let mut unheld = Unheld::new(tokens);
    for text in texts.iter() {
        unheld.count(text.tokens);
    }
    unheld.check()
}

/// That a drafter's folder is one for another target.
pub(crate) fn not_for_this(folder: &Path) -> String {
    format!("the drafter `{}` is not for this target", folder.display())
}

/// Fails where a drafter's tokens are not the target's: the same ids must stand for the same texts. Without a tokenizer on
/// either side nothing can be said.
pub(crate) fn check_tokenizer(folder: &Path, target: &TargetParts) -> Result<()> {
    let of_target = target.folder.as_deref();
    of_target.map_or(Ok(()), |of_target| check_same_tokens(folder, of_target))
}

/// The same of a target in the folder `of_target`.
pub(crate) fn check_same_tokens(folder: &Path, of_target: &Path) -> Result<()> {
    let has_tokenizer = |folder: &Path| folder.join("tokenizer.json").exists();
    if !has_tokenizer(folder) || !has_tokenizer(of_target) {
        return Ok(());
    }
    match other_token(folder, of_target)? {
        None => Ok(()),
        Some(difference) => bail!(
            "{}: {difference}; a drafter needs the tokenizer of its target",
            not_for_this(folder)
        ),
    }
}

/// Rotary positions as a layout has them.
pub(crate) fn rope_layout(rope: &RopeConfig) -> Rope {
    let scaling = match &rope.scaling {
        RopeScaling::Default => None,
        scaling => Some(scaling.written()),
    };
    Rope {
        rope_theta: rope.theta,
        scaling,
    }
}

/// Rotary positions that a folder's layout has, for heads of `d_head` and sequences of at most `positions`.
pub(crate) fn rope_config(
    folder: &Path,
    rope: &Rope,
    [d_head, positions]: [usize; 2],
) -> Result<RopeConfig> {
    let place = || {
        format!(
            "`{}`: `rope_parameters` or `rope_scaling`",
            folder.join(CONFIG).display()
        )
    };
    let scaling = match &rope.scaling {
        None => RopeScaling::Default,
        Some(scaling) => {
            let table = scaling.as_object().context("expected a table");
            let table = table.with_context(place)?;
            let (scaling, unread) = RopeScaling::read(table, positions).map_err(|error| {
                let known = "default, linear, llama3 or yarn";
                let kind = table.get("rope_type").map(ToString::to_string);
                anyhow!(
                    "{}: expected rotary scaling {known}, found `{}` ({})",
                    place(),
                    printable(&kind.unwrap_or_default()),
                    printable(&error)
                )
            })?;
            if !unread.is_empty() {
                warn_once(&format!(
                    "{}: `{}` is not read; rotary positions are as without it",
                    place(),
                    printable(&unread.join("`, `"))
                ));
            }
            scaling
        }
    };
    let rope = RopeConfig {
        theta: rope.rope_theta,
        scaling,
    };
    let checked = rope.check(d_head).map_err(anyhow::Error::msg);
    checked.with_context(place)?;
    Ok(rope)
}

/// The target's head over the draft vocabulary, as files hold it.
pub(crate) fn target_head(target: &TargetParts, vocabulary: &DraftVocabulary) -> NamedTensor {
    let rows = target.head_rows(vocabulary).transpose();
    let shape = rows.dims();
    NamedTensor::from_f32("lm_head.weight", shape, host_f32(rows.cast(BurnType::F32)))
}

/// The target's embedding, as files hold it.
pub(crate) fn target_embedding(target: &TargetParts) -> NamedTensor {
    let rows = target.embed_tokens.weight.val();
    let shape = rows.dims();
    NamedTensor::from_f32(EMBEDDING, shape, host_f32(rows.cast(BurnType::F32)))
}

/// Largest difference between a tensor of the target and its copy in a folder, relative to the largest element: bf16
/// keeps eight bits.
const ROUNDED: f32 = 0.01;

/// Whether a tensor of a folder is one of the target's, but for rounding.
pub(crate) fn is_copy(found: &NamedTensor, expected: &NamedTensor) -> Result<bool> {
    let (found, expected) = (found.to_f32()?, expected.to_f32()?);
    let largest = expected
        .iter()
        .fold(0.0f32, |largest, x| largest.max(x.abs()));
    let mut pairs = found.iter().zip(&expected);
    // Written so that NaN fails.
    let near = pairs.all(|(got, x)| (got - x).abs() <= ROUNDED * largest);
    Ok(near && found.len() == expected.len())
}

/// The names of the target's architecture, from its own configuration.
pub(crate) fn architectures(target: &TargetParts) -> Result<Vec<String>> {
    let folder = target.folder.as_deref();
    folder.map_or(Ok(Vec::new()), architectures_in)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use spectrain_data::Sample;
    use spectrain_data::tokens::TokenWriter;

    #[test]
    fn a_mask_token_that_only_prompts_hold_is_refused_too() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = TokenWriter::create(folder.path(), 100).unwrap();
        let sample = Sample {
            tokens: vec![7, 1, 2, 7],
            loss_mask: vec![false, false, true, false],
        };
        writer.push(&sample).unwrap();
        writer.finish(serde_json::Map::new()).unwrap();
        let texts = TokenShards::open(folder.path()).unwrap();
        let check = |token: u32| check_unheld(vec![("mask_token", 3), ("other", token)], &texts);
        check(4).unwrap();
        check_unheld(Vec::new(), &texts).unwrap();
        let error = check(7).unwrap_err().to_string();
        assert!(
            error.contains("other") && error.ends_with("found 7, which the texts hold 2 times"),
            "{error}"
        );
    }

    #[test]
    fn positions_of_a_folder_are_written_with_the_corrections_that_it_had() {
        let table = |more: serde_json::Value| {
            let mut table =
                json!({"rope_type": "yarn", "factor": 64.0, "beta_fast": 1.0, "beta_slow": 1.0});
            let into = table.as_object_mut().unwrap();
            into.extend(more.as_object().unwrap().clone());
            Rope {
                rope_theta: 5e4,
                scaling: Some(table),
            }
        };
        let read = |rope: &Rope| rope_config(Path::new("drafter"), rope, [112, 4096]);
        let corrected = read(&table(json!({"mscale": 1.0, "mscale_all_dim": 1.0}))).unwrap();
        let given = read(&table(json!({"attention_factor": 1.0}))).unwrap();
        assert_eq!(corrected, given);
        assert_ne!(corrected, read(&table(json!({}))).unwrap());
        let written = rope_layout(&corrected);
        assert_eq!(read(&written).unwrap(), corrected);
        let scaling = written.scaling.unwrap();
        assert_eq!(scaling["attention_factor"], 1.0);
        for key in ["mscale", "mscale_all_dim"] {
            assert!(
                (scaling[key].as_f64().unwrap() - 1.0).abs() < 1e-12,
                "{scaling}"
            );
        }
        let error = read(&table(json!({"beta_fast": 0.5}))).unwrap_err();
        assert!(format!("{error:#}").contains("`beta_fast`"), "{error:#}");
    }
}

/// What the tests of all kinds of drafters start from.
#[cfg(test)]
pub(crate) mod samples {
    use super::*;
    use burn::prelude::Device;
    use spectrain_checkpoints::{DType, ModelFolder};
    use spectrain_models::load_target;

    /// A Llama of a few thousand parameters.
    pub(crate) fn target() -> TargetParts {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/targets/llama");
        let model = ModelFolder::open(folder).unwrap();
        let model = load_target(&model, &Device::flex(), DType::F32).unwrap();
        model.parts()
    }

    /// `size` of its tokens; all where that is 0.
    pub(crate) fn vocabulary(size: usize) -> DraftVocabulary {
        let vocab = target().spec.vocab;
        let counts: Vec<u64> = (0..vocab as u64).map(|token| token * 7 % 13).collect();
        match size {
            0 => DraftVocabulary::full(vocab),
            size => DraftVocabulary::from_counts(&counts, size, &[]).unwrap(),
        }
    }
}

//! Reads a drafter's folder, whichever dialect it is in, for a target that it has to fit.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use burn::prelude::Device;
use serde_json::Value;
use spectrain_checkpoints::dialect::{Dialect, Meaning, Opened, Reading, Settings, SharedHead};
use spectrain_checkpoints::known::open_folder;
use spectrain_checkpoints::names::{EMBEDDING, wrapped};
use spectrain_checkpoints::{ModelFolder, NamedTensor};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::listing::parameters;
use spectrain_models::weights::TensorWeights;
use spectrain_models::{TargetParts, TargetSpec};

use super::settings::{D_HEAD, config_of, keys_of};
use crate::families::drafter_folder::{
    is_copy, not_for_this, rope_config, target_embedding, target_head,
};
use crate::families::family::Family;

/// The target's head, which folders may repeat.
const HEAD: &str = "lm_head.weight";

/// A folder's settings without a width of heads that is the target's, which recipes leave out.
fn beside_target_heads(found: &Settings, target: &TargetSpec) -> Settings {
    let mut settings = found.clone();
    if found.size(D_HEAD) == target.d_head {
        settings.set(D_HEAD, Value::Null);
    }
    settings
}

/// What a folder says of its drafter, before its weights are read.
pub(super) struct Told<'a, D: Family> {
    opened: Opened<'a>,
    pub(super) config: D::Config,
    /// Its target's sizes, with the norms and positions that are its own.
    pub(super) spec: TargetSpec,
    pub(super) draft_vocab: usize,
}

impl<'a, D: Family> Told<'a, D> {
    pub(super) fn of(
        model: &'a ModelFolder,
        (dialect, reading): (&'static Dialect, Reading),
        target: &TargetSpec,
    ) -> Result<Self> {
        let folder = model.path();
        let opened = dialect.open(model, reading)?;
        let found = &opened.settings;
        check_fit::<D>(found, target).with_context(|| not_for_this(folder))?;
        let of_drafter = || format!("the drafter `{}`", folder.display());
        let config =
            config_of::<D>(&beside_target_heads(found, target)).with_context(of_drafter)?;
        D::check(&config).with_context(of_drafter)?;
        let mut spec = target.clone();
        adopt(folder, found, &mut spec)?;
        let draft_vocab = match found.size("draft_vocab") {
            0 => spec.vocab,
            size => size,
        };
        Ok(Self {
            opened,
            config,
            spec,
            draft_vocab,
        })
    }
}

/// Reads a drafter's folder, ours or a published one, as `reading` says or, where it says nothing, as is likeliest.
pub(crate) fn open<D: Family>(
    folder: &Path,
    reading: Option<&Reading>,
    target: &TargetParts,
    device: &Device,
) -> Result<D> {
    let model = open_folder(folder)?;
    let dialect = dialect_of::<D>(&model)?;
    let reading = match reading {
        Some(reading) => reading.clone(),
        None => {
            let meanings = dialect.meanings(&model, &reading_for(&target.spec), None)?;
            warn_of_others(&model, &meanings);
            likeliest(meanings, &target.spec)
        }
    };
    let Told {
        opened,
        config,
        spec,
        draft_vocab,
    } = Told::<D>::of(&model, (dialect, reading), &target.spec)?;
    let (found, vocab) = (opened.settings.clone(), spec.vocab);
    let parts = TargetParts {
        spec,
        ..target.clone()
    };
    let not_for_this = || not_for_this(folder);
    let listed = parameters::<D>(&config, &parts.spec, draft_vocab).with_context(not_for_this)?;
    let contents = opened.tensors(&listed)?;
    let vocabulary = match &contents.target_ids {
        None => DraftVocabulary::full(vocab),
        Some(ids) => {
            let offsets: Vec<i64> = ids
                .iter()
                .zip(0..)
                .map(|(&id, draft)| id as i64 - draft)
                .collect();
            DraftVocabulary::from_d2t(&offsets, vocab)?
        }
    };
    let is_own = |name: &str| listed.iter().any(|(listed, _)| listed == name);
    if !is_own(EMBEDDING) {
        check_repeated((&model, dialect), EMBEDDING, &|| target_embedding(target))?;
    }
    if found.shares_head() && dialect.shared_head == SharedHead::Beside {
        check_shared_head(&model, &target_head(target, &vocabulary)).with_context(not_for_this)?;
    } else if !is_own(HEAD) {
        check_repeated((&model, dialect), HEAD, &|| {
            target_head(target, &vocabulary)
        })?;
    }
    let mut weights = TensorWeights::new(contents.parameters, folder.display().to_string());
    Ok(D::new(&config, &parts, &vocabulary, &mut weights, device)?)
}

/// The dialect of a folder.
pub(super) fn dialect_of<D: Family>(model: &ModelFolder) -> Result<&'static Dialect> {
    let mut dialects = D::DIALECTS.iter().map(|(dialect, _)| *dialect);
    let found = dialects.clone().find(|dialect| (dialect.recognises)(model));
    // One that does not know the folder says what it expected.
    let usual = found.or_else(|| dialects.next());
    usual.with_context(|| format!("{} drafters have no folders", D::KIND))
}

/// What a folder leaves open, taken as is likeliest for this target.
pub(super) fn likeliest(meanings: Vec<Meaning>, target: &TargetSpec) -> Reading {
    let likeliest = meanings.into_iter().next();
    likeliest.map_or_else(|| reading_for(target), |meaning| meaning.reading)
}

/// Warns of what else a folder can mean than what is likeliest.
fn warn_of_others(model: &ModelFolder, meanings: &[Meaning]) {
    if let [taken, other, ..] = meanings {
        tracing::warn!(
            "`{}` can be read in {} ways; it is read so: {}; another way: {}; `spectrain import` measures which way is right",
            model.path().display(),
            meanings.len(),
            taken.text,
            other.text
        );
    }
}

/// What a target says of its drafters' folders.
pub(crate) fn reading_for(target: &TargetSpec) -> Reading {
    Reading {
        target_layers: Some(target.layers),
        target_vocab: Some(target.vocab),
        ..Reading::default()
    }
}

/// Fails on the first size of a folder that should be the target's and is another.
fn check_fit<D: Family>(found: &Settings, target: &TargetSpec) -> Result<()> {
    let own = keys_of::<D>();
    let sizes = [
        ("hidden size", "d_model", target.d_model),
        ("width of a head", D_HEAD, target.d_head),
        ("target vocabulary", "vocab", target.vocab),
        ("layers of its target", "target_layers", target.layers),
        ("feed-forward width", "d_ff", target.d_ff),
        ("query heads", "heads", target.heads),
        ("key and value heads", "kv_heads", target.kv_heads),
    ];
    for (what, key, expected) in sizes
        .into_iter()
        .filter(|(_, key, _)| own.get(key).is_none())
    {
        let found = found.get(key).map(|_| found.size(key));
        if let Some(found) = found.filter(|&found| found != expected) {
            bail!("{what}: expected {expected}, found {found}");
        }
    }
    let (draft_vocab, vocab) = (found.size("draft_vocab"), target.vocab);
    if draft_vocab > vocab {
        bail!("draft vocabulary: expected at most {vocab}, found {draft_vocab}");
    }
    Ok(())
}

/// A drafter's norms and positions may be other than its target's.
fn adopt(folder: &Path, found: &Settings, spec: &mut TargetSpec) -> Result<()> {
    if let Some(epsilon) = found.get("norm_epsilon").and_then(Value::as_f64) {
        spec.norm_epsilon = epsilon;
    }
    if let Some(rope) = found.rope() {
        let sizes = [found.size(D_HEAD), found.size("max_positions")];
        spec.rope = rope_config(folder, &rope, sizes)?;
    }
    Ok(())
}

/// Warns if a tensor that a folder repeats of the target differs from it: the target's is what drafts, as in SGLang.
fn check_repeated(
    (model, dialect): (&ModelFolder, &Dialect),
    name: &str,
    of_target: &dyn Fn() -> NamedTensor,
) -> Result<()> {
    let Some(own) = wrapped(model, name) else {
        return Ok(());
    };
    if !is_copy(&model.read(&own.name)?, &of_target())? {
        tracing::warn!(
            "`{name}` in `{}` differs from the target's; {}",
            model.path().display(),
            used_for_repeated(dialect, name)
        );
    }
    Ok(())
}

/// What is used in the place of a tensor that a folder of a dialect repeats, and that is not the target's.
fn used_for_repeated(dialect: &Dialect, name: &str) -> String {
    let of_vllm = match dialect.vllm_refuses.contains(&name) {
        true => "vLLM does not load a folder that has it",
        false => "vLLM uses the drafter's own, and may accept more or less of its drafts",
    };
    format!("spectrain uses the target's, as SGLang does; {of_vllm}")
}

/// Fails unless the head that a folder repeats is the target's: its drafter has no other.
fn check_shared_head(model: &ModelFolder, of_target: &NamedTensor) -> Result<()> {
    let own = wrapped(model, HEAD).with_context(|| format!("no `{HEAD}`"))?;
    if is_copy(&model.read(&own.name)?, of_target)? {
        return Ok(());
    }
    bail!("`{HEAD}`: expected the target's, which the drafter's heads share, found another one")
}

#[cfg(test)]
mod tests {
    use super::*;
    use spectrain_checkpoints::eagle1::EAGLE1;
    use spectrain_checkpoints::eagle3::EAGLE3;

    #[test]
    fn a_head_that_vllm_does_not_load_is_not_said_to_be_used_there() {
        for (dialect, name, loads) in [
            (&EAGLE1, HEAD, false),
            (&EAGLE1, EMBEDDING, true),
            (&EAGLE3, HEAD, true),
        ] {
            let told = used_for_repeated(dialect, name);
            assert!(told.contains("as SGLang does"), "{told}");
            let used = "vLLM uses the drafter's own";
            assert_eq!(told.contains(used), loads, "{told}");
            assert_eq!(told.contains("vLLM does not load"), !loads, "{told}");
        }
    }
}

//! Targets on the disk: their folder, the files in it, and what can be read without their weights.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::{Map, Value};
use spectrain_checkpoints::folder::{CONFIG, GENERATION_CONFIG};
use spectrain_checkpoints::known::dialect_of;
use spectrain_checkpoints::printable;
use spectrain_checkpoints::{HubOptions, ModelFolder, seal};
use spectrain_data::template::ChatTemplate;
use spectrain_data::tokenizer::Tokenizer;
use spectrain_models::{Error, PartsConfig, TargetSpec, TransformerConfig, is_part};

use crate::runs::hashes::HashMemory;
use crate::runs::run_folder::left_before;
use crate::runtime::capture::class::states_elsewhere;
use crate::runtime::interruption::interrupted;
use crate::runtime::model_files::{part_files, read_json, weight_files};

/// The key of the variables of a chat template, in recipes and in what folders say of their origin.
pub const TEMPLATE_VARIABLES: &str = "template_variables";

/// The folder of a hub id or of a folder; downloads what is missing.
pub fn resolve(model: &str, revision: Option<&str>) -> Result<PathBuf> {
    resolve_as("target", model, revision)
}

/// The same for a model that is the `what` of a target.
pub fn resolve_as(what: &str, model: &str, revision: Option<&str>) -> Result<PathBuf> {
    spectrain_checkpoints::resolve(model, revision, &hub_options())
        .map_err(|error| not_opened(what, model, error))
}

/// The folder of a target of which only embedding, norm and head are read: of weights in shards no others are downloaded.
pub fn resolve_parts(model: &str, revision: Option<&str>) -> Result<PathBuf> {
    resolve_some("target", model, revision, &is_part)
}

/// The folder of the `what` of a target: of weights in shards only those with a tensor that is `wanted` are downloaded.
pub fn resolve_some(
    what: &str,
    model: &str,
    revision: Option<&str>,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<PathBuf> {
    spectrain_checkpoints::resolve_parts(model, revision, wanted, &hub_options())
        .map_err(|error| not_opened(what, model, error))
}

/// The error about the `what` of a target that cannot be opened; of one that a run makes and has set aside, where it is now.
fn not_opened(what: &str, model: &str, error: spectrain_checkpoints::Error) -> anyhow::Error {
    let why = left_before(Path::new(model));
    let error = why.map_or_else(|| error.into(), |why| anyhow!(why));
    error.context(format!("cannot open the {what} `{model}`"))
}

/// How the hub is asked by a program that may be stopped.
pub fn hub_options() -> HubOptions {
    HubOptions {
        stop: Some(interrupted),
        ..HubOptions::default()
    }
}

/// SHA-256 of the files that decide what a target computes.
pub fn sha256(folder: &Path) -> Result<String> {
    HashMemory::default().of_all(&weight_files(folder)?)
}

/// Whether a hash is that of the target in a folder: of all of it, or of what a drafter shares of it.
pub fn is_of(folder: &Path, sha256: &str) -> Result<bool> {
    let parts = HashMemory::default().of_all(&part_files(folder)?)?;
    Ok(parts == sha256 || self::sha256(folder)? == sha256)
}

/// SHA-256 of a drafter: its weights, and its configuration without what an evaluation found.
pub fn sha256_of_drafter(folder: &Path) -> Result<String> {
    HashMemory::default().of_drafter(folder)
}

/// The tokens at which the target in a folder stops, of whose weights none need be there.
pub fn stop_tokens_in(folder: &Path) -> Result<Vec<u32>> {
    stop_tokens(&ModelFolder::open_some(folder, &|_| false)?)
}

/// The target that a drafter's folder says it was trained for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainedFor {
    /// Its name.
    pub model: String,
    /// See [`sha256`].
    pub sha256: String,
}

impl TrainedFor {
    /// That the target that is called so has other weights.
    pub fn is_not(&self, drafter: &Path, target: &str) -> String {
        format!(
            "the drafter `{}` was trained for `{}`, which has other weights than `{target}`",
            drafter.display(),
            self.model
        )
    }
}

/// What a drafter's folder says of its target.
pub fn trained_for(drafter: &ModelFolder) -> Option<TrainedFor> {
    trained_for_by(seal::provenance(drafter.config())?)
}

/// The same by what is known of its origin.
pub fn trained_for_by(provenance: &Value) -> Option<TrainedFor> {
    let target = &provenance["target"];
    let text = |key: &str| target[key].as_str().map(printable);
    Some(TrainedFor {
        model: text("model")?,
        sha256: text("sha256")?,
    })
}

/// Whether nothing but an import says which target a drafter's folder is for.
pub fn is_assumed(drafter: &ModelFolder) -> bool {
    let provenance = seal::provenance(drafter.config());
    provenance.is_some_and(|found| found["imported"].is_object() && found["original"].is_null())
}

/// Whether a drafter needs nothing of its target but the text: it drafts for any target with its tokens.
pub fn drafts_by_text(drafter: &ModelFolder) -> bool {
    dialect_of(drafter).is_ok_and(|dialect| dialect.by_text)
}

/// The target that a drafter's folder says it was trained for, where that has other weights than the one in `target` and
/// the drafter reads what it computes.
pub fn other_target(drafter: &ModelFolder, target: &Path) -> Result<Option<TrainedFor>> {
    match trained_for(drafter) {
        Some(named) if !drafts_by_text(drafter) && !is_of(target, &named.sha256)? => {
            Ok(Some(named))
        }
        _ => Ok(None),
    }
}

/// The sizes of the target in a folder, from its `config.json`. Where its layers are none that are computed here, they are what
/// a drafter takes for its own.
pub fn spec(folder: &Path) -> Result<TargetSpec> {
    let path = folder.join("config.json");
    let config = read_json(&path)?;
    let refused = match TransformerConfig::read(&config, &path) {
        Ok(found) => return Ok(found.spec),
        // What this says of an architecture that it knows is the better message.
        Err(refused) if !matches!(refused, Error::Architecture { .. }) => bail!(refused),
        Err(refused) => refused,
    };
    let parts = PartsConfig::read(&config, &path);
    let parts =
        parts.map_err(|error| anyhow!("{refused}; nor can a server of it be used: {error}"));
    Ok(parts?.spec)
}

/// The names of the classes of the model in a folder, as its configuration has them.
pub fn architectures_in(folder: &Path) -> Result<Vec<String>> {
    let config = read_json(&folder.join(CONFIG))?;
    let names = config["architectures"].as_array();
    let names = names.into_iter().flatten().filter_map(Value::as_str);
    Ok(names.map(str::to_owned).collect())
}

/// The first of them, where there is one.
pub fn class_in(folder: &Path) -> Option<String> {
    architectures_in(folder).ok()?.into_iter().next()
}

/// What of the configuration of a target in a folder its drafters go without.
pub fn remarks(folder: &Path) -> Result<Vec<String>> {
    let path = folder.join("config.json");
    Ok(PartsConfig::read(&read_json(&path)?, &path)?.remarks)
}

/// Fails where a target's layers are none that are computed here.
pub fn check_computed(folder: &Path) -> Result<()> {
    let path = folder.join(CONFIG);
    let Err(refused) = TransformerConfig::read(&read_json(&path)?, &path) else {
        return Ok(());
    };
    let what = || format!("cannot compute the target `{}`", folder.display());
    // Where its states from elsewhere are of no use either, that is what is told.
    spec(folder).with_context(what)?;
    let elsewhere = states_elsewhere(class_in(folder).as_deref());
    Err(refused).with_context(|| format!("{}; {elsewhere}", what()))
}

/// The tokenizer of a target and its chat template, or the one in `template`, with variables that it reads. A target may
/// have none.
pub fn text(
    folder: &Path,
    template: Option<&Path>,
    variables: &Map<String, Value>,
) -> Result<(Tokenizer, Option<ChatTemplate>)> {
    let (tokenizer, template) = plain_text(folder, template)?;
    let with_variables = |template: ChatTemplate| template.with_variables(variables.clone());
    match template {
        None if !variables.is_empty() => bail!(
            "`{}` has no chat template that could read the variables {}",
            folder.display(),
            Value::Object(variables.clone())
        ),
        template => Ok((tokenizer, template.map(with_variables))),
    }
}

/// The variables of the chat template that a drafter's folder says it was trained or imported with.
pub fn template_variables(drafter: &ModelFolder) -> Map<String, Value> {
    let provenance = seal::provenance(drafter.config());
    let found = provenance.and_then(variables_of);
    found.cloned().unwrap_or_default()
}

/// The variables of the chat template in what a drafter's folder says of its origin.
pub fn variables_of(provenance: &Value) -> Option<&Map<String, Value>> {
    let trained = provenance["recipe"]["data"][TEMPLATE_VARIABLES].as_object();
    trained.or_else(|| provenance[TEMPLATE_VARIABLES].as_object())
}

fn plain_text(folder: &Path, template: Option<&Path>) -> Result<(Tokenizer, Option<ChatTemplate>)> {
    let tokenizer = Tokenizer::from_folder(folder)?;
    if let Some(path) = template {
        let source = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the template `{}`", path.display()))?;
        let template =
            ChatTemplate::from_source(&source, tokenizer.bos_token(), tokenizer.eos_token())
                .with_context(|| format!("the template `{}`", path.display()))?;
        return Ok((tokenizer, Some(template.read_from(path))));
    }
    Ok((tokenizer, ChatTemplate::find(folder)?))
}

/// A token that is another one in another tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("token {id}: expected `{}`, as in `{}`, found `{}`", printable(.expected), .like.display(), printable(.found))]
pub struct OtherToken {
    /// Its id.
    pub id: u32,
    /// What it should stand for.
    pub expected: String,
    /// The folder in which it does.
    pub like: PathBuf,
    /// What it stands for.
    pub found: String,
}

/// The first token of `folder` that stands for another text in `like`; of ids that only one of them knows nothing is said.
pub fn other_token(folder: &Path, like: &Path) -> Result<Option<OtherToken>> {
    let (own, theirs) = (
        Tokenizer::from_folder(folder)?,
        Tokenizer::from_folder(like)?,
    );
    if own.fingerprint() == theirs.fingerprint() {
        return Ok(None);
    }
    let shared = own.vocab_size().min(theirs.vocab_size()) as u32;
    let other = (0..shared).find(|&id| own.token(id) != theirs.token(id));
    Ok(other.map(|id| OtherToken {
        id,
        expected: theirs.token(id).unwrap_or_default(),
        like: like.to_owned(),
        found: own.token(id).unwrap_or_default(),
    }))
}

/// The tokens at which the target stops, as its generation settings say, else its configuration, else its tokenizer.
pub fn stop_tokens(model: &ModelFolder) -> Result<Vec<u32>> {
    let found = stop_tokens_of(model.path(), model.generation_config(), model.config())?;
    found.map_or_else(|| end_of_text(model.path()), Ok)
}

/// The same of a target in a folder that may hold no weights at all.
pub fn stop_tokens_by_text(folder: &Path) -> Result<Vec<u32>> {
    let generation = folder.join(GENERATION_CONFIG);
    let generation = generation.exists().then(|| read_json(&generation));
    let (generation, config) = (generation.transpose()?, read_json(&folder.join(CONFIG))?);
    let found = stop_tokens_of(folder, generation.as_ref(), &config)?;
    found.map_or_else(|| end_of_text(folder), Ok)
}

/// The first ids that settings name, the generation settings and the configuration.
///
/// # Errors
/// The target has no token of such an id.
fn stop_tokens_of(
    folder: &Path,
    generation: Option<&Value>,
    config: &Value,
) -> Result<Option<Vec<u32>>> {
    let named = |settings: &Value| -> Vec<u32> {
        match &settings["eos_token_id"] {
            Value::Array(ids) => ids.iter().filter_map(token).collect(),
            id => token(id).into_iter().collect(),
        }
    };
    let vocab = config["vocab_size"].as_u64().unwrap_or(u64::MAX);
    for (file, settings) in [(GENERATION_CONFIG, generation), (CONFIG, Some(config))] {
        let ids = settings.map(named).unwrap_or_default();
        if let Some(id) = ids.iter().find(|&&id| u64::from(id) >= vocab) {
            bail!(
                "`{}`: key `eos_token_id`: expected ids below {vocab}, the number of the target's tokens, found {id}",
                folder.join(file).display()
            );
        }
        if !ids.is_empty() {
            return Ok(Some(ids));
        }
    }
    Ok(None)
}

/// The token that ends a text, as the tokenizer in a folder says.
fn end_of_text(folder: &Path) -> Result<Vec<u32>> {
    let tokenizer = Tokenizer::from_folder(folder)?;
    let eos = tokenizer.eos_token();
    let token = eos.and_then(|eos| tokenizer.token_id(eos));
    Ok(token.into_iter().collect())
}

fn token(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_token_to_stop_at_that_the_target_does_not_have_is_refused_by_file_and_key() {
        let stop = |generation: Value, config: Value| {
            stop_tokens_of(Path::new("t"), Some(&generation), &config)
        };
        let config = json!({"vocab_size": 10, "eos_token_id": 9});
        let found = stop(json!({"eos_token_id": [1, 2]}), config.clone()).unwrap();
        assert_eq!(found, Some(vec![1, 2]));
        assert_eq!(stop(json!({}), config.clone()).unwrap(), Some(vec![9]));
        assert_eq!(stop(json!({}), json!({})).unwrap(), None);
        let error = stop(json!({"eos_token_id": [1, 10]}), config).unwrap_err();
        let place = "`t/generation_config.json`: key `eos_token_id`: expected ids below 10";
        assert!(error.to_string().starts_with(place), "{error}");
    }

    #[test]
    fn who_else_has_the_states_of_a_target_that_is_not_computed_here_depends_on_its_class() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |more: Value| {
            let mut config = json!({
                "model_type": "other", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100,
            });
            let more = more.as_object().unwrap().clone();
            config.as_object_mut().unwrap().extend(more);
            std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
            format!("{:#}", check_computed(folder.path()).unwrap_err())
        };
        let of_class = |class: &str| refused(json!({"architectures": [class]}));
        let (served, option) = ("`features.mode = \"served\"`", "--model-impl transformers");
        for told in [of_class("GptOssForCausalLM"), refused(json!({}))] {
            assert!(told.contains(served) && !told.contains(option), "{told}");
        }
        let told = of_class("Glm4MoeForCausalLM");
        assert!(told.contains(served) && told.contains(option), "{told}");
        let told = of_class("JambaForCausalLM");
        assert!(!told.contains(served), "{told}");
        assert!(told.contains("`features.mode = \"imported\"`"), "{told}");
    }

    #[test]
    fn a_target_that_no_server_can_stand_in_for_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let config = json!({
            "model_type": "cohere2", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100,
            "layer_norm_eps": 1e-5,
        });
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let error = spec(folder.path()).unwrap_err().to_string();
        let computed = format!("{:#}", check_computed(folder.path()).unwrap_err());
        for told in ["unsupported architecture `cohere2`", "key `layer_norm_eps`"] {
            assert!(error.contains(told), "{error}");
            assert!(computed.contains(told), "{computed}");
        }
        let start = "cannot compute the target";
        assert!(computed.starts_with(start), "{computed}");
        assert!(!computed.contains("features.mode"), "{computed}");
    }
}

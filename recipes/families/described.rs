//! Drafters that a dialect describes: read from folders and written to them, whatever they are.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use burn::prelude::Device;
use schemars::SchemaGenerator;
use serde_json::{Map, Value, json};
use spectrain_checkpoints::beside::{TARGET_HEADS, TARGET_SCALES_LOGITS};
use spectrain_checkpoints::dialect::{
    Dialect, Meaning, Opened, Reading, Settings, SharedHead, Written,
};
use spectrain_checkpoints::known::open_folder;
use spectrain_checkpoints::launch::Launch;
use spectrain_checkpoints::names::{EMBEDDING, wrapped};
use spectrain_checkpoints::{ModelFolder, NamedTensor};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_eval::Reach;
use spectrain_models::listing::{Parameter, hollow, parameters};
use spectrain_models::weights::{CHOICE_BIAS, TensorWeights, export};
use spectrain_models::{TargetParts, TargetSpec};

use crate::families::drafter_folder::{
    architectures, is_copy, not_for_this, rope_config, rope_layout, target_embedding, target_head,
};
use crate::families::family::{Family, Writing};
use crate::families::footprint::{Footprint, in_matrices, values};
use crate::families::target_traits::TargetTraits;
use crate::recipe::inline::inline;
use crate::recipe::tables::Engine;

/// The target's head, which folders may repeat.
const HEAD: &str = "lm_head.weight";

/// The width of heads: a key of `[drafter]` that is left out where it is the target's.
const D_HEAD: &str = "d_head";

/// What a drafter is, in the words of dialects.
pub(crate) fn settings<D: Family>(drafter: &D) -> Result<Settings> {
    let (spec, draft_vocab) = (&drafter.target().spec, drafter.vocabulary().len());
    settings_of::<D>(drafter.config(), spec, draft_vocab)
}

/// The same of a drafter that is yet to be.
fn settings_of<D: Family>(
    config: &D::Config,
    spec: &TargetSpec,
    draft_vocab: usize,
) -> Result<Settings> {
    let mut settings = Settings::of(table_of::<D>(config)?);
    let of_target = [
        ("d_model", spec.d_model),
        ("d_ff", spec.d_ff),
        ("heads", spec.heads),
        ("kv_heads", spec.kv_heads),
        (D_HEAD, spec.d_head),
        ("vocab", spec.vocab),
        ("target_layers", spec.layers),
        ("max_positions", spec.max_positions),
    ];
    for (key, size) in of_target {
        // A drafter's own sizes are in its settings.
        if settings.get(key).is_none() {
            settings.set(key, size);
        }
    }
    settings.set("norm_epsilon", spec.norm_epsilon);
    settings.set("draft_vocab", draft_vocab);
    settings.set_rope(&rope_layout(&spec.rope));
    if settings.word("head") == "copied" {
        // What it started as is in no folder.
        settings.set("head", "own");
    }
    Ok(settings)
}

/// A drafter's `[drafter]` table, with all keys that it has.
fn table_of<D: Family>(config: &D::Config) -> Result<Map<String, Value>> {
    match serde_json::to_value(config).context("cannot write the settings")? {
        Value::Object(table) => Ok(table),
        _ => bail!("the settings of {} drafters are no table", D::KIND),
    }
}

/// The keys of a `[drafter]` table, with those that are written only where they are given.
fn keys_of<D: Family>() -> Value {
    let schema = SchemaGenerator::default().into_root_schema_for::<D::Config>();
    schema.get("properties").cloned().unwrap_or_default()
}

/// The `[drafter]` table that a folder's settings are.
///
/// # Errors
/// A folder, of a layout that other drafters have too, says what no key of the table can say.
fn config_of<D: Family>(settings: &Settings) -> Result<D::Config> {
    let known = keys_of::<D>();
    if let Some((key, value)) = settings.beyond(&known) {
        bail!(
            "`{key}`: expected nothing, as {} drafters have no such setting, found {}",
            D::KIND,
            inline(value)
        );
    }
    let table = settings.table().iter();
    let table = table.filter(|(key, value)| known.get(key).is_some() && !value.is_null());
    let table: Value = table
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    serde_json::from_value(table).context("cannot read the settings")
}

/// A folder's settings without a width of heads that is the target's, which recipes leave out.
fn beside_target_heads(found: &Settings, target: &TargetSpec) -> Settings {
    let mut settings = found.clone();
    if found.size(D_HEAD) == target.d_head {
        settings.set(D_HEAD, Value::Null);
    }
    settings
}

/// What a folder says of its drafter, before its weights are read.
struct Told<'a, D: Family> {
    opened: Opened<'a>,
    config: D::Config,
    /// Its target's sizes, with the norms and positions that are its own.
    spec: TargetSpec,
    draft_vocab: usize,
}

impl<'a, D: Family> Told<'a, D> {
    fn of(
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
pub(crate) fn dialect_of<D: Family>(model: &ModelFolder) -> Result<&'static Dialect> {
    let mut dialects = D::DIALECTS.iter().map(|(dialect, _)| *dialect);
    let found = dialects.clone().find(|dialect| (dialect.recognises)(model));
    // One that does not know the folder says what it expected.
    let usual = found.or_else(|| dialects.next());
    usual.with_context(|| format!("{} drafters have no folders", D::KIND))
}

/// What a folder leaves open, taken as is likeliest for this target.
fn likeliest(meanings: Vec<Meaning>, target: &TargetSpec) -> Reading {
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

/// Adds to a drafter's settings what commands depend on of a target.
pub(crate) fn set_target(settings: &mut Settings, target: &TargetParts) -> Result<()> {
    let Some(folder) = target.folder.as_deref() else {
        return Ok(());
    };
    TargetTraits::in_folder(folder)?.tell(settings);
    Ok(())
}

/// Why no engine serves a drafter beside a target, where nothing but its settings and these traits decides it.
pub(crate) fn unserved_beside<D: Family>(
    config: &D::Config,
    target: &TargetTraits,
) -> Result<Option<String>> {
    let mut settings = Settings::of(table_of::<D>(config)?);
    target.tell(&mut settings);
    let (dialect, _) = D::DIALECTS[0];
    let lines = dialect.launch_lines(&settings, Path::new("drafter"), "target", 1);
    let is_remark = |line: &Launch| line.server.is_none();
    let remark = lines.first().filter(|_| lines.iter().all(is_remark));
    Ok(remark.map(|line| line.text.trim_start_matches("# ").to_owned()))
}

/// See `Shipped::check_export`.
pub(crate) fn check_export<D: Family>(
    config: &D::Config,
    to: &[Engine],
    spec: &TargetSpec,
    target: &TargetTraits,
) -> Result<[Vec<Engine>; 2]> {
    if D::DIALECTS[0].0.is_language_model {
        return Ok(Default::default());
    }
    let settings = settings_at_start::<D>(config, spec, target)?;
    for (dialect, engine) in D::DIALECTS {
        let is_asked = engine.is_some_and(|engine| to.contains(&engine));
        if is_asked {
            check_layout(&settings, dialect).context("`export.to`")?;
        }
    }
    let known = engines_of::<D>(&settings);
    let unknown = to.iter().filter(|engine| !known.contains(engine));
    Ok([unknown.copied().collect(), known])
}

/// Fails for a drafter of these settings that a layout has no place for.
fn check_layout(settings: &Settings, dialect: &Dialect) -> Result<()> {
    let mut settings = settings.clone();
    writes_head(&mut settings, dialect);
    Ok(dialect.check_settings(&settings)?)
}

/// The engines that are known to load a drafter of these settings, each from a layout in which it can be written.
fn engines_of<D: Family>(settings: &Settings) -> Vec<Engine> {
    let mut known = Vec::new();
    for (dialect, engine) in D::DIALECTS {
        // The usual layout, which no engine has for itself, is written whatever is asked for.
        if engine.is_some() && check_layout(settings, dialect).is_err() {
            continue;
        }
        let lines = dialect.launch_lines(settings, Path::new("drafter"), "target", 1);
        let engines = lines.iter().filter_map(|line| line.server);
        known.extend(engines.map(Engine::of));
    }
    known
}

/// The keys of `[drafter]` with their values, each of which by itself keeps an engine from loading a drafter of these settings that it
/// would load with the defaults.
pub(crate) fn against<D: Family>(
    config: &D::Config,
    settings: &Settings,
    engine: Engine,
) -> Result<Vec<(String, Value)>> {
    if D::DIALECTS[0].0.is_language_model {
        return Ok(Vec::new());
    }
    let loads = |settings: &Settings| engines_of::<D>(settings).contains(&engine);
    let own = table_of::<D>(config)?;
    let defaults = table_of::<D>(&D::Config::default())?;
    let changed = own.keys().filter(|key| own.get(*key) != defaults.get(*key));
    let changed: Vec<&String> = changed.collect();
    let mut plain = settings.clone();
    for key in &changed {
        let default = match key.as_str() {
            // Their defaults leave the choice to the target.
            "draft_vocab" => settings.get("vocab"),
            "captured_layers" => settings.get(key),
            _ => defaults.get(*key),
        };
        plain.set(key, default.cloned().unwrap_or_default());
    }
    if !loads(&plain) {
        return Ok(Vec::new());
    }
    let found = changed.into_iter().filter_map(|key| {
        let mut one = plain.clone();
        one.set(key, settings.get(key)?.clone());
        let is_against = !loads(&one);
        is_against.then_some((key.clone(), own.get(key)?.clone()))
    });
    Ok(found.collect())
}

/// The same of a drafter that is yet to be.
pub(crate) fn against_at_start<D: Family>(
    config: &D::Config,
    engine: Engine,
    spec: &TargetSpec,
    target: &TargetTraits,
) -> Result<Vec<(String, Value)>> {
    let settings = settings_at_start::<D>(config, spec, target)?;
    against::<D>(config, &settings, engine)
}

/// The keys of `[drafter]` that are sizes of a layer, in the order of [`TargetSpec::layer_sizes`].
pub(crate) const LAYER: [&str; 3] = ["d_ff", "heads", "kv_heads"];

/// The settings that a drafter of the recipe's will have, as far as they are known before there is one.
fn settings_at_start<D: Family>(
    config: &D::Config,
    spec: &TargetSpec,
    target: &TargetTraits,
) -> Result<Settings> {
    let mut settings = settings_of::<D>(config, spec, spec.vocab)?;
    let table = table_of::<D>(config)?;
    if let Some(draft_vocab) = table.get("draft_vocab").and_then(Value::as_u64)
        && draft_vocab > 0
    {
        settings.set("draft_vocab", draft_vocab);
    }
    if table.contains_key("captured_layers") {
        settings.set("captured_layers", D::capture(config, spec)?.layers);
    }
    let size = |key: &str| {
        table
            .get(key)
            .and_then(Value::as_u64)
            .map(|size| size as usize)
    };
    if let [Some(d_ff), Some(heads), Some(kv_heads)] = LAYER.map(size) {
        let sizes = spec.layer_sizes(d_ff, heads, kv_heads)?;
        LAYER
            .iter()
            .zip(sizes)
            .for_each(|(key, size)| settings.set(key, size));
    }
    target.tell(&mut settings);
    // The sizes are often known of a target that is not on this machine.
    settings.set(TARGET_HEADS, spec.d_head);
    Ok(settings)
}

/// Whether the target's head, which a drafter shares, is written into its folder; the settings then say so.
fn writes_head(settings: &mut Settings, dialect: &Dialect) -> bool {
    let is_written = settings.shares_head()
        && match dialect.shared_head {
            SharedHead::Never => false,
            SharedHead::OfDraftVocabulary => {
                settings.has_draft_vocab() || settings.flag(TARGET_SCALES_LOGITS)
            }
            SharedHead::AsOwn | SharedHead::Beside => true,
        };
    if is_written && dialect.shared_head != SharedHead::Beside {
        settings.set("head", "own");
    }
    is_written
}

/// Writes a drafter's folder in a dialect, whole or not at all.
pub(crate) fn write<D: Family>(drafter: &D, dialect: &Dialect, writing: &Writing) -> Result<()> {
    let mut settings = settings(drafter)?;
    set_target(&mut settings, drafter.target())?;
    let vocabulary = drafter.vocabulary();
    let mut tensors = export(drafter);
    if writes_head(&mut settings, dialect) {
        tensors.push(target_head(drafter.target(), vocabulary));
    }
    let verifier = json!({
        "name": whole_name(writing.target)?,
        "architectures": architectures(drafter.target())?,
        "draft_tokens": drafter.max_depth().unwrap_or(writing.draft_length),
    });
    settings.set("verifier", verifier);
    let ids = vocabulary.target_ids().into_iter();
    let drafter = Written {
        settings,
        tensors,
        target_ids: (!vocabulary.is_full()).then(|| ids.map(|id| id as usize).collect()),
        dtype: writing.dtype,
        provenance: writing.provenance,
    };
    Ok(dialect.write(writing.folder, drafter)?)
}

/// A target as every process finds it, whatever folder that one is started in: one in a folder here by its absolute path.
fn whole_name(target: &str) -> Result<String> {
    if !Path::new(target).is_dir() {
        return Ok(target.to_owned());
    }
    let path = std::path::absolute(target);
    let path = path.with_context(|| format!("cannot find the folder `{target}`"))?;
    Ok(path.display().to_string())
}

/// Fails unless the drafter in `folder` is one of the settings `config`, to start from. Its weights are not read.
pub(crate) fn check_start<D: Family>(
    config: &D::Config,
    folder: &Path,
    target: &TargetSpec,
) -> Result<()> {
    let model = open_folder(folder)?;
    let dialect = dialect_of::<D>(&model)?;
    let meanings = dialect.meanings(&model, &reading_for(target), None)?;
    let told = Told::<D>::of(&model, (dialect, likeliest(meanings, target)), target)?;
    let kept = told.draft_vocab;
    let drafter = hollow::<D>(&told.config, &told.spec, kept);
    let found = settings(&drafter.with_context(|| not_for_this(folder))?)?;
    let given = serde_json::to_value(config).context("cannot write the settings")?;
    // Where no size is asked for, the one that is there is kept.
    let draft_vocab = match given["draft_vocab"].as_u64() {
        None | Some(0) => kept,
        Some(size) => size as usize,
    };
    let other = || {
        let folder = folder.display();
        format!("the drafter `{folder}` has other settings than `[drafter]`")
    };
    let asked = settings(&hollow::<D>(config, target, draft_vocab).with_context(other)?)?;
    let Value::Object(mut given) = given else {
        return Ok(());
    };
    let known = keys_of::<D>();
    for (key, schema) in known.as_object().into_iter().flatten() {
        if let Some(default) = unwritten(schema) {
            given.entry(key.as_str()).or_insert(default);
        }
    }
    let differing = given.iter().filter_map(|(key, value)| {
        let [expected, found] =
            [&asked, &found].map(|all| all.table().get(key).unwrap_or(&Value::Null));
        // A key that is left out takes what the folder has, but a table that is left out is another drafter.
        let is_taken = value.is_null() && !(expected.is_null() && found.is_object());
        let differs = !is_taken && !is_same(expected, found);
        differs.then(|| differs_in(key, expected, found))
    });
    let (all, keys): (Vec<_>, Vec<_>) = differing.unzip();
    if all.is_empty() {
        return Ok(());
    }
    bail!(
        "{}: {}; to train it further, `[drafter]` needs {}",
        other(),
        all.join("; "),
        keys.join(", ")
    );
}

/// What a key of `[drafter]` says where it is not written: one that cannot be null is left out where it is zero or off. Nothing of one
/// that can be null, which takes what a folder has.
fn unwritten(schema: &Value) -> Option<Value> {
    match schema["type"].as_str()? {
        "integer" => Some(json!(0)),
        "boolean" => Some(json!(false)),
        _ => None,
    }
}

/// What is asked for and there under a key of `[drafter]`, and what to write for what is there.
fn differs_in(key: &str, expected: &Value, found: &Value) -> (String, String) {
    let told = |value: &Value| match value {
        Value::Null => "nothing".to_owned(),
        value => inline(value),
    };
    let to_write = match found {
        Value::Null => format!("no `{key}`"),
        found => format!("`{key} = {}`", inline(found)),
    };
    let told = format!(
        "`{key}`: expected {}, found {}",
        told(expected),
        told(found)
    );
    (told, to_write)
}

/// The keys of `[drafter]` that describe the drafter that the folder of a target holds, as far as these are not the defaults; nothing
/// where it holds none of this kind. Its weights are not read.
pub(crate) fn beside_target<D: Family>(folder: &Path) -> Result<Option<Vec<(String, Value)>>> {
    let mut dialects = D::DIALECTS.iter().map(|(dialect, _)| *dialect);
    if !dialects.any(Dialect::may_be_beside_target) {
        return Ok(None);
    }
    let model = open_folder(folder)?;
    let dialect = dialect_of::<D>(&model)?;
    if !(dialect.recognises)(&model) {
        return Ok(None);
    }
    let opened = dialect.open(&model, Reading::default())?;
    beside_defaults::<D>(&config_of::<D>(&opened.settings)?).map(Some)
}

/// The keys of `[drafter]` that describe the drafter in a folder, as far as these are not the defaults: with them training can start
/// from it. Its weights are not read.
pub(crate) fn at_start<D: Family>(
    folder: &Path,
    target: &TargetSpec,
) -> Result<Vec<(String, Value)>> {
    let model = open_folder(folder)?;
    let dialect = dialect_of::<D>(&model)?;
    let meanings = dialect.meanings(&model, &reading_for(target), None)?;
    let told = Told::<D>::of(&model, (dialect, likeliest(meanings, target)), target)?;
    beside_defaults::<D>(&told.config)
}

/// The settings that are not the defaults.
pub(crate) fn beside_defaults<D: Family>(config: &D::Config) -> Result<Vec<(String, Value)>> {
    let [found, usual] = [config, &D::Config::default()]
        .map(|config| serde_json::to_value(config).context("cannot write the settings"));
    let (Value::Object(found), usual) = (found?, usual?) else {
        return Ok(Vec::new());
    };
    let own = |(key, value): &(String, Value)| !value.is_null() && !is_same(value, &usual[key]);
    Ok(found.into_iter().filter(own).collect())
}

/// Whether two settings are the same, but for digits that somebody left out.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            let [one, other] = [one, other].map(|number| number.as_f64().unwrap_or(f64::NAN));
            (one - other).abs() <= 1e-6 * other.abs()
        }
        (Value::Object(one), Value::Object(other)) => {
            let same = |(key, value)| other.get(key).is_some_and(|other| is_same(value, other));
            one.len() == other.len() && one.iter().all(same)
        }
        (one, other) => one == other,
    }
}

/// How many tokens a drafter of these settings proposes.
fn draft_vocab<D: Family>(config: &D::Config, target: &TargetSpec) -> Result<usize> {
    let given = serde_json::to_value(config).context("cannot write the settings")?;
    Ok(match given["draft_vocab"].as_u64() {
        None | Some(0) => target.vocab,
        Some(size) => size as usize,
    })
}

/// What a drafter of these settings can draft, by the drafter itself without its weights.
///
/// # Errors
/// The settings do not fit the target.
pub(crate) fn reach<D: Family>(config: &D::Config, target: &TargetSpec) -> Result<Reach> {
    let draft_vocab = draft_vocab::<D>(config, target)?;
    let drafter = hollow::<D>(config, target, draft_vocab)?;
    Ok(Reach::of_drafter(&drafter))
}

/// Sizes of a drafter, counted from the list of its parameters.
pub(crate) fn footprint<D: Family>(config: &D::Config, target: &TargetSpec) -> Result<Footprint> {
    let captured = D::capture(config, target)?.layers.len() as u64;
    let draft_vocab = draft_vocab::<D>(config, target)?;
    let listed = parameters::<D>(config, target, draft_vocab)?;
    let (untrained, listed): (Vec<_>, Vec<_>) = listed
        .into_iter()
        .partition(|(name, _)| name.ends_with(CHOICE_BIAS));
    let count = |(_, shape): &Parameter| values(shape);
    let of_head = listed
        .iter()
        .filter(|(name, _)| name.starts_with("lm_head"));
    Ok(Footprint {
        parameters: listed.iter().map(count).sum(),
        head: of_head.map(count).sum(),
        matrices: in_matrices(&listed),
        frozen: untrained.iter().map(count).sum(),
        idle: D::idle_parameters(config, target),
        draft_vocab: draft_vocab as u64,
        captured,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use spectrain_checkpoints::eagle1::EAGLE1;
    use spectrain_checkpoints::eagle3::EAGLE3;
    use spectrain_models::deepseek_mtp::DeepseekMtp;
    use spectrain_models::dflash::DFlash;
    use spectrain_models::eagle1::Eagle1;
    use spectrain_models::eagle3::Eagle3;
    use spectrain_models::hydra::Hydra;
    use spectrain_models::medusa::Medusa;
    use spectrain_models::mtp::Mtp;
    use spectrain_models::peagle::PEagle;
    use spectrain_models::qwen_mtp::QwenMtp;
    use spectrain_models::redrafter::Redrafter;

    /// Fails for a key that is not written where it is left out, unless it may be whatever a folder has, or it is known what it says.
    fn left_out_keys_have_a_meaning<D: Family>() {
        let written = table_of::<D>(&D::Config::default()).unwrap();
        let known = keys_of::<D>();
        for (key, schema) in known.as_object().unwrap() {
            if written.contains_key(key) {
                continue;
            }
            let kinds = schema["type"].as_array();
            let is_nullable = kinds.is_some_and(|kinds| kinds.contains(&json!("null")));
            let meant = unwritten(schema);
            assert_ne!(meant.is_some(), is_nullable, "{} {key}", D::KIND);
            let table: Value = meant
                .into_iter()
                .map(|value| (key.clone(), value))
                .collect();
            let config: D::Config = serde_json::from_value(table).unwrap();
            assert_eq!(
                table_of::<D>(&config).unwrap(),
                written,
                "{} {key}",
                D::KIND
            );
        }
    }

    #[test]
    fn a_key_that_is_not_written_where_it_is_left_out_still_says_something() {
        left_out_keys_have_a_meaning::<Eagle1>();
        left_out_keys_have_a_meaning::<Eagle3>();
        left_out_keys_have_a_meaning::<PEagle>();
        left_out_keys_have_a_meaning::<DFlash>();
        left_out_keys_have_a_meaning::<Medusa>();
        left_out_keys_have_a_meaning::<Hydra>();
        left_out_keys_have_a_meaning::<Redrafter>();
        left_out_keys_have_a_meaning::<Mtp>();
        left_out_keys_have_a_meaning::<QwenMtp>();
        left_out_keys_have_a_meaning::<DeepseekMtp>();
    }

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

    #[test]
    fn a_setting_that_a_family_does_not_have_is_refused_where_it_is_on() {
        let mut settings = Settings::default();
        settings.set("mask_token", 3);
        settings.set("d_model", 32);
        settings.set("norm_output", false);
        let config = config_of::<PEagle>(&settings).unwrap();
        assert_eq!(config.mask_token, Some(3));
        settings.set("norm_output", true);
        let error = config_of::<PEagle>(&settings).unwrap_err().to_string();
        let told = "`norm_output`: expected nothing, as peagle drafters have no such setting";
        let is_told = error.starts_with(told) && error.ends_with("true");
        assert!(is_told, "{error}");
    }
}

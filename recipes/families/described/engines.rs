//! Which engines load a drafter of some settings, and which settings keep one from it.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;
use spectrain_checkpoints::dialect::{Dialect, Settings};
use spectrain_checkpoints::launch::Launch;
use spectrain_models::TargetSpec;

use super::settings::{settings_at_start, table_of};
use super::writing::writes_head;
use crate::families::family::Family;
use crate::families::target_traits::TargetTraits;
use crate::recipe::tables::Engine;

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
    Ok(remark.map(text_of))
}

/// The text of a remark.
fn text_of(remark: &Launch) -> String {
    remark.text.trim_start_matches("# ").to_owned()
}

/// What is remarked on before the first of the commands that serve a drafter of these settings, such as the versions of its engine;
/// nothing where that command is of none of the engines `to`.
pub(crate) fn remarked<D: Family>(
    config: &D::Config,
    to: &[Engine],
    spec: &TargetSpec,
    target: &TargetTraits,
) -> Result<Vec<String>> {
    let settings = settings_at_start::<D>(config, spec, target)?;
    let (dialect, _) = D::DIALECTS[0];
    let (folder, target) = (Path::new("drafter"), "target");
    // Beside the target a remark may stand in the place of one engine's command, and is not about the others.
    let lines = (dialect.launch)(&settings, folder, target, 1);
    let first = lines.iter().position(|line| line.server.is_some());
    let (remarks, commands) = lines.split_at(first.unwrap_or(lines.len()));
    let server = commands.first().and_then(|line| line.server);
    let is_asked = server.is_some_and(|server| to.contains(&Engine::of(server)));
    let beside_target = dialect.launch_lines(&settings, folder, target, 1);
    let is_served = beside_target.iter().any(|line| line.server == server);
    let told = remarks.iter().filter(|_| is_asked && is_served);
    Ok(told.map(text_of).collect())
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

//! The settings of drafters in the words of dialects, and as the tables of recipes.

use anyhow::{Context as _, Result, bail};
use schemars::SchemaGenerator;
use serde_json::{Map, Value};
use spectrain_checkpoints::beside::TARGET_HEADS;
use spectrain_checkpoints::dialect::Settings;
use spectrain_models::{TargetParts, TargetSpec};

use crate::families::drafter_folder::rope_layout;
use crate::families::family::Family;
use crate::families::target_traits::TargetTraits;
use crate::recipe::inline::inline;

/// The width of heads: a key of `[drafter]` that is left out where it is the target's.
pub(super) const D_HEAD: &str = "d_head";

/// The keys of `[drafter]` that are sizes of a layer, in the order of [`TargetSpec::layer_sizes`].
pub(crate) const LAYER: [&str; 3] = ["d_ff", "heads", "kv_heads"];

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

/// The settings that a drafter of the recipe's will have, as far as they are known before there is one.
pub(super) fn settings_at_start<D: Family>(
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

/// Adds to a drafter's settings what commands depend on of a target.
pub(crate) fn set_target(settings: &mut Settings, target: &TargetParts) -> Result<()> {
    let Some(folder) = target.folder.as_deref() else {
        return Ok(());
    };
    TargetTraits::in_folder(folder)?.tell(settings);
    Ok(())
}

/// A drafter's `[drafter]` table, with all keys that it has.
pub(super) fn table_of<D: Family>(config: &D::Config) -> Result<Map<String, Value>> {
    match serde_json::to_value(config).context("cannot write the settings")? {
        Value::Object(table) => Ok(table),
        _ => bail!("the settings of {} drafters are no table", D::KIND),
    }
}

/// The keys of a `[drafter]` table, with those that are written only where they are given.
pub(super) fn keys_of<D: Family>() -> Value {
    let schema = SchemaGenerator::default().into_root_schema_for::<D::Config>();
    schema.get("properties").cloned().unwrap_or_default()
}

/// The `[drafter]` table that a folder's settings are.
///
/// # Errors
/// A folder, of a layout that other drafters have too, says what no key of the table can say.
pub(super) fn config_of<D: Family>(settings: &Settings) -> Result<D::Config> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use spectrain_models::peagle::PEagle;

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

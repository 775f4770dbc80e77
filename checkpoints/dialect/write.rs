//! Writes folders of every dialect, whole or not at all.

use std::path::Path;

use serde_json::{Value, json};

use crate::dialect::description::{Check, Dialect};
use crate::dialect::settings::Settings;
use crate::dtype::DType;
use crate::error::Result;
use crate::expected::check_finite;
use crate::folder::{WEIGHTS, write_folder};
use crate::seal;
use crate::tensors::NamedTensor;

/// A drafter to be written.
pub struct Written<'a> {
    /// What it is.
    pub settings: Settings,
    /// Its parameters under their names here, then the target's head where [`SharedHead`](super::description::SharedHead)
    /// asks for it.
    pub tensors: Vec<NamedTensor>,
    /// The target's id of each token that can be proposed; nothing where that is every token.
    pub target_ids: Option<Vec<usize>>,
    /// The type of the weights.
    pub dtype: DType,
    /// Where it comes from; kept in the configuration unless it is null, see [`seal`].
    pub provenance: &'a Value,
}

impl Dialect {
    /// Writes a drafter's folder, whole or not at all.
    ///
    /// # Errors
    /// No engine would run it as it is meant, a weight is not finite, or the folder cannot be written.
    pub fn write(&self, dir: &Path, drafter: Written) -> Result<()> {
        let Written {
            mut settings,
            tensors,
            target_ids,
            dtype,
            provenance,
        } = drafter;
        settings.set_dtype(dtype);
        check(&settings, dtype).map_err(|fault| self.refuse(fault))?;
        self.check_settings(&settings)?;
        let mut stored = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let dtype = self.written_as(&tensor.name, dtype);
            stored.push(tensor.cast(dtype)?);
        }
        (self.quirks.complete)(&settings, &mut stored);
        let file = dir.join(WEIGHTS);
        for tensor in &mut stored {
            if tensor.dtype.is_float() {
                let dtype = self.written_as(&tensor.name, dtype);
                *tensor = std::mem::replace(tensor, NamedTensor::from_i64("", [0], Vec::new()))
                    .cast(dtype)?;
            }
            tensor.name = self.stored(&settings, &tensor.name);
            check_finite(&file, tensor)?;
        }
        if let Some(ids) = target_ids {
            stored.extend(self.token_map.tensors(&ids, settings.size("vocab")));
        }
        let config = seal::sealed(self.to_json(&settings), &stored, &[], provenance);
        write_folder(dir, &config, &stored, &[])
    }

    /// Fails for a drafter of these settings that the layout has no place for.
    ///
    /// # Errors
    /// See [`write`](Self::write).
    pub fn check_settings(&self, settings: &Settings) -> Result<()> {
        let checked = (self.quirks.check_settings)(settings);
        checked.map_err(|fault| self.refuse(fault))
    }

    /// The type of a tensor in a folder whose weights are of the type `dtype`.
    pub fn written_as(&self, name: &str, dtype: DType) -> DType {
        match self.in_f32.contains(&name) {
            true => DType::F32,
            false => dtype,
        }
    }

    fn to_json(&self, settings: &Settings) -> Value {
        let mut config = json!({});
        for group in self.all_keys().filter(|group| group.are_written(settings)) {
            for key in group.keys {
                key.write(group.under, settings, &mut config);
            }
        }
        config
    }
}

/// What holds for every engine.
fn check(settings: &Settings, dtype: DType) -> Check {
    let (heads, kv_heads) = (settings.size("heads"), settings.size("kv_heads"));
    if settings.get("kv_heads").is_some() && (kv_heads == 0 || !heads.is_multiple_of(kv_heads)) {
        let expected = "a divisor of the number of heads".to_owned();
        return Err((
            "kv_heads",
            expected,
            format!("{kv_heads} for {heads} heads"),
        ));
    }
    if !dtype.is_float() {
        return Err(("dtype", "F32, F16 or BF16".to_owned(), dtype.to_string()));
    }
    let (draft, vocab) = (settings.size("draft_vocab"), settings.size("vocab"));
    if draft > vocab {
        return Err(("draft_vocab", format!("at most {vocab}"), draft.to_string()));
    }
    let rope = settings.rope();
    match rope.as_ref().and_then(|rope| rope.unnamed_scaling()) {
        None => Ok(()),
        Some(scaling) => {
            let expected = "a table whose `rope_type` is not `default`".to_owned();
            Err(("rope.scaling", expected, scaling.to_string()))
        }
    }
}

//! Puts a layer of multi-token prediction into the checkpoint of its target: the whole target again, with the layer's tensors in the
//! place of those that the checkpoint had, under their names, in their shapes and types.
//!
//! Engines find the layer of a target by its class and the names of the tensors, and take sizes, positions and the number of experts
//! from the target's configuration. So a layer that says something else than that configuration is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use crate::atomic;
use crate::dialect::description::Dialect;
use crate::dialect::in_target::InTarget;
use crate::dialect::reading::Reading;
use crate::dialect::settings::Settings;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::expected::TensorSpec;
use crate::folder::{CONFIG, ModelFolder};
use crate::known::dialect_of;
use crate::launch::Launch;
use crate::mismatch::Mismatch;
use crate::replaced::{PlacedFiles, Replaced};
use crate::seal::SEAL;
use crate::tensors::NamedTensor;

/// What the new shard of a target in several is called.
const SHARD: &str = "model-mtp";
const CLASSES: &str = "architectures";
const QUANTISED: &str = "quantization_config";

/// A layer, and the target that it goes into.
pub struct IntoTarget<'a> {
    /// The folder of the layer.
    pub layer: &'a ModelFolder,
    /// The folder of the target, with all of its shards.
    pub target: &'a ModelFolder,
    /// Whether the target's shards are copied, and not linked.
    pub copies: bool,
    /// Whether to stop.
    pub stop: fn() -> bool,
}

/// What was written.
pub struct Placed {
    /// What became of the target's files.
    pub files: PlacedFiles,
    /// The layer's tensors in the new shard.
    pub tensors: usize,
    /// Whether the target had such a layer before.
    pub replaces: bool,
    /// Keys of the configuration that are no longer what they were, each with its value; null for one that is gone.
    pub keys: Vec<(String, Value)>,
    launch: fn(&Settings, &str, &Path, usize) -> Vec<Launch>,
    settings: Settings,
    class: String,
}

impl Placed {
    /// Commands that serve the target in `folder`, whose layer drafts so many tokens.
    pub fn launch(&self, folder: &Path, draft_tokens: usize) -> Vec<Launch> {
        (self.launch)(&self.settings, &self.class, folder, draft_tokens)
    }
}

/// One of the target's tensors out of the layer's.
struct Piece {
    /// What it is in the target's files.
    spec: TensorSpec,
    /// The layer's tensors that stand behind each other in it, by their names in its files.
    parts: Vec<String>,
}

/// A layer whose kind is known.
struct Known<'a> {
    given: &'a IntoTarget<'a>,
    dialect: &'static Dialect,
    rules: InTarget,
    settings: Settings,
    /// The class of the target.
    class: String,
}

impl IntoTarget<'_> {
    /// Writes the folder, whole or not at all. What has its name is replaced.
    ///
    /// # Errors
    /// The drafter is no layer of its target's checkpoint, or is one for another target; the target can have no such layer, holds
    /// tensors of it that the layer lacks, or has it quantised; a file cannot be read or written.
    pub fn write(&self, folder: &Path) -> Result<Placed> {
        let known = self.known()?;
        let (config, keys) = known.config()?;
        known.check_same(&config)?;
        let pieces = known.pieces()?;
        let of_target = known.dialect.own_names(self.target)?;
        let replaced = Replaced {
            model: self.target,
            gone: of_target.into_values().collect(),
            new: pieces.iter().map(|piece| piece.spec.clone()).collect(),
            shard: SHARD,
            config: (!keys.is_empty()).then_some(config),
            copies: self.copies,
            stop: self.stop,
        };
        let replaces = !replaced.gone.is_empty();
        let partial = atomic::start_dir(folder)?;
        let written = replaced
            .write(&partial, &|name| known.read(&pieces, name))
            .and_then(|files| known.check_written(&partial, &pieces).map(|()| files))
            .and_then(|files| atomic::replace_dir(&partial, folder).map(|()| files));
        let files = written.inspect_err(|_| {
            // The first error is the one to report.
            let _ = atomic::remove_dir(&partial);
        })?;
        Ok(Placed {
            files,
            tensors: pieces.len(),
            replaces,
            keys,
            launch: known.rules.launch,
            settings: known.settings,
            class: known.class,
        })
    }

    fn known(&self) -> Result<Known<'_>> {
        let dialect = dialect_of(self.layer)?;
        let rules = dialect.in_target.ok_or_else(|| Error::Folder {
            path: self.layer.path().to_path_buf(),
            reason: format!(
                "expected a layer of multi-token prediction, which is part of its target's checkpoint, found a drafter of the kind {}",
                dialect.family
            ),
        })?;
        let settings = dialect.open(self.layer, Reading::default())?.settings;
        let class = self.target.config()[CLASSES][0].as_str();
        Ok(Known {
            given: self,
            dialect,
            rules,
            settings,
            class: class.unwrap_or_default().to_owned(),
        })
    }
}

impl Known<'_> {
    /// The target's configuration as engines need it, and which of its keys are others.
    fn config(&self) -> Result<(Value, Vec<(String, Value)>)> {
        let target = self.given.target;
        let Some(class) = (self.rules.class)(&self.settings, &self.class) else {
            let expected = (self.rules.classes)(&self.settings);
            let expected = format!("a class whose checkpoints can have this layer: {expected}");
            return Err(self.wrong(target, CLASSES, expected, &target.config()[CLASSES]));
        };
        let mut config = target.config().clone();
        let mut keys = Vec::new();
        if class != self.class {
            set(&mut config, &mut keys, CLASSES, json!([class]));
        }
        let section = self
            .dialect
            .section
            .filter(|name| config[*name].is_object());
        if self.dialect.own_names(target)?.is_empty() {
            let quantised = &config[QUANTISED];
            if !quantised.is_null() {
                let expected =
                    "nothing, as engines would expect a new layer to be quantised like the target";
                return Err(self.wrong(target, QUANTISED, expected, quantised));
            }
            let count = (self.rules.count)(&self.class);
            let key = section.map_or(count.to_owned(), |section| format!("{section}.{count}"));
            set(&mut config, &mut keys, &key, json!(1));
        }
        for switch in self.rules.switches {
            let is_on = self.settings.flag(switch);
            if config[*switch].as_bool().unwrap_or(false) != is_on {
                set(&mut config, &mut keys, switch, json!(is_on));
            }
        }
        // It vouches for the tensors that the folder had.
        let table = config.as_object_mut();
        if table.and_then(|table| table.shift_remove(SEAL)).is_some() {
            keys.push((SEAL.to_owned(), Value::Null));
        }
        Ok((config, keys))
    }

    /// Fails where the target's configuration says something else of the layer than its own.
    fn check_same(&self, config: &Value) -> Result<()> {
        let (layer, target) = (self.given.layer, self.given.target);
        let of_target = self.dialect.settings_with(target, config)?;
        for group in self.dialect.all_keys() {
            let is_there = [&of_target, &self.settings].map(|all| group.are_written(all));
            for key in group.keys {
                let [expected, found] = [&of_target, &self.settings].map(|all| all.get(key.here()));
                let differs = match (expected, found) {
                    (Some(expected), Some(found)) => !agree(expected, found),
                    _ => is_there[0] != is_there[1] && !key.here().is_empty(),
                };
                if differs {
                    let told = |value: Option<&Value>| value.cloned().unwrap_or_default();
                    let expected = format!(
                        "`{}`, as in `{}`",
                        told(expected),
                        target.path().join(CONFIG).display()
                    );
                    return Err(self.wrong(layer, key.there, expected, &told(found)));
                }
            }
        }
        Ok(())
    }

    fn wrong(
        &self,
        folder: &ModelFolder,
        key: &str,
        expected: impl std::fmt::Display,
        found: &Value,
    ) -> Error {
        let found = match found {
            Value::Null => "nothing".to_owned(),
            found => format!("`{found}`"),
        };
        Error::Key {
            path: folder.path().join(CONFIG),
            key: key.to_owned(),
            mismatch: Mismatch::new(expected, found),
        }
    }

    /// The tensors that the target's checkpoint gets.
    fn pieces(&self) -> Result<Vec<Piece>> {
        let (layer, target) = (self.given.layer, self.given.target);
        let of_layer = self.dialect.own_names(layer)?;
        let of_target = self.dialect.own_names(target)?;
        if of_target.is_empty() {
            return self.new_pieces(&of_layer);
        }
        let mut left: BTreeSet<&String> = of_layer.keys().collect();
        let mut lacking = Vec::new();
        let mut pieces = Vec::new();
        for (name, stored) in &of_target {
            let joined = match of_layer.contains_key(name) {
                true => None,
                false => (self.rules.joined)(&self.settings, name),
            };
            let names = joined.unwrap_or_else(|| vec![name.clone()]);
            let found: Option<Vec<String>> = names
                .iter()
                .map(|name| of_layer.get(name).cloned())
                .collect();
            let Some(parts) = found else {
                lacking.push(stored.clone());
                continue;
            };
            names.iter().for_each(|name| {
                left.remove(name);
            });
            pieces.push(self.piece(stored, parts)?);
        }
        if lacking.is_empty() && left.is_empty() {
            return Ok(pieces);
        }
        Err(Error::Names {
            path: layer.path().to_path_buf(),
            missing: lacking,
            unexpected: left
                .into_iter()
                .map(|name| of_layer[name].clone())
                .collect(),
        })
    }

    /// Those of a target that has no such layer yet, in the type of its own weights.
    fn new_pieces(&self, of_layer: &BTreeMap<String, String>) -> Result<Vec<Piece>> {
        let usual = usual_type(self.given.target);
        let piece = |(name, stored): (&String, &String)| {
            let spec = (
                self.dialect.stored(&self.settings, name),
                self.given.layer.info(stored)?.shape.clone(),
                self.dialect.written_as(name, usual),
            );
            let parts = vec![stored.clone()];
            Ok(Piece { spec, parts })
        };
        of_layer.iter().map(piece).collect()
    }

    /// A tensor that the target has already.
    fn piece(&self, stored: &str, parts: Vec<String>) -> Result<Piece> {
        let (layer, target) = (self.given.layer, self.given.target);
        let info = target.info(stored)?;
        if target.is_in_fp8(stored) || !info.dtype.is_float() {
            let found = match target.is_in_fp8(stored) {
                true => DType::F8E4M3,
                false => info.dtype,
            };
            return Err(Error::ElementType {
                name: stored.to_owned(),
                path: info.file.clone(),
                mismatch: Mismatch::new(
                    "BF16, F16 or F32: engines take a layer that the checkpoint has quantised to be so, and none is quantised here; \
                     serve the layer from a folder of its own",
                    found,
                ),
            });
        }
        let shapes = parts.iter().map(|part| Ok(layer.info(part)?.shape.clone()));
        let shapes = shapes.collect::<Result<Vec<_>>>()?;
        let fits = match (&shapes[..], &info.shape[..]) {
            ([one], shape) => one == shape,
            (all, &[count, rows, columns]) => {
                let of_one = [count * rows / all.len(), columns];
                count * rows % all.len() == 0 && all.iter().all(|shape| *shape == of_one)
            }
            _ => false,
        };
        if !fits {
            let shapes = shapes.iter().map(|shape| format!("{shape:?}"));
            let shapes: BTreeSet<String> = shapes.collect();
            return Err(Error::Shape {
                name: parts[0].clone(),
                path: layer.info(&parts[0])?.file.clone(),
                mismatch: Mismatch::new(
                    format!("{:?}, as `{stored}` of the target", info.shape),
                    shapes.into_iter().collect::<Vec<_>>().join(", "),
                ),
            });
        }
        let spec = (stored.to_owned(), info.shape.clone(), info.dtype);
        Ok(Piece { spec, parts })
    }

    /// The tensor of this name of the target.
    fn read(&self, pieces: &[Piece], name: &str) -> Result<NamedTensor> {
        let piece = pieces.iter().find(|piece| piece.spec.0 == name);
        let Some(Piece { spec, parts }) = piece else {
            return Err(Error::NoTensor {
                name: name.to_owned(),
                path: self.given.layer.path().to_path_buf(),
            });
        };
        let (name, shape, dtype) = spec.clone();
        let mut bytes = Vec::new();
        for part in parts {
            let tensor = self.given.layer.read(part)?;
            bytes.extend(tensor.cast(dtype)?.bytes);
        }
        Ok(NamedTensor {
            name,
            shape,
            dtype,
            bytes,
        })
    }

    /// Fails unless what was written is read as the layer that it is.
    fn check_written(&self, folder: &Path, pieces: &[Piece]) -> Result<()> {
        let written = ModelFolder::open(folder)?;
        let names = self.dialect.own_names(&written)?;
        let found: BTreeMap<&str, DType> = names
            .values()
            .map(|name| Ok((name.as_str(), written.info(name)?.dtype)))
            .collect::<Result<_>>()?;
        let expected = pieces
            .iter()
            .map(|piece| (piece.spec.0.as_str(), piece.spec.2));
        let is_known = (self.dialect.recognises)(&written);
        if is_known && found == expected.collect() {
            return Ok(());
        }
        Err(Error::Folder {
            path: folder.to_path_buf(),
            reason: "the layer that was written is not read as one".to_owned(),
        })
    }
}

/// Sets a key, which dots lead to.
fn set(config: &mut Value, keys: &mut Vec<(String, Value)>, key: &str, value: Value) {
    let place = key.split('.').fold(config, |place, part| &mut place[part]);
    if *place != value {
        *place = value.clone();
        keys.push((key.to_owned(), value));
    }
}

/// The type that most of a model's weights have.
fn usual_type(model: &ModelFolder) -> DType {
    let mut counts = [DType::BF16, DType::F16, DType::F32].map(|dtype| (0, dtype));
    for info in model.tensors() {
        for (count, dtype) in &mut counts {
            if *dtype == info.dtype {
                *count += info.shape.iter().product::<usize>();
            }
        }
    }
    let most = counts.iter().max_by_key(|(count, _)| *count);
    most.map_or(DType::BF16, |(_, dtype)| *dtype)
}

/// Whether two settings mean the same, as far as both say something.
fn agree(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            let [one, other] = [one, other].map(|number| number.as_f64().unwrap_or(f64::NAN));
            (one - other).abs() <= 1e-6 * other.abs()
        }
        (Value::Object(one), Value::Object(other)) => {
            let mut shared = one
                .iter()
                .filter_map(|(key, one)| Some((one, other.get(key)?)));
            shared.all(|(one, other)| agree(one, other))
        }
        (one, other) => one == other,
    }
}

//! Reads folders of every dialect: what a folder says, then the tensors that it must hold.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use crate::config::Config;
use crate::dialect::description::Dialect;
use crate::dialect::reading::{Meaning, Reading};
use crate::dialect::settings::Settings;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::expected::{Expected, TensorSpec, check_tensors, specs};
use crate::folder::{ModelFolder, WEIGHTS};
use crate::names::{read_named, stored_names, unwrapped};
use crate::tensors::NamedTensor;

/// A folder whose configuration was read, and whose tensors were not.
pub struct Opened<'a> {
    dialect: &'static Dialect,
    folder: &'a ModelFolder,
    /// The stored name of each tensor by its name here.
    names: BTreeMap<String, String>,
    reading: Reading,
    /// What it says.
    pub settings: Settings,
}

/// The tensors of a folder under their names here.
pub struct Contents {
    /// The drafter's parameters.
    pub parameters: Vec<NamedTensor>,
    /// The target's id of each token that can be proposed, ascending; nothing where that is every token.
    pub target_ids: Option<Vec<usize>>,
    /// What it holds besides: copies of the target's, if any.
    pub beside: Vec<NamedTensor>,
}

impl Dialect {
    /// Reads what a folder says of its drafter.
    ///
    /// # Errors
    /// A key is missing, or says what no drafter of this kind computes.
    pub fn open<'a>(
        &'static self,
        folder: &'a ModelFolder,
        reading: Reading,
    ) -> Result<Opened<'a>> {
        let names = self.own_names(folder)?;
        let settings = self.settings(&self.config(folder, &reading, &names))?;
        Ok(Opened {
            dialect: self,
            folder,
            names,
            reading,
            settings,
        })
    }

    /// What a folder says of its drafter with the configuration `root` in the place of its own.
    pub(crate) fn settings_with(&self, folder: &ModelFolder, root: &Value) -> Result<Settings> {
        let (names, reading) = (self.own_names(folder)?, Reading::default());
        self.settings(&self.config(folder, &reading, &names).with_root(root))
    }

    fn settings(&self, config: &Config) -> Result<Settings> {
        self.check(config)?;
        let mut settings = Settings::default();
        for group in self.all_keys() {
            if group.are_read(config, &settings) {
                for key in group.keys {
                    key.read(config, &mut settings)?;
                }
            }
        }
        Ok(settings)
    }

    /// The stored name of each tensor of the drafter itself, by its name here. In its target's folder what the layout does not rename
    /// is the target's.
    pub(crate) fn own_names(&self, folder: &ModelFolder) -> Result<BTreeMap<String, String>> {
        let mut names = stored_names(folder, |stored| self.canonical(folder, unwrapped(stored)))?;
        let is_of_target = |name: &str| self.of_target.iter().any(|start| name.starts_with(start));
        // A layer by itself may hold the target's embedding again, and nothing else of it.
        let holds = |part: &str| {
            let mut names = names.keys();
            names.any(|name| is_of_target(name) && name.contains(part))
        };
        let is_beside_target = holds("layers.") && holds("embed_tokens.");
        names.retain(|name, stored| {
            let is_renamed = name != unwrapped(stored);
            let is_repeated = self.repeated.contains(&name.as_str());
            !is_repeated && !is_of_target(name) && (is_renamed || !is_beside_target)
        });
        Ok(names)
    }

    /// Every way in which a folder can be meant, the likeliest first. Where `captured_layers` are given they are not in
    /// question.
    ///
    /// # Errors
    /// It can be meant in none.
    pub fn meanings(
        &self,
        folder: &ModelFolder,
        reading: &Reading,
        captured_layers: Option<&[usize]>,
    ) -> Result<Vec<Meaning>> {
        let names = stored_names(folder, |stored| self.canonical(folder, unwrapped(stored)))?;
        let config = self.config(folder, reading, &names);
        (self.quirks.meanings)(&config, captured_layers)
    }

    fn config<'a>(
        &self,
        folder: &'a ModelFolder,
        reading: &'a Reading,
        names: &'a BTreeMap<String, String>,
    ) -> Config<'a> {
        Config::of(folder).read_as(reading, names, self.section)
    }

    fn check(&self, config: &Config) -> Result<()> {
        let named = config.get("architectures").and_then(Value::as_array);
        let named = named.into_iter().flatten().filter_map(Value::as_str);
        if !self.architectures.is_empty()
            && !named.clone().any(|name| self.architectures.contains(&name))
        {
            let known: Vec<String> = self
                .architectures
                .iter()
                .map(|name| format!("`{name}`"))
                .collect();
            let one_of = if known.len() > 1 { "one of " } else { "" };
            return Err(config.wrong("architectures", format!("{one_of}{}", known.join(", "))));
        }
        config.check_quantisation()?;
        for (key, neutral) in self.neutral.iter().copied().flatten() {
            neutral.check(config, key)?;
        }
        (self.quirks.check_folder)(config)
    }
}

impl Opened<'_> {
    /// Reads the tensors: every one known, of its shape, and none missing. Floats keep the type they are stored in.
    ///
    /// `parameters` are the drafter's, by name and shape.
    ///
    /// # Errors
    /// The folder does not hold them, or holds others.
    pub fn tensors(self, parameters: &[(String, Vec<usize>)]) -> Result<Contents> {
        let read = self.read(parameters);
        read.map_err(|error| self.as_stored(error))
    }

    fn read(&self, parameters: &[(String, Vec<usize>)]) -> Result<Contents> {
        let file: PathBuf = self.folder.path().join(WEIGHTS);
        let (dialect, map) = (self.dialect, self.dialect.token_map);
        let mut tensors = read_named(self.folder, &self.names)?;
        (dialect.quirks.reduce)(&file, &self.settings, &mut tensors)?;
        map.drop_identity(&self.settings, &mut tensors)?;
        if let Some(error) = self.unsaid_vocabulary(&tensors) {
            return Err(error);
        }
        let of_weights =
            |(name, shape): &(String, Vec<usize>)| (name.clone(), shape.clone(), DType::F32);
        let mut required: Vec<TensorSpec> = parameters.iter().map(of_weights).collect();
        let mut optional = (dialect.quirks.optional)(&self.settings);
        map.expect(&self.settings, &mut required, &mut optional);
        let expected = Expected { required, optional };
        check_tensors(&file, &specs(&tensors), &expected, same_kind)?;
        let target_ids = map.take(
            &file,
            &self.settings,
            self.reading.absolute_ids,
            &mut tensors,
        )?;
        let is_parameter =
            |tensor: &NamedTensor| parameters.iter().any(|(name, _)| *name == tensor.name);
        let (parameters, beside) = tensors.into_iter().partition(is_parameter);
        Ok(Contents {
            parameters,
            target_ids,
            beside,
        })
    }

    /// That the configuration does not say how many tokens the drafter knows, where a map of fewer than the target's is there.
    fn unsaid_vocabulary(&self, tensors: &[NamedTensor]) -> Option<Error> {
        let dialect = self.dialect;
        let (map, size) = dialect.token_map.unsaid(&self.settings, tensors)?;
        let mut keys = dialect.all_keys().flat_map(|group| group.keys);
        let key = keys.find(|key| key.is_of("draft_vocab"))?;
        let config = dialect.config(self.folder, &self.reading, &self.names);
        let expected = format!("`{size}`, the number of tokens in `{map}`");
        Some(config.wrong(key.there, expected))
    }

    /// An error about tensors by the names that they have in the folder, or would have.
    fn as_stored(&self, error: Error) -> Error {
        let there = |name: String| self.names.get(&name).cloned().unwrap_or(name);
        match error {
            Error::Names {
                path,
                missing,
                unexpected,
            } => {
                let would_be = |name: &String| self.dialect.stored(&self.settings, name);
                Error::Names {
                    path,
                    missing: missing.iter().map(would_be).collect(),
                    unexpected: unexpected.into_iter().map(there).collect(),
                }
            }
            Error::Shape {
                name,
                path,
                mismatch,
            } => Error::Shape {
                name: there(name),
                path,
                mismatch,
            },
            Error::ElementType {
                name,
                path,
                mismatch,
            } => Error::ElementType {
                name: there(name),
                path,
                mismatch,
            },
            Error::Values { name, path, reason } => Error::Values {
                name: there(name),
                path,
                reason,
            },
            other => other,
        }
    }
}

/// Whether a stored type holds the values asked for, in whatever width.
fn same_kind(got: DType, asked: DType) -> bool {
    match asked {
        DType::I64 => matches!(got, DType::I64 | DType::I32),
        DType::Bool => got == DType::Bool,
        _ => got.is_float(),
    }
}

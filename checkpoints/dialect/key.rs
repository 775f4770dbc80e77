//! A key of a `config.json`, and the setting that it holds.

use serde_json::{Value, json};

use crate::config::Config;
use crate::dialect::settings::Settings;
use crate::error::Result;

/// A key of a `config.json`: how its value becomes a setting, and a setting its value.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    /// Where it stands when it is written; dots lead into tables.
    pub(crate) there: &'static str,
    /// Where else it may stand when it is read.
    also: &'static [&'static str],
    /// The setting; empty for what says nothing of the drafter.
    here: &'static str,
    otherwise: Otherwise,
    read: Option<Read>,
    write: Write,
}

/// What a setting is, given the configuration and the key in it that is there.
pub(crate) type Read = fn(&Config, &'static str, Otherwise) -> Result<Value>;
/// What a key holds, given the settings and the setting's name; nothing where it is left out.
pub(crate) type Write = fn(&Settings, &str) -> Option<Value>;

/// What holds where a key is absent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Otherwise {
    /// It may not be.
    Required,
    Size(usize),
    Number(f64),
    Flag(bool),
    /// The size under another key.
    SameAs(&'static str),
}

impl Otherwise {
    fn size(self, config: &Config) -> Result<Option<usize>> {
        match self {
            Self::Size(size) => Ok(Some(size)),
            Self::SameAs(key) => config.size(key, None).map(Some),
            _ => Ok(None),
        }
    }

    pub(crate) fn number(self) -> f64 {
        match self {
            Self::Number(number) => number,
            _ => 1.0,
        }
    }

    pub(crate) fn flag(self) -> bool {
        self == Self::Flag(true)
    }
}

fn copied(settings: &Settings, here: &str) -> Option<Value> {
    settings.get(here).cloned()
}

impl Key {
    const fn new(there: &'static str, here: &'static str, read: Read) -> Self {
        Self {
            there,
            also: &[],
            here,
            otherwise: Otherwise::Required,
            read: Some(read),
            write: copied,
        }
    }

    /// A positive number.
    pub(crate) const fn size(there: &'static str, here: &'static str) -> Self {
        Self::new(there, here, |config, key, otherwise| {
            Ok(json!(config.size(key, otherwise.size(config)?)?))
        })
    }

    /// The length of a list of modules.
    pub(crate) const fn count(there: &'static str, here: &'static str) -> Self {
        Self::new(there, here, |config, key, otherwise| {
            Ok(json!(config.count(key, otherwise.size(config)?)?))
        })
    }

    /// A switch that is `otherwise` where nothing is said.
    pub(crate) const fn flag(there: &'static str, here: &'static str, otherwise: bool) -> Self {
        let key = Self::new(there, here, |config, key, otherwise| {
            Ok(json!(config.flag(key, otherwise.flag())?))
        });
        key.or(Otherwise::Flag(otherwise))
    }

    /// The epsilon of a norm.
    pub(crate) const fn epsilon(there: &'static str, here: &'static str, otherwise: f64) -> Self {
        let key = Self::new(there, here, |config, key, otherwise| {
            Ok(json!(config.epsilon(key, otherwise.number())?))
        });
        key.or(Otherwise::Number(otherwise))
    }

    /// The id of a token.
    pub(crate) const fn token(there: &'static str, here: &'static str) -> Self {
        Self::new(there, here, |config, key, _| {
            let id = config.get(key).and_then(Value::as_u64);
            let id = id.and_then(|id| u32::try_from(id).ok());
            Ok(json!(
                id.ok_or_else(|| config.wrong(key, "the id of a token"))?
            ))
        })
    }

    /// What is code on both sides.
    pub(crate) const fn code(
        there: &'static str,
        here: &'static str,
        read: Read,
        write: Write,
    ) -> Self {
        Self::new(there, here, read).written(write)
    }

    /// What is written and says nothing when it is read.
    pub(crate) const fn told(there: &'static str, write: Write) -> Self {
        Self {
            read: None,
            write,
            ..Self::size(there, "")
        }
    }

    /// Whether it holds this setting.
    pub(crate) fn is_of(&self, setting: &str) -> bool {
        self.here == setting
    }

    /// The same where nothing is said.
    pub(crate) const fn or(self, otherwise: Otherwise) -> Self {
        Self { otherwise, ..self }
    }

    /// The same, which may stand under other keys too when it is read.
    pub(crate) const fn also(self, also: &'static [&'static str]) -> Self {
        Self { also, ..self }
    }

    /// The same, read otherwise.
    pub(crate) const fn with_read(self, read: Read) -> Self {
        Self {
            read: Some(read),
            ..self
        }
    }

    /// The same, written otherwise.
    pub(crate) const fn written(self, write: Write) -> Self {
        Self { write, ..self }
    }

    /// The same, written only where it is on.
    pub(crate) const fn only_if_on(self) -> Self {
        self.written(|settings, here| settings.flag(here).then_some(json!(true)))
    }

    /// The same, never written.
    pub(crate) const fn unwritten(self) -> Self {
        self.written(|_, _| None)
    }

    /// The setting that it holds; empty where it says nothing of the drafter.
    pub(crate) fn here(&self) -> &'static str {
        self.here
    }

    /// What a configuration says, by this key alone.
    pub(crate) fn value(&self, config: &Config) -> Result<Value> {
        let mut settings = Settings::default();
        self.read(config, &mut settings)?;
        Ok(settings.get(self.here).cloned().unwrap_or_default())
    }

    /// Reads it into the settings.
    pub(crate) fn read(&self, config: &Config, settings: &mut Settings) -> Result<()> {
        let Some(read) = self.read else {
            return Ok(());
        };
        let mut keys = vec![self.there];
        keys.extend(self.also);
        let value = read(config, config.one_key(&keys)?, self.otherwise)?;
        settings.set(self.here, value);
        Ok(())
    }

    /// Writes it into a configuration, under the table `under` unless that is empty.
    pub(crate) fn write(&self, under: &str, settings: &Settings, config: &mut Value) {
        let Some(value) = (self.write)(settings, self.here) else {
            return;
        };
        let path = under.split('.').chain(self.there.split('.'));
        let mut place = config;
        for part in path.filter(|part| !part.is_empty()) {
            place = &mut place[part];
        }
        *place = value;
    }
}

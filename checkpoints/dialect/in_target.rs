//! How a layer stands in the checkpoint of its target, as data.

use std::path::Path;

use crate::dialect::settings::Settings;
use crate::launch::Launch;

/// How a layer that its target's checkpoint can hold stands there, and what of the target's configuration engines find it by.
#[derive(Clone, Copy)]
pub(crate) struct InTarget {
    /// The class under which engines find a layer of these settings in the checkpoint of a target of a class; nothing where they
    /// look for none.
    pub(crate) class: for<'a> fn(&Settings, &'a str) -> Option<&'a str>,
    /// The classes of targets that can have a layer of these settings, for messages.
    pub(crate) classes: fn(&Settings) -> &'static str,
    /// The key that counts such layers in the configuration of a target of a class.
    pub(crate) count: fn(&str) -> &'static str,
    /// Switches that no engine knows: their keys, which are those of their settings too.
    pub(crate) switches: &'static [&'static str],
    /// The tensors here that stand behind each other in one of a target's, of a name here; nothing for a name that is no such one's.
    pub(crate) joined: fn(&Settings, &str) -> Option<Vec<String>>,
    /// Commands that serve a target of a class, in a folder, by its own layer, which drafts so many tokens.
    pub(crate) launch: fn(&Settings, &str, &Path, usize) -> Vec<Launch>,
}

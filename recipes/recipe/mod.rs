//! Reads a recipe file: TOML, with overrides from the command line, into tables and the method of its drafter.

mod change;
pub(crate) mod defaults;
pub mod document;
pub mod file;
pub(crate) mod inline;
mod kinds;
mod misplaced;
mod other_names;
pub mod problem;
pub mod read;
mod renamed;
pub mod resolved;
pub mod schema;
pub mod settings;
pub mod shipped;
pub mod tables;
#[cfg(test)]
mod tests;
mod twice;
mod wording;

pub use read::{is_set, read, read_file};
pub use resolved::ResolvedRecipe;

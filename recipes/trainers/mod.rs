//! The settings of other trainers of drafters as keys of a recipe, for those who have some already: `spectrain init --from`
//! and the tables of `recipes/trainers.md`.
//!
//! Each trainer has a file with a row for every setting that it knows ([`Row`]). A setting that has no row is told as unknown,
//! one that becomes no key is told with the reason, so that nothing is left out in silence.

mod command;
mod known;
mod model_file;
mod modelopt;
mod nemo;
mod read;
mod rows;
mod settings;
mod shared;
mod shell;
mod specforge;
mod speculators;
mod speculators_data;
mod torchspec;
mod translate;
mod words;

pub use known::TRAINERS;
pub use model_file::{FILE_KEYS, FileKey};
pub use rows::{Becomes, Row, Trainer};
pub(crate) use settings::{TARGET, TRAIN};
pub(crate) use shared::rounded_rate;
pub use translate::{Translated, translate};

//! The stages of a run: each reads the recipe and the folders of earlier ones, and fills one folder.

mod answers;
pub mod array;
pub mod borrowed;
pub mod card;
pub mod commands_again;
pub mod context;
pub mod drafter_at;
pub mod evaluate;
pub mod export;
pub mod exported;
pub mod failure;
pub mod features;
pub mod in_order;
pub mod inputs;
pub mod kept;
mod length;
pub mod order;
pub mod outdated;
pub mod parts;
pub mod prepare;
pub mod regenerate;
pub mod report;
pub mod self_check;
pub mod settings;
mod setup;
pub mod stage;
pub mod synthetic;
#[cfg(test)]
mod tests;
pub mod train;
mod trained_text;
pub mod unsaved;
mod validation;

pub use context::StageContext;
pub use in_order::run;

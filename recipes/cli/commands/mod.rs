//! The commands.

pub mod bench;
pub mod check;
pub mod clean;
pub mod completions;
pub mod data;
pub mod doctor;
pub mod evaluate;
pub mod export;
pub mod features;
pub mod generate;
pub mod import;
pub mod init;
pub mod man;
mod prompts;
pub mod push;
pub mod recipe;
pub mod regenerate;
pub mod relay;
pub mod report;
pub mod schema;
pub mod track;
pub mod watch;

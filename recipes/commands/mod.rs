//! The commands beside `recipe`.

pub mod check;
pub mod clean;
pub mod data;
pub mod evaluate;
pub mod export;
pub mod generate;
pub mod import;
pub mod regenerate;
pub mod report;

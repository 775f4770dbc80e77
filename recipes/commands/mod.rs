//! The commands beside `recipe`.

pub mod data;
pub mod evaluate;
pub mod export;
pub mod generate;
pub mod regenerate;
pub mod report;

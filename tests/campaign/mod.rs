//! What must hold however long one tries: readers under fuzzed inputs, runs under kills and full disks, and greedy tokens.
//!
//! Each part is short here. `SPECTRAIN_CAMPAIGN=100` makes it a hundred times as long.
mod altered;
mod bytes;
mod disk;
mod fuzz;
mod greedy;
mod hubs;
mod json;
mod kills;
mod models;
mod other_trainers;
mod pushes;
mod recipes;
mod rows;
mod servers;
mod stores;
mod templates;
mod tokenizers;
mod words;

/// The variable that makes the campaign longer.
const FACTOR: &str = "SPECTRAIN_CAMPAIGN";

/// So many times what is done in short.
pub fn times(short: u64) -> u64 {
    short * number(FACTOR).unwrap_or(1)
}

/// The number that a variable of the environment holds.
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse().ok();
    Some(number.unwrap_or_else(|| panic!("{variable}: expected a whole number, found `{text}`")))
}

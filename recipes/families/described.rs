//! Drafters that a dialect describes: read from folders and written to them, whatever they are.

mod at_start;
mod engines;
mod reading;
mod settings;
mod sizes;
mod writing;

pub(crate) use at_start::{at_start, beside_defaults, beside_target, check_start};
pub(crate) use engines::{against, against_at_start, check_export, remarked, unserved_beside};
pub(crate) use reading::{open, reading_for};
pub(crate) use settings::{LAYER, set_target, settings};
pub(crate) use sizes::{footprint, reach};
pub(crate) use writing::write;

//! The trainers whose settings are known.

use super::modelopt::MODELOPT;
use super::nemo::NEMO;
use super::rows::Trainer;
use super::specforge::SPECFORGE;
use super::speculators::SPECULATORS;
use super::torchspec::TORCHSPEC;

/// Every one of them. A new one is added here; CONTRIBUTING.md says what else it takes.
pub const TRAINERS: [&Trainer; 5] = [&SPECFORGE, &SPECULATORS, &MODELOPT, &NEMO, &TORCHSPEC];

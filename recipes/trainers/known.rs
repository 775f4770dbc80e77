//! The trainers whose settings are known.

use super::modelopt::MODELOPT;
use super::rows::Trainer;
use super::specforge::SPECFORGE;
use super::speculators::SPECULATORS;

/// Every one of them. A new one is added here.
pub const TRAINERS: [&Trainer; 3] = [&SPECFORGE, &SPECULATORS, &MODELOPT];

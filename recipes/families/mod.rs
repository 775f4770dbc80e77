//! What kinds of drafters there are, with the folders and the sizes of each.

#[expect(
    clippy::too_many_lines,
    reason = "`open` names every setting of a folder once"
)]
mod dflash;
mod draft_heads;
pub(crate) mod drafter_folder;
mod eagle1;
mod eagle3;
pub mod footprint;
mod hydra;
mod language_model;
mod masked_language_model;
mod medusa;
pub mod method;
pub mod registry;
pub mod shipped;
pub mod trained;

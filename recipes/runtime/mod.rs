//! Models at work: the device, the target and its files, a drafter and its trial, prompts, the check before training, the benchmark,
//! servers, and the Ctrl-C that stops them.

pub mod answered;
pub mod answerer;
pub mod bench;
pub(crate) mod bf16;
pub mod capture;
pub(crate) mod columns;
pub mod computed_by;
mod contenders;
mod conversation;
pub mod decoded;
pub mod device;
mod device_kind;
pub mod doctor;
pub mod free_tokens;
pub mod imported;
pub mod interruption;
mod known_targets;
pub(crate) mod machine_memory;
pub mod model_files;
pub(crate) mod out_of_memory;
pub mod pair;
pub mod prompt_sets;
pub mod prompts;
pub mod ranks;
pub mod relay;
pub mod server;
pub(crate) mod sizes;
pub mod start_at;
pub mod store;
pub mod target;
pub mod text;
pub mod text_trial;
pub mod texts;
pub mod trial;
pub mod weights;
pub(crate) mod writable;

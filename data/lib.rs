//! Conversations, chat templates, tokens, loss masks, packing, shards and draft vocabularies.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod answered;
mod cap;
mod contained;
pub mod conversation;
pub mod dataset;
pub mod day;
mod durable;
pub mod error;
mod expand;
pub mod features;
pub mod foreign;
#[cfg(test)]
mod forged;
pub mod held_out;
pub mod hub_data;
pub mod in_order;
mod jinja;
mod json;
pub mod lint;
pub mod mask;
pub mod packing;
mod patience;
pub mod prepare;
pub mod presets;
pub mod prompts;
pub mod regenerate;
pub mod roles;
pub mod rows;
pub mod seed;
pub mod sources;
pub mod synthetic;
mod table;
pub mod template;
mod thought;
pub mod tokenizer;
pub mod tokens;
mod tool_calls;
mod turns;
pub mod unusable;
pub mod vocabulary;
pub mod words;

pub use conversation::{Content, Conversation, Message, Row, Sample};
pub use error::{Error, Result};

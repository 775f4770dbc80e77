//! Parity with the reference implementations, losslessness, learning, resuming, and the program as a user sees it.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]
mod accumulation;
mod allocation;
mod bad_input;
mod broken_folders;
mod checkpointing;
mod cli;
mod data_sources;
mod deer;
mod deer_parity;
mod dflash;
mod dflash_parity;
mod divergence_parity;
mod drafter_at;
mod eagle1_parity;
mod eagle3_parity;
mod engine_logits;
mod engines;
mod fault_server;
mod features;
mod golden;
mod heads_decode;
mod heads_parity;
mod hostile_folders;
mod hub;
mod key_tables;
mod language_models;
mod language_models_parity;
mod learning;
mod links;
mod memory;
mod numbers;
mod outputs;
mod pages;
mod plans;
mod program;
mod published;
mod recipes;
mod regenerate;
mod reports;
mod resume;
mod runs;
mod schema;
mod several_targets;
mod target_parity;
mod tiny;
mod train_decode;
mod trainers;
mod training_rows;
mod training_stages;
mod trees;
mod vocab_loss;
mod workspace;

/// Counts what every test allocates; see [`allocation`].
#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

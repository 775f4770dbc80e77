//! Parity with the reference implementations, losslessness, learning, resuming, and the program as a user sees it.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]
mod allocation;
mod divergence_parity;
mod eagle3_parity;
mod golden;
mod learning;
mod resume;
mod target_parity;
mod tiny;
mod train_decode;
mod vocab_loss;

/// Counts what every test allocates; see [`allocation`].
#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

//! What a serving engine makes of a drafter, by what it says itself: its counters, and the answers that it streams.
//!
//! Nothing here has a connection. Whoever asks the server hands in what came back.
pub mod acceptance;
pub mod answer;
pub mod asked;
pub mod counters;
pub mod events;
pub mod figures;
pub mod latency;
pub mod outputs;
pub(crate) mod paired;
pub mod report;
pub mod samples;

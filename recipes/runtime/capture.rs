//! Hidden states of a target that an engine serves: vLLM's server with its connector for hidden states, unpatched
//! (<https://docs.vllm.ai>, `ExampleHiddenStatesConnector`).
//!
//! The server counts layers that have run, so that its id `k + 1` is what this program calls layer `k`, and the id that is
//! the number of layers is the last layer's output before the final norm.

pub mod class;
pub mod file;
pub mod in_order;
pub mod layers;
pub mod proof;
mod response;
mod same;
pub mod server;
pub mod servers;
pub mod states;
pub mod stored;

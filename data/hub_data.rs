//! Datasets of the hub as training and evaluation data: `hf://org/name[@revision][:config/split]`.

mod address;
mod fetch;
mod formats;
mod splits;

pub use address::{HubAddress, PREFIX};
pub use fetch::{Downloads, FetchedData, downloads, fetch, is_here};

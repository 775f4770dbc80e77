//! What a drafter's and an objective's own tables have to be.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The table of a drafter or of an objective.
pub trait Settings: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {}
impl<T: Serialize + DeserializeOwned + Clone + Send + Sync + 'static> Settings for T {}

//! What a drafter's and an objective's own tables have to be.

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The table of a drafter or of an objective.
pub trait Settings:
    Serialize + DeserializeOwned + JsonSchema + Clone + Send + Sync + 'static
{
}
impl<T: Serialize + DeserializeOwned + JsonSchema + Clone + Send + Sync + 'static> Settings for T {}

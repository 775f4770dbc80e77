//! How a kind of drafter is written down, as data: one reader and one writer serve every layout that engines know.

pub mod description;
pub(crate) mod in_target;
pub(crate) mod key;
pub(crate) mod llama;
mod open;
pub mod reading;
pub mod settings;
pub(crate) mod vocabulary;
mod write;

pub use self::description::{Dialect, SharedHead};
pub use self::open::{Contents, Opened};
pub use self::reading::{Meaning, Reading};
pub use self::settings::Settings;
pub use self::write::Written;

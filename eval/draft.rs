//! Drafts as reports name them.
use std::fmt;

use serde::{Deserialize, Serialize};
use spectrain_models::{Children, DraftShape, StaticTree};

/// What was drafted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "shape", rename_all = "lowercase")]
pub enum DraftReport {
    /// One token after the other.
    Chain {
        /// Tokens in a draft.
        length: usize,
    },
    /// The same tree at every pass.
    Static {
        /// Its name or its paths.
        tree: StaticTree,
        /// Its nodes.
        nodes: usize,
        /// How tokens are chosen above temperature 0.
        children: Children,
    },
}

impl From<&DraftShape> for DraftReport {
    fn from(shape: &DraftShape) -> Self {
        match shape {
            DraftShape::Chain { length } => Self::Chain { length: *length },
            DraftShape::Static { tree, children } => Self::Static {
                tree: tree.clone(),
                nodes: tree.len(),
                children: *children,
            },
        }
    }
}

impl fmt::Display for DraftReport {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Chain { length } => write!(f, "chain {length}"),
            Self::Static { tree, nodes, .. } => match tree.name() {
                Some(name) => write!(f, "tree {name}"),
                None => write!(f, "tree of {nodes}"),
            },
        }
    }
}

//! The shapes that a draft can have.
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::stop::Stop;

/// The tree of Medusa (<https://arxiv.org/abs/2401.10774>), also of Hydra: one path for each node, of one digit for
/// each step, which is the rank of the child.
const MEDUSA_63: &str = "0 1 2 3 4 5 6 7 8 9 \
    00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 16 20 21 22 30 31 40 50 60 70 80 90 \
    000 001 002 003 004 005 006 007 008 009 010 011 012 020 021 030 040 050 060 070 100 101 200 \
    0000 0001";

/// The tree of EAGLE (<https://arxiv.org/abs/2401.15077>).
const EAGLE_25: &str =
    "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001";

/// The shape of the drafts that are asked for.
#[derive(Debug, Clone, PartialEq)]
pub enum DraftShape {
    /// One token after the other: the most likely ones at temperature 0, drawn above.
    Chain {
        /// Tokens in a draft; 0 decodes without drafting.
        length: usize,
    },
    /// The same tree at every pass.
    Static {
        /// Its nodes.
        tree: StaticTree,
        /// How their tokens are chosen.
        children: Children,
    },
    /// The tree of EAGLE-2 (<https://arxiv.org/abs/2406.16858>), which grows where the drafter is sure: of each step
    /// the `top_k` likeliest paths are continued by their `top_k` likeliest tokens, and of all paths so found the
    /// `nodes` likeliest are drafted. Always deterministic. A path's likelihood is the product of the drafter's
    /// probabilities over its own vocabulary at temperature 1, whatever the sampling, as in the reference code.
    Dynamic {
        /// The longest path, one more than the passes that the reference code counts.
        depth: usize,
        /// Paths continued at each step, and children of each.
        top_k: usize,
        /// Tokens in a draft.
        nodes: usize,
    },
    /// The likeliest paths of all, found best first: each path is continued when no likelier one is left (as DDTree,
    /// <https://arxiv.org/abs/2604.12989>). A drafter that makes one step at a time would take a pass for each node, so it
    /// is for those that make all in one. Always deterministic; likelihoods are those of [`Dynamic`](Self::Dynamic).
    BestFirst {
        /// The longest path.
        depth: usize,
        /// Tokens in a draft.
        nodes: usize,
    },
    /// A chain that ends before a step that the drafter itself has little hope for. By its head, a drafter without one never
    /// ends one early.
    Confident {
        /// The most tokens in a draft.
        length: usize,
        /// The rule.
        stop: Stop,
    },
}

/// How the children of a node are chosen above temperature 0; at 0 they are always the most likely tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Children {
    /// The most likely tokens, whatever top-k and top-p keep.
    #[default]
    Top,
    /// Drawn one after the other, each from what remains after its earlier siblings.
    WithoutReplacement,
    /// Drawn independently; siblings may be equal.
    WithReplacement,
}

/// A tree of fixed shape. Its nodes are paths from the root down, `[0, 2]` being the third child of the first child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticTree {
    name: Option<&'static str>,
    /// In breadth-first order: by length, then in lexicographic order.
    paths: Vec<Vec<usize>>,
    /// Nodes that are the children of the root, then of each node. In breadth-first order they are neighbours.
    children: Vec<Range<usize>>,
}

impl DraftShape {
    /// Draft steps: the longest path.
    pub fn length(&self) -> usize {
        match self {
            Self::Chain { length } => *length,
            Self::Static { tree, .. } => tree.depth(),
            Self::Dynamic { depth, .. } | Self::BestFirst { depth, .. } => *depth,
            Self::Confident { length, .. } => *length,
        }
    }

    /// The most tokens that a draft can have.
    pub fn nodes(&self) -> usize {
        match self {
            Self::Chain { length } => *length,
            Self::Static { tree, .. } => tree.len(),
            Self::Dynamic { nodes, .. } | Self::BestFirst { nodes, .. } => *nodes,
            Self::Confident { length, .. } => *length,
        }
    }

    /// Of at most `most` steps those that the drafter was asked for when it drafted `drafted`: where a chain ended early,
    /// also the one that was not drafted.
    pub fn asked(&self, most: usize, drafted: usize) -> usize {
        match self {
            Self::Confident { .. } => most.min(drafted + 1),
            _ => most,
        }
    }
}

impl StaticTree {
    /// The names of the trees that have one.
    pub const NAMES: [&str; 2] = ["medusa-63", "eagle-25"];

    /// The tree of this name.
    pub fn named(name: &str) -> Option<Self> {
        let name = Self::NAMES.into_iter().find(|known| *known == name)?;
        let digits = match name {
            "medusa-63" => MEDUSA_63,
            _ => EAGLE_25,
        };
        let path = |digits: &str| {
            digits
                .bytes()
                .map(|digit| usize::from(digit - b'0'))
                .collect()
        };
        let paths = digits.split_whitespace().map(path).collect();
        Some(Self {
            name: Some(name),
            ..Self::sorted(paths)
        })
    }

    /// The tree of these nodes, in any order.
    ///
    /// # Errors
    /// What is wrong with them: a node twice, or one without its parent or the sibling before it.
    pub fn new(mut paths: Vec<Vec<usize>>) -> Result<Self, String> {
        paths.sort_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
        if paths.is_empty() {
            return Err("expected at least one path, found none".into());
        }
        for (at, path) in paths.iter().enumerate() {
            let Some((&rank, parent)) = path.split_last() else {
                return Err("expected paths of at least one rank, found an empty one".into());
            };
            let held = |wanted: &[usize]| paths[..at].iter().any(|path| path == wanted);
            if held(path) {
                return Err(format!("expected every path once, found {path:?} twice"));
            }
            if !parent.is_empty() && !held(parent) {
                return Err(format!(
                    "expected the parent {parent:?} of {path:?} among the paths"
                ));
            }
            if rank > 0 {
                let sibling = [parent, &[rank - 1]].concat();
                if !held(&sibling) {
                    return Err(format!(
                        "expected {sibling:?} among the paths, before {path:?}"
                    ));
                }
            }
        }
        Ok(Self::sorted(paths))
    }

    /// A tree in which every node but the last has one child.
    pub fn chain(length: usize) -> Self {
        Self::sorted((1..=length).map(|length| vec![0; length]).collect())
    }

    /// Of paths in breadth-first order.
    fn sorted(paths: Vec<Vec<usize>>) -> Self {
        let root: &[usize] = &[];
        let parents = std::iter::once(root).chain(paths.iter().map(Vec::as_slice));
        let mut next = 0;
        let children = parents
            .map(|parent| {
                let start = next;
                while next < paths.len() && paths[next][..paths[next].len() - 1] == *parent {
                    next += 1;
                }
                start..next
            })
            .collect();
        Self {
            name: None,
            children,
            paths,
        }
    }

    /// Its nodes as paths, in breadth-first order.
    pub fn paths(&self) -> &[Vec<usize>] {
        &self.paths
    }

    /// Children of a node, or of the root.
    pub fn children(&self, node: Option<usize>) -> Range<usize> {
        self.children[node.map_or(0, |node| 1 + node)].clone()
    }

    /// Nodes.
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// The longest path.
    pub fn depth(&self) -> usize {
        self.paths.last().map_or(0, Vec::len)
    }

    /// Its name, if it has one.
    pub fn name(&self) -> Option<&'static str> {
        self.name
    }
}

impl Serialize for StaticTree {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.name {
            Some(name) => serializer.serialize_str(name),
            None => self.paths.serialize(serializer),
        }
    }
}

impl JsonSchema for StaticTree {
    fn schema_name() -> Cow<'static, str> {
        "StaticTree".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "enum": Self::NAMES },
                generator.subschema_for::<Vec<Vec<usize>>>(),
            ]
        })
    }
}

impl<'de> Deserialize<'de> for StaticTree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrPaths;
        impl<'de> de::Visitor<'de> for NameOrPaths {
            type Value = StaticTree;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "`medusa-63`, `eagle-25` or a list of paths")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<StaticTree, E> {
                StaticTree::named(name)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(name), &self))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<StaticTree, A::Error> {
                let mut paths = Vec::new();
                while let Some(path) = list.next_element()? {
                    paths.push(path);
                }
                StaticTree::new(paths).map_err(de::Error::custom)
            }
        }
        deserializer.deserialize_any(NameOrPaths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_trees_have_their_nodes_and_are_trees() {
        for (name, nodes, depth, inner) in [("medusa-63", 63, 4, 22), ("eagle-25", 25, 5, 11)] {
            let tree = StaticTree::named(name).unwrap();
            assert_eq!((tree.len(), tree.depth()), (nodes, depth), "{name}");
            let checked = StaticTree::new(tree.paths().to_vec()).unwrap();
            assert_eq!(
                checked.paths(),
                tree.paths(),
                "{name} is in breadth-first order"
            );
            let with_children = (0..nodes).filter(|&node| !tree.children(Some(node)).is_empty());
            assert_eq!(1 + with_children.count(), inner, "{name}");
        }
    }

    #[test]
    fn children_are_found_by_their_parent() {
        let tree =
            StaticTree::new(vec![vec![1], vec![0], vec![1, 0], vec![0, 0], vec![0, 1]]).unwrap();
        assert_eq!(
            tree.paths(),
            [vec![0], vec![1], vec![0, 0], vec![0, 1], vec![1, 0]]
        );
        assert_eq!(tree.children(None), 0..2);
        assert_eq!(tree.children(Some(0)), 2..4);
        assert_eq!(tree.children(Some(1)), 4..5);
        assert!(tree.children(Some(4)).is_empty());
        let chain = StaticTree::chain(2);
        assert_eq!(
            (chain.children(None), chain.children(Some(0))),
            (0..1, 1..2)
        );
        assert_eq!(chain.depth(), 2);
    }

    #[test]
    fn paths_that_are_no_tree_are_refused() {
        for (paths, message) in [
            (vec![], "expected at least one path, found none"),
            (
                vec![vec![]],
                "expected paths of at least one rank, found an empty one",
            ),
            (
                vec![vec![0], vec![0]],
                "expected every path once, found [0] twice",
            ),
            (
                vec![vec![0], vec![1, 0]],
                "expected the parent [1] of [1, 0] among the paths",
            ),
            (vec![vec![1]], "expected [0] among the paths, before [1]"),
        ] {
            assert_eq!(StaticTree::new(paths).unwrap_err(), message);
        }
    }

    #[test]
    fn trees_are_read_from_a_name_or_paths() {
        for text in ["\"eagle-25\"", "[[0],[1],[0,0]]"] {
            let tree: StaticTree = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&tree).unwrap(), text);
        }
        for (text, part) in [
            (
                "\"eagle-26\"",
                "expected `medusa-63`, `eagle-25` or a list of paths",
            ),
            ("[[1]]", "expected [0] among the paths, before [1]"),
            ("7", "expected `medusa-63`, `eagle-25` or a list of paths"),
        ] {
            let error = serde_json::from_str::<StaticTree>(text)
                .unwrap_err()
                .to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}

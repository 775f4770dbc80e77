//! Trees of tokens by their parents.

/// Draft nodes that a drafter has run or may be asked to run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// Token of each node, an id of the target's vocabulary; parents before children.
    pub tokens: Vec<u32>,
    /// Parent of each node; `None` for a child of the last observed token.
    pub parents: Vec<Option<usize>>,
}

impl Tree {
    /// Adds a node and returns its index.
    pub fn push(&mut self, token: u32, parent: Option<usize>) -> usize {
        self.tokens.push(token);
        self.parents.push(parent);
        self.tokens.len() - 1
    }

    /// Steps from a child of the last observed token to a node.
    pub fn depth(&self, node: usize) -> usize {
        let parents = std::iter::successors(Some(node), |&node| self.parents[node]);
        parents.count() - 1
    }

    /// The tokens from a child of the last observed token to a node, that one included.
    pub fn path(&self, node: usize) -> Vec<u32> {
        let nodes = std::iter::successors(Some(node), |&node| self.parents[node]);
        let mut path: Vec<u32> = nodes.map(|node| self.tokens[node]).collect();
        path.reverse();
        path
    }

    /// The tokens from the root to each of some nodes, behind `first`, which is the root's own; of no nodes that one alone.
    pub(crate) fn paths_behind(&self, first: u32, nodes: &[usize]) -> Vec<Vec<u32>> {
        if nodes.is_empty() {
            return vec![vec![first]];
        }
        let path = |&node: &usize| [vec![first], self.path(node)].concat();
        nodes.iter().map(path).collect()
    }

    /// Nodes in the tree.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// The parents of a chain of `len` tokens.
pub fn chain(len: usize) -> Vec<Option<usize>> {
    (0..len).map(|node| node.checked_sub(1)).collect()
}

/// Depth of every node of a tree, 0 for the children of the root.
pub fn depths(parents: &[Option<usize>]) -> Vec<usize> {
    let mut depths: Vec<usize> = Vec::with_capacity(parents.len());
    for parent in parents {
        depths.push(parent.map_or(0, |parent| depths[parent] + 1));
    }
    depths
}

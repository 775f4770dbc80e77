use rand::{RngExt, SeedableRng};

use super::*;
use crate::device::test_device;

/// Logits that are a function of the path, and draws from a seeded generator.
struct Table {
    vocab: usize,
    rng: StdRng,
    /// Whether probabilities are powers of a half, so that many paths are equally likely.
    ties: bool,
    /// Nodes asked for, call by call.
    calls: Vec<Vec<usize>>,
}

impl Table {
    fn new(vocab: usize, seed: u64) -> Self {
        Self {
            vocab,
            rng: StdRng::seed_from_u64(seed),
            ties: false,
            calls: Vec::new(),
        }
    }

    fn row(&self, path: &[u32]) -> Vec<f32> {
        let mut seed = 5u64;
        for &token in path {
            seed = seed.wrapping_mul(31).wrapping_add(1 + token as u64);
        }
        let mut rng = StdRng::seed_from_u64(seed);
        if !self.ties {
            return (0..self.vocab)
                .map(|_| rng.random_range(-2.0..2.0))
                .collect();
        }
        // 1/2, 1/4, … in an order that differs from path to path, the last two equal.
        let first = rng.random_range(0..self.vocab);
        (0..self.vocab)
            .map(|token| (token + first) % self.vocab)
            .map(|power| -((1 + power.min(self.vocab - 2)) as f32) * std::f32::consts::LN_2)
            .collect()
    }
}

/// Rows of equal width on a device.
fn on(device: &Device, rows: Vec<Vec<f32>>) -> Tensor<2> {
    let shape = [rows.len(), rows[0].len()];
    Tensor::from_data(TensorData::new(rows.concat(), shape), device)
}

fn paths(draft: &Draft) -> Vec<Vec<u32>> {
    let tree = Tree {
        tokens: draft.tokens.clone(),
        parents: draft.parents.clone(),
    };
    (0..tree.len()).map(|node| tree.path(node)).collect()
}

impl DraftSource for Table {
    fn logits(&mut self, tree: &Tree, nodes: &[usize]) -> Tensor<2> {
        self.calls.push(nodes.to_vec());
        let rows = match nodes {
            [] => vec![self.row(&[])],
            nodes => nodes
                .iter()
                .map(|&node| self.row(&tree.path(node)))
                .collect(),
        };
        on(&Device::flex(), rows)
    }

    fn draw(&mut self, weights: &[f32]) -> u32 {
        sample(weights, &mut self.rng)
    }
}

fn built(shape: DraftShape, length: usize, sampling: Sampling, table: &mut Table) -> Draft {
    let request = DraftRequest {
        shape,
        length,
        sampling,
    };
    build(&request, &DraftVocabulary::full(table.vocab), table)
}

/// Every path of at most `depth` tokens with the logarithm of its likelihood.
fn all(table: &Table, depth: usize) -> Vec<(Vec<u32>, f64)> {
    let mut found = Vec::new();
    let mut level = vec![(Vec::new(), 0.0)];
    for _ in 0..depth {
        let mut next = Vec::new();
        for (path, value) in &level {
            let row = table.row(path);
            let total: f64 = row
                .iter()
                .map(|&logit| (logit as f64).exp())
                .sum::<f64>()
                .ln();
            for (token, &logit) in row.iter().enumerate() {
                let path: Vec<u32> = [&path[..], &[token as u32]].concat();
                next.push((path, value + logit as f64 - total));
            }
        }
        found.extend(next.iter().cloned());
        level = next;
    }
    found
}

/// As many paths as are continued at each step cannot leave out any of the likeliest so many.
#[test]
fn the_dynamic_tree_is_the_likeliest_of_all_paths() {
    for (vocab, depth, nodes) in [(4, 4, 10), (6, 3, 6), (3, 5, 12), (5, 1, 3), (5, 3, 1)] {
        let mut table = Table::new(vocab, 0);
        let shape = DraftShape::Dynamic {
            depth,
            top_k: nodes,
            nodes,
        };
        let draft = built(shape, 9, Sampling::at(0.3), &mut table);
        let mut expected = all(&table, depth);
        expected.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut expected: Vec<_> = expected
            .into_iter()
            .take(nodes)
            .map(|(path, _)| path)
            .collect();
        let mut got = paths(&draft);
        expected.sort();
        got.sort();
        assert_eq!(got, expected, "{vocab} {depth} {nodes}");
        assert!(matches!(draft.proposal, Proposal::Deterministic));
    }
}

/// Level by level over whole paths: of each level the likeliest `top_k` are continued, by `top_k` tokens each.
#[test]
fn a_narrow_dynamic_tree_is_the_likeliest_of_the_paths_it_expands() {
    for (top_k, depth, nodes) in [(1, 4, 3), (2, 4, 7), (3, 3, 30), (2, 5, 60)] {
        let mut table = Table::new(5, 0);
        let shape = DraftShape::Dynamic {
            depth,
            top_k,
            nodes,
        };
        let draft = built(shape, 9, Sampling::GREEDY, &mut table);
        let values = all(&table, depth);
        let mut frontier: Vec<Vec<u32>> = vec![Vec::new()];
        let mut candidates: Vec<(Vec<u32>, f64)> = Vec::new();
        for _ in 0..depth {
            let mut level = Vec::new();
            for parent in &frontier {
                let of_parent =
                    |(path, _): &&(Vec<u32>, f64)| path.split_last().unwrap().1 == parent;
                let mut children: Vec<_> = values.iter().filter(of_parent).cloned().collect();
                children.sort_by(|a, b| b.1.total_cmp(&a.1));
                level.extend(children.into_iter().take(top_k));
            }
            level.sort_by(|a, b| b.1.total_cmp(&a.1));
            frontier = level
                .iter()
                .take(top_k)
                .map(|(path, _)| path.clone())
                .collect();
            candidates.extend(level);
        }
        candidates.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut expected: Vec<_> = candidates
            .into_iter()
            .take(nodes)
            .map(|(path, _)| path)
            .collect();
        let mut got = paths(&draft);
        expected.sort();
        got.sort();
        assert_eq!(got, expected, "{top_k} {depth} {nodes}");
    }
}

#[test]
fn ties_leave_the_dynamic_tree_connected_full_and_as_likely_as_any() {
    for nodes in 1..=20 {
        let mut table = Table::new(3, 0);
        table.ties = true;
        let shape = DraftShape::Dynamic {
            depth: 4,
            top_k: 20,
            nodes,
        };
        let draft = built(shape.clone(), 9, Sampling::GREEDY, &mut table);
        assert_eq!(draft.len(), nodes);
        let got = paths(&draft);
        for (node, path) in got.iter().enumerate() {
            let parent = &path[..path.len() - 1];
            assert!(parent.is_empty() || got[..node].iter().any(|other| other == parent));
        }
        let all = all(&table, 4);
        let value = |path: &Vec<u32>| all.iter().find(|(other, _)| other == path).unwrap().1;
        let mut drafted: Vec<f64> = got.iter().map(value).collect();
        let mut best: Vec<f64> = all.iter().map(|(_, value)| *value).collect();
        drafted.sort_by(|a, b| b.total_cmp(a));
        best.sort_by(|a, b| b.total_cmp(a));
        for (drafted, best) in drafted.iter().zip(best) {
            assert!((drafted - best).abs() < 1e-9);
        }
        let again = built(shape, 9, Sampling::GREEDY, &mut table);
        assert_eq!(paths(&again), got, "of equals always the same are taken");
    }
}

#[test]
fn nodes_are_asked_for_once_by_depth_and_only_where_something_follows() {
    let mut table = Table::new(6, 0);
    let tree = StaticTree::named("eagle-25").unwrap();
    let shape = DraftShape::Static {
        tree: tree.clone(),
        children: Children::Top,
    };
    // A vocabulary of six has every child of this tree.
    let draft = built(shape, 9, Sampling::GREEDY, &mut table);
    assert_eq!(draft.len(), 25);
    let inner: Vec<usize> = (0..25)
        .filter(|&node| !tree.children(Some(node)).is_empty())
        .collect();
    assert_eq!(table.calls.concat(), inner);
    assert_eq!(table.calls.len(), 5);
    for (node, ranks) in paths(&draft).iter().zip(tree.paths()) {
        for (step, (&token, &rank)) in node.iter().zip(ranks).enumerate() {
            let row = table.row(&node[..step]);
            let larger = row.iter().filter(|&&logit| logit > row[token as usize]);
            assert_eq!(larger.count(), rank);
        }
    }
}

#[test]
fn a_tree_is_cut_at_the_length_wanted_and_where_candidates_end() {
    let shape = |children| DraftShape::Static {
        tree: StaticTree::named("medusa-63").unwrap(),
        children,
    };
    let mut table = Table::new(12, 0);
    let draft = built(shape(Children::Top), 2, Sampling::GREEDY, &mut table);
    assert_eq!(draft.len(), 38);
    assert_eq!(table.calls.len(), 2);
    // Of two tokens at each node the ranks 0 and 1 are left.
    let two = Sampling {
        top_k: 2,
        ..Sampling::at(1.0)
    };
    for (mut table, sampling) in [(Table::new(2, 0), Sampling::at(1.0)), (table, two)] {
        let draft = built(shape(Children::WithoutReplacement), 9, sampling, &mut table);
        let tree = StaticTree::named("medusa-63").unwrap();
        let left = tree
            .paths()
            .iter()
            .filter(|path| path.iter().all(|&rank| rank < 2));
        assert_eq!(draft.len(), left.count());
    }
    let chain = DraftShape::Chain { length: 4 };
    assert_eq!(
        built(chain, 3, Sampling::at(1.0), &mut Table::new(5, 0)).len(),
        3
    );
}

#[test]
fn the_distribution_of_a_drawn_child_has_no_mass_on_the_siblings_before_it() {
    let tree = StaticTree::new(vec![vec![0], vec![1], vec![2], vec![0, 0], vec![0, 1]]).unwrap();
    let sampling = Sampling {
        temperature: 0.7,
        top_k: 4,
        top_p: 1.0,
    };
    for children in [Children::WithoutReplacement, Children::WithReplacement] {
        let mut table = Table::new(6, 3);
        let shape = DraftShape::Static {
            tree: tree.clone(),
            children,
        };
        let draft = built(shape, 2, sampling, &mut table);
        let Proposal::Sampled(distributions) = &draft.proposal else {
            panic!("a drawn tree states its distributions");
        };
        let paths = paths(&draft);
        for (node, path) in paths.iter().enumerate() {
            let mut expected = sampling
                .distribution(&table.row(&path[..path.len() - 1]))
                .probabilities;
            if children == Children::WithoutReplacement {
                for sibling in 0..node {
                    if draft.parents[sibling] == draft.parents[node] {
                        expected[draft.tokens[sibling] as usize] = 0.0;
                    }
                }
            }
            let total: f32 = expected.iter().sum();
            for (got, expected) in distributions[node].probabilities.iter().zip(expected) {
                assert!((got - expected / total).abs() < 1e-6, "node {node}");
            }
            assert!(distributions[node].probabilities[draft.tokens[node] as usize] > 0.0);
        }
    }
}

#[test]
fn tokens_are_those_of_the_target() {
    // Draft tokens 0, 1, 2 stand for 1, 3, 4.
    let vocabulary = DraftVocabulary::from_d2t(&[1, 2, 2], 6).unwrap();
    let mut table = Table::new(3, 0);
    for (shape, sampling) in [
        (DraftShape::Chain { length: 3 }, Sampling::GREEDY),
        (DraftShape::Chain { length: 3 }, Sampling::at(1.0)),
        (
            DraftShape::Dynamic {
                depth: 2,
                top_k: 3,
                nodes: 12,
            },
            Sampling::at(1.0),
        ),
    ] {
        let request = DraftRequest {
            shape,
            length: 3,
            sampling,
        };
        let draft = build(&request, &vocabulary, &mut table);
        assert!(!draft.is_empty());
        assert!(draft.tokens.iter().all(|token| [1, 3, 4].contains(token)));
    }
}

#[test]
fn the_largest_are_in_order_and_of_equals_the_first() {
    let values = [0.5, 2.0, f32::NEG_INFINITY, 2.0, 1.0];
    assert!(is_sound(&values));
    assert_eq!(possible(&values[..4], 3), [1, 3, 0]);
    assert_eq!(possible(&values, 3), [1, 3, 4]);
    assert_eq!(possible(&values, 9), [1, 3, 4, 0]);
    assert_eq!(possible(&values, 0), [0u32; 0]);
    assert_eq!([1, 3, 4, 0].map(|token| rank(&values, token)), [0, 1, 2, 3]);
    // What is no number breaks a draft, and no token ranks behind it.
    let values = [0.5, 2.0, f32::NEG_INFINITY, 2.0, f32::NAN, 1.0];
    assert!(!is_sound(&values));
    assert_eq!([1, 3, 5, 0].map(|token| rank(&values, token)), [0, 1, 2, 3]);
}

#[test]
fn best_first_drafts_the_likeliest_paths_there_are() {
    for (depth, nodes) in [(1, 3), (3, 7), (4, 30), (2, 100)] {
        let mut table = Table::new(5, 1);
        let shape = DraftShape::BestFirst { depth, nodes };
        let draft = built(shape, 9, Sampling::at(1.0), &mut table);
        let mut expected = all(&table, depth);
        expected.sort_by(|a, b| b.1.total_cmp(&a.1));
        expected.truncate(nodes);
        let expected: Vec<_> = expected.into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths(&draft), expected, "depth {depth}, {nodes} nodes");
        assert!(matches!(draft.proposal, Proposal::Deterministic));
    }
}

/// Guesses the same before every token.
struct Sure(Table, f32);

impl DraftSource for Sure {
    fn logits(&mut self, tree: &Tree, nodes: &[usize]) -> Tensor<2> {
        self.0.logits(tree, nodes)
    }

    fn confidence(&mut self, _: &Tree, nodes: &[usize]) -> Option<Vec<f32>> {
        Some(vec![self.1; nodes.len().max(1)])
    }

    fn draw(&mut self, weights: &[f32]) -> u32 {
        self.0.draw(weights)
    }
}

#[test]
fn a_confident_chain_ends_where_the_product_of_its_guesses_falls_below_the_bound() {
    let vocabulary = DraftVocabulary::full(6);
    for (bound, expected) in [(0.0, 5), (0.2, 2), (0.25, 2), (0.3, 1), (0.6, 0)] {
        let request = DraftRequest {
            shape: DraftShape::Confident {
                length: 5,
                stop: Stop {
                    by: StopBy::Head,
                    threshold: bound,
                },
            },
            length: 9,
            sampling: Sampling::at(1.0),
        };
        let draft = build(&request, &vocabulary, &mut Sure(Table::new(6, 2), 0.5));
        assert_eq!(draft.len(), expected, "bound {bound}");
        let Proposal::Sampled(distributions) = &draft.proposal else {
            panic!("drawn tokens have distributions");
        };
        assert_eq!(distributions.len(), expected);
        // Without guesses, nothing ends it.
        let draft = build(&request, &vocabulary, &mut Table::new(6, 2));
        assert_eq!(draft.len(), 5);
    }
}

#[test]
fn a_chain_ends_before_a_step_whose_entropy_bounds_acceptance_too_low() {
    let mut ended = 0;
    for (temperature, vocab) in [0.0, 1.0, 0.5]
        .into_iter()
        .flat_map(|t| (3..9).map(move |v| (t, v)))
    {
        let sampling = Sampling::at(temperature);
        let own = if sampling.is_greedy() {
            Sampling::at(1.0)
        } else {
            sampling
        };
        for percent in [0, 100].into_iter().chain(30..70) {
            let stop = Stop {
                by: StopBy::Entropy,
                threshold: f64::from(percent) / 100.0,
            };
            let shape = DraftShape::Confident { length: 5, stop };
            let mut table = Table::new(vocab, 3);
            let draft = built(shape.clone(), 9, sampling, &mut table);
            let bound = |step: usize| {
                let row = table.row(&draft.tokens[..step]);
                acceptance_bound(own.distribution(&row).entropy())
            };
            assert!((0..draft.len()).all(|step| !stop.ends(bound(step))));
            assert!(draft.len() == 5 || stop.ends(bound(draft.len())));
            // The step that was not drafted has taken a pass.
            assert_eq!(table.calls.len(), shape.asked(5, draft.len()));
            ended += usize::from((1..5).contains(&draft.len()));
        }
    }
    assert!(ended > 10, "{ended}");
}

/// Logits of a drafter that breaks at some depth.
struct Breaking {
    depth: usize,
    logit: f32,
}

impl DraftSource for Breaking {
    fn logits(&mut self, tree: &Tree, nodes: &[usize]) -> Tensor<2> {
        let depth = nodes.first().map_or(0, |&node| 1 + tree.depth(node));
        let row = |_: &usize| {
            if depth == self.depth {
                vec![0.5, self.logit, 0.25, f32::NEG_INFINITY]
            } else {
                vec![0.5, 1.0, 0.25, f32::NEG_INFINITY]
            }
        };
        let rows: Vec<_> = nodes.iter().map(row).collect();
        let rows = if rows.is_empty() { vec![row(&0)] } else { rows };
        on(&test_device(), rows)
    }

    fn draw(&mut self, weights: &[f32]) -> u32 {
        weights.iter().position(|&weight| weight > 0.0).unwrap() as u32
    }
}

#[test]
fn logits_that_are_no_numbers_break_the_draft_of_every_shape() {
    let shapes = [
        DraftShape::Chain { length: 3 },
        DraftShape::Static {
            tree: StaticTree::chain(3),
            children: Children::WithReplacement,
        },
        DraftShape::Dynamic {
            depth: 3,
            top_k: 2,
            nodes: 6,
        },
        DraftShape::BestFirst { depth: 3, nodes: 6 },
    ];
    for shape in shapes {
        for sampling in [Sampling::GREEDY, Sampling::at(1.0)] {
            for depth in 0..3 {
                for (logit, is_broken) in [
                    (f32::NAN, true),
                    (f32::INFINITY, true),
                    (f32::NEG_INFINITY, false),
                    (1.0, false),
                ] {
                    let request = DraftRequest {
                        shape: shape.clone(),
                        length: 3,
                        sampling,
                    };
                    let mut source = Breaking { depth, logit };
                    let draft = build(&request, &DraftVocabulary::full(4), &mut source);
                    let found = matches!(draft.proposal, Proposal::Broken);
                    assert_eq!(found, is_broken, "{shape:?}, {logit} at depth {depth}");
                    assert_eq!(draft.is_empty(), is_broken);
                }
            }
        }
    }
}

/// Logits of a large vocabulary by the path, or by its length alone, some of which are of tokens that cannot be chosen.
struct Wide {
    device: Device,
    rng: StdRng,
    /// Whether many logits are equal.
    is_coarse: bool,
    by_depth: bool,
    /// Rows asked for, call by call.
    rows: Vec<usize>,
}

impl Wide {
    const VOCAB: usize = 700;

    fn row(&self, path: &[u32]) -> Vec<f32> {
        let path = match self.by_depth {
            true => vec![0; path.len()],
            false => path.to_vec(),
        };
        let mut rng = StdRng::seed_from_u64(path.iter().fold(7, |seed, &token| {
            (seed * 31 + u64::from(token) + 1) % 1_000_003
        }));
        let logit = |token: usize| match token % 9 {
            4 => f32::NEG_INFINITY,
            _ if self.is_coarse => rng.random_range(-6i16..8) as f32 / 2.0,
            _ => rng.random_range(-6.0..8.0),
        };
        (0..Self::VOCAB).map(logit).collect()
    }
}

impl DraftSource for Wide {
    fn logits(&mut self, tree: &Tree, nodes: &[usize]) -> Tensor<2> {
        let mut rows: Vec<_> = nodes
            .iter()
            .map(|&node| self.row(&tree.path(node)))
            .collect();
        if nodes.is_empty() {
            rows.push(self.row(&[]));
        }
        self.rows.push(rows.len());
        on(&self.device, rows)
    }

    fn depends_on_depth_alone(&self) -> bool {
        self.by_depth
    }

    fn draw(&mut self, weights: &[f32]) -> u32 {
        sample(weights, &mut self.rng)
    }
}

/// Indices of the `count` largest finite values in descending order, of equals the smaller first, by sorting all.
fn largest(values: &[f32], count: usize) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..values.len()).collect();
    indices.retain(|&index| values[index].is_finite());
    indices.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    indices.truncate(count);
    indices
}

/// The `count` likeliest continuations of a path by whole rows in f64, each with the logarithm of its likelihood.
fn continued(source: &Wide, path: &[u32], so_far: f64, count: usize) -> Vec<(Vec<u32>, f64)> {
    let row = source.row(path);
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let exponentials = row.iter().map(|&logit| (logit as f64 - most).exp());
    let total = most + exponentials.sum::<f64>().ln();
    let longer = |token: usize| {
        let path = [path, &[token as u32]].concat();
        (path, so_far + (row[token] as f64 - total))
    };
    largest(&row, count).into_iter().map(longer).collect()
}

/// The paths of [`DraftShape::Dynamic`], in the order in which they were found.
fn dynamic_by_whole_rows(source: &Wide, [depth, top_k, nodes]: [usize; 3]) -> Vec<Vec<u32>> {
    let mut all: Vec<(Vec<u32>, f64)> = Vec::new();
    let mut frontier = vec![(Vec::new(), 0.0)];
    for _ in 0..depth {
        let level = frontier.iter();
        let level = level.flat_map(|(path, value)| continued(source, path, *value, top_k));
        let mut level: Vec<_> = level.collect();
        all.extend(level.iter().cloned());
        level.sort_by(|a, b| b.1.total_cmp(&a.1));
        level.truncate(top_k);
        frontier = level;
    }
    let values: Vec<f64> = all.iter().map(|(_, value)| *value).collect();
    let mut chosen = likeliest(&values, 0, nodes);
    chosen.sort_unstable();
    chosen.into_iter().map(|at| all[at].0.clone()).collect()
}

/// The paths of [`DraftShape::BestFirst`], of equals the one found first.
fn best_first_by_whole_rows(source: &Wide, depth: usize, nodes: usize) -> Vec<Vec<u32>> {
    let mut open = continued(source, &[], 0.0, nodes);
    let mut taken: Vec<Vec<u32>> = Vec::new();
    while taken.len() < nodes && !open.is_empty() {
        let values: Vec<f64> = open.iter().map(|(_, value)| *value).collect();
        let (path, value) = open.remove(likeliest(&values, 0, 1)[0]);
        taken.push(path.clone());
        if path.len() < depth {
            open.extend(continued(source, &path, value, nodes - taken.len()));
        }
    }
    taken
}

#[test]
fn trees_of_the_likeliest_tokens_are_those_made_of_whole_rows() {
    let tree = StaticTree::named("eagle-25").unwrap();
    // Among equal rows of coarse logits, paths are equally likely up to the last bit of a sum in f64.
    for (device, is_coarse, by_depth) in [
        (test_device(), true, false),
        (test_device(), false, true),
        (Device::flex(), true, true),
    ] {
        let source = || Wide {
            device: device.clone(),
            rng: StdRng::seed_from_u64(1),
            is_coarse,
            by_depth,
            rows: Vec::new(),
        };
        let drafted = |shape: DraftShape| {
            let request = DraftRequest {
                shape,
                length: 9,
                sampling: Sampling::GREEDY,
            };
            let mut source = source();
            let vocabulary = DraftVocabulary::full(Wide::VOCAB);
            (paths(&build(&request, &vocabulary, &mut source)), source)
        };
        for [depth, top_k, nodes] in [[4, 6, 30], [3, 20, 50]] {
            let (found, asked) = drafted(DraftShape::Dynamic {
                depth,
                top_k,
                nodes,
            });
            let expected = dynamic_by_whole_rows(&asked, [depth, top_k, nodes]);
            assert_eq!(found, expected, "{depth} {top_k} {nodes}");
            let mut rows = vec![if by_depth { 1 } else { top_k }; depth];
            rows[0] = 1;
            assert_eq!(asked.rows, rows);
        }
        let (found, asked) = drafted(DraftShape::BestFirst {
            depth: 4,
            nodes: 40,
        });
        assert_eq!(found, best_first_by_whole_rows(&asked, 4, 40));
        assert!(!by_depth || asked.rows.len() <= 4, "{:?}", asked.rows);
        let (found, asked) = drafted(DraftShape::Static {
            tree: tree.clone(),
            children: Children::Top,
        });
        for (path, ranks) in found.iter().zip(tree.paths()) {
            for (step, (&token, &rank)) in path.iter().zip(ranks).enumerate() {
                let best = largest(&asked.row(&path[..step]), rank + 1);
                assert_eq!(token as usize, best[rank]);
            }
        }
        assert_eq!(found.len(), 25);
    }
}

#[test]
fn where_the_depth_decides_a_row_stands_for_all_nodes_and_each_draws_from_it() {
    let shape = |children| DraftShape::Static {
        tree: StaticTree::named("eagle-25").unwrap(),
        children,
    };
    for children in [Children::WithoutReplacement, Children::WithReplacement] {
        let draft = |shares: bool| {
            let mut source = Wide {
                device: test_device(),
                rng: StdRng::seed_from_u64(5),
                is_coarse: false,
                by_depth: true,
                rows: Vec::new(),
            };
            let request = DraftRequest {
                shape: shape(children),
                length: 9,
                sampling: Sampling::at(0.8),
            };
            let vocabulary = DraftVocabulary::full(Wide::VOCAB);
            let draft = if shares {
                build(&request, &vocabulary, &mut source)
            } else {
                build(&request, &vocabulary, &mut NodeByNode(&mut source))
            };
            (draft, source.rows)
        };
        let ((shared, once), (alone, each)) = (draft(true), draft(false));
        assert_eq!(shared.tokens, alone.tokens);
        assert_eq!(shared.parents, alone.parents);
        let (Proposal::Sampled(shared), Proposal::Sampled(alone)) =
            (shared.proposal, alone.proposal)
        else {
            panic!("drawn tokens have distributions");
        };
        assert_eq!(shared, alone);
        assert_eq!(once, [1; 5]);
        assert!(each.iter().sum::<usize>() > 5, "{each:?}");
    }
}

/// Asks for each node, though one stands for all.
struct NodeByNode<'a>(&'a mut Wide);

impl DraftSource for NodeByNode<'_> {
    fn logits(&mut self, tree: &Tree, nodes: &[usize]) -> Tensor<2> {
        self.0.logits(tree, nodes)
    }

    fn draw(&mut self, weights: &[f32]) -> u32 {
        self.0.draw(weights)
    }
}

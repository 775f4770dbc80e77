use spectrain_checkpoints::DType;

use super::*;
use crate::device::{bound_of_products, test_device};
use crate::mask::{Mask, seen_in_tree, token_ids, tree_positions};
use crate::rope::{RopeConfig, RopeScaling};
use crate::sight::Sight;
use crate::target::{Caches, Capture, LogitRows, Pass, Target as _, TargetSpec};
use crate::transformer::{Transformer, TransformerConfig};
use crate::tree::chain;
use crate::weights::{RandomWeights, Scope, host_f32};

const VOCAB: usize = 19;

/// Keys and values of these numbers.
fn rows(values: &[f32]) -> [Tensor<4>; 2] {
    let rows = Tensor::<1>::from_floats(values, &test_device()).reshape([1, 1, values.len(), 1]);
    [rows.clone(), rows]
}

/// The numbers held.
fn held(cache: &KvCache) -> Vec<f32> {
    let (keys, values) = cache.first(cache.len());
    let keys = host_f32(keys);
    assert_eq!(host_f32(values), keys);
    keys
}

fn room(cache: &KvCache) -> usize {
    cache.keys.as_ref().map_or(0, |keys| keys.dims()[2])
}

#[test]
fn appending_truncating_and_keeping_a_path_leaves_the_right_rows() {
    let mut caches = [2, 100].map(KvCache::new);
    let kept = Kept::new(2, &[0, 2, 3]);
    for cache in &mut caches {
        let [keys, values] = rows(&[1.0, 2.0, 3.0]);
        cache.append(keys, values);
        cache.truncate(2);
        let [keys, values] = rows(&[10.0, 11.0, 12.0, 13.0]);
        cache.append(keys, values);
        cache.keep(&kept);
        assert_eq!(cache.len(), 5);
        let [keys, values] = rows(&[20.0]);
        cache.append(keys, values);
        assert_eq!(held(cache), [1.0, 2.0, 10.0, 12.0, 13.0, 20.0]);
    }
    let places = kept.places.get().cloned().unwrap().into_data();
    assert_eq!(places.iter::<i64>().collect::<Vec<_>>(), [2, 4, 5]);
}

#[test]
fn a_path_that_stands_where_it_is_to_stand_moves_nothing() {
    let mut cache = KvCache::new(9);
    let [keys, values] = rows(&[1.0, 2.0, 3.0, 4.0]);
    cache.append(keys, values);
    let kept = Kept::new(1, &[0, 1]);
    cache.keep(&kept);
    assert!(kept.places.get().is_none());
    assert_eq!(held(&cache), [1.0, 2.0, 3.0]);
}

#[test]
fn room_doubles_up_to_what_is_asked_for_and_beyond_only_where_more_is_held() {
    let grown = [
        (5, 5 + FIRST_ROOM),
        (FIRST_ROOM, 517),
        (1, 1034),
        (516, 1034),
        // Twice as much would be more than was asked for.
        (66, 1500),
        (401, 3000),
    ];
    let aligned = |positions| AtATime::on(&test_device()).of_cache(positions);
    for (capacity, grown) in [(1500, &grown[..]), (40, &[(3, 40)][..])] {
        let mut cache = KvCache::new(capacity);
        let mut numbers: Vec<f32> = Vec::new();
        for &(more, expected) in grown {
            let new: Vec<f32> = (0..more).map(|at| (numbers.len() + at) as f32).collect();
            let [keys, values] = rows(&new);
            cache.append(keys, values);
            numbers.extend(new);
            let found = room(&cache);
            if aligned(1) == 1 {
                assert_eq!(found, expected);
            }
            assert!(found >= numbers.len() && found.is_multiple_of(aligned(1)));
            assert!(found <= aligned(capacity) || numbers.len() > capacity);
            assert_eq!(held(&cache), numbers);
        }
    }
}

/// A decoder of two layers, the second of which sees six positions.
fn decoder() -> Transformer {
    let spec = TargetSpec {
        layers: 2,
        d_model: 16,
        d_ff: 24,
        heads: 4,
        kv_heads: 2,
        d_head: 4,
        vocab: VOCAB,
        norm_epsilon: 1e-6,
        rope: RopeConfig {
            theta: 10_000.0,
            scaling: RopeScaling::Default,
        },
        max_positions: 64,
        routing: None,
    };
    let config = TransformerConfig {
        windows: vec![None, Some(6)],
        ..TransformerConfig::qwen3(spec)
    };
    let (device, mut random) = (test_device(), RandomWeights::new(5));
    Transformer::new(&mut Scope::root(&mut random, &device, DType::F32), config).unwrap()
}

/// The logits of a prompt, of a tree of which a path is kept, of a token, of a chain that is cut, and of more than there is room for.
/// `pass` makes those of some tokens and their parents.
fn logits(mut pass: impl FnMut(&[u32], &[Option<usize>], &mut Caches) -> Tensor<2>) -> Vec<f32> {
    let mut caches = Caches::new(2, 16);
    let mut found = Vec::new();
    let tree = vec![None, Some(0), Some(0), Some(2)];
    let passes = [
        (chain(10), 0..10),
        (tree, 0..0),
        (chain(1), 0..1),
        (chain(4), 0..2),
        (chain(9), 0..9),
        (chain(1), 0..1),
        (chain(7), 0..7),
    ];
    for (parents, kept) in passes {
        let cached = caches.len;
        let token = |node: usize| ((7 * cached + 3 * node) % VOCAB) as u32;
        let tokens: Vec<u32> = (0..parents.len()).map(token).collect();
        found.extend(host_f32(pass(&tokens, &parents, &mut caches)));
        let mut rows: Vec<usize> = kept.collect();
        if rows.is_empty() {
            rows = vec![0, 2, 3];
        }
        caches.keep(cached, &rows);
    }
    found
}

#[test]
fn places_behind_those_held_change_no_logits_where_a_mask_hides_them() {
    let model = decoder();
    let device = test_device();
    let of_keys = |multiple: usize| {
        logits(|tokens, parents, caches| {
            let (nodes, cached) = (tokens.len(), caches.len);
            let keys = (cached + nodes).next_multiple_of(multiple);
            let mask = |window| {
                let sees = seen_in_tree(parents, cached, window);
                Mask::hiding(Sight::new([nodes, keys], sees), &device)
            };
            let states = model.states(
                model.embed(token_ids(tokens, &device)),
                tree_positions(parents, cached, &device),
                &mask,
                Some(caches),
                &Capture::default(),
            );
            model.head().forward(states.last).squeeze_dim(0)
        })
    };
    let of_device = logits(|tokens, parents, caches| {
        let pass = Pass {
            tokens,
            parents,
            logits: LogitRows::All,
        };
        model.decode(pass, caches, &Capture::default()).logits
    });
    let exact = of_keys(1);
    for found in [of_keys(8), of_keys(2), of_device] {
        assert_eq!(found.len(), exact.len());
        for (found, exact) in found.iter().zip(&exact) {
            let bound = bound_of_products(1e-5) * exact.abs().max(1.0);
            assert!((found - exact).abs() < bound, "{found}, {exact}");
        }
    }
}

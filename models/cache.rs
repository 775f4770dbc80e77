use std::cell::OnceCell;

use burn::prelude::*;

use crate::kernels;
use crate::sight::AtATime;

/// Positions that there is room for at first, behind the first ones: an output is seldom as long as it may become.
const FIRST_ROOM: usize = 512;

/// Keys and values of one layer for one sequence, in memory that grows in few steps.
#[derive(Debug, Clone)]
pub struct KvCache {
    /// `[1, kv_heads, room, d_head]`; absent until the first append, which tells the type and the device. Behind what is held stand
    /// zeros, and what was held before.
    keys: Option<Tensor<4>>,
    values: Option<Tensor<4>>,
    /// Positions that it is to hold, as far as is known.
    capacity: usize,
    len: usize,
}

impl KvCache {
    /// An empty cache for `capacity` positions. It begins with room for a few hundred behind the first ones and doubles when
    /// that is not enough: up to `capacity`, and beyond it where more are held than that.
    pub fn new(capacity: usize) -> Self {
        Self {
            keys: None,
            values: None,
            capacity,
            len: 0,
        }
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Drops every position from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Keeps what `kept` says, in that order.
    pub(crate) fn keep(&mut self, kept: &Kept) {
        if kept.moves() {
            for side in [&mut self.keys, &mut self.values] {
                *side = side.take().map(|tensor| kept.moved(tensor));
            }
        }
        self.len = kept.prefix + kept.rows.len();
    }

    /// Adds keys and values.
    ///
    /// # Shapes
    /// - keys, values: `[1, kv_heads, seq, d_head]`
    pub fn append(&mut self, keys: Tensor<4>, values: Tensor<4>) {
        let (len, needed) = (self.len, self.len + keys.dims()[2]);
        let there = self.keys.as_ref().map_or(0, |keys| keys.dims()[2]);
        let room = Self::room(self.capacity, there, needed);
        let room = AtATime::on(&keys.device()).of_cache(room);
        let held = [
            with_room(self.keys.take(), &keys, room),
            with_room(self.values.take(), &values, room),
        ];
        let [keys, values] = kernels::write_at(held, [keys, values], len);
        (self.keys, self.values) = (Some(keys), Some(values));
        self.len = needed;
    }

    /// Keys and values of the first `count` positions, all that are held among them. Those behind are finite and mean nothing.
    ///
    /// # Shapes
    /// - output: `[1, kv_heads, count, d_head]`, twice
    ///
    /// # Panics
    /// More are held, there is no room for so many, or nothing was ever added.
    pub fn first(&self, count: usize) -> (Tensor<4>, Tensor<4>) {
        assert!(count >= self.len, "{count} of {} positions", self.len);
        let (Some(keys), Some(values)) = (&self.keys, &self.values) else {
            panic!("nothing was added to the cache");
        };
        let first = |side: &Tensor<4>| side.clone().narrow(2, 0, count);
        (first(keys), first(values))
    }

    /// Positions that a cache for `capacity` of them has room for when `needed` are held and there is room for `there`, none at
    /// first. On a GPU [more](AtATime::of_cache).
    pub fn room(capacity: usize, there: usize, needed: usize) -> usize {
        if needed <= there {
            return there;
        }
        let wished = match there {
            0 => needed + FIRST_ROOM,
            _ => needed.max(2 * there),
        };
        match needed <= capacity {
            true => wished.min(capacity),
            false => wished,
        }
    }
}

/// Positions that caches keep: the first ones and, behind them, the rows of the accepted path of a draft tree.
#[derive(Debug)]
pub(crate) struct Kept<'a> {
    prefix: usize,
    rows: &'a [usize],
    /// Where the rows stand. All caches of a sequence are on one device, to which this goes once for keys and values of all layers.
    places: OnceCell<Tensor<1, Int>>,
}

impl<'a> Kept<'a> {
    /// The first `prefix` positions and, behind them, those at `prefix + rows[i]`.
    pub(crate) fn new(prefix: usize, rows: &'a [usize]) -> Self {
        Self {
            prefix,
            rows,
            places: OnceCell::new(),
        }
    }

    /// Whether a row is to stand elsewhere.
    fn moves(&self) -> bool {
        let mut rows = self.rows.iter().enumerate();
        rows.any(|(to, &from)| to != from)
    }

    fn places(&self, device: &Device) -> Tensor<1, Int> {
        let made = || {
            let places = self.rows.iter().map(|row| (self.prefix + row) as i64);
            let places: Vec<i64> = places.collect();
            Tensor::from_ints(places.as_slice(), device)
        };
        self.places.get_or_init(made).clone()
    }

    /// Keys or values with the rows behind the prefix.
    fn moved(&self, tensor: Tensor<4>) -> Tensor<4> {
        let [batch, heads, _, d_head] = tensor.dims();
        let rows = tensor.clone().select(2, self.places(&tensor.device()));
        let end = self.prefix + self.rows.len();
        tensor.slice_assign([0..batch, 0..heads, self.prefix..end, 0..d_head], rows)
    }
}

/// Memory for `room` positions that starts with what is `held`.
fn with_room(held: Option<Tensor<4>>, like: &Tensor<4>, room: usize) -> Tensor<4> {
    let [batch, heads, _, d_head] = like.dims();
    let empty = |len| Tensor::zeros([batch, heads, len, d_head], (&like.device(), like.dtype()));
    match held {
        None => empty(room),
        Some(held) if held.dims()[2] == room => held,
        Some(held) => {
            let more = room - held.dims()[2];
            Tensor::cat(vec![held, empty(more)], 2)
        }
    }
}

#[cfg(test)]
mod tests;

use burn::prelude::*;

/// Keys and values of one layer for one sequence, in memory allocated once.
#[derive(Debug, Clone)]
pub struct KvCache {
    /// `[1, kv_heads, capacity, d_head]`; absent until the first append, which tells the type and the device.
    keys: Option<Tensor<4>>,
    values: Option<Tensor<4>>,
    capacity: usize,
    len: usize,
}

impl KvCache {
    /// An empty cache with room for `capacity` positions; it doubles when that is not enough.
    pub fn new(capacity: usize) -> Self {
        Self {
            keys: None,
            values: None,
            capacity: capacity.max(1),
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

    /// Keeps the first `prefix` positions and, after them, the ones `prefix + rows[i]`, in that order.
    ///
    /// The rows of the accepted path of a draft tree are kept this way.
    pub fn keep(&mut self, prefix: usize, rows: &[usize]) {
        let moved = rows.iter().enumerate().any(|(to, &from)| to != from);
        if moved {
            for side in [&mut self.keys, &mut self.values] {
                *side = side.take().map(|tensor| gather(tensor, prefix, rows));
            }
        }
        self.len = prefix + rows.len();
    }

    /// Adds `keys` and `values`, then returns all that is held.
    ///
    /// # Shapes
    /// - keys, values: `[1, kv_heads, seq, d_head]`
    /// - output: `[1, kv_heads, cached + seq, d_head]`, twice
    pub fn append(&mut self, keys: Tensor<4>, values: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let seq = keys.dims()[2];
        let needed = self.len + seq;
        while self.capacity < needed {
            self.capacity *= 2;
        }
        let write = |held: Option<Tensor<4>>, new: Tensor<4>| {
            let room = room(held, &new, self.capacity);
            let [batch, heads, _, d_head] = new.dims();
            room.slice_assign([0..batch, 0..heads, self.len..needed, 0..d_head], new)
        };
        let keys = write(self.keys.take(), keys);
        let values = write(self.values.take(), values);
        self.len = needed;
        let held = (
            keys.clone().narrow(2, 0, needed),
            values.clone().narrow(2, 0, needed),
        );
        self.keys = Some(keys);
        self.values = Some(values);
        held
    }
}

/// Memory for `capacity` positions that starts with what is `held`.
fn room(held: Option<Tensor<4>>, like: &Tensor<4>, capacity: usize) -> Tensor<4> {
    let [batch, heads, _, d_head] = like.dims();
    let empty = |len| Tensor::zeros([batch, heads, len, d_head], (&like.device(), like.dtype()));
    match held {
        None => empty(capacity),
        Some(held) if held.dims()[2] == capacity => held,
        Some(held) => {
            let more = capacity - held.dims()[2];
            Tensor::cat(vec![held, empty(more)], 2)
        }
    }
}

fn gather(tensor: Tensor<4>, prefix: usize, rows: &[usize]) -> Tensor<4> {
    if rows.is_empty() {
        return tensor;
    }
    let [batch, heads, _, d_head] = tensor.dims();
    let indices: Vec<i64> = rows.iter().map(|row| (prefix + row) as i64).collect();
    let indices = Tensor::<1, Int>::from_ints(indices.as_slice(), &tensor.device());
    let kept = tensor.clone().select(2, indices);
    let end = prefix + rows.len();
    tensor.slice_assign([0..batch, 0..heads, prefix..end, 0..d_head], kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::test_device;
    use crate::weights::host_f32;

    fn rows(values: &[f32], device: &Device) -> Tensor<4> {
        Tensor::<1>::from_floats(values, device).reshape([1, 1, values.len(), 1])
    }

    #[test]
    fn appending_truncating_and_keeping_a_path_leaves_the_right_rows() {
        let device = test_device();
        let mut cache = KvCache::new(2);
        let more = |values: &[f32]| (rows(values, &device), rows(values, &device));
        let (keys, values) = more(&[1.0, 2.0, 3.0]);
        cache.append(keys, values);
        cache.truncate(2);
        let (keys, values) = more(&[10.0, 11.0, 12.0, 13.0]);
        cache.append(keys, values);
        cache.keep(2, &[0, 2, 3]);
        assert_eq!(cache.len(), 5);
        let (keys, values) = more(&[20.0]);
        let (keys, values) = cache.append(keys, values);
        let expected = [1.0, 2.0, 10.0, 12.0, 13.0, 20.0];
        assert_eq!(host_f32(keys), expected);
        assert_eq!(host_f32(values), expected);
    }
}

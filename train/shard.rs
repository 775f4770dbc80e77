//! What several ranks do to one model: each moves some of its parameters, and keeps the optimiser's state of these alone (stage 1 of
//! ZeRO, Rajbhandari et al., <https://arxiv.org/abs/1910.02054>).
//!
//! In a step each rank sends its gradient of every parameter to the rank that moves it, which forms the mean as one rank alone does of its
//! batches, and moves it along; then it sends the new weights to all others.
use std::collections::BTreeMap;

use burn::module::Module;
use burn::prelude::*;
use pulp::bytemuck::{cast_slice, pod_collect_to_vec};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::NamedTensor;
use spectrain_models::weights::host_f32;

use crate::error::{Error, Result};
use crate::optimizer::{Gradients, norm_of};
use crate::parameters::{replaced, walk};
use crate::ranks::{Ranks, Together, packed, unpacked};

/// Elements of parameters under their names.
pub(crate) type Elements = BTreeMap<String, Vec<f32>>;

/// Which parameters a rank moves.
#[derive(Debug)]
pub(crate) struct Shard {
    rank: usize,
    count: usize,
    /// The rank that moves each parameter.
    movers: BTreeMap<String, usize>,
}

impl Shard {
    /// That of a rank of so many, which all have `module`.
    pub(crate) fn of<M: Module>(module: &M, rank: usize, count: usize) -> Self {
        let mut lengths = Vec::new();
        walk(module, |name, elements| {
            lengths.push((elements.dims()[0], name));
        });
        Self {
            rank,
            count,
            movers: shared_out(lengths, count),
        }
    }

    /// Whether it is that of rank 0.
    pub(crate) fn leads(&self) -> bool {
        self.rank == 0
    }

    /// Whether it moves the parameter of this name.
    pub(crate) fn moves(&self, name: &str) -> bool {
        self.mover(name) == self.rank
    }

    fn mover(&self, name: &str) -> usize {
        self.movers.get(name).copied().unwrap_or(0)
    }

    /// The mean over all ranks of the gradients of those parameters that it moves. `own` are the means over as much as `counted`.
    ///
    /// # Errors
    /// A rank has ended.
    pub(crate) fn mean(
        &self,
        ranks: &mut dyn Ranks,
        mut own: Gradients,
        counted: f64,
        device: &Device,
    ) -> Result<Gradients> {
        let part = |rank: usize| match rank == self.rank {
            true => Vec::new(),
            false => {
                let part = own.part(|name| self.mover(name) == rank);
                message(&counted, &part.to_host())
            }
        };
        let parts: Vec<Vec<u8>> = (0..self.count).map(part).collect();
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        // What is left is what it moves itself.
        let mut here = Some((counted, own));
        let (mut mean, mut total) = (Gradients::default(), 0.0);
        for (from, message) in ranks.exchange(&parts)?.iter().enumerate() {
            let (counted, gradients) = match here.take_if(|_| from == self.rank) {
                Some(here) => here,
                None => {
                    let (counted, elements) = read::<f64>(from, message)?;
                    (counted, Gradients::from_host(elements, device))
                }
            };
            if counted > 0.0 {
                total += counted;
                mean.average_in(gradients, counted / total);
            }
        }
        Ok(mean)
    }

    /// The norm over all parameters, of which each rank has the gradients that it moves along; `None` when nobody has any.
    ///
    /// # Errors
    /// A rank has ended.
    pub(crate) fn norm(
        &self,
        ranks: &mut dyn Ranks,
        own: &mut Gradients,
        device: &Device,
    ) -> Result<Option<Tensor<1>>> {
        let read = |(name, sum)| (name, host_f32::<1>(sum)[0]);
        let own: BTreeMap<String, f32> = own.square_sums().into_iter().map(read).collect();
        let all = Together(Some(ranks)).gather(own)?;
        let tensor = |(name, sum)| (name, Tensor::from_floats([sum], device));
        Ok(norm_of(all.into_iter().flatten().map(tensor).collect()))
    }

    /// What the others have made of the parameters of `module` that they move; they get what this rank has made of its own.
    ///
    /// # Errors
    /// A rank has ended.
    pub(crate) fn moved_by_others<M: Module>(
        &self,
        ranks: &mut dyn Ranks,
        module: &M,
    ) -> Result<Elements> {
        let mut own = Elements::new();
        walk(module, |name, elements| {
            if self.moves(&name) {
                own.insert(name, host_f32(elements));
            }
        });
        let own = message(&(), &own);
        let messages = vec![own.as_slice(); self.count];
        let mut moved = Elements::new();
        for (from, message) in ranks.exchange(&messages)?.iter().enumerate() {
            if from != self.rank {
                moved.extend(read::<()>(from, message)?.1);
            }
        }
        Ok(moved)
    }
}

/// `module` with these values.
pub(crate) fn with_values<M: Module>(module: M, mut values: Elements) -> M {
    replaced(module, |name, before| match values.remove(name) {
        Some(values) => {
            let shape = before.shape();
            Tensor::from_data(TensorData::new(values, shape), &before.device())
        }
        None => before,
    })
}

/// Who moves each parameter, of so many ranks: the largest parameters first, each to whoever has the fewest elements so far.
fn shared_out(mut lengths: Vec<(usize, String)>, ranks: usize) -> BTreeMap<String, usize> {
    lengths.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
    let mut taken = vec![0; ranks];
    let share = |(length, name)| {
        let mover = (0..ranks).min_by_key(|&rank| taken[rank]).unwrap_or(0);
        taken[mover] += length;
        (name, mover)
    };
    lengths.into_iter().map(share).collect()
}

/// The state of the optimisers of all ranks, on rank 0; nothing on the others. All ranks call this with that of their own.
///
/// # Errors
/// A rank has ended.
pub(crate) fn collected(
    together: &mut Together,
    own: Vec<NamedTensor>,
) -> Result<Option<Vec<NamedTensor>>> {
    let Some(ranks) = &mut together.0 else {
        return Ok(Some(own));
    };
    if ranks.rank() > 0 {
        let values = own.iter().map(|of| Ok((of.name.clone(), of.to_f32()?)));
        let values = values.collect::<Result<Elements>>()?;
        ranks.send(0, &message(&(), &values))?;
        return Ok(None);
    }
    let mut all = own;
    for rank in 1..ranks.count() {
        let ((), values) = read(rank, &ranks.receive(rank)?)?;
        all.extend(values.into_iter().map(|(name, values)| {
            let shape = [values.len()];
            NamedTensor::from_f32(name, shape, values)
        }));
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(Some(all))
}

/// What stands before the elements in a message: something of them all, and name and length of each parameter's.
#[derive(Serialize, Deserialize)]
struct Heading<T> {
    of_all: T,
    lengths: Vec<(String, usize)>,
}

fn message<T: Serialize>(of_all: &T, elements: &Elements) -> Vec<u8> {
    let length = |(name, values): (&String, &Vec<f32>)| (name.clone(), values.len());
    let lengths = elements.iter().map(length).collect();
    let heading = packed(&Heading { of_all, lengths });
    let values: usize = elements.values().map(Vec::len).sum();
    let mut message = Vec::with_capacity(8 + heading.len() + values * size_of::<f32>());
    message.extend((heading.len() as u64).to_le_bytes());
    message.extend(heading);
    for values in elements.values() {
        message.extend_from_slice(cast_slice(values));
    }
    message
}

fn read<T: DeserializeOwned>(from: usize, message: &[u8]) -> Result<(T, Elements)> {
    let cut_off = || Error::rank(from, "sent values of parameters that are cut off");
    let (length, rest) = message.split_first_chunk().ok_or_else(cut_off)?;
    let length = u64::from_le_bytes(*length) as usize;
    let (heading, mut rest) = rest.split_at_checked(length).ok_or_else(cut_off)?;
    let Heading { of_all, lengths } = unpacked(from, heading)?;
    let mut elements = BTreeMap::new();
    for (name, length) in lengths {
        let of = length.checked_mul(size_of::<f32>());
        let found = of.and_then(|bytes| rest.split_at_checked(bytes));
        let (bytes, behind) = found.ok_or_else(cut_off)?;
        elements.insert(name, pod_collect_to_vec(bytes));
        rest = behind;
    }
    Ok((of_all, elements))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_shared_out_evenly_and_each_is_one_ranks() {
        let lengths = || {
            let lengths = [("head", 90), ("a", 40), ("b", 40), ("c", 5), ("d", 5)];
            lengths.map(|(name, length)| (length, name.to_owned()))
        };
        let movers = shared_out(lengths().into(), 2);
        let of = |rank: usize| -> Vec<&str> {
            let own = movers.iter().filter(|(_, mover)| **mover == rank);
            own.map(|(name, _)| name.as_str()).collect()
        };
        assert_eq!((of(0), of(1)), (vec!["head"], vec!["a", "b", "c", "d"]));
        // More ranks than parameters: some move nothing.
        let movers = shared_out(lengths().into(), 7);
        let all: std::collections::BTreeSet<_> = movers.values().collect();
        assert_eq!((movers.len(), all.len()), (5, 5));
    }

    #[test]
    fn messages_are_read_as_they_were_written_and_not_when_cut_off() {
        let elements = Elements::from([("a".into(), vec![1.0, -2.5]), ("b".into(), vec![0.1; 3])]);
        let written = message(&7.5, &elements);
        assert_eq!(read::<f64>(1, &written).unwrap(), (7.5, elements));
        for length in 0..written.len() {
            let error = read::<f64>(3, &written[..length]).unwrap_err().to_string();
            assert!(error.contains("rank 3 sent"), "{error}");
        }
    }
}

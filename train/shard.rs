//! What several ranks do to one model: each moves some of its parameters, and keeps the optimiser's state of these alone (stage 1 of
//! ZeRO, Rajbhandari et al., <https://arxiv.org/abs/1910.02054>).
//!
//! In a step each rank sends its gradient of every parameter to the rank that moves it, which forms the mean as one rank alone does of its
//! batches, and moves it along; then it sends the new weights to all others.
use std::collections::BTreeMap;

use burn::module::Module;
use burn::prelude::*;
use pulp::bytemuck::{cast_slice, pod_collect_to_vec};
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::NamedTensor;
use spectrain_models::weights::host_f32;

use crate::arithmetic::operations::NamedGradients;
use crate::error::Result;
use crate::optimizer::{Gradients, norm_of};
use crate::parameters::{replaced, walk};
use crate::ranks::{Ranks, Together, packed, unpacked};

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

    /// Whether it is that of this one of these ranks.
    pub(crate) fn is_of(&self, ranks: &dyn Ranks) -> bool {
        (self.rank, self.count) == (ranks.rank(), ranks.count())
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
            true => NamedGradients::new(),
            false => own.part(|name| self.mover(name) == rank),
        };
        let parts: Vec<NamedGradients> = (0..self.count).map(part).collect();
        let headings: Vec<Vec<u8>> = parts.iter().map(|of| heading(counted, of)).collect();
        let headings: Vec<&[u8]> = headings.iter().map(Vec::as_slice).collect();
        let mut told = Vec::new();
        for (from, message) in ranks.exchange(&headings)?.iter().enumerate() {
            told.push(match from == self.rank {
                true => Heading::default(),
                false => unpacked(from, message)?,
            });
        }
        let parts = parts.into_iter().map(|of| of.into_values().collect());
        let lengths: Vec<_> = told.iter().map(|of| of.lengths.clone()).collect();
        let sent = ranks.exchange_tensors(parts.collect(), &lengths, device)?;
        // What is left is what it moves itself.
        let mut here = Some((counted, own));
        let (mut mean, mut total) = (Gradients::default(), 0.0);
        for (from, (told, sent)) in told.into_iter().zip(sent).enumerate() {
            let (counted, gradients) = match here.take_if(|_| from == self.rank) {
                Some(here) => here,
                None => {
                    let named = told.names.into_iter().zip(sent);
                    (told.counted, NamedGradients::from_iter(named).into())
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
        let (names, sums): (Vec<String>, Vec<_>) = own.square_sums().into_iter().unzip();
        // Read all at once: each look at a device waits for it.
        let sums = match sums.is_empty() {
            true => Vec::new(),
            false => host_f32(Tensor::cat(sums, 0)),
        };
        let own: BTreeMap<String, f32> = names.into_iter().zip(sums).collect();
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
        device: &Device,
    ) -> Result<BTreeMap<String, Tensor<1>>> {
        let mut own = Vec::new();
        let mut names = vec![Vec::new(); self.count];
        let mut lengths = vec![Vec::new(); self.count];
        walk(module, |name, elements| match self.mover(&name) {
            mover if mover == self.rank => own.push(elements),
            mover => {
                lengths[mover].push(elements.dims()[0]);
                names[mover].push(name);
            }
        });
        let moved = ranks.spread_tensors(own, &lengths, device)?;
        let each = names.into_iter().zip(moved);
        Ok(each
            .flat_map(|(names, moved)| names.into_iter().zip(moved))
            .collect())
    }
}

/// What a rank says of the gradients that it sends: as much as they are the mean over, and of each the name and the length.
#[derive(Default, Serialize, Deserialize)]
struct Heading {
    counted: f64,
    names: Vec<String>,
    lengths: Vec<usize>,
}

fn heading(counted: f64, gradients: &NamedGradients) -> Vec<u8> {
    packed(&Heading {
        counted,
        names: gradients.keys().cloned().collect(),
        lengths: gradients.values().map(|of| of.dims()[0]).collect(),
    })
}

/// `module` with these elements of its parameters.
pub(crate) fn with_values<M: Module>(module: M, mut values: BTreeMap<String, Tensor<1>>) -> M {
    replaced(module, |name, before| values.remove(name).unwrap_or(before))
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
        let names: Vec<&str> = own.iter().map(|of| of.name.as_str()).collect();
        ranks.send(0, &packed(&names))?;
        for of in &own {
            ranks.send(0, cast_slice(&of.to_f32()?))?;
        }
        return Ok(None);
    }
    let mut all = own;
    for rank in 1..ranks.count() {
        let names: Vec<String> = unpacked(rank, &ranks.receive(rank)?)?;
        for name in names {
            let values: Vec<f32> = pod_collect_to_vec(&ranks.receive(rank)?);
            let shape = [values.len()];
            all.push(NamedTensor::from_f32(name, shape, values));
        }
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(Some(all))
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
}

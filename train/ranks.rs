//! Ranks: processes that train one model together, each with a device of its own.
//!
//! The batches of a step are shared out among them, and so are the parameters ([`crate::shard`]): each rank forms the mean of the gradients
//! of its own batches, gets that over all of them for the parameters that are its own, moves these, and gives them to the
//! others. So a run is the same on any number of ranks that divides `gradient_accumulation`: with one
//! batch of a step for each rank bit by bit where their devices compute alike, else but for the order in which gradients are
//! added up. A validation is shared out too, and what it counts is added up in one order on any number of ranks. Rank 0 alone logs
//! and saves.
use burn::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use spectrain_checkpoints::Mismatch;

use self::through_host::{bytes, read};
use crate::error::{Error, Result};

#[cfg(all(feature = "cuda", not(feature = "fusion")))]
pub(crate) mod nccl;
#[cfg(not(all(feature = "cuda", not(feature = "fusion"))))]
#[path = "ranks/no_nccl.rs"]
pub(crate) mod nccl;
mod through_host;
pub(crate) mod way;

/// What each rank sends or has sent, in their order; nothing from a rank to itself. Each is f32, `[length]`.
pub type ByRank = Vec<Vec<Tensor<1>>>;

/// Fails where another rank has ended.
pub(crate) type Alive<'a> = &'a mut (dyn FnMut() -> Result<()> + Send);

/// The ranks as one of them sees them. Messages between two of them come in the order in which they were sent.
pub trait Ranks: Send {
    /// Its own number, from 0.
    fn rank(&self) -> usize;

    /// How many there are.
    fn count(&self) -> usize;

    /// Sends a message.
    ///
    /// # Errors
    /// The other rank has ended.
    fn send(&mut self, to: usize, message: &[u8]) -> Result<()>;

    /// Sends a message to all others, from rank 0.
    ///
    /// # Errors
    /// One of them has ended.
    fn send_all(&mut self, message: &[u8]) -> Result<()> {
        (1..self.count()).try_for_each(|rank| self.send(rank, message))
    }

    /// Waits for the next message of another rank.
    ///
    /// # Errors
    /// The other rank has ended.
    fn receive(&mut self, from: usize) -> Result<Vec<u8>>;

    /// Sends each other rank its message, and returns what each has sent; both have a place for this rank, which gets nothing from
    /// itself. All ranks call this.
    ///
    /// # Errors
    /// A rank has ended.
    fn exchange(&mut self, messages: &[&[u8]]) -> Result<Vec<Vec<u8>>>;

    /// Sends each other rank its tensors, and returns what each has sent, on `device`. `lengths` are those of what comes. All ranks
    /// call this.
    ///
    /// # Errors
    /// A rank has ended, or sends something else.
    fn exchange_tensors(
        &mut self,
        own: ByRank,
        lengths: &[Vec<usize>],
        device: &Device,
    ) -> Result<ByRank> {
        exchange_through_host(self, own, lengths, device)
    }

    /// Sends all other ranks the same tensors, each f32, `[length]`, and returns what each has sent, as [`Self::exchange_tensors`] does.
    ///
    /// # Errors
    /// A rank has ended, or sends something else.
    fn spread_tensors(
        &mut self,
        own: Vec<Tensor<1>>,
        lengths: &[Vec<usize>],
        device: &Device,
    ) -> Result<ByRank> {
        spread_through_host(self, own, lengths, device)
    }

    /// Fails where another rank has ended.
    ///
    /// # Errors
    /// That one has.
    fn check(&mut self) -> Result<()>;
}

/// [`Ranks::exchange_tensors`] by [`Ranks::exchange`].
pub(crate) fn exchange_through_host<R: Ranks + ?Sized>(
    ranks: &mut R,
    own: ByRank,
    lengths: &[Vec<usize>],
    device: &Device,
) -> Result<ByRank> {
    let messages: Vec<Vec<u8>> = own.into_iter().map(bytes).collect();
    let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
    read(ranks.exchange(&messages)?, lengths, device)
}

/// [`Ranks::spread_tensors`] by [`Ranks::exchange`].
pub(crate) fn spread_through_host<R: Ranks + ?Sized>(
    ranks: &mut R,
    own: Vec<Tensor<1>>,
    lengths: &[Vec<usize>],
    device: &Device,
) -> Result<ByRank> {
    let own = bytes(own);
    let messages = vec![own.as_slice(); ranks.count()];
    read(ranks.exchange(&messages)?, lengths, device)
}

/// Which batches of a step one rank trains on: those between two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Batches of a step.
    step: usize,
    first: usize,
    behind: usize,
}

impl Share {
    /// All of them.
    pub const WHOLE: Self = Self {
        step: 1,
        first: 0,
        behind: 1,
    };

    /// The share of a rank, of steps of so many batches.
    ///
    /// # Errors
    /// They cannot be shared out evenly.
    pub fn of(rank: usize, ranks: usize, batches: usize) -> Result<Self> {
        if !batches.is_multiple_of(ranks) {
            return Err(Error::Setting {
                table: "train",
                key: "gradient_accumulation",
                mismatch: Mismatch::new(
                    format!(
                        "a multiple of the {ranks} ranks, so that all get equally many batches of a step"
                    ),
                    batches,
                ),
            });
        }
        let each = batches / ranks;
        Ok(Self {
            step: batches,
            first: rank * each,
            behind: (rank + 1) * each,
        })
    }

    /// Batches of a step.
    pub(crate) fn len(&self) -> usize {
        self.behind - self.first
    }

    /// Whether the batch number `position` of the run is one of them.
    pub(crate) fn has(&self, position: usize) -> bool {
        (self.first..self.behind).contains(&(position % self.step))
    }
}

/// A loop's view of the ranks, of which there may be none but its own.
pub struct Together<'a>(pub Option<&'a mut dyn Ranks>);

impl Together<'_> {
    /// The ranks, where there are several.
    pub(crate) fn ranks(&mut self) -> Option<&mut dyn Ranks> {
        match &mut self.0 {
            Some(ranks) => Some(&mut **ranks),
            None => None,
        }
    }

    /// Whether a piece of work that is shared out, counted from 0, is this rank's.
    pub fn takes(&self, piece: usize) -> bool {
        let here = self.0.as_ref();
        here.is_none_or(|ranks| piece % ranks.count() == ranks.rank())
    }

    /// The pieces that all ranks have made, each with its number, in the order of these. All ranks call this, and get the same.
    ///
    /// # Errors
    /// A rank has ended, or was interrupted.
    pub fn gather_pieces<T: Serialize + DeserializeOwned>(
        &mut self,
        own: Result<Vec<(usize, T)>>,
    ) -> Result<Vec<T>> {
        // Whoever was interrupted says so, as the others wait for it.
        let own = match own {
            Err(Error::Interrupted) => None,
            own => Some(own?),
        };
        let all: Option<Vec<_>> = self.gather(own)?.into_iter().collect();
        let mut pieces: Vec<_> = all
            .ok_or(Error::Interrupted)?
            .into_iter()
            .flatten()
            .collect();
        pieces.sort_by_key(|(number, _)| *number);
        Ok(pieces.into_iter().map(|(_, piece)| piece).collect())
    }

    /// Whether it logs and saves.
    pub fn leads(&self) -> bool {
        self.0.as_ref().is_none_or(|ranks| ranks.rank() == 0)
    }

    /// What is trained on here, of steps of so many batches.
    pub(crate) fn share(&self, batches: usize) -> Result<Share> {
        match &self.0 {
            None => Share::of(0, 1, batches),
            Some(ranks) => Share::of(ranks.rank(), ranks.count(), batches),
        }
    }

    /// What each rank has, in their order; all get it.
    pub(crate) fn gather<T: Serialize + DeserializeOwned>(&mut self, own: T) -> Result<Vec<T>> {
        let Some(ranks) = &mut self.0 else {
            return Ok(vec![own]);
        };
        if ranks.rank() > 0 {
            ranks.send(0, &packed(&own))?;
            return unpacked(0, &ranks.receive(0)?);
        }
        let mut all = vec![own];
        for rank in 1..ranks.count() {
            all.push(unpacked(rank, &ranks.receive(rank)?)?);
        }
        ranks.send_all(&packed(&all))?;
        Ok(all)
    }

    /// Whether that is so on any rank.
    pub(crate) fn any(&mut self, here: bool) -> Result<bool> {
        Ok(self.gather(here)?.contains(&true))
    }

    /// What rank 0 has. All ranks call this.
    ///
    /// # Errors
    /// A rank has ended.
    pub fn of_first<T: Serialize + DeserializeOwned>(&mut self, own: T) -> Result<T> {
        let all = self.gather(own)?;
        // There is always a rank 0.
        all.into_iter()
            .next()
            .ok_or_else(|| Error::rank(0, "sent nothing"))
    }

    /// Fails unless all ranks have the same, of which `what` is the name.
    pub(crate) fn require_same(&mut self, what: &str, own: String) -> Result<()> {
        let all = self.gather(own)?;
        match all.iter().position(|other| *other != all[0]) {
            None => Ok(()),
            Some(rank) => Err(Error::rank(rank, &format!("has other {what} than rank 0"))),
        }
    }
}

pub(crate) fn packed(value: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec(value).unwrap_or_else(|error| unreachable!("plain values: {error}"))
}

pub(crate) fn unpacked<T: DeserializeOwned>(from: usize, message: &[u8]) -> Result<T> {
    rmp_serde::from_slice(message)
        .map_err(|error| Error::rank(from, &format!("sent something unexpected: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_batch_of_a_step_is_one_ranks() {
        for (ranks, batches) in [(1, 1), (1, 3), (2, 2), (3, 6)] {
            let shares: Vec<Share> = (0..ranks)
                .map(|rank| Share::of(rank, ranks, batches).unwrap())
                .collect();
            for position in 0..3 * batches {
                let of = shares.iter().filter(|share| share.has(position)).count();
                assert_eq!(of, 1, "{position} of {batches} on {ranks}");
            }
            let lengths = shares.iter().map(Share::len).sum::<usize>();
            assert_eq!(lengths, batches);
        }
        assert!((0..5).all(|position| Share::WHOLE.has(position)));
        let refused = Share::of(0, 4, 6).unwrap_err().to_string();
        assert!(
            refused.contains("`[train] gradient_accumulation`"),
            "{refused}"
        );
        assert!(refused.contains("multiple of the 4 ranks"), "{refused}");
    }
}

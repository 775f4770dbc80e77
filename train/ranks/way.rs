//! Which way tensors go from rank to rank: from device to device where every rank can, else through the memory of their hosts.
use burn::prelude::*;

use crate::error::Result;
use crate::ranks::nccl::{Nccl, Offer};
use crate::ranks::{Ranks, Together};

/// What a rank can offer: the id of its NCCL, with which the others find rank 0; `None` where its device needs none; or why it cannot.
type Told = std::result::Result<Option<Vec<u8>>, String>;

/// Has all ranks agree on the way, which all of them ask for. `None`: through the hosts; rank 0 warns where GPUs are to go that way.
///
/// # Errors
/// A rank has ended.
pub(crate) fn agree<R: Ranks>(ranks: &mut R, device: &Device) -> Result<Option<Nccl>> {
    let here = (ranks.rank(), ranks.count());
    let offer = Offer::make(here.0, device);
    let told = offer.as_ref().map(|offer| offer.as_ref().map(Offer::id));
    let told: Vec<Told> = Together(Some(ranks)).gather(told.map_err(Clone::clone))?;
    for (rank, told) in told.iter().enumerate() {
        match told {
            Ok(Some(_)) => (),
            Ok(None) => return Ok(None),
            Err(why) => return through_hosts(here.0, rank, why),
        }
    }
    let (Ok(Some(offer)), Some(Ok(Some(id)))) = (offer, told.first()) else {
        return Ok(None);
    };
    let (nccl, why) = match offer.take(id, here, device, &mut || ranks.check())? {
        Ok(nccl) => (Some(nccl), None),
        Err(why) => (None, Some(why)),
    };
    let failed: Vec<Option<String>> = Together(Some(ranks)).gather(why)?;
    for (rank, why) in failed.iter().enumerate() {
        if let Some(why) = why {
            return through_hosts(here.0, rank, why);
        }
    }
    if here.0 == 0 {
        tracing::info!("gradients go from GPU to GPU by NCCL");
    }
    Ok(nccl)
}

fn through_hosts(own: usize, rank: usize, why: &str) -> Result<Option<Nccl>> {
    if own == 0 {
        tracing::warn!(
            "gradients go through the memory of the hosts, which is slower: rank {rank}: {why}"
        );
    }
    Ok(None)
}

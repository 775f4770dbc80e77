//! Tensors that go from device to device by NCCL, NVIDIA's library for that, where all ranks have a GPU of their own and the library.
//!
//! The ranks' other way, TCP, makes this one: over it rank 0 tells the others how to find it, all agree whether to take it, and each
//! hears of others that have ended, for whom NCCL would wait for ever.
#![expect(unsafe_code, reason = "NCCL is a C library")]
mod library;

use std::time::{Duration, Instant};

use burn::backend::{BackendTensor, DispatchTensorKind};
use burn::prelude::*;
use burn::tensor::DType;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::RuntimeId;
use cubecl::client::Client;
use spectrain_models::cube::order::{Order, with_addresses};
use spectrain_models::weights::host_f32;

use self::library::{Comm, Library, Stream, UniqueId};
use crate::error::{Error, Result};
use crate::ranks::{Alive, ByRank};

/// How long the devices may take to find each other.
const ACQUAINTANCE: Duration = Duration::from_secs(120);
/// How long it may take until a rank that has ended is known of.
const PARTING: Duration = Duration::from_secs(2);
/// Between two looks whether other ranks are there.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Numbers of a message of the trial.
const TRIAL: usize = 4099;

/// Where a tensor lies on the device, and its elements.
type Span = (u64, usize);

type Outcome<T> = std::result::Result<T, String>;

/// The way from this rank's device to those of the others.
pub(crate) struct Nccl {
    library: Library,
    order: Order,
    comm: Comm,
    client: Client,
    device: Device,
    rank: usize,
    /// Whether the communicator was aborted, after which it is no more.
    is_closed: bool,
}

// SAFETY: it belongs to one thread at a time, and NCCL and the driver may be called from any.
unsafe impl Send for Nccl {}

/// All that may fail on one rank alone, done before the ranks agree; and how others find rank 0.
pub(crate) struct Offer {
    library: Library,
    order: Order,
    client: Client,
    id: Option<UniqueId>,
}

impl Offer {
    /// What rank `rank` has to offer; `None` where its device is no GPU of NVIDIA's.
    ///
    /// # Errors
    /// NCCL is missing or too old, or the device cannot be asked what it has done.
    pub(crate) fn make(rank: usize, device: &Device) -> Outcome<Option<Self>> {
        let Some(CubeTensor { client, .. }) = cube_tensor(Tensor::empty([1], device)) else {
            return Ok(None);
        };
        let library = Library::open()?;
        let id = (rank == 0).then(|| library.unique_id()).transpose()?;
        let order = on_device(&client, Order::open)?;
        Ok(Some(Self {
            library,
            order,
            client,
            id,
        }))
    }

    /// Of rank 0: what the others need.
    pub(crate) fn id(&self) -> Vec<u8> {
        self.id.map(UniqueId::bytes).unwrap_or_default()
    }

    /// Takes the device to those of the other ranks, which do the same with the `id` of rank 0.
    ///
    /// # Errors
    /// Why it cannot be taken there.
    pub(crate) fn take(
        self,
        id: &[u8],
        (rank, count): (usize, usize),
        device: &Device,
        alive: Alive,
    ) -> Result<Outcome<Nccl>> {
        let id = UniqueId::of(id).ok_or_else(|| Error::rank(0, "sent no id of NCCL's"))?;
        let (library, client) = (&self.library, &self.client);
        let comm = match on_device(client, || library.init(id, rank, count)) {
            Ok(comm) => comm,
            Err(why) => return Ok(Err(why)),
        };
        let mut made = Nccl {
            library: self.library,
            order: self.order,
            comm,
            client: self.client,
            device: device.clone(),
            rank,
            is_closed: false,
        };
        let late = Instant::now() + ACQUAINTANCE;
        let mut patience = || match Instant::now() < late {
            true => alive(),
            false => Err(Error::rank(rank, "has found no way to the others")),
        };
        let met = made.wait(&mut patience, |nccl| nccl.library.is_done(nccl.comm));
        match met.and_then(|()| made.try_out(count, &mut patience)) {
            Ok(()) => Ok(Ok(made)),
            Err(Error::Rank { rank: whose, what }) if whose == rank => Ok(Err(what)),
            Err(error) => Err(error),
        }
    }
}

impl Nccl {
    /// Looks whether numbers come from each other rank as it sent them: devices that have found each other may still not reach each
    /// other's memory, and then nothing comes, or something else.
    fn try_out(&mut self, count: usize, alive: Alive) -> Result<()> {
        let (own, device) = (self.rank, self.device.clone());
        let others = |rank: usize| usize::from(rank != own);
        let sent = |to| Tensor::from_floats(trial(own, to).as_slice(), &device);
        let all = (0..count).map(|to| vec![sent(to); others(to)]).collect();
        let lengths: Vec<_> = (0..count).map(|from| vec![TRIAL; others(from)]).collect();
        let come = self.exchange(all, &lengths, alive)?;
        for (from, mut come) in come.into_iter().enumerate() {
            if come
                .pop()
                .is_some_and(|come| host_f32(come) != trial(from, own))
            {
                let why = format!("what rank {from} sends does not come as it was sent");
                return self.heard(Err(why));
            }
        }
        Ok(())
    }

    /// See [`Ranks::exchange_tensors`](crate::ranks::Ranks::exchange_tensors).
    pub(crate) fn exchange(
        &mut self,
        own: ByRank,
        lengths: &[Vec<usize>],
        alive: Alive,
    ) -> Result<ByRank> {
        self.carry(own, lengths, alive, |nccl, rank, own, others| {
            // SAFETY: `carry` says so.
            unsafe {
                for &span in own {
                    nccl.library.send(span, rank, nccl.comm, nccl.stream())?;
                }
                for &span in others {
                    nccl.library.receive(span, rank, nccl.comm, nccl.stream())?;
                }
            }
            Ok(())
        })
    }

    /// See [`Ranks::spread_tensors`](crate::ranks::Ranks::spread_tensors).
    pub(crate) fn spread(
        &mut self,
        own: Vec<Tensor<1>>,
        lengths: &[Vec<usize>],
        alive: Alive,
    ) -> Result<ByRank> {
        let mut sent = vec![Vec::new(); lengths.len()];
        sent[self.rank] = own;
        self.carry(sent, lengths, alive, |nccl, root, own, others| {
            for &span in own.iter().chain(others) {
                // SAFETY: `carry` says so.
                unsafe {
                    nccl.library
                        .broadcast(span, root, nccl.comm, nccl.stream())?
                };
            }
            Ok(())
        })
    }

    fn stream(&self) -> Stream {
        self.order.stream().cast()
    }

    /// Has `each` give NCCL what goes to a rank and what comes from it: memory that is theirs until all has come, which this waits for.
    fn carry(
        &mut self,
        own: ByRank,
        lengths: &[Vec<usize>],
        alive: Alive,
        each: impl Fn(&Self, usize, &[Span], &[Span]) -> Outcome<()> + Sync,
    ) -> Result<ByRank> {
        if self.is_closed {
            return self.heard(Err("it was closed after an error".into()));
        }
        let place = |&length: &usize| Tensor::<1>::empty([length], (&self.device, DType::F32));
        let places = |lengths: &Vec<usize>| lengths.iter().map(place).collect();
        let coming: ByRank = lengths.iter().map(places).collect();
        let own: Vec<_> = own.into_iter().map(all_on_cube).collect();
        let others: Vec<_> = coming.iter().cloned().map(all_on_cube).collect();
        let client = self.client.clone();
        let (nccl, sent, places, each) = (&mut *self, &own, &others, &each);
        let on_device = move || {
            let all: Vec<&CubeTensor> = sent.iter().chain(places).flatten().collect();
            with_addresses(&all, |starts| {
                let lengths = all.iter().map(|of| of.meta.shape().num_elements());
                let mut spans = starts.iter().copied().zip(lengths);
                // What has no elements has no place either, and does not go.
                let mut spans_of = |of: &Vec<CubeTensor>| {
                    let spans = spans.by_ref().take(of.len());
                    spans.filter(|(_, length)| *length > 0).collect()
                };
                let sent: Vec<Vec<Span>> = sent.iter().map(&mut spans_of).collect();
                let places: Vec<Vec<Span>> = places.iter().map(spans_of).collect();
                nccl.order.begin()?;
                nccl.library.group(|| {
                    let mut ranks = sent.iter().zip(&places).enumerate();
                    ranks.try_for_each(|(rank, (sent, places))| each(nccl, rank, sent, places))
                })
            })
        };
        let launched = client.exclusive(on_device);
        let launched = self.heard(launched.unwrap_or_else(|why| Err(format!("{why:?}"))));
        let come = launched.and_then(|()| {
            self.wait(&mut *alive, |nccl| {
                Ok(nccl.library.is_done(nccl.comm)? && nccl.order.is_done()?)
            })
        });
        match come {
            Ok(()) => Ok(coming),
            Err(error) => {
                let error = explained(error, alive);
                if !self.close() {
                    // What the device may still read and write keeps its memory.
                    std::mem::forget((own, others, coming));
                }
                Err(error)
            }
        }
    }

    /// Aborts what NCCL does on the device, which would wait for ever for a rank that has ended, and all that the device is given behind
    /// it too. Whether the device has stopped within [`PARTING`].
    fn close(&mut self) -> bool {
        if !self.is_closed {
            self.is_closed = true;
            // NCCL takes the first GPU where none is current.
            let _ = self.order.make_current();
            self.library.abort(self.comm);
        }
        let late = Instant::now() + PARTING;
        while !self.order.is_done().unwrap_or(false) {
            if Instant::now() >= late {
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        true
    }

    fn heard<T>(&self, outcome: Outcome<T>) -> Result<T> {
        outcome.map_err(|why| Error::rank(self.rank, &format!("NCCL: {why}")))
    }

    /// Waits until something is done.
    fn wait(&self, alive: Alive, is_done: impl Fn(&Self) -> Outcome<bool>) -> Result<()> {
        let mut looked = Instant::now();
        while !self.heard(is_done(self))? {
            if looked.elapsed() >= LOOK_EVERY {
                alive()?;
                looked = Instant::now();
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }
}

/// A handle of NCCL's or the driver's on its way from the device's thread.
struct Handle<T>(Outcome<T>);

// SAFETY: it belongs to one thread at a time, and NCCL and the driver may be called from any.
unsafe impl<T> Send for Handle<T> {}

/// What `make` makes where the device's context is current.
fn on_device<T: 'static>(client: &Client, make: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
    match client.exclusive(|| Handle(make())) {
        Ok(Handle(made)) => made,
        Err(why) => Err(format!("{why:?}")),
    }
}

/// What a rank sends another in the trial.
fn trial(from: usize, to: usize) -> Vec<f32> {
    let first = (from << 16) ^ (to << 8);
    (first..first + TRIAL).map(|value| value as f32).collect()
}

/// What NCCL says may come of a rank that has ended, and before it is known of; that rank is then named.
fn explained(error: Error, alive: Alive) -> Error {
    let late = Instant::now() + PARTING;
    while Instant::now() < late {
        if let Err(ended) = alive() {
            return ended;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    error
}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nccl")
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        self.close();
    }
}

/// The tensor as CubeCL has it; `None` unless it is on a device of CUDA.
fn cube_tensor(tensor: Tensor<1>) -> Option<CubeTensor> {
    match tensor.into_dispatch().kind {
        DispatchTensorKind::Cube(BackendTensor::Float(tensor))
            if tensor.device.runtime() == RuntimeId::Cuda =>
        {
            Some(tensor)
        }
        _ => None,
    }
}

fn all_on_cube(tensors: Vec<Tensor<1>>) -> Vec<CubeTensor> {
    let on_cube = |tensor: Tensor<1>| {
        let tensor = cube_tensor(tensor.cast(DType::F32));
        into_contiguous(tensor.expect("all tensors of a rank are on its device"))
    };
    tensors.into_iter().map(on_cube).collect()
}

//! Ranks that are joined by TCP: rank 0 has a connection to each of the others.
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use burn::prelude::Device;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::optimizer::Gradients;
use crate::ranks::{Ranks, average_by_first, packed, unpacked};

/// The pause between two looks whether another rank has come.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long whoever connects has time to say who it is.
const GREETING: Duration = Duration::from_secs(10);
/// Bytes of such a greeting, at most.
const LONGEST_GREETING: u64 = 1 << 16;

/// What a rank says to rank 0 first.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Greeting {
    rank: usize,
    count: usize,
    /// What all ranks must have in common.
    identity: String,
}

/// Where the other ranks can come.
#[derive(Debug)]
pub struct Invitation {
    listener: TcpListener,
    count: usize,
    identity: String,
}

/// A rank with its connections.
#[derive(Debug)]
pub struct TcpRanks {
    rank: usize,
    /// One for each rank; none to itself, nor between two that are not rank 0.
    peers: Vec<Option<TcpStream>>,
}

impl Invitation {
    /// Listens at an address for ranks of so many that have the same `identity`. A port of 0 takes a free one.
    ///
    /// # Errors
    /// Nothing can listen there.
    pub fn open(address: &str, count: usize, identity: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            count,
            identity: identity.to_owned(),
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits until all others have come; `waiting` is called from time to time.
    ///
    /// # Errors
    /// Those of `waiting`, or of the listener.
    pub fn meet(self, waiting: &mut dyn FnMut() -> Result<()>) -> Result<TcpRanks> {
        let mut peers: Vec<Option<TcpStream>> = (0..self.count).map(|_| None).collect();
        while peers.iter().skip(1).any(Option::is_none) {
            waiting()?;
            match self.listener.accept() {
                Ok((stream, from)) => {
                    // Whoever is no rank is sent away, and the others are waited for.
                    if let Err(why) = self.welcome(stream, &mut peers) {
                        tracing::warn!("{from} is no rank of this run: {why}");
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(LOOK_EVERY);
                }
                Err(error) => return Err(Error::rank(0, &format!("cannot listen: {error}"))),
            }
        }
        Ok(TcpRanks { rank: 0, peers })
    }

    /// Takes up a rank, or tells it why it is refused.
    fn welcome(
        &self,
        mut stream: TcpStream,
        peers: &mut [Option<TcpStream>],
    ) -> std::result::Result<(), String> {
        let greeted = greeting(&mut stream).map_err(|error| error.to_string())?;
        let refusal = match &greeted {
            found if found.count != self.count => Some(format!(
                "expected {} ranks (WORLD_SIZE), found {}",
                self.count, found.count
            )),
            found if found.rank == 0 || found.rank >= self.count => Some(format!(
                "expected a rank from 1 to {} (RANK), found {}",
                self.count - 1,
                found.rank
            )),
            found if peers[found.rank].is_some() => {
                Some(format!("rank {} is there twice", found.rank))
            }
            found if found.identity != self.identity => Some(
                "its recipe, options or version of spectrain are not those of rank 0".to_owned(),
            ),
            _ => None,
        };
        send(&mut stream, &packed(&refusal)).map_err(|error| error.to_string())?;
        match refusal {
            Some(refusal) => Err(refusal),
            None => {
                peers[greeted.rank] = Some(stream);
                Ok(())
            }
        }
    }
}

/// What whoever connects says first.
fn greeting(stream: &mut TcpStream) -> io::Result<Greeting> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(GREETING))?;
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > LONGEST_GREETING {
        return Err(io::Error::new(ErrorKind::InvalidData, "no greeting"));
    }
    let mut message = vec![0; length as usize];
    stream.read_exact(&mut message)?;
    stream.set_read_timeout(None)?;
    rmp_serde::from_slice(&message).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

impl TcpRanks {
    /// Comes to rank 0 as this one of so many ranks, once rank 0 listens at the address; `waiting` is called from time to time.
    ///
    /// # Errors
    /// Those of `waiting`, or rank 0 refuses.
    pub fn join(
        address: &str,
        (rank, count): (usize, usize),
        identity: &str,
        patience: Duration,
        waiting: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Self> {
        let late = Instant::now() + patience;
        let mut stream = loop {
            waiting()?;
            let found = address.to_socket_addrs().and_then(|mut all| {
                let first = all.next().ok_or(ErrorKind::NotFound)?;
                TcpStream::connect_timeout(&first, GREETING)
            });
            match found {
                Ok(stream) => break stream,
                Err(_) if Instant::now() < late => std::thread::sleep(LOOK_EVERY),
                Err(error) => {
                    let what =
                        format!("does not answer at {address} (MASTER_ADDR, MASTER_PORT): {error}");
                    return Err(Error::rank(0, &what));
                }
            }
        };
        let greeting = Greeting {
            rank,
            count,
            identity: identity.to_owned(),
        };
        let _ = stream.set_nodelay(true);
        send(&mut stream, &packed(&greeting)).map_err(|error| ended(0, &error))?;
        let reply = receive(&mut stream).map_err(|error| ended(0, &error))?;
        if let Some(refusal) = unpacked::<Option<String>>(0, &reply)? {
            return Err(Error::rank(0, &format!("refuses rank {rank}: {refusal}")));
        }
        let mut peers: Vec<Option<TcpStream>> = (0..count).map(|_| None).collect();
        peers[0] = Some(stream);
        Ok(Self { rank, peers })
    }

    fn peer(&mut self, rank: usize) -> &mut TcpStream {
        match self.peers.get_mut(rank) {
            Some(Some(stream)) => stream,
            _ => panic!("of two ranks one is rank 0: not {} and {rank}", self.rank),
        }
    }
}

impl Ranks for TcpRanks {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.peers.len()
    }

    fn send(&mut self, to: usize, message: &[u8]) -> Result<()> {
        send(self.peer(to), message).map_err(|error| ended(to, &error))
    }

    fn receive(&mut self, from: usize) -> Result<Vec<u8>> {
        receive(self.peer(from)).map_err(|error| ended(from, &error))
    }

    fn average(&mut self, own: &mut Gradients, counted: f64, device: &Device) -> Result<f64> {
        average_by_first(self, own, counted, device)
    }
}

fn ended(rank: usize, error: &io::Error) -> Error {
    match error.kind() {
        ErrorKind::UnexpectedEof
        | ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe => Error::rank(rank, "has ended"),
        _ => Error::rank(rank, &format!("cannot be reached any more: {error}")),
    }
}

/// A message is its length and its bytes.
fn send(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    stream.write_all(&(message.len() as u64).to_le_bytes())?;
    stream.write_all(message)
}

fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    let mut message = Vec::new();
    stream.take(length).read_to_end(&mut message)?;
    if (message.len() as u64) < length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(message)
}

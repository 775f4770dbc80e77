//! Ranks that are joined by TCP: each has a connection to each of the others. They come to rank 0 first, which tells them where the
//! others listen.
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use burn::prelude::*;
use rustix::net::sockopt;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ranks::nccl::Nccl;
use crate::ranks::way::agree;
use crate::ranks::{ByRank, Ranks, exchange_through_host, packed, spread_through_host, unpacked};

/// The pause between two looks whether another rank has come.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often it is told which ranks are waited for.
const TELL_EVERY: Duration = Duration::from_secs(15);
/// How long whoever connects has time to say who it is.
const GREETING: Duration = Duration::from_secs(10);
/// Bytes of such a greeting, at most.
const LONGEST_GREETING: u64 = 1 << 16;

/// How long ranks that have come to rank 0 may take to come to each other.
const ACQUAINTANCE: Duration = Duration::from_secs(60);

/// How long nothing comes before a machine is asked whether it is still there, how long it may take to answer, and how often it is asked.
const SILENCE: Duration = Duration::from_secs(30);
const ASK_EVERY: Duration = Duration::from_secs(10);
const ASKED: u32 = 3;

/// What a rank says first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Greeting {
    rank: usize,
    count: usize,
    /// What all ranks must have in common.
    identity: String,
}

/// What a rank is answered that has said who it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Reply {
    /// It is one of them.
    Welcome,
    /// There is nothing to do together.
    Over,
    /// It is none of them, for this reason.
    Refused(String),
}

/// Where a rank listens for those with a greater number.
#[derive(Debug)]
pub struct Invitation {
    listener: TcpListener,
    rank: usize,
    count: usize,
    identity: String,
}

/// A rank with its connections. Tensors go another way where there is a faster one.
#[derive(Debug)]
pub struct TcpRanks {
    rank: usize,
    /// One for each rank; none to itself.
    peers: Vec<Option<TcpStream>>,
    /// From device to device; unknown until tensors are first to go.
    way: Option<Option<Box<Nccl>>>,
}

impl Invitation {
    /// Rank 0 listens at an address for ranks of so many that have the same `identity`. A port of 0 takes a free one.
    ///
    /// # Errors
    /// Nothing can listen there.
    pub fn open(address: &str, count: usize, identity: &str) -> io::Result<Self> {
        Self::of(address, 0, count, identity)
    }

    fn of(
        address: impl ToSocketAddrs,
        rank: usize,
        count: usize,
        identity: &str,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            rank,
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

    /// Waits until all others have come, for so long where a time is given; `waiting` is called from time to time.
    ///
    /// # Errors
    /// Those of `waiting`, or of the listener; a rank does not come, or ends meanwhile.
    pub fn meet(
        self,
        patience: Option<Duration>,
        waiting: &mut dyn FnMut() -> Result<()>,
    ) -> Result<TcpRanks> {
        let mut ranks = TcpRanks::alone(0, self.count);
        let late = patience.map(|patience| Instant::now() + patience);
        self.receive(&mut ranks.peers, &Reply::Welcome, late, waiting)?;
        ranks.introduce()?;
        Ok(ranks)
    }

    /// Tells all others that there is nothing to do together, as they come, for so long; `waiting` is called from time to time.
    ///
    /// # Errors
    /// Those of `waiting`, or of the listener; a rank does not come.
    pub fn dismiss(
        self,
        patience: Duration,
        waiting: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let mut ranks = TcpRanks::alone(0, self.count);
        let late = Some(Instant::now() + patience);
        self.receive(&mut ranks.peers, &Reply::Over, late, waiting)
    }

    /// Answers all ranks with a greater number, which have to come before it is `late`.
    fn receive(
        &self,
        peers: &mut [Option<TcpStream>],
        reply: &Reply,
        late: Option<Instant>,
        waiting: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let mut told = Instant::now();
        loop {
            let missing = self.missing(peers);
            if missing.is_empty() {
                return Ok(());
            }
            waiting()?;
            match self.listener.accept() {
                Ok((stream, from)) => {
                    // Whoever is no rank is sent away, and the others are waited for.
                    if let Err(why) = self.answer(stream, peers, reply) {
                        tracing::warn!("{from} is no rank of this run: {why}");
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if late.is_some_and(|late| Instant::now() >= late) {
                        let what = format!("has waited too long for {}", named(&missing));
                        return Err(Error::rank(self.rank, &what));
                    }
                    if told.elapsed() >= TELL_EVERY {
                        tracing::info!("waiting for {}", named(&missing));
                        told = Instant::now();
                    }
                    std::thread::sleep(LOOK_EVERY);
                }
                Err(error) => {
                    return Err(Error::rank(self.rank, &format!("cannot listen: {error}")));
                }
            }
        }
    }

    /// The ranks with a greater number that have not come yet.
    fn missing(&self, peers: &[Option<TcpStream>]) -> Vec<usize> {
        let others = peers.iter().enumerate().skip(self.rank + 1);
        let missing = others.filter(|(_, peer)| peer.is_none());
        missing.map(|(rank, _)| rank).collect()
    }

    /// Gives a rank this reply, or tells it why it is refused.
    fn answer(
        &self,
        mut stream: TcpStream,
        peers: &mut [Option<TcpStream>],
        reply: &Reply,
    ) -> std::result::Result<(), String> {
        let greeted = greeting(&mut stream).map_err(|error| error.to_string())?;
        let refusal = match &greeted {
            found if found.count != self.count => Some(format!(
                "expected {} ranks (WORLD_SIZE), found {}",
                self.count, found.count
            )),
            found if found.rank <= self.rank || found.rank >= self.count => Some(format!(
                "expected a rank from {} to {} (RANK), found {}",
                self.rank + 1,
                self.count - 1,
                found.rank
            )),
            found if peers[found.rank].is_some() => {
                Some(format!("another process is rank {} already", found.rank))
            }
            found if found.identity != self.identity => Some(format!(
                "its recipe, options or version of spectrain are not those of rank {}",
                self.rank
            )),
            _ => None,
        };
        let refused = refusal.clone().map(Reply::Refused);
        let reply = refused.as_ref().unwrap_or(reply);
        send(&mut stream, &packed(reply)).map_err(|error| error.to_string())?;
        match refusal {
            Some(refusal) => Err(refusal),
            None => {
                peers[greeted.rank] = Some(stream);
                Ok(())
            }
        }
    }
}

/// Has small messages go at once, and a machine that does not answer any more count as ended.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENCE)?;
    sockopt::set_tcp_keepintvl(stream, ASK_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, ASKED)?;
    Ok(())
}

/// What whoever connects says first.
fn greeting(stream: &mut TcpStream) -> io::Result<Greeting> {
    stream.set_nonblocking(false)?;
    prepare(stream)?;
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
    fn alone(rank: usize, count: usize) -> Self {
        Self {
            rank,
            peers: (0..count).map(|_| None).collect(),
            way: None,
        }
    }

    /// Comes to rank 0 as this one of so many ranks, once rank 0 listens at the address, and then to the others; `waiting` is called
    /// from time to time. None where rank 0 says that there is nothing to do together.
    ///
    /// # Errors
    /// Those of `waiting`; a rank refuses, or does not answer.
    pub fn join(
        address: &str,
        (rank, count): (usize, usize),
        identity: &str,
        patience: Duration,
        waiting: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Option<Self>> {
        let late = Instant::now() + patience;
        let greeting = Greeting {
            rank,
            count,
            identity: identity.to_owned(),
        };
        let mut ranks = Self::alone(rank, count);
        let place = format!("{address} (MASTER_ADDR, MASTER_PORT)");
        let lookup = || {
            address
                .to_socket_addrs()?
                .next()
                .ok_or_else(|| ErrorKind::NotFound.into())
        };
        let Some(first) = come(0, (&lookup, &place), &greeting, late, waiting)? else {
            return Ok(None);
        };
        ranks.peers[0] = Some(first);
        if count > 2 {
            ranks.meet_others(&greeting, waiting)?;
        }
        Ok(Some(ranks))
    }

    /// Rank 0 tells all others where those listen that they are to come to.
    fn introduce(&mut self) -> Result<()> {
        if self.count() < 3 {
            return Ok(());
        }
        let mut seen = Vec::new();
        for (rank, stream) in self.peers.iter().enumerate() {
            if let Some(stream) = stream {
                let address = stream.peer_addr().map_err(|error| ended(rank, &error))?;
                let here = stream.local_addr().map_err(|error| ended(rank, &error))?;
                seen.push((rank, address.ip(), here.ip()));
            }
        }
        let on_one_machine = seen.iter().all(|(_, ip, _)| ip.is_loopback());
        self.send_all(&packed(&on_one_machine))?;
        let mut ports = Vec::new();
        for rank in 1..self.count() {
            ports.push(unpacked::<u16>(rank, &self.receive(rank)?)?);
        }
        for &(to, _, here) in &seen {
            let listening = seen.iter().zip(&ports).map(|((_, ip, _), &port)| {
                // Whoever comes from this very machine is to be found where this machine is.
                let ip = if ip.is_loopback() { here } else { *ip };
                SocketAddr::new(ip, port)
            });
            let listening: Vec<_> = listening.collect();
            self.send(to, &packed(&listening))?;
        }
        Ok(())
    }

    /// Goes to the ranks with a smaller number, and waits for those with a greater one.
    fn meet_others(
        &mut self,
        greeting: &Greeting,
        waiting: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let on_one_machine: bool = unpacked(0, &self.receive(0)?)?;
        let own = self
            .peer(0)
            .local_addr()
            .map_err(|error| ended(0, &error))?;
        let ip = match own.ip() {
            ip if on_one_machine => ip,
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let listening = Invitation::of((ip, 0), self.rank, self.count(), &greeting.identity)
            .and_then(|invitation| Ok((invitation.address()?.port(), invitation)));
        let (port, invitation) = listening
            .map_err(|error| Error::rank(self.rank, &format!("cannot listen at {ip}: {error}")))?;
        self.send(0, &packed(&port))?;
        let others: Vec<SocketAddr> = unpacked(0, &self.receive(0)?)?;
        let late = Instant::now() + ACQUAINTANCE;
        for (rank, address) in (1..self.rank).zip(others) {
            let place = format!("{address}, where rank 0 sees it");
            let found = come(rank, (&|| Ok(address), &place), greeting, late, waiting)?;
            self.peers[rank] = Some(found.ok_or_else(|| Error::rank(rank, "has ended"))?);
        }
        invitation.receive(&mut self.peers, &Reply::Welcome, Some(late), waiting)
    }

    /// Settles which way tensors go, once for all.
    fn agree(&mut self, device: &Device) -> Result<()> {
        if self.way.is_none() {
            self.way = Some(agree(self, device)?.map(Box::new));
        }
        Ok(())
    }

    fn peer(&mut self, rank: usize) -> &mut TcpStream {
        match self.peers.get_mut(rank) {
            Some(Some(stream)) => stream,
            _ => panic!("rank {} has no connection to {rank}", self.rank),
        }
    }
}

/// The connection to a rank, once it answers at an address and has taken this one up; none where it says that there is nothing to do
/// together. `place` is what errors call the address.
fn come(
    to: usize,
    (address, place): (&dyn Fn() -> io::Result<SocketAddr>, &str),
    greeting: &Greeting,
    late: Instant,
    waiting: &mut dyn FnMut() -> Result<()>,
) -> Result<Option<TcpStream>> {
    let mut stream = loop {
        waiting()?;
        match address().and_then(|address| TcpStream::connect_timeout(&address, GREETING)) {
            Ok(stream) => break stream,
            Err(_) if Instant::now() < late => std::thread::sleep(LOOK_EVERY),
            Err(error) => {
                return Err(Error::rank(
                    to,
                    &format!("does not answer at {place}: {error}"),
                ));
            }
        }
    };
    prepare(&stream).map_err(|error| ended(to, &error))?;
    send(&mut stream, &packed(greeting)).map_err(|error| ended(to, &error))?;
    let reply = receive(&mut stream).map_err(|error| ended(to, &error))?;
    match unpacked::<Reply>(to, &reply)? {
        Reply::Welcome => Ok(Some(stream)),
        Reply::Over => Ok(None),
        Reply::Refused(refusal) => {
            let what = format!("refuses rank {}: {refusal}", greeting.rank);
            Err(Error::rank(to, &what))
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

    fn exchange(&mut self, messages: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        // All at a time, so that no two wait for each other to read.
        std::thread::scope(|scope| {
            let mut talks = Vec::new();
            for (rank, (peer, message)) in self.peers.iter().zip(messages).enumerate() {
                let Some(stream) = peer else { continue };
                let (mut writer, mut reader) = (stream, stream);
                let sent = scope.spawn(move || send(&mut writer, message));
                let received = scope.spawn(move || receive(&mut reader));
                talks.push((rank, sent, received));
            }
            let mut told = vec![Vec::new(); self.peers.len()];
            for (rank, sent, received) in talks {
                let (sent, received) = (outcome(sent), outcome(received));
                told[rank] = sent.and(received).map_err(|error| ended(rank, &error))?;
            }
            Ok(told)
        })
    }

    fn exchange_tensors(
        &mut self,
        own: ByRank,
        lengths: &[Vec<usize>],
        device: &Device,
    ) -> Result<ByRank> {
        self.agree(device)?;
        match &mut self.way {
            Some(Some(nccl)) => nccl.exchange(own, lengths, &mut || check(&self.peers)),
            _ => exchange_through_host(self, own, lengths, device),
        }
    }

    fn spread_tensors(
        &mut self,
        own: Vec<Tensor<1>>,
        lengths: &[Vec<usize>],
        device: &Device,
    ) -> Result<ByRank> {
        self.agree(device)?;
        match &mut self.way {
            Some(Some(nccl)) => nccl.spread(own, lengths, &mut || check(&self.peers)),
            _ => spread_through_host(self, own, lengths, device),
        }
    }

    fn check(&mut self) -> Result<()> {
        check(&self.peers)
    }
}

/// Fails where the connection to a rank has ended and nothing is left to read.
fn check(peers: &[Option<TcpStream>]) -> Result<()> {
    for (rank, peer) in peers.iter().enumerate() {
        let Some(stream) = peer else { continue };
        let looked = stream.set_nonblocking(true);
        let looked = looked.and_then(|()| stream.peek(&mut [0]));
        stream
            .set_nonblocking(false)
            .map_err(|error| ended(rank, &error))?;
        match looked {
            Ok(0) => return Err(ended(rank, &ErrorKind::UnexpectedEof.into())),
            Ok(_) => (),
            Err(error) if error.kind() == ErrorKind::WouldBlock => (),
            Err(error) => return Err(ended(rank, &error)),
        }
    }
    Ok(())
}

/// One way of the talk with another rank.
type Talk<'s, T> = std::thread::ScopedJoinHandle<'s, io::Result<T>>;

fn outcome<T>(talk: Talk<'_, T>) -> io::Result<T> {
    talk.join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// `rank 3`, or `ranks 3, 7`.
fn named(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    let plural = if ranks.len() == 1 { "" } else { "s" };
    format!("rank{plural} {}", numbers.join(", "))
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
fn send(stream: &mut impl Write, message: &[u8]) -> io::Result<()> {
    stream.write_all(&(message.len() as u64).to_le_bytes())?;
    stream.write_all(message)
}

fn receive(stream: &mut impl Read) -> io::Result<Vec<u8>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_switched_off_is_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(!sockopt::socket_keepalive(&stream).unwrap());
        prepare(&stream).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap() && stream.nodelay().unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), SILENCE);
    }

    #[test]
    fn ranks_that_do_not_come_in_time_are_named() {
        let invitation = Invitation::open("127.0.0.1:0", 4, "mine").unwrap();
        let mut second = TcpStream::connect(invitation.address().unwrap()).unwrap();
        let greeting = Greeting {
            rank: 2,
            count: 4,
            identity: "mine".into(),
        };
        send(&mut second, &packed(&greeting)).unwrap();
        second.set_nonblocking(true).unwrap();
        let mut peers = TcpRanks::alone(0, 4).peers;
        let mut until_answered = || match second.peek(&mut [0]) {
            Ok(_) => Err(Error::Interrupted),
            Err(_) => Ok(()),
        };
        let stopped = invitation.receive(&mut peers, &Reply::Welcome, None, &mut until_answered);
        assert!(matches!(stopped, Err(Error::Interrupted)));
        let late = Some(Instant::now());
        let given_up = invitation.receive(&mut peers, &Reply::Welcome, late, &mut || Ok(()));
        let told = given_up.unwrap_err().to_string();
        assert_eq!(told, "rank 0 has waited too long for ranks 1, 3");
        let alone = invitation.meet(Some(Duration::ZERO), &mut || Ok(()));
        let told = alone.unwrap_err().to_string();
        assert_eq!(told, "rank 0 has waited too long for ranks 1, 2, 3");
        assert_eq!(named(&[7]), "rank 7");
    }
}

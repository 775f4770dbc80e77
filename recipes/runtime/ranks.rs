//! Several processes that train one drafter: which of them this one is, who starts the others, and what rank 0 tells them.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use burn::prelude::*;
use spectrain_train::{ByRank, Error, Invitation, Ranks, TcpRanks};

use crate::errors::Misuse;
use crate::runtime::interruption::check_interrupted;

mod process;

use process::{Process, Started};

/// How long rank 0 may take until it listens, and how long others may take to come once it needs them.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long rank 0 waits at its end for ranks that have not come yet, where no stage was trained with them.
const FAREWELL: Duration = Duration::from_secs(60);
/// Where rank 0 listens, unless `MASTER_PORT` says another.
const PORT: u16 = 29500;
/// What `torchrun` sets to `True` where its own agent listens at `MASTER_PORT`.
const AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";
/// What rank 0 says in place of a stage's name when there is no more to train.
const OVER: &str = "";

/// Which of the ranks this process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// From 0.
    pub rank: usize,
    /// How many there are.
    pub count: usize,
    /// The number of the process on its machine, from 0.
    pub local: usize,
    /// Where rank 0 listens.
    address: String,
}

impl Place {
    /// What the environment says, as `torchrun` and its like set it; none where there is one rank.
    ///
    /// # Errors
    /// A variable is missing or makes no sense.
    pub fn of_environment() -> Result<Option<Self>> {
        Self::of(|name| env::var(name).ok())
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let number = |name: &str| match variable(name) {
            None => Ok(None),
            Some(value) => match value.trim().parse::<usize>() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(Misuse(format!(
                    "the environment's `{name}`: expected a whole number, found `{value}`"
                ))),
            },
        };
        let Some(count) = number("WORLD_SIZE")?.filter(|&count| count > 1) else {
            return Ok(None);
        };
        let missing = |name: &str| {
            Misuse(format!(
                "the environment has `WORLD_SIZE={count}` and no `{name}`; without `WORLD_SIZE` one process trains alone"
            ))
        };
        let rank = number("RANK")?.ok_or_else(|| missing("RANK"))?;
        if rank >= count {
            return Err(Misuse(format!(
                "the environment's `RANK`: expected less than `WORLD_SIZE` ({count}), found {rank}"
            ))
            .into());
        }
        let host = variable("MASTER_ADDR").ok_or_else(|| missing("MASTER_ADDR"))?;
        let port = port(&variable)?;
        Ok(Some(Self {
            rank,
            count,
            local: number("LOCAL_RANK")?.unwrap_or(0),
            address: format!("{host}:{port}"),
        }))
    }

    /// The device of this process: that of `devices` with its number, where some are given, else `device`, which as `cuda` is
    /// the GPU with its number.
    ///
    /// # Errors
    /// There are fewer devices.
    pub fn device(&self, devices: &[String], device: &str) -> Result<String> {
        match (devices.get(self.local), devices.len()) {
            (Some(found), _) => Ok(found.clone()),
            (None, 0) if device == "cuda" => Ok(format!("cuda:{}", self.local)),
            (None, 0) => Ok(device.to_owned()),
            (None, given) => Err(Misuse(format!(
                "`--devices`: expected one device for each process on this machine, so at least {}, found {given}",
                self.local + 1
            ))
            .into()),
        }
    }
}

/// Where rank 0 listens, by the variables of the environment.
fn port(variable: impl Fn(&str) -> Option<String>) -> Result<u16> {
    let port = match variable("MASTER_PORT") {
        None => PORT,
        Some(value) => match value.trim().parse::<u16>() {
            Ok(port) => port,
            Err(_) => {
                return Err(Misuse(format!(
                    "the environment's `MASTER_PORT`: expected a port up to {}, found `{value}`",
                    u16::MAX
                ))
                .into());
            }
        },
    };
    let is_taken = variable(AGENT_STORE).as_deref() == Some("True");
    Ok(match port {
        port if !is_taken => port,
        u16::MAX => u16::MAX - 1,
        port => port + 1,
    })
}

/// The ranks of a training, as one of them sees them.
pub struct Group {
    count: usize,
    rank: usize,
    state: Mutex<State>,
}

enum State {
    /// Rank 0 has not needed the others yet.
    Inviting(Invitation, Started),
    Together(Joined),
    /// There is no more to train.
    Over,
}

/// Ranks that have met.
struct Joined {
    ranks: TcpRanks,
    started: Started,
}

/// The ranks, for one thread alone.
pub struct Held<'g>(MutexGuard<'g, State>);

impl Held<'_> {
    /// All of them, which have begun a stage.
    ///
    /// # Errors
    /// They have not.
    pub fn ranks(&mut self) -> Result<&mut dyn Ranks> {
        match &mut *self.0 {
            State::Together(joined) => Ok(joined),
            _ => bail!("no stage has begun on the other ranks"),
        }
    }
}

impl Group {
    /// How many ranks there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Rank 0 of processes that something else has started. All must have the same `identity`.
    ///
    /// # Errors
    /// Nothing can listen at the address.
    pub fn invite(place: &Place, identity: &str) -> Result<Self> {
        let invitation = Invitation::open(&place.address, place.count, identity);
        let invitation = invitation.with_context(|| {
            format!(
                "rank 0 cannot listen at `{}` (MASTER_ADDR, MASTER_PORT)",
                place.address
            )
        })?;
        Ok(Self::inviting(place.count, invitation, Started::Elsewhere))
    }

    /// Rank 0 of so many processes of this machine, which it starts when it needs them.
    ///
    /// # Errors
    /// Nothing can listen on this machine.
    pub fn start(count: usize, identity: &str) -> Result<Self> {
        let invitation = Invitation::open("127.0.0.1:0", count, identity);
        let invitation = invitation.context("cannot listen on 127.0.0.1")?;
        Ok(Self::inviting(count, invitation, Started::NotYet))
    }

    fn inviting(count: usize, invitation: Invitation, started: Started) -> Self {
        Self {
            count,
            rank: 0,
            state: Mutex::new(State::Inviting(invitation, started)),
        }
    }

    /// Another rank than 0, which waits until rank 0 needs it or says that there is no more to train.
    ///
    /// # Errors
    /// Rank 0 does not listen, or refuses this one.
    pub fn join(place: &Place, identity: &str) -> Result<Self> {
        let here = (place.rank, place.count);
        let ranks = TcpRanks::join(&place.address, here, identity, PATIENCE, &mut waiting)?;
        let state = match ranks {
            None => State::Over,
            Some(ranks) => State::Together(Joined {
                ranks,
                started: Started::Elsewhere,
            }),
        };
        Ok(Self {
            count: place.count,
            rank: place.rank,
            state: Mutex::new(state),
        })
    }

    /// Whether this is rank 0, which alone writes what is left.
    pub fn leads(&self) -> bool {
        self.rank == 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|broken| broken.into_inner())
    }

    /// Rank 0 has the others begin a stage of the training with it.
    ///
    /// # Errors
    /// One of them does not come, or has ended.
    pub fn begin(&self, stage: &str) -> Result<()> {
        if !self.leads() {
            return Ok(());
        }
        let mut state = self.state();
        if let State::Inviting(..) = &*state
            && let State::Inviting(invitation, started) =
                std::mem::replace(&mut *state, State::Over)
        {
            let mut started = match started {
                Started::NotYet => Started::Here(self.processes(&invitation)?),
                other => other,
            };
            // How those fare that it has started itself is seen.
            let patience = matches!(started, Started::Elsewhere).then_some(PATIENCE);
            let ranks = invitation.meet(patience, &mut || {
                waiting()?;
                started.check()
            })?;
            *state = State::Together(Joined { ranks, started });
        }
        if let State::Together(joined) = &mut *state {
            joined.send_all(stage.as_bytes())?;
        }
        Ok(())
    }

    /// Rank 0 lets the others go: those that it never needed, too.
    pub fn end(&self) {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Over) {
            State::Together(mut joined) => {
                // Whoever is not there any more need not be told.
                let _ = joined.send_all(OVER.as_bytes());
                if let Started::Here(processes) = &mut joined.started {
                    for process in processes {
                        let _ = process.child.wait();
                    }
                }
            }
            State::Inviting(invitation, Started::Elsewhere) => dismiss(invitation),
            State::Inviting(..) | State::Over => {}
        }
    }

    /// The next stage that rank 0 has this one begin; none where there are no more.
    ///
    /// # Errors
    /// Rank 0 has ended.
    pub fn next(&self) -> Result<Option<String>> {
        match &mut *self.state() {
            State::Together(joined) => {
                let stage = String::from_utf8(joined.receive(0)?)?;
                Ok(Some(stage).filter(|stage| stage != OVER))
            }
            _ => Ok(None),
        }
    }

    /// The ranks, for this thread alone.
    pub fn held(&self) -> Held<'_> {
        Held(self.state())
    }

    /// Starts this program again for each other rank.
    fn processes(&self, invitation: &Invitation) -> Result<Vec<Process>> {
        let address = invitation.address()?;
        let program = env::current_exe()?;
        let start = |rank: usize| {
            let mut child = Command::new(&program)
                .args(env::args_os().skip(1))
                .env("RANK", rank.to_string())
                .env("LOCAL_RANK", rank.to_string())
                .env("WORLD_SIZE", self.count.to_string())
                .env("MASTER_ADDR", address.ip().to_string())
                .env("MASTER_PORT", address.port().to_string())
                .env_remove(AGENT_STORE)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .with_context(|| format!("cannot start rank {rank}"))?;
            if let Some(said) = child.stderr.take() {
                std::thread::spawn(move || {
                    for line in BufReader::new(said).lines().map_while(Result::ok) {
                        eprintln!("rank {rank}: {line}");
                    }
                });
            }
            Ok(Process { rank, child })
        };
        (1..self.count).map(start).collect()
    }
}

impl Ranks for Joined {
    fn rank(&self) -> usize {
        self.ranks.rank()
    }

    fn count(&self) -> usize {
        self.ranks.count()
    }

    fn send(&mut self, to: usize, message: &[u8]) -> spectrain_train::Result<()> {
        let sent = self.ranks.send(to, message);
        sent.map_err(|error| self.started.explained(error))
    }

    fn receive(&mut self, from: usize) -> spectrain_train::Result<Vec<u8>> {
        let received = self.ranks.receive(from);
        received.map_err(|error| self.started.explained(error))
    }

    fn exchange(&mut self, messages: &[&[u8]]) -> spectrain_train::Result<Vec<Vec<u8>>> {
        let received = self.ranks.exchange(messages);
        received.map_err(|error| self.started.explained(error))
    }

    fn exchange_tensors(
        &mut self,
        own: ByRank,
        lengths: &[Vec<usize>],
        device: &Device,
    ) -> spectrain_train::Result<ByRank> {
        let received = self.ranks.exchange_tensors(own, lengths, device);
        received.map_err(|error| self.started.explained(error))
    }

    fn spread_tensors(
        &mut self,
        own: Vec<Tensor<1>>,
        lengths: &[Vec<usize>],
        device: &Device,
    ) -> spectrain_train::Result<ByRank> {
        let received = self.ranks.spread_tensors(own, lengths, device);
        received.map_err(|error| self.started.explained(error))
    }

    fn check(&mut self) -> spectrain_train::Result<()> {
        let checked = self.ranks.check();
        checked.map_err(|error| self.started.explained(error))
    }
}

/// Lets ranks go that have waited for nothing. They may come late, but whoever was not started at all must not keep rank 0 for good.
fn dismiss(invitation: Invitation) {
    if let Err(error) = invitation.dismiss(FAREWELL, &mut waiting) {
        tracing::warn!("not all other ranks were told that there is no more to train: {error}");
    }
}

/// Fails where the user wants to stop.
fn waiting() -> spectrain_train::Result<()> {
    check_interrupted().map_err(|_| Error::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(variables: &[(&str, &str)]) -> Result<Option<Place>> {
        Place::of(|name| {
            let found = variables.iter().find(|(of, _)| *of == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_says_which_rank_this_is() {
        assert_eq!(place(&[]).unwrap(), None);
        assert_eq!(place(&[("WORLD_SIZE", "1"), ("RANK", "0")]).unwrap(), None);
        let all = [
            ("WORLD_SIZE", "4"),
            ("RANK", "3"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "node0"),
        ];
        let found = place(&all).unwrap().unwrap();
        assert_eq!((found.rank, found.count, found.local), (3, 4, 1));
        assert_eq!(found.address, "node0:29500");
        let devices = ["cuda:2".to_owned(), "cuda:5".to_owned()];
        assert_eq!(found.device(&devices, "cpu").unwrap(), "cuda:5");
        assert_eq!(found.device(&[], "cuda").unwrap(), "cuda:1");
        assert_eq!(found.device(&[], "cpu").unwrap(), "cpu");
        // Where the agent of `torchrun` listens itself, nothing else can.
        for (port, agent, expected) in [
            ("20000", "False", "node0:20000"),
            ("20000", "True", "node0:20001"),
            ("65535", "True", "node0:65534"),
        ] {
            let more = [("MASTER_PORT", port), (AGENT_STORE, agent)];
            let found = place(&[&all[..], &more].concat()).unwrap().unwrap();
            assert_eq!(found.address, expected);
        }
        let few = found.device(&devices[..1], "cpu").unwrap_err().to_string();
        assert!(few.contains("at least 2, found 1"), "{few}");
    }

    #[test]
    fn what_is_missing_or_makes_no_sense_is_named() {
        let world = ("WORLD_SIZE", "2");
        for (variables, words) in [
            (
                &[("WORLD_SIZE", "two")][..],
                "`WORLD_SIZE`: expected a whole number, found `two`",
            ),
            (&[world], "no `RANK`"),
            (
                &[world, ("RANK", "2")],
                "less than `WORLD_SIZE` (2), found 2",
            ),
            (&[world, ("RANK", "1")], "no `MASTER_ADDR`"),
            (
                &[
                    world,
                    ("RANK", "1"),
                    ("MASTER_ADDR", "node0"),
                    ("MASTER_PORT", "70000"),
                ],
                "`MASTER_PORT`: expected a port up to 65535, found `70000`",
            ),
        ] {
            let found = place(variables).unwrap_err().to_string();
            assert!(found.contains(words), "{found}");
        }
    }
}

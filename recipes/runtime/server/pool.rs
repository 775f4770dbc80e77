//! Which of several servers of one model is asked: the one with the fewest requests under way, among those that work.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use spectrain_data::regenerate::{Failure, Request};

use super::client::{Client, passing, reason};
use super::waiting::{LOOK_EVERY, Waiting};
use crate::runtime::interruption::interrupted;

/// The longest sleep before it is looked whether a server can be asked.
const NAP: Duration = Duration::from_millis(20);
/// Requests that fail one after the other before a server is left alone for a while.
const MOST_FAILED: u32 = 3;
/// The longest that a server which fails is left alone.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// Servers of one model.
pub struct Pool {
    /// Requests that are under way at each of them, at most.
    per_server: usize,
    waiting: Waiting,
    state: Mutex<State>,
}

struct State {
    seats: Vec<Seat>,
    /// The turns that servers failed, until they are answered.
    failed: HashMap<Turn, FailedAt>,
    /// Why no server is asked any more.
    ended: Option<String>,
}

/// A turn of a conversation: the row, and the number of the turn in it.
type Turn = (u64, usize);

/// Servers that failed a turn.
#[derive(Default)]
struct FailedAt {
    all: BTreeSet<usize>,
    /// Those that would fail it again.
    lasting: BTreeSet<usize>,
}

/// What is known of a server.
#[derive(Clone)]
struct Seat {
    under_way: usize,
    /// Requests that failed since the last one that did not.
    failed: u32,
    /// Until when others are asked in its place.
    rests_until: Instant,
    /// Whether nobody was there the last time.
    refuses: bool,
    /// When it is looked whether somebody is there again.
    look_at: Instant,
    /// Whether a request looks now.
    is_looked_at: bool,
    /// Whether it is not asked any more: it has another model.
    is_out: bool,
}

impl Pool {
    /// So many servers, none of which is asked yet.
    pub(crate) fn new(servers: usize, per_server: usize, waiting: Waiting) -> Self {
        let now = Instant::now();
        let seat = Seat {
            under_way: 0,
            failed: 0,
            rests_until: now,
            refuses: false,
            look_at: now,
            is_looked_at: false,
            is_out: false,
        };
        Self {
            per_server: per_server.max(1),
            waiting,
            state: Mutex::new(State {
                seats: vec![seat; servers],
                failed: HashMap::new(),
                ended: None,
            }),
        }
    }

    /// Requests that may be under way at all servers together.
    pub(crate) fn concurrency(&self) -> usize {
        self.per_server * self.lock().seats.len()
    }

    /// Why no server is asked any more: nobody has been there for as long as one waits.
    pub(crate) fn ended(&self) -> Option<String> {
        self.lock().ended.clone()
    }

    /// Asks a server no more, and says `why`; it is over where it was the last one.
    pub(crate) fn leave_out(&self, server: usize, why: &str) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.seats[server].is_out, true) {
            return;
        }
        if state.seats.iter().all(|seat| seat.is_out) {
            state.ended.get_or_insert_with(|| why.to_owned());
            return;
        }
        drop(state);
        let message = format!("{why}; this server is not used");
        self.waiting.output.warn(message);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks one of the servers in `clients`, by its number, for the answer to `request`. Where nobody is there it is another
    /// one's turn at once, and where nobody is anywhere one waits.
    ///
    /// # Errors
    /// The server failed; where another one may not, [`Failure`] says that another try makes sense.
    pub(crate) fn ask<T>(
        &self,
        request: &Request,
        clients: &[&Client],
        ask: &dyn Fn(usize) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let turn = (request.row, request.turn);
        loop {
            let taken = self.lock().take(turn, self.per_server);
            let Some(server) = taken else {
                if interrupted() {
                    return Err(passing("interrupted"));
                }
                if let Some(ended) = self.ended() {
                    return Err(passing(ended));
                }
                std::thread::sleep(NAP);
                continue;
            };
            if !self.is_there(server, clients) {
                continue;
            }
            match ask(server) {
                Ok(answer) => {
                    let mut state = self.lock();
                    state.seats[server].under_way -= 1;
                    state.seats[server].failed = 0;
                    state.failed.remove(&turn);
                    return Ok(answer);
                }
                // The turn is another one's.
                Err(_) if self.lock().seats[server].is_out => {
                    self.lock().seats[server].under_way -= 1;
                }
                Err(failure) if clients[server].refuses_for().is_some() => {
                    self.nobody_at(server, clients, failure);
                }
                Err(failure) => {
                    let (url, was_lasting) = (clients[server].root(), is_lasting(&failure));
                    let mut state = self.lock();
                    state.seats[server].under_way -= 1;
                    let failure = state.failed(turn, (server, url), failure);
                    // What one server refuses is asked of the others at once.
                    if was_lasting == is_lasting(&failure) {
                        return Err(failure);
                    }
                }
            }
        }
    }

    /// Whether a server that was taken may be asked: where nobody was, one request looks first, so that the others can follow at once.
    fn is_there(&self, server: usize, clients: &[&Client]) -> bool {
        if !self.lock().seats[server].is_looked_at {
            return true;
        }
        if let Err(silent) = clients[server].is_there() {
            self.nobody_at(server, clients, passing(silent.to_string()));
            return false;
        }
        let mut state = self.lock();
        let seat = &mut state.seats[server];
        seat.is_looked_at = false;
        seat.refuses = false;
        drop(state);
        self.waiting.tell_back(clients[server].root());
        true
    }

    /// Notes that nobody is at a server, and says so where somebody was; it is over where nobody has been anywhere for too long.
    fn nobody_at(&self, server: usize, clients: &[&Client], failure: Failure) {
        let url = clients[server].root();
        let longest = self.waiting.longest;
        let is_away = |client: &&Client| client.refuses_for().is_some_and(|away| away >= longest);
        let mut state = self.lock();
        let asked = clients.iter().zip(&state.seats);
        let mut asked = asked.filter(|(_, seat)| !seat.is_out);
        let is_over = asked.all(|(client, _)| is_away(client));
        let seat = &mut state.seats[server];
        seat.under_way -= 1;
        seat.is_looked_at = false;
        seat.look_at = Instant::now() + LOOK_EVERY;
        let is_new = !std::mem::replace(&mut seat.refuses, true);
        if is_over && state.ended.is_none() {
            let (why, waited) = (reason(failure), self.waiting.in_vain());
            let count = state.seats.iter().filter(|seat| !seat.is_out).count();
            state.ended = Some(match count {
                1 => format!("no server answers at `{url}`: {why}{waited}"),
                count => format!("none of the {count} servers answers; `{url}`: {why}{waited}"),
            });
        }
        drop(state);
        if is_new {
            self.waiting.tell(url);
        }
    }
}

impl State {
    /// The server that is asked next for a turn; none while none can be.
    fn take(&mut self, turn: Turn, per_server: usize) -> Option<usize> {
        if self.ended.is_some() {
            return None;
        }
        let now = Instant::now();
        let server = self.due_for_a_look(now).or_else(|| {
            let seats = &self.seats;
            let mut open: Vec<usize> = (0..seats.len()).collect();
            open.retain(|&server| seats[server].is_open());
            let failed = self.failed.get(&turn);
            narrow(&mut open, |server| {
                failed.is_none_or(|failed| !failed.lasting.contains(&server))
            });
            narrow(&mut open, |server| seats[server].rests_until <= now);
            narrow(&mut open, |server| {
                failed.is_none_or(|failed| !failed.all.contains(&server))
            });
            let open = open.into_iter();
            let open = open.filter(|&server| seats[server].under_way < per_server);
            open.min_by_key(|&server| seats[server].under_way)
        })?;
        self.seats[server].under_way += 1;
        Some(server)
    }

    /// The server at which nobody was and it is time to look again, which one request does.
    fn due_for_a_look(&mut self, now: Instant) -> Option<usize> {
        let is_due =
            |seat: &Seat| seat.refuses && !seat.is_out && !seat.is_looked_at && seat.look_at <= now;
        let server = self.seats.iter().position(is_due)?;
        self.seats[server].is_looked_at = true;
        Some(server)
    }

    /// Notes that a server failed a turn, and returns what that means where there are several.
    fn failed(&mut self, turn: Turn, (server, url): (usize, &str), failure: Failure) -> Failure {
        let failed = self.failed.entry(turn).or_default();
        failed.all.insert(server);
        let seat = &mut self.seats[server];
        match &failure {
            Failure::Lasting { .. } => {
                failed.lasting.insert(server);
                seat.fails(None);
            }
            Failure::Passing { wait, .. } => seat.fails(*wait),
        }
        let seats = &self.seats;
        let mut there = (0..seats.len()).filter(|&server| seats[server].is_open());
        let is_last = match &failure {
            Failure::Lasting { .. } => there.all(|server| failed.lasting.contains(&server)),
            Failure::Passing { .. } => there.all(|server| failed.all.contains(&server)),
        };
        if self.seats.len() == 1 {
            return failure;
        }
        let named = |reason: String| format!("`{url}`: {reason}");
        match failure {
            Failure::Lasting { reason } if is_last => Failure::Lasting {
                reason: named(reason),
            },
            Failure::Passing { reason, wait } if is_last => Failure::Passing {
                reason: named(reason),
                wait,
            },
            // Another one may have what this one has not, and need not be waited for.
            other => passing(named(reason(other))),
        }
    }
}

/// Whether the same request would fail again.
fn is_lasting(failure: &Failure) -> bool {
    matches!(failure, Failure::Lasting { .. })
}

impl Seat {
    /// Whether it can be asked: somebody is there, with the model that is wanted.
    fn is_open(&self) -> bool {
        !self.refuses && !self.is_out
    }

    fn fails(&mut self, asked: Option<Duration>) {
        self.failed += 1;
        let rest = match self.failed.checked_sub(MOST_FAILED) {
            Some(more) => Duration::from_secs(1 << more.min(10)).min(LONGEST_REST),
            None => Duration::ZERO,
        };
        let rests_until = Instant::now() + rest.max(asked.unwrap_or_default());
        self.rests_until = self.rests_until.max(rests_until);
    }
}

/// Leaves those that are as they should be, unless none is.
fn narrow(servers: &mut Vec<usize>, is_good: impl Fn(usize) -> bool) {
    if servers.iter().any(|&server| is_good(server)) {
        servers.retain(|&server| is_good(server));
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use serde_json::json;
    use spectrain_data::conversation::Exchange;

    use super::super::waiting::tests::{answer, client, waiting};
    use super::*;

    fn pool(servers: usize, per_server: usize) -> Pool {
        Pool::new(servers, per_server, waiting(0))
    }

    fn lasting(reason: &str) -> Failure {
        Failure::Lasting {
            reason: reason.to_owned(),
        }
    }

    /// The first turn of a conversation.
    fn first_turn(row: u64) -> Request<'static> {
        Request {
            row,
            turn: 1,
            exchange: Exchange {
                messages: &[],
                tools: &[],
                variables: None,
            },
            trained: true,
        }
    }

    #[test]
    fn the_server_with_the_fewest_requests_is_asked_and_none_more_than_it_may() {
        let pool = pool(2, 2);
        assert_eq!(pool.concurrency(), 4);
        let mut state = pool.lock();
        let taken: Vec<_> = (0..5).map(|row| state.take((row, 1), 2)).collect();
        assert_eq!(taken, [Some(0), Some(1), Some(0), Some(1), None]);
        state.seats[1].under_way -= 1;
        assert_eq!(state.take((5, 1), 2), Some(1));
    }

    #[test]
    fn a_turn_that_one_server_fails_goes_to_another() {
        let pool = pool(2, 9);
        let mut state = pool.lock();
        let mut fails = |server, failure| state.failed((7, 1), (server, "u"), failure);
        assert_eq!(fails(0, lasting("too long")), passing("`u`: too long"));
        assert_eq!(fails(1, passing("status 500")), passing("`u`: status 500"));
        assert_eq!(
            state.take((7, 1), 9),
            Some(1),
            "the other one would fail again"
        );
        assert_eq!(state.take((8, 1), 9), Some(0), "another turn");
        let failed = state.failed((7, 1), (1, "u"), lasting("too long"));
        assert_eq!(failed, lasting("`u`: too long"));
    }

    #[test]
    fn a_server_that_only_fails_or_is_busy_is_left_alone_while_there_are_others() {
        let pool = pool(2, 9);
        let mut state = pool.lock();
        for row in 0..3 {
            state.failed((row, 1), (0, "u"), passing("status 500"));
        }
        assert!((0..3).all(|row| state.take((9 + row, 1), 9) == Some(1)));
        let busy = Failure::Passing {
            reason: "busy".into(),
            wait: Some(Duration::from_secs(60)),
        };
        state.failed((20, 1), (1, "u"), busy);
        assert_eq!(state.take((21, 1), 9), Some(0), "both rest");
    }

    #[test]
    fn of_one_server_failures_are_told_as_they_are() {
        let pool = pool(1, 1);
        let busy = Failure::Passing {
            reason: "busy".into(),
            wait: Some(Duration::from_secs(60)),
        };
        assert_eq!(pool.lock().failed((1, 1), (0, "u"), busy.clone()), busy);
        assert_eq!(pool.lock().take((1, 1), 1), Some(0));
    }

    /// What comes of the first turn of this row.
    fn asked(pool: &Pool, row: u64, clients: &[&Client]) -> Result<usize, Failure> {
        let request = first_turn(row);
        let ask = |server: usize| clients[server].post("/", &json!({})).map(|_| server);
        pool.ask(&request, clients, &ask)
    }

    #[test]
    fn where_nobody_is_costs_no_try_and_others_are_asked() {
        let [gone, there] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let clients = [client(&gone), client(&there)];
        let clients = [&clients[0], &clients[1]];
        drop(gone);
        answer(there, "200 OK");
        let pool = pool(2, 1);
        for row in 0..3 {
            assert_eq!(asked(&pool, row, &clients), Ok(1));
        }
        assert_eq!(pool.ended(), None, "one is there");
    }

    #[test]
    fn where_one_has_another_model_the_others_are_waited_for() {
        let [late, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let address = late.local_addr().unwrap();
        let clients = [client(&late), client(&other)];
        let clients = [&clients[0], &clients[1]];
        drop(late);
        answer(other, "200 OK");
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            answer(TcpListener::bind(address).unwrap(), "200 OK");
        });
        let pool = Pool::new(2, 1, waiting(60));
        let request = first_turn(1);
        let ask = |server: usize| {
            clients[server].post("/", &json!({}))?;
            if server == 1 {
                pool.leave_out(server, "another model");
                return Err(lasting("another model"));
            }
            Ok(server)
        };
        assert_eq!(pool.ask(&request, &clients, &ask), Ok(0));
        assert_eq!(pool.lock().seats[1].under_way, 0);
        assert_eq!(pool.ended(), None);
    }

    #[test]
    fn it_is_over_where_no_server_has_the_model() {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let clients = [client(&listeners[0]), client(&listeners[1])];
        let clients = [&clients[0], &clients[1]];
        let pool = Pool::new(2, 1, waiting(60));
        let request = first_turn(1);
        let ask = |server: usize| -> Result<(), Failure> {
            pool.leave_out(server, &format!("`{server}`: another model"));
            Err(lasting("another model"))
        };
        let told = reason(pool.ask(&request, &clients, &ask).unwrap_err());
        assert_eq!(told, "`1`: another model");
        assert_eq!(pool.ended(), Some(told));
    }

    #[test]
    fn what_one_server_refuses_is_asked_of_the_other_at_once_and_it_is_then_left_alone() {
        let [bad, good] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let clients = [client(&bad), client(&good)];
        let clients = [&clients[0], &clients[1]];
        answer(bad, "400 x");
        answer(good, "200 OK");
        let pool = pool(2, 1);
        for row in 0..5 {
            assert_eq!(asked(&pool, row, &clients), Ok(1));
        }
        let mut state = pool.lock();
        assert_eq!(state.seats[0].failed, MOST_FAILED);
        assert_eq!(state.take((9, 1), 1), Some(1));
    }

    #[test]
    fn one_waits_where_nobody_is_anywhere_and_in_the_end_no_longer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, client) = (listener.local_addr().unwrap(), client(&listener));
        drop(listener);
        let short = Pool::new(1, 1, waiting(1));
        let told = reason(asked(&short, 1, &[&client]).unwrap_err());
        assert!(
            told.starts_with(&format!("no server answers at `{}`: ", client.root())),
            "{told}"
        );
        assert!(
            told.ends_with("; waited for 1 s (`features.wait`)"),
            "{told}"
        );
        assert_eq!(short.ended(), Some(told));

        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            answer(TcpListener::bind(address).unwrap(), "200 OK");
        });
        let long = Pool::new(1, 1, waiting(60));
        assert_eq!(asked(&long, 1, &[&client]), Ok(0));
        assert_eq!(long.ended(), None);
    }
}

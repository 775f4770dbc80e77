//! How long servers that are not there yet are waited for: one that loads a large target takes minutes to be there.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::client::{Client, Silent};
use crate::progress::Output;
use crate::runtime::interruption::check_interrupted;

/// How often it is looked whether a server is there.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The longest sleep before it is looked whether the user wants to stop.
const NAP: Duration = Duration::from_millis(50);

/// How long servers that are not there yet are waited for, and where that is said.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// The longest, at the start and at every time when no server is there.
    pub longest: Duration,
    /// The key or the option that says so.
    pub key: &'static str,
    /// Where it is said whom one waits for.
    pub output: Output,
}

impl Waiting {
    /// Waits until somebody is at each of these addresses, or at `enough` of them; says of each whether somebody is.
    ///
    /// # Errors
    /// The user stops it.
    pub(crate) fn until_there(
        &self,
        clients: &[&Client],
        enough: usize,
    ) -> Result<Vec<Result<(), Silent>>> {
        let since = Instant::now();
        let mut told = vec![false; clients.len()];
        loop {
            let found: Vec<_> = clients.iter().map(|client| client.is_there()).collect();
            let there = found.iter().filter(|found| found.is_ok()).count();
            let left = self.longest.saturating_sub(since.elapsed());
            let goes_on = there < enough && !left.is_zero();
            for ((client, found), told) in clients.iter().zip(&found).zip(&mut told) {
                if *told && found.is_ok() {
                    *told = false;
                    self.tell_back(client.root());
                } else if !*told && found.is_err() && goes_on {
                    *told = true;
                    self.tell(client.root());
                }
            }
            if !goes_on {
                return Ok(found);
            }
            let until = Instant::now() + LOOK_EVERY.min(left);
            while Instant::now() < until {
                check_interrupted()?;
                std::thread::sleep(NAP);
            }
        }
    }

    /// Says whom one waits for, and for how long.
    pub(crate) fn tell(&self, url: &str) {
        if self.longest.is_zero() {
            return;
        }
        let (longest, key) = (self.longest.as_secs(), self.key);
        self.output.warn(format!(
            "no server answers at `{url}`: waiting for one, for at most {longest} s (`{key}`)"
        ));
    }

    /// Says that who was waited for is there.
    pub(crate) fn tell_back(&self, url: &str) {
        self.output.say(format!("a server answers at `{url}`"));
    }

    /// How long was waited in vain, as the end of a sentence.
    pub(crate) fn in_vain(&self) -> String {
        match self.longest.as_secs() {
            0 => String::new(),
            longest => format!("; waited for {longest} s (`{}`)", self.key),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use serde_json::json;

    use super::*;

    pub(in super::super) fn waiting(seconds: u64) -> Waiting {
        Waiting {
            longest: Duration::from_secs(seconds),
            key: "features.wait",
            output: Output::Quiet,
        }
    }

    pub(in super::super) fn client(listener: &TcpListener) -> Client {
        let url = format!("http://{}", listener.local_addr().unwrap());
        Client::new("--server", &url, None, Duration::from_secs(20)).unwrap()
    }

    /// Answers every request with this status, on a thread of its own.
    pub(in super::super) fn answer(listener: TcpListener, status: &'static str) {
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.read(&mut [0; 4096]);
                let answer =
                    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes());
            }
        });
    }

    #[test]
    fn a_server_that_comes_later_is_waited_for_and_one_that_fails_is_there() {
        let [late, there] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let (address, clients) = (late.local_addr().unwrap(), [client(&late), client(&there)]);
        drop(late);
        answer(there, "500 x");
        let clients = [&clients[0], &clients[1]];
        // One is enough, or there is no time.
        for (seconds, enough) in [(60, 1), (0, 2)] {
            let found = waiting(seconds).until_there(&clients, enough).unwrap();
            assert!(found[0].is_err() && found[1].is_ok(), "{found:?}");
        }
        let since = Instant::now();
        let found = waiting(1).until_there(&clients, 2).unwrap();
        assert!(found[0].is_err() && since.elapsed() >= Duration::from_secs(1));
        assert!(clients[0].refuses_for().unwrap() >= Duration::from_secs(1));
        assert_eq!(clients[1].refuses_for(), None);
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            answer(TcpListener::bind(address).unwrap(), "404 x");
        });
        let found = waiting(60).until_there(&clients, 2).unwrap();
        assert!(found.iter().all(Result::is_ok), "{found:?}");
        assert_eq!(clients[0].refuses_for(), None);
    }

    #[test]
    fn who_accepts_connections_and_has_no_server_behind_it_is_not_there() {
        let [port, gateway] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [closing, loading] = [client(&port), client(&gateway)];
        std::thread::spawn(move || port.incoming().for_each(drop));
        answer(gateway, "503 x");
        for client in [&closing, &loading] {
            client.is_there().unwrap_err();
            assert!(client.post("/", &json!({})).is_err());
            assert!(client.refuses_for().is_some(), "{}", client.root());
        }
    }

    #[test]
    fn what_was_waited_in_vain_is_said_with_the_key() {
        assert_eq!(waiting(0).in_vain(), "");
        assert_eq!(waiting(7).in_vain(), "; waited for 7 s (`features.wait`)");
    }
}

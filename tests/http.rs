//! HTTP as far as the servers of the tests speak it.
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Serves each connection to the address that it returns in a thread of its own, until `serve` is done with it.
pub fn listen(serve: impl Fn(TcpStream) -> Option<()> + Send + Sync + 'static) -> SocketAddr {
    listen_after(Duration::ZERO, serve)
}

/// The same, where connections are refused for a while.
pub fn listen_after(
    pause: Duration,
    serve: impl Fn(TcpStream) -> Option<()> + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let listener = pause.is_zero().then_some(listener);
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        std::thread::sleep(pause);
        let listener = listener.unwrap_or_else(|| TcpListener::bind(address).unwrap());
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

/// What a client asks for.
pub struct Request {
    pub method: String,
    /// The path, with its query.
    pub target: String,
    /// By their names in small letters.
    headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    /// The next request of a connection.
    pub fn read(reader: &mut BufReader<TcpStream>) -> Option<Self> {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let mut words = line.split(' ').map(str::to_owned);
        let (method, target) = (words.next()?, words.next()?);
        let mut headers = BTreeMap::new();
        loop {
            line.clear();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim().split_once(':') else {
                break;
            };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length");
        let length = length.map_or(Ok(0), |length| length.parse()).ok()?;
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        Some(Self {
            method,
            target,
            headers,
            body,
        })
    }

    /// A header by its name in small letters.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// Answers with a body; `header` are further lines of the head, each with its end.
pub fn respond(out: &mut TcpStream, status: &str, header: &str, body: &str) -> Option<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\n{header}Content-Length: {length}\r\n\r\n");
    out.write_all(format!("{head}{body}").as_bytes()).ok()
}
